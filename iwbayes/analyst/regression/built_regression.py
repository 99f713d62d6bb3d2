"""Regressions that PyMC computes for `fit`: more families, binomial trials, offsets and group-specific effects.

Calibration needs parameters that the rows inform directly, so predictors are not centred and group-specific effects use
the centred parametrisation: they are Normal(0, scale) themselves.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import xarray as xr
from numpy.typing import NDArray

from iwbayes.analyst.inference.nuts import SamplingSettings, WhitenedNuts
from iwbayes.analyst.regression.model import build_model, data_of
from iwbayes.analyst.regression.regression_posterior import observed_of, rows_used
from iwbayes.evidence.formulas import quoted
from iwbayes.models.design import Design, on_all_rows
from iwbayes.release import Release
from iwbayes.release.weights import Weights
from iwbayes.utils.arrays import Array, BoolArray

if TYPE_CHECKING:
    from iwbayes.analyst.inference.model_posterior import ModelPosterior


@dataclass(frozen=True, eq=False)
class BuiltRegression:
    """A PyMC model of all rows of a release, weighted, with the interface of `RegressionProblem`."""

    posterior: ModelPosterior
    measurable: str  # a plain formula of the same columns, which is compared with the features the release measured
    family: str
    rows: NDArray[np.int64]  # (row,): indices of the rows used among all rows of the table
    observed: xr.Dataset
    attributes: dict[str, Any]

    @classmethod
    def of(
        cls, design: Design, release: Release, priors: Any, weights: Weights, design_weight: str | None = None
    ) -> BuiltRegression:
        """Build and weight the model of a design. The arguments are those of `fit`."""
        from iwbayes.analyst.inference.model_posterior import ModelPosterior
        from iwbayes.analyst.weighting.release_rows import GROWING, check_size
        from iwbayes.analyst.weighting.reweight import reweight

        values = np.asarray(release.weights.values)
        factors, attributes = rows_used(design, release, values, design_weight)
        model = build_model(on_all_rows(design, release.synthetic.frame)[0], values * factors.values, priors)
        weighted = reweight(model, release.weights, total=release.n_private)
        check_size(weighted, design.n_rows, GROWING)
        posterior = ModelPosterior(weighted, weights.n_draws, factors=factors, data_of=partial(_data_of, design))
        predictors = [name for name in design.schema.names if name != design.name]
        return cls(
            posterior,
            measurable=f"{quoted(design.name)} ~ {' + '.join(map(quoted, predictors)) or '1'}",
            family=design.family.name,
            rows=design.rows,
            observed=observed_of(design),
            attributes=attributes,
        )

    @property
    def n_rows(self) -> int:
        """Number of rows used."""
        return len(self.rows)

    def sampled(self, settings: SamplingSettings, rng: np.random.Generator) -> Array | None:
        """Return draws (sample, p) by NUTS if scales of group-specific effects have no posterior mode; else None."""
        posterior = self.posterior
        informed = posterior.in_likelihood(posterior.start())
        if informed.all():
            return None
        # NUTS moves slowly along the intercept and the slope of a predictor that is far from zero
        mode, precision = posterior.mode(free=informed), np.eye(posterior.size)
        both = np.ix_(informed, informed)
        precision[both] = mode.precision[both]
        nuts = WhitenedNuts(posterior.size, settings, n_runs=1)
        theta, _ = nuts.sample(posterior, mode.theta, precision, draws=settings.draws, rng=rng)
        return theta.reshape(-1, posterior.size)

    def log_likelihoods(self, posterior: xr.Dataset, theta: Array) -> dict[str, xr.Dataset]:
        """Return groups of the unweighted and weighted log likelihood of each row, at draws theta (chain, draw, p)."""
        [values] = self.posterior.graphs.row_values(theta.reshape(-1, self.posterior.size))
        used = values.reshape(*theta.shape[:2], -1)[..., self.rows]
        weights = (self.posterior.weights * self.posterior.factors.values)[self.rows]
        coords = {"chain": posterior["chain"], "draw": posterior["draw"], "row": self.rows}
        plain = xr.Dataset({str(next(iter(self.observed))): (tuple(coords), used)}, coords=coords)
        return {"log_likelihood": plain, "log_likelihood_weighted": plain * xr.DataArray(weights, dims="row")}


def _data_of(design: Design, frame: pd.DataFrame) -> tuple[dict[str, Any], BoolArray]:
    """Return the data of a design's model on the rows of a table, and which rows (row,) it knows."""
    whole, known = on_all_rows(design, frame)
    return data_of(whole), known
