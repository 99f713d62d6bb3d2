"""What released rows say of their columns, at no cost: rare first levels, and columns that are mostly empty."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from iwbayes.schema import Categorical
from iwbayes.schema.levels import OTHER, _Levels
from iwbayes.tables.synthetic_table import SyntheticTable
from iwbayes.utils.arrays import Array
from iwbayes.utils.warnings import IwbayesWarning

#: A column is mostly empty if more than this share of the weighted rows is missing, or "other".
MOSTLY = 0.5
#: A first level is rare if fewer of the weighted rows have it, and another level is this many times as frequent.
RARE_SHARE, TIMES = 0.05, 4.0


class Finding(NamedTuple):
    """A column, a weighted share of its rows, and what the share means, with advice."""

    column: str
    share: float
    text: str


def empty_columns(table: SyntheticTable, weights: Array) -> list[Finding]:
    """Return the columns that are mostly missing, or mostly "other", among the rows with these weights, shape (row,).

    It reads released rows only: cells that are written differently from the declaration show in them.
    """
    found = []
    for column in table.schema:
        cells = table.frame[column.name]
        flags = [("missing", cells.isna().to_numpy(dtype=bool))]
        if isinstance(column, _Levels) and OTHER in column.levels:
            flags.append((f"{OTHER!r}", column.codes(cells) == list(column.levels).index(OTHER)))
        for what, flag in flags:
            share = float(weights[flag].sum() / weights.sum())
            if share > MOSTLY:
                text = (
                    f"column {column.name!r} is {what} in {share:.0%} of the weighted rows. If the private rows are "
                    f"not like that, their cells are written differently from the declaration: compare levels, missing "
                    f"codes, formats and marks with the code book, and publish again."
                )
                found.append(Finding(column.name, share, text))
    return found


def rare_references(table: SyntheticTable, weights: Array, names: Sequence[str] | None = None) -> list[Finding]:
    """Return the columns of a table whose first level is rare among the rows with these weights, shape (row,).

    With `names`, the parameters of a regression such as ``race[White]``, only columns with such parameters count. With
    two levels, the order changes the sign of the one coefficient only.
    """
    found = []
    for column in table.schema:
        if not isinstance(column, Categorical) or len(column.levels) < 3:
            continue
        if names is not None and not any(name.startswith(f"{column.name}[") for name in names):
            continue
        codes = column.codes(table.frame[column.name])
        totals = np.bincount(codes[codes >= 0], weights[codes >= 0], minlength=len(column.levels))
        if not totals.any():
            continue
        first, most = int(np.argmax(totals > 0)), int(np.argmax(totals))  # the first level that occurs
        share, name, better = totals[first] / totals.sum(), column.name, column.levels[most]
        if share < RARE_SHARE and totals[most] >= TIMES * totals[first]:
            text = (
                f"{column.levels[first]!r}, the first level of {name!r}, has {share:.1%} of the weighted rows. "
                f"Regressions compare all other levels with it, so all coefficients of {name!r} are imprecise. "
                f"Use C({name}, Treatment({better!r})), or declare {better!r} first in the schema."
            )
            found.append(Finding(column.name, float(share), text))
    return found


def warn_of_rare_references(table: SyntheticTable, weights: Array, names: Sequence[str]) -> None:
    """Issue an IwbayesWarning for each column whose first level is rare; see `rare_references`."""
    for found in rare_references(table, weights, names):
        warnings.warn(found.text, IwbayesWarning, stacklevel=3)
