"""Checks of `iwbayes publish --check`: header, settings and ledger; cells are read with --look only."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from iwbayes.curator.plan import Plan
from iwbayes.curator.privacy.ledger import BudgetExceeded, Ledger
from iwbayes.release.statement import Event
from iwbayes.schema import Schema
from iwbayes.schema.columns import _Numeric
from iwbayes.schema.schema import alike
from iwbayes.tables.file_formats import Format, table_file
from iwbayes.tables.read_table import check_drop, files_of, header, other_separator, unfit_columns
from iwbayes.utils.warnings import PrivacyWarning

_ROWS = 1000  # for which settings are checked if --n is not given
NO_CELL = "No cell was read, and nothing was charged or written."
AFTER_LOOK = (
    "Nothing was charged or written, but cells were read. If the rows are private, do not change the schema because of "
    "this result: the privacy statement does not cover that use of them. Instead, use --on-undeclared missing or "
    "other, chosen before reading the rows."
)


@dataclass(frozen=True)
class Findings:
    """Result of a check before a release."""

    n_columns: int  # of the file
    hint: str  # what may be wrong with the names of the file
    absent: list[str]  # columns that are declared or named in options, and that the file lacks
    repeated: list[str]  # those that the file has more than once
    undeclared: list[int]  # positions: if a file has no header, the names are its first private row
    unfit: list[str] | None  # columns with cells that do not fit the schema; None if no cell was read
    without_codes: list[str]  # columns of numbers or dates that declare no missing codes, and clip what is outside
    plan: Plan | None  # None if the number of rows was not given
    left: tuple[float, float] | None  # remaining epsilon and delta of the ledger, if there is one
    affordable: bool  # whether the release fits in the ledger
    price: float | None = None  # epsilon of the release alone, if it is known
    together: float | None = None  # epsilon of the ledger with the release

    @property
    def fits(self) -> bool:
        """Whether all checks passed."""
        return self.affordable and not (self.absent or self.repeated or self.undeclared or self.unfit)

    @property
    def facts(self) -> dict[str, Any]:
        """Result as plain JSON values."""
        noise = None if self.plan is None else self.plan.noise_ratio
        own = {name: value for name, value in vars(self).items() if name != "plan"}
        return {"fits": self.fits, **own, "noise_ratio": noise}

    def __str__(self) -> str:
        said = []
        if self.absent:
            said.append(f"columns: {self.absent} are not in the file.{self.hint}")
        if self.repeated:
            said.append(f"columns: {self.repeated} appear more than once. Drop or rename one of each.")
        if self.undeclared:
            said.append(
                f"columns: the columns at positions {self.undeclared} (counted from 0) are not declared. Declare them, "
                f"or leave them out with --drop or --keep-declared."
            )
        said = said or ["columns: as declared"]
        if self.unfit is not None:
            said.append(
                f"cells: some of {self.unfit} do not fit the schema" if self.unfit else "cells: all fit the schema"
            )
        if self.without_codes:
            said.append(
                f"missing codes: none are declared for the numbers in {self.without_codes}. A code such as -1 or 999 "
                f"would be moved to a bound; see the code book."
            )
        said.append("settings: valid" + ("; pass --n to see the expected noise" if self.plan is None else ""))
        if self.plan is not None:
            said.append(f"noise ratio: {self.plan.noise_ratio:.3g}. {self.plan.advice}".rstrip(" ."))
        if self.price is not None and self.plan is not None:
            said.append(f"price: epsilon {self.price!r} at delta {self.plan.delta:g} for this release alone")
        if self.together is not None:
            said.append(f"ledger: epsilon {self.together!r} with this release")
        if self.left is not None:
            verdict = "fits" if self.affordable else "does not fit; use a smaller budget"
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
    dry_run: bool,
) -> Findings:
    """Check the header of a file, the settings by a plan, and the ledger; read cells with ``look`` only.

    A dry run also counts the rows, and says the price.
    """
    check_drop(drop, schema)
    if dry_run and n is None:
        n = _rows_of(path, form, user)
    with warnings.catch_warnings():
        if n is None:
            warnings.simplefilter("ignore", PrivacyWarning)  # the number of rows, to compare delta with, is unknown
        plan = plan_for(_ROWS if n is None else n)
    affordable = True
    if ledger is not None:
        try:
            ledger.check_releases(*parts)
        except BudgetExceeded:
            affordable = False
    names = header(path, form)
    wanted = [*schema.generated.names, *drop, *([] if user is None else [user])]
    known = [*wanted, *schema.derived]  # which may be absent
    absent = [name for name in wanted if name not in names]
    return Findings(
        len(names),
        alike(absent, names) + other_separator(names),
        absent=absent,
        repeated=[name for name in known if names.count(name) > 1],
        undeclared=[] if keep_declared else [index for index, name in enumerate(names) if name not in known],
        unfit=unfit_columns(path, schema, form) if look else None,
        without_codes=[
            column.name
            for column in schema
            if isinstance(column, _Numeric) and column.outside == "clip" and not column.missing_codes
        ],
        plan=None if n is None else plan,
        left=None if ledger is None else ledger.left,
        affordable=affordable,
        price=plan.price if dry_run and user is None else None,
        together=min(plan.together, ledger.epsilon) if dry_run and ledger is not None and user is None else None,
    )


def _rows_of(path: Path, form: Format, user: str | None) -> int:
    """Return the public number of rows of a file or folder."""
    if user is not None:
        raise ValueError("the number of people is not counted in a dry run. Pass it as --n.")
    files = files_of(path, form) if path.is_dir() else [path]
    return sum(table_file(file, form).count() for file in files)
