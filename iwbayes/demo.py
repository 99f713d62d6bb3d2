"""The main job on real people's data, in one call: publish the RAND table, analyse the release, compare.

The table is public, so that the analyses of the private rows can be shown beside those of the release. Seeds are fixed,
also those of the privacy noise: the release is reproducible and therefore protects nobody, and it says so.
"""

from __future__ import annotations

import io
import os
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from scipy.stats import norm

from iwbayes._archive import write_atomically
from iwbayes._warnings import CalibrationWarning
from iwbayes.datasets import load_rand_health
from iwbayes.display import fill
from iwbayes.release import Release
from iwbayes.tables import PrivateTable

if TYPE_CHECKING:
    from iwbayes.analyst.regression.families import FamilyName
    from iwbayes.schema import Schema

EPSILON, DELTA = 1.0, 1e-6
N_SYNTHETIC = 100_000
LEVEL = 0.9  # of the intervals
_COVARIATES = "lncoins + idp + lpi + fmde + physlm + disea + health"
#: What is analysed: title, formula and family.
MODELS: dict[str, tuple[str, FamilyName]] = {
    "any doctor visit (logistic)": (f"any_visit ~ {_COVARIATES}", "bernoulli"),
    "number of visits (Poisson)": (f"visits ~ {_COVARIATES}", "poisson"),
}
_COLUMNS = 80  # width of what the demonstration says
PRIVATE, UNWEIGHTED, WEIGHTED, CALIBRATED = METHODS = (
    "private rows",
    "synthetic, unweighted",
    "weighted, uncalibrated",
    "weighted, calibrated",
)
_FITS: dict[str, dict[str, Any]] = {
    UNWEIGHTED: {"weights": "uniform", "calibrate": "none"},
    WEIGHTED: {"calibrate": "none"},
    CALIBRATED: {"calibrate": "auto"},
}


@dataclass(frozen=True, eq=False)
class DemoResult:
    """What one demonstration found.

    The table has columns model, coefficient, method, mean, lower, upper (90 % intervals); `model_based` has model,
    coefficient and ratio: sandwich over model-based standard error on the private rows. `seconds` are the wall-clock
    times of the steps, `messages` the warnings of the calibrated fits, and `files` "release" and "figure" where they
    were written.
    """

    table: pd.DataFrame
    model_based: pd.DataFrame
    release: Release
    seed: int
    seconds: dict[str, float]
    messages: tuple[str, ...]
    files: dict[str, Path]

    def contained(self) -> pd.DataFrame:
        """Whether each method's interval contains the private estimate.

        Returns
        -------
        pandas.DataFrame of bool
            Indexed by model and coefficient, one column for each method but the private one.
        """
        wide = self.table.pivot(index=["model", "coefficient"], columns="method")
        target = wide["mean"][PRIVATE]
        return pd.DataFrame(
            {m: (wide["lower"][m] <= target) & (target <= wide["upper"][m]) for m in METHODS if m != PRIVATE}
        )

    def __str__(self) -> str:
        """Tables for reading, on a terminal of 80 columns."""
        shares = self.contained()
        lines = [
            "RAND health insurance experiment: the 90 % interval of every coefficient.",
            f"Release: epsilon {EPSILON:g}, delta {DELTA:g}, seed {self.seed}; "
            f"{len(self.release.synthetic)} synthetic rows for {self.release.n_private}.",
        ]
        for model in MODELS:
            lines += ["", *_model_lines(self.table[self.table["model"] == model], model)]
            ratio = self.model_based.loc[self.model_based["model"] == model, "ratio"].median()
            lines.append(f"  Private intervals: sandwich errors, {ratio:.1f} times the model-based ones (median).")
        lines += ["", "Intervals that contain the estimate of the private rows:"]
        lines += [f"  {method:<24}{shares[method].sum():>3} of {len(shares)}" for method in shares]
        lines += [fill(f"Warning: {message}", later="  ", width=_COLUMNS) for message in self.messages]
        lines += [
            "",
            fill(
                "The seeds are fixed for this demonstration, those of the privacy noise too: whoever knows them can "
                "undo it, so this release is marked as not certified. Publish real data with the default noise.",
                width=_COLUMNS,
            ),
        ]
        return "\n".join(lines)


def _model_lines(table: pd.DataFrame, model: str) -> list[str]:
    heads = [method.partition(" ")[::2] for method in METHODS]  # two lines each
    lines = [model, *(f"  {'':<12} " + " ".join(f"{head[i]:<15}" for head in heads).rstrip() for i in (0, 1))]
    rows = table.set_index(["coefficient", "method"])
    for name in dict.fromkeys(table["coefficient"]):
        cells = []
        for method in METHODS:
            lower, upper = rows.loc[(name, method), ["lower", "upper"]]
            cells.append(f"[{lower:6.3f},{upper:6.3f}]")
        lines.append(f"  {name:<12} " + " ".join(cells))
    return lines


