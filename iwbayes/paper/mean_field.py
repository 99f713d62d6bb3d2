"""Mean-field normal distribution of the parameters of a mixture of products, and densities of rows, in torch."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd
import torch
from scipy.special import logit
from torch import Tensor

from iwbayes.curator.generators.mixture.column_distributions import (
    LARGEST_LOG_SD,
    LARGEST_LOGIT,
    LEAST_SD,
    LOG_SD_MEAN,
    LOG_SD_SD,
    ColumnFamily,
    Layout,
    LevelFamily,
    NormalFamily,
    PoissonFamily,
)
from iwbayes.schema.columns import Real
from iwbayes.utils.arrays import Array

#: Prior standard deviation of logits.
LOGIT_SD = 1.5
#: Initial standard deviation of the variational distribution.
START_SD = 0.1
#: Smallest probability of a cell within a component.
LEAST_MASS = 1e-30


def encode(frame: pd.DataFrame, families: Sequence[ColumnFamily]) -> Array:
    """Convert rows to numbers, shape (row, column).

    Levels become codes. Values with a Poisson distribution are counted from the lower bound. Other numbers are scaled
    to [0, 1]. Minus k is the k-th outcome that is no draw from the distribution: a heap, or a missing cell.
    """
    columns = []
    for family in families:
        values = frame[family.bins.column.name]
        if isinstance(family, LevelFamily):
            columns.append(family.bins.codes(values).astype(np.float64))
            continue
        numbers = values.to_numpy(dtype=np.float64, na_value=np.nan)
        numbers = (
            numbers - family.column.lower if isinstance(family, PoissonFamily) else np.clip(family.index(numbers), 0, 1)
        )
        code = family.bins.codes(values)
        apart = code - family.bins.n_present
        columns.append(np.where(apart >= 0, -1.0 - apart, numbers))
    return np.column_stack(columns)


def log_density(family: ColumnFamily, theta: Tensor, cell: Tensor) -> Tensor:
    """Return the log density of a column's cells (see `encode`) in each component, shape (row, component)."""
    if isinstance(family, LevelFamily):
        return torch.log_softmax(theta, dim=1).T[cell.long()]
    n = family.n_outcomes
    own, index = theta[:, n:], cell.clamp(min=0)[:, None]
    found = _log_poisson(family, own, index) if isinstance(family, PoissonFamily) else _log_normal(family, own, index)
    if n == 0:
        return found
    outcome = torch.log_softmax(theta[:, :n], dim=1)
    return torch.where((cell < 0)[:, None], outcome.T[(-cell).clamp(min=0).long()], outcome[:, 0] + found)


def _log_normal(family: NormalFamily, theta: Tensor, index: Tensor) -> Tensor:
    mode, sd = torch.sigmoid(theta[:, 0]), LEAST_SD + torch.exp(theta[:, 1])
    ndtr = torch.special.ndtr
    log_total = torch.log(ndtr((1 - mode) / sd) - ndtr(-mode / sd))
    if isinstance(family.column, Real):
        return -0.5 * ((index - mode) / sd) ** 2 - torch.log(sd) - 0.5 * math.log(2 * math.pi) - log_total
    half = 0.5 / (family.column.upper - family.column.lower + 1)
    low, high = (index - half - mode) / sd, (index + half - mode) / sd
    upper, lower = ndtr(-low.abs()), ndtr(-high.abs())
    mass = torch.where((low < 0) & (high > 0), 1 - upper - lower, (upper - lower).abs())
    return torch.log(mass.clamp(min=LEAST_MASS)) - log_total


def _log_poisson(family: PoissonFamily, theta: Tensor, value: Tensor) -> Tensor:
    log_rate = math.log(family.width) + torch.nn.functional.logsigmoid(theta[:, 0])
    values = torch.arange(family.width + 1, dtype=theta.dtype)
    terms = values[:, None] * log_rate - torch.lgamma(values + 1)[:, None]
    return value * log_rate - torch.lgamma(value + 1) - torch.logsumexp(terms, dim=0)


def prior_of(layout: Layout) -> tuple[Array, Array]:
    """Return means and standard deviations of the independent normal priors of all parameters."""
    is_log_sd = layout.bounds()[:, 1] == LARGEST_LOG_SD
    return np.where(is_log_sd, LOG_SD_MEAN, 0.0), np.where(is_log_sd, LOG_SD_SD, LOGIT_SD)


def start_of(layout: Layout, rng: np.random.Generator) -> Array:
    """Return initial means: locations spread over the bounds, all other parameters close to their prior means."""
    mean = prior_of(layout)[0] + rng.normal(0.0, 0.1, layout.size)
    logits, stacks = layout.split(mean)
    for (family, _), stack in zip(layout.stacks, stacks, strict=True):
        if isinstance(family, LevelFamily):
            stack += rng.normal(0.0, 0.5, stack.shape)
        else:
            stack[..., family.n_outcomes] = logit(rng.uniform(0.05, 0.95, stack.shape[:-1]))
    return layout.join(logits, stacks)


class MeanField(torch.nn.Module):
    """Mean-field normal distribution of the parameters. Its forward pass returns log densities of rows at one draw."""

    def __init__(self, layout: Layout, rng: np.random.Generator) -> None:
        super().__init__()
        self.layout = layout
        self.mean = torch.nn.Parameter(torch.from_numpy(start_of(layout, rng)))
        self.log_sd = torch.nn.Parameter(torch.full((layout.size,), math.log(START_SD), dtype=torch.float64))

    def forward(self, rows: Tensor, standard: Tensor) -> Tensor:
        """Return the log density of each row, shape (row,), at the parameters given by ``standard`` normal draws."""
        vector = (self.mean + torch.exp(self.log_sd) * standard).clamp(-LARGEST_LOGIT, LARGEST_LOGIT)
        k = self.layout.n_components
        total, at = torch.log_softmax(vector[:k], dim=0), k
        for family, columns in self.layout.stacks:
            for column in columns:
                size = k * family.n_parameters
                theta = vector[at : at + size].reshape(k, -1)
                total = total + log_density(self.layout.families[column], theta, rows[:, column])
                at += size
        return torch.logsumexp(total, dim=-1)
