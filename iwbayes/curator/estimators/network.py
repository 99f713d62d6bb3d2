"""The network of `NeuralWeights`: its torch form, in which it is trained, and its numpy form, which is released."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.special import expit

from iwbayes._digest import digest
from iwbayes.arrays import Array
from iwbayes.curator.training.row_gradients import import_torch
from iwbayes.schema import Schema
from iwbayes.tables import PrivateTable, SyntheticTable

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module

#: A linear layer of each draw: weight (draw, out, in) and bias (draw, out).
Layer = tuple[Array, Array]
#: Output of the hidden layers beside the linear part, times the root of the last width.
HIDDEN_GAIN = 2.0
#: Standard deviation of the hidden biases at the start, in units of the standardised features.
BIAS_SCALE = 0.5
#: Rows at a time when a ratio is evaluated.
_ROWS = 2**14


@dataclass(frozen=True, eq=False)
class NeuralRatio:
    """A released neural log ratio: linear in the standardised features plus a multilayer perceptron, in numpy.

    ``center`` and ``scale``, shape (feature,), are those of the synthetic rows. The activation after each hidden layer
    is x/(1 + exp(-x)); ``top``, shape (draw, 1, width), leads from the last to the log ratio, None without any.
    """

    schema: Schema
    center: Array = field(repr=False)
    scale: Array = field(repr=False)
    linear: Layer = field(repr=False)
    hidden: tuple[Layer, ...] = field(repr=False)
    top: Array | None = field(repr=False)

    @classmethod
    def of(cls, schema: Schema, center: Array, scale: Array, trained: Sequence[dict[str, Array]]) -> NeuralRatio:
        """Stack the parameters of several trainings of the same network, by torch's names."""
        stacked = {name: np.stack([parameters[name] for parameters in trained]) for name in trained[0]}
        n_hidden = sum(name.startswith("hidden") for name in stacked) // 2
        names = ("linear", *(f"hidden.{index}" for index in range(n_hidden)))
        linear, *hidden = [(stacked[f"{name}.weight"], stacked[f"{name}.bias"]) for name in names]
        return cls(schema, center, scale, linear, tuple(hidden), stacked.get("top.weight"))

    def log_ratios(self, table: PrivateTable | SyntheticTable) -> Array:
        """Log ratio of each row under each training, natural logs, shape (draw, row)."""
        if table.schema != self.schema:
            raise ValueError("the log ratio was learned under another schema. Give it rows under that one.")
        encoded = self.schema.encode(table.frame)
        out = np.empty((len(self.linear[1]), len(encoded)))
        for start in range(0, len(encoded), _ROWS):
            x = (encoded[start : start + _ROWS] - self.center) / self.scale
            for draw, row in enumerate(out):
                row[start : start + _ROWS] = self._evaluate(x, draw)
        return out

    def _evaluate(self, x: Array, draw: int) -> Array:
        logit = x @ self.linear[0][draw, 0] + self.linear[1][draw, 0]
        if self.top is None:
            return logit
        h = x
        for weight, bias in self.hidden:
            h = h @ weight[draw].T + bias[draw]
            h *= expit(h)
        return logit + HIDDEN_GAIN / math.sqrt(h.shape[1]) * (h @ self.top[draw, 0])

    def log_ratio(self, table: PrivateTable | SyntheticTable) -> Array:
        """Log ratio of each row, averaged over the trainings, shape (row,); see `log_ratios`."""
        return self.log_ratios(table).mean(axis=0)

    def fingerprint(self) -> str:
        """Digest of schema, standardisation and all parameters."""
        top = () if self.top is None else (self.top,)
        layers = [array for layer in (self.linear, *self.hidden) for array in layer]
        return digest("NeuralRatio", self.schema.to_toml(), self.center, self.scale, *layers, *top)


@cache
def _network_class() -> Any:
    torch: Any = import_torch("NeuralWeights")
    # without initial values: torch would draw them from its global state
    linear = torch.nn.utils.skip_init

    class Network(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self, n_features: int, hidden: tuple[int, ...]) -> None:
            super().__init__()
            sizes = [n_features, *hidden]
            self.linear = linear(torch.nn.Linear, n_features, 1)
            self.hidden = torch.nn.ModuleList(
                linear(torch.nn.Linear, *pair) for pair in zip(sizes, sizes[1:], strict=False)
            )
            self.top = linear(torch.nn.Linear, sizes[-1], 1, bias=False) if hidden else None
            self.gain = HIDDEN_GAIN / math.sqrt(sizes[-1])

        def forward(self, x: Tensor) -> Tensor:
            logit = self.linear(x)
            if self.top is not None:
                h = x
                for layer in self.hidden:
                    h = torch.nn.functional.silu(layer(h))
                logit = logit + self.gain * self.top(h)
            return logit.squeeze(-1)

    return Network


def make_network(n_features: int, hidden: tuple[int, ...], rng: np.random.Generator) -> Module:
    """Make a network whose log ratio is zero everywhere, with random hidden layers."""
    torch = import_torch("NeuralWeights")
    network = _network_class()(n_features, hidden)
    with torch.no_grad():
        for name, value in network.named_parameters():
            drawn = np.zeros(value.shape)
            if name.startswith("hidden"):
                scale = BIAS_SCALE if value.ndim == 1 else 1 / math.sqrt(value.shape[1])
                drawn = rng.normal(0.0, scale, value.shape)
            value.copy_(torch.from_numpy(drawn))
    return network
