"""Ledger: one budget, one adjacency, one noise source. It charges first, and only then hands out noise."""

from __future__ import annotations

import datetime
import math
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any, Self

import pandas as pd

from iwbayes.curator.privacy.accounting import check_budget
from iwbayes.curator.privacy.filters import begin_rule
from iwbayes.curator.privacy.ledger_file import LedgerFile
from iwbayes.curator.privacy.ledger_record import BudgetExceeded, LedgerRecord
from iwbayes.curator.privacy.noise import NoiseSource, SystemNoise
from iwbayes.curator.privacy.permit import Permit, noise_kind
from iwbayes.release.statement import ADJACENCIES, Adjacency, Event, PrivacyStatement, count_uses
from iwbayes.utils import checks
from iwbayes.utils.display import WIDTH, fill, html_table, one_line, text_table, wrapped

_HEADER = ("release", "date", "epsilon alone", "together")  # of the table of releases


class Ledger:
    """Keep the privacy budget of one private table, and hand out noise against charges only.

    A charge stays if the run fails afterwards. `Ledger.open` keeps the ledger in a file.

    Parameters
    ----------
    epsilon, delta : float
        The whole budget: epsilon above 0, delta in [0, 1). An epsilon of ``math.inf`` protects nobody: it is for
        experiments, and no statement under it is certified.
    adjacency : {"replace-one", "zero-out", "replace-user"}
        What neighbouring tables of the same public size are: one row's values differ ("replace-one"), one row is a null
        row in one of them ("zero-out"), or all rows of one user differ ("replace-user"; see `bound_contributions`).
    rule : {"gdp", "renyi", "basic"}, optional
        The privacy filter that accepts or refuses releases, so that settings may depend on earlier ones. By default
        "gdp", cheapest if most noise is Gaussian, or "basic" composition if delta is 0; "renyi" is for private gradient
        steps. The theory page proves all three.
    plan : sequence of (sequence of Event, or Plan), default ()
        Releases that are fixed now, in this order. Their joint privacy loss distribution gives their cost, which is
        lower than by the rule. Other releases are accepted as far as the rule allows.
    noise : NoiseSource, optional
        `SystemNoise()` by default. With any other source no statement is certified.
    allow_large_delta : bool, default False
        Accept tables with so few rows, or users, that delta is at least one over their number, which does not protect
        single rows; the statement names it.

    Raises
    ------
    BudgetExceeded
        If the plan does not fit in the budget.

    Examples
    --------
    >>> from iwbayes.release.statement import Event
    >>> ledger = Ledger(epsilon=1.0, delta=1e-6)
    >>> _ = ledger.charge(Event("a count", "laplace", 0.25))
    >>> ledger.spent
    (0.25, 0.0)
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
        allow_large_delta: bool = False,
    ) -> None:
        epsilon, delta = check_budget(epsilon, delta, infinite=True)
        checks.one_of("adjacency", adjacency, ADJACENCIES)
        self._noise = SystemNoise() if noise is None else noise
        _ = noise_kind(self._noise)
        rules, allowed = begin_rule(rule, epsilon, delta), bool(allow_large_delta)
        record = LedgerRecord(epsilon, delta, adjacency, rules, allow_large_delta=allowed)
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
        allow_large_delta: bool = False,
    ) -> Self:
        """Open a ledger that is kept in a file, or create the file.

        A charge is on the disk before noise is handed out, and the file is locked while it changes: a crash never makes
        it count too little, and processes cannot overspend together. Restoring an older copy under-reports spending;
        only a `Ledger` object that has seen the missing charges detects it.

        Parameters
        ----------
        path : str or path
            The ledger's file. Its lock file, ``.NAME.lock``, is in the same folder; leave it there.
        epsilon, delta : float, optional
            The whole budget, needed to create a ledger.
        adjacency, rule, plan, noise, allow_large_delta
            As in `Ledger`, for a new ledger. An existing one keeps its budget and all but the noise source; values that
            you pass must equal them.

        Raises
        ------
        LedgerError
            If the file is damaged or is not a ledger; has a different budget, adjacency, rule or plan; or is missing
            although its lock file exists.
        OSError
            If the file cannot be read or written; FileNotFoundError without a file and a budget, or without the folder.
        """
        file = LedgerFile(path)
        new = None
        if epsilon is not None or delta is not None:
            if epsilon is None or delta is None:
                raise ValueError("a budget is both epsilon and delta; got one of them. Pass both.")
            kept: dict[str, Any] = {"rule": rule, "plan": plan, "allow_large_delta": allow_large_delta}
            new = cls(epsilon, delta, adjacency or "replace-one", noise=noise, **kept)._record
        elif plan:
            raise ValueError("a plan needs the ledger's budget; got plan= alone. Pass epsilon and delta.")
        record = file.begin(new, adjacency, rule=rule, allow_large_delta=allow_large_delta)
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
        """The adjacency: what neighbouring tables are; it does not change."""
        return self._record.adjacency

    @property
    def rule(self) -> str:
        """Name of the privacy filter that computes the cost of releases; it does not change."""
        return self._record.rule.name

    @property
    def allow_large_delta(self) -> bool:
        """Whether delta may be one over the number of rows, or of users, or more; it does not change."""
        return self._record.allow_large_delta

    @property
    def events(self) -> tuple[Event, ...]:
        """All charged events, in order; for a ledger in a file also the charges of other processes."""
        return self._now().events

    @property
    def spent(self) -> tuple[float, float]:
        """Guarantee (epsilon, delta) of all charges; within the budget."""
        return self._now().reported

    @property
    def left(self) -> tuple[float, float]:
        """Guarantee (epsilon, delta) of the largest Gaussian release that still fits; of a pure one if delta is 0."""
        return self._now().left

    @property
    def releases(self) -> pd.DataFrame:
        """All charges in order: ``name`` and ``date``, ``epsilon`` alone, and ``together`` with all earlier ones."""
        rows = self._now().table_of_releases()
        return pd.DataFrame(rows, columns=["name", "date", "epsilon", "together"])

    def would_cost(self, *events: Event, delta: float | None = None) -> float:
        """Return the epsilon spent after a release of these events (see `charge_release`); charge nothing."""
        record = self._now()
        if not events:
            return record.spent[0]
        return replace(record, epsilon=math.inf).after(record.trial(events, delta)).spent[0]

    def price_of_release(self, events: Sequence[Event], *, delta: float) -> float:
        """Return the epsilon, at ``delta``, that a release counts as: of a Gaussian with its rule cost, or more."""
        return self._now().price_of_release(events, delta)

    def check(self, *events: Event, delta: float | None = None) -> None:
        """Raise `BudgetExceeded` if a release (see `charge_release`) does not fit; charge nothing."""
        self._now().admit(events, delta)

    def check_releases(self, *releases: Sequence[Event]) -> None:
        """Raise `BudgetExceeded` if releases, one after the other, do not fit; charge nothing."""
        record = self._now()
        for events in releases:
            record = record.after(record.admit(events))

    def charge(self, *events: Event) -> NoiseSource:
        """Charge events that are fixed in advance, then hand out a `Permit` for exactly their draws.

        Raise `BudgetExceeded`, and charge nothing, if they do not fit; ValueError without an event.
        """
        if not events:
            raise ValueError("charge takes at least one event; got none.")
        return self.charge_release(*events).charge(*events)

    def charge_release(self, *events: Event, delta: float | None = None, name: str = "") -> Ledger:
        """Charge a release, and return an account whose `charge` and `charge_release` take its events, at most once.

        Call it before the first look at a private row: whatever happens afterwards, the release stays charged. So a
        release that fails because of a private value answers no question about it for free.

        Parameters
        ----------
        *events : Event
            All events of the release, fixed in advance; none if it uses no private row. If they do not fit in the
            budget, `BudgetExceeded` is raised and nothing is charged.
        delta : float, optional
            Delta at which the rule "basic" computes the cost; by default the largest delta of the events.
        name : str, default ""
            Name of the release in the ledger, which also records today's date.
        """
        if events:
            today = datetime.date.today().isoformat()
            named = one_line(str(name))
            self._change(lambda record: record.after(replace(record.admit(events, delta, named), date=today)))
        return _Account(self, events)

    def _hand_out(self, events: Sequence[Event]) -> NoiseSource:
        return Permit(self._noise, events)

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Lock the ledger for other threads, and processes if it is in a file, until this ends."""
        with self._lock, nullcontext() if self._file is None else self._file.lock:
            yield

    def _now(self) -> LedgerRecord:
        """Return the current record, with the charges of other processes."""
        if self._file is not None:
            with self._lock:
                self._record = self._file.read(since=self._record)
        return self._record

    def _change(self, change: Callable[[LedgerRecord], LedgerRecord]) -> None:
        """Record a change; on the disk first if the ledger is in a file."""
        with self.exclusive():
            before = self._now()
            # any change may come from noise of this object's source, so the record notes its kind
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

    def meet(self, n: int, units: str) -> None:
        """Raise ValueError if delta is at least 1/n for n public "rows" or "users", and that is not allowed."""
        before = self._now()
        if before.meeting(n, units) != before:
            self._change(lambda record: record.meeting(n, units))

    def note(self, reason: str) -> None:
        """Record a reason why later statements cannot be certified."""
        self._change(lambda record: record.noting(reason))

    def _register(self, fingerprint: str) -> None:
        """Record the digest of a product that depends on private rows through charged events only (see `holds`)."""
        self._change(lambda record: replace(record, products=record.products | {fingerprint}))

    def holds(self, fingerprint: str | None) -> bool:
        """Tell whether this content was registered as a product of events that this ledger charged."""
        return fingerprint in self._now().products

    def statement(self) -> PrivacyStatement:
        """Return the frozen record of all charges so far."""
        return self._now().statement(noise_kind(self._noise))

    def __str__(self) -> str:
        return self.summary()

    def summary(self, *, width: int = WIDTH) -> str:
        """Return the releases, their costs, what is spent and what is left, in lines of at most `width`."""
        title, rows, facts = self._facts()
        table = [text_table(_HEADER, rows, indent="  ", width=width)] if rows else []
        lines = [wrapped(title, width=width), *table, *(fill(fact, first="  ", width=width) for fact in facts)]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        title, rows, facts = self._facts()
        return html_table(title, _HEADER, rows, notes=facts)

    def _facts(self) -> tuple[str, list[tuple[str, str, float, float]], list[str]]:
        """Return a title with the budget, the releases, and sentences about the budget that is spent and left."""
        record = self._now()
        (spent, at), (left, rest) = record.reported, record.left
        title = (
            f"Ledger with the budget epsilon {record.epsilon:g} and delta {record.delta:g} ({record.adjacency}, rule "
            f"{record.rule.name})"
        )
        said = f"Spent: epsilon {spent:.4g} at delta {at:.3g}. Left: epsilon {left:.4g} at delta {rest:.3g}."
        statement = record.statement(noise_kind(self._noise))
        why = list(statement.notes) or [f"Its noise was {statement.noise}, or its budget is infinite."]
        doubts = [] if statement.certified else [f"Releases are NOT certified. {' '.join(why)}"]
        return title, record.table_of_releases(), [said, *filter(None, [record.explained()]), *doubts]

    def __repr__(self) -> str:
        record = self._now()
        epsilon, delta = record.reported
        return (
            f"Ledger(spent ({epsilon:.4g}, {delta:.2g}) of ({record.epsilon:g}, {record.delta:g}), "
            f"{record.adjacency}, rule {record.rule.name}, events: {len(record.events)})"
        )


