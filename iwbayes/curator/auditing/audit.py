"""Audit a generator or a weight provider: bound its true epsilon from below, on two simulated tables.

For curators and reviewers. `audit` runs an algorithm many times on two tables that differ in one row, and looks for an
event that is more probable on one of them than the claimed (epsilon, delta) allows. Such an event refutes the claim, up
to a stated probability of error. If there is none, this proves nothing: other tables, or a better statistic, may find
one. The tables are simulated, never private, because the result depends on the rows without any noise.

If the charged event promises privacy for the noisy values themselves (Gaussian, Laplace, cube and spherical noise,
selections, gradient steps), the audit observes them. It also observes the result, unless that followed from the noisy
values alone in 61 runs that were given another table's outcomes. If the noise is a secret of the algorithm (objective
perturbation), it observes the result only. If a fit requests noise once, only this request is repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from iwbayes.curator.auditing.evidence import lower_bounds
from iwbayes.curator.auditing.rerun import Subject, rerun
from iwbayes.curator.privacy.accounting import check_budget, gaussian_multiplier, joint_multiplier
from iwbayes.curator.privacy.noise import NoiseSource, SeededNoise
from iwbayes.curator.protocols import Generator, WeightProvider, is_generator, is_weight_provider
from iwbayes.release.statement import ROW_ADJACENCIES, Event, RowAdjacency
from iwbayes.schema import Schema
from iwbayes.tables import PrivateTable, SyntheticTable
from iwbayes.utils import checks
from iwbayes.utils.display import wrapped
from iwbayes.utils.optional import import_optional

LEAST_RUNS = 100  # below it no bound is above 0


@dataclass(frozen=True)
class AuditResult:
    """Result of `audit`: lower bounds of the privacy loss, and the claim to compare them with."""

    #: The audited algorithm, with its settings.
    algorithm: str
    #: Lower bounds of the true epsilon at ``nominal_delta``, and of the true mu of Gaussian differential privacy: the
    #: outputs' distance in standard deviations. Both hold together with probability ``confidence``, at least.
    epsilon: float
    mu: float
    confidence: float
    #: Number of runs on each of the two tables.
    n_runs: int
    #: The guarantee that the algorithm claims, and the mu of one Gaussian mechanism with that guarantee.
    nominal_epsilon: float
    nominal_delta: float
    nominal_mu: float | None
    #: Epsilon, at ``nominal_delta``, and mu that a ledger charges for a run. Both mus are None if not all charged noise
    #: is Gaussian.
    charged_epsilon: float
    charged_mu: float | None
    events: tuple[Event, ...]
    adjacency: str
    #: The output that the audit observed, and the statistic whose event gave ``epsilon``.
    observed: str
    statistic: str

    @property
    def passed(self) -> bool:
        """Whether neither bound is above the claimed guarantee. True does not prove the claim."""
        return self.epsilon <= self.nominal_epsilon and (self.nominal_mu is None or self.mu <= self.nominal_mu)

    @property
    def charge_holds(self) -> bool:
        """Whether neither bound is above the charge, so that the audit does not refute the ledger's statement."""
        return self.epsilon <= self.charged_epsilon and (self.charged_mu is None or self.mu <= self.charged_mu)

    def __str__(self) -> str:
        n_events = sum(event.count for event in self.events)
        of_mu = "" if self.nominal_mu is None else f" (claimed: {self.nominal_mu:.4g})"
        verdict = (
            "  Passed: the audit does not refute the claim. This does not prove the claim: other\n"
            "  tables or a better statistic may refute it."
            if self.passed
            else f"  FAILED: the audit refutes the claim. A true claim fails with probability "
            f"{1 - self.confidence:.2g}\n"
            f"  at most. It {'does not refute the charge' if self.charge_holds else 'refutes the charge too'}."
        )
        return wrapped(
            f"Audit of {self.algorithm}\n"
            f"  claimed: epsilon {self.nominal_epsilon:.4g} at delta {self.nominal_delta:.3g} under {self.adjacency}; "
            f"charged: epsilon {self.charged_epsilon:.4g}, events: {n_events}\n"
            f"  found: epsilon at least {self.epsilon:.4g}, mu at least {self.mu:.4g}{of_mu}, "
            f"with confidence {self.confidence:g}\n"
            f"  {self.n_runs} runs on each table; observed: {self.observed}\n{verdict}"
        )


