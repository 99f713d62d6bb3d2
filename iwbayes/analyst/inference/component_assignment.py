"""Which draw of which posterior stands where in a mixture over draws of the weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from iwbayes.arrays import Array


@dataclass(frozen=True, eq=False)
class ComponentAssignment:
    """Which draw of which part of a mixture goes where: its `part` and `index` in it, each (chain, draw).

    Parts come in random order, so that no chain looks like a walk from one part to the next. Each draw of a part is
    used once.
    """

    part: NDArray[np.intp]
    index: NDArray[np.intp]

    @classmethod
    def random(cls, n_parts: int, chains: int, draws: int, rng: np.random.Generator) -> ComponentAssignment:
        """Assign the parts evenly: their numbers of draws differ by one at most, in each chain and in all."""
        if n_parts == 1:
            index = np.tile(np.arange(draws), (chains, 1))
            return cls(np.zeros_like(index), index)
        order = rng.permutation(n_parts)[np.arange(chains * draws) % n_parts].reshape(chains, draws)
        part = rng.permuted(order, axis=1)
        index = np.empty_like(part)
        for chain, number in np.ndindex(chains, n_parts):
            mine = part[chain] == number
            index[chain, mine] = np.arange(np.count_nonzero(mine))
        return cls(part, index)

    @property
    def n_each(self) -> int:
        """Draws that each part must have in each chain."""
        return int(np.max(self.index)) + 1

    def take(self, parts: Sequence[Array]) -> Array:
        """Pool arrays (chain, n_each, ...), one a part, to (chain, draw, ...)."""
        chains = np.arange(len(self.part))[:, None]
        return np.stack(parts)[self.part, chains, self.index]
