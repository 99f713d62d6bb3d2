"""Families of regressions: means, random draws and, for those of the fast path, densities and derivatives in numpy.

``eta`` has shape (predictor, ...), with one linear predictor, or for ``categorical`` one per level except the first.
Means have shape (outcome, ...): one, or the probability of each level. ``more`` are the auxiliary parameters of the
family, (parameter, ...), such as sigma, in an array that broadcasts against ``eta``. ``aux`` is the auxiliary parameter
of a family of the fast path in PyMC's unconstrained space (gaussian: log sigma); derivatives are by the predictors and
then `aux`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import pandas as pd
from scipy.special import gamma, gammaln

from iwbayes.schema import Binary, Categorical, Column, Date, Integer, Real
from iwbayes.utils.arrays import Array

FamilyName = Literal[
    "bernoulli", "gaussian", "categorical", "poisson", "negativebinomial", "t", "gamma", "binomial", "cumulative",
    "zero_inflated_poisson", "zero_inflated_negativebinomial", "hurdle_poisson", "hurdle_negativebinomial",
    "weibull", "exponential",
]  # fmt: skip


@dataclass(frozen=True)
class Response:
    """A response as numbers (row,): its values, or the codes 0, 1, ... of its levels, reference first."""

    values: Array
    levels: tuple[Any, ...] = ()  # empty for a numeric response


class Auxiliary(NamedTuple):
    """An auxiliary parameter of a family, and PyMC's transform of it."""

    name: str
    transform: Literal["log", "logodds", "ordered"] = "log"


@dataclass(frozen=True, kw_only=True)
class Family:
    """A family of regressions, with Bambi's name and link, and the columns that can be its response."""

    name: str
    link: str
    suits: Callable[[Any], bool]  # whether a column can be the response
    needs: str  # the requirement in words, for messages
    mean: Callable[[Array, Any], Array]  # (eta, more) -> E[y] (outcome, ...)
    mean_gradient: Callable[[Array, Any], Array]  # (eta, more) -> dE[y]/d eta (outcome, predictor, ...)
    # (eta (predictor, draw, row), more, generator) -> responses (draw, row), or codes of their levels
    draw: Callable[[Array, Any, np.random.Generator], Array]
    # (eta, more) -> distribution of scipy (draw, row), for censored and truncated responses; None if there can be none
    law: Callable[[Array, Any], Any] | None = None
    auxiliaries: tuple[Auxiliary, ...] = ()
    ratio: str | None = None  # name of exp(coefficient), such as "odds ratio"; None if it is not a ratio
    continuous: bool = False  # the response may be an expression, and the Gram matrix may replace the rows
    by_level: bool = False  # whether each level of the response except the first has its own linear predictor
    ordinal: bool = False  # whether thresholds, which replace the intercept, divide one predictor into levels
    real: bool = False  # whether the response is a real number, and not a whole one
    positive: bool = False  # whether it is above zero
    trials: bool = False  # whether a second column of the response has numbers of trials: the last of ``more``

    @property
    def has_levels(self) -> bool:
        """Whether means are probabilities of levels."""
        return self.by_level or self.ordinal

    def check(self, column: Column) -> None:
        """Raise a ValueError if a column cannot be the response."""
        if not self.suits(column):
            raise ValueError(
                f"the response of family {self.name!r} must be {self.needs}; "
                f"{column.name!r} is {_describe(column)}. {_suggest(column)}"
            )

    def response(self, column: Column, values: pd.Series) -> Response:
        """Check the declared type of a response column, and return its values (none missing) as numbers or codes."""
        self.check(column)
        if isinstance(column, Binary | Categorical):
            levels = () if self.continuous else tuple(column.levels)
            return Response(column.codes(values).astype(np.float64), levels)
        return Response(values.to_numpy(dtype=np.float64))


