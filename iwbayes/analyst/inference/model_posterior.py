"""Log densities, gradients, scores and mode of any PyMC model, weighted or not, by automatic differentiation.

Everything is a function of ``theta``, shape (p,): the model's free variables in PyMC's unconstrained space, joined in
the order of the model's value variables, each in C order.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from functools import partial
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pymc.pytensorf import floatX
from pytensor.graph.replace import graph_replace

from iwbayes.analyst.inference.pymc_transform import UnconstrainedVariables, draw_blocks
from iwbayes.analyst.inference.weighted_posterior import Mode, WeightedPosterior
from iwbayes.analyst.weighting.graph_functions import CompiledWhenUsed, batched, by_columns, value_gradient_curvature
from iwbayes.analyst.weighting.model_copy import transform_model
from iwbayes.analyst.weighting.observed_variables import observed_variables
from iwbayes.analyst.weighting.other_rows import MovableRows
from iwbayes.analyst.weighting.reweight import common_weights, is_weighted, unweight
from iwbayes.analyst.weighting.weighted_op import WeightedRandomVariable
from iwbayes.tables import SyntheticTable
from iwbayes.utils.arrays import Array
from iwbayes.utils.newton import maximise

# Cost of one row in a compiled graph, in the unit of `WORK_LIMIT`: numbers that numpy processes.
_GRAPH_COST = 4


def _shared(make: Callable[[Any], Any]) -> Any:
    """Make a property that is computed on first use and then shared with copies of the object."""

    def get(self: ModelPosterior) -> Any:
        if make.__name__ not in self._made:
            self._made[make.__name__] = make(self)
        return self._made[make.__name__]

    return property(get, doc=make.__doc__)


def _compiled(make: Callable[[Any], Any]) -> Any:
    """Make a property of a function that copies of the object share; calls evaluate it on the rows of their copy."""
    made = _shared(make)

    def get(self: ModelPosterior) -> Any:
        return partial(self._on_own_rows, made.__get__(self))

    return property(get, doc=make.__doc__)


class ModelPosterior(UnconstrainedVariables, WeightedPosterior):
    """Row scores, Hessians, prior and mode of a PyMC model; graphs are built on first use.

    The likelihood is that of the weighted observed variables. In a model that
    :func:`~iwbayes.analyst.weighting.reweight.reweight` has not changed, it is that of all observed variables. All
    other terms of the log density count as prior: priors, Jacobians of transforms, potentials, and observed variables
    that a dict of weights left out. Data and weights are those of the model when the object is created.

    `weights` (row,) are the weights in the graph, after scaling to ``total``; ones in an unweighted model. Rows of
    weight zero are excluded from the likelihood, even if their own density is zero. `n_weights` is the number of weight
    vectors for which modes will be needed.

    ValueError if the model has no observed or no free variables, a free variable is discrete, or observed variables
    have different numbers of rows or different weights.

    Scores take p passes over the rows, instead of one backward pass per row: with G(theta, u) = d/dtheta sum_i u_i l_i,
    the derivative of all rows along v is d/du (G . v), because G is linear in u. Hessians are built by columns.
    """

    def __init__(self, model: pm.Model, n_weights: int = 1):
        if not model.free_RVs:
            raise ValueError("the model has no free variables, so there is nothing to differentiate.")
        discrete = [rv.name for rv in model.free_RVs if not rv.dtype.startswith("float")]
        if discrete:
            raise ValueError(
                f"the free variables {', '.join(discrete)} are discrete, and a log density has no derivative with "
                "respect to them. Marginalise them out of the model, for example with pm.Mixture."
            )
        weighted = [rv for rv in observed_variables(model) if is_weighted(rv)]
        rows = weighted or observed_variables(model)
        self.weights = common_weights(model, rows)
        self.n_rows = len(self.weights)
        self._row_names = [rv.name for rv in rows]
        self._left_out = ~(self.weights > 0)
        super().__init__(_unweighted(model, ~self._left_out) if weighted else model)
        # other terms may loop over the rows as well
        others = len(model.observed_RVs) > len(rows) or model.potentials or model.deterministics
        self._rows_of_others = self.n_rows if others else 0
        self._made: dict[str, Any] = {}
        self._table: SyntheticTable | None = None
        self._arrays: list[Array] | None = None
        self._n_columns = n_weights * self.size  # lower bound of the number of Hessian columns
        self.cost = float(_GRAPH_COST * self.n_rows)
        self.coords = {dim: labels for dim, labels in model.coords.items() if labels is not None}
        self.dims = {
            name: tuple(dim or f"{name}_dim_{axis}" for axis, dim in enumerate(dims))
            for name, dims in model.named_vars_to_dims.items()
        }

    def with_weights(self, weights: np.ndarray) -> ModelPosterior:
        """Return the same model with different weights (row,), already scaled; the compiled functions are shared.

        ValueError if the weights are not finite and non-negative, one per row, or if a row that has weight zero in this
        object gets a positive weight.
        """
        weights = np.asarray(weights, dtype=np.float64)
        if weights.shape != (self.n_rows,) or not (np.isfinite(weights).all() and (weights >= 0).all()):
            raise ValueError(f"weights must be {self.n_rows} finite numbers, not negative; got shape {weights.shape}.")
        if weights[self._left_out].any():
            raise ValueError(
                f"{np.count_nonzero(weights[self._left_out])} rows with weight zero are excluded from the likelihood "
                "and must keep weight zero. Create the ModelPosterior with positive weights."
            )
        other = copy(self)
        other.weights = weights
        return other

    def movable(self, table: SyntheticTable) -> ModelPosterior:
        """Return the same model on the rows of a table, in a form that `on_rows` can evaluate on as many other rows.

        ValueError if the model contains one number per row that is not a function of a single column of the release.
        """
        if self._left_out.any():
            raise ValueError(
                "rows of weight zero are excluded from the model, so it cannot be evaluated on other rows. Give all "
                "rows positive weights."
            )
        other = copy(self)
        other._made, other._table = {}, table
        other._arrays, _ = other._movable_graph[2].arrays(table.frame)
        return other

    def on_rows(self, table: SyntheticTable, weights: np.ndarray) -> ModelPosterior:
        """Return the same model, with its prior, on other rows; rows with cells unknown to the model get weight zero.

        ValueError if the object does not come from `movable`, or if the number of rows differs.
        """
        if self._table is None or len(table) != self.n_rows:
            raise ValueError(f"the model cannot be evaluated on {len(table)} other rows. Call movable() first.")
        arrays, known = self._movable_graph[2].arrays(table.frame)
        other = self.with_weights(np.where(known, weights, 0.0))
        other._arrays = arrays
        return other

    def scores(self, theta: np.ndarray) -> np.ndarray:
        """Return the gradient of each row's unweighted log likelihood at theta (p,): (row, p), zero for weight zero."""
        theta = self._checked(theta)
        scores = np.empty((self.n_rows, self.size))
        for j, direction in enumerate(np.eye(self.size)):
            scores[:, j] = self._scores_function(theta, direction)
        return scores

    def _scores_along(self, theta: np.ndarray, direction: np.ndarray) -> np.ndarray:
        return np.asarray(self._scores_function(self._checked(theta), direction))

    def likelihood_hessian(self, theta: np.ndarray) -> np.ndarray:
        """Return the Hessian of the weighted log likelihood sum_i w_i l_i, shape (p, p), at theta (p,)."""
        return self._likelihood(theta)[2]

    def likelihood_gradient(self, theta: np.ndarray) -> np.ndarray:
        """Return the gradient of the weighted log likelihood sum_i w_i l_i, shape (p,), at theta (p,)."""
        return np.array(self._likelihood_function(self._checked(theta), self.weights, np.zeros(self.size))[1])

    def log_likelihoods(self, theta: np.ndarray) -> np.ndarray:
        """Return weighted log likelihoods, shape (sample,), at points (sample, p)."""
        return _scalars(partial(self._value_function, self.weights), theta, self.n_rows)

    def log_priors(self, theta: np.ndarray) -> np.ndarray:
        """Return the other terms of the log density, shape (sample,), at points (sample, p)."""
        return _scalars(self._prior_value_function, theta, self._rows_of_others)

    def log_likelihood(self, theta: np.ndarray) -> float:
        """Return the weighted log likelihood sum_i w_i l_i at theta (p,)."""
        return float(self.log_likelihoods(self._checked(theta)[None])[0])

    def log_prior(self, theta: np.ndarray) -> float:
        """Return the terms of the log density outside the weighted likelihood, at theta (p,)."""
        return float(self.log_priors(self._checked(theta)[None])[0])

    def prior(self, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return gradient (p,) and Hessian (p, p), at theta (p,), of the terms outside the weighted likelihood."""
        _, gradient, hessian = by_columns(self._prior_function, self._checked(theta))
        return gradient, hessian

    def log_density(self, theta: np.ndarray) -> float:
        """Return the weighted log density at theta (p,) in unconstrained space, Jacobians included."""
        return self.log_likelihood(theta) + self.log_prior(theta)

    def log_densities(self, theta: np.ndarray) -> np.ndarray:
        """Return the weighted log density, shape (sample,), at many points (sample, p)."""
        return self.log_likelihoods(theta) + self.log_priors(theta)

    def gradient(self, theta: np.ndarray) -> tuple[float, np.ndarray]:
        """Return the weighted log density at theta (p,) and its gradient (p,), by compiled functions."""
        value, gradient = self._compiled_gradient(theta, self.weights)
        return float(value), np.asarray(gradient)

    def prior_gradient(self, theta: np.ndarray) -> tuple[float, np.ndarray]:
        """Return the terms outside the likelihood at theta (p,) and their gradient (p,), by a compiled function."""
        value, gradient = self._compiled_prior_gradient(theta)
        return float(value), np.asarray(gradient)

    def gradients_at(self, rows: np.ndarray, shares: np.ndarray, thetas: np.ndarray) -> np.ndarray:
        """Return gradients (draw, p) of mean log likelihoods at thetas (draw, p), for shares (draw, n) of rows."""
        gradients, weights = np.empty_like(thetas), np.zeros(self.n_rows)
        for index, (share, theta) in enumerate(zip(shares, thetas, strict=True)):
            weights[rows] = share
            gradients[index] = self.with_weights(weights).likelihood_gradient(theta)
        return gradients

    def mode(self, start: np.ndarray | None = None, free: np.ndarray | None = None) -> Mode:
        """Maximise the weighted log density by damped Newton steps, from `start` (p,) or the model's initial point.

        `free` (p,) marks the parameters that move, all by default; the others keep their start values. Errors are those
        of `maximise`. The Hessians are those of the last step: a millionth of a posterior standard deviation away from
        the mode, or farther if the log density has larger rounding errors.
        """
        hessians: list[np.ndarray] = []
        start = self.start() if start is None else self._checked(start)
        free = np.ones(self.size, dtype=bool) if free is None else free

        def whole(part: np.ndarray) -> np.ndarray:
            theta = start.copy()
            theta[free] = part
            return theta

        def derivatives(part: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            _, gradient, hessian = self._likelihood(whole(part))
            prior_gradient, prior_hessian = self.prior(whole(part))
            hessians[:] = hessian, prior_hessian
            return (gradient + prior_gradient)[free], (hessian + prior_hessian)[np.ix_(free, free)]

        found = maximise(lambda part: self.log_density(whole(part)), derivatives, start[free])
        return Mode(whole(found), -(hessians[0] + hessians[1]), -hessians[0])

    def in_likelihood(self, theta: np.ndarray) -> np.ndarray:
        """Return which parameters the likelihood depends on, from its derivatives at theta (p,); bool, shape (p,)."""
        _, gradient, hessian = self._likelihood(theta)
        return (gradient != 0) | (hessian != 0).any(axis=0)

    @property
    def graph_of_rows(self) -> tuple[Any, Any, MovableRows]:
        """Graph of the unweighted log likelihood of each row, its theta, and its column-valued parts (`movable`)."""
        return self._movable_graph  # type: ignore[no-any-return]

    @property
    def _row_graph(self) -> tuple[Any, Any]:
        """Graph of the unweighted log likelihood of each row, shape (row,), and its theta."""
        return self._movable_graph[:2]

    @_shared
    def _movable_graph(self) -> tuple[Any, Any, Any]:
        """Return that graph, its theta, and its column-valued parts if it can be evaluated on other rows."""
        variables = [self._model.named_vars[name] for name in self._row_names]
        terms = self._model.logp(vars=variables, sum=False)
        rows = sum(term.sum(axis=tuple(range(1, term.ndim))) if term.ndim > 1 else term for term in terms)
        [rows], theta = self._join([rows])
        if self._table is None:
            return rows, theta, None
        rows, held = MovableRows.of(rows, self._table)
        return rows, theta, held

    @_compiled
    def _value_function(self) -> Callable[..., np.ndarray]:
        """Weighted log likelihood; rows with weight zero may have density zero."""
        rows, theta = self._row_graph
        weights = pt.vector("weights", shape=(self.n_rows,))
        value = pt.sum(pt.switch(weights > 0, weights * rows, 0.0))
        return batched([weights, theta], value, over=[theta], n_rows=self.n_rows)

    @_compiled
    def _scores_function(self) -> Callable[..., np.ndarray]:
        """Differentiate all rows along a direction: forward mode, by differentiating backward mode twice."""
        rows, theta = self._row_graph
        direction = pt.vector("direction", shape=(self.size,))
        ones = pt.ones_like(rows)
        gradient: Any = pt.grad(pt.sum(ones * rows), theta, consider_constant=[], disconnected_inputs="ignore")
        along = pt.grad(pt.dot(gradient, direction), ones, disconnected_inputs="ignore")
        return CompiledWhenUsed([theta, direction], along, n_rows=self.n_rows)

    @_compiled
    def _likelihood_function(self) -> Callable[..., list[np.ndarray]]:
        rows, theta = self._row_graph
        weights = pt.vector("weights", shape=(self.n_rows,))
        return value_gradient_curvature(
            pt.sum(weights * rows), [theta, weights], n_rows=self.n_rows, n_calls=self._n_columns
        )

    @_shared
    def _prior_graph(self) -> tuple[Any, Any]:
        """Graph of the other terms of the log density, and its theta."""
        others = [rv for rv in self._model.basic_RVs if rv.name not in self._row_names]
        [density], theta = self._join([self._model.logp(vars=[*others, *self._model.potentials])])
        return density, theta

    @_compiled
    def _compiled_gradient(self) -> Callable[..., list[np.ndarray]]:
        """Log density and gradient, compiled together because samplers call it thousands of times, in processes."""
        rows, theta = self._row_graph
        prior, own = self._prior_graph
        weights = pt.vector("weights", shape=(self.n_rows,))
        value = pt.sum(pt.switch(weights > 0, weights * rows, 0.0)) + graph_replace(prior, {own: theta}, strict=False)
        return _with_gradient(value, theta, [theta, weights])

    @_compiled
    def _compiled_prior_gradient(self) -> Callable[..., list[np.ndarray]]:
        density, theta = self._prior_graph
        return _with_gradient(density, theta, [theta])

    @_compiled
    def _prior_value_function(self) -> Callable[..., np.ndarray]:
        density, theta = self._prior_graph
        return batched([theta], density, over=[theta], n_rows=self._rows_of_others)

    @_compiled
    def _prior_function(self) -> Callable[..., list[np.ndarray]]:
        density, theta = self._prior_graph
        return value_gradient_curvature(density, [theta], n_rows=self._rows_of_others, n_calls=self._n_columns)

    def _on_own_rows(self, function: Callable[..., Any], *values: np.ndarray) -> Any:
        if self._arrays is not None and self._made.get("rows") is not self._arrays:
            self._movable_graph[2].put(self._arrays)
            self._made["rows"] = self._arrays
        return function(*values)

    def _likelihood(self, theta: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
        return by_columns(self._likelihood_function, self._checked(theta), self.weights)


def _scalars(function: Callable[[np.ndarray], Any], theta: np.ndarray, n_rows: int) -> np.ndarray:
    """Return the values, shape (sample,), of a batched function at points (sample, p), in blocks."""
    theta = np.asarray(theta, dtype=np.float64)
    blocks = list(draw_blocks(len(theta), n_rows))
    return np.concatenate([np.broadcast_to(function(theta[block]), (len(theta[block]),)) for block in blocks])


def _with_gradient(value: Any, theta: Any, inputs: list[Any]) -> Callable[..., list[np.ndarray]]:
    return CompiledWhenUsed(inputs, [value, pt.grad(value, theta, disconnected_inputs="ignore")], n_rows=None)


def _unweighted(model: pm.Model, keep: np.ndarray) -> pm.Model:
    """Copy a weighted model without its weights; excluded rows have log density zero."""
    if keep.all():
        return unweight(model)

    def strip(fgraph: Any, name: str, rv: Any, value: Any) -> Any:
        # the guarded log density does not evaluate rows of weight zero, and its derivatives are zero there
        return WeightedRandomVariable(True)(rv.owner.inputs[0], floatX(keep)) if is_weighted(rv) else rv

    return transform_model(model, strip)
