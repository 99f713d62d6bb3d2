"""Rows and weights of a release as files for other programs, each with a text: what they are, and their verdict."""

from __future__ import annotations

import io
import re
from pathlib import Path

import numpy as np
import pandas as pd

from iwbayes.schema import Date
from iwbayes.tables import SyntheticTable
from iwbayes.utils.archive import write_atomically
from iwbayes.utils.arrays import Array
from iwbayes.utils.display import fill

#: Endings of the files.
KINDS = ("csv", "dta")
_MOST_CHARACTERS, _MOST_OF_LABEL = 32, 80  # of the name and the label of a variable in Stata
_HOW = (
    "The weights sum to the number of private rows. Use them as weights of the log likelihood, or as probability "
    "weights. Intervals that other programs compute from them do not account for the privacy noise."
)


def export(table: SyntheticTable, weights: Array, said: str, path: Path, *, overwrite: bool = False) -> list[Path]:
    """Write rows and weights in the format of the path's ending, and a text; return both paths. See `Release.export`.

    Raises
    ------
    ValueError, FileExistsError
        If the ending is unknown, or a file exists.
    """
    kind = path.suffix.lower().removeprefix(".")
    if kind not in KINDS:
        raise ValueError(f"a release is exported as one of {list(KINDS)}, by the end of the name; got {path}.")
    weight = "weight"
    while weight in table.schema.names:
        weight += "_"
    dates = {column.name: column.dates(table.frame[column.name]) for column in table.schema if isinstance(column, Date)}
    rows = table.frame.assign(**dates, **{weight: weights})
    content = rows.to_csv(index=False).encode() if kind == "csv" else _stata(rows)
    write_atomically(path, content, overwrite=overwrite)
    text = path.with_name(f"{path.name}.txt")
    about = fill(f"The column {weight!r} of {path.name} has the weights. {_HOW}")
    write_atomically(text, f"{said}\n\n{about}\n".encode(), overwrite=overwrite)
    return [path, text]


def _stata(rows: pd.DataFrame) -> bytes:
    """Return a Stata file: levels as labelled codes, and names that Stata admits, with the columns' names as labels."""
    columns: dict[str, pd.Series] = {}
    labels: dict[str, str] = {}
    dates: dict[str, str] = {}
    for name, cells in rows.items():
        stem = re.sub(r"\W", "_", str(name), flags=re.ASCII)
        short = (stem if re.match("[A-Za-z_]", stem) else f"_{stem}")[:_MOST_CHARACTERS]
        for number in range(2, len(rows.columns) + 2):
            if short not in columns:
                break
            short = f"{short[: _MOST_CHARACTERS - 4]}_{number}"
        if isinstance(cells.dtype, pd.CategoricalDtype):
            codes = cells.cat.codes
            cells = pd.Series(pd.Categorical.from_codes(codes, [str(level) for level in cells.cat.categories]))
        elif cells.dtype.kind == "M" and not (cells < pd.Timestamp.min).any():
            dates[short] = "td"
        elif cells.dtype.kind == "M":  # pandas 2 writes no dates before 1678
            cells = cells.dt.strftime("%Y-%m-%d").fillna("")
        elif isinstance(cells.dtype, pd.Int64Dtype):
            cells = pd.Series(cells.to_numpy(dtype=np.float64, na_value=np.nan))
        columns[short], labels[short] = cells, str(name)[:_MOST_OF_LABEL]
    buffer = io.BytesIO()
    pd.DataFrame(columns).to_stata(buffer, write_index=False, version=118, variable_labels=labels, convert_dates=dates)
    return buffer.getvalue()
