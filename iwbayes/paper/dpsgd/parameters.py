"""Helpers for training in torch: check a device, set parameters, and average them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from iwbayes.paper.dpsgd.row_gradients import import_torch
from iwbayes.utils.arrays import Array

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module


def working_device(name: str) -> Any:
    """Return a torch device after creating a tensor on it; raise ValueError if torch cannot."""
    torch = import_torch("private training")
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError, TypeError) as error:
        raise ValueError(f"torch cannot compute on device {name!r}: {error}. Use 'cpu'.") from None


def put_parameters(network: Module, parameters: dict[str, Array]) -> None:
    """Copy parameters, by torch's names, into a network."""
    torch = import_torch("a network")
    with torch.no_grad():
        for name, value in network.named_parameters():
            value.copy_(torch.from_numpy(parameters[name]))


class Average:
    """Running mean of a network's parameters."""

    def __init__(self, network: Module) -> None:
        self._network = network
        self._count = 0
        self._mean: dict[str, Tensor] = {}

    def add(self) -> None:
        """Add the current parameters to the mean."""
        self._count += 1
        for name, value in self._network.named_parameters():
            now, mean = value.detach().double(), self._mean.get(name)
            self._mean[name] = now if mean is None else mean + (now - mean) / self._count

    def parameters(self) -> dict[str, Array]:
        """Return the mean parameters as arrays; raise RuntimeError if they are not finite (they are public)."""
        found = {name: np.asarray(value.cpu().numpy()) for name, value in self._mean.items()}
        if not all(np.isfinite(value).all() for value in found.values()):
            raise RuntimeError(
                "the training diverged: the parameters are not finite. Use a smaller learning rate, or the default. "
                "The cost stays charged."
            )
        return found
