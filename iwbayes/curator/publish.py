"""publish(): declare the events, calibrate them jointly, run; plan(): the same without any private row."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pandas as pd

from iwbayes._formulas import check_formulas
from iwbayes._warnings import PrivacyWarning
from iwbayes.curator._declared import admit, declared_events, owed_events
from iwbayes.curator._progress import stages
from iwbayes.curator.accounting import check_budget, largest_scale
from iwbayes.curator.estimators.tilt import KAPPA_TARGET, TiltWeights
from iwbayes.curator.generators.bayesnet import BayesNet
from iwbayes.curator.ledger import BudgetExceeded, Ledger
from iwbayes.curator.noise import NoiseSource
from iwbayes.curator.protocols import (
    Generator,
    GeneratorsEstimator,
    PublicFacts,
    WeightEstimator,
    check_rows_at_hand,
    gives_log_ratio,
    is_generator,
    is_weight_estimator,
    prefers_delta,
)
from iwbayes.release import Release
from iwbayes.schema import Schema
from iwbayes.statement import Event
from iwbayes.tables import PrivateTable, SyntheticTable

#: Stages of `publish`, and about how long they take beside each other with default settings.
_STAGES = {
    "waiting for the ledger": 0,
    "calibrating the noise": 1,
    "fitting the generator": 1,
    "sampling synthetic rows": 1,
    "weighting synthetic rows": 5,
}
#: Synthetic rows for each private row by default.
ROWS_PER_PRIVATE_ROW = 5
#: Rows of the public reference table that `plan` reads kappa from.
_PLAN_ROWS = 4096
#: Features that a regression with one predictor asks for: the least that naming the regressions leads to.
_FEATURES_OF_ONE_PREDICTOR = 4


def publish(
    private: PrivateTable,
    *,
    epsilon: float,
    delta: float,
    n_synthetic: int | None = None,
    generator: Generator | SyntheticTable | None = None,
    weights: WeightEstimator | None = None,
    for_models: Sequence[str] = (),
    share: float = 0.3,
    adjacency: str = "replace-one",
    ledger: Ledger | None = None,
    noise: NoiseSource | None = None,
    rng: int | np.random.Generator | None = None,
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
        `TiltWeights()` by default; it works at all of delta. ``DiscriminatorWeights()`` is free and uses the
        generator's own discriminator.
    for_models : sequence of str
        Formulas of the regressions that the rows are for, such as ``["y ~ a + b"]``: the tilt measures what their
        scores use and nothing else, with less noise where that is fewer features. See `TiltWeights`.
    share : float
        The generator's part of epsilon, in (0, 1).
    adjacency : {"replace-one", "zero-out"}
        Of the new ledger; a given ledger has its own.
    ledger : Ledger, optional
        Continue this ledger: the release must fit in what is left, and its statement covers all of it. The whole
        release is charged before its first noise is drawn. The ledger is held until the release is made: others wait.
    noise : NoiseSource, optional
        For a new ledger; `SystemNoise()` by default.
    rng : int or numpy.random.Generator, optional
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
    """
    generator = BayesNet() if generator is None else generator
    if isinstance(generator, SyntheticTable):
        owed = owed_events(generator, ledger) if isinstance(ledger, Ledger) else declared_events(generator)
        generator = _Given(generator, owed)
    weights = _for_models(weights, for_models)
    epsilon, delta = check_budget(epsilon, delta)
    n = _check_arguments(private, generator, weights, n_synthetic, share, ledger, adjacency, noise, delta)
    sampler = np.random.default_rng(rng)
    _warn_of_delta(delta, *(("rows", private.n_private) if private.users is None else ("users", private.n_users)))
    if ledger is None:
        ledger = Ledger(epsilon, delta, adjacency, noise=noise)
    facts = PublicFacts.of(private, None, ledger, n_synthetic=n)
    share = _generators_share(share, facts, generator, weights, epsilon, delta)
    events = _joint_events(facts, generator, weights, share, epsilon, delta)
    with stages(progressbar, "publishing", _STAGES) as step:
        step("waiting for the ledger")
        with ledger.exclusive():
            step("calibrating the noise")
            t = largest_scale(events, epsilon, delta, cost=partial(ledger.price_of_release, delta=delta))
            account = ledger.charge_release(*events(t), delta=delta)
            step("fitting the generator")
            own = share * t * epsilon if share > 0 else epsilon
            fitted = generator.fit(private, account, epsilon=own, delta=_generators_delta(generator, delta))
            step("sampling synthetic rows")
            synthetic = fitted.sample(n, rng=sampler)
            step("weighting synthetic rows")
            if _needs_generator(weights):
                weights = weights.with_generator(fitted)  # type: ignore[attr-defined]
            weighted = weights.fit(
                private,
                synthetic,
                account,
                epsilon=(1 - share) * t * epsilon if share < 1 else epsilon,
                delta=0.0 if weights.pure else delta,
            )
            statement = replace(ledger.statement(), on_undeclared=private.on_undeclared)
    recipe = {
        "generator": repr(generator),
        "weights": repr(weights),
        "share": share,
        "calibration": t,
        "network": repr(fitted),
    }
    if isinstance(weights, TiltWeights) and weights.for_models:
        recipe["for_models"] = list(weights.for_models)
    return Release(synthetic, weighted, statement, n_private=facts.n_private, recipe=recipe)


