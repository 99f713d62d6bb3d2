"""Audit a generator or a weight estimator: a lower bound of the epsilon that it really has, on two simulated tables.

For curators and reviewers. An algorithm that claims (epsilon, delta) must behave almost alike on two tables that
differ in one row. `audit` runs it many times on both and looks for an event that is more probable on one of them than
the claim allows. Such an event refutes the claim, up to a stated probability of error. Finding none proves nothing:
other tables, or a sharper look, may find more. An audit finds the slip between a proof, in a docstring, and its code.

How to choose the tables. They are simulated, never private: the result depends on the rows without any noise. Let the
row that differs stand at opposite extremes of the schema, as `opposite_corners` does; not always is that the worst
pair. A logistic regression, for one, listens to a row the less, the better it already explains it: let synthetic rows
make the differing row surprising, and no row hold the fit in place against it. Few rows and columns make runs fast, and
a larger epsilon takes fewer runs.

What is observed. Where the charged event promises the noisy values themselves (Gaussian, Laplace, cube and spherical
noise, selections, gradient steps), they are observed. So is the result, unless in 61 runs that were given another
table's outcomes it followed from them alone: a rarer leak beside the noise takes ``observe=``. Where the noise is a
secret of the algorithm (objective perturbation) only the result is observed. When a fit asks for noise once, that
request alone is repeated on its values, which is much faster; otherwise the whole algorithm runs each time. Give an
algorithm that draws public randomness a fixed ``random_seed``: else its result is no function of the noisy values.

References
----------
Jagielski, Ullman & Oprea (NeurIPS 2020); Nasr et al. (USENIX Security 2023); Dong, Roth & Su (JRSS-B 2022) for mu.
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
from iwbayes.curator.plan import check_whole
from iwbayes.curator.privacy.accounting import check_budget, gaussian_multiplier, joint_multiplier
from iwbayes.curator.privacy.noise import NoiseSource, SeededNoise
from iwbayes.curator.protocols import Generator, WeightEstimator, is_generator, is_weight_estimator
from iwbayes.display import wrapped
from iwbayes.schema import Schema
from iwbayes.statement import ROW_ADJACENCIES, Event, RowAdjacency
from iwbayes.tables import PrivateTable, SyntheticTable

#: Fewest runs that can say anything.
LEAST_RUNS = 100


@dataclass(frozen=True)
class AuditResult:
    """What an audit found.

    Parameters
    ----------
    algorithm : str
        What was audited, with its settings.
    epsilon : float
        Lower bound of the true epsilon at ``nominal_delta``.
    mu : float
        Lower bound of the true mu of Gaussian differential privacy: of the distance between the two distributions in
        standard deviations. With ``confidence`` both bounds hold together.
    confidence : float
    n_runs : int
        On each of the two tables.
    nominal_epsilon, nominal_delta : float
        The guarantee that was asked for.
    nominal_mu : float or None
        The mu of one Gaussian mechanism with that guarantee; None when not all charged noise is Gaussian.
    charged_epsilon : float
        What a ledger charges for a run at ``nominal_delta``; may be more than was asked for.
    charged_mu : float or None
        The mu of all charged noise together; None when not all of it is Gaussian.
    events : tuple of Event
        What was charged.
    adjacency : {"replace-one", "zero-out"}
    observed : str
    statistic : str
        Of the event that gave ``epsilon``.
    """

    algorithm: str
    epsilon: float
    mu: float
    confidence: float
    n_runs: int
    nominal_epsilon: float
    nominal_delta: float
    nominal_mu: float | None
    charged_epsilon: float
    charged_mu: float | None
    events: tuple[Event, ...]
    adjacency: str
    observed: str
    statistic: str

    @property
    def passed(self) -> bool:
        """Whether neither bound is above what was asked for; it proves nothing."""
        return self.epsilon <= self.nominal_epsilon and (self.nominal_mu is None or self.mu <= self.nominal_mu)

    @property
    def charge_holds(self) -> bool:
        """Whether neither bound is above what was charged, so that a statement of the run stands unrefuted."""
        return self.epsilon <= self.charged_epsilon and (self.charged_mu is None or self.mu <= self.charged_mu)

    def __str__(self) -> str:
        """Say what was found, and what it means."""
        n_events = sum(event.count for event in self.events)
        of_mu = "" if self.nominal_mu is None else f" (claimed: {self.nominal_mu:.4g})"
        if self.passed:
            verdict = [
                "  Passed: nothing was found against the claim. That is no proof of it: other tables or a",
                "  sharper statistic may find more.",
            ]
        else:
            verdict = [
                f"  FAILED: the claim is refuted; a true one fails with probability {1 - self.confidence:.2g} at most.",
                f"  What was charged {'stands unrefuted' if self.charge_holds else 'is refuted as well'}.",
            ]
        lines = [
            f"Audit of {self.algorithm}",
            f"  claimed: epsilon {self.nominal_epsilon:.4g} at delta {self.nominal_delta:.3g} under {self.adjacency}; "
            f"charged: epsilon {self.charged_epsilon:.4g}, {n_events} event(s)",
            f"  found: epsilon at least {self.epsilon:.4g}, mu at least {self.mu:.4g}{of_mu}, "
            f"with confidence {self.confidence:g}",
            f"  from {self.n_runs} runs on each table, observing {self.observed}",
            *verdict,
        ]
        return wrapped("\n".join(lines))


def audit(
    algorithm: Generator | WeightEstimator,
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

    Parameters
    ----------
    algorithm : Generator or WeightEstimator
        Settings; `fit` is called on a fresh ledger without a limit each time.
    first, second : SyntheticTable
        Simulated rows that take the place of the private ones: one schema, the same number of rows, and exactly one
        row differs, at the same place.
    epsilon, delta : float
        Passed to ``fit``: the guarantee to be refuted.
    synthetic : SyntheticTable, optional
        The rows to weight; an estimator needs them, a generator takes none.
    adjacency : {"replace-one", "zero-out"}
        Of the ledger. No table holds a null row, so for "zero-out" the two tables are two steps apart, through the
        table where the row is null, and the bounds are divided accordingly: a claim of (epsilon, delta) means
        (2 epsilon, (1 + exp(epsilon)) delta) between them, one of mu means 2 mu.
    n_runs : int
        Runs on each table. A quarter fits statistics, a quarter chooses the event, half give the bound, which cannot
        exceed about log(n_runs/20). Where the whole algorithm has to run each time, a few thousand do.
    confidence : float
        Chance, at least, that both bounds are below the truth.
    noise : callable
        From a seed to a noise source, so that another one, or a defective one, can be audited.
    observe : callable, optional
        From what ``fit`` returns to numbers. They are then all that is observed, and the whole algorithm runs each
        time. What it sees has to be released: observing a secret refutes nothing.
    random_seed : int, optional
        Of the noise. Reruns with the same seed give the same result.

    Returns
    -------
    AuditResult

    Raises
    ------
    TypeError
        When a table is private: what an audit returns depends on its rows without noise, and costs without limit.
    ValueError
        When the tables are no neighbours, or a setting is out of range.

    Examples
    --------
    >>> import iwbayes as iw
    >>> schema = iw.Schema(iw.Binary("y"))
    >>> first, second = opposite_corners(schema, 10)
    >>> print(audit(iw.BayesNet(), first, second, epsilon=1.0, random_seed=1))
    Audit of BayesNet(max_parents=2, max_bins=128, theta=2.0, bins_share=0.25, structure_share=0.1)
      claimed: epsilon 1 at delta 0 under replace-one; charged: epsilon 1, 1 event(s)
      found: epsilon at least 0.9..., mu at least 0.7..., with confidence 0.999
      from 20000 runs on each table, observing the noisy values
      Passed: nothing was found against the claim. That is no proof of it: other tables or a
      sharper statistic may find more.

    A source that draws too little noise is found out:

    >>> class Halved(iw.SeededNoise):
    ...     def laplace(self, values, scale):
    ...         return super().laplace(values, scale / 2)
    >>> audit(iw.BayesNet(), first, second, epsilon=1.0, noise=Halved, random_seed=1).passed
    False
    """
    epsilon, delta = check_budget(epsilon, delta)
    if adjacency not in ROW_ADJACENCIES:
        raise ValueError(f"adjacency must be one of {list(ROW_ADJACENCIES)}; got {adjacency!r}.")
    check_whole("n_runs", n_runs, LEAST_RUNS)
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must be between 0 and 1; got {confidence!r}. Use for example 0.999.")
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
    """Two tables to start an audit with: all rows at one corner of the schema, but for one at the opposite corner.

    Every row stands at the lower bounds and first levels; in the second table the first row stands at the upper
    bounds and last levels. That is the largest change of a sum of linear features. It need not be the worst pair for
    other algorithms: passing it shows no more than that.

    Parameters
    ----------
    schema : Schema
    n : int
        Rows of each table, at least 1.

    Returns
    -------
    first, second : SyntheticTable
    """
    n = check_whole("n", n)
    columns: Iterable[Any] = schema  # of either kind
    ends = {c.name: (c.levels[0], c.levels[-1]) if hasattr(c, "levels") else (c.lower, c.upper) for c in columns}
    first = pd.DataFrame({name: [low] * n for name, (low, _) in ends.items()})
    second = pd.DataFrame({name: [high] + [low] * (n - 1) for name, (low, high) in ends.items()})
    made_up = partial(SyntheticTable, schema=schema, origin="simulated", already_spent=(0, 0))
    return made_up(first), made_up(second)