@dataclass(frozen=True, kw_only=True)
class FastFamily(Family):
    """A family whose densities and derivatives are computed in numpy, for rows that may be merged.

    Canonical families have the log density sum_k T_k(y) eta_k - A(eta) + c(y). Others set `derivatives`.
    """

    log_density: Callable[[Array, Array, Any], Array]  # (eta, y (...), aux) -> (...), with all constants
    # (y (row,), weights (row,), n_predictors) -> predictors of the intercept-only model; None: start at least squares
    start: Callable[[Array, Array, int], Array] | None = None
    cumulant: Callable[[Array], Array] | None = None  # A(eta), shape (...); may overwrite its argument
    derivatives: tuple[Callable[..., Array], Callable[..., Array]] | None = None  # functions for `score` and `hessian`

    @property
    def auxiliary(self) -> str | None:
        """Name of the auxiliary parameter, None if there is none."""
        return self.auxiliaries[0].name if self.auxiliaries else None

    def score(self, eta: Array, y: Array, aux: Any) -> Array:
        """Return the gradient of the log density, shape (predictor + aux, ...): T(y) - E[T(y)] if canonical."""
        if self.derivatives is not None:
            return self.derivatives[0](eta, y, aux)
        return self.statistic(y, len(eta)) - self.mean(eta, None)[-len(eta) :]

    def hessian(self, eta: Array, y: Array, aux: Any) -> Array:
        """Return the Hessian of the log density, shape (predictor + aux, predictor + aux, ...)."""
        if self.derivatives is not None:
            return self.derivatives[1](eta, y, aux)
        return -self.mean_gradient(eta, None)[-len(eta) :]

    def statistic(self, y: Array, n_predictors: int) -> Array:
        """Return the sufficient statistic T(y) of a canonical family, shape (predictor, ...)."""
        return indicators(y, n_predictors) if self.by_level else y[None]


def _law(name: str, *parameters: Any, **options: Any) -> Any:
    """Return a distribution of scipy; importing them takes half a second, and few fits need one."""
    from scipy import stats

    return getattr(stats, name)(*parameters, **options)


def default_family(column: Column) -> FamilyName:
    """Return the default family for the declared type of a response column; a ValueError for an Integer column."""
    if isinstance(column, Integer):
        raise ValueError(
            f"family must be given for the response {column.name!r}, {_describe(column)}, because it may be a count or "
            f"a measurement. {_suggest(column)}"
        )
    if isinstance(column, Binary | Categorical):
        return "bernoulli" if len(column.levels) == 2 else "categorical"
    return "gaussian"


def _describe(column: Any) -> str:
    has_levels = isinstance(column, Binary | Categorical)
    values = f"with levels {list(column.levels)!r}" if has_levels else f"in [{column.lower}, {column.upper}]"
    return f"{type(column).__name__} {values}"


def _suggest(column: Column) -> str:
    if isinstance(column, Integer) and column.lower >= 0:
        return "Use family='poisson' or 'negativebinomial' for a count, or family='gaussian'."
    return f"Use family={('gaussian' if isinstance(column, Integer) else default_family(column))!r}."


def indicators(y: Array, n_predictors: int) -> Array:
    """Return indicators of the codes 1, 2, ... (all except the reference), shape (predictor, ...)."""
    levels = np.arange(1, n_predictors + 1).reshape((-1,) + (1,) * np.ndim(y))
    return (y == levels).astype(np.float64)


# names of these families in other packages
_OTHER_NAMES = dict.fromkeys(("logistic", "logit"), "bernoulli") | {
    "linear": "gaussian",
    "normal": "gaussian",
    "multinomial": "categorical",
    **dict.fromkeys(("negative_binomial", "negbinomial", "nbinom"), "negativebinomial"),
    **dict.fromkeys(("studentt", "student", "StudentT"), "t"),
    **dict.fromkeys(("ordinal", "ordered", "ordered_logistic"), "cumulative"),
    "Gamma": "gamma",
}

_LARGEST_EXPONENT = 600.0  # exp() is capped at this exponent; sums stay finite, and exp(600) exceeds any count
_LARGEST_MEAN = 1e18  # numpy's Poisson sampler accepts means up to about 9.2e18


