"""NeuralWeights: the logit of a network trained to tell private from synthetic rows, by private gradient steps."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from iwbayes._threads import one_torch_thread
from iwbayes.arrays import Array
from iwbayes.curator.estimators.fitting import OpenFit, RatioLearner
from iwbayes.curator.estimators.network import NeuralRatio, make_network
from iwbayes.curator.progress import progress
from iwbayes.curator.protocols import PublicFacts
from iwbayes.curator.training.dpsgd import PrivateGradients, PrivateSteps
from iwbayes.curator.training.parameters import Average, is_whole, working_device
from iwbayes.curator.training.row_gradients import import_torch, reference_gradients
from iwbayes.statement import Event
from iwbayes.weights import Weights

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module

#: Momentum of the descent.
MOMENTUM = 0.9
#: Share of the last steps whose parameters are averaged: they are noisy and public, so averaging is free.
AVERAGED_SHARE = 0.3
#: Noise in the log ratio, in natural logs, that the default learning rate lets training gather.
NOISE_TARGET = 0.25
#: Largest learning rate times squared gradient norm; twenty times it would still be stable in the linear part.
STEP_LIMIT = 2.0
#: Features vary by at least this much when they are standardised, so that rare levels stay bounded.
LEAST_SPREAD = 0.05


@dataclass(frozen=True)
class NeuralWeights(RatioLearner[NeuralRatio]):
    """Weights from a network that tells private from synthetic rows, trained by private gradient steps ("DP-MLP").

    The network minimises mean_private log(1 + exp(-f)) + mean_synthetic log(1 + exp(f)): with both classes
    normalised its logit f estimates the log ratio. f is linear in the standardised features plus a perceptron that
    starts at zero, so that training starts from uniform weights. Private rows enter through clipped noisy gradients
    only (see `PrivateSteps`); the synthetic rows' gradient is public, and so are the standardisation, the
    clip norm and the learning rate that follow from them.

    Parameters
    ----------
    hidden : tuple of int
        Widths of the hidden layers; an empty tuple trains the linear part alone.
    mechanism : {"dp-sgd", "none"}
        "none" is the same training without clipping and noise ("MLP"): its cost is infinite, and only a ledger with
        an infinite budget takes it.
    steps : int
        Steps of one training.
    sampling_probability : float
        Chance of each private row to be in a step. 1 takes all rows and suits tables up to some ten thousand rows;
        for larger ones lower it until a step is fast.
    clip_norm : float or None
        Bound on the norm of a private row's gradient less the synthetic mean. None takes, in each step, the 70 %
        quantile of the synthetic rows' own.
    learning_rate : float or None
        Of gradient descent with momentum 0.9. None takes the rate at which the noise that training gathers moves a
        log ratio by about 0.25, or the largest stable one if that is smaller.
    weight_decay : float
        L2 penalty on the parameters.
    batch_size : int
        Synthetic rows a step.
    draws : int
        Independent trainings, charged together as one event; each gets its share of the noise budget, and the
        weights get a draw from each.
    device : str
        Where torch computes, "cpu" or "cuda", for example.
    random_seed : int or None
        Of initial parameters and synthetic batches, which are public; never of privacy noise. None takes fresh
        entropy.
    progressbar : bool
        Show the steps where the error stream is a terminal.

    Notes
    -----
    The published Algorithm 1 adds noise once for each private row in the lot, so that lots with and without them
    differ; here every step has the same noise. The released parameters are the mean over the last 30 % of the steps.
    All steps are charged before the first; the noise is floating-point and is recorded so. `fit` raises ImportError
    without torch, ValueError for a device that torch does not know, before anything is charged, and RuntimeError when
    the training diverged; what was charged stays charged.

    References
    ----------
    Ghalebikesabi et al. (UAI 2022), section 3.4, Algorithm 1 (corrected); Abadi et al. (CCS 2016).

    Examples
    --------
    >>> import iwbayes as iw
    >>> facts = PublicFacts(iw.Schema(iw.Real("x", 0, 1)), n_private=1000, n_synthetic=5000)
    >>> event = NeuralWeights(steps=50, draws=2).events(facts, epsilon=1, delta=1e-6)[0]
    >>> event.mechanism, event.steps
    ('dp-sgd', 100)
    """

    hidden: tuple[int, ...] = (32,)
    mechanism: str = "dp-sgd"
    steps: int = 100
    sampling_probability: float = 1.0
    clip_norm: float | None = None
    learning_rate: float | None = None
    weight_decay: float = 0.0
    batch_size: int = 4096
    draws: int = 1
    device: str = "cpu"
    random_seed: int | None = None
    progressbar: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "hidden", tuple(self.hidden))
        for name, values in (("hidden", self.hidden), ("batch_size", [self.batch_size]), ("draws", [self.draws])):
            if not all(is_whole(value) and value >= 1 for value in values):
                raise ValueError(f"{name} must be whole numbers of at least 1; got {getattr(self, name)!r}.")
        _ = self._settings(draws=1)  # refuses wrong steps, sampling probability, clip norm and mechanism
        if self.learning_rate is not None and not 0 < self.learning_rate < math.inf:
            remedy = "None chooses one from the budget."
            raise ValueError(f"learning_rate must be positive and finite; got {self.learning_rate!r}. {remedy}")
        if not 0 <= self.weight_decay < math.inf:
            raise ValueError(f"weight_decay must be at least 0 and finite; got {self.weight_decay!r}.")
        if self.random_seed is not None and not (is_whole(self.random_seed) and self.random_seed >= 0):
            raise ValueError(f"random_seed must be a whole number of at least 0, or None; got {self.random_seed!r}.")

    def _settings(self, draws: int) -> PrivateSteps:
        if not is_whole(self.steps):
            raise ValueError(f"steps must be a whole number of at least 1; got {self.steps!r}.")
        return PrivateSteps(draws * self.steps, self.sampling_probability, self.clip_norm, self.mechanism)

    def events(self, facts: PublicFacts, *, epsilon: float, delta: float = 0.0) -> tuple[Event, ...]:
        """Declare the uses of the private rows that `fit` will charge: all steps of all draws as one event."""
        settings = self._settings(self.draws)
        return (settings.event(self.label, epsilon=epsilon, delta=delta, adjacency=facts.adjacency),)

    def _before(self, fit: OpenFit) -> None:
        import_torch("NeuralWeights")

    def _weigh(self, fit: OpenFit) -> Weights:
        widths = "-".join(map(str, self.hidden)) or "linear"
        return Weights(self._learn(fit).log_ratios(fit.synthetic), f"NeuralWeights({self.mechanism}, {widths})")

    def _learn(self, fit: OpenFit) -> NeuralRatio:
        torch = import_torch("NeuralWeights")
        private, schema, device, ledger = fit.private, fit.facts.schema, working_device(self.device), fit.pay()
        encoded = schema.encode(fit.synthetic.frame)
        center, scale = encoded.mean(axis=0), np.maximum(encoded.std(axis=0), LEAST_SPREAD)

        def standardised(features: Array) -> Tensor:
            return torch.from_numpy(((features - center) / scale).astype(np.float32)).to(device)

        public, own = standardised(encoded), standardised(schema.encode(private.frame))
        settings = self._settings(self.draws)
        budget: dict[str, Any] = {"epsilon": fit.epsilon, "delta": fit.delta}
        owned: dict[str, Any] = {"users": private.users, "n_private": fit.facts.n_private}
        gradients = settings.charge(ledger, self.label, (own,), **budget, **owned)
        seeds = np.random.SeedSequence(self.random_seed).spawn(self.draws)
        with one_torch_thread(), progress(self.progressbar, "training", self.draws * self.steps) as advance:
            drawn = [self._train(gradients, public, np.random.default_rng(seed), advance) for seed in seeds]
        ratio = NeuralRatio.of(schema, center, scale, drawn)
        ledger._register(ratio.fingerprint())
        return ratio

    def _train(
        self, gradients: PrivateGradients, synthetic: Tensor, rng: np.random.Generator, advance: Callable[[], None]
    ) -> dict[str, Array]:
        """Parameters of one training, averaged over its last steps."""
        torch = import_torch("NeuralWeights")
        network = make_network(synthetic.shape[1], self.hidden, rng).to(synthetic.device)
        synthetic = synthetic[torch.from_numpy(rng.permutation(len(synthetic))).to(synthetic.device)]
        rate = self._rate(gradients, network, synthetic)
        settings = {"lr": rate, "momentum": MOMENTUM, "weight_decay": float(self.weight_decay)}
        optimizer = torch.optim.SGD(network.parameters(), **settings)
        averaged, first = Average(network), self.steps - math.ceil(AVERAGED_SHARE * self.steps)
        for step in range(self.steps):
            batch = synthetic
            if len(synthetic) > self.batch_size:
                chosen = rng.choice(len(synthetic), self.batch_size, replace=False)
                batch = synthetic[torch.from_numpy(chosen).to(synthetic.device)]
            gradients.descend(network, optimizer, _private_loss, partial(_synthetic_loss, rows=batch), (batch,))
            if step >= first:
                averaged.add()
            advance()
        return averaged.parameters()

    def _rate(self, gradients: PrivateGradients, network: Module, synthetic: Tensor) -> float:
        """Learning rate, from public quantities.

        T steps of rate r under noise of standard deviation s in each coordinate of the mean gradient move a log
        ratio by r sqrt(T) s times the norm of its derivative, which at the start, where f = 0, is twice that of the
        row's loss gradient. Momentum multiplies a rate by 1/(1 - momentum).
        """
        if self.learning_rate is not None:
            return float(self.learning_rate)
        _, norm = reference_gradients(network, _private_loss, (synthetic[: self.batch_size],))
        noise = gradients.noise_sd(norm)
        most = NOISE_TARGET / (2 * norm * noise * math.sqrt(self.steps)) if noise > 0 else math.inf
        return (1 - MOMENTUM) * min(STEP_LIMIT / norm**2, most)


def _private_loss(network: Callable[[Tensor], Tensor], rows: Tensor) -> Tensor:
    """log(1 + exp(-f)) of each row."""
    torch = import_torch("NeuralWeights")
    return torch.nn.functional.softplus(-network(rows))


def _synthetic_loss(network: Callable[[Tensor], Tensor], rows: Tensor) -> Tensor:
    """Mean of log(1 + exp(f))."""
    torch = import_torch("NeuralWeights")
    return torch.nn.functional.softplus(network(rows)).mean()
