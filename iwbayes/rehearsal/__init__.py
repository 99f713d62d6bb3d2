"""Rehearsals: replay a release on rows drawn from its own weighted rows. It drives both sides and reads a release."""

from iwbayes.rehearsal.rehearse import rehearse

__all__ = ["rehearse"]
