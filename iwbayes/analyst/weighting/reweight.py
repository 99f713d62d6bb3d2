"""Give the rows of a PyMC model's likelihood their importance weights.

:func:`reweight` turns any model with observed variables into one whose log density has w_i times the log
likelihood of row i, by a transform of the model's function graph: the result is an ordinary
:class:`pymc.Model`, and priors, potentials, imputed values, deterministics, coords and dims are as before.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
from pymc.pytensorf import floatX
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.traversal import ancestors

from iwbayes._warnings import WeightsWarning
from iwbayes.analyst.arviz_compat import ArvizObject, has_group, with_groups
from iwbayes.analyst.checks import check_numbers, check_total
from iwbayes.analyst.weighting.graph_functions import evaluate
from iwbayes.analyst.weighting.minibatch import batch_weights, draws_rows, drop_batch_weights, minibatch_node
from iwbayes.analyst.weighting.model_copy import drop_variables, transform_model
from iwbayes.analyst.weighting.observed_variables import ObservedRows, observed_rows, observed_variables
from iwbayes.analyst.weighting.release_rows import check_rows
from iwbayes.analyst.weighting.row_independence import row_refusal
from iwbayes.analyst.weighting.weight_checks import LENGTH, CheckWeights, checked_values
from iwbayes.analyst.weighting.weighted_op import WeightedRandomVariable
from iwbayes.arrays import Array
from iwbayes.release import Release

if TYPE_CHECKING:
    from iwbayes.weights import Weights

    WeightsLike: TypeAlias = Weights | np.ndarray

#: Name of the data variable that holds the weights; of a dict, ``likelihood_weights_<variable>``.
DATA_NAME = "likelihood_weights"


def reweight(
    model: pm.Model,
    weights: Release | WeightsLike | Mapping[str, WeightsLike],
    *,
    total: float | None = None,
    allow_zero: bool | None = None,
) -> pm.Model:
    """Return a copy of a PyMC model in which each row of the likelihood has its weight.

    Parameters
    ----------
    model : pymc.Model
        Any model with observed variables that have one density a row, rows on their first axis. It is not
        changed.
    weights : Release, Weights, ndarray of shape (row,), or dict by the name of an observed variable
        Of a release its weights, with ``release.n_private`` as `total`; variables with the name of a column must then
        have its rows, in their order. Others are finite and not negative, one a row by position (an index is not
        looked at). One vector is shared by all observed variables, which must then have the same number of rows;
        variables that a dict leaves out keep weight one. For data that are batches of ``pm.Minibatch`` give the weights
        of all rows of the table.
    total : float, optional
        Sum of the weights over the rows, usually the size of the private table (``release.n_private``): the
        weights are used as w * total / sum(w). By default they are used as they are; those of a
        :class:`~iwbayes.Weights` have mean one and so sum to the number of synthetic rows, which makes a
        posterior narrower than the private data would.
    allow_zero : bool, optional
        Whether the log density is guarded against rows of weight zero, so that they are out of it and of its
        gradient even where their own density is zero. By default it is if one of these weights is zero. True
        is for zeros that will be set later; False refuses them now. The guard is slower.

    Returns
    -------
    pymc.Model
        With the weights as a ``pm.Data`` named ``likelihood_weights`` (``likelihood_weights_<variable>`` for a
        dict), of the first dimension of their observed variable, which ``pm.set_data`` swaps without compiling anew;
        `total` is then applied to the new ones. At every evaluation it raises a ValueError if the weights are not one
        a row of the data then set, or are negative, infinite or NaN, or zero without the guard. (JAX, which has no
        errors, skips these checks; with a `total` negative weights and zeros without the guard then give NaN.)

    Raises
    ------
    ValueError
        If rows are not those of the release, the model is nested in another, there is no observed variable, one has no
        rows (a scalar; a joint density such as one multivariate normal, a Gaussian process or a random walk over all
        rows; a pm.Simulator; terms that depend on other rows; a `total_size` whose rows cannot be traced to
        ``pm.Minibatch``), the model is weighted already, weights have the wrong length or are negative, infinite,
        NaN or masked, or all zero, or zero with ``allow_zero=False``, `total` is not positive and finite, or missing
        cells among the data leave a row without a density.
    TypeError
        If weights or `total` are not numbers, or `allow_zero` is no bool.
    KeyError
        If a dict names a variable that is not observed.

    Warns
    -----
    WeightsWarning
        If a ``pm.Potential`` has one term a row: potentials keep weight one.

    Notes
    -----
    Integer weights give the density of the table with its rows so often repeated. Weight zero takes a row out, whose
    predictors must be finite and whose parameters valid all the same. Missing rows of an imputed variable keep weight
    one, as do potentials. A minibatch keeps its scaling by ``total_size``: the mean of its log likelihood over all
    batches is the weighted log likelihood of the table. ``pm.compute_log_likelihood`` of a weighted model gives
    weighted terms; :func:`log_likelihood` stores both kinds. That each term of a density belongs to its row alone is
    checked by numbers, at the observed values and at others.

    The density is the weighted likelihood of Ghalebikesabi et al. (UAI 2022), a general Bayesian update in the
    sense of Bissiri et al. (JRSS-B, 2016).
    """
    check_total(total)
    if model.parent is not None:
        raise ValueError("the model is nested in another, whose variables it may share. Reweight the outermost one.")
    targets = observed_rows(model)
    if isinstance(weights, Release):
        check_rows(model, targets, weights)
        total = weights.n_private if total is None else total
        weights = weights.weights
    vectors = _match(model, weights, targets)
    _warn_of_potentials(model, targets)
    guards = {name: _guard(name, vector, allow_zero) for name, vector in vectors.items()}
    shared = {name: pytensor.shared(floatX(vector), name, shape=(None,)) for name, vector in vectors.items()}
    known = {target.observed: target for target in targets}

    def weigh(fgraph: FunctionGraph, observed: str, rv: Any, value: Any) -> Any:
        name = _data_name(known[observed], weights)
        if name not in shared:
            return rv
        rows, guard = known[observed], guards[name]
        node = minibatch_node(value) if rows.minibatch else None
        part = None if node is None else batch_weights(fgraph, node, shared[name])
        scaled_to = None if total is None else float(total)
        checked = checked_values(shared[name], guard, part=part, total=scaled_to)
        if rows.rows is not None:
            whole: Any = CheckWeights(LENGTH)(checked, pt.eq(checked.shape[0], rows.n_rows))
            checked = whole[rows.rows]
        rv.name = None  # the name belongs to the weighted variable
        return WeightedRandomVariable(guard)(rv, checked)

    new = transform_model(model, weigh)
    for name, variable in shared.items():
        owners = [target for target in targets if _data_name(target, weights) == name]
        # a batch has no rows of the table
        dims = {None if own.minibatch else (model.named_vars_to_dims.get(own.name) or (None,))[0] for own in owners}
        new.register_data_var(variable, None if len(dims) > 1 or None in dims else (*dims,))
    return new


def unweight(model: pm.Model) -> pm.Model:
    """Return a copy of a weighted model without its weights and their data variables: the inverse of `reweight`."""

    def strip(fgraph: FunctionGraph, name: str, rv: Any, value: Any) -> Any:
        if not is_weighted(rv):
            return rv
        node = minibatch_node(value)
        if node is not None:
            drop_batch_weights(fgraph, node, rv.owner.inputs[1])
        return rv.owner.inputs[0]

    new = transform_model(model, strip)
    inputs = [var for rv in observed_variables(model) if is_weighted(rv) for var in rv.owner.inputs[1:]]
    feeding = set(ancestors(inputs))
    used = set(ancestors([*new.basic_RVs, *new.deterministics, *new.potentials, *new.rvs_to_values.values()]))
    drop_variables(
        new, [var.name for var in model.data_vars if var in feeding and new.named_vars[var.name] not in used]
    )
    return new


def is_weighted(rv: Any) -> bool:
    """Whether a variable of ``model.observed_RVs`` carries likelihood weights."""
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
    plain = transform_model(weighted, lambda fgraph, name, rv, value: rv, initial_values=False)
    groups = {}
    for name, model in (("log_likelihood", unweight(plain)), ("log_likelihood_weighted", plain)):
        groups[name] = pm.compute_log_likelihood(
            idata, model=model, extend_inferencedata=False, progressbar=progressbar
        )
    return with_groups(idata, groups)


def _warn_of_potentials(model: pm.Model, targets: list[ObservedRows]) -> None:
    """Warn of potentials with one term a row, which may be a likelihood that its author takes for weighted."""
    for potential in model.potentials:
        if not potential.type.ndim:
            continue
        n_terms = potential.type.shape[0] or int(evaluate(potential.shape)[0])
        alike = [target.name for target in targets if target.n_rows == n_terms]
        if alike:
            warnings.warn(
                f"the potential {potential.name!r} has {n_terms} terms, one for each row of {alike[0]!r}. They keep "
                "weight one, because only observed variables are weighted. If they are a likelihood, write it as an "
                "observed variable, for example by pm.CustomDist; if not, sum them.",
                WeightsWarning,
                stacklevel=3,
            )


def _guard(name: str, vector: np.ndarray, allow_zero: bool | None) -> bool:
    """Whether the log density is guarded against rows of weight zero."""
    if not (allow_zero is None or isinstance(allow_zero, bool | np.bool_)):
        raise TypeError(f"allow_zero must be True, False or None; got {allow_zero!r}.")
    n_zero = int(np.count_nonzero(vector == 0))
    if allow_zero is not None and not allow_zero and n_zero:
        raise ValueError(f"{n_zero} of {vector.size} weights in {name} are zero. Leave allow_zero out, or set it True.")
    return bool(allow_zero or n_zero)


def _data_name(target: ObservedRows, weights: Any) -> str:
    """Name of the data variable that holds a variable's weights; of no data variable if it has no weights."""
    return f"{DATA_NAME}_{target.name}" if isinstance(weights, Mapping) else DATA_NAME


