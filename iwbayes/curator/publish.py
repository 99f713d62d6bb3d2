"""publish() declares the events, calibrates them jointly and runs; publish_users() first bounds the rows per user."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from iwbayes._warnings import CalibrationWarning
from iwbayes.curator.contribution import bound_contributions, bounding_events, check_bounding
from iwbayes.curator.generators.bayesnet.bayesnet import BayesNet
from iwbayes.curator.pipeline import Pipeline
from iwbayes.curator.plan import (
    ROWS_PER_PRIVATE_ROW,
    GivenTable,
    check_algorithms,
    check_delta,
    check_share,
    check_whole,
    joint_events,
    own_delta,
    warn_of_noise,
)
from iwbayes.curator.privacy.accounting import check_budget, largest_scale, noise_event
from iwbayes.curator.privacy.declared import owed_events
from iwbayes.curator.privacy.ledger import Ledger
from iwbayes.curator.privacy.noise import NoiseSource
from iwbayes.curator.progress import stages
from iwbayes.curator.protocols import Generator, PublicFacts, WeightProvider
from iwbayes.curator.settings import in_words
from iwbayes.curator.weight_providers.staged import StagedTilt
from iwbayes.curator.weight_providers.tilt import TiltWeights
from iwbayes.release import Release
from iwbayes.statement import RowAdjacency
from iwbayes.tables import PrivateTable, SyntheticTable

#: Stages of `publish`, and their relative durations with default settings, roughly.
_STAGES = {
    "waiting for the ledger": 0,
    "calibrating the noise": 1,
    "fitting the generator": 1,
    "sampling synthetic rows": 1,
    "weighting synthetic rows": 5,
}
#: Default part of epsilon for bounding the rows per user.
BOUND_SHARE = 0.1


def publish(
    private: PrivateTable,
    *,
    epsilon: float,
    delta: float,
    n_synthetic: int | None = None,
    generator: Generator | SyntheticTable | None = None,
    weights: WeightProvider | None = None,
    share: float = 0.3,
    adjacency: RowAdjacency = "replace-one",
    ledger: Ledger | None = None,
    noise: NoiseSource | None = None,
    allow_large_delta: bool = False,
    random_seed: int | np.random.Generator | None = None,
    progressbar: bool = True,
) -> Release:
    """Publish a synthetic table with private weights; see `iwbayes.publish`, which also accepts models."""
    generator = BayesNet() if generator is None else generator
    if isinstance(generator, SyntheticTable):
        generator = GivenTable(generator, owed_events(generator, ledger if isinstance(ledger, Ledger) else None))
    weights = TiltWeights() if weights is None else weights
    epsilon, delta = check_budget(epsilon, delta)
    n = _check_arguments(private, generator, weights, n_synthetic, share, ledger, adjacency, noise, delta)
    check_permission(ledger, allow_large_delta)
    sampler = np.random.default_rng(random_seed)
    if ledger is None:
        ledger = Ledger(epsilon, delta, adjacency, noise=noise, allow_large_delta=allow_large_delta)
    facts = PublicFacts.of(private, None, ledger, n_synthetic=n)
    warn_of_noise(facts, generator, weights, epsilon, delta, share)
    if isinstance(generator, GivenTable):
        share = 0.0  # a given table needs no share of the budget
        if isinstance(weights, StagedTilt):
            weights.check_rows(generator.table, facts.n_private)
    if not weights.events(facts, epsilon=(1 - share) * epsilon, delta=own_delta(weights, delta)):
        share = 1.0  # weights that cost nothing need no share either
    events = joint_events(facts, generator, weights, share, epsilon, delta)
    words = {"generator": in_words(generator), "weights": in_words(weights)}
    with stages(progressbar, "publishing", _STAGES) as step:
        step("waiting for the ledger")
        with ledger.exclusive():
            step("calibrating the noise")
            t = largest_scale(events, epsilon, delta, cost=partial(ledger.price_of_release, delta=delta))
            account = ledger.charge_release(*events(t), delta=delta)
            own = share * t * epsilon if share > 0 else epsilon
            rest = (1 - share) * t * epsilon if share < 1 else epsilon
            pipeline = Pipeline(generator, weights, own, rest, delta, n)
            _, synthetic, weighted = pipeline.run(private, account, sampler, step)
            statement = replace(ledger.statement(), on_undeclared=private.on_undeclared)
    recipe = {**words, "share": share, "calibration": t, "settings": pipeline.to_data()}
    if isinstance(weights, TiltWeights) and weights.for_models:
        recipe["for_models"] = list(weights.for_models)
    if isinstance(weights, StagedTilt):
        recipe["for_models"] = [model.name for model in weights.models]
    return Release(synthetic, weighted, statement, n_private=facts.n_private, recipe=recipe)


def _check_arguments(
    private: PrivateTable,
    generator: Generator,
    weights: WeightProvider,
    n_synthetic: int | None,
    share: float,
    ledger: Ledger | None,
    adjacency: RowAdjacency,
    noise: NoiseSource | None,
    delta: float,
) -> int:
    """Check all arguments before anything is charged, and return the number of synthetic rows."""
    if not isinstance(private, PrivateTable):
        raise TypeError(f"publish takes a PrivateTable; got {type(private).__name__}. Use PrivateTable(frame, schema).")
    check_algorithms(generator, weights, private)
    if ledger is not None and not isinstance(ledger, Ledger):
        raise TypeError(f"ledger must be an iwbayes.Ledger; got {type(ledger).__name__}. Pass Ledger(epsilon, delta).")
    if not isinstance(generator, GivenTable):
        check_n_synthetic(private, n_synthetic)
    if private.of_users and ledger is None:
        raise ValueError(
            "a table with users needs the ledger that bounded their contributions; got none. Pass ledger=."
        )
    n = ROWS_PER_PRIVATE_ROW * private.n_private if n_synthetic is None else n_synthetic
    if isinstance(generator, GivenTable):
        rows = len(generator.table)
        if generator.table.schema != private.schema:
            raise ValueError(
                "private and synthetic rows must share one schema. Build the synthetic table with the private schema."
            )
        n = rows if n_synthetic is None else n_synthetic
        if n != rows:
            raise ValueError(f"all {rows} rows of the given table are published; got n_synthetic={n!r}. Leave it out.")
    n = check_whole("n_synthetic", n)
    check_share(share)
    if ledger is None:
        return n
    if noise is not None:
        raise ValueError("a given ledger has its own noise source; got both ledger= and noise=. Leave out noise=.")
    check_ledger(ledger, adjacency, delta)
    return n


def check_permission(ledger: Ledger | None, allow_large_delta: bool) -> None:
    """Raise ValueError if a large delta is allowed for a given ledger that does not allow it."""
    if ledger is not None and allow_large_delta and not ledger.allow_large_delta:
        raise ValueError(
            "a given ledger has its own setting; got ledger= and allow_large_delta=True. Create the ledger with "
            "allow_large_delta=True, or leave it out."
        )


def check_n_synthetic(private: PrivateTable, n_synthetic: int | None) -> None:
    """Raise ValueError if n_synthetic is missing for private rows that are not in memory."""
    if not private.in_memory and n_synthetic is None:
        raise ValueError(
            "the default of five synthetic rows per private row may not fit in memory, because the private rows are in "
            "a Dask frame. Pass n_synthetic."
        )


def check_ledger(ledger: Ledger, adjacency: RowAdjacency, delta: float) -> None:
    """Raise if the ledger has a smaller delta than the release, or a different adjacency."""
    check_delta(delta, ledger)
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
    share: float = 0.3,
    ledger: Ledger | None = None,
    allow_large_delta: bool = False,
    random_seed: int | np.random.Generator | None = None,
    progressbar: bool = True,
) -> Release:
    """Bound the number of rows per user, then publish; see `iwbayes.publish_users`."""
    epsilon, delta = check_budget(epsilon, delta)
    check_permission(ledger, allow_large_delta)
    if ledger is None:
        ledger = Ledger(epsilon, delta, "replace-user", allow_large_delta=allow_large_delta)
    grid = check_bounding(private, ledger, grid)
    check_delta(delta, ledger)
    left = release_epsilon(epsilon, delta, len(grid), ledger, bound_share=bound_share)
    generator = BayesNet() if generator is None else generator
    provider = TiltWeights() if weights is None else weights
    # run the checks of publish() now, while nothing is charged
    check_algorithms(generator, provider, private)
    check_share(share)
    check_n_synthetic(private, n_synthetic)
    n = 1 if n_synthetic is None else check_whole("n_synthetic", n_synthetic)
    facts = PublicFacts(private.schema, private.n_users, n, "replace-user", max(grid), private.n_users)
    joint_events(facts, generator, provider, share, left, delta)(1.0)
    warn_of_noise(facts, generator, provider, left, delta, share)
    bounding = bounding_events(bound_share * epsilon, len(grid))
    ledger.check_releases(bounding, [noise_event("release", left, delta)])
    bounded = bound_contributions(private, ledger, epsilon=bound_share * epsilon, grid=grid)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "noise ratio", CalibrationWarning)  # already shown above
        return publish(
            bounded,
            epsilon=left,
            delta=delta,
            n_synthetic=n_synthetic,
            generator=generator,
            weights=provider,
            share=share,
            ledger=ledger,
            random_seed=random_seed,
            progressbar=progressbar,
        )


def release_epsilon(
    epsilon: float, delta: float, n_candidates: int, ledger: Ledger, *, bound_share: float = BOUND_SHARE
) -> float:
    """Return the part of epsilon left for the release after bounding, under a ledger's rule; charge nothing."""
    if not 0 < bound_share < 1:
        raise ValueError(
            f"bound_share must be in (0, 1), the part of epsilon for bounding; got {bound_share!r}. Pass for example "
            f"{BOUND_SHARE}."
        )
    both = Ledger(epsilon, delta, "replace-user", rule=ledger.rule)
    both.charge_release(*bounding_events(bound_share * epsilon, n_candidates))  # a scratch ledger: no noise is drawn
    return min((1 - bound_share) * epsilon, both.left[0])
