"""Functions of PyTensor graphs: evaluated in Python, or compiled when they are used often enough to pay for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.compile.mode import Mode
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.replace import vectorize_graph

_INTERPRETER: Any = Mode(linker="py", optimizer=cast(Any, None))


# fused, in-place and BLAS operations serve compilers; looking for them takes a quarter of the time of a function
_STABLE_INTERPRETER: Any = Mode(linker="py", optimizer="fast_run").excluding("fusion", "inplace", "BlasOpt")


# Rows that are looped over in Python, two seconds of them, before a graph is compiled; a call costs as much as so many.
_WORK_IN_PYTHON, _ROWS_OF_A_CALL = 40_000, 160


# Fewer calls are not worth a second graph.
_FEWEST_CALLS = 20


def interpreted(inputs: list[Any], outputs: Any) -> Any:
    """Return a function of a small graph, evaluated in Python: compiling it would take longer."""
    return _in_python(inputs, outputs, _INTERPRETER)


class CompiledWhenUsed:
    """Function of a graph, evaluated in Python at first and compiled when it has been called often enough to pay.

    Compiling the derivatives of a model takes seconds to minutes. A few Newton steps in Python take less where there
    are few rows, or none as in a prior. The graph is made numerically stable before either.

    Parameters
    ----------
    inputs : list of Variable
    outputs : Variable or list of Variable
    n_rows : int or None
        Rows that a call loops over: some operations do so in Python. None: compile at the first call.
    """

    def __init__(self, inputs: list[Any], outputs: Any, *, n_rows: int | None) -> None:
        self._graph = inputs, outputs
        calls = 0 if n_rows is None else _WORK_IN_PYTHON // (_ROWS_OF_A_CALL + n_rows)
        self._calls, self._calls_in_python = 0, calls if calls >= _FEWEST_CALLS else 0
        self._function: Any = None

    def __call__(self, *values: np.ndarray) -> Any:
        """Evaluate the outputs."""
        if self._calls == self._calls_in_python:
            self._function = pytensor.function(*self._graph, on_unused_input="ignore")
        elif self._calls == 0:
            self._function = _in_python(*self._graph, _STABLE_INTERPRETER)
        self._calls += 1
        return self._function(*values)


def _in_python(inputs: list[Any], outputs: Any, mode: Mode) -> Any:
    # without a compiler also graphs inside of Ops are interpreted
    with pytensor.config.change_flags(cxx=""):
        return pytensor.function(inputs, outputs, mode=mode, on_unused_input="ignore")


def evaluate(variable: Variable) -> np.ndarray:
    """Value of a variable that depends on constants and data only."""
    if isinstance(variable, Constant):
        return np.asarray(variable.data)
    if hasattr(variable, "get_value"):
        return np.asarray(variable.get_value(borrow=True))
    return np.asarray(interpreted([], variable)())


def batched(inputs: list[Any], outputs: Any, *, over: list[Any], n_rows: int) -> CompiledWhenUsed:
    """Make the function of a graph that takes many values of some inputs at once, along a first axis.

    Parameters
    ----------
    inputs : list of Variable
    outputs : Variable or list of Variable
        They have that axis as well, but for those that do not depend on `over`.
    over : list of Variable
    n_rows : int
        See `CompiledWhenUsed`.
    """
    many = {var: pt.tensor(shape=(None, *var.type.shape), dtype=var.type.dtype) for var in over}
    return CompiledWhenUsed([many.get(var, var) for var in inputs], vectorize_graph(outputs, many), n_rows=n_rows)


def value_gradient_curvature(value: Any, inputs: list[Any], *, n_rows: int) -> Callable[..., list[np.ndarray]]:
    """Make the function of a scalar, its gradient, and its Hessian times a direction, which is the last argument."""
    theta = inputs[0]
    direction = pt.vector("direction", shape=theta.type.shape)
    gradient: Any = pt.grad(value, theta, disconnected_inputs="ignore")
    product: Any = pt.grad(pt.dot(gradient, direction), theta, disconnected_inputs="ignore")
    return CompiledWhenUsed([*inputs, direction], [value, gradient, product], n_rows=n_rows)


def by_columns(
    function: Callable[..., list[np.ndarray]], theta: np.ndarray, *inputs: np.ndarray
) -> tuple[float, np.ndarray, np.ndarray]:
    """Value, gradient (p,) and symmetrised Hessian (p, p) from Hessian-vector products.

    One at a time: graphs of derivatives in many directions at once can take minutes to make.
    """
    columns = []
    for direction in np.eye(len(theta)):
        value, gradient, column = function(theta, *inputs, direction)
        columns.append(np.array(column))
    hessian = np.stack(columns, axis=1)
    return float(value), np.array(gradient), (hessian + hessian.T) / 2
