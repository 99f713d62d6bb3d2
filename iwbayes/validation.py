"""Validation: privacy audits, and studies of the coverage of intervals."""

from iwbayes.coverage.run import coverage_study
from iwbayes.coverage.study import CoverageStudy
from iwbayes.curator.auditing.audit import AuditResult, audit, opposite_corners
from iwbayes.curator.auditing.release_audit import ReleaseAudit, audit_release

__all__ = [
    "AuditResult",
    "CoverageStudy",
    "ReleaseAudit",
    "audit",
    "audit_release",
    "coverage_study",
    "opposite_corners",
]
