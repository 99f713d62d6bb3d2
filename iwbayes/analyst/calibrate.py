"""Calibrate the posterior of a weighted PyMC model: intervals that account for the noise in the weights.

The draws of the weighted posterior treat the released weights as exact. Here they are moved linearly, in PyMC's
unconstrained space, to the mean and covariance of calibrated likelihood times prior (`sandwich`), and mapped back
through the transforms (Shaby 2014; Williams and Savitsky 2021). Where the prior has parameters of its own
(hierarchical models), that product is sampled instead (`_hierarchies`).
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from iwbayes._warnings import CalibrationWarning
from iwbayes.analyst import _arviz
from iwbayes.analyst._domain import (
    bend_check,
    explained_check,
    kappa_check,
    misfit_check,
    skew_check,
    smallest_known,
    weight_checks,
    weight_facts,
)
from iwbayes.analyst._hierarchies import Hierarchy, bend
from iwbayes.analyst._meat import Array
from iwbayes.analyst._misfit import held_back_of
from iwbayes.analyst._mixture import map_parts, pool_normals
from iwbayes.analyst._nuts import check_sampler
from iwbayes.analyst._pool_record import model_reference, pool_record
from iwbayes.analyst._replicate import weights_digest
from iwbayes.analyst._weight_draws import Part, Plan, calibrated, check_method, draw_posteriors, pooled_draws
from iwbayes.analyst.noise_aware import HARMLESS_STEPS, is_noise_aware
from iwbayes.analyst.sandwich import CalibratedNormal
from iwbayes.features import FeatureMap
from iwbayes.laws import MEAN_OF_FEATURES, Measurement
from iwbayes.release import Release

if TYPE_CHECKING:
    import pymc as pm

__all__ = ["calibrate", "calibration_record", "tilt_inputs", "warn_outside_domain"]

#: Groups that were computed from the uncalibrated draws and would contradict the calibrated ones.
STALE_GROUPS = (
    "log_likelihood",
    "log_likelihood_weighted",
    "log_prior",
    "posterior_predictive",
    "predictions",
    "predictions_constant_data",
    "unconstrained_posterior",
)


def calibrate(
    idata: _arviz.ArvizObject,
    weighted_model: pm.Model,
    release: Release,
    *,
    method: str = "auto",
    random_seed: int | np.random.Generator | None = None,
    sampler: Mapping[str, Any] | None = None,
) -> _arviz.ArvizObject:
    """Calibrate the draws of a weighted posterior: intervals that account for the noise in the weights.

    Parameters
    ----------
    idata : arviz.InferenceData or xarray.DataTree
        Draws from `weighted_model`. It is not changed.
    weighted_model : pymc.Model
        From :func:`~iwbayes.reweight`, with the weights of `release`. Their total does not matter to the calibrated
        likelihood; the prior counts once.
    release : Release
        The release whose synthetic rows the model observes, in their order.
    method : {"auto", "laplace", "nuts"}
        How to sample where sampling is needed: by a t proposal at the mode and Pareto smoothed importance weights, by
        PyMC's NUTS, or by the second where k-hat of the first is 0.7 or more. Needed are the posteriors under each of
        several draws of the weights, and the calibrated posterior of hierarchical models.
    random_seed : int, numpy.random.Generator or None
        For the same; nothing is random with a single draw of the weights and a prior without hyperparameters.
    sampler : dict, optional
        More arguments of ``pymc.sample`` for NUTS, such as ``{"tune": 500}``. With several draws of the weights its
        log density is compiled once for all of them; it starts at the mode and takes no ``init``.

    Returns
    -------
    arviz.InferenceData or xarray.DataTree
        A new object: ``posterior`` calibrated, with deterministics recomputed; ``calibration`` added (see
        `calibration_record`); pointwise log likelihoods, predictions and ``log_prior`` dropped, since they
        belong to the uncalibrated draws; every other group as it was. Where draws were sampled, ``sample_stats`` is
        theirs: for weights with several draws ``weight_draw`` says which of them is behind each draw; ``pareto_k``
        among its attributes is that of importance sampling (the worst, of several).

    Raises
    ------
    TypeError, ValueError
        `method` or `sampler` is none of those above; the draws are calibrated already, lack a free variable or are
        fewer than the parameters; the model has no weighted likelihood, another number of rows than the release,
        discrete variables, or free variables that grow with the rows; its curvature is not positive definite. All
        but the last before anything is compiled.
    RuntimeError
        The mode was not found, or with method="laplace" k-hat is 0.7 or more.

    Warns
    -----
    CalibrationWarning
        Outside the domain in which calibration was shown to hold, with the number, its threshold and the next step;
        in particular when the noise law of the weights is not known and the row sandwich alone is used.

    Notes
    -----
    Weights of a tilt: ``Cov(theta) = J^-1 (sum p_i^2 r_i r_i' + C P_b C') J^-1`` with r_i the scores less their
    regression on the tilt's features and P_b the posterior covariance of the tilt's coefficients. Other weights:
    r_i = s_i without the second term. The prior is put back unchanged. See
    :func:`~iwbayes.analyst.sandwich.calibrate_normal`.

    A model with the average of several draws of the weights stands for all of them: the result is the mixture, in
    equal parts, of the posteriors under each draw, calibrated by the row sandwich each. Its covariance is the mean
    of theirs plus the covariance of their means. The draws of `idata` give the start only. Such a mixture holds the
    noise of the weights as far as their draws differ by it, so that the verdict stays "not calibrated". There are
    as many draws as in `idata`; where these are fewer than the draws of the weights, only so many of the latter,
    chosen at random, occur. Draws of :func:`~iwbayes.noise_aware_weights` are mixed as they are instead, by no
    sandwich, and hold all of the noise; the total of the weights must then be that of the private rows.

    The likelihood is approximated by a normal at its mode. That is poor for parameters with few rows; the record's
    ``skew`` says by how much mean and mode differ.

    Hyperparameters, which no row's likelihood contains, are as far from normal as they like. With a single draw of the
    weights, the likelihood of the other parameters is calibrated at their mode given the means of these, and its
    product with the prior is sampled. The draws of `idata` give the start, ``skew`` and ``bend`` only. The latter is
    the standard deviation over them of the log likelihood less its quadratic approximation: large where group effects
    are not centred, since the rows then inform a curved combination of parameters only.

    Examples
    --------
    >>> weighted = iw.reweight(model, release.weights, total=release.n_private)  # doctest: +SKIP
    >>> idata = iw.calibrate(pm.sample(model=weighted), weighted, release)  # doctest: +SKIP
    """
    check_method(method)
    options = check_sampler(sampler, several=release.weights.n_draws > 1)
    posterior = _checked_posterior(idata)
    _check_model(weighted_model, posterior, release)
    from iwbayes.analyst.autodiff import ModelTerms

    terms = ModelTerms(weighted_model)
    draws = terms.unconstrain(posterior)
    if len(draws) <= terms.size:
        raise ValueError(f"there must be more draws than parameters; got {len(draws)} for {terms.size}. Sample more.")
    groups = {name: _arviz.group(idata, name) for name in _arviz._names(idata) if name not in STALE_GROUPS}
    if release.weights.n_draws > 1 and _released(terms.weights, release):
        start = terms.mode(draws.mean(axis=0))
        pooled = is_noise_aware(release.weights, release)
        if pooled:
            check_total(float(terms.weights.sum()), release)
        plan = Plan(posterior.sizes["chain"], posterior.sizes["draw"], method, options)
        rng = np.random.default_rng(random_seed)
        parts = draw_posteriors(weighted_model, terms, release.weights.draw_values, start, plan, rng)
        normals = None if pooled else _calibrated_each(parts, release)
        draws, moved, statistics = pooled_draws(parts, normals, plan, rng)
        groups["sample_stats"] = statistics.assign_coords(chain=posterior["chain"], draw=posterior["draw"])
        if normals is None:
            part, at_mode = statistics["weight_draw"].to_numpy().ravel(), model_reference(terms, start, release)
            record = pool_record(list(terms.names), moved, part, release, n_parts=len(parts), at_mode=at_mode)
        else:
            record = calibration_record(terms.names, normals, draws, moved, release)
    else:
        phi, noise = tilt_inputs(release, terms.weights)
        columns = None if phi is None else phi[:, : len(noise)]
        held_back = None if phi is None else held_back_of(release)
        center = draws.mean(axis=0)
        informed = terms.in_likelihood(center)
        near = Hierarchy.calibrated(
            terms, center, informed, release.n_private, phi=columns, noise_covariance=noise, held_back=held_back
        )
        if informed.all() and not near.normal.prior_directions:
            [moved] = map_parts([draws], [near.mode], [], [near.normal])
            record = calibration_record(terms.names, near.normal, draws, moved, release, phi=phi)
        else:
            plan = Plan(posterior.sizes["chain"], posterior.sizes["draw"], method, options)
            moved, statistics = near.sample(draws, plan, np.random.default_rng(random_seed))
            groups["sample_stats"] = statistics.assign_coords(chain=posterior["chain"], draw=posterior["draw"])
            bent = bend(terms, near.mode, near.curvature, draws)
            normal = near.for_record()
            record = calibration_record(
                terms.names, normal, draws, moved, release, phi=phi, bend=bent, informed=informed
            )
    warn_outside_domain(record)
    own = weights_digest(release.weights)
    calibrated_posterior = _replace_draws(posterior, terms.constrain(moved))
    groups["posterior"] = calibrated_posterior.assign_attrs(
        release_digest=own, weights_digest=own if _released(terms.weights, release) else ""
    )
    return _arviz.make({**groups, "calibration": record}, idata.attrs)


def check_total(total: float, release: Release) -> None:
    """Refuse another total of a model's weights than the one with which draws of them stand for the private rows."""
    if not np.isclose(total, release.n_private, rtol=1e-6):
        raise ValueError(
            f"the model's weights must sum to the number of private rows, {release.n_private}, since each draw of "
            f"them stands for those; they sum to {total:.6g}. Use reweight(model, release.weights, "
            "total=release.n_private)."
        )


