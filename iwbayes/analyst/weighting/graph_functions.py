"""Functions of PyTensor graphs: evaluated in Python, or compiled if they are called often enough."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.compile.mode import Mode, get_default_mode, optdb
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.replace import vectorize_graph
from pytensor.graph.rewriting.basic import node_rewriter
from pytensor.scalar.basic import GE, LE, Switch
from pytensor.scalar.math import sigmoid
from pytensor.tensor.elemwise import Elemwise

_INTERPRETER: Any = Mode(linker="py", optimizer=cast(Any, None))


# searching for operations to fuse or do in place takes half of the time of making a function, and saves row passes
_FOR_ROWS = ("fusion", "inplace", "BlasOpt")
_STABLE_INTERPRETER: Any = Mode(linker="py", optimizer="fast_run").excluding("specialize", *_FOR_ROWS)
# The density of a parameter that is out of range, such as a scale that underflows to 0, is 0, as in PyMC.
_OUT_OF_RANGE = "local_check_parameter_to_ninf_switch"


@node_rewriter([Elemwise])
def local_switch_of_alike(fgraph: Any, node: Apply) -> list[Variable] | None:
    """Replace switch(c, f(a), f(b)), which evaluates both branches, by f(switch(c, a, b)).

    This halves the time of a Bernoulli log likelihood, log p or log (1 - p) by the outcome.
    """
    if not isinstance(cast(Any, node.op).scalar_op, Switch):
        return None
    condition, *branches = node.inputs
    if any(branch.owner is None or len(fgraph.clients[branch]) > 1 for branch in branches):
        return None
    [(one, a), (other, b)] = [(cast(Apply, branch.owner).op, cast(Apply, branch.owner).inputs) for branch in branches]
    if not (isinstance(one, Elemwise) and one == other and len(a) == len(b) == 1):
        return None
    if not a[0].type.broadcastable == b[0].type.broadcastable == node.outputs[0].type.broadcastable:
        return None
    return [cast(Variable, one(pt.switch(cast(Any, condition), a[0], b[0])))]


@node_rewriter([Elemwise])
def local_sigmoid_within_bounds(fgraph: Any, node: Apply) -> list[Variable] | None:
    """Replace the checks that a sigmoid is at least 0 and at most 1, made by a Bernoulli density, by True.

    The sigmoid of NaN is not within the bounds, but then the density is NaN as well. This saves a fourth of the time of
    a log likelihood.
    """
    bounds = {GE: 0, LE: 1}
    if (bound := bounds.get(type(cast(Any, node.op).scalar_op))) is None:
        return None
    share, limit = node.inputs
    if share.owner is None or not isinstance(share.owner.op, Elemwise) or share.owner.op.scalar_op != sigmoid:
        return None
    if not isinstance(limit, Constant) or np.any(limit.data != bound):
        return None
    return [cast(Variable, pt.ones_like(share, dtype="bool"))]


# without them, gradients of a logistic regression of 20,000 rows take 1.3 times as long, and densities 1.5 to 1.8 times
for _rewrite in (local_switch_of_alike, local_sigmoid_within_bounds):
    cast(Any, optdb["specialize"]).register(str(_rewrite), _rewrite, "iwbayes")


# Rows that are looped over in Python (about two seconds) before a graph is compiled, and the cost of a call in rows.
_WORK_IN_PYTHON, _ROWS_OF_A_CALL = 40_000, 160


# With fewer calls than these, a second graph does not pay.
_FEWEST_CALLS = 20


def interpreted(inputs: list[Any], outputs: Any, mode: Mode = _INTERPRETER) -> Any:
    """Return a function of a small graph that is evaluated in Python, because compiling it would take longer."""
    # without a compiler, graphs inside Ops are interpreted as well
    with pytensor.config.change_flags(cxx=""):
        return pytensor.function(inputs, outputs, mode=mode, on_unused_input="ignore")


class CompiledWhenUsed:
    """Function of a graph that is evaluated in Python at first, and compiled once it has been called often enough.

    Compiling the derivatives of a model takes seconds to minutes. A few Newton steps in Python take less time if there
    are few rows, or none, as in a prior. The graph is made numerically stable in both cases.

    A call loops over `n_rows` rows, for some operations in Python; None compiles at the first call. The first call also
    compiles if `n_calls`, the number of calls that are certain to come, makes this worthwhile.
    """

    def __init__(self, inputs: list[Any], outputs: Any, *, n_rows: int | None, n_calls: int = 0) -> None:
        self._graph = inputs, outputs
        calls = 0 if n_rows is None else _WORK_IN_PYTHON // (_ROWS_OF_A_CALL + n_rows)
        self._calls, self._calls_in_python = 0, calls if calls >= max(_FEWEST_CALLS, n_calls) else 0
        self._excluded = () if n_rows != 0 else _FOR_ROWS
        self._function: Any = None

    def __call__(self, *values: np.ndarray) -> Any:
        """Evaluate the outputs."""
        if self._calls == self._calls_in_python:
            mode = get_default_mode().including("iwbayes", _OUT_OF_RANGE).excluding(*self._excluded)
            self._function = pytensor.function(*self._graph, mode=mode, on_unused_input="ignore")
        elif self._calls == 0:
            self._function = interpreted(*self._graph, _STABLE_INTERPRETER.including(_OUT_OF_RANGE))
        self._calls += 1
        return self._function(*values)


def evaluate(variable: Variable) -> np.ndarray:
    """Return the value of a variable that depends on constants and data only."""
    if isinstance(variable, Constant):
        return np.asarray(variable.data)
    if hasattr(variable, "get_value"):
        return np.asarray(variable.get_value(borrow=True))
    return np.asarray(interpreted([], variable)())


def batched(inputs: list[Any], outputs: Any, *, over: list[Any], n_rows: int) -> CompiledWhenUsed:
    """Return the function of a graph that takes many values of the inputs `over` at once, along a first axis.

    Outputs also have that axis, except for outputs that do not depend on `over`.
    """
    many = {var: pt.tensor(shape=(None, *var.type.shape), dtype=var.type.dtype) for var in over}
    return CompiledWhenUsed([many.get(var, var) for var in inputs], vectorize_graph(outputs, many), n_rows=n_rows)


def value_gradient_curvature(
    value: Any, inputs: list[Any], *, n_rows: int, n_calls: int
) -> Callable[..., list[np.ndarray]]:
    """Return the function of a scalar, its gradient, and its Hessian times a direction, which is the last argument."""
    theta = inputs[0]
    direction = pt.vector("direction", shape=theta.type.shape)
    gradient: Any = pt.grad(value, theta, disconnected_inputs="ignore")
    product: Any = pt.grad(pt.dot(gradient, direction), theta, disconnected_inputs="ignore")
    return CompiledWhenUsed([*inputs, direction], [value, gradient, product], n_rows=n_rows, n_calls=n_calls)


def by_columns(
    function: Callable[..., list[np.ndarray]], theta: np.ndarray, *inputs: np.ndarray
) -> tuple[float, np.ndarray, np.ndarray]:
    """Return value, gradient (p,) and symmetrised Hessian (p, p) from Hessian-vector products.

    The products are computed one at a time, because graphs of derivatives in many directions can take minutes to build.
    """
    columns = []
    for direction in np.eye(len(theta)):
        value, gradient, column = function(theta, *inputs, direction)
        columns.append(np.array(column))
    hessian = np.stack(columns, axis=1)
    return float(value), np.array(gradient), (hessian + hessian.T) / 2
