"""Log densities, gradients, scores and mode of any weighted PyMC model, by automatic differentiation.

Everything is a function of ``theta``, shape (p,): the model's free variables in PyMC's unconstrained space, joined in
their order, each in C order.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from functools import cached_property
from typing import Any, cast

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import xarray as xr
from pymc.pytensorf import join_nonshared_inputs
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import equal_computations
from pytensor.graph.replace import graph_replace
from pytensor.graph.traversal import ancestors

from iwbayes.analyst.inference.row_graph import check_operations, one_row
from iwbayes.analyst.inference.weighted_posterior import Mode, WeightedPosterior
from iwbayes.analyst.weighting.graph_functions import (
    BLOCK,
    Batched,
    CompiledWhenUsed,
    CountsCalls,
    SmoothFunction,
    evaluate,
)
from iwbayes.analyst.weighting.observed_rows import weighted_variables
from iwbayes.analyst.weighting.release_rows import DataOf, MovableRows
from iwbayes.analyst.weighting.reweight import common_weights, unweight
from iwbayes.models.design_weight import NO_FACTORS, RowFactors
from iwbayes.tables import SyntheticTable
from iwbayes.utils.arrays import Array, row_blocks
from iwbayes.utils.newton import maximise

# Draws that show on which parameters a deterministic variable depends.
_DRAWS_MOVED = 3
# Cost of one row in a compiled graph, in the unit of `WORK_LIMIT`: numbers that numpy processes.
_GRAPH_COST = 4


class ModelGraphs(CountsCalls):
    """Graphs of an unweighted model as functions of theta, which posteriors under other weights and rows share.

    `names` are its observed variables with weights. `rows` (row,) is the log likelihood of each row, `likelihood` their
    weighted sum, and `prior` all other terms. If a table is given, `held` has its data, which can be set to other rows.
    """

    def __init__(
        self,
        model: pm.Model,
        names: Sequence[str],
        n_rows: int,
        n_weights: int,
        table: SyntheticTable | None = None,
        data_of: DataOf | None = None,
    ) -> None:
        self.model, self.n_rows = model, n_rows
        inputs, point = [model.rvs_to_values[rv] for rv in model.free_RVs], model.initial_point(0)
        self.point = {var.name: np.asarray(point[var.name], dtype=np.float64) for var in inputs}
        others = [rv for rv in model.basic_RVs if rv.name not in names]
        terms = model.logp(vars=[model.named_vars[name] for name in names], sum=False)
        rows = sum(term.sum(axis=tuple(range(1, term.ndim))) if term.ndim > 1 else term for term in terms)
        prior = model.logp(vars=[*others, *model.potentials])
        self.variables = [*model.free_RVs, *model.deterministics]
        values = model.replace_rvs_by_values(self.variables)
        (self.rows, prior, *values), self.theta = join_nonshared_inputs(self.point, [rows, prior, *values], inputs)
        self.held: Any = None
        self.loaded: list[Array] | None = None
        if table is not None:
            self.rows, self.held = MovableRows.of(self.rows, table, data_of)
        self._terms = [self.rows, prior]
        weights = pt.vector("weights", shape=(n_rows,))
        # rows with weight zero may have density zero
        weighted = pt.sum(pt.switch(weights > 0, weights * self.rows, 0.0))
        # other terms may loop over the rows as well
        loops = len(model.observed_RVs) > len(names) or model.potentials or model.deterministics
        n_others, n_columns = n_rows if loops else 0, n_weights * sum(value.size for value in self.point.values())
        self.likelihood = SmoothFunction(weighted, self.theta, weights, n_rows=n_rows, n_calls=n_columns)
        self.prior = SmoothFunction(prior, self.theta, n_rows=n_others, n_calls=n_columns)
        # compiled together because samplers call it thousands of times, in processes
        self.both = SmoothFunction(weighted + prior, self.theta, weights, n_rows=n_rows, n_calls=n_columns)
        self.constrained = Batched([self.theta], values, n_rows=n_others)

    def equal(self, other: ModelGraphs) -> bool:
        """Return whether others are the same functions of parameters and of data per row, whatever these data are."""
        if self.held is None or other.held is None or self.n_rows != other.n_rows:
            return False
        both, inputs, others = (self, other), [], []
        for graphs in both:
            of_rows = [graphs.theta, *graphs.held.shared]
            above = ancestors(graphs._terms)
            others.append([var for var in above if isinstance(var, SharedVariable) and var not in of_rows])  # as knots
            inputs.append([*of_rows, *others[-1]])
        one, two = ([(name, value.shape) for name, value in graphs.point.items()] for graphs in both)
        return (
            one == two
            and [len(found) for found in (inputs[0], others[0])] == [len(found) for found in (inputs[1], others[1])]
            and all(np.array_equal(evaluate(own), evaluate(its)) for own, its in zip(*others, strict=True))
            and equal_computations(self._terms, other._terms, *inputs)
        )

    @cached_property
    def row_values(self) -> Batched:
        """Log likelihoods of the rows (sample, row) at many theta (sample, p)."""
        return Batched([self.theta], [self.rows], n_rows=self.n_rows)

    @cached_property
    def of_one_row(self) -> Batched:
        """Score (row, p), log density and `defined` (row,) of rows, from their data (row, 1, ...) and theta (p,).

        The graph of one row is repeated over rows, so the scores of a row depend on this row only, and no cell makes it
        fail; see `row_graph`. It is compiled at its first call.
        """
        one = one_row(self.rows, self.held.shared)
        gradient: Any = pt.grad(one.density, self.theta, disconnected_inputs="ignore")
        outputs = [gradient, one.density, one.defined]
        check_operations(outputs, one.inputs)
        return Batched(one.inputs, outputs, [self.theta], n_rows=None)

    @cached_property
    def scores(self) -> CompiledWhenUsed:
        """Derivative of each row along a direction v in one pass: d/du (G . v), with G = d/dtheta sum_i u_i l_i."""
        direction, ones = pt.vector("direction", shape=self.theta.type.shape), pt.ones_like(self.rows)
        value = pt.sum(ones * self.rows)
        gradient: Any = pt.grad(value, self.theta, consider_constant=[], disconnected_inputs="ignore")
        along = pt.grad(pt.dot(gradient, direction), ones, disconnected_inputs="ignore")
        return CompiledWhenUsed([self.theta, direction], along, n_rows=self.n_rows)


class ModelPosterior(WeightedPosterior):
    """Row scores, Hessians, prior and mode of a weighted PyMC model.

    The likelihood is that of the weighted observed variables, with data and weights at the creation of the object. All
    other terms of the log density count as prior: priors, Jacobians of transforms, potentials, and observed variables
    that a dict of weights left out. Rows of weight zero are excluded from the likelihood, even if their own density is
    zero. `names` are ``b[0]``, ``sex[Male]`` with the labels of its dims, or ``sigma_log__``, PyMC's name of the
    unconstrained value. `n_weights` is the number of weight vectors for which modes will be needed. With a `table` of
    the rows, all of them with positive weights, it is movable; call `on_rows` before anything else. `factors` of log
    likelihoods are part of the model, and not of `weights`; rows whose factor is zero are excluded, too. `data_of`
    computes data of the model for other rows; without it, they must be functions of single columns.
    """

    def __init__(
        self,
        model: pm.Model,
        n_weights: int = 1,
        table: SyntheticTable | None = None,
        factors: RowFactors = NO_FACTORS,
        data_of: DataOf | None = None,
    ) -> None:
        if not model.free_RVs:
            raise ValueError("the model has no free variables, so there is nothing to differentiate.")
        discrete = [rv.name for rv in model.free_RVs if not rv.dtype.startswith("float")]
        if discrete:
            raise ValueError(
                f"the free variables {', '.join(discrete)} are discrete, and a log density has no derivative with "
                "respect to them. Marginalise them out of the model, for example with pm.Mixture."
            )
        self.weights, self.factors, self.facts = common_weights(model), factors, factors.facts
        self.n_rows = len(self.weights)
        self._left_out = ~(self._own(self.weights) > 0)
        self._of_model = model, [rv.name for rv in weighted_variables(model)], self.n_rows, n_weights
        self._graphs, self._data_of = ModelGraphs(unweight(model, ~self._left_out), *self._of_model[1:], table), data_of
        self.held: MovableRows | None = self._graphs.held
        self._arrays: list[Array] | None = None
        self._point = self._graphs.point
        self.names = tuple(name for rv in model.free_RVs for name in _flat_names(model, rv, self._point))
        self.size = len(self.names)
        self.deterministics = tuple(str(var.name) for var in model.deterministics)
        self.cost = float(_GRAPH_COST * self.n_rows)
        self.coords = {dim: labels for dim, labels in model.coords.items() if labels is not None}
        self.dims = {
            name: tuple(dim or f"{name}_dim_{axis}" for axis, dim in enumerate(dims))
            for name, dims in model.named_vars_to_dims.items()
        }

    def made_of(self, theta: np.ndarray) -> dict[str, np.ndarray]:
        """Return on which parameters the scalars of each deterministic variable depend: bool, shape (..., p).

        A few draws theta (sample, p) are moved along each parameter, and the values before and after compared.
        """
        few, steps = theta[:: max(1, len(theta) // _DRAWS_MOVED)][:_DRAWS_MOVED], np.diag(theta.std(axis=0))
        points = np.concatenate([few, *(few + step for step in steps)])
        found = {}
        for name, values in self.constrain(points).items():
            if name in self.deterministics:
                before, *after = values.reshape(self.size + 1, len(few), *values.shape[1:])
                same = [(own == before) | (np.isnan(own) & np.isnan(before)) for own in after]
                found[name] = np.stack([~one.all(axis=0) for one in same], axis=-1)
        return found

    def _own(self, weights: Array) -> Array:
        """Return weights (..., row) times the factors of the log likelihoods."""
        return np.asarray(weights * self.factors.values)

    def with_weights(self, weights: np.ndarray) -> ModelPosterior:
        """Return the same model with different weights (row,), already scaled; the compiled functions are shared."""
        weights = np.asarray(weights, dtype=np.float64)
        if weights.shape != (self.n_rows,) or not (np.isfinite(weights).all() and (weights >= 0).all()):
            raise ValueError(f"weights must be {self.n_rows} finite numbers, not negative; got shape {weights.shape}.")
        if (own := self._own(weights)[self._left_out]).any():
            raise ValueError(
                f"{np.count_nonzero(own)} rows with weight zero are excluded from the likelihood "
                "and must keep weight zero. Create the ModelPosterior with positive weights."
            )
        other = copy(self)
        other.weights = weights
        return other

    def movable(self, table: SyntheticTable) -> ModelPosterior:
        """Return the same model on the rows of a table, in a form that `on_rows` can evaluate on as many other rows."""
        if not np.all(self.weights > 0):
            raise ValueError(
                "rows of weight zero are excluded from the model, so it cannot be evaluated on other rows. Give all "
                "rows positive weights."
            )
        other = copy(self)
        other._graphs = ModelGraphs(unweight(self._of_model[0]), *self._of_model[1:], table, self._data_of)
        other._left_out = np.zeros(self.n_rows, dtype=bool)
        other.held = other._graphs.held
        return other.on_rows(table, self.weights)

    def on_rows(self, table: SyntheticTable, weights: np.ndarray) -> ModelPosterior:
        """Return the same model, with its prior, on other rows; those with unknown cells get weight zero."""
        if self.held is None or len(table) != self.n_rows:
            raise ValueError(f"the model cannot be evaluated on {len(table)} other rows. Call movable() first.")
        arrays, known = self.held.arrays(table.frame)
        other = self.with_weights(np.where(known, weights, 0.0))
        other._arrays, other.factors = arrays, self.factors.on(table.frame)
        return other

    def served_by(self, other: ModelPosterior | None) -> ModelPosterior:
        """Return this model with the functions of another, which exist already, if both are the same except for data.

        The functions give scores, densities and modes; deterministic variables may be those of the other model.
        """
        if other is None or self.held is None or not self._graphs.equal(other._graphs):
            return self
        found = copy(self)
        found._graphs = other._graphs
        found._graphs.restart()
        found.held = replace(self.held, shared=other._graphs.held.shared)
        return found

    @property
    def graphs(self) -> ModelGraphs:
        """The graphs of the model, with the rows of this object loaded."""
        if self._graphs.loaded is not self._arrays and self.held is not None and self._arrays is not None:
            self.held.put(self._arrays)
            self._graphs.loaded = self._arrays
        return self._graphs

    def start(self) -> Array:
        """Return the model's initial point, shape (p,)."""
        return np.concatenate([np.ravel(value) for value in self._point.values()])

    def unconstrain(self, posterior: xr.Dataset) -> Array:
        """Map posterior draws to unconstrained space, shape (sample, p), draws of the first chain first."""
        model, draws, outputs = self._graphs.model, [], list[Any]()
        values = {rv: rv.type(name=f"{rv.name}_value") for rv in model.free_RVs}
        for rv, value in values.items():
            own = posterior[rv.name].transpose("chain", "draw", ...).to_numpy()
            draws.append(own.reshape(-1, *own.shape[2:]).astype(rv.dtype))
            transform = model.rvs_to_transforms[rv]
            outputs.append(value if transform is None else transform.forward(value, *rv.owner.inputs))
        # A transform may depend on other free variables (bounds); they are replaced by their values, too.
        outputs = [cast(Any, output).ravel() for output in graph_replace(outputs, values, strict=False)]
        return Batched(list(values.values()), [pt.concatenate(outputs)], n_rows=0)(*draws)[0]

    def constrain(self, theta: np.ndarray) -> dict[str, Array]:
        """Map unconstrained draws (sample, p) to variables and deterministics by name, each of shape (sample, ...)."""
        values = self._graphs.constrained(self._checked(theta, 2))
        return {var.name: own for var, own in zip(self._graphs.variables, values, strict=True)}

    def scores(self, theta: np.ndarray) -> Array:
        """Return the gradient of each row's unweighted log likelihood at theta (p,): (row, p), zero for weight zero."""
        return np.stack([self._scores_along(theta, direction) for direction in np.eye(self.size)], axis=1)

    def _scores_along(self, theta: np.ndarray, direction: np.ndarray) -> Array:
        return np.asarray(self.graphs.scores(self._checked(theta), direction) * self.factors.values)

    def log_likelihoods(self, theta: np.ndarray) -> Array:
        """Return weighted log likelihoods, shape (sample,), at points (sample, p)."""
        return self._log_likelihoods_under(self.weights[None], theta)[0]

    def _log_likelihoods_under(self, weights: Array, theta: Array) -> Array:
        """Return weighted log likelihoods (draw, sample) under weight vectors (draw, row): rows are evaluated once."""
        weights = self._own(weights)
        found, used = np.empty((len(weights), len(theta))), np.flatnonzero((weights > 0).any(axis=0))
        own, whole = weights[:, used], len(used) == self.n_rows
        for block in row_blocks(len(theta), max(1, BLOCK // self.n_rows)):
            [rows] = self.graphs.row_values(self._checked(theta[block], 2))
            rows = rows if whole else rows[:, used]
            if np.all(own > 0):
                found[:, block] = own @ rows.T
            else:  # rows with weight zero may have density zero
                found[:, block] = [rows[:, one > 0] @ one[one > 0] for one in own]
        return found

    def log_densities(self, theta: np.ndarray) -> Array:
        """Return the weighted log density, shape (sample,), at points (sample, p), Jacobians included."""
        if len(theta) == 1:  # by the functions that a search for the mode needs anyway
            return self.graphs.likelihood.values(
                self._checked(theta, 2), self._own(self.weights)
            ) + self.graphs.prior.values(theta)
        return self.log_densities_under(self.weights[None], theta)[0]

    def log_densities_under(self, weights: Array, theta: Array) -> Array:
        """Return log densities (draw, sample) at points (sample, p) under weight vectors (draw, row)."""
        return self._log_likelihoods_under(weights, theta) + self.graphs.prior.values(theta)

    def likelihood(self, theta: np.ndarray) -> tuple[Array, Array]:
        """Return gradient (p,) and Hessian (p, p), at theta (p,), of the weighted log likelihood sum_i w_i l_i."""
        return self.graphs.likelihood.derivatives(self._checked(theta), self._own(self.weights))

    def mean_curvature(self, theta: np.ndarray) -> Array:
        """Return minus the weighted mean of the Hessians of the log likelihoods of rows (p, p), at theta (p,)."""
        return -self.likelihood(theta)[1] / float(self.weights.sum())

    def prior(self, theta: np.ndarray) -> tuple[Array, Array]:
        """Return gradient (p,) and Hessian (p, p), at theta (p,), of the terms outside the weighted likelihood."""
        return self.graphs.prior.derivatives(self._checked(theta))

    def likelihood_gradient(self, theta: np.ndarray, weights: Array | None = None) -> Array:
        """Return the gradient of the weighted log likelihood, shape (p,), at theta (p,)."""
        weights = self._own(self.weights if weights is None else weights)
        return np.array(self.graphs.likelihood.along(self._checked(theta), weights, np.zeros(self.size))[1])

    def gradient(self, theta: np.ndarray) -> tuple[float, Array]:
        """Return the weighted log density at theta (p,) and its gradient (p,), by compiled functions."""
        return self.graphs.both.gradient(theta, self._own(self.weights))

    def gradients_at(self, rows: np.ndarray, shares: np.ndarray, thetas: np.ndarray) -> Array:
        """Return gradients (draw, p) of mean log likelihoods at thetas (draw, p), for shares (draw, n) of rows."""
        gradients, weights = np.empty_like(thetas), np.zeros(self.n_rows)
        for index, (share, theta) in enumerate(zip(shares, thetas, strict=True)):
            weights[rows] = share
            gradients[index] = self.likelihood_gradient(theta, weights)
        return gradients

    def mode(self, start: np.ndarray | None = None, free: np.ndarray | None = None) -> Mode:
        """Maximise the weighted log density by damped Newton steps, from `start` (p,) or the model's initial point.

        `free` (p,) marks the parameters that move, all by default. The Hessians are those of the last step, a millionth
        of a posterior standard deviation away from the mode, or farther if rounding errors are larger.
        """
        hessians: list[np.ndarray] = []
        start = self.start() if start is None else self._checked(start)
        free = np.ones(self.size, dtype=bool) if free is None else free

        def whole(part: np.ndarray) -> np.ndarray:
            theta = start.copy()
            theta[free] = part
            return theta

        def derivatives(part: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            gradient, hessian = self.likelihood(whole(part))
            prior_gradient, prior_hessian = self.prior(whole(part))
            hessians[:] = hessian, prior_hessian
            return (gradient + prior_gradient)[free], (hessian + prior_hessian)[np.ix_(free, free)]

        found = maximise(lambda part: self.log_density(whole(part)), derivatives, start[free])
        return Mode(whole(found), -(hessians[0] + hessians[1]), -hessians[0])

    def in_likelihood(self, theta: np.ndarray) -> np.ndarray:
        """Return which parameters the likelihood depends on, from its derivatives at theta (p,); bool, shape (p,)."""
        gradient, hessian = self.likelihood(theta)
        return (gradient != 0) | (hessian != 0).any(axis=0)

    def _checked(self, theta: np.ndarray, ndim: int = 1) -> Array:
        theta = np.asarray(theta, dtype=np.float64)
        if theta.ndim != ndim or theta.shape[-1] != self.size:
            expected = f"({self.size},)" if ndim == 1 else f"(sample, {self.size})"
            raise ValueError(f"theta must have shape {expected}; got {theta.shape}.")
        return theta


def _flat_names(model: pm.Model, rv: Any, point: dict[str, np.ndarray]) -> list[str]:
    """Return names for the entries of a free variable's unconstrained value, in C order."""
    value = model.rvs_to_values[rv]
    shape = point[value.name].shape
    dims = model.named_vars_to_dims.get(rv.name) or (None,) * len(shape)
    labels = []
    for dim, length in zip(dims, shape, strict=False):
        coords = model.coords.get(dim) or ()
        # Some transforms (simplex, ordered) change the length of an axis, so its labels do not apply.
        labels.append(list(coords) if len(coords) == length else list(range(length)))
    indices = [", ".join(str(labels[axis][i]) for axis, i in enumerate(index)) for index in np.ndindex(*shape)]
    return [f"{value.name}[{index}]" if shape else value.name for index in indices]
