"""plan_intervals(): expected interval lengths of a regression, from simulated releases, without any private row."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from scipy.optimize import isotonic_regression

from iwbayes.analyst.fit import fit
from iwbayes.coverage.run import Fit, fitted, release_of_rows
from iwbayes.coverage.study import REFERENCE, bounds_of
from iwbayes.curator.named_models import weights_for
from iwbayes.curator.plan import Plan, plan, uniform_table, warn_of_delta
from iwbayes.curator.privacy.accounting import check_budget
from iwbayes.curator.privacy.ledger import Ledger
from iwbayes.curator.privacy.noise import SeededNoise
from iwbayes.curator.protocols import Generator, WeightProvider
from iwbayes.curator.publish import publish
from iwbayes.curator.settings import seeded
from iwbayes.evidence.measurement import TERMS_OF_MODELS
from iwbayes.evidence.scores import ScoreModel
from iwbayes.release import Release
from iwbayes.release.statement import RowAdjacency
from iwbayes.schema import Schema, check_schema
from iwbayes.tables import PrivateTable, SyntheticTable
from iwbayes.tables.released_columns import rare_references
from iwbayes.utils import checks
from iwbayes.utils.arrays import Array
from iwbayes.utils.display import WIDTH, fill, html_table, text_table, wrapped
from iwbayes.utils.frames import to_pandas
from iwbayes.utils.progress import progress
from iwbayes.utils.threads import one_blas_thread
from iwbayes.utils.warnings import CalibrationWarning, PrivacyWarning

if TYPE_CHECKING:
    from iwbayes.models.families import Family, FamilyName

#: Largest number of budgets in one plain-text table.
_BUDGETS_IN_A_ROW = 6
_LEVEL = 0.9


@dataclass(frozen=True, eq=False, repr=False)
class IntervalPlan:
    """Expected lengths of a regression's intervals by budget, from releases of simulated rows; see `plan_intervals`.

    Parameters
    ----------
    formula, n, rows_from : str, int, str
        The regression, the number of private rows, and a sentence that says where the simulated rows come from.
    plans : tuple of Plan
        One plan per epsilon, in increasing order.
    simulations : pandas.DataFrame
        One row per ``simulation``, ``epsilon`` and ``parameter``, with ``ratio``, the length of the calibrated 90 %
        interval over that from the simulated rows themselves (sandwich covariance), NaN if the fit failed;
        ``calibrated``, whether the parameter was; and ``verdict`` of the fit, or "failed: " and the reason.
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

        Ratios, made decreasing by isotonic regression, are interpolated linearly in log epsilon between budgets at
        which most parameters were calibrated.

        Parameters
        ----------
        ratio, parameter : float and str, optional
            Ratio of lengths, above 1, and the parameter. By default it is the largest ratio over the parameters.

        Raises
        ------
        ValueError
            If the parameter is unknown, fewer than two budgets are calibrated, or the ratio is not in their range.
        """
        if parameter is not None and parameter not in self.lengths:
            raise ValueError(f"parameter must be one of {list(self.lengths)}; got {parameter!r}.")
        found = (self.lengths.max(axis=1) if parameter is None else self.lengths[parameter])[self.calibrated > 0.5]
        if len(found) < 2:
            raise ValueError(
                f"interpolation needs two budgets at which most parameters are calibrated; there are {len(found)}. "
                f"{self.advice or 'Plan with more epsilons.'}"
            )
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

    def __repr__(self) -> str:
        return self.summary()

    def summary(self, *, width: int = WIDTH) -> str:
        """Return lengths and verdicts as plain text, with lines of at most ``width`` characters."""
        title, header, rows, notes = self._shown()
        lines = [fill(title, later="  ", width=width)]
        for start in range(1, len(header), _BUDGETS_IN_A_ROW):
            kept = slice(start, start + _BUDGETS_IN_A_ROW)
            names, *some = [[row[0], *row[kept]] for row in (header, *rows)]
            lines.append(text_table(names, some, indent="  ", width=width, right=len(names) - 1))
        return "\n".join([*lines, *(wrapped(f"  {note}", width=width) for note in notes)])

    def _repr_html_(self) -> str:
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
        found = f"the interval of {ratios.idxmax()} is about {ratios.max():.2g} times as long as from the private rows"
        verdict = f"{'' if self.calibrated[epsilon] > 0.5 else 'not '}calibrated"
        return [f"At epsilon {epsilon:g}, {found}. Expected verdict: {verdict}."]


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

    It draws rows, publishes them as planned (with seeded noise), fits the formula to the release, and compares the
    lengths of the 90 % intervals with the same fit to the simulated rows. `plan` predicts the noise alone.

    Parameters
    ----------
    schema, n : Schema, int
        Declaration and (public) number of rows of the private table.
    formula, family, epsilon, delta : str, str, float or sequence of float, float
        Regression, as in `fit`, and one or several privacy budgets.
    like : SyntheticTable, pandas.DataFrame or Release, optional
        Public table that fits the schema, or earlier release. Rows are drawn from it with replacement (a release's in
        proportion to its weights). By default rows are uniform within the schema, so the response depends on no
        predictor. Never pass private rows: no budget covers this use.
    generator, weights, for_models, response, share, adjacency, progressbar
        As in `publish`. The simulated releases do not measure the formula unless `for_models` names it.
    n_simulations, random_seed : int, default 5, and int, numpy.random.Generator or None
        Number of simulated tables, the same at each epsilon, and their seed. With 5,000 rows each takes one or two
        seconds per epsilon.

    Raises
    ------
    TypeError, ValueError
        If `like` is a `PrivateTable`, or an argument is invalid; see `publish` and `fit`. A delta of at least one over
        the number of rows, which `publish` refuses, is a PrivacyWarning here.

    Examples
    --------
    >>> schema = iw.Schema(iw.Real("x", 0, 1), iw.Binary("y"))
    >>> planned = iw.plan_intervals(
    ...     schema, 1000, epsilon=[0.5, 3], delta=1e-6, formula="y ~ x", n_simulations=2, random_seed=1
    ... )
    >>> 0.5 < planned.epsilon_for(1.5, parameter="x") < 3
    True
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
    settings: dict[str, Any] = {"generator": generator, "share": share, "delta": delta, "adjacency": adjacency}
    settings["weights"] = weights_for(weights, for_models, response, schema)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivacyWarning)  # warn_of_delta below warns once, with the caller's line
        plans = tuple(plan(schema, n, epsilon=one, **settings) for one in budgets)
    warn_of_delta(delta, "rows", n)
    checks.whole("n_simulations", n_simulations)
    draw, rows_from = population(schema, int(n), like, formula)
    published = schema.admitting("refuse")
    call = partial(fit, formula, family=family, log_likelihood=False, progressbar=False)
    rng, rows = np.random.default_rng(random_seed), []
    with progress(progressbar, "simulating releases", n_simulations) as step, warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivacyWarning)
        warnings.simplefilter("ignore", CalibrationWarning)  # the table says how many intervals are calibrated
        for number in range(n_simulations):
            with one_blas_thread():
                found = _simulated(PrivateTable(draw(rng), published), call, budgets, settings, rng)
            rows += [{"simulation": number, **row} for row in found]
            step()
    simulations = pd.DataFrame(rows)
    names = sorted(simulations["parameter"].unique())
    rare = [] if like is None else rare_references(*_public_rows(schema, like), names)
    return IntervalPlan(formula, int(n), " ".join([rows_from, *(one.text for one in rare)]), plans, simulations)


def population(
    schema: Schema, n: int, like: Any, formula: str
) -> tuple[Callable[[np.random.Generator], pd.DataFrame], str]:
    """Return a function that draws n public rows, and a sentence about their source."""
    if isinstance(like, PrivateTable):
        raise TypeError(
            "like must be public rows; got a PrivateTable. A plan from private rows would use them without any budget. "
            "Pass a public table or an earlier release, or leave it out."
        )
    if like is None:
        return (
            lambda rng: uniform_table(schema, n, random_seed=rng).frame,
            f"Simulated rows are uniform within the schema, so {formula.partition('~')[0].strip()} does not depend on "
            f"any predictor. For a more realistic answer, give a public table with like=.",
        )
    if not isinstance(like, SyntheticTable | Release):
        like = to_pandas(like, "like")
    table, shares = _public_rows(schema, like)
    frame, p = table.frame, shares / shares.sum()
    kind = "rows of an earlier release, by their weights" if isinstance(like, Release) else "rows of a public table"
    return (
        lambda rng: frame.iloc[rng.choice(len(frame), n, p=p)].reset_index(drop=True),
        f"Simulated rows are drawn from the {len(frame)} {kind}.",
    )


def _public_rows(schema: Schema, like: Any) -> tuple[SyntheticTable, Array]:
    """Return public rows as a table of the schema, which they must fit, and their shares (row,)."""
    table = like.synthetic if isinstance(like, Release) else like
    rows = SyntheticTable(table.frame if isinstance(table, SyntheticTable) else schema.conform(table), schema)
    return rows, like.weights.values / len(rows) if isinstance(like, Release) else np.full(len(rows), 1 / len(rows))


def _simulated(
    private: PrivateTable, call: Fit, budgets: Sequence[float], settings: dict[str, Any], rng: np.random.Generator
) -> list[dict[str, Any]]:
    """Fit simulated rows, and their release at each budget; return the ratio of lengths per parameter."""
    noise, sample, posterior, train = rng.integers(2**31, size=4).tolist()
    lower, upper = bounds_of(_LEVEL)

    def lengths(name: str, release: Release) -> tuple[dict[str, tuple[float, bool]], str]:
        rows = fitted(name, call, release, None, (_LEVEL,), posterior)
        of_each = {row["parameter"]: (row[upper] - row[lower], bool(row["calibrated"])) for row in rows}
        return of_each, str(rows[0]["verdict"])

    # the statement of a ledger with seeded noise and no charges: it is not certified
    own, _ = lengths(REFERENCE, release_of_rows(private, Ledger(1.0, 0.0, noise=SeededNoise(noise)).statement()))
    parts = {name: seeded(settings[name], train) for name in ("generator", "weights")}
    found = []
    for epsilon in budgets:
        try:
            seeds: dict[str, Any] = {"noise": SeededNoise(noise), "random_seed": sample}
            release = publish(private, epsilon=epsilon, **seeds, progressbar=False, **settings | parts)
            those, verdict = lengths("release", release)
        except (RuntimeError, ValueError) as error:  # the fit to the simulated rows worked, the fit to the release not
            those, verdict = {}, f"failed: {' '.join(str(error).split())}"
        for name, (length, _) in own.items():
            other, good = those.get(name, (np.nan, False))
            row = {"ratio": other / length, "calibrated": good, "verdict": verdict}
            found.append({"epsilon": float(epsilon), "parameter": name, **row})
    return found