class _Account(Ledger):
    """Account of one release, from which its parts take their events; see `Ledger.charge_release`."""

    def __init__(self, ledger: Ledger, events: Sequence[Event]) -> None:
        self._ledger, self._left = ledger, Counter(count_uses(events))
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
        """Raise `BudgetExceeded` unless these events are in the release and not taken yet."""
        missing = Counter(count_uses(events)) - self._left
        if missing:
            labels = ", ".join(dict.fromkeys(event.label for event in missing))
            raise BudgetExceeded(
                f"{labels}: the charged release has no such event left. List it in charge_release; nothing was drawn."
            )

    def check_releases(self, *releases: Sequence[Event]) -> None:
        """Raise `BudgetExceeded` unless all of these events are left in the release."""
        self.check(*(event for events in releases for event in events))

    def charge(self, *events: Event) -> NoiseSource:
        """Take events from the release and hand out their noise."""
        self._take(events)
        return self._hand_out(events)

    def charge_release(self, *events: Event, delta: float | None = None, name: str = "") -> Ledger:
        """Take a part of the release, and return a separate account for it."""
        self._take(events)
        return _Account(self._ledger, events)

    def _take(self, events: Sequence[Event]) -> None:
        with self._lock:
            self.check(*events)
            self._left -= Counter(count_uses(events))