@dataclass(frozen=True)
class _Given:
    """A table that was made elsewhere, in the place of a generator: what it is declared to have cost is charged."""

    table: SyntheticTable
    owed: tuple[Event, ...]

    reads_blocks = True

    @property
    def pure(self) -> bool:
        return True

    def events(self, facts: PublicFacts, *, epsilon: float, delta: float = 0.0) -> tuple[Event, ...]:
        return self.owed

    def fit(self, private: PrivateTable, ledger: Ledger, *, epsilon: float, delta: float = 0.0) -> _Given:
        admit(self.table, ledger)
        return self

    def sample(self, n: int, *, rng: int | np.random.Generator | None = None) -> SyntheticTable:
        return self.table

    def __repr__(self) -> str:
        return f"{self.table.origin or 'unknown origin'}, {len(self.table)} rows"


@dataclass(frozen=True)
class Plan:
    """What a release would look like, from public quantities only.

    Parameters
    ----------
    epsilon_generator, epsilon_weights : float
        Nominal epsilon of either part after joint calibration.
    events : tuple of Event
    terms : str
        Feature terms that the tilt is expected to keep.
    n_features : int
    noise_sd : float
        Standard deviation of the noise in each coordinate of the features' mean.
    kappa : float
        Noise against the synthetic spread over all features; above 0.5 not even the fewest features are within it. It
        is as a rule smaller than that of a small table's release, whose rows spread less than uniform ones, and another
        number than a fit's, which has a limit of its own and is that of one parameter.
    epsilon, delta : float
        Budget of both parts together.
    """

    epsilon_generator: float
    epsilon_weights: float
    events: tuple[Event, ...]
    terms: str
    n_features: int
    noise_sd: float
    kappa: float
    epsilon: float
    delta: float

    def __str__(self) -> str:
        """Say the plan in words."""
        verdict = "within" if self.kappa <= KAPPA_TARGET else "ABOVE"
        text = (
            f"generator epsilon {self.epsilon_generator:.4g}, weights epsilon {self.epsilon_weights:.4g} (each alone; "
            f"jointly within epsilon {self.epsilon:g} at delta {self.delta:g}); "
            f"{self.terms} terms, {self.n_features} features, noise sd {self.noise_sd:.4g} each; "
            f"noise over spread (kappa of the plan) {self.kappa:.3g}, {verdict} the target of {KAPPA_TARGET}."
        )
        return f"{text} {self.advice}".rstrip()

    @property
    def advice(self) -> str:
        """What to do where few regressions will be calibrated; empty where nothing is amiss."""
        # noise and kappa are about proportional to the number of features
        least = self.kappa * min(1.0, _FEATURES_OF_ONE_PREDICTOR / self.n_features)
        named = self.terms.startswith("model")
        if self.kappa > KAPPA_TARGET and (named or least > KAPPA_TARGET):
            of = "those of the named regressions" if named else "those of one predictor"
            return (
                f"That is too much noise for any features, even {of}, and few regressions will be calibrated: it takes "
                f"more rows or a larger epsilon."
            )
        if self.kappa > KAPPA_TARGET or self.terms in ("linear", "squares"):
            what = "So many features" if self.terms == "quadratic" else "Products of columns"
            fault = "drown in noise" if self.terms == "quadratic" else "are not measured"
            return f"{what} {fault}: name the regressions by for_models, or few will be calibrated."
        return ""


