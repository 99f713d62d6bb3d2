"""Ten PyMC models of different kinds as named models: published for, sampled, calibrated by rehearsals.

    python benchmarks/pymc_models.py --jobs 2
    python benchmarks/pymc_models.py --models weibull,ordinal --rehearsals 20 --replications 4

For each model and replication: rows are drawn from a known truth and published with `for_models=[iw.model(build)]`, the
weighted posterior is sampled, calibrated by rehearsals (and, for comparison, by the formula), and so is that of the
private rows. Printed are the share of parameters that are calibrated, how many of their 90 % intervals hold the truth,
how long they are over those of the private rows, and the time of a release and of all its rehearsals.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
import warnings
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

# coverage.py of this folder would hide the package of that name
HERE = Path(__file__).resolve().parent
sys.path[:] = [str(HERE / "shared"), *(place for place in sys.path if Path(place or ".").resolve() != HERE)]

import command  # noqa: E402, I001 - in shared; before numpy
import numpy as np  # noqa: E402
import pandas as pd  # noqa: E402
import pymc as pm  # noqa: E402
import pytensor.tensor as pt  # noqa: E402
from results import table  # noqa: E402

import iwbayes as iw  # noqa: E402
from iwbayes.analyst import arviz_compat  # noqa: E402

DELTA = 1e-6
GROUPS, GRADES = tuple("abcd"), ("low", "mid", "high")
KNOTS = (-1.0, 0.0, 1.0)
SLOPE = ("x", iw.Real("x", -2, 2))
#: Columns that a model uses beside x, its truth, and how its response is drawn from the truth's values.
SCHEMAS = {
    "negative_binomial": (iw.Integer("y", 0, 40),),
    "zero_inflated": (iw.Integer("y", 0, 30),),
    "student_t": (iw.Real("y", -12, 14),),
    "weibull": (iw.Real("y", 0.01, 20, transform="log1p"),),
    "ordinal": (iw.Categorical("y", GRADES),),
    "spline": (iw.Real("y", -3, 3),),
    "offset": (iw.Integer("y", 0, 30), iw.Real("years", 0.5, 3)),
    "hierarchical": (iw.Binary("y"), iw.Categorical("group", GROUPS)),
    "beta_binomial": (iw.Integer("y", 0, 10),),
    "gamma": (iw.Real("y", 0.01, 40, transform="log1p"),),
}
TRUTHS: dict[str, dict[str, Any]] = {
    "negative_binomial": {"b": [0.5, 0.4], "alpha": 2.0},
    "zero_inflated": {"b": [0.6, 0.3], "psi": 0.7},
    "student_t": {"b": [1.0, 0.8], "sigma": 1.0, "nu": 5.0},
    "weibull": {"b": [0.6, -0.3], "shape": 1.5},
    "ordinal": {"b": 0.7, "cut": [-0.5, 1.0]},
    "spline": {"b": [0.2, 0.3, -0.4, 0.5, -0.6], "sigma": 0.5},
    "offset": {"b": [0.2, 0.3]},
    "hierarchical": {"effect": [-0.9, -0.4, -0.1, 0.3], "slope": 0.6},
    "beta_binomial": {"b": [0.2, 0.4], "size": 6.0},
    "gamma": {"b": [0.5, 0.3], "shape": 2.0},
}


def basis(x: Any, positive: Any) -> list[Any]:
    """Linear spline: a line, and one that begins at each knot."""
    return [x**0, x, *(positive(x - knot) for knot in KNOTS)]


def draw(name: str, n: int, rng: np.random.Generator) -> pd.DataFrame:
    """Private rows of a model, from its truth."""
    truth, x = TRUTHS[name], rng.uniform(-2, 2, n)
    rows = {"x": x, "years": rng.uniform(0.5, 3, n), "group": rng.choice(GROUPS, n)}
    b = np.atleast_1d(truth.get("b", 0.0))
    mean = np.exp(b[0] + b[-1] * x)
    if name == "negative_binomial":
        y: Any = rng.negative_binomial(truth["alpha"], truth["alpha"] / (truth["alpha"] + mean))
    elif name == "zero_inflated":
        y = np.where(rng.random(n) < truth["psi"], rng.poisson(mean), 0)
    elif name == "student_t":
        y = b[0] + b[1] * x + truth["sigma"] * rng.standard_t(truth["nu"], n)
    elif name == "weibull":
        y = mean * rng.weibull(truth["shape"], n)
    elif name == "ordinal":
        y = np.array(GRADES)[np.searchsorted(truth["cut"], b[0] * x + rng.logistic(size=n))]
    elif name == "spline":
        columns = basis(x, lambda z: np.maximum(z, 0))
        y = sum(c * w for c, w in zip(columns, b, strict=True)) + truth["sigma"] * rng.normal(size=n)
    elif name == "offset":
        y = rng.poisson(rows["years"] * mean)
    elif name == "hierarchical":
        effect = np.array(truth["effect"])[[GROUPS.index(g) for g in rows["group"]]]
        y = (rng.random(n) < 1 / (1 + np.exp(-effect - truth["slope"] * x))).astype(int)
    elif name == "beta_binomial":
        share = 1 / (1 + np.exp(-b[0] - b[1] * x))
        y = rng.binomial(10, rng.beta(share * truth["size"], (1 - share) * truth["size"]))
    else:
        y = rng.gamma(truth["shape"], mean / truth["shape"])
    schema = schema_of(name)
    bounded = pd.DataFrame(rows | {"y": y})[list(schema.names)]
    for column in schema:
        if hasattr(column, "lower"):
            bounded[column.name] = bounded[column.name].clip(column.lower, column.upper)
    return bounded


def schema_of(name: str) -> iw.Schema:
    """Columns of a model's table."""
    return iw.Schema(SLOPE[1], *SCHEMAS[name])


