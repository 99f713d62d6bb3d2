"""Rare reference levels: a regression compares all other levels of a column with its first one."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from iwbayes.schema import Categorical
from iwbayes.tables.synthetic_table import SyntheticTable
from iwbayes.utils.arrays import Array
from iwbayes.utils.warnings import IwbayesWarning

#: A first level is rare if fewer of the weighted rows have it, and another level is this many times as frequent.
RARE_SHARE, TIMES = 0.05, 4.0


class RareReference(NamedTuple):
    """A column whose first level is rare, the weighted share of this level, and what it means, with advice."""

    column: str
    share: float
    text: str


def rare_references(table: SyntheticTable, weights: Array, names: Sequence[str] | None = None) -> list[RareReference]:
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
            found.append(RareReference(column.name, float(share), text))
    return found


def warn_of_rare_references(table: SyntheticTable, weights: Array, names: Sequence[str]) -> None:
    """Issue an IwbayesWarning for each column whose first level is rare; see `rare_references`."""
    for found in rare_references(table, weights, names):
        warnings.warn(found.text, IwbayesWarning, stacklevel=3)
