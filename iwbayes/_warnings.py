"""Warning classes of iwbayes."""

from __future__ import annotations

from typing import ClassVar

from iwbayes.display import WIDTH, wrapped


class IwbayesWarning(UserWarning):
    """Any warning of iwbayes: what it says is shown in lines of at most so many columns."""

    columns: ClassVar[int] = WIDTH

    def __str__(self) -> str:
        return wrapped(super().__str__(), width=self.columns)


class CalibrationWarning(IwbayesWarning):
    """Intervals are outside the domain in which calibration was shown to hold, or are expected to be."""


class PrivacyWarning(IwbayesWarning):
    """A mechanism costs more than its name or its published description says, or a budget protects less than it may."""


class WeightsWarning(IwbayesWarning):
    """Weights are likely to be poor: their variance is infinite, or they were cut."""
