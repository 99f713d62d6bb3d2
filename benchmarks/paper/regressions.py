"""Figure 2 of Ghalebikesabi et al. (UAI 2022): Bayesian regressions on weighted synthetic rows, epsilon 1 and 6.

    python benchmarks/paper/regressions.py --data FOLDER --output FOLDER     # 10 seeds; a second call goes on
    python benchmarks/paper/regressions.py --data FOLDER --seeds 1 --generators PrivBayes

Logistic regression on Banknote (four columns), linear regression on TGF-beta (172 genes, 210 private rows),
multinomial regression on Iris (four columns). 80 % of the rows are private. Rows come from a
GAN without privacy (CGAN; GAN on TGF-beta, which has no class to condition on), a private one and PrivBayes; methods
and budgets are those of ``tables.py``. Where the rows have no privacy the weights have all of epsilon.

Every posterior is that of `iwbayes.fit` with its default priors. The paper's methods and "tilt" are the weighted
posterior as it is, those of "iwbayes" are calibrated. "private rows" is the posterior from the private rows themselves.

- integrated: area under the ROC curve of the predictive distribution, integrated over the posterior, on the other 20 %
  of the rows (Iris: of each species against the others, averaged), as the paper scores; TGF-beta: mean square error of
  its mean, the response in standard deviations, and then the median over seeds.
- score: the same for each draw of the posterior, averaged over the draws. A wider posterior has a lower mean score.
  Where no regression can be fitted (all rows alike in a column, or all weight on a few) the area counts as .5 and the
  error as 1.
- covers: share of coefficients whose 90 % interval holds the private rows' posterior mean.
- warned: share of fits of "iwbayes" that say they are not calibrated.

The paper shows a picture and prints no numbers.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:] = [str(HERE.parent / "shared"), *(index for index in sys.path if Path(index or ".").resolve() != HERE)]

import harness  # noqa: E402, I001 - in shared; before numpy
import numpy as np  # noqa: E402
import pandas as pd  # noqa: E402
from harness import METHODS, OURS  # noqa: E402

import iwbayes as iw  # noqa: E402
from iwbayes.analyst import arviz_compat  # noqa: E402
from iwbayes.analyst.calibration.record import NOT_CALIBRATED  # noqa: E402
from iwbayes.utils.newton import NotReachedError  # noqa: E402

EPSILONS, LEVEL = (1.0, 6.0), 0.9
_SMALL = "--seeds 1 --rows 60 --steps 7 --draws 4"
SMOKE = (
    f"{_SMALL} --data-sets Iris --epsilons 1",
    f"{_SMALL} --data-sets Iris --generators PrivBayes",
    f"{_SMALL} --data-sets Banknote TGF-beta --generators PrivBayes --epsilons 6",
)
#: Errors beyond it are drawn as if they were this.
MOST = 4.0
#: Family, and generators in the order of the figure.
DATA_SETS = {
    "Banknote": ("bernoulli", ("CGAN", "DPCGAN", "PrivBayes")),
    "TGF-beta": ("gaussian", ("GAN", "DPGAN", "PrivBayes")),
    "Iris": ("categorical", ("CGAN", "DPCGAN", "PrivBayes")),
}
GENERATORS = harness.installed(("CGAN", "GAN", "DPCGAN", "DPGAN", "PrivBayes"))
REFERENCE = "private rows"


class Regression:
    """Bayesian regression of a data set's response on all other columns.

    Parameters
    ----------
    rows : harness.Split
    family : str
    draws : int
        Of a chain.
    """

    def __init__(self, rows: harness.Split, family: str, draws: int) -> None:
        self._rows, self._family, self._draws, self._response = rows, family, draws, rows.data.response
        self._formula = harness.formula(rows.data)
        self.own = self.fit(harness.unweighted(rows.private), "none")
        self._means = {name: v.mean(("chain", "draw")) for name, v in self._coefficients(self.own).items()}

    def fit(self, release: iw.Release, calibrate: Any) -> Any:
        """Fit a release; None where all rows are alike in a column, or too few carry the weights for a regression."""
        if release.synthetic.frame.nunique().min() < 2:  # a column without a coefficient predicts no test row
            return None
        try:
            return self._fit(release, calibrate)
        except RuntimeError as refusal:
            if not isinstance(refusal.__cause__, NotReachedError):
                raise
            return None

    def _fit(self, release: iw.Release, calibrate: Any) -> Any:
        how = {"family": self._family, "calibrate": calibrate, "draws": self._draws}
        return iw.fit(self._formula, release, random_seed=0, log_likelihood=False, progressbar=False, **how)

    @staticmethod
    def _coefficients(idata: Any) -> dict[str, Any]:
        posterior = arviz_compat.group(idata, "posterior")
        return {name: v for name, v in posterior.items() if name not in ("sigma", NOT_CALIBRATED)}

    def scores(self, idata: Any) -> tuple[float, float]:
        """How well the test rows are predicted: mean over draws, and by the mean over draws."""
        from sklearn.metrics import roc_auc_score

        found = arviz_compat.group(iw.predictions(idata, self._rows.test), "posterior")[self._response]
        draws = found.stack(draw_=("chain", "draw")).transpose("draw_", ...).to_numpy()
        truth = self._rows.test[self._response]
        if self._family == "gaussian":
            y = truth.to_numpy(float)
            return tuple(float(np.mean((p - y) ** 2) / y.var()) for p in (draws, draws.mean(axis=0)))  # type: ignore[return-value]
        if self._family == "bernoulli":
            y = self._rows.data.schema[self._response].codes(truth)
            return float(np.mean([roc_auc_score(y, p) for p in draws])), float(roc_auc_score(y, draws.mean(axis=0)))
        occurring = list(found[f"{self._response}_dim"].to_numpy())
        every = self._rows.data.schema[self._response].levels
        p = np.zeros((*draws.shape[:2], len(every)))  # a level that no synthetic row has gets no probability
        p[..., [every.index(level) for level in occurring]] = draws
        y = np.array([every.index(level) for level in truth])
        areas = [roc_auc_score(y, each, multi_class="ovr", labels=range(len(every))) for each in (*p, p.mean(axis=0))]
        return float(np.mean(areas[:-1])), float(areas[-1])

    def covers(self, idata: Any) -> float:
        """Share of coefficients whose interval holds the private rows' posterior mean; a missing one does not."""
        ends = [(1 - LEVEL) / 2, (1 + LEVEL) / 2]
        held = []
        for name, values in self._coefficients(idata).items():
            mean = self._means[name]
            low, high = (end.reindex_like(mean) for end in values.quantile(ends, ("chain", "draw")))
            held.append(np.ravel((low <= mean) & (mean <= high)))
        return float(np.mean(np.concatenate(held)))


