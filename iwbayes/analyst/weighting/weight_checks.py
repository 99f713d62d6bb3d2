"""Checks of likelihood weights inside a graph, and the sum of weights: one pass over the rows per evaluation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytensor.scalar as ps
import pytensor.tensor as pt
from pymc.pytensorf import floatX
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.rewriting.basic import node_rewriter
from pytensor.link.c.op import COp
from pytensor.raise_op import Assert, CheckAndRaise
from pytensor.tensor.basic import get_scalar_constant_value, get_underlying_scalar_constant_value, switch
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.exceptions import NotScalarConstantError, ShapeError
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

_FLOATS = ("float32", "float64")


class CheckWeights(Assert):
    """Return weights unchanged, or raise a ValueError if a condition does not hold.

    For a check of the values, `guard` says whether zeros are allowed. A check of the length may have a static `length`.
    PyMC drops its own parameter checks from models with ``check_bounds=False``; this check is kept. It is a kind of
    Assert, so backends without errors (JAX) skip it.
    """

    __props__: Any = ("msg", "exc_type", "length", "guard")

    def __init__(self, msg: str = POSITIVE, length: int | None = None, guard: bool | None = None):
        CheckAndRaise.__init__(self, ValueError, msg)
        self.length, self.guard = length, guard

    def make_node(self, *inputs: Any) -> Apply:
        """Take a vector and boolean scalars."""
        node = super().make_node(*inputs)
        if self.length is None:
            return node
        return Apply(self, node.inputs, [pt.vector(shape=(self.length,), dtype=node.inputs[0].type.dtype)])

    def infer_shape(self, *args: Any) -> list[Any]:
        """Return the shape of the weights (pytensor 2 also passes the graph, pytensor 3 does not)."""
        if self.guard is None and args[-1][0]:
            # otherwise PyTensor's own checks of shapes could run before this one
            raise ShapeError("the length is known only after it has been checked.")
        return [args[-1][0]]


def total_weight(weights: Any, guard: bool) -> Any:
    """Sum and check weights (row,) in one pass: NaN if one is negative or NaN, or zero without the guard."""
    return pt.sum(pt.switch((weights >= 0) if guard else (weights > 0), weights, np.nan))


def checked_values(weights: Any, guard: bool, *, part: Any | None = None, total: float | None = None) -> Any:
    """Return weights (row,) that raise a ValueError at evaluation if they are not allowed; `guard` allows zeros.

    They are scaled so that the sum over all rows is `total`. If `part`, the weights of some of the rows, is given, it
    is returned instead of all weights.
    """
    found = total_weight(weights, guard)
    # a NaN fails either comparison
    conditions = [found < np.inf, found > 0] if guard else [found < np.inf]
    check = CheckWeights(NOT_NEGATIVE if guard else POSITIVE, guard=guard)
    values = weights if part is None else part
    if total is not None:
        # PyTensor does not fuse checks. So there is a single division, and one multiplication per row, instead of one
        # for each use of the weights in a density and its gradient.
        values = values * check(floatX(total) / found, *conditions)
    return check(values, *conditions)


def checked_length(weights: Any, *lengths: Any) -> Any:
    """Return weights that raise a ValueError at evaluation if their number differs from one of the lengths."""
    static = {known for length in lengths if (known := _static(length)) is not None}
    if static == {weights.type.shape[0]}:
        return weights
    conditions = [pt.eq(weights.shape[0], length) for length in lengths]
    return CheckWeights(LENGTH, length=min(static, default=None))(weights, *conditions)


def _static(length: Any) -> int | None:
    """Return the length if it is known before evaluation; None otherwise."""
    if isinstance(length, int | np.integer):
        return int(length)
    try:
        return int(get_scalar_constant_value(length))
    except NotScalarConstantError:
        return None


@register_specialize
@node_rewriter([Sum])
def local_sum_of_checked(fgraph: Any, node: Apply) -> list[Variable] | None:
    """Reuse the checked sum from `total_weight`, which a log density already contains, for a sum of checked weights.

    This saves 6 to 8 % of the gradient of a gaussian model with 10,000 rows or more.
    """
    conditions: list[Any] = []
    weights, guard = node.inputs[0], None
    while weights.owner is not None and isinstance(weights.owner.op, CheckWeights):
        check = weights.owner.op
        conditions.append((check, weights.owner.inputs[1:]))
        guard = check.guard if guard is None else guard
        weights = weights.owner.inputs[0]
    if guard is None or weights.type.ndim != 1:
        return None
    scales: list[Any] = []
    if weights.owner is not None and isinstance(weights.owner.op, Elemwise) and weights.owner.op.scalar_op == ps.mul:
        scales = [var for var in weights.owner.inputs if var.type.broadcastable == (True,)]
        [weights, *others] = [var for var in weights.owner.inputs if var not in scales]
        if others:
            return None
    total = total_weight(weights, guard)
    for scale in scales:
        total = total * scale[0]
    total = total.astype(node.outputs[0].type.dtype)
    for check, conds in reversed(conditions):
        total = CheckWeights(check.msg)(total, *conds)
    return [total]


class TotalWeight(COp):
    """`total_weight` in C: the sum of a vector, NaN if an entry is not allowed.

    Loops that PyTensor generates add one entry per step. This one keeps several sums, which a compiler turns into
    vector instructions, and is about four times as fast. Without it and `local_sum_of_checked`, gradients of gaussian
    models took 1.12 to 1.18 times as long as unweighted ones; with them 1.07 to 1.14
    (``benchmarks/speed.py --parts gradient``).
    """

    __props__ = ("guard",)

    def __init__(self, guard: bool):
        self.guard = guard

    def make_node(self, *inputs: Any) -> Apply:
        """Take a vector of floats."""
        weights = pt.as_tensor_variable(inputs[0])
        return Apply(self, [weights], [pt.scalar(dtype=weights.type.dtype)])

    def infer_shape(self, *args: Any) -> list[Any]:
        """Return the shape of a scalar."""
        return [()]

    def perform(self, node: Apply, inputs: Any, output_storage: Any, params: Any = None) -> None:
        """Compute the sum with numpy, if there is no compiler."""
        [weights] = inputs
        allowed = weights >= 0 if self.guard else weights > 0
        output_storage[0][0] = np.asarray(np.where(allowed, weights, np.nan).sum(), dtype=weights.dtype)

    def c_code(self, node: Apply, name: str, inputs: Any, outputs: Any, sub: Any) -> str:
        """Add the entries in one pass with eight sums."""
        [weights], [total] = inputs, outputs
        kind = node.inputs[0].type.dtype_specs()[1]
        relation = ">=" if self.guard else ">"
        return f"""
        const npy_intp n = PyArray_DIMS({weights})[0], step = PyArray_STRIDES({weights})[0];
        const char* at = PyArray_BYTES({weights});
        double sums[8] = {{0, 0, 0, 0, 0, 0, 0, 0}};
        npy_intp i = 0;
        if (step == sizeof({kind})) {{
            const {kind}* values = (const {kind}*) at;
            for (; i + 8 <= n; i += 8)
                for (int j = 0; j < 8; ++j)
                    sums[j] += values[i + j] {relation} 0 ? (double) values[i + j] : NPY_NAN;
        }}
        double sum = ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
        for (; i < n; ++i) {{
            const double value = *(const {kind}*) (at + i * step);
            sum += value {relation} 0 ? value : NPY_NAN;
        }}
        if (!{total}) {{
            {total} = (PyArrayObject*) PyArray_EMPTY(0, NULL, {node.outputs[0].type.dtype_specs()[2]}, 0);
            if (!{total}) {{ {sub["fail"]} }}
        }}
        *({kind}*) PyArray_DATA({total}) = ({kind}) sum;
        """

    def c_code_cache_version(self) -> tuple[int, ...]:
        """Version of the code."""
        return (1,)


@node_rewriter([Sum])
def local_total_weight(fgraph: Any, node: Apply) -> list[Variable] | None:
    """Replace the graph of `total_weight`, or an equal one, by its Op in C."""
    [chosen] = node.inputs
    if chosen.owner is None or chosen.owner.op != switch or chosen.type.broadcastable != (False,):
        return None
    allowed, weights, otherwise = chosen.owner.inputs
    compared = allowed.owner
    if compared is None or not isinstance(compared.op, Elemwise) or compared.inputs[0] is not weights:
        return None
    relation, threshold = compared.op.scalar_op, compared.inputs[1]
    one_type = weights.type.dtype == chosen.type.dtype == node.outputs[0].type.dtype
    shapes = [var.type.broadcastable for var in (weights, threshold, otherwise)]
    if not isinstance(relation, ps.GT | ps.GE) or shapes != [(False,), (True,), (True,)]:
        return None
    if not one_type or weights.type.dtype not in _FLOATS:
        return None
    try:
        zero, nan = (get_underlying_scalar_constant_value(var) for var in (threshold, otherwise))
    except NotScalarConstantError:
        return None
    total: Any = TotalWeight(isinstance(relation, ps.GE))(weights)
    return [total] if zero == 0 and np.isnan(nan) else None


register_specialize(local_total_weight, "cxx_only")
