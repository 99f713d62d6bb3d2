"""Replicated responses of a regression: draws from its family at draws of its parameters."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray
from scipy.special import expit

from iwbayes.analyst.design import Design, build_design
from iwbayes.release import Release
from iwbayes.weights import Weights

__all__ = ["check_recorded_weights", "recorded_design", "recorded_weights", "replicates", "weights_digest"]

Array = NDArray[np.float64]

# numpy's Poisson sampler takes means up to about 9.2e18
_LARGEST_MEAN = 1e18

# attributes by which a result of fit is known
_RECORDED = {"formula", "family"}


def _gaussian(eta: Array, sigma: Array, rng: np.random.Generator) -> Array:
    return rng.normal(eta[0], sigma[:, None])


def _bernoulli(eta: Array, sigma: Array, rng: np.random.Generator) -> Array:
    return (rng.random(eta[0].shape) < expit(eta[0])).astype(np.float64)


def _poisson(eta: Array, sigma: Array, rng: np.random.Generator) -> Array:
    return rng.poisson(np.minimum(np.exp(np.minimum(eta[0], 50.0)), _LARGEST_MEAN)).astype(np.float64)


def _categorical(eta: Array, sigma: Array, rng: np.random.Generator) -> Array:
    # the largest of logits with Gumbel noise has the categorical law; the reference has logit 0
    code, largest = np.zeros(eta.shape[1:]), rng.gumbel(size=eta.shape[1:])
    for level, logit in enumerate(eta, start=1):
        noisy = logit + rng.gumbel(size=logit.shape)
        code[noisy > largest] = level
        largest = np.maximum(largest, noisy)
    return code


#: (eta (predictor, draw, row), sigma (draw,), rng) -> responses (draw, row); codes of levels where there are any.
DRAW: dict[str, Callable[[Array, Array, np.random.Generator], Array]] = {
    "gaussian": _gaussian,
    "bernoulli": _bernoulli,
    "poisson": _poisson,
    "categorical": _categorical,
}


def recorded_design(posterior: xr.Dataset, release: Release) -> Design | None:
    """Design of a result of :func:`~iwbayes.fit`, rebuilt on the release from its recorded formula and family.

    Parameters
    ----------
    posterior : xarray.Dataset
        With the attributes that fit gives it.
    release : Release

    Returns
    -------
    Design or None
        None where nothing is recorded: the draws are not those of fit.
    """
    if not _RECORDED <= set(posterior.attrs):
        return None
    with warnings.catch_warnings():
        # what there is to warn of, fit has said
        warnings.simplefilter("ignore", UserWarning)
        table = release.synthetic
        return build_design(posterior.attrs["formula"], table.frame, table.schema, posterior.attrs["family"])


def recorded_weights(weights: Weights | None) -> str:
    """Name under which a result of :func:`~iwbayes.fit` records its weights: estimator and steps; None are uniform."""
    return "uniform" if weights is None else " > ".join((weights.method, *weights.steps))


def weights_digest(weights: Weights | None) -> str:
    """Digest of the shares of rows under weights, by which a result of :func:`~iwbayes.fit` knows its own."""
    if weights is None:
        return ""
    log_weights = weights.log_weights - weights.log_weights.max(axis=1, keepdims=True)
    return hashlib.sha256(np.ascontiguousarray(np.round(log_weights, 9) + 0.0).tobytes()).hexdigest()[:16]


def check_recorded_weights(posterior: xr.Dataset, release: Release) -> None:
    """Refuse results of :func:`~iwbayes.fit` with other weights than the release's, by the name and digest it recorded.

    Parameters
    ----------
    posterior : xarray.Dataset
        With the attributes that fit gives it; others pass.
    release : Release

    Raises
    ------
    ValueError
        If the names of the estimators, or of the steps since then, or the weights of draws differ.
    """
    weights, recorded = release.weights, posterior.attrs.get("weights")
    if recorded is None or not _RECORDED <= set(posterior.attrs):
        return
    own = recorded_weights(weights)
    if recorded == recorded_weights(None) and np.ptp(weights.values) < 1e-9:
        return
    if recorded == own:
        _check_digest(posterior, weights)
        return
    values = f"Weights(np.zeros({len(weights)}), 'uniform')" if recorded == "uniform" else "those of the fit"
    raise ValueError(
        f"the weights of the release must be those of the fit; they are {own!r} and the fit's {recorded!r}. Pass "
        f"dataclasses.replace(release, weights=...) with {values}, or the release that was fitted."
    )


def _check_digest(posterior: xr.Dataset, weights: Weights) -> None:
    """Refuse other draws of weights of the same name: each draw of the posterior belongs to one of them."""
    recorded = posterior.attrs.get("weights_digest")
    if weights.n_draws == 1 or recorded is None or recorded == weights_digest(weights):
        return
    raise ValueError(
        f"the posterior was drawn under other draws of {recorded_weights(weights)!r} than the release's. Pass the "
        "weights of the fit: draw them by noise_aware_weights first, and give them to both."
    )


def replicates(
    design: Design, posterior: xr.Dataset, chosen: NDArray[np.intp], rng: np.random.Generator, *, block: int
) -> Iterator[Array]:
    """Draw responses of all rows at draws of the parameters.

    Parameters
    ----------
    design : Design
    posterior : xarray.Dataset
        Its coefficients, as :func:`~iwbayes.fit` stores them.
    chosen : ndarray of int, shape (replicate,)
        Places of the draws to use, counted over all chains.
    rng : numpy.random.Generator
    block : int
        Draws that are held at a time.

    Yields
    ------
    ndarray, shape (draw of the block, row)

    Raises
    ------
    ValueError
        If the posterior is not of this design.
    """
    names = [term.name for term in design.terms] + ([design.auxiliary] if design.auxiliary else [])
    absent = [name for name in names if name not in posterior]
    if absent:
        raise ValueError(
            f"the posterior lacks {absent}, which its formula has on this release. Pass the fit's own release."
        )
    blocks = [_flat(posterior[name])[chosen] for name in names]
    k, n_columns = design.n_predictors, design.x.shape[1]
    sigma = blocks.pop()[:, 0] if design.auxiliary else np.zeros(len(chosen))
    theta = np.concatenate(blocks, axis=1)
    if theta.shape[1] != n_columns * k:
        raise ValueError(
            f"the posterior has {theta.shape[1]} coefficients and its formula {n_columns * k} on this release. Pass "
            "the fit's own."
        )
    beta = theta.reshape(-1, n_columns, k)
    for start in range(0, len(chosen), block):
        part = slice(start, start + block)
        eta = beta[part].transpose(2, 0, 1) @ design.x.T
        yield DRAW[design.family.name](eta, sigma[part], rng)


def _flat(variable: xr.DataArray) -> Array:
    """Draws of all chains by element, shape (draw, element)."""
    values: Any = variable.transpose("chain", "draw", ...).to_numpy()
    return np.asarray(values, dtype=np.float64).reshape(values.shape[0] * values.shape[1], -1)
