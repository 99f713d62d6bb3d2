"""Observed variables of an ArviZ object and their replicates, checked against the rows of a release."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import xarray as xr
from formulaic import Formula
from numpy.typing import NDArray

from iwbayes.analyst import arviz_compat
from iwbayes.analyst.criticism.weighted_sample import WeightedSample, observed_column, weighted_sample
from iwbayes.analyst.fit_record import check_recorded_weights
from iwbayes.analyst.regression.design_record import recorded_design
from iwbayes.models.design import Design
from iwbayes.models.limits import draw_between
from iwbayes.release import Release
from iwbayes.schema import Binary, Categorical
from iwbayes.utils.arrays import Array, row_blocks

#: Most replicated responses in memory at a time: 32 MiB.
BLOCK_NUMBERS = 2**22


@dataclass(frozen=True, eq=False)
class Predicted:
    """An observed variable and its replicates."""

    name: str
    columns: frozenset[str]  # of the release: one, or all columns of an expression
    observed: Array  # (row,): numbers, or codes of levels
    levels: tuple[Any, ...]  # of the codes; empty for numbers
    sample: WeightedSample
    replicates: Iterator[Array]  # blocks (draw, row), drawn lazily
    completed: Iterator[Array] | None = None  # observed values at the same draws, with draws for censored ones


def predicted_variables(
    idata: arviz_compat.ArvizObject,
    release: Release,
    *,
    var_name: str | None,
    columns: Mapping[str, str],
    draws: int,
    rng: np.random.Generator,
) -> list[Predicted]:
    """Find the observed variables that have replicates, or the response of a fit; see :func:`~iwbayes.ppc`."""
    if not arviz_compat.has_group(idata, "observed_data"):
        raise ValueError(
            "the ArviZ object must have the group observed_data; it is missing. Pass the complete result of sampling."
        )
    observed = arviz_compat.group(idata, "observed_data")
    posterior = arviz_compat.group_or_empty(idata, "posterior")
    check_recorded_weights(posterior, release)
    predicted, design = arviz_compat.group_or_empty(idata, "posterior_predictive"), None
    known = [str(name) for name in observed.data_vars if name in predicted]
    if not arviz_compat.has_group(idata, "posterior_predictive"):
        design = recorded_design(posterior, release)
        if design is None:
            raise ValueError(
                "the ArviZ object must have the group posterior_predictive; it is missing. Add it with "
                "pm.sample_posterior_predictive(idata, model=weighted, extend_inferencedata=True)."
            )
        known = [design.name]
    if not known:
        raise ValueError(
            "at least one observed variable must have replicates; none has. Sample posterior_predictive for it."
        )
    if var_name not in (None, *known):
        raise KeyError(
            f"var_name must have observed values and replicates, as {', '.join(known)} do; got {var_name!r}."
        )
    if design is not None:
        if columns:
            raise ValueError(
                f"columns must be omitted for a result of fit, whose response is {design.name!r} by its formula; got "
                f"{dict(columns)}."
            )
        return [_from_fit(observed[design.name], design, posterior, release, draws, rng)]
    if unknown := [name for name in columns if name not in known]:
        raise KeyError(
            f"columns must name observed variables with replicates, {', '.join(known)}; got "
            f"{', '.join(map(repr, unknown))}."
        )
    names = known if var_name is None else [var_name]
    return [_from_predictive(observed[name], predicted[name], release, columns, draws) for name in names]


def _from_fit(
    observed: xr.DataArray, design: Design, posterior: xr.Dataset, release: Release, draws: int, rng: Any
) -> Predicted:
    """Return the response of a result of fit, with replicates drawn here."""
    name, columns = design.name, set(release.synthetic.schema.names)
    values = _checked_values(observed, design.y)
    sample = weighted_sample(release, observed, total=release.n_private)
    # the response is a column or an expression of columns
    used = {name} if name in columns else columns.intersection(Formula(f"{name} ~ 1").lhs.required_variables)
    chosen = _spaced(posterior.sizes["chain"] * posterior.sizes["draw"], draws)
    drawn, completed = replicates(design, posterior, chosen, rng), None
    if design.limits is not None and design.limits.status is not None:
        completed = replicates(design, posterior, chosen, rng, complete=True)
    return Predicted(name, frozenset(used), values, design.response.levels, sample, drawn, completed)


def _from_predictive(
    observed: xr.DataArray, predicted: xr.DataArray, release: Release, columns: Mapping[str, str], draws: int
) -> Predicted:
    """Return an observed variable of any model, with replicates drawn by PyMC."""
    name, schema = str(observed.name), release.synthetic.schema
    predicted = predicted.transpose("chain", "draw", ...)
    if observed.ndim != 1 or predicted.ndim != 3 or predicted.shape[2] != observed.shape[0]:
        raise ValueError(
            f"the observed variable {name!r} must have one number per row; it has shape {observed.shape} and its "
            f"replicates have {predicted.shape[2:]}. Choose a different variable with var_name."
        )
    sample = weighted_sample(release, observed, total=release.n_private)
    behind = columns.get(name, observed_column(name, release))
    if behind not in schema.names:
        raise ValueError(
            f"the observed variable {name!r} must belong to a column of the release, {', '.join(schema.names)}; got "
            f"{behind!r}. Name its column with columns={{{name!r}: ...}}."
        )
    column = schema[behind]
    cells = release.synthetic.frame[behind].iloc[sample.positions]
    if cells.isna().any():
        raise ValueError(
            f"column {behind!r} must have no missing cells in the rows of {name!r}; some are missing. Leave them out."
        )
    expected, levels = cells.to_numpy(), tuple[Any, ...]()
    if isinstance(column, Binary | Categorical):
        expected = column.codes(cells)
        # if responses are not whole numbers, the model treats the codes as numbers
        levels = tuple(column.levels) if predicted.dtype.kind in "iub" else ()
    values = _checked_values(observed, np.asarray(expected, dtype=np.float64))
    flat = predicted.to_numpy().reshape(-1, len(values))
    chosen = _spaced(len(flat), draws)
    blocks = (
        np.asarray(flat[chosen[part]], dtype=np.float64)
        for part in row_blocks(len(chosen), BLOCK_NUMBERS // len(values))
    )
    return Predicted(name, frozenset([behind]), values, levels, sample, blocks)


def _checked_values(observed: xr.DataArray, expected: Array) -> Array:
    """Return the observed values as numbers, after checking that they equal the values of their column."""
    name = str(observed.name)
    try:
        values = np.asarray(observed.to_numpy(), dtype=np.float64)
    except (TypeError, ValueError):
        raise TypeError(
            f"the observed values of {name!r} must be numbers; got {observed.dtype}. For a column with levels use "
            "their codes, counted from 0 in the order of the schema."
        ) from None
    if values.shape != expected.shape:
        raise ValueError(
            f"{name!r} must have as many rows as the release, {len(expected)}; it has {len(values)}. Pass the release "
            "that the model was built on."
        )
    differ = ~np.isclose(values, expected, rtol=1e-6, atol=0)
    if differ.any():
        raise ValueError(
            f"the observed values of {name!r} must equal the values of the column (codes for levels); "
            f"{int(differ.sum())} of {len(values)} differ. Pass the release that the model was built on, or name the "
            "column with columns={...}."
        )
    return values


def _spaced(n: int, most: int) -> NDArray[np.intp]:
    """Return the indices of at most `most` of n draws, evenly spaced."""
    return np.unique(np.linspace(0, n - 1, min(n, most)).round().astype(np.intp))


def replicates(
    design: Design, posterior: xr.Dataset, chosen: NDArray[np.intp], rng: np.random.Generator, *, complete: bool = False
) -> Iterator[Array]:
    """Draw responses of all rows in blocks (draw, row), for the chosen draws counted over all chains.

    Those of truncated responses are within their bounds. With `complete`, only responses that are censored are drawn,
    beyond their limits.
    """
    beta, more = design.split(design.pack(posterior)[chosen])
    limits, bounds = design.limits, None
    if limits is not None and (complete or limits.status is None):
        bounds = limits.between(design.y, design.statuses if complete else None)
    for part in row_blocks(len(chosen), BLOCK_NUMBERS // (len(design.x) * design.n_predictors)):
        eta, own = beta[part].transpose(2, 0, 1) @ design.full.T, more[:, part]
        draw = partial(design.drawn, eta, own, None if design.trials is None else design.n_trials, rng)
        if bounds is None or design.family.law is None:
            yield draw()
        else:
            law = design.family.law(eta, own[:, :, None])
            yield draw_between(draw, law, bounds, rng, whole=not design.family.real)
