"""The claim of the package in one call: how many intervals of twenty releases contain the true coefficients.

The table is public, so the truth is known, and so are intervals from the private rows. All seeds are fixed, including
that of the privacy noise: the releases are reproducible and therefore protect nobody, and they say so.
"""

from __future__ import annotations

import importlib.util
import io
import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from scipy.stats import norm

from iwbayes.datasets import load_rand_health, simulate_rand_health
from iwbayes.release import Release
from iwbayes.schema import Categorical, Schema
from iwbayes.tables import PrivateTable
from iwbayes.utils.archive import write_atomically
from iwbayes.utils.display import fill
from iwbayes.utils.warnings import IwbayesWarning

if TYPE_CHECKING:
    from matplotlib.figure import Figure

EPSILON, DELTA = 1.0, 1e-6
N_RELEASES, N_PRIVATE = 20, 5000  # private rows of each release; there are as many synthetic ones
LEVEL = 0.9  # of the intervals
TITLE = "any doctor visit (logistic)"
FORMULA = "any_visit ~ lncoins + idp + lpi + fmde + physlm + disea + health"
#: Coefficients in words.
LABELS = {
    "Intercept": "intercept",
    "lncoins": "coinsurance (log)",
    "idp": "individual plan",
    "lpi": "incentive (log)",
    "fmde": "max. expense (log)",
    "physlm": "physical limitation",
    "disea": "chronic diseases",
    "health[good]": "health: good",
    "health[fair or poor]": "health: fair or poor",
}
REAL, SIMULATED = "RAND health insurance experiment", "SIMULATED table (statsmodels is not installed)"
_PROTECTS_NOBODY = (
    "The seeds of the privacy noise are known, so these releases protect nobody and are marked as not certified. "
    "Publish real data with the default noise."
)
_COLUMNS = 80  # width of the printed result
_ENDS = (-4.0, 4.0)  # of the axis; intervals beyond end in an arrow
_STEPS = 50  # of Newton's method at most
CALIBRATED, PRIVATE, WEIGHTED, UNWEIGHTED = METHODS = (
    "weighted, calibrated",
    "private rows",
    "weighted, uncalibrated",
    "synthetic, unweighted",
)


@dataclass(frozen=True, eq=False)
class DemoResult:
    """Results of one demonstration.

    `table` has columns release, coefficient, method, mean, lower, upper (90 % intervals) and calibrated (missing for
    private rows), and `truth` the coefficients of the whole table. `first` is the first release. `source` is `REAL` or
    `SIMULATED`. `files` has the paths "release" and "figure" if they were written.
    """

    table: pd.DataFrame
    truth: pd.Series
    first: Release
    source: str
    files: dict[str, Path]

    def contained(self) -> pd.DataFrame:
        """Return whether each method's interval contains the true coefficient, by release and coefficient (rows)."""
        true = self.table["coefficient"].map(self.truth)
        table = self.table.assign(contained=(self.table["lower"] <= true) & (true <= self.table["upper"]))
        wide = table.pivot(index=["release", "coefficient"], columns="method", values="contained")
        return wide[[method for method in METHODS if method in wide]]

    def coverage(self) -> pd.DataFrame:
        """Return the share of the intervals that contain the truth, its standard error over releases, and lengths.

        The columns are share, se and length, the mean length over that of the private rows.
        """
        by_release = self.contained().groupby(level="release").mean()
        length = (self.table["upper"] - self.table["lower"]).groupby(self.table["method"]).mean()
        error = by_release.std() / np.sqrt(len(by_release))
        found = {"share": by_release.mean(), "se": error, "length": length / length[PRIVATE]}
        return pd.DataFrame(found).loc[by_release.columns]

    def verdict(self) -> str:
        """Say how many of the calibrated method's intervals the package itself calls calibrated."""
        own = self.table[self.table["method"] == CALIBRATED]
        return f"{int(own['calibrated'].astype(bool).sum())} of {len(own)} intervals called calibrated"

    def __str__(self) -> str:
        """Show the result, first the coverage, on a terminal of 80 columns."""
        found, n = self.coverage(), self.table["release"].nunique()
        lines = [
            f"{self.source}: {n} releases of {self.first.n_private:,} rows each, epsilon {EPSILON:g}",
            f"Regression: {TITLE}",
            "",
            "90 % intervals:            contain the true coefficient    length",
            *(
                f"  {method:<24}{f'{row.share:.0%}':>5} ± {f'{row.se:.0%}':<4}{row.length:>28.1f}"
                for method, row in found.iterrows()
            ),
            "",
            *self._of_first(),
            "",
            fill(f"iwbayes itself: {self.verdict()}.", later="  ", width=_COLUMNS),
            fill(_PROTECTS_NOBODY, width=_COLUMNS),
        ]
        return "\n".join(lines)

    def _of_first(self) -> list[str]:
        """Lines with the truth and the intervals of the first release."""
        rows = self.table[self.table["release"] == 1].set_index(["coefficient", "method"])
        shown = (PRIVATE, CALIBRATED)
        lines = [f"{'The first release':<22}{'true':>7}" + "".join(f"   {method:<20}" for method in shown).rstrip()]
        for name in dict.fromkeys(rows.index.get_level_values("coefficient")):
            both = (rows.loc[(name, method)] for method in shown)
            intervals = (f"   {row.lower:>6.3f} to {row.upper:>6.3f}    " for row in both)
            lines.append(f"{LABELS.get(name, name):<22}{self.truth[name]:>7.3f}" + "".join(intervals).rstrip())
        return lines


