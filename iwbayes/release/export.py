"""Rows, weights and replicate weights of a release as files for other programs, each with a text: how to read it."""

from __future__ import annotations

import io
import re
from pathlib import Path

import numpy as np
import pandas as pd

from iwbayes.release.replicates import ReplicateWeights
from iwbayes.schema import Date
from iwbayes.tables import SyntheticTable
from iwbayes.utils.archive import write_atomically
from iwbayes.utils.arrays import Array
from iwbayes.utils.display import fill

#: Endings of the files.
KINDS = ("csv", "dta", "parquet")
_MOST_CHARACTERS, _MOST_OF_LABEL = 32, 80  # of the name and the label of a variable in Stata
_WEIGHTS = (
    "The column {weight!r} of {file} has the weights. The weights sum to the number of private rows. Use them as "
    "weights of the log likelihood, or as probability weights."
)
_ALONE = "Intervals that other programs compute from them do not account for the privacy noise."
_REPLICATES = (
    "The columns {first!r} to {last!r} have replicate weights by Fay's method, with the coefficient {rho:g}. Standard "
    "errors from them account for the privacy noise, for the sampling of private and synthetic rows, and for an error "
    "in unmeasured statistics. No program checks whether this error is as large as assumed: fit important models with "
    "iwbayes too, and read their verdict."
)
_CODE = """\
R, with the package survey:
  rows <- {read}
  design <- svrepdesign(data = rows, weights = ~{weight},
    repweights = "^{stem}[0-9]+$", type = "Fay", rho = {rho:g},
    combined.weights = TRUE, mse = TRUE)
  svymean(~{column}, design)

Stata:
  {use}
  svyset [pweight = {weight}], brrweight({first}-{last}) fay({rho:g}) vce(brr) mse
  svy: mean {column}

SAS:
  proc surveymeans data={data} varmethod=brr(fay={rho:g});
    weight {weight}; repweights {first}-{last}; var {column};
  run;
"""
_READ = {
    "csv": ('read.csv("{}", stringsAsFactors = TRUE)', "import delimited {}, case(preserve)"),
    "dta": ('haven::as_factor(haven::read_dta("{}"))', "use {}"),
    "parquet": ('arrow::read_parquet("{}")', "* read the .csv or .dta of the release"),
}


def export(
    table: SyntheticTable,
    weights: Array,
    said: str,
    path: Path,
    *,
    replicates: ReplicateWeights | None = None,
    overwrite: bool = False,
) -> list[Path]:
    """Write rows and weights in the format of the path's ending, and a text; return both paths. See `Release.export`.

    Raises
    ------
    TypeError, ValueError, FileExistsError
        If the ending is unknown, the replicates belong to other weights, or a file exists.
    """
    kind = path.suffix.lower().removeprefix(".")
    if kind not in KINDS:
        raise ValueError(f"a release is exported as one of {list(KINDS)}, by the end of the name; got {path}.")
    weight, stem = _free("weight", table.schema.names), _free("rep", table.schema.names)
    dates = {column.name: column.dates(table.frame[column.name]) for column in table.schema if isinstance(column, Date)}
    rows = table.frame.assign(**dates, **{weight: weights})
    text = [
        said,
        fill(" ".join([_WEIGHTS.format(weight=weight, file=path.name), *([_ALONE] if replicates is None else [])])),
    ]
    if replicates is not None:
        if not isinstance(replicates, ReplicateWeights):
            raise TypeError(f"replicates must be those of replicate_weights; got {type(replicates).__name__}.")
        if not np.array_equal(replicates.weights, weights):
            raise ValueError("the replicate weights belong to a different release. Make them from this one.")
        names = [f"{stem}{number}" for number in range(1, len(replicates) + 1)]
        rows = pd.concat([rows, pd.DataFrame(replicates.values.T, columns=names)], axis=1)
        numeric = [c.name for c in table.schema if c.kind in ("real", "integer") and c.name.isidentifier()]
        read, use = (one.format(path.name) for one in _READ[kind])
        named = {
            "weight": weight, "stem": stem, "first": names[0], "last": names[-1], "rho": replicates.rho, "read": read,
            "use": use, "column": numeric[0] if numeric else "NAME", "data": re.sub(r"\W", "_", path.stem),
        }  # fmt: skip
        text += [fill(_REPLICATES.format(**named)), _CODE.format(**named)]
    path, below = files_of(path)
    write_atomically(path, _content(rows, kind), overwrite=overwrite)
    write_atomically(below, ("\n\n".join(text).rstrip() + "\n").encode(), overwrite=overwrite)
    return [path, below]


def files_of(path: Path) -> tuple[Path, Path]:
    """Return the files of an export: that at this path, and its text."""
    return path, path.with_name(f"{path.name}.txt")


def _free(stem: str, names: tuple[str, ...]) -> str:
    """Return a name, with underscores at its end while columns have it, also with a number."""
    while any(re.fullmatch(rf"{stem}\d*", name) for name in names):
        stem += "_"
    return stem


def _content(rows: pd.DataFrame, kind: str) -> bytes:
    if kind == "parquet":
        buffer = io.BytesIO()
        rows.to_parquet(buffer, index=False)
        return buffer.getvalue()
    return rows.to_csv(index=False).encode() if kind == "csv" else _stata(rows)


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
