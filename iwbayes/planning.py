"""plan(): the noise of a release, and the lengths of a formula's intervals, before any private row is touched."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import pandas as pd

from iwbayes._warnings import PrivacyWarning
from iwbayes.curator.plan import Plan, check_whole, warn_of_delta
from iwbayes.curator.plan import plan as plan_noise
from iwbayes.curator.privacy.accounting import check_budget
from iwbayes.curator.protocols import Generator, WeightEstimator
from iwbayes.display import WIDTH, fill, html_table, text_table, wrapped
from iwbayes.features.scores import ScoreModel
from iwbayes.measurement import TERMS_OF_MODELS
from iwbayes.publishing import weights_for
from iwbayes.release import Release
from iwbayes.schema import Schema, check_schema
from iwbayes.statement import Adjacency
from iwbayes.tables import SyntheticTable

if TYPE_CHECKING:
    from iwbayes.analyst.regression.families import Family, FamilyName

#: Budgets that one table of text shows beside each other.
_BUDGETS_IN_A_ROW = 6


@dataclass(frozen=True, eq=False, repr=False)
class IntervalPlan:
    """Lengths of a regression's intervals that releases of simulated rows gave, at one budget or several.

    Parameters
    ----------
    formula : str
    n : int
        Number of private rows.
    rows_from : str
        What the simulated rows were drawn from, a sentence.
    plans : tuple of Plan
        One for each epsilon, in increasing order.
    simulations : pandas.DataFrame
        One row a simulation, epsilon and parameter. Columns ``simulation``, ``epsilon``, ``parameter``, ``ratio`` (the
        length of the calibrated 90 % interval over that from the simulated rows themselves, with the sandwich
        covariance; NaN where the fit failed), ``calibrated``, whether the parameter was, and ``verdict`` of the fit, or
        "failed: " and the reason.
    """

    formula: str
    n: int
    rows_from: str
    plans: tuple[Plan, ...]
    simulations: pd.DataFrame

    @cached_property
    def lengths(self) -> pd.DataFrame:
        """Median ratio of lengths over the simulations; index ``epsilon``, a column each parameter."""
        names = self.simulations["parameter"].unique()
        ratios = self.simulations.groupby(["epsilon", "parameter"])["ratio"].median()
        return ratios.unstack("parameter").reindex(columns=names)

    @cached_property
    def calibrated(self) -> pd.Series:
        """Share of the parameters of the simulated fits that were calibrated, by ``epsilon``."""
        return self.simulations.groupby("epsilon")["calibrated"].mean()

    def epsilon_for(self, ratio: float = 2.0, *, parameter: str | None = None) -> float:
        """Return the epsilon at which intervals are so many times as long as the private rows' own.

        Ratios are made decreasing in epsilon by isotonic regression, and interpolated linearly in log epsilon. Only
        budgets take part at which most parameters were calibrated.

        Parameters
        ----------
        ratio : float
            Above 1.
        parameter : str, optional
            By default the one with the longest interval at each epsilon, so that all others are shorter.

        Returns
        -------
        float

        Raises
        ------
        ValueError
            If there is no such parameter, fewer than two budgets are calibrated, or the ratio is not between those that
            were simulated: nothing is extrapolated.

        Examples
        --------
        >>> import iwbayes as iw
        >>> schema = iw.Schema(iw.Real("x", 0, 1), iw.Binary("y"))
        >>> planned = iw.plan(
        ...     schema, 1000, epsilon=[0.5, 3], delta=1e-6, formula="y ~ x",
        ...     n_simulations=2, random_seed=1, progressbar=False,
        ... )
        >>> 0.5 < planned.epsilon_for(2.0, parameter="x") < 3
        True
        """
        if parameter is not None and parameter not in self.lengths:
            raise ValueError(f"parameter must be one of {list(self.lengths)}; got {parameter!r}.")
        found = (self.lengths.max(axis=1) if parameter is None else self.lengths[parameter])[self.calibrated > 0.5]
        if len(found) < 2:
            remedy = self.advice or "Plan with more epsilons."
            raise ValueError(
                f"it takes two budgets at which most parameters are calibrated; there are {len(found)}. {remedy}"
            )
        from scipy.optimize import isotonic_regression

        ratios = isotonic_regression(found.to_numpy(), increasing=False).x
        if not ratios[-1] <= ratio <= ratios[0]:
            more, why = ("larger", "") if ratio < ratios[-1] else ("smaller", self.advice)
            raise ValueError(
                f"ratio must be within what was simulated where most parameters are calibrated, {ratios[-1]:.3g} at "
                f"epsilon {found.index[-1]:g} to {ratios[0]:.3g} at {found.index[0]:g}; got {ratio!r}. Plan with a "
                f"{more} epsilon as well. {why}".rstrip()
            )
        return float(np.exp(np.interp(ratio, ratios[::-1], np.log(found.index.to_numpy(dtype=float))[::-1])))

    @property
    def advice(self) -> str:
        """What to do where most parameters are not calibrated; empty where they are."""
        poor = [plan for plan in self.plans if not self.calibrated[plan.epsilon] > 0.5]
        if not poor:
            return ""
        at = ", ".join(f"{plan.epsilon:g}" for plan in poor)
        named = poor[0].terms.startswith(TERMS_OF_MODELS)
        remedy = "take more rows or a larger epsilon" if named else f"name it by for_models=[{self.formula!r}]"
        return f"At epsilon {at} do not expect calibrated intervals, whose lengths mean little then: {remedy}."

    def __str__(self) -> str:
        """Say the lengths in a table and in words."""
        return self.summary()

    __repr__ = __str__

    def summary(self, *, width: int = WIDTH) -> str:
        """Lengths and verdicts in a few lines of plain text, of at most so many columns."""
        title, header, rows, notes = self._shown()
        lines = fill(title, later="  ", width=width).split("\n")
        for start in range(1, len(header), _BUDGETS_IN_A_ROW):
            kept = slice(start, start + _BUDGETS_IN_A_ROW)
            some = [[row[0], *row[kept]] for row in rows]
            names = [header[0], *header[kept]]
            lines.append(text_table(names, some, indent="  ", width=width, right=len(names) - 1))
        return "\n".join([*lines, *(wrapped(f"  {note}", width=width) for note in notes)])

    def _repr_html_(self) -> str:
        """Show the same in a notebook."""
        title, header, rows, notes = self._shown()
        return html_table(title, header, rows, notes=notes)

    def _shown(self) -> tuple[str, list[str], list[list[str]], list[str]]:
        """Return a title, a table of texts with its header, and sentences below it."""
        n_simulations = self.simulations["simulation"].nunique()
        title = (
            f"{self.formula}, {self.n} rows, delta {self.plans[0].delta:g}: length of 90 % intervals over "
            f"the private rows' own, median of {n_simulations} simulation{'s' * (n_simulations > 1)}"
        )
        header = ["epsilon", *(f"{epsilon:g}" for epsilon in self.lengths.index)]
        rows = [[str(name), *(f"{ratio:.2f}" for ratio in ratios)] for name, ratios in self.lengths.items()]
        rows.append(["calibrated", *(f"{share:.0%}" for share in self.calibrated)])
        return title, header, rows, [*self._answers(), self.rows_from, *filter(None, [self.advice])]

    def _answers(self) -> list[str]:
        """Say what one budget gives; of several, which gives intervals of twice the length."""
        if len(self.plans) > 1:
            with suppress(ValueError):
                return [f"No interval is more than twice as long from epsilon {self.epsilon_for(2.0):.2g} on."]
            return []
        epsilon = self.lengths.index[0]
        ratios = self.lengths.loc[epsilon].dropna()
        if ratios.empty:
            return [f"At epsilon {epsilon:g} no fit succeeded; {self.simulations['verdict'].iloc[0]}"]
        verdict = f"expected verdict {'' if self.calibrated[epsilon] > 0.5 else 'not '}calibrated"
        return [
            f"At epsilon {epsilon:g} the interval of {ratios.idxmax()} is about {ratios.max():.2g} times the private "
            f"rows' own, {verdict}."
        ]


@overload
def plan(
    schema: Schema,
    n: int,
    *,
    epsilon: float,
    delta: float,
    generator: Generator | None = None,
    weights: WeightEstimator | None = None,
    for_models: Sequence[str | ScoreModel] = (),
    response: str | None = None,
    share: float = 0.3,
    adjacency: Adjacency = "replace-one",
    rows_per_user: int = 1,
    formula: None = None,
) -> Plan: ...
@overload
def plan(
    schema: Schema,
    n: int,
    *,
    epsilon: float | Sequence[float],
    delta: float,
    generator: Generator | None = None,
    weights: WeightEstimator | None = None,
    for_models: Sequence[str | ScoreModel] = (),
    response: str | None = None,
    share: float = 0.3,
    adjacency: Adjacency = "replace-one",
    formula: str,
    family: FamilyName | Family | None = None,
    like: SyntheticTable | pd.DataFrame | Release | None = None,
    n_simulations: int = 5,
    random_seed: int | np.random.Generator | None = None,
    progressbar: bool = True,
) -> IntervalPlan: ...
def plan(
    schema: Schema,
    n: int,
    *,
    epsilon: float | Sequence[float],
    delta: float,
    generator: Generator | None = None,
    weights: WeightEstimator | None = None,
    for_models: Sequence[str | ScoreModel] = (),
    response: str | None = None,
    share: float = 0.3,
    adjacency: Adjacency = "replace-one",
    rows_per_user: int = 1,
    formula: str | None = None,
    family: FamilyName | Family | None = None,
    like: SyntheticTable | pd.DataFrame | Release | None = None,
    n_simulations: int = 5,
    random_seed: int | np.random.Generator | None = None,
    progressbar: bool = True,
) -> Plan | IntervalPlan:
    """Tell the expected noise of `publish`, or the lengths of a regression's intervals, before it touches a row.

    Without a formula it tells the noise and the features. They are built on rows drawn uniformly within the schema's
    bounds, since the synthetic rows do not exist yet.

    With a formula it simulates: it draws rows, publishes them as planned with seeded noise, fits the formula to the
    release, and compares the lengths of its 90 % intervals with those of the same fit to the simulated rows.

    Parameters
    ----------
    schema : Schema
    n : int
        Number of private rows (public).
    epsilon : float or sequence of float
        Several only with a formula.
    delta, generator, weights, for_models, response, share, adjacency
        As in `publish`. The formula is not named to the release unless `for_models` does.
    rows_per_user : int
        Most rows that a user owns, under "replace-user"; not with a formula.
    formula : str, optional
        Regression as `fit` takes it.
    family : str, optional
        As in `fit`.
    like : SyntheticTable, pandas.DataFrame or Release, optional
        Public rows that are like the private ones, to draw from with replacement: a public table that fits the schema,
        or an earlier release, whose rows are drawn by their weights. Without it rows are uniform within the schema, and
        the response depends on no predictor. Never private rows: no budget covers that look at them.
    n_simulations : int
        Simulated tables, the same at each epsilon. One takes a second or two for 5,000 rows and each
        epsilon.
    random_seed : int or numpy.random.Generator, optional
        Of the simulations.
    progressbar : bool
        Show the simulations where the error stream is a terminal.

    Returns
    -------
    Plan
        Without a formula.
    IntervalPlan
        With one: prints the ratios of lengths and the expected verdict, and holds them as a DataFrame.

    Raises
    ------
    TypeError
        For a `PrivateTable` as `like`, or another wrong type.
    ValueError
        For values that do not fit, as in `publish` and `fit`.

    Warns
    -----
    PrivacyWarning
        As in `publish`.

    Examples
    --------
    >>> import iwbayes as iw
    >>> schema = iw.Schema(iw.Real("x", 0, 1), iw.Binary("y"))
    >>> iw.plan(schema, 1000, epsilon=1.0, delta=1e-6).terms
    'quadratic'
    >>> planned = iw.plan(
    ...     schema, 1000, epsilon=[1, 3], delta=1e-6, formula="y ~ x", n_simulations=2, random_seed=1, progressbar=False
    ... )
    >>> planned.lengths.round(1)  # doctest: +SKIP
    parameter  Intercept    x
    epsilon
    1                1.6  1.6
    3                1.2  1.2
    """
    check_schema(schema)
    if np.ndim(epsilon) and formula is None:
        raise ValueError("several epsilons go with a formula, for which each gives lengths. Pass one, or one epsilon.")
    if formula is None and not (family is None and like is None):
        raise ValueError("family and like are for the intervals of a formula. Pass one, or leave them out.")
    if formula is not None and (adjacency == "replace-user" or rows_per_user != 1):
        raise ValueError("intervals are never calibrated where people own several rows. Plan without a formula.")
    if formula is not None and not isinstance(formula, str):
        raise TypeError(f"formula must be a string such as 'y ~ a + b'; got {type(formula).__name__}.")
    several: Any = epsilon if np.ndim(epsilon) else [epsilon]
    budgets = sorted({check_budget(one, delta)[0] for one in several})
    if not budgets:
        raise ValueError("epsilon must be at least one number; got none.")
    own = weights_for(weights, for_models, response, schema)
    settings: dict[str, Any] = {"generator": generator, "weights": own, "share": share}
    settings |= {"delta": delta, "adjacency": adjacency}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivacyWarning)  # given below, once and to the caller
        plans = [plan_noise(schema, n, epsilon=one, rows_per_user=rows_per_user, **settings) for one in budgets]
    warn_of_delta(delta, "users" if adjacency == "replace-user" else "rows", n)
    if formula is None:
        return plans[0]
    check_whole("n_simulations", n_simulations)
    from iwbayes.coverage.lengths import simulated_lengths

    simulations, rows_from = simulated_lengths(
        schema,
        int(n),
        formula,
        family,
        like,
        budgets,
        settings,
        n_simulations=n_simulations,
        rng=np.random.default_rng(random_seed),
        progressbar=progressbar,
    )
    return IntervalPlan(formula, int(n), rows_from, tuple(plans), simulations)
