"""Torch modules of adversarial generators: for tables, and for images with columns beside them."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import Module
from torch.nn.functional import silu

from iwbayes.arrays import Array
from iwbayes.curator.generators.adversarial.architecture import Architecture

#: Standard deviation of a number before tanh/2 at the start: the start is then close to uniform within the bounds.
START_SPREAD = 0.9
#: Output of a discriminator's hidden layers beside its linear part, times the root of the last width.
HIDDEN_GAIN = 2.0
#: A level of the condition beside the latent draws of an image, of which there are many: else it would be lost.
LEVEL_GAIN = 4.0
#: Standard deviation of hidden biases at the start.
BIAS_SCALE = 0.5


def _skip(n_numbers: int, n_raw: int, latent: int) -> Array:
    """Weights from latent draws to raw outputs at the start: each number has a draw, as far as there are enough."""
    weight = np.zeros((n_raw, latent))
    own = np.arange(min(n_numbers, latent))
    weight[own, own] = START_SPREAD
    for index in range(latent, n_numbers):  # fewer draws than numbers: neighbours share two of them
        weight[index, [index % latent, (index + 1) % latent]] = START_SPREAD / math.sqrt(2)
    return weight


# without initial values: torch would draw them from its global state
linear, convolution = (partial(nn.utils.skip_init, kind) for kind in (nn.Linear, nn.Conv2d))


def _layers(sizes: list[int]) -> nn.ModuleList:
    return nn.ModuleList(linear(*pair) for pair in zip(sizes, sizes[1:], strict=False))


class _Generator(nn.Module):
    """Numbers and logits from a perceptron beside a linear part."""

    def __init__(self, spec: Architecture) -> None:
        super().__init__()
        self.heads = heads = spec.heads
        sizes = [spec.latent + heads.n_given, *spec.generator]
        self.hidden = _layers(sizes)
        self.skip = linear(spec.latent, heads.n_raw)
        self.top = linear(sizes[-1], heads.n_raw, bias=False)
        self.start = {
            "skip.weight": _skip(len(heads.numbers), heads.n_raw, spec.latent),
            "skip.bias": heads.start_bias,
            "top.weight": 0.0,
        }

    def forward(self, latent: Tensor, gumbel: Tensor, given: Tensor | None = None) -> Tensor:
        h = latent if given is None else torch.cat([latent, given], dim=1)
        for layer in self.hidden:
            h = silu(layer(h))
        return self.heads.rows(self.skip(latent) + self.top(h), gumbel, given)


class _Discriminator(nn.Module):
    """Linear in the standardised row plus a perceptron; zero at the start."""

    center: Tensor
    scale: Tensor

    def __init__(self, spec: Architecture, center: Array, scale: Array) -> None:
        super().__init__()
        sizes = [spec.heads.schema.n_features, *spec.discriminator]
        for name, value in (("center", center), ("scale", scale)):
            self.register_buffer(name, torch.tensor(value, dtype=torch.float32))
        self.linear = linear(sizes[0], 1)
        self.hidden = _layers(sizes)
        self.top = linear(sizes[-1], 1, bias=False)
        self.gain = HIDDEN_GAIN / math.sqrt(sizes[-1])
        self.start = {"linear.weight": 0.0, "linear.bias": 0.0, "top.weight": 0.0}

    def forward(self, rows: Tensor) -> Tensor:
        x = h = (rows - self.center) / self.scale
        for layer in self.hidden:
            h = silu(layer(h))
        return (self.linear(x) + self.gain * self.top(h)).squeeze(-1)


def _enlarged(h: Tensor, size: tuple[int, int]) -> Tensor:
    """Enlarge by the nearest pixel; where each pixel becomes four this is `interpolate` in half its time."""
    height, width = h.shape[2:]
    if size != (2 * height, 2 * width):
        return nn.functional.interpolate(h, size=size, mode="nearest")
    return h[:, :, :, None, :, None].expand(-1, -1, -1, 2, -1, 2).reshape(*h.shape[:2], *size)


class _ImageGenerator(nn.Module):
    """Pixels from a small grid of channels, twice enlarged and smoothed; columns beside them from a perceptron."""

    def __init__(self, spec: Architecture) -> None:
        super().__init__()
        self.heads = spec.heads
        height, width = spec.image_shape or (0, 0)
        channels = spec.generator
        self.grid = [(math.ceil(height / 2**k), math.ceil(width / 2**k)) for k in range(len(channels) - 1, -1, -1)]
        beside = spec.heads.n_raw - height * width
        inputs = spec.latent + spec.heads.n_given
        self.first = linear(inputs, channels[0] * math.prod(self.grid[0]))
        self.smooth = nn.ModuleList(
            convolution(*pair, 3, padding=1) for pair in zip(channels, channels[1:], strict=False)
        )
        self.pixels = convolution(channels[-1], 1, 3, padding=1)
        self.others = nn.ModuleList([linear(inputs, 64), linear(64, beside)]) if beside else None
        beside_bias = spec.heads.start_bias[height * width :]
        self.start = {"pixels.bias": 0.0, "others.1.weight": 0.0, "others.1.bias": beside_bias}

    def forward(self, latent: Tensor, gumbel: Tensor, given: Tensor | None = None) -> Tensor:
        x = latent if given is None else torch.cat([latent, LEVEL_GAIN * given], dim=1)
        h = silu(self.first(x)).reshape(len(x), -1, *self.grid[0])
        for layer, size in zip(self.smooth, self.grid[1:], strict=True):
            h = silu(layer(_enlarged(h, size)))
        raw = self.pixels(h).flatten(1)
        if self.others is not None:
            raw = torch.cat([raw, self.others[1](silu(self.others[0](x)))], dim=1)
        return self.heads.rows(raw, gumbel, given)


class _ImageDiscriminator(nn.Module):
    """Strided convolutions whose channels other columns shift, and a linear part on top; zero at the start.

    The top has the products of image and other columns too (the projection of Miyato and Koyama, ICLR 2018).
    """

    center: Tensor
    scale: Tensor

    def __init__(self, spec: Architecture, center: Array, scale: Array) -> None:
        super().__init__()
        self.shape, channels = spec.image_shape or (0, 0), [1, *spec.discriminator]
        self.n_pixels = math.prod(self.shape)
        n_other = spec.heads.schema.n_features - self.n_pixels
        for name, value in (("center", center), ("scale", scale)):
            self.register_buffer(name, torch.tensor(value, dtype=torch.float32))
        self.convolutions = nn.ModuleList(
            convolution(*pair, 4, stride=2, padding=1) for pair in zip(channels, channels[1:], strict=False)
        )
        self.shifts = nn.ModuleList(linear(n_other, size, bias=False) for size in channels[1:] if n_other)
        sides = [side // 2 ** len(spec.discriminator) for side in self.shape]
        size = channels[-1] * math.prod(sides)
        self.top = linear(size + n_other, 1)
        self.pairs = linear(n_other, size, bias=False) if n_other else None
        self.gain, self.share = HIDDEN_GAIN / math.sqrt(size), 1 / math.sqrt(max(n_other, 1))
        self.start = {"top.weight": 0.0, "top.bias": 0.0, "pairs.weight": 0.0}

    def forward(self, rows: Tensor) -> Tensor:
        x = (rows - self.center) / self.scale
        h, others = x[:, : self.n_pixels].reshape(-1, 1, *self.shape), x[:, self.n_pixels :]
        for index, layer in enumerate(self.convolutions):
            h = layer(h)
            if self.shifts:
                h = h + self.shifts[index](others)[:, :, None, None]
            h = silu(h)
        h = self.gain * h.flatten(1)
        logits = self.top(torch.cat([h, others], dim=1)).squeeze(-1)
        return logits if self.pairs is None else logits + (h * self.pairs(self.share * others)).sum(dim=1)


def make_generator(architecture: Architecture, rng: np.random.Generator) -> Module:
    """Make a generator whose columns start independent, numbers about uniform, levels even."""
    kind = _Generator if architecture.image_shape is None else _ImageGenerator
    return _initialised(kind(architecture), rng)


def make_discriminator(architecture: Architecture, rng: np.random.Generator, center: Array, scale: Array) -> Module:
    """Make a discriminator that is zero everywhere, of rows standardised by public constants."""
    kind = _Discriminator if architecture.image_shape is None else _ImageDiscriminator
    return _initialised(kind(architecture, center, scale), rng)


def _initialised(module: Any, rng: np.random.Generator) -> Module:
    """Give a module its starting parameters from numpy: torch would draw them from its global state."""
    with torch.no_grad():
        for name, value in module.named_parameters():
            scale = BIAS_SCALE if value.ndim == 1 else 1 / math.sqrt(math.prod(value.shape[1:]))
            start = module.start[name] if name in module.start else rng.normal(0.0, scale, value.shape)
            value.copy_(torch.as_tensor(start, dtype=torch.float64))
    return module  # type: ignore[no-any-return]