def run(
    name: str, generator: str, epsilon: float, seed: int, folder: str, most: int | None, steps: int | None, draws: int
) -> list[dict[str, Any]]:
    """All methods on the rows of one generator at one epsilon, for one seed."""
    rows = harness.split(name, folder, seed, most)
    regression = Regression(rows, DATA_SETS[name][0], draws)
    lines = []

    def keep(method: str, idata: Any, cost: float) -> None:
        worst = 1.0 if name == "TGF-beta" else 0.5
        score, integrated, covers, calibrated = worst, worst, 0.0, False
        if idata is not None:
            (score, integrated), covers = regression.scores(idata), regression.covers(idata)
            calibrated = method in OURS and arviz_compat.group(idata, "calibration").attrs["verdict"] == "calibrated"
        lines.append({"data": name, "generator": generator, "epsilon": epsilon, "seed": seed, "method": method,
                      "score": score, "integrated": integrated, "covers": covers,
                      "refused": float(idata is None), "true eps": cost,
                      "warned": float(not calibrated) if method in OURS else math.nan})  # fmt: skip

    for found in harness.Methods(rows, generator, seed, epsilon, steps=steps).outcomes():
        keep(found.method, regression.fit(found.release, "auto" if found.method in OURS else "none"), found.epsilon)
    keep(REFERENCE, regression.own, math.inf)
    return lines


