"""Small archives of named byte strings: deterministic to write, safe to read from untrusted sources.

The format is a zip file. Its members are stored without compression, so they are together no larger than the file.
Names, counts and sizes are checked before any content is read, which bounds the memory that a file can use. A Parquet
member is compressed internally; `iwbayes.release.table` bounds its content.
"""

from __future__ import annotations

import contextlib
import io
import math
import os
import secrets
import shutil
import zipfile
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

import numpy as np

from iwbayes.utils.arrays import Array

MAX_BYTES = 4 * 2**30  # of an archive
#: Largest size of a JSON or TOML text from a file, in bytes, and largest number of values in it. A value can be two
#: brackets, and takes about a hundred bytes when it is parsed.
MAX_TEXT, MAX_VALUES = 16 * 2**20, 2**20
#: Largest size of the decoded content of a file, in bytes: this many, and these many times the size of the file. Honest
#: files need less: the weights of a release alone take 8 bytes per row.
_LEAST_LIMIT, _RATIO = 2**26, 200
_TIME = (1980, 1, 1, 0, 0, 0)  # of every member, so that the same content gives the same bytes


class ArchiveError(ValueError):
    """The bytes of an archive are not valid; the message says why."""


def decoded_limit(file_size: int) -> int:
    """Return the largest size that the compressed content of a file may have when it is decoded, in bytes."""
    return _LEAST_LIMIT + _RATIO * file_size


def check_text(content: bytes) -> None:
    """Raise an ArchiveError if a JSON or TOML text is too large to be parsed."""
    if len(content) > MAX_TEXT:
        raise ArchiveError(f"it is larger than {MAX_TEXT} bytes")
    if max(map(content.count, (b",", b"\n"))) + content.count(b"[") + content.count(b"{") > MAX_VALUES:
        raise ArchiveError(f"it has more than {MAX_VALUES} values")


def pack(members: Mapping[str, bytes]) -> bytes:
    """Return an archive of named byte strings; the same members in the same order give the same bytes."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name, content in members.items():
            entry = zipfile.ZipInfo(name, _TIME)
            entry.create_system = 3  # the same bytes on every platform
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, content)
    return buffer.getvalue()


def unpack(source: BinaryIO, *, names: Collection[str], optional: Collection[str] = ()) -> dict[str, bytes]:
    """Return the members of an archive: all of ``names``, and any of ``optional``. Otherwise raise an ArchiveError."""
    size = source.seek(0, os.SEEK_END)
    if size > MAX_BYTES:
        raise ArchiveError(f"it is larger than {MAX_BYTES} bytes")
    try:
        with zipfile.ZipFile(source) as archive:
            entries = archive.infolist()
            _check_entries(entries, names, optional, size)
            return {entry.filename: archive.read(entry) for entry in entries}  # checks length and CRC
    except ArchiveError:
        raise
    except Exception as error:  # zipfile raises many types on malformed bytes; readers need one
        raise ArchiveError(f"it is truncated, damaged or not a zip archive ({type(error).__name__})") from None


def _check_entries(
    entries: list[zipfile.ZipInfo], names: Collection[str], optional: Collection[str], size: int
) -> None:
    found = [entry.filename for entry in entries]
    known = {*names, *optional}
    if len(found) > len(known) or len(set(found)) < len(found):
        raise ArchiveError(f"it has {len(found)} members, or a duplicate member; expected {sorted(known)}")
    if unknown := sorted(set(found) - known):
        raise ArchiveError(f"it has unexpected members {[name[:80] for name in unknown]}")
    if absent := sorted(set(names) - set(found)):
        raise ArchiveError(f"it lacks the members {absent}")
    for entry in entries:
        if entry.compress_type != zipfile.ZIP_STORED or entry.flag_bits & 0x1:
            raise ArchiveError(f"its member {entry.filename} is compressed or encrypted")
        if entry.compress_size != entry.file_size:
            raise ArchiveError(f"its member {entry.filename} declares two sizes")
    if sum(entry.file_size for entry in entries) > size:
        raise ArchiveError(f"its members declare more than its {size} bytes")


def pack_arrays(arrays: Mapping[str, Array]) -> bytes:
    """Return float arrays as a deterministic NumPy ``.npz`` archive, which ``numpy.load`` can read."""
    members = {}
    for name, array in arrays.items():
        buffer = io.BytesIO()
        content = np.ascontiguousarray(array, dtype="<f8")
        np.lib.format.write_array(buffer, content, version=(1, 0), allow_pickle=False)
        members[f"{name}.npy"] = buffer.getvalue()
    return pack(members)


def unpack_arrays(content: bytes, dims: Mapping[str, int]) -> dict[str, Array]:
    """Return the float64 arrays of an ``.npz`` archive with exactly the names and numbers of dimensions in ``dims``."""
    members = unpack(io.BytesIO(content), names=[f"{name}.npy" for name in dims])
    return {name: _array(name, members[f"{name}.npy"], n_dims) for name, n_dims in dims.items()}


def _array(name: str, content: bytes, n_dims: int) -> Array:
    # numpy allocates the declared size before it checks the length of the content: check the length first
    buffer = io.BytesIO(content)
    try:
        version = np.lib.format.read_magic(buffer)
        shape, fortran, dtype = np.lib.format.read_array_header_1_0(buffer)
    except Exception:  # the header is parsed as a Python literal: malformed ones raise many types
        raise ArchiveError(f"its array {name} has no valid npy header of version (1, 0)") from None
    if (version, dtype) != ((1, 0), np.dtype("<f8")) or fortran or len(shape) != n_dims or min(shape, default=1) < 0:
        raise ArchiveError(
            f"its array {name} must be float64 in C order, of version (1, 0), and have dimensions: {n_dims}"
        )
    start = buffer.tell()
    if math.prod(shape) * 8 != len(content) - start:
        raise ArchiveError(f"the length of its array {name} does not match the declared shape")
    return np.frombuffer(content, dtype="<f8", offset=start).astype(np.float64).reshape(shape)


def write_atomically(path: Path, content: bytes, *, overwrite: bool) -> None:
    """Write a file completely or not at all.

    With ``overwrite``, an existing file is replaced and keeps its permissions. Otherwise it raises a FileExistsError,
    even if another process created it during the write.
    """
    refusal = f"{path} already exists. Choose another path, or pass overwrite=True to replace it."
    if not overwrite and os.path.lexists(path):
        raise FileExistsError(refusal)
    with draft_of(path) as draft:
        with open(draft, "xb") as file:  # respects the umask, because the file may be shared
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if overwrite:
            with contextlib.suppress(OSError):
                shutil.copymode(path, draft)
            os.replace(draft, path)
        else:
            try:
                os.link(draft, path)
            except FileExistsError:
                raise FileExistsError(refusal) from None
            except OSError:  # the file system has no hard links
                if os.path.lexists(path):
                    raise FileExistsError(refusal) from None
                os.replace(draft, path)
    with contextlib.suppress(OSError):  # if folders can be synchronised, the new name survives a power failure
        handle = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


@contextlib.contextmanager
def draft_of(path: Path) -> Iterator[Path]:
    """Yield the name of a new temporary file or folder in the folder of a path; delete it at the end if it remains."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    try:
        yield draft
    finally:
        shutil.rmtree(draft, ignore_errors=True) if draft.is_dir() else draft.unlink(missing_ok=True)