def get_family(family: str | Family) -> Family:
    """Return the family with this name. Raises ValueError if the name is unknown."""
    if isinstance(family, Family):
        return family
    if not isinstance(family, str) or family not in FAMILIES:
        other = _OTHER_NAMES.get(family) if isinstance(family, str) else None
        remedy = (
            f"Use family={other!r}."
            if other
            else ("Choose the family by the type of the response. Other families need a PyMC or Bambi model.")
        )
        raise ValueError(f"family must be one of {sorted(get_args(FamilyName))}; got {family!r}. {remedy}")
    return FAMILIES[family]


# bernoulli, logit link: y in {0, 1}
def _softplus(eta: Array) -> Array:
    return np.maximum(eta, 0.0) + np.log1p(np.exp(-np.abs(eta)))


def _logistic(eta: Array, more: Any = None) -> Array:
    # one exponential that never overflows, three times as fast as scipy's expit
    small = np.exp(-np.abs(eta))
    return np.where(eta >= 0, 1.0, small) / (1.0 + small)


def _logistic_gradient(eta: Array, more: Any = None) -> Array:
    small = np.exp(-np.abs(eta))
    return (small / np.square(1.0 + small))[None]


def _bernoulli_cumulant(eta: Array) -> Array:
    eta = eta[0]
    if eta.size and np.max(eta) > _LARGEST_EXPONENT:
        return _softplus(eta)
    # log1p(exp(eta)) is exact below the overflow, and overwriting eta twice is twice as fast as the stable form
    return np.log1p(np.exp(eta, out=eta), out=eta)


