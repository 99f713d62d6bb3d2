"""Rehearsals: replay a release on rows drawn from its own weighted rows. Uses both sides, and reads releases only."""

from iwbayes.rehearsal.rehearse import rehearse

__all__ = ["rehearse"]
