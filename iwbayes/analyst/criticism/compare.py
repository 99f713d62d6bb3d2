"""Compare models of the same weighted rows by leave-one-out cross-validation, with stacking weights."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np
import pandas as pd
from scipy.optimize import minimize

from iwbayes.analyst import arviz_compat
from iwbayes.analyst.criticism.loo import WeightedLOO, difference_errors, loo, rehearsed_errors
from iwbayes.analyst.criticism.weighted_sample import RowWeights
from iwbayes.arrays import Array
from iwbayes.rehearsals import Rehearsals


def compare(
    models: Mapping[str, WeightedLOO | arviz_compat.ArvizObject],
    weights: RowWeights | None = None,
    *,
    total: float | None = None,
    var_name: str | None = None,
    rehearsals: Rehearsals | None = None,
) -> pd.DataFrame:
    """Compare models of the same weighted rows by their expected log predictive density.

    Parameters
    ----------
    models : dict of str to WeightedLOO, arviz.InferenceData or xarray.DataTree
        Two or more by name: results of :func:`~iwbayes.loo`, or draws for it.
    weights, total, var_name, rehearsals
        For draws; see :func:`~iwbayes.loo`.

    Returns
    -------
    pandas.DataFrame
        One row a model, the best first, with ArviZ's columns: ``rank`` (from 0), ``elpd``, ``p``, ``elpd_diff``
        (less the best one's: 0 or negative, as in ArviZ 1.3), ``weight`` (stacking), ``se``, ``dse`` (standard error
        of ``elpd_diff``) and ``warning`` (k-hat). ``attrs["noise_included"]`` says whether ``dse`` knows the noise
        of the weights.

    Raises
    ------
    TypeError, ValueError
        Fewer than two models, or two of one name; models of other rows, weights, totals or observed values; and as
        :func:`~iwbayes.loo` says, of calibrated draws in particular.

    Warns
    -----
    WeightsWarning
        As :func:`~iwbayes.loo` does.

    Notes
    -----
    Stacking weights a maximise ``sum_i w_i log sum_k a_k p_k(y_i | y_-i)`` over the simplex (Yao, Vehtari, Simpson
    & Gelman, Bayesian Analysis 13, 2018). The standard error of a difference is that of the weighted sum of the rows'
    differences, as in :func:`~iwbayes.loo`. A small difference of two models whose fits lie close together has a
    standard error that is too small (Sivula, Magnusson & Vehtari, 2020).

    Examples
    --------
    >>> fits = {f: iw.fit(f, release, calibrate="none") for f in ("y ~ x", "y ~ x + z")}  # doctest: +SKIP
    >>> iw.compare(fits, release)  # doctest: +SKIP
    """
    if not isinstance(models, Mapping):
        raise TypeError(f"models must be a dict of name to draws or WeightedLOO; got {type(models).__name__}.")
    if len(models) < 2:
        raise ValueError(f"models must hold two or more to compare; got {len(models)}. Use loo() for one.")
    if len({str(name) for name in models}) < len(models):
        raise ValueError(f"models must have names that differ as text; got {list(models)}. Rename one of them.")
    results = {
        str(name): model
        if isinstance(model, WeightedLOO)
        else loo(model, weights, total=total, var_name=var_name, rehearsals=rehearsals)
        for name, model in models.items()
    }
    ranked = dict(sorted(results.items(), key=lambda item: -item[1].elpd))
    (best_name, best), *others = ranked.items()
    for name, other in others:
        _check_same(best_name, best, name, other)
    scores = np.column_stack([result.elpd_i.to_numpy() for result in ranked.values()])
    samples = [result.sample for result in ranked.values()]
    # the weights are the same, so that any sample that knows their noise serves for all
    sample = next((sample for sample in samples if sample.noise_included), samples[0])
    rehearsed = [result.rehearsed for result in ranked.values() if result.rehearsed is not None]
    with np.errstate(invalid="ignore"):
        errors, differences = (
            rehearsed_errors(rehearsed)
            if len(rehearsed) == len(ranked)
            else (
                difference_errors(scores, sample),
                np.append(0.0, difference_errors(scores[:, 1:] - scores[:, :1], sample)),
            )
        )
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
    """Weights (model,) of models that maximise the weighted log score of their mixture; scores are (row, model).

    The objective is concave. At its maximum the gradient ``sum_i p_i p_k(y_i)/p(y_i)`` is one for models in use and
    less for the others. Quasi-Newton steps come near; the steps of the EM algorithm, which never lose height, end it.
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
        # a weight that is exactly zero would stay so
        a = np.maximum(a, 1e-12) * gradient
        a = a / a.sum()
    return a


def _check_same(best_name: str, best: WeightedLOO, name: str, other: WeightedLOO) -> None:
    """Refuse to compare what was not computed from the same weighted rows and observed values."""
    pair = f"{best_name!r} and {name!r}"
    one, two = best.elpd_i, other.elpd_i
    # rows that both models name as fit does must be the same
    named = all(scores.dims == ("row",) and "row" in scores.coords for scores in (one, two))
    if one.shape != two.shape or (named and not np.array_equal(one["row"], two["row"])):
        raise ValueError(
            f"models must have the same rows; {pair} have {len(one)} and {len(two)}, or other ones. Fit both to the "
            "rows that are complete in all their columns."
        )
    if not np.allclose(best.sample.weights, other.sample.weights, rtol=1e-6, atol=1e-12):
        raise ValueError(
            f"models must have the same weights on the same scale; those of {pair} sum to {best.total:.6g} and "
            f"{other.total:.6g}. Fit both with one vector and one total."
        )
    if best.response is None or other.response is None:
        return
    # observed values by name, where there are several
    observed, others = (
        [np.asarray(group[name], dtype=np.float64) for name in sorted(map(str, group.data_vars))]
        for group in (best.response, other.response)
    )
    same_number = len(observed) == len(others)
    if not same_number or not all(map(partial(np.array_equal, equal_nan=True), observed, others)):
        raise ValueError(
            f"models must predict the same observed values; those of {pair} differ. Densities of a transformed "
            "response cannot be compared with those of the response itself."
        )
