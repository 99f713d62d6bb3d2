"""One thread inside loops: several are slower on small products, and processes side by side fight over them."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any


@cache
def _controller(loaded_first: str) -> Any:
    # looking for the loaded libraries takes milliseconds: once is enough when this module's own are loaded first
    import_module(loaded_first)
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


def one_blas_thread() -> Any:
    """Return a context in which linear algebra uses one thread."""
    return _controller("scipy.linalg").limit(limits=1, user_api="blas")


def one_torch_thread() -> Any:
    """Return a context in which torch computes on one thread; afterwards it has as many as before.

    Private steps are many short operations: on two cores a second thread makes them two to six times slower.
    """
    return _controller("torch").limit(limits=1, user_api="openmp")
