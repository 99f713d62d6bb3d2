"""Rows, weights, draws and levels of a fit, checked against its release, and the verdict of its calibration."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pandas as pd
import xarray as xr
from formulaic.parser.types import Factor
from numpy.typing import NDArray

from iwbayes.analyst import arviz_compat
from iwbayes.analyst.arguments import check_release
from iwbayes.analyst.criticism.weighted_sample import WeightedSample, weighted_sample
from iwbayes.analyst.fit_record import check_recorded_weights
from iwbayes.analyst.regression.design_record import read_design, recorded_design
from iwbayes.analyst.regression.model import build_model
from iwbayes.models.design import Design
from iwbayes.models.design_spec import DesignSpec
from iwbayes.models.weighted_rows import WeightedRows
from iwbayes.release import Release
from iwbayes.schema import Binary
from iwbayes.schema.columns import _Whole
from iwbayes.utils import checks
from iwbayes.utils.arrays import Array

if TYPE_CHECKING:
    from iwbayes.analyst.inference.model_posterior import ModelPosterior


@dataclass(frozen=True, eq=False)
class FittedRows:
    """Rows and draws of a fit, after checking that they belong together."""

    posterior: xr.Dataset
    recorded: DesignSpec
    design: Design
    sample: WeightedSample
    release: Release
    frame: pd.DataFrame  # (row used, predictor)
    weight_draw: NDArray[np.intp] | None  # (draw of all chains,); None if there is a single weight draw
    record: xr.Dataset | None  # of the fit's calibration

    @classmethod
    def of(cls, idata: arviz_compat.ArvizObject, release: Release) -> FittedRows:
        """Find the rows of a posterior. Raises ValueError if they are not the rows of the release."""
        check_release(release)
        if absent := [name for name in ("posterior", "observed_data") if not arviz_compat.has_group(idata, name)]:
            raise ValueError(
                f"the ArviZ object must have the group {absent[0]}; it is missing. Pass the complete result of fit."
            )
        posterior, observed = arviz_compat.group(idata, "posterior"), arviz_compat.group(idata, "observed_data")
        recorded = read_design(posterior)
        check_recorded_weights(posterior, release)
        design, frame = _own_rows(recorded, posterior, observed, release)
        sample = weighted_sample(release, observed[design.name])
        weight_draw = weight_draw_of(idata, release, posterior.sizes["chain"] * posterior.sizes["draw"])
        return cls(posterior, recorded, design, sample, release, frame, weight_draw, fit_record(idata))

    def model_of(self, sample: WeightedSample) -> RowScores:
        """Return the model of these rows, with the weights of a sample."""
        if self.design.fast:
            return _FastRows(WeightedRows(self.design, sample.weights))
        return self._built.with_weights(sample.weights)

    @cached_property
    def _built(self) -> ModelPosterior:
        from iwbayes.analyst.inference.model_posterior import ModelPosterior
        from iwbayes.analyst.weighting.reweight import reweight

        model = build_model(self.design, self.sample.weights)  # priors do not enter scores
        return ModelPosterior(reweight(model, np.ones(len(self.design.rows))))

    def parts(self) -> list[tuple[NDArray[np.intp], WeightedSample]]:
        """Return for each weight draw the indices of its posterior draws, and the rows with its weights."""
        return parts_of(self.sample, self.weight_draw, len(self.theta))

    @cached_property
    def theta(self) -> Array:
        """Parameters of the draws of all chains (draw, p), in the order of the scores."""
        return self.recorded.pack(self.posterior)

    @property
    def outcomes(self) -> dict[str, list[str]]:
        """Dimension and labels of the outcomes of a response with levels, or {}."""
        return outcome_coords(self.recorded)

    @property
    def response_levels(self) -> list[str]:
        """Levels of the response, or []."""
        return list(self.recorded.levels)

    @cached_property
    def index(self) -> NDArray[np.intp]:
        """Index of the distinct row of each row, shape (row used,)."""
        names = list(self.frame.columns)
        if not names:
            return np.zeros(len(self.frame), dtype=np.intp)
        return self.frame.groupby(names, sort=False, observed=True).ngroup().to_numpy()

    @cached_property
    def distinct(self) -> pd.DataFrame:
        """The distinct rows of predictors. Identical rows have the same means."""
        return self.frame.iloc[np.unique(self.index, return_index=True)[1]].reset_index(drop=True)

    def levels(self, name: str) -> tuple[Any, ...] | None:
        """Return the levels of a predictor, reference first, or None for a number outside ``C(...)``."""
        if name in self.recorded.predictor_levels:
            return self.recorded.predictor_levels[name]
        if name in self.recorded.only_groups:
            return tuple(sorted(self.frame[name].unique().tolist()))
        if isinstance(self.recorded.schema[name], Binary):
            return (0, 1)  # Binary columns with other levels are categorical
        pattern = rf"(?<!\w){re.escape(name)}(?!\w)"
        for expression, (kind, _) in self.recorded.model_spec.encoder_state.items():
            # ignore quoted text, because a level may have the name of a column
            bare = re.sub(r"'[^']*'|\"[^\"]*\"", "''", str(expression))
            if kind is Factor.Kind.CATEGORICAL and re.search(pattern, bare):
                return tuple(sorted(self.frame[name].unique().tolist()))
        return None

    def asked(self, given: Any, argument: str, *, values: bool = True) -> dict[str, Any]:
        """Return the requests of an argument by predictor: the values of a dict, or None for each name."""
        names = [given] if isinstance(given, str) else given
        kinds = (list, tuple, Mapping) if values else (list, tuple)
        if not (isinstance(names, kinds) and all(isinstance(name, str) for name in names)):
            more = ", or a dict of name to values" * values
            raise TypeError(f"{argument} must be the name of a column, a list of names{more}; got {given!r}.")
        known = list(self.recorded.predictors)
        if (unknown := [name for name in names if name not in known]) or not names:
            raise ValueError(
                f"{argument} must name predictors of {self.recorded.formula!r}; got {unknown or 'none'}. Use one or "
                f"more of {known}."
            )
        if reserved := [name for name in names if name in ("chain", "draw") or "/" in name]:
            raise ValueError(
                f"{argument} must not name {reserved}, which ArviZ does not allow as variables. Rename the columns."
            )
        return dict(names) if isinstance(names, Mapping) else dict.fromkeys(names)

    def checked(self, name: str, values: Any, argument: str) -> list[Any]:
        """Return the values given for a predictor, after checking that they are levels of the fit or within bounds."""
        found = np.atleast_1d(np.asarray(values, dtype=object)).tolist()
        levels, column = self.levels(name), self.recorded.schema[name]
        if not found or len({*map(str, found)}) < len(found):
            raise ValueError(f"{argument} must give at least one value for {name!r}, without repeats; got {values!r}.")
        if levels is not None:
            if wrong := [value for value in found if value not in levels]:
                raise ValueError(
                    f"{argument} must give levels of {name!r} that occur in the fit; got {wrong}. Use {[*levels]}."
                )
            return [levels[levels.index(value)] for value in found]
        whole, lower, upper = isinstance(column, _Whole), column.lower, column.upper  # type: ignore[attr-defined]
        if wrong := [x for x in found if not (is_number(x) and lower <= x <= upper and (not whole or x == int(x)))]:
            raise ValueError(
                f"{argument} must give {'whole ' * whole}numbers within the declared bounds [{lower:g}, {upper:g}] for "
                f"{name!r}; got {wrong}. The model was not fitted outside these bounds."
            )
        return [int(value) if whole else float(value) for value in found]


class RowScores(Protocol):
    """A model of rows, as averages over these rows need it, at parameters theta (p,)."""

    def scores(self, theta: Array) -> Array:
        """Return the unweighted score of each row (row, p)."""

    def mean_curvature(self, theta: Array) -> Array:
        """Return minus the weighted mean of the Hessians of the log likelihoods of rows (p, p)."""

    def curvatures(self, theta: Array, rows: NDArray[np.intp], left: Array, right: Array) -> Array:
        """Return minus the second derivatives of rows (n,) along pairs of directions (p, q): (n, q)."""


@dataclass(frozen=True, eq=False)
class _FastRows:
    rows: WeightedRows

    def scores(self, theta: Array) -> Array:
        return self.rows.row_scores(theta)

    def mean_curvature(self, theta: Array) -> Array:
        return np.asarray(-self.rows.derivatives(theta)[2] / self.rows.weights.sum())

    def curvatures(self, theta: Array, rows: NDArray[np.intp], left: Array, right: Array) -> Array:
        return self.rows.at(rows).row_curvatures(theta, left, right)


def parts_of(
    sample: WeightedSample, weight_draw: NDArray[np.intp] | None, n_draws: int
) -> list[tuple[NDArray[np.intp], WeightedSample]]:
    """Return for each weight draw the indices of its posterior draws, and the rows of a sample with its weights."""
    if weight_draw is None or sample.release is None:
        return [(np.arange(n_draws), sample)]
    values, release = sample.release.weights.draw_values, sample.release
    return [
        (np.flatnonzero(weight_draw == number), WeightedSample(values[number], sample.positions, release))
        for number in np.unique(weight_draw)
    ]


def is_number(value: Any) -> bool:
    """Return whether a value is a finite number."""
    return checks.is_real(value) and math.isfinite(value)


def outcome_coords(design: DesignSpec, *, linear: bool = False) -> dict[str, list[str]]:
    """Return dimension and levels of a categorical response, or {}; for linear predictors without the first level."""
    if not (design.family.by_level if linear else design.family.has_levels):
        return {}
    kind, levels = ("reduced_dim", design.levels[1:]) if linear else ("dim", design.levels)
    return {f"{design.name}_{kind}": list(levels)}


def fitted_posterior(idata: arviz_compat.ArvizObject) -> xr.Dataset:
    """Return the posterior group of an ArviZ object, after checking its dimensions."""
    if not arviz_compat.has_group(idata, "posterior"):
        raise ValueError("the ArviZ object must have the group posterior; it is missing. Pass the result of fit.")
    posterior = arviz_compat.group(idata, "posterior")
    if not {"chain", "draw"} <= set(posterior.dims):
        raise ValueError(
            f"the posterior must have dimensions chain and draw; it has {sorted(map(str, posterior.dims))}. Select "
            "with a list, as in idata.sel(draw=[3])."
        )
    return posterior


def fit_record(idata: arviz_compat.ArvizObject) -> xr.Dataset | None:
    """Return the record of the calibration of a fit, with its influence matrices; None if there is none."""
    if not arviz_compat.has_group(idata, "calibration"):
        return None
    return arviz_compat.group(idata, "calibration").assign(arviz_compat.group_or_empty(idata, "influence").data_vars)


def _own_rows(
    recorded: DesignSpec, posterior: xr.Dataset, observed: xr.Dataset, release: Release
) -> tuple[Design, pd.DataFrame]:
    """Return the design and the predictors of the rows of a fit, after checking them against the release."""
    other = "the fit belongs to a different release. Pass the release that was fitted."
    try:
        design = recorded_design(posterior, release)
    except (KeyError, ValueError) as error:
        raise ValueError(f"the formula cannot be evaluated on the rows of the release ({error}); {other}") from None
    if design is None or design.name not in observed:
        raise ValueError(
            f"observed_data must contain the response of {recorded.formula!r}. Pass the complete result of fit."
        )
    response = np.asarray(observed[design.name], dtype=np.float64)
    if not np.array_equal(response.shape, design.y.shape) or not np.allclose(response, design.y, rtol=1e-6, atol=0):
        raise ValueError(f"the observed values of {design.name!r} must equal the values in the release; {other}")
    frame = recorded.ready(release.synthetic.frame.iloc[design.rows])
    if design.columns != recorded.columns or not np.allclose(recorded.matrix(frame), design.full):
        raise ValueError(f"the recorded design must equal the design of the rows of the release; {other}")
    return design, frame


def weight_draw_of(idata: arviz_compat.ArvizObject, release: Release, n_draws: int) -> NDArray[np.intp] | None:
    """Return the weight draw behind each posterior draw of all chains, or None if there is a single weight draw."""
    if release.weights.n_draws == 1:
        return None
    stats = arviz_compat.group_or_empty(idata, "sample_stats")
    if "weight_draw" not in stats or stats["weight_draw"].size != n_draws:
        raise ValueError(
            f"sample_stats must contain 'weight_draw' for each posterior draw, because the release has "
            f"{release.weights.n_draws} weight draws; it does not. Pass the complete result of fit."
        )
    if int(stats["weight_draw"].max()) >= release.weights.n_draws:
        raise ValueError(
            f"the posterior uses more weight draws than the release has, {release.weights.n_draws}. Compute "
            "noise_aware_weights once, and use the same weights for fit and in the release."
        )
    return np.asarray(stats["weight_draw"].transpose("chain", "draw"), dtype=np.intp).reshape(n_draws)
