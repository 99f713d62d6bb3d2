"""Mixture: a mixture of products fitted under differential privacy, with posterior draws (Jälkö et al. 2019)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pandas as pd
from scipy.special import softmax

from iwbayes.curator.generators.ledger_fit import LedgerFit, check_positive, check_whole
from iwbayes.curator.generators.mixture.column_distributions import Layout, family_of
from iwbayes.curator.generators.mixture.fit_to_tables import Objective, posterior_draws
from iwbayes.curator.generators.mixture.noisy_tables import TableBudgets, gathers_at_bounds, release
from iwbayes.curator.generators.tables.bins import ColumnBins, draw_codes
from iwbayes.curator.privacy.accounting import check_budget
from iwbayes.curator.privacy.ledger import Ledger
from iwbayes.curator.protocols import PublicFacts
from iwbayes.curator.settings import method_of
from iwbayes.release.statement import Event
from iwbayes.schema import Schema
from iwbayes.tables import PrivateTable, SyntheticTable
from iwbayes.utils import checks
from iwbayes.utils.arrays import Array
from iwbayes.utils.digest import digest
from iwbayes.utils.progress import progress

INTEGER_DISTRIBUTIONS = ("normal", "poisson")
COMPONENTS, MANY_ROWS = (10, 20), 10_000  # default numbers of components: below `MANY_ROWS` rows, and from there on
METHODS = ("moments", "variational")


@dataclass(frozen=True)
class Mixture(LedgerFit["FittedMixture"]):
    """Bayesian mixture of products of simple distributions.

    A row belongs to component k with probability w_k. Given k, its columns are independent. A real column has a normal
    distribution truncated to the bounds, on its transformed scale, and integers a rounded normal or a Poisson
    distribution. Levels and missing cells have any distribution. The priors are public and weak.

    A bound of a numeric column with a clear spike becomes an atom, with a separate probability in each component. Pairs
    are measured over groups of bins, so many that a cell's mean count exceeds its noise, or not at all if even two
    groups per column are too many. See docs/methods.md#mixture and `posterior_draws`.

    Parameters
    ----------
    n_components : int, optional
        Number of components; by default 10, or 20 from 10,000 rows on. Unneeded ones get small weights.
    n_draws : int, default 20
        Number of posterior draws to keep. Each draw can make one synthetic table.
    method : {"moments", "variational"}, default "moments"
        "moments" fits the mixture to noisy tables of all columns and of all pairs of columns. "variational"
        is the paper's inference by private gradient steps. It needs torch and a delta above 0.
    max_bins : int, default 64
        "moments": largest number of bins of a numeric column between its bounds, at least 2.
    columns_share : float, default 0.3
        "moments": share of epsilon, in (0, 1), for the tables of single columns. Pairs of columns get the rest.
    integers : {"normal", "poisson"}, default "normal"
        Distribution of integer columns with more than 10 values (others are levels): a truncated normal, rounded, or
        the paper's truncated Poisson distribution above the lower bound. Its standard deviation is too small for most
        columns: on the Adult data it doubles the error. Columns with a range above 1,000 always use the normal.
    starts : int, default 2
        "moments": number of random starts of the search for the best fit.
    steps, clip_norm, learning_rate : default 1000, 3.0 and 0.03
        "variational": number of private gradient steps with 512 expected rows each, bound on the L2 norm of a row's
        gradient, and learning rate of Adam.
    random_seed : int, optional
        Seed of the starts and the draws, which are public. It never seeds privacy noise.
    progressbar : bool, default True
        Show a progress bar if standard error is a terminal.

    Raises
    ------
    ValueError, ModuleNotFoundError
        If a setting is outside its range; from `fit` with ``method="variational"``, if torch is not installed.

    References
    ----------
    Jälkö et al., Privacy-preserving data sharing via probabilistic modeling, Patterns 2(7), 2021, arXiv:1912.04439.

    Examples
    --------
    >>> people = iw.datasets.simulate_table("bernoulli", 500, random_seed=1)
    >>> private = iw.PrivateTable(people.frame, people.schema)
    >>> mixture = iw.Mixture(n_components=2, n_draws=3, progressbar=False, random_seed=1)
    >>> fitted = mixture.fit(private, iw.Ledger(1.0, 1e-6), epsilon=1.0, delta=1e-6)
    >>> [len(table) for table in fitted.sample_tables(20, 3, random_seed=1)]
    [20, 20, 20]
    """

    prefers_delta: ClassVar[bool] = True  # Gaussian noise on many counts is smaller

    n_components: int | None = None
    n_draws: int = 20
    method: str = "moments"
    max_bins: int = 64
    columns_share: float = 0.3
    integers: str = "normal"
    starts: int = 2
    steps: int = 1000
    clip_norm: float = 3.0
    learning_rate: float = 0.03
    random_seed: int | None = None
    progressbar: bool = True

    def __post_init__(self) -> None:
        check_whole(self, n_components=1, n_draws=1, max_bins=2, starts=1, steps=1, random_seed=0)
        checks.one_of("method", self.method, METHODS)
        checks.one_of("integers", self.integers, INTEGER_DISTRIBUTIONS)
        checks.share("columns_share", self.columns_share, "Pairs of columns have the rest.")
        check_positive(self, "clip_norm", "learning_rate")
        if self.method == "variational":
            self._variational()  # raises for clip norms that private steps cannot use

    def _variational(self) -> Any:
        """Return the settings of the published method, which is loaded here."""
        return method_of("Mixture", self.method)(self.steps, self.clip_norm, self.learning_rate)

    @property
    def reads_blocks(self) -> bool:
        """Whether private rows are read block by block. With "variational" all rows must be in memory."""
        return self.method == "moments"

    @property
    def pure(self) -> bool:
        """Whether `fit` accepts delta 0. With delta above 0, counts get Gaussian noise."""
        return self.method == "moments"

    def _events(self, facts: PublicFacts, *, epsilon: float, delta: float = 0.0) -> tuple[Event, ...]:
        """Return the events that `fit` will charge to the ledger."""
        epsilon, delta = check_budget(epsilon, delta)
        if self.method == "variational":
            return (self._variational().event(facts, epsilon=epsilon, delta=delta),)
        return TableBudgets.of(facts, epsilon, delta, self.columns_share).events()

    def _prepare(self) -> None:
        if self.method == "variational":
            self._variational().check_torch()

    def _learn(
        self, private: PrivateTable, ledger: Ledger, facts: PublicFacts, epsilon: float, delta: float
    ) -> FittedMixture:
        n_components = self.n_components or COMPONENTS[facts.n_private >= MANY_ROWS]
        rng = np.random.default_rng(self.random_seed)
        if self.method == "variational":
            bins = tuple(ColumnBins.of(column, self.max_bins) for column in facts.schema)
            layout = Layout(tuple(family_of(part, self.integers) for part in bins), n_components)
            budget = {"epsilon": epsilon, "delta": delta}
            with progress(self.progressbar, "private steps", self.steps) as advance:
                mean, sd = self._variational().fit(private, ledger, facts, layout, rng, advance, **budget)
            draws = mean + sd * rng.standard_normal((self.n_draws, layout.size))
            return FittedMixture(facts.schema, layout, np.clip(draws, *layout.bounds().T))

        budgets = TableBudgets.of(facts, epsilon, delta, self.columns_share)
        bins, grouping, measured = release(private, ledger, facts, budgets, self.max_bins)
        variance = measured.columns.distribution.variance
        own = np.split(measured.columns.value, grouping.code_starts[1:-1])
        atoms = [gathers_at_bounds(part, counts, variance) for part, counts in zip(bins, own, strict=True)]
        families = tuple(family_of(part, self.integers, ends) for part, ends in zip(bins, atoms, strict=True))
        objective = Objective(Layout(families, n_components), grouping, facts.n_private)
        with progress(self.progressbar, "posterior draws", self.n_draws + 1) as advance:
            draws = posterior_draws(objective, measured, rng, n_draws=self.n_draws, starts=self.starts, advance=advance)
        return FittedMixture(facts.schema, objective.layout, draws)


@dataclass(frozen=True, eq=False)
class FittedMixture:
    """Posterior draws of a mixture of products. It is public."""

    schema: Schema
    layout: Layout  # distributions of the columns, and the positions of their parameters in a draw
    draws: Array  # unconstrained parameters, shape (draw, parameter)

    @property
    def n_draws(self) -> int:
        """Number of posterior draws."""
        return len(self.draws)

    @property
    def weights(self) -> Array:
        """Weights of the components, shape (draw, component)."""
        return softmax(self.layout.split(self.draws)[0], axis=-1)

    @property
    def parameters(self) -> dict[str, dict[str, Array]]:
        """Parameters of columns by name, (draw, component) or (draw, component, level); normals before truncation."""
        blocks = self.layout.by_column(self.layout.split(self.draws)[1])
        return {f.bins.column.name: f.natural(block) for f, block in zip(self.layout.families, blocks, strict=True)}

    def sample(self, n: int, *, random_seed: int | np.random.Generator | None = None) -> SyntheticTable:
        """Draw n >= 1 synthetic rows, all from one posterior draw that is chosen at random. This costs no privacy."""
        n, rng = checks.whole("n", n), np.random.default_rng(random_seed)
        return self._table(n, int(rng.integers(self.n_draws)), rng)

    def sample_tables(
        self, n: int, m: int, *, random_seed: int | np.random.Generator | None = None
    ) -> list[SyntheticTable]:
        """Draw m synthetic tables of n rows, each from a different posterior draw.

        Results of separate analyses, combined by the rules of Raghunathan, Reiter & Rubin (2003), account for the
        sampling of the private rows and for the privacy noise. ValueError if n is below 1, or m not in [1, `n_draws`].
        """
        n, rng = checks.whole("n", n), np.random.default_rng(random_seed)
        if not checks.is_whole(m) or not 1 <= m <= self.n_draws:
            raise ValueError(
                f"m must be a whole number from 1 to {self.n_draws}, the number of posterior draws; got {m!r}. "
                f"Fit the Mixture with a larger n_draws to get more tables."
            )
        return [self._table(n, int(draw), rng) for draw in rng.choice(self.n_draws, m, replace=False)]

    def _table(self, n: int, draw: int, rng: np.random.Generator) -> SyntheticTable:
        logits, stacks = self.layout.split(self.draws[draw])
        component = draw_codes(softmax(logits)[None], np.zeros(n, dtype=np.int64), rng)
        columns = {
            family.bins.column.name: family.draw(block, component, rng)
            for family, block in zip(self.layout.families, self.layout.by_column(stacks), strict=True)
        }
        return SyntheticTable(pd.DataFrame(columns), self.schema, origin="Mixture")._from_source(self.fingerprint())

    def __repr__(self) -> str:
        """Show the numbers of components and draws, and each column's distribution."""
        names = ", ".join(f"{f.bins.column.name}: {type(f).__name__[:-6].lower()}" for f in self.layout.families)
        return f"FittedMixture({self.layout.n_components} components, {self.n_draws} draws; {names})"

    def fingerprint(self) -> str:
        """Return a digest of the schema, the columns' distributions and the posterior draws."""
        distributions = [f.kind for f in self.layout.families]
        edges = [f.bins.edges for f in self.layout.families if f.bins.edges is not None]
        columns = self.schema.to_toml(), Schema(*(f.bins.column for f in self.layout.families)).to_toml()
        return digest("FittedMixture", *columns, self.layout.n_components, distributions, *edges, self.draws)