def _match(model: pm.Model, weights: Any, targets: list[ObservedRows]) -> dict[str, np.ndarray]:
    """Check the weights against the variables they are for: vectors (row,) by name of their data variable."""
    names = [target.name for target in targets]
    if isinstance(weights, Mapping):
        unknown = [name for name in weights if name not in names]
        if unknown:
            raise KeyError(f"{unknown[0]!r} is not an observed variable; those are {', '.join(names)}.")
        if not weights:
            raise ValueError("the dict of weights is empty. Name at least one observed variable.")
    chosen = [target for target in targets if not isinstance(weights, Mapping) or target.name in weights]
    vectors = {}
    for target in chosen:
        name = _data_name(target, weights)
        if name in model.named_vars or is_weighted(model[target.observed]):
            raise ValueError(
                f"the model already has a variable {name!r} or weights of {target.name!r}. Change its weights by "
                "pm.set_data, or reweight the model that it was made from."
            )
        refusal = target.refusal
        if not refusal:
            given = weights[target.name] if isinstance(weights, Mapping) else weights
            vectors[name] = _vector(given, target)
            refusal = row_refusal(model, model[target.observed])
        if refusal:
            raise ValueError(f"the observed variable {target.name!r} cannot be weighted by row: {refusal}")
    return vectors


