"""Networks of conditional tables: each column is drawn given some of the columns that were drawn before it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pandas as pd

from iwbayes.curator.generators.tables.bins import ColumnBins, Groups, draw_codes
from iwbayes.curator.generators.tables.counts import Codes
from iwbayes.schema import Schema
from iwbayes.tables import SyntheticTable
from iwbayes.utils import checks
from iwbayes.utils.arrays import Array, row_blocks
from iwbayes.utils.digest import digest

COUNTED_ROWS = 2**20  # that are counted at a time, with eight bytes of memory per row


class Node(NamedTuple):
    """One column of the network and its parents, the columns that it is drawn given."""

    column: int
    parents: tuple[int, ...]

    @property
    def members(self) -> tuple[int, ...]:
        """Columns of the node's table: the parents, then the column."""
        return (*self.parents, self.column)


@dataclass(frozen=True)
class FittedNetwork:
    """A fitted network of noisy conditional tables. It is public: it keeps nothing private."""

    name: str  # of the generator
    schema: Schema
    bins: tuple[ColumnBins, ...]
    groups: tuple[Groups, ...]
    nodes: tuple[Node, ...]  # in the order of sampling
    tables: tuple[Array, ...]  # conditional probabilities of each node, shape (parent code, column code)
    strata: bool = False  # stratified sampling: counts are closer to the probabilities than those of independent rows

    def sample(self, n: int, *, random_seed: int | np.random.Generator | None = None) -> SyntheticTable:
        """Draw n >= 1 synthetic rows. This costs no privacy. Without ``random_seed``, entropy is fresh."""
        n, rng = checks.whole("n", n), np.random.default_rng(random_seed)
        sizes = [g.size for g in self.groups]
        codes = draw_network(self.nodes, self.tables, sizes, n, rng, strata=self.strata)
        columns = {
            b.column.name: b.values(g.bins(codes[:, index], rng), rng)
            for index, (b, g) in enumerate(zip(self.bins, self.groups, strict=True))
        }
        return SyntheticTable(pd.DataFrame(columns), self.schema, origin=self.name)._from_source(self.fingerprint())

    def fingerprint(self) -> str:
        """Return a digest of the network, its bins and its tables."""
        edges = [b.edges for b in self.bins if b.edges is not None]
        shares = [part for g in self.groups for part in (g.of, g.distribution)]
        columns = self.schema.to_toml(), Schema(*(b.column for b in self.bins)).to_toml()
        how = ("strata",) if self.strata else ()
        return digest(f"Fitted{self.name}", *how, *columns, repr(self.nodes), *edges, *shares, *self.tables)

    def __repr__(self) -> str:
        """Show each column with its parents."""
        names = self.schema.names
        parts = [f"{names[k.column]} | {', '.join(names[p] for p in k.parents) or '-'}" for k in self.nodes]
        return f"Fitted{self.name}({'; '.join(parts)})"


def draw_network(
    nodes: Sequence[Node],
    tables: Sequence[Array],
    sizes: Sequence[int],
    n: int,
    rng: np.random.Generator,
    *,
    strata: bool = False,
) -> Codes:
    """Draw codes of all columns, shape (n, column), from conditional tables of shape (parent code, column code)."""
    codes = np.zeros((n, len(sizes)), dtype=np.int64, order="F")  # columns are read one by one
    for node, table in zip(nodes, tables, strict=True):
        codes[:, node.column] = draw_codes(table, flat_codes(codes, sizes, node.parents), rng, strata=strata)
    return codes


def flat_codes(codes: Codes, sizes: Sequence[int], columns: Sequence[int]) -> Codes:
    """Combine the codes of several columns, or none, into one, shape (row,); the last column varies fastest."""
    flat = np.zeros(len(codes), dtype=np.int64)
    for column in columns:
        flat = flat * sizes[column] + codes[:, column]
    return flat


def count_table(codes: Codes, sizes: Sequence[int], columns: Sequence[int]) -> Codes:
    """Count rows of codes, shape (row, column), in the cells of some columns, shape (cell,), as in `flat_codes`."""
    total = np.zeros(math.prod(sizes[c] for c in columns), dtype=np.int64)
    # in parts, because eight-byte codes of all rows would need more memory than the stored small integers
    for part in row_blocks(len(codes), COUNTED_ROWS):
        total += np.bincount(flat_codes(codes[part], sizes, columns), minlength=len(total))
    return total
