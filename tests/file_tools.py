"""Folders that cannot be written to, also for a test that runs as root; release files and forged ones; R."""

import hashlib
import io
import json
import os
import shutil
import subprocess
import tempfile
import zipfile
from contextlib import contextmanager
from pathlib import Path

from iwbayes.release import file


def has_survey():
    """Whether R is installed, with the package survey."""
    if shutil.which("Rscript") is None:
        return False
    asked = ["Rscript", "-e", "quit(status = !requireNamespace('survey', quietly = TRUE))"]
    return subprocess.run(asked, capture_output=True, check=False).returncode == 0


@contextmanager
def open_folder():
    """Make a folder that every user can reach, and remove it in the end."""
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        folder.chmod(0o755)
        shutil.rmtree(folder)


@contextmanager
def as_nobody():
    """Run as a user without rights where the test runs as root, who may write everywhere."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def members_of(path):
    """Contents of a release file by their names."""
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def zipped(members, **options):
    """Bytes of a file with these members."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", **options) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def sealed(members, change=None):
    """Members with a changed manifest and checksums that fit again: what a careful forger would write."""
    manifest = json.loads(members["manifest.json"])
    if change is not None:
        change(manifest)
    others = {name: content for name, content in members.items() if name != "manifest.json"}
    manifest["members"] = {
        name: {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content)} for name, content in others.items()
    }
    manifest["sha256"] = file._digest(manifest)
    return {"manifest.json": json.dumps(manifest).encode(), **others}
