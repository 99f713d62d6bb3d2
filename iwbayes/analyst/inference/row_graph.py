"""The graph of one row's log density, rewritten so that no cell of the row can make its evaluation fail.

Private rows are evaluated by this graph. An error, or the time until one, would answer a question about a row, so each
operation that fails for some values is given a value for which it does not fail, and the row is marked as undefined.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, cast

import pytensor.tensor as pt
from pytensor.compile.builders import OpFromGraph
from pytensor.graph.replace import clone_replace
from pytensor.graph.traversal import applys_between, toposort
from pytensor.raise_op import CheckAndRaise
from pytensor.scalar.basic import Cast, IntDiv, Mod, Pow, ScalarInnerGraphOp, ScalarOp, ScalarType
from pytensor.tensor.basic import Alloc
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.elemwise import CAReduce, DimShuffle, Elemwise
from pytensor.tensor.rewriting.ofg import inline_ofg_node
from pytensor.tensor.shape import Shape, Shape_i
from pytensor.tensor.type_other import SliceType

#: Modules of the operations that a score may use; none of them calls a user's function.
_KNOWN = ("pytensor.tensor.", "pytensor.scalar.")
_UNKNOWN = ("pytensor.tensor.random.",)
_COPIES = ("ViewOp", "DeepCopyOp")
#: Operations that do not fail, whatever the values of their inputs are, if the shapes of these are right. Some inputs
#: give the shape of the result: numbers from this position on, which may not depend on cells.
_NEVER_FAIL: dict[str, int | None] = dict.fromkeys(
    [
        *("Argmax", "ArgSortOp", "AllocDiag", "BatchedDot", "CumOp", "Dot", "ExtractDiag", "JoinDims", "Join"),
        *("KroneckerProduct", "LogSoftmax", "MakeVector", "MulWithoutZeros", "ScalarFromTensor", "SearchsortedOp"),
        *("Softmax", "SoftmaxGrad", "SolveTriangular", "SortOp", "TensorFromScalar", *_COPIES),
    ]
) | {"Alloc": 1, "Reshape": 1, "SpecifyShape": 1, "Split": 1, "SplitDims": 1}
#: Operations with indices, and the position of the first one.
_INDEXING = dict.fromkeys(("Subtensor", "AdvancedSubtensor", "AdvancedSubtensor1"), 1) | dict.fromkeys(
    ("IncSubtensor", "AdvancedIncSubtensor", "AdvancedIncSubtensor1"), 2
)
#: Largest floating-point number that is converted to a whole number.
_MOST = 2.0**62


class OneRow(NamedTuple):
    """Graph of the log density of one row."""

    density: Any  # scalar
    defined: Any  # scalar, bool: whether no operation left its domain
    inputs: list[Any]  # data of the row; the first dimension has length one


def one_row(rows: Any, shared: Sequence[Any]) -> OneRow:
    """Return the graph of one row, from that of the log density of each row (row,); its data are shared variables.

    Checks of parameters are among the conditions of ``defined``, and raise no error.
    """
    # operations that contain graphs have fixed shapes
    while graphs := [node for node in applys_between([], [rows]) if isinstance(node.op, OpFromGraph)]:
        inlined: Any = dict(zip(graphs[-1].outputs, inline_ofg_node(graphs[-1]), strict=True))
        [rows] = clone_replace([rows], inlined, rebuild_strict=False)
    n = rows.type.shape[0]
    inputs = [pt.tensor(shape=(1, *var.type.shape[1:]), dtype=var.type.dtype) for var in shared]
    made: dict[Any, Any] = dict(zip(shared, inputs, strict=True))
    of_cells: set[Any] = set(inputs)
    defined: list[Any] = []
    for node in toposort([rows]):
        own = [made.get(var, var) for var in node.inputs]
        depends = any(var in of_cells for var in own)
        if isinstance(node.op, CheckAndRaise):
            defined += [pt.all(condition) for condition in own[1:] if condition in of_cells]
            new = own[:1]
        elif isinstance(node.op, Alloc) and n not in (None, 1) and node.outputs[0].type.shape[:1] == (n,):
            new = [pt.atleast_Nd(cast(Any, own[0]), n=cast(Any, node.outputs[0]).type.ndim)]
            depends = own[0] in of_cells
        else:
            if depends:
                own, conditions = _guarded(node.op, own, of_cells)
                defined += conditions
            new = node.clone_with_new_inputs(own, strict=False).outputs
            depends = depends and not isinstance(node.op, Shape | Shape_i)  # a shape depends on no cell
        made.update(zip(node.outputs, new, strict=True))
        if depends:
            of_cells.update(new)
    density = made[rows]
    if density.type.ndim != 1 or density.type.shape[0] not in (1, None):
        raise ValueError("the density of a row depends on the number of rows. Use pm.Data for columns")
    return OneRow(density.sum(), pt.all(pt.stack(defined)) if defined else pt.constant(True), inputs)


def check_operations(outputs: Sequence[Any], inputs: Sequence[Any]) -> None:
    """Raise ValueError if a graph of one row may call a user's function, or may fail for some cells of the row."""
    of_cells = set(inputs)
    for node in toposort(list(outputs)):
        for op in _operations(node.op):
            if not _is_known(op):
                raise ValueError(f"its density uses {type(op).__name__}, which may call a user's function")
        depends = [var in of_cells for var in node.inputs]
        if not any(depends) or isinstance(node.op, Shape | Shape_i):
            continue
        of_cells.update(node.outputs)
        core = node.op.core_op if isinstance(node.op, Blockwise) else node.op
        if isinstance(core, OpFromGraph):
            own = zip(core.fgraph.inputs, depends, strict=True)
            check_operations(core.fgraph.outputs, [var for var, of_cell in own if of_cell])
        elif not _never_fails(core, depends):
            raise ValueError(
                f"its density uses {type(core).__name__} of the cells of a row, which may fail for some cells. Use "
                "other operations, or apply this one to parameters only"
            )