def _calibrated_each(parts: Sequence[Part], release: Release) -> list[CalibratedNormal]:
    """Row sandwich of the posterior under each draw of the weights."""
    return [calibrated(part.terms, part.mode, release.n_private, curvature=part.curvature) for part in parts]


def _released(weights: Array, release: Release) -> bool:
    """Whether weights on any scale are those of the release, averaged over its draws."""
    return np.allclose(weights / np.mean(weights), release.weights.values, rtol=1e-6, atol=1e-9)


def tilt_inputs(release: Release, weights: Array) -> tuple[Any, Any]:
    """Features of the synthetic rows and noise covariance of their released mean, where the formulas for a tilt apply.

    Parameters
    ----------
    release : Release
    weights : ndarray, shape (row,)
        The weights that the model used, on any scale.

    Returns
    -------
    phi : ndarray, shape (row, k) or (row, k + 1), or None
        The tilt's features, with the clip flag last where there is one.
    noise_covariance : ndarray, shape (k, k), or None
        Of the tilt's features only. Both are None unless the weights are those of the release, a single draw of a
        tilt with its measurement, and no post-processing has changed their shares.
    """
    own = release.weights
    measurement = own.measurement
    features = _tilt_features(measurement)
    if measurement is None or features is None or own.n_draws > 1 or set(own.steps) - set(HARMLESS_STEPS):
        return None, None
    if not _released(weights, release):
        return None, None
    columns = measurement.tilt_columns
    return features.transform(release.synthetic.frame), measurement.noise.covariance[columns, columns]


