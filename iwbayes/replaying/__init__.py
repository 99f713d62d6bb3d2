"""Replay a release many times on rows drawn from its own weighted rows. Uses both sides, and reads releases only."""

from iwbayes.replaying.rehearse import rehearse

__all__ = ["rehearse"]
