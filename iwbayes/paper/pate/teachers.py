"""Teachers of PATE-GAN: classifiers that learn from disjoint private rows and release only noisy counts of votes."""

from __future__ import annotations

import math
from typing import NoReturn

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import silu, softplus

from iwbayes.curator.privacy.mechanisms import LEAST_STEPS
from iwbayes.curator.privacy.noise import NoiseSource
from iwbayes.utils.arrays import Array, IntArray

#: Ridge penalty of a teacher, relative to the mean loss of its rows.
PENALTY = 0.02
LEARNING_RATE = 0.02


def assign(order: IntArray, n_teachers: int, users: IntArray | None) -> IntArray:
    """Assign each row to a teacher, shape (row,). ``order`` is a random permutation of the rows (or of the users).

    It must not depend on any value. All rows of a user go to one teacher. The numbers of rows (or users) per teacher
    differ by at most one.
    """
    teacher = np.empty(len(order), dtype=np.int64)
    teacher[order] = np.arange(len(order)) % n_teachers
    return teacher if users is None else teacher[users]


class Teachers:
    """Classifiers of private against generated rows. Each has different private rows, and all are trained in parallel.

    A teacher is linear in the standardised row plus a small perceptron of width ``hidden``. All tensors have the
    teacher as first dimension, and no operation mixes teachers. The tensors' shapes and initial parameters are public.
    A teacher therefore depends only on its private rows and on public values.

    The object contains private rows. It never prints them, and it cannot be copied or pickled. Use `NoisyVotes` to
    release votes.

    Parameters
    ----------
    rows : ndarray, shape (row, feature)
        Private rows, standardised by public constants.
    teacher : ndarray of int, shape (row,)
        Teacher of each row.
    n_teachers : int
        Number of teachers.
    size : int
        Public bound on the number of rows of one teacher.
    hidden : int
        Width of the hidden layer.
    rng : numpy.random.Generator
        Source of the initial parameters.
    """

    __slots__ = ("_optimizer", "_parameters", "_rows", "_shares", "n")

    def __init__(
        self, rows: Array, teacher: IntArray, n_teachers: int, size: int, hidden: int, rng: np.random.Generator
    ) -> None:
        self.n = n_teachers
        counts = np.bincount(teacher, minlength=n_teachers)
        if np.max(counts) > size:
            raise RuntimeError(
                "a teacher has more rows than the public bound allows. This is a bug in iwbayes; please report it. "
                "No vote was released."
            )
        d = rows.shape[1]
        own, shares = np.zeros((n_teachers, size, d), dtype=np.float32), np.zeros((n_teachers, size), dtype=np.float32)
        by_teacher = np.argsort(teacher, kind="stable")
        index = np.arange(len(teacher)) - np.repeat(np.cumsum(counts) - counts, counts)
        own[teacher[by_teacher], index] = rows[by_teacher]
        shares[teacher[by_teacher], index] = 1 / counts[teacher[by_teacher]]
        self._rows, self._shares = torch.from_numpy(own), torch.from_numpy(shares)
        start = {
            "linear": np.zeros((n_teachers, d, 1)),
            "constant": np.zeros((n_teachers, 1, 1)),
            "inner": rng.normal(0, 1 / math.sqrt(d), (n_teachers, d, hidden)),
            "shift": rng.normal(0, 0.5, (n_teachers, 1, hidden)),
            "outer": np.zeros((n_teachers, hidden, 1)),
        }
        self._parameters = {
            name: torch.tensor(value, dtype=torch.float32, requires_grad=True) for name, value in start.items()
        }
        self._optimizer = torch.optim.Adam(list(self._parameters.values()), lr=LEARNING_RATE)

    def _logits(self, rows: Tensor) -> Tensor:
        """Return logits, shape (teacher, row), for ``rows`` of shape (teacher or 1, row, feature)."""
        part = self._parameters
        rows = rows.expand(self.n, -1, -1)
        inner = silu(torch.baddbmm(part["shift"], rows, part["inner"]))
        outer: Tensor = torch.baddbmm(part["constant"], rows, part["linear"]) + torch.bmm(inner, part["outer"])
        return outer.squeeze(-1)

    def learn(self, generated: Tensor, steps: int) -> None:
        """Train all teachers for some steps against the same generated rows, shape (row, feature).

        In each teacher's loss, private and generated rows have the same total weight. The sum of the losses is
        differentiated. Each term contains the parameters of only one teacher.
        """
        for _ in range(steps):
            self._optimizer.zero_grad()
            loss = (self._shares * softplus(-self._logits(self._rows))).sum()
            loss = loss + softplus(self._logits(generated[None])).mean(dim=1).sum()
            for parameter in self._parameters.values():
                loss = loss + PENALTY / 2 * (parameter**2).sum()
            loss.backward()
            self._optimizer.step()

    def _count(self, rows: Tensor) -> IntArray:
        """Return the exact, private number of teachers that call each row real, shape (row,). Use `NoisyVotes`.

        A teacher whose training failed calls no row real. An error would reveal something about its private rows.
        """
        with torch.no_grad():
            votes = (self._logits(rows[None]) > 0).sum(dim=0)
        return np.asarray(votes.numpy(), dtype=np.int64)

    def __repr__(self) -> str:
        return f"Teachers({self.n})"

    def __reduce__(self) -> NoReturn:
        raise TypeError("Teachers cannot be copied or pickled, because they contain private rows.")


class NoisyVotes:
    """Release the teachers' votes with Gaussian noise, at most as many as were charged.

    Each row (or user) belongs to one teacher. Neighbouring tables thus differ in one teacher, and the count of votes
    for a generated row changes by at most 1, for any number of rows per user.

    Parameters
    ----------
    teachers : Teachers
    noise : NoiseSource
        Source that the ledger returned for the charge of all votes.
    scale : float
        Standard deviation of the noise, in votes.
    left : int
        Number of charged votes.
    """

    __slots__ = ("_grid", "_noise", "_scale", "_teachers", "left")

    def __init__(self, teachers: Teachers, noise: NoiseSource, scale: float, left: int) -> None:
        self._teachers, self._noise, self._scale, self.left = teachers, noise, scale, left
        # the grid is so fine that discrete noise is nearly continuous: see `mechanisms.gaussian`
        self._grid = 2 ** max(0, math.ceil(math.log2(LEAST_STEPS / scale)))

    @property
    def noise_sd(self) -> float:
        """Standard deviation of the noise in a share of votes."""
        return self._scale / self._teachers.n

    def ask(self, rows: Tensor) -> Array:
        """Return the noisy share of teachers that call each row real, shape (row,). It uses one charged vote per row.

        The result is public.
        """
        if len(rows) > self.left:
            raise RuntimeError(
                f"the number of rows must be at most the number of charged votes that are left, {self.left}; "
                f"got {len(rows)}."
            )
        self.left -= len(rows)
        noisy = self._noise.gaussian(self._grid * self._teachers._count(rows), self._grid * self._scale)
        return noisy / (self._grid * self._teachers.n)

    def __repr__(self) -> str:
        return f"NoisyVotes({self.left} left)"

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "NoisyVotes cannot be copied or pickled, because they contain private rows and the number of votes left."
        )