def plan(
    schema: Schema,
    n: int,
    *,
    epsilon: float,
    delta: float,
    generator: Generator | None = None,
    weights: TiltWeights | None = None,
    for_models: Sequence[str] = (),
    share: float = 0.3,
    adjacency: str = "replace-one",
    rows_per_user: int = 1,
) -> Plan:
    """Tell the expected noise, features and kappa of `publish` before any private row is touched.

    Features are built on rows drawn uniformly within the schema's bounds, since the synthetic rows do not
    exist yet; the release itself builds them on its own synthetic rows, weighted by the tilt's base if there is one.

    Parameters
    ----------
    schema : Schema
    n : int
        Number of private rows (public).
    epsilon, delta, generator, weights, for_models, share, adjacency
        As in `publish`.
    rows_per_user : int
        Most rows that a user owns, under "replace-user".

    Returns
    -------
    Plan

    Warns
    -----
    PrivacyWarning
        As in `publish`.
    """
    generator = BayesNet() if generator is None else generator
    tilt = _for_models(weights, for_models)
    epsilon, delta = check_budget(epsilon, delta)
    if isinstance(n, bool) or not isinstance(n, int | np.integer) or n < 1:
        raise ValueError(f"n must be a whole number of at least 1; got {n!r}.")
    _check_share(share)
    if not isinstance(tilt, TiltWeights):
        raise TypeError(f"plan knows the noise of TiltWeights only; got {type(tilt).__name__}. See its events().")
    if isinstance(rows_per_user, bool) or not isinstance(rows_per_user, int | np.integer) or rows_per_user < 1:
        raise ValueError(f"rows_per_user must be a whole number of at least 1; got {rows_per_user!r}.")
    if rows_per_user > 1 and adjacency != "replace-user":
        raise ValueError(f"under {adjacency!r} everybody owns one row. Use adjacency='replace-user' for users.")
    facts = PublicFacts(schema, int(n), ROWS_PER_PRIVATE_ROW * int(n), adjacency, int(rows_per_user))
    events = _joint_events(facts, generator, tilt, share, epsilon, delta)
    t = largest_scale(events, epsilon, delta, adjacency=adjacency)
    _warn_of_delta(delta, "users" if adjacency == "replace-user" else "rows", int(n))
    part = (1 - share) * t * epsilon
    own = tilt.parts(facts, epsilon=part, delta=0.0 if tilt.pure else delta)
    reference = uniform_table(schema, _PLAN_ROWS, rng=0)
    design = tilt.design(reference, facts, epsilon=own.epsilon, delta=own.delta)
    return Plan(
        share * t * epsilon,
        part,
        tuple(events(t)),
        design.terms,
        design.features.dim,
        design.noise_sd,
        design.kappa,
        epsilon,
        delta,
    )


def uniform_table(schema: Schema, n: int, *, rng: int | np.random.Generator | None = None) -> SyntheticTable:
    """Rows drawn uniformly within the schema's bounds and levels: a public reference, no data."""
    from iwbayes.curator.generators._bins import ColumnBins

    rng = np.random.default_rng(rng)
    columns = {}
    for column in schema:
        bins = ColumnBins.of(column, 128)
        columns[column.name] = bins.values(rng.choice(bins.size, n, p=bins.even_law), rng)
    return SyntheticTable(pd.DataFrame(columns), schema, origin="uniform", already_spent=(0, 0))


def _for_models(weights: WeightEstimator | None, formulas: Sequence[str]) -> WeightEstimator:
    """Weights by default, and a tilt for the models that are named; what else weights may be is checked later."""
    weights = TiltWeights() if weights is None else weights
    if not check_formulas(formulas):
        return weights
    if not isinstance(weights, TiltWeights):
        raise TypeError(f"for_models chooses the features of TiltWeights; got weights of {type(weights).__name__}.")
    if weights.for_models:
        raise ValueError("for_models is given twice, by the weights and by the call. Give it once.")
    return replace(weights, for_models=formulas)


def _needs_generator(weights: WeightEstimator) -> bool:
    return isinstance(weights, GeneratorsEstimator) and weights.needs_generator


def _generators_delta(generator: Generator, delta: float) -> float:
    return delta if prefers_delta(generator) or not generator.pure else 0.0


def _generators_share(
    share: float,
    facts: PublicFacts,
    generator: Generator,
    weights: WeightEstimator,
    epsilon: float,
    delta: float,
) -> float:
    """Give the generator everything when the weights cost nothing, and nothing when it is a table that exists."""
    if isinstance(generator, _Given):
        share = 0.0
    events = weights.events(facts, epsilon=(1 - share) * epsilon, delta=0.0 if weights.pure else delta)
    if any(event.mechanism == "none" for event in events):
        raise BudgetExceeded(_endless(events[0].label, epsilon))
    return share if events else 1.0


def _endless(label: str, epsilon: float) -> str:
    return (
        f"{label}: without noise the cost is infinite; the budget is epsilon {epsilon:g}. For an experiment that "
        f"protects nobody fit the parts yourself under Ledger(math.inf, ...); nothing was drawn."
    )


