"""PATEGAN: a generator trained against a student that learns from noisy votes (PATE-GAN; Jordon et al., ICLR 2019)."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from iwbayes.curator.generators.ledger_fit import LedgerFit, check_positive, check_whole
from iwbayes.curator.privacy.accounting import check_budget, gaussian_epsilon, gaussian_multiplier
from iwbayes.curator.privacy.ledger import Ledger
from iwbayes.curator.protocols import PublicFacts
from iwbayes.paper.adversarial.architecture import Architecture, Heads
from iwbayes.paper.adversarial.fitted_gan import FittedGAN
from iwbayes.paper.dpsgd.row_gradients import import_torch
from iwbayes.release.statement import Event
from iwbayes.tables import PrivateTable
from iwbayes.utils.progress import progress
from iwbayes.utils.threads import one_torch_thread

#: Defaults: rows (or users) per teacher, and largest number of teachers.
ROWS_PER_TEACHER, MOST_TEACHERS = 5, 1000
#: Smallest dimension of the latent draws.
LATENT = 8
#: Votes per encoded feature at which the generator uses its full rate. One unit is a vote whose noise has standard
#: deviation 1 in the share of teachers.
VOTES_PER_FEATURE = 5000
#: Relative increase of the noise that covers the rounding errors in the composition of many events.
_MARGIN = 1e-12


class FittedPATEGAN(FittedGAN):
    """A generator and the student that was trained on its final rows. It is public: it keeps nothing private.

    ``log_ratio`` is the logit of the student's estimate of the share of teachers that call a row real. It orders the
    rows, but it is not a calibrated log ratio. Its scale depends on how certain the votes are, and so on the number of
    rows per teacher, and its sign may be wrong. Weights from it are rough.

    Parameters
    ----------
    name : str
        "PATEGAN".
    architecture : Architecture
        Schema and network sizes.
    distribution : None
        A PATEGAN has no condition.
    trained : Trained
        Parameters of the generator and the student.
    """


@dataclass(frozen=True, kw_only=True)
class PATEGAN(LedgerFit["FittedPATEGAN"]):
    """GAN whose discriminator, the student, learns from noisy votes of teachers instead of private rows.

    The private rows are split at random between teachers. A teacher is a small classifier that learns to tell its
    private rows from generated rows. The teachers vote on generated rows, and the student learns from the noisy shares
    of votes. The generator learns from the student. Generator and student never read a private row, and only noisy
    votes of the teachers are released.

    Parameters
    ----------
    teachers : int or None, default None
        Number of teachers, at least 2. With more teachers the noise in a share of votes is smaller, but each teacher
        has fewer rows. None uses one teacher for every 5 rows (or users), between 2 and 1000.
    rounds : int, default 100
        Number of rounds, at least 4. Each round trains the teachers, asks for votes, and trains student and generator.
    votes : int, default 256
        Number of generated rows to vote on in each round. The noise of a vote grows with the square root of the total
        number of votes, so this setting matters little.
    batch_size : int, default 256
        Number of generated rows per step of the teachers and of the generator.
    teacher_steps, student_steps : int, default 5 and 10
        Training steps in each round.
    generator_hidden, student_hidden : tuple of int, default (64, 64) and (32,)
        Widths of the hidden layers.
    teacher_hidden : int, default 8
        Width of a teacher's single hidden layer.
    latent : int or None, default None
        Number of normal draws per row, from which the generator makes it. None uses one for each numeric feature, at
        least 8 and at most 64.
    generator_rate, student_rate : float, default 0.003 and 0.01
        Learning rates of Adam. The generator's rate is reduced if the votes carry little information, because a
        generator that learns from noise gets worse (see Notes).
    random_seed : int or None, default None
        Seed of the initial parameters and the generated rows, which are public. It never seeds privacy noise. None uses
        fresh entropy.
    progressbar : bool, default True
        Show a progress bar if standard error is a terminal.

    Raises
    ------
    ValueError
        If a setting is outside its range. `events` and `fit` raise it if there are more teachers than rows (or users).

    Notes
    -----
    All rows of a user belong to one teacher, so neighbouring tables differ in at most one vote on a generated row,
    whatever ``rows_per_user`` is. The T votes together cost exactly (epsilon, delta), charged before training; a clear
    majority costs as much as a narrow one. The published version gives the student the noisy majority; here it gets the
    noisy share, which costs the same and carries more information.

    T votes with noise of standard deviation s in the share of teachers carry as much information as T/s**2 votes with
    noise of standard deviation 1. If there are fewer than 5000 such votes per encoded feature, the generator's learning
    rate is reduced in proportion.

    References
    ----------
    Jordon, Yoon & van der Schaar, PATE-GAN: generating synthetic data with differential privacy guarantees, ICLR 2019,
    algorithm 1. Papernot et al., Scalable private learning with PATE, ICLR 2018 (Gaussian noise on votes).

    Examples
    --------
    >>> import iwbayes as iw
    >>> facts = PublicFacts(iw.Schema(iw.Real("x", 0, 1)), n_private=1000, n_synthetic=0)
    >>> event = PATEGAN(rounds=10, votes=20).events(facts, epsilon=1, delta=1e-6)[0]
    >>> event.mechanism, event.count
    ('gaussian', 200)
    """

    #: Name of the event in the statement.
    label: ClassVar[str] = "PATEGAN votes"
    #: It needs a delta above 0, because the noise is Gaussian.
    pure = False
    #: The fitted generator has a log ratio, from its student.
    gives_log_ratio: ClassVar[bool] = True

    teachers: int | None = None
    rounds: int = 100
    votes: int = 256
    batch_size: int = 256
    teacher_steps: int = 5
    student_steps: int = 10
    generator_hidden: tuple[int, ...] = (64, 64)
    student_hidden: tuple[int, ...] = (32,)
    teacher_hidden: int = 8
    latent: int | None = None
    generator_rate: float = 0.003
    student_rate: float = 0.01
    random_seed: int | None = None
    progressbar: bool = True

    def __post_init__(self) -> None:
        for name in ("generator_hidden", "student_hidden"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        check_whole(
            self, teachers=2, rounds=4, votes=1, batch_size=1, teacher_steps=1, student_steps=1, teacher_hidden=1,
            generator_hidden=1, student_hidden=1, latent=1, random_seed=0,
        )  # fmt: skip
        check_positive(self, "generator_rate", "student_rate")

    def _events(self, facts: PublicFacts, *, epsilon: float, delta: float = 0.0) -> tuple[Event, ...]:
        """Return the event that `fit` will charge to the ledger: all votes, as one event with many uses.

        ValueError if there are more teachers than rows (or users).
        """
        epsilon, delta = check_budget(epsilon, delta)
        self._n_teachers(facts)  # raises if there are too many
        count = int(self.rounds * self.votes)
        multiplier = math.sqrt(count) * gaussian_multiplier(epsilon, delta) * (1 + _MARGIN)
        own = max(gaussian_epsilon(multiplier, delta / count), sys.float_info.min)
        return (Event(self.label, "gaussian", own, delta / count, multiplier, count),)

    def _prepare(self) -> None:
        import_torch("PATEGAN")

    def _learn(
        self, private: PrivateTable, ledger: Ledger, facts: PublicFacts, epsilon: float, delta: float
    ) -> FittedPATEGAN:
        from iwbayes.paper.pate.pate_training import PATETraining, PATETrainingSettings
        from iwbayes.paper.pate.teachers import NoisyVotes, Teachers, assign

        (event,) = self._events(facts, epsilon=epsilon, delta=delta)
        noise, rng = ledger.charge(event), np.random.default_rng(self.random_seed)
        n_teachers, n_owners = self._n_teachers(facts), facts.n_users or facts.n_private
        # the less information all votes carry together, the slower the generator learns
        told = event.count * (n_teachers / (event.noise_multiplier or 1.0)) ** 2
        trust = min(1.0, told / (VOTES_PER_FEATURE * facts.schema.n_features))
        settings = PATETrainingSettings(
            rounds=int(self.rounds),
            votes=int(self.votes),
            batch_size=int(self.batch_size),
            teacher_steps=int(self.teacher_steps),
            student_steps=int(self.student_steps),
            generator_rate=trust * float(self.generator_rate),
            student_rate=float(self.student_rate),
        )
        heads = Heads(facts.schema)
        latent = self.latent or max(LATENT, min(len(heads.numbers), 64))
        architecture = Architecture(heads, int(latent), self.generator_hidden, self.student_hidden)
        with one_torch_thread(), progress(self.progressbar, "training PATEGAN", self.rounds) as advance:
            training = PATETraining(architecture, settings, rng)
            # teachers have about equal numbers of rows or, with users, of users (with all their rows)
            teacher = assign(noise.permutation(n_owners), n_teachers, private.users)
            most = math.ceil(n_owners / n_teachers) * facts.rows_per_user
            rows = (facts.schema.encode(private.frame) - training.center) / training.scale
            teachers = Teachers(rows, teacher, n_teachers, most, int(self.teacher_hidden), rng)
            votes = NoisyVotes(teachers, noise, float(event.noise_multiplier or 0.0), event.count)
            trained = training.run(teachers, votes, advance)
        return FittedPATEGAN("PATEGAN", architecture, None, trained)

    def _n_teachers(self, facts: PublicFacts) -> int:
        """Public number of teachers."""
        owners = facts.n_users or facts.n_private
        found = min(max(2, owners // ROWS_PER_TEACHER), MOST_TEACHERS) if self.teachers is None else int(self.teachers)
        if found > owners:
            kind = "rows" if facts.n_users is None else "users"
            raise ValueError(
                f"teachers must be at most the number of {kind}, {owners}; got {found}. Pass fewer teachers."
            )
        return found
