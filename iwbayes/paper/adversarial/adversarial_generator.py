"""Shared base of the adversarial generators: settings, events, and training under a ledger."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from iwbayes.curator.generators.ledger_fit import LedgerFit, check_positive, check_whole
from iwbayes.curator.generators.tables.bins import ColumnBins
from iwbayes.curator.generators.tables.counts import noisy_counts
from iwbayes.curator.privacy.accounting import check_budget
from iwbayes.curator.privacy.ledger import Ledger
from iwbayes.curator.protocols import PublicFacts
from iwbayes.paper.adversarial.architecture import Architecture, Heads, TrainingSettings
from iwbayes.paper.adversarial.fitted_gan import FittedGAN, FittedWassersteinGAN
from iwbayes.paper.dpsgd.parameters import working_device
from iwbayes.paper.dpsgd.private_steps import PrivateSteps
from iwbayes.paper.dpsgd.row_gradients import import_torch
from iwbayes.release.statement import Event
from iwbayes.schema import Schema
from iwbayes.schema.columns import Real
from iwbayes.tables import PrivateTable
from iwbayes.utils import checks
from iwbayes.utils.arrays import Array
from iwbayes.utils.progress import progress
from iwbayes.utils.threads import one_torch_thread

_LOSSES = ("logistic", "wasserstein")
_OPTIMIZERS = ("momentum", "adam")
#: Expected private rows in a step if ``sampling_probability`` is None; smaller tables use all rows in each step.
ROWS_A_STEP = {False: 2048, True: 512}
#: Defaults for tables (False) and for images (True).
STEPS = {False: 600, True: 1000}
GENERATOR_RATE = {False: 1e-2, True: 5e-3}
GENERATOR_HIDDEN = {False: (64, 64), True: (32, 16, 8)}
DISCRIMINATOR_HIDDEN = {False: (32,), True: (16, 32)}
BATCH_SIZE = {False: 1024, True: 128}
#: Smallest dimension of the latent draws.
LATENT = {False: 8, True: 32}
#: Information of the private steps per encoded feature (see `_trust`) at which the generator uses its full rate.
TOLD_PER_FEATURE = 1000
#: Smallest count of a level of the condition, so that every level can be drawn.
LEAST_COUNT = 0.5


@dataclass(frozen=True, kw_only=True)
class Adversarial(LedgerFit[FittedGAN | FittedWassersteinGAN]):
    """Settings and `fit` of the four adversarial generators; see `GAN` for the parameters."""

    mechanism: ClassVar[str] = "none"

    loss: str = "logistic"
    steps: int | None = None
    discriminator_steps: int = 5
    frozen_share: float = 0.2
    averaged_share: float = 0.5
    sampling_probability: float | None = None
    batch_size: int | None = None
    generator_hidden: tuple[int, ...] | None = None
    discriminator_hidden: tuple[int, ...] | None = None
    latent: int | None = None
    image_shape: tuple[int, int] | None = None
    generator_rate: float | None = None
    discriminator_rate: float | None = None
    discriminator_optimizer: str | None = None
    gradient_penalty: float = 1.0
    weight_clip: float = 0.5
    device: str = "cpu"
    random_seed: int | None = None
    progressbar: bool = True

    def __post_init__(self) -> None:
        checks.one_of("loss", self.loss, _LOSSES)
        if self.discriminator_optimizer not in (None, *_OPTIMIZERS):
            raise ValueError(
                f"discriminator_optimizer must be one of {list(_OPTIMIZERS)}, or None for the default; got "
                f"{self.discriminator_optimizer!r}."
            )
        for name in ("generator_hidden", "discriminator_hidden", "image_shape"):
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, tuple(value))
        shape = self.image_shape
        if shape is not None and len(shape) != 2:
            raise ValueError(f"image_shape must be (height, width); got {shape!r}. Pass for example (28, 28).")
        check_whole(
            self, steps=1, discriminator_steps=1, batch_size=1, latent=1, generator_hidden=1, discriminator_hidden=1,
            image_shape=1, random_seed=0,
        )  # fmt: skip
        if shape is not None and min(shape) < 2 ** len(self._widths[1]):
            raise ValueError(
                f"image_shape must have sides of at least {2 ** len(self._widths[1])} pixels, because each "
                f"discriminator layer halves the image; got {shape!r}. Pass fewer discriminator_hidden layers."
            )
        check_positive(self, "generator_rate", "discriminator_rate", "weight_clip")
        if not 0 <= self.gradient_penalty < math.inf:
            raise ValueError(f"gradient_penalty must be at least 0 and finite; got {self.gradient_penalty!r}.")
        checks.share("frozen_share", self.frozen_share)
        if not 0 <= self.averaged_share <= 1:
            raise ValueError(
                f"averaged_share must be between 0 and 1; got {self.averaged_share!r}. Pass 0 to release the last step."
            )
        _ = self._steps(1000)  # raises for invalid steps, sampling probabilities and clip norms
        if self._settings.frozen_steps + self.discriminator_steps > self._settings.steps:
            raise ValueError(
                f"steps must leave at least discriminator_steps={self.discriminator_steps} steps before the frozen "
                f"share, so that the generator moves once; got steps={self._settings.steps}. Pass a larger steps."
            )

    @property
    def label(self) -> str:
        """Name of the generator in the release's statement."""
        return type(self).__name__

    @property
    def pure(self) -> bool:
        """Whether `fit` accepts delta 0. This is False for private generators, because their noise is Gaussian."""
        return self.mechanism == "none"

    @property
    def gives_log_ratio(self) -> bool:
        """Whether the fitted generator has a log ratio. It has none with ``loss="wasserstein"``."""
        return self.loss == "logistic"

    @property
    def _condition(self) -> str | None:
        return getattr(self, "condition", None)

    @property
    def _images(self) -> bool:
        return self.image_shape is not None

    @property
    def _widths(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        generator = self.generator_hidden or GENERATOR_HIDDEN[self._images]
        return generator, self.discriminator_hidden or DISCRIMINATOR_HIDDEN[self._images]

    @property
    def _settings(self) -> TrainingSettings:
        steps = STEPS[self._images] if self.steps is None else int(self.steps)
        default = "adam" if self._images and self.loss == "logistic" else "momentum"
        return TrainingSettings(
            loss=self.loss,
            steps=steps,
            discriminator_steps=int(self.discriminator_steps),
            frozen_steps=math.ceil(self.frozen_share * steps),
            batch_size=int(self.batch_size or BATCH_SIZE[self._images]),
            generator_rate=float(self.generator_rate or GENERATOR_RATE[self._images]),
            discriminator_rate=None if self.discriminator_rate is None else float(self.discriminator_rate),
            gradient_penalty=float(self.gradient_penalty),
            weight_clip=float(self.weight_clip),
            discriminator_optimizer=self.discriminator_optimizer or default,
            averaged_share=float(self.averaged_share),
        )

    def _steps(self, n_private: int) -> PrivateSteps:
        """Return the settings of the private steps, given the public number of rows."""
        rate = self.sampling_probability
        if rate is None:
            rate = min(1.0, ROWS_A_STEP[self._images] / max(n_private, 1))
        return PrivateSteps(self._settings.steps, rate, getattr(self, "clip_norm", None), self.mechanism)

    def _architecture(self, schema: Schema) -> Architecture:
        """Return the network sizes for a schema. Raise ValueError if the condition or the image does not fit it."""
        heads, shape = Heads(schema, self._condition), self.image_shape
        if shape is not None:
            pixels = list(schema)[: math.prod(shape)]
            if len(pixels) < math.prod(shape) or not all(
                isinstance(c, Real) and len(c.feature_names) == 1 for c in pixels
            ):
                raise ValueError(
                    f"image_shape {shape} needs {math.prod(shape)} Real columns without missing cells as the first "
                    f"columns of the schema. Put the pixels first, row by row."
                )
        latent = self.latent or max(LATENT[self._images], 0 if shape else min(len(heads.numbers), 64))
        return Architecture(heads, int(latent), *self._widths, shape)

    def _split(self, epsilon: float) -> tuple[float, float]:
        """Split epsilon between the counts of the condition and the training."""
        share = getattr(self, "condition_share", 0.0) if self._condition is not None else 0.0
        return share * epsilon, epsilon - share * epsilon

    def _events(self, facts: PublicFacts, *, epsilon: float, delta: float = 0.0) -> tuple[Event, ...]:
        """Return the events that `fit` will charge to the ledger."""
        epsilon, delta = check_budget(epsilon, delta)
        _ = self._architecture(facts.schema)
        distribution, training = self._split(epsilon)
        budget = {"epsilon": training, "delta": delta}
        event = self._steps(facts.n_private).event(f"{self.label} discriminator", **budget, adjacency=facts.adjacency)
        if self._condition is None:
            return (event,)
        mechanism, cost = ("none", math.inf) if self.mechanism == "none" else ("laplace", distribution)
        return Event(f"{self.label} condition", mechanism, cost), event

    def _prepare(self) -> None:
        import_torch(self.label)
        working_device(self.device)

    def _learn(
        self, private: PrivateTable, ledger: Ledger, facts: PublicFacts, epsilon: float, delta: float
    ) -> FittedGAN | FittedWassersteinGAN:
        import torch

        from iwbayes.paper.adversarial.gan_training import Training

        device, architecture = working_device(self.device), self._architecture(facts.schema)
        own = torch.from_numpy(facts.schema.encode(private.frame).astype(np.float32)).to(device)
        events = self._events(facts, epsilon=epsilon, delta=delta)
        distribution = None
        if self._condition is not None:
            distribution = condition_distribution(private, self._condition, ledger, facts, events[0])
        budget = {"epsilon": self._split(epsilon)[1], "delta": delta}
        gradients = self._steps(facts.n_private).charge(
            ledger, events[-1].label, (own,), users=private.users, n_private=facts.n_private, **budget
        )
        rate = self._trust(facts, events[-1]) * self._settings.generator_rate
        settings = replace(self._settings, generator_rate=rate)
        rng = np.random.default_rng(self.random_seed)
        with one_torch_thread(), progress(self.progressbar, f"training {self.label}", settings.steps) as advance:
            trained = Training(architecture, settings, distribution, rng, device).run(gradients, advance)
        kind = FittedGAN if self.loss == "logistic" else FittedWassersteinGAN
        return kind(self.label, architecture, distribution, trained)

    def _trust(self, facts: PublicFacts, event: Event) -> float:
        """Return a factor in (0, 1] for the generator's learning rate, from public quantities.

        T steps with q N expected rows each and noise multiplier sigma carry information T (q N/sigma)**2. This is the
        squared signal-to-noise ratio of the summed gradient if all rows have the same gradient.
        """
        if event.noise_multiplier is None:
            return 1.0
        seen = (event.sampling_probability or 1.0) * facts.n_private
        told = (event.steps or 1) * (seen / event.noise_multiplier) ** 2
        return min(1.0, told / (TOLD_PER_FEATURE * facts.schema.n_features))


def condition_distribution(
    private: PrivateTable, condition: str, ledger: Ledger, facts: PublicFacts, event: Event
) -> Array:
    """Measure noisy counts of the condition's levels and return their shares, shape (level,), missing cells last."""
    levels = ColumnBins(facts.schema[condition], None)
    counts = np.bincount(levels.codes(private.frame[condition]), minlength=levels.size)
    if event.mechanism == "none":
        ledger.charge(event)
        noisy = counts.astype(np.float64)
    else:
        noisy = noisy_counts(counts, 1, ledger, event.label, facts, epsilon=event.epsilon, delta=0.0).value
    mass = np.maximum(noisy, LEAST_COUNT)
    return np.asarray(mass / mass.sum())
