"""Architecture of adversarial generators: heads that draw columns of their own kind, layers and training settings."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from iwbayes.arrays import Array, IntArray
from iwbayes.curator.training.row_gradients import import_torch
from iwbayes.schema import Schema
from iwbayes.schema.columns import Column, _Levels, _Whole

if TYPE_CHECKING:
    from torch import Generator as TorchGenerator
    from torch import Tensor
    from torch.nn import Module


#: Whole numbers with at most this many values are drawn as levels, so that rows lie on the grid that private rows have.
MOST_VALUES = 32
#: Temperature of the Gumbel softmax through which levels are differentiated.
TEMPERATURE = 0.7
#: Share of missing cells before training, where a column may have them.
MISSING_START = 0.1


@dataclass(frozen=True)
class Block:
    """One softmax: the features that it sets, to which values, shape (choice, feature), and its logits at the start."""

    indices: tuple[int, ...]
    values: Array = field(repr=False)
    bias: Array = field(repr=False)
    #: Feature of a number that the last choice, a missing cell, sets to zero.
    beside: int | None = None

    @property
    def size(self) -> int:
        """Number of choices."""
        return len(self.values)


def _block(column: Column, values: Array, start: int, beside: int | None = None) -> Block:
    """Choose among rows of features; the last of them is a missing cell where the column has any."""
    bias = np.zeros(len(values))
    if column.missing:
        bias[-1] = math.log(MISSING_START / (1 - MISSING_START) * (len(values) - 1))
    return Block(tuple(range(start, start + values.shape[1])), values, bias, beside)


def _choices(column: Column) -> Array | None:
    """Encode each value of a column with few of them, shape (choice, feature); None for other numbers."""
    if isinstance(column, _Levels):
        codes = np.arange(len(column.levels) + int(column.missing))
        return column.encode(column.from_codes(np.where(codes == len(column.levels), -1, codes)))
    if isinstance(column, _Whole) and column.upper - column.lower < MOST_VALUES:
        values = np.linspace(-0.5, 0.5, column.upper - column.lower + 1)[:, None]
        if not column.missing:
            return values
        return np.vstack([np.column_stack([values, np.zeros(len(values))]), [[0.0, 1.0]]])
    return None


@dataclass(frozen=True)
class Heads:
    """From a generator's raw outputs to rows of exactly the form that `Schema.encode` gives, column by column.

    Numbers are tanh(raw)/2, levels (and whole numbers with few values) a straight-through Gumbel softmax, missing
    cells one more level or, beside a number, a softmax of two. The condition, a column of levels, is not drawn.
    """

    schema: Schema
    condition: str | None = None

    def __post_init__(self) -> None:
        if self.condition is None:
            return
        if self.condition not in self.schema.names or not isinstance(self.schema[self.condition], _Levels):
            raise ValueError(
                f"condition must name a Binary or Categorical column of the schema; got {self.condition!r}. It has "
                f"{[column.name for column in self.schema if isinstance(column, _Levels)]}."
            )
        if len(self.schema) == 1:
            raise ValueError(
                "a conditional generator needs a column beside its condition. Use BayesNet for one column."
            )

    @cached_property
    def _starts(self) -> dict[str, int]:
        sizes = [len(column.feature_names) for column in self.schema]
        return dict(zip(self.schema.names, np.cumsum([0, *sizes[:-1]]).tolist(), strict=True))

    @cached_property
    def numbers(self) -> tuple[int, ...]:
        """Indices of the features that are numbers from tanh, in the encoded row."""
        return tuple(self._starts[c.name] for c in self.schema if _choices(c) is None)

    @cached_property
    def _softmaxes(self) -> dict[str, Block]:
        """By column, its softmax of levels, of few numbers, or of whether a number is missing."""
        found = {}
        for column in self.schema:
            choices, start = _choices(column), self._starts[column.name]
            if choices is not None:
                found[column.name] = _block(column, choices, start)
            elif column.missing:
                found[column.name] = _block(column, np.array([[0.0], [1.0]]), start + 1, beside=start)
        return found

    @cached_property
    def blocks(self) -> tuple[Block, ...]:
        """Every softmax that is drawn, in the order of its raw outputs."""
        return tuple(block for name, block in self._softmaxes.items() if name != self.condition)

    @property
    def n_given(self) -> int:
        """Number of levels of the condition, missing cells among them; 0 without a condition."""
        return 0 if self.condition is None else self._softmaxes[self.condition].size

    @property
    def n_logits(self) -> int:
        """Number of raw outputs that are logits, and of Gumbel draws a row."""
        return sum(block.size for block in self.blocks)

    @property
    def n_raw(self) -> int:
        """Number of raw outputs: numbers first, then logits."""
        return len(self.numbers) + self.n_logits

    @cached_property
    def start_bias(self) -> Array:
        """Raw outputs before training, shape (raw,): numbers in the middle, levels even, few missing cells."""
        return np.concatenate([np.zeros(len(self.numbers)), *(block.bias for block in self.blocks)])

    @cached_property
    def _table(self) -> tuple[Array, Array]:
        """Of every choice, the condition's last: the features, and the numbers that it sets to zero."""
        blocks = self.blocks if self.condition is None else (*self.blocks, self._softmaxes[self.condition])
        table = np.zeros((sum(block.size for block in blocks), self.schema.n_features))
        zeroed = np.zeros((len(table), len(self.numbers)))
        row = 0
        for block in blocks:
            table[row : row + block.size, block.indices] = block.values
            row += block.size
            if block.beside is not None:
                zeroed[row - 1, self.numbers.index(block.beside)] = 1.0
        return table[:, self._others], zeroed

    @cached_property
    def _others(self) -> list[int]:
        """Indices of the features that choices set."""
        return sorted(set(range(self.schema.n_features)) - set(self.numbers))

    def rows(self, raw: Tensor, gumbel: Tensor, given: Tensor | None = None) -> Tensor:
        """Make encoded rows from raw outputs, standard Gumbel draws of the logits, and one-hot levels if given."""
        torch = import_torch("a generator network")
        noisy_logits = raw[:, len(self.numbers) :] + gumbel
        sizes = [block.size for block in self.blocks]
        chosen = [_straight_through(part) for part in torch.split(noisy_logits, sizes, dim=1)]
        if given is not None:
            chosen.append(given.to(raw.dtype))

        scaled = torch.tanh(raw[:, : len(self.numbers)]) / 2
        if not chosen:
            return scaled  # numbers alone stand in the schema's order
        choices = torch.cat(chosen, dim=1)
        table, zeroed = (torch.as_tensor(t, dtype=raw.dtype, device=raw.device) for t in self._table)
        if zeroed.any():
            scaled = scaled * (1 - choices @ zeroed)
        order = np.argsort([*self.numbers, *self._others])
        return torch.cat([scaled, choices @ table], dim=1)[:, torch.from_numpy(order).to(raw.device)]


