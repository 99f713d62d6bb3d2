"""Torch modules of adversarial generators: for tables, and for images with further columns."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import Module
from torch.nn.functional import silu

from iwbayes.paper.adversarial.architecture import Architecture
from iwbayes.utils.arrays import Array

#: Initial standard deviation of a number before tanh/2. Numbers are then close to uniform within their bounds.
START_SPREAD = 0.9
#: Factor of the hidden layers' output, added to a discriminator's linear part; it is divided by sqrt(last width).
HIDDEN_GAIN = 2.0
#: Factor of the condition's one-hot levels in an image generator: they must not drown among many latent draws.
LEVEL_GAIN = 4.0
#: Initial standard deviation of hidden biases.
BIAS_SCALE = 0.5


def _skip(n_numbers: int, n_raw: int, latent: int) -> Array:
    """Return initial weights, shape (raw, latent): one latent draw for each number, if there are enough draws."""
    weight = np.zeros((n_raw, latent))
    own = np.arange(min(n_numbers, latent))
    weight[own, own] = START_SPREAD
    for index in range(latent, n_numbers):  # more numbers than draws: the remaining numbers mix two draws each
        weight[index, [index % latent, (index + 1) % latent]] = START_SPREAD / math.sqrt(2)
    return weight


# skip torch's initialisation, because it would use torch's global random state
linear, convolution = (partial(nn.utils.skip_init, kind) for kind in (nn.Linear, nn.Conv2d))


def _layers(sizes: list[int]) -> nn.ModuleList:
    return nn.ModuleList(linear(*pair) for pair in zip(sizes, sizes[1:], strict=False))


class _Generator(nn.Module):
    """Generator of tables: a perceptron plus a linear part give the raw outputs."""

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
    """Discriminator of tables: linear in the standardised row, plus a perceptron. It is zero before training."""

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
    """Enlarge an image by copying the nearest pixel. If each pixel becomes four, this is faster than `interpolate`."""
    height, width = h.shape[2:]
    if size != (2 * height, 2 * width):
        return nn.functional.interpolate(h, size=size, mode="nearest")
    return h[:, :, :, None, :, None].expand(-1, -1, -1, 2, -1, 2).reshape(*h.shape[:2], *size)


class _ImageGenerator(nn.Module):
    """Generator of images: enlarge and smooth a small grid of channels. A perceptron draws the other columns."""

    def __init__(self, spec: Architecture) -> None:
        super().__init__()
        self.heads = spec.heads
        height, width = spec.image_shape or (0, 0)
        channels = spec.generator
        self.grid = [(math.ceil(height / 2**k), math.ceil(width / 2**k)) for k in range(len(channels) - 1, -1, -1)]
        n_other = spec.heads.n_raw - height * width
        inputs = spec.latent + spec.heads.n_given
        self.first = linear(inputs, channels[0] * math.prod(self.grid[0]))
        self.smooth = nn.ModuleList(
            convolution(*pair, 3, padding=1) for pair in zip(channels, channels[1:], strict=False)
        )
        self.pixels = convolution(channels[-1], 1, 3, padding=1)
        self.others = nn.ModuleList([linear(inputs, 64), linear(64, n_other)]) if n_other else None
        other_bias = spec.heads.start_bias[height * width :]
        self.start = {"pixels.bias": 0.0, "others.1.weight": 0.0, "others.1.bias": other_bias}

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
    """Discriminator of images: strided convolutions, then a linear layer. It is zero before training.

    The other columns shift the channels of each convolution. The last layer also has products of the image features
    and the other columns (the projection discriminator of Miyato & Koyama, ICLR 2018).
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
    """Make a generator. Before training its columns are independent, numbers about uniform, levels equally likely."""
    kind = _Generator if architecture.image_shape is None else _ImageGenerator
    return _initialised(kind(architecture), rng)


def make_discriminator(architecture: Architecture, rng: np.random.Generator, center: Array, scale: Array) -> Module:
    """Make a discriminator that is zero everywhere. It standardises rows by public constants, shape (feature,)."""
    kind = _Discriminator if architecture.image_shape is None else _ImageDiscriminator
    return _initialised(kind(architecture, center, scale), rng)


def _initialised(module: Any, rng: np.random.Generator) -> Module:
    """Draw a module's initial parameters from ``rng``, because torch would use its global random state."""
    with torch.no_grad():
        for name, value in module.named_parameters():
            scale = BIAS_SCALE if value.ndim == 1 else 1 / math.sqrt(math.prod(value.shape[1:]))
            start = module.start[name] if name in module.start else rng.normal(0.0, scale, value.shape)
            value.copy_(torch.as_tensor(start, dtype=torch.float64))
    return module  # type: ignore[no-any-return]
