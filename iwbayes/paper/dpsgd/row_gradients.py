"""Gradients of single rows, clipped and summed exactly: the arithmetic of private gradient steps, without noise.

Results of functions here that read private rows are private too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from iwbayes.utils.optional import import_optional

if TYPE_CHECKING:
    from torch import Tensor
    from torch import device as Device  # noqa: N812
    from torch.nn import Module, Parameter

    #: Function from the network and the tensors of some rows to one loss per row, shape (row,).
    RowLoss = Callable[..., Tensor]

#: Bytes of per-example gradients in a chunk on the CPU; temporary memory is about three times as much. Larger chunks do
#: not fit in the caches, and are not faster.
CHUNK_BYTES = 2**24
#: The same on other devices; few large chunks are faster there.
DEVICE_CHUNK_BYTES = 2**28
#: If the user sets no clip norm, it is this quantile of the gradient norms of this many reference rows.
CLIP_QUANTILE = 0.7
REFERENCE_ROWS = 256
#: Range of clip norms in which rounding to the grid of the sum stays in the range of float32.
CLIP_RANGE = (1e-6, 1e6)
#: Rows in a chunk if gradients are not computed row by row.
CHUNK_ROWS = 2**13
#: Clipping reduces the clip norm by this share, which covers every rounding between norm and sum.
MARGIN = 2.0**-20


def import_torch(user: str) -> Any:
    """Return torch; if it is not installed, a ModuleNotFoundError names its user and the extra."""
    return import_optional("torch", f"{user} needs")


def trainable(network: Module) -> dict[str, Parameter]:
    """Return the parameters that require a gradient, by name, in the module's order."""
    return {name: value for name, value in network.named_parameters() if value.requires_grad}


def check_module(network: Module) -> None:
    """Raise ValueError if a module cannot be trained row by row.

    This refuses layers that mix rows (batch normalisation): a row changes the gradients of others through the batch's
    moments, so clipping its own gradient does not bound its effect. It also refuses random layers (dropout), which draw
    from torch's global state.
    """
    torch = import_torch("private training")
    nn = torch.nn
    for name, module in network.named_modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            raise ValueError(
                f"the layer {name!r} ({type(module).__name__}) mixes the rows of a batch, so clipping does not bound "
                f"the effect of one row. Use LayerNorm or GroupNorm."
            )
        if isinstance(module, nn.modules.instancenorm._InstanceNorm) and module.track_running_stats:
            raise ValueError(f"the layer {name!r} keeps running statistics of the rows. Use track_running_stats=False.")
        if isinstance(module, nn.modules.dropout._DropoutNd | nn.RReLU) and module.training:
            raise ValueError(
                f"the layer {name!r} ({type(module).__name__}) is random, which private steps do not support; their "
                f"noise already regularises. Leave it out, or put it in eval mode."
            )
    parameters = trainable(network)
    kinds = {value.dtype for value in parameters.values()}
    if not parameters or len({value.device for value in parameters.values()}) > 1:
        raise ValueError(
            "a network must have parameters that require a gradient, all on one device. Move it with "
            "network.to(device)."
        )
    if not kinds <= {torch.float32, torch.float64}:
        raise ValueError(f"parameters must be float32 or float64; got {sorted(map(str, kinds))}. Use network.float().")