def _straight_through(noisy_logits: Tensor) -> Tensor:
    """One-hot of the largest, with the gradient of a softmax (Jang, Gu & Poole, ICLR 2017)."""
    torch = import_torch("a generator network")
    soft = torch.softmax(noisy_logits / TEMPERATURE, dim=1)
    hard = torch.nn.functional.one_hot(noisy_logits.argmax(dim=1), noisy_logits.shape[1]).to(soft.dtype)
    return hard + (soft - soft.detach())


@dataclass(frozen=True)
class Architecture:
    """What fixes the shape of a generator, from ``latent`` normal draws, and of its discriminator: public widths."""

    heads: Heads
    latent: int
    generator: tuple[int, ...]
    discriminator: tuple[int, ...]
    image_shape: tuple[int, int] | None = None

    def draw(self, module: Module, n: int, generator: TorchGenerator, codes: IntArray | None = None) -> Tensor:
        """Draw n encoded rows, given ``codes`` of the condition; ``generator`` (on the CPU) is all their randomness."""
        torch = import_torch("a generator network")
        parameter, given = next(module.parameters()), None
        if codes is not None:
            given = torch.nn.functional.one_hot(torch.from_numpy(codes), self.heads.n_given)
        latent = torch.randn((n, self.latent), generator=generator)
        uniform = torch.rand((n, self.heads.n_logits), generator=generator)
        gumbel = -torch.log(-torch.log(uniform.clamp(1e-7, 1 - 1e-7)))
        moved = [None if x is None else x.to(parameter.device, parameter.dtype) for x in (latent, gumbel, given)]
        return module(*moved)  # type: ignore[no-any-return]


@dataclass(frozen=True)
class TrainingSettings:
    """Public numbers of one training; see the parameters of `GAN`."""

    loss: str
    steps: int
    discriminator_steps: int
    frozen_steps: int
    batch_size: int
    generator_rate: float
    discriminator_rate: float | None
    gradient_penalty: float
    weight_clip: float
    discriminator_optimizer: str = "momentum"
    averaged_share: float = 0.5
