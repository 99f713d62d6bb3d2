"""The record of a pooled posterior: spreads within and between draws of the weights, and its verdict."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from iwbayes.analyst._domain import (
    WEIGHT_DRAWS_LIMIT,
    Check,
    above,
    below,
    explained_check,
    kappa_check,
    misfit_check,
    smallest_known,
    weight_checks,
    weight_facts,
)
from iwbayes.analyst._meat import Array, Features, symmetric
from iwbayes.analyst._misfit import HeldBack, held_back_of
from iwbayes.analyst._tilt_posterior import TiltPosterior
from iwbayes.analyst._weight_draws import likelihood_terms
from iwbayes.analyst.noise_aware import is_noise_aware, tilt_arrays
from iwbayes.analyst.sandwich import CalibratedNormal, LikelihoodTerms, Prior, calibrate_normal
from iwbayes.release import Release
from iwbayes.weights import Weights

if TYPE_CHECKING:
    from iwbayes.analyst.autodiff import ModelTerms

__all__ = ["Reference", "model_reference", "pool_record", "reference"]

#: Largest ratio of a parameter's spread by the variance of its scores to that by their curvature. A 90 % interval of
#: the model alone covers 86 % at this value.
DISPERSION_LIMIT = 1.1
_UNKNOWN = (
    "this model has no scores at a mode, so that it cannot be told whether the release measured what its estimates are "
    "made of. Compare with fit() or calibrate() of a simpler model of the same columns, whose record says so."
)


@dataclass(frozen=True, eq=False)
class Reference:
    """What the sandwich knows of a posterior at its mode under the averaged weights.

    Parameters
    ----------
    normal : CalibratedNormal
    dispersion : ndarray, shape (p,)
        Standard deviation of each parameter by the variance of the scores, over that by their curvature; the prior
        counts in both. One where the model is right.
    """

    normal: CalibratedNormal
    dispersion: Array


def reference(
    terms: LikelihoodTerms,
    *,
    prior: Prior,
    n_private: float,
    phi: Features,
    noise_covariance: Array,
    held_back: HeldBack | None,
) -> Reference:
    """Evaluate the sandwich at a mode; arguments as of `calibrate_normal`."""
    terms = replace(terms, gradients_at=None)  # draws follow the tilt's coefficients to every order
    normal = calibrate_normal(
        terms, prior=prior, n_private=n_private, phi=phi, noise_covariance=noise_covariance, held_back=held_back
    )
    scores = terms.scores - terms.shares @ terms.scores
    information = (scores * terms.shares[:, None]).T @ scores
    model = normal.uncalibrated_covariance
    excess = symmetric(model @ (n_private * (information - terms.curvature)) @ model)
    ratio = 1 + np.diag(excess) / np.diag(model)
    return Reference(normal, np.sqrt(np.maximum(ratio, 0.0)))


def model_reference(terms: ModelTerms, mode: Array, release: Release) -> Reference:
    """Evaluate the sandwich of a PyMC model at its mode under the averaged weights."""
    phi, noise, _ = tilt_arrays(release)
    at = likelihood_terms(terms, mode)
    return reference(
        at,
        prior=terms.prior,
        n_private=release.n_private,
        phi=phi,
        noise_covariance=noise,
        held_back=held_back_of(release),
    )


def pool_record(
    names: list[str],
    draws: Array,
    part: NDArray[np.intp],
    release: Release,
    *,
    n_parts: int,
    at_mode: Reference | None,
    unmeasured: str | None = None,
) -> xr.Dataset:
    """Describe a mixture over noise-aware weights.

    Parameters
    ----------
    names : list of str
        Flat names of the p parameters.
    draws : ndarray, shape (sample, p)
    part : ndarray of int, shape (sample,)
        Which draw of the weights is behind each.
    release : Release
    n_parts : int
        Number of draws of the weights.
    at_mode : Reference or None
        None where the posterior has no mode, or rows no scores.
    unmeasured : str, optional
        What of the model the release did not measure, from `outside_models`.

    Returns
    -------
    xarray.Dataset
        As `calibration_record`, with method "pool". ``mean_weighted`` and ``mean_calibrated`` are equal;
        ``sd_weighted`` is the spread within draws of the weights, ``sd_between`` that of the means over them, and
        ``sd_calibrated`` that of all. ``dispersion`` is added (see `Reference`) and, as an attribute, its maximum;
        ``kappa_bound`` bounds kappa of any parameter; ``misfit_share`` is the share of the sandwich's variance: the
        draws do not hold it. Without a reference ``kappa``, ``explained``, ``misfit_share`` and ``dispersion`` are not
        known (NaN), ``kappa_max`` is the bound, and the verdict is "not calibrated".
        ``weight_draws_used`` counts the draws of the weights that are behind a draw of the posterior.
    """
    within, between = _spreads(draws, part)
    unknown = np.full(len(names), np.nan)
    normal = None if at_mode is None else at_mode.normal
    columns = {
        "kappa": unknown if normal is None else normal.kappa,
        "explained": unknown if normal is None else normal.explained,
        "misfit_share": unknown if normal is None else normal.misfit_share,
        "dispersion": unknown if at_mode is None else at_mode.dispersion,
        "mean_weighted": draws.mean(axis=0),
        "sd_weighted": within,
        "mean_calibrated": draws.mean(axis=0),
        "sd_calibrated": draws.std(axis=0, ddof=1),
        "sd_between": between,
    }
    facts = _facts(release)
    facts["kappa_bound"] = _kappa_bound(release)
    facts["kappa_max"] = facts["kappa_bound"] if normal is None else float(np.max(normal.kappa))
    facts["explained_min"] = smallest_known(columns["explained"])
    facts["misfit_share_max"] = -smallest_known(-columns["misfit_share"])
    facts["weight_draws_used"] = len(np.unique(part))
    facts["dispersion_max"] = float("nan") if at_mode is None else float(np.max(at_mode.dispersion))
    reasons = [
        check.reason for check in _checks(facts, unmeasured, known=normal is not None) if check.verdict == "fail"
    ]
    attrs = {
        "method": "pool",
        "weight_draws": n_parts,
        "verdict": "not calibrated" if reasons else "calibrated",
        "reasons": reasons or "",
        **facts,
        "skew": float("nan"),  # no normal stands for anything here
        "bend": float("nan"),
        "kappa0": float("nan") if normal is None else normal.kappa0,
        "misfit": float("nan") if normal is None else normal.misfit,
        "likelihood_ess": float("nan") if normal is None else normal.likelihood_ess,
        "cut_directions": -1 if normal is None else normal.cut_directions,
        "prior_directions": -1 if normal is None else normal.prior_directions,
    }
    data = {name: ("parameter", np.asarray(values, dtype=np.float64)) for name, values in columns.items()}
    return xr.Dataset(data, coords={"parameter": names}, attrs=attrs)


def _facts(release: Release) -> dict[str, Any]:
    """Facts of the released weights; where the release holds draws of them, of their average."""
    facts: dict[str, Any] = weight_facts(release)
    if is_noise_aware(release.weights, release):
        with np.errstate(divide="ignore"):
            averaged = Weights(np.log(release.weights.values), release.weights.method)
        facts |= {"pareto_k": float(averaged.pareto_k), "ess": float(averaged.ess)}
    return facts


def _checks(facts: dict[str, Any], unmeasured: str | None, *, known: bool) -> list[Check]:
    """Judge what bounds the domain. The limit of kappa is the sandwich's, as long as no study supports another."""
    name = "kappa" if known else "kappa (at most, of any parameter)"
    advice = (
        "the rows vary more than the model says, and the pooled posterior is as narrow as the model's own. Use "
        "calibrate() (or calibrate=True), whose intervals do not rest on the model's spread, or a model with "
        "overdispersion."
    )
    few = (
        "a few draws of the weights do not show the spread of their law. Take more, with n_draws, and at least as many "
        "draws of the posterior."
    )
    unknown = Check("explained", "unknown", "", "fail", _UNKNOWN)
    return [
        above("weight_draws", facts["weight_draws_used"], WEIGHT_DRAWS_LIMIT, few),
        kappa_check(name, facts["kappa_max"]),
        explained_check(facts["explained_min"], unmeasured) if known else unknown,
        misfit_check(facts["misfit_share_max"], pooled=True),
        *weight_checks(facts),
        below("dispersion", facts["dispersion_max"], DISPERSION_LIMIT, advice),
    ]


def _spreads(draws: Array, part: NDArray[np.intp]) -> tuple[Array, Array]:
    """Return standard deviations within and between parts, by the analysis of variance; NaN with one draw a part."""
    labels, place = np.unique(part, return_inverse=True)
    counts = np.bincount(place).astype(np.float64)
    if len(labels) < 2 or len(draws) <= len(labels):
        return np.full(draws.shape[1], np.nan), np.full(draws.shape[1], np.nan)
    means = np.stack([draws[place == k].mean(axis=0) for k in range(len(labels))])
    within = np.square(draws - means[place]).sum(axis=0) / (len(draws) - len(labels))
    # the means of the parts vary by chance as well
    between = means.var(axis=0, ddof=1) - within * np.mean(1 / counts)
    return np.sqrt(within), np.sqrt(np.maximum(between, 0.0))


def _kappa_bound(release: Release) -> float:
    phi, noise, value = tilt_arrays(release)
    shares = release.weights.values
    kept = shares > 0
    rows = TiltPosterior(phi[kept], np.log(shares[kept]), value, noise)
    return rows.largest_kappa(np.zeros(len(value)))
