"""The weight methods of Ghalebikesabi et al. (UAI 2022) by their published names.

>>> PAPER_METHODS["BetaNoised"](l2=0.01)
LogisticWeights(l2=0.01, mechanism='paper', debias=False)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType

from iwbayes.curator.estimators.fixed import DiscriminatorWeights, KnownRatioWeights, UniformWeights
from iwbayes.curator.estimators.logistic import LogisticWeights
from iwbayes.curator.estimators.neural import NeuralWeights
from iwbayes.curator.protocols import WeightEstimator

#: Maps the paper's names to configured estimators. Call an entry to get one; pass keywords to change its settings.
#: "True" takes the known log ratio, and "Discriminator" the fitted network. "LogReg" and "MLP" add no noise and
#: need a ledger with an infinite budget. "BetaNoised" and "BetaDebiased" are charged at their true cost.
PAPER_METHODS: Mapping[str, Callable[..., WeightEstimator]] = MappingProxyType(
    {
        "None": UniformWeights,
        "True": KnownRatioWeights,
        "LogReg": partial(LogisticWeights, l2=0.1, mechanism="none"),
        "BetaNoised": partial(LogisticWeights, l2=0.1, mechanism="paper", debias=False),
        "BetaDebiased": partial(LogisticWeights, l2=0.1, mechanism="paper", debias=True),
        "MLP": partial(NeuralWeights, mechanism="none"),
        "DP-MLP": partial(NeuralWeights, mechanism="dp-sgd"),
        "Discriminator": DiscriminatorWeights,
    }
)
