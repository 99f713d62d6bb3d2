"""Digests of public content: a ledger uses them to recognise tables and weights that its charged events produced."""

from __future__ import annotations

import hashlib
from typing import Any, Self

import numpy as np
import pandas as pd

_PLAIN = (str, bytes, bool, int, float, type(None))


def digest(*parts: Any) -> str:
    """Return the SHA-256 of texts, bytes, numbers, None, numeric arrays, tables, and tuples or lists of these.

    Equal content has the same digest in every process; names, types, shapes and order matter. A digest detects changes;
    it does not protect against a person who can run code in the same process.
    """
    total = hashlib.sha256()
    for part in parts:
        _add(total, part)
    return total.hexdigest()


class Sourced:
    """Public content that a charged algorithm produced; its ledger recognises it as long as it is unchanged."""

    __slots__ = ()

    _maker: str | None
    _made_as: str | None

    def fingerprint(self) -> str:
        """Return the SHA-256 of the content."""
        raise NotImplementedError

    def _from_source(self, source: str | None) -> Self:
        """Record the digest of the algorithm that made this content; call it on new content only."""
        object.__setattr__(self, "_maker", source)
        object.__setattr__(self, "_made_as", None if source is None else self.fingerprint())
        return self

    @property
    def source(self) -> str | None:
        """Digest that identifies the producing algorithm to a ledger; None if the content has changed since."""
        return self._maker if self._maker is not None and self._made_as == self.fingerprint() else None


def _add(total: Any, part: Any) -> None:
    """Add one part: first its type and length, then its bytes. Different contents then never give the same bytes."""
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
            raise TypeError("an array of objects has no canonical bytes. Pass an array of numbers, or a list of texts.")
        values = part
        if part.dtype.kind == "f":  # zeros of both signs are equal, and so are NaNs with different payloads
            values = np.where(np.isnan(part), np.nan, part + 0.0).astype(part.dtype)
        head, body = f"{part.dtype.str}{part.shape}", np.ascontiguousarray(values).tobytes()
    elif type(part) in _PLAIN:
        head, body = type(part).__name__, part if isinstance(part, bytes) else repr(part).encode()
    else:
        raise TypeError(f"a {type(part).__name__} has no canonical bytes. Pass texts, numbers, arrays or tables.")
    total.update(f"{len(head)}:{head}{len(body)}:".encode())
    total.update(body)


def _column(values: pd.Series) -> tuple[Any, ...]:
    """Return the parts of a canonical column: its type, its values or codes, and which cells are missing."""
    dtype = values.dtype
    if isinstance(dtype, pd.CategoricalDtype):
        levels = [str(level) for level in dtype.categories]
        kinds = [type(level).__name__ for level in dtype.categories]
        return ("category", bool(dtype.ordered), levels, kinds, values.cat.codes.to_numpy(dtype=np.int64))
    if isinstance(dtype, np.dtype):
        return (str(dtype), values.to_numpy())
    absent = values.isna().to_numpy(dtype=bool)
    return (str(dtype), absent, values.to_numpy(dtype=np.int64, na_value=0))
