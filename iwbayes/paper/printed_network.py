"""PrintedNeuralWeights: Algorithm 1 of the paper as it was printed, charged at what it costs, for comparisons."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from scipy.special import log_ndtr
from scipy.stats import binom

from iwbayes.curator.privacy.accounting import check_budget, dpsgd_multiplier
from iwbayes.curator.protocols import PublicFacts
from iwbayes.curator.weight_providers.provider import OpenFit
from iwbayes.paper.dpsgd.parameters import Average
from iwbayes.paper.dpsgd.private_steps import PrivateSteps
from iwbayes.paper.dpsgd.row_gradients import clipped_sum, import_torch, unflatten
from iwbayes.paper.logistic_loss import encoded_reach
from iwbayes.paper.ratio_learner import RatioLearner
from iwbayes.paper.ratio_network import NeuralRatio, make_network
from iwbayes.release.statement import Event
from iwbayes.release.weights import Weights
from iwbayes.utils import checks
from iwbayes.utils.arrays import Array
from iwbayes.utils.progress import progress
from iwbayes.utils.threads import one_torch_thread

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

#: Width of the grid of privacy losses, as a share of the budget's epsilon, over the square root of the steps.
_GRID = 1e-2
#: Probability of lots, and of losses, that the cost counts as a failure, as a share of delta.
_LEFT_OUT = 1e-4


@dataclass(frozen=True)
class PrintedNeuralWeights(RatioLearner[NeuralRatio]):
    """Weights from a network that is trained as the paper printed it ("DP-MLP as printed"), for comparisons.

    A step takes each private and each synthetic row with the same probability, clips all gradients of the usual
    logistic loss, and adds noise to the gradient of each private row in the lot. So the noise of the lot's sum grows
    with the number k of these rows, and a lot without any has none. `NeuralWeights` has the same noise in each step.

    Parameters
    ----------
    hidden : tuple of int, default (32,)
        Widths of the hidden layers.
    steps : int, default 100
        Number of gradient steps.
    sampling_probability : float, default 0.05
        Probability, in (0, 1], that a row is in a lot.
    clip_norm : float, default 1.0
        Largest L2 norm of a row's gradient.
    learning_rate : float, default 0.2
        Learning rate of plain gradient descent.
    random_seed : int or None, default None
        Seed of the initial parameters and of the synthetic rows in the lots. It never seeds privacy noise.
    progressbar : bool, default True
        Show a progress bar if standard error is a terminal.

    Raises
    ------
    ValueError
        If a setting is outside its range. `fit` raises it if the ledger protects users, because the number of rows in
        a lot then depends on them, and a lot without noise shows it. Nothing is charged.
    ModuleNotFoundError
        From `fit`, if torch is not installed. Nothing is charged.
    RuntimeError
        From `fit`, if the training diverged. The charge stays in the ledger.

    Notes
    -----
    The noise multiplier m is that of usual private steps with the requested budget, as in the paper. The true cost is
    another number, and the ledger is charged with it. Suppose that k is known; it is distributed in the same way on
    neighbouring tables. Then the k rows are a sample without replacement from N, a replaced row moves the sum by at
    most 2C, and the noise has the standard deviation m C sqrt(k). With delta_g, the delta of Gaussian noise of the
    multiplier m sqrt(k)/2, a step satisfies (eps, sum over k of P(k) k/N delta_g(log(1 + (exp(eps) - 1) N/k))) (Balle,
    Barthe & Gaboardi 2018), and steps are composed by their privacy loss distribution (Zhu, Dong & Wang 2022).

    With many rows in a lot, the cost is far below the budget, and the noise larger than it has to be. If a row may be
    missing altogether (which no adjacency here allows), no finite epsilon holds: a lot without noise shows it.

    References
    ----------
    Ghalebikesabi, Wilde, Jewson, Doucet, Vollmer & Holmes, Mitigating statistical bias within differentially private
    synthetic data, UAI 2022, section 3.4, Algorithm 1.

    Examples
    --------
    >>> import iwbayes as iw
    >>> facts = PublicFacts(iw.Schema(iw.Real("x", 0, 1)), n_private=1000, n_synthetic=1000)
    >>> [event] = PrintedNeuralWeights(steps=20).events(facts, epsilon=1, delta=1e-6)
    >>> event.epsilon < 0.5
    True
    """

    hidden: tuple[int, ...] = (32,)
    steps: int = 100
    sampling_probability: float = 0.05
    clip_norm: float = 1.0
    learning_rate: float = 0.2
    random_seed: int | None = None
    progressbar: bool = True

    pure: ClassVar[bool] = False  # type: ignore[misc]

    def __post_init__(self) -> None:
        object.__setattr__(self, "hidden", tuple(self.hidden))
        if not all(checks.is_whole(width) and width >= 1 for width in self.hidden):
            raise ValueError(f"hidden must be whole numbers of at least 1; got {self.hidden!r}.")
        PrivateSteps(self.steps, self.sampling_probability, self.clip_norm)  # raises for invalid settings
        checks.positive("clip_norm", self.clip_norm)
        checks.positive("learning_rate", self.learning_rate)
        if self.random_seed is not None:
            checks.whole("random_seed", self.random_seed, 0)

    def events(self, facts: PublicFacts, *, epsilon: float, delta: float = 0.0) -> tuple[Event, ...]:
        """Return the event that `fit` will charge to the ledger: all steps at their true cost."""
        multiplier = self._multiplier(*check_budget(epsilon, delta))
        settings = (facts.n_private, float(self.sampling_probability), int(self.steps))
        cost = printed_epsilon(multiplier, *settings, float(epsilon), float(delta))
        _, rate, steps = settings
        return (Event(self.label, "printed-steps", cost, delta, multiplier, sampling_probability=rate, steps=steps),)

    def _multiplier(self, epsilon: float, delta: float) -> float:
        rate, steps = float(self.sampling_probability), int(self.steps)
        return dpsgd_multiplier(epsilon, delta, sampling_probability=rate, steps=steps, adjacency="zero-out")

    def _before(self, fit: OpenFit) -> None:
        import_torch("PrintedNeuralWeights")
        if fit.facts.adjacency == "replace-user":
            raise ValueError(
                "the printed algorithm is not private for users: a lot without private rows has no noise, and the "
                "number of rows of each user changes how often that happens. Use NeuralWeights."
            )

    def _weigh(self, fit: OpenFit) -> Weights:
        return Weights(self._learn(fit).log_ratios(fit.synthetic), "PrintedNeuralWeights")

    def _learn(self, fit: OpenFit) -> NeuralRatio:
        torch = import_torch("PrintedNeuralWeights")
        schema, n_private = fit.facts.schema, fit.facts.n_private
        [event] = self.events(fit.facts, epsilon=fit.epsilon, delta=fit.delta)
        low = encoded_reach(schema, centred=False).center
        ones = np.ones(len(low))

        def unit(features: Array) -> Tensor:
            return torch.from_numpy((features - low).astype(np.float32))

        ledger = fit.pay()
        own, public = unit(schema.encode(fit.private.frame)), unit(schema.encode(fit.synthetic.frame))
        noise, rng = ledger.charge(event), np.random.default_rng(self.random_seed)
        network = make_network(len(low), self.hidden, rng)
        optimizer = torch.optim.SGD(network.parameters(), lr=float(self.learning_rate))
        rate, clip = float(self.sampling_probability), float(self.clip_norm)
        with one_torch_thread(), progress(self.progressbar, "training", self.steps) as advance:
            for _ in range(self.steps):
                lot = noise.poisson_sample(len(own), rate)
                total = clipped_sum(network, _own_loss, (own,), lot, clip_norm=clip)
                if len(lot):
                    assert event.noise_multiplier is not None  # noqa: S101 - a step has one
                    total = noise.floating_gaussian(total, event.noise_multiplier * clip * math.sqrt(len(lot)))
                others = np.flatnonzero(rng.random(len(public)) < rate)
                total = total + clipped_sum(network, _other_loss, (public,), others, clip_norm=clip)
                expected = rate * (n_private + len(public))
                for name, gradient in unflatten(network, total / expected).items():
                    network.get_parameter(name).grad = gradient
                optimizer.step()
                advance()
        last = Average(network)
        last.add()
        parameters = last.parameters()
        # the classes have different numbers of rows, and the loss weighs all rows the same
        parameters["linear.bias"] = parameters["linear.bias"] + math.log(len(public) / n_private)
        ratio = NeuralRatio.of(schema, low, ones, [parameters])
        ledger._register(ratio.fingerprint())
        return ratio


def _own_loss(network: Callable[[Tensor], Tensor], rows: Tensor) -> Tensor:
    """Return log(1 + exp(-f)) of each private row, shape (row,)."""
    return import_torch("PrintedNeuralWeights").nn.functional.softplus(-network(rows))  # type: ignore[no-any-return]


def _other_loss(network: Callable[[Tensor], Tensor], rows: Tensor) -> Tensor:
    """Return log(1 + exp(f)) of each synthetic row, shape (row,)."""
    return import_torch("PrintedNeuralWeights").nn.functional.softplus(network(rows))  # type: ignore[no-any-return]


@lru_cache(maxsize=64)
def printed_epsilon(multiplier: float, n_private: int, rate: float, steps: int, epsilon: float, delta: float) -> float:
    """Return the epsilon, at ``delta``, of the printed steps, rounded up; ``epsilon`` sets the width of the grid.

    ``multiplier`` is the standard deviation of a private row's noise over the clip norm.
    """
    from dp_accounting.pld import pld_pmf, privacy_loss_distribution

    interval = _GRID * epsilon / math.sqrt(steps)
    last, tail = 1, _LEFT_OUT * delta / steps
    while step_delta(np.array([last * interval]), multiplier, n_private, rate, tail)[0] > 2 * tail:
        last *= 2
    grid = np.arange(last + 1)
    above = step_delta(interval * grid.astype(np.float64), multiplier, n_private, rate, tail)
    # the other side of the loss, by symmetry of neighbours
    below = -np.expm1(-grid[1:] * interval) + np.exp(-grid[1:] * interval) * above[1:]
    points = np.concatenate([-grid[:0:-1], grid])
    pmf = pld_pmf.create_pmf_pessimistic_connect_dots(interval, points, np.concatenate([below[::-1], above]))
    pld = privacy_loss_distribution.PrivacyLossDistribution(pmf)
    return float(pld.self_compose(steps).get_epsilon_for_delta(delta))


def step_delta(epsilons: Array, multiplier: float, n_private: int, rate: float, tail: float = 0.0) -> Array:
    """Return the delta of one printed step at each epsilon of at least 0, shape (epsilon,).

    Numbers k of private rows in the lot that are rarer than ``tail`` on either side count as failures.
    """
    low, high = (int(one) for one in binom.ppf([tail / 2, 1 - tail / 2], n_private, rate)) if tail else (0, n_private)
    k = np.arange(max(low, 1), min(high, n_private) + 1)
    chances = binom.pmf(k, n_private, rate)
    failed = max(0.0, 1 - float(chances.sum()) - float(binom.pmf(0, n_private, rate))) if tail else 0.0
    share, own = k / n_private, multiplier * np.sqrt(k) / 2
    found = np.empty(len(epsilons))
    for index, epsilon in enumerate(epsilons):
        larger = np.log1p(np.expm1(epsilon) / share)
        upper = log_ndtr(0.5 / own - larger * own)
        lower = np.minimum(larger + log_ndtr(-0.5 / own - larger * own), upper)
        found[index] = chances * share @ (np.exp(upper) * -np.expm1(lower - upper)) + failed
    return found