def negative_binomial(frame: pd.DataFrame) -> pm.Model:
    """Model counts with more spread than Poisson's."""
    with pm.Model() as model:
        x, b = pm.Data("x", frame["x"]), pm.Normal("b", 0, 2, shape=2)
        alpha = pm.Exponential("alpha", 0.5)
        pm.NegativeBinomial("y", mu=pm.math.exp(b[0] + b[1] * x), alpha=alpha, observed=frame["y"])
    return model


def zero_inflated(frame: pd.DataFrame) -> pm.Model:
    """Model counts with too many zeros."""
    with pm.Model() as model:
        x, b = pm.Data("x", frame["x"]), pm.Normal("b", 0, 2, shape=2)
        psi = pm.Beta("psi", 1, 1)
        pm.ZeroInflatedPoisson("y", psi=psi, mu=pm.math.exp(b[0] + b[1] * x), observed=frame["y"])
    return model


def student_t(frame: pd.DataFrame) -> pm.Model:
    """Model outliers of a regression."""
    with pm.Model() as model:
        x, b = pm.Data("x", frame["x"]), pm.Normal("b", 0, 2, shape=2)
        sigma, nu = pm.HalfNormal("sigma", 3), pm.Gamma("nu", 2, 0.3)
        pm.StudentT("y", nu=nu, mu=b[0] + b[1] * x, sigma=sigma, observed=frame["y"])
    return model


def weibull(frame: pd.DataFrame) -> pm.Model:
    """Model times until an event."""
    with pm.Model() as model:
        x, b = pm.Data("x", frame["x"]), pm.Normal("b", 0, 2, shape=2)
        shape = pm.Gamma("shape", 2, 1)
        pm.Weibull("y", alpha=shape, beta=pm.math.exp(b[0] + b[1] * x), observed=frame["y"])
    return model


def ordinal(frame: pd.DataFrame) -> pm.Model:
    """Model grades in an order."""
    codes = pd.Categorical(frame["y"], GRADES).codes.astype(int)
    ordered = pm.distributions.transforms.ordered
    with pm.Model() as model:
        x, b = pm.Data("x", frame["x"]), pm.Normal("b", 0, 2)
        cut = pm.Normal("cut", [-1, 1], 2, transform=ordered, shape=2)
        pm.OrderedLogistic("y", eta=b * x, cutpoints=cut, observed=codes, compute_p=False)
    return model


def spline(frame: pd.DataFrame) -> pm.Model:
    """Model a broken line with public knots."""
    with pm.Model() as model:
        x, b = pm.Data("x", frame["x"]), pm.Normal("b", 0, 2, shape=2 + len(KNOTS))
        columns = basis(x, lambda z: pt.maximum(z, 0))
        mean = sum(b[place] * column for place, column in enumerate(columns))
        pm.Normal("y", mean, pm.HalfNormal("sigma", 2), observed=frame["y"])
    return model


