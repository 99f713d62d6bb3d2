"""ReplicateWeights: weights whose differences show the whole error of a release, as survey packages read them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
from scipy.special import stdtrit

from iwbayes.utils import checks
from iwbayes.utils.arrays import Array

#: Fewest replicates.
LEAST = 10
#: From weights (row,) to one estimate, or to several in a fixed order or by name.
Estimator: TypeAlias = Callable[[Array], Any]


class ReplicatesError(ValueError):
    """A release has no replicate weights, because the error of its weights is unknown; a ValueError."""


@dataclass(frozen=True, eq=False)
class ReplicateWeights:
    """Weights of a release, and replicate weights by Fay's method.

    Each replicate moves the weights by the fraction ``1 - rho`` of one draw of their error. So small a step keeps all
    weights positive, and fits almost the same rows. The mean square of the n differences from the estimate with the
    released weights, divided by ``(1 - rho)**2``, is the variance of the estimate.

    Parameters
    ----------
    weights : ndarray, shape (row,)
        Weights of the synthetic rows, which sum to the number of private rows.
    values : ndarray, shape (replicate, row)
        Replicate weights.
    rho : float
        Coefficient of Fay's method, from 0 to below 1.

    References
    ----------
    D. R. Judkins (1990). Fay's method for variance estimation. Journal of Official Statistics 6(3), 223-239.
    """

    weights: Array
    values: Array
    rho: float

    def __len__(self) -> int:
        return len(self.values)

    def __repr__(self) -> str:
        return f"ReplicateWeights({len(self)} replicates x {len(self.weights)} rows, rho {self.rho:g})"

    def covariance(self, estimator: Estimator) -> pd.DataFrame:
        """Return the covariance of estimates, with their names as index and columns.

        Parameters
        ----------
        estimator : callable
            From weights (row,) to a number, a 1-d array, a dict or a Series. Iterative estimators must converge to more
            digits than `rho` has nines.

        Raises
        ------
        TypeError, ValueError
            If the estimates are not numbers, or differ in number or in names.
        """
        return self._estimated(estimator)[1]

    def table(self, estimator: Estimator, *, prob: float = 0.9) -> pd.DataFrame:
        """Return estimates with standard deviations and intervals: columns ``estimate``, ``sd``, ``lower``, ``upper``.

        Parameters
        ----------
        estimator : callable
            As in `covariance`.
        prob : float, default 0.9
            Probability of the intervals, by a t distribution with one degree of freedom per replicate.
        """
        checks.share("prob", prob, "Use 0.9.")
        estimate, covariance = self._estimated(estimator)
        sd = pd.Series(np.sqrt(np.diag(covariance)), estimate.index)
        reach = float(stdtrit(len(self), (1 + prob) / 2)) * sd
        return pd.DataFrame({"estimate": estimate, "sd": sd, "lower": estimate - reach, "upper": estimate + reach})

    def _estimated(self, estimator: Estimator) -> tuple[pd.Series, pd.DataFrame]:
        """Return the estimates, and their covariance."""
        own = _named(estimator(self.weights))
        found = [_named(estimator(weights)) for weights in self.values]
        if any(not one.index.equals(own.index) for one in found):
            raise ValueError("the estimator must return the same estimates for all weights; their names differ.")
        away = (np.stack([one.to_numpy() for one in found]) - own.to_numpy()) / (1 - self.rho)
        return own, pd.DataFrame(away.T @ away / len(self), own.index, own.index)


def _named(estimates: Any) -> pd.Series:
    """Return estimates by name, or by position."""
    try:
        several = estimates if isinstance(estimates, Mapping | pd.Series) else np.atleast_1d(estimates)
        found = pd.Series(several, dtype=np.float64)
    except (TypeError, ValueError):
        raise TypeError(
            "the estimator must return a number, a 1-d array, a dict or a Series of numbers; got "
            f"{type(estimates).__name__}."
        ) from None
    if not np.isfinite(found.to_numpy()).all():
        raise ValueError("the estimator must return finite numbers. Check it with the released weights first.")
    return found