def report(rows: pd.DataFrame) -> str:
    """One table a data set."""
    parts = []
    for name, own in rows.groupby("data", sort=False):
        # weights of a few rows leave errors of any size, and then a mean over seeds tells of one seed only
        numeric = name == "TGF-beta"
        score = "median MSE" if numeric else "AUC"
        epsilons = sorted(own["epsilon"].unique())
        head = ("generator", "method", *(f"{what}, epsilon {e:g}" for e in epsilons
                                         for what in (f"{score}, integrated", f"{score}, mean", "covers", "warned",
                                                      "true eps")))  # fmt: skip
        lines = []
        for generator in DATA_SETS[str(name)][1]:
            for method in (*METHODS, REFERENCE):
                part = own[(own["generator"] == generator) & (own["method"] == method)]
                if part.empty:
                    continue
                cells = [generator, method]
                for epsilon in epsilons:
                    each = part[part["epsilon"] == epsilon]
                    warned = f"{each['warned'].mean():.0%}" if method in OURS else "-"
                    both = [each[kind] for kind in ("integrated", "score")]
                    cells += [f"{values.median():.3g}" if numeric else harness.cell(values) for values in both]
                    cells += [f"{each['covers'].mean():.0%}", warned,
                              f"{each['true eps'].mean():.2f}"]  # fmt: skip
                lines.append(cells)
        refused = own[own["refused"] > 0].groupby(["generator", "method", "epsilon"], sort=False)["refused"].sum()
        told = "; ".join(f"{g}, {m}, epsilon {e:g}: {count:.0f}" for (g, m, e), count in refused.items())
        told = f"\nNo regression could be fitted, number of seeds: {told}.\n" if told else ""
        parts.append(f"### {name}, {DATA_SETS[str(name)][0]}\n\n{harness.markdown(head, lines)}{told}")
    return "\n".join(parts)


def draw(rows: pd.DataFrame, settings: Any) -> None:
    """One panel a data set and generator: score of every method, a colour an epsilon."""
    names = list(dict.fromkeys(rows["data"]))
    figure, axes = harness.panels(len(names), 3, 4.4, 3.4)
    shown = (*METHODS, REFERENCE)
    for row, name in zip(axes, names, strict=True):
        for axis, generator in zip(row, DATA_SETS[name][1], strict=True):
            own = rows[(rows["data"] == name) & (rows["generator"] == generator)]
            own = own.assign(score=own["integrated"].clip(upper=MOST))
            parts = {f"epsilon {epsilon:g}": own[own["epsilon"] == epsilon] for epsilon in EPSILONS}
            harness.dots(axis, parts, "score", shown, names=axis is row[0])
            measured = f"MSE, {MOST:g} at most" if name == "TGF-beta" else "AUC"
            axis.set_title(f"{name}, {generator}: {measured}", fontsize=10)
    axes[0, 0].legend(fontsize=8)
    figure.suptitle("Score of the integrated predictive distribution; mean and standard error over seeds", fontsize=11)
    harness.save(figure, settings)


def main(argv: Sequence[str] | None = None) -> int:
    parser = harness.options(__doc__, "regressions", seeds=10)
    parser.add_argument("--data-sets", nargs="+", choices=DATA_SETS, default=list(DATA_SETS))
    parser.add_argument("--generators", nargs="+", choices=GENERATORS, default=GENERATORS)
    parser.add_argument("--draws", type=int, default=50, help="of each of the four chains of a posterior")
    parser.add_argument("--epsilons", nargs="+", type=float, choices=EPSILONS, default=EPSILONS)
    return harness.run(work, parser, SMOKE, argv)


def work(settings: argparse.Namespace) -> None:
    """Run what is missing and print the tables."""
    jobs = [
        (name, generator, epsilon, seed)
        for seed in range(settings.seeds)
        for name in settings.data_sets
        for generator in DATA_SETS[name][1]
        for epsilon in settings.epsilons
        if generator in settings.generators
    ]
    known = {"folder": str(settings.data), "most": settings.rows, "steps": settings.steps, "draws": settings.draws}
    rows = harness.collect(run, ("data", "generator", "epsilon", "seed"), jobs, settings, **known)
    harness.finish(settings, report(rows))
    draw(rows, settings)


if __name__ == "__main__":
    sys.exit(main())
