"""plan(): the features that a release will measure, and their noise, from public facts alone."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from iwbayes.curator.expected_lengths import ExpectedLength, expected_length
from iwbayes.curator.generators.bayesnet.bayesnet import BayesNet
from iwbayes.curator.named_models import weights_for
from iwbayes.curator.pipeline import JointEvents, own_delta
from iwbayes.curator.privacy.accounting import check_budget, largest_scale, small_delta
from iwbayes.curator.privacy.ledger import Ledger
from iwbayes.curator.protocols import Generator, PublicFacts, WeightProvider, is_generator
from iwbayes.curator.weight_providers.score_stages import BOUND_RANGE, NOISE_PART
from iwbayes.curator.weight_providers.tilt import CLIP_RANGE, MOST_DIRECTIONS, WIDE, TiltWeights
from iwbayes.evidence.feature_map import BoundedFeatures
from iwbayes.evidence.formulas import Span, model_terms
from iwbayes.evidence.measurement import (
    DIRECTIONS,
    FEATURES_OF_ONE_PREDICTOR,
    NOISE_TARGET,
    noise_advice,
    noise_in_words,
)
from iwbayes.evidence.scores import ScoreModel
from iwbayes.evidence.terms import Terms, count_raw_terms, raw_terms
from iwbayes.release.statement import Adjacency, Event
from iwbayes.schema import Binary, Categorical, Schema, check_schema
from iwbayes.schema.columns import Real
from iwbayes.tables import SyntheticTable
from iwbayes.tables.candidates import obeying_rows
from iwbayes.utils import checks
from iwbayes.utils.display import html_table, wrapped
from iwbayes.utils.warnings import PrivacyWarning

ROWS_PER_PRIVATE_ROW = 5  # synthetic rows, by default
_PLAN_ROWS = 4096  # of the public reference table that `plan` reads the noise from
#: The usual clip bound, the 95 % quantile of the norms, of k features of variance one: roughly this multiple of sqrt(k)
#: on uniform rows; and for cube noise, whose norm is the largest coordinate. A test compares the result with plans.
_NORM, _LARGEST = 1.2, 1.7


@dataclass(frozen=True, repr=False)
class Plan:
    """Expected noise and features of a release, from public quantities only; the result of `plan`."""

    #: Nominal epsilon of each part after joint calibration.
    epsilon_generator: float
    epsilon_weights: float
    #: Uses of the private rows that the release will charge.
    events: tuple[Event, ...]
    #: Feature terms that the tilt is expected to keep, and their number.
    terms: str
    n_features: int
    #: Standard deviation of the noise in each coordinate of the features' mean.
    noise_sd: float
    #: Noise divided by the synthetic standard deviation, over all features; less is better. Above 0.5, even the
    #: smallest set of features is too noisy. A small table's release usually has a larger one, because its rows vary
    #: less than uniform ones. It is not a fit's kappa, which is for one parameter.
    noise_ratio: float
    #: Budget of both parts together.
    epsilon: float
    delta: float
    #: `noise_sd` of each stage, the last one included, if the tilt is measured in stages; otherwise empty.
    stage_noise_sd: tuple[float, ...] = ()
    #: Epsilon that the release costs alone, at `delta`, and that of the whole ledger with it, at the ledger's delta.
    price: float = math.nan
    together: float = math.nan
    #: Number of private rows.
    n: int = 0
    #: What each column becomes: its number of ``features``, the ``bins`` or levels that the generator counts (if it is
    #: `BayesNet`), and the ``noise``, as standard deviation, of its mean in the unit of the column, or of the share of
    #: a level. Rows are uniform; the noise is NaN if the weights measure scores of models.
    columns: pd.DataFrame = field(default_factory=pd.DataFrame, compare=False)

    def __str__(self) -> str:
        title, facts = self._facts()
        lines = [title, *(f"  {name}: {value}" for name, value in facts)]
        return wrapped("\n".join([*lines, f"  {self.advice}"] if self.advice else lines))

    __repr__ = __str__

    def _repr_html_(self) -> str:
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
        if (found := self.expected) is not None:
            facts.append(
                (
                    "expected length",
                    f"{found.length:.2g} times the private rows' own intervals (half of {found.n_populations} "
                    f"populations: {found.low:.2g} to {found.high:.2g}); {found.calibrated:.0%} of coefficients "
                    f"calibrated",
                )
            )
        return f"Plan of a release at epsilon {self.epsilon:g} and delta {self.delta:g}", facts

    @property
    def expected(self) -> ExpectedLength | None:
        """Lengths of intervals to expect for the models of the release; None without models, or far from any study."""
        return expected_length(self.noise_sd * math.sqrt(self.n)) if self.stage_noise_sd and self.n else None

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
    n_synthetic: int | None = None,
    ledger: Ledger | None = None,
) -> Plan:
    """Predict the noise of `publish` without using any private row.

    It uses rows drawn uniformly within the bounds of the schema. `plan_intervals` predicts the lengths of intervals.

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
    n_synthetic : int, optional
        Number of synthetic rows, by default five per private row.
    ledger : Ledger, optional
        Ledger that the release will be charged to: its adjacency and rule determine the price, with all that it has
        charged. By default a new one. Nothing is charged.

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
    >>> found = iw.plan(iw.Schema(iw.Binary("y"), iw.Binary("x")), 2000, epsilon=1.0, delta=1e-6)
    >>> found.terms, found.n_features, found.advice
    ('quadratic', 3, '')
    """
    check_schema(schema)
    generator = BayesNet() if generator is None else generator
    if not is_generator(generator):
        raise TypeError(f"plan takes a generator with its settings; got {type(generator).__name__}. Pass BayesNet().")
    tilt = weights_for(weights, for_models, response, schema)
    epsilon, delta = check_budget(epsilon, delta)
    checks.whole("n", n)
    if not isinstance(tilt, TiltWeights):
        raise TypeError(f"plan computes the noise of TiltWeights only; got {type(tilt).__name__}. See its events().")
    checks.whole("rows_per_user", rows_per_user)
    if rows_per_user > 1 and adjacency != "replace-user":
        raise ValueError(
            f"under {adjacency!r} every person owns one row; got rows_per_user={rows_per_user}. Use "
            f"adjacency='replace-user' for users with several rows."
        )
    ledger = Ledger(epsilon, delta, adjacency) if ledger is None else ledger
    adjacency, rows = ledger.adjacency, ROWS_PER_PRIVATE_ROW * int(n) if n_synthetic is None else n_synthetic
    facts = PublicFacts(schema, int(n), checks.whole("n_synthetic", rows), adjacency, int(rows_per_user))
    events = JointEvents(facts, generator, tilt, share, epsilon, delta)
    t = largest_scale(events, epsilon, delta, cost=partial(ledger.price_of_release, delta=delta))
    warn_of_delta(delta, "users" if adjacency == "replace-user" else "rows", int(n))
    own, rest = events.parts(t)
    reference = uniform_table(schema, _PLAN_ROWS, random_seed=0)
    measured = tilt.planned(reference, facts, epsilon=rest, delta=own_delta(tilt, delta))
    size, noise = (measured.terms, measured.features.dim), (measured.noise_sd, measured.noise_ratio)
    noise_sd = math.nan if tilt.of_scores else measured.noise_sd
    columns = _columns(reference, noise_sd, facts, generator, own, own_delta(generator, delta))
    price = ledger.price_of_release(events(t), delta=delta), ledger.would_cost(*events(t), delta=delta)
    return Plan(own, rest, events(t), *size, *noise, epsilon, delta, measured.stage_noise_sd, *price, int(n), columns)


def _columns(
    reference: SyntheticTable, noise_sd: float, facts: PublicFacts, generator: Generator, epsilon: float, delta: float
) -> pd.DataFrame:
    """Return what each column becomes; see `Plan`."""
    bins: dict[str, int] = {}
    if isinstance(generator, BayesNet):
        own = replace(facts, schema=facts.schema.generated)
        bins = {each.column.name: each.size for each in generator.column_bins(own, epsilon=epsilon, delta=delta)}
    rows = {}
    for column in facts.schema:
        values = reference.frame[column.name]
        if isinstance(column, Binary | Categorical):
            share = 1 / len(column.levels)
            sd = math.sqrt(share * (1 - share))
        else:
            with np.errstate(over="ignore"):  # of the largest numbers
                sd = float(np.nanstd(values.to_numpy(dtype=np.float64, na_value=np.nan)))
        rows[column.name] = (len(column.feature_names), bins.get(column.name), noise_sd * sd)
    return pd.DataFrame.from_dict(rows, orient="index", columns=["features", "bins", "noise"])


def uniform_table(schema: Schema, n: int, *, random_seed: int | np.random.Generator | None = None) -> SyntheticTable:
    """Return rows drawn uniformly within the schema's bounds and levels: a public reference, not data."""
    from iwbayes.curator.generators.tables.bins import ColumnBins

    rng = np.random.default_rng(random_seed)

    def draw(number: int) -> pd.DataFrame:
        bins = {column.name: ColumnBins.of(column, 128) for column in schema.generated}
        return pd.DataFrame(
            {name: each.values(rng.choice(each.size, number, p=each.even_shares), rng) for name, each in bins.items()}
        )

    frame, _ = obeying_rows(schema.admitting("refuse"), draw, n, rng)
    return SyntheticTable(frame, schema, origin="uniform", already_spent=(0, 0))


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


