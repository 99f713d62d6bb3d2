"""Teachers of PATE-GAN: classifiers of disjoint private rows, of which nothing leaves but noisy counts of votes."""

from __future__ import annotations

import math
from typing import NoReturn

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import silu, softplus

from iwbayes.arrays import Array, IntArray
from iwbayes.curator.privacy.mechanisms import LEAST_STEPS
from iwbayes.curator.privacy.noise import NoiseSource

#: Ridge penalty of a teacher, against the mean loss of its few rows.
PENALTY = 0.02
LEARNING_RATE = 0.02


def assign(order: IntArray, n_teachers: int, users: IntArray | None) -> IntArray:
    """Teacher of each row, from a random order of rows, or of users, that no value had a part in.

    All rows of a user go to one teacher, and the same number of rows (users) to each, give or take one.
    """
    teacher = np.empty(len(order), dtype=np.int64)
    teacher[order] = np.arange(len(order)) % n_teachers
    return teacher if users is None else teacher[users]


class Teachers:
    """Classifiers of private against generated rows, each of its own private rows, trained side by side.

    Each is linear in the row, standardised by public constants, plus a small perceptron, ``hidden`` wide. The tensors
    of all teachers have the teacher as their first dimension and no operation mixes it, and their shapes (``size``
    bounds the rows of one teacher) and initial parameters (from ``rng``) are public: what one teacher learns depends on
    its own private rows and on public values alone.

    It holds private rows: it prints nothing of them, and is neither copied nor pickled. Ask `NoisyVotes`.
    """

    __slots__ = ("_optimizer", "_parameters", "_rows", "_shares", "n")

    def __init__(
        self, rows: Array, teacher: IntArray, n_teachers: int, size: int, hidden: int, rng: np.random.Generator
    ) -> None:
        self.n = n_teachers
        counts = np.bincount(teacher, minlength=n_teachers)
        if np.max(counts) > size:
            raise RuntimeError("a teacher has more rows than their public bound. This is a defect; nothing was asked.")
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
        """Logit of each teacher for each row, shape (teacher, row); ``rows`` of shape (teacher or 1, row, feature)."""
        part = self._parameters
        rows = rows.expand(self.n, -1, -1)
        inner = silu(torch.baddbmm(part["shift"], rows, part["inner"]))
        outer: Tensor = torch.baddbmm(part["constant"], rows, part["linear"]) + torch.bmm(inner, part["outer"])
        return outer.squeeze(-1)

    def learn(self, generated: Tensor, steps: int) -> None:
        """Take steps against generated rows, which all teachers share; each loss has both classes normalised.

        The sum over teachers is differentiated, in which no term of one teacher holds a parameter of another.
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
        """Exact, private number of teachers that call each row real, shape (row,); see `NoisyVotes`.

        A teacher whose training failed calls nothing real: an error would tell.
        """
        with torch.no_grad():
            votes = (self._logits(rows[None]) > 0).sum(dim=0)
        return np.asarray(votes.numpy(), dtype=np.int64)

    def __repr__(self) -> str:
        return f"Teachers({self.n})"

    def __reduce__(self) -> NoReturn:
        raise TypeError("Teachers hold private rows; they cannot be copied.")


class NoisyVotes:
    """The only way to the teachers' votes: counts with Gaussian noise, as many as were charged.

    A row (a user) belongs to one teacher, so that neighbours differ in one teacher, in whatever way, and the count of
    votes for a generated row by at most 1, for any number of rows a user. The ledger handed out ``noise`` against the
    charge of all votes; ``scale`` is its standard deviation in votes, ``left`` the number of votes that are charged.
    """

    __slots__ = ("_grid", "_noise", "_scale", "_teachers", "left")

    def __init__(self, teachers: Teachers, noise: NoiseSource, scale: float, left: int) -> None:
        self._teachers, self._noise, self._scale, self.left = teachers, noise, scale, left
        # a grid so fine that the discrete noise is as good as continuous: see `mechanisms.gaussian`
        self._grid = 2 ** max(0, math.ceil(math.log2(LEAST_STEPS / scale)))

    @property
    def noise_sd(self) -> float:
        """Standard deviation of the noise in a share of votes."""
        return self._scale / self._teachers.n

    def ask(self, rows: Tensor) -> Array:
        """Noisy share of the teachers that call each row real, one charged vote a row; public."""
        if len(rows) > self.left:
            raise RuntimeError(f"{self.left} of the charged votes are left; {len(rows)} were asked for.")
        self.left -= len(rows)
        noisy = self._noise.gaussian(self._grid * self._teachers._count(rows), self._grid * self._scale)
        return noisy / (self._grid * self._teachers.n)

    def __repr__(self) -> str:
        return f"NoisyVotes({self.left} left)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("NoisyVotes hold private rows and a count of charged votes; they cannot be copied.")
