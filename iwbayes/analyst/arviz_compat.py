"""All differences between ArviZ 0.23 (``InferenceData``) and ArviZ 1 (``DataTree``).

The rest of the package treats posteriors as named groups, each an :class:`xarray.Dataset`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from importlib import import_module
from importlib.metadata import version
from itertools import product
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
import xarray as xr

from iwbayes.utils import checks
from iwbayes.utils.archive import decoded_limit, draft_of
from iwbayes.utils.display import one_line

#: ``arviz.InferenceData`` with ArviZ 0.23, ``xarray.DataTree`` with ArviZ 1.
ArvizObject: TypeAlias = Any

_LEGACY = int(version("arviz").split(".")[0]) < 1


def _arviz() -> Any:
    """Import ArviZ when it is used, as this takes long."""
    return import_module("arviz")


def _stats() -> Any:
    """Import the module with ArviZ's summaries; that of ArviZ 1 does not import Matplotlib."""
    return import_module("arviz" if _LEGACY else "arviz_stats")


def make(groups: Mapping[str, xr.Dataset], attrs: Mapping[str, Any] | None = None) -> ArvizObject:
    """Build the installed ArviZ's container from datasets by group name, which are shared, not copied.

    A dataset without data variables is left out, because ArviZ 0.23 cannot store it.
    """
    for name, dataset in groups.items():
        if not isinstance(dataset, xr.Dataset):
            raise TypeError(f"group {name!r} must be an xarray.Dataset; got {type(dataset).__name__}.")
    kept = {name: dataset for name, dataset in groups.items() if len(dataset.data_vars)}
    if _LEGACY:
        return _arviz().InferenceData(attrs=dict(attrs or {}), **kept)
    tree = xr.DataTree.from_dict({f"/{name}": dataset for name, dataset in kept.items()})
    tree.attrs.update(attrs or {})
    return tree


def group_names(idata: ArvizObject) -> list[str]:
    """Return the names of all groups, including warm-up groups."""
    if isinstance(idata, xr.DataTree):
        return list(idata.children)
    if hasattr(idata, "_groups_all"):
        return list(idata._groups_all)
    raise TypeError(
        f"expected an ArviZ object (InferenceData with ArviZ 0.23, DataTree with ArviZ 1); got {type(idata).__name__}."
    )


def has_group(idata: ArvizObject, name: str) -> bool:
    """Return whether the ArviZ object has a group of this name."""
    return name in group_names(idata)


def group(idata: ArvizObject, name: str) -> xr.Dataset:
    """Return one group as a dataset that shares its variables; a KeyError names the groups present."""
    names = group_names(idata)
    if name not in names:
        raise KeyError(f"the ArviZ object has no group {name!r}; it has {', '.join(names) or 'none'}.")
    found = idata[name]
    return found.to_dataset() if isinstance(found, xr.DataTree) else found


def group_or_empty(idata: ArvizObject, name: str) -> xr.Dataset:
    """Return one group, or an empty dataset if the object does not have it."""
    return group(idata, name) if has_group(idata, name) else xr.Dataset()


def with_groups(idata: ArvizObject, groups: Mapping[str, xr.Dataset]) -> ArvizObject:
    """Return a new ArviZ object with groups added or replaced and the others shared; the argument is not changed."""
    kept = {name: group(idata, name) for name in group_names(idata)}
    return make({**kept, **groups}, idata.attrs)


def _storable(dataset: xr.Dataset) -> xr.Dataset:
    """Copy a dataset and make its attributes storable in netCDF: no booleans, None or empty lists."""
    copy = dataset.copy(deep=False)
    for key, value in dataset.attrs.items():
        if isinstance(value, bool | np.bool_):
            copy.attrs[key] = int(value)
        elif value is None or (isinstance(value, list | tuple) and not value):
            copy.attrs[key] = ""
    return copy