def run_demo(
    *,
    seed: int = 1,
    output: str | os.PathLike[str] | None = None,
    n_synthetic: int = N_SYNTHETIC,
    progress: Callable[[str], None] | None = None,
) -> DemoResult:
    """Publish the RAND table at epsilon 1 and compare two regressions of its release with the private rows.

    The seed is that of the privacy noise, the sampling and the posteriors: the demonstration is reproducible, and its
    release not certified. ``rand.iwb`` and ``rand.png`` go to the folder ``output``, made where it is absent, and
    replace earlier ones. ``progress`` is told each step before it starts. ModuleNotFoundError where statsmodels is
    absent: ``pip install "iwbayes[demo]"``.
    """
    seconds: dict[str, float] = {}

    @contextmanager
    def clock(step: str) -> Iterator[None]:
        if progress is not None:
            progress(step)
        start = time.perf_counter()
        yield
        seconds[step] = time.perf_counter() - start

    with clock("reading the table"):
        frame, schema = load_rand_health()
        private = PrivateTable(frame, schema)
    with clock("publishing"):
        from iwbayes.curator.privacy.noise import SeededNoise
        from iwbayes.publishing import publish

        settings: dict[str, Any] = {"noise": SeededNoise(seed), "random_seed": seed, "progressbar": False}
        release = publish(private, epsilon=EPSILON, delta=DELTA, n_synthetic=n_synthetic, **settings)
    tables, ratios, messages = [], [], []
    for model, (formula, family) in MODELS.items():
        with clock(f"private rows: {model}"):
            estimate = _private_estimate(formula, private.frame, schema, family)
        tables.append(estimate.assign(model=model, method=PRIVATE))
        ratios.append(estimate[["coefficient", "ratio"]].assign(model=model))
        for method, options in _FITS.items():
            with clock(f"{method}: {model}"), warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always", CalibrationWarning)
                posterior = _fit(formula, release, family=family, random_seed=seed, **options)
            messages += [
                f"{model}: {' '.join(str(w.message).split())}" for w in caught if w.category is CalibrationWarning
            ]
            tables.append(posterior.assign(model=model, method=method))
    columns = ["model", "coefficient", "method", "mean", "lower", "upper"]
    table = pd.concat(tables, ignore_index=True)[columns]
    with clock("writing"):
        files = {} if output is None else _write(Path(output), release, table)
    return DemoResult(table, pd.concat(ratios, ignore_index=True), release, seed, seconds, tuple(messages), files)


def _private_estimate(formula: str, frame: pd.DataFrame, schema: Schema, family: FamilyName) -> pd.DataFrame:
    """Maximum likelihood with sandwich intervals, by statsmodels: an implementation that is not ours."""
    from statsmodels.genmod import families
    from statsmodels.genmod.generalized_linear_model import GLM

    from iwbayes.analyst.regression.design import build_design

    design = build_design(formula, frame, schema, family)
    distribution = {"bernoulli": families.Binomial, "poisson": families.Poisson}[family]()
    robust = GLM(design.y, design.x, family=distribution).fit(cov_type="HC0")
    plain = GLM(design.y, design.x, family=distribution).fit()
    half = norm.ppf((1 + LEVEL) / 2) * robust.bse
    found = {"mean": robust.params, "lower": robust.params - half, "upper": robust.params + half}
    return pd.DataFrame({"coefficient": list(design.parameter_names), **found, "ratio": robust.bse / plain.bse})


def _fit(formula: str, release: Release, **options: Any) -> pd.DataFrame:
    """Posterior means and equal-tailed intervals of the coefficients, by flat name."""
    from iwbayes.analyst import arviz_compat
    from iwbayes.analyst.arviz_compat import scalars
    from iwbayes.analyst.calibration.record import NOT_CALIBRATED
    from iwbayes.analyst.regression.fit import fit

    idata = fit(formula, release, progressbar=False, log_likelihood=False, **options)
    tails = [(1 - LEVEL) / 2, (1 + LEVEL) / 2]
    found = scalars(arviz_compat.group(idata, "posterior").drop_vars(NOT_CALIBRATED, errors="ignore"))
    rows = [(name, draws.mean(), *np.quantile(draws, tails)) for name, draws in found.items()]
    return pd.DataFrame(rows, columns=["coefficient", "mean", "lower", "upper"])


def _write(folder: Path, release: Release, table: pd.DataFrame) -> dict[str, Path]:
    from matplotlib.figure import Figure

    from iwbayes.analyst.reporting.plots import plot_comparison

    folder.mkdir(parents=True, exist_ok=True)
    files = {"release": folder / "rand.iwb", "figure": folder / "rand.png"}
    release.save(files["release"], overwrite=True, allow_uncertified=True)
    figure = Figure(figsize=(12, 6.5), layout="constrained")
    for ax, model in zip(figure.subplots(1, len(MODELS)), MODELS, strict=True):
        plot_comparison(table[table["model"] == model], methods=METHODS, reference=PRIVATE, ax=ax)
        ax.set_title(model)
    picture = io.BytesIO()
    figure.savefig(picture, dpi=150)
    write_atomically(files["figure"], picture.getvalue(), overwrite=True)
    return files
