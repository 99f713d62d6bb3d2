"""Designs of new rows: what a fit records of its formula's transformations and levels, and its use on other tables."""

from __future__ import annotations

import json
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
from formulaic import Formula, ModelSpec
from formulaic.errors import DataMismatchWarning
from formulaic.parser.types import Factor
from numpy.typing import NDArray

from iwbayes.analyst.design import Basis, Design, evaluate
from iwbayes.columns import Binary, Integer, Real
from iwbayes.schema import Schema

__all__ = ["RecordedDesign", "read_design", "record_design"]

Array = NDArray[np.float64]

#: Largest record, in characters: netCDF attributes hold 64 KiB.
MOST_CHARACTERS = 60_000
#: Rows on which a record is tried.
TRIED_ROWS = 5
_VERSION = 1


@dataclass(frozen=True, eq=False)
class RecordedDesign:
    """The design of a fit, for other rows than its own.

    Parameters
    ----------
    formula, family, name : str
        Of the fit; `name` is the response's.
    levels : tuple of str
        Levels of the response, reference first; empty for numbers.
    terms : tuple of (str, int)
        Terms and their numbers of columns.
    basis : Basis
    auxiliary : str or None
        Name of the auxiliary parameter.
    """

    formula: str
    family: str
    name: str
    levels: tuple[str, ...]
    terms: tuple[tuple[str, int], ...]
    basis: Basis
    auxiliary: str | None = None

    @property
    def n_predictors(self) -> int:
        """Number K of linear predictors."""
        return len(self.levels) - 1 if self.family == "categorical" else 1

    def matrix(self, frame: pd.DataFrame) -> Array:
        """Columns of the design on a table in the form of `ready`.

        Parameters
        ----------
        frame : pandas.DataFrame, shape (row, column)

        Returns
        -------
        ndarray, shape (row, column of the design)

        Raises
        ------
        ValueError
            If the formula can not be evaluated there, a column is not finite, or a column is not zero that was zero
            in all rows of the fit and so has no coefficient.
        """
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error", DataMismatchWarning)
                matrix = evaluate(self.basis.spec, frame)
        except DataMismatchWarning:
            raise ValueError(
                f"the rows have categories that the rows of the fit lack, in a factor of {self.formula!r}; they have "
                "no coefficient. Leave such rows out."
            ) from None
        except ValueError as error:
            reason = str(error).splitlines()[0]
            raise ValueError(
                f"the rows must suit {self.formula!r}; {reason} Splines, for one, end with the rows of the fit: leave "
                "rows beyond out."
            ) from None
        names, values = [str(name) for name in matrix.columns], matrix.to_numpy(dtype=np.float64)
        if len(values) != len(frame):
            raise ValueError(f"formula {self.formula!r} must keep the number of rows; a function in it changes it.")
        bad = ~np.isfinite(values)
        if bad.any():
            raise ValueError(
                f"{names[int(np.argmax(bad.any(axis=0)))]!r} must be finite; it is not in "
                f"{int(bad.any(axis=1).sum())} rows. Leave them out."
            )
        own = set(self.basis.columns)
        new = [name for name, column in zip(names, values.T, strict=True) if name not in own and column.any()]
        if new:
            raise ValueError(
                f"columns {new} of the design were zero in all rows of the fit, so that they have no coefficient, and "
                "are not in these rows. Leave such rows out."
            )
        return np.ascontiguousarray(values[:, [names.index(name) for name in self.basis.columns]]) + 0.0

    def coefficients(self, posterior: xr.Dataset) -> Array:
        """Draws of the coefficients, shape (draw of all chains, column, predictor)."""
        absent = [name for name, _ in self.terms if name not in posterior]
        if absent:
            raise ValueError(f"the posterior lacks the coefficients {absent}. Pass all that fit returned.")
        blocks = []
        for name, n_columns in self.terms:
            values: Any = posterior[name].transpose("chain", "draw", ...).to_numpy()
            values = np.asarray(values, dtype=np.float64).reshape(values.shape[0] * values.shape[1], -1)
            if values.shape[1] != n_columns * self.n_predictors:
                raise ValueError(
                    f"the coefficient {name!r} has {values.shape[1]} elements and the fit gave it "
                    f"{n_columns * self.n_predictors}. Pass all that fit returned."
                )
            blocks.append(values.reshape(len(values), n_columns, self.n_predictors))
        return np.concatenate(blocks, axis=1)

    def auxiliary_draws(self, posterior: xr.Dataset) -> Array:
        """Draws of the auxiliary parameter, shape (draw of all chains,); zeros where the family has none."""
        if self.auxiliary is None:
            return np.zeros(posterior.sizes["chain"] * posterior.sizes["draw"])
        if self.auxiliary not in posterior:
            raise ValueError(f"the posterior lacks {self.auxiliary!r}. Pass all that fit returned.")
        return np.asarray(posterior[self.auxiliary].transpose("chain", "draw"), dtype=np.float64).ravel()

    def ready(self, newdata: pd.DataFrame) -> pd.DataFrame:
        """Check new rows against the schema and the levels of the fit; predictors only, as plain numbers and levels.

        Raises
        ------
        TypeError, ValueError
            No frame or no rows, missing columns or cells, numbers outside their bounds, levels that are not declared
            or did not occur in the fit.
        """
        if not isinstance(newdata, pd.DataFrame):
            raise TypeError(f"newdata must be a pandas DataFrame; got {type(newdata).__name__}.")
        if len(newdata) == 0:
            raise ValueError("newdata must have a row or more; it has none.")
        names = list(newdata.columns)
        wrong = [name for name in self.basis.predictors if names.count(name) != 1]
        if wrong:
            raise ValueError(
                f"newdata must have each column of {self.formula!r} once; it lacks or repeats {wrong}. It needs "
                f"{list(self.basis.predictors)}."
            )
        return pd.DataFrame(
            {name: self._column(name, newdata[name].reset_index(drop=True)) for name in self.basis.predictors},
            index=pd.RangeIndex(len(newdata)),
        )

    def _column(self, name: str, values: pd.Series) -> pd.Series:
        column = self.basis.schema[name]
        missing = values.isna().to_numpy(dtype=bool)
        if missing.any():
            raise ValueError(
                f"newdata must have no missing cells in the columns used; {int(missing.sum())} of {len(values)} are "
                f"missing in {name!r}. Fill them or leave these rows out."
            )
        if isinstance(column, Real | Integer):
            _check_bounds(column, values)
        conformed = column.conform(values)
        if isinstance(conformed.dtype, pd.CategoricalDtype):
            known = list(self.basis.levels[name])
            unknown = sorted({str(level) for level in conformed.unique() if level not in set(known)})
            if unknown:
                raise ValueError(
                    f"levels {unknown} of column {name!r} occurred in no row of the fit, so that they have no "
                    f"coefficient; it knows {known}. Leave such rows out."
                )
            return conformed.cat.set_categories(known)
        return conformed.astype(np.int64) if isinstance(column, Integer | Binary) else conformed


