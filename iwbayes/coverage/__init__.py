"""How often intervals cover a known truth: simulated releases, fitted and counted."""

from iwbayes.coverage.run import coverage_study
from iwbayes.coverage.study import CoverageStudy

__all__ = ["CoverageStudy", "coverage_study"]
