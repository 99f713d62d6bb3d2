"""Tables of counts of all columns and of all pairs of columns: exact counting, and the form that fits work on."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from iwbayes.arrays import Array
from iwbayes.curator.generators.tables.bins import Codes


class Tables(NamedTuple):
    """Counts, or their standard weights: of all columns, and of all pairs as one symmetric matrix of blocks."""

    columns: Array
    pairs: Array


@dataclass(frozen=True)
class Grouping:
    """How the codes of each column are grouped in tables of pairs.

    Parameters
    ----------
    of : tuple of ndarray of int, each of shape (code,)
        Group of each code, counting from 0 without gaps.
    """

    of: tuple[Codes, ...]

    @cached_property
    def sizes(self) -> list[int]:
        """Number of groups of each column."""
        return [int(np.max(groups)) + 1 for groups in self.of]

    @cached_property
    def code_starts(self) -> NDArray[np.int64]:
        """Where each column's codes begin among all columns', and where the last one's end."""
        return np.concatenate([[0], np.cumsum([len(groups) for groups in self.of])])

    @cached_property
    def starts(self) -> NDArray[np.int64]:
        """Where each column's groups begin among all columns', and where the last one's end."""
        return np.concatenate([[0], np.cumsum(self.sizes)])

    @cached_property
    def flat(self) -> Codes:
        """Group of each column's code among all columns' groups, shape (all codes,)."""
        return np.concatenate([groups + start for groups, start in zip(self.of, self.starts, strict=False)])

    @cached_property
    def matrix(self) -> csr_array:
        """Indicator of code and group, shape (all codes, all groups)."""
        n_codes = len(self.flat)
        return csr_array((np.ones(n_codes), (np.arange(n_codes), self.flat)), shape=(n_codes, self.starts[-1]))

    @cached_property
    def indices(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Rows and columns, in the matrix of pairs, of the cells of all pairs' tables in their order."""
        rows, columns = [], []
        ends = [np.arange(a, b) for a, b in zip(self.starts[:-1], self.starts[1:], strict=True)]
        for first, left in enumerate(ends):
            for right in ends[first + 1 :]:
                grid = np.meshgrid(left, right, indexing="ij")
                rows.append(grid[0].ravel())
                columns.append(grid[1].ravel())
        empty = np.zeros(0, dtype=np.int64)
        return np.concatenate([empty, *rows]), np.concatenate([empty, *columns])

    def count_pairs(self, codes: Codes) -> Codes:
        """Exact counts of all pairs of columns over their groups, one table after the other."""
        grouped = np.column_stack([groups[codes[:, index]] for index, groups in enumerate(self.of)])
        tables = [np.zeros(0, dtype=np.int64)]
        for first, size in enumerate(self.sizes):
            for second in range(first + 1, len(self.sizes)):
                flat = grouped[:, first] * self.sizes[second] + grouped[:, second]
                tables.append(np.bincount(flat, minlength=size * self.sizes[second]))
        return np.concatenate(tables)

    def count_columns(self, codes: Codes) -> Codes:
        """Exact counts of all columns, one after the other."""
        return np.bincount((codes + self.code_starts[:-1]).ravel(), minlength=self.code_starts[-1])

    def symmetric(self, pairs: NDArray[Any]) -> Array:
        """Tables of pairs, one after the other, as one symmetric matrix; zero within a column's own block."""
        matrix = np.zeros((self.starts[-1], self.starts[-1]))
        matrix[self.indices] = pairs
        return matrix + matrix.T

    def tables(self, columns: NDArray[Any], pairs: NDArray[Any]) -> Tables:
        """Tables in the form of the objective."""
        return Tables(np.asarray(columns, dtype=np.float64), self.symmetric(pairs))