def calibration_record(
    names: Sequence[str],
    normals: CalibratedNormal | Sequence[CalibratedNormal],
    draws_before: Array,
    draws_after: Array,
    release: Release,
    *,
    phi: Array | None = None,
    unmeasured: str | None = None,
    bend: float = float("nan"),
    informed: np.ndarray | None = None,
) -> xr.Dataset:
    """Describe a calibration: what moved by how much, and whether it was inside its domain.

    Parameters
    ----------
    names : sequence of str
        Flat names of the p unconstrained parameters.
    normals : CalibratedNormal, or a sequence of them
        One for each draw of the weights.
    draws_before, draws_after : ndarray, shape (..., p)
        Unconstrained draws before and after.
    release : Release
    phi : ndarray, shape (row, k + 1), optional
        Features of the synthetic rows with the clip flag last, where they are at hand; else they are computed.
    unmeasured : str, optional
        What of the model the release did not measure, from `outside_models`.
    bend : float, optional
        Of the likelihood, where calibrated likelihood times prior was sampled. NaN: draws were moved.
    informed : ndarray of bool, shape (p,), optional
        Parameters that the likelihood depends on; all by default.

    Returns
    -------
    xarray.Dataset
        Dimension ``parameter``; variables ``kappa``, ``explained``, ``second_order`` (share of the variance that is of
        second order in the weights), ``misfit_share`` (share that is due to what the rows miss), all NaN for
        hyperparameters; ``mean_weighted``, ``sd_weighted``, ``mean_calibrated``, ``sd_calibrated`` (unconstrained),
        ``sd_between`` (of the calibrated means over draws of the weights, and part of ``sd_calibrated``; NaN for a
        single draw). Attributes: ``method``
        ("tilt" or "row sandwich"), ``weight_draws`` (their number), ``verdict`` ("calibrated" or "not calibrated"),
        ``reasons`` (list of sentences, or "" when there is none), ``kappa_max``, ``explained_min``,
        ``second_order_max``, ``misfit_share_max``, ``misfit``, ``kappa0``, ``skew`` (of the parameters that rows
        inform, where draws were sampled), ``bend``, ``likelihood_ess``, ``cut_directions``, ``prior_directions``,
        ``pareto_k``, ``ess``, ``n_private``, ``n_synthetic``, ``clipped_private``, ``clipped_synthetic``.
    """
    normals = [normals] if isinstance(normals, CalibratedNormal) else list(normals)
    normal, between = pool_normals(normals)
    draws_before, draws_after = (np.reshape(draws, (-1, len(names))) for draws in (draws_before, draws_after))
    tilted = not np.isnan(normal.kappa0)
    columns = {
        "kappa": normal.kappa,
        "explained": normal.explained,
        "second_order": normal.second_order,
        "misfit_share": normal.misfit_share,
        "mean_weighted": draws_before.mean(axis=0),
        "sd_weighted": draws_before.std(axis=0, ddof=1),
        "mean_calibrated": draws_after.mean(axis=0),
        "sd_calibrated": draws_after.std(axis=0, ddof=1),
        "sd_between": between,
    }
    facts: dict[str, Any] = weight_facts(release, phi)
    facts["kappa_max"] = float(np.nanmax(normal.kappa)) if tilted else float("nan")
    facts["explained_min"] = smallest_known(normal.explained)
    facts["second_order_max"] = -smallest_known(-normal.second_order)
    facts["misfit_share_max"] = -smallest_known(-normal.misfit_share)
    skew = np.abs(columns["mean_weighted"] - normal.mode) / columns["sd_weighted"]
    skew = skew if informed is None else skew[informed]  # no normal stands for the others
    facts["skew"], facts["bend"] = float(np.max(skew)), bend
    reasons = _reasons(facts, tilted, release, len(normals), unmeasured)
    attrs = {
        "method": "tilt" if tilted else "row sandwich",
        "weight_draws": len(normals),
        "verdict": "not calibrated" if reasons else "calibrated",
        "reasons": reasons or "",
        **facts,
        "kappa0": normal.kappa0,
        "misfit": normal.misfit,
        "likelihood_ess": normal.likelihood_ess,
        "cut_directions": normal.cut_directions,
        "prior_directions": normal.prior_directions,
    }
    data = {name: ("parameter", np.asarray(values, dtype=np.float64)) for name, values in columns.items()}
    return xr.Dataset(data, coords={"parameter": list(names)}, attrs=attrs)