@dataclass(frozen=True)
class _Size(BoundedFeatures):
    """Stand-in for features: their number and clip bound alone determine their noise."""

    bound: float
    order: float
    flag: bool
    number: int

    @property
    def n_coordinates(self) -> int:
        return self.number


def noise_warning(weights: WeightProvider, facts: PublicFacts, epsilon: float, delta: float) -> str:
    """Return a warning if few regressions will be calibrated with this budget of the weights, and "" otherwise.

    No row is read or made, and no model is fitted.
    """
    own = own_delta(weights, delta)
    if isinstance(weights, TiltWeights) and weights.of_scores:
        number = sum(_number_of_scores(model, facts.schema) for model in weights.for_models)
        ratio = _noise_ratio(weights, facts, number, epsilon, own, NOISE_PART, BOUND_RANGE)
        terms = "scores"
    elif isinstance(weights, TiltWeights):
        parts = weights.parts(facts, epsilon=epsilon, delta=own)
        for terms, number in _sizes(weights, facts.schema):  # noqa: B007 - the last set is measured in any case
            ratio = _noise_ratio(weights, facts, number, parts.epsilon, parts.delta, 1.0, CLIP_RANGE)
            if ratio <= NOISE_TARGET:
                break
    else:
        return ""
    advice = noise_advice(ratio, number, terms)
    return f"noise ratio about {noise_in_words(ratio)}. {advice}" if advice else ""


