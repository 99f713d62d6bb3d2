"""Families of regressions: one table of densities, means, their derivatives and draws, in plain numpy.

Every function takes linear predictors ``eta`` of shape (predictor, ...): one predictor, or for
``categorical`` one for each level but the first. ``aux`` is the auxiliary parameter in PyMC's unconstrained
space (gaussian: the logarithm of sigma), ignored by families without one. Derivatives are with respect to the
predictors and then `aux`, so that scores and Hessians are those of PyMC's unconstrained space. Means have the shape
(outcome, ...): one outcome, or for ``categorical`` one for each level, whose means are the probabilities of the levels,
the reference first.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.special import gammaln

from iwbayes.analyst.regression.family import Family, indicators
from iwbayes.arrays import Array
from iwbayes.schema import Binary, Categorical, Integer, Real

__all__ = ["FAMILIES", "get_family"]

# what other packages call these families
_OTHER_NAMES = dict.fromkeys(("binomial", "logistic", "logit"), "bernoulli") | {
    "linear": "gaussian",
    "normal": "gaussian",
    "multinomial": "categorical",
}

# exp() of more than this is taken as exp of this, which keeps sums finite and is far beyond any count.
_LARGEST_EXPONENT = 600.0
# numpy's Poisson sampler takes means up to about 9.2e18
_LARGEST_MEAN = 1e18


def get_family(family: str | Family) -> Family:
    """Return a family by its name; a ValueError if there is none of that name."""
    if isinstance(family, Family):
        return family
    if not isinstance(family, str) or family not in FAMILIES:
        other = _OTHER_NAMES.get(family) if isinstance(family, str) else None
        remedy = f"Use family={other!r}." if other else "Choose by the type of the response."
        raise ValueError(f"family must be one of {sorted(FAMILIES)}; got {family!r}. {remedy}")
    return FAMILIES[family]


# bernoulli, logit link: y in {0, 1}


def _softplus(eta: Array) -> Array:
    return np.maximum(eta, 0.0) + np.log1p(np.exp(-np.abs(eta)))


def _logistic(eta: Array) -> Array:
    # one exponential that never overflows, three times as fast as scipy's expit
    small = np.exp(-np.abs(eta))
    return np.where(eta >= 0, 1.0, small) / (1.0 + small)


def _logistic_gradient(eta: Array) -> Array:
    small = np.exp(-np.abs(eta))
    return (small / np.square(1.0 + small))[None]


def _bernoulli_cumulant(eta: Array) -> Array:
    eta = eta[0]
    if eta.size and np.max(eta) > _LARGEST_EXPONENT:
        return _softplus(eta)
    # log1p(exp(eta)) is exact below the overflow; two passes in place are twice as fast as the stable form
    np.exp(eta, out=eta)
    return np.log1p(eta, out=eta)


def _bernoulli_observe(name: str, eta: Any, y: Array, aux: Any) -> None:
    import pymc as pm

    pm.Bernoulli(name, logit_p=eta, observed=y.astype(np.int64), dims="row")


_BERNOULLI = Family(
    name="bernoulli",
    link="logit",
    columns=(Binary, Categorical),
    suits=lambda column: len(column.levels) == 2,
    needs="a Binary column, or a Categorical one with two levels (the second is success)",
    log_density=lambda eta, y, aux: y * eta[0] - _softplus(eta[0]),
    mean=_logistic,
    mean_gradient=_logistic_gradient,
    draw=lambda eta, sigma, rng: (rng.random(eta[0].shape) < _logistic(eta[0])).astype(np.float64),
    start=lambda y, w, k: np.log([(w @ y + 0.5) / (w.sum() - w @ y + 0.5)]),
    observe=_bernoulli_observe,
    cumulant=_bernoulli_cumulant,
    ratio="odds ratio",
)


# gaussian, identity link: aux = log sigma


def _gaussian_log_density(eta: Array, y: Array, aux: Any) -> Array:
    return -0.5 * np.log(2 * np.pi) - aux - 0.5 * np.square((y - eta[0]) * np.exp(-aux))


def _gaussian_score(eta: Array, y: Array, aux: Any) -> Array:
    residual = y - eta[0]
    return np.stack([residual * np.exp(-2 * aux), np.square(residual * np.exp(-aux)) - 1.0])


def _gaussian_hessian(eta: Array, y: Array, aux: Any) -> Array:
    precision = np.exp(-2 * aux) + np.zeros_like(eta[0])
    residual = y - eta[0]
    cross = -2 * residual * precision
    return np.array([[-precision, cross], [cross, -2 * residual**2 * precision]])


def _gaussian_observe(name: str, eta: Any, y: Array, aux: Any) -> None:
    import pymc as pm

    pm.Normal(name, mu=eta, sigma=aux, observed=y, dims="row")


_GAUSSIAN = Family(
    name="gaussian",
    link="identity",
    columns=(Real, Integer, Binary),
    suits=lambda column: not isinstance(column, Binary) or tuple(column.levels) == (0, 1),
    needs="a Real or Integer column, or a Binary one with levels (0, 1)",
    log_density=_gaussian_log_density,
    mean=lambda eta: eta,
    mean_gradient=lambda eta: np.ones_like(eta)[None],
    draw=lambda eta, sigma, rng: rng.normal(eta[0], sigma[:, None]),
    observe=_gaussian_observe,
    derivatives=(_gaussian_score, _gaussian_hessian),
    auxiliary="sigma",
    continuous=True,
)


# poisson, log link


def _exponential(eta: Array) -> Array:
    return np.exp(np.minimum(eta, _LARGEST_EXPONENT))


def _poisson_cumulant(eta: Array) -> Array:
    eta = eta[0]
    return np.exp(np.minimum(eta, _LARGEST_EXPONENT, out=eta), out=eta)


def _poisson_draw(eta: Array, sigma: Array, rng: np.random.Generator) -> Array:
    return rng.poisson(np.minimum(np.exp(np.minimum(eta[0], 50.0)), _LARGEST_MEAN)).astype(np.float64)


def _poisson_observe(name: str, eta: Any, y: Array, aux: Any) -> None:
    import pymc as pm
    import pytensor.tensor as pt

    pm.Poisson(name, mu=pt.exp(eta), observed=y.astype(np.int64), dims="row")


_POISSON = Family(
    name="poisson",
    link="log",
    columns=(Integer,),
    suits=lambda column: column.lower >= 0,
    needs="an Integer column with a lower bound of 0 or more",
    log_density=lambda eta, y, aux: y * eta[0] - _exponential(eta[0]) - gammaln(y + 1.0),
    mean=_exponential,
    mean_gradient=lambda eta: _exponential(eta)[None],
    draw=_poisson_draw,
    start=lambda y, w, k: np.log([(w @ y + 0.5) / (w.sum() + 0.5)]),
    observe=_poisson_observe,
    cumulant=_poisson_cumulant,
    ratio="rate ratio",
)


# categorical, softmax link: the first level is the reference, with predictor 0; y holds codes


def _log_sum(eta: Array) -> Array:
    largest = np.maximum(eta.max(axis=0), 0.0)
    return largest + np.log(np.exp(-largest) + np.exp(eta - largest).sum(axis=0))


def _softmax(eta: Array) -> Array:
    largest = np.maximum(eta.max(axis=0), 0.0)
    terms = np.concatenate([np.exp(-largest)[None], np.exp(eta - largest)])
    return terms / terms.sum(axis=0)


def _softmax_gradient(eta: Array) -> Array:
    p = _softmax(eta)
    gradient = -p[:, None] * p[None, 1:]
    for k in range(len(eta)):
        # p_k (1 - p_k), with 1 - p_k summed from the others: it keeps its digits where p_k is near one
        gradient[k + 1, k] = p[k + 1] * np.delete(p, k + 1, axis=0).sum(axis=0)
    return gradient


def _categorical_draw(eta: Array, sigma: Array, rng: np.random.Generator) -> Array:
    # the largest of logits with Gumbel noise has the categorical distribution; the reference has logit 0
    code, largest = np.zeros(eta.shape[1:]), rng.gumbel(size=eta.shape[1:])
    for level, logit in enumerate(eta, start=1):
        noisy = logit + rng.gumbel(size=logit.shape)
        code[noisy > largest] = level
        largest = np.maximum(largest, noisy)
    return code


def _categorical_start(y: Array, w: Array, n_predictors: int) -> Array:
    counts = np.array([w @ (y == level) for level in range(n_predictors + 1)]) + 0.5
    return np.log(counts[1:] / counts[0])


def _categorical_observe(name: str, eta: Any, y: Array, aux: Any) -> None:
    import pymc as pm
    import pytensor.tensor as pt

    logits = pt.concatenate([pt.zeros_like(eta[:, :1]), eta], axis=1)
    pm.Categorical(name, logit_p=logits, observed=y.astype(np.int64), dims="row")


_CATEGORICAL = Family(
    name="categorical",
    link="softmax",
    columns=(Binary, Categorical),
    suits=lambda column: True,
    needs="a Categorical or Binary column (its first level is the reference)",
    log_density=lambda eta, y, aux: (indicators(y, len(eta)) * eta).sum(axis=0) - _log_sum(eta),
    mean=_softmax,
    mean_gradient=_softmax_gradient,
    draw=_categorical_draw,
    start=_categorical_start,
    observe=_categorical_observe,
    cumulant=_log_sum,
    ratio="relative risk ratio",
    by_level=True,
)


#: By name.
FAMILIES: dict[str, Family] = {family.name: family for family in (_BERNOULLI, _GAUSSIAN, _CATEGORICAL, _POISSON)}