def clipped_sum(
    network: Module,
    loss: RowLoss,
    rows: Sequence[Tensor],
    indices: NDArray[np.int64],
    *,
    clip_norm: float,
    center: Sequence[Tensor] | None = None,
    owners: NDArray[np.int64] | None = None,
    n_units: int | None = None,
) -> NDArray[np.float64]:
    """Return the flat sum of the clipped gradients of some rows, or of some users; private until noise is added.

    ``indices`` are the rows to sum over. ``center`` is a public gradient, one tensor for each parameter, which is
    subtracted from each row's gradient before clipping. ``owners`` are the owners of the indices, with the rows of one
    owner next to each other: the sum of the gradients of an owner's rows is then clipped. Without owners every row is a
    separate unit. ``n_units`` is the public number of rows, or of users, in the table; by default the length of
    ``rows``.

    All arithmetic is in float64, whatever the parameters are. A unit's gradient g with a non-finite norm becomes zero.
    Any other g is multiplied by min(1, (1 - 2**-20) C/|g|) and rounded toward zero to a grid. The grid is 2**-53 times
    C and the number of units, both rounded up to powers of two. Norm and scaling round by less than 2**-20, and
    rounding toward zero shortens, so the norm on the grid is at most C. The multiples of the grid are summed in
    float64, where every partial sum is a whole number below 2**53. So the sum is exact, in any order and on any device.
    A replaced unit moves it by 2C at most, a null unit by C.
    """
    torch = import_torch("private training")
    n_units = len(rows[0]) if n_units is None else n_units
    grid = 2.0 ** (math.ceil(math.log2(clip_norm)) + math.ceil(math.log2(n_units + 1)) - 53)
    total: Any = 0.0
    for gradients in _unit_gradients(network, loss, rows, indices, center, owners):
        norms = torch.linalg.vector_norm(gradients, dim=1)
        scale = (clip_norm * (1 - MARGIN) / norms).clamp(max=1.0) / grid
        usable = norms.isfinite()
        if not usable.all():
            gradients[~usable] = 0.0
            scale[~usable] = 0.0
        whole = gradients.mul_(scale[:, None]).trunc_()
        total = total + torch.ones_like(scale) @ whole
    if isinstance(total, float):
        return np.zeros(_size(network))
    return np.asarray(total.cpu().numpy() * grid)


def _unit_gradients(
    network: Module,
    loss: RowLoss,
    rows: Sequence[Tensor],
    indices: NDArray[np.int64],
    center: Sequence[Tensor] | None,
    owners: NDArray[np.int64] | None,
) -> Iterator[Tensor]:
    """Yield gradients of rows, or their sums over the rows of each owner, in chunks that share their memory."""
    torch = import_torch("private training")
    if owners is None:
        yield from _row_gradients(network, loss, rows, indices, center)
        return
    starts = np.flatnonzero(np.diff(owners, prepend=-1))
    ends = np.append(starts[1:], len(owners))
    size, first = _rows_at_a_time(network), 0
    while first < len(starts):
        # a chunk has whole users: as many as fit, and at least one
        last = max(first + 1, int(np.searchsorted(ends, starts[first] + size, side="right")))
        group = torch.from_numpy(np.repeat(np.arange(last - first), (ends - starts)[first:last]))
        total, seen = torch.zeros(()), 0
        for gradients in _row_gradients(network, loss, rows, indices[starts[first] : ends[last - 1]], center):
            if seen == 0:
                total = gradients.new_zeros((last - first, gradients.shape[1]))
            total.index_add_(0, group[seen : seen + len(gradients)].to(gradients.device), gradients)
            seen += len(gradients)
        yield total
        first = last


def reference_gradients(network: Module, loss: RowLoss, reference: Sequence[Tensor]) -> tuple[list[Tensor], float]:
    """Return the mean gradient of public rows, one tensor for each parameter, and the clip norm that they suggest.

    The clip norm is the 70 % quantile of the first 256 rows' distances from the mean, within `CLIP_RANGE`. It clips
    more rows than usual: the bias costs less than the noise of a larger clip norm. Raise RuntimeError if the gradients
    of public rows are not finite, because the network diverged.
    """
    torch = import_torch("private training")
    indices = np.arange(len(reference[0]))
    flat = unflatten(network, plain_sum(network, loss, reference, indices) / len(indices))
    center = list(flat.values())
    found = _row_gradients(network, loss, reference, indices[:REFERENCE_ROWS], center)
    norms = torch.cat([torch.linalg.vector_norm(gradients, dim=1) for gradients in found])
    clip_norm = float(torch.quantile(norms, CLIP_QUANTILE))
    if not math.isfinite(clip_norm):
        raise RuntimeError(
            "the network diverged: its gradients of public rows are not finite. Use a smaller learning rate. The "
            "cost stays charged."
        )
    return center, float(np.clip(clip_norm, *CLIP_RANGE))


def _size(network: Module) -> int:
    return sum(value.numel() for value in trainable(network).values())