def _check_bounds(column: Real | Integer, values: pd.Series) -> None:
    """Refuse numbers that the schema clips: a prediction there would be for another row."""
    if not pd.api.types.is_numeric_dtype(values.dtype) or values.dtype.kind in "cb":
        raise TypeError(f"column {column.name!r} of newdata must hold numbers; its dtype is {values.dtype}.")
    numbers = values.to_numpy(dtype=np.float64)
    outside = (numbers < column.lower) | (numbers > column.upper)
    if outside.any():
        raise ValueError(
            f"column {column.name!r} of newdata must lie in its declared [{column.lower}, {column.upper}]; "
            f"{int(outside.sum())} of {len(numbers)} values do not (the first is {numbers[np.argmax(outside)]:g}). The "
            "model knows nothing beyond; clip them or leave these rows out."
        )


def record_design(design: Design, frame: pd.DataFrame) -> str:
    """Write down all that another table needs to get the columns of a design, as JSON for an attribute.

    Parameters
    ----------
    design : Design
    frame : pandas.DataFrame, shape (row, column)
        The canonical table that it was built on.

    Returns
    -------
    str
        With an entry ``reason`` and no design where it cannot be used on other rows: where a function of the formula
        looks at all rows at once (``x - np.mean(x)``) and keeps no state, or the record grows too large. The record
        is tried on a few rows before it is returned.
    """
    basis = design.basis
    content = {
        "version": _VERSION,
        "schema": basis.schema.to_dict(),
        "name": design.name,
        "levels": [str(level) for level in design.response.levels],
        "terms": [[term.name, term.columns.stop - term.columns.start] for term in design.terms],
        "auxiliary": design.auxiliary,
        "predictors": list(basis.predictors),
        "columns": list(basis.columns),
        "occurring": {name: _encoded(levels) for name, levels in basis.levels.items()},
        "categories": {
            str(expr): _encoded(state["categories"])
            for expr, (_, state) in basis.spec.encoder_state.items()
            if "categories" in state
        },
    }
    try:
        content["transforms"] = {str(expr): _encoded(state) for expr, state in basis.spec.transform_state.items()}
        text = json.dumps(content)
    except TypeError as error:
        return _unusable(f"a transformation keeps a state that can not be written down ({error})")
    if len(text) > MOST_CHARACTERS:
        return _unusable(f"its levels and knots take {len(text)} characters, more than the {MOST_CHARACTERS} of a file")
    return text if _works(text, design, frame) else _unusable("a function in it looks at all rows at once")


