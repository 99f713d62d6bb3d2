"""Ledger: one budget, one adjacency, one noise source; it charges first and hands out noise only then."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Self

from iwbayes.curator._ledger_file import LedgerFile, LedgerRecord, worst_noise
from iwbayes.curator.accounting import ROUNDING, check_budget, price
from iwbayes.curator.noise import NoiseSource, SystemNoise
from iwbayes.statement import ADJACENCIES, NOISE_KINDS, Event, PrivacyStatement


class BudgetExceeded(ValueError):  # noqa: N818 - the name users know
    """The charge would pass the budget; nothing was charged and no noise was drawn."""


class Ledger:
    """The privacy budget of one private table, and the only way to its noise.

    `charge` prices the new events jointly with all earlier ones, refuses when the budget would be passed,
    and only then returns the noise source. A run that fails afterwards stays charged. A ledger lives as long as
    its object; one that outlasts the program is opened with `Ledger.open`.

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
        epsilon, delta = check_budget(epsilon, delta, infinite=True)
        if adjacency not in ADJACENCIES:
            raise ValueError(f"adjacency must be one of {list(ADJACENCIES)}; got {adjacency!r}.")
        self._noise = SystemNoise() if noise is None else noise
        if getattr(self._noise, "kind", None) not in NOISE_KINDS:
            raise TypeError(
                f"noise must be a noise source; got {type(noise).__name__}. Leave it out, or use SystemNoise()."
            )
        self._record = LedgerRecord(epsilon, delta, adjacency)
        self._file: LedgerFile | None = None
        self._lock = threading.RLock()

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        epsilon: float | None = None,
        delta: float | None = None,
        adjacency: str | None = None,
        noise: NoiseSource | None = None,
    ) -> Self:
        """Open a ledger that is kept in a file, or begin one there.

        A charge is in the file, and on the disk, before noise is handed out, so no crash makes the file count too
        little. The file is locked while it changes: processes that charge it at once cannot overspend together.

        Parameters
        ----------
        path : str or path
            Of the ledger's file. A lock file stands beside it, ``.NAME.lock``; leave it there.
        epsilon, delta : float, optional
            The whole budget: needed to begin a ledger. The budget of an existing one does not change; given again
            it must be the same.
        adjacency : {"replace-one", "zero-out", "replace-user"}, optional
            As for epsilon and delta, but "replace-one" when a ledger begins.
        noise : NoiseSource, optional
            As in `Ledger`.

        Returns
        -------
        Ledger

        Raises
        ------
        LedgerError
            When the file is damaged or no ledger, has another budget than the given one, or is gone while its lock
            file stands there.
        FileNotFoundError
            When there is no such file and no budget was given, or no such folder.
        OSError
            When it cannot be read or, to begin it, written.

        Notes
        -----
        A file that was put back from an older copy counts too little: no program can tell. Charges that this
        object has seen and that are gone from the file are refused.

        Examples
        --------
        >>> import tempfile
        >>> path = tempfile.mkdtemp() + "/people.ledger"
        >>> ledger = Ledger.open(path, epsilon=1.0, delta=1e-6)
        >>> _ = ledger.charge(Event("a count", "laplace", 0.25))
        >>> Ledger.open(path)
        Ledger(spent (0.25, 0) of (1, 1e-06), replace-one, 1 event(s))
        """
        file = LedgerFile(path)
        begun = None
        if epsilon is not None or delta is not None:
            if epsilon is None or delta is None:
                raise ValueError("a budget is both epsilon and delta; got one of them. Pass both.")
            begun = cls(epsilon, delta, adjacency or "replace-one", noise=noise)._record
        record = file.begin(begun, adjacency)
        ledger = cls(record.epsilon, record.delta, record.adjacency, noise=noise)
        ledger._record, ledger._file = record, file
        return ledger

    @property
    def epsilon(self) -> float:
        """Epsilon of the whole budget; it does not change."""
        return self._record.epsilon

    @property
    def delta(self) -> float:
        """Delta of the whole budget; it does not change."""
        return self._record.delta

    @property
    def adjacency(self) -> str:
        """Which tables are neighbours; it does not change."""
        return self._record.adjacency

    @property
    def events(self) -> tuple[Event, ...]:
        """What was charged, in order; of a ledger in a file also what other processes have charged."""
        return self._now().events

    @property
    def spent(self) -> tuple[float, float]:
        """Joint (epsilon, delta) of everything charged."""
        return self._spent(self.events)

    def _spent(self, events: tuple[Event, ...]) -> tuple[float, float]:
        epsilon, delta = self._price(events)
        return min(epsilon, self.epsilon), min(delta, self.delta)

    def would_cost(self, *events: Event) -> float:
        """Joint epsilon at the ledger's delta after these events; charges nothing."""
        return self._price((*self.events, *events))[0]

    def _price(self, events: tuple[Event, ...]) -> tuple[float, float]:
        return price(events, self.delta, scale=self.epsilon, adjacency=self.adjacency)

    def check(self, *events: Event) -> None:
        """Raise `BudgetExceeded` when these events do not fit; charges nothing."""
        before = self.events
        total, _ = self._price((*before, *events))
        if not total <= self.epsilon * (1 + ROUNDING):
            labels = ", ".join(dict.fromkeys(event.label for event in events))
            if any(event.mechanism == "none" for event in events):
                raise BudgetExceeded(
                    f"{labels}: without noise the cost is infinite; the budget is epsilon {self.epsilon:g}. For an "
                    f"experiment that protects nobody use Ledger(math.inf, ...); nothing was drawn."
                )
            raise BudgetExceeded(
                f"This does not fit the budget: epsilon {self._spent(before)[0]:.4g} of {self.epsilon:g} is spent at "
                f"delta {self.delta:g}, and with {labels} it would be {total:.6g}. Ask for less epsilon or delta; "
                f"nothing was drawn."
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
        with self.exclusive():
            self.check(*events)
            self._change(lambda record: replace(record, events=(*record.events, *events)))
        return self._noise

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Hold the ledger: what other threads charge, or processes where it is in a file, waits until this ends.

        `publish` holds it from its price to its last charge, so that of two releases which do not both fit the
        second is refused before anything of it is charged.
        """
        with self._lock, nullcontext() if self._file is None else self._file.locked():
            yield

    def _now(self) -> LedgerRecord:
        """Everything recorded so far, by whomever."""
        if self._file is not None:
            with self._lock:
                self._record = self._file.read(since=self._record)
        return self._record

    def _change(self, change: Callable[[LedgerRecord], LedgerRecord]) -> None:
        """Record a change, on the disk first where the ledger is in a file."""
        with self.exclusive():
            before = self._now()
            # whatever changes it, noise of this object's kind may be behind it
            record = change(replace(before, noise=worst_noise(before.noise, self._noise.kind)))
            if record == before:
                return
            if self._file is not None:
                self._file.write(record)
            self._record = record

    def mark(self, kind: str) -> None:
        """Record that noise of a worse kind than the source's own was used."""
        self._change(lambda record: replace(record, noise=worst_noise(record.noise, kind)))

    def note(self, reason: str) -> None:
        """Record why what follows cannot be certified."""
        self._change(lambda record: replace(record, notes=tuple(dict.fromkeys((*record.notes, reason)))))

    def register(self, fingerprint: str) -> None:
        """Record a public product of charged events alone, by a digest of its content (see `holds`)."""
        self._change(lambda record: replace(record, products=record.products | {fingerprint}))

    def holds(self, fingerprint: str | None) -> bool:
        """Whether exactly this content was registered as made by events that this ledger charged."""
        return fingerprint in self._now().products

    def statement(self) -> PrivacyStatement:
        """Return the frozen record of all charges so far."""
        record = self._now()
        epsilon, delta = self._spent(record.events)
        noise = worst_noise(record.noise, self._noise.kind)
        certified = noise == "hardened" and not record.notes and math.isfinite(record.epsilon)
        facts = (epsilon, delta, record.adjacency, record.events, noise, certified, record.notes)
        return PrivacyStatement(*facts, products=record.products)

    def __repr__(self) -> str:
        """Show the budget and what is spent of it."""
        events = self.events
        epsilon, delta = self._spent(events)
        return (
            f"Ledger(spent ({epsilon:.4g}, {delta:.2g}) of ({self.epsilon:g}, {self.delta:g}), "
            f"{self.adjacency}, {len(events)} event(s))"
        )