def scalars(posterior: xr.Dataset) -> dict[str, np.ndarray]:
    """Return the draws of each scalar of a posterior by name: ``b``, ``c[level]``, ``d[level, other]``."""
    found = {}
    for name, variable in posterior.data_vars.items():
        dims = [dim for dim in variable.dims if dim not in ("chain", "draw")]
        values = variable.transpose(*dims, "chain", "draw").values
        labels = [variable[dim].values if dim in variable.coords else np.arange(variable.sizes[dim]) for dim in dims]
        for index, label in zip(np.ndindex(*values.shape[:-2]), product(*labels), strict=True):
            flat = f"{name}[{', '.join(map(str, label))}]" if dims else str(name)
            found[flat] = values[index].ravel().astype(np.float64)
    return found


def save(idata: ArvizObject, path: str | os.PathLike[str]) -> None:
    """Write an ArviZ object to one netCDF-4 file, completely or not at all, replacing the file if it exists.

    Attributes that netCDF cannot store are converted: booleans to 0 or 1, None and empty lists to the empty string.
    """
    storable = with_groups(idata, {name: _storable(group(idata, name)) for name in group_names(idata)})
    path = Path(path)
    with draft_of(path) as draft:
        if _LEGACY:
            storable.to_netcdf(os.fspath(draft))
        else:
            storable.to_netcdf(draft, engine="h5netcdf")
        os.replace(draft, path)


def load(path: str | os.PathLike[str]) -> ArvizObject:
    """Read an ArviZ object from a netCDF-4 file into memory, and close the file.

    The file can come from an untrusted source: a ValueError is raised if it decodes to much more than its size, and
    characters of its texts that are not printable are escaped.
    """
    if not os.path.exists(path):
        raise FileNotFoundError(f"no such file: {os.fspath(path)}. Check the path.")
    _check_size(path)
    if _LEGACY:
        with _arviz().rc_context({"data.load": "eager"}):
            found = _arviz().from_netcdf(os.fspath(path))
    else:
        found = xr.load_datatree(path, engine="h5netcdf")
    return make({name: _in_lines(group(found, name)) for name in group_names(found)}, _lines_of(found.attrs))


def _check_size(path: str | os.PathLike[str]) -> None:
    import h5py

    limit = decoded_limit(os.path.getsize(path))
    with h5py.File(path, "r") as file:
        size = 0
        for array in _arrays(file):
            size += array.nbytes
            if size <= limit and h5py.check_string_dtype(array.dtype):  # in memory, all are as long as the longest
                size += 4 * array.size * max(map(len, np.ravel(array[()])), default=0)
            if size > limit:
                raise ValueError(
                    f"{os.fspath(path)} decodes to more than {limit} bytes, much more than its size. Write it again "
                    f"without constant arrays, or ask for another file."
                )


def _arrays(folder: Any) -> Iterator[Any]:
    """Yield the arrays of an HDF5 group and its groups as often as they have names; refuse links."""
    import h5py

    for name in folder:
        if not isinstance(folder.get(name, getlink=True), h5py.HardLink):
            raise ValueError(
                f"the netCDF file has a link, {name!r}, in place of an array. Write it again without links."
            )
        found = folder[name]
        if isinstance(found, h5py.Group):
            yield from _arrays(found)
        elif isinstance(found, h5py.Dataset):
            yield found


def _in_lines(dataset: xr.Dataset) -> xr.Dataset:
    """Return a dataset whose names, texts and text attributes are printable lines."""
    names = {name: one_line(str(name)) for name in [*dataset.variables, *dataset.dims]}
    found = dataset.rename({old: new for old, new in names.items() if old != new})
    found = found.assign_coords(_texts(found.coords)).assign(_texts(found.data_vars))
    found.attrs = _lines_of(found.attrs)
    return found


def _texts(arrays: Mapping[Any, xr.DataArray]) -> dict[Any, Any]:
    return {
        name: (array.dims, np.reshape([_line(value) for value in array.values.flat], array.shape))
        for name, array in arrays.items()
        if array.dtype.kind in "OU"
    }


def _lines_of(attrs: Mapping[Any, Any]) -> dict[str, Any]:
    return {one_line(str(name)): _line(value) for name, value in attrs.items()}


def _line(value: Any) -> Any:
    return one_line(value) if isinstance(value, str) else value


