"""Weights in the graph of a model: the identity Op that applies them to an observed variable, and their checks.

As with PyMC's own minibatch wrapper (``pymc.variational.minibatch_rv``), the node remains a random variable, so
predictive sampling, log likelihoods, clones and all samplers keep working.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytensor.tensor as pt
from pymc.distributions.custom import CustomDistRV
from pymc.distributions.distribution import support_point
from pymc.distributions.mixture import _BaseMixtureRV
from pymc.logprob.abstract import MeasurableOp, _logprob
from pymc.logprob.basic import logp
from pymc.pytensorf import floatX
from pytensor.gradient import disconnected_grad
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.op import Op
from pytensor.graph.replace import graph_replace
from pytensor.graph.rewriting.basic import node_rewriter
from pytensor.graph.traversal import ancestors
from pytensor.raise_op import CheckAndRaise
from pytensor.tensor.exceptions import ShapeError
from pytensor.tensor.math import Sum
from pytensor.tensor.rewriting.basic import register_specialize

#: Messages of the checks, which run at every evaluation.
POSITIVE = (
    "likelihood weights must be positive and finite. If you set weights of zero later, create the model with "
    "reweight(..., allow_zero=True)."
)
NOT_NEGATIVE = (
    "likelihood weights must be finite and not negative, and at least one must be positive. Check the weights."
)
LENGTH = "there must be one likelihood weight per row. Set data and weights of equal length in the same pm.set_data."


class CheckWeights(CheckAndRaise):
    """Return weights unchanged, or raise a ValueError with this message if a condition does not hold.

    Models with ``check_bounds=False`` keep it; backends without errors (JAX) skip it. What is known of the weights that
    pass, their `length` or the `total` of all, saves a second check of the length and a second sum.
    """

    __props__: Any = ("msg", "exc_type", "length", "total")

    def __init__(self, msg: str, *, length: int | None = None, total: float | None = None):
        super().__init__(ValueError, msg)
        self.length, self.total = length, total

    def make_node(self, *inputs: Any) -> Apply:
        """Take a vector and boolean scalars."""
        node = super().make_node(*inputs)
        if self.length is None:
            return node
        return Apply(self, node.inputs, [pt.vector(shape=(self.length,), dtype=node.inputs[0].type.dtype)])

    def infer_shape(self, *args: Any) -> list[Any]:
        """Return the shape of the weights (pytensor 2 also passes the graph, pytensor 3 does not)."""
        if self.msg == LENGTH and args[-1][0]:
            # otherwise PyTensor's own checks of shapes could run before this one
            raise ShapeError("the length is known only after it has been checked.")
        return [args[-1][0]]


def checked_values(weights: Any, guard: bool, *, part: Any | None = None, total: float | None = None) -> Any:
    """Return weights (row,) that raise a ValueError at evaluation if they are not allowed; `guard` allows zeros.

    They are scaled so that the sum over all rows is `total`. `part` are the weights of some of the rows, which are
    returned instead of all.
    """
    found = pt.sum(pt.switch((weights >= 0) if guard else (weights > 0), weights, np.nan))
    # a NaN fails either comparison
    conditions = [found < np.inf, found > 0] if guard else [found < np.inf]
    values = weights if part is None else part
    if total is not None:
        # Before the check, which PyTensor does not fuse: a multiplication per row, instead of one for each use of the
        # weights in a density and its gradient.
        values = values * floatX(total / found)
    check = CheckWeights(NOT_NEGATIVE if guard else POSITIVE, total=total if part is None else None)
    return check(values, *conditions)


def checked_length(weights: Any, *lengths: Any) -> Any:
    """Return weights that raise a ValueError at evaluation unless their number is each of the lengths.

    A length is a number or symbolic.
    """
    static = weights.type.shape[0]
    lengths = tuple(length for length in lengths if not (isinstance(length, int) and length == static))
    if not lengths:
        return weights
    known = next((length for length in lengths if isinstance(length, int)), static)
    return CheckWeights(LENGTH, length=known)(weights, *(pt.eq(weights.shape[0], length) for length in lengths))


@register_specialize
@node_rewriter([Sum])
def local_sum_of_checked(fgraph: Any, node: Apply) -> list[Variable] | None:
    """Replace the sum of checked weights, which a gradient may contain, by the total to which they are scaled."""
    weights, checks = node.inputs[0], []
    while weights.owner is not None and isinstance(weights.owner.op, CheckWeights):
        checks.append(weights.owner)
        weights = weights.owner.inputs[0]
    total = next((check.op.total for check in checks if check.op.total is not None), None)
    if total is None or node.outputs[0].type.ndim:
        return None
    found: Any = pt.constant(total, dtype=node.outputs[0].type.dtype)
    for check in checks:
        found = CheckWeights(check.op.msg)(found, *check.inputs[1:])
    return [found]


class WeightedRandomVariable(MeasurableOp, Op):
    """Random variable whose log density is ``weights`` times that of the variable it wraps.

    `guard` says whether rows of weight zero are excluded from the log density and its gradient even if their own
    density is zero. It costs a second pass over the rows and prevents constant folding of data.

    Draws are not changed, so the Op is removed when a function is compiled, but only at the ``specialize`` stage: PyMC
    applies ``canonicalize`` rewrites while it derives densities, and a removal there would silently lose the weights.
    """

    __props__ = ("guard",)
    view_map = {0: [0]}
    _print_name = ("Weighted", "\\operatorname{Weighted}")

    def __init__(self, guard: bool = False):
        self.guard = guard

    def make_node(self, *inputs: Any) -> Apply:
        """Wrap a tensor variable, shape (row, ...), with weights of shape (row,)."""
        rv, weights = (pt.as_tensor_variable(var) for var in inputs)
        return Apply(self, [rv, weights], [rv.type()])

    def infer_shape(self, *args: Any) -> list[Any]:
        """Return the shape of the wrapped variable (pytensor 2 also passes the graph, pytensor 3 does not)."""
        return [args[-1][0]]

    def do_constant_folding(self, fgraph: Any, node: Apply) -> bool:
        """Tell PyTensor that the node is never a constant."""
        return False

    def perform(self, node: Apply, inputs: Any, output_storage: Any, params: Any = None) -> None:
        """Return the draws unchanged."""
        output_storage[0][0] = inputs[0]


@register_specialize
@node_rewriter([WeightedRandomVariable])
def local_remove_weighted_rv(fgraph: Any, node: Apply) -> list[Variable]:
    """Replace the identity by its input, at the ``specialize`` stage."""
    return list(node.inputs[:1])


@_logprob.register(WeightedRandomVariable)
def weighted_rv_logprob(op: WeightedRandomVariable, values: Any, rv: Any, weights: Any, **kwargs: Any) -> Any:
    """Return the weighted elementwise log density, shape (row, ...)."""
    [value] = values
    # The graph that calls this checks for stray random variables itself, when all variables have values.
    kwargs = {**kwargs, "warn_rvs": False}
    if not op.guard:
        terms = logp(rv, value, **kwargs)
        return _by_row(_per_row(weights, value, terms), terms) * terms
    weights = _per_row(weights, value)
    keep = weights > 0
    # Zero times an infinite gradient is NaN, so the value itself must have positive density.
    value = pt.switch(_by_row(keep, value), value, disconnected_grad(_safe_value(rv, value, weights)))
    terms = logp(rv, value, **kwargs)
    return pt.switch(_by_row(keep, terms), _by_row(_per_row(weights, terms), terms) * terms, 0.0)


def _per_row(weights: Any, *arrays: Any) -> Any:
    """Return weights that raise a ValueError at evaluation unless they are one per row of the arrays."""
    return checked_length(weights, *(array.type.shape[0] or array.shape[0] for array in arrays))


def _by_row(vector: Any, array: Any) -> Any:
    """Give a vector over rows trailing axes, so that it multiplies an array (row, ...)."""
    return vector.dimshuffle(0, *["x"] * (array.type.ndim - 1))


def _safe_value(rv: Any, value: Any, weights: Any) -> Any:
    """Return a value for rows of weight zero that has positive density, as far as one is known.

    It is the support point of the row's distribution; for a mixture, of its first component, because that of the whole
    may lie between components. Custom densities and distributions without a support point get the value of the row with
    the largest weight. The graph cannot check the density there: zero times infinity is the NaN that must be avoided.
    """
    largest = value[pt.argmax(weights)][None]
    if isinstance(rv.owner.op, CustomDistRV):
        return largest
    try:
        if isinstance(rv.owner.op, _BaseMixtureRV):
            _, _, *components = rv.owner.inputs
            point = support_point(components[0])
            if len(components) == 1:  # its components are along an axis
                point = pt.take(point, 0, axis=-components[0].owner.op.ndim_supp - 1)
            point = pt.broadcast_to(point, rv.shape)
        else:
            point = support_point(rv)
        # Support points may read the shape of their variable, which is the shape of the value.
        safe: Any = graph_replace([point], {rv: value}, strict=False)[0]
    except NotImplementedError:
        return largest
    random = any(var.owner is not None and isinstance(var.owner.op, MeasurableOp) for var in ancestors([safe]))
    return largest if random else safe.astype(value.dtype)