def _check_algorithm(algorithm: object, synthetic: SyntheticTable | None) -> None:
    weighs = is_weight_estimator(algorithm)
    if not (weighs or is_generator(algorithm)):
        raise TypeError(f"algorithm must be a generator or a weight estimator; got {algorithm!r}.")
    if synthetic is not None and not isinstance(synthetic, SyntheticTable):
        raise TypeError(f"synthetic must be a SyntheticTable; got {type(synthetic).__name__}.")
    if weighs and synthetic is None:
        raise ValueError(f"{type(algorithm).__name__} weights synthetic rows. Give them as synthetic=.")
    if not weighs and synthetic is not None:
        raise ValueError(f"{type(algorithm).__name__} takes no synthetic rows. Leave synthetic= out.")


def check_neighbours(first: SyntheticTable, second: SyntheticTable) -> None:
    """Refuse tables that are private, or do not differ in exactly one row."""
    check_simulated(first, second)
    if len(first) != len(second):
        raise ValueError(f"neighbours have the same number of rows; got {len(first)} and {len(second)}.")
    differing = len(first.frame.compare(second.frame))
    if differing != 1:
        raise ValueError(f"neighbours differ in exactly one row, at the same place; these differ in {differing}.")


def check_simulated(*tables: Any) -> None:
    """Refuse everything but simulated rows under one schema."""
    for table in tables:
        if isinstance(table, PrivateTable):
            raise TypeError(
                "an audit takes simulated tables only; got a PrivateTable. What it returns depends on the rows without "
                "noise, and its many runs would cost an unbounded budget. Simulate rows under the same schema."
            )
        if not isinstance(table, SyntheticTable):
            raise TypeError(f"an audit takes two SyntheticTables of simulated rows; got {type(table).__name__}.")
    if tables[0].schema != tables[-1].schema:
        raise ValueError("the two tables must share one schema.")
