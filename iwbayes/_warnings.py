"""Warning classes of iwbayes."""

from __future__ import annotations

__all__ = ["CalibrationWarning", "PrivacyWarning", "WeightsWarning"]


class CalibrationWarning(UserWarning):
    """The intervals of a posterior are outside the domain in which calibration was shown to hold."""


class PrivacyWarning(UserWarning):
    """A mechanism costs more than its name or its published description says, or a budget protects less than it may."""


class WeightsWarning(UserWarning):
    """Weights are likely to be poor: their variance is infinite, or they were cut."""
