"""Give the rows of a PyMC model's likelihood their importance weights, in a copy of the model's function graph."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pymc as pm
import pytensor
from pymc.model.fgraph import ModelObservedRV, fgraph_from_model, model_from_fgraph
from pymc.pytensorf import floatX
from pytensor.graph.basic import Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.replace import graph_replace
from pytensor.graph.traversal import ancestors

from iwbayes.analyst.arguments import check_pymc_model, check_total
from iwbayes.analyst.arviz_compat import ArvizObject, has_group, with_groups
from iwbayes.analyst.weighting.graph_functions import evaluate
from iwbayes.analyst.weighting.observed_rows import (
    ObservedRows,
    batch_weights,
    draws_rows,
    minibatch_node,
    observed_rows,
    weighted_variables,
)
from iwbayes.analyst.weighting.release_rows import check_rows
from iwbayes.analyst.weighting.row_independence import row_refusal
from iwbayes.analyst.weighting.weighted_op import WeightedRandomVariable, checked_length, checked_values
from iwbayes.release import Release
from iwbayes.utils.arrays import Array
from iwbayes.utils.warnings import WeightsWarning

if TYPE_CHECKING:
    from iwbayes.release.weights import Weights

    WeightsLike: TypeAlias = Weights | np.ndarray

#: Name of the data variable that contains the weights; ``likelihood_weights_<variable>`` for a dict of weights.
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
        Any model with observed variables that have one density per row, with the rows on their first axis.
    weights : Release, Weights, ndarray of shape (row,), or dict of these by the name of an observed variable
        For a release, its weights are used, with ``release.n_private`` as default of `total`. Variables that have the
        name of a column must then contain the rows of that column, in their order. Other weights are one per row by
        position (of the whole table, for batches of ``pm.Minibatch``); a pandas index is ignored. One vector is shared
        by all observed variables. Variables that a dict leaves out keep weight one.
    total : float, optional
        Sum to which the weights are scaled, usually ``release.n_private``. By default weights are used unchanged;
        :class:`~iwbayes.Weights` sum to the number of synthetic rows.
    allow_zero : bool, optional
        Whether rows of weight zero are excluded from the log density even if their own density is zero. This guard is
        slower. By default it is on if one of these weights is zero. Use True if you will set zeros later, and False to
        reject zeros now.

    Returns
    -------
    pymc.Model
        The weighted model. Its weights are a ``pm.Data`` named ``likelihood_weights``
        (``likelihood_weights_<variable>`` for a dict). ``pm.set_data`` replaces them without a new compilation;
        `total` then applies to the new weights. New rows to predict need no weights. Each evaluation of the density
        raises a ValueError if the weights are not one per row of the current data, or if one is negative, infinite,
        NaN, or zero without the guard. (JAX has no errors and skips these checks.)

    Raises
    ------
    ValueError
        If the rows are not those of the release; if the model is nested in another one, is weighted already or has no
        observed variable, or one without a density per row, such as a random walk over all rows; if weights have the
        wrong length, are negative, infinite, NaN, masked, all zero, or zero with ``allow_zero=False``; if `total` is
        not positive and finite; if missing cells leave a row without a density.
    TypeError, KeyError
        If an argument has the wrong type, or if a key of the dict is not an observed variable.

    Warns
    -----
    WeightsWarning
        If a ``pm.Potential`` has one term per row, because potentials keep weight one.

    Notes
    -----
    The predictors of a row of weight zero must still be finite and its parameters valid. Missing rows of an imputed
    variable keep weight one. A minibatch keeps its scaling by ``total_size``: the mean of its log likelihood over all
    batches is the weighted log likelihood of the table. ``pm.compute_log_likelihood`` of a weighted model gives
    weighted terms. A numerical check, at the observed values and at others, ensures that each term of a density depends
    on its own row only.

    The density is the weighted likelihood of Ghalebikesabi et al. (UAI 2022), a general Bayesian update (Bissiri et
    al., JRSS-B 2016).

    Examples
    --------
    Weights of two rows, scaled to a total of 10. ``reweight(model, release)`` uses the weights of a release, and the
    number of its private rows.

    >>> import numpy as np
    >>> import pymc as pm
    >>> from iwbayes import reweight
    >>> with pm.Model() as model:
    ...     mu = pm.Normal("mu")
    ...     y = pm.Normal("y", mu, observed=[0.0, 1.0])
    >>> weighted = reweight(model, np.array([1.0, 3.0]), total=10)
    >>> plain, tilted = (one.point_logps({"mu": 0.5}, round_vals=4)["y"] for one in (model, weighted))
    >>> round(float(tilted / plain), 2)  # both rows have the same density at 0.5: 10 rows instead of 2
    5.0
    """
    check_total(total)
    check_pymc_model(model)
    if model.parent is not None:
        raise ValueError(
            "the model is nested in another model and may share its variables. Reweight the outermost model."
        )
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
            checked = checked_length(checked, rows.n_rows)[rows.rows]
        elif value.type.shape[0] is not None:
            checked = checked_length(checked, value.type.shape[0])
        rv.name = None  # the weighted variable gets the name
        return WeightedRandomVariable(guard)(rv, checked)

    new = transform_model(model, weigh)
    for variable in shared.values():
        # Without dims: a dimension of the rows takes another length if pm.set_data sets new rows to predict.
        new.register_data_var(variable)
    return new


