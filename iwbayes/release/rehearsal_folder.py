"""The folder of rehearsals: ``facts.json``, the release, and one release file for each replay, ``0001.iwb`` and on.

Each file is written completely or not at all, and ``facts.json`` after the release, so an interrupted run can continue.
A folder can come from an untrusted source: each file is checked when it is read.
"""

from __future__ import annotations

import io
import json
import math
import os
import re
import stat
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from iwbayes.release.file import from_bytes, read_recipe
from iwbayes.release.release import Release
from iwbayes.utils.archive import MAX_BYTES, MAX_TEXT, ArchiveError, check_text, draft_of, write_atomically
from iwbayes.utils.display import one_line

FORMAT = "iwbayes rehearsals"
FORMAT_VERSION = 1
FACTS, RELEASE = "facts.json", "release.iwb"
_REPLAY = re.compile(r"[0-9]{4,9}\.iwb")


class RehearsalsError(ValueError):
    """A folder of rehearsals cannot be read, or belongs to a different release."""


@dataclass(frozen=True)
class RehearsalFacts:
    """Facts that all rehearsals of a run share; their folder stores them in ``facts.json``."""

    release: str  # `release_digest` of the replayed release
    random_seed: int  # it and the number i alone determine rehearsal i
    generator: str  # the generator that was run again; empty if the rows of the release were kept unchanged
    n_synthetic: int  # synthetic rows per rehearsal
    #: Mean square error of the release's weighted rows in an unmeasured direction of variance one; NaN if no features
    #: were measured. Each replay stores its own value; rehearsals miss the excess of this value over those.
    misfit: float


class ReplayFiles(Sequence[bytes]):
    """The replays in a folder, in the order of their numbers; each is read from its file when it is needed."""

    def __init__(self, folder: Path, numbers: Sequence[int]) -> None:
        self.folder, self.numbers = folder, numbers

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return ReplayFiles(self.folder, self.numbers[index])
        return _content(self.folder / replay_name(self.numbers[index]), MAX_BYTES)


def replay_name(number: int) -> str:
    """Return the name of the file of a replay; the first replay has the number 0 and the name ``0001.iwb``."""
    return f"{number + 1:04d}.iwb"


def opened(content: bytes, read: Callable[[BinaryIO], Any] = lambda source: Release(**from_bytes(source))) -> Any:
    """Read a release, or a part of it, from the bytes of its file; every failure is a RehearsalsError."""
    try:
        return read(io.BytesIO(content))
    except Exception as error:  # files can come from untrusted sources
        said = one_line(str(error)[:200]).rstrip(".")
        raise RehearsalsError(f"the rehearsals contain an invalid release ({said}). Rehearse again.") from None


def read_folder(path: str | os.PathLike[str]) -> tuple[RehearsalFacts, bytes, ReplayFiles]:
    """Return facts, release and replays of a folder; or raise RehearsalsError, or the OSError of the system."""
    folder = Path(path)
    names = os.listdir(folder) if folder.is_dir() or not folder.exists() else []
    if FACTS not in names:
        raise RehearsalsError(f"{folder} is not a folder of rehearsals. Use another folder.")
    numbers = sorted(int(name.removesuffix(".iwb")) - 1 for name in names if _REPLAY.fullmatch(name))
    if set(map(replay_name, numbers)) - set(names) or numbers[:1] == [-1]:
        raise RehearsalsError(f"{folder} is damaged: its replays are not numbered from 0001.iwb on. Rehearse again.")
    return _read_facts(folder / FACTS), _content(folder / RELEASE, MAX_BYTES), ReplayFiles(folder, numbers)


def start_folder(path: Path, facts: RehearsalFacts, release: bytes) -> None:
    """Write facts and release into a folder that is new, empty or was started; RehearsalsError for others."""
    path.mkdir(exist_ok=True)
    # an interrupted start leaves the release and drafts
    if not all(name == RELEASE or name.startswith((f".{RELEASE}.", f".{FACTS}.")) for name in os.listdir(path)):
        raise RehearsalsError(f"{path} is not a folder of rehearsals. Use another folder.")
    write_atomically(path / RELEASE, release, overwrite=True)
    content = {"format": FORMAT, "format_version": FORMAT_VERSION, **vars(facts)}
    content["misfit"] = None if math.isnan(facts.misfit) else facts.misfit
    write_atomically(path / FACTS, json.dumps(content, indent=1, allow_nan=False).encode(), overwrite=False)


def add_replay(path: Path, number: int, content: bytes) -> None:
    """Write one replay into a folder."""
    write_atomically(path / replay_name(number), content, overwrite=True)


def write_folder(path: Path, facts: RehearsalFacts, release: bytes, contents: Iterable[bytes]) -> None:
    """Write a whole folder of rehearsals, completely or not at all; a FileExistsError if the path exists."""
    refusal = f"{path} already exists. Choose another path."
    if os.path.lexists(path):
        raise FileExistsError(refusal)
    with draft_of(path) as draft:
        start_folder(draft, facts, release)
        for content in contents:
            add_replay(draft, int(opened(content, read_recipe)["rehearsal"]), content)
        try:
            os.rename(draft, path)
        except FileExistsError:
            raise FileExistsError(refusal) from None


def _read_facts(path: Path) -> RehearsalFacts:
    content = _content(path, MAX_TEXT)
    try:
        check_text(content)
        values = json.loads(content)
        if (values.pop("format"), values.pop("format_version")) != (FORMAT, FORMAT_VERSION):
            raise ArchiveError("its format is different")
        if values["misfit"] is None:
            values["misfit"] = math.nan
        facts = RehearsalFacts(**values)
        if [*map(type, vars(facts).values()), facts.generator.isprintable()] != [str, int, str, int, float, True]:
            raise ArchiveError("a fact is not valid")
    except (ValueError, TypeError, AttributeError, KeyError, RecursionError):
        raise RehearsalsError(f"{path} is damaged, or from a newer iwbayes. Rehearse again.") from None
    return facts


def _content(path: Path, most: int) -> bytes:
    """Return the bytes of a regular file of at most `most` bytes; links and devices are refused."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        raise RehearsalsError(f"{path} is missing. Put it back, or rehearse again.") from None
    if not stat.S_ISREG(found.st_mode) or found.st_size > most:
        raise RehearsalsError(f"{path} is damaged: it is not a file of at most {most} bytes. Rehearse again.")
    with open(path, "rb") as file:
        return file.read(found.st_size)
