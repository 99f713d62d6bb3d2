"""Warning categories of iwbayes."""

from __future__ import annotations

from typing import ClassVar

from iwbayes.utils.display import WIDTH, wrapped


class IwbayesWarning(UserWarning):
    """Base class of the warnings of iwbayes. Messages are wrapped at `columns` characters."""

    columns: ClassVar[int] = WIDTH

    def __str__(self) -> str:
        return wrapped(super().__str__(), width=self.columns)


class CalibrationWarning(IwbayesWarning):
    """Warn that intervals are, or will be, not calibrated: they may cover less often than their level says."""


class PrivacyWarning(IwbayesWarning):
    """Warn that a mechanism costs more privacy than its publication says, or that `publish` will refuse delta."""


class WeightsWarning(IwbayesWarning):
    """Warn that a weighted estimate is unreliable: weights have infinite variance or few rows, or were cut or left out.

    Weights are left out of a part of a model that looks like a likelihood, such as a potential with one term per row.
    """