def offset(frame: pd.DataFrame) -> pm.Model:
    """Model counts over years that differ."""
    with pm.Model() as model:
        x, years, b = pm.Data("x", frame["x"]), pm.Data("years", frame["years"]), pm.Normal("b", 0, 2, shape=2)
        pm.Poisson("y", pm.math.exp(pm.math.log(years) + b[0] + b[1] * x), observed=frame["y"])
    return model


def hierarchical(frame: pd.DataFrame) -> pm.Model:
    """Model effects of groups."""
    with pm.Model(coords={"group": list(GROUPS)}) as model:
        x, group = pm.Data("x", frame["x"]), pm.Data("index", pd.Categorical(frame["group"], GROUPS).codes.astype(int))
        effect = pm.Normal("effect", pm.Normal("mean", 0, 1.5), pm.HalfNormal("spread", 1), dims="group")
        predictor = effect[group] + pm.Normal("slope", 0, 2) * x
        pm.Bernoulli("y", logit_p=predictor, observed=frame["y"].astype(int))
    return model


def beta_binomial(frame: pd.DataFrame) -> pm.Model:
    """Model successes of ten trials with more spread than binomial."""
    with pm.Model() as model:
        x, b = pm.Data("x", frame["x"]), pm.Normal("b", 0, 2, shape=2)
        share, size = pm.math.sigmoid(b[0] + b[1] * x), pm.LogNormal("size", 1, 1)
        pm.BetaBinomial("y", n=10, alpha=share * size, beta=(1 - share) * size, observed=frame["y"])
    return model


def gamma(frame: pd.DataFrame) -> pm.Model:
    """Model positive amounts."""
    with pm.Model() as model:
        x, b = pm.Data("x", frame["x"]), pm.Normal("b", 0, 2, shape=2)
        shape = pm.Exponential("shape", 1)
        pm.Gamma("y", alpha=shape, beta=shape / pm.math.exp(b[0] + b[1] * x), observed=frame["y"])
    return model


BUILDS = {
    build.__name__: build
    for build in (
        negative_binomial, zero_inflated, student_t, weibull, ordinal, spline, offset, hierarchical, beta_binomial,
        gamma,
    )
}  # fmt: skip


def study(name: str, seed: int, arguments: argparse.Namespace) -> pd.DataFrame:
    """One replication: a row for each parameter that the truth has, and each way to calibrate."""
    for library in ("pymc", "pytensor"):
        logging.getLogger(library).setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return _study(name, arguments.rows, arguments.epsilon, arguments.rehearsals, arguments.draws, seed)


def _study(name: str, n: int, epsilon: float, n_rehearsals: int, n_draws: int, seed: int) -> pd.DataFrame:
    rng, build = np.random.default_rng([seed, len(name)]), BUILDS[name]
    private, named = iw.PrivateTable(draw(name, n, rng), schema_of(name)), iw.model(build)
    begun = time.perf_counter()
    release = iw.publish(
        private, epsilon=epsilon, delta=DELTA, for_models=[named], noise=iw.SeededNoise(seed), random_seed=seed,
        progressbar=False,
    )  # fmt: skip
    published = time.perf_counter() - begun
    rehearsals = iw.rehearse(release, n_rehearsals, models=[named], random_seed=seed, progressbar=False)
    rehearsed = time.perf_counter() - begun - published
    settings: dict[str, Any] = {"draws": n_draws, "tune": n_draws, "chains": 2, "cores": 1, "random_seed": seed}
    settings["progressbar"] = False
    with build(private.frame):
        own = arviz_compat.group(pm.sample(**settings), "posterior")
    weighted = iw.reweight(build(release.synthetic.frame), release)
    with weighted:
        sampled = pm.sample(**settings)
    found = []
    for method in ("formula", "rehearsals"):
        given = {"rehearsals": rehearsals} if method == "rehearsals" else {}
        idata = iw.calibrate(sampled, weighted, release, random_seed=seed, **given)
        posterior, record = (arviz_compat.group(idata, group) for group in ("posterior", "calibration"))
        good = dict(zip(record["parameter"].to_numpy(), record["calibrated"].to_numpy(), strict=True))
        for parameter, truth in TRUTHS[name].items():
            ours, theirs = (np.quantile(part[parameter], (0.05, 0.95), axis=(0, 1)) for part in (posterior, own))
            for place, value in enumerate(np.atleast_1d(truth)):
                low, high = np.reshape(ours, (2, -1))[:, place]
                least, most = np.reshape(theirs, (2, -1))[:, place]
                calibrated = [bool(v) for k, v in good.items() if _is_of(str(k), parameter, place)]
                found.append({
                    "model": name, "replication": seed, "method": method, "parameter": f"{parameter}[{place}]",
                    "calibrated": all(calibrated) and bool(calibrated), "inside": low <= value <= high,
                    "own_inside": least <= value <= most, "length": (high - low) / (most - least),
                    "published": published, "rehearsed": rehearsed,
                    "reasons": record.attrs["reasons"].split(":")[0],
                })  # fmt: skip
    return pd.DataFrame(found)


