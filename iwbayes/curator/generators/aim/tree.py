"""Log-linear distributions: p(x) is proportional to the exponential of a sum of potentials.

They are stored as a joint table or as marginals on a junction tree (Lauritzen & Spiegelhalter, JRSS B, 1988). The
package mbi (Private-PGM) compiles every tree again: in seconds, and hundreds of trees exhaust a process's memory maps.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from iwbayes.curator.generators.tables.counts import Codes
from iwbayes.curator.generators.tables.network import Node, count_table, draw_network
from iwbayes.utils.arrays import Array

Columns = tuple[int, ...]
#: Terms of the log probability of a row, by sets of columns in increasing order. Each array has one axis per column.
Potentials = Mapping[Columns, Array]

_DRAWN = 50_000  # rows from which marginals across cliques are counted; exact ones would take minutes


@dataclass(frozen=True)
class Joint:
    """A distribution that is stored as a joint table."""

    log_sum: float
    table: Array

    @classmethod
    def of(cls, potentials: Potentials, sizes: Sequence[int]) -> Joint:
        """Make the joint table of columns with these numbers of codes, from potentials."""
        total = np.zeros((1,) * len(sizes))
        # small potentials first, so that few sums run over all cells
        for columns, potential in sorted(potentials.items(), key=lambda item: item[1].size):
            total = total + potential.reshape([size if index in columns else 1 for index, size in enumerate(sizes)])
        largest = float(np.max(total))
        weights = np.exp(np.broadcast_to(total, sizes) - largest)
        whole = float(weights.sum())
        return cls(largest + math.log(whole), weights / whole)

    def marginal(self, columns: Columns) -> Array:
        """Return the probabilities of a set of columns (in increasing order), with one axis per column."""
        return np.asarray(self.table.sum(axis=tuple(axis for axis in range(self.table.ndim) if axis not in columns)))

    def error(self, columns: Columns, marginal: Array) -> float:
        """Return 0, because the marginals are exact."""
        return 0.0

    def network(self) -> tuple[tuple[Node, ...], tuple[Array, ...]]:
        """Return each column given all columns before it."""
        nodes = tuple(Node(column, tuple(range(column))) for column in range(self.table.ndim))
        return nodes, tuple(conditional(self.marginal(node.members)) for node in nodes)


def conditional(table: Array) -> Array:
    """Return distributions of the last axis, shape (parent code, column code); uniform for a code never taken."""
    flat = table.reshape(-1, table.shape[-1]) + np.finfo(float).tiny
    return np.asarray(flat / flat.sum(axis=1, keepdims=True))


@dataclass(frozen=True)
class Structure:
    """A junction tree over columns with these numbers of codes. Trees with the same cliques compare equal."""

    sizes: tuple[int, ...]
    cliques: tuple[Columns, ...]

    @classmethod
    def of(cls, sizes: Sequence[int], columns: Iterable[Columns]) -> Structure:
        """Make a junction tree whose cliques contain the given sets of columns, and every single column."""
        near = {index: set[int]() for index in range(len(sizes))}
        for part in columns:
            for index in part:
                near[index].update(part)
        # eliminate the column whose clique has the fewest cells, and join its neighbours
        cells = {index: _cells(sizes, {index, *others}) for index, others in near.items()}
        found: list[set[int]] = []
        while near:
            first = min(cells, key=cells.__getitem__)
            clique = near.pop(first) | {first}
            del cells[first]
            for index in clique - {first}:
                near[index] = (near[index] | clique) - {first}
                cells[index] = _cells(sizes, {index, *near[index]})
            if not any(clique <= known for known in found):
                found.append(clique)
        return cls(tuple(sizes), tuple(sorted(tuple(sorted(clique)) for clique in found)))

    @cached_property
    def parents(self) -> dict[Columns, Columns | None]:
        """The parent of each clique, which comes before it: a maximum spanning forest of the overlaps, by Prim."""
        rest, found = list(self.cliques), dict[Columns, Columns | None]()
        best: dict[Columns, tuple[int, Columns | None]] = {clique: (0, None) for clique in rest}
        while rest:
            clique = max(rest, key=lambda one: best[one][0])
            rest.remove(clique)
            found[clique] = best[clique][1]
            for other in rest:
                best[other] = max(best[other], (len({*clique} & {*other}), clique), key=lambda pair: pair[0])
        return found

    @property
    def messages(self) -> list[tuple[Columns, Columns]]:
        """Pairs of sender and receiver, in an order in which every sender has received its messages before."""
        down = [(parent, clique) for clique, parent in self.parents.items() if parent is not None]
        return [(clique, parent) for parent, clique in reversed(down)] + down

    @property
    def n_cells(self) -> int:
        """Number of cells of all cliques together."""
        return sum(_cells(self.sizes, clique) for clique in self.cliques)

    def clique_of(self, columns: Columns) -> Columns | None:
        """Return the smallest clique that contains all the columns, or None."""
        found = [clique for clique in self.cliques if set(columns) <= set(clique)]
        return min(found, key=lambda clique: _cells(self.sizes, clique)) if found else None


def _cells(sizes: Sequence[int], columns: Iterable[int]) -> int:
    return math.prod(sizes[index] for index in columns)


@dataclass(frozen=True, eq=False)
class Tree:
    """A distribution that is stored as the marginals of the cliques of a junction tree."""

    structure: Structure
    log_sum: float
    tables: dict[Columns, Array]

    @classmethod
    def of(cls, potentials: Potentials, structure: Structure) -> Tree:
        """Make the distribution from potentials, by passing messages between the cliques."""
        sums = {clique: np.zeros([structure.sizes[index] for index in clique]) for clique in structure.cliques}
        for columns, potential in potentials.items():
            clique = structure.clique_of(columns)
            assert clique is not None  # noqa: S101 - the structure is made for these columns
            shape = [structure.sizes[index] if index in columns else 1 for index in clique]
            sums[clique] += potential.reshape(shape)
        beliefs = _beliefs(sums, structure)
        wholes = {clique: float(_log_sum(belief)) for clique, belief in beliefs.items()}
        tables = {clique: np.exp(belief - wholes[clique]) for clique, belief in beliefs.items()}
        roots = [clique for clique, parent in structure.parents.items() if parent is None]
        return cls(structure, sum(wholes[root] for root in roots), tables)

    def marginal(self, columns: Columns) -> Array:
        """Return the probabilities of a set of columns; from many drawn rows unless a clique contains the columns."""
        clique = self.structure.clique_of(columns)
        if clique is not None:
            others = tuple(axis for axis, index in enumerate(clique) if index not in columns)
            return np.asarray(self.tables[clique].sum(axis=others))
        counts = count_table(self._drawn, self.structure.sizes, columns)
        return (counts / len(self._drawn)).reshape([self.structure.sizes[index] for index in columns])

    def error(self, columns: Columns, marginal: Array) -> float:
        """Return the sum of the expected absolute errors of a marginal; 0 if a clique contains the columns."""
        if self.structure.clique_of(columns) is not None:
            return 0.0
        return float(np.sqrt(2 * marginal * (1 - marginal) / (math.pi * _DRAWN)).sum())

    @cached_property
    def _drawn(self) -> Codes:
        """Codes of rows drawn from this public distribution, with a fixed seed."""
        return draw_network(*self.network(), self.structure.sizes, _DRAWN, np.random.default_rng(0), strata=True)

    def network(self) -> tuple[tuple[Node, ...], tuple[Array, ...]]:
        """Return the columns along the tree, each given the earlier columns of its clique."""
        nodes: list[Node] = []
        tables = []
        # a clique shares columns with earlier cliques only through its parent
        for clique in self.structure.parents:
            placed = {node.column for node in nodes}
            parents = [index for index in clique if index in placed]
            for column in (index for index in clique if index not in placed):
                nodes.append(Node(column, tuple(parents)))
                members = tuple(sorted(nodes[-1].members))
                tables.append(conditional(np.moveaxis(self.marginal(members), members.index(column), -1)))
                parents = sorted([*parents, column])
        return tuple(nodes), tuple(tables)


def _beliefs(sums: dict[Columns, Array], structure: Structure) -> dict[Columns, Array]:
    """Return log probabilities of each clique's cells, up to a constant, by Shafer-Shenoy message passing."""
    received: dict[Columns, dict[Columns, Array]] = {clique: {} for clique in structure.cliques}
    for sender, receiver in structure.messages:
        belief = sums[sender]
        for other, message in received[sender].items():
            if other != receiver:
                belief = belief + message
        others = tuple(axis for axis, index in enumerate(sender) if index not in receiver)
        shape = [structure.sizes[index] if index in sender else 1 for index in receiver]
        received[receiver][sender] = _log_sum(belief, others).reshape(shape)
    return {clique: sum(received[clique].values(), start=sums[clique]) for clique in structure.cliques}


def _log_sum(values: Array, axes: tuple[int, ...] | None = None) -> Array:
    """Return the logarithm of the sum of exponentials over axes; scipy's takes ten times as long for small tables."""
    largest = values.max(axis=axes, keepdims=True)
    return np.asarray(np.log(np.exp(values - largest).sum(axis=axes)) + np.squeeze(largest, axis=axes))


Distribution = Joint | Tree
