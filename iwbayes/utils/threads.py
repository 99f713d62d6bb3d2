"""Limit loops to one thread: several threads are slower for small products, and parallel processes compete for them."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any


@cache
def _controller(loaded_first: str) -> Any:
    # finding the loaded libraries takes milliseconds: do it once, after the library concerned was imported
    import_module(loaded_first)
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


def one_blas_thread() -> Any:
    """Return a context manager that limits linear algebra to one thread."""
    return _controller("scipy.linalg").limit(limits=1, user_api="blas")


def one_torch_thread() -> Any:
    """Return a context manager that limits torch to one thread: private steps are so short that a second slows them."""
    return _controller("torch").limit(limits=1, user_api="openmp")
