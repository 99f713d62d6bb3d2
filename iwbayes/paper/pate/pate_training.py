"""Training of PATE-GAN: a generator against a student that learns only from noisy votes on generated rows."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import softplus

from iwbayes.paper.adversarial.architecture import Architecture
from iwbayes.paper.adversarial.gan_networks import make_discriminator, make_generator
from iwbayes.paper.adversarial.gan_training import (
    AVERAGED_SHARE,
    BETAS,
    LEAST_SPREAD,
    START_ROWS,
    Trained,
    squared_slope,
)
from iwbayes.paper.dpsgd.parameters import Average, put_parameters
from iwbayes.paper.pate.teachers import NoisyVotes, Teachers

#: Prior standard deviation of the student's parameters. The prior shrinks the student more if the votes are noisier.
PRIOR_SCALE = 1.0
#: Penalty on the student's squared gradient at generated rows. It keeps student and generator from circling.
SLOPE_PENALTY = 0.1
#: Share of the rounds, the last ones, in which the generator is frozen and only the student is trained.
FROZEN_SHARE = 0.2
#: Share of the rounds, the most recent ones, whose votes the student learns from.
MEMORY_SHARE = 0.2
#: In the first round, teachers take this many times the usual number of steps.
FIRST_STEPS = 20


@dataclass(frozen=True)
class PATETrainingSettings:
    """Public settings of one training; see the parameters of `PATEGAN`."""

    rounds: int
    votes: int
    batch_size: int
    teacher_steps: int
    student_steps: int
    generator_rate: float
    student_rate: float


class PATETraining:
    """One training: in each round train the teachers, ask for votes, and train the student and the generator.

    The student is the discriminator. ``rng`` is public; it draws initial parameters and generated rows.
    """

    def __init__(self, architecture: Architecture, settings: PATETrainingSettings, rng: np.random.Generator) -> None:
        self._architecture, self._settings = architecture, settings
        self._source = torch.Generator().manual_seed(int(rng.integers(2**62)))
        self._generator = make_generator(architecture, rng)
        start = self._batch(START_ROWS).double().numpy()
        #: Public constants that standardise rows, shape (feature,), from rows of the untrained generator.
        self.center, self.scale = start.mean(axis=0), np.maximum(start.std(axis=0), LEAST_SPREAD)
        self._student: Any = make_discriminator(architecture, rng, self.center, self.scale)

    def _batch(self, n: int) -> Tensor:
        with torch.no_grad():
            return self._architecture.draw(self._generator, n, self._source)

    def _standardised(self, rows: Tensor) -> Tensor:
        return (rows - self._student.center) / self._student.scale

    def run(self, teachers: Teachers, votes: NoisyVotes, advance: Callable[[], None]) -> Trained:
        """Run all rounds and call ``advance`` after each. Raise RuntimeError if student or generator diverged."""
        settings, rounds = self._settings, self._settings.rounds
        remembered, frozen = max(1, round(MEMORY_SHARE * rounds)), math.ceil(FROZEN_SHARE * rounds)
        moving = rounds - frozen
        learner = torch.optim.Adam(self._student.parameters(), lr=settings.student_rate)
        adam = torch.optim.Adam(self._generator.parameters(), lr=settings.generator_rate, betas=BETAS)
        memory: list[tuple[Tensor, Tensor]] = []
        average, settled = Average(self._generator), Average(self._student)
        for turn in range(rounds):
            steps = settings.teacher_steps * (1 if turn else FIRST_STEPS)
            teachers.learn(self._standardised(self._batch(settings.batch_size)), steps)
            asked = self._batch(settings.votes)
            # this is the only use of the teachers
            shares = torch.from_numpy(votes.ask(self._standardised(asked)).astype(np.float32))
            memory = [*memory, (asked, shares)][-remembered:]
            self._learn(learner, memory, votes.noise_sd, SLOPE_PENALTY if turn < moving else 0.0)
            if turn < moving:
                self._generate(adam, settings.generator_rate * (1 - turn / moving))
                if turn >= moving - math.ceil(AVERAGED_SHARE * moving):
                    average.add()
            if turn == moving - 1:
                put_parameters(self._generator, average.parameters())
                memory = []  # these votes were on rows of earlier generators
            if turn >= rounds - math.ceil(AVERAGED_SHARE * frozen):
                settled.add()
            advance()
        return Trained(average.parameters(), settled.parameters(), self.center, self.scale)

    def _learn(self, learner: Any, memory: list[tuple[Tensor, Tensor]], noise_sd: float, slope_penalty: float) -> None:
        """Move the student towards the noisy shares of votes of the last rounds.

        The loss log(1 + exp(f)) - share f is linear in the share. Noise in the share, even outside [0, 1], therefore
        does not bias the loss. The ridge penalty is that of a normal prior with standard deviation `PRIOR_SCALE`, if
        the variance of a label is the noise variance plus that of a fair coin.
        """
        rows, shares = (torch.cat(parts) for parts in zip(*memory, strict=True))
        penalty = (1 + 4 * noise_sd**2) / (PRIOR_SCALE**2 * len(rows))
        for _ in range(self._settings.student_steps):
            learner.zero_grad(set_to_none=True)
            logits = self._student(rows)
            loss = (softplus(logits) - shares * logits).mean()
            loss = loss + penalty / 2 * sum((value**2).sum() for value in self._student.parameters())
            if slope_penalty:
                loss = loss + slope_penalty / 2 * squared_slope(self._student, memory[-1][0], self.scale)[1]
            if not math.isfinite(loss.item()):
                raise RuntimeError(
                    "the training diverged: the student's loss is not finite. Pass smaller learning rates, or leave "
                    "them at their defaults. What was charged stays charged."
                )
            loss.backward()
            learner.step()

    def _generate(self, adam: Any, rate: float) -> None:
        """Take a step of the generator. It uses the student and no private row."""
        for group in adam.param_groups:
            group["lr"] = rate
        adam.zero_grad(set_to_none=True)
        rows = self._architecture.draw(self._generator, self._settings.batch_size, self._source)
        softplus(-self._student(rows)).mean().backward()
        adam.step()
