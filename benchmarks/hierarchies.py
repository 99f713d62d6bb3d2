"""Coverage of the hyperparameters of hierarchical models: truths drawn from the prior, one release each.

    python benchmarks/hierarchies.py --output FOLDER                       # 2 x 100 replications, half an hour, 2 cores
    python benchmarks/hierarchies.py --output FOLDER --replications 4      # a quick look
    python benchmarks/hierarchies.py --output FOLDER --rehearsals 20       # also by rehearsals of each release

A replication draws the mean and the spread of groups, their effects, a slope and private rows, publishes these (noise
seeded, so that a study can be repeated), samples the weighted posterior of the centred hierarchical model, calibrates
it, and asks which 90 % intervals hold the truth. Truths come from the model's own prior, so that a correct posterior
holds 90 % of them. Results are kept in FOLDER, one file for each setting; a run that was stopped goes on from there.
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
sys.path[:] = [str(HERE / "shared"), *(p for p in sys.path if Path(p or ".").resolve() != HERE)]

import command  # noqa: E402, I001 - in shared; before numpy
import numpy as np  # noqa: E402
import pandas as pd  # noqa: E402
from results import digest_of_all, figure, report, table  # noqa: E402

import iwbayes as iw  # noqa: E402

LEVEL = 0.9
SMOKE = (
    "--rows 600 --draws 20 --replications 1 --families gaussian --rehearsals 10",
    "--rows 600 --draws 20 --replications 1 --families logistic",
)
GROUPS = {"gaussian": 8, "logistic": 6}
EPSILON, DELTA = 1.0, 1e-6
#: Prior: mean and standard deviation of the groups' mean; median of their spread, whose log has deviation 0.3; slope.
#: Groups differ by about as much as the noise of a release moves them: what ignores it takes it for spread.
PRIORS = {"gaussian": (50.0, 5.0, 1.0, 3.0), "logistic": (0.0, 0.5, 0.25, 0.5)}


def simulate(family: str, n: int, rng: np.random.Generator) -> tuple[dict[str, Any], pd.DataFrame, iw.Schema]:
    """Truth, private rows and their schema."""
    groups, (center, sd, median, slope_sd) = GROUPS[family], PRIORS[family]
    names = [f"g{place}" for place in range(groups)]
    mean, spread = rng.normal(center, sd), median * np.exp(0.3 * rng.normal())
    effects, slope = rng.normal(mean, spread, groups), rng.normal(0, slope_sd)
    where = rng.choice(groups, n, p=rng.dirichlet(np.full(groups, 20.0)))
    x = rng.uniform(-1, 1, n)
    predictor = effects[where] + slope * x
    truth = {"mean": mean, "spread": spread, "slope": slope, "effect": effects}
    group = np.array(names)[where]
    if family == "gaussian":
        sigma = float(np.exp(rng.normal(np.log(8), 0.2)))
        y = np.clip(rng.normal(predictor, sigma), -20, 120)
        columns = [iw.Real("y", -20, 120), iw.Real("x", -1, 1), iw.Categorical("group", names)]
        return truth | {"sigma": sigma}, pd.DataFrame({"y": y, "x": x, "group": group}), iw.Schema(*columns)
    y = np.where(rng.random(n) < 1 / (1 + np.exp(-predictor)), "yes", "no")
    columns = [iw.Categorical("y", ["no", "yes"]), iw.Real("x", -1, 1), iw.Categorical("group", names)]
    return truth, pd.DataFrame({"y": y, "x": x, "group": group}), iw.Schema(*columns)


def model_of(family: str, rows: pd.DataFrame) -> Any:
    """Centred varying intercepts."""
    import pymc as pm

    center, sd, median, slope_sd = PRIORS[family]
    code = pd.Categorical(rows["group"], categories=[f"g{place}" for place in range(GROUPS[family])]).codes.astype(int)
    with pm.Model() as model:
        mean = pm.Normal("mean", center, sd)
        spread = pm.LogNormal("spread", np.log(median), 0.3)
        effect = pm.Normal("effect", mean, spread, shape=GROUPS[family])
        predictor = effect[code] + pm.Normal("slope", 0, slope_sd) * rows["x"].to_numpy()
        if family == "gaussian":
            pm.Normal("y", predictor, pm.LogNormal("sigma", np.log(8), 0.2), observed=rows["y"].to_numpy())
        else:
            pm.Bernoulli("y", logit_p=predictor, observed=(rows["y"] == "yes").to_numpy().astype(int))
    return model


def replicate(family: str, seed: int, *, n: int, draws: int, n_rehearsals: int) -> pd.DataFrame:
    """One release, two posteriors or three: a row for each method and parameter."""
    import pymc as pm

    logging.getLogger("pymc").setLevel(logging.ERROR)
    rng = np.random.default_rng((2026, seed))
    truth, private, schema = simulate(family, n, rng)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        release = iw.publish(
            iw.PrivateTable(private, schema),
            epsilon=EPSILON,
            delta=DELTA,
            n_synthetic=3 * n // 2,
            weights=iw.TiltWeights(features="products", for_models=["y ~ x + group"]),
            noise=iw.SeededNoise(seed),
            random_seed=rng,
            progressbar=False,
        )
        weighted = iw.reweight(
            model_of(family, release.synthetic.frame), release.weights, total=release.n_private, allow_zero=True
        )
        drawn = pm.sample(
            draws, tune=draws, chains=2, cores=1, random_seed=seed, progressbar=False, model=weighted,
            compute_convergence_checks=False,
        )  # fmt: skip
        start = time.perf_counter()
        found = {"weighted": drawn, "calibrated": iw.calibrate(drawn, weighted, release, random_seed=seed)}
        seconds = time.perf_counter() - start
        if n_rehearsals:
            rehearsals = iw.rehearse(release, n_rehearsals, random_seed=seed, progressbar=False)
            found["rehearsals"] = iw.calibrate(drawn, weighted, release, rehearsals=rehearsals, random_seed=seed)
    rows = []
    for method, idata in found.items():
        record = found["calibrated" if method == "weighted" else method]["calibration"]
        facts = {
            name: record.attrs[name]
            for name in ("verdict", "nonquadraticity", "skew_max", "kappa_max", "misfit_share_max")
        }
        facts |= {"seconds": seconds, "seed": seed, "reasons": record.attrs["reasons"].replace("\n", "; ")}
        for name, value in truth.items():
            flat = idata["posterior"][name].to_numpy().reshape(2 * draws, -1).T
            for place, (values, true) in enumerate(zip(flat, np.atleast_1d(value), strict=True)):
                lower, upper = np.quantile(values, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
                own = {"parameter": name, "place": place, "truth": true, "lower": lower, "upper": upper}
                rows.append({"method": method, **own, "rank": np.mean(values < true), **facts})
    return pd.DataFrame(rows)


def summary(table: pd.DataFrame) -> pd.DataFrame:
    """Coverage with its standard error, and lengths, one row for each parameter and method."""
    table = table.assign(
        holds=(table["lower"] <= table["truth"]) & (table["truth"] <= table["upper"]),
        length=table["upper"] - table["lower"],
    )
    each = table.groupby(["parameter", "method", "seed"], sort=False)[["holds", "length"]].mean()
    found = each.groupby(["parameter", "method"], sort=False)["holds"].agg(["mean", "sem", "count"])
    found["length"] = each.groupby(["parameter", "method"], sort=False)["length"].median()
    return found


def main(argv: Sequence[str] | None = None) -> int:
    parser = command.parser(__doc__)
    parser.add_argument("--output", type=Path, default=Path("hierarchies"), help="folder for results")
    parser.add_argument("--replications", type=int, default=100)
    parser.add_argument("--rehearsals", type=int, default=0, help="rehearsals of each release")
    parser.add_argument(
        "--rows", type=int, default=4000, help="private rows; there are half as many more synthetic ones"
    )
    parser.add_argument("--draws", type=int, default=500, help="of each of two chains")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--families", nargs="+", choices=list(GROUPS), default=list(GROUPS))
    return command.run(work, parser, SMOKE, argv)


def work(options: argparse.Namespace) -> None:
    """Run what is missing and print the tables."""
    how = {"n": options.rows, "draws": options.draws, "n_rehearsals": options.rehearsals}
    # rows of another study, or of other code, are not continued
    options.output /= f"{options.rows}-{options.draws}-{options.rehearsals}-{digest_of_all()}"
    options.output.mkdir(parents=True, exist_ok=True)
    for family in options.families:
        path = options.output / f"{family}.csv"
        done = pd.read_csv(path) if path.exists() else None
        seen = set() if done is None else set(done["seed"])
        jobs = [(family, seed) for seed in range(options.replications) if seed not in seen]
        for _, ended in command.completed(partial(replicate, **how), jobs, options.jobs):
            done = ended.result() if done is None else pd.concat([done, ended.result()])
            done.to_csv(path, index=False)
        assert done is not None
        done = done[done["seed"] < options.replications]
        once = done.drop_duplicates("seed")
        print(f"\n{family}: {len(once)} replications, {(once['verdict'] == 'calibrated').mean():.0%} calibrated")
        print(
            once[["nonquadraticity", "skew_max", "kappa_max", "misfit_share_max", "seconds"]]
            .describe()
            .loc[["50%", "max"]]
            .round(3)
        )
        print(summary(done).round(3).to_string())
        figure(f"{family}/calibrated", (once["verdict"] == "calibrated").mean(), n=len(once))
        report(f"{family.capitalize()}: {(once['verdict'] == 'calibrated').mean():.0%} of {len(once)} fits calibrated.")
        shown = summary(done).rename(columns={"mean": "covered", "sem": "covered_se"})
        table(shown, family, n="count", shown={"covered": "p0", "length": ".2f"})
        inside = done[done["verdict"] == "calibrated"]
        if 0 < len(inside) < len(done):
            print("where the verdict is calibrated:")
            print(summary(inside).round(3).to_string())


if __name__ == "__main__":
    sys.exit(main())
