"""plan(): what a release will measure and with how much noise, without any private row."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pandas as pd

from iwbayes._warnings import CalibrationWarning, PrivacyWarning
from iwbayes.curator.estimators.tilting.staged import StagedTilt
from iwbayes.curator.estimators.tilting.tilt import TiltWeights
from iwbayes.curator.generators.bayesnet.bayesnet import BayesNet
from iwbayes.curator.privacy.accounting import check_budget, largest_scale
from iwbayes.curator.privacy.declared import admit
from iwbayes.curator.privacy.ledger import BudgetExceeded, Ledger
from iwbayes.curator.protocols import (
    Generator,
    PublicFacts,
    WeightEstimator,
    check_rows_at_hand,
    is_generator,
    is_weight_estimator,
    needs_generator,
)
from iwbayes.display import html_table, wrapped
from iwbayes.measurement import noise_advice, noise_in_words
from iwbayes.schema import Schema
from iwbayes.statement import Adjacency, Event
from iwbayes.tables import PrivateTable, SyntheticTable

#: Synthetic rows for each private row by default.
ROWS_PER_PRIVATE_ROW = 5
#: Rows of the public reference table that `plan` reads the noise from.
_PLAN_ROWS = 4096


@dataclass(frozen=True, repr=False)
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
    noise_over_spread : float
        Noise against the synthetic spread over all features; above 0.5 not even the fewest features are within it. As
        a rule a small table's release has a larger one, since its rows spread less than uniform ones. A fit's kappa is
        another number, of one parameter, with a limit of its own.
    epsilon, delta : float
        Budget of both parts together.
    stage_noise_sd : tuple of float
        ``noise_sd`` of each stage where the tilt is measured in stages, the last one included; else empty.
    """

    epsilon_generator: float
    epsilon_weights: float
    events: tuple[Event, ...]
    terms: str
    n_features: int
    noise_sd: float
    noise_over_spread: float
    epsilon: float
    delta: float
    stage_noise_sd: tuple[float, ...] = ()

    def __str__(self) -> str:
        """Say the plan in words."""
        title, facts = self._facts()
        lines = [title, *(f"  {name}: {value}" for name, value in facts)]
        return wrapped("\n".join([*lines, f"  {self.advice}"] if self.advice else lines))

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """Show the same in a notebook."""
        title, facts = self._facts()
        return html_table(title, ("", "value"), facts, notes=[self.advice] if self.advice else [])

    def _facts(self) -> tuple[str, list[tuple[str, str]]]:
        """Return its budget, and names and values for reading."""
        facts = [
            ("generator", f"epsilon {self.epsilon_generator:.4g} on its own"),
            ("weights", f"epsilon {self.epsilon_weights:.4g} on their own"),
            ("measured", f"{self.terms}{'' if self.stage_noise_sd else ' terms'}, {self.n_features} features"),
            ("noise", f"sd {self.noise_sd:.4g} in each feature"),
            ("noise over spread", noise_in_words(self.noise_over_spread)),
        ]
        if self.stage_noise_sd:
            sds = ", ".join(f"{sd:.3g}" for sd in self.stage_noise_sd)
            facts.insert(4, ("by stage", f"{len(self.stage_noise_sd)} stages, sd {sds}"))
        return f"Plan of a release at epsilon {self.epsilon:g} and delta {self.delta:g}", facts

    @property
    def warning(self) -> str:
        """What to know before the budget is spent: its noise and the advice; empty where nothing is amiss."""
        return f"noise over spread {noise_in_words(self.noise_over_spread)}. {self.advice}" if self.advice else ""

    @property
    def advice(self) -> str:
        """What to do where few regressions will be calibrated; empty where nothing is amiss."""
        return noise_advice(self.noise_over_spread, self.n_features, self.terms)


