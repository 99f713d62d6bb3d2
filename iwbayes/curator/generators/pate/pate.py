"""PATEGAN: a generator trained against a student of noisy votes (PATE-GAN; Jordon et al., ICLR 2019)."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from iwbayes._threads import one_torch_thread
from iwbayes.curator.generators.adversarial.architecture import Architecture, Heads
from iwbayes.curator.generators.adversarial.fitted import FittedGAN
from iwbayes.curator.generators.fitting import LedgerFit, check_positive, check_whole
from iwbayes.curator.privacy.accounting import check_budget, gaussian_epsilon, gaussian_multiplier
from iwbayes.curator.privacy.ledger import Ledger
from iwbayes.curator.progress import progress
from iwbayes.curator.protocols import PublicFacts
from iwbayes.curator.training.row_gradients import import_torch
from iwbayes.statement import Event
from iwbayes.tables import PrivateTable

#: Rows (or users) of a teacher, and teachers at most, where their number is left open.
ROWS_PER_TEACHER, MOST_TEACHERS = 5, 1000
#: Least dimension of the latent draws.
LATENT = 8
#: Votes for each encoded column, in units of a vote whose noise is as large as all teachers, that let the generator
#: move at its full rate.
VOTES_PER_FEATURE = 5000
#: Rounding that a composition of many events may lose against the noise of one.
_MARGIN = 1e-12


class FittedPATEGAN(FittedGAN):
    """A generator and the student of exactly its rows: public, nothing private is kept.

    ``log_ratio`` is the logit of the student's estimate of the share of teachers that call a row real. It orders rows,
    but is no calibrated log ratio: its scale tells how sure the vote is, which depends on how many rows a teacher has,
    and its sign may be off. Take weights from it as rough ones.
    """


@dataclass(frozen=True, kw_only=True)
class PATEGAN(LedgerFit["FittedPATEGAN"]):
    """GAN whose discriminator, the student, learns from noisy votes of teachers instead of private rows.

    The private rows are split at random among teachers, small classifiers of own private rows against generated ones.
    They vote on generated rows; the student is trained on the noisy shares of votes, the generator against the
    student. Neither sees a private row, and nothing of a teacher leaves but noisy votes.

    Parameters
    ----------
    teachers : int or None
        More of them drown the noise, each knows less. None takes one for 5 rows (or users), between 2 and 1000.
    rounds : int
        Of teachers, votes, student and generator in turn.
    votes : int
        Generated rows that are voted on in a round. The noise of a vote grows with the root of all votes, so that their
        number hardly matters.
    batch_size : int
        Generated rows a step of teachers and of the generator.
    teacher_steps, student_steps : int
        Steps a round.
    generator_hidden, student_hidden : tuple of int
        Widths of hidden layers.
    teacher_hidden : int
        Width of a teacher's one hidden layer.
    latent : int or None
        Dimension of the normal draws that the generator starts from; None takes the number of numeric columns, at
        least 8 and at most 64.
    generator_rate, student_rate : float
        Learning rates of Adam. The generator's is smaller in proportion where votes do not tell enough: T votes with
        noise of standard deviation s in the share of teachers tell as much as T/s**2 votes with noise of one, and 5000
        of these for each encoded column are enough. A generator that follows noise ends worse than it started.
    random_seed : int or None
        Of initial parameters and generated rows, which are public; never of privacy noise. None takes fresh entropy.
    progressbar : bool
        Show the rounds where the error stream is a terminal.

    Notes
    -----
    Sensitivity. A row belongs to one teacher, and so do all rows of a user: which one is drawn without looking at a
    value. Neighbours therefore differ in one teacher at most, in whatever way, and the number of teachers that call a
    generated row real by at most 1, whatever ``rows_per_user`` is and whether a row is replaced or nulled. With T votes
    in all, each gets Gaussian noise of sqrt(T) times the standard deviation of one mechanism with (epsilon, delta);
    votes are asked adaptively, and together they cost exactly (epsilon, delta). All are charged before training. There
    is no data-dependent term: a clear majority costs as much as a narrow one.

    Unlike the published version the student gets the noisy share itself, not the noisy majority: it has the same cost
    and tells more. The teachers' own loss is never shown, and a teacher whose training fails votes against every row.

    References
    ----------
    Jordon, Yoon & van der Schaar (ICLR 2019), algorithm 1; Papernot et al. (ICLR 2018), Gaussian noise on votes.

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
    #: It never takes delta 0: the noise is Gaussian.
    pure = False
    #: The fitted generator has a log ratio: its student's.
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

    def events(self, facts: PublicFacts, *, epsilon: float, delta: float = 0.0) -> tuple[Event, ...]:
        """Declare all votes as one event of many uses; there are at least as many rows (users) as teachers."""
        epsilon, delta = check_budget(epsilon, delta)
        self._n_teachers(facts)  # refuses too many
        count = int(self.rounds * self.votes)
        multiplier = math.sqrt(count) * gaussian_multiplier(epsilon, delta) * (1 + _MARGIN)
        own = max(gaussian_epsilon(multiplier, delta / count), sys.float_info.min)
        return (Event(self.label, "gaussian", own, delta / count, multiplier, count),)

    def _prepare(self) -> None:
        import_torch("PATEGAN")

    def _learn(
        self, private: PrivateTable, ledger: Ledger, facts: PublicFacts, epsilon: float, delta: float
    ) -> FittedPATEGAN:
        from iwbayes.curator.generators.pate.teachers import NoisyVotes, Teachers, assign
        from iwbayes.curator.generators.pate.training import PATETraining, PATETrainingSettings

        (event,) = self.events(facts, epsilon=epsilon, delta=delta)
        noise, rng = ledger.charge(event), np.random.default_rng(self.random_seed)
        n_teachers, n_owners = self._n_teachers(facts), facts.n_users or facts.n_private
        # the generator moves the less, the less all votes together tell
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
            # each teacher has about as many rows or, with users, all rows of as many users
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
            raise ValueError(f"{found} teachers need at least as many {kind}; there are {owners}. Take fewer teachers.")
        return found
