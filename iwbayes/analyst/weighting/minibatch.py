"""Weights of the rows that ``pm.Minibatch`` draws: the weight vector uses the random index of the data."""

from __future__ import annotations

from typing import Any

import pytensor.tensor as pt
from pymc.data import MinibatchOp
from pymc.variational.minibatch_rv import MinibatchRandomVariable
from pytensor.graph.basic import Constant
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.traversal import ancestors
from pytensor.scalar.basic import Cast
from pytensor.tensor.elemwise import Elemwise

from iwbayes.analyst.weighting.weight_checks import LENGTH, CheckWeights


def minibatch_node(value: Any) -> Any | None:
    """Return the ``pm.Minibatch`` node that has a value, cast or not, as an output; None if there is none."""
    while value.owner is not None and isinstance(value.owner.op, Elemwise):
        if not isinstance(value.owner.op.scalar_op, Cast):
            return None
        value = value.owner.inputs[0]
    return value.owner if value.owner is not None and isinstance(value.owner.op, MinibatchOp) else None


def draws_rows(value: Any) -> bool:
    """Whether a value depends on a ``pm.Minibatch``."""
    return any(var.owner is not None and isinstance(var.owner.op, MinibatchOp) for var in ancestors([value]))


def scaled_rows(rv: Any) -> Any | None:
    """Return ``total_size`` of the rows of an observed variable as a symbolic scalar; None if it has none."""
    if not isinstance(rv.owner.op, MinibatchRandomVariable):
        return None
    size = rv.owner.inputs[1]
    return None if isinstance(size, Constant) and size.data is None else size


def batch_weights(fgraph: FunctionGraph, node: Any, weights: Any) -> Any:
    """Return the weights of the rows in a batch, shape (row in batch,), from a shared variable for all rows.

    In the function graph, the ``pm.Minibatch`` node is replaced by one with the weights as an additional table.
    Predictors, response and weights then use the same index. The weights must not be computed from other variables: a
    log density has several copies of the node, and PyMC rewrites one of them. It treats the random index as a single
    one only if all copies are equal.
    """
    if weights in node.inputs:  # another observed variable of the same batch
        return node.outputs[node.inputs.index(weights)]
    inner = _inner_graph(node.op)
    index = inner.outputs[0].owner.inputs[1]  # output j is input j at the index
    table = weights.type()
    # checked inside, before indexing, which would fail on fewer weights than rows
    checked: Any = CheckWeights(LENGTH)(table, pt.eq(table.shape[0], inner.inputs[0].shape[0]))
    new = MinibatchOp([*inner.inputs, table], [*inner.outputs, checked[index]])(*node.inputs, weights)
    for old, output in zip(node.outputs, new, strict=False):
        output.name = old.name
    fgraph.replace_all(list(zip(node.outputs, new, strict=False)), import_missing=True)
    return new[-1]


def drop_batch_weights(fgraph: FunctionGraph, node: Any, weights: Any) -> None:
    """Undo `batch_weights`: remove from the node the output that provides the weights of a batch."""
    above = set(ancestors([weights]))
    kept = [j for j, output in enumerate(node.outputs) if output not in above]
    if len(kept) == len(node.outputs):  # removed with another observed variable of the same batch
        return
    inner = _inner_graph(node.op)
    inputs, outputs = ([of[j] for j in kept] for of in (inner.inputs, inner.outputs))
    new: Any = MinibatchOp(inputs, outputs)(*[node.inputs[j] for j in kept], return_list=True)
    old = [node.outputs[j] for j in kept]
    for before, after in zip(old, new, strict=True):
        after.name = before.name
    fgraph.replace_all(list(zip(old, new, strict=True)), import_missing=True)


def _inner_graph(op: Any) -> Any:
    """Return a copy of the graph inside an OpFromGraph (frozen since pytensor 3)."""
    return op.fgraph.unfreeze() if hasattr(op.fgraph, "unfreeze") else op.fgraph.clone()