def _unusable(reason: str) -> str:
    return json.dumps({"version": _VERSION, "reason": reason})


def _works(text: str, design: Design, frame: pd.DataFrame) -> bool:
    """Whether a record gives some of the design's own rows, taken out of the others, the same columns."""
    n = len(design.rows)
    places = np.unique(np.linspace(0, n - 1, min(TRIED_ROWS, max(1, n - 1))).round().astype(np.intp))
    recorded = _from_text(text, design.formula, design.family.name)
    used = frame.iloc[design.rows]
    try:
        for tried in [places, *(np.array([place]) for place in _inner_rows(used))]:
            x = recorded.matrix(recorded.ready(used.iloc[tried]))
            if not np.allclose(x, design.x[tried], rtol=1e-9, atol=1e-12):
                return False
    except (TypeError, ValueError):
        return False
    return True


def _inner_rows(frame: pd.DataFrame) -> list[int]:
    """Few rows, of which one is above the smallest value and one below the largest, of each numeric column that varies.

    Alone, such a row gives a function of all rows (a smallest value, a mean, a rank) away.
    """
    numbers = frame.select_dtypes("number").to_numpy(dtype=np.float64, na_value=np.nan)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # columns without a value
        inside = np.concatenate([numbers > np.nanmin(numbers, axis=0), numbers < np.nanmax(numbers, axis=0)], axis=1)
    wanted = inside.any(axis=0)
    found: list[int] = []
    while wanted.any() and len(found) < TRIED_ROWS:
        best = int(np.argmax(inside[:, wanted].sum(axis=1)))
        found.append(best)
        wanted &= ~inside[best]
    return found


def read_design(posterior: xr.Dataset) -> RecordedDesign:
    """Read the design that :func:`~iwbayes.fit` recorded among the attributes of its posterior.

    Parameters
    ----------
    posterior : xarray.Dataset

    Raises
    ------
    ValueError
        If the posterior is not of fit, or the formula can not be evaluated on other rows.
    """
    absent = [key for key in ("formula", "family", "design") if key not in posterior.attrs]
    if absent:
        raise ValueError(
            f"the posterior must be one of fit, which records its design; the attributes {absent} are missing. For a "
            "PyMC model of your own use pm.set_data and pm.sample_posterior_predictive(predictions=True)."
        )
    formula, text = str(posterior.attrs["formula"]), str(posterior.attrs["design"])
    content = json.loads(text)
    if content["version"] != _VERSION:
        raise ValueError(f"the design was recorded in version {content['version']}; this one reads {_VERSION}. Refit.")
    if "reason" in content:
        raise ValueError(
            f"formula {formula!r} can not be used on other rows: {content['reason']}. Use formulaic's center, scale, "
            "poly or bs, which remember the rows of the fit, or add a column to the table."
        )
    return _from_text(text, formula, str(posterior.attrs["family"]))


def _from_text(text: str, formula: str, family: str) -> RecordedDesign:
    content = json.loads(text)
    schema = Schema.from_dict(content["schema"])
    spec = ModelSpec(
        formula=Formula(formula, _context={"__formulaic_variables_available__": list(schema.names)}).rhs,
        na_action="ignore",
        transform_state={expr: _decoded(state) for expr, state in content["transforms"].items()},
        encoder_state={
            expr: (Factor.Kind.CATEGORICAL, {"categories": _decoded(levels)})
            for expr, levels in content["categories"].items()
        },
    )
    levels = {name: tuple(levels) for name, levels in content["occurring"].items()}
    basis = Basis(schema, tuple(content["predictors"]), spec, tuple(content["columns"]), levels)
    return RecordedDesign(
        formula,
        family,
        content["name"],
        tuple(content["levels"]),
        tuple((name, int(n)) for name, n in content["terms"]),
        basis,
        content["auxiliary"],
    )


def _encoded(value: Any) -> Any:
    """State of a transformation as JSON: arrays, tuples and dictionaries of any keys keep their kind."""
    if isinstance(value, np.ndarray):
        return {"array": _encoded(value.tolist()), "dtype": str(value.dtype)}
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, dict):
        return {"dict": [[_encoded(key), _encoded(own)] for key, own in value.items()]}
    if isinstance(value, list | tuple):
        return [_encoded(own) for own in value]
    if value is None or isinstance(value, str | int | float | bool):
        return value
    raise TypeError(f"a {type(value).__name__}")


def _decoded(value: Any) -> Any:
    if isinstance(value, dict) and "array" in value:
        return np.array(_decoded(value["array"]), dtype=value["dtype"])
    if isinstance(value, dict):
        return {_decoded(key): _decoded(own) for key, own in value["dict"]}
    return [_decoded(own) for own in value] if isinstance(value, list) else value