def unweight(model: pm.Model, keep: np.ndarray | None = None) -> pm.Model:
    """Return a copy of a model without weights in its densities, which are zero in rows not in `keep` (row,)."""

    def strip(fgraph: FunctionGraph, name: str, rv: Any, value: Any) -> Any:
        if not isinstance(rv.owner.op, WeightedRandomVariable):
            return rv
        plain = rv.owner.inputs[0]
        return plain if keep is None or keep.all() else WeightedRandomVariable(True)(plain, floatX(keep))

    return transform_model(model, strip)


def transform_model(
    model: pm.Model, edit: Callable[[FunctionGraph, str, Any, Any], Any], *, kind: type = ModelObservedRV
) -> pm.Model:
    """Copy a model and replace its observed variables, or those of another `kind`, by those that `edit` returns.

    `edit` takes the copy's function graph, and the name, random variable and value of a variable in it. The copy
    restores what PyMC's function graph changes or drops.
    """
    # fgraph_from_model only reads attributes, so a shadow of the model without initial values is enough
    shadow = object.__new__(type(model))
    shadow.__dict__.update(model.__dict__)
    shadow.rvs_to_initial_values = dict.fromkeys(model.rvs_to_initial_values)
    fgraph, _ = fgraph_from_model(shadow)
    for node in fgraph.toposort():
        if isinstance(node.op, kind):
            new = edit(fgraph, node.outputs[0].name, *node.inputs[:2])
            if new is not node.inputs[0]:
                fgraph.change_node_input(node, 0, new, import_missing=True)
    copy = model_from_fgraph(fgraph, mutate_fgraph=True)
    copy.name, copy.check_bounds = model.name, model.check_bounds
    _restore_order(copy, model)
    moved = {old: copy.named_vars[name] for name, old in model.named_vars.items() if name in copy.named_vars}
    for rv, initval in model.rvs_to_initial_values.items():
        if isinstance(initval, Variable):  # a symbolic one is moved to the variables of the copy
            [initval] = graph_replace([initval], moved, strict=False)
        copy.rvs_to_initial_values[copy.named_vars[rv.name]] = initval
    return copy


def _restore_order(copy: pm.Model, model: pm.Model) -> None:
    """Put the variables of the copy into the order of the model, by their names."""
    for attribute in ("free_RVs", "observed_RVs", "deterministics", "potentials", "data_vars"):
        rank = {var.name: i for i, var in enumerate(getattr(model, attribute))}
        getattr(copy, attribute).sort(key=lambda var, rank=rank: rank.get(var.name, len(rank)))
    # keys are names or random variables, except in the last one
    for attribute in (
        "named_vars", "named_vars_to_dims", "rvs_to_values", "rvs_to_transforms", "rvs_to_initial_values",
        "values_to_rvs",
    ):  # fmt: skip
        mapping, part = getattr(copy, attribute), int(attribute == "values_to_rvs")
        names = [getattr(pair[part], "name", pair[part]) for pair in getattr(model, attribute).items()]
        rank = {name: i for i, name in enumerate(names)}
        pairs = sorted(mapping.items(), key=lambda pair: rank.get(getattr(pair[part], "name", pair[part]), len(rank)))
        mapping.clear()
        mapping.update(pairs)


