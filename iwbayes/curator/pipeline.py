"""Steps of a release that use private rows: a generator and a weight provider with their budgets, to run or replay."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from iwbayes.curator.plan import GivenTable, own_delta
from iwbayes.curator.privacy.ledger import Ledger
from iwbayes.curator.protocols import FittedGenerator, Generator, WeightProvider, needs_generator
from iwbayes.curator.settings import from_data, to_data
from iwbayes.features.scores import ScoreModel
from iwbayes.tables import PrivateTable, SyntheticTable
from iwbayes.weights import Weights


class Made(NamedTuple):
    """Result of a run: the fitted generator, its rows, and their weights."""

    fitted: FittedGenerator
    synthetic: SyntheticTable
    weights: Weights


@dataclass(frozen=True)
class Pipeline:
    """A generator and a weight provider, the budget of each, and the number of synthetic rows.

    `generator_epsilon` and `weights_epsilon` are nominal: `publish` chooses them so that both fit in the joint budget.
    """

    generator: Generator
    weights: WeightProvider
    generator_epsilon: float
    weights_epsilon: float
    delta: float
    n_synthetic: int

    def run(
        self,
        private: PrivateTable,
        account: Ledger,
        sampler: np.random.Generator,
        step: Callable[[str], None] = lambda stage: None,
    ) -> Made:
        """Fit both on private rows with noise from a charged account; call `step` with the name of each stage."""
        step("fitting the generator")
        own = own_delta(self.generator, self.delta)
        fitted = self.generator.fit(private, account, epsilon=self.generator_epsilon, delta=own)
        step("sampling synthetic rows")
        synthetic = fitted.sample(self.n_synthetic, random_seed=sampler)
        step("weighting synthetic rows")
        weights, own = self.weights, own_delta(self.weights, self.delta)
        if needs_generator(weights):
            weights = weights.with_generator(fitted)  # type: ignore[attr-defined]
        weighted = weights.fit(private, synthetic, account, epsilon=self.weights_epsilon, delta=own)
        return Made(fitted, synthetic, weighted)

    def to_data(self) -> dict[str, Any]:
        """Return everything except the number of rows as plain JSON values; None for a part that is not plain data."""
        return {
            "generator": None if isinstance(self.generator, GivenTable) else to_data(self.generator),
            "weights": to_data(self.weights),
            "generator_epsilon": self.generator_epsilon,
            "weights_epsilon": self.weights_epsilon,
            "delta": self.delta,
        }

    @classmethod
    def from_data(
        cls, data: dict[str, Any], synthetic: SyntheticTable, make_model: Callable[..., ScoreModel] | None = None
    ) -> Pipeline:
        """Return the pipeline that `to_data` wrote; if its generator is not plain data, it uses the given rows.

        `make_model` creates the models of the release from their plain data. Raise ValueError if `to_data` cannot have
        written the data.
        """
        numbers = [data.get(name) for name in ("generator_epsilon", "weights_epsilon", "delta")]
        if not all(isinstance(number, int | float) and not isinstance(number, bool) for number in numbers):
            raise ValueError("the settings of the release contain no budget for generator and weights.")
        if data.get("weights") is None:
            raise ValueError(
                "the settings of the release's weights are not plain data: the weights were given, or contain a "
                "function."
            )
        kept = data.get("generator")
        generator = GivenTable(synthetic, ()) if kept is None else from_data(kept)
        own, rest, delta = (float(number) for number in numbers if number is not None)
        return cls(generator, from_data(data["weights"], make_model), own, rest, delta, len(synthetic))
