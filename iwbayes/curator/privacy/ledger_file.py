"""The file of a ledger: replaced as a whole and on the disk before noise is drawn, locked while it changes."""

from __future__ import annotations

import hashlib
import json
import math
import os
import time
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from typing import Any

from filelock import FileLock

from iwbayes._archive import write_atomically
from iwbayes.curator.privacy.accounting import check_budget
from iwbayes.curator.privacy.filters import Cost, begin_rule, rule_from_dict
from iwbayes.curator.privacy.ledger_record import Charge, LedgerRecord
from iwbayes.statement import ADJACENCIES, INFINITE, NOISE_KINDS, Event

FORMAT = "iwbayes-ledger"
FORMAT_VERSION = 2
#: Largest ledger file that is read, in bytes.
MAX_BYTES = 64 * 2**20
#: How long a process may take from making a ledger's lock file to holding it, in seconds: two begin one ledger at once.
_GRACE = 1.0


class LedgerError(ValueError):
    """A ledger's file cannot be used."""


class LedgerFile:
    """Where a ledger is kept: whole records, replaced atomically under a lock."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        # a link is followed, so that one ledger has one lock under every name
        self.path = Path(path).resolve()
        self.lock_path = self.path.with_name(f".{self.path.name}.lock")
        #: Within itself it is free. It ends with the process, however that ends.
        self.lock = FileLock(self.lock_path)

    def begin(self, record: LedgerRecord | None, adjacency: str | None, *, rule: str | None = None) -> LedgerRecord:
        """Return what is in the file; where there is none, write the record of a new ledger, if it is given one."""
        if not self.path.exists():
            self._begin(record)
        found = self.read()
        if record is not None and (found.epsilon, found.delta) != (record.epsilon, record.delta):
            raise LedgerError(
                f"{self.path} has a budget of epsilon {found.epsilon:g}, delta {found.delta:g}, which does not change; "
                f"got {record.epsilon:g}, {record.delta:g}. Leave them out to open it."
            )
        if adjacency is not None and found.adjacency != adjacency:
            raise LedgerError(f"{self.path} protects under {found.adjacency!r}; got adjacency={adjacency!r}.")
        if rule is not None and found.rule.name != rule:
            raise LedgerError(
                f"{self.path} counts by the rule {found.rule.name!r}, which does not change; got {rule!r}."
            )
        if record is not None and record.plan and [c.events for c in found.plan] != [c.events for c in record.plan]:
            raise LedgerError(f"{self.path} was begun with another plan, which does not change. Leave it out.")
        return found

    def _begin(self, record: LedgerRecord | None) -> None:
        """Write the record of a new ledger, unless its lock file tells that there was one, or another process does."""
        stood, patience = self.lock_path.exists(), time.monotonic() + _GRACE
        if record is None and not stood:
            return
        if not self.path.parent.is_dir():
            raise FileNotFoundError(f"the folder {self.path.parent} does not exist. Make it first.")
        while True:
            with self.lock:
                if self.path.exists():
                    return
                if not stood and record is not None:
                    return self.write(record, begins=True)
            # who made the lock file may be about to take the lock, and then to write
            if time.monotonic() > patience:
                break
            time.sleep(_GRACE / 50)
        raise LedgerError(
            f"a ledger stood at {self.path} and is gone; its whole budget counts as spent. Restore it from a backup; "
            f"if it never held anything, delete the lock file {self.lock_path} to begin anew."
        )

    def read(self, *, since: LedgerRecord | None = None) -> LedgerRecord:
        """Read the record, in full or not at all; nothing of what was read before (``since``) may be gone."""
        try:
            with open(self.path, "rb") as file:
                content = file.read(MAX_BYTES + 1)
        except FileNotFoundError:
            if since is not None:
                raise LedgerError(
                    f"{self.path} is gone. Put it back: without it nothing is charged or drawn."
                ) from None
            raise FileNotFoundError(
                f"there is no ledger at {self.path}. Pass epsilon and delta, the whole budget, to begin one "
                "(iwbayes ledger PATH --epsilon E --delta D)."
            ) from None
        record = self._parse(content)
        begun = attrgetter("epsilon", "delta", "adjacency", "rule", "plan")
        if since and (begun(record) != begun(since) or record.charges[: len(since.charges)] != since.charges):
            raise LedgerError(
                f"{self.path} has lost charges, or is another ledger. Put the newest copy back: nothing is charged or "
                f"drawn until then."
            )
        return record

    def _parse(self, content: bytes) -> LedgerRecord:
        try:
            if len(content) > MAX_BYTES:
                raise ValueError(f"it is larger than {MAX_BYTES} bytes")
            values = json.loads(content)
            if not isinstance(values, dict) or values.get("format") != FORMAT:
                raise ValueError("it is no ledger")
            if values.get("format_version") not in (1, FORMAT_VERSION):
                raise ValueError(f"its format version is above {FORMAT_VERSION}; upgrade iwbayes")
            if values.pop("sha256", None) != _digest(values):
                raise ValueError("its checksum does not match, it is damaged or was edited")
            return _from_dict(values)
        except Exception as error:  # whatever is in the file, there is one failure
            problem = str(error)[:200].rstrip(".") if isinstance(error, ValueError) else type(error).__name__
            raise LedgerError(
                f"{self.path} cannot be read as a ledger: {problem}. Put a copy back that has all charges; a ledger "
                f"that is lost cannot be begun anew, its whole budget counts as spent."
            ) from None

    def write(self, record: LedgerRecord, *, begins: bool = False) -> None:
        """Replace the file; once this returns the record is on the disk. Call it under the lock.

        Where it cannot be written the old file stays as it is.
        """
        # a second name (a hard link) would go on without this change
        if not begins and self.path.stat().st_nlink > 1:
            raise LedgerError(
                f"{self.path} has more than one name (hard links). Remove the others: each would be its own ledger."
            )
        values = _to_dict(record)
        content = json.dumps({**values, "sha256": _digest(values)}, indent=1) + "\n"
        write_atomically(self.path, content.encode(), overwrite=not begins)


def _digest(values: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def _to_dict(record: LedgerRecord) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "epsilon": INFINITE if record.epsilon == math.inf else record.epsilon,
        "delta": record.delta,
        "adjacency": record.adjacency,
        "rule": record.rule.to_dict(),
        "noise": record.noise,
        "notes": list(record.notes),
        "products": sorted(record.products),
        "plan": [_charge_to_dict(charge) for charge in record.plan],
        "charges": [_charge_to_dict(charge) for charge in record.charges],
    }


def _charge_to_dict(charge: Charge) -> dict[str, Any]:
    return {
        "events": [event.to_dict() for event in charge.events],
        "cost": _plain(charge.cost),
        "opening": _plain(charge.opening),
        "planned": charge.planned,
    }


def _charge_from_dict(values: dict[str, Any]) -> Charge:
    events = tuple(Event.from_dict(event) for event in values["events"])
    if not events:
        raise ValueError("it has a charge without events")
    if not (values["planned"] is None or type(values["planned"]) is int):
        raise ValueError("it has a charge without a place in its plan")
    return Charge(events, _cost(values["cost"]), _cost(values["opening"]), values["planned"])


def _plain(cost: Cost) -> list[float | str]:
    return [INFINITE if part == math.inf else part for part in cost]


def _cost(values: list[float | str]) -> Cost:
    main, delta = (math.inf if part == INFINITE else float(part) for part in values)
    if not (main >= 0 and delta >= 0):
        raise ValueError("it has a charge without a price")
    return Cost(main, delta)


def _from_dict(values: dict[str, Any]) -> LedgerRecord:
    """Read either format; the first had no rule and did not say which events were one release, so each counts alone."""
    epsilon = math.inf if values["epsilon"] == INFINITE else values["epsilon"]
    if values["noise"] not in NOISE_KINDS or values["adjacency"] not in ADJACENCIES:
        raise ValueError("its noise or adjacency is not known")
    epsilon, delta = check_budget(epsilon, values["delta"], infinite=True)
    first = values["format_version"] == 1
    rule = begin_rule(None, epsilon, delta) if first else rule_from_dict(values["rule"], epsilon, delta)
    record = LedgerRecord(epsilon, delta, values["adjacency"], rule)
    if first:
        for event in values["events"]:
            record = record.after(record.trial([Event.from_dict(event)]))
    else:
        plan, charges = ([_charge_from_dict(charge) for charge in values[name]] for name in ("plan", "charges"))
        record = replace(record, plan=tuple(plan), charges=tuple(charges))
    return replace(
        record,
        noise=values["noise"],
        notes=tuple(str(note) for note in values["notes"]),
        products=frozenset(str(product) for product in values["products"]),
    )
