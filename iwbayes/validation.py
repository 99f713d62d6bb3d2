"""Validation: privacy audits, studies of coverage, utility reports, and checks of tables before they are published."""

from iwbayes.coverage.run import coverage_study
from iwbayes.coverage.study import CoverageStudy
from iwbayes.curator.auditing.audit import AuditResult, audit, opposite_corners
from iwbayes.curator.auditing.release_audit import ReleaseAudit, audit_release
from iwbayes.reporting.noisy_utility import NoisyUtility, noisy_utility
from iwbayes.reporting.utility import Utility, expected_utility, utility
from iwbayes.tables.shared_users import SharedUsers, shared_users

__all__ = [
    "AuditResult",
    "CoverageStudy",
    "NoisyUtility",
    "ReleaseAudit",
    "SharedUsers",
    "Utility",
    "audit",
    "audit_release",
    "coverage_study",
    "expected_utility",
    "noisy_utility",
    "opposite_corners",
    "shared_users",
    "utility",
]
