"""A generator and a weight provider: the events of both within one budget, and the steps that use private rows."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from iwbayes.curator.privacy.ledger import BudgetExceeded, Ledger
from iwbayes.curator.protocols import (
    Generator,
    PublicFacts,
    WeightProvider,
    check_rows_at_hand,
    is_generator,
    is_weight_provider,
    needs_generator,
)
from iwbayes.curator.settings import from_data, to_data
from iwbayes.evidence.scores import ScoreModel
from iwbayes.release.statement import Event
from iwbayes.release.weights import Weights
from iwbayes.tables import PrivateTable, SyntheticTable
from iwbayes.utils import checks


def owed_events(synthetic: SyntheticTable, ledger: Ledger | None) -> tuple[Event, ...]:
    """Return the event of a table's declared cost; none if that is 0 or undeclared, or this ledger has charged it."""
    if ledger is not None and ledger.holds(synthetic.fingerprint()):
        return ()
    if synthetic.already_spent is None or synthetic.already_spent[0] == 0:
        return ()
    epsilon, delta = synthetic.already_spent
    label = f"outside table ({synthetic.origin or 'unnamed'})"
    return (Event(label, "none", math.inf) if math.isinf(epsilon) else Event(label, "declared", epsilon, delta),)


def admit(synthetic: SyntheticTable, ledger: Ledger) -> None:
    """Charge the declared cost of an outside table, once; note a table of unknown cost."""
    if ledger.holds(synthetic.source):
        return
    if synthetic.already_spent is None:
        ledger.note("The synthetic rows come from outside and what their making cost was not declared.")
        return
    owed = owed_events(synthetic, ledger)
    if owed:
        ledger.charge(*owed)
    ledger._register(synthetic.fingerprint())


@dataclass(frozen=True)
class GivenTable:
    """A table that was made elsewhere, used instead of a generator; its declared cost is charged."""

    table: SyntheticTable
    owed: tuple[Event, ...]

    reads_blocks: ClassVar[bool] = True
    #: A declared cost needs no part of the release's delta.
    pure = True

    def events(self, facts: PublicFacts, *, epsilon: float, delta: float = 0.0) -> tuple[Event, ...]:
        """Return the events of the table's declared cost."""
        return self.owed

    def fit(self, private: PrivateTable, ledger: Ledger, *, epsilon: float, delta: float = 0.0) -> GivenTable:
        """Register the table in the ledger, and charge its declared cost."""
        admit(self.table, ledger)
        return self

    def sample(self, n: int, *, random_seed: int | np.random.Generator | None = None) -> SyntheticTable:
        """Return the table."""
        return self.table

    def __repr__(self) -> str:
        return f"{self.table.origin or 'unknown origin'}, {len(self.table)} rows"


def own_delta(algorithm: Generator | WeightProvider, delta: float) -> float:
    """Return the delta for an algorithm: 0 if it is pure, unless it has ``prefers_delta``."""
    return 0.0 if algorithm.pure and not getattr(algorithm, "prefers_delta", False) else delta


class JointEvents:
    """The events of a release, as a function of a multiple of the nominal budget. Each multiple is asked for once.

    If one part costs nothing, or its table is given, the other has all of epsilon; else ``share`` and ``1 - share``.
    """

    def __init__(
        self,
        facts: PublicFacts,
        generator: Generator | GivenTable,
        weights: WeightProvider,
        share: float,
        epsilon: float,
        delta: float,
    ) -> None:
        checks.share("share", share, "It is the generator's part of epsilon, for example 0.3.")
        self.facts, self.generator, self.weights, self.epsilon, self.delta = facts, generator, weights, epsilon, delta
        #: Share of the generator; None if one part has the whole budget.
        self.share: float | None = None if isinstance(generator, GivenTable) else share
        if not self._of(weights, 1.0):
            self.share = None
        self._known: dict[float, tuple[Event, ...]] = {}

    def __call__(self, t: float) -> tuple[Event, ...]:
        """Return all events; raise `BudgetExceeded` if an event has no noise."""
        if t not in self._known:
            events = (*self._of(self.generator, t), *self._of(self.weights, t))
            for event in events:
                if event.mechanism == "none":
                    raise BudgetExceeded(
                        f"{event.label}: without noise the cost is infinite; the budget is epsilon {self.epsilon:g}, "
                        f"and nothing was drawn. For an experiment that protects nobody, fit generator and weights "
                        f"under Ledger(math.inf, ...)."
                    )
            self._known[t] = events
        return self._known[t]

    def parts(self, t: float) -> tuple[float, float]:
        """Return the nominal epsilons of the generator and of the weights."""
        if self.share is None:
            return t * self.epsilon, t * self.epsilon
        return self.share * t * self.epsilon, (1 - self.share) * t * self.epsilon

    def _of(self, algorithm: Generator | WeightProvider, t: float) -> tuple[Event, ...]:
        epsilon = self.parts(t)[0 if algorithm is self.generator else 1]
        return algorithm.events(self.facts, epsilon=epsilon, delta=own_delta(algorithm, self.delta))


