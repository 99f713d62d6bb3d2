"""Tilt: shared base of the tilts. It measures the noisy mean of bounded features over the private rows."""

from __future__ import annotations

from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from iwbayes.curator.privacy.ledger import Ledger
from iwbayes.curator.privacy.mechanisms import power_of_two_below
from iwbayes.curator.protocols import PublicFacts
from iwbayes.curator.weight_providers.exponential import STEPS_PER_BOUND, integer_total
from iwbayes.curator.weight_providers.provider import OpenFit, Provider
from iwbayes.evidence import FeatureMap
from iwbayes.evidence.measurement import Measurement
from iwbayes.evidence.scores import ScoreMap

Features = TypeVar("Features", bound=FeatureMap | ScoreMap, covariant=True)


class TiltDesign(NamedTuple, Generic[Features]):
    """Public choices of a tilt.

    Parameters
    ----------
    features : FeatureMap or ScoreMap
        The k features to measure.
    noise_sd : float
        Standard deviation of the noise in each coordinate of the mean. For a staged tilt it is that of all stages
        combined.
    noise_ratio : float
        Noise ratio: sqrt(k) times ``noise_sd``, because the synthetic features have standard deviation one.
    terms : str
        Name of the features, for display.
    stage_noise_sd : tuple of float
        Noise standard deviation of each stage; empty without stages.
    """

    features: Features
    noise_sd: float
    noise_ratio: float
    terms: str
    stage_noise_sd: tuple[float, ...] = ()


class Tilt(Provider):
    """Base class of weight providers that measure means of bounded features."""

    def _noise_of(self, features: FeatureMap | ScoreMap, facts: PublicFacts, epsilon: float, delta: float) -> Any:
        """Return the distribution of the noise in the mean of the features over the private rows."""
        reach = facts.rows_per_user * features.diameter(facts.row_adjacency) / facts.n_private
        return self._noise(reach, features.dim, epsilon=epsilon, delta=delta)

    def _measure(
        self,
        fit: OpenFit,
        ledger: Ledger,
        features: FeatureMap | ScoreMap,
        name: str,
        epsilon: float,
        delta: float,
        label: str,
    ) -> Measurement:
        """Measure the noisy mean of bounded features over the private rows. Sums are exact, block by block."""
        facts = fit.facts
        step = power_of_two_below(features.bound / STEPS_PER_BOUND)

        def total_of(block: pd.DataFrame) -> tuple[NDArray[np.int64], float]:
            return integer_total(features.transform(block), features, step, facts.row_adjacency, facts.rows_per_user)

        n, totals = facts.n_private, list(fit.private.map_blocks(total_of))
        total, reach = np.sum([block for block, _ in totals], axis=0), totals[0][1]
        settings: dict[str, Any] = {"sensitivity": reach * step, "grid": step, "ledger": ledger, "label": label}
        noisy = self._noisy(total, self.mechanism, epsilon=epsilon, delta=delta, **settings)
        known = features if isinstance(features, FeatureMap) else features.of_rows(fit.synthetic)
        return Measurement(name, noisy.value / n, noisy.distribution.scaled(1 / n), reach * step / n, known, n)
