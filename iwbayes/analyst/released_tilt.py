"""ReleasedTilt: the tilt of a release, as arrays that are computed once per call."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.special import logsumexp

from iwbayes.evidence import FeatureMap
from iwbayes.evidence.formulas import Span, model_terms
from iwbayes.evidence.measurement import ASSUMED_MISFIT, MEAN_OF_FEATURES
from iwbayes.evidence.shifts import ShiftBlock, Shifts
from iwbayes.evidence.terms import ordered_terms, raw_names, raw_terms
from iwbayes.release import Release
from iwbayes.release.weights import Weights
from iwbayes.schema import Schema
from iwbayes.utils.arrays import Array, symmetric

#: Directions of the features whose weighted variance is below this share of the largest are cut (structural zeros).
FEATURE_CUT = 1e-4
#: Start of the method name of noise-aware weights; the method of the original weights follows.
NOISE_AWARE = "noise-aware "
#: Number of terms that a reason names.
_QUOTED = 3


@dataclass(frozen=True, eq=False)
class OtherMeans:
    """Features (row, l) that the last tilt does not use, and their noisy mean over the private rows."""

    features: Array
    value: Array
    noise: Array  # (l, l), covariance


@dataclass(frozen=True, eq=False)
class ReleasedTilt:
    """The tilt that made the weights of a release."""

    features: Array  # (row, k): phi, the tilt's features of the synthetic rows
    noise: Array  # (k, k): Sigma, the covariance of the noise of `value`
    value: Array  # (k,): the released noisy mean of the features over the private rows
    clipped: NDArray[np.bool_] | None = None  # (row,): rows that the feature map clips, if it has this flag
    held_back: OtherMeans | None = None  # the test of fit
    columns: OtherMeans | None = None  # of the early ones of several stages: the columns that the models read
    column_map: FeatureMap | None = None  # the map to the features of `columns`
    frame: pd.DataFrame | None = None  # the rows
    weights: Weights | None = None  # as released
    feature_map: FeatureMap | None = None  # the map to `features`
    n_private: int = 0  # N, the number of private rows
    coefficients: Array | None = None  # (k,): the tilt's b, as released
    blocks: tuple[ShiftBlock, ...] = ()  # of the features; without them nothing is known of b before the noisy mean
    misfit: float = np.nan  # of the scores before the last of several stages
    least_misfit: float = ASSUMED_MISFIT  # of the rows in unmeasured directions
    centred: bool = False  # whether clipping keeps the mean of scores given the predictors
    models: tuple[str, ...] = ()  # formulas that the release was made for, as written by its publisher
    schema: Schema | None = None  # of the rows

    @classmethod
    def of(cls, release: Release) -> ReleasedTilt | None:
        """Read the tilt from a release; None if its weights do not come from a tilt with its measurement."""
        measurement = release.weights.measurement
        if measurement is None or measurement.name != MEAN_OF_FEATURES:
            return None
        if measurement.features is None or measurement.coefficients is None:
            return None
        columns, frame = measurement.tilt_columns, release.synthetic.frame
        phi = measurement.features.transform(frame)
        held_back, of_columns = (
            None
            if other is None or other.features is None
            else OtherMeans(other.features.transform(frame), other.value, other.noise.covariance)
            for other in (measurement.held_back, measurement.columns)
        )
        return cls(
            features=phi[:, columns],
            noise=symmetric(measurement.noise.covariance[columns, columns]),
            value=np.asarray(measurement.value[columns]),
            clipped=phi[:, -1] > 0 if measurement.features.flag else None,
            held_back=held_back,
            columns=of_columns,
            column_map=None if measurement.columns is None else measurement.columns.features,  # type: ignore[arg-type]
            frame=frame,
            weights=release.weights,
            feature_map=measurement.features if isinstance(measurement.features, FeatureMap) else None,
            n_private=release.n_private,
            coefficients=measurement.coefficients,
            blocks=measurement.shift_blocks,
            misfit=measurement.misfit,
            least_misfit=measurement.least_misfit,
            centred=measurement.features.centred,
            schema=release.synthetic.schema,
            models=release.made_for,
        )

    @classmethod
    def behind(cls, weights: Array, release: Release) -> ReleasedTilt | None:
        """Read the tilt if its formulas apply to these weights (row,), see `applies_to`; None otherwise."""
        tilt = cls.of(release)
        return tilt if tilt is not None and tilt.applies_to(weights) else None

    def applies_to(self, weights: Array) -> bool:
        """Return whether weights (row,), on any scale, are those of this tilt: one draw, without post-processing."""
        own = self.weights
        return own is not None and own.n_draws == 1 and not own.steps and has_shares_of(weights, own)

    @property
    def of_scores(self) -> bool:
        """Whether the release measured scores of named models, and not columns."""
        return self.feature_map is None

    @cached_property
    def base(self) -> Array:
        """Log shares of the rows before the tilt, ``w / exp(b.phi)``, shape (row,); -inf for rows of weight zero."""
        assert self.weights is not None and self.coefficients is not None  # noqa: S101 - a release's tilt has both
        log_weights = self.weights.log_weights[0]
        base = log_weights - self.features @ self.coefficients
        return np.asarray(base - logsumexp(base[np.isfinite(log_weights)]))

    @cached_property
    def _shifts(self) -> Shifts | None:
        """Posterior of the private rows' mean, the same as the curator's; None if the blocks are unknown."""
        if not self.blocks or self.weights is None or self.coefficients is None:
            return None
        return Shifts.of(self.features, np.exp(self.base), self.value, self.noise, self.blocks)

    @property
    def mean(self) -> Array:
        """Posterior mean (k,) of the private rows' mean of the features; `value` if nothing else is known of it."""
        return self.value if self._shifts is None else self._shifts.means

    @property
    def error(self) -> Array:
        """Covariance (k, k) of the private rows' mean about `mean`; `noise` if nothing else is known of it."""
        return self.noise if self._shifts is None else self._shifts.covariance

    def unmeasured(self, formula: str) -> str | None:
        """Return a sentence on the statistics of a regression that the tilt did not measure; None if there are none.

        `formula` is that of :func:`~iwbayes.fit`, or ``"y ~ a + b"`` with the columns in the model. The statistics are
        the response, the predictors, and the products of the predictors with the response, with each other and with
        themselves: the scores to second order, as polynomials of the columns. The result is also None for a formula
        with other terms, if the release was made for no particular model.
        """
        features = self.feature_map
        if features is None:
            return self._beside_models(formula)
        named = isinstance(features.terms, str)
        try:
            model = model_terms(formula, features.schema)
        except ValueError as error:
            return None if named else f"the release was made for other models, and cannot measure this one: {error}"
        measured = frozenset(raw_terms(features.schema, features.terms))
        absent = ordered_terms(model.core - measured) or ordered_terms(model.second_order - measured)
        if not absent:
            return None
        names = raw_names(features.schema, absent)
        more = f" and {len(names) - _QUOTED} more" if len(names) > _QUOTED else ""
        of_the_budget = not named and model.core <= measured
        ask = "more private rows or a larger epsilon" if of_the_budget else f"for_models=[{formula!r}]"
        return (
            f"the release did not measure {', '.join(names[:_QUOTED])}{more}, and the interval may be too narrow. "
            f"Request a release with {ask}."
        )

    def _beside_models(self, formula: str) -> str | None:
        """Return a sentence if the scores of a regression differ from the measured ones; else, or if unknown, None."""
        if self.schema is None or not self.models:
            return None
        asked, *measured = (_spans(model, self.schema) for model in (formula, *self.models))
        if formula in self.models or asked in measured or None in measured:
            return None
        return (
            f"the release was made for {'; '.join(self.models)}. It may hold little information on this parameter, "
            f"and the interval may be too narrow. Request a release with for_models=[{formula!r}]."
        )


def _spans(formula: str, schema: Schema) -> tuple[Span, Span] | None:
    """Return what response and predictors of a regression span; None if its formula does not use columns only."""
    try:
        terms = model_terms(formula, schema)
    except (TypeError, ValueError):
        return None
    return terms.response, terms.design


def has_shares_of(weights: Array, released: Weights) -> bool:
    """Return whether weights (row,), on any scale, are the released ones, averaged over their draws."""
    return np.allclose(weights / np.mean(weights), released.values, rtol=1e-6, atol=1e-9)


def is_noise_aware(weights: Any, release: Release) -> bool:
    """Return whether weights are unchanged weight draws of `noise_aware_weights` for this release's measurement."""
    if not (isinstance(weights, Weights) and weights.n_draws > 1 and weights.method.startswith(NOISE_AWARE)):
        return False
    own, other = weights.measurement, release.weights.measurement
    if own is None or other is None or weights.steps:
        return False
    return own is other or (own.name == other.name and np.array_equal(own.value, other.value))
