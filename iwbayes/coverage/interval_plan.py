"""plan_intervals(): expected interval lengths of a regression, from simulated releases, without any private row."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from iwbayes.coverage.lengths import simulated_lengths
from iwbayes.curator.named_models import weights_for
from iwbayes.curator.plan import Plan, plan, warn_of_delta
from iwbayes.curator.privacy.accounting import check_budget
from iwbayes.curator.protocols import Generator, WeightProvider
from iwbayes.evidence.measurement import TERMS_OF_MODELS
from iwbayes.evidence.scores import ScoreModel
from iwbayes.release import Release
from iwbayes.release.statement import RowAdjacency
from iwbayes.schema import Schema, check_schema
from iwbayes.tables import SyntheticTable
from iwbayes.utils import checks
from iwbayes.utils.display import WIDTH, fill, html_table, text_table, wrapped
from iwbayes.utils.warnings import PrivacyWarning

if TYPE_CHECKING:
    from iwbayes.models.families import Family, FamilyName

#: Largest number of budgets in one plain-text table.
_BUDGETS_IN_A_ROW = 6


@dataclass(frozen=True, eq=False, repr=False)
class IntervalPlan:
    """Expected lengths of a regression's intervals at one or several budgets, from releases of simulated rows.

    `plan_intervals` returns it.

    Parameters
    ----------
    formula : str
        The regression.
    n : int
        Number of private rows.
    rows_from : str
        Sentence that says where the simulated rows come from.
    plans : tuple of Plan
        One plan per epsilon, in increasing order.
    simulations : pandas.DataFrame
        One row per simulation, epsilon and parameter. Columns: ``simulation``; ``epsilon``; ``parameter``; ``ratio``,
        the length of the calibrated 90 % interval divided by the length of the interval from the simulated rows
        themselves (sandwich covariance), NaN if the fit failed; ``calibrated``, whether the parameter was calibrated;
        and ``verdict``, the verdict of the fit, or "failed: " and the reason.
    """

    formula: str
    n: int
    rows_from: str
    plans: tuple[Plan, ...]
    simulations: pd.DataFrame

    @cached_property
    def lengths(self) -> pd.DataFrame:
        """Median ratio of lengths over the simulations: index ``epsilon``, one column per parameter."""
        names = self.simulations["parameter"].unique()
        ratios = self.simulations.groupby(["epsilon", "parameter"])["ratio"].median()
        return ratios.unstack("parameter").reindex(columns=names)

    @cached_property
    def calibrated(self) -> pd.Series:
        """Share of the parameters that were calibrated in the simulated fits; index ``epsilon``."""
        return self.simulations.groupby("epsilon")["calibrated"].mean()

    def epsilon_for(self, ratio: float = 2.0, *, parameter: str | None = None) -> float:
        """Return the epsilon at which intervals are ``ratio`` times as long as intervals from the private rows.

        Isotonic regression makes the ratios decreasing in epsilon; between budgets they are interpolated linearly in
        log epsilon. Only budgets at which most parameters were calibrated are used.

        Parameters
        ----------
        ratio : float, default 2.0
            Ratio of lengths, above 1.
        parameter : str, optional
            Name of a parameter. By default, the largest ratio over the parameters at each epsilon is used, so no
            interval is longer.

        Returns
        -------
        float
            The epsilon.

        Raises
        ------
        ValueError
            If the parameter is unknown, fewer than two budgets are calibrated, or the ratio is outside the simulated
            range: the method does not extrapolate.

        Examples
        --------
        >>> import iwbayes as iw
        >>> schema = iw.Schema(iw.Real("x", 0, 1), iw.Binary("y"))
        >>> planned = iw.plan_intervals(
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
                f"interpolation needs two budgets at which most parameters are calibrated; there are {len(found)}. "
                f"{remedy}"
            )
        from scipy.optimize import isotonic_regression

        ratios = isotonic_regression(found.to_numpy(), increasing=False).x
        if not ratios[-1] <= ratio <= ratios[0]:
            more, why = ("larger", "") if ratio < ratios[-1] else ("smaller", self.advice)
            raise ValueError(
                f"ratio must be within the simulated range (at budgets where most parameters are calibrated): "
                f"{ratios[-1]:.3g} at epsilon {found.index[-1]:g} to {ratios[0]:.3g} at epsilon {found.index[0]:g}; "
                f"got {ratio!r}. Plan with a {more} epsilon as well. {why}".rstrip()
            )
        return float(np.exp(np.interp(ratio, ratios[::-1], np.log(found.index.to_numpy(dtype=float))[::-1])))

    @property
    def advice(self) -> str:
        """Advice if most parameters are not calibrated at some budget; otherwise empty."""
        poor = [plan for plan in self.plans if not self.calibrated[plan.epsilon] > 0.5]
        if not poor:
            return ""
        at = ", ".join(f"{plan.epsilon:g}" for plan in poor)
        named = poor[0].terms.startswith(TERMS_OF_MODELS)
        remedy = "Use more rows or a larger epsilon" if named else f"Pass for_models=[{self.formula!r}]"
        return f"At epsilon {at}, do not expect calibrated intervals; their lengths mean little. {remedy}."

    def __str__(self) -> str:
        """Return the lengths as a table, with a summary in words."""
        return self.summary()

    __repr__ = __str__

    def summary(self, *, width: int = WIDTH) -> str:
        """Return lengths and verdicts as plain text.

        Parameters
        ----------
        width : int
            Longest line, in characters.

        Returns
        -------
        str
        """
        title, header, rows, notes = self._shown()
        lines = fill(title, later="  ", width=width).split("\n")
        for start in range(1, len(header), _BUDGETS_IN_A_ROW):
            kept = slice(start, start + _BUDGETS_IN_A_ROW)
            some = [[row[0], *row[kept]] for row in rows]
            names = [header[0], *header[kept]]
            lines.append(text_table(names, some, indent="  ", width=width, right=len(names) - 1))
        return "\n".join([*lines, *(wrapped(f"  {note}", width=width) for note in notes)])

    def _repr_html_(self) -> str:
        """Return the table as HTML, for notebooks."""
        title, header, rows, notes = self._shown()
        return html_table(title, header, rows, notes=notes)

    def _shown(self) -> tuple[str, list[str], list[list[str]], list[str]]:
        """Return title, table header, table rows, and notes."""
        n_simulations = self.simulations["simulation"].nunique()
        title = (
            f"{self.formula}, {self.n} rows, delta {self.plans[0].delta:g}: length of 90 % intervals relative to "
            f"intervals from the private rows, median of {n_simulations} simulation{'s' * (n_simulations > 1)}"
        )
        header = ["epsilon", *(f"{epsilon:g}" for epsilon in self.lengths.index)]
        rows = [[str(name), *(f"{ratio:.2f}" for ratio in ratios)] for name, ratios in self.lengths.items()]
        rows.append(["calibrated", *(f"{share:.0%}" for share in self.calibrated)])
        return title, header, rows, [*self._answers(), self.rows_from, *filter(None, [self.advice])]

    def _answers(self) -> list[str]:
        """Summarise the result of one budget; for several, say which epsilon gives intervals of twice the length."""
        if len(self.plans) > 1:
            with suppress(ValueError):
                return [f"From epsilon {self.epsilon_for(2.0):.2g}, no interval is more than twice as long."]
            return []
        epsilon = self.lengths.index[0]
        ratios = self.lengths.loc[epsilon].dropna()
        if ratios.empty:
            return [f"At epsilon {epsilon:g}, no fit succeeded; {self.simulations['verdict'].iloc[0]}"]
        verdict = f"{'' if self.calibrated[epsilon] > 0.5 else 'not '}calibrated"
        return [
            f"At epsilon {epsilon:g}, the interval of {ratios.idxmax()} is about {ratios.max():.2g} times as long as "
            f"from the private rows. Expected verdict: {verdict}."
        ]


