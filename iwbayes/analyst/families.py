"""Families of regressions: a table of log densities with their derivatives, in plain numpy.

Every function takes linear predictors ``eta`` of shape (predictor, ...): one predictor, or for
``categorical`` one for each level but the first. ``aux`` is the auxiliary parameter in PyMC's unconstrained
space (gaussian: the logarithm of sigma), ignored by families without one. Derivatives are with respect to the
predictors and then `aux`, so that scores and Hessians are those of PyMC's unconstrained space.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.special import expit, gammaln

from iwbayes.schema import Binary, Categorical, Column, Integer, Real

__all__ = ["FAMILIES", "Family", "Response", "get_family"]

Array = NDArray[np.float64]

# what other packages call these families
_OTHER_NAMES = {
    "binomial": "bernoulli",
    "logistic": "bernoulli",
    "logit": "bernoulli",
    "linear": "gaussian",
    "normal": "gaussian",
    "multinomial": "categorical",
}

# exp() of more than this is taken as exp of this, which keeps sums finite and is far beyond any count.
_LARGEST_EXPONENT = 600.0


@dataclass(frozen=True)
class Response:
    """Numeric form of a response column.

    Parameters
    ----------
    values : ndarray, shape (row,)
        Numbers; codes 0, 1, ... of the levels for bernoulli and categorical.
    levels : tuple
        Levels behind the codes, reference first; empty for numbers.
    """

    values: Array
    levels: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Family:
    """A family of regressions.

    Parameters
    ----------
    name, link : str
        As Bambi names them.
    log_density : callable
        (eta (predictor, ...), y (...), aux) -> (...), the log density with all its constants.
    score : callable
        The same arguments -> (predictor + aux, ...), its gradient.
    hessian : callable
        The same arguments -> (predictor + aux, predictor + aux, ...).
    columns : tuple of type
        Schema columns that can be the response.
    needs : str
        The same in words, for messages.
    start : callable
        (y (row,), w (row,), n_predictors) -> (predictors of the model without columns, aux).
    observe : callable
        (name, eta, y, aux) -> None: adds the observed variable of dimension "row" to the current PyMC model;
        ``eta`` is a tensor (row,), or (row, predictor) for categorical.
    cumulant : callable or None
        The A(eta), shape (...), of a canonical log density sum_k T_k(y) eta_k - A(eta) + c(y); it may use the
        memory of its argument. None where the log density is not canonical.
    auxiliary : str or None
        Name of the auxiliary parameter.
    """

    name: str
    link: str
    log_density: Callable[[Array, Array, Any], Array]
    score: Callable[[Array, Array, Any], Array]
    hessian: Callable[[Array, Array, Any], Array]
    columns: tuple[type[Column], ...]
    needs: str
    start: Callable[[Array, Array, int], tuple[Array, float]]
    observe: Callable[[str, Any, Array, Any], None]
    cumulant: Callable[[Array], Array] | None = None
    auxiliary: str | None = None

    def n_predictors(self, response: Response) -> int:
        """Count the linear predictors: levels less one for categorical, else one."""
        return len(response.levels) - 1 if self.name == "categorical" else 1

    def statistic(self, y: Array, n_predictors: int) -> Array:
        """Return T(y), shape (predictor, ...), the sufficient statistic of a canonical family."""
        return _indicators(y, n_predictors) if self.name == "categorical" else y[None]

    def response(self, column: Column, values: pd.Series) -> Response:
        """Check a response column and return its numeric form.

        Parameters
        ----------
        column : Real, Integer, Binary or Categorical
            Its declaration.
        values : pandas.Series, shape (row,)
            Canonical values without missing cells.

        Raises
        ------
        ValueError
            When the column does not suit the family.
        """
        self.check_column(column)
        if isinstance(column, Binary | Categorical):
            levels = () if self.name == "gaussian" else tuple(column.levels)
            return Response(column.codes(values).astype(np.float64), levels)
        return Response(values.to_numpy(dtype=np.float64))

    def check_column(self, column: Column) -> None:
        """Refuse a column whose type does not suit the family with a ValueError."""
        levels = column.levels if isinstance(column, Binary | Categorical) else ()
        suits = isinstance(column, self.columns)
        if self.name == "bernoulli":
            suits = suits and len(levels) == 2
        elif self.name == "gaussian" and isinstance(column, Binary):
            suits = levels == (0, 1)
        elif self.name == "poisson" and isinstance(column, Integer):
            suits = column.lower >= 0
        if not suits:
            raise ValueError(
                f"family {self.name!r} needs as its response {self.needs}; "
                f"{column.name!r} is {_describe(column)}. {_suggest(column)}"
            )


def get_family(family: str | Family) -> Family:
    """Return a family by its name.

    Raises
    ------
    ValueError
        When there is none of that name.
    """
    if isinstance(family, Family):
        return family
    if not isinstance(family, str) or family not in FAMILIES:
        other = _OTHER_NAMES.get(family) if isinstance(family, str) else None
        remedy = f"Use family={other!r}." if other else "Choose by the type of the response."
        raise ValueError(f"family must be one of {sorted(FAMILIES)}; got {family!r}. {remedy}")
    return FAMILIES[family]


def _describe(column: Column) -> str:
    if isinstance(column, Binary | Categorical):
        return f"{type(column).__name__} with levels {list(column.levels)!r}"
    if isinstance(column, Real | Integer):
        return f"{type(column).__name__} in [{column.lower}, {column.upper}]"
    return type(column).__name__


def _suggest(column: Column) -> str:
    if isinstance(column, Binary) or (isinstance(column, Categorical) and len(column.levels) == 2):
        return "Use family='bernoulli'."
    if isinstance(column, Categorical):
        return "Use family='categorical'."
    if isinstance(column, Integer) and column.lower >= 0:
        return "Use family='poisson' for a count, or family='gaussian'."
    return "Use family='gaussian'."


# bernoulli, logit link: y in {0, 1}


def _softplus(eta: Array) -> Array:
    return np.maximum(eta, 0.0) + np.log1p(np.exp(-np.abs(eta)))


def _bernoulli_log_density(eta: Array, y: Array, aux: Any) -> Array:
    return y * eta[0] - _softplus(eta[0])


def _bernoulli_score(eta: Array, y: Array, aux: Any) -> Array:
    return y - expit(eta)


def _bernoulli_hessian(eta: Array, y: Array, aux: Any) -> Array:
    return -(expit(eta) * expit(-eta))[None]


def _bernoulli_cumulant(eta: Array) -> Array:
    eta = eta[0]
    if eta.size and np.max(eta) > _LARGEST_EXPONENT:
        return _softplus(eta)
    # log1p(exp(eta)) is exact below the overflow; two passes in place are twice as fast as the stable form
    np.exp(eta, out=eta)
    return np.log1p(eta, out=eta)


def _bernoulli_start(y: Array, w: Array, n_predictors: int) -> tuple[Array, float]:
    mean = (w @ y + 0.5) / (w.sum() + 1.0)
    return np.array([np.log(mean / (1.0 - mean))]), 0.0


def _bernoulli_observe(name: str, eta: Any, y: Array, aux: Any) -> None:
    import pymc as pm

    pm.Bernoulli(name, logit_p=eta, observed=y.astype(np.int64), dims="row")


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


def _gaussian_start(y: Array, w: Array, n_predictors: int) -> tuple[Array, float]:
    mean = w @ y / w.sum()
    variance = w @ np.square(y - mean) / w.sum()
    return np.array([mean]), 0.5 * float(np.log(max(variance, np.finfo(np.float64).tiny)))


def _gaussian_observe(name: str, eta: Any, y: Array, aux: Any) -> None:
    import pymc as pm

    pm.Normal(name, mu=eta, sigma=aux, observed=y, dims="row")


# poisson, log link


def _poisson_log_density(eta: Array, y: Array, aux: Any) -> Array:
    return y * eta[0] - np.exp(np.minimum(eta[0], _LARGEST_EXPONENT)) - gammaln(y + 1.0)


def _poisson_score(eta: Array, y: Array, aux: Any) -> Array:
    return y - np.exp(np.minimum(eta, _LARGEST_EXPONENT))


def _poisson_hessian(eta: Array, y: Array, aux: Any) -> Array:
    return -np.exp(np.minimum(eta, _LARGEST_EXPONENT))[None]


def _poisson_cumulant(eta: Array) -> Array:
    eta = eta[0]
    return np.exp(np.minimum(eta, _LARGEST_EXPONENT, out=eta), out=eta)


def _poisson_start(y: Array, w: Array, n_predictors: int) -> tuple[Array, float]:
    return np.array([np.log((w @ y + 0.5) / (w.sum() + 0.5))]), 0.0


def _poisson_observe(name: str, eta: Any, y: Array, aux: Any) -> None:
    import pymc as pm
    import pytensor.tensor as pt

    pm.Poisson(name, mu=pt.exp(eta), observed=y.astype(np.int64), dims="row")


# categorical, softmax link: the first level is the reference, with predictor 0; y holds codes


def _indicators(y: Array, n_predictors: int) -> Array:
    levels = np.arange(1, n_predictors + 1).reshape((-1,) + (1,) * np.ndim(y))
    return (y == levels).astype(np.float64)


def _log_sum(eta: Array) -> Array:
    largest = np.maximum(eta.max(axis=0), 0.0)
    return largest + np.log(np.exp(-largest) + np.exp(eta - largest).sum(axis=0))


def _categorical_log_density(eta: Array, y: Array, aux: Any) -> Array:
    return (_indicators(y, len(eta)) * eta).sum(axis=0) - _log_sum(eta)


def _categorical_score(eta: Array, y: Array, aux: Any) -> Array:
    return _indicators(y, len(eta)) - np.exp(eta - _log_sum(eta))


def _categorical_hessian(eta: Array, y: Array, aux: Any) -> Array:
    p = np.exp(eta - _log_sum(eta))
    hessian = p[:, None] * p[None, :]
    diagonal = np.arange(len(eta))
    # 1 - p_k summed from the other probabilities, which keeps its digits where p_k is near one
    others = np.stack([np.delete(p, k, axis=0).sum(axis=0) for k in diagonal])
    rest = np.exp(-_log_sum(eta)) + others
    hessian[diagonal, diagonal] = -p * rest
    return hessian


def _categorical_start(y: Array, w: Array, n_predictors: int) -> tuple[Array, float]:
    counts = np.array([w @ (y == level) for level in range(n_predictors + 1)]) + 0.5
    return np.log(counts[1:] / counts[0]), 0.0


def _categorical_observe(name: str, eta: Any, y: Array, aux: Any) -> None:
    import pymc as pm
    import pytensor.tensor as pt

    logits = pt.concatenate([pt.zeros_like(eta[:, :1]), eta], axis=1)
    pm.Categorical(name, logit_p=logits, observed=y.astype(np.int64), dims="row")


#: The families of `regression` and `fit`, by name.
FAMILIES: dict[str, Family] = {
    "bernoulli": Family(
        name="bernoulli",
        link="logit",
        log_density=_bernoulli_log_density,
        score=_bernoulli_score,
        hessian=_bernoulli_hessian,
        cumulant=_bernoulli_cumulant,
        columns=(Binary, Categorical),
        needs="a Binary column, or a Categorical one with two levels (the second is success)",
        start=_bernoulli_start,
        observe=_bernoulli_observe,
    ),
    "gaussian": Family(
        name="gaussian",
        link="identity",
        log_density=_gaussian_log_density,
        score=_gaussian_score,
        hessian=_gaussian_hessian,
        columns=(Real, Integer, Binary),
        needs="a Real or Integer column, or a Binary one with levels (0, 1)",
        start=_gaussian_start,
        observe=_gaussian_observe,
        auxiliary="sigma",
    ),
    "categorical": Family(
        name="categorical",
        link="softmax",
        log_density=_categorical_log_density,
        score=_categorical_score,
        hessian=_categorical_hessian,
        cumulant=_log_sum,
        columns=(Binary, Categorical),
        needs="a Categorical or Binary column (its first level is the reference)",
        start=_categorical_start,
        observe=_categorical_observe,
    ),
    "poisson": Family(
        name="poisson",
        link="log",
        log_density=_poisson_log_density,
        score=_poisson_score,
        hessian=_poisson_hessian,
        cumulant=_poisson_cumulant,
        columns=(Integer,),
        needs="an Integer column with a lower bound of 0 or more",
        start=_poisson_start,
        observe=_poisson_observe,
    ),
}
