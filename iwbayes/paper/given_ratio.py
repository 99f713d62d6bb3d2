"""Weights from a log ratio that exists already: KnownRatioWeights ("True"), DiscriminatorWeights. Both cost nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray

from iwbayes.curator.privacy.ledger import Ledger
from iwbayes.curator.protocols import LogRatio
from iwbayes.curator.weight_providers.provider import FreeProvider, OpenFit
from iwbayes.release.weights import Weights
from iwbayes.tables import PrivateTable, SyntheticTable


@dataclass(frozen=True)
class KnownRatioWeights(FreeProvider):
    """Weights from a known log ratio, for simulations in which both distributions are known.

    This is "True" in Ghalebikesabi et al. (2022). Nothing is charged.

    Parameters
    ----------
    log_ratio : callable, optional
        Function from a SyntheticTable to log p_private(x)/p_synthetic(x) of its rows, natural logs, shape (row,). It
        must not depend on private rows, because it is not charged. The ledger notes that the ratio comes from outside,
        and the release is not certified. None (the default) uses the log ratio that the synthetic table contains,
        ``SyntheticTable(..., log_ratio=...)``. Its cost is the one that the table declares.

    Raises
    ------
    TypeError
        If ``log_ratio`` is not callable.
    ValueError
        From `fit`, if there is no log ratio, or if it has a different shape or contains NaN. Nothing is charged.

    References
    ----------
    Ghalebikesabi, Wilde, Jewson, Doucet, Vollmer & Holmes, Mitigating statistical bias within differentially private
    synthetic data, UAI 2022.

    Examples
    --------
    The private rows have density 2x on [0, 1], and the synthetic rows are uniform. The log ratio is log(2x).

    >>> import numpy as np
    >>> import pandas as pd
    >>> import iwbayes as iw
    >>> schema = iw.Schema(iw.Real("x", 0, 1))
    >>> rng = np.random.default_rng(1)
    >>> private = iw.PrivateTable(pd.DataFrame({"x": np.sqrt(rng.random(100))}), schema)
    >>> synthetic = iw.SyntheticTable(pd.DataFrame({"x": rng.random(500)}), schema)
    >>> known = iw.paper.KnownRatioWeights(lambda table: np.log(2 * table.frame["x"].to_numpy()))
    >>> weights = known.fit(private, synthetic, iw.Ledger(1.0, 1e-6), epsilon=1.0)
    >>> len(weights)
    500
    """

    log_ratio: Callable[[SyntheticTable], ArrayLike] | None = field(default=None, repr=False)  # may show its own data

    def __post_init__(self) -> None:
        if self.log_ratio is not None and not callable(self.log_ratio):
            raise TypeError(
                f"log_ratio must be callable; got {type(self.log_ratio).__name__}. Pass a function from a "
                f"SyntheticTable to one log ratio per row."
            )

    def _before(self, fit: OpenFit) -> None:
        if self.log_ratio is None and fit.synthetic.log_ratio is None:
            raise ValueError(
                "KnownRatioWeights() needs a log ratio; the synthetic table contains none. Pass log_ratio, or make "
                "the table with SyntheticTable(..., log_ratio=...)."
            )

    def _weigh(self, fit: OpenFit) -> Weights:
        if self.log_ratio is not None:
            log_weights, ledger = _ratios(self.log_ratio, fit.synthetic), fit.pay()
            ledger.note("The log ratio comes from outside, and its privacy cost was not declared.")
            return Weights(log_weights, "KnownRatioWeights")
        fit.pay()
        return Weights(fit.synthetic.log_ratio, "KnownRatioWeights(of the table)")  # type: ignore[arg-type]


@dataclass(frozen=True)
class DiscriminatorWeights(FreeProvider):
    """Weights from the discriminator of a fitted GAN, at no further cost.

    The discriminator was trained with equal total weight on private and synthetic rows, so its log odds estimate the
    log ratio. The weights are post-processing of that training. They are free only if the same ledger charged the
    training of exactly these parameters. `fit` therefore checks that the ledger has registered the ``fingerprint()``
    of the fitted object. It refuses parameters that were changed later, or a checkpoint that was chosen by looking at
    private rows, because their fingerprints differ.

    Parameters
    ----------
    gan : LogRatio, optional
        Fitted object with ``log_ratio(table)`` and ``fingerprint()``. A generator that was trained against a
        Wasserstein critic has no log ratio. None (the default) waits for `publish`, which passes its fitted generator.

    Raises
    ------
    TypeError
        If ``gan`` has no log ratio.
    ValueError
        From `fit`, if there is no discriminator, if the ledger has not registered it, or if its log ratio has a
        different shape or contains NaN. Nothing is charged.

    References
    ----------
    Ghalebikesabi, Wilde, Jewson, Doucet, Vollmer & Holmes, Mitigating statistical bias within differentially private
    synthetic data, UAI 2022, section 3.5.

    Examples
    --------
    `publish` passes the generator that it has fitted, so no discriminator is needed here:

    >>> import iwbayes as iw
    >>> weights = iw.paper.DiscriminatorWeights()
    >>> weights.needs_generator
    True

    The events cost nothing, because the generator's training has been charged:

    >>> from iwbayes.curator.protocols import PublicFacts
    >>> facts = PublicFacts(iw.Schema(iw.Real("x", 0, 1)), n_private=100, n_synthetic=500)
    >>> weights.events(facts, epsilon=1.0)
    ()
    """

    gan: LogRatio | None = None

    def __post_init__(self) -> None:
        if self.gan is None:
            return
        if isinstance(self.gan, type) or not isinstance(self.gan, LogRatio):
            name = self.gan.__name__ if isinstance(self.gan, type) else type(self.gan).__name__
            raise TypeError(
                f"gan must be a fitted object with log_ratio(table) and fingerprint(); got {name}. A "
                f"Wasserstein critic has no log odds: use NeuralWeights or TiltWeights instead."
            )

    @property
    def needs_generator(self) -> bool:
        """Whether the weight provider waits for a fitted generator, because ``gan`` is None."""
        return self.gan is None

    def with_generator(self, fitted: LogRatio) -> DiscriminatorWeights:
        """Return the weight provider with this fitted generator, or unchanged if ``gan`` was given."""
        return DiscriminatorWeights(fitted) if self.gan is None else self

    def _before(self, fit: OpenFit) -> None:
        if self.gan is None:
            raise ValueError(
                "DiscriminatorWeights() has no discriminator. Pass a fitted GAN, or pass DiscriminatorWeights() to "
                "publish(), which fits one."
            )
        if not fit.ledger.holds(self.gan.fingerprint()):
            raise ValueError(
                "the ledger contains no training of exactly this discriminator, so its weights are not free. Fit the "
                "GAN with this ledger and do not change its parameters, or use another weight provider."
            )

    def fit_ratio(
        self, private: PrivateTable, synthetic: SyntheticTable, ledger: Ledger, *, epsilon: float, delta: float = 0.0
    ) -> LogRatio:
        """Return the discriminator's log ratio, at no cost; see `RatioProvider`."""
        self._open(private, synthetic, ledger, epsilon, delta).pay()
        assert self.gan is not None  # noqa: S101 - checked by `_before`
        return self.gan

    def _weigh(self, fit: OpenFit) -> Weights:
        assert self.gan is not None  # noqa: S101 - checked by `_before`
        log_weights = _ratios(self.gan.log_ratio, fit.synthetic)
        fit.pay()
        return Weights(log_weights, f"DiscriminatorWeights({type(self.gan).__name__})")


def _ratios(log_ratio: Callable[[SyntheticTable], ArrayLike], synthetic: SyntheticTable) -> NDArray[np.float64]:
    """Evaluate a log ratio, shape (row,). Raise ValueError if the result has a different shape."""
    found = np.asarray(log_ratio(synthetic), dtype=np.float64)
    if found.shape != (len(synthetic),):
        raise ValueError(f"log_ratio must return one number per row, so shape ({len(synthetic)},); got {found.shape}.")
    return found
