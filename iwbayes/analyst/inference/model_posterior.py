"""Array-valued pieces of any PyMC model, weighted or not, by automatic differentiation.

Everything is a function of ``theta``, shape (p,): the model's free variables in PyMC's unconstrained space, one
after another in the order of the model's value variables, each in C order.
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

from iwbayes.analyst.inference.newton import maximise
from iwbayes.analyst.inference.pymc_transform import UnconstrainedVariables, draw_blocks
from iwbayes.analyst.inference.weighted_posterior import Mode, WeightedPosterior
from iwbayes.analyst.weighting.graph_functions import CompiledWhenUsed, batched, by_columns, value_gradient_curvature
from iwbayes.analyst.weighting.model_copy import transform_model
from iwbayes.analyst.weighting.observed_variables import observed_variables
from iwbayes.analyst.weighting.other_rows import MovableRows
from iwbayes.analyst.weighting.reweight import common_weights, is_weighted, unweight
from iwbayes.analyst.weighting.weighted_op import WeightedRandomVariable
from iwbayes.arrays import Array
from iwbayes.tables import SyntheticTable

# A row of a compiled graph costs about as much as so many numbers in numpy, in which `WORK_LIMIT` counts.
_GRAPH_COST = 4


def _shared(make: Callable[[Any], Any]) -> Any:
    """Property that is made when it is first asked for, and that copies of the object then have as well."""

    def get(self: ModelPosterior) -> Any:
        if make.__name__ not in self._made:
            self._made[make.__name__] = make(self)
        if self._arrays is not None and make.__name__ != "_movable_graph":
            self._movable_graph[2].put(self._arrays)  # others share the function, with rows of their own
        return self._made[make.__name__]

    return property(get, doc=make.__doc__)


class ModelPosterior(UnconstrainedVariables, WeightedPosterior):
    """Row scores, Hessians, prior and mode of a PyMC model; graphs are made when they are first asked for.

    The likelihood is that of the weighted observed variables, or of all observed variables in a model that
    :func:`~iwbayes.analyst.weighting.reweight.reweight` has not touched; everything else in the log density (priors,
    Jacobians of transforms, potentials, observed variables that a dict of weights left out) counts as prior.
    Data and weights are those that the model holds when the object is made. `weights` (row,) are those that the graph
    uses, after ``total``; ones in an unweighted model. Rows of weight zero are out of the likelihood, even where their
    own density is zero. `n_weights` is the number of weight vectors, each of which will need a mode.

    ValueError if the model has no observed or no free variables, a free variable is discrete, or observed variables
    have different numbers of rows or different weights.

    Scores take p passes over the rows, not one backward pass a row: with G(theta, u) = d/dtheta sum_i u_i l_i,
    the derivative of all rows along v is d/du (G . v), as G is linear in u. Hessians are built by columns.
    """

    def __init__(self, model: pm.Model, n_weights: int = 1):
        if not model.free_RVs:
            raise ValueError("the model has no free variables, so there is nothing to differentiate.")
        discrete = [rv.name for rv in model.free_RVs if not rv.dtype.startswith("float")]
        if discrete:
            raise ValueError(
                f"the free variables {', '.join(discrete)} are discrete, and a log density has no derivative in "
                "them. Sum them out of the model, for example by pm.Mixture."
            )
        weighted = [rv for rv in observed_variables(model) if is_weighted(rv)]
        rows = weighted or observed_variables(model)
        self.weights = common_weights(model, rows)
        self.n_rows = len(self.weights)
        self._row_names = [rv.name for rv in rows]
        self._left_out = ~(self.weights > 0)
        super().__init__(_unweighted(model, ~self._left_out) if weighted else model)
        # what else may loop over the rows
        others = len(model.observed_RVs) > len(rows) or model.potentials or model.deterministics
        self._rows_of_others = self.n_rows if others else 0
        self._made: dict[str, Any] = {}
        self._table: SyntheticTable | None = None
        self._arrays: list[Array] | None = None
        self._n_columns = n_weights * self.size  # of Hessians, at the least
        self.cost = float(_GRAPH_COST * self.n_rows)
        self.coords = {dim: labels for dim, labels in model.coords.items() if labels is not None}
        self.dims = {
            name: tuple(dim or f"{name}_dim_{axis}" for axis, dim in enumerate(dims))
            for name, dims in model.named_vars_to_dims.items()
        }

    def with_weights(self, weights: np.ndarray) -> ModelPosterior:
        """Return the same model with other weights (row,), after any ``total``; the compiled functions are shared.

        ValueError where they are not finite numbers that are not negative, one a row, or where a row that has weight
        zero in this object gets another.
        """
        weights = np.asarray(weights, dtype=np.float64)
        if weights.shape != (self.n_rows,) or not (np.isfinite(weights).all() and (weights >= 0).all()):
            raise ValueError(f"weights must be {self.n_rows} finite numbers, not negative; got shape {weights.shape}.")
        if weights[self._left_out].any():
            raise ValueError(
                f"{np.count_nonzero(weights[self._left_out])} rows of weight zero, which are out of the likelihood, "
                "must keep weight zero. Make the terms of a model with positive weights."
            )
        other = copy(self)
        other.weights = weights
        return other

    def movable(self, table: SyntheticTable) -> ModelPosterior:
        """Return the same model on its rows, those of a table, which `on_rows` can put on others of the same number.

        ValueError where it holds numbers a row that are no function of a single column of the release.
        """
        if self._left_out.any():
            raise ValueError("rows of weight zero are out of the model, which cannot be put on other rows.")
        other = copy(self)
        other._made, other._table = {}, table
        other._arrays, _ = other._movable_graph[2].arrays(table.frame)
        return other

    def on_rows(self, table: SyntheticTable, weights: np.ndarray) -> ModelPosterior:
        """Return the same model, with its prior, on other rows; those that it does not know get no weight.

        ValueError where `movable` did not make it, or there is another number of rows.
        """
        if self._table is None or len(table) != self.n_rows:
            raise ValueError(f"the model is not one that can be put on {len(table)} other rows. See movable().")
        arrays, known = self._movable_graph[2].arrays(table.frame)
        other = self.with_weights(np.where(known, weights, 0.0))
        other._arrays = arrays
        return other

    def scores(self, theta: np.ndarray) -> np.ndarray:
        """Differentiate each row's unweighted log likelihood at theta (p,): (row, p), zeros for rows of weight zero."""
        theta = self._checked(theta)
        scores = np.empty((self.n_rows, self.size))
        for j, direction in enumerate(np.eye(self.size)):
            scores[:, j] = self._scores_function(theta, direction)
        return scores

    def likelihood_hessian(self, theta: np.ndarray) -> np.ndarray:
        """Hessian of the weighted log likelihood sum_i w_i l_i, shape (p, p), at theta (p,)."""
        return self._likelihood(theta)[2]

    def likelihood_gradient(self, theta: np.ndarray) -> np.ndarray:
        """Gradient of the weighted log likelihood sum_i w_i l_i, shape (p,), at theta (p,)."""
        return np.array(self._likelihood_function(self._checked(theta), self.weights, np.zeros(self.size))[1])

    def log_likelihoods(self, theta: np.ndarray) -> np.ndarray:
        """Weighted log likelihoods, shape (sample,), at points (sample, p)."""
        return _scalars(partial(self._value_function, self.weights), theta, self.n_rows)

    def log_priors(self, theta: np.ndarray) -> np.ndarray:
        """Everything else in the log density, shape (sample,), at points (sample, p)."""
        return _scalars(self._prior_value_function, theta, self._rows_of_others)

    def log_likelihood(self, theta: np.ndarray) -> float:
        """Weighted log likelihood sum_i w_i l_i at theta (p,)."""
        return float(self.log_likelihoods(self._checked(theta)[None])[0])

    def log_prior(self, theta: np.ndarray) -> float:
        """Everything in the log density that is not the weighted likelihood, at theta (p,)."""
        return float(self.log_priors(self._checked(theta)[None])[0])

    def prior(self, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Gradient (p,) and Hessian (p, p) at theta (p,) of everything that is not the weighted likelihood."""
        _, gradient, hessian = by_columns(self._prior_function, self._checked(theta))
        return gradient, hessian

    def log_density(self, theta: np.ndarray) -> float:
        """Weighted log density of the model at theta (p,) in unconstrained space, Jacobians included."""
        return self.log_likelihood(theta) + self.log_prior(theta)

    def log_densities(self, theta: np.ndarray) -> np.ndarray:
        """Weighted log density, shape (sample,), at many points (sample, p)."""
        return self.log_likelihoods(theta) + self.log_priors(theta)

    def gradient(self, theta: np.ndarray) -> tuple[float, np.ndarray]:
        """Weighted log density of the model at theta (p,), and its gradient (p,), by compiled functions."""
        value, gradient = self._compiled_gradient(theta, self.weights)
        return float(value), np.asarray(gradient)

    def prior_gradient(self, theta: np.ndarray) -> tuple[float, np.ndarray]:
        """Everything else in the log density at theta (p,), and its gradient (p,), by a compiled function."""
        value, gradient = self._compiled_prior_gradient(theta)
        return float(value), np.asarray(gradient)

    def gradients_at(self, rows: np.ndarray, shares: np.ndarray, thetas: np.ndarray) -> np.ndarray:
        """Gradients (draw, p) of mean log likelihoods at thetas (draw, p), under shares (draw, n) of some rows (n,)."""
        gradients, weights = np.empty_like(thetas), np.zeros(self.n_rows)
        for index, (share, theta) in enumerate(zip(shares, thetas, strict=True)):
            weights[rows] = share
            gradients[index] = self.with_weights(weights).likelihood_gradient(theta)
        return gradients

    def mode(self, start: np.ndarray | None = None, free: np.ndarray | None = None) -> Mode:
        """Maximise the weighted log density by damped Newton steps, from `start` (p,) or the model's initial point.

        `free` (p,) says which parameters move, the others being held where they are; all by default. Errors are those
        of `maximise`. The Hessians are those of the last step: a millionth of a posterior standard deviation away, more
        where the rounding of the log density is larger than that.
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
        """Tell which parameters the likelihood depends on, from its derivatives at theta (p,); bool, shape (p,)."""
        _, gradient, hessian = self._likelihood(theta)
        return (gradient != 0) | (hessian != 0).any(axis=0)

    @property
    def graph_of_rows(self) -> tuple[Any, Any, MovableRows]:
        """Graph of the unweighted log likelihood of each row, its theta, and what it holds of columns (`movable`)."""
        return self._movable_graph  # type: ignore[no-any-return]

    @property
    def _row_graph(self) -> tuple[Any, Any]:
        """Graph of the unweighted log likelihood of each row, shape (row,), and its theta."""
        return self._movable_graph[:2]

    @_shared
    def _movable_graph(self) -> tuple[Any, Any, Any]:
        """Return that graph, and what it holds of columns, where other rows may take their place."""
        variables = [self._model.named_vars[name] for name in self._row_names]
        terms = self._model.logp(vars=variables, sum=False)
        rows = sum(term.sum(axis=tuple(range(1, term.ndim))) if term.ndim > 1 else term for term in terms)
        [rows], theta = self._join([rows])
        if self._table is None:
            return rows, theta, None
        rows, held = MovableRows.of(rows, self._table)
        return rows, theta, held

    @_shared
    def _value_function(self) -> Callable[..., np.ndarray]:
        """Weighted log likelihood; rows that only these weights leave out may have density zero."""
        rows, theta = self._row_graph
        weights = pt.vector("weights", shape=(self.n_rows,))
        value = pt.sum(pt.switch(weights > 0, weights * rows, 0.0))
        return batched([weights, theta], value, over=[theta], n_rows=self.n_rows)

    @_shared
    def _scores_function(self) -> Callable[..., np.ndarray]:
        """All rows' derivatives along a direction: forward mode by differentiating backward mode twice."""
        rows, theta = self._row_graph
        direction = pt.vector("direction", shape=(self.size,))
        ones = pt.ones_like(rows)
        gradient: Any = pt.grad(pt.sum(ones * rows), theta, consider_constant=[], disconnected_inputs="ignore")
        along = pt.grad(pt.dot(gradient, direction), ones, disconnected_inputs="ignore")
        return CompiledWhenUsed([theta, direction], along, n_rows=self.n_rows)

    @_shared
    def _likelihood_function(self) -> Callable[..., list[np.ndarray]]:
        rows, theta = self._row_graph
        weights = pt.vector("weights", shape=(self.n_rows,))
        return value_gradient_curvature(
            pt.sum(weights * rows), [theta, weights], n_rows=self.n_rows, n_calls=self._n_columns
        )

    @_shared
    def _prior_graph(self) -> tuple[Any, Any]:
        """Graph of all else in the log density, and its theta."""
        others = [rv for rv in self._model.basic_RVs if rv.name not in self._row_names]
        [density], theta = self._join([self._model.logp(vars=[*others, *self._model.potentials])])
        return density, theta

    @_shared
    def _compiled_gradient(self) -> Callable[..., list[np.ndarray]]:
        """Log density and gradient, compiled at once: whoever asks does so thousands of times, and in processes."""
        rows, theta = self._row_graph
        prior, own = self._prior_graph
        weights = pt.vector("weights", shape=(self.n_rows,))
        value = pt.sum(pt.switch(weights > 0, weights * rows, 0.0)) + graph_replace(prior, {own: theta}, strict=False)
        return _with_gradient(value, theta, [theta, weights])

    @_shared
    def _compiled_prior_gradient(self) -> Callable[..., list[np.ndarray]]:
        density, theta = self._prior_graph
        return _with_gradient(density, theta, [theta])

    @_shared
    def _prior_value_function(self) -> Callable[..., np.ndarray]:
        density, theta = self._prior_graph
        return batched([theta], density, over=[theta], n_rows=self._rows_of_others)

    @_shared
    def _prior_function(self) -> Callable[..., list[np.ndarray]]:
        density, theta = self._prior_graph
        return value_gradient_curvature(density, [theta], n_rows=self._rows_of_others, n_calls=self._n_columns)

    def _likelihood(self, theta: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
        return by_columns(self._likelihood_function, self._checked(theta), self.weights)


def _scalars(function: Callable[[np.ndarray], Any], theta: np.ndarray, n_rows: int) -> np.ndarray:
    """Values, shape (sample,), of a batched function at points (sample, p), in blocks."""
    theta = np.asarray(theta, dtype=np.float64)
    blocks = list(draw_blocks(len(theta), n_rows))
    return np.concatenate([np.broadcast_to(function(theta[block]), (len(theta[block]),)) for block in blocks])


def _with_gradient(value: Any, theta: Any, inputs: list[Any]) -> Callable[..., list[np.ndarray]]:
    return CompiledWhenUsed(inputs, [value, pt.grad(value, theta, disconnected_inputs="ignore")], n_rows=None)


def _unweighted(model: pm.Model, keep: np.ndarray) -> pm.Model:
    """Copy of a weighted model without its weights, in which the rows that are not kept have log density zero."""
    if keep.all():
        return unweight(model)

    def strip(fgraph: Any, name: str, rv: Any, value: Any) -> Any:
        # the guarded log density looks at no row of weight zero, and its derivatives are zero there
        return WeightedRandomVariable(True)(rv.owner.inputs[0], floatX(keep)) if is_weighted(rv) else rv

    return transform_model(model, strip)