def plan_intervals(
    schema: Schema,
    n: int,
    *,
    formula: str,
    epsilon: float | Sequence[float],
    delta: float,
    family: FamilyName | Family | None = None,
    like: SyntheticTable | pd.DataFrame | Release | None = None,
    generator: Generator | None = None,
    weights: WeightProvider | None = None,
    for_models: Sequence[str | ScoreModel] = (),
    response: str | None = None,
    share: float = 0.3,
    adjacency: RowAdjacency = "replace-one",
    n_simulations: int = 5,
    random_seed: int | np.random.Generator | None = None,
    progressbar: bool = True,
) -> IntervalPlan:
    """Predict the interval lengths of a regression, without using any private row.

    It simulates: it draws rows, publishes them as planned (with seeded noise), fits the formula to the release, and
    compares the lengths of the 90 % intervals with the same fit to the simulated rows themselves. `plan` predicts the
    noise alone, without simulations.

    Parameters
    ----------
    schema : Schema
        Declaration of the private table.
    n : int
        Number of private rows (public).
    formula : str
        Regression, as in `fit`.
    epsilon : float or sequence of float
        One or several privacy budgets.
    delta : float
        Privacy budget.
    family : str, optional
        Family of the regression, as in `fit`.
    like : SyntheticTable, pandas.DataFrame or Release, optional
        Public rows similar to the private rows. Rows are drawn from them with replacement: from a public table that
        fits the schema, or from an earlier release, in proportion to its weights. By default rows are uniform within
        the schema, so the response depends on no predictor. Never pass private rows: no budget covers this use.
    generator, weights, for_models, response, share, adjacency
        As in `publish`. The simulated releases do not measure the formula unless `for_models` names it.
    n_simulations : int, default 5
        Number of simulated tables, which are the same at each epsilon. For 5,000 rows, a simulation takes one or two
        seconds per epsilon.
    random_seed : int or numpy.random.Generator, optional
        Seed of the simulations.
    progressbar : bool, default True
        Show progress if the error stream is a terminal.

    Returns
    -------
    IntervalPlan
        Ratios of lengths and the expected verdict, also as a DataFrame.

    Raises
    ------
    TypeError
        If `like` is a `PrivateTable`, or another argument has the wrong type.
    ValueError
        If an argument has an invalid value; see `publish` and `fit`.

    Warns
    -----
    PrivacyWarning
        If delta is at least one over the number of rows, which `publish` refuses.

    Examples
    --------
    >>> import iwbayes as iw
    >>> schema = iw.Schema(iw.Real("x", 0, 1), iw.Binary("y"))
    >>> planned = iw.plan_intervals(
    ...     schema, 1000, epsilon=[1, 3], delta=1e-6, formula="y ~ x", n_simulations=2, random_seed=1, progressbar=False
    ... )
    >>> planned.lengths.round(1)  # doctest: +SKIP
    parameter  Intercept    x
    epsilon
    1                1.6  1.6
    3                1.2  1.2
    """
    check_schema(schema)
    if not isinstance(formula, str):
        raise TypeError(f"formula must be a string such as 'y ~ a + b'; got {type(formula).__name__}.")
    if adjacency == "replace-user":
        raise ValueError(
            "intervals cannot be planned if users own several rows, because such intervals are never calibrated. Use "
            "plan() for the noise."
        )
    several: Any = epsilon if np.ndim(epsilon) else [epsilon]
    budgets = sorted({check_budget(one, delta)[0] for one in several})
    if not budgets:
        raise ValueError("epsilon must be a number or a sequence of numbers; got an empty sequence.")
    settings: dict[str, Any] = {
        "generator": generator,
        "weights": weights_for(weights, for_models, response, schema),
        "share": share,
        "delta": delta,
        "adjacency": adjacency,
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivacyWarning)  # warn_of_delta below warns once, with the caller's line
        plans = tuple(plan(schema, n, epsilon=one, **settings) for one in budgets)
    warn_of_delta(delta, "rows", n)
    checks.whole("n_simulations", n_simulations)
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
    return IntervalPlan(formula, int(n), rows_from, plans, simulations)
