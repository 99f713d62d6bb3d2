"""Variational inference for a mixture of products by private gradient steps (Jälkö, Dikmen & Honkela, UAI 2017).

This is `Mixture(method="variational")`. The mixture reaches it by the closed registry of `iwbayes.curator.settings`,
because private gradient steps belong to the published methods. torch is loaded by `fit` only.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from iwbayes.curator.generators.mixture.column_distributions import Layout
from iwbayes.curator.privacy.ledger import Ledger
from iwbayes.curator.protocols import PublicFacts
from iwbayes.paper.dpsgd.parameters import Average
from iwbayes.paper.dpsgd.private_steps import PrivateSteps
from iwbayes.paper.dpsgd.row_gradients import import_torch
from iwbayes.release.statement import Event
from iwbayes.tables import PrivateTable
from iwbayes.utils.arrays import Array
from iwbayes.utils.threads import one_torch_thread

if TYPE_CHECKING:
    from torch import Tensor

#: Name of the method's user in events and messages.
LABEL = "Mixture"
#: Expected number of rows in a private step. Smaller tables use all rows.
ROWS_A_STEP = 512
#: Share of the steps, the last ones, over which the parameters are averaged.
AVERAGED_SHARE = 0.3


@dataclass(frozen=True)
class PrivateVariational:
    """Settings of the inference: number of private steps, bound on a row's gradient, learning rate of Adam."""

    steps: int
    clip_norm: float
    learning_rate: float

    def __post_init__(self) -> None:
        self._private_steps(1)  # raises for invalid clip norms

    def _private_steps(self, n_private: int) -> PrivateSteps:
        """Return the private steps. A user is sampled with the probability that a single row would have."""
        return PrivateSteps(self.steps, min(1.0, ROWS_A_STEP / max(n_private, 1)), self.clip_norm)

    def check_torch(self) -> None:
        """Raise ModuleNotFoundError if torch is not installed."""
        import_torch(LABEL)

    def event(self, facts: PublicFacts, *, epsilon: float, delta: float) -> Event:
        """Return the event of all steps."""
        steps = self._private_steps(facts.n_private)
        return steps.event(LABEL, epsilon=epsilon, delta=delta, adjacency=facts.adjacency)

    def fit(
        self,
        private: PrivateTable,
        ledger: Ledger,
        facts: PublicFacts,
        layout: Layout,
        rng: np.random.Generator,
        advance: Callable[[], None],
        *,
        epsilon: float,
        delta: float,
    ) -> tuple[Array, Array]:
        """Charge all steps, then train the variational distribution. Return its means and standard deviations.

        Each step draws the parameters once and takes a gradient step on the negative evidence lower bound divided by N.
        This is minus the mean log density of the private rows, plus the divergence from the prior divided by N.
        Gradients of private rows are clipped row by row and get noise; the divergence is public. The average over the
        last steps is released. It does not account for the noise of the steps.
        """
        import torch

        from iwbayes.paper.mean_field import MeanField, encode, prior_of

        steps = self._private_steps(facts.n_private)
        rows = torch.from_numpy(encode(private.frame, layout.families))
        gradients = steps.charge(
            ledger, LABEL, (rows,), epsilon=epsilon, delta=delta, users=private.users, n_private=facts.n_private
        )
        network = MeanField(layout, rng)
        mean, sd = (torch.from_numpy(part) for part in prior_of(layout))

        def divergence(distribution: Any) -> Tensor:
            scaled, away = torch.exp(distribution.log_sd) / sd, (distribution.mean - mean) / sd
            return (0.5 * (scaled**2 + away**2) - torch.log(scaled)).sum() / facts.n_private

        with one_torch_thread():
            optimizer = torch.optim.Adam(network.parameters(), lr=self.learning_rate)
            averaged, first = Average(network), steps.steps - math.ceil(AVERAGED_SHARE * steps.steps)
            for step in range(steps.steps):
                standard = torch.from_numpy(rng.standard_normal(layout.size))
                gradients.descend(network, optimizer, lambda q, rows, e=standard: -q(rows, e), divergence)
                if step >= first:
                    averaged.add()
                advance()
        found = averaged.parameters()
        return found["mean"], np.exp(found["log_sd"])
