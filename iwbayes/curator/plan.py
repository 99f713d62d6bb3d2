"""plan(): the features that a release will measure, and their noise, from public facts alone."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from iwbayes.curator.generators.bayesnet.bayesnet import BayesNet
from iwbayes.curator.named_models import weights_for
from iwbayes.curator.pipeline import JointEvents, own_delta
from iwbayes.curator.privacy.accounting import check_budget, largest_scale, small_delta
from iwbayes.curator.privacy.ledger import BudgetExceeded, Ledger
from iwbayes.curator.protocols import Generator, PublicFacts, WeightProvider, is_generator
from iwbayes.curator.weight_providers.staged import StagedTilt
from iwbayes.curator.weight_providers.tilt import TiltWeights
from iwbayes.evidence.measurement import noise_advice, noise_in_words
from iwbayes.evidence.scores import ScoreModel
from iwbayes.release.statement import Adjacency, Event
from iwbayes.schema import Schema, check_schema
from iwbayes.tables import SyntheticTable
from iwbayes.utils import checks
from iwbayes.utils.display import html_table, wrapped
from iwbayes.utils.warnings import PrivacyWarning

#: Synthetic rows for each private row by default.
ROWS_PER_PRIVATE_ROW = 5
#: Rows of the public reference table that `plan` reads the noise from.
_PLAN_ROWS = 4096


@dataclass(frozen=True, repr=False)
class Plan:
    """Expected noise and features of a release, from public quantities only.

    Parameters
    ----------
    epsilon_generator, epsilon_weights : float
        Nominal epsilon of each part after joint calibration.
    events : tuple of Event
        Uses of the private rows that the release will charge.
    terms : str
        Feature terms that the tilt is expected to keep.
    n_features : int
        Number of measured features.
    noise_sd : float
        Standard deviation of the noise in each coordinate of the features' mean.
    noise_ratio : float
        The noise ratio: the noise divided by the synthetic standard deviation, over all features. Less is better. Above
        0.5, even the smallest set of features is too noisy. The release of a small table usually has a larger noise
        ratio, because its rows vary less than uniform ones. A fit's kappa is a different number: it is for one
        parameter, and has a separate limit.
    epsilon, delta : float
        Budget of both parts together.
    stage_noise_sd : tuple of float, default ()
        ``noise_sd`` of each stage, the last one included, if the tilt is measured in stages; otherwise empty.

    Examples
    --------
    >>> import iwbayes as iw
    >>> found = iw.plan(iw.Schema(iw.Binary("y"), iw.Binary("x")), 2000, epsilon=1.0, delta=1e-6)
    >>> found.terms, found.n_features, found.advice
    ('quadratic', 3, '')
    """

    epsilon_generator: float
    epsilon_weights: float
    events: tuple[Event, ...]
    terms: str
    n_features: int
    noise_sd: float
    noise_ratio: float
    epsilon: float
    delta: float
    stage_noise_sd: tuple[float, ...] = ()

    def __str__(self) -> str:
        """Show the plan as text."""
        title, facts = self._facts()
        lines = [title, *(f"  {name}: {value}" for name, value in facts)]
        return wrapped("\n".join([*lines, f"  {self.advice}"] if self.advice else lines))

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """Show the plan as a table in a notebook."""
        title, facts = self._facts()
        return html_table(title, ("", "value"), facts, notes=[self.advice] if self.advice else [])

    def _facts(self) -> tuple[str, list[tuple[str, str]]]:
        """Return a title with the budget, and pairs of a name and a value."""
        facts = [
            ("generator", f"epsilon {self.epsilon_generator:.4g} alone"),
            ("weights", f"epsilon {self.epsilon_weights:.4g} alone"),
            ("measured", f"{self.terms}{'' if self.stage_noise_sd else ' terms'}, {self.n_features} features"),
            ("noise", f"sd {self.noise_sd:.4g} in each feature"),
            ("noise ratio", noise_in_words(self.noise_ratio)),
        ]
        if self.stage_noise_sd:
            sds = ", ".join(f"{sd:.3g}" for sd in self.stage_noise_sd)
            facts.insert(4, ("by stage", f"{len(self.stage_noise_sd)} stages, sd {sds}"))
        return f"Plan of a release at epsilon {self.epsilon:g} and delta {self.delta:g}", facts

    @property
    def advice(self) -> str:
        """How to improve the plan if few regressions will be calibrated; otherwise empty."""
        return noise_advice(self.noise_ratio, self.n_features, self.terms)


def plan(
    schema: Schema,
    n: int,
    *,
    epsilon: float,
    delta: float,
    generator: Generator | None = None,
    weights: WeightProvider | None = None,
    for_models: Sequence[str | ScoreModel] = (),
    response: str | None = None,
    share: float = 0.3,
    adjacency: Adjacency = "replace-one",
    rows_per_user: int = 1,
) -> Plan:
    """Predict the noise of `publish` without using any private row.

    Use it to choose a budget. It returns the expected noise and the measured features. The synthetic rows, on which the
    release builds its features, do not exist yet, so it uses rows drawn uniformly within the bounds of the schema.
    `plan_intervals` predicts the lengths of intervals.

    Parameters
    ----------
    schema : Schema
        Declaration of the private table.
    n : int
        Number of private rows (public).
    epsilon, delta, generator, weights, for_models, response, share, adjacency
        As in `publish`.
    rows_per_user : int, default 1
        Largest number of rows per user, for adjacency "replace-user".

    Returns
    -------
    Plan

    Raises
    ------
    TypeError, ValueError
        If an argument is invalid; see `publish`.

    Warns
    -----
    PrivacyWarning
        If delta is at least one over the number of rows (or users), which `publish` refuses.

    Examples
    --------
    >>> import iwbayes as iw
    >>> schema = iw.Schema(iw.Real("x", 0, 1), iw.Binary("y"))
    >>> iw.plan(schema, 1000, epsilon=1.0, delta=1e-6).terms
    'quadratic'
    """
    check_schema(schema)
    generator = BayesNet() if generator is None else generator
    if not is_generator(generator):
        raise TypeError(f"plan takes a generator with its settings; got {type(generator).__name__}. Pass BayesNet().")
    tilt = weights_for(weights, for_models, response, schema)
    epsilon, delta = check_budget(epsilon, delta)
    checks.whole("n", n)
    if not isinstance(tilt, TiltWeights | StagedTilt):
        raise TypeError(
            f"plan computes the noise of TiltWeights and StagedTilt only; got {type(tilt).__name__}. See its events()."
        )
    checks.whole("rows_per_user", rows_per_user)
    if rows_per_user > 1 and adjacency != "replace-user":
        raise ValueError(
            f"under {adjacency!r} every person owns one row; got rows_per_user={rows_per_user}. Use "
            f"adjacency='replace-user' for users with several rows."
        )
    facts = PublicFacts(schema, int(n), ROWS_PER_PRIVATE_ROW * int(n), adjacency, int(rows_per_user))
    events = JointEvents(facts, generator, tilt, share, epsilon, delta)
    t = largest_scale(events, epsilon, delta, adjacency=adjacency)
    warn_of_delta(delta, "users" if adjacency == "replace-user" else "rows", int(n))
    own, rest = events.parts(t)
    reference = uniform_table(schema, _PLAN_ROWS, random_seed=0)
    measured = tilt.planned(reference, facts, epsilon=rest, delta=own_delta(tilt, delta))
    return Plan(
        own,
        rest,
        events(t),
        measured.terms,
        measured.features.dim,
        measured.noise_sd,
        measured.noise_ratio,
        epsilon,
        delta,
        measured.stage_noise_sd,
    )


def uniform_table(schema: Schema, n: int, *, random_seed: int | np.random.Generator | None = None) -> SyntheticTable:
    """Return rows drawn uniformly within the schema's bounds and levels: a public reference, not data."""
    from iwbayes.curator.generators.tables.bins import ColumnBins

    rng = np.random.default_rng(random_seed)
    columns = {}
    for column in schema:
        bins = ColumnBins.of(column, 128)
        columns[column.name] = bins.values(rng.choice(bins.size, n, p=bins.even_shares), rng)
    return SyntheticTable(pd.DataFrame(columns), schema, origin="uniform", already_spent=(0, 0))


def check_delta(delta: float, ledger: Ledger) -> None:
    """Raise BudgetExceeded if delta is larger than the ledger's."""
    if delta > ledger.delta:
        raise BudgetExceeded(
            f"the release's delta must be at most the ledger's, {ledger.delta:g}; got {delta:g}. The ledger counts "
            f"costs at its own delta, so the release would cost more epsilon than requested. Pass a smaller delta; "
            f"nothing was drawn."
        )


def warn_of_delta(delta: float, units: str, n: int, *, stacklevel: int = 3) -> None:
    """Warn if `publish` will refuse delta, because it is so large; the warning points at the caller's caller."""
    if delta >= 1 / n:
        warnings.warn(
            f"delta {delta:g} is at least one over the number of {units} ({n}): {units} may be exposed completely with "
            f"that probability, and publish refuses it. Use a delta well below {1 / n:.2g}, such as "
            f"{small_delta(n):g}.",
            PrivacyWarning,
            stacklevel=stacklevel,
        )