@dataclass(frozen=True)
class Pipeline:
    """A generator and a weight provider, the nominal budget of each, and the number of synthetic rows."""

    generator: Generator
    weights: WeightProvider
    generator_epsilon: float
    weights_epsilon: float
    delta: float
    n_synthetic: int

    def run(
        self,
        private: PrivateTable,
        account: Ledger,
        sampler: np.random.Generator,
        step: Callable[[str], None] = lambda stage: None,
    ) -> tuple[SyntheticTable, Weights]:
        """Return synthetic rows and weights, with noise from a charged account; call `step` with each stage's name."""
        step("fitting the generator")
        own = own_delta(self.generator, self.delta)
        fitted = self.generator.fit(private, account, epsilon=self.generator_epsilon, delta=own)
        step("sampling synthetic rows")
        synthetic = fitted.sample(self.n_synthetic, random_seed=sampler)
        step("weighting synthetic rows")
        weights, own = self.weights, own_delta(self.weights, self.delta)
        if needs_generator(weights):
            weights = weights.with_generator(fitted)  # type: ignore[attr-defined]
        return synthetic, weights.fit(private, synthetic, account, epsilon=self.weights_epsilon, delta=own)

    def to_data(self) -> dict[str, Any]:
        """Return all but the number of rows as plain JSON values; None for a part that is not plain data."""
        return {
            "generator": None if isinstance(self.generator, GivenTable) else to_data(self.generator),
            "weights": to_data(self.weights),
            "generator_epsilon": self.generator_epsilon,
            "weights_epsilon": self.weights_epsilon,
            "delta": self.delta,
        }

    @classmethod
    def from_data(
        cls, data: dict[str, Any], synthetic: SyntheticTable, make_model: Callable[..., ScoreModel] | None = None
    ) -> Pipeline:
        """Return the pipeline that `to_data` wrote, with the given rows if its generator is not plain data.

        `make_model` creates the models of the release. Raise ValueError for data that `to_data` cannot have written.
        """
        numbers = [data.get(name) for name in ("generator_epsilon", "weights_epsilon", "delta")]
        if not all(map(checks.is_real, numbers)):
            raise ValueError("the settings of the release contain no budget for generator and weights.")
        if data.get("weights") is None:
            raise ValueError(
                "the settings of the release's weights are not plain data: the weights were given, or contain a "
                "function."
            )
        kept = data.get("generator")
        generator = GivenTable(synthetic, ()) if kept is None else from_data(kept)
        own, rest, delta = (float(number) for number in numbers if number is not None)
        return cls(generator, from_data(data["weights"], make_model), own, rest, delta, len(synthetic))


def check_algorithms(
    generator: Generator, weights: WeightProvider, private: PrivateTable, n_synthetic: int | None
) -> None:
    """Raise unless generator and weights are of the right types, and work together and with the table."""
    for name, value, fits in (("generator", generator, is_generator), ("weights", weights, is_weight_provider)):
        if not fits(value):
            got = f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__
            raise TypeError(f"{name} must have pure, events() and fit(); got {got}. Pass an instance.")
    if needs_generator(weights) and not getattr(generator, "gives_log_ratio", False):
        raise ValueError(
            f"{type(weights).__name__} needs the generator's discriminator, and {type(generator).__name__} has no "
            f"discriminator with log odds. Use a GAN with loss='logistic', or different weights."
        )
    for algorithm in (generator, weights):
        check_rows_at_hand(algorithm, private)
    if n_synthetic is None and not (private.in_memory or isinstance(generator, GivenTable)):
        raise ValueError(
            "the default of five synthetic rows per private row may not fit in memory, because the private rows are in "
            "a Dask frame. Pass n_synthetic."
        )
