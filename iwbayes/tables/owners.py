"""Whose a row is, and which rows of a person are kept: in memory, or over all partitions of a Dask frame."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from iwbayes.arrays import IntArray
from iwbayes.schema import Schema

#: Gives the secret keys of the rows at places from a first one to before a last one, shape (row,).
Keys = Callable[[int, int], NDArray[np.uint64]]
#: What is said where rows changed hands under a table.
OTHER_OWNERS = (
    "the user column of the Dask frame is another than when the table was made. Write the rows to files that do not "
    "change, and make the table again."
)
#: Owners, keys and places of some rows, in the order of their places.
_Held = tuple[IntArray, NDArray[np.uint64], IntArray]
#: Rows of partitions that are looked at together, where fewer may be kept.
_NEW_ROWS = 2**22
#: Rows whose keys come from one call of the hash function.
_KEYS_AT_ONCE = 2**15


def row_keys(secret: IntArray) -> Keys:
    """Random keys of rows by their places: SHAKE-256 of a secret, so that they do not follow from any row.

    A row has the same key however the rows are cut into blocks, and whenever it is asked for.
    """
    seed = np.asarray(secret, dtype=np.int64).tobytes()

    def keys(start: int, stop: int) -> NDArray[np.uint64]:
        first, last = start // _KEYS_AT_ONCE, -(-stop // _KEYS_AT_ONCE)
        texts = (hashlib.shake_256(seed + at.to_bytes(8, "little")) for at in range(first, last))
        found = np.frombuffer(b"".join(text.digest(8 * _KEYS_AT_ONCE) for text in texts), dtype="<u8")
        return found[start - first * _KEYS_AT_ONCE : stop - first * _KEYS_AT_ONCE].astype(np.uint64)

    return keys


def check_user_column(names: Sequence[object], schema: Schema, user: str) -> None:
    """Refuse a user column that would be published, or is not there once."""
    if user in schema.names:
        raise ValueError(f"the user column {user!r} is in the schema, so it would be published. Leave it out there.")
    if list(names).count(user) != 1:
        raise ValueError(f"the table must have one user column {user!r}. Check the name; its columns are not shown.")


def owners_of(cells: pd.Series, user: str) -> tuple[IntArray, pd.Index]:
    """Owners of rows as codes in order of appearance, and what they stand for (private)."""
    try:
        codes, found = pd.factorize(cells)
    except TypeError:  # a cell that cannot be hashed
        codes = None
    if codes is None or (codes < 0).any():
        raise ValueError(f"every row needs an owner: the user column {user!r} has missing cells or none that compare.")
    return np.asarray(codes, dtype=np.int64), pd.Index(found)


def kept_rows(users: IntArray, keys: NDArray[np.generic], tau: int) -> IntArray:
    """Return indices of at most tau rows of each user: those with the smallest keys, of equal ones the first."""
    by_user = np.lexsort((keys, users))
    rank = pd.Series(by_user).groupby(users[by_user]).cumcount().to_numpy()
    return by_user[rank < tau]


class PartOwners(NamedTuple):
    """Owners of the rows of one partition, which a task brings back (private)."""

    digest: bytes
    codes: IntArray
    names: list[object]
    refusal: str | None = None
    kind: str = ""  # of the cells, as pandas stores them

    @classmethod
    def of(cls, part: pd.DataFrame, user: str) -> PartOwners:
        """Code the owners of a partition; raise nothing, since schedulers log a task's rows."""
        nobody = np.zeros(0, dtype=np.int64)
        if not len(part):
            return cls(b"", nobody, [])
        try:
            codes, names = owners_of(part[user], user)
            codes, dtype = codes.astype(np.min_scalar_type(len(names))), part[user].dtype
            kind = pd.api.types.infer_dtype(names, skipna=False) if str(dtype) == "object" else str(dtype)
            return cls(digest_of(part[user]), codes, names.tolist(), kind=kind)
        except ValueError as error:  # it names the column, never a value
            return cls(b"", nobody, [], str(error))
        except Exception as error:
            return cls(b"", nobody, [], f"the owners of rows could not be told apart ({type(error).__name__}).")


