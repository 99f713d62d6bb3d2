"""The main task in one call: publish a table, analyse the release, and compare it with the private rows.

The table is public, so analyses of the private rows can be shown, too. All seeds are fixed, including that of the
privacy noise: the release is reproducible and therefore protects nobody, and it says so.
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
from iwbayes.schema import Categorical, Integer, Schema
from iwbayes.tables import PrivateTable
from iwbayes.utils.archive import write_atomically
from iwbayes.utils.display import fill
from iwbayes.utils.warnings import CalibrationWarning

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from iwbayes.models.families import FamilyName

EPSILON, DELTA = 2.0, 1e-6
N_SYNTHETIC = 40_000
LEVEL = 0.9  # of the intervals
MOST_VISITS = 12  # one per month: a bound that is public and keeps the scores of a count model bounded
_COVARIATES = "lncoins + idp + lpi + fmde + physlm + disea + health"
#: What is analysed: title, formula and family.
MODELS: dict[str, tuple[str, FamilyName]] = {
    "any doctor visit (logistic)": (f"any_visit ~ {_COVARIATES}", "bernoulli"),
    "number of visits (Poisson)": (f"visits ~ {_COVARIATES}", "poisson"),
}
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
    "The seed of the privacy noise is known, so this release protects nobody and is marked as not certified. Publish "
    "real data with the default noise."
)
_COLUMNS = 80  # width of the printed result
_STEPS = 50  # of Newton's method at most
PRIVATE, UNWEIGHTED, WEIGHTED, CALIBRATED = METHODS = (
    "private rows",
    "synthetic, unweighted",
    "weighted, uncalibrated",
    "weighted, calibrated",
)


@dataclass(frozen=True, eq=False)
class DemoResult:
    """Results of one demonstration.

    `table` has columns model, coefficient, method, mean, lower, upper (90 % intervals) and calibrated (missing for
    private rows). `source` is `REAL` or `SIMULATED`. `files` has the paths "release" and "figure" if they were written.
    """

    table: pd.DataFrame
    release: Release
    source: str
    files: dict[str, Path]

    def contained(self) -> pd.DataFrame:
        """Return whether each method's interval contains the private estimate, by model and coefficient (rows)."""
        wide = self.table.pivot(index=["model", "coefficient"], columns="method")
        target = wide["mean"][PRIVATE]
        return pd.DataFrame(
            {m: (wide["lower"][m] <= target) & (target <= wide["upper"][m]) for m in METHODS if m != PRIVATE}
        )

    def verdict(self) -> str:
        """Say for each model whether the intervals are calibrated."""
        own = self.table[self.table["method"] == CALIBRATED]
        said = []
        for model, rows in own.groupby("model", sort=False):
            bad = [LABELS.get(name, name) for name in rows.loc[~rows["calibrated"].astype(bool), "coefficient"]]
            name = model.partition("(")[2].rstrip(")")
            which = f"{len(bad)} of {len(rows)} NOT calibrated ({', '.join(bad[:2])}{', ...' if len(bad) > 2 else ''})"
            said.append(f"{name} {which if bad else 'calibrated'}")
        return "; ".join(said)

    def __str__(self) -> str:
        """Show the result, first the counts, on a terminal of 80 columns."""
        counts = self.contained().sum()
        total = len(self.contained())
        lines = [
            f"{self.source}: {self.release.n_private:,} rows",
            f"90 % intervals that contain the estimate of the private rows (epsilon {EPSILON:g}):",
            *(f"  {method:<24}{counts[method]:>3} of {total}" for method in (CALIBRATED, WEIGHTED, UNWEIGHTED)),
            "",
            *_interval_lines(self.table),
            "",
            fill(f"Verdict of iwbayes: {self.verdict()}.", later="  ", width=_COLUMNS),
            fill(_PROTECTS_NOBODY, width=_COLUMNS),
        ]
        return "\n".join(lines)


def _interval_lines(table: pd.DataFrame) -> list[str]:
    """Lines with the private and the calibrated interval of each coefficient, for both models."""
    rows = table.set_index(["model", "coefficient", "method"])
    lines = [
        f"{'':<20}" + "".join(f"  {model:<28}" for model in MODELS).rstrip(),
        f"{'':<20}" + "".join(f"  {method:<13}" for _ in MODELS for method in ("private rows", "calibrated")).rstrip(),
    ]
    for name in dict.fromkeys(table["coefficient"]):
        pairs = (rows.loc[(m, name, method), ["lower", "upper"]] for m in MODELS for method in (PRIVATE, CALIBRATED))
        lines.append(f"{LABELS.get(name, name):<20}" + "".join(f"  {low:6.3f} {high:6.3f}" for low, high in pairs))
    return lines