def _noise_ratio(
    weights: TiltWeights,
    facts: PublicFacts,
    number: int,
    epsilon: float,
    delta: float,
    part: float,
    limits: tuple[float, float],
) -> float:
    """Return the noise ratio of so many features; their clip bound has `part` and `limits` of `TiltWeights.design`."""
    cube = weights.mechanism == "cube"
    usual = _LARGEST if cube else _NORM * math.sqrt(number)

    def noise_sd(clip: float) -> float:
        size: Any = _Size(clip * usual, math.inf if cube else 2, True, number)
        return weights._noise_sd(size, facts, epsilon, delta)

    clip = float(np.clip(part / (noise_sd(1.0) * math.sqrt(facts.n_private)), *limits))
    return noise_sd(clip) * math.sqrt(number)


def _sizes(weights: TiltWeights, schema: Schema) -> list[tuple[str, int]]:
    """Return names and numbers of features of the sets that a tilt may measure, the largest first."""
    if not weights.for_models and count_raw_terms(schema, "linear") > WIDE:
        return [(f"{MOST_DIRECTIONS >> k} {DIRECTIONS}", MOST_DIRECTIONS >> k) for k in range(4)]
    return [(name, _number_of(terms, schema)) for name, terms in weights.options(schema)]


def _number_of(terms: Terms | Span, schema: Schema) -> int:
    """Return the number of directions that terms span: the first level of a column follows from its other levels."""
    first, firsts = 0, set()
    for column in schema:
        if column.kind == "categorical":
            firsts.add(first)
        first += len(column.feature_names)
    listed = raw_terms(schema, terms) if isinstance(terms, str | tuple) else terms
    return max(1, sum(firsts.isdisjoint(term) for term in listed))


def _number_of_scores(model: Any, schema: Schema) -> int:
    """Return the number of parameters of a model, or that of the smallest regression if its formula does not say it."""
    formula: Any = model.to_data().get("formula")
    try:
        found = model_terms(formula, schema)
    except (TypeError, ValueError):  # a function, or a formula with terms that are no polynomials
        return FEATURES_OF_ONE_PREDICTOR
    # a real response has a variance, too
    return _number_of(found.response - {()}, schema) * _number_of(found.design, schema) + isinstance(found.column, Real)