def _joint_events(
    facts: PublicFacts,
    generator: Generator,
    weights: WeightEstimator,
    share: float,
    epsilon: float,
    delta: float,
) -> Callable[[float], tuple[Event, ...]]:
    part_delta = 0.0 if weights.pure else delta
    own_delta = _generators_delta(generator, delta)

    def events(t: float) -> tuple[Event, ...]:
        own = generator.events(facts, epsilon=share * t * epsilon, delta=own_delta)
        if any(event.mechanism == "none" for event in own):
            raise BudgetExceeded(_endless(own[0].label, epsilon))
        if share == 1:
            return own
        return (*own, *weights.events(facts, epsilon=(1 - share) * t * epsilon, delta=part_delta))

    return events


def _warn_of_delta(delta: float, units: str, n: int) -> None:
    """Warn of a delta that allows to publish some rows as they are; the warning is the caller's caller's."""
    if delta * n > 1:
        warnings.warn(
            f"delta {delta:g} is above one in the number of {units} ({n}): {units} may be exposed whole with that "
            f"chance. Use a delta well below {1 / n:.2g}, such as {10.0 ** (math.floor(-math.log10(n)) - 2):g}.",
            PrivacyWarning,
            stacklevel=3,
        )


def _check_share(share: float) -> None:
    if not 0 < share < 1:
        raise ValueError(f"share must be in (0, 1), the generator's part of epsilon; got {share!r}.")


def _check_arguments(
    private: PrivateTable,
    generator: Generator,
    weights: WeightEstimator,
    n_synthetic: int | None,
    share: float,
    ledger: Ledger | None,
    adjacency: str,
    noise: NoiseSource | None,
    delta: float,
) -> int:
    """Refuse wrong arguments before anything is charged; return the number of synthetic rows."""
    if not isinstance(private, PrivateTable):
        raise TypeError(f"publish takes a PrivateTable; got {type(private).__name__}. Use PrivateTable(frame, schema).")
    for name, value, fits in (("generator", generator, is_generator), ("weights", weights, is_weight_estimator)):
        if not fits(value):
            got = f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__
            raise TypeError(f"{name} must have pure, events() and fit(); got {got}. Pass an instance.")
    if ledger is not None and not isinstance(ledger, Ledger):
        raise TypeError(f"ledger must be an iwbayes.Ledger; got {type(ledger).__name__}.")
    if _needs_generator(weights) and not gives_log_ratio(generator):
        raise ValueError(
            f"{type(weights).__name__} waits for the generator's own discriminator, and {type(generator).__name__} has "
            f"none with log odds. Use a GAN with loss='logistic', or other weights."
        )
    for algorithm in (generator, weights):
        check_rows_at_hand(algorithm, private)
    if not private.in_memory and n_synthetic is None and not isinstance(generator, _Given):
        raise ValueError(
            f"five synthetic rows for each of {private.n_private} private ones, which are not in memory, may not fit "
            "there either. Give n_synthetic."
        )
    if private.users is not None and ledger is None:
        raise ValueError("a table with users comes with the ledger that bounded their contributions. Pass ledger=.")
    n = ROWS_PER_PRIVATE_ROW * private.n_private if n_synthetic is None else n_synthetic
    if isinstance(generator, _Given):
        if generator.table.schema != private.schema:
            raise ValueError("private and synthetic rows must share one schema. Make the table under it.")
        n = len(generator.table) if n_synthetic is None else n_synthetic
        if n != len(generator.table):
            raise ValueError(
                f"all {len(generator.table)} rows of the given table are published; got n_synthetic={n!r}."
            )
    if isinstance(n, bool) or not isinstance(n, int | np.integer) or n < 1:
        raise ValueError(f"n_synthetic must be a whole number of at least 1; got {n_synthetic!r}.")
    _check_share(share)
    if ledger is not None and delta > ledger.delta:
        raise BudgetExceeded(
            f"the release's delta must be at most that of the ledger, {ledger.delta:g}, at which its cost is counted: "
            f"else it costs more epsilon than was asked for; got {delta:g}. Ask for less; nothing was drawn."
        )
    if ledger is not None and noise is not None:
        raise ValueError("a given ledger has its own noise source; pass either ledger or noise.")
    if ledger is not None and adjacency != "replace-one" and adjacency != ledger.adjacency:
        raise ValueError(f"the ledger's adjacency is {ledger.adjacency!r}; got adjacency={adjacency!r}.")
    return int(n)
