"""Whether a regression is one whose scores a release's tilt has measured."""

from __future__ import annotations

from iwbayes._formulas import model_terms
from iwbayes._terms import ordered_terms, raw_names, raw_terms
from iwbayes.laws import MEAN_OF_FEATURES
from iwbayes.release import Release

__all__ = ["outside_models"]

#: Names of terms that a reason quotes.
_QUOTED = 4


def outside_models(release: Release, formula: str) -> str | None:
    """Say why a regression is not one whose scores the release's tilt has measured.

    Moments that were not measured come from the generator alone. The noise in them is unknown, and intervals that
    depend on them can be far too narrow.

    Parameters
    ----------
    release : Release
    formula : str
        As `fit` takes it; ``"y ~ a + b"`` for the response and the columns that a model of another kind uses.

    Returns
    -------
    str or None
        One sentence with what is missing, terms of the first order before others, and the next step. None when
        everything is measured, or when the weights are no tilt: nothing is known then. None too for a formula with
        terms that are no polynomials, where the release was made for no model in particular.

    Notes
    -----
    Asked for are response, predictors and their products with the response, with each other and with themselves: the
    scores to second order. What is measured is read from the feature map itself, not from what the publisher wrote
    beside it. Terms are compared as polynomials of the columns. Features are clipped and directions in which the
    synthetic rows hardly vary are dropped, so that a model inside may still have a large kappa.
    """
    measurement = release.weights.measurement
    features = None if measurement is None or measurement.name != MEAN_OF_FEATURES else measurement.features
    if features is None:
        return None
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
    if named:
        why, remedy = f"only {features.terms} terms were measured", f"with for_models=[{formula!r}]"
    elif model.core <= measured:
        why, remedy = "the budget was too small for all terms of this model", "with more private rows or more epsilon"
    else:
        why, remedy = "the release was made for other models", f"with for_models=[{formula!r}], or fit a smaller model"
    return (
        f"{why}: the moments of {', '.join(names[:_QUOTED])}{more} come from the generator alone, and the noise in "
        f"them is unknown. Ask for a release {remedy}."
    )
