"""Mixture: a mixture of products fitted under differential privacy, with posterior draws (Jälkö et al. 2019)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import pandas as pd
from scipy.special import softmax

from iwbayes._digest import digest
from iwbayes.arrays import Array
from iwbayes.curator.generators.fitting import LedgerFit, check_positive, check_sample_size, check_whole
from iwbayes.curator.generators.mixture.column_distributions import family_of
from iwbayes.curator.generators.mixture.layout import Layout
from iwbayes.curator.generators.mixture.moments import Objective, posterior_draws
from iwbayes.curator.generators.mixture.noisy_tables import TableBudgets, gathers_at_bounds, release
from iwbayes.curator.generators.tables.bins import ColumnBins, draw_codes
from iwbayes.curator.privacy.accounting import check_budget
from iwbayes.curator.privacy.ledger import Ledger
from iwbayes.curator.progress import progress
from iwbayes.curator.protocols import PublicFacts
from iwbayes.curator.training.dpsgd import PrivateSteps
from iwbayes.curator.training.parameters import is_whole
from iwbayes.curator.training.row_gradients import import_torch
from iwbayes.schema import Schema
from iwbayes.statement import Event
from iwbayes.tables import PrivateTable, SyntheticTable

INTEGER_DISTRIBUTIONS = ("normal", "poisson")
#: Expected rows in a private step; all where there are fewer.
ROWS_A_STEP = 512
#: Components by default, below so many rows and from there on.
COMPONENTS, MANY_ROWS = (10, 20), 10_000
METHODS = ("moments", "variational")


@dataclass(frozen=True)
class Mixture(LedgerFit["FittedMixture"]):
    """Mixture of products of simple distributions, fitted in a Bayesian way to private rows.

    A row belongs to a component k with probability w_k; given k its columns are independent: a normal distribution
    truncated to the bounds for a real column (on its transformed scale), any distribution for levels, a rounded normal
    or a Poisson distribution for whole numbers, and a probability to be missing. Priors are public and weak.

    Parameters
    ----------
    n_components : int or None
        None takes 10, and 20 from 10,000 rows on. Components that are not needed get little weight.
    n_draws : int
        Posterior draws that are kept: each can make one synthetic table.
    method : {"moments", "variational"}
        "moments" releases noisy tables of all columns and of all pairs of columns and fits the mixture to them; see
        Notes. "variational" is the paper's inference by private gradient steps; it needs torch and a delta above 0.
    max_bins : int
        Most bins of a numeric column, for "moments".
    columns_share : float
        Part of epsilon that measures the columns' own tables, for "moments".
    integers : {"normal", "poisson"}
        For whole numbers of more than 10 values (fewer are levels): a truncated normal distribution, rounded; or the
        paper's Poisson distribution of the value above the lower bound, truncated at the upper one. The root of its
        mean is too small a standard deviation for most columns: on Adult Poisson doubles the error. Bounds more than
        1,000 apart take the normal all the same.
    starts : int
        Random starts of the search for the best fit, for "moments".
    steps : int
    clip_norm : float
        Of a row's gradient.
    learning_rate : float
        These three are for "variational"; a step takes 512 rows on average.
    random_seed : int or None
        Of starts and draws, which are public; never of privacy noise. None takes fresh entropy.
    progressbar : bool
        Show the draws where the error stream is a terminal.

    Notes
    -----
    Tables. All columns' own tables are measured at once over equal-width bins, the bounds being bins of their own; a
    bound where values clearly gather gets a share of its own in each component. Then all pairs' are measured at once,
    over groups of bins of about equal released mass, with as many groups as leave a cell more than its noise (and not
    at all where two groups would not: columns are then about independent). A row stands in one cell of each table:
    replacing it moves the counts of T tables by 2T in L1 and sqrt(2T) in L2; nulling it by half of it and sqrt(T);
    where users own up to tau rows, tau times as much. Noise is Laplace's, or Gaussian when ``delta`` is above 0.

    Posterior. Each count is normal around N times the mixture's probability of its cell, with the variance of sampling
    and of the released noise. Draws are randomised maxima a posteriori, which account for the sampling of the N rows,
    the noise and the prior (see `posterior_draws`). How three or more columns depend on each other comes from the
    mixture's form alone.

    Variational inference. The paper's mean-field normal distribution does not account for the noise of its own steps,
    so that its draws are too alike, and it needs far more rows for the same accuracy (``benchmarks/mixture.py``): it is
    here for comparison.

    References
    ----------
    Jälkö, Lagerspetz, Haukka, Tarkoma, Honkela & Kaski (2021, Patterns; arXiv 1912.04439): the model, variational
    inference under privacy, and synthetic tables as draws of the posterior predictive distribution.

    Examples
    --------
    >>> Mixture(n_components=5).n_draws
    20
    """

    #: With a delta above 0 it is better: Gaussian counts need less noise, and compose well.
    prefers_delta: ClassVar[bool] = True

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
        for name, known in (("method", METHODS), ("integers", INTEGER_DISTRIBUTIONS)):
            if getattr(self, name) not in known:
                raise ValueError(f"{name} must be one of {list(known)}; got {getattr(self, name)!r}.")
        if not 0 < self.columns_share < 1:
            raise ValueError(
                f"columns_share must be between 0 and 1, so that pairs get a part; got {self.columns_share!r}."
            )
        check_positive(self, "learning_rate")
        self._steps(1)  # refuses wrong clip norms

    def _steps(self, n_private: int) -> PrivateSteps:
        """Return the steps of "variational"; a user is in one with the chance that a row would have."""
        return PrivateSteps(self.steps, min(1.0, ROWS_A_STEP / max(n_private, 1)), self.clip_norm)

    @property
    def reads_blocks(self) -> bool:
        """Whether private rows are read block by block: noisy tables are; private steps need all rows at hand."""
        return self.method == "moments"

    @property
    def pure(self) -> bool:
        """Whether `fit` works in pure epsilon; with a delta above 0 counts get Gaussian noise."""
        return self.method == "moments"

    def events(self, facts: PublicFacts, *, epsilon: float, delta: float = 0.0) -> tuple[Event, ...]:
        """Declare the uses of the private rows that `fit` will charge."""
        epsilon, delta = check_budget(epsilon, delta)
        if self.method == "variational":
            steps = self._steps(facts.n_private)
            return (steps.event("Mixture", epsilon=epsilon, delta=delta, adjacency=facts.adjacency),)
        return TableBudgets.of(facts, epsilon, delta, self.columns_share).events()

    def _prepare(self) -> None:
        if self.method == "variational":
            import_torch("Mixture")

    def _learn(
        self, private: PrivateTable, ledger: Ledger, facts: PublicFacts, epsilon: float, delta: float
    ) -> FittedMixture:
        n_components = self.n_components or COMPONENTS[facts.n_private >= MANY_ROWS]
        rng = np.random.default_rng(self.random_seed)
        if self.method == "variational":
            from iwbayes.curator.generators.mixture.variational import fit_variational

            bins = tuple(ColumnBins.of(column, self.max_bins) for column in facts.schema)
            layout = Layout(tuple(family_of(part, self.integers) for part in bins), n_components)
            settings = {"epsilon": epsilon, "delta": delta, "learning_rate": self.learning_rate}
            with progress(self.progressbar, "private steps", self.steps) as advance:
                steps = self._steps(facts.n_private)
                mean, sd = fit_variational(private, ledger, facts, layout, steps, rng, advance, **settings)
            draws = mean + sd * rng.standard_normal((self.n_draws, layout.size))
            return FittedMixture(facts.schema, layout, np.clip(draws, *layout.bounds().T))

        budgets = TableBudgets.of(facts, epsilon, delta, self.columns_share)
        bins, grouping, measured = release(private, ledger, facts, budgets, self.max_bins)
        variance = measured.columns.distribution._variance()
        own = np.split(measured.columns.value, grouping.code_starts[1:-1])
        atoms = [gathers_at_bounds(part, counts, variance) for part, counts in zip(bins, own, strict=True)]
        families = tuple(family_of(part, self.integers, ends) for part, ends in zip(bins, atoms, strict=True))
        objective = Objective(Layout(families, n_components), grouping, facts.n_private)
        with progress(self.progressbar, "posterior draws", self.n_draws + 1) as advance:
            draws = posterior_draws(objective, measured, rng, n_draws=self.n_draws, starts=self.starts, advance=advance)
        return FittedMixture(facts.schema, objective.layout, draws)


@dataclass(frozen=True, eq=False)
class FittedMixture:
    """Posterior draws of a mixture of products: public, nothing private is kept.

    Parameters
    ----------
    schema : Schema
    layout : Layout
        The columns' distributions, and where their parameters stand in a draw.
    draws : ndarray, shape (draw, parameter)
        Unconstrained parameters.
    """

    schema: Schema
    layout: Layout = field(repr=False)
    draws: Array = field(repr=False)

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
        """Parameters of each column's distribution by name, each (draw, component) or (draw, component, level).

        Locations and spreads of truncated normal distributions are those of the distribution before truncation, on the
        column's transformed scale.
        """
        blocks = self.layout.by_column(self.layout.split(self.draws)[1])
        return {f.bins.column.name: f.natural(block) for f, block in zip(self.layout.families, blocks, strict=True)}

    def sample(self, n: int, *, random_seed: int | np.random.Generator | None = None) -> SyntheticTable:
        """Draw synthetic rows, all from one posterior draw.

        Parameters
        ----------
        n : int
            Number of rows, at least 1.
        random_seed : int or numpy.random.Generator, optional
            Chooses the posterior draw and seeds the sampling; it costs no privacy.
        """
        n, rng = check_sample_size(n), np.random.default_rng(random_seed)
        return self._table(n, int(rng.integers(self.n_draws)), rng)

    def sample_tables(
        self, n: int, m: int, *, random_seed: int | np.random.Generator | None = None
    ) -> list[SyntheticTable]:
        """Draw m synthetic tables of n rows, each from another posterior draw.

        An analysis that is done on each table and combined (Raghunathan, Reiter & Rubin 2003) accounts for the sampling
        of the private rows and for the privacy noise.

        Raises
        ------
        ValueError
            When m is not between 1 and the number of posterior draws.
        """
        n, rng = check_sample_size(n), np.random.default_rng(random_seed)
        if not is_whole(m) or not 1 <= m <= self.n_draws:
            raise ValueError(
                f"m must be a whole number from 1 to {self.n_draws}, the number of posterior draws; got {m!r}. "
                f"Fit with a larger n_draws for more tables."
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
        """Show the sizes and each column's distribution."""
        names = ", ".join(f"{f.bins.column.name}: {type(f).__name__[:-6].lower()}" for f in self.layout.families)
        return f"FittedMixture({self.layout.n_components} components, {self.n_draws} draws; {names})"

    def fingerprint(self) -> str:
        """Digest of the schema, the columns' distributions and the posterior draws."""
        distributions = [f.kind for f in self.layout.families]
        edges = [f.bins.edges for f in self.layout.families if f.bins.edges is not None]
        columns = self.schema.to_toml(), Schema(*(f.bins.column for f in self.layout.families)).to_toml()
        return digest("FittedMixture", *columns, self.layout.n_components, distributions, *edges, self.draws)
