"""The weight methods of Ghalebikesabi et al. (UAI 2022) by their published names.

>>> METHODS["BetaNoised"](l2=0.01)
LogisticWeights(l2=0.01, mechanism='paper', debias=False, centred=True)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType

from iwbayes.curator.protocols import WeightProvider
from iwbayes.curator.weight_providers.uniform import UniformWeights
from iwbayes.paper.given_ratio import DiscriminatorWeights, KnownRatioWeights
from iwbayes.paper.logistic_weights import LogisticWeights
from iwbayes.paper.neural_weights import NeuralWeights
from iwbayes.paper.printed_network import PrintedNeuralWeights

#: Maps the paper's names to configured weight providers. Call an entry to get one; pass keywords to change its
#: settings. "True" takes the known log ratio, and "Discriminator" the fitted network. "LogReg" and "MLP" add no noise
#: and need a ledger with an infinite budget. "BetaNoised" and "BetaDebiased" are charged at their true cost.
METHODS: Mapping[str, Callable[..., WeightProvider]] = MappingProxyType(
    {
        "None": UniformWeights,
        "True": KnownRatioWeights,
        "LogReg": partial(LogisticWeights, l2=0.1, mechanism="none"),
        "BetaNoised": partial(LogisticWeights, l2=0.1, mechanism="paper", debias=False),
        "BetaDebiased": partial(LogisticWeights, l2=0.1, mechanism="paper", debias=True),
        "MLP": partial(NeuralWeights, mechanism="none"),
        "DP-MLP": partial(NeuralWeights, mechanism="dp-sgd"),
        "DP-MLP as printed": PrintedNeuralWeights,
        "Discriminator": DiscriminatorWeights,
    }
)
