"""Warning classes of iwbayes."""

from __future__ import annotations

__all__ = ["CalibrationWarning"]


class CalibrationWarning(UserWarning):
    """The intervals of a posterior are outside the domain in which calibration was shown to hold."""
