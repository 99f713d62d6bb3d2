"""publish() declares the events, calibrates them jointly and runs; publish_users() first bounds the rows per user."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from typing import Any

import numpy as np

from iwbayes.curator.contribution import bound_contributions, bounding_events, check_bounding
from iwbayes.curator.generators.bayesnet.bayesnet import BayesNet
from iwbayes.curator.named_models import weights_for
from iwbayes.curator.pipeline import GivenTable, JointEvents, Pipeline, check_algorithms, owed_events
from iwbayes.curator.plan import ROWS_PER_PRIVATE_ROW, noise_warning
from iwbayes.curator.privacy.accounting import check_budget, largest_scale, noise_event
from iwbayes.curator.privacy.ledger import BudgetExceeded, Ledger
from iwbayes.curator.privacy.noise import NoiseSource
from iwbayes.curator.protocols import Generator, PublicFacts, WeightProvider
from iwbayes.curator.settings import in_words
from iwbayes.curator.weight_providers.tilt import TiltWeights
from iwbayes.evidence.scores import ScoreModel
from iwbayes.release import Release
from iwbayes.release.release import ABOUT
from iwbayes.release.statement import RowAdjacency
from iwbayes.tables import PrivateTable, SyntheticTable
from iwbayes.tables.released_columns import empty_columns
from iwbayes.utils import checks
from iwbayes.utils.display import one_line
from iwbayes.utils.progress import stages
from iwbayes.utils.warnings import CalibrationWarning, IwbayesWarning, WeightsWarning

#: Stages of `publish`, and their relative durations with default settings, roughly.
_STAGES = {
    "waiting for the ledger": 0,
    "calibrating the noise": 1,
    "fitting the generator": 1,
    "sampling synthetic rows": 1,
    "weighting synthetic rows": 5,
}
BOUND_SHARE = 0.1  # of epsilon, by default, for bounding the rows per user


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
    about: Mapping[str, str] | None = None,
    random_seed: int | np.random.Generator | None = None,
    progressbar: bool = True,
) -> Release:
    """Publish a synthetic table with private weights under one privacy budget, as a `Release`.

    Generator and weights share the budget: their nominal epsilons are proportional to ``share`` and ``1 - share``, and
    as large as the joint privacy loss distribution allows within (epsilon, delta).

    Parameters
    ----------
    private : PrivateTable
        The private rows; if users own several, after `bound_contributions`, with its ledger (see `publish_users`).
    epsilon, delta : float
        Privacy budget of this release.
    n_synthetic : int, optional
        Number of synthetic rows. The default is five per private row; there is none for rows in a Dask frame. Weights
        sum to the number of private rows in any case.
    generator : Generator or SyntheticTable, optional
        Generator of the synthetic rows, by default `BayesNet()`; one that benefits from delta uses all of it. A table
        made elsewhere is published as a whole, and its declared cost is part of the budget.
    weights : WeightProvider, optional
        Weight estimator, by default `TiltWeights()`, which uses all of delta.
    for_models : sequence of str or ScoreModel, default ()
        Models that analysts will fit: regression formulas such as ``["y ~ a + b"]``, or models from `iwbayes.model`.
        The weights then measure the mean scores of these models in stages, and nothing else; with
        ``weights=TiltWeights(mechanism="cube", features="products")``, for delta 0, products of columns.
    response : str, optional
        Column whose regression on all others (main effects) is added to `for_models`.
    share : float, default 0.3
        Share of epsilon for the generator, in (0, 1).
    adjacency : {"replace-one", "zero-out"}, default "replace-one"
        Adjacency of the new ledger. A ledger that you pass keeps its adjacency.
    ledger : Ledger, optional
        Ledger to charge, locked until the release is finished. The statement covers all its charges.
    noise : NoiseSource, optional
        Noise source of a new ledger, by default `SystemNoise()`.
    allow_large_delta : bool, default False
        Accept a delta of one over the number of rows or more, which does not protect single rows; the statement names
        it. A ledger that you pass has its own setting.
    about : dict of str, optional
        Texts for the readers of the release: its "name", which the ledger records too, "publisher", "description",
        "purpose", "region", "sector", "date", "legal_basis", "codebook" (source of bounds and levels) and "contact".
        They are published (`Release.to_registry`).
    random_seed : int or numpy.random.Generator, optional
        Seed for sampling the synthetic rows. It never affects the privacy noise.
    progressbar : bool, default True
        Show progress if the error stream is a terminal.

    Raises
    ------
    BudgetExceeded
        If the release does not fit in the ledger, or has a larger delta. No noise is drawn.
    TypeError, ValueError
        If an argument is invalid, or delta is at least one over the number of rows (or users). Nothing is charged.

    Warns
    -----
    CalibrationWarning
        If the budget is so small that few regressions will be calibrated; raised before anything is charged.
    WeightsWarning
        If the weights of the finished release are not fit for use (`Release.unfit`). It is never an error.
    IwbayesWarning
        If a column of the finished release is mostly missing or "other". It is never an error.

    Examples
    --------
    >>> people = iw.datasets.simulate_table("bernoulli", 2000, random_seed=1)
    >>> private = iw.PrivateTable(people.frame, people.schema)
    >>> release = iw.publish(private, epsilon=1.0, delta=1e-6, for_models=["y ~ x + z"], progressbar=False)
    >>> release.weights.method
    'TiltWeights(scores of y ~ x + z)'
    """
    weights = weights_for(weights, for_models, response, getattr(private, "schema", None))
    about = check_about(about)
    generator = BayesNet() if generator is None else generator
    if isinstance(generator, SyntheticTable):
        generator = GivenTable(generator, owed_events(generator, ledger if isinstance(ledger, Ledger) else None))
    epsilon, delta = check_budget(epsilon, delta)
    if not isinstance(private, PrivateTable):
        raise TypeError(f"publish takes a PrivateTable; got {type(private).__name__}. Use PrivateTable(frame, schema).")
    check_algorithms(generator, weights, private, n_synthetic)
    if ledger is None:
        if private.of_users:
            raise ValueError(
                "a table with users needs the ledger that bounded their contributions; got none. Pass ledger=."
            )
    elif not isinstance(ledger, Ledger):
        raise TypeError(f"ledger must be an iwbayes.Ledger; got {type(ledger).__name__}. Pass Ledger(epsilon, delta).")
    elif noise is not None:
        raise ValueError("a given ledger has its own noise source; got both ledger= and noise=. Leave out noise=.")
    else:
        check_ledger(ledger, adjacency, delta, allow_large_delta=allow_large_delta)
    n = _number_of_rows(private, generator, n_synthetic)
    sampler = np.random.default_rng(random_seed)
    if ledger is None:
        ledger = Ledger(epsilon, delta, adjacency, noise=noise, allow_large_delta=allow_large_delta)
    given = generator.table if isinstance(generator, GivenTable) else None
    facts = PublicFacts.of(private, given, ledger, n_synthetic=n)
    if given is not None and isinstance(weights, TiltWeights):
        weights.check_rows(given, facts.n_private)
    events = JointEvents(facts, generator, weights, share, epsilon, delta)
    words = {"generator": in_words(generator), "weights": in_words(weights)}
    with stages(progressbar, "publishing", _STAGES) as step:
        step("waiting for the ledger")
        with ledger.exclusive():
            step("calibrating the noise")
            t = largest_scale(events, epsilon, delta, cost=partial(ledger.price_of_release, delta=delta))
            own, rest = events.parts(t)
            # before the charge: where warnings are errors, the release ends here and nothing is spent
            if given is None and (said := noise_warning(weights, facts, rest, delta)):
                warnings.warn(said, CalibrationWarning, stacklevel=2)
            account = ledger.charge_release(*events(t), delta=delta, name=about.get("name", ""))
            pipeline = Pipeline(generator, weights, own, rest, delta, n)
            synthetic, weighted = pipeline.run(private, account, sampler, step)
            statement = replace(ledger.statement(), on_undeclared=private.on_undeclared)
    made: dict[str, Any] = {"package_version": version("iwbayes"), "share": events.share, "calibration": t}
    recipe = {**words, **made, "settings": pipeline.to_data()}
    if isinstance(weights, TiltWeights) and weights.for_models:
        recipe["for_models"] = [model if isinstance(model, str) else model.name for model in weights.for_models]
    if about:
        recipe["about"] = about
    release = Release(synthetic, weighted, statement, n_private=facts.n_private, recipe=recipe)
    # where warnings are errors, these must not lose a release that was paid for
    if release.unfit:
        with suppress(WeightsWarning):
            warnings.warn(f"{release.unfit}: {release.next_step}.", WeightsWarning, stacklevel=2)
    for found in empty_columns(release.synthetic, release.weights.values):
        with suppress(IwbayesWarning):
            warnings.warn(found.text, IwbayesWarning, stacklevel=2)
    return release


def _number_of_rows(private: PrivateTable, generator: Generator | GivenTable, n_synthetic: int | None) -> int:
    """Return the number of synthetic rows: the given one, five per private row, or those of a given table."""
    if not isinstance(generator, GivenTable):
        n = ROWS_PER_PRIVATE_ROW * private.n_private if n_synthetic is None else n_synthetic
        return checks.whole("n_synthetic", n)
    rows = len(generator.table)
    if n_synthetic not in (None, rows):
        raise ValueError(
            f"all {rows} rows of the given table are published; got n_synthetic={n_synthetic!r}. Leave it out."
        )
    return checks.whole("n_synthetic", rows)


def check_about(about: Mapping[str, str] | None) -> dict[str, str]:
    """Return the texts that go with a release, each in one line; raise if they have other keys or are no texts."""
    given = {} if about is None else about
    if not isinstance(given, Mapping) or not all(isinstance(text, str) for text in given.values()):
        raise TypeError(f"about must be a dict of texts, such as {{'name': 'people 2026'}}; got {about!r}.")
    if unknown := [key for key in given if key not in ABOUT]:
        raise ValueError(f"about has the keys {list(ABOUT)} and no others; got {unknown}.")
    return {key: one_line(given[key]) for key in ABOUT if key in given}


def check_ledger(ledger: Ledger, adjacency: RowAdjacency, delta: float, *, allow_large_delta: bool) -> None:
    """Raise if the ledger has a smaller delta than the release, or its adjacency or its permission is different."""
    if allow_large_delta and not ledger.allow_large_delta:
        raise ValueError(
            "a given ledger has its own setting; got ledger= and allow_large_delta=True. Create the ledger with "
            "allow_large_delta=True, or leave it out."
        )
    if delta > ledger.delta:
        raise BudgetExceeded(
            f"the release's delta must be at most the ledger's, {ledger.delta:g}; got {delta:g}. The ledger counts "
            f"costs at its own delta, so the release would cost more epsilon than requested. Pass a smaller delta; "
            f"nothing was drawn."
        )
    if adjacency != "replace-one" and adjacency != ledger.adjacency:
        raise ValueError(
            f"the ledger's adjacency is {ledger.adjacency!r}; got adjacency={adjacency!r}. Leave out adjacency=."
        )


def publish_users(
    private: PrivateTable,
    *,
    epsilon: float,
    delta: float,
    grid: Sequence[int] = (1, 2, 4, 8),
    bound_share: float = BOUND_SHARE,
    n_synthetic: int | None = None,
    generator: Generator | None = None,
    weights: WeightProvider | None = None,
    for_models: Sequence[str | ScoreModel] = (),
    response: str | None = None,
    share: float = 0.3,
    ledger: Ledger | None = None,
    allow_large_delta: bool = False,
    about: Mapping[str, str] | None = None,
    random_seed: int | np.random.Generator | None = None,
    progressbar: bool = True,
) -> Release:
    """Publish a table in which users own several rows, with user-level privacy: `bound_contributions`, then `publish`.

    Both steps must fit in the budget before either is charged. No interval in this package accounts for similar rows of
    one person, so every fit says "not calibrated", and its intervals describe the rows, not the people.

    Parameters
    ----------
    private : PrivateTable
        Table with a user column, before its contributions are bounded.
    epsilon, delta : float
        Privacy budget of both steps together.
    grid : sequence of int, default (1, 2, 4, 8)
        Candidates for the number of rows per user, in increasing order. Choose them without looking at the rows.
    bound_share : float
        Share of epsilon for choosing this number and counting the rows, in (0, 1).
    n_synthetic, generator, weights, for_models, response, share, allow_large_delta, about, random_seed, progressbar
        As in `publish`.
    ledger : Ledger, optional
        Ledger with adjacency "replace-user". The default is a new ledger with this budget.

    Raises
    ------
    BudgetExceeded
        If both steps together do not fit in the ledger. Nothing is charged and no noise is drawn.
    TypeError, ValueError
        If an argument is invalid; see `bound_contributions` and `publish`.

    Examples
    --------
    >>> import pandas as pd
    >>> visits = pd.DataFrame({"person": range(60), "cost": [float(i % 9) for i in range(60)]})
    >>> private = iw.PrivateTable(visits, iw.Schema(iw.Real("cost", 0, 10)), user="person")
    >>> release = iw.publish_users(private, epsilon=1, delta=1e-6, grid=[1], n_synthetic=50, progressbar=False)
    >>> release.statement.adjacency, release.certified
    ('replace-user', True)
    """
    weights = weights_for(weights, for_models, response, getattr(private, "schema", None))
    epsilon, delta = check_budget(epsilon, delta)
    about = check_about(about)
    if ledger is None:
        ledger = Ledger(epsilon, delta, "replace-user", allow_large_delta=allow_large_delta)
    elif isinstance(ledger, Ledger):  # check_bounding refuses other types
        check_ledger(ledger, "replace-one", delta, allow_large_delta=allow_large_delta)
    grid = check_bounding(private, ledger, grid)
    left = release_epsilon(epsilon, delta, len(grid), ledger, bound_share=bound_share)
    generator = BayesNet() if generator is None else generator
    # run the checks of publish() now, while nothing is charged
    check_algorithms(generator, weights, private, n_synthetic)
    n = 1 if n_synthetic is None else checks.whole("n_synthetic", n_synthetic)
    facts = PublicFacts(private.schema, private.n_users, n, "replace-user", max(grid), private.n_users)
    events = JointEvents(facts, generator, weights, share, left, delta)
    t = largest_scale(events, left, delta, adjacency="replace-user")
    if said := noise_warning(weights, facts, events.parts(t)[1], delta):
        warnings.warn(said, CalibrationWarning, stacklevel=2)
    bounding = bounding_events(bound_share * epsilon, len(grid))
    ledger.check_releases(bounding, [noise_event("release", left, delta)])
    name = f"{about['name']}, rows per person" if "name" in about else ""
    bounded = bound_contributions(private, ledger, epsilon=bound_share * epsilon, grid=grid, name=name)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "noise ratio", CalibrationWarning)  # already shown above
        return publish(
            bounded,
            epsilon=left,
            delta=delta,
            n_synthetic=n_synthetic,
            generator=generator,
            weights=weights,
            share=share,
            ledger=ledger,
            about=about,
            random_seed=random_seed,
            progressbar=progressbar,
        )


def release_epsilon(
    epsilon: float, delta: float, n_candidates: int, ledger: Ledger, *, bound_share: float = BOUND_SHARE
) -> float:
    """Return the part of epsilon left for the release after bounding, under a ledger's rule; charge nothing."""
    checks.share("bound_share", bound_share, f"It is the part of epsilon for bounding, for example {BOUND_SHARE}.")
    both = Ledger(epsilon, delta, "replace-user", rule=ledger.rule)
    both.charge_release(*bounding_events(bound_share * epsilon, n_candidates))  # a scratch ledger: no noise is drawn
    return min((1 - bound_share) * epsilon, both.left[0])
