"""Owners of rows, and the choice of each user's kept rows: in memory, or over all partitions of a Dask frame."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from iwbayes.schema import Schema
from iwbayes.schema.cells import REVEALS, plain
from iwbayes.utils.arrays import IntArray

#: Function of a start and a stop position that returns the secret keys of the rows in between, shape (row,).
Keys = Callable[[int, int], NDArray[np.uint64]]
#: Error message if the owners of rows changed after the table was made.
OTHER_OWNERS = (
    "the user column of the Dask frame changed after the table was made. Write the rows to files that do not change, "
    "and make the table again."
)
#: Owners, keys and positions of some rows, in the order of their positions.
_Held = tuple[IntArray, NDArray[np.uint64], IntArray]
_NEW_ROWS = 2**22  # that are collected before rows are dropped, unless more may be kept
_KEYS_AT_ONCE = 2**15  # from one call of the hash function


def row_keys(secret: IntArray) -> Keys:
    """Return a function that gives random keys of rows: SHAKE-256 of a secret and of the row's position alone."""
    seed = np.asarray(secret, dtype=np.int64).tobytes()

    def keys(start: int, stop: int) -> NDArray[np.uint64]:
        first, last = start // _KEYS_AT_ONCE, -(-stop // _KEYS_AT_ONCE)
        texts = (hashlib.shake_256(seed + at.to_bytes(8, "little")) for at in range(first, last))
        found = np.frombuffer(b"".join(text.digest(8 * _KEYS_AT_ONCE) for text in texts), dtype="<u8")
        return found[start - first * _KEYS_AT_ONCE : stop - first * _KEYS_AT_ONCE].astype(np.uint64)

    return keys


def check_user_column(names: Sequence[object], schema: Schema, user: str) -> None:
    """Refuse a user column that would be published, or that the table does not have exactly once."""
    if user in schema.names:
        raise ValueError(
            f"the user column must not be in the schema, because it would be published; got {user!r}. Remove it from "
            f"the schema."
        )
    if list(names).count(user) != 1:
        raise ValueError(
            f"the table must have the user column {user!r} exactly once. Check the name; the columns of the table are "
            f"not shown here, because they may be private."
        )


def owners_of(cells: pd.Series, user: str) -> tuple[IntArray, pd.Index]:
    """Return the owners of rows as codes in order of appearance, and the values that the codes represent (private)."""
    owners = cells.map(plain)  # blanks and forms of Unicode make no other person
    try:
        codes, found = pd.factorize(owners.mask(owners.map(lambda owner: isinstance(owner, str) and not owner)))
    except TypeError:  # a cell that cannot be hashed
        codes = None
    if codes is None or (codes < 0).any():
        raise ValueError(
            f"every row needs an owner: the user column {user!r} has missing cells, or cells that cannot be compared, "
            f"such as lists. Complete or convert it. {REVEALS}"
        )
    return np.asarray(codes, dtype=np.int64), pd.Index(found)


def kept_rows(users: IntArray, keys: NDArray[np.generic], tau: int) -> IntArray:
    """Return the indices of the tau rows of each user with the smallest keys; the first row wins a tie."""
    by_user = np.lexsort((keys, users))
    rank = pd.Series(by_user).groupby(users[by_user]).cumcount().to_numpy()
    return by_user[rank < tau]


class PartOwners(NamedTuple):
    """Owners of the rows of one partition, the result of a task (private)."""

    digest: bytes
    codes: IntArray
    names: list[object]
    refusal: str | None = None
    kind: str = ""  # type of the cells, as pandas stores them

    @classmethod
    def of(cls, part: pd.DataFrame, user: str) -> PartOwners:
        """Encode the owners of a partition; never raise, because schedulers log the rows of failed tasks."""
        no_codes = np.zeros(0, dtype=np.int64)
        if not len(part):
            return cls(b"", no_codes, [])
        try:
            codes, names = owners_of(part[user], user)
            codes, dtype = codes.astype(np.min_scalar_type(len(names))), part[user].dtype
            kind = pd.api.types.infer_dtype(names, skipna=False) if str(dtype) == "object" else str(dtype)
            return cls(digest_of(part[user]), codes, names.tolist(), kind=kind)
        except ValueError as error:  # the message names the column, never a value
            return cls(b"", no_codes, [], str(error))
        except Exception as error:
            return cls(b"", no_codes, [], f"the owners of rows could not be compared ({type(error).__name__}).")


