"""Weights that read no private row: UniformWeights ("None"), KnownRatioWeights ("True"), DiscriminatorWeights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from iwbayes.curator.estimators.fitting import Estimator, OpenFit
from iwbayes.curator.privacy.accounting import check_budget
from iwbayes.curator.protocols import LogRatio, PublicFacts
from iwbayes.statement import Event
from iwbayes.tables import SyntheticTable
from iwbayes.weights import Weights


class FreeEstimator(Estimator):
    """An estimator that costs nothing; the budget is checked all the same, so that a wrong one is not hidden."""

    @property
    def pure(self) -> bool:
        """It takes any delta and uses none."""
        return True

    @property
    def reads_blocks(self) -> bool:
        """It reads no private row."""
        return True

    def events(self, facts: PublicFacts, *, epsilon: float, delta: float = 0.0) -> tuple[Event, ...]:
        """Declare nothing: nothing is learned from private rows here."""
        check_budget(epsilon, delta)
        return ()


@dataclass(frozen=True)
class UniformWeights(FreeEstimator):
    """Weight one for every synthetic row: the unweighted analysis ("None" in Ghalebikesabi et al. 2022).

    Examples
    --------
    >>> import iwbayes as iw
    >>> from iwbayes.curator.protocols import PublicFacts
    >>> schema = iw.Schema(iw.Real("x", 0, 1))
    >>> UniformWeights().events(PublicFacts(schema, n_private=100, n_synthetic=500), epsilon=1.0)
    ()
    """

    def _weigh(self, fit: OpenFit) -> Weights:
        fit.pay()
        return Weights(np.zeros(len(fit.synthetic)), "UniformWeights")


@dataclass(frozen=True)
class KnownRatioWeights(FreeEstimator):
    """The true weights, for simulations in which both distributions are known ("True" in Ghalebikesabi et al. 2022).

    Parameters
    ----------
    log_ratio : callable, optional
        From a SyntheticTable to log p_private(x)/p_synthetic(x), natural logs, shape (row,). It must not depend on
        private rows: nothing is charged, and the ledger notes that the ratio came from outside. Without it the ratio
        is the one that the table carries, whose cost is the one that the table declares; `fit` raises ValueError
        where there is neither, or where the ratio has another shape or NaN.
    """

    log_ratio: Callable[[SyntheticTable], ArrayLike] | None = None

    def __post_init__(self) -> None:
        if self.log_ratio is not None and not callable(self.log_ratio):
            raise TypeError(f"log_ratio must be callable on a SyntheticTable; got {type(self.log_ratio).__name__}.")

    def _before(self, fit: OpenFit) -> None:
        if self.log_ratio is None and fit.synthetic.log_ratio is None:
            raise ValueError("the synthetic table carries no log ratio. Use SyntheticTable(..., log_ratio=...).")

    def _weigh(self, fit: OpenFit) -> Weights:
        if self.log_ratio is not None:
            log_weights, ledger = _ratios(self.log_ratio, fit.synthetic), fit.pay()
            ledger.note("The log ratio came from outside and what its making cost was not declared.")
            return Weights(log_weights, "KnownRatioWeights")
        fit.pay()
        return Weights(fit.synthetic.log_ratio, "KnownRatioWeights(of the table)")  # type: ignore[arg-type]


@dataclass(frozen=True)
class DiscriminatorWeights(FreeEstimator):
    """Weights from the discriminator of a GAN, at no further cost.

    The discriminator's class-normalised log odds estimate the log ratio. They are post-processing of its training,
    so they are free when and only when the ledger charged the training that made exactly these parameters: it must
    hold the fitted object's `fingerprint`. A checkpoint chosen by looking at private rows, or parameters changed
    since, have another fingerprint and are refused, and so is a log ratio of another shape than (row,), or with NaN.

    Parameters
    ----------
    gan : LogRatio, optional
        Any fitted object with ``log_ratio(table)`` and ``fingerprint()``. A Wasserstein critic has no log odds.
        `publish` hands its own fitted generator to ``DiscriminatorWeights()``.

    References
    ----------
    Ghalebikesabi et al. (UAI 2022), section 3.5.
    """

    gan: LogRatio | None = None

    def __post_init__(self) -> None:
        if self.gan is None:
            return
        if isinstance(self.gan, type) or not isinstance(self.gan, LogRatio):
            name = self.gan.__name__ if isinstance(self.gan, type) else type(self.gan).__name__
            raise TypeError(
                f"gan must be a fitted object with log_ratio(table) and fingerprint(); got {name}. A Wasserstein "
                f"critic has no log odds: use NeuralWeights or TiltWeights with such a generator."
            )

    @property
    def needs_generator(self) -> bool:
        """Whether no fitted discriminator was given."""
        return self.gan is None

    def with_generator(self, fitted: LogRatio) -> DiscriminatorWeights:
        """Return the estimator that uses this discriminator, unless one was given."""
        return DiscriminatorWeights(fitted) if self.gan is None else self

    def _before(self, fit: OpenFit) -> None:
        if self.gan is None:
            raise ValueError(
                "DiscriminatorWeights() has no discriminator. Give a fitted one, or leave it to publish()."
            )
        if not fit.ledger.holds(self.gan.fingerprint()):
            raise ValueError(
                "the ledger holds no training of exactly this discriminator, so its weights are not free. Train it "
                "under this ledger and leave its parameters as they are, or use another weight estimator."
            )

    def _weigh(self, fit: OpenFit) -> Weights:
        assert self.gan is not None  # noqa: S101 - `_before` refused it
        log_weights = _ratios(self.gan.log_ratio, fit.synthetic)
        fit.pay()
        return Weights(log_weights, f"DiscriminatorWeights({type(self.gan).__name__})")


def _ratios(log_ratio: Callable[[SyntheticTable], ArrayLike], synthetic: SyntheticTable) -> NDArray[np.float64]:
    """Evaluate somebody else's log ratio, shape (row,); ValueError when it has another shape."""
    found = np.asarray(log_ratio(synthetic), dtype=np.float64)
    if found.shape != (len(synthetic),):
        raise ValueError(f"log_ratio must return shape ({len(synthetic)},), one a row; got {found.shape}.")
    return found