def _rows_at_a_time(network: Module) -> int:
    """Return the number of rows in a chunk, from the memory that their gradients need; at least one."""
    values = list(trainable(network).values())
    room = CHUNK_BYTES if values[0].device.type == "cpu" else DEVICE_CHUNK_BYTES
    return max(1, room // sum(value.numel() * value.element_size() for value in values))


def plain_sum(
    network: Module, loss: RowLoss, rows: Sequence[Tensor], indices: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return the sum of gradients without clipping, for training that protects nobody."""
    torch = import_torch("private training")
    parameters = list(trainable(network).values())
    total = torch.zeros(_size(network), dtype=torch.float64, device=parameters[0].device)
    for chunk in _chunks(rows, indices, CHUNK_ROWS, parameters[0].device):
        parts = torch.autograd.grad(loss(network, *chunk).sum(), parameters, materialize_grads=True)
        total += torch.cat([part.flatten().to(torch.float64) for part in parts])
    return np.asarray(total.cpu().numpy())


def _chunks(
    rows: Sequence[Tensor], indices: NDArray[np.int64], size: int, device: Device
) -> Iterator[tuple[Tensor, ...]]:
    torch = import_torch("private training")
    for start in range(0, len(indices), size):
        chosen = torch.from_numpy(np.ascontiguousarray(indices[start : start + size]))
        yield tuple(part[chosen.to(part.device)].to(device) for part in rows)


def _row_gradients(
    network: Module,
    loss: RowLoss,
    rows: Sequence[Tensor],
    indices: NDArray[np.int64],
    center: Sequence[Tensor] | None = None,
) -> Iterator[Tensor]:
    """Yield gradients of single rows minus a public one, in chunks of shape (row, parameter), in float64.

    All chunks share one array, so use a chunk before you request the next one.
    """
    torch = import_torch("private training")
    parameters = {name: value.detach() for name, value in trainable(network).items()}
    state = {**dict(network.named_parameters()), **dict(network.named_buffers())}
    # copies, so that a forward pass cannot change the buffers
    fixed = {name: value.detach().clone() for name, value in state.items() if name not in parameters}

    def row_loss(free: dict[str, Tensor], *row: Tensor) -> Tensor:
        def bound(*inputs: Any, **options: Any) -> Any:
            return torch.func.functional_call(network, {**fixed, **free}, inputs, options)

        return loss(bound, *(part.unsqueeze(0) for part in row)).reshape(())

    # randomness="error", torch's default, refuses random layers that check_module does not list
    each = torch.func.vmap(torch.func.grad(row_loss), in_dims=(None, *(0 for _ in rows)))
    device = next(iter(parameters.values())).device
    size = min(_rows_at_a_time(network), max(1, len(indices)))
    memory = torch.empty((size, _size(network)), dtype=torch.float64, device=device)
    middle = None if center is None else torch.cat([part.flatten() for part in center]).double()
    for chunk in _chunks(rows, indices, size, device):
        found = each(parameters, *chunk)
        wide = memory[: len(chunk[0])]
        torch.cat([found[name].reshape(len(wide), -1) for name in parameters], dim=1, out=wide)
        yield wide if middle is None else wide.sub_(middle)


def probe(network: Module, loss: RowLoss, rows: Sequence[Tensor]) -> None:
    """Try the loss on two rows of zeros: they are public, so its errors can be shown."""
    device = next(iter(trainable(network).values())).device
    zeros = [part.new_zeros((2, *part.shape[1:])).to(device) for part in rows]
    before = {name: value.detach().clone() for name, value in network.named_buffers()}
    try:
        for _ in _row_gradients(network, loss, zeros, np.arange(2)):
            pass
        loss(network, *zeros).reshape(2)
    except Exception as error:
        raise ValueError(
            f"the loss must return one number per row, differentiable row by row; on rows of zeros it failed: {error}"
        ) from error
    for name, value in network.named_buffers():
        if name not in before or not value.equal(before[name]):
            raise ValueError(
                f"the network changes its buffer {name!r} when it is called, and the buffer would keep information on "
                f"private rows. Use layers without running statistics, or eval mode."
            )


def unflatten(network: Module, flat: NDArray[np.float64]) -> dict[str, Tensor]:
    """Split a flat gradient into tensors shaped like the trainable parameters, by name."""
    torch = import_torch("private training")
    parameters = trainable(network)
    ends = np.cumsum([value.numel() for value in parameters.values()])[:-1]
    return {
        name: torch.from_numpy(part).to(dtype=value.dtype, device=value.device).reshape(value.shape)
        for (name, value), part in zip(parameters.items(), np.split(flat, ends), strict=True)
    }
