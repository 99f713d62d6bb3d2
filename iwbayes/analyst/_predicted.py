"""Observed variables of an ArviZ object with their replicates, checked against the rows of a release."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from iwbayes.analyst import _arviz
from iwbayes.analyst._replicate import recorded_design, replicates
from iwbayes.analyst._weighted_sample import WeightedSample, observed_column, weighted_sample
from iwbayes.analyst.design import Design
from iwbayes.release import Release
from iwbayes.schema import Binary, Categorical

__all__ = ["Predicted", "predicted_variables"]

Array = NDArray[np.float64]

#: Numbers of replicated responses that are held at a time: 32 MiB.
BLOCK_NUMBERS = 2**22


@dataclass(frozen=True, eq=False)
class Predicted:
    """An observed variable and its replicates.

    Parameters
    ----------
    name : str
    observed : ndarray, shape (row,)
        Numbers, or codes of levels.
    levels : tuple
        Levels behind the codes; empty for numbers.
    sample : WeightedSample
        Its rows.
    replicates : callable
        () -> iterator of blocks of replicates, each of shape (draw, row).
    """

    name: str
    observed: Array
    levels: tuple[Any, ...]
    sample: WeightedSample
    replicates: Callable[[], Iterator[Array]]


def predicted_variables(
    idata: _arviz.ArvizObject,
    release: Release,
    *,
    var_name: str | None,
    columns: Mapping[str, str],
    draws: int,
    rng: np.random.Generator,
) -> list[Predicted]:
    """Find the observed variables that have replicates, or the response of a fit; see :func:`~iwbayes.ppc`."""
    if not _arviz.has_group(idata, "observed_data"):
        raise ValueError(
            "the ArviZ object has no observed_data, which the check compares with. Pass all that was sampled."
        )
    observed = _arviz.group(idata, "observed_data")
    if _arviz.has_group(idata, "posterior_predictive"):
        predicted = _arviz.group(idata, "posterior_predictive")
        names = _names(var_name, [str(name) for name in observed.data_vars if name in predicted])
        return [_from_predictive(observed[name], predicted[name], release, columns, draws) for name in names]
    posterior = _arviz.group(idata, "posterior") if _arviz.has_group(idata, "posterior") else xr.Dataset()
    design = recorded_design(posterior, release)
    if design is None:
        raise ValueError(
            "the ArviZ object has no posterior_predictive group. Add it by pm.sample_posterior_predictive(idata, "
            "model=weighted, extend_inferencedata=True)."
        )
    (name,) = _names(var_name, [design.name])
    return [_from_fit(observed[name], design, posterior, release, draws, rng)]


def _names(var_name: str | None, known: list[str]) -> list[str]:
    if not known:
        raise ValueError("no observed variable has replicates. Sample posterior_predictive of the observed variables.")
    if var_name is None:
        return known
    if var_name not in known:
        raise KeyError(
            f"{var_name!r} has no observed values and replicates; those that have both are {', '.join(known)}."
        )
    return [var_name]


def _from_fit(
    observed: xr.DataArray,
    design: Design,
    posterior: xr.Dataset,
    release: Release,
    draws: int,
    rng: np.random.Generator,
) -> Predicted:
    """Check of a result of fit, whose responses are drawn here."""
    values = np.asarray(observed.to_numpy(), dtype=np.float64)
    _check_observed(values, design.y, design.name)
    sample = weighted_sample(release, observed, str(observed.dims[0]), total=release.n_private)
    chosen = _spaced(posterior.sizes["chain"] * posterior.sizes["draw"], draws)
    block = max(1, BLOCK_NUMBERS // (len(values) * design.n_predictors))
    return Predicted(
        design.name,
        values,
        design.response.levels,
        sample,
        lambda: replicates(design, posterior, chosen, rng, block=block),
    )


def _from_predictive(
    observed: xr.DataArray, predicted: xr.DataArray, release: Release, columns: Mapping[str, str], draws: int
) -> Predicted:
    """Check of an observed variable of any model, whose responses were drawn by PyMC."""
    name = str(observed.name)
    predicted = predicted.transpose("chain", "draw", ...)
    if observed.ndim != 1 or predicted.ndim != 3 or predicted.shape[2] != observed.shape[0]:
        raise ValueError(
            f"the observed variable {name!r} must be one number a row; it has shape {observed.shape} and its "
            f"replicates {predicted.shape[2:]}. Pass var_name for another one."
        )
    sample = weighted_sample(release, observed, str(observed.dims[0]), total=release.n_private)
    column = release.synthetic.schema[_column(name, columns, release)]
    cells = release.synthetic.frame[column.name].iloc[sample.positions]
    if cells.isna().any():
        raise ValueError(f"column {column.name!r} has missing cells in rows that {name!r} observes. Leave them out.")
    values = np.asarray(observed.to_numpy(), dtype=np.float64)
    levels: tuple[Any, ...] = ()
    if isinstance(column, Binary | Categorical):
        expected = column.codes(cells)
        # responses that are not whole numbers are those of a model that takes the codes for numbers
        levels = tuple(column.levels) if predicted.dtype.kind in "iub" else ()
    else:
        expected = cells.to_numpy()
    _check_observed(values, np.asarray(expected, dtype=np.float64), name)
    flat = predicted.to_numpy().reshape(-1, len(values))
    chosen = _spaced(len(flat), draws)
    block = max(1, BLOCK_NUMBERS // len(values))

    def blocks() -> Iterator[Array]:
        for start in range(0, len(chosen), block):
            yield np.asarray(flat[chosen[start : start + block]], dtype=np.float64)

    return Predicted(name, values, levels, sample, blocks)


def _column(name: str, columns: Mapping[str, str], release: Release) -> str:
    """Name of the column behind an observed variable."""
    column = columns.get(name, observed_column(name, release))
    if column not in release.synthetic.schema.names:
        raise ValueError(
            f"the release has no column {column!r}; it has {', '.join(release.synthetic.schema.names)}. Say which one "
            f"{name!r} observes by columns={{{name!r}: ...}}."
        )
    return column


def _check_observed(values: Array, expected: Array, name: str) -> None:
    """Refuse observed values that are not the column's."""
    if values.shape != expected.shape:
        raise ValueError(
            f"{name!r} observes {len(values)} rows and the release gives it {len(expected)}. Pass the release that the "
            "model was built on."
        )
    differ = ~np.isclose(values, expected, rtol=1e-6, atol=0)
    if differ.any():
        raise ValueError(
            f"the observed values of {name!r} must be those of the release's column (codes of levels in their order); "
            f"{int(differ.sum())} of {len(values)} differ. Pass the release that the model was built on, or name the "
            "column by columns={...}."
        )


def _spaced(n: int, most: int) -> NDArray[np.intp]:
    """Places of at most so many draws, evenly spaced."""
    return np.unique(np.linspace(0, n - 1, min(n, most)).round().astype(np.intp))