def _tilt_features(measurement: Measurement | None) -> FeatureMap | None:
    """Features of the tilt that made the weights, on whatever base; None when no tilt did."""
    return measurement.features if measurement is not None and measurement.name == MEAN_OF_FEATURES else None


def warn_outside_domain(record: xr.Dataset) -> None:
    """Issue a CalibrationWarning with the reasons of a record whose verdict is "not calibrated"."""
    if record.attrs["verdict"] == "not calibrated":
        warnings.warn("not calibrated: " + "; ".join(record.attrs["reasons"]), CalibrationWarning, stacklevel=3)


def _reasons(facts: dict[str, Any], tilted: bool, release: Release, n_draws: int, unmeasured: str | None) -> list[str]:
    """Why the intervals are not calibrated, one sentence each."""
    if tilted:
        spanned = explained_check(facts["explained_min"], unmeasured)
        checks = [
            kappa_check("kappa", facts["kappa_max"]),
            spanned,
            misfit_check(facts["misfit_share_max"]),
            *weight_checks(facts),
            skew_check(facts["skew"]),
            bend_check(facts["bend"]),
        ]
        return [check.reason for check in checks if check.verdict == "fail"]
    own = release.weights
    if n_draws > 1:
        return [
            f"the intervals hold the noise of the weights only as far as their {n_draws} draws differ by it (row "
            "sandwich of each draw, and the spread between them): what the draws share, such as shrinkage and the "
            "private rows' own sampling, is left out. Ask for a release with tilt weights."
        ]
    if _tilt_features(own.measurement) is None and own.n_draws == 1:
        why = f"calibration does not know the noise of {own.method} weights. Ask for a release with tilt weights."
    else:
        why = (
            "the model's weights are not those that were released, or post-processing changed them. Use "
            "reweight(model, release.weights, total=release.n_private)."
        )
    return ["the noise of the weights is left out of the intervals (row sandwich only): " + why]


