"""NeuralWeights: weights from a network that is trained to tell private from synthetic rows, by private steps."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from iwbayes.curator.protocols import PublicFacts
from iwbayes.curator.weight_providers.provider import OpenFit
from iwbayes.paper.dpsgd.parameters import Average, working_device
from iwbayes.paper.dpsgd.private_steps import PrivateGradients, PrivateSteps
from iwbayes.paper.dpsgd.row_gradients import import_torch, reference_gradients
from iwbayes.paper.ratio_learner import RatioLearner
from iwbayes.paper.ratio_network import NeuralRatio, make_network
from iwbayes.release.statement import Event
from iwbayes.release.weights import Weights
from iwbayes.utils import checks
from iwbayes.utils.arrays import Array
from iwbayes.utils.progress import progress
from iwbayes.utils.threads import one_torch_thread

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module

#: Momentum of the gradient descent.
MOMENTUM = 0.9
#: Share of the steps, the last ones, over which parameters are averaged. They are noisy and public, so this is free.
AVERAGED_SHARE = 0.3
#: With the default learning rate, the noise of the training moves a log ratio by about this much (natural logs).
NOISE_TARGET = 0.25
#: Largest product of learning rate and squared gradient norm. In the linear part, 20 times as much would be stable.
STEP_LIMIT = 2.0
#: Smallest standard deviation used to standardise a feature, so that rare levels do not become huge.
LEAST_SPREAD = 0.05


@dataclass(frozen=True)
class NeuralWeights(RatioLearner[NeuralRatio]):
    """Weights from a network that learns to tell private from synthetic rows, by private gradient steps ("DP-MLP").

    The network's logit f minimises mean_private log(1 + exp(-f)) + mean_synthetic log(1 + exp(f)). Private and
    synthetic rows have the same total weight, so f estimates the log ratio. f is linear in the standardised features
    plus a perceptron. It is zero before training, so the training starts from uniform weights.

    Private rows are used only in clipped, noisy gradients (see `PrivateSteps`). Gradients of synthetic rows are public.
    So are the standardisation, the clip norm and the learning rate, which are computed from synthetic rows.

    Parameters
    ----------
    hidden : tuple of int, default (32,)
        Widths of the hidden layers. An empty tuple trains only the linear part.
    mechanism : {"dp-sgd", "none"}, default "dp-sgd"
        "dp-sgd" clips gradients and adds noise. "none" does neither ("MLP"): its cost is infinite, and only a ledger
        with an infinite budget accepts it.
    steps : int, default 100
        Number of gradient steps of one training.
    sampling_probability : float, default 1.0
        Probability, in (0, 1], that a private row is used in a step. 1 uses all rows, which is fast enough for up to
        about ten thousand rows. Pass a smaller value for larger tables.
    clip_norm : float or None, default None
        Bound on the L2 norm of a private row's gradient minus the mean gradient of synthetic rows. None uses, in each
        step, the 70 % quantile of this norm over the synthetic rows.
    learning_rate : float or None, default None
        Learning rate of gradient descent with momentum 0.9. None uses the rate at which the noise of the training moves
        a log ratio by about 0.25, or the largest stable rate if that is smaller.
    weight_decay : float, default 0.0
        L2 penalty on the parameters, at least 0.
    batch_size : int, default 4096
        Number of synthetic rows per step.
    draws : int, default 1
        Number of independent trainings. Each training gives one weight draw. They share the budget and are charged as
        one event.
    device : str, default "cpu"
        Torch device, for example "cpu" or "cuda".
    random_seed : int or None, default None
        Seed of the initial parameters and the synthetic batches, which are public. It never seeds privacy noise. None
        uses fresh entropy.
    progressbar : bool, default True
        Show a progress bar if standard error is a terminal.

    Raises
    ------
    ValueError
        If a setting is outside its range. `fit` raises it for a device that torch does not have; nothing is charged.
    ModuleNotFoundError
        From `fit`, if torch is not installed. Nothing is charged.
    RuntimeError
        From `fit`, if the training diverged. The charge stays in the ledger.

    Notes
    -----
    The published Algorithm 1 adds noise once for each private row in a batch, so the amount of noise depends on the
    number of private rows in it. Here every step has the same noise. The released parameters are averages over the last
    30 % of the steps. All steps are charged before the first step. The noise is drawn in floating-point arithmetic, and
    the statement says so.

    References
    ----------
    Ghalebikesabi, Wilde, Jewson, Doucet, Vollmer & Holmes, Mitigating statistical bias within differentially private
    synthetic data, UAI 2022, section 3.4, Algorithm 1 (corrected). Abadi et al., Deep learning with differential
    privacy, CCS 2016.

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
            if not all(checks.is_whole(value) and value >= 1 for value in values):
                raise ValueError(f"{name} must be whole numbers of at least 1; got {getattr(self, name)!r}.")
        _ = self._settings(draws=1)  # raises for invalid steps, sampling probability, clip norm and mechanism
        if self.learning_rate is not None:
            checks.positive("learning_rate", self.learning_rate, "Pass None to choose one from the budget.")
        if not 0 <= self.weight_decay < math.inf:
            raise ValueError(f"weight_decay must be at least 0 and finite; got {self.weight_decay!r}.")
        if self.random_seed is not None:
            checks.whole("random_seed", self.random_seed, 0)

    def _settings(self, draws: int) -> PrivateSteps:
        checks.whole("steps", self.steps)
        return PrivateSteps(draws * self.steps, self.sampling_probability, self.clip_norm, self.mechanism)

    def events(self, facts: PublicFacts, *, epsilon: float, delta: float = 0.0) -> tuple[Event, ...]:
        """Return the event that `fit` will charge to the ledger: all steps of all draws."""
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
        """Run one training and return its parameters, averaged over the last steps."""
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
        """Return the learning rate, from public quantities.

        Let s be the standard deviation of the noise in each coordinate of the mean gradient. T steps of rate r then
        move a log ratio by r sqrt(T) s times the norm of its derivative. Before training, f = 0, and this norm is twice
        that of a row's loss gradient. Momentum multiplies the effective rate by 1/(1 - momentum).
        """
        if self.learning_rate is not None:
            return float(self.learning_rate)
        _, norm = reference_gradients(network, _private_loss, (synthetic[: self.batch_size],))
        noise = gradients.noise_sd(norm)
        most = NOISE_TARGET / (2 * norm * noise * math.sqrt(self.steps)) if noise > 0 else math.inf
        return (1 - MOMENTUM) * min(STEP_LIMIT / norm**2, most)


def _private_loss(network: Callable[[Tensor], Tensor], rows: Tensor) -> Tensor:
    """Return log(1 + exp(-f)) of each row, shape (row,)."""
    torch = import_torch("NeuralWeights")
    return torch.nn.functional.softplus(-network(rows))


def _synthetic_loss(network: Callable[[Tensor], Tensor], rows: Tensor) -> Tensor:
    """Return the mean of log(1 + exp(f)) over the rows."""
    torch = import_torch("NeuralWeights")
    return torch.nn.functional.softplus(network(rows)).mean()