def _is_of(flat: str, parameter: str, place: int) -> bool:
    """Whether a flat name of the record is that of a parameter's entry; of one with a transform of its own, of all."""
    stem, _, rest = flat.partition("[")
    stem = stem.split("_")[0] if stem.endswith("__") else stem
    if stem != parameter or not rest:
        return stem == parameter
    label = rest.rstrip("]")
    return flat.split("[")[0] != parameter or label in (str(place), GROUPS[min(place, len(GROUPS) - 1)])


def summary(rows: pd.DataFrame) -> pd.Series:
    """Shares, coverage and lengths."""
    good = rows[rows["calibrated"]]
    return pd.Series({
        "parameters": len(rows), "calibrated": rows["calibrated"].mean(), "covered": good["inside"].mean(),
        "length": good["length"].median(), "own_covered": rows["own_inside"].mean(),
        "publish_s": rows["published"].mean(), "rehearse_s": rows["rehearsed"].mean(),
    })  # fmt: skip


#: Rehearsals of most models compile for minutes.
SMOKE = ("--list", "--models offset --rows 60 --rehearsals 10 --draws 10 --output models.csv")


def described(name: str) -> str:
    """Say which parameters a model has, and its log density at their first values."""
    with BUILDS[name](draw(name, 100, np.random.default_rng(1))) as model:
        values = model.point_logps()
    parameters = ", ".join(variable.name for variable in model.free_RVs)
    return f"{name}: {parameters}; log density of 100 rows {sum(values.values()):.1f}"


def main(argv: Sequence[str] | None = None) -> int:
    parser = command.parser(__doc__)
    parser.add_argument("--models", default="", help=f"by commas, of {', '.join(BUILDS)}; all by default")
    parser.add_argument("--replications", type=int, default=1)
    parser.add_argument("--rehearsals", type=int, default=20)
    parser.add_argument("--rows", type=int, default=5000)
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--output", type=Path, help="file for all rows, CSV")
    parser.add_argument("--list", action="store_true", help="describe the models, and study none")
    parser.add_argument("--draws", type=int, default=500, help="of each of two chains")
    return command.run(work, parser, SMOKE, argv)


def work(arguments: argparse.Namespace) -> None:
    """Run the study and print a line for each model."""
    names = [name for name in arguments.models.split(",") if name] or list(BUILDS)
    if unknown := set(names) - set(BUILDS):
        sys.exit(f"no such models: {', '.join(sorted(unknown))}")
    if arguments.list:
        print("\n".join(map(described, names)))
        return
    found: list[pd.DataFrame] = []
    jobs = [(name, seed) for seed in range(1, arguments.replications + 1) for name in names]
    for _, done in command.completed(partial(study, arguments=arguments), jobs, arguments.jobs):
        found.append(done.result())
        for method, rows in found[-1].groupby("method"):
            line = ", ".join(f"{key} {value:.3g}" for key, value in summary(rows).items())
            print(f"{rows['model'].iloc[0]} by {method}: {line} {rows['reasons'].iloc[0]}", flush=True)
        if arguments.output:
            pd.concat(found, ignore_index=True).to_csv(arguments.output, index=False)
    rows = pd.concat(found, ignore_index=True)
    shown = rows.groupby(["method", "model"]).apply(summary, include_groups=False)
    print(shown.round(3).to_string())
    table(shown, n="parameters")
    totals = {}
    for method, own in rows.groupby("method"):
        good = own[own["calibrated"]]
        counts = {"calibrated": len(good), "covered": good["inside"].sum(), "private_covered": own["own_inside"].sum()}
        totals[method] = {"parameters": len(own), **counts}
    counted = pd.DataFrame(totals).T.rename_axis("method")
    table(counted, n="parameters", shown=dict.fromkeys(counted, "d"))


if __name__ == "__main__":
    sys.exit(main())
