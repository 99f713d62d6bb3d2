"""Give the rows of a PyMC model's likelihood their importance weights.

:func:`reweight` turns any model with observed variables into one whose log density has w_i times the log
likelihood of row i, by a transform of the model's function graph: the result is an ordinary
:class:`pymc.Model`, and priors, potentials, imputed values, deterministics, coords and dims are as before.
"""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Real
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
from pymc.pytensorf import floatX
from pytensor.graph.traversal import ancestors

from iwbayes.analyst._arviz import ArvizObject, has_group, with_groups
from iwbayes.analyst._model_graph import (
    WeightedRows,
    drop_data,
    observed_rows,
    observed_variables,
    transform_model,
)
from iwbayes.analyst._weighted_op import WeightedRandomVariable

if TYPE_CHECKING:
    from iwbayes.weights import Weights

    WeightsLike: TypeAlias = Weights | np.ndarray

#: Name of the data variable that holds the weights; of a dict, ``likelihood_weights_<variable>``.
DATA_NAME = "likelihood_weights"


def reweight(
    model: pm.Model,
    weights: WeightsLike | Mapping[str, WeightsLike],
    *,
    total: float | None = None,
    allow_zero: bool = False,
) -> pm.Model:
    """Return a copy of a PyMC model in which each row of the likelihood has its weight.

    Parameters
    ----------
    model : pymc.Model
        Any model with observed variables, rows on their first axis. It is not changed.
    weights : Weights, ndarray of shape (row,), or dict by the name of an observed variable
        Finite and not negative. One vector is shared by all observed variables, which must then have the same
        number of rows; variables that a dict leaves out keep weight one.
    total : float, optional
        Sum of the weights over the rows, usually the size of the private table (``release.n_private``): the
        weights are used as w * total / sum(w). By default they are used as they are; those of a
        :class:`~iwbayes.Weights` have mean one and so sum to the number of synthetic rows, which makes a
        posterior narrower than the private data would.
    allow_zero : bool
        Compile the guard for weights of zero although none of these is zero, because zeros will be set later.
        Without the guard, a weight set to zero later is right only where the density of its row is positive.

    Returns
    -------
    pymc.Model
        With the weights as a ``pm.Data`` named ``likelihood_weights`` (``likelihood_weights_<variable>`` for a
        dict), which ``pm.set_data`` swaps without compiling anew; `total` is then applied to the new ones.

    Raises
    ------
    ValueError
        If there is no observed variable, one has no rows (a scalar; a joint density such as one multivariate
        normal or Gaussian process over all rows; a minibatch), the model is weighted already, weights have the
        wrong length or are negative, infinite or NaN, or `total` is not positive and finite.
    TypeError
        If weights are not numbers.
    KeyError
        If a dict names a variable that is not observed.

    Notes
    -----
    Integer weights give the density of the table with its rows so often repeated, and weight zero takes a row
    out, even where its density is zero. Of an imputed variable the observed rows are weighted and the missing
    ones keep weight one, as do user potentials. ``pm.compute_log_likelihood`` of a weighted model gives weighted
    terms; :func:`log_likelihood` stores both kinds.

    The density is the weighted likelihood of Ghalebikesabi et al. (UAI 2022), a general Bayesian update in the
    sense of Bissiri et al. (JRSS-B, 2016).
    """
    _check_total(total)
    targets = observed_rows(model)
    vectors = _match(weights, targets)
    shared = {}
    for name, vector in vectors.items():
        if name in model.named_vars:
            raise ValueError(
                f"the model already has a variable {name!r}. Change its weights by pm.set_data, or reweight "
                "the model that it was made from."
            )
        shared[name] = pytensor.shared(floatX(vector), name, shape=(None,))
    scaled = {name: _scaled(variable, total) for name, variable in shared.items()}
    guard = {name: allow_zero or bool(np.any(vector == 0)) for name, vector in vectors.items()}

    replacements = {}
    for target in targets:
        name = _data_name(target, weights)
        if name not in scaled:
            continue
        row_weights = scaled[name] if target.rows is None else scaled[name][target.rows]
        replacements[target.observed] = (WeightedRandomVariable(guard[name]), row_weights)
    new = transform_model(model, lambda name, rv: _wrap(rv, replacements.get(name)))
    for variable in shared.values():
        new.register_data_var(variable)
    return new


def unweight(model: pm.Model) -> pm.Model:
    """Return a copy of a weighted model with its weights taken out: the inverse of :func:`reweight`.

    Parameters
    ----------
    model : pymc.Model
        A model that :func:`reweight` returned, or a copy of one. It is not changed.

    Returns
    -------
    pymc.Model
        All rows have weight one; the data variables of the weights are gone.
    """

    def strip(name: str, rv: Any) -> Any:
        return rv.owner.inputs[0] if is_weighted(rv) else rv

    new = transform_model(model, strip)
    drop_data(new, [name for name in new.named_vars if _is_weights_data(model, name)])
    return new