def log_likelihood(idata: ArvizObject, weighted: pm.Model, *, progressbar: bool = False) -> ArvizObject:
    """Add the pointwise log likelihood, unweighted and weighted, to the draws of a weighted model.

    Parameters
    ----------
    idata : arviz.InferenceData or xarray.DataTree
        Draws from the weighted model, with a ``posterior`` group. It is not changed.
    weighted : pymc.Model
        The model that :func:`reweight` returned.
    progressbar : bool, default False
        Whether to show PyMC's progress bar.

    Returns
    -------
    arviz.InferenceData or xarray.DataTree
        A new object with two more groups of 8 bytes per draw and row: ``log_likelihood``, log f(y_i | theta), which
        :func:`~iwbayes.loo` uses, and ``log_likelihood_weighted``, w_i log f(y_i | theta).

    Raises
    ------
    ValueError
        If `idata` has no ``posterior`` group.

    Examples
    --------
    >>> import numpy as np
    >>> import pymc as pm
    >>> from iwbayes import log_likelihood, reweight
    >>> with pm.Model() as model:
    ...     mu = pm.Normal("mu")
    ...     y = pm.Normal("y", mu, observed=[0.0, 1.0])
    >>> weighted = reweight(model, np.array([1.0, 3.0]), total=10)
    >>> idata = pm.sample(20, tune=20, chains=1, model=weighted, progressbar=False, compute_convergence_checks=False)
    >>> idata = log_likelihood(idata, weighted)
    >>> ratio = idata["log_likelihood_weighted"]["y"] / idata["log_likelihood"]["y"]
    >>> ratio.mean(("chain", "draw")).values.round(2).tolist()
    [2.5, 7.5]
    """
    if not has_group(idata, "posterior"):
        raise ValueError("the ArviZ object has no posterior group. Sample the model first.")
    check_pymc_model(weighted, "Then weight it: reweight(model, release).")
    plain = transform_model(weighted, lambda fgraph, name, rv, value: rv)
    # PyMC cannot compute log likelihoods of models with initial values, which are not needed here
    plain.rvs_to_initial_values.update(dict.fromkeys(plain.rvs_to_initial_values))
    models = {"log_likelihood": unweight(plain), "log_likelihood_weighted": plain}
    options: dict[str, Any] = {"extend_inferencedata": False, "progressbar": progressbar}
    found = {name: pm.compute_log_likelihood(idata, model=model, **options) for name, model in models.items()}
    return with_groups(idata, found)


def _warn_of_potentials(model: pm.Model, targets: list[ObservedRows]) -> None:
    """Warn of potentials with one term per row, which the user may expect to be weighted as a likelihood."""
    for potential in filter(lambda own: own.type.ndim, model.potentials):
        n_terms = potential.type.shape[0] or int(evaluate(potential.shape)[0])
        alike = [target.name for target in targets if target.n_rows == n_terms]
        if alike:
            warnings.warn(
                f"the potential {potential.name!r} has {n_terms} terms, one for each row of {alike[0]!r}. They keep "
                "weight one, because only observed variables are weighted. If they are a likelihood, write it as an "
                "observed variable, for example with pm.CustomDist; if not, sum them.",
                WeightsWarning,
                stacklevel=3,
            )


def _guard(name: str, vector: np.ndarray, allow_zero: bool | None) -> bool:
    """Whether the log density is guarded against rows of weight zero."""
    if allow_zero is not None and not isinstance(allow_zero, bool | np.bool_):
        raise TypeError(f"allow_zero must be True, False or None; got {allow_zero!r}.")
    n_zero = int(np.count_nonzero(vector == 0))
    if allow_zero is not None and not allow_zero and n_zero:
        raise ValueError(
            f"{n_zero} of {vector.size} weights in {name} are zero, which allow_zero=False rejects. Leave it out, or "
            "set it to True."
        )
    return bool(allow_zero or n_zero)


