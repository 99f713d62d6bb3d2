"""Ledger: one budget, one adjacency, one noise source; it charges first and hands out noise only then."""

from __future__ import annotations

import math
import threading

from iwbayes.curator.accounting import ROUNDING, check_budget, price
from iwbayes.curator.noise import NoiseSource, SystemNoise
from iwbayes.statement import ADJACENCIES, NOISE_KINDS, Event, PrivacyStatement


class BudgetExceeded(ValueError):  # noqa: N818 - the name users know
    """The charge would pass the budget; nothing was charged and no noise was drawn."""


class Ledger:
    """The privacy budget of one private table, and the only way to its noise.

    `charge` prices the new events jointly with all earlier ones, refuses when the budget would be passed,
    and only then returns the noise source. A run that fails afterwards stays charged.

    Parameters
    ----------
    epsilon, delta : float
        The whole budget. ``math.inf`` is a budget that protects nobody: experiments without privacy need it, and no
        statement under it is certified.
    adjacency : {"replace-one", "zero-out", "replace-user"}
        Neighbouring tables have the same public number of rows; one row differs ("replace-one"), or one row
        is a null row in one of them ("zero-out"). Where people own several rows ("replace-user"; see
        `bound_contributions`) neighbours have the same public number of users and all rows of one user differ.
    noise : NoiseSource, optional
        `SystemNoise()` by default. A `SeededNoise` makes everything downstream uncertified.

    Examples
    --------
    >>> ledger = Ledger(epsilon=1.0, delta=1e-6)
    >>> _ = ledger.charge(Event("a count", "laplace", 0.25))
    >>> ledger.spent
    (0.25, 0.0)
    """

    def __init__(
        self,
        epsilon: float,
        delta: float,
        adjacency: str = "replace-one",
        *,
        noise: NoiseSource | None = None,
    ) -> None:
        self._epsilon, self._delta = check_budget(epsilon, delta, infinite=True)
        if adjacency not in ADJACENCIES:
            raise ValueError(f"adjacency must be one of {list(ADJACENCIES)}; got {adjacency!r}.")
        self._adjacency = adjacency
        self._noise = SystemNoise() if noise is None else noise
        if getattr(self._noise, "kind", None) not in NOISE_KINDS:
            raise TypeError(
                f"noise must be a noise source; got {type(noise).__name__}. Leave it out, or use SystemNoise()."
            )
        self._worst = self._noise.kind
        self._events: tuple[Event, ...] = ()
        self._notes: tuple[str, ...] = ()
        self._products: frozenset[str] = frozenset()
        self._lock = threading.Lock()

    @property
    def epsilon(self) -> float:
        """Epsilon of the whole budget; it does not change."""
        return self._epsilon

    @property
    def delta(self) -> float:
        """Delta of the whole budget; it does not change."""
        return self._delta

    @property
    def adjacency(self) -> str:
        """Which tables are neighbours; it does not change."""
        return self._adjacency

    @property
    def events(self) -> tuple[Event, ...]:
        """What was charged, in order."""
        return self._events

    @property
    def spent(self) -> tuple[float, float]:
        """Joint (epsilon, delta) of everything charged."""
        epsilon, delta = self._price(self._events)
        return min(epsilon, self.epsilon), min(delta, self.delta)

    def would_cost(self, *events: Event) -> float:
        """Joint epsilon at the ledger's delta after these events; charges nothing."""
        return self._price((*self._events, *events))[0]

    def _price(self, events: tuple[Event, ...]) -> tuple[float, float]:
        return price(events, self.delta, scale=self.epsilon, adjacency=self.adjacency)

    def check(self, *events: Event) -> None:
        """Raise `BudgetExceeded` when these events do not fit; charges nothing."""
        total = self.would_cost(*events)
        if not total <= self.epsilon * (1 + ROUNDING):
            labels = ", ".join(dict.fromkeys(event.label for event in events))
            if any(event.mechanism == "none" for event in events):
                raise BudgetExceeded(
                    f"{labels}: without noise the cost is infinite; the budget is epsilon {self.epsilon:g}. For an "
                    f"experiment that protects nobody use Ledger(math.inf, ...); nothing was drawn."
                )
            raise BudgetExceeded(
                f"{labels}: the joint cost would be epsilon {total:.6g} at delta {self.delta:g}; the budget "
                f"is epsilon {self.epsilon:g}. Ask for less epsilon or delta; nothing was drawn."
            )

    def charge(self, *events: Event) -> NoiseSource:
        """Charge the events, then hand out the noise source.

        Parameters
        ----------
        *events : Event

        Returns
        -------
        NoiseSource

        Raises
        ------
        BudgetExceeded
            When they do not fit in the budget; then nothing is charged.
        ValueError
            When there is no event: noise is handed out against a charge only.
        """
        if not events:
            raise ValueError("charge takes at least one event; got none.")
        with self._lock:
            self.check(*events)
            self._events = (*self._events, *events)
        return self._noise

    def mark(self, kind: str) -> None:
        """Record that noise of a worse kind than the source's own was used."""
        self._worst = NOISE_KINDS[max(NOISE_KINDS.index(self._worst), NOISE_KINDS.index(kind))]

    def note(self, reason: str) -> None:
        """Record why what follows cannot be certified."""
        if reason not in self._notes:
            self._notes = (*self._notes, reason)

    def register(self, fingerprint: str) -> None:
        """Record a public product of charged events alone, by a digest of its content (see `holds`)."""
        self._products |= {fingerprint}

    def holds(self, fingerprint: str | None) -> bool:
        """Whether exactly this content was registered as made by events that this ledger charged."""
        return fingerprint in self._products

    def statement(self) -> PrivacyStatement:
        """Return the frozen record of all charges so far."""
        epsilon, delta = self.spent
        certified = self._worst == "hardened" and not self._notes and math.isfinite(self._epsilon)
        record = (epsilon, delta, self.adjacency, self._events, self._worst, certified, self._notes)
        return PrivacyStatement(*record, products=self._products)

    def __repr__(self) -> str:
        """Show the budget and what is spent of it."""
        epsilon, delta = self.spent
        return (
            f"Ledger(spent ({epsilon:.4g}, {delta:.2g}) of ({self.epsilon:g}, {self.delta:g}), "
            f"{self.adjacency}, {len(self._events)} event(s))"
        )
