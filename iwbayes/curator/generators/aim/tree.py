"""A log-linear distribution by a junction tree, which mbi (Private-PGM) makes: for columns beyond a joint table.

Messages are passed in numpy: mbi compiles each tree anew, which takes seconds where a pass takes a millisecond, and
hundreds of compiled trees exhaust the memory maps of a process.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import numpy as np
from scipy.special import logsumexp

from iwbayes.arrays import Array
from iwbayes.curator.generators.aim.estimation import Columns, Potentials, conditional
from iwbayes.curator.generators.tables.counts import Codes
from iwbayes.curator.generators.tables.network import Node, count_table, draw_network

#: Rows that marginals of columns in different cliques are counted in: exact ones take minutes.
_DRAWN = 200_000


@cache
def require_mbi() -> Any:
    """Import mbi, which speaks of settings of JAX that do not matter here; ImportError with the remedy without it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            import mbi
        except ImportError as error:
            raise ImportError(
                "AIM and MST need the package mbi where all columns together may have more than 100,000 cells. Install "
                "it (pip install 'iwbayes[aim]'), or use fewer columns or a smaller max_bins."
            ) from error
    return mbi


@dataclass(frozen=True)
class Structure:
    """A junction tree over columns of these sizes; by value the same for the same cliques."""

    sizes: tuple[int, ...]
    cliques: tuple[Columns, ...]

    @classmethod
    def of(cls, sizes: Sequence[int], columns: Iterable[Columns]) -> Structure:
        """Junction tree that carries potentials of these columns; each column is in some clique."""
        domain = _domain(tuple(sizes))
        wanted = sorted({_names(c) for c in columns} | {_names((index,)) for index in range(len(sizes))})
        tree, _ = require_mbi().junction_tree.make_junction_tree(domain, wanted)
        return cls(tuple(sizes), tuple(sorted(_columns(clique) for clique in tree.nodes)))

    @cached_property
    def tree(self) -> Any:
        """The junction tree, a networkx graph of cliques."""
        return require_mbi().junction_tree.make_junction_tree(_domain(self.sizes), [_names(c) for c in self.cliques])[0]

    @cached_property
    def order(self) -> tuple[Columns, ...]:
        """Cliques, each after the one that it shares its columns of earlier cliques with."""
        import networkx

        return tuple(_columns(clique) for clique in networkx.dfs_preorder_nodes(self.tree))

    @cached_property
    def messages(self) -> tuple[tuple[Columns, Columns], ...]:
        """Senders and receivers of messages, each after those that its sender waits for."""
        order = require_mbi().junction_tree.message_passing_order(self.tree)
        return tuple((_columns(sender), _columns(receiver)) for sender, receiver in order)

    @cached_property
    def roots(self) -> tuple[Columns, ...]:
        """One clique of each connected part of the tree."""
        import networkx

        return tuple(_columns(next(iter(part))) for part in networkx.connected_components(self.tree))

    @property
    def n_cells(self) -> int:
        """Cells of all cliques together."""
        return sum(math.prod(self.sizes[index] for index in clique) for clique in self.cliques)

    def clique_of(self, columns: Columns) -> Columns | None:
        """Return the smallest clique that has all of some columns, if any has."""
        found = [clique for clique in self.cliques if set(columns) <= set(clique)]
        return min(found, key=lambda clique: math.prod(self.sizes[index] for index in clique)) if found else None


def _names(columns: Columns) -> tuple[str, ...]:
    return tuple(f"{index:04d}" for index in columns)


def _columns(names: Iterable[str]) -> Columns:
    return tuple(sorted(int(name) for name in names))


@cache
def _domain(sizes: tuple[int, ...]) -> Any:
    return require_mbi().Domain(_names(tuple(range(len(sizes)))), sizes)


@dataclass(frozen=True, eq=False)
class Tree:
    """A distribution by the marginals of the cliques of a junction tree."""

    structure: Structure
    log_sum: float
    tables: dict[Columns, Array]

    @classmethod
    def of(cls, potentials: Potentials, structure: Structure) -> Tree:
        """Pass messages between the cliques, each of which takes the potentials of its columns."""
        sums = {clique: np.zeros([structure.sizes[index] for index in clique]) for clique in structure.cliques}
        for columns, potential in potentials.items():
            clique = structure.clique_of(columns)
            assert clique is not None  # noqa: S101 - the structure is made for these columns
            shape = [structure.sizes[index] if index in columns else 1 for index in clique]
            sums[clique] += potential.reshape(shape)
        beliefs = _beliefs(sums, structure)
        wholes = {clique: float(logsumexp(belief)) for clique, belief in beliefs.items()}
        tables = {clique: np.exp(belief - wholes[clique]) for clique, belief in beliefs.items()}
        return cls(structure, sum(wholes[root] for root in structure.roots), tables)

    def marginal(self, columns: Columns) -> Array:
        """Probabilities of the cells of some columns, in increasing order, an axis for each.

        Exact where a clique has them all, else from many drawn rows.
        """
        clique = self.structure.clique_of(columns)
        if clique is not None:
            others = tuple(axis for axis, index in enumerate(clique) if index not in columns)
            return np.asarray(self.tables[clique].sum(axis=others))
        counts = count_table(self._drawn, self.structure.sizes, columns)
        return (counts / len(self._drawn)).reshape([self.structure.sizes[index] for index in columns])

    def error(self, columns: Columns, marginal: Array) -> float:
        """Sum of the expected absolute errors of a marginal of drawn rows; 0 where a clique has the columns."""
        if self.structure.clique_of(columns) is not None:
            return 0.0
        return float(np.sqrt(2 * marginal * (1 - marginal) / (math.pi * _DRAWN)).sum())

    @cached_property
    def _drawn(self) -> Codes:
        """Codes of rows from this distribution, by a fixed seed: it is public, and so are they."""
        return draw_network(*self.network(), self.structure.sizes, _DRAWN, np.random.default_rng(0), strata=True)

    def network(self) -> tuple[tuple[Node, ...], tuple[Array, ...]]:
        """Columns along the tree, each given those of its clique that come before."""
        nodes: list[Node] = []
        tables = []
        for clique in self.structure.order:
            placed = {node.column for node in nodes}
            parents = [index for index in clique if index in placed]
            for column in (index for index in clique if index not in placed):
                nodes.append(Node(column, tuple(parents)))
                members = tuple(sorted(nodes[-1].members))
                tables.append(conditional(np.moveaxis(self.marginal(members), members.index(column), -1)))
                parents = sorted([*parents, column])
        return tuple(nodes), tuple(tables)


def _beliefs(sums: dict[Columns, Array], structure: Structure) -> dict[Columns, Array]:
    """Log probabilities of the cells of each clique, up to a constant, by messages along the tree (Shafer & Shenoy)."""
    received: dict[Columns, dict[Columns, Array]] = {clique: {} for clique in structure.cliques}
    for sender, receiver in structure.messages:
        belief = sums[sender]
        for other, message in received[sender].items():
            if other != receiver:
                belief = belief + message
        others = tuple(axis for axis, index in enumerate(sender) if index not in receiver)
        shape = [structure.sizes[index] if index in sender else 1 for index in receiver]
        received[receiver][sender] = np.asarray(logsumexp(belief, axis=others)).reshape(shape)
    return {clique: sum(received[clique].values(), start=sums[clique]) for clique in structure.cliques}