def audit(
    algorithm: Generator | WeightProvider,
    first: SyntheticTable,
    second: SyntheticTable,
    *,
    epsilon: float,
    delta: float = 0.0,
    synthetic: SyntheticTable | None = None,
    adjacency: RowAdjacency = "replace-one",
    n_runs: int = 20_000,
    confidence: float = 0.999,
    noise: Callable[[int], NoiseSource] = SeededNoise,
    observe: Callable[[Any], ArrayLike] | None = None,
    random_seed: int | None = None,
) -> AuditResult:
    """Bound the true epsilon and mu of an algorithm from below, on two neighbouring simulated tables.

    A refuted claim is false, up to the stated probability of error; a claim that passes is not proven. See Jagielski,
    Ullman & Oprea (NeurIPS 2020), Nasr et al. (USENIX Security 2023), and for mu Dong, Roth & Su (JRSS-B 2022).

    Parameters
    ----------
    algorithm : Generator or WeightProvider
        The algorithm, with a fixed ``random_seed`` if it draws public randomness. Each run calls `fit` on a new ledger
        without a limit.
    first, second : SyntheticTable
        Simulated rows that replace the private ones: the same schema, the same number of rows, and exactly one row
        that differs, at the same index; see `opposite_corners`. Few rows and columns make runs fast.
    epsilon, delta : float
        The claimed guarantee, passed to ``fit``; epsilon above 0, delta in [0, 1).
    synthetic : SyntheticTable, optional
        The rows to weight. A weight provider needs them; a generator takes none.
    adjacency : {"replace-one", "zero-out"}
        Adjacency of the ledger. Under "zero-out" the two tables are two steps apart, by the table in which the
        differing row is null; the bounds account for it.
    n_runs : int, default 20_000
        Runs on each table, at least 100; the bound cannot exceed about log(n_runs/20). A few thousand are enough if the
        whole algorithm has to run each time.
    confidence : float, default 0.999
        Probability, at least, that both bounds are below the true values.
    noise : callable, default SeededNoise
        Function from a seed to a noise source. Pass another one to audit it, such as one that draws too little noise.
    observe : callable, optional
        Function from the result of ``fit`` to released numbers (observing a secret refutes nothing). The audit then
        observes these only, and the whole algorithm runs each time: it finds a rarer leak around the noise.
    random_seed : int, optional
        Seed of the noise.

    Raises
    ------
    TypeError, ValueError
        If a table is private, the tables are not neighbours, or a setting is not valid.
    ModuleNotFoundError
        If scikit-learn is not installed; the message names the extra.

    Examples
    --------
    >>> first, second = opposite_corners(iw.Schema(iw.Binary("y")), 10)
    >>> print(audit(iw.BayesNet(), first, second, epsilon=1.0, random_seed=1))
    Audit of BayesNet(max_parents=2, max_bins=128, theta=2.0, bins_share=0.25, structure_share=0.1)
      claimed: epsilon 1 at delta 0 under replace-one; charged: epsilon 1, events: 1
      found: epsilon at least 0.9..., mu at least 0.7..., with confidence 0.999
      20000 runs on each table; observed: the noisy values
      Passed: the audit does not refute the claim. This does not prove the claim: other
      tables or a better statistic may refute it.

    """
    import_optional("sklearn", "audits need")  # before hours of runs
    epsilon, delta = check_budget(epsilon, delta)
    checks.one_of("adjacency", adjacency, ROW_ADJACENCIES)
    checks.whole("n_runs", n_runs, LEAST_RUNS)
    checks.share("confidence", confidence, "Use for example 0.999.")
    _check_algorithm(algorithm, synthetic)
    check_neighbours(first, second)
    subject = Subject(algorithm, synthetic, epsilon, delta, adjacency, noise, observe)
    seeds = np.random.SeedSequence(random_seed)
    one, two = (PrivateTable(table.frame, table.schema) for table in (first, second))
    samples = rerun(subject, one, two, n_runs, seeds)
    hops = {"replace-one": 1, "zero-out": 2}[adjacency]
    tree = int(seeds.spawn(1)[0].generate_state(1)[0])
    found = lower_bounds(
        samples.first, samples.second, delta=delta, confidence=confidence, hops=hops, centers=samples.centers, seed=tree
    )
    events = samples.ledger.events
    gaussian = bool(events) and all(event.mechanism == "gaussian" for event in events)
    return AuditResult(
        algorithm=repr(algorithm),
        epsilon=found.epsilon,
        mu=found.mu,
        confidence=confidence,
        n_runs=n_runs,
        nominal_epsilon=epsilon,
        nominal_delta=delta,
        nominal_mu=1 / gaussian_multiplier(epsilon, delta) if gaussian and delta > 0 else None,
        charged_epsilon=samples.ledger.would_cost(),
        charged_mu=1 / joint_multiplier(events) if gaussian else None,
        events=events,
        adjacency=adjacency,
        observed=samples.observed,
        statistic=found.epsilon_statistic,
    )


