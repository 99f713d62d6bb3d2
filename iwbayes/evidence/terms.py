"""Raw terms of a feature map: products of encoded features, with their names, ranges and values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import combinations, groupby

import numpy as np
import pandas as pd

from iwbayes.schema import Schema
from iwbayes.schema.columns import _Numeric
from iwbayes.utils.arrays import Array, row_blocks

#: Indices of the features, all in [-1, 1], that a term multiplies: ``(1, 1)`` is the square of the second one.
Term = tuple[int, ...]
Terms = str | tuple[Term, ...]  # name of a set of terms, or the terms themselves

TERMS = ("quadratic", "squares", "linear")  # names of sets of terms, from the richest to the poorest
MAX_DEGREE = 7  # largest number of factors of a term
MAX_RAW_TERMS = 1500  # largest number of raw terms that is tried: the covariance of more terms would take too long
#: Largest number of raw terms of a named set that are listed at all: a file can name a set whose list fills the memory.
_MOST_LISTED = 100_000
_CHUNK = 8192
# Number of rows whose products fit into the processor cache.
_IN_CACHE = 512


def check_terms(schema: Schema, terms: Terms) -> None:
    """Raise a ValueError unless ``terms`` is a valid name, or a sorted tuple of terms of the schema."""
    if isinstance(terms, str):
        if terms not in TERMS:
            raise ValueError(f"terms must be one of {TERMS}, or tuples of indices; got {terms!r}.")
        if count_raw_terms(schema, terms) > _MOST_LISTED:
            raise ValueError(
                f"{terms!r} terms of these columns are more than {_MOST_LISTED}. Use fewer columns or levels."
            )
        return
    if not isinstance(terms, tuple) or not terms or not all(isinstance(term, tuple) and term for term in terms):
        raise ValueError(f"terms must be one of {TERMS}, or a nonempty tuple of tuples of indices.")
    n = schema.n_features
    for term in terms:
        if not all(type(index) is int and 0 <= index < n for index in term):
            raise ValueError(f"a term must contain indices from 0 to {n - 1}; got {term}.")
        if len(term) > MAX_DEGREE or list(term) != sorted(term):
            raise ValueError(f"a term must contain at most {MAX_DEGREE} indices in ascending order; got {term}.")
    if terms != ordered_terms(set(terms)):
        raise ValueError("terms must be distinct, and sorted by degree and then by indices. Use ordered_terms().")


def ordered_terms(terms: set[Term] | frozenset[Term]) -> tuple[Term, ...]:
    """Return the terms in the order that feature maps require: by degree, then by indices."""
    return tuple(sorted(terms, key=lambda term: (len(term), term)))


def raw_terms(schema: Schema, terms: Terms) -> tuple[Term, ...]:
    """Return the raw terms; see `FeatureMap` for the meaning of the names."""
    if not isinstance(terms, str):
        return terms
    owner = feature_owners(schema)
    found: list[Term] = [(index,) for index in range(len(owner))]
    if terms != "linear":
        numeric = [index for index, column in enumerate(schema) if isinstance(column, _Numeric)]
        found += [(owner.index(index),) * 2 for index in numeric]
    if terms == "quadratic":
        found += [(a, b) for a, b in combinations(range(len(owner)), 2) if owner[a] != owner[b]]
    return tuple(found)


def feature_owners(schema: Schema) -> list[int]:
    """Return the position of the column of each encoded feature."""
    return [index for index, column in enumerate(schema) for _ in column.feature_names]


def count_raw_terms(schema: Schema, terms: Terms) -> int:
    """Return an upper bound of the number of raw terms, without listing them."""
    d = schema.n_features
    if not isinstance(terms, str):
        return len(terms)
    return {"linear": d, "squares": 2 * d, "quadratic": 2 * d + d * (d - 1) // 2}[terms]


def raw_names(schema: Schema, terms: Terms) -> tuple[str, ...]:
    """Return the names of the raw terms: ``a``, ``a^2``, ``a:b``."""
    names = schema.feature_names
    return tuple(
        ":".join(names[index] + (f"^{power}" if power > 1 else "") for index, power in Counter(term).items())
        for term in raw_terms(schema, terms)
    )


def raw_ranges(schema: Schema, terms: Terms) -> tuple[Array, Array]:
    """Return bounds (raw,), (raw,) of each raw term that a schema allows, exact for features of different columns."""
    levels = [rank > 0 or c.kind == "categorical" for c in schema for rank, _ in enumerate(c.feature_names)]
    lows, highs = np.where(levels, 0.0, -0.5).tolist(), np.where(levels, 1.0, 0.5).tolist()
    ranges = []
    for term in raw_terms(schema, terms):
        low = high = 1.0
        for index, power in Counter(term).items():
            first, last = sorted((lows[index] ** power, highs[index] ** power))
            if power % 2 == 0 and lows[index] < 0 < highs[index]:
                first = 0.0
            ends = (low * first, low * last, high * first, high * last)
            low, high = min(ends), max(ends)
        ranges.append((low, high))
    low_ends, high_ends = np.array(ranges).T
    return low_ends, high_ends


def raw_chunks(schema: Schema, terms: Terms, frame: pd.DataFrame) -> Iterator[tuple[slice, Array]]:
    """Yield raw terms in blocks of rows, shape (row, raw), which need little memory."""
    listed = raw_terms(schema, terms)
    blocks = [np.array(list(group)) for _, group in groupby(listed, key=len)]
    for rows in row_blocks(len(frame), _CHUNK):
        base = schema.encode(frame.iloc[rows])
        raw = np.empty((len(base), len(listed)))
        for part in row_blocks(len(base), _IN_CACHE):
            own, first = base[part], 0
            for indices in blocks:
                last = first + len(indices)
                product = np.take(own, indices[:, 0], axis=1)
                for factor in indices.T[1:]:
                    product *= np.take(own, factor, axis=1)
                raw[part, first:last] = product
                first = last
        yield rows, raw
