"""Release: everything that an analyst receives, and its file."""

from iwbayes.release.file import FORMAT_VERSION
from iwbayes.release.release import Release, ReleaseError, load

__all__ = ["FORMAT_VERSION", "Release", "ReleaseError", "load"]
