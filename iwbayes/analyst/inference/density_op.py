"""A PyTensor operation that calls a Python function for a log density and its gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op

from iwbayes.utils.arrays import Array


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

    def L_op(self, inputs: Any, outputs: Any, output_grads: Any) -> list[Any]:  # noqa: N802 - PyTensor's older name
        """Differentiate the log density."""
        return self.pullback(inputs, outputs, output_grads)
