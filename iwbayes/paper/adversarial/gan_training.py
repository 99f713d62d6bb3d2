"""Training of a generator against a discriminator. Only the discriminator reads private rows."""

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

from iwbayes.paper.adversarial.architecture import Architecture, TrainingSettings
from iwbayes.paper.adversarial.gan_networks import make_discriminator, make_generator
from iwbayes.paper.dpsgd.parameters import Average, put_parameters
from iwbayes.paper.dpsgd.private_steps import PrivateGradients
from iwbayes.paper.dpsgd.row_gradients import reference_gradients
from iwbayes.utils.arrays import Array

#: Momentum of the discriminator's gradient descent.
MOMENTUM = 0.9
#: Adam's decay rates of its averages of gradients and squared gradients, for both networks.
BETAS = (0.5, 0.99)
#: Learning rate of a column's location and scale, as a multiple of the generator's rate, because they move furthest.
OWN_SPEED = 4.0
#: Share of the frozen steps, the last ones, over which the discriminator's parameters are averaged.
AVERAGED_SHARE = 0.5
#: Adam's learning rate for a discriminator. It does not depend on the noise, because Adam rescales the gradients.
ADAM_RATE = 2e-3
#: With the default learning rate, the noise of `WINDOW` steps moves a logit by about this much (natural logs).
NOISE_TARGET = 1.0
#: Number of steps after which a discriminator should have forgotten an earlier generator.
WINDOW = 100
#: Largest product of learning rate and squared gradient norm of a discriminator; see `NeuralWeights`.
STEP_LIMIT = 2.0
#: Smallest standard deviation used to standardise a feature, so that rare levels do not become huge.
LEAST_SPREAD = 0.05
#: Number of generated rows from which the constants of the standardisation are computed.
START_ROWS = 4096


class Losses(NamedTuple):
    """Losses as functions of logits: the discriminator's for private and for synthetic rows, and the generator's."""

    private: Callable[[Tensor], Tensor]
    synthetic: Callable[[Tensor], Tensor]
    generator: Callable[[Tensor], Tensor]


#: Losses by name: logistic (Goodfellow et al. 2014) or Wasserstein (Arjovsky et al. 2017). If the logits f equal
#: log p_private/p_synthetic, the generator's loss mean(-f) is the divergence KL(synthetic, private). Its gradient does
#: not vanish for rows that are easy to tell apart, and training was more stable than with log(1 + exp(-f)).
LOSSES = {
    "logistic": Losses(lambda f: softplus(-f), softplus, lambda f: -f),
    "wasserstein": Losses(lambda f: -f, lambda f: f, lambda f: -f),
}


class Trained(NamedTuple):
    """Result of a training: parameters by torch's names, and the constants that standardise the rows."""

    generator: dict[str, Array]
    discriminator: dict[str, Array]
    center: Array
    scale: Array


class Training:
    """One training of a generator and a discriminator.

    Discriminator steps read private rows; generator steps come between them. At the end the generator is frozen, and
    the discriminator trains alone. Initial parameters and latent draws (from ``rng``) are public. So are the shares of
    the condition's levels, ``distribution``.
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
        """Draw rows from the current generator, differentiable in its parameters."""
        shares = self._distribution
        codes = None if shares is None else self._rng.choice(len(shares), size=n, p=shares)
        return self._architecture.draw(self._generator, n, self._source, codes)

    def _batch(self, n: int | None = None) -> Tensor:
        with torch.no_grad():
            return self._rows(self._settings.batch_size if n is None else n)

    def run(self, gradients: PrivateGradients, advance: Callable[[], None]) -> Trained:
        """Take all charged steps and call ``advance`` after each. Raise RuntimeError if the training diverged."""
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
        released = {  # read back from the network, so in its precision
            name: value.detach().cpu().numpy().astype(np.float64) for name, value in self._generator.named_parameters()
        }
        discriminator = self._settle(gradients, descent, advance)
        return Trained(released, discriminator, self._center, self._scale)

    def _settle(self, gradients: PrivateGradients, descent: Any, advance: Callable[[], None]) -> dict[str, Array]:
        """Train the discriminator on the frozen generator's rows with the remaining steps. Return its averages."""
        average, left = Average(self._discriminator), gradients.left
        (group,) = descent.param_groups
        rate = group["lr"]
        for step in range(left):
            group["lr"] = rate * (1 - step / left)  # the generator is fixed, and smaller steps keep less noise
            self._discriminate(gradients, descent, 0.0)
            advance()
            if step >= left - math.ceil(AVERAGED_SHARE * left):
                average.add()
        return average.parameters()

    def _discriminate(self, gradients: PrivateGradients, descent: Any, penalty: float) -> None:
        """Take a private step of the discriminator. Generated rows give its public loss and its clip norm."""
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
        """Return the mean loss of synthetic rows plus a gradient penalty (R2 of Mescheder et al. 2018).

        The penalty is ``penalty``/2 times the mean squared gradient. It keeps the two networks from circling. It is
        computed at synthetic rows, so it reads no private row.
        """
        if penalty == 0 or self._settings.loss == "wasserstein":
            return self._losses.synthetic(network(batch)).mean()
        logits, steepness = squared_slope(network, batch, self._scale)
        return self._losses.synthetic(logits).mean() + penalty / 2 * steepness

    def _generate(self, adam: Any, rate: float) -> None:
        """Take a step of the generator. It uses the discriminator and no private row."""
        loss = self._losses.generator(self._discriminator(self._rows(self._settings.batch_size))).mean()
        if not math.isfinite(float(loss.detach())):
            raise RuntimeError(
                "the training diverged: the discriminator's logits of synthetic rows are not finite. Pass smaller "
                "learning rates, or leave them at their defaults. What was charged stays charged."
            )
        for group in adam.param_groups:
            group["lr"] = group["speed"] * rate
        adam.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        adam.step()

    def _groups(self) -> list[dict[str, Any]]:
        """Group the generator's parameters by learning rate: those of single columns, and those of the network."""
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
        """Return the default learning rate for momentum, from public quantities; see `NeuralWeights`."""
        _, norm = reference_gradients(self._discriminator, self._private_loss, (self._batch(),))
        noise, window = gradients.noise_sd(norm), min(WINDOW, self._settings.steps)
        most = NOISE_TARGET / (2 * norm * noise * math.sqrt(window)) if noise > 0 else math.inf
        return (1 - MOMENTUM) * min(STEP_LIMIT / norm**2, most)


def squared_slope(network: Module, rows: Tensor, scale: Array) -> tuple[Tensor, Tensor]:
    """Return the logits of rows, shape (row,), and the mean squared norm of their gradient in standardised rows."""
    rows = rows.clone().requires_grad_()
    logits = network(rows)
    (slope,) = torch.autograd.grad(logits.sum(), rows, create_graph=True)
    standardised = slope * torch.as_tensor(scale, dtype=slope.dtype, device=slope.device)
    return logits, (standardised**2).sum(dim=1).mean()
