"""Ledger: one budget, one adjacency, one noise source; it charges first and hands out noise only then."""

from __future__ import annotations

import math
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import cache
from typing import Any, Self

from iwbayes.curator.privacy.accounting import check_budget
from iwbayes.curator.privacy.filters import begin_rule
from iwbayes.curator.privacy.ledger_file import LedgerFile
from iwbayes.curator.privacy.ledger_record import BudgetExceeded, LedgerRecord
from iwbayes.curator.privacy.noise import NoiseSource, SystemNoise
from iwbayes.curator.privacy.permit import Permit, noise_kind
from iwbayes.statement import ADJACENCIES, Adjacency, Event, PrivacyStatement, count_uses


class Ledger:
    """The privacy budget of one private table, and the only way to its noise.

    `charge` prices the new events, refuses when the budget would be passed, and only then hands out noise, for exactly
    those events. A run that fails afterwards stays charged. A ledger lives as long as its object; one that outlasts the
    program is opened with `Ledger.open`.

    Parameters
    ----------
    epsilon, delta : float
        The whole budget. ``math.inf`` is a budget that protects nobody: experiments without privacy need it, and no
        statement under it is certified.
    adjacency : {"replace-one", "zero-out", "replace-user"}
        Neighbouring tables have the same public number of rows; one row differs ("replace-one"), or one row
        is a null row in one of them ("zero-out"). Where people own several rows ("replace-user"; see
        `bound_contributions`) neighbours have the same public number of users and all rows of one user differ.
    rule : {"gdp", "renyi", "basic"}, optional
        The privacy filter by which releases are priced and accepted, so that settings may follow from what was released
        before; see Notes. "gdp" by default, "basic" where delta is 0.
    plan : sequence of (sequence of Event, or Plan)
        Releases that are fixed now, in their order: they are priced together by their joint privacy loss distribution,
        which takes less of the budget. Releases beside the plan are accepted as far as the rule allows.
    noise : NoiseSource, optional
        `SystemNoise()` by default. With any other source nothing downstream is certified.

    Raises
    ------
    BudgetExceeded
        When the plan does not fit in the budget.

    Notes
    -----
    Events within one release are fixed before it begins, and are priced by their joint privacy loss distribution. For
    releases that are chosen after looking at earlier ones that price is wrong: they are counted by the rule, Gaussian
    differential privacy ("gdp"; costs least where most noise is Gaussian), Renyi divergence at one order ("renyi"; for
    private steps) or basic composition ("basic"). A price is fixed when it is charged. For proofs see
    `iwbayes.curator.privacy.filters`.

    Examples
    --------
    >>> ledger = Ledger(epsilon=1.0, delta=1e-6)
    >>> _ = ledger.charge(Event("a count", "laplace", 0.25))
    >>> ledger.spent
    (0.25, 0.0)
    >>> ledger.charge(Event("another", "laplace", 0.9))
    Traceback (most recent call last):
        ...
    iwbayes.curator.privacy.ledger_record.BudgetExceeded: another: epsilon 0.9 asked, 0.75 of 1 left (gdp); ...
    """

    def __init__(
        self,
        epsilon: float,
        delta: float,
        adjacency: Adjacency = "replace-one",
        *,
        rule: str | None = None,
        plan: Sequence[Any] = (),
        noise: NoiseSource | None = None,
    ) -> None:
        epsilon, delta = check_budget(epsilon, delta, infinite=True)
        if adjacency not in ADJACENCIES:
            raise ValueError(f"adjacency must be one of {list(ADJACENCIES)}; got {adjacency!r}.")
        self._noise = SystemNoise() if noise is None else noise
        _ = noise_kind(self._noise)
        record = LedgerRecord(epsilon, delta, adjacency, begin_rule(rule, epsilon, delta))
        self._record = record.planning([getattr(release, "events", release) for release in plan])
        self._file: LedgerFile | None = None
        self._lock = threading.RLock()

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        epsilon: float | None = None,
        delta: float | None = None,
        adjacency: Adjacency | None = None,
        rule: str | None = None,
        plan: Sequence[Any] = (),
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
        rule, plan
            As in `Ledger`, for a ledger that begins. Those of an existing one do not change; given again they must be
            the same.
        noise : NoiseSource, optional
            As in `Ledger`.

        Returns
        -------
        Ledger

        Raises
        ------
        LedgerError
            When the file is damaged or no ledger, has another budget, rule or plan than the given one, or is gone while
            its lock file stands there.
        FileNotFoundError
            When there is no such file and no budget was given, or no such folder.
        OSError
            When it cannot be read or, to begin it, written.

        Notes
        -----
        A file of format 1 has no rule; it gets the default one, under which each of its events is counted alone. Where
        that is more than its budget it says so, and accepts no charge. Restoring an older copy under-reports spending;
        this cannot be detected. Charges that this object has seen and that are gone from the file are refused.

        Examples
        --------
        >>> import tempfile
        >>> path = tempfile.mkdtemp() + "/people.ledger"
        >>> ledger = Ledger.open(path, epsilon=1.0, delta=1e-6)
        >>> _ = ledger.charge(Event("a count", "laplace", 0.25))
        >>> Ledger.open(path)
        Ledger(spent (0.25, 0) of (1, 1e-06), replace-one, rule gdp, 1 event(s))
        """
        file = LedgerFile(path)
        begun = None
        if epsilon is not None or delta is not None:
            if epsilon is None or delta is None:
                raise ValueError("a budget is both epsilon and delta; got one of them. Pass both.")
            begun = cls(epsilon, delta, adjacency or "replace-one", rule=rule, plan=plan, noise=noise)._record
        elif plan:
            raise ValueError("a plan begins a ledger, with its budget. Pass epsilon and delta.")
        record = file.begin(begun, adjacency, rule=rule)
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
    def adjacency(self) -> Adjacency:
        """Which tables are neighbours; it does not change."""
        return self._record.adjacency

    @property
    def rule(self) -> str:
        """Privacy filter by which releases are priced; it does not change."""
        return self._record.rule.name

    @property
    def events(self) -> tuple[Event, ...]:
        """What was charged, in order; of a ledger in a file also what other processes have charged."""
        return self._now().events

    @property
    def spent(self) -> tuple[float, float]:
        """Guarantee (epsilon, delta) of everything charged; within the budget but for an overspent old file."""
        return self._now().reported

    @property
    def left(self) -> tuple[float, float]:
        """Guarantee (epsilon, delta) of the largest release with Gaussian noise that still fits; pure at delta 0."""
        return self._now().left

    def would_cost(self, *events: Event) -> float:
        """Epsilon that would be spent after a release of these events; charges nothing."""
        record = self._now()
        if not events:
            return record.spent[0]
        return replace(record, epsilon=math.inf).after(record.trial(events)).spent[0]

    def price_of_release(self, events: Sequence[Event], *, delta: float) -> float:
        """Epsilon at delta that a release counts as; charges nothing.

        Its joint price where it is fixed in advance; after other releases at least what its cost under the rule stands
        for, so that a release of some epsilon takes no more of the ledger than one Gaussian mechanism of that epsilon.
        """
        return self._now().price_of_release(events, delta)

    def check(self, *events: Event, delta: float | None = None) -> None:
        """Raise `BudgetExceeded` when a release of these events does not fit; charges nothing.

        Parameters as in `charge_release`.
        """
        self._now().admit(events, delta)

    def check_releases(self, *releases: Sequence[Event]) -> None:
        """Raise `BudgetExceeded` when releases do not fit one after the other; charges nothing."""
        record = self._now()
        for events in releases:
            record = record.after(record.admit(events))

    def charge(self, *events: Event) -> NoiseSource:
        """Charge events, then hand out their noise.

        Parameters
        ----------
        *events : Event
            Fixed in advance. On what `charge_release` returned they are taken from that release.

        Returns
        -------
        NoiseSource
            A `Permit` for exactly these events: their count or steps of draws, and no more.

        Raises
        ------
        BudgetExceeded
            When they do not fit in the budget; then nothing is charged.
        ValueError
            When there is no event: noise is handed out against a charge only.
        """
        if not events:
            raise ValueError("charge takes at least one event; got none.")
        return self.charge_release(*events).charge(*events)

    def charge_release(self, *events: Event, delta: float | None = None) -> Ledger:
        """Check that a release fits, and return the account from which its parts take their noise.

        All of its events are charged when the first of them is taken, before any noise is handed out.

        Parameters
        ----------
        *events : Event
            Of the whole release, fixed in advance; none for a release that uses no private row.
        delta : float, optional
            Of the release, at which the rule "basic" prices it: the largest delta of its events by default.

        Returns
        -------
        Ledger
            The same ledger, whose `charge` and `charge_release` take from these events and from nothing else. What is
            not taken after the first is charged all the same. Hold the ledger (`exclusive`) where others may charge it
            before that.

        Raises
        ------
        BudgetExceeded
            When they do not fit in the budget; then nothing is charged.
        """
        if events:
            self.check(*events, delta=delta)

        @cache
        def pay() -> None:
            self._change(lambda record: record.after(record.admit(events, delta)))

        return _Account(self, events, pay)

    def _hand_out(self, events: Sequence[Event]) -> NoiseSource:
        """Noise for events that are charged."""
        return Permit(self._noise, events)

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Hold the ledger: what other threads charge, or processes where it is in a file, waits until this ends.

        `publish` holds it from its price until the release is made, so that of two releases which do not both fit the
        second is refused before anything of it is charged.
        """
        with self._lock, nullcontext() if self._file is None else self._file.lock:
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
            kind, source = noise_kind(self._noise), type(self._noise)
            noted = before.with_noise(kind)
            if kind == "unverified":
                name = f"{source.__module__}.{source.__qualname__}"
                noted = noted.noting(f"Noise came from {name}, which is not this package's.")
            record = change(noted)
            if record == before:
                return
            if self._file is not None:
                self._file.write(record)
            self._record = record

    def note(self, reason: str) -> None:
        """Record why what follows cannot be certified."""
        self._change(lambda record: record.noting(reason))

    def _register(self, fingerprint: str) -> None:
        """Record a product of charged events and of nothing else, by a digest of its content (see `holds`)."""
        self._change(lambda record: replace(record, products=record.products | {fingerprint}))

    def holds(self, fingerprint: str | None) -> bool:
        """Whether exactly this content was registered as made by events that this ledger charged."""
        return fingerprint in self._now().products

    def statement(self) -> PrivacyStatement:
        """Return the frozen record of all charges so far."""
        return self._now().statement(noise_kind(self._noise))

    def __repr__(self) -> str:
        """Show the budget and what is spent of it."""
        record = self._now()
        epsilon, delta = record.reported
        return (
            f"Ledger(spent ({epsilon:.4g}, {delta:.2g}) of ({record.epsilon:g}, {record.delta:g}), "
            f"{record.adjacency}, rule {record.rule.name}, {len(record.events)} event(s))"
        )


