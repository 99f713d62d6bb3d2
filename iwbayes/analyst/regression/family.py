"""What a family of regressions is, and which one suits a declared column."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd

from iwbayes.arrays import Array
from iwbayes.schema import Binary, Categorical, Column, Integer

__all__ = ["Family", "FamilyName", "Response", "default_family", "indicators"]

FamilyName = Literal["bernoulli", "gaussian", "categorical", "poisson"]


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
    columns : tuple of type
        Schema columns that can be the response.
    suits : callable
        Column of these types -> whether it can be the response.
    needs : str
        The same in words, for messages.
    log_density : callable
        (eta (predictor, ...), y (...), aux) -> (...), the log density with all its constants.
    mean : callable
        eta (predictor, ...) -> E[y] (outcome, ...).
    mean_gradient : callable
        eta (predictor, ...) -> dE[y]/d eta (outcome, predictor, ...).
    draw : callable
        (eta (predictor, draw, row), sigma (draw,), rng) -> responses (draw, row); codes of levels where there are any.
    observe : callable
        (name, eta, y, aux) -> None: adds the observed variable of dimension "row" to the current PyMC model;
        ``eta`` is a tensor (row,), or (row, predictor) where there is one for each level.
    start : callable or None
        (y (row,), w (row,), n_predictors) -> predictors of the model without columns. None: least squares.
    cumulant : callable or None
        The A(eta), shape (...), of a canonical log density sum_k T_k(y) eta_k - A(eta) + c(y); it may use the
        memory of its argument. None where the log density is not canonical.
    derivatives : tuple of callable or None
        Score and Hessian where the log density is not canonical; see `score` and `hessian`.
    auxiliary : str or None
        Name of the auxiliary parameter.
    ratio : str or None
        What the exponential of a coefficient is called; None where it says nothing.
    continuous : bool
        Whether the response is a number on a continuous scale, which may be an expression of columns. Its rows have the
        likelihood of their Gram matrix.
    by_level : bool
        Whether each level of the response but the first has a predictor.
    """

    name: str
    link: str
    columns: tuple[type[Column], ...]
    suits: Callable[[Any], bool]
    needs: str
    log_density: Callable[[Array, Array, Any], Array]
    mean: Callable[[Array], Array]
    mean_gradient: Callable[[Array], Array]
    draw: Callable[[Array, Array, np.random.Generator], Array]
    observe: Callable[[str, Any, Array, Any], None]
    start: Callable[[Array, Array, int], Array] | None = None
    cumulant: Callable[[Array], Array] | None = None
    derivatives: tuple[Callable[..., Array], Callable[..., Array]] | None = None
    auxiliary: str | None = None
    ratio: str | None = None
    continuous: bool = False
    by_level: bool = False

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
        self.check_column(column)
        if isinstance(column, Binary | Categorical):
            levels = () if self.continuous else tuple(column.levels)
            return Response(column.codes(values).astype(np.float64), levels)
        return Response(values.to_numpy(dtype=np.float64))

    def check_column(self, column: Column) -> None:
        """Refuse a column whose type does not suit the family with a ValueError."""
        if not (isinstance(column, self.columns) and self.suits(column)):
            raise ValueError(
                f"family {self.name!r} requires as its response {self.needs}; "
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
        return "Use family='poisson' for a count, or family='gaussian'."
    return f"Use family={('gaussian' if isinstance(column, Integer) else default_family(column))!r}."


def indicators(y: Array, n_predictors: int) -> Array:
    """Whether each code is 1, 2, ..., shape (predictor, ...)."""
    levels = np.arange(1, n_predictors + 1).reshape((-1,) + (1,) * np.ndim(y))
    return (y == levels).astype(np.float64)
