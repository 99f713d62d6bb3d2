"""Warning categories of iwbayes."""

from __future__ import annotations

from typing import ClassVar

from iwbayes.utils.display import WIDTH, wrapped


class IwbayesWarning(UserWarning):
    """Base class of the warnings of iwbayes. Messages are wrapped at `columns` characters."""

    #: Longest line of a message, in characters.
    columns: ClassVar[int] = WIDTH

    def __str__(self) -> str:
        return wrapped(super().__str__(), width=self.columns)


class CalibrationWarning(IwbayesWarning):
    """Warn that intervals are not calibrated, or that a planned release will not support calibrated intervals.

    Intervals are calibrated if their checks pass; see the calibration record of a fit. If a check fails, the interval
    may cover the true value less often than its level says. The message names the check, its value and its threshold.

    Examples
    --------
    200 rows at epsilon 0.1 are too few for calibrated intervals, and `iwbayes.publish` says so:

    >>> import warnings
    >>> import iwbayes as iw
    >>> people = iw.datasets.simulate_table("bernoulli", 200, random_seed=1)
    >>> private = iw.PrivateTable(people.frame, people.schema)
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always")
    ...     release = iw.publish(private, epsilon=0.1, delta=1e-6, progressbar=False)
    >>> any(issubclass(warning.category, iw.CalibrationWarning) for warning in caught)
    True
    """


class PrivacyWarning(IwbayesWarning):
    """Warn about the privacy that a setting gives.

    It is raised if a mechanism costs more privacy than its name or its publication says, or by `plan` if `publish` will
    refuse delta, because it is at least one over the number of private rows.

    Examples
    --------
    >>> import warnings
    >>> import iwbayes as iw
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always")
    ...     planned = iw.plan(iw.Schema(iw.Real("age", 18, 90)), 100, epsilon=1.0, delta=0.1)
    >>> any(issubclass(warning.category, iw.PrivacyWarning) for warning in caught)
    True
    """


class WeightsWarning(IwbayesWarning):
    """Warn that a weighted estimate is unreliable.

    It is raised if importance weights have an infinite variance, if large weights were cut, or if a part of a model
    keeps weight one although it looks like a likelihood.

    Examples
    --------
    A potential with one term per row keeps weight one, because `iwbayes.reweight` weights observed variables only:

    >>> import warnings
    >>> import numpy as np
    >>> import pymc as pm
    >>> import iwbayes as iw
    >>> with pm.Model() as model:
    ...     mu = pm.Normal("mu", 0, 1)
    ...     _ = pm.Normal("y", mu, 1, observed=[0.5, 1.5])
    ...     _ = pm.Potential("extra", -0.5 * (mu - pm.math.stack([0.0, 1.0])) ** 2)
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always")
    ...     weighted = iw.reweight(model, np.array([1.2, 0.8]))
    >>> any(issubclass(warning.category, iw.WeightsWarning) for warning in caught)
    True
    """