def run_demo(
    *,
    seed: int = 1,
    output: str | os.PathLike[str] | None = None,
    n_releases: int = N_RELEASES,
    n_private: int = N_PRIVATE,
    progress: Callable[[str], None] = lambda step: None,
) -> DemoResult:
    """Publish samples of the RAND table again and again, fit a regression, and compare it with that of the whole table.

    `seed` sets the samples, the privacy noise, the synthetic rows and the posteriors. If statsmodels is not installed,
    the table is simulated. ``rand.iwb`` (the first release) and ``rand.png`` go to the folder `output`, which is
    created if necessary, and replace earlier ones. `progress` is called with the name of each step before it starts.
    """
    progress("reading the table")
    frame, schema, source = _population()
    truth = _estimate(frame, schema).set_index("coefficient")["mean"]
    tables, first = [], None
    for number, seeds in enumerate(np.random.SeedSequence(seed).spawn(n_releases), start=1):
        progress(f"release {number} of {n_releases}")
        rng = np.random.default_rng(seeds)
        rows = frame.iloc[rng.integers(len(frame), size=n_private)].reset_index(drop=True)
        release, table = _one_release(PrivateTable(rows, schema), int(rng.integers(2**31)))
        tables.append(table.assign(release=number))
        first = release if first is None else first
    assert first is not None  # noqa: S101 - there is at least one release
    columns = ["release", "coefficient", "method", "mean", "lower", "upper", "calibrated"]
    found = DemoResult(pd.concat(tables, ignore_index=True)[columns], truth, first, source, {})
    if output is not None:
        progress("writing")
        found.files.update(_write(Path(output), found))
    return found