def plan(
    schema: Schema,
    n: int,
    *,
    epsilon: float,
    delta: float,
    generator: Generator | None = None,
    weights: WeightEstimator | None = None,
    share: float = 0.3,
    adjacency: Adjacency = "replace-one",
    rows_per_user: int = 1,
) -> Plan:
    """Tell the expected noise and features of `publish` from public facts alone; see `iwbayes.plan`.

    Features are built on rows drawn uniformly within the schema's bounds, since the synthetic rows do not
    exist yet; the release itself builds them on its own synthetic rows, weighted by the tilt's base if there is one.
    """
    generator = BayesNet() if generator is None else generator
    if not is_generator(generator):
        raise TypeError(f"plan takes a generator that has settings only; got {type(generator).__name__}.")
    tilt = TiltWeights() if weights is None else weights
    epsilon, delta = check_budget(epsilon, delta)
    check_whole("n", n)
    check_share(share)
    if not isinstance(tilt, TiltWeights | StagedTilt):
        raise TypeError(
            f"plan knows the noise of TiltWeights and StagedTilt only; got {type(tilt).__name__}. See its events()."
        )
    check_whole("rows_per_user", rows_per_user)
    if rows_per_user > 1 and adjacency != "replace-user":
        raise ValueError(f"under {adjacency!r} everybody owns one row. Use adjacency='replace-user' for users.")
    facts = PublicFacts(schema, int(n), ROWS_PER_PRIVATE_ROW * int(n), adjacency, int(rows_per_user))
    events = joint_events(facts, generator, tilt, share, epsilon, delta)
    t = largest_scale(events, epsilon, delta, adjacency=adjacency)
    warn_of_delta(delta, "users" if adjacency == "replace-user" else "rows", int(n))
    part = (1 - share) * t * epsilon
    reference = uniform_table(schema, _PLAN_ROWS, random_seed=0)
    measured = tilt.planned(reference, facts, epsilon=part, delta=own_delta(tilt, delta))
    return Plan(
        share * t * epsilon,
        part,
        tuple(events(t)),
        measured.terms,
        measured.features.dim,
        measured.noise_sd,
        measured.noise_over_spread,
        epsilon,
        delta,
        measured.stage_noise_sd,
    )


def uniform_table(schema: Schema, n: int, *, random_seed: int | np.random.Generator | None = None) -> SyntheticTable:
    """Rows drawn uniformly within the schema's bounds and levels: a public reference, no data."""
    from iwbayes.curator.generators.tables.bins import ColumnBins

    rng = np.random.default_rng(random_seed)
    columns = {}
    for column in schema:
        bins = ColumnBins.of(column, 128)
        columns[column.name] = bins.values(rng.choice(bins.size, n, p=bins.even_law), rng)
    return SyntheticTable(pd.DataFrame(columns), schema, origin="uniform", already_spent=(0, 0))


def own_delta(algorithm: Generator | WeightEstimator, delta: float) -> float:
    """Return the delta that an algorithm takes: none where it is pure, unless it says that it is better with one."""
    return 0.0 if algorithm.pure and not getattr(algorithm, "prefers_delta", False) else delta


def joint_events(
    facts: PublicFacts, generator: Generator, weights: WeightEstimator, share: float, epsilon: float, delta: float
) -> Callable[[float], tuple[Event, ...]]:
    """Make the function from a multiple of the nominal budget to all events of a release; none may be without noise."""

    def events(t: float) -> tuple[Event, ...]:
        found = generator.events(facts, epsilon=share * t * epsilon, delta=own_delta(generator, delta))
        if share < 1:
            rest = weights.events(facts, epsilon=(1 - share) * t * epsilon, delta=own_delta(weights, delta))
            found = (*found, *rest)
        for event in found:
            if event.mechanism == "none":
                raise BudgetExceeded(
                    f"{event.label}: without noise the cost is infinite; the budget is epsilon {epsilon:g}. For an "
                    f"experiment that protects nobody fit the parts yourself under Ledger(math.inf, ...); nothing was "
                    f"drawn."
                )
        return found

    return events


