"""model(): describe an analysis model by a formula or a function, so that a release can be made for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, overload

import pandas as pd

from iwbayes.evidence.scores import ScoreModel
from iwbayes.models.families import FamilyName
from iwbayes.models.regression_scores import RegressionModel


@overload
def model(
    model: str, *, family: FamilyName | None = None, name: None = None, design_weight: str | None = None
) -> RegressionModel: ...
@overload
def model(
    model: Callable[[pd.DataFrame], Any], *, family: None = None, name: str | None = None, design_weight: None = None
) -> ScoreModel: ...
def model(
    model: str | Callable[[pd.DataFrame], Any],
    *,
    family: FamilyName | None = None,
    name: str | None = None,
    design_weight: str | None = None,
) -> ScoreModel:
    """Describe an analysis model for ``for_models`` of :func:`~iwbayes.publish`.

    The release then measures the scores of this model (see "In stages" on the theory page), on which its estimates
    depend, so that their intervals can be calibrated.

    Parameters
    ----------
    model : str or callable
        Either the formula of a regression, with a response and polynomials of columns, such as ``"y ~ a + b"``. Or a
        function that takes a pandas.DataFrame of synthetic rows and returns a `pymc.Model` or a Bambi model with one
        log density per row. For the scores of private rows, each copy of a single column in its model (``pm.Data`` or a
        constant) is replaced by this column of the private rows. Other values computed from the frame, for example a
        mean, stay public constants. So compute products and other functions of several columns inside the model.
    family : {"bernoulli", "gaussian", "categorical", "poisson"}, optional
        Family of a formula, by default that of :func:`~iwbayes.fit`. Not allowed with a function.
    name : str, optional
        Name of a function for the record of the release, by default its ``__name__``. Not allowed with a formula.
    design_weight : str, optional
        Column of design weights of a survey, as in :func:`~iwbayes.fit`. The measured scores are multiplied by it. Not
        allowed with a function, which can multiply its log densities itself.

    Raises
    ------
    TypeError, ValueError
        If `model` is neither a formula nor a function, `family` or `design_weight` is given with a function, or `name`
        with a formula.
        Models that do not match the schema are refused later by :func:`~iwbayes.publish`, before any charge.

    Notes
    -----
    The scores of a PyMC model are computed from the graph of a single row, which is repeated over the rows, so no
    operation can combine two rows. Operations that call Python functions are refused, and operations that may fail for
    the cells of some rows, such as ``pt.arange`` of a cell. A row outside the model's domain, for example with an index
    that no parameter has, counts as clipped. A release stores the name of a function but not the function, so pass the
    same models to :func:`~iwbayes.rehearse`.

    Examples
    --------
    >>> import pymc as pm
    >>> def counts(frame):
    ...     with pm.Model() as built:
    ...         age = pm.Data("age", frame["age"])
    ...         slope, alpha = pm.Normal("slope", 0, 1), pm.Exponential("alpha", 1)
    ...         pm.NegativeBinomial("visits", pm.math.exp(slope * age), alpha, observed=frame["visits"])
    ...     return built
    >>> iw.model(counts).name
    'counts'
    """
    if isinstance(model, str):
        if name is not None:
            raise ValueError(
                f"name must be omitted for a formula, which is its own name; got name={name!r} with {model!r}."
            )
        return RegressionModel(model, family, design_weight)
    if not callable(model):
        raise TypeError(
            f"model must be a formula or a function from a data frame to a pymc.Model; got {type(model).__name__}. If "
            "you have a pymc.Model, write a function that builds it from a data frame."
        )
    if design_weight is not None:
        raise ValueError(f"design_weight must be omitted for a function; got {design_weight!r}.")
    if family is not None:
        raise ValueError(
            f"family must be omitted for a function; got family={family!r}. The function itself defines the likelihood."
        )
    from iwbayes.analyst.inference.model_scores import PyMCModel

    return PyMCModel(model, getattr(model, "__name__", type(model).__name__) if name is None else name)