class _Account(Ledger):
    """A release of a ledger: what its parts charge is taken from it; see `Ledger.charge_release`."""

    def __init__(self, ledger: Ledger, events: Sequence[Event], pay: Callable[[], None]) -> None:
        self._ledger, self._left, self._pay_once = ledger, Counter(count_uses(events)), pay
        self._noise, self._file, self._lock = ledger._noise, ledger._file, ledger._lock

    @property
    def _record(self) -> LedgerRecord:  # type: ignore[override]
        return self._ledger._record

    def _now(self) -> LedgerRecord:
        return self._ledger._now()

    def _change(self, change: Callable[[LedgerRecord], LedgerRecord]) -> None:
        self._ledger._change(change)

    def _hand_out(self, events: Sequence[Event]) -> NoiseSource:
        return self._ledger._hand_out(events)

    def check(self, *events: Event, delta: float | None = None) -> None:
        """Raise `BudgetExceeded` when the release does not hold these events, or has no longer."""
        missing = Counter(count_uses(events)) - self._left
        if missing:
            labels = ", ".join(dict.fromkeys(event.label for event in missing))
            raise BudgetExceeded(f"{labels}: not among what is left of the charged release; nothing was drawn.")

    def check_releases(self, *releases: Sequence[Event]) -> None:
        """Raise `BudgetExceeded` when the release does not hold all of these events."""
        self.check(*(event for events in releases for event in events))

    def charge(self, *events: Event) -> NoiseSource:
        """Take events from the release and hand out their noise."""
        self._take(events)
        self._pay_once()
        return self._hand_out(events)

    def charge_release(self, *events: Event, delta: float | None = None) -> Ledger:
        """Take a part of the release, with an account of its own."""
        self._take(events)
        return _Account(self._ledger, events, self._pay_once)

    def _take(self, events: Sequence[Event]) -> None:
        with self._lock:
            self.check(*events)
            self._left -= Counter(count_uses(events))