def check_whole(name: str, value: int, least: int = 1) -> int:
    """Return a whole number of at least ``least``; refuse all else."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise ValueError(f"{name} must be a whole number of at least {least}; got {value!r}.")
    return int(value)


def check_delta(delta: float, ledger: Ledger) -> None:
    """Refuse a larger delta than that at which a ledger counts costs."""
    if delta > ledger.delta:
        raise BudgetExceeded(
            f"the release's delta must be at most that of the ledger, {ledger.delta:g}, at which its cost is counted: "
            f"else it costs more epsilon than was asked for; got {delta:g}. Ask for less; nothing was drawn."
        )


def check_share(share: float) -> None:
    """Refuse a share that leaves nothing to the generator or to the weights."""
    if not 0 < share < 1:
        raise ValueError(f"share must be in (0, 1), the generator's part of epsilon; got {share!r}.")


@dataclass(frozen=True)
class GivenTable:
    """A table that was made elsewhere, in the place of a generator: what it is declared to have cost is charged."""

    table: SyntheticTable
    owed: tuple[Event, ...]

    reads_blocks: ClassVar[bool] = True
    #: A declared cost needs no delta of the release's.
    pure = True

    def events(self, facts: PublicFacts, *, epsilon: float, delta: float = 0.0) -> tuple[Event, ...]:
        """Return what its making is declared to have cost."""
        return self.owed

    def fit(self, private: PrivateTable, ledger: Ledger, *, epsilon: float, delta: float = 0.0) -> GivenTable:
        """Let the ledger know the table."""
        admit(self.table, ledger)
        return self

    def sample(self, n: int, *, random_seed: int | np.random.Generator | None = None) -> SyntheticTable:
        """Return the table."""
        return self.table

    def __repr__(self) -> str:
        return f"{self.table.origin or 'unknown origin'}, {len(self.table)} rows"


def warn_of_delta(delta: float, units: str, n: int, *, stacklevel: int = 3) -> None:
    """Warn of a delta that allows to publish some rows as they are; the warning is the caller's caller's."""
    if delta * n > 1:
        warnings.warn(
            f"delta {delta:g} is above one in the number of {units} ({n}): {units} may be exposed whole with that "
            f"chance. Use a delta well below {1 / n:.2g}, such as {10.0 ** (math.floor(-math.log10(n)) - 2):g}.",
            PrivacyWarning,
            stacklevel=stacklevel,
        )


def warn_of_noise(
    facts: PublicFacts,
    generator: Generator | GivenTable,
    weights: WeightEstimator,
    epsilon: float,
    delta: float,
    share: float,
) -> None:
    """Warn where a plan expects that few regressions will be calibrated; before anything is charged."""
    if not isinstance(weights, TiltWeights | StagedTilt) or isinstance(generator, GivenTable):
        return
    about: dict[str, Any] = {"adjacency": facts.adjacency, "rows_per_user": facts.rows_per_user}
    about |= {"generator": generator, "weights": weights, "epsilon": epsilon, "delta": delta, "share": share}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivacyWarning)
        expected = plan(facts.schema, facts.n_private, **about)
    if expected.warning:
        warnings.warn(expected.warning, CalibrationWarning, stacklevel=4)  # the caller's of `iwbayes.publish`


def check_algorithms(generator: Generator, weights: WeightEstimator, private: PrivateTable) -> None:
    """Refuse what is no generator or no estimator, or does not fit the other or the table."""
    for name, value, fits in (("generator", generator, is_generator), ("weights", weights, is_weight_estimator)):
        if not fits(value):
            got = f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__
            raise TypeError(f"{name} must have pure, events() and fit(); got {got}. Pass an instance.")
    if needs_generator(weights) and not getattr(generator, "gives_log_ratio", False):
        raise ValueError(
            f"{type(weights).__name__} waits for the generator's own discriminator, and {type(generator).__name__} has "
            f"none with log odds. Use a GAN with loss='logistic', or other weights."
        )
    for algorithm in (generator, weights):
        check_rows_at_hand(algorithm, private)
