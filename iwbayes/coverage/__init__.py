"""How often intervals cover a known truth: simulated releases, fitted and counted."""

from iwbayes.coverage.study import CoverageStudy, coverage_study

__all__ = ["CoverageStudy", "coverage_study"]
