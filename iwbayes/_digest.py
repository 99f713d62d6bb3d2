"""Digests of public content, by which a ledger knows what charged events alone have made."""

from __future__ import annotations

import hashlib
from typing import Any, Self

import numpy as np
import pandas as pd

_PLAIN = (str, bytes, bool, int, float, type(None))


def digest(*parts: Any) -> str:
    """SHA-256 of the canonical bytes of texts, numbers, arrays and tables, equal for equal content in every process.

    Names, types, shapes and order count. A digest tells that content has changed; it binds nobody who can run code of
    their own. Parts are str, bytes, bool, int, float, None, ndarray, pandas.DataFrame, or tuples or lists of these.
    Anything else raises a TypeError, such as an array of objects, whose bytes are addresses.

    Examples
    --------
    >>> digest("a", 1) == digest("a", 1), digest("a", 1) == digest("a", 1.0)
    (True, False)
    """
    total = hashlib.sha256()
    for part in parts:
        _add(total, part)
    return total.hexdigest()


class Sourced:
    """Public content that a charged algorithm made, and that its ledger knows as long as it is unchanged."""

    __slots__ = ()

    _maker: str | None
    _made_as: str | None

    def fingerprint(self) -> str:
        """SHA-256 of the content."""
        raise NotImplementedError

    def _from_source(self, source: str | None) -> Self:
        """Note on new content, before anybody else has it, the digest of what made it."""
        object.__setattr__(self, "_maker", source)
        object.__setattr__(self, "_made_as", None if source is None else self.fingerprint())
        return self

    @property
    def source(self) -> str | None:
        """Digest by which a ledger knows what made this, as long as nothing has changed since then; else None."""
        return self._maker if self._maker is not None and self._made_as == self.fingerprint() else None


def _add(total: Any, part: Any) -> None:
    """Add one part: a head that tells type and length, then its bytes, so that no two contents have the same bytes."""
    if isinstance(part, pd.DataFrame):
        _add(total, ("frame", len(part), [str(name) for name in part.columns]))
        for index in range(part.shape[1]):
            _add(total, _column(part.iloc[:, index]))
        return
    if isinstance(part, tuple | list):
        _add(total, f"{type(part).__name__} of {len(part)}")
        for item in part:
            _add(total, item)
        return
    if isinstance(part, np.ndarray):
        if part.dtype.hasobject:
            raise TypeError("an array of objects has no canonical bytes. Pass numbers, or a list of texts.")
        values = part
        if part.dtype.kind == "f":  # one zero and one NaN, whatever sign or payload they had
            values = np.where(np.isnan(part), np.nan, part + 0.0).astype(part.dtype)
        head, body = f"{part.dtype.str}{part.shape}", np.ascontiguousarray(values).tobytes()
    elif type(part) in _PLAIN:
        head, body = type(part).__name__, part if isinstance(part, bytes) else repr(part).encode()
    else:
        raise TypeError(f"a {type(part).__name__} has no canonical bytes. Pass texts, numbers, arrays or tables.")
    total.update(f"{len(head)}:{head}{len(body)}:".encode())
    total.update(body)


def _column(values: pd.Series) -> tuple[Any, ...]:
    """Parts of a canonical column: its type, and its values or codes with what is missing."""
    dtype = values.dtype
    if isinstance(dtype, pd.CategoricalDtype):
        levels = [str(level) for level in dtype.categories]
        kinds = [type(level).__name__ for level in dtype.categories]
        return ("category", bool(dtype.ordered), levels, kinds, values.cat.codes.to_numpy(dtype=np.int64))
    if isinstance(dtype, np.dtype):
        return (str(dtype), values.to_numpy())
    absent = values.isna().to_numpy(dtype=bool)
    return (str(dtype), absent, values.to_numpy(dtype=np.int64, na_value=0))
