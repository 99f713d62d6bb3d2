"""Distribution of a column's levels within a component, and what a mixture asks of every column's distribution.

A family maps unconstrained parameters, shape (component, parameter), to the distribution over the column's public codes
and back-propagates gradients through it; it also draws values and holds the prior. Families of one `kind` have the same
`distribution`, `prior` and `penalty`, and are computed at once. Whatever lies in an interval is parametrised by a
logistic function, so that every prior but that of a spread is a Dirichlet (or beta) distribution on the natural scale;
on the logit scale, Jacobian included, its log density is the sum of pseudo-counts times log shares.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.special import log_softmax, softmax

from iwbayes.arrays import Array
from iwbayes.curator.generators.tables.bins import Codes, ColumnBins, draw_codes

#: From the gradient in the law, shape (component, code), to that in the parameters, shape (component, parameter).
Pull = Callable[[Array], Array]

#: Pseudo-counts of a component's levels, all together: a weak pull towards the column's own law.
LEVEL_COUNTS = 4.0
#: Logits stay within this bound: beyond it nothing changes, and nothing overflows.
LARGEST_LOGIT = 30.0


def jitter(counts: Array, rng: np.random.Generator | None) -> Array:
    """Gamma draws with these means: shares that maximise sum g log share then follow the Dirichlet law."""
    return counts if rng is None else np.maximum(rng.gamma(counts), 1e-12)


def dirichlet_penalty(logits: Array, counts: Array) -> tuple[float, Array]:
    """Minus sum of counts times log softmax, and its gradient; both have shape (component, place)."""
    logs = log_softmax(logits, axis=1)
    return -float(np.sum(counts * logs)), counts.sum(axis=1, keepdims=True) * np.exp(logs) - counts


@dataclass(frozen=True)
class LevelFamily:
    """Any law over the codes, the one for missing cells among them; parameters are logits.

    Prior: Dirichlet around the column's own released law with `LEVEL_COUNTS` pseudo-counts.
    """

    bins: ColumnBins

    @property
    def kind(self) -> tuple[str | int, ...]:
        """What families that are computed at once have in common: the number of codes."""
        return "levels", self.bins.size

    @property
    def n_parameters(self) -> int:
        """One logit a code."""
        return self.bins.size

    @property
    def limits(self) -> Array:
        """Largest value of each parameter, all of them logits; the smallest is minus `LARGEST_LOGIT`."""
        return np.full(self.n_parameters, LARGEST_LOGIT)

    def distribution(self, theta: Array) -> tuple[Array, Pull]:
        """Softmax of the logits, shape (component, code), and its back-propagation."""
        distribution = softmax(theta, axis=1)
        return distribution, lambda grad: distribution * (grad - np.sum(distribution * grad, axis=1, keepdims=True))

    def prior(self, center: Array, n_components: int, rng: np.random.Generator | None) -> Array:
        """Pseudo-counts of each code, with ``rng`` one prior draw of them; see `penalty`."""
        return jitter(np.tile(LEVEL_COUNTS * center, (n_components, 1)), rng)

    def penalty(self, theta: Array, prior: Array) -> tuple[float, Array]:
        """Minus the Dirichlet log density on the logit scale up to a constant, and its gradient."""
        return dirichlet_penalty(theta, prior)

    def start(self, center: Array, n_components: int, rng: np.random.Generator) -> Array:
        """Logits of the column's own law, jittered."""
        logits = np.log(center) + rng.normal(0.0, 1.0, (n_components, len(center)))
        return logits - logits.mean(axis=1, keepdims=True)

    def draw(self, theta: Array, component: Codes, rng: np.random.Generator) -> pd.Series:
        """Draw codes, then values."""
        return self.bins.values(draw_codes(softmax(theta, axis=1), component, rng), rng)

    def natural(self, theta: Array) -> dict[str, Array]:
        """Shares of the codes, the one for missing cells last."""
        return {"shares": softmax(theta, axis=-1)}
