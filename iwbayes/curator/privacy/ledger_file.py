"""The file of a ledger: replaced as a whole, on the disk before noise is drawn, and locked while it changes."""

from __future__ import annotations

import hashlib
import json
import math
import os
import time
from dataclasses import fields
from operator import attrgetter
from pathlib import Path
from typing import Any

from filelock import FileLock

from iwbayes.curator.privacy.accounting import check_budget
from iwbayes.curator.privacy.filters import Cost, rule_from_dict
from iwbayes.curator.privacy.ledger_record import Charge, LedgerRecord
from iwbayes.release.statement import ADJACENCIES, INFINITE, NOISE_KINDS, Event
from iwbayes.utils.archive import MAX_TEXT, ArchiveError, check_text, write_atomically
from iwbayes.utils.display import one_line

FORMAT = "iwbayes-ledger"
FORMAT_VERSION = 1
_GRACE = 1.0  # seconds in which another process that creates the same ledger may acquire its lock


class LedgerError(ValueError):
    """Raised when the file of a ledger cannot be used: nothing is charged, and no noise is drawn.

    The file is damaged, missing or not a ledger; it has lost charges; or its budget, adjacency, rule or plan differs
    from the given one.
    """


class LedgerFile:
    """The file of a ledger: a whole record, replaced atomically under a lock."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        # symbolic links are resolved, so that a ledger has one lock under all of its names
        self.path = Path(path).resolve()
        self.lock_path = self.path.with_name(f".{self.path.name}.lock")
        #: Reentrant. The operating system releases it when the process ends, also after a crash.
        self.lock = FileLock(self.lock_path)

    def begin(
        self,
        record: LedgerRecord | None,
        adjacency: str | None,
        *,
        rule: str | None = None,
        allow_large_delta: bool = False,
    ) -> LedgerRecord:
        """Return the record in the file; if there is no file, first write the given record, if any."""
        if not self.path.exists():
            self._begin(record)
        found = self.read()
        if record is not None and (found.epsilon, found.delta) != (record.epsilon, record.delta):
            raise LedgerError(
                f"{self.path} has a budget of epsilon {found.epsilon:g}, delta {found.delta:g}, which does not change; "
                f"got {record.epsilon:g}, {record.delta:g}. Leave out epsilon and delta to open it."
            )
        for name, own, value in (("adjacency", found.adjacency, adjacency), ("rule", found.rule.name, rule)):
            if value is not None and own != value:
                raise LedgerError(
                    f"{self.path} has the {name} {own!r}, which does not change; got {name}={value!r}. Leave it out to "
                    f"open the ledger."
                )
        if allow_large_delta and not found.allow_large_delta:
            raise LedgerError(
                f"{self.path} was created without allow_large_delta, which does not change. Create another ledger."
            )
        if record is not None and record.plan and [c.events for c in found.plan] != [c.events for c in record.plan]:
            raise LedgerError(
                f"{self.path} was created with a different plan, which does not change. Leave out plan= to open it."
            )
        return found

    def _begin(self, record: LedgerRecord | None) -> None:
        """Write a new ledger's record, unless a lock file shows that it existed, or another process writes it."""
        stood, patience = self.lock_path.exists(), time.monotonic() + _GRACE
        if record is None and not stood:
            return
        if not self.path.parent.is_dir():
            raise FileNotFoundError(f"the folder {self.path.parent} does not exist. Create it first.")
        while True:
            with self.lock:
                if self.path.exists():
                    return
                if not stood and record is not None:
                    return self.write(record, begins=True)
            # the process that created the lock file may be about to take the lock and write the ledger
            if time.monotonic() > patience:
                break
            time.sleep(_GRACE / 50)
        raise LedgerError(
            f"the ledger {self.path} is missing, but its lock file exists: its whole budget counts as spent. Restore "
            f"it from a backup. If nothing was ever charged to it, delete the lock file {self.lock_path} and create "
            f"the ledger again."
        )

    def read(self, *, since: LedgerRecord | None = None) -> LedgerRecord:
        """Read the whole record, or raise; every charge of ``since``, an earlier read, must still be there."""
        try:
            with open(self.path, "rb") as file:
                content = file.read(MAX_TEXT + 1)
        except FileNotFoundError:
            if since is not None:
                raise LedgerError(
                    f"the ledger {self.path} is gone. Put it back: without it nothing is charged or drawn."
                ) from None
            raise FileNotFoundError(
                f"there is no ledger at {self.path}. Pass epsilon and delta, the whole budget, to create it "
                "(iwbayes ledger PATH --epsilon E --delta D)."
            ) from None
        record = self._parse(content)
        fixed = attrgetter("epsilon", "delta", "adjacency", "rule", "plan", "allow_large_delta")
        if since and (fixed(record) != fixed(since) or record.charges[: len(since.charges)] != since.charges):
            raise LedgerError(
                f"{self.path} has lost charges, or is a different ledger. Put the newest copy back: until then nothing "
                f"is charged or drawn."
            )
        return record

    def _parse(self, content: bytes) -> LedgerRecord:
        try:
            check_text(content)
            values = json.loads(content)
            if not isinstance(values, dict) or values.get("format") != FORMAT:
                raise ValueError("it is not a ledger")
            if values.get("format_version") != FORMAT_VERSION:
                raise ValueError(f"its format version is not {FORMAT_VERSION}; upgrade iwbayes")
            if values.pop("sha256", None) != _digest(values):
                raise ValueError("its checksum does not match, because it is damaged or was edited")
            return _from_dict(values)
        except Exception as error:  # any unreadable content gives the same kind of error
            problem = one_line(str(error)[:200]).rstrip(".") if isinstance(error, ValueError) else type(error).__name__
            raise LedgerError(
                f"{self.path} cannot be read as a ledger: {problem}. Put back a copy that has all charges. A lost "
                f"ledger cannot be replaced by a new one, because its whole budget counts as spent."
            ) from None

    def write(self, record: LedgerRecord, *, begins: bool = False) -> None:
        """Replace the file as a whole or not at all, and wait until it is on the disk. The caller holds the lock."""
        # a hard link would keep the old content, without this change
        if not begins and self.path.stat().st_nlink > 1:
            raise LedgerError(
                f"{self.path} has more than one name (hard links). Remove the other names, because each would become "
                f"its own ledger."
            )
        values = _to_dict(record)
        content = (json.dumps({**values, "sha256": _digest(values)}, indent=1) + "\n").encode()
        try:
            check_text(content)
        except ArchiveError as error:
            raise LedgerError(f"{self.path} is full: with this charge, {error}. Nothing was charged.") from None
        write_atomically(self.path, content, overwrite=not begins)