def summary(
    idata: ArvizObject, var_names: list[str] | None = None, *, group: str = "posterior", prob: float = 0.9
) -> pd.DataFrame:
    """Summarise each scalar of a group, with the same columns for both ArviZ versions.

    Values are not rounded. The columns are ``mean``, ``sd``, ``eti90_lb``, ``eti90_ub`` (the number is `prob`, in
    percent), ``mcse_mean``, ``mcse_sd``, ``ess_bulk``, ``ess_tail`` and ``r_hat`` (NaN with a single chain).
    """
    checks.share("prob", prob, "Use 0.9 for a 90 % interval.")
    percent = f"{100 * prob:g}"
    lower, upper = f"eti{percent}_lb", f"eti{percent}_ub"
    if _LEGACY:
        tail = (1 - prob) / 2
        functions = {lower: lambda draws: np.quantile(draws, tail), upper: lambda draws: np.quantile(draws, 1 - tail)}
        table = _table_of(idata, var_names, group, stat_funcs=functions)
    else:
        table = _table_of(idata, var_names, group, ci_kind="eti", ci_prob=prob)
        # ArviZ truncates the percentage in its column names to an integer.
        bounds = [name for name in table.columns if name.startswith("eti")]
        table = table.rename(columns=dict(zip(bounds, [lower, upper], strict=True)))
    columns = ["mean", "sd", lower, upper, "mcse_mean", "mcse_sd", "ess_bulk", "ess_tail", "r_hat"]
    return table.reindex(columns=columns).astype(float)


def rhat_ess(idata: ArvizObject, var_names: list[str] | None = None, *, group: str = "posterior") -> pd.DataFrame:
    """Return convergence diagnostics, one row per scalar of a group (Vehtari et al., Bayesian Analysis 16, 2021).

    The columns are ``r_hat`` (NaN with a single chain), ``ess_bulk`` and ``ess_tail``.
    """
    table = _table_of(idata, var_names, group, kind="diagnostics")
    return table[["r_hat", "ess_bulk", "ess_tail"]].astype(float)


def _table_of(idata: ArvizObject, var_names: list[str] | None, name: str, **options: Any) -> pd.DataFrame:
    """Return ArviZ's summary of each scalar of a group, without rounding, with the names of `scalars`.

    ArviZ gets one vector of all scalars: `summary` of ArviZ 1.3 mixes up variables that share their last dimension.
    """
    dataset = group(idata, name)
    dataset = dataset if var_names is None else dataset[var_names]
    flat = scalars(dataset)
    shape = dataset.sizes["chain"], dataset.sizes["draw"], len(flat)
    draws = np.stack(list(flat.values()), axis=-1).reshape(shape) if flat else np.empty(shape)
    joined = make({"posterior": xr.Dataset({"scalar": (("chain", "draw", "index"), draws)})})
    table = pd.DataFrame(_stats().summary(joined, group="posterior", round_to="none", **options))
    return table.set_axis(list(flat))


def plot_pit(values: Mapping[str, np.ndarray], *, prob: float = 0.99) -> np.ndarray:
    """Draw ArviZ's plot of probability integral transforms: their ECDF minus the uniform one, in one axes per panel.

    `values` maps panels to numbers in [0, 1]; `prob` is the probability that uniform numbers stay within the band.
    """
    if not _LEGACY:
        group = xr.Dataset({name: ("sample", np.asarray(own)) for name, own in values.items()})
        tree = xr.DataTree.from_dict({"/prior_sbc": group})
        drawn = _arviz().plot_ecdf_pit(
            tree, group="prior_sbc", sample_dims=["sample"], envelope_prob=prob, backend="matplotlib"
        )
        return np.array([drawn.viz["plot"][name].item() for name in values])
    import matplotlib.pyplot as plt

    _, axes = plt.subplots(1, len(values), figsize=(4 * len(values), 3), squeeze=False, layout="constrained")
    for axis, (name, own) in zip(axes[0], values.items(), strict=True):
        _arviz().plot_ecdf(
            np.asarray(own), eval_points=np.linspace(0, 1, 101)[1:-1], cdf=lambda x: x, difference=True,
            confidence_bands=True, ci_prob=prob, random_state=0, ax=axis,
        )  # fmt: skip
        axis.set(title=name, xlabel="PIT", ylabel="difference from uniform")
    return np.asarray(axes[0])