def _vector(weights: Any, target: ObservedRows) -> np.ndarray:
    """Weights of one variable as a checked vector of floats, shape (row,)."""
    given = getattr(weights, "values", weights)
    if np.ma.isMaskedArray(given) and np.ma.getmaskarray(given).any():
        raise ValueError(f"some weights for {target.name!r} are masked. Pass one number a row.")
    try:
        array = np.asarray(given)
        # numpy would take texts, dates and complex numbers for numbers
        if array.dtype.kind not in "biufO" or {str, bytes} & set(
            map(type, array.flat if array.dtype.kind == "O" else ())
        ):
            raise TypeError(f"they have dtype {array.dtype}")
        vector = np.array(array, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise TypeError(f"the weights for {target.name!r} are not numbers. Pass one number a row.") from error
    if vector.shape != (target.n_rows,):
        raise ValueError(
            f"the weights for {target.name!r} must have shape ({target.n_rows},), one a row; got shape "
            f"{vector.shape}. Pass a dict by name where observed variables have different numbers of rows."
        )
    check_numbers(vector, f"the weights for {target.name!r}")
    if not vector.any():
        raise ValueError(f"the weights for {target.name!r} are all zero. Leave at least one row in.")
    return vector


def weights_data(model: pm.Model, *, zeros: bool) -> dict[str, Array]:
    """Values of the data variables that hold the weights, by name; `zeros` says whether weights of zero will come."""
    weighted = [rv for rv in model.observed_RVs if is_weighted(rv)]
    if zeros and not all(rv.owner.op.guard for rv in weighted):
        raise ValueError(
            "a draw of the weights has rows of weight zero, which this model was not made for. Use "
            "reweight(..., allow_zero=True)."
        )
    above = set(ancestors([rv.owner.inputs[1] for rv in weighted]))
    return {var.name: var.get_value() for var in model.data_vars if var in above}


def common_weights(model: pm.Model, rows: list[Any]) -> np.ndarray:
    """Weights (row,) of the likelihood, the same for all the observed variables in it."""
    if not rows:
        raise ValueError("the model has no observed variables, so there is no likelihood.")
    weights: dict[str, np.ndarray] = {}
    for rv in rows:
        if rv.type.ndim == 0:
            raise ValueError(f"the observed variable {rv.name!r} is a scalar; it needs a row axis.")
        if draws_rows(model.rvs_to_values[rv]):
            raise ValueError(f"the observed variable {rv.name!r} is a minibatch. Use a model of the whole table.")
        n_rows = int(evaluate(model.rvs_to_values[rv].shape)[0])
        weights[rv.name] = np.array(evaluate(rv.owner.inputs[1])) if is_weighted(rv) else np.ones(n_rows)
    lengths = {name: len(vector) for name, vector in weights.items()}
    if len(set(lengths.values())) > 1:
        listed = ", ".join(f"{name}: {length}" for name, length in lengths.items())
        raise ValueError(
            f"the observed variables have different numbers of rows ({listed}), so a row has no single score. "
            "Use a model whose observed variables share their rows."
        )
    first, *others = weights.values()
    if any(not np.array_equal(first, other) for other in others):
        raise ValueError(
            f"the observed variables {', '.join(weights)} have different weights, so a row has no single score. "
            "Give them the same weights."
        )
    return first
