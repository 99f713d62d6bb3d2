"""Release: everything that the analyst's side receives, and its file."""

from iwbayes.release.release import FORMAT_VERSION, Release, ReleaseError, load

__all__ = ["FORMAT_VERSION", "Release", "ReleaseError", "load"]
