"""Records of designs as JSON: with the record of a fit, its formula can be evaluated on new rows."""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
from formulaic import ModelSpec
from formulaic.parser.types import Factor

from iwbayes.analyst.fit_record import _RECORDED
from iwbayes.models.design import Design, build_design, read_sides
from iwbayes.models.design_spec import DesignSpec, GroupEffects, Term
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
        "terms": _term_records(design.terms),
        "predictors": list(design.predictors),
        "columns": list(design.columns),
        "occurring": {name: _encoded(levels) for name, levels in design.predictor_levels.items()},
    }
    try:
        content["spec"] = _spec_record(design.model_spec)
        content["offset"] = None if design.offset is None else _spec_record(design.offset)
        content["effects"] = [
            {
                "factors": list(own.factors),
                "groups": _encoded(own.groups),
                "terms": _term_records(own.terms),
                "spec": _spec_record(own.spec),
                "columns": list(own.columns),
            }
            for own in design.effects
        ]
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
        return all(np.allclose(x, design.full[rows], rtol=1e-9, atol=1e-12) for rows, x in parts)
    except (TypeError, ValueError):
        return False


def read_design(posterior: xr.Dataset) -> DesignSpec:
    """Read the design that :func:`~iwbayes.fit` recorded; a ValueError if there is none for new rows."""
    absent = [key for key in ("formula", "family", "design") if key not in posterior.attrs]
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


def recorded_terms(posterior: xr.Dataset) -> list[str]:
    """Return the names of the common terms of a fit; empty if they are not recorded."""
    content = json.loads(str(posterior.attrs.get("design", "{}")))
    return [str(name) for name, *_ in content.get("terms", [])]


def _term_records(terms: Sequence[Term]) -> list[Any]:
    return [[term.name, term.columns.stop - term.columns.start, _encoded(term.labels)] for term in terms]


def _terms(records: Any) -> tuple[Term, ...]:
    stop, terms = 0, []
    for name, n, labels in records:
        terms.append(Term(name, slice(stop, stop + n), None if labels is None else tuple(labels)))
        stop += n
    return tuple(terms)


def _spec_record(spec: ModelSpec) -> dict[str, Any]:
    """Return the state of the transformations and levels of a model matrix."""
    states = {str(expr): state for expr, (_, state) in spec.encoder_state.items()}
    return {
        "categories": {expr: _encoded(own["categories"]) for expr, own in states.items() if "categories" in own},
        "transforms": {str(expr): _encoded(state) for expr, state in spec.transform_state.items()},
    }


def _model_spec(content: Any, side: Any) -> ModelSpec:
    """Return the specification of one side of a formula, from its record."""
    return ModelSpec(
        formula=side,
        na_action="ignore",
        transform_state={expr: _decoded(state) for expr, state in content["transforms"].items()},
        encoder_state={
            expr: (Factor.Kind.CATEGORICAL, {"categories": _decoded(levels)})
            for expr, levels in content["categories"].items()
        },
    )


def _spec(content: Any, formula: str, family: str) -> DesignSpec:
    schema, own_family = Schema.from_dict(content["schema"]), get_family(family)
    sides = read_sides(formula, schema)
    limits = sides.parts.limits
    effects = (
        GroupEffects(
            tuple(own["factors"]),
            tuple(map(tuple, _decoded(own["groups"]))),
            _terms(own["terms"]),
            _model_spec(own["spec"], side),
            tuple(own["columns"]),
        )
        for own, side in zip(content["effects"], sides.groups, strict=True)
    )
    return DesignSpec(
        formula=formula,
        family=own_family,
        name=content["name"],
        levels=tuple(content["levels"]),
        terms=_terms(content["terms"]),
        schema=schema,
        predictors=tuple(content["predictors"]),
        model_spec=_model_spec(content["spec"], sides.plain.rhs),
        columns=tuple(content["columns"]),
        predictor_levels={name: tuple(levels) for name, levels in content["occurring"].items()},
        effects=tuple(effects),
        offset=None if content["offset"] is None else _model_spec(content["offset"], sides.offset),
        trials=sides.parts.trials,
        limits=limits and limits.within(whole=not own_family.real, positive=own_family.positive),
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