def _checked_posterior(idata: _arviz.ArvizObject) -> xr.Dataset:
    """Return the posterior with its dimensions in order."""
    if _arviz.has_group(idata, "calibration"):
        raise ValueError("these draws are calibrated already. Calibrate the draws of the weighted model, once.")
    if not _arviz.has_group(idata, "posterior"):
        raise ValueError("the ArviZ object has no posterior group. Sample the weighted model first.")
    posterior = _arviz.group(idata, "posterior")
    missing = [name for name in ("chain", "draw") if name not in posterior.dims]
    if missing:
        raise ValueError(f"the posterior must have the dimensions chain and draw; {', '.join(missing)} is missing.")
    return posterior.transpose("chain", "draw", ...)


def _check_model(model: pm.Model, posterior: xr.Dataset, release: Release) -> None:
    """Refuse what cannot be calibrated, before anything is compiled."""
    check_weighted_rows(model, release)
    if model.discrete_value_vars:
        names = ", ".join(sorted(var.name for var in model.discrete_value_vars))
        raise ValueError(f"discrete variables ({names}) cannot be calibrated. Marginalise them out, or use pool().")
    _check_free_variables(model, posterior, len(release.synthetic))


def check_weighted_rows(model: pm.Model, release: Release) -> None:
    """Refuse a model whose likelihood is not weighted, or has other rows than the release."""
    from iwbayes.analyst._model_graph import observed_rows
    from iwbayes.analyst.reweight import is_weighted

    weighted = {rv.name for rv in model.observed_RVs if is_weighted(rv)}
    if not weighted:
        raise ValueError(
            "the model has no weighted likelihood. Make one by reweight(model, release.weights, "
            "total=release.n_private) and sample it."
        )
    n_rows = len(release.synthetic)
    for rows in observed_rows(model):
        if rows.observed in weighted and rows.n_rows != n_rows:
            raise ValueError(
                f"the observed variable {rows.name!r} has {rows.n_rows} rows; the release has {n_rows}. Observe "
                "all synthetic rows of this release, in their order."
            )


def _check_free_variables(model: pm.Model, posterior: xr.Dataset, n_rows: int) -> None:
    """Check that the draws hold the free variables, no others, and that these do not grow with the rows."""
    free = {rv.name for rv in model.free_RVs}
    absent, unknown = free - set(posterior.data_vars), set(map(str, posterior.data_vars)) - set(model.named_vars)
    if absent:
        raise ValueError(f"the posterior lacks the free variables {sorted(absent)}. Sample without var_names.")
    if unknown:
        raise ValueError(f"the model has no variables {sorted(unknown)} of the posterior. Pass the model of the draws.")
    for name in sorted(free):
        size = int(np.prod(posterior[name].shape[2:]))
        if size >= n_rows or name.endswith("_unobserved"):
            raise ValueError(
                f"the free variable {name!r} ({size} values) grows with the rows: it has no normal limit that a "
                "sandwich could describe. Marginalise row-level effects out, or drop rows with missing values by "
                "giving them weight zero."
            )


def _replace_draws(posterior: xr.Dataset, values: dict[str, Array]) -> xr.Dataset:
    """Put new values into the variables of a posterior; coordinates and attributes stay."""
    shape = (posterior.sizes["chain"], posterior.sizes["draw"])
    new = {}
    for name, old in posterior.data_vars.items():
        array = np.asarray(values[str(name)]).reshape(*shape, *old.shape[2:])
        new[name] = (old.dims, array.astype(old.dtype, copy=False), old.attrs)
    marked = {"calibrated": "yes"} if "calibrated" in posterior.attrs else {}
    return xr.Dataset(new, coords=posterior.coords, attrs={**posterior.attrs, **marked})
