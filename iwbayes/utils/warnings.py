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

    Such an interval may cover the true value less often than its level says. The message names the check that failed,
    its value and its threshold.
    """


class PrivacyWarning(IwbayesWarning):
    """Warn about the privacy that a setting gives.

    It is raised if a mechanism costs more privacy than its name or its publication says, or by `plan` if `publish` will
    refuse delta, because it is at least one over the number of private rows.
    """


class WeightsWarning(IwbayesWarning):
    """Warn that a weighted estimate is unreliable.

    It is raised if importance weights have an infinite variance, if large weights were cut, or if a part of a model
    keeps weight one although it looks like a likelihood, such as a potential with one term per row.
    """
