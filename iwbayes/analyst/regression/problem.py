"""The weighted posterior of a regression, under each draw of the weights: design, prior, weights, modes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from iwbayes.analyst.inference.newton import NotReachedError
from iwbayes.analyst.regression.design import Design, build_design
from iwbayes.analyst.regression.modes import Mode, find_modes
from iwbayes.analyst.regression.priors import LogPrior, PriorScales, prior_scales
from iwbayes.analyst.regression.weighted_rows import WeightedRows, merge_draws
from iwbayes.arrays import Array
from iwbayes.weights import Weights, kish_ess


@dataclass(frozen=True, eq=False)
class RegressionProblem:
    """All that a fit needs of the release: arrays of the rows used, and the prior."""

    design: Design
    scales: PriorScales
    priors: Mapping[str, Any] | None
    prior: LogPrior
    weights: Weights | None  # None: uniform
    draw_weights: Array  # (draw of the weights, all rows); each sums to total
    total: float

    @classmethod
    def build(
        cls, formula: str, release: Any, family: Any, priors: Any, weights: Any, total: float | None
    ) -> RegressionProblem:
        """Read the rows that a formula uses and find their priors and weights; arguments as of `fit`."""
        synthetic = release.synthetic
        design = build_design(formula, synthetic.frame, synthetic.schema, family)
        chosen = _chosen_weights(weights, release, design.n_rows)
        total = float(release.n_private if total is None else total)
        values = np.ones((1, design.n_rows)) if chosen is None else np.asarray(chosen.draw_values)
        values = values * (total / values.sum(axis=1, keepdims=True))
        if not np.all(values[:, design.rows].sum(axis=1) > 0):
            raise ValueError("the weights must not all be zero on the rows used; check columns with missing cells.")
        scales = prior_scales(design, values.mean(axis=0)[design.rows])
        return cls(design, scales, priors, LogPrior(design, scales, priors), chosen, values, total)

    @property
    def rows(self) -> WeightedRows:
        """Rows used, one by one, with the averaged weights."""
        return WeightedRows(self.design, self.draw_weights.mean(axis=0)[self.design.rows])

    @property
    def share_left_out(self) -> float:
        """Share of the averaged weights that rows with missing cells in the columns used have."""
        averaged = self.draw_weights.mean(axis=0)
        averaged[self.design.rows] = 0.0
        return float(averaged.sum() / self.total)

    def posteriors(self) -> list[WeightedMode]:
        """Posterior under each draw of the weights."""
        complete = len(self.design.rows) == self.design.n_rows
        each = merge_draws(self.design, self.draw_weights if complete else self.draw_weights[:, self.design.rows])
        starts = None
        if len(each) > 1:
            # the modes of several draws lie close together
            averaged = merge_draws(self.design, self.rows.weights[None])
            starts = np.tile(find_modes(averaged, self.prior)[0].theta, (len(each), 1))
        try:
            modes = find_modes(each, self.prior, starts)
        except NotReachedError as error:
            p = self.design.n_parameters
            with np.errstate(divide="ignore"):  # a weight of zero
                carrying = kish_ess(np.log(self.rows.weights))
            if carrying > p:
                raise
            raise RuntimeError(
                f"the posterior has no mode that can be found: the weights are worth {carrying:.1f} rows, for {p} "
                "parameters. Look at release.weights; temper() or truncate() them, or fit fewer terms."
            ) from error
        return [WeightedMode(rows, mode) for rows, mode in zip(each, modes, strict=True)]


@dataclass(frozen=True, eq=False)
class WeightedMode:
    """Rows with one draw of their weights, and the mode of their posterior."""

    rows: WeightedRows
    mode: Mode


def _chosen_weights(weights: Any, release: Any, n_rows: int) -> Weights | None:
    if isinstance(weights, str):
        if weights not in ("release", "uniform"):
            raise ValueError(f"weights must be 'release', 'uniform' or a Weights; got {weights!r}.")
        weights = release.weights if weights == "release" else None
    if weights is not None and not isinstance(weights, Weights):
        raise TypeError(f"weights must be 'release', 'uniform' or a Weights; got {type(weights).__name__}.")
    if weights is not None and len(weights) != n_rows:
        raise ValueError(f"weights must have one value for each of the {n_rows} synthetic rows; got {len(weights)}.")
    return weights