def digest_of(cells: pd.Series) -> bytes:
    """Return a digest of the owners of a partition's rows in order, to detect changes after they were counted."""
    if not len(cells):
        return b""
    found = pd.util.hash_pandas_object(cells, index=False).to_numpy()
    return hashlib.blake2b(found.tobytes(), digest_size=16).digest()


class Owners(NamedTuple):
    """Owners over all partitions (private). The rows of a user may be in any partition."""

    counts: IntArray  # rows of each user, in order of appearance
    sizes: IntArray  # rows of each partition
    digests: tuple[bytes, ...]  # of the user column in each partition

    @classmethod
    def over(cls, parts: Iterable[PartOwners]) -> Owners:
        """Count the rows of each user, partition by partition. Memory grows with the number of users only."""
        counts, sizes, digests = np.zeros(0, dtype=np.int64), [], []
        for part, codes in _over_all(parts):
            counts = np.pad(counts, (0, max(0, int(np.max(codes, initial=-1)) + 1 - len(counts))))
            counts += np.bincount(codes, minlength=len(counts))
            sizes.append(len(codes))
            digests.append(part.digest)
        return cls(counts, np.array(sizes, dtype=np.int64), tuple(digests))

    def choose(self, parts: Iterable[PartOwners], keys: Keys, tau: int) -> IntArray:
        """Return the increasing positions of at most tau rows of each user; memory holds few more rows."""
        held = [(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.uint64), np.zeros(0, dtype=np.int64))]
        start, n_new = 0, 0
        for index, (part, codes) in enumerate(_over_all(parts)):
            if (len(codes), part.digest) != (self.sizes[index], self.digests[index]):
                raise RuntimeError(OTHER_OWNERS)
            stop = start + len(codes)
            held.append((codes, keys(start, stop), np.arange(start, stop)))
            start, n_new = stop, n_new + len(codes)
            if n_new >= max(_NEW_ROWS, len(held[0][0])):
                held, n_new = [_smallest(held, tau)], 0
        users, _, positions = _smallest(held, tau)
        check_kept(users, tau)
        return positions

    def local(self, positions: IntArray) -> list[IntArray]:
        """Split increasing positions of rows by partition, into positions within each partition."""
        ends = np.cumsum(self.sizes)
        parts = np.split(positions, np.searchsorted(positions, ends[:-1]))
        return [(part - start).astype(np.int32) for part, start in zip(parts, ends - self.sizes, strict=True)]


def _smallest(held: Sequence[_Held], tau: int) -> _Held:
    """Keep the rows with the smallest keys of each user, in the order of their positions, which breaks ties."""
    users, keys, positions = (np.concatenate(parts) for parts in zip(*held, strict=True))
    kept = np.sort(kept_rows(users, keys, tau))
    return users[kept], keys[kept], positions[kept]


def check_kept(users: IntArray, tau: int) -> None:
    """Raise if a user owns more of the kept rows than the bound."""
    if np.max(np.bincount(users, minlength=1)) > tau:
        raise RuntimeError("a user keeps more rows than the bound. This is a bug; nothing was released.")


def _over_all(parts: Iterable[PartOwners]) -> Iterator[tuple[PartOwners, IntArray]]:
    """Yield each partition with the codes of its owners, which count over all partitions in order of appearance."""
    known: dict[object, int] = {}
    kinds: set[str] = set()
    for part in parts:
        kinds |= {part.kind} if part.names else set()
        if len(kinds) > 1:  # 1 and "1" would count as two users, and one person could keep twice as many rows
            raise ValueError(
                "the user column has cells of different types in different partitions, so one person could count as "
                "two. Write it with one type everywhere, for example ddf.astype({user: 'int64'}). " + REVEALS
            )
        own = np.array([known.setdefault(name, len(known)) for name in part.names], dtype=np.int64)
        yield part, own[part.codes]
