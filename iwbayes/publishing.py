"""publish() and publish_users() with formulas: they turn `for_models` into score models and call the curator's side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from iwbayes.curator import publish as curator
from iwbayes.curator.privacy.ledger import Ledger
from iwbayes.curator.privacy.noise import NoiseSource
from iwbayes.curator.protocols import Generator, WeightProvider
from iwbayes.curator.weight_providers.staged import StagedTilt
from iwbayes.curator.weight_providers.tilt import TiltWeights
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
    weights: WeightProvider | None = None,
    for_models: Sequence[str | ScoreModel] = (),
    response: str | None = None,
    share: float = 0.3,
    adjacency: RowAdjacency = "replace-one",
    ledger: Ledger | None = None,
    noise: NoiseSource | None = None,
    allow_large_delta: bool = False,
    random_seed: int | np.random.Generator | None = None,
    progressbar: bool = True,
) -> Release:
    """Publish a synthetic table with private weights under one privacy budget.

    Generator and weights share the budget. Their nominal epsilons are proportional to ``share`` and ``1 - share``, and
    as large as the joint privacy loss distribution allows within (epsilon, delta).

    Parameters
    ----------
    private : PrivateTable
        The private rows. If users own several rows, call `bound_contributions` first and pass its ledger, or use
        `publish_users`.
    epsilon, delta : float
        Privacy budget of this release.
    n_synthetic : int, optional
        Number of synthetic rows. The default is five per private row; there is no default for rows in a Dask frame.
        More synthetic rows never make a posterior narrower than the posterior from the private rows, because the
        weights of an analysis sum to the number of private rows.
    generator : Generator or SyntheticTable, optional
        Generator of the synthetic rows, by default `BayesNet()`. A generator that benefits from delta uses all of it.
        You can also pass a table made elsewhere: all its rows are published, and its declared cost is part of the
        budget.
    weights : WeightProvider, optional
        Weight provider. The default is `TiltWeights()`, or `StagedTilt` if models are named; both use all of delta.
        ``DiscriminatorWeights()`` uses the discriminator of the generator and costs nothing in addition.
    for_models : sequence of str or ScoreModel, default ()
        Models that analysts will fit: regression formulas such as ``["y ~ a + b"]``, or models from `iwbayes.model`.
        The weights then measure the mean scores of these models, in stages, and nothing else; see `StagedTilt`. With
        ``weights=TiltWeights(...)``, for example at delta 0, they measure the products of columns that the formulas
        use.
    response : str, optional
        Name of a column. The regression of this column on all others (main effects) is added to `for_models`.
    share : float, default 0.3
        Share of epsilon for the generator, in (0, 1).
    adjacency : {"replace-one", "zero-out"}, default "replace-one"
        Adjacency of the new ledger. A ledger that you pass keeps its adjacency.
    ledger : Ledger, optional
        Ledger to charge. The release must fit in its remaining budget, and the privacy statement covers all its
        charges. The whole release is charged before any noise is drawn. The ledger is locked until the release is
        finished, and other releases wait.
    noise : NoiseSource, optional
        Noise source of a new ledger, by default `SystemNoise()`.
    allow_large_delta : bool, default False
        Accept a delta of one over the number of rows or more, which does not protect single rows. The statement names
        it. A ledger that you pass has its own setting.
    random_seed : int or numpy.random.Generator, optional
        Seed for sampling the synthetic rows. It never affects the privacy noise.
    progressbar : bool, default True
        Show progress if the error stream is a terminal.

    Returns
    -------
    Release
        Synthetic rows, weights and privacy statement.

    Raises
    ------
    BudgetExceeded
        If the release does not fit in the ledger, or has a larger delta. No noise is drawn.
    TypeError, ValueError
        If an argument is invalid, or the delta of the release or the ledger is at least one over the number of rows (or
        users). Nothing is charged.

    Warns
    -----
    CalibrationWarning
        If the budget is too small to measure products of columns, so few regressions will be calibrated. It is raised
        before anything is charged. Name your regressions in `for_models`.

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
        allow_large_delta=allow_large_delta,
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
    weights: WeightProvider | None = None,
    for_models: Sequence[str | ScoreModel] = (),
    response: str | None = None,
    share: float = 0.3,
    ledger: Ledger | None = None,
    allow_large_delta: bool = False,
    random_seed: int | np.random.Generator | None = None,
    progressbar: bool = True,
) -> Release:
    """Publish a table in which users own several rows, with user-level privacy.

    First, `bound_contributions` keeps at most tau rows of each user; tau is chosen privately from a public grid. Then
    `publish` makes the release. Both steps must fit in the budget before either is charged.

    Parameters
    ----------
    private : PrivateTable
        Table with a user column, before its contributions are bounded.
    epsilon, delta : float
        Privacy budget of both steps together.
    grid : sequence of int, default (1, 2, 4, 8)
        Candidates for tau in increasing order. Choose them without looking at the rows.
    bound_share : float
        Share of epsilon for choosing tau and counting the rows, in (0, 1).
    n_synthetic, generator, weights, for_models, response, share, allow_large_delta, random_seed, progressbar
        As in `publish`.
    ledger : Ledger, optional
        Ledger with adjacency "replace-user". The default is a new ledger with this budget.

    Returns
    -------
    Release
        Synthetic rows, weights and privacy statement.

    Raises
    ------
    BudgetExceeded
        If both steps together do not fit in the ledger. Nothing is charged and no noise is drawn.
    TypeError, ValueError
        If an argument is invalid; see `bound_contributions` and `publish`.

    Notes
    -----
    Calibrated intervals for these releases are out of scope: rows of one person are similar, and no interval in this
    package accounts for that. Every fit says "not calibrated". Its intervals describe the rows, not the people.

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
        allow_large_delta=allow_large_delta,
        random_seed=random_seed,
        progressbar=progressbar,
    )


def weights_for(
    weights: WeightProvider | None,
    for_models: Sequence[str | ScoreModel],
    response: str | None = None,
    schema: Schema | None = None,
) -> WeightProvider:
    """Return the weight provider: the given one, or the default for the named models. Other checks come later."""
    if isinstance(for_models, str) or not isinstance(for_models, Sequence):
        raise TypeError(
            f"for_models must be a list of formulas such as ['y ~ a + b']; got {type(for_models).__name__}."
        )
    models = list(for_models)
    for model in models:
        if not isinstance(model, str | ScoreModel):
            raise TypeError(
                f"for_models must contain formulas such as 'y ~ a + b', or models from iwbayes.model; got "
                f"{type(model).__name__}."
            )
    if response is not None and schema is not None:
        models.append(main_effects(response, schema))
    if not models:
        return TiltWeights() if weights is None else weights
    if weights is None:
        from iwbayes.models.regression_scores import RegressionModel

        return StagedTilt([RegressionModel(model) if isinstance(model, str) else model for model in models])
    if not isinstance(weights, TiltWeights):
        raise TypeError(
            f"with for_models, weights must be TiltWeights or left out; got {type(weights).__name__}. Leave weights "
            f"out to measure the models in stages."
        )
    if weights.for_models:
        raise ValueError("for_models was passed twice, to the weights and to this call. Pass it once.")
    return replace(weights, for_models=check_formulas(models))  # type: ignore[arg-type]
