"""Networks of conditional tables: each column is drawn given some of the columns that were drawn before it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pandas as pd

from iwbayes.curator.generators.tables.bins import ColumnBins, Groups, draw_codes, is_numeric
from iwbayes.curator.generators.tables.counts import Codes
from iwbayes.schema import Schema
from iwbayes.tables import SyntheticTable
from iwbayes.tables.candidates import LEVEL_ROWS
from iwbayes.utils import checks
from iwbayes.utils.arrays import Array, row_blocks
from iwbayes.utils.digest import digest

COUNTED_ROWS = 2**20  # that are counted at a time, with eight bytes of memory per row
#: A declared level has at least `LEVEL_ROWS`; a column gives up at most this share of its rows for them. Weights can
#: neither bring back a level without rows, nor rely on one row (defensive mixtures: Hesterberg, Technometrics, 1995).
MOST_GIVEN_UP = 0.05


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
        """Draw n >= 1 synthetic rows. This costs no privacy. Without ``random_seed``, entropy is fresh.

        Each declared level gets at least five rows, if these are at most 5 % of all rows for a column.
        """
        n, rng = checks.whole("n", n), np.random.default_rng(random_seed)
        sizes = [g.size for g in self.groups]
        with_levels = [not is_numeric(b.column) for b in self.bins]
        codes = draw_network(self.nodes, self.tables, sizes, n, rng, strata=self.strata, with_levels=with_levels)
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
        how = ("strata", *(repr(b.step) for b in self.bins)) if self.strata else ()
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
    with_levels: Sequence[bool] = (),
) -> Codes:
    """Draw codes of all columns, shape (n, column), from conditional tables of shape (parent code, column code).

    Every code of the columns ``with_levels`` gets a few rows; see `LEVEL_ROWS`.
    """
    codes = np.zeros((n, len(sizes)), dtype=np.int64, order="F")  # columns are read one by one
    for node, table in zip(nodes, tables, strict=True):
        codes[:, node.column] = draw_codes(table, flat_codes(codes, sizes, node.parents), rng, strata=strata)
        if with_levels and with_levels[node.column]:  # before the columns that are drawn given this one
            _give_rows(codes[:, node.column], sizes[node.column], rng)
    return codes


def _give_rows(code: Codes, size: int, rng: np.random.Generator) -> None:
    """Change codes (row,), at random among the rows of common ones, until every code has a few rows."""
    least = min(LEVEL_ROWS, int(MOST_GIVEN_UP * len(code) / size))
    counts = np.bincount(code, minlength=size)
    wanted = np.repeat(np.arange(size), np.maximum(least - counts, 0))
    if len(wanted):
        common = np.flatnonzero(counts[code] >= len(code) / (2 * size))
        code[rng.choice(common, len(wanted), replace=False)] = wanted


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
