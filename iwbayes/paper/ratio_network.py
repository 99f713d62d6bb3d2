"""Network of `NeuralWeights`: a torch module for the training, and a numpy version for the release."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.special import expit

from iwbayes.paper.dpsgd.row_gradients import import_torch
from iwbayes.schema import Schema
from iwbayes.tables import PrivateTable, SyntheticTable
from iwbayes.utils.arrays import Array
from iwbayes.utils.digest import digest

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module

#: Weights, shape (draw, out, in), and biases, shape (draw, out), of a linear layer, for each weight draw.
Layer = tuple[Array, Array]
#: Factor of the hidden layers' output, added to the linear part; it is divided by sqrt(last width).
HIDDEN_GAIN = 2.0
#: Initial standard deviation of the hidden biases, in units of the standardised features.
BIAS_SCALE = 0.5
#: Number of rows that are evaluated at a time.
_ROWS = 2**14


@dataclass(frozen=True, eq=False)
class NeuralRatio:
    """A released neural log ratio, in numpy: linear in the standardised features plus a multilayer perceptron.

    The activation after each hidden layer is x/(1 + exp(-x)).

    Parameters
    ----------
    schema : Schema
        Schema of the rows.
    center, scale : ndarray, shape (feature,)
        Mean and standard deviation of the encoded synthetic rows.
    linear : (ndarray, ndarray)
        Weights (draw, 1, feature) and biases (draw, 1) of the linear part.
    hidden : tuple of (ndarray, ndarray)
        Weights (draw, out, in) and biases (draw, out) of each hidden layer.
    top : ndarray, shape (draw, 1, width), or None
        Weights from the last hidden layer to the log ratio; None without hidden layers.
    """

    schema: Schema
    center: Array = field(repr=False)
    scale: Array = field(repr=False)
    linear: Layer = field(repr=False)
    hidden: tuple[Layer, ...] = field(repr=False)
    top: Array | None = field(repr=False)

    @classmethod
    def of(cls, schema: Schema, center: Array, scale: Array, trained: Sequence[dict[str, Array]]) -> NeuralRatio:
        """Stack the parameters of several trainings of the same network. Keys are torch's names."""
        stacked = {name: np.stack([parameters[name] for parameters in trained]) for name in trained[0]}
        n_hidden = sum(name.startswith("hidden") for name in stacked) // 2
        names = ("linear", *(f"hidden.{index}" for index in range(n_hidden)))
        linear, *hidden = [(stacked[f"{name}.weight"], stacked[f"{name}.bias"]) for name in names]
        return cls(schema, center, scale, linear, tuple(hidden), stacked.get("top.weight"))

    def log_ratios(self, table: PrivateTable | SyntheticTable) -> Array:
        """Return the log ratio of each row from each training, natural logs, shape (draw, row)."""
        if table.schema != self.schema:
            raise ValueError(
                "the table must have the schema under which the log ratio was learned; its schema differs. Pass a "
                "table with that schema."
            )
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
        """Return the log ratio of each row, averaged over the trainings, natural logs, shape (row,)."""
        return self.log_ratios(table).mean(axis=0)

    def fingerprint(self) -> str:
        """Return a digest of the schema, the standardisation and all parameters."""
        top = () if self.top is None else (self.top,)
        layers = [array for layer in (self.linear, *self.hidden) for array in layer]
        return digest("NeuralRatio", self.schema.to_toml(), self.center, self.scale, *layers, *top)


@cache
def _network_class() -> Any:
    torch: Any = import_torch("NeuralWeights")
    # skip torch's initialisation, because it would use torch's global random state
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
    """Make a network with random hidden layers whose log ratio is zero everywhere."""
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
