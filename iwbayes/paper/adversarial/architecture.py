"""Architecture of adversarial generators: an output head for each kind of column, layers, and training settings."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from iwbayes.paper.dpsgd.row_gradients import import_torch
from iwbayes.schema import Schema
from iwbayes.schema.columns import Column, _Whole
from iwbayes.schema.levels import _Levels
from iwbayes.utils.arrays import Array, IntArray

if TYPE_CHECKING:
    from torch import Generator as TorchGenerator
    from torch import Tensor
    from torch.nn import Module


#: Integer columns with at most this many values are drawn as levels, so that synthetic values are exact integers.
MOST_VALUES = 32
#: Temperature of the Gumbel softmax, which makes the choice of a level differentiable.
TEMPERATURE = 0.7
#: Share of missing cells before training, for columns that may have missing cells.
MISSING_START = 0.1


@dataclass(frozen=True)
class Block:
    """One softmax of a generator: it chooses values for some encoded features.

    ``indices`` are the features that it sets. ``values`` are the feature values of each choice, shape (choice,
    feature), with that of ``number`` last if there is one. ``bias`` are the logits before training, shape (choice,).
    """

    indices: tuple[int, ...]
    values: Array = field(repr=False)
    bias: Array = field(repr=False)
    #: Numeric feature that each choice but the first sets to its last value; None if there is none.
    number: int | None = None

    @property
    def size(self) -> int:
        """Number of choices."""
        return len(self.values)


def _block(column: Column, values: Array, start: int, number: int | None = None) -> Block:
    """Make the softmax of a column. If the column may have missing cells, its last choice is the missing cell."""
    bias = np.zeros(len(values))
    if column.missing:
        bias[-1] = math.log(MISSING_START / (1 - MISSING_START) * (len(values) - 1))
    return Block(tuple(range(start, start + values.shape[1] - (number is not None))), values, bias, number)


def _choices(column: Column) -> Array | None:
    """Encode each value of a column with few values, shape (choice, feature). Return None for other columns."""
    if isinstance(column, _Levels):
        codes = np.arange(len(column.levels) + int(column.missing))
        return column.encode(column.from_codes(np.where(codes == len(column.levels), -1, codes)))
    if isinstance(column, _Whole) and column.upper - column.lower < MOST_VALUES:
        numbers = np.arange(column.lower, column.upper + 1, dtype=np.float64)
        return column.encode(column.canonical(np.append(numbers, np.nan) if column.missing else numbers))
    return None


@dataclass(frozen=True)
class Heads:
    """Convert a generator's raw outputs to encoded rows, in the format of `Schema.encode`.

    A number is tanh(raw)/2. A level (or an integer with few values) is drawn by a straight-through Gumbel softmax. A
    missing cell is one more level of a column of levels; a numeric column has a separate softmax of two choices for
    it. The condition, a column of levels, is given and not drawn.
    """

    schema: Schema
    condition: str | None = None

    def __post_init__(self) -> None:
        if self.condition is None:
            return
        if self.condition not in self.schema.names or not isinstance(self.schema[self.condition], _Levels):
            raise ValueError(
                f"condition must name a Binary or Categorical column of the schema; got {self.condition!r}. "
                f"Choose one of {[column.name for column in self.schema if isinstance(column, _Levels)]}."
            )
        if len(self.schema) == 1:
            raise ValueError(
                "a conditional generator needs at least one column in addition to its condition; the schema has "
                "no other column. Use BayesNet for a single column."
            )

    @cached_property
    def _starts(self) -> dict[str, int]:
        sizes = [len(column.feature_names) for column in self.schema]
        return dict(zip(self.schema.names, np.cumsum([0, *sizes[:-1]]).tolist(), strict=True))

    @cached_property
    def numbers(self) -> tuple[int, ...]:
        """Indices, in the encoded row, of the features that are drawn as numbers."""
        return tuple(self._starts[c.name] for c in self.schema if _choices(c) is None)

    @cached_property
    def _softmaxes(self) -> dict[str, Block]:
        """Softmax of each column that has one: over its levels, its few values, or whether it is a heap or missing."""
        found = {}
        for column in self.schema:
            choices, start = _choices(column), self._starts[column.name]
            if choices is not None:
                found[column.name] = _block(column, choices, start)
            elif len(column.feature_names) > 1:
                apart = np.vstack([np.zeros(len(column.feature_names)), column.corners[2:]])
                found[column.name] = _block(column, np.roll(apart, -1, axis=1), start + 1, number=start)
        return found

    @cached_property
    def blocks(self) -> tuple[Block, ...]:
        """All drawn softmaxes, in the order of their raw outputs."""
        return tuple(block for name, block in self._softmaxes.items() if name != self.condition)

    @property
    def n_given(self) -> int:
        """Number of levels of the condition, counting missing cells as a level; 0 without a condition."""
        return 0 if self.condition is None else self._softmaxes[self.condition].size

    @property
    def n_logits(self) -> int:
        """Number of raw outputs that are logits; a row needs as many Gumbel draws."""
        return sum(block.size for block in self.blocks)

    @property
    def n_raw(self) -> int:
        """Number of raw outputs: numbers first, then logits."""
        return len(self.numbers) + self.n_logits

    @cached_property
    def start_bias(self) -> Array:
        """Raw outputs before training, shape (raw,): mid-range numbers, equally likely levels, few missing cells."""
        return np.concatenate([np.zeros(len(self.numbers)), *(block.bias for block in self.blocks)])

    @cached_property
    def _table(self) -> tuple[Array, Array]:
        """Features that each choice sets, and numbers that it replaces. The condition's choices come last."""
        blocks = self.blocks if self.condition is None else (*self.blocks, self._softmaxes[self.condition])
        table = np.zeros((sum(block.size for block in blocks), self.schema.n_features))
        replaced = np.zeros((len(table), len(self.numbers)))
        row = 0
        for block in blocks:
            table[row : row + block.size, block.indices] = block.values[:, : len(block.indices)]
            if block.number is not None:
                table[row : row + block.size, block.number] = block.values[:, -1]
                replaced[row + 1 : row + block.size, self.numbers.index(block.number)] = 1.0
            row += block.size
        return table[:, [*self.numbers, *self._others]], replaced

    @cached_property
    def _others(self) -> list[int]:
        """Indices of the features that choices set."""
        return sorted(set(range(self.schema.n_features)) - set(self.numbers))

    def rows(self, raw: Tensor, gumbel: Tensor, given: Tensor | None = None) -> Tensor:
        """Make encoded rows, shape (row, feature).

        ``raw`` has shape (row, raw), ``gumbel`` holds standard Gumbel draws, shape (row, logit). ``given`` are one-hot
        levels of the condition, shape (row, level), for a conditional generator.
        """
        torch = import_torch("a generator network")
        noisy_logits = raw[:, len(self.numbers) :] + gumbel
        sizes = [block.size for block in self.blocks]
        chosen = [_straight_through(part) for part in torch.split(noisy_logits, sizes, dim=1)]
        if given is not None:
            chosen.append(given.to(raw.dtype))

        scaled = torch.tanh(raw[:, : len(self.numbers)]) / 2
        if not chosen:
            return scaled  # without choices, the numbers already follow the schema's order
        choices = torch.cat(chosen, dim=1)
        table, replaced = (torch.as_tensor(t, dtype=raw.dtype, device=raw.device) for t in self._table)
        chosen_numbers, others = torch.split(choices @ table, [scaled.shape[1], len(self._others)], dim=1)
        if replaced.any():
            scaled = scaled * (1 - choices @ replaced) + chosen_numbers
        order = np.argsort([*self.numbers, *self._others])
        return torch.cat([scaled, others], dim=1)[:, torch.from_numpy(order).to(raw.device)]


def _straight_through(noisy_logits: Tensor) -> Tensor:
    """Return the one-hot vector of the largest logit, with a softmax's gradient (Jang, Gu & Poole, ICLR 2017)."""
    torch = import_torch("a generator network")
    soft = torch.softmax(noisy_logits / TEMPERATURE, dim=1)
    hard = torch.nn.functional.one_hot(noisy_logits.argmax(dim=1), noisy_logits.shape[1]).to(soft.dtype)
    return hard + (soft - soft.detach())


@dataclass(frozen=True)
class Architecture:
    """Public sizes of a generator and its discriminator.

    ``latent`` is the number of normal draws per row. ``generator`` and ``discriminator`` are widths of hidden layers.
    """

    heads: Heads
    latent: int
    generator: tuple[int, ...]
    discriminator: tuple[int, ...]
    image_shape: tuple[int, int] | None = None

    def draw(self, module: Module, n: int, generator: TorchGenerator, codes: IntArray | None = None) -> Tensor:
        """Draw n encoded rows, shape (n, feature).

        ``codes`` are levels of the condition, shape (n,). All randomness comes from ``generator``, on the CPU.
        """
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
    """Public settings of one training; see the parameters of `GAN`."""

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
