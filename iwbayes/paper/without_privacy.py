"""run_without_privacy(): baselines that protect nobody, as rows and weights, which cannot be published by mistake."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
import pandas as pd

from iwbayes.curator.pipeline import GivenTable, check_algorithms
from iwbayes.curator.privacy.accounting import check_budget
from iwbayes.curator.privacy.ledger import Ledger
from iwbayes.curator.privacy.noise import SeededNoise
from iwbayes.curator.protocols import Generator, WeightProvider, needs_generator
from iwbayes.curator.weight_providers.uniform import UniformWeights
from iwbayes.tables import PrivateTable, SyntheticTable
from iwbayes.utils import checks
from iwbayes.utils.arrays import Array
from iwbayes.utils.warnings import PrivacyWarning


def run_without_privacy(
    private: PrivateTable,
    generator: Generator | SyntheticTable,
    weights: WeightProvider | None = None,
    *,
    epsilon: float = 1.0,
    delta: float = 1e-6,
    n_synthetic: int | None = None,
    random_seed: int = 0,
) -> tuple[pd.DataFrame, Array]:
    """Run a generator and a weight provider without any promise of privacy, for comparisons on public data.

    **The result is private output** if the rows are private: parts such as "LogReg", "MLP" or `GAN` use them without
    noise, and the noise of others is seeded. It is a plain table and an array, and never a `Release`. `publish` and the
    command line refuse an infinite epsilon.

    Parameters
    ----------
    private : PrivateTable
        Rows, of public data.
    generator : Generator or SyntheticTable
        For example ``iw.paper.GAN()``, or rows that are there.
    weights : WeightProvider, optional
        For example ``iw.paper.METHODS["LogReg"]()``; by default all weights are one.
    epsilon, delta : float
        Budget for each of the two parts, as far as it adds noise.
    n_synthetic : int, optional
        Number of rows, by default as many as there are private rows.
    random_seed : int
        Seed of rows and noise.

    Returns
    -------
    tuple of pandas.DataFrame and ndarray, shape (row,)
        Synthetic rows, and weights with mean one.

    Raises
    ------
    TypeError, ValueError
        If an argument is invalid.

    References
    ----------
    Ghalebikesabi et al. (UAI 2022): baselines LogReg, MLP and GAN.

    Examples
    --------
    >>> people = iw.datasets.simulate_table("bernoulli", 300, random_seed=1)
    >>> public = iw.PrivateTable(people.frame, people.schema)
    >>> frame, weights = run_without_privacy(public, iw.BayesNet(), iw.paper.METHODS["LogReg"](), random_seed=1)
    >>> len(frame), round(float(weights.mean()), 6)
    (300, 1.0)
    """
    if not isinstance(private, PrivateTable):
        raise TypeError(f"private must be a PrivateTable; got {type(private).__name__}. Use PrivateTable(...).")
    made: Any = GivenTable(generator, ()) if isinstance(generator, SyntheticTable) else generator
    weights = UniformWeights() if weights is None else weights
    check_algorithms(made, weights, private, n_synthetic)
    epsilon, delta = check_budget(epsilon, delta)
    n = private.n_private if n_synthetic is None else checks.whole("n_synthetic", n_synthetic)
    ledger = Ledger(math.inf, max(delta, 1e-12), noise=SeededNoise(random_seed), allow_large_delta=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivacyWarning)  # this function promises nothing
        table = generator
        if not isinstance(generator, SyntheticTable):
            fitted: Any = generator.fit(private, ledger, epsilon=epsilon, delta=0.0 if generator.pure else delta)
            table = fitted.sample(n, random_seed=random_seed)
            weights = weights.with_generator(fitted) if needs_generator(weights) else weights  # type: ignore[attr-defined]
        assert isinstance(table, SyntheticTable)  # noqa: S101 - a generator's sample is one
        found = weights.fit(private, table, ledger, epsilon=epsilon, delta=0.0 if weights.pure else delta)
    return table.frame, np.asarray(found.values / found.values.mean())