def opposite_corners(schema: Schema, n: int) -> tuple[SyntheticTable, SyntheticTable]:
    """Make two neighbouring tables of n rows for an audit, with one row at opposite corners of the schema.

    Every row of the first table is at the lower bounds and first levels; the first row of the second table is at the
    upper bounds and last levels. This is the largest change of a sum of linear features, but not always the worst pair:
    a row hardly changes a logistic regression that explains it well. Then choose synthetic rows that make the differing
    row surprising, and no other rows that oppose its effect.

    Examples
    --------
    >>> first, second = opposite_corners(iw.Schema(iw.Real("age", 18, 90), iw.Binary("income")), 3)
    >>> first.frame["age"].tolist(), second.frame["age"].tolist()
    ([18.0, 18.0, 18.0], [90.0, 18.0, 18.0])
    """
    n = checks.whole("n", n)
    columns: Iterable[Any] = schema.generated  # of either kind
    ends = {c.name: (c.levels[0], c.levels[-1]) if hasattr(c, "levels") else (c.lower, c.upper) for c in columns}
    first = pd.DataFrame({name: [low] * n for name, (low, _) in ends.items()})
    second = pd.DataFrame({name: [high] + [low] * (n - 1) for name, (low, high) in ends.items()})
    made_up = partial(SyntheticTable, schema=schema, origin="simulated", already_spent=(0, 0))
    return made_up(first), made_up(second)


def _check_algorithm(algorithm: object, synthetic: SyntheticTable | None) -> None:
    weighs = is_weight_provider(algorithm)
    if not (weighs or is_generator(algorithm)):
        raise TypeError(f"algorithm must be a generator or a weight provider; got {algorithm!r}. Pass an instance.")
    if synthetic is not None and not isinstance(synthetic, SyntheticTable):
        raise TypeError(f"synthetic must be a SyntheticTable; got {type(synthetic).__name__}.")
    if weighs and synthetic is None:
        raise ValueError(f"{type(algorithm).__name__} weights synthetic rows; got none. Pass them as synthetic=.")
    if not weighs and synthetic is not None:
        raise ValueError(f"{type(algorithm).__name__} takes no synthetic rows. Leave out synthetic=.")


def check_neighbours(first: SyntheticTable, second: SyntheticTable) -> None:
    """Raise if a table is private, or if the tables do not differ in exactly one row."""
    check_simulated(first, second)
    if len(first) != len(second):
        raise ValueError(
            f"neighbours must have the same number of rows; got {len(first)} and {len(second)}. Replace a row instead."
        )
    differing = len(first.frame.compare(second.frame))
    if differing != 1:
        raise ValueError(
            f"neighbours must differ in exactly one row, at the same index; these differ in {differing}. Try "
            f"opposite_corners()."
        )


def check_simulated(*tables: Any) -> None:
    """Raise unless all tables are simulated and the first and last share one schema."""
    for table in tables:
        if isinstance(table, PrivateTable):
            raise TypeError(
                "an audit takes simulated tables only; got a PrivateTable. The result depends on the rows without "
                "noise, and the many runs would need an unbounded budget. Simulate rows under the same schema."
            )
        if not isinstance(table, SyntheticTable):
            raise TypeError(f"an audit takes two SyntheticTables of simulated rows; got {type(table).__name__}.")
    if tables[0].schema != tables[-1].schema:
        raise ValueError("the two tables must share one schema. Build both with the same Schema.")
