"""Coverage studies: how often intervals from simulated releases cover the known true values."""

from iwbayes.coverage.run import coverage_study
from iwbayes.coverage.study import CoverageStudy

__all__ = ["CoverageStudy", "coverage_study"]
