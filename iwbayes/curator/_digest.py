"""Digests of public content, by which a ledger knows what charged events alone have made."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np


def digest(*parts: Any) -> str:
    """SHA-256 of texts, numbers and arrays, with their types and shapes."""
    total = hashlib.sha256()
    for part in parts:
        array = np.ascontiguousarray(part) if isinstance(part, np.ndarray) else None
        head = repr(part) if array is None else f"{array.dtype.str}{array.shape}"
        total.update(f"{len(head)}:{head}".encode())
        if array is not None:
            total.update(array.tobytes())
    return total.hexdigest()
