"""Records of designs as JSON: with the record of a fit, its formula can be evaluated on new rows."""

from __future__ import annotations

import json
import warnings
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
from formulaic import Formula, ModelSpec
from formulaic.parser.types import Factor

from iwbayes.analyst.fit_record import _RECORDED
from iwbayes.models.design import Design, build_design
from iwbayes.models.design_spec import DesignSpec, Term
from iwbayes.models.families import get_family
from iwbayes.release import Release
from iwbayes.schema import Schema

#: Most characters in a record, because a netCDF attribute is limited to 64 KiB.
MOST_CHARACTERS = 60_000
#: Number of rows on which a record is tested.
TRIED_ROWS = 5
_VERSION = 1


def record_design(design: Design, frame: pd.DataFrame) -> str:
    """Return a design as JSON text, so that its columns can be computed for a different table.

    The record is tested on a few rows of `frame`, on which the design was built. If it cannot be used on new rows, for
    example because a function depends on all rows (``x - np.mean(x)``), it has an entry ``reason`` and no design.
    """
    content = {
        "version": _VERSION,
        "schema": design.schema.to_dict(),
        "name": design.name,
        "levels": list(design.levels),
        "terms": [[t.name, t.columns.stop - t.columns.start, _encoded(t.labels)] for t in design.terms],
        "predictors": list(design.predictors),
        "columns": list(design.columns),
        "occurring": {name: _encoded(levels) for name, levels in design.predictor_levels.items()},
        "categories": {
            str(expr): _encoded(state["categories"])
            for expr, (_, state) in design.model_spec.encoder_state.items()
            if "categories" in state
        },
    }
    try:
        states = design.model_spec.transform_state.items()
        content["transforms"] = {str(expr): _encoded(state) for expr, state in states}
        text = json.dumps(content)
    except TypeError as error:
        reason = f"a transformation has a state that cannot be stored as JSON ({error})"
    else:
        if len(text) > MOST_CHARACTERS:
            reason = (
                f"its levels and knots take {len(text)} characters, more than the {MOST_CHARACTERS} that fit in a file"
            )
        elif _works(text, design, frame):
            return text
        else:
            reason = "one of its functions depends on all rows at once"
    return json.dumps({"version": _VERSION, "reason": reason})


def _works(text: str, design: Design, frame: pd.DataFrame) -> bool:
    """Return whether a record gives a few of the design's rows, taken alone, the same columns as before."""
    n, used = len(design.rows), frame.iloc[design.rows]
    # some rows together; then single rows, which reveal functions of all rows, such as a minimum, a mean or a rank: in
    # each numeric column that varies, one is above the smallest value and one below the largest
    tried = [np.unique(np.linspace(0, n - 1, min(TRIED_ROWS, max(1, n - 1))).round().astype(np.intp))]
    numbers = used.select_dtypes("number").to_numpy(dtype=np.float64, na_value=np.nan)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # columns without a value
        inside = np.concatenate([numbers > np.nanmin(numbers, axis=0), numbers < np.nanmax(numbers, axis=0)], axis=1)
    wanted = inside.any(axis=0)
    while wanted.any() and len(tried) <= TRIED_ROWS:
        best = int(np.argmax(inside[:, wanted].sum(axis=1)))
        tried.append(np.array([best]))
        wanted &= ~inside[best]
    recorded = _spec(json.loads(text), design.formula, design.family.name)
    try:
        parts = ((rows, recorded.matrix(recorded.ready(used.iloc[rows]))) for rows in tried)
        return all(np.allclose(x, design.x[rows], rtol=1e-9, atol=1e-12) for rows, x in parts)
    except (TypeError, ValueError):
        return False


def read_design(posterior: xr.Dataset) -> DesignSpec:
    """Read the design that :func:`~iwbayes.fit` recorded; a ValueError if there is none for new rows."""
    absent = [key for key in ("formula", "family", "design") if key not in posterior.attrs]
    if "built_by" in posterior.attrs:
        raise ValueError(
            f"the model must have a recorded design; {posterior.attrs['formula']!r} was built by Bambi and has none. "
            "Build it again with bambi.Model(..., center_predictors=False, noncentered=False), and use bambi.interpret."
        )
    if absent:
        raise ValueError(
            f"the posterior must come from fit, which records the design; its attributes {absent} are missing. For "
            "your own PyMC model use pm.set_data and pm.sample_posterior_predictive(predictions=True)."
        )
    formula, content = str(posterior.attrs["formula"]), json.loads(str(posterior.attrs["design"]))
    if content["version"] != _VERSION:
        raise ValueError(
            f"the record of the design must have version {_VERSION}; got {content['version']}. Update "
            "iwbayes, or fit the model again."
        )
    if "reason" in content:
        raise ValueError(
            f"formula {formula!r} cannot be evaluated on new rows: {content['reason']}. Use formulaic's center, scale, "
            "poly or bs, which remember the rows of the fit, or add the transformed column to the table."
        )
    return _spec(content, formula, str(posterior.attrs["family"]))


def _spec(content: Any, formula: str, family: str) -> DesignSpec:
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
    stop, terms = 0, []
    for name, n, labels in content["terms"]:
        terms.append(Term(name, slice(stop, stop + n), None if labels is None else tuple(labels)))
        stop += n
    return DesignSpec(
        formula=formula,
        family=get_family(family),
        name=content["name"],
        levels=tuple(content["levels"]),
        terms=tuple(terms),
        schema=schema,
        predictors=tuple(content["predictors"]),
        model_spec=spec,
        columns=tuple(content["columns"]),
        predictor_levels={name: tuple(levels) for name, levels in content["occurring"].items()},
    )


def _encoded(value: Any) -> Any:
    """Return the state of a transformation as JSON values from which `_decoded` restores arrays and dictionaries."""
    if isinstance(value, np.ndarray):
        return {"array": _encoded(value.tolist()), "dtype": str(value.dtype)}
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, dict):
        return {"dict": [[_encoded(key), _encoded(own)] for key, own in value.items()]}
    if isinstance(value, list | tuple):
        return [_encoded(own) for own in value]
    if value is None or isinstance(value, str | int | float):
        return value
    raise TypeError(f"a {type(value).__name__}")


def _decoded(value: Any) -> Any:
    match value:
        case {"array": values, "dtype": dtype}:
            return np.array(_decoded(values), dtype=dtype)
        case {"dict": items}:
            return {_decoded(key): _decoded(own) for key, own in items}
    return [_decoded(own) for own in value] if isinstance(value, list) else value


def recorded_design(posterior: xr.Dataset, release: Release) -> Design | None:
    """Rebuild the design of a result of :func:`~iwbayes.fit` on the release; None for draws of other origin."""
    if not _RECORDED <= set(posterior.attrs):
        return None
    with warnings.catch_warnings():
        # fit has issued these warnings before
        warnings.simplefilter("ignore", UserWarning)
        table = release.synthetic
        return build_design(posterior.attrs["formula"], table.frame, table.schema, posterior.attrs["family"])