_BERNOULLI = FastFamily(
    name="bernoulli",
    link="logit",
    suits=lambda column: isinstance(column, Binary | Categorical) and len(column.levels) == 2,
    needs="a Binary column, or a Categorical column with two levels (the second one is success)",
    log_density=lambda eta, y, aux: y * eta[0] - _softplus(eta[0]),
    mean=_logistic,
    mean_gradient=_logistic_gradient,
    draw=lambda eta, more, rng: (rng.random(eta[0].shape) < _logistic(eta[0])).astype(np.float64),
    start=lambda y, w, k: np.log([(w @ y + 0.5) / (w.sum() - w @ y + 0.5)]),
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


_GAUSSIAN = FastFamily(
    name="gaussian",
    link="identity",
    suits=lambda column: (
        isinstance(column, Real | Integer | Date) or (isinstance(column, Binary) and tuple(column.levels) == (0, 1))
    ),
    needs="a Real, Integer or Date column, or a Binary column with levels (0, 1)",
    log_density=_gaussian_log_density,
    mean=lambda eta, more: eta,
    mean_gradient=lambda eta, more: np.ones_like(eta)[None],
    draw=lambda eta, more, rng: rng.normal(eta[0], more[0]),
    law=lambda eta, more: _law("norm", eta[0], more[0]),
    derivatives=(_gaussian_score, _gaussian_hessian),
    auxiliaries=(Auxiliary("sigma"),),
    continuous=True,
    real=True,
)


# poisson, log link
def _exponential(eta: Array, more: Any = None) -> Array:
    return np.exp(np.minimum(eta, _LARGEST_EXPONENT))


def _poisson_draw(mean: Array, rng: np.random.Generator) -> Array:
    return rng.poisson(np.minimum(mean, _LARGEST_MEAN)).astype(np.float64)


def _poisson_cumulant(eta: Array) -> Array:
    eta = eta[0]
    return np.exp(np.minimum(eta, _LARGEST_EXPONENT, out=eta), out=eta)


_POISSON = FastFamily(
    name="poisson",
    link="log",
    suits=lambda column: isinstance(column, Integer) and column.lower >= 0,
    needs="an Integer column with a lower bound of 0 or more",
    log_density=lambda eta, y, aux: y * eta[0] - _exponential(eta[0]) - gammaln(y + 1.0),
    mean=_exponential,
    mean_gradient=lambda eta, more: _exponential(eta)[None],
    draw=lambda eta, more, rng: _poisson_draw(_exponential(eta[0]), rng),
    law=lambda eta, more: _law("poisson", _exponential(eta[0])),
    start=lambda y, w, k: np.log([(w @ y + 0.5) / (w.sum() + 0.5)]),
    cumulant=_poisson_cumulant,
    ratio="rate ratio",
)


# categorical, softmax link: the first level is the reference, with predictor 0; y contains codes
def _log_sum(eta: Array) -> Array:
    largest = np.maximum(eta.max(axis=0), 0.0)
    return largest + np.log(np.exp(-largest) + np.exp(eta - largest).sum(axis=0))


def _softmax(eta: Array, more: Any = None) -> Array:
    largest = np.maximum(eta.max(axis=0), 0.0)
    terms = np.concatenate([np.exp(-largest)[None], np.exp(eta - largest)])
    return terms / terms.sum(axis=0)


def _softmax_gradient(eta: Array, more: Any = None) -> Array:
    p = _softmax(eta)
    gradient = -p[:, None] * p[None, 1:]
    for k in range(len(eta)):
        # p_k (1 - p_k), with 1 - p_k as the sum of the other probabilities, which is accurate if p_k is close to 1
        gradient[k + 1, k] = p[k + 1] * np.delete(p, k + 1, axis=0).sum(axis=0)
    return gradient


def _categorical_draw(eta: Array, more: Any, rng: np.random.Generator) -> Array:
    # Gumbel-max trick: the argmax of logits plus Gumbel noise is a categorical draw; the reference has logit 0
    code, largest = np.zeros(eta.shape[1:]), rng.gumbel(size=eta.shape[1:])
    for level, logit in enumerate(eta, start=1):
        noisy = logit + rng.gumbel(size=logit.shape)
        code[noisy > largest] = level
        largest = np.maximum(largest, noisy)
    return code


def _categorical_start(y: Array, w: Array, n_predictors: int) -> Array:
    counts = np.array([w @ (y == level) for level in range(n_predictors + 1)]) + 0.5
    return np.log(counts[1:] / counts[0])


_CATEGORICAL = FastFamily(
    name="categorical",
    link="softmax",
    suits=lambda column: isinstance(column, Binary | Categorical),
    needs="a Categorical or Binary column (its first level is the reference)",
    log_density=lambda eta, y, aux: (indicators(y, len(eta)) * eta).sum(axis=0) - _log_sum(eta),
    mean=_softmax,
    mean_gradient=_softmax_gradient,
    draw=_categorical_draw,
    start=_categorical_start,
    cumulant=_log_sum,
    ratio="relative risk ratio",
    by_level=True,
)


# families that PyMC samples; their auxiliary parameters are in the order of `more`
def _log_link(mean_of: Callable[[Any, Any], tuple[Any, Any]]) -> dict[str, Any]:
    """Return mean and gradient of a family whose mean is a function of the exponential mu of its predictor, and more.

    The function returns E[y] and dE[y] / d log mu.
    """

    def mean(eta: Array, more: Any) -> Array:
        return np.asarray(mean_of(_exponential(eta[0]), more)[0])[None]

    def gradient(eta: Array, more: Any) -> Array:
        return np.asarray(mean_of(_exponential(eta[0]), more)[1])[None, None]

    return {"link": "log", "mean": mean, "mean_gradient": gradient}


def _negative_binomial(mean: Array, alpha: Array, rng: np.random.Generator) -> Array:
    """Draw counts as Poisson draws whose means are gamma distributed."""
    return _poisson_draw(mean * rng.gamma(np.broadcast_to(alpha, mean.shape)) / alpha, rng)


def _negative_binomial_law(mean: Array, alpha: Array) -> Any:
    return _law("nbinom", alpha, alpha / (alpha + mean))


def _above_zero(count: Callable[..., Array], mean: Array, rng: np.random.Generator, *more: Array) -> Array:
    """Draw counts given that they are not zero: those that are zero are drawn again; 1 where the mean is tiny."""
    found = count(mean, *more, rng)
    for _ in range(_TRIES):
        zero = found == 0
        if not zero.any():
            break
        found[zero] = count(mean[zero], *(np.broadcast_to(each, mean.shape)[zero] for each in more), rng)
    return np.where(found == 0, 1.0, found)


def _hurdle(mu: Array, psi: Array, log_zero: Array, slope: Array) -> tuple[Array, Array]:
    """Return the mean and its derivative, from log P(0) of the counts without a hurdle, and d log P(0) / d log mu."""
    small = mu < _TINY_MEAN  # counts above zero are then one
    above = np.where(small, 1.0, -np.expm1(log_zero))
    ratio = np.where(small, 1.0, mu / above)
    return psi * ratio, psi * np.where(small, mu / 2, ratio * (1 + np.exp(log_zero) * slope / above))


def _hurdle_negative_binomial(mu: Array, more: Any) -> tuple[Array, Array]:
    psi, alpha = more
    return _hurdle(mu, psi, -alpha * np.log1p(mu / alpha), -alpha * mu / (mu + alpha))


def _thresholds(eta: Array, more: Any) -> Array:
    """Return distribution functions (level + 1, ...) at the thresholds, 0 and 1 included."""
    inner = [_logistic(cut - eta[0]) for cut in more]
    return np.stack([np.zeros_like(inner[0]), *inner, np.ones_like(inner[0])])


def _cumulative_gradient(eta: Array, more: Any) -> Array:
    found = _thresholds(eta, more)
    return np.asarray(-np.diff(found * (1 - found), axis=0))[:, None]


def _cumulative_draw(eta: Array, more: Any, rng: np.random.Generator) -> Array:
    return (rng.random(eta[0].shape) > _thresholds(eta, more)[1:-1]).sum(axis=0).astype(np.float64)


def _weibull_scale(eta: Array, more: Any) -> Array:
    """Return the scale of Weibull distributions with mean exp(eta) and shape ``more[0]``."""
    return np.asarray(_exponential(eta[0]) / gamma(1 + 1 / more[0]))


def _is_count(column: Any) -> bool:
    return isinstance(column, Integer) and column.lower >= 0


_TRIES = 1000  # of draws that must not be zero
_TINY_MEAN = 1e-10
_LARGEST_ALPHA = 1e8  # counts are then Poisson distributed up to rounding
_COUNT: dict[str, Any] = {"suits": _is_count, "needs": "an Integer column with a lower bound of 0 or more"}
_POSITIVE: dict[str, Any] = {
    "suits": lambda column: isinstance(column, Real | Integer) and column.lower >= 0,
    "needs": "a Real or Integer column with a lower bound of 0 or more",
    **_log_link(lambda mu, more: (mu, mu)),
    "ratio": "ratio of means",
    "real": True,
    "positive": True,
}
_PSI, _ALPHA = Auxiliary("psi", "logodds"), Auxiliary("alpha")
_BUILT = (
    Family(
        name="negativebinomial",
        **_log_link(lambda mu, more: (mu, mu)),
        draw=lambda eta, more, rng: _negative_binomial(_exponential(eta[0]), more[0], rng),
        law=lambda eta, more: _negative_binomial_law(_exponential(eta[0]), np.minimum(more[0], _LARGEST_ALPHA)),
        auxiliaries=(_ALPHA,),
        ratio="rate ratio",
        **_COUNT,
    ),
    Family(
        name="zero_inflated_poisson",  # psi is the share of rows that are counts and not zeros for another reason
        **_log_link(lambda mu, more: (more[0] * mu, more[0] * mu)),
        draw=lambda eta, more, rng: _poisson_draw(_exponential(eta[0]), rng) * (rng.random(eta[0].shape) < more[0]),
        auxiliaries=(_PSI,),
        **_COUNT,
    ),
    Family(
        name="zero_inflated_negativebinomial",
        **_log_link(lambda mu, more: (more[0] * mu, more[0] * mu)),
        draw=lambda eta, more, rng: (
            _negative_binomial(_exponential(eta[0]), more[1], rng) * (rng.random(eta[0].shape) < more[0])
        ),
        auxiliaries=(_PSI, _ALPHA),
        **_COUNT,
    ),
    Family(
        name="hurdle_poisson",  # psi is the share of rows above zero
        **_log_link(lambda mu, more: _hurdle(mu, more[0], -mu, -mu)),
        draw=lambda eta, more, rng: (
            _above_zero(_poisson_draw, _exponential(eta[0]), rng) * (rng.random(eta[0].shape) < more[0])
        ),
        auxiliaries=(_PSI,),
        **_COUNT,
    ),
    Family(
        name="hurdle_negativebinomial",
        **_log_link(_hurdle_negative_binomial),
        draw=lambda eta, more, rng: (
            _above_zero(_negative_binomial, _exponential(eta[0]), rng, more[1]) * (rng.random(eta[0].shape) < more[0])
        ),
        auxiliaries=(_PSI, _ALPHA),
        **_COUNT,
    ),
    Family(
        name="gamma",
        draw=lambda eta, more, rng: rng.gamma(np.broadcast_to(more[0], eta[0].shape)) * _exponential(eta[0]) / more[0],
        law=lambda eta, more: _law("gamma", more[0], scale=_exponential(eta[0]) / more[0]),
        auxiliaries=(_ALPHA,),
        **_POSITIVE,
    ),
    Family(
        name="weibull",
        draw=lambda eta, more, rng: rng.weibull(np.broadcast_to(more[0], eta[0].shape)) * _weibull_scale(eta, more),
        law=lambda eta, more: _law("weibull_min", more[0], scale=_weibull_scale(eta, more)),
        auxiliaries=(_ALPHA,),
        **_POSITIVE,
    ),
    Family(
        name="exponential",
        draw=lambda eta, more, rng: rng.exponential(_exponential(eta[0])),
        law=lambda eta, more: _law("expon", scale=_exponential(eta[0])),
        **_POSITIVE,
    ),
    Family(
        name="t",
        link="identity",
        suits=lambda column: isinstance(column, Real | Integer),
        needs="a Real or Integer column",
        mean=lambda eta, more: eta,
        mean_gradient=lambda eta, more: np.ones_like(eta)[None],
        draw=lambda eta, more, rng: eta[0] + more[0] * rng.standard_t(np.broadcast_to(more[1], eta[0].shape)),
        law=lambda eta, more: _law("t", more[1], eta[0], more[0]),
        auxiliaries=(Auxiliary("sigma"), Auxiliary("nu")),
        real=True,
    ),
    Family(
        name="binomial",  # means are those of one trial
        link="logit",
        suits=_is_count,
        needs="p(successes, trials), two Integer columns with lower bounds of 0 or more",
        mean=_logistic,
        mean_gradient=_logistic_gradient,
        draw=lambda eta, more, rng: rng.binomial(
            np.broadcast_to(more[-1], eta[0].shape).astype(np.int64), _logistic(eta[0])
        ).astype(np.float64),
        ratio="odds ratio",
        trials=True,
    ),
    Family(
        name="cumulative",
        link="logit",
        suits=lambda column: isinstance(column, Categorical) and len(column.levels) > 2,
        needs="a Categorical column with three levels or more, declared from low to high",
        mean=lambda eta, more: np.diff(_thresholds(eta, more), axis=0),
        mean_gradient=_cumulative_gradient,
        draw=_cumulative_draw,
        auxiliaries=(Auxiliary("threshold", "ordered"),),
        ratio="odds ratio",
        ordinal=True,
    ),
)

#: Families of regressions, by name.
FAMILIES: dict[str, Family] = {
    family.name: family for family in (_BERNOULLI, _GAUSSIAN, _CATEGORICAL, _POISSON, *_BUILT)
}
#: Families whose response may be censored or truncated.
LIMITED = [name for name, family in FAMILIES.items() if family.law is not None]
