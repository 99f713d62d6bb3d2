"""Families of regressions: one table of densities, means, their derivatives and draws, in plain numpy.

Every function takes linear predictors ``eta`` of shape (predictor, ...): one predictor, or for
``categorical`` one for each level but the first. ``aux`` is the auxiliary parameter in PyMC's unconstrained
space (gaussian: the logarithm of sigma), ignored by families without one. Derivatives are with respect to the
predictors and then `aux`, so that scores and Hessians are those of PyMC's unconstrained space. Means have the shape
(outcome, ...): one outcome, or for ``categorical`` one for each level, whose means are the probabilities of the levels,
the reference first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import pandas as pd
from scipy.special import gammaln

from iwbayes.arrays import Array
from iwbayes.schema import Binary, Categorical, Column, Date, Integer, Real

FamilyName = Literal[
    "bernoulli", "gaussian", "categorical", "poisson", "negativebinomial", "t", "gamma", "binomial", "cumulative"
]


@dataclass(frozen=True)
class Response:
    """Numeric form of a response column: numbers (row,), or codes 0, 1, ... of its levels, reference first."""

    values: Array
    levels: tuple[Any, ...] = ()  # empty for numbers


@dataclass(frozen=True)
class Family:
    """A family of regressions, for linear predictors eta (predictor, ...) and an auxiliary parameter aux.

    A canonical log density is sum_k T_k(y) eta_k - A(eta) + c(y); others have no `cumulant`, but
    `derivatives`.
    """

    name: str  # name and link are Bambi's
    link: str
    columns: tuple[type[Column], ...]  # that can be the response
    suits: Callable[[Any], bool]  # whether one of them can
    needs: str  # the same in words, for messages
    log_density: Callable[[Array, Array, Any], Array]  # of eta, y (...) and aux, (...): with all its constants
    mean: Callable[[Array], Array]  # E[y] (outcome, ...)
    mean_gradient: Callable[[Array], Array]  # dE[y]/d eta (outcome, predictor, ...)
    # of eta (predictor, draw, row), sigma (draw,) and a generator: responses (draw, row), codes of levels if any
    draw: Callable[[Array, Array, np.random.Generator], Array]
    # of the module pymc, a name, eta, y and aux: adds the observed variable of dimension "row" to the current model;
    # eta is a tensor (row,), or (row, predictor) where there is one for each level
    observe: Callable[[Any, str, Any, Array, Any], Any]
    # of y (row,), w (row,), n_predictors: predictors of the model without columns; None: least squares
    start: Callable[[Array, Array, int], Array] | None = None
    cumulant: Callable[[Array], Array] | None = None  # A(eta), shape (...); it may use the memory of its argument
    derivatives: tuple[Callable[..., Array], Callable[..., Array]] | None = None  # `score` and `hessian`
    auxiliary: str | None = None  # name of aux, None if there is none
    ratio: str | None = None  # what the exponential of a coefficient is called, None where it says nothing
    # whether the response is on a continuous scale: it may be an expression, and rows be replaced by their Gram matrix
    continuous: bool = False
    by_level: bool = False  # whether each level of the response but the first has a predictor

    def score(self, eta: Array, y: Array, aux: Any) -> Array:
        """Gradient of the log density, shape (predictor + aux, ...); of a canonical one T(y) less its mean."""
        if self.derivatives is not None:
            return self.derivatives[0](eta, y, aux)
        return self.statistic(y, len(eta)) - self.mean(eta)[-len(eta) :]

    def hessian(self, eta: Array, y: Array, aux: Any) -> Array:
        """Hessian of the log density, shape (predictor + aux, predictor + aux, ...)."""
        if self.derivatives is not None:
            return self.derivatives[1](eta, y, aux)
        return -self.mean_gradient(eta)[-len(eta) :]

    def n_predictors(self, levels: Sequence[Any]) -> int:
        """Count the linear predictors: levels less one where each has its own, else one."""
        return len(levels) - 1 if self.by_level else 1

    def statistic(self, y: Array, n_predictors: int) -> Array:
        """Return T(y), shape (predictor, ...), the sufficient statistic of a canonical family."""
        return indicators(y, n_predictors) if self.by_level else y[None]

    def response(self, column: Column, values: pd.Series) -> Response:
        """Check a response column by its declaration, and return its canonical values without gaps as numbers."""
        check_column(self, column)
        if isinstance(column, Binary | Categorical):
            levels = () if self.continuous else tuple(column.levels)
            return Response(column.codes(values).astype(np.float64), levels)
        return Response(values.to_numpy(dtype=np.float64))


def check_column(family: Any, column: Column) -> None:
    """Refuse a column that cannot be the response of a family, which has `name`, `columns`, `suits` and `needs`."""
    if not (isinstance(column, family.columns) and family.suits(column)):
        raise ValueError(
            f"family {family.name!r} requires as its response {family.needs}; "
            f"{column.name!r} is {_describe(column)}. {_suggest(column)}"
        )


def default_family(column: Column) -> FamilyName:
    """Name the family that a response of this type has where none is asked for.

    Whole numbers have none, as they may be counts or measurements: a ValueError.
    """
    if isinstance(column, Integer):
        raise ValueError(
            f"a family must be given for {column.name!r}, {_describe(column)}: it may be a count or a measurement. "
            f"{_suggest(column)}"
        )
    if isinstance(column, Binary | Categorical):
        return "bernoulli" if len(column.levels) == 2 else "categorical"
    return "gaussian"


def _describe(column: Column) -> str:
    if isinstance(column, Binary | Categorical):
        return f"{type(column).__name__} with levels {list(column.levels)!r}"
    return f"{type(column).__name__} in [{column.lower}, {column.upper}]"  # type: ignore[attr-defined]


def _suggest(column: Column) -> str:
    if isinstance(column, Integer) and column.lower >= 0:
        return "Use family='poisson' or 'negativebinomial' for a count, or family='gaussian'."
    return f"Use family={('gaussian' if isinstance(column, Integer) else default_family(column))!r}."


def indicators(y: Array, n_predictors: int) -> Array:
    """Whether each code is 1, 2, ..., shape (predictor, ...)."""
    levels = np.arange(1, n_predictors + 1).reshape((-1,) + (1,) * np.ndim(y))
    return (y == levels).astype(np.float64)


# what other packages call these families
_OTHER_NAMES = dict.fromkeys(("logistic", "logit"), "bernoulli") | {
    "linear": "gaussian",
    "normal": "gaussian",
    "multinomial": "categorical",
    **dict.fromkeys(("negative_binomial", "negbinomial", "nbinom"), "negativebinomial"),
    **dict.fromkeys(("studentt", "student", "StudentT"), "t"),
    **dict.fromkeys(("ordinal", "ordered", "ordered_logistic"), "cumulative"),
    "Gamma": "gamma",
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
        raise ValueError(f"family must be one of {sorted(get_args(FamilyName))}; got {family!r}. {remedy}")
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
    observe=lambda pm, name, eta, y, aux: pm.Bernoulli(name, logit_p=eta, observed=y.astype(np.int64), dims="row"),
    cumulant=_bernoulli_cumulant,
    ratio="odds ratio",
)


# gaussian, identity link: aux = log sigma


def _gaussian_log_density(eta: Array, y: Array, aux: Any) -> Array:
    return -0.5 * np.log(2 * np.pi) - aux - 0.5 * np.square((y - eta[0]) * np.exp(-aux))


def _gaussian_score(eta: Array, y: Array, aux: Any) -> Array:
    scaled = (y - eta[0]) * np.exp(-aux)
    return np.array([scaled * np.exp(-aux), np.square(scaled) - 1.0])


def _gaussian_hessian(eta: Array, y: Array, aux: Any) -> Array:
    precision = np.exp(-2 * aux) + np.zeros_like(eta[0])
    residual = y - eta[0]
    cross = -2 * residual * precision
    return np.array([[-precision, cross], [cross, -2 * residual**2 * precision]])


_GAUSSIAN = Family(
    name="gaussian",
    link="identity",
    columns=(Real, Integer, Date, Binary),
    suits=lambda column: not isinstance(column, Binary) or tuple(column.levels) == (0, 1),
    needs="a Real, Integer or Date column, or a Binary one with levels (0, 1)",
    log_density=_gaussian_log_density,
    mean=lambda eta: eta,
    mean_gradient=lambda eta: np.ones_like(eta)[None],
    draw=lambda eta, sigma, rng: rng.normal(eta[0], sigma[:, None]),
    observe=lambda pm, name, eta, y, aux: pm.Normal(name, mu=eta, sigma=aux, observed=y, dims="row"),
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
    observe=lambda pm, name, eta, y, aux: pm.Poisson(
        name, mu=pm.math.exp(eta), observed=y.astype(np.int64), dims="row"
    ),
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


def _categorical_observe(pm: Any, name: str, eta: Any, y: Array, aux: Any) -> None:
    logits = pm.math.concatenate([pm.math.zeros_like(eta[:, :1]), eta], axis=1)
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
