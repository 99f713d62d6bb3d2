"""A network of tables: columns one after the other, each drawn from a table given columns before it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pandas as pd

from iwbayes._digest import digest
from iwbayes.arrays import Array, row_blocks
from iwbayes.curator.generators.fitting import check_sample_size
from iwbayes.curator.generators.tables.bins import ColumnBins, Groups, draw_codes
from iwbayes.curator.generators.tables.counts import Codes
from iwbayes.schema import Schema
from iwbayes.tables import SyntheticTable

#: Rows that are counted at once: one code of eight bytes for each cell of a table is held.
COUNTED_ROWS = 2**20


class Node(NamedTuple):
    """One column of the network and the columns that it is drawn from."""

    column: int
    parents: tuple[int, ...]

    @property
    def members(self) -> tuple[int, ...]:
        """Columns of the node's table: the parents, then the column."""
        return (*self.parents, self.column)


@dataclass(frozen=True)
class FittedNetwork:
    """A network and its noisy conditional tables: public, nothing private is kept.

    Parameters
    ----------
    name : str
        Of the generator.
    schema : Schema
    bins, groups : tuple of ColumnBins and of Groups
    nodes : tuple of Node
        In the order of sampling.
    tables : tuple of ndarray, shape (parent code, column code)
        Rows sum to one.
    strata : bool
        Whether rows are drawn in strata, so that tables of counts are nearer to the network's than of independent rows.
    """

    name: str
    schema: Schema
    bins: tuple[ColumnBins, ...]
    groups: tuple[Groups, ...]
    nodes: tuple[Node, ...]
    tables: tuple[Array, ...]
    strata: bool = False

    def sample(self, n: int, *, random_seed: int | np.random.Generator | None = None) -> SyntheticTable:
        """Draw synthetic rows.

        Parameters
        ----------
        n : int
            Number of rows, at least 1.
        random_seed : int or numpy.random.Generator, optional
            Seeds the sampling; it costs no privacy.
        """
        n, rng = check_sample_size(n), np.random.default_rng(random_seed)
        sizes = [g.size for g in self.groups]
        codes = draw_network(self.nodes, self.tables, sizes, n, rng, strata=self.strata)
        columns = {
            b.column.name: b.values(g.bins(codes[:, index], rng), rng)
            for index, (b, g) in enumerate(zip(self.bins, self.groups, strict=True))
        }
        return SyntheticTable(pd.DataFrame(columns), self.schema, origin=self.name)._from_source(self.fingerprint())

    def fingerprint(self) -> str:
        """Digest of the network, its bins and its tables."""
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
    """Draw codes of all columns, shape (n, column), by conditional tables (parent code, column code)."""
    codes = np.zeros((n, len(sizes)), dtype=np.int64)
    for node, table in zip(nodes, tables, strict=True):
        codes[:, node.column] = draw_codes(table, flat_codes(codes, sizes, node.parents), rng, strata=strata)
    return codes


def flat_codes(codes: Codes, sizes: Sequence[int], columns: Sequence[int]) -> Codes:
    """One code for several columns, the last fastest; zeros when there are none."""
    flat = np.zeros(len(codes), dtype=np.int64)
    for column in columns:
        flat = flat * sizes[column] + codes[:, column]
    return flat


def count_table(codes: Codes, sizes: Sequence[int], columns: Sequence[int]) -> Codes:
    """Exact counts of the rows (row, column) in the cells of some columns, flat with the last fastest."""
    total = np.zeros(math.prod(sizes[c] for c in columns), dtype=np.int64)
    # in parts: codes of eight bytes for all rows at once would be more than what is kept of these
    for part in row_blocks(len(codes), COUNTED_ROWS):
        total += np.bincount(flat_codes(codes[part], sizes, columns), minlength=len(total))
    return total
