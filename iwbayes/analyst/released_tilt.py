"""ReleasedTilt: all that a release says of its tilt, as arrays that are computed once a call."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from iwbayes.analyst.older_tilts import recover_coefficients
from iwbayes.arrays import Array, symmetric
from iwbayes.features import FeatureMap
from iwbayes.features.formulas import Span, model_terms
from iwbayes.features.terms import ordered_terms, raw_names, raw_terms
from iwbayes.measurement import MEAN_OF_FEATURES, UNTESTED
from iwbayes.release import Release
from iwbayes.schema import Schema
from iwbayes.weights import HARMLESS_STEPS, Weights

#: Directions of the features whose weighted variance is below this share of the largest are cut (structural zeros).
FEATURE_CUT = 1e-4
#: Prior standard deviation of the tilt's coefficients.
TAU = 1.0
#: How the method of noise-aware weights begins; that of the weights they come from follows.
NOISE_AWARE = "noise-aware "
#: Names of terms that a reason quotes.
_QUOTED = 3


@dataclass(frozen=True, eq=False)
class HeldBack:
    """A tilt's test of fit: features (row, l) that it does not use, and their noisy mean over the private rows."""

    features: Array
    value: Array
    noise: Array


@dataclass(frozen=True, eq=False)
class ReleasedTilt:
    """What a release says of the tilt that made its weights."""

    features: Array  # (row, k): phi, the tilt's features of the synthetic rows
    noise: Array  # (k, k): Sigma, the covariance of the noise of `value`
    value: Array  # (k,): the released noisy mean of the features over the private rows
    clipped: NDArray[np.bool_] | None = None  # (row,): rows that the feature map clips, where it says so
    held_back: HeldBack | None = None
    weights: Weights | None = None  # as they were released
    feature_map: FeatureMap | None = None  # behind `features`
    n_private: int = 0  # N, the number of private rows
    coefficients: Array | None = None  # (k,): the tilt's b; None in releases of formats 1 to 3
    row_error: float = np.nan  # of the rows before the first of several stages
    least_error: float = UNTESTED  # of the rows where nothing was measured
    models: tuple[str, ...] = ()  # formulas that the release was made for, as its publisher wrote them
    schema: Schema | None = None  # of the rows

    @classmethod
    def of(cls, release: Release) -> ReleasedTilt | None:
        """Read it from a release; None where its weights are no tilt's with its measurement."""
        measurement = release.weights.measurement
        if measurement is None or measurement.name != MEAN_OF_FEATURES or measurement.features is None:
            return None
        columns, frame = measurement.tilt_columns, release.synthetic.frame
        phi = measurement.features.transform(frame)
        other, held_back = measurement.held_back, None
        if other is not None and other.features is not None:
            held_back = HeldBack(other.features.transform(frame), other.value, other.noise.covariance)
        return cls(
            features=phi[:, columns],
            noise=symmetric(measurement.noise.covariance[columns, columns]),
            value=np.asarray(measurement.value[columns]),
            clipped=phi[:, -1] > 0 if measurement.features.flag else None,
            held_back=held_back,
            weights=release.weights,
            feature_map=measurement.features if isinstance(measurement.features, FeatureMap) else None,
            n_private=release.n_private,
            coefficients=measurement.coefficients,
            row_error=measurement.row_error,
            least_error=measurement.least_error,
            schema=release.synthetic.schema,
            models=_models_of(release),
        )

    @classmethod
    def behind(cls, weights: Array, release: Release) -> ReleasedTilt | None:
        """Read it where the formulas for a tilt hold for these weights (row,); else None. See `applies_to`."""
        tilt = cls.of(release)
        return tilt if tilt is not None and tilt.applies_to(weights) else None

    def applies_to(self, weights: Array) -> bool:
        """Whether weights (row,), on any scale, are those that this tilt made.

        They are when they have the shares of the released ones, a single draw that no post-processing has changed.
        """
        own = self.weights
        if own is None or own.n_draws > 1 or set(own.steps) - set(HARMLESS_STEPS):
            return False
        return has_shares_of(weights, own)

    @cached_property
    def base_and_coefficients(self) -> tuple[Array, Array]:
        """Log shares of the rows before the tilt, shape (row,), and its coefficients b, shape (k,).

        The base is ``w / exp(b.phi)``; rows of weight zero have none (-inf). RuntimeError where the release does not
        store b and the equation for it was not solved.
        """
        assert self.weights is not None  # noqa: S101 - tilts of releases have them
        log_weights = self.weights.log_weights[0]
        kept = np.isfinite(log_weights)
        b = self.coefficients
        if b is None:
            b = recover_coefficients(log_weights[kept], self.features[kept], self.value, self.noise, self.n_private)
        base = log_weights - self.features @ b
        return base - logsumexp(base[kept]), b

    def unmeasured(self, formula: str) -> str | None:
        """Say why a regression is not one whose scores the tilt has measured; None where it is.

        Moments that were not measured come from the generator alone. The noise in them is unknown, and intervals that
        depend on them can be far too narrow. The sentence names what is missing, terms of the first order before
        others, and the next step. `formula` is as `fit` takes it; ``"y ~ a + b"`` for the response and the columns that
        a model of another kind uses. None too for a formula with terms that are no polynomials, where the release was
        made for no model in particular.

        Asked for are response, predictors and their products with the response, with each other and with themselves:
        the scores to second order. What is measured is read from the feature map itself, not from what the publisher
        wrote beside it. Terms are compared as polynomials of the columns. Features are clipped and directions in which
        the synthetic rows hardly vary are dropped, so that a model inside may still have a large kappa.
        """
        features = self.feature_map
        if features is None:
            return self._beside_models(formula)
        named = isinstance(features.terms, str)
        try:
            model = model_terms(formula, features.schema)
        except ValueError as error:
            return None if named else f"the release was made for other models, and cannot be for this one: {error}"
        measured = frozenset(raw_terms(features.schema, features.terms))
        absent = ordered_terms(model.core - measured) or ordered_terms(model.second_order - measured)
        if not absent:
            return None
        names = raw_names(features.schema, absent)
        more = f" and {len(names) - _QUOTED} more" if len(names) > _QUOTED else ""
        of_the_budget = not named and model.core <= measured
        ask = "more private rows or a larger epsilon" if of_the_budget else f"for_models=[{formula!r}]"
        return f"the release did not measure {', '.join(names[:_QUOTED])}{more}. Ask for a release with {ask}."

    def _beside_models(self, formula: str) -> str | None:
        """Say that the scores of a regression are not those that were measured; None where they are, or unknown."""
        if self.schema is None or not self.models:
            return None
        asked = _spans(formula, self.schema)
        if asked is not None and any(_spans(model, self.schema) == asked for model in self.models):
            return None
        return (
            f"the release measured the scores of {'; '.join(self.models)} and of no other model. Ask for a release "
            f"with for_models=[{formula!r}]."
        )


def _spans(formula: str, schema: Schema) -> tuple[Span, Span] | None:
    """Return what response and predictors of a regression span; None where its formula is none of columns."""
    try:
        terms = model_terms(formula, schema)
    except (TypeError, ValueError):
        return None
    return terms.response, terms.design


def _models_of(release: Release) -> tuple[str, ...]:
    named = (release.recipe or {}).get("for_models")
    return tuple(map(str, named)) if isinstance(named, list) else ()


def has_shares_of(weights: Array, released: Weights) -> bool:
    """Whether weights (row,) on any scale are the released ones, averaged over their draws."""
    return np.allclose(weights / np.mean(weights), released.values, rtol=1e-6, atol=1e-9)


def is_noise_aware(weights: Any, release: Release) -> bool:
    """Whether weights are unchanged draws of `noise_aware_weights` for the measurement of this release."""
    if not (isinstance(weights, Weights) and weights.n_draws > 1 and weights.method.startswith(NOISE_AWARE)):
        return False
    own, other = weights.measurement, release.weights.measurement
    if own is None or other is None or set(weights.steps) - set(HARMLESS_STEPS):
        return False
    return own is other or (own.name == other.name and np.array_equal(own.value, other.value))
