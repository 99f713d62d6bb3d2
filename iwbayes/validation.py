"""Validation: privacy audits, studies of the coverage of intervals, and checks of tables before they are published."""

from iwbayes.coverage.run import coverage_study
from iwbayes.coverage.study import CoverageStudy
from iwbayes.curator.auditing.audit import AuditResult, audit, opposite_corners
from iwbayes.curator.auditing.release_audit import ReleaseAudit, audit_release
from iwbayes.tables.shared_users import SharedUsers, shared_users

__all__ = [
    "AuditResult",
    "CoverageStudy",
    "ReleaseAudit",
    "SharedUsers",
    "audit",
    "audit_release",
    "coverage_study",
    "opposite_corners",
    "shared_users",
]
