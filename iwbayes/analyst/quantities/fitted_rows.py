"""The weighted rows behind a fit, its draws, the levels of its predictors, and what is known of its calibration."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from numbers import Real
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
from formulaic.parser.types import Factor
from numpy.typing import NDArray

from iwbayes.analyst import arviz_compat
from iwbayes.analyst.checks import check_release
from iwbayes.analyst.criticism.weighted_sample import WeightedSample, weighted_sample
from iwbayes.analyst.fit_record import check_recorded_weights
from iwbayes.analyst.regression.design import Design
from iwbayes.analyst.regression.design_record import read_design, recorded_design
from iwbayes.analyst.regression.design_spec import DesignSpec
from iwbayes.analyst.regression.families import FAMILIES
from iwbayes.release import Release
from iwbayes.schema import Binary
from iwbayes.schema.columns import _Whole


@dataclass(frozen=True, eq=False)
class FittedRows:
    """Rows and draws of a fit, checked to belong to each other."""

    posterior: xr.Dataset
    recorded: DesignSpec
    design: Design
    sample: WeightedSample
    release: Release
    frame: pd.DataFrame  # (row used, predictor)
    weight_draw: NDArray[np.intp] | None  # (draw of all chains,); None of weights with a single draw
    attrs: dict[str, Any]  # `quantity_attrs`

    @classmethod
    def of(cls, idata: arviz_compat.ArvizObject, release: Release) -> FittedRows:
        """Find the rows behind a posterior; a ValueError says if they are not those of the release."""
        check_release(release)
        for name in ("posterior", "observed_data"):
            if not arviz_compat.has_group(idata, name):
                raise ValueError(f"the ArviZ object has no group {name}. Pass all that fit returned.")
        posterior, observed = arviz_compat.group(idata, "posterior"), arviz_compat.group(idata, "observed_data")
        recorded = read_design(posterior)
        check_recorded_weights(posterior, release)
        design, frame = _own_rows(recorded, posterior, observed, release)
        response = observed[design.name]
        sample = weighted_sample(release, response, str(response.dims[0]))
        n_draws = posterior.sizes["chain"] * posterior.sizes["draw"]
        weight_draw = _weight_draw(idata, release, n_draws)
        return cls(posterior, recorded, design, sample, release, frame, weight_draw, quantity_attrs(idata))

    def parts(self) -> list[tuple[NDArray[np.intp], WeightedSample]]:
        """Return indices of the draws that belong to each draw of the weights, with the rows under these."""
        if self.weight_draw is None:
            return [(np.arange(self.posterior.sizes["chain"] * self.posterior.sizes["draw"]), self.sample)]
        values, rows = self.release.weights.draw_values, self.sample.positions
        return [
            (np.flatnonzero(self.weight_draw == number), WeightedSample(values[number], rows, self.release))
            for number in np.unique(self.weight_draw)
        ]

    @cached_property
    def _distinct(self) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """First index of each distinct row, and which of them each row is."""
        if not len(self.frame.columns):
            return np.zeros(1, dtype=np.intp), np.zeros(len(self.frame), dtype=np.intp)
        number = self.frame.groupby(list(self.frame.columns), sort=False, observed=True).ngroup().to_numpy()
        return np.unique(number, return_index=True)[1], number

    @cached_property
    def distinct(self) -> pd.DataFrame:
        """Rows that differ in some predictor, each once: others have the same means."""
        return self.frame.iloc[self._distinct[0]].reset_index(drop=True)

    @property
    def index(self) -> NDArray[np.intp]:
        """Which of the distinct rows each row is, shape (row used,)."""
        return self._distinct[1]

    def levels(self, name: str) -> tuple[Any, ...] | None:
        """Levels of a predictor, the reference first; None of a number that the formula does not put in ``C(...)``."""
        if name in self.recorded.predictor_levels:
            return self.recorded.predictor_levels[name]
        if isinstance(self.recorded.schema[name], Binary):
            return (0, 1)  # other levels are categories
        pattern = rf"(?<!\w){re.escape(name)}(?!\w)"
        for expression, (kind, _) in self.recorded.model_spec.encoder_state.items():
            # not in quoted text: a level may be called like a column
            bare = re.sub(r"'[^']*'|\"[^\"]*\"", "''", str(expression))
            if kind is Factor.Kind.CATEGORICAL and re.search(pattern, bare):
                return tuple(sorted(self.frame[name].unique().tolist()))
        return None

    def asked(self, given: Any, argument: str, *, values: bool = True) -> dict[str, Any]:
        """Return what an argument asks of predictors, by name: None of each, or what a dict says."""
        names = [given] if isinstance(given, str) else given
        kinds = (list, tuple, Mapping) if values else (list, tuple)
        if not (isinstance(names, kinds) and all(isinstance(name, str) for name in names)):
            more = ", or a dict of name to values" * values
            raise TypeError(f"{argument} must be a column's name, a list of names{more}; got {given!r}.")
        known = list(self.recorded.predictors)
        unknown = [name for name in names if name not in known]
        if unknown or not names:
            raise ValueError(
                f"{argument} must name columns on the right of {self.recorded.formula!r}, one or more of {known}; got "
                f"{unknown or 'none'}."
            )
        reserved = [name for name in names if name in ("chain", "draw") or "/" in name]
        if reserved:
            raise ValueError(f"ArviZ takes no variables called {reserved}; rename these columns.")
        return dict(names) if isinstance(names, Mapping) else dict.fromkeys(names)

    def checked(self, name: str, values: Any, argument: str) -> list[Any]:
        """Values that an argument gives for a predictor: levels of the fit, or numbers in the declared bounds."""
        found = np.atleast_1d(np.asarray(values, dtype=object)).tolist()
        levels, column = self.levels(name), self.recorded.schema[name]
        if not found or len({*map(str, found)}) < len(found):
            raise ValueError(f"{argument} must give different values for {name!r}, one or more; got {values!r}.")
        if levels is not None:
            wrong = [value for value in found if value not in levels]
            if wrong:
                raise ValueError(
                    f"{argument} must give levels of {name!r} in the fit, some of {[*levels]}; got {wrong}."
                )
            return [levels[levels.index(value)] for value in found]
        whole, lower, upper = isinstance(column, _Whole), column.lower, column.upper  # type: ignore[attr-defined]
        wrong = [x for x in found if not (is_number(x) and lower <= x <= upper and (not whole or x == int(x)))]
        if wrong:
            raise ValueError(
                f"{argument} must give {'whole ' * whole}numbers in the declared [{lower:g}, {upper:g}] for {name!r}; "
                f"got {wrong}. The model was not fitted outside these bounds."
            )
        return [int(value) if whole else float(value) for value in found]


def is_number(value: Any) -> bool:
    """Whether a value is a finite number."""
    return isinstance(value, Real) and not isinstance(value, bool | np.bool_) and math.isfinite(value)


def constant(values: pd.Series, level: Any) -> pd.Series:
    """Column of the same type with one value."""
    if isinstance(values.dtype, pd.CategoricalDtype):
        codes = np.full(len(values), list(values.cat.categories).index(level))
        return pd.Series(pd.Categorical.from_codes(codes, dtype=values.dtype), index=values.index)
    return pd.Series(np.full(len(values), level, dtype=values.dtype), index=values.index)


def outcome_coords(design: DesignSpec, *, linear: bool = False) -> dict[str, list[str]]:
    """Dimension and levels of a categorical response, empty of others; of linear predictors without the first."""
    if not design.family.by_level:
        return {}
    kind, levels = ("reduced_dim", design.levels[1:]) if linear else ("dim", design.levels)
    return {f"{design.name}_{kind}": list(levels)}


def fitted_posterior(idata: arviz_compat.ArvizObject) -> xr.Dataset:
    """Posterior group of an ArviZ object, with its chains and draws."""
    if not arviz_compat.has_group(idata, "posterior"):
        raise ValueError("the ArviZ object has no posterior group. Pass what fit returned.")
    posterior = arviz_compat.group(idata, "posterior")
    if not {"chain", "draw"} <= set(posterior.dims):
        raise ValueError(
            f"the posterior must have dimensions chain and draw; it has {sorted(map(str, posterior.dims))}. Select "
            "with a list, as in idata.sel(draw=[3])."
        )
    return posterior


def quantity_attrs(idata: arviz_compat.ArvizObject, *, scale: bool = False) -> dict[str, Any]:
    """Attributes of a quantity computed from a fit's draws: the model, and what is known of the draws' calibration.

    `scale` says whether it is made of the response's scale as well, as drawn responses are.
    """
    posterior = fitted_posterior(idata)
    found = {key: str(posterior.attrs[key]) for key in ("formula", "family", "weights") if key in posterior.attrs}
    found["calibrated"] = str(posterior.attrs.get("calibrated", "no"))
    verdict = "not calibrated"
    if arviz_compat.has_group(idata, "calibration"):
        record = arviz_compat.group(idata, "calibration")
        verdict = str(record.attrs.get("verdict", verdict))
        if verdict == "calibrated in part":  # means are made of all coefficients
            own = None if scale else getattr(FAMILIES.get(found.get("family", "")), "auxiliary", None)
            used = record["calibrated"].where(record["parameter"] != own, True)
            verdict = "calibrated" if used.all() else "not calibrated"
    return {**found, "verdict": verdict}


def _own_rows(
    recorded: DesignSpec, posterior: xr.Dataset, observed: xr.Dataset, release: Release
) -> tuple[Design, pd.DataFrame]:
    """Design of the fit's rows and their predictors, checked to be those of the release."""
    other = "they are those of another release. Pass the one that was fitted."
    try:
        design = recorded_design(posterior, release)
    except (KeyError, ValueError) as error:
        raise ValueError(f"the formula does not suit the rows of the release ({error}); {other}") from None
    if design is None or design.name not in observed:
        raise ValueError(f"observed_data must hold the response of {recorded.formula!r}. Pass all that fit returned.")
    response = np.asarray(observed[design.name], dtype=np.float64)
    if not np.array_equal(response.shape, design.y.shape) or not np.allclose(response, design.y, rtol=1e-6, atol=0):
        raise ValueError(f"the observed values of {design.name!r} must be the release's; {other}")
    frame = recorded.ready(release.synthetic.frame.iloc[design.rows])
    if design.columns != recorded.columns or not np.allclose(recorded.matrix(frame), design.x):
        raise ValueError(f"the columns of the recorded design must be those of the release's rows; {other}")
    return design, frame


def _weight_draw(idata: arviz_compat.ArvizObject, release: Release, n_draws: int) -> NDArray[np.intp] | None:
    """Draw of the weights behind each draw of all chains; None of weights with a single one."""
    if release.weights.n_draws == 1:
        return None
    stats = arviz_compat.group(idata, "sample_stats") if arviz_compat.has_group(idata, "sample_stats") else xr.Dataset()
    if "weight_draw" not in stats or stats["weight_draw"].size != n_draws:
        raise ValueError(
            f"the weights have {release.weights.n_draws} draws and sample_stats must say which of them is behind each "
            "draw of the posterior, as 'weight_draw'. Pass all that fit returned."
        )
    if int(stats["weight_draw"].max()) >= release.weights.n_draws:
        raise ValueError(
            f"the posterior was drawn under more draws of the weights than the release's {release.weights.n_draws}. "
            "Pass the weights of the fit: draw them by noise_aware_weights first, and give them to both."
        )
    return np.asarray(stats["weight_draw"].transpose("chain", "draw"), dtype=np.intp).reshape(n_draws)
