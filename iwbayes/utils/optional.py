"""Import packages that a plain installation lacks; if one is not installed, say which extra brings it."""

from __future__ import annotations

from importlib import import_module
from typing import Any

#: Optional modules: the name of the package, and the extra of iwbayes that installs it.
EXTRAS = {
    "dask": ("dask", "dask"),
    "openpyxl": ("openpyxl", "files"),
    "pyreadstat": ("pyreadstat", "files"),
    "sklearn": ("scikit-learn", "audit"),
    "statsmodels": ("statsmodels", "demo"),
    "torch": ("torch", "torch"),
}


def import_optional(module: str, needed: str) -> Any:
    """Return an optional module; a ModuleNotFoundError names its extra, after `needed`, such as "audits need"."""
    top = module.partition(".")[0]
    try:
        import_module(top)
    except ModuleNotFoundError as error:
        if error.name != top:
            raise
        package, extra = EXTRAS[top]
        remedy = f'In a checkout of iwbayes run: pip install ".[{extra}]".'
        raise ModuleNotFoundError(
            f"{needed} the package {package}, which is not installed. {remedy}", name=top
        ) from None
    return import_module(module)