def is_weighted(rv: Any) -> bool:
    """Whether an observed variable of a model carries likelihood weights.

    Parameters
    ----------
    rv : TensorVariable
        One of ``model.observed_RVs``.
    """
    return rv.owner is not None and isinstance(rv.owner.op, WeightedRandomVariable)


def log_likelihood(idata: ArvizObject, weighted: pm.Model, *, progressbar: bool = False) -> ArvizObject:
    """Add the pointwise log likelihood, unweighted and weighted, to the draws of a weighted model.

    Parameters
    ----------
    idata : arviz.InferenceData or xarray.DataTree
        With a posterior group; it is not changed.
    weighted : pymc.Model
        The model that :func:`reweight` returned.
    progressbar : bool

    Returns
    -------
    arviz.InferenceData or xarray.DataTree
        A new object with the groups ``log_likelihood``, log f(y_i | theta), which cross validation needs, and
        ``log_likelihood_weighted``, w_i log f(y_i | theta). Each takes 8 bytes a draw and row.

    Raises
    ------
    ValueError
        If `idata` has no posterior.
    """
    if not has_group(idata, "posterior"):
        raise ValueError("the ArviZ object has no posterior group. Sample the model first.")
    # PyMC computes no log likelihood of models with initial values, which it does not need either.
    plain = transform_model(weighted, lambda name, rv: rv, initial_values=False)
    groups = {}
    for name, model in (("log_likelihood", unweight(plain)), ("log_likelihood_weighted", plain)):
        groups[name] = pm.compute_log_likelihood(
            idata, model=model, extend_inferencedata=False, progressbar=progressbar
        )
    return with_groups(idata, groups)


def _wrap(rv: Any, replacement: tuple[WeightedRandomVariable, Any] | None) -> Any:
    """Weighted variable, or the variable itself where there is nothing to replace."""
    if replacement is None:
        return rv
    op, row_weights = replacement
    rv.name = None  # the name belongs to the weighted variable
    return op(rv, row_weights)


def _scaled(weights: Any, total: float | None) -> Any:
    """Rescale the weights, shape (row,), inside the graph, so that swapped ones are rescaled too."""
    return weights if total is None else weights * (total / pt.sum(weights))


def _is_weights_data(model: pm.Model, name: str) -> bool:
    """Whether a data variable feeds the weights of an observed variable and nothing else."""
    weighted = [rv for rv in observed_variables(model) if is_weighted(rv)]
    return any(model.named_vars[name] in ancestors([rv.owner.inputs[1]]) for rv in weighted)


def _data_name(target: WeightedRows, weights: Any) -> str:
    """Name of the data variable that holds a variable's weights."""
    return f"{DATA_NAME}_{target.name}" if isinstance(weights, Mapping) else DATA_NAME


def _match(weights: Any, targets: list[WeightedRows]) -> dict[str, np.ndarray]:
    """Check the weights against the variables they are for: vectors (row,) by name of their data variable."""
    known = {target.name: target for target in targets}
    if isinstance(weights, Mapping):
        for name in weights:
            if name not in known:
                raise KeyError(f"{name!r} is not an observed variable; those are {', '.join(known)}.")
        if not weights:
            raise ValueError("the dict of weights is empty. Name at least one observed variable.")
    vectors = {}
    for target in targets:
        if isinstance(weights, Mapping) and target.name not in weights:
            continue
        target.check()
        given = weights[target.name] if isinstance(weights, Mapping) else weights
        vectors[_data_name(target, weights)] = _vector(given, target)
    return vectors


def _vector(weights: Any, target: WeightedRows) -> np.ndarray:
    """Weights of one variable as a checked vector of floats, shape (row,)."""
    try:
        vector = np.asarray(getattr(weights, "values", weights), dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise TypeError(f"the weights for {target.name!r} are not numbers. Pass one number a row.") from error
    if vector.shape != (target.n_rows,):
        raise ValueError(
            f"the weights for {target.name!r} must have shape ({target.n_rows},), one a row; got shape "
            f"{vector.shape}. Pass a dict by name where observed variables have different numbers of rows."
        )
    for wrong, what in ((np.isnan(vector), "NaN"), (np.isinf(vector), "infinite"), (vector < 0, "negative")):
        if wrong.any():
            raise ValueError(
                f"the weights for {target.name!r} must be finite and not negative; {int(wrong.sum())} of "
                f"{vector.size} are {what}."
            )
    if not vector.any():
        raise ValueError(f"the weights for {target.name!r} are all zero. Leave at least one row in.")
    return vector


def _check_total(total: float | None) -> None:
    """Refuse a total that is not a positive finite number."""
    if total is None:
        return
    if isinstance(total, bool | np.bool_) or not isinstance(total, Real):
        raise TypeError(f"total must be a number; got {type(total).__name__}. Use release.n_private.")
    if not 0 < float(total) < np.inf:
        raise ValueError(f"total must be positive and finite; got {total}. Use release.n_private.")