def _one_release(private: PrivateTable, seed: int) -> tuple[Release, pd.DataFrame]:
    """Publish a table for the regression, and return the release and the intervals of all methods."""
    from iwbayes.analyst.fit import fit
    from iwbayes.analyst.quantities.intervals import intervals
    from iwbayes.curator.privacy.noise import SeededNoise
    from iwbayes.curator.publish import publish

    settings: dict[str, Any] = {"noise": SeededNoise(seed), "random_seed": seed, "progressbar": False}
    settings["n_synthetic"] = len(private)  # fewer than the default, for speed
    tables = [_estimate(private.frame, private.schema).assign(method=PRIVATE)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", IwbayesWarning)  # the verdict says it
        release = publish(private, epsilon=EPSILON, delta=DELTA, for_models=[FORMULA], **settings)
        for method in (CALIBRATED, WEIGHTED, UNWEIGHTED):
            of = release.unweighted() if method == UNWEIGHTED else release
            options: dict[str, Any] = {"calibrate": "auto" if method == CALIBRATED else "none", "progressbar": False}
            idata = fit(FORMULA, of, random_seed=seed, log_likelihood=False, **options)
            tables.append(intervals(idata, prob=LEVEL).reset_index().assign(method=method))
    return release, pd.concat(tables, ignore_index=True)


def _population() -> tuple[pd.DataFrame, Schema, str]:
    """Return the table with three levels of health and without the number of visits, its schema, and its source."""
    real = importlib.util.find_spec("statsmodels") is not None
    frame, schema = load_rand_health() if real else simulate_rand_health(random_seed=1)
    poor = {"fair": "fair or poor", "poor": "fair or poor"}
    frame = frame.assign(health=frame["health"].astype(str).replace(poor)).drop(columns="visits")
    health = Categorical("health", ("excellent", "good", "fair or poor"))
    kept = (health if column.name == "health" else column for column in schema if column.name != "visits")
    published = Schema(*kept)
    return published.conform(frame), published, REAL if real else SIMULATED


def _estimate(frame: pd.DataFrame, schema: Schema) -> pd.DataFrame:
    """Maximum likelihood by Newton's method with sandwich intervals, independent of the package's own fits."""
    from iwbayes.models.design import build_design

    design = build_design(FORMULA, frame, schema, "bernoulli")
    x, y = design.x, design.y
    estimate = np.zeros(x.shape[1])
    # with an intercept of the right size Newton's steps converge without damping
    estimate[0] = np.log(y.mean() / (1 - y.mean()))
    for _ in range(_STEPS):
        mean = 1 / (1 + np.exp(-x @ estimate))
        inverse = np.linalg.inv((x.T * (mean * (1 - mean))) @ x)
        scores = x * (y - mean)[:, None]
        step = inverse @ scores.sum(axis=0)
        estimate = estimate + step
        if np.abs(step).max() < 1e-10:
            break
    half = norm.ppf((1 + LEVEL) / 2) * np.sqrt(np.diag(inverse @ scores.T @ scores @ inverse))
    found = {"mean": estimate, "lower": estimate - half, "upper": estimate + half}
    table = pd.DataFrame({"coefficient": list(design.parameter_names), **found})
    return table.assign(calibrated=pd.array([pd.NA] * len(table), dtype="boolean"))  # as `intervals` has it


def _write(folder: Path, found: DemoResult) -> dict[str, Path]:
    """Write the first release and the figure."""
    folder.mkdir(parents=True, exist_ok=True)
    files = {"release": folder / "rand.iwb", "figure": folder / "rand.png"}
    found.first.save(files["release"], overwrite=True, allow_uncertified=True)
    image = io.BytesIO()
    demo_figure(found).savefig(image, dpi=200)
    write_atomically(files["figure"], image.getvalue(), overwrite=True)
    return files


def demo_figure(found: DemoResult) -> Figure:
    """Draw how often each method's intervals contain the truth, and below it the intervals of the first release."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import PercentFormatter

    from iwbayes.reporting.drawing import GREY, colour, label_axes, label_rows, legend_below
    from iwbayes.reporting.forest import draw_forest

    figure = Figure(figsize=(6, 8.2), layout="constrained")
    above, below = figure.subplots(2, 1, height_ratios=(1, 4))
    coverage, n = found.coverage(), found.table["release"].nunique()
    for index, (method, row) in enumerate(coverage.iterrows()):
        own = colour(METHODS.index(str(method)))
        above.barh(index, row.share, xerr=row.se, color=own, ecolor=GREY, height=0.62)
        above.text(0.02, index, f"{row.share:.0%}", va="center", color="white", fontweight="bold")
    above.axvline(LEVEL, color=GREY, linewidth=1, linestyle="--")
    above.set_xlim(0, 1)
    above.xaxis.set_major_formatter(PercentFormatter(1))
    label_rows(above, list(coverage.index))
    label_axes(above, title=f"Of {n * len(found.truth)} intervals, how many contain the true coefficient?")
    above.set_xlabel(f"promised: {LEVEL:.0%} (dashed line)")
    rows = found.table[found.table["release"] == 1]
    own = rows[rows["method"] == PRIVATE].set_index("coefficient")
    half, truth = rows["coefficient"].map((own["upper"] - own["lower"]) / 2), rows["coefficient"].map(found.truth)
    apart = {name: (rows[name] - truth) / half for name in ("mean", "lower", "upper")}
    labels = [LABELS.get(name, name) for name in rows["coefficient"]]
    draw_forest(below, rows.assign(coefficient=labels, calibrated=pd.NA, **apart), METHODS, ends=_ENDS)
    label_axes(below, title="The 90 % intervals of the first release")
    below.set_xlabel("distance from the true coefficient\n(1: half the length of the interval of the private rows)")
    below.set_xticks(np.arange(_ENDS[0], _ENDS[1] + 1, 2))
    legend_below(below)
    return figure
