"""The identity Op that gives each row of an observed variable its weight in the log density.

It works like PyMC's own minibatch wrapper (``pymc.variational.minibatch_rv``): the node remains a random variable, so
predictive sampling, log likelihoods, clones and all samplers keep working. Only its log density differs from that of
the wrapped variable.
"""

from __future__ import annotations

from typing import Any

import pytensor.tensor as pt
from pymc.distributions.custom import CustomDistRV
from pymc.distributions.distribution import support_point
from pymc.distributions.mixture import _BaseMixtureRV
from pymc.logprob.abstract import MeasurableOp, _logprob
from pymc.logprob.basic import logp
from pytensor.gradient import disconnected_grad
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.op import Op
from pytensor.graph.replace import graph_replace
from pytensor.graph.rewriting.basic import node_rewriter
from pytensor.graph.traversal import ancestors
from pytensor.tensor.rewriting.basic import register_specialize

from iwbayes.analyst.weighting.weight_checks import checked_length


class WeightedRandomVariable(MeasurableOp, Op):
    """Random variable whose log density is ``weights`` times that of the variable it wraps.

    `guard` says whether rows of weight zero are excluded from the log density and its gradient even if their own
    density is zero. It costs a second pass over the rows and prevents constant folding of data, so it is used only if a
    weight is zero or may become zero.

    Inputs are the variable, with its rows on the first axis, and the weights, shape (row,). Draws are not changed, so
    the Op is removed when a function is compiled, but only at the ``specialize`` stage. PyMC applies ``canonicalize``
    rewrites while it derives densities, and a removal there would silently lose the weights.
    """

    __props__ = ("guard",)
    view_map = {0: [0]}
    _print_name = ("Weighted", "\\operatorname{Weighted}")

    def __init__(self, guard: bool = False):
        self.guard = guard

    def make_node(self, *inputs: Any) -> Apply:
        """Wrap a tensor variable, shape (row, ...), with weights of shape (row,)."""
        rv, weights = (pt.as_tensor_variable(var) for var in inputs)
        if rv.type.ndim < 1 or weights.type.ndim != 1:
            raise ValueError(
                "a weighted variable needs a row axis and one-dimensional weights; "
                f"got {rv.type.ndim} and {weights.type.ndim} dimensions."
            )
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
        weights = checked_length(weights, value.shape[0], terms.shape[0])
        return _by_row(weights, terms.type.ndim) * terms
    weights = checked_length(weights, value.shape[0])
    keep = weights > 0
    # Zero times an infinite gradient is NaN, so the value itself must have positive density.
    safe = disconnected_grad(_safe_value(rv, value, weights))
    value = pt.switch(_by_row(keep, value.type.ndim), value, safe)
    terms = logp(rv, value, **kwargs)
    weights = checked_length(weights, terms.shape[0])
    return pt.switch(_by_row(keep, terms.type.ndim), _by_row(weights, terms.type.ndim) * terms, 0.0)


def _by_row(vector: Any, ndim: int) -> Any:
    """Give a vector over rows trailing axes, so that it multiplies an array (row, ...) of `ndim` dimensions."""
    return vector.dimshuffle(0, *["x"] * (ndim - 1))


def _safe_value(rv: Any, value: Any, weights: Any) -> Any:
    """Return a value for rows of weight zero that has positive density, as far as one is known.

    It is the support point of the row's distribution. The support point of a mixture may lie between its components, so
    the support point of the first component is used. Custom densities have no point that is certain to be in their
    support. They, and distributions without a support point, get the value of the row with the largest weight.

    The graph does not check that the density there is positive. The comparison would have a gradient of zero, and zero
    times infinity is the NaN that must be avoided.
    """
    point = None if isinstance(rv.owner.op, CustomDistRV) else _support_point(rv, value)
    return value[pt.argmax(weights)][None] if point is None else point


def _support_point(rv: Any, value: Any) -> Any | None:
    """Return the support point of each row's distribution, or of a mixture's first component; None without one."""
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
        return None
    if any(var.owner is not None and isinstance(var.owner.op, MeasurableOp) for var in ancestors([safe])):
        return None
    return safe.astype(value.dtype)