def run_demo(
    *,
    seed: int = 1,
    output: str | os.PathLike[str] | None = None,
    n_synthetic: int = N_SYNTHETIC,
    progress: Callable[[str], None] = lambda step: None,
) -> DemoResult:
    """Publish the RAND table for two regressions, and compare their results with those of the private rows.

    `seed` sets the privacy noise, the sampling and the posteriors. If statsmodels is not installed, the table is
    simulated. ``rand.iwb`` and ``rand.png`` go to the folder `output`, which is created if necessary, and replace
    earlier ones. `progress` is called with the name of each step before the step starts.
    """
    progress("reading the table")
    private, source = _private_table()
    progress("publishing")
    from iwbayes.analyst.fit import fit
    from iwbayes.analyst.quantities.intervals import intervals
    from iwbayes.curator.privacy.noise import SeededNoise
    from iwbayes.curator.publish import publish
    from iwbayes.models.regression_scores import RegressionModel

    models = [RegressionModel(formula, family) for formula, family in MODELS.values()]
    settings: dict[str, Any] = {"noise": SeededNoise(seed), "random_seed": seed, "progressbar": False}
    release = publish(private, epsilon=EPSILON, delta=DELTA, n_synthetic=n_synthetic, for_models=models, **settings)
    tables = []
    for model, (formula, family) in MODELS.items():
        progress(f"{PRIVATE}: {model}")
        estimate = _private_estimate(formula, private.frame, private.schema, family)
        tables.append(estimate.assign(model=model, method=PRIVATE))
        for method in METHODS[1:]:
            progress(f"{method}: {model}")
            of = release.unweighted() if method == UNWEIGHTED else release
            options: dict[str, Any] = {"calibrate": "auto" if method == CALIBRATED else "none", "progressbar": False}
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", CalibrationWarning)  # the verdict says it
                idata = fit(formula, of, family=family, random_seed=seed, log_likelihood=False, **options)
            posterior = intervals(idata, prob=LEVEL).reset_index()
            tables.append(posterior.assign(model=model, method=method))
    columns = ["model", "coefficient", "method", "mean", "lower", "upper", "calibrated"]
    found = DemoResult(pd.concat(tables, ignore_index=True)[columns], release, source, {})
    if output is not None:
        progress("writing")
        found.files.update(_write(Path(output), found))
    return found


def _private_table() -> tuple[PrivateTable, str]:
    """Return the table with visits up to 12 and three levels of health, and its source."""
    real = importlib.util.find_spec("statsmodels") is not None
    frame, schema = load_rand_health() if real else simulate_rand_health(random_seed=1)
    poor = {"fair": "fair or poor", "poor": "fair or poor"}
    frame = frame.assign(health=frame["health"].astype(str).replace(poor))
    levels = ("excellent", "good", "fair or poor")
    own = {"visits": Integer("visits", 0, MOST_VISITS), "health": Categorical("health", levels)}
    published = Schema(*(own.get(column.name, column) for column in schema))
    return PrivateTable(frame, published), REAL if real else SIMULATED  # clips the visits


def _private_estimate(formula: str, frame: pd.DataFrame, schema: Schema, family: FamilyName) -> pd.DataFrame:
    """Maximum likelihood by Newton's method with sandwich intervals, independent of the package's own fits."""
    from iwbayes.models.design import build_design

    design = build_design(formula, frame, schema, family)
    x, y = design.x, design.y
    logistic = family == "bernoulli"
    estimate = np.zeros(x.shape[1])
    # with an intercept of the right size Newton's steps converge without damping
    share = y.mean()
    estimate[0] = np.log(share / (1 - share)) if logistic else np.log(share)
    for _ in range(_STEPS):
        mean = 1 / (1 + np.exp(-x @ estimate)) if logistic else np.exp(x @ estimate)
        inverse = np.linalg.inv((x.T * (mean * (1 - mean) if logistic else mean)) @ x)
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
    """Write the release and the figure, whose title is its result."""
    folder.mkdir(parents=True, exist_ok=True)
    files = {"release": folder / "rand.iwb", "figure": folder / "rand.png"}
    found.release.save(files["release"], overwrite=True, allow_uncertified=True)
    image = io.BytesIO()
    demo_figure(found).savefig(image, dpi=150)
    write_atomically(files["figure"], image.getvalue(), overwrite=True)
    return files


def demo_figure(found: DemoResult) -> Figure:
    """Draw the intervals of both models relative to the private rows; the title is the result."""
    from matplotlib.figure import Figure

    from iwbayes.reporting.forest import plot_forest

    counts, total = found.contained().sum(), len(found.contained())
    figure = Figure(figsize=(12, 7), layout="constrained")
    figure.suptitle(
        f"Calibrated intervals contain the private estimate of {counts[CALIBRATED]} of {total} coefficients, "
        f"unweighted synthetic rows {counts[UNWEIGHTED]}\n{found.source}, epsilon {EPSILON:g}; {found.verdict()}",
        fontsize="large",
    )
    for ax, model in zip(figure.subplots(1, len(MODELS)), MODELS, strict=True):
        table = found.table[found.table["model"] == model]
        table = table.assign(coefficient=[LABELS.get(name, name) for name in table["coefficient"]])
        plot_forest(table, methods=METHODS, reference=PRIVATE, ax=ax)
        ax.set_title(model)
    return figure
