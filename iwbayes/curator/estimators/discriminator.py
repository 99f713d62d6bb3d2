"""DiscriminatorWeights: the log odds of a discriminator that was trained under the same ledger."""

from __future__ import annotations

from dataclasses import dataclass

from iwbayes.curator.estimators.fitting import FreeEstimator, OpenFit, ratios
from iwbayes.curator.protocols import LogRatio
from iwbayes.weights import Weights


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
        log_weights = ratios(self.gan.log_ratio, fit.synthetic)
        fit.pay()
        return Weights(log_weights, f"DiscriminatorWeights({type(self.gan).__name__})")
