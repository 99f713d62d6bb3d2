"""Golden numbers: posteriors, calibrations, criticism and quantities of releases that are kept, held against a record.

    python benchmarks/golden.py             compare with the record of this Python's stack
    python benchmarks/golden.py --record    write that record anew; with --only, entries of some runs
    python benchmarks/golden.py --only "default_62/fit/*/laplace" logistic/fit
    python benchmarks/golden.py --publish   make the releases anew, before `--record` on each stack; with --only, some

The names of the releases in ``benchmarks/golden`` say how their weights were made: from all products of columns or from
those of named models, with so many features; from the scores of a model; or by a logistic regression.
Numbers that follow from a release without chance must agree to 1e-8 of their size. Those that are drawn agree within 5
standard errors of the two means, or in all digits where the same numbers are drawn.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
# coverage.py is not coverage
sys.path[:] = [str(HERE / "shared"), *(folder for folder in sys.path if Path(folder or ".").resolve() != HERE)]

import command  # noqa: E402, I001 - in shared; before numpy
import numpy as np  # noqa: E402
import pandas as pd  # noqa: E402
import xarray as xr  # noqa: E402

import iwbayes as iw  # noqa: E402
from iwbayes.paper import LogisticWeights  # noqa: E402

FOLDER = HERE / "golden"
MODELS = {"gaussian": "y ~ x + g", "bernoulli": "z ~ x + g", "poisson": "k ~ x", "categorical": "g ~ x"}
#: Attributes of a record that are numbers and follow without chance.
NUMBERS = (
    "kappa_max", "explained_min", "second_order_max", "misfit_share_max", "misfit", "kappa0", "likelihood_ess",
    "cut_directions", "prior_directions", "pareto_k", "ess", "n_private", "n_synthetic", "clipped_private",
    "clipped_synthetic", "noise_ratio", "kappa_bound", "dispersion_max", "weight_draws",
)  # fmt: skip
SETTINGS = {"chains": 2, "random_seed": 1, "progressbar": False}
#: A release; fits of all families, and a model of PyMC, to a kept one; then two of them again. Other models compile for
#: longer.
SMOKE = (
    "--publish --folder . --only scores",
    "--record --folder . --draws 20 --only 'default_24/[fd]*' '*/calibrate/logistic' logistic/fit",
    "--folder . --draws 20 --only default_24/fit/bernoulli/laplace logistic/fit",
)

#: How the weights of each release are made.
MADE: dict[str, dict[str, Any]] = {
    "default_62": {},
    "default_24": {},
    "named_14": {"weights": iw.TiltWeights(features="products", for_models=["z ~ x + g", "y ~ x"])},
    "named_11": {"weights": iw.TiltWeights(features="products", for_models=["z ~ x + g"])},
    "logistic": {"weights": LogisticWeights()},
    "scores": {"for_models": ["z ~ x + g"]},
}

Found = dict[str, dict[str, Any]]


def publish(folder: Path, only: Sequence[str]) -> None:
    """Make the releases anew, all or some, of simulated rows; those of `default_62` have gaps."""
    rng = np.random.default_rng(1)
    x, g = np.clip(rng.normal(size=900), -3, 3), rng.integers(3, size=900)
    y = np.clip(1 + 0.8 * x + 0.5 * g + rng.normal(size=900), -6, 6)
    z = (rng.random(900) < 1 / (1 + np.exp(-0.7 * x - 0.4 * g + 0.5))).astype(int)
    k = np.minimum(rng.poisson(np.exp(0.5 + 0.3 * x)), 15)
    frame = pd.DataFrame({"x": x, "g": np.array(list("abc"))[g], "y": y, "z": z, "k": k})
    gappy = frame.mask(rng.random(frame.shape) < 0.05)
    for name in MADE:
        if only and not any(fnmatch(name, wanted) for wanted in only):
            continue
        gaps = name == "default_62"
        rows = gappy if gaps else frame
        schema = iw.Schema(
            iw.Real("x", -3, 3, missing=gaps), iw.Categorical("g", list("abc"), missing=gaps),
            iw.Real("y", -6, 6, missing=gaps), iw.Binary("z", missing=gaps), iw.Integer("k", 0, 15, missing=gaps),
        )  # fmt: skip
        release = iw.publish(
            iw.PrivateTable(rows, schema), epsilon=3, delta=1e-6, n_synthetic=900, random_seed=2, progressbar=False,
            **MADE[name],
        )  # fmt: skip
        release.save(folder / f"{name}.iwb", overwrite=True)
        print(f"{name}: {' '.join(str(release.weights).split())}", flush=True)


def group(idata: Any, name: str) -> xr.Dataset:
    """Group of an ArviZ object of either generation."""
    found = idata[name]
    return found.to_dataset() if hasattr(found, "to_dataset") else found


def exact(name: str, value: Any) -> Found:
    """Entry of numbers that follow without chance."""
    return {name: {"exact": np.ravel(np.asarray(value, dtype=np.float64)).tolist()}}


def drawn(name: str, values: Any) -> Found:
    """Entry of draws (sample, ...): means and standard deviations of each column."""
    flat = np.asarray(values, dtype=np.float64).reshape(len(values), -1)
    return {name: {"mean": flat.mean(0).tolist(), "sd": flat.std(0, ddof=1).tolist(), "n": len(flat)}}


def of_posterior(name: str, idata: Any, *, wanted: list[str] | None = None) -> Found:
    """Draws of every variable of a posterior, and its calibration record."""
    posterior, found = group(idata, "posterior"), {}
    for variable in wanted or sorted(map(str, posterior.data_vars)):
        values = posterior[variable].transpose("chain", "draw", ...).to_numpy()
        found |= drawn(f"{name}/{variable}", values.reshape(-1, *values.shape[2:]))
    if "calibration" in idata.children if hasattr(idata, "children") else hasattr(idata, "calibration"):
        record = group(idata, "calibration")
        for variable in ("kappa", "explained", "second_order", "misfit_share", "dispersion"):
            if variable in record:
                found |= exact(f"{name}/record/{variable}", record[variable].to_numpy())
        for number in NUMBERS:
            if number in record.attrs:
                found |= exact(f"{name}/record/{number}", record.attrs[number])
        found[f"{name}/record/verdict"] = {"text": str(record.attrs["verdict"])}
    return found


def fits(name: str, release: iw.Release, draws: int) -> Iterator[tuple[str, Callable[[], Found]]]:
    """Regressions of the four families by all methods, with criticism and quantities of some."""
    for family, formula in MODELS.items():
        for method in ("laplace", "nuts"):

            def run(family: str = family, formula: str = formula, method: str = method) -> Found:
                how = {**SETTINGS, "family": family, "method": method, "draws": draws}
                idata = iw.fit(formula, release, **how)
                found = of_posterior(f"{name}/fit/{family}/{method}", idata)
                if method == "laplace":
                    plain = iw.fit(formula, release, calibrate="none", **how)
                    found |= criticism(f"{name}/{family}", plain, release)
                    found |= quantities(f"{name}/{family}", idata, release, family)
                return found

            yield f"{name}/fit/{family}/{method}", run


def criticism(name: str, idata: Any, release: iw.Release) -> Found:
    """Leave-one-out and predictive checks of a fit."""
    loo = iw.loo(idata, release)
    found = drawn(f"{name}/loo/pointwise", np.asarray(loo.pointwise)[:, None] if hasattr(loo, "pointwise") else [[0.0]])
    found |= {f"{name}/loo/elpd": {"near": [float(loo.elpd), float(loo.se)]}}
    table = iw.ppc(release, idata, draws=100, random_seed=2)
    numeric = table.select_dtypes("number")
    observed = [column for column in numeric if "observed" in str(column) or str(column) in ("se", "weighted")]
    return found | exact(f"{name}/ppc/observed", numeric[observed].to_numpy())


def quantities(name: str, idata: Any, release: iw.Release, family: str) -> Found:
    """Predictions, slopes, comparisons and ratios of a fit."""
    predicted = iw.predictions(idata, release.synthetic.frame.head(3), random_seed=4)
    found = of_posterior(f"{name}/predictions", predicted)
    for average in (iw.slopes, iw.comparisons) if "g" in MODELS[family].split("~")[1] else (iw.slopes,):
        found |= of_posterior(f"{name}/effects", average(idata, release, random_seed=3))
        found |= of_posterior(f"{name}/effects fixed", average(idata, release, rows="fixed"))
    return found if family == "gaussian" else found | of_posterior(f"{name}/ratios", iw.odds_ratios(idata))


def models(name: str, release: iw.Release, draws: int) -> Iterator[tuple[str, Callable[[], Found]]]:
    """PyMC models, calibrated and pooled."""
    import pymc as pm

    frame = release.synthetic.frame
    x, y = frame["x"].to_numpy(float), frame["y"].to_numpy(float)
    z = frame["z"].to_numpy(float)
    codes = frame["g"].astype("category").cat.codes.to_numpy()

    def logistic() -> pm.Model:
        with pm.Model() as model:
            b = pm.Normal("b", 0, 2, shape=2)
            pm.Deterministic("odds", pm.math.exp(b[1]))
            pm.Bernoulli("z", logit_p=b[0] + b[1] * x, observed=z)
        return model

    def linear() -> pm.Model:
        with pm.Model() as model:
            a, b = pm.Normal("a", 0, 5), pm.Normal("b", 0, 5)
            pm.Normal("y", a + b * x, pm.HalfNormal("sigma", 3), observed=y)
        return model

    def hierarchy() -> pm.Model:
        with pm.Model(coords={"group": [str(code) for code in sorted(set(codes))]}) as model:
            mean, scale = pm.Normal("mean", 0, 2), pm.HalfNormal("scale", 1)
            effect = pm.Normal("effect", mean, scale, dims="group")
            pm.Normal("y", effect[codes], pm.HalfNormal("sigma", 3), observed=y)
        return model

    for label, build in {"logistic": logistic, "linear": linear, "hierarchy": hierarchy}.items():

        def run(build: Callable[[], pm.Model] = build, label: str = label) -> Found:
            weighted = iw.reweight(build(), release.weights, total=release.n_private)
            options = {"compute_convergence_checks": False, "progressbar": False}
            idata = pm.sample(
                draws // 2, tune=3 * draws // 4, chains=2, cores=1, random_seed=1, model=weighted, **options
            )
            found = of_posterior(f"{name}/calibrate/{label}", iw.calibrate(idata, weighted, release, random_seed=2))
            if label != "linear":
                pooled = iw.pool(
                    weighted, release, n_draws=max(draws // 20, 2), draws=draws // 2, chains=2, random_seed=3
                )
                found |= of_posterior(f"{name}/pool/{label}", pooled)
            return found

        yield f"{name}/calibrate/{label}", run

    def pooled_fit() -> Found:
        """Fits to weights that are drawn, four times: what their records say follows with chance."""
        options = {**SETTINGS, "draws": draws, "family": "bernoulli", "calibrate": "pool"}
        each = [
            of_posterior(f"{name}/fit pool", iw.fit(MODELS["bernoulli"], release, **{**options, "random_seed": seed}))
            for seed in (1, 2, 3, 4)
        ]
        found = each[0]
        for entry in [entry for entry, value in found.items() if "exact" in value]:
            found |= drawn(entry, [one[entry]["exact"] for one in each])
        return found

    yield f"{name}/fit pool", pooled_fit


def all_runs(draws: int) -> Iterator[tuple[str, Callable[[], Found]]]:
    """Every entry of the record, with what makes it."""
    for name in MADE:
        release = iw.load(FOLDER / f"{name}.iwb")
        if name in ("default_62", "default_24"):
            yield from fits(name, release, draws)
        else:
            yield (
                f"{name}/fit",
                lambda release=release, name=name: of_posterior(
                    f"{name}/fit/bernoulli/laplace",
                    iw.fit(MODELS["bernoulli"], release, family="bernoulli", draws=draws, **SETTINGS),
                ),
            )
        if name == "default_24":
            yield from models(name, release, draws)
        yield (
            f"{name}/diagnose",
            lambda release=release, name=name: exact(
                f"{name}/diagnose", [v for v in iw.diagnose(release)["value"] if isinstance(v, float)]
            ),
        )


def differences(before: dict[str, Any], now: dict[str, Any]) -> str:
    """Say how an entry differs from the record; empty where it does not."""
    if "text" in before:
        return "" if before == now else f"{before['text']} became {now['text']}"
    if "near" in before:
        (a, se), (b, _) = before["near"], now["near"]
        return "" if abs(a - b) < 0.05 * se + 1e-8 * abs(a) else f"{a} became {b}"
    if "exact" in before:
        a, b = np.array(before["exact"]), np.array(now["exact"])
        if a.shape != b.shape:
            return f"{a.shape} numbers became {b.shape}"
        close = np.isclose(a, b, rtol=1e-8, atol=1e-12, equal_nan=True)
        return "" if close.all() else f"{a[~close][0]!r} became {b[~close][0]!r}"
    a, b = np.array(before["mean"]), np.array(now["mean"])
    if a.shape != b.shape:
        return f"{a.shape} means became {b.shape}"
    if np.allclose(a, b, rtol=1e-6, atol=1e-9):
        return ""
    # draws of NUTS are worth fewer: a tenth at least
    se = np.sqrt((np.array(before["sd"]) ** 2 + np.array(now["sd"]) ** 2) / (before["n"] / 10))
    far = np.abs(a - b) > 5 * se + 1e-9
    spread = np.abs(np.log((np.array(now["sd"]) + 1e-12) / (np.array(before["sd"]) + 1e-12))) > 5 / np.sqrt(
        before["n"] / 5
    )
    return "" if not (far | spread).any() else f"mean {a[far | spread][0]} became {b[far | spread][0]}"


def main(argv: Sequence[str] | None = None) -> int:
    parser = command.parser(__doc__)
    parser.add_argument("--record", action="store_true", help="write the record anew")
    parser.add_argument("--publish", action="store_true", help="make the releases anew")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where the record is")
    parser.add_argument("--draws", type=int, default=400, help="of each chain; the record was made with 400")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="some of the runs, or of the releases; * is anything")
    return command.run(work, parser, SMOKE, argv)


def work(options: argparse.Namespace) -> int:
    """Compare, or record."""
    record = options.folder / f"numbers_{sys.version_info.major}.{sys.version_info.minor}.json"
    if options.publish:
        publish(options.folder, options.only or ())
        return 0
    found: Found = {}
    for name, run in all_runs(options.draws):
        if options.only and not any(fnmatch(name, wanted) for wanted in options.only):
            continue
        start = time.perf_counter()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found |= run()
        print(f"{name}: {time.perf_counter() - start:.1f} s", flush=True)
    if options.record:
        if options.only and record.exists():  # entries of other runs stay
            found = json.loads(record.read_text(encoding="utf-8")) | found
        record.write_text(json.dumps(found, indent=0), encoding="utf-8")
        print(f"{len(found)} entries")
        return 0
    before = json.loads(record.read_text(encoding="utf-8"))
    if options.only:  # entries of other runs have nothing to be compared with
        before = {name: entry for name, entry in before.items() if name in found}
    wrong = {name: differences(entry, found[name]) if name in found else "gone" for name, entry in before.items()}
    wrong = {name: why for name, why in wrong.items() if why}
    for name, why in wrong.items():
        print(f"DIFFERS {name}: {why}")
    same = sum(before[name] == found.get(name) for name in before)
    print(f"{len(before) - len(wrong)} of {len(before)} entries agree, {same} of them in every digit")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
