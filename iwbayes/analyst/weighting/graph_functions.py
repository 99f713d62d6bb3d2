"""Functions of PyTensor graphs, evaluated in Python or compiled if they are called often, and graphs of functions."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, cast

import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.compile.mode import Mode, get_default_mode, optdb
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.op import Op
from pytensor.graph.replace import vectorize_graph
from pytensor.graph.rewriting.basic import PatternNodeRewriter, node_rewriter
from pytensor.graph.utils import MethodNotDefined
from pytensor.scalar.math import TriGamma
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.elemwise import Elemwise

from iwbayes.utils.arrays import Array, row_blocks, symmetric

_INTERPRETER: Any = Mode(linker="py", optimizer=cast(Any, None))
# searching for operations to fuse or do in place takes half of the time of making a function, and saves row passes
_FOR_ROWS = ("fusion", "inplace", "BlasOpt")
_STABLE_INTERPRETER: Any = Mode(linker="py", optimizer="fast_run").excluding("specialize", *_FOR_ROWS)
# The density of a parameter that is out of range, such as a scale that underflows to 0, is 0, as in PyMC.
_OUT_OF_RANGE = "local_check_parameter_to_ninf_switch"
# Rows that are looped over in Python (about two seconds) before a graph is compiled, and the cost of a call in rows.
_WORK_IN_PYTHON, _ROWS_OF_A_CALL = 40_000, 160
# With fewer calls than these, a second graph does not pay.
_FEWEST_CALLS = 20
# Steps of differences: the first one; that in standard deviations; one is taken again if this factor too short or long.
_FIRST_STEP, _STEP, _TOO_FAR, _LARGEST_CHANGE, _MOST_STEPS = 1e-5, 1e-3, 10.0, 1e4, 20
#: Numbers of Bernoulli, and where their series is exact to the last digits.
_BERNOULLI, _SHIFT = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6), 8
#: Size of a block, points x rows: intermediate values for all points would not fit in memory.
BLOCK = 2**17

# Evaluate f(switch(c, a, b)) instead of both f(a) and f(b), as in a Bernoulli log density. Without this, its gradients
# in 20,000 rows take 1.3 times as long, and its values 1.5 times.
for _function in cast(Any, (pt.neg, pt.softplus)):
    _both: Any = (pt.switch, "c", (_function, "a"), (_function, "b"))
    _rewrite = PatternNodeRewriter(_both, (_function, (pt.switch, "c", "a", "b")))
    cast(Any, optdb["specialize"]).register(f"local_switch_of_{_function}", _rewrite, "iwbayes")


@node_rewriter([Blockwise])
def _local_gather(fgraph: Any, node: Any) -> list[Any] | None:
    """Index a vector that all rows share at once; PyTensor for PyMC 5 does it in Python, row by row."""
    core, n_batch = node.op.core_op, node.op.batch_ndim(node)
    if type(core).__name__ not in ("AdvancedSubtensor", "AdvancedSubtensor1") or len(node.inputs) != 2:
        return None
    vector, index = node.inputs
    shared = vector.type.ndim == n_batch + 1 and all(vector.type.broadcastable[:n_batch])
    if not shared or index.type.dtype == "bool" or getattr(core, "idx_list", (0,)) != (0,):
        return None
    return [vector.reshape((vector.shape[-1],))[index]]


cast(Any, optdb["canonicalize"]).register("local_gather", _local_gather, "iwbayes")


@node_rewriter([Elemwise])
def _local_trigamma(fgraph: Any, node: Any) -> list[Any] | None:
    """Write the derivative of digamma in elementary functions; PyTensor for PyMC 6 calls Python for each number.

    Recurrence and asymptotic series of Abramowitz & Stegun (1964), 6.4.6 and 6.4.12; below zero the reflection 6.4.7.
    """
    if not isinstance(node.op.scalar_op, TriGamma):
        return None
    [given] = node.inputs
    x = pt.switch(given > 0, given, 1 - given)
    above, total = x + _SHIFT, sum(1 / (x + k) ** 2 for k in range(_SHIFT))
    inverse = 1 / above**2
    series: Any = 0.0
    for coefficient in reversed(_BERNOULLI):
        series = (series + coefficient) * inverse
    total = total + 1 / above + inverse / 2 + series / above
    return [pt.switch(given > 0, total, (np.pi / pt.sin(np.pi * given)) ** 2 - total).astype(node.outputs[0].dtype)]


cast(Any, optdb["specialize"]).register("local_trigamma", _local_trigamma, "iwbayes")


def interpreted(inputs: list[Any], outputs: Any, mode: Mode = _INTERPRETER) -> Any:
    """Return a function of a small graph that is evaluated in Python, because compiling it would take longer."""
    # without a compiler, graphs inside Ops are interpreted as well
    with pytensor.config.change_flags(cxx=""):
        return pytensor.function(inputs, outputs, mode=mode, on_unused_input="ignore")


def evaluate(variable: Variable) -> np.ndarray:
    """Return the value of a variable that depends on constants and data only."""
    if isinstance(variable, Constant):
        return np.asarray(variable.data)
    if hasattr(variable, "get_value"):
        return np.asarray(variable.get_value(borrow=True))
    return np.asarray(interpreted([], variable)())


class CountsCalls:
    """Something made of functions that count their calls."""

    def restart(self) -> None:
        """Count from zero again, so that a result does not depend on earlier calls."""
        for part in vars(self).values():
            if isinstance(part, CountsCalls):
                part.restart()


class CompiledWhenUsed(CountsCalls):
    """Function of a graph that is evaluated in Python at first, and compiled once it has been called often enough.

    Compiling derivatives takes seconds to minutes, and a few Newton steps in Python take less time if there are few
    rows. The graph is made numerically stable in both cases. A call loops over `n_rows` rows; None compiles at the
    first call, as does a large `n_calls`, the number of calls that are certain to come.
    """

    def __init__(self, inputs: list[Any], outputs: Any, *, n_rows: int | None, n_calls: int = 0) -> None:
        self._graph = inputs, outputs
        calls = 0 if n_rows is None else _WORK_IN_PYTHON // (_ROWS_OF_A_CALL + n_rows)
        self._calls, self._calls_in_python = 0, calls if calls >= max(_FEWEST_CALLS, n_calls) else 0
        self._excluded = () if n_rows != 0 else _FOR_ROWS

    def restart(self) -> None:
        """Count from zero again; see `CountsCalls`."""
        self._calls = 0

    @cached_property
    def _compiled(self) -> Any:
        mode = get_default_mode().including("iwbayes", _OUT_OF_RANGE).excluding(*self._excluded)
        with warnings.catch_warnings():
            # it has no derivatives of gamma functions
            warnings.filterwarnings("ignore", "Numba will use object mode", UserWarning)
            return pytensor.function(*self._graph, mode=mode, on_unused_input="ignore")

    @cached_property
    def _interpreted(self) -> Any:
        return interpreted(*self._graph, _STABLE_INTERPRETER.including(_OUT_OF_RANGE))

    @property
    def function(self) -> Any:
        """The function of PyTensor for the next call."""
        return self._interpreted if self._calls < self._calls_in_python else self._compiled

    def __call__(self, *values: np.ndarray) -> Any:
        """Evaluate the outputs."""
        function = self.function
        self._calls += 1
        return function(*values)


class Batched(CountsCalls):
    """Outputs of a graph at many values of `inputs` at once, along a first axis that inputs and outputs have.

    `others` are inputs with one value for all. A value loops over `n_rows` rows, see `CompiledWhenUsed`.
    """

    def __init__(
        self, inputs: Sequence[Any], outputs: list[Any], others: Sequence[Any] = (), *, n_rows: int | None
    ) -> None:
        many = {var: pt.tensor(shape=(None, *var.type.shape), dtype=var.type.dtype) for var in inputs}
        function = vectorize_graph(outputs, many)
        self._function = CompiledWhenUsed([*many.values(), *others], function, n_rows=n_rows)
        self._size, self._ndims = BLOCK // (n_rows or 1), [output.type.ndim for output in outputs]

    def __call__(self, *values: Array, others: Sequence[Array] = ()) -> list[Array]:
        """Evaluate the outputs, each (value, ...)."""
        found = []
        for block in row_blocks(len(values[0]), self._size):
            outputs, n = self._function(*(array[block] for array in values), *others), len(values[0][block])
            # outputs that depend on none of the inputs are the same for all values
            each = zip(outputs, self._ndims, strict=True)
            found.append([np.broadcast_to(a, (n, *a.shape)) if np.ndim(a) == ndim else a for a, ndim in each])
        return [np.concatenate(parts) for parts in zip(*found, strict=True)]


class Differenced(CountsCalls):
    """Products of a Hessian by central differences of gradients, for graphs that cannot be differentiated twice."""

    def __init__(self, gradient: CompiledWhenUsed) -> None:
        self._gradient = gradient

    def __call__(self, theta: Array, *others: Array) -> tuple[Any, Array, Array]:
        """Return value, gradient and Hessian times the last argument, as the function that this replaces."""
        *others_only, direction = others
        value, gradient = self._gradient(theta, *others_only)
        product, step = np.zeros_like(theta), _FIRST_STEP
        for _ in range(_MOST_STEPS if direction.any() else 0):
            ends = [self._gradient(theta + sign * step * direction, *others_only)[1] for sign in (1, -1)]
            found = (ends[0] - ends[1]) / (2 * step)
            if not np.isfinite(found).all():
                step /= _TOO_FAR
                continue
            product, curvature = found, float(abs(direction @ found))
            # in units of the standard deviation that the curvature along the direction gives; any step if it is flat
            factor = _STEP / math.sqrt(curvature) / step if curvature > 0 else 1.0
            if 1 / _TOO_FAR < factor < _TOO_FAR:
                break
            step *= min(max(factor, 1 / _LARGEST_CHANGE), _LARGEST_CHANGE)
        return value, gradient, product


class SmoothFunction(CountsCalls):
    """A scalar of theta (p,) and other vectors, with its derivatives by theta; functions are made on first use.

    A value loops over `n_rows` rows, and at least `n_calls` products of the Hessian will be needed.
    """

    def __init__(self, value: Any, theta: Any, *others: Any, n_rows: int, n_calls: int) -> None:
        self._value, self._theta, self._others = value, theta, others
        self._n_rows, self._n_calls = n_rows, n_calls

    @cached_property
    def _many(self) -> Batched:
        return Batched([self._theta], [self._value], self._others, n_rows=self._n_rows)

    @cached_property
    def _compiled(self) -> CompiledWhenUsed:
        gradient: Any = pt.grad(self._value, self._theta, disconnected_inputs="ignore")
        return CompiledWhenUsed([self._theta, *self._others], [self._value, gradient], n_rows=None)

    @cached_property
    def along(self) -> CompiledWhenUsed | Differenced:
        """Function of theta, the other vectors and a direction: value, gradient, and Hessian times the direction."""
        direction = pt.vector("direction", shape=self._theta.type.shape)
        gradient: Any = pt.grad(self._value, self._theta, disconnected_inputs="ignore")
        try:
            product: Any = pt.grad(pt.dot(gradient, direction), self._theta, disconnected_inputs="ignore")
        except (MethodNotDefined, NotImplementedError):  # incomplete gamma and beta functions have first ones only
            return Differenced(self._compiled)
        inputs = [self._theta, *self._others, direction]
        outputs = [self._value, gradient, product]
        return CompiledWhenUsed(inputs, outputs, n_rows=self._n_rows, n_calls=self._n_calls)

    def values(self, theta: Array, *others: Array) -> Array:
        """Return the values (sample,) at many theta (sample, p).

        A single one takes the function that a search for the mode needs anyway, because making another takes longer.
        """
        if len(theta) == 1:
            return np.array([self.along(theta[0], *others, np.zeros(theta.shape[1]))[0]])
        return self._many(theta, others=others)[0]

    def gradient(self, theta: Array, *others: Array) -> tuple[float, Array]:
        """Return the value and the gradient (p,), by a compiled function."""
        value, gradient = self._compiled(theta, *others)
        return float(value), np.asarray(gradient)

    def derivatives(self, theta: Array, *others: Array) -> tuple[Array, Array]:
        """Return the gradient (p,) and the Hessian (p, p), column by column: graphs of whole ones may take minutes."""
        columns = []
        for direction in np.eye(len(theta)):
            _, gradient, column = self.along(theta, *others, direction)
            columns.append(np.array(column))
        return np.array(gradient), symmetric(np.stack(columns, axis=1))


class DensityOp(Op):
    """Log density of a vector, and its gradient (p,), by `function`, which may be replaced between runs."""

    function: Callable[[Array], tuple[float, Array]]

    def make_node(self, *inputs: Any) -> Apply:
        """Apply to a vector."""
        return Apply(self, [pt.as_tensor_variable(theta) for theta in inputs], [pt.dscalar(), pt.dvector()])

    def perform(self, node: Apply, inputs: Any, output_storage: Any) -> None:
        """Evaluate."""
        for storage, value in zip(output_storage, self.function(inputs[0]), strict=True):
            storage[0] = np.asarray(value, dtype=np.float64)

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> list[Any]:
        """Differentiate the log density."""
        return [cotangents[0] * outputs[1]]

    L_op: Any = pullback  # PyTensor's older name
