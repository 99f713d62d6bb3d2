"""Release: everything that the analyst's side receives, and its file."""

from iwbayes.release.file import FORMAT_VERSION
from iwbayes.release.release import Release, ReleaseError, load

__all__ = ["FORMAT_VERSION", "Release", "ReleaseError", "load"]
