"""What a tilt decides before it reads private rows: its features and noise, and the parts of its budget."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from iwbayes.curator.estimators.tilting.exponential import integer_total
from iwbayes.curator.protocols import PublicFacts
from iwbayes.features import FeatureMap


class TiltDesign(NamedTuple):
    """Public choices of a tilt: the feature map, the noise of its mean, their ratio, and what the terms are called."""

    features: FeatureMap
    noise_sd: float
    noise_over_spread: float
    terms: str


class TiltParts(NamedTuple):
    """How a budget is split between the tilt and the estimator of its base."""

    epsilon: float
    delta: float
    base_epsilon: float
    base_delta: float
    test_epsilon: float = 0.0


def integer_total_of(
    features: FeatureMap, step: float, facts: PublicFacts
) -> Callable[[pd.DataFrame], tuple[NDArray[np.int64], float]]:
    """Make the function from a block of private rows to their integer total and its sensitivity."""

    def total(block: pd.DataFrame) -> tuple[NDArray[np.int64], float]:
        rows = features.transform(block)
        return integer_total(rows, features, step, facts.row_adjacency, facts.rows_per_user)

    return total
