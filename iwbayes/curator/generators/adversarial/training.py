"""Training of a generator against a discriminator that alone sees private rows."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import Module
from torch.nn.functional import softplus

from iwbayes.arrays import Array
from iwbayes.curator.generators.adversarial.architecture import Architecture, TrainingSettings
from iwbayes.curator.generators.adversarial.networks import make_discriminator, make_generator
from iwbayes.curator.training.dpsgd import PrivateGradients
from iwbayes.curator.training.parameters import Average, put_parameters
from iwbayes.curator.training.row_gradients import reference_gradients

#: Momentum of the discriminator's descent.
MOMENTUM = 0.9
#: Decay of the means that Adam keeps of gradients, and of their squares: the generator's and the discriminator's.
BETAS = (0.5, 0.99)
#: Rate of a column's own location and scale, in units of the generator's: they have far to go, and are easy to learn.
OWN_SPEED = 4.0
#: Share of the frozen part's last steps whose parameters of the discriminator are averaged.
AVERAGED_SHARE = 0.5
#: Learning rate of a discriminator's Adam, whatever the noise: Adam divides by the size of the noisy gradients.
ADAM_RATE = 2e-3
#: Noise in a logit, in natural logs, that the default learning rate lets `WINDOW` steps gather.
NOISE_TARGET = 1.0
#: Steps after which a discriminator should have forgotten an earlier generator.
WINDOW = 100
#: Largest learning rate times squared gradient norm of a discriminator; see `NeuralWeights`.
STEP_LIMIT = 2.0
#: Features vary by at least this much when a discriminator standardises them, so that rare levels stay bounded.
LEAST_SPREAD = 0.05
#: Rows from which the standardisation is taken.
START_ROWS = 4096


class Losses(NamedTuple):
    """Losses by logits: the discriminator's of private and of synthetic rows, the generator's of synthetic rows."""

    private: Callable[[Tensor], Tensor]
    synthetic: Callable[[Tensor], Tensor]
    generator: Callable[[Tensor], Tensor]


#: Losses by name: logistic (Goodfellow et al. 2014) or Wasserstein (Arjovsky et al. 2017). With logits f =
#: log p_private/p_synthetic the generator's mean of -f is the divergence KL(synthetic, private). Its gradient does not
#: vanish where rows are easily told apart, and it trained more evenly here than log(1 + exp(-f)).
LOSSES = {
    "logistic": Losses(lambda f: softplus(-f), softplus, lambda f: -f),
    "wasserstein": Losses(lambda f: -f, lambda f: f, lambda f: -f),
}


class Trained(NamedTuple):
    """What a training leaves: parameters by torch's names, and the discriminator's standardisation."""

    generator: dict[str, Array]
    discriminator: dict[str, Array]
    center: Array
    scale: Array


class Training:
    """One training: discriminator steps on private rows, generator steps between them, a frozen generator at the end.

    Initial parameters and latent draws, from ``rng``, are public, and so is the distribution of the condition.
    """

    def __init__(
        self,
        architecture: Architecture,
        settings: TrainingSettings,
        distribution: Array | None,
        rng: np.random.Generator,
        device: Any,
    ) -> None:
        self._architecture, self._settings, self._rng = architecture, settings, rng
        self._distribution = distribution
        self._source = torch.Generator().manual_seed(int(rng.integers(2**62)))
        self._losses = LOSSES[settings.loss]
        self._generator = make_generator(architecture, rng).to(device)
        start = self._batch(START_ROWS).double()
        self._center = start.mean(dim=0).cpu().numpy()
        self._scale = np.maximum(start.std(dim=0).cpu().numpy(), LEAST_SPREAD)
        self._discriminator = make_discriminator(architecture, rng, self._center, self._scale).to(device)

    def _rows(self, n: int) -> Tensor:
        """Rows of the generator as it is, differentiable in its parameters."""
        shares = self._distribution
        codes = None if shares is None else self._rng.choice(len(shares), size=n, p=shares)
        return self._architecture.draw(self._generator, n, self._source, codes)

    def _batch(self, n: int | None = None) -> Tensor:
        with torch.no_grad():
            return self._rows(self._settings.batch_size if n is None else n)

    def run(self, gradients: PrivateGradients, advance: Callable[[], None]) -> Trained:
        """Take all charged steps, ``advance`` after each; RuntimeError when the training diverged."""
        settings = self._settings
        descent = self._descent(gradients)
        adam = torch.optim.Adam(self._groups(), betas=BETAS)
        rounds = (settings.steps - settings.frozen_steps) // settings.discriminator_steps
        average = Average(self._generator)
        for turn in range(rounds):
            for _ in range(settings.discriminator_steps):
                self._discriminate(gradients, descent, settings.gradient_penalty)
                advance()
            self._generate(adam, settings.generator_rate * (1 - turn / rounds))
            if turn >= rounds - max(1, math.ceil(settings.averaged_share * rounds)):
                average.add()
        put_parameters(self._generator, average.parameters())
        released = {  # in the precision that the network has
            name: value.detach().cpu().numpy().astype(np.float64) for name, value in self._generator.named_parameters()
        }
        discriminator = self._settle(gradients, descent, advance)
        return Trained(released, discriminator, self._center, self._scale)

    def _settle(self, gradients: PrivateGradients, descent: Any, advance: Callable[[], None]) -> dict[str, Array]:
        """Train the discriminator of the released generator with the steps that are left, and average it."""
        average, left = Average(self._discriminator), gradients.left
        (group,) = descent.param_groups
        rate = group["lr"]
        for step in range(left):
            group["lr"] = rate * (1 - step / left)  # nothing moves any more, and less of the noise stays
            self._discriminate(gradients, descent, 0.0)
            advance()
            if step >= left - math.ceil(AVERAGED_SHARE * left):
                average.add()
        return average.parameters()

    def _discriminate(self, gradients: PrivateGradients, descent: Any, penalty: float) -> None:
        """Take a private step of the discriminator; the generator's rows are its public loss and its reference."""
        batch = self._batch()
        public_loss = partial(self._public_loss, batch=batch, penalty=penalty)
        gradients.descend(self._discriminator, descent, self._private_loss, public_loss, (batch,))
        if self._settings.loss == "wasserstein":
            with torch.no_grad():
                for value in self._discriminator.parameters():
                    value.clamp_(-self._settings.weight_clip, self._settings.weight_clip)

    def _private_loss(self, network: Module, rows: Tensor) -> Tensor:
        return self._losses.private(network(rows))

    def _public_loss(self, network: Module, batch: Tensor, penalty: float) -> Tensor:
        """Mean loss of synthetic rows and, against circling, half their squared slope (Mescheder et al. 2018, R2).

        It reads no private row, as a penalty on the slope at these would.
        """
        if penalty == 0 or self._settings.loss == "wasserstein":
            return self._losses.synthetic(network(batch)).mean()
        logits, steepness = squared_slope(network, batch, self._scale)
        return self._losses.synthetic(logits).mean() + penalty / 2 * steepness

    def _generate(self, adam: Any, rate: float) -> None:
        """Take a step of the generator, which reads the discriminator and nothing private."""
        loss = self._losses.generator(self._discriminator(self._rows(self._settings.batch_size))).mean()
        if not math.isfinite(float(loss.detach())):
            raise RuntimeError(
                "the training diverged: the discriminator's logits of synthetic rows are not finite. Lower the "
                "learning rates, or leave them to the default; what was charged stays charged."
            )
        for group in adam.param_groups:
            group["lr"] = group["speed"] * rate
        adam.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        adam.step()

    def _groups(self) -> list[dict[str, Any]]:
        """Parameters of the generator with their speeds: those of each column alone, and those of the network."""
        named = dict(self._generator.named_parameters())
        own = [value for name, value in named.items() if name.startswith("skip")]
        rest = [value for name, value in named.items() if not name.startswith("skip")]
        groups = [{"params": own, "speed": OWN_SPEED}, {"params": rest, "speed": 1.0}]
        return [group for group in groups if group["params"]]

    def _descent(self, gradients: PrivateGradients) -> Any:
        """Make the optimizer of the discriminator."""
        given = self._settings.discriminator_rate
        parameters = self._discriminator.parameters()
        if self._settings.discriminator_optimizer == "adam":
            return torch.optim.Adam(parameters, lr=ADAM_RATE if given is None else given, betas=BETAS)
        rate = self._rate(gradients) if given is None else given
        return torch.optim.SGD(parameters, lr=rate, momentum=MOMENTUM)

    def _rate(self, gradients: PrivateGradients) -> float:
        """Learning rate with momentum, from public quantities; see `NeuralWeights`."""
        _, norm = reference_gradients(self._discriminator, self._private_loss, (self._batch(),))
        noise, window = gradients.noise_sd(norm), min(WINDOW, self._settings.steps)
        most = NOISE_TARGET / (2 * norm * noise * math.sqrt(window)) if noise > 0 else math.inf
        return (1 - MOMENTUM) * min(STEP_LIMIT / norm**2, most)


def squared_slope(network: Module, rows: Tensor, scale: Array) -> tuple[Tensor, Tensor]:
    """Logits of rows, and the mean of their squared gradient in the standardised row."""
    rows = rows.clone().requires_grad_()
    logits = network(rows)
    (slope,) = torch.autograd.grad(logits.sum(), rows, create_graph=True)
    standardised = slope * torch.as_tensor(scale, dtype=slope.dtype, device=slope.device)
    return logits, (standardised**2).sum(dim=1).mean()
