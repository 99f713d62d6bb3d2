"""One thread inside loops: several are slower on small products, and processes side by side fight over them."""

from __future__ import annotations

from functools import cache
from typing import Any


@cache
def _controller() -> Any:
    # looking for the loaded libraries takes milliseconds: once is enough when scipy's own is loaded first
    import scipy.linalg  # noqa: F401
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


def one_blas_thread() -> Any:
    """Return a context in which linear algebra uses one thread."""
    return _controller().limit(limits=1, user_api="blas")


@cache
def _openmp_controller() -> Any:
    import torch  # noqa: F401  # its own OpenMP library must be loaded to be found
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


def one_torch_thread() -> Any:
    """Return a context in which torch computes on one thread; afterwards it has as many as before.

    Private steps are many short operations: on two cores a second thread makes them two to six times slower.
    """
    return _openmp_controller().limit(limits=1, user_api="openmp")