def digest_of(cells: pd.Series) -> bytes:
    """Digest of the owners of a partition's rows in their order: rows that changed hands are not what was counted."""
    if not len(cells):
        return b""
    found = pd.util.hash_pandas_object(cells, index=False).to_numpy()
    return hashlib.blake2b(found.tobytes(), digest_size=16).digest()


class Owners(NamedTuple):
    """Owners over all partitions (private): a person's rows may lie in any of them.

    Parameters
    ----------
    counts : ndarray of int, shape (user,)
        Rows of each user, in order of appearance.
    sizes : ndarray of int, shape (partition,)
        Rows of each partition.
    digests : tuple of bytes
        Of the user column in each partition.
    """

    counts: IntArray
    sizes: IntArray
    digests: tuple[bytes, ...]

    @classmethod
    def over(cls, parts: Iterable[PartOwners]) -> Owners:
        """Count the rows of each user, partition by partition; memory grows with the number of users alone."""
        counts, sizes, digests = np.zeros(0, dtype=np.int64), [], []
        for part, codes in _over_all(parts):
            counts = np.pad(counts, (0, max(0, int(np.max(codes, initial=-1)) + 1 - len(counts))))
            counts += np.bincount(codes, minlength=len(counts))
            sizes.append(len(codes))
            digests.append(part.digest)
        return cls(counts, np.array(sizes, dtype=np.int64), tuple(digests))

    def choose(self, parts: Iterable[PartOwners], keys: Keys, tau: int) -> IntArray:
        """Choose at most tau rows of each user, wherever they lie, as `kept_rows` does: their places, increasing.

        Now and then rows are dropped that would not be kept if there were no others: about as many are held as may be
        kept, or a few million.
        """
        held = [(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.uint64), np.zeros(0, dtype=np.int64))]
        start, n_new = 0, 0
        for place, (part, codes) in enumerate(_over_all(parts)):
            if (len(codes), part.digest) != (self.sizes[place], self.digests[place]):
                raise RuntimeError(OTHER_OWNERS)
            stop = start + len(codes)
            held.append((codes, keys(start, stop), np.arange(start, stop)))
            start, n_new = stop, n_new + len(codes)
            if n_new >= max(_NEW_ROWS, len(held[0][0])):
                held, n_new = [_smallest(held, tau)], 0
        users, _, places = _smallest(held, tau)
        check_kept(users, tau)
        return places

    def local(self, places: IntArray) -> list[IntArray]:
        """Split places of rows, increasing, by partition: places within each."""
        ends = np.cumsum(self.sizes)
        parts = np.split(places, np.searchsorted(places, ends[:-1]))
        return [(part - start).astype(np.int32) for part, start in zip(parts, ends - self.sizes, strict=True)]


def _smallest(held: Sequence[_Held], tau: int) -> _Held:
    """Keep the rows with the smallest keys of each user, in the order of their places, which breaks ties."""
    users, keys, places = (np.concatenate(parts) for parts in zip(*held, strict=True))
    kept = np.sort(kept_rows(users, keys, tau))
    return users[kept], keys[kept], places[kept]


def check_kept(users: IntArray, tau: int) -> None:
    """Refuse kept rows of which a user owns more than the bound."""
    if np.max(np.bincount(users, minlength=1)) > tau:
        raise RuntimeError("a user keeps more rows than the bound. This is a defect: nothing was released.")


def _over_all(parts: Iterable[PartOwners]) -> Iterator[tuple[PartOwners, IntArray]]:
    """Yield each partition with the owners of its rows, coded over all partitions in order of appearance."""
    known: dict[object, int] = {}
    kinds: set[str] = set()
    for part in parts:
        kinds |= {part.kind} if part.names else set()
        if len(kinds) > 1:  # 1 and "1" would be two users, and one person would keep twice as many rows
            raise ValueError(
                "the user column has cells of different types in different partitions, so that one person may seem to "
                "be two. Write it with one type everywhere, for example ddf.astype({user: 'int64'})."
            )
        own = np.array([known.setdefault(name, len(known)) for name in part.names], dtype=np.int64)
        yield part, own[part.codes]