def _data_name(target: ObservedRows, weights: Any) -> str:
    """Return the name of the data variable with a variable's weights; it does not exist if there are no weights."""
    return f"{DATA_NAME}_{target.name}" if isinstance(weights, Mapping) else DATA_NAME


def _match(model: pm.Model, weights: Any, targets: list[ObservedRows]) -> dict[str, np.ndarray]:
    """Check the weights against their variables; return vectors (row,) by the name of their data variable."""
    names = [target.name for target in targets]
    if isinstance(weights, Mapping):
        unknown = [name for name in weights if name not in names]
        if unknown:
            raise KeyError(f"{unknown[0]!r} is not an observed variable. Observed variables are {', '.join(names)}.")
        if not weights:
            raise ValueError("the dict of weights is empty. Name at least one observed variable.")
    chosen = [target for target in targets if not isinstance(weights, Mapping) or target.name in weights]
    vectors, weighted = {}, {rv.name for rv in weighted_variables(model)}
    for target in chosen:
        name = _data_name(target, weights)
        if name in model.named_vars or target.observed in weighted:
            raise ValueError(
                f"the model already has a variable {name!r} or weights of {target.name!r}. Change its weights with "
                "pm.set_data, or reweight the original model."
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
    """Return the weights of one variable as a checked vector of floats, shape (row,)."""
    given = getattr(weights, "values", weights)
    if np.ma.isMaskedArray(given) and np.ma.getmaskarray(given).any():
        raise ValueError(f"some weights for {target.name!r} are masked. Pass one number per row.")
    try:
        array = np.asarray(given)
        # numpy would convert strings, dates and complex numbers
        if array.dtype.kind not in "biufO" or {str, bytes} & set(
            map(type, array.flat if array.dtype.kind == "O" else ())
        ):
            raise TypeError(f"they have dtype {array.dtype}")
        vector = np.array(array, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise TypeError(f"the weights for {target.name!r} are not numbers. Pass one number per row.") from error
    if vector.shape != (target.n_rows,):
        raise ValueError(
            f"the weights for {target.name!r} must have shape ({target.n_rows},), one per row; got shape "
            f"{vector.shape}. If observed variables have different numbers of rows, pass a dict by name."
        )
    for wrong, what in ((np.isnan(vector), "NaN"), (np.isinf(vector), "infinite"), (vector < 0, "negative")):
        if wrong.any():
            raise ValueError(
                f"the weights for {target.name!r} must be finite and not negative; {int(wrong.sum())} of {vector.size} "
                f"are {what}."
            )
    if not vector.any():
        raise ValueError(f"the weights for {target.name!r} are all zero. At least one must be positive.")
    return vector


def weights_data(model: pm.Model, *, zeros: bool) -> dict[str, Array]:
    """Return the values of the data variables with weights, by name; `zeros`: whether zero weights will be set."""
    weighted = weighted_variables(model)
    if zeros and not all(rv.owner.op.guard for rv in weighted):
        raise ValueError(
            "a weight draw has rows of weight zero, but this model does not allow zeros. Use "
            "reweight(..., allow_zero=True)."
        )
    above = set(ancestors([rv.owner.inputs[1] for rv in weighted]))
    return {var.name: var.get_value() for var in model.data_vars if var in above}


def common_weights(model: pm.Model) -> np.ndarray:
    """Return the weights (row,) of a weighted likelihood; ValueError unless all weighted variables share them."""
    weights: dict[str, np.ndarray] = {}
    for rv in weighted_variables(model):
        if draws_rows(model.rvs_to_values[rv]):
            raise ValueError(f"the observed variable {rv.name!r} is a minibatch. Use a model of the whole table.")
        weights[rv.name] = np.array(evaluate(rv.owner.inputs[1]))
    if not weights:
        raise ValueError("the model has no weighted likelihood. Use reweight(model, release).")
    first, *others = weights.values()
    if any(not np.array_equal(first, other) for other in others):
        listed = ", ".join(f"{name}: {len(vector)}" for name, vector in weights.items())
        raise ValueError(
            f"the observed variables have different weights or numbers of rows ({listed}), so a row has no single "
            "score. Use a model whose observed variables share their rows, and give them the same weights."
        )
    return first