def _guarded(op: Any, inputs: list[Any], of_cells: set[Any]) -> tuple[list[Any], list[Any]]:
    """Return inputs for which an operation does not fail, and conditions under which they are the given ones."""
    if first := _INDEXING.get(type(op).__name__):
        return _bounded_indices(op, inputs, first, of_cells)
    inner = op.scalar_op if isinstance(op, Elemwise) else None
    whole = [var.type.dtype.startswith(("int", "uint", "bool")) for var in inputs] if inner is not None else []
    if isinstance(inner, IntDiv | Mod) and all(whole) and inputs[1] in of_cells:
        divides = pt.neq(inputs[1], 0)
        return [inputs[0], pt.switch(divides, inputs[1], 1).astype(inputs[1].type.dtype)], [pt.all(divides)]
    if isinstance(inner, Pow) and all(whole):
        rises = pt.ge(inputs[1], 0)
        return [inputs[0], pt.switch(rises, inputs[1], 0).astype(inputs[1].type.dtype)], [pt.all(rises)]
    if isinstance(inner, Cast) and not whole[0] and inner.o_type.dtype.startswith(("int", "uint")):
        fits = pt.le(pt.abs(inputs[0]), _MOST)  # false for NaN
        return [pt.switch(fits, inputs[0], 0.0).astype(inputs[0].type.dtype)], [pt.all(fits)]
    return inputs, []


def _bounded_indices(op: Any, inputs: list[Any], first: int, of_cells: set[Any]) -> tuple[list[Any], list[Any]]:
    """Move the indices that depend on cells into their ranges.

    A negative index would count from the end: in a model that was built on other rows, it is the wrong parameter.
    """
    new, conditions = list(inputs), []
    for place, axis in enumerate(_axes(op, inputs[first:]), start=first):
        index = inputs[place]
        if index not in of_cells:
            continue
        if axis is None:
            raise ValueError(
                "its density selects a slice, or by a condition, that depends on the cells of a row, so that its shape "
                "may change. Use pm.math.switch"
            )
        scalar = isinstance(index.type, ScalarType)
        at: Any = pt.cast(pt.tensor_from_scalar(index) if scalar else index, "int64")
        size = inputs[0].shape[axis]
        conditions += [pt.all(pt.ge(at, 0)), pt.all(pt.lt(at, size))]
        bounded: Any = pt.clip(at, 0, size - 1)
        new[place] = pt.scalar_from_tensor(bounded) if scalar else bounded
    return new, conditions


def _axes(op: Any, indices: Sequence[Any]) -> Iterator[int | None]:
    """Yield the axis of each index that is whole numbers; None for the ends of slices, and for conditions."""
    rest, axis = iter(indices), 0
    for entry in getattr(op, "idx_list", None) or [0] * len(indices):
        if isinstance(entry, slice):
            for end in (entry.start, entry.stop, entry.step):
                if end is not None:
                    next(rest)
                    yield None
            axis += 1
            continue
        kind = next(rest).type
        if getattr(kind, "dtype", "") == "bool":
            yield None
            axis += kind.ndim
        elif hasattr(kind, "dtype"):
            yield axis
            axis += 1
        else:  # a slice, or a new axis
            yield None
            axis += isinstance(kind, SliceType)


def _never_fails(op: Any, of_cells: list[bool]) -> bool:
    """Return whether an operation does not fail whatever the inputs are that depend on cells, shape (input,)."""
    name = type(op).__name__
    if isinstance(op, Elemwise) and isinstance(op.scalar_op, ScalarInnerGraphOp):
        return not any(isinstance(node.op, IntDiv | Mod) for node in op.scalar_op.fgraph.apply_nodes)  # not guarded
    if isinstance(op, Elemwise | CAReduce | DimShuffle) or name in _INDEXING:
        return True  # those that could fail are guarded
    if isinstance(op, ScalarOp):
        return not isinstance(op, IntDiv | Mod)
    if name == "Cholesky":
        return getattr(op, "on_error", "nan") == "nan"
    return name in _NEVER_FAIL and not any(of_cells[_NEVER_FAIL[name] or len(of_cells) :])


def _operations(op: Any) -> Iterator[Any]:
    """Yield an operation, and the operations inside it."""
    yield op
    for name in ("scalar_op", "core_op"):
        if hasattr(op, name):
            yield from _operations(getattr(op, name))
    if hasattr(op, "fgraph"):
        for node in op.fgraph.apply_nodes:
            yield from _operations(node.op)


def _is_known(op: Any) -> bool:
    home = type(op).__module__ + "."
    if type(op) is OpFromGraph or (home.startswith("pytensor.") and type(op).__name__ in _COPIES):
        return True
    return home.startswith(_KNOWN) and not home.startswith(_UNKNOWN)
