"""compare(): models of the same weighted rows, by leave-one-out cross-validation and stacking weights."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np
import pandas as pd
from scipy.optimize import minimize

from iwbayes.analyst import arviz_compat
from iwbayes.analyst.criticism.loo import WeightedLOO, difference_errors, loo, rehearsed_errors
from iwbayes.release import Release
from iwbayes.release.rehearsals import Rehearsals
from iwbayes.utils.arrays import Array


def compare(
    models: Mapping[str, WeightedLOO | arviz_compat.ArvizObject],
    release: Release | None = None,
    *,
    total: float | None = None,
    var_name: str | None = None,
    rehearsals: Rehearsals | None = None,
    progressbar: bool = True,
) -> pd.DataFrame:
    """Compare models of the same weighted rows by their expected log predictive density.

    Parameters
    ----------
    models : dict of str to WeightedLOO, arviz.InferenceData or xarray.DataTree
        Two or more models by name: results of :func:`~iwbayes.loo`, or draws from which they are computed.
    release, total, var_name, rehearsals, progressbar : optional
        For draws, as in :func:`~iwbayes.loo`.

    Returns
    -------
    pandas.DataFrame
        One row per model, best model first, with ArviZ's columns: ``rank``, from 0; ``elpd``, and ``se``, its standard
        error; ``p``, the effective number of parameters; ``elpd_diff``, the difference from the best model (0 or
        negative, as in ArviZ 1.3), and ``dse``, its standard error; ``weight``, the stacking weight; ``warning``,
        whether k-hat is too large in some rows. ``attrs["noise_included"]`` says whether ``dse`` includes the noise in
        the weights.

    Raises
    ------
    TypeError, ValueError
        If there are fewer than two models, or two with the same name; if the models differ in rows, weights, total or
        observed values; and as in :func:`~iwbayes.loo`, which also says when this function warns.

    Notes
    -----
    Stacking weights a maximise ``sum_i w_i log sum_k a_k p_k(y_i | y_-i)`` over the simplex (Yao, Vehtari, Simpson &
    Gelman, Bayesian Analysis 13, 2018). ``dse`` is the standard error of the weighted sum of row-wise differences, as
    in :func:`~iwbayes.loo`. It is too small if two models make similar predictions and the difference is small (Sivula,
    Magnusson & Vehtari, arXiv:2008.10296).

    Examples
    --------
    >>> models = {
    ...     formula: iw.fit(formula, release, calibrate="none", log_likelihood=True, draws=250, random_seed=1)
    ...     for formula in ("y ~ 1", "y ~ x + z")
    ... }
    >>> list(iw.compare(models, release).index)
    ['y ~ x + z', 'y ~ 1']
    """
    if not isinstance(models, Mapping):
        raise TypeError(
            f"models must be a dict of name to draws or WeightedLOO; got {type(models).__name__}. Give each a name."
        )
    if len(models) < 2:
        raise ValueError(f"models must contain at least two models; got {len(models)}. Use loo() for one model.")
    if len({str(name) for name in models}) < len(models):
        raise ValueError(f"the names of models must differ as text; got {list(models)}. Rename one of them.")
    results, options = {}, {"total": total, "var_name": var_name, "rehearsals": rehearsals, "progressbar": progressbar}
    for name, model in models.items():
        if not isinstance(model, WeightedLOO):
            model = loo(model, release, **options)  # type: ignore[arg-type]
        results[str(name)] = model
    ranked = dict(sorted(results.items(), key=lambda item: -item[1].elpd))
    (best_name, best), *others = ranked.items()
    for name, other in others:
        _check_same(best_name, best, name, other)
    scores = np.column_stack([result.elpd_i.to_numpy() for result in ranked.values()])
    sample = best.sample  # all models have the same weights
    rehearsed = [result.rehearsed for result in ranked.values() if result.rehearsed is not None]
    with np.errstate(invalid="ignore"):
        if len(rehearsed) == len(ranked):
            errors, differences = rehearsed_errors(rehearsed)
        else:
            errors = difference_errors(scores, sample)
            differences = np.append(0.0, difference_errors(scores[:, 1:] - scores[:, :1], sample))
        elpds = np.array([result.elpd for result in ranked.values()])
        table = {
            "rank": np.arange(len(ranked)),
            "elpd": elpds,
            "p": [result.p_loo for result in ranked.values()],
            "elpd_diff": elpds - elpds[0],
            "weight": stacking_weights(scores, sample.weights),
            "se": errors,
            "dse": differences,
            "warning": [result.warning for result in ranked.values()],
        }
    frame = pd.DataFrame(table, index=list(ranked))
    frame.attrs["noise_included"] = sample.noise_included
    return frame


def stacking_weights(scores: Array, weights: Array) -> Array:
    """Return the weights (model,) that maximise the weighted log score of the mixture, from scores (row, model).

    At the maximum of this concave function no entry of the gradient exceeds one. Quasi-Newton steps come close to it,
    and EM steps, which never decrease it, finish the search.
    """
    kept = (weights > 0) & np.isfinite(scores).any(axis=1)
    shares = weights[kept] / weights[kept].sum()
    density = np.exp(scores[kept] - scores[kept].max(axis=1, keepdims=True))

    def loss(a: Array) -> tuple[float, Array]:
        mixed = np.maximum(density @ a, np.finfo(np.float64).tiny)
        return -float(shares @ np.log(mixed)), -(density.T @ (shares / mixed))

    n_models = scores.shape[1]
    found = minimize(
        loss,
        np.full(n_models, 1.0 / n_models),
        jac=True,
        method="SLSQP",
        bounds=[(0.0, 1.0)] * n_models,
        constraints={"type": "eq", "fun": lambda a: a.sum() - 1.0, "jac": lambda a: np.ones_like(a)},
        options={"ftol": 1e-12, "maxiter": 1000},
    )
    a = np.clip(found.x, 0.0, 1.0)
    a = a / a.sum() if np.isfinite(a).all() and a.sum() > 0 else np.full(n_models, 1.0 / n_models)
    for _ in range(1000):
        gradient = -loss(a)[1]
        if np.max(gradient) < 1 + 1e-9:
            break
        # EM cannot move a weight away from exactly zero
        a = np.maximum(a, 1e-12) * gradient
        a = a / a.sum()
    return a


def _check_same(best_name: str, best: WeightedLOO, name: str, other: WeightedLOO) -> None:
    """Raise ValueError unless both results have the same rows, weights and observed values."""
    pair = f"{best_name!r} and {name!r}"
    one, two = best.elpd_i, other.elpd_i
    # if both models have a coordinate of row indices, as results of fit do, these must be equal
    named = all(scores.dims == ("row",) and "row" in scores.coords for scores in (one, two))
    if one.shape != two.shape or (named and not np.array_equal(one["row"], two["row"])):
        raise ValueError(
            f"models must have the same rows; {pair} have {len(one)} and {len(two)} rows, or different rows. Fit both "
            "to the rows that are complete in the columns of both models."
        )
    if not np.allclose(best.sample.weights, other.sample.weights, rtol=1e-6, atol=1e-12):
        raise ValueError(
            f"models must have the same weights on the same scale; the weights of {pair} sum to {best.total:.6g} and "
            f"{other.total:.6g}. Fit both with the same weights and the same total."
        )
    if best.response is None or other.response is None:
        return
    # if there are several observed variables, they are compared by name
    observed, others = (
        [np.asarray(group[name], dtype=np.float64) for name in sorted(map(str, group.data_vars))]
        for group in (best.response, other.response)
    )
    if len(observed) != len(others) or not all(map(partial(np.array_equal, equal_nan=True), observed, others)):
        raise ValueError(
            f"models must have the same observed values; those of {pair} differ. Fit both to the same response, "
            "because densities of a transformed response cannot be compared with densities of the response."
        )
