"""Measurement: a released noisy statistic with the distribution of its noise, and what its noise ratio means."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from iwbayes.evidence.distributions import NoiseDistribution
from iwbayes.evidence.shifts import ShiftBlock
from iwbayes.utils.arrays import Array
from iwbayes.utils.display import one_line

if TYPE_CHECKING:
    from iwbayes.evidence import FeatureMap
    from iwbayes.evidence.scores import RowFeatures

#: Largest noise ratio (noise over the synthetic standard deviation) at which richer features are chosen. Intervals
#: account for this noise, but not for the unknown error of moments that only come from the generator.
NOISE_TARGET = 0.5
FEATURES_OF_ONE_PREDICTOR = 4  # that a regression with one predictor needs: the fewest if regressions are named


def noise_in_words(noise_ratio: float) -> str:
    """Return the noise ratio of a tilt, and how it compares with the target, as text."""
    verdict = "within" if noise_ratio <= NOISE_TARGET else "ABOVE"
    return f"{noise_ratio:.3g}, {verdict} the target of {NOISE_TARGET}"


TERMS_OF_MODELS = ("model", "scores")  # names of feature sets that belong to named models begin with one of these


#: Last words of the name of the features of many columns; their products are not measured.
DIRECTIONS = "principal directions"


def noise_advice(noise_ratio: float, n_features: int, terms: str) -> str:
    """Return advice if few regressions will be calibrated, and "" otherwise; ``terms`` names the features."""
    # the noise ratio is about proportional to the number of features
    least = noise_ratio * min(1.0, FEATURES_OF_ONE_PREDICTOR / n_features)
    named = terms.startswith(TERMS_OF_MODELS)
    if noise_ratio > NOISE_TARGET and (named or least > NOISE_TARGET):
        of = "the features of the named regressions" if named else "a regression with one predictor"
        return (
            f"This is too much noise even for {of}, so few regressions will be calibrated. Use more rows or a larger "
            f"epsilon."
        )
    if noise_ratio > NOISE_TARGET or terms in ("linear", "squares") or terms.endswith(DIRECTIONS):
        large, absent = "The noise of so many features is too large", "Products of columns are not measured"
        fault = large if terms == "quadratic" else absent
        return f"{fault}, so few regressions will be calibrated. Name your regressions in for_models."
    return ""


#: Name of the measurement of a tilt: the noisy mean of its features over the private rows.
MEAN_OF_FEATURES = "mean of features"
#: Name of the measurement of the columns that models read, in the early ones of several stages.
MEAN_OF_COLUMNS = "mean of columns and products"
#: Name of the held-back test of a tilt: the noisy mean of features that the tilt does not use.
TEST_OF_FIT = "test of fit"
#: Mean square error assumed for the rows in an unmeasured direction of variance one, if no held-back test exists: the
#: median over releases of ten real populations (N 500 to 2,000, epsilon 0.3 to 1); the range was 0.004 to 0.1.
ASSUMED_MISFIT = 0.02
#: Mean square error to allow for in the clipped parts of scores, after a tilt in stages: in units of the mean square
#: error that its last stage found in the scores, and at least so many noise standard deviations divided by the square
#: root of the number of scores. Clipping keeps the mean of scores whose response has levels (`centred`), so their
#: clipped parts are known better. The numbers were chosen on the populations of `benchmarks/populations.py`, with 2,000
#: to 20,000 rows at epsilon 1. The error itself varies by a factor of several.
CLIPPED_PART, CLIPPED_MISFIT, CENTRED_MISFIT = 1.5, 3.0, 1.0


@dataclass(frozen=True)
class Measurement:
    """A released noisy statistic with the distribution of its noise, which noise-aware inference needs.

    Parameters
    ----------
    name : str
        `MEAN_OF_FEATURES` for a tilt; "logistic coefficients" for a logistic log ratio.
    value, noise : ndarray, shape (k,), and NoiseDistribution
        The noisy statistic and its noise: for a tilt, the mean of the features over the private rows; for a tilt in
        stages, that of the last stage.
    sensitivity : float
        Largest change of the exact statistic between adjacent tables, in the norm of the mechanism.
    features : FeatureMap, RowFeatures or None
        For a tilt, the map whose mean was measured; for a tilt in stages, the features of the synthetic rows.
    n_private : int
        Public number of private rows.
    held_back : Measurement, optional
        For a tilt, the noisy mean of other features that the weights do not use: the held-back test of the fit.
    coefficients : ndarray, shape (q,), optional
        For a tilt, the coefficients b of the weights ``w0_i exp(b.phi_i)``, one for each of `tilt_columns`.
    floors : tuple of float, default ()
        For a tilt, the variances that the shifts in each block of its features have at least; see `Shifts`.
    misfit, columns : float, default NaN, and Measurement, optional
        For a tilt in stages, the mean square of the shifts that the last stage found in the scores, and the noisy mean
        of the columns that its models read and of their products.

    Raises
    ------
    ValueError
        If shapes do not match, a part has no features or other private rows, or the coefficients are not finite.

    Examples
    --------
    >>> measurement = release.weights.measurement
    >>> assert measurement is not None
    >>> measurement.name, measurement.noise.name, measurement.n_private
    ('mean of features', 'gaussian', 2000)
    """

    name: str
    value: Array
    noise: NoiseDistribution
    sensitivity: float
    features: FeatureMap | RowFeatures | None
    n_private: int
    held_back: Measurement | None = None
    coefficients: Array | None = None
    floors: tuple[float, ...] = ()
    misfit: float = float("nan")
    columns: Measurement | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", one_line(self.name))
        for name in ("value", "coefficients"):
            if getattr(self, name) is not None:
                array = np.array(getattr(self, name), dtype=np.float64)
                array.setflags(write=False)
                object.__setattr__(self, name, array)
        if self.value.shape != (self.noise.dim,):
            raise ValueError(f"value must have shape ({self.noise.dim},); got {self.value.shape}.")
        if self.features is not None and self.features.dim != self.noise.dim:
            raise ValueError(f"features have dimension {self.features.dim}; the noise has {self.noise.dim}.")
        n_blocks = 0 if self.features is None else len(self.features.block_sizes)
        if self.floors and (len(self.floors) != n_blocks or not all(0 < floor < math.inf for floor in self.floors)):
            raise ValueError(f"floors must be {n_blocks} positive numbers, one for each block; got {self.floors}.")
        for part in self.parts[1:]:
            if self.features is None or part.features is None or len(part.parts) > 1:
                raise ValueError(
                    "held_back and columns must be measurements with features and without other measurements, and this "
                    "measurement must have features."
                )
            if part.n_private != self.n_private:
                raise ValueError(
                    f"held_back and columns must be measured on {self.n_private} private rows; got {part.n_private}."
                )
        b, n_used = self.coefficients, self.tilt_columns.stop
        if b is not None and (b.shape != (n_used,) or not np.isfinite(b).all()):
            raise ValueError(
                f"coefficients must be {n_used} finite numbers, one for each feature that the tilt uses; got shape "
                f"{b.shape}."
            )

    @property
    def parts(self) -> list[Measurement]:
        """Measurements inside this one, and itself first."""
        return [part for part in (self, self.held_back, self.columns) if part is not None]

    @property
    def tilt_columns(self) -> slice:
        """Coordinates of the features that the tilt uses: all except the clip indicator."""
        return slice(0, self.noise.dim - (self.features is not None and self.features.flag))

    @property
    def shift_blocks(self) -> tuple[ShiftBlock, ...]:
        """Blocks of the features with their floors; empty if the measurement has none."""
        if self.features is None or not self.floors:
            return ()
        return tuple(map(ShiftBlock, self.features.block_sizes, self.floors))

    @property
    def noise_ratio(self) -> float:
        """Noise ratio: total noise of the tilt's features, in units of their synthetic standard deviation."""
        return math.sqrt(self.noise.variance * self.tilt_columns.stop)

    @property
    def least_misfit(self) -> float:
        """Smallest mean square error to assume for the rows in an unmeasured direction of variance one."""
        if self.held_back is not None:
            return 0.0  # the test measures it
        if not np.isfinite(self.misfit):
            return ASSUMED_MISFIT
        least = CENTRED_MISFIT if self.features is not None and self.features.centred else CLIPPED_MISFIT
        return max(CLIPPED_PART * self.misfit, least * math.sqrt(self.noise.variance / self.tilt_columns.stop))

    @property
    def clipped_private(self) -> float:
        """Noisy share of private rows that the feature map clipped, as released, within [0, 1]; NaN if unknown."""
        if self.features is not None and self.features.never_clips:
            return 0.0
        if self.features is None or not self.features.flag:
            return float("nan")
        return float(np.clip(self.value[-1] / self.features.flag_height, 0.0, 1.0))
