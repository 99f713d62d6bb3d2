"""Regressions that PyMC computes for `fit`: more families, binomial trials, offsets and group-specific effects.

Calibration needs parameters that the rows inform directly, so predictors are not centred and group-specific effects use
the centred parametrisation: they are Normal(0, scale) themselves.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from iwbayes.analyst import arviz_compat
from iwbayes.analyst.inference.nuts import SamplingSettings, WhitenedNuts
from iwbayes.analyst.regression.design_record import record_design
from iwbayes.analyst.regression.model import build_model
from iwbayes.analyst.regression.regression_posterior import observed_of
from iwbayes.evidence.formulas import quoted
from iwbayes.models.design import Design
from iwbayes.release import Release
from iwbayes.release.weights import Weights
from iwbayes.utils.arrays import Array

if TYPE_CHECKING:
    import pymc as pm

    from iwbayes.analyst.inference.model_posterior import ModelPosterior


@dataclass(frozen=True, eq=False)
class BuiltRegression:
    """A PyMC model of all rows of a release, weighted, with the interface of `RegressionProblem`."""

    model: pm.Model
    posterior: ModelPosterior
    measurable: str  # a plain formula of the same columns, which is compared with the features the release measured
    family: str
    n_rows: int
    observed: xr.Dataset
    attributes: dict[str, Any]

    @classmethod
    def of(cls, design: Design, release: Release, priors: Any, weights: Weights) -> BuiltRegression:
        """Build and weight the model of a design. The arguments are those of `fit`."""
        from iwbayes.analyst.inference.model_posterior import ModelPosterior
        from iwbayes.analyst.weighting.release_rows import GROWING, check_size
        from iwbayes.analyst.weighting.reweight import reweight

        model = build_model(design, np.asarray(release.weights.values), priors)
        weighted = reweight(model, release.weights, total=release.n_private)
        check_size(weighted, len(design.rows), GROWING)
        posterior = ModelPosterior(weighted, weights.n_draws)
        attributes: dict[str, Any] = {"rows_left_out": 0, "share_left_out": 0.0}
        attributes["design"] = record_design(design, release.synthetic.frame)
        predictors = [name for name in design.schema.names if name != design.name]
        measurable = f"{quoted(design.name)} ~ {' + '.join(map(quoted, predictors)) or '1'}"
        return cls(
            weighted, posterior, measurable, design.family.name, posterior.n_rows, observed_of(design), attributes
        )

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
        """Return groups of the unweighted and weighted log likelihood of each row, at the draws of a posterior."""
        from iwbayes.analyst.weighting.reweight import log_likelihood

        found = log_likelihood(arviz_compat.make({"posterior": posterior}), self.model)
        names = ("log_likelihood", "log_likelihood_weighted")
        return {name: arviz_compat.group(found, name) for name in names}
