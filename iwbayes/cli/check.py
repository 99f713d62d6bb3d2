"""What `iwbayes publish --check` finds: header, settings and ledger, and no cell unless it is asked to look."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from iwbayes._read import Format, check_drop, header, unfit_columns
from iwbayes._warnings import PrivacyWarning
from iwbayes.curator.plan import Plan
from iwbayes.curator.privacy.ledger import BudgetExceeded, Ledger
from iwbayes.schema import Schema
from iwbayes.statement import Event

#: Rows for which settings are checked where their number is not given.
_ROWS = 1000
NO_CELL = "No cell was read; nothing was charged or written."
AFTER_LOOK = (
    "Nothing was charged or written, but cells were looked at. With private rows, amending the schema after this is a "
    "look at them, which the privacy statement does not cover: use --on-undeclared missing or other, fixed before "
    "reading."
)


@dataclass(frozen=True)
class Findings:
    """What stands for and against a release.

    Parameters
    ----------
    n_columns : int
        Of the file.
    absent, repeated : list of str
        Columns that are declared or asked for, and are not in the file, or more than once.
    undeclared : list of int
        Positions of other columns, counted from 0: the header of a file without one is its first private row.
    unfit : list of str, optional
        Columns with cells that do not fit the schema; None where no cell was read.
    plan : Plan, optional
        None where the number of rows was not given.
    left : (float, float), optional
        Epsilon and delta that the ledger has left; None without a ledger.
    affordable : bool
        Whether the release fits in it.
    """

    n_columns: int
    absent: list[str]
    repeated: list[str]
    undeclared: list[int]
    unfit: list[str] | None
    plan: Plan | None
    left: tuple[float, float] | None
    affordable: bool

    @property
    def fits(self) -> bool:
        """Whether nothing stands against the release."""
        return self.affordable and not (self.absent or self.repeated or self.undeclared or self.unfit)

    @property
    def facts(self) -> dict[str, Any]:
        """The same as plain JSON values."""
        noise = None if self.plan is None else self.plan.noise_over_spread
        own = {name: value for name, value in vars(self).items() if name != "plan"}
        return {"fits": self.fits, **own, "noise_over_spread": noise}

    def __str__(self) -> str:
        said = []
        if self.absent:
            alone = " It has one column: is --sep what separates its cells?" if self.n_columns == 1 else ""
            said.append(f"columns: {self.absent} are not in the file.{alone}")
        if self.repeated:
            said.append(f"columns: {self.repeated} are there more than once. Drop or rename one.")
        if self.undeclared:
            said.append(
                f"columns: those at positions {self.undeclared} (counted from 0) are not declared. Declare them, or "
                f"leave them out by --drop or --keep-declared."
            )
        said = said or ["columns: as declared"]
        if self.unfit is not None:
            said.append(
                f"cells: some of {self.unfit} do not fit the schema" if self.unfit else "cells: all fit the schema"
            )
        said.append("settings: fine" + ("; give --n to be told the noise" if self.plan is None else ""))
        if self.plan is not None:
            said.append(f"noise over spread: {self.plan.noise_over_spread:.3g}. {self.plan.advice}".rstrip(" ."))
        if self.left is not None:
            verdict = "fits" if self.affordable else "does not fit: ask for less"
            said.append(
                f"ledger: epsilon {self.left[0]:.4g} at delta {self.left[1]:.3g} is left; the release {verdict}"
            )
        return "\n".join([*said, NO_CELL if self.unfit is None else AFTER_LOOK])


def check_release(
    path: Path,
    form: Format,
    schema: Schema,
    plan_for: Callable[[int], Plan],
    *,
    n: int | None,
    ledger: Ledger | None,
    parts: Sequence[Sequence[Event]],
    drop: Sequence[str],
    keep_declared: bool,
    user: str | None,
    look: bool,
) -> Findings:
    """Check a file's header, the settings, and whether the parts of a release fit in a ledger one after the other.

    The settings are checked by a plan, which raises what is wrong with them. Cells are read by ``look`` alone.
    """
    check_drop(drop, schema)
    with warnings.catch_warnings():
        if n is None:
            warnings.simplefilter("ignore", PrivacyWarning)  # of a delta above one in rows that nobody counted
        plan = plan_for(_ROWS if n is None else n)
    affordable = True
    if ledger is not None:
        try:
            ledger.check_releases(*parts)
        except BudgetExceeded:
            affordable = False
    names = header(path, form)
    wanted = [*schema.names, *drop, *([] if user is None else [user])]
    return Findings(
        len(names),
        absent=[name for name in wanted if name not in names],
        repeated=[name for name in wanted if names.count(name) > 1],
        undeclared=[] if keep_declared else [place for place, name in enumerate(names) if name not in wanted],
        unfit=unfit_columns(path, schema, form) if look else None,
        plan=None if n is None else plan,
        left=None if ledger is None else ledger.left,
        affordable=affordable,
    )
