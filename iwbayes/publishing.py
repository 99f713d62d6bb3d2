"""publish() and publish_users(): the curator's, for models that the analyst's side makes of formulas."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from iwbayes.curator import publish as curator
from iwbayes.curator.estimators.tilting.staged import StagedTilt
from iwbayes.curator.estimators.tilting.tilt import TiltWeights
from iwbayes.curator.privacy.ledger import Ledger
from iwbayes.curator.privacy.noise import NoiseSource
from iwbayes.curator.protocols import Generator, WeightEstimator
from iwbayes.features.formulas import check_formulas, main_effects
from iwbayes.features.scores import ScoreModel
from iwbayes.release import Release
from iwbayes.schema import Schema
from iwbayes.statement import RowAdjacency
from iwbayes.tables import PrivateTable, SyntheticTable


def publish(
    private: PrivateTable,
    *,
    epsilon: float,
    delta: float,
    n_synthetic: int | None = None,
    generator: Generator | SyntheticTable | None = None,
    weights: WeightEstimator | None = None,
    for_models: Sequence[str | ScoreModel] = (),
    response: str | None = None,
    share: float = 0.3,
    adjacency: RowAdjacency = "replace-one",
    ledger: Ledger | None = None,
    noise: NoiseSource | None = None,
    random_seed: int | np.random.Generator | None = None,
    progressbar: bool = True,
) -> Release:
    """Publish a synthetic table with private weights under one budget.

    Generator and weights are calibrated jointly: their nominal epsilons are the largest multiple of
    ``share`` and ``1 - share`` whose joint privacy loss distribution stays within (epsilon, delta).

    Parameters
    ----------
    private : PrivateTable
        A table with users needs `bound_contributions` and its ledger.
    epsilon, delta : float
        Budget of this release.
    n_synthetic : int, optional
        Synthetic rows, by default five for each private row; to be given where those are in a Dask frame. More rows
        never make a posterior narrower than the private rows would: an analyst's weights sum to the private sample
        size.
    generator : Generator or SyntheticTable, optional
        `BayesNet()` by default. One that is better with a delta works at all of it. Or a table that was made
        elsewhere, of which all rows are published: what it is declared to have cost is part of the budget.
    weights : WeightEstimator, optional
        `TiltWeights()` by default, or `StagedTilt` where models are named; both work at all of delta.
        ``DiscriminatorWeights()`` is free and uses the generator's own discriminator.
    for_models : sequence of str or ScoreModel
        Models that the rows are for: formulas of regressions such as ``["y ~ a + b"]``, or what `iwbayes.model` makes.
        The weights are then measured in stages, by the mean scores of these models and nothing else: see `StagedTilt`.
        With ``weights=TiltWeights(...)``, at delta 0 for example, by the products of columns that the formulas use.
    response : str, optional
        A column that a regression on all others is expected for: its main effects are one more of `for_models`.
    share : float
        The generator's part of epsilon, in (0, 1).
    adjacency : {"replace-one", "zero-out"}
        Of the new ledger; a given ledger has its own.
    ledger : Ledger, optional
        Continue this ledger: the release must fit in what is left, and its statement covers all of it. The whole
        release is charged before its first noise is drawn. The ledger is held until the release is made: others wait.
    noise : NoiseSource, optional
        For a new ledger; `SystemNoise()` by default.
    random_seed : int or numpy.random.Generator, optional
        Seeds the sampling of synthetic rows only, never privacy noise.
    progressbar : bool
        Show the steps where the error stream is a terminal.

    Returns
    -------
    Release

    Raises
    ------
    BudgetExceeded
        When the release does not fit in the given ledger, or has a larger delta; nothing is drawn.
    TypeError, ValueError
        For a wrong argument, before anything is charged.

    Warns
    -----
    PrivacyWarning
        When delta is above one in the number of rows, or of users: whole rows may be exposed with that chance.
    CalibrationWarning
        When products of columns cannot be measured at this budget, before anything is charged: few regressions will be
        calibrated. Name them.

    Examples
    --------
    >>> import iwbayes as iw
    >>> people = iw.datasets.simulate_table("bernoulli", 2000, random_seed=1)
    >>> private = iw.PrivateTable(people.frame, people.schema)
    >>> release = iw.publish(private, epsilon=1.0, delta=1e-6, for_models=["y ~ x + z"], progressbar=False)
    >>> release.weights.method
    'StagedTilt(scores of y ~ x + z)'
    """
    return curator.publish(
        private,
        epsilon=epsilon,
        delta=delta,
        n_synthetic=n_synthetic,
        generator=generator,
        weights=weights_for(weights, for_models, response, getattr(private, "schema", None)),
        share=share,
        adjacency=adjacency,
        ledger=ledger,
        noise=noise,
        random_seed=random_seed,
        progressbar=progressbar,
    )


def publish_users(
    private: PrivateTable,
    *,
    epsilon: float,
    delta: float,
    grid: Sequence[int] = (1, 2, 4, 8),
    bound_share: float = curator.BOUND_SHARE,
    n_synthetic: int | None = None,
    generator: Generator | None = None,
    weights: WeightEstimator | None = None,
    for_models: Sequence[str | ScoreModel] = (),
    response: str | None = None,
    share: float = 0.3,
    ledger: Ledger | None = None,
    random_seed: int | np.random.Generator | None = None,
    progressbar: bool = True,
) -> Release:
    """Publish a table in which people own several rows, so that what is released protects people.

    `bound_contributions` keeps at most tau rows of each user, tau chosen privately from a public grid, and `publish`
    does the rest. Both must fit in the budget before either is charged: a bound alone would be of no use.

    Parameters
    ----------
    private : PrivateTable
        With a user column, as it was read.
    epsilon, delta : float
        Budget of both steps together.
    grid : sequence of int
        Candidates for tau, increasing, chosen without looking at the rows.
    bound_share : float
        Part of epsilon that chooses tau and counts the rows, in (0, 1).
    n_synthetic, generator, weights, for_models, response, share, random_seed, progressbar
        As in `publish`.
    ledger : Ledger, optional
        With adjacency "replace-user"; a new one of this budget by default.

    Returns
    -------
    Release

    Raises
    ------
    BudgetExceeded
        When both steps do not fit in the ledger; nothing is charged or drawn.
    TypeError, ValueError
        For a wrong argument; see `bound_contributions` and `publish`.

    Notes
    -----
    Calibrated intervals for such a release are out of scope: rows of one person are alike, and no interval here
    accounts for that. Every fit of it says "not calibrated", and describes the rows, not the people.

    Examples
    --------
    >>> import pandas as pd
    >>> import iwbayes as iw
    >>> visits = pd.DataFrame({"person": range(60), "cost": [float(i % 9) for i in range(60)]})
    >>> private = iw.PrivateTable(visits, iw.Schema(iw.Real("cost", 0, 10)), user="person")
    >>> release = iw.publish_users(private, epsilon=1, delta=1e-6, grid=[1], n_synthetic=50, progressbar=False)
    >>> release.statement.adjacency, release.certified
    ('replace-user', True)
    """
    return curator.publish_users(
        private,
        epsilon=epsilon,
        delta=delta,
        grid=grid,
        bound_share=bound_share,
        n_synthetic=n_synthetic,
        generator=generator,
        weights=weights_for(weights, for_models, response, getattr(private, "schema", None)),
        share=share,
        ledger=ledger,
        random_seed=random_seed,
        progressbar=progressbar,
    )


def weights_for(
    weights: WeightEstimator | None,
    for_models: Sequence[str | ScoreModel],
    response: str | None = None,
    schema: Schema | None = None,
) -> WeightEstimator:
    """Weights by default, in stages where models are named; what else weights may be is checked later."""
    if isinstance(for_models, str) or not isinstance(for_models, Sequence):
        raise TypeError(
            f"for_models must be a list of formulas such as ['y ~ a + b']; got {type(for_models).__name__}."
        )
    models = list(for_models)
    for model in models:
        if not isinstance(model, str | ScoreModel):
            raise TypeError(
                f"for_models must hold formulas such as 'y ~ a + b', or models of iwbayes.model; got "
                f"{type(model).__name__}."
            )
    if response is not None and schema is not None:
        models.append(main_effects(response, schema))
    if not models:
        return TiltWeights() if weights is None else weights
    if weights is None:
        from iwbayes.analyst.regression.scores import RegressionModel

        return StagedTilt([RegressionModel(model) if isinstance(model, str) else model for model in models])
    if not isinstance(weights, TiltWeights):
        raise TypeError(
            f"for_models chooses the features of TiltWeights; got weights of {type(weights).__name__}. Leave weights "
            f"out to measure the models in stages."
        )
    if weights.for_models:
        raise ValueError("for_models is given twice, by the weights and by the call. Give it once.")
    return replace(weights, for_models=check_formulas(models))  # type: ignore[arg-type]