def _digest(values: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def _to_dict(record: LedgerRecord) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        **{field.name: getattr(record, field.name) for field in fields(record)},
        "epsilon": _plain(record.epsilon),
        "rule": record.rule.to_dict(),
        "products": sorted(record.products),
        "plan": list(map(_charge_to_dict, record.plan)),
        "charges": list(map(_charge_to_dict, record.charges)),
    }


def _charge_to_dict(charge: Charge) -> dict[str, Any]:
    costs = {"cost": [*map(_plain, charge.cost)], "opening": [*map(_plain, charge.opening)]}
    rest = {"planned": charge.planned, "name": charge.name, "date": charge.date}
    return {"events": [event.to_dict() for event in charge.events], **costs, **rest}


def _charge_from_dict(values: dict[str, Any]) -> Charge:
    events = tuple(Event.from_dict(event) for event in values["events"])
    if not events:
        raise ValueError("it has a charge without events")
    if not (values["planned"] is None or type(values["planned"]) is int):
        raise ValueError("it has a charge without a valid index in its plan")
    said = (one_line(str(values[key])) for key in ("name", "date"))
    return Charge(events, _cost(values["cost"]), _cost(values["opening"]), values["planned"], *said)


def _plain(value: float) -> float | str:
    return INFINITE if value == math.inf else value


def _cost(values: list[float | str]) -> Cost:
    main, delta = (math.inf if part == INFINITE else float(part) for part in values)
    if not (main >= 0 and delta >= 0):
        raise ValueError("it has a charge without a valid cost")
    return Cost(main, delta)


def _from_dict(values: dict[str, Any]) -> LedgerRecord:
    epsilon = math.inf if values["epsilon"] == INFINITE else values["epsilon"]
    if values["noise"] not in NOISE_KINDS or values["adjacency"] not in ADJACENCIES:
        raise ValueError("its noise or adjacency is unknown")
    epsilon, delta = check_budget(epsilon, values["delta"], infinite=True)
    plan, charges = (tuple(map(_charge_from_dict, values[name])) for name in ("plan", "charges"))
    return LedgerRecord(
        epsilon,
        delta,
        values["adjacency"],
        rule_from_dict(values["rule"], epsilon, delta),
        plan=plan,
        charges=charges,
        noise=values["noise"],
        notes=tuple(str(note) for note in values["notes"]),
        products=frozenset(str(product) for product in values["products"]),
        allow_large_delta=values["allow_large_delta"] is True,
        large_delta=None if values["large_delta"] is None else int(values["large_delta"]),
    )
