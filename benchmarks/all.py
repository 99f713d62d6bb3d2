"""All results of the benchmarks: which of them are stale, how long they take, and how to run them again.

    python benchmarks/all.py                              # what there is: date, minutes, and what has changed since
    python benchmarks/all.py --stale                      # only what is stale or was never run; exit code 1 if anything
    python benchmarks/all.py --run napsu-adult napsu      # run some, or with --stale --run all that are stale
    python benchmarks/all.py --run napsu --data FOLDER    # folder with public data sets, for those that need it

A result is stale if code that it ran through has changed since: see `shared/results.py`. A run writes its result when
it ends, so that a stopped session loses one run at most; the shortest run first.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "shared"))

import results  # noqa: E402

GROUPS = ("held-out", "final", "curved", "last", "related", "rare")
_GRID = "--rehearsals 12 --replications 4 --settings 1000:1,5000:1,5000:3"
#: Command lines of the results, by name; FOLDER stands for the folder with public data sets.
RUNS = {
    # intervals
    "coverage": "coverage.py --full --replications 100 --picture coverage.png",
    "coverage-rehearsals": "coverage.py --full --replications 200 --cells 12 --only rehearsals",
    **{
        f"{group}-{releases}": f"populations.py --group {group} --releases {releases} {_GRID}"
        for group in GROUPS
        for releases in ("default", "named")
    },
    "curved-named": f"populations.py --group curved --releases named {_GRID} "
    "--populations earnings8,incomes,vocabulary,wages88,smokers,docvisits",  # no spline
    "by-generator": "populations.py --group final --generators BayesNet AIM --settings 5000:1,2000:1 --replications 4",
    "by-share": "populations.py --shares 0.3 0.6 0.9 --releases default --settings 5000:1,1000:1 --replications 4",
    "wrong-rows": "wrong_rows.py --replications 3",
    "replicates": "replicates.py --replications 6",
    "pymc-models": "pymc_models.py",
    "hierarchies": "hierarchies.py",
    "hierarchies-rehearsed": "hierarchies.py --replications 40 --rehearsals 20",
    "rare-levels": "rare_levels.py --rehearsals 20",
    "elpd": "elpd.py",
    "demo": "demo.py",
    "napsu": "napsu.py --methods calibrated --replications 100",
    "napsu-adult": "napsu.py --adult --data FOLDER --replications 100",
    # rows
    "marginals": "marginals.py --data FOLDER --tables adult-7 churn wives --seeds 3",
    "marginals-14": "marginals.py --data FOLDER --tables adult-14 --seeds 2 --epsilon 0.3 1 "
    "--generators 'real rows' BayesNet AIM MST 'MST of mbi'",
    "marginals-small": "marginals.py --data FOLDER --tables wages visits smoking insurance children "
    "--rows 500 2000 8000 --epsilon 0.1 0.3 1 --seeds 2 --generators BayesNet MST AIM",
    "generators": "generators.py --data FOLDER",
    "mixture": "mixture.py --data FOLDER",
    # the paper
    "paper-toy": "paper/toy.py",
    "paper-tables": "paper/tables.py --data FOLDER",
    "paper-regressions": "paper/regressions.py --data FOLDER",
    "paper-log-weights": "paper/log_weights.py --data FOLDER",
    "paper-privacy-split": "paper/privacy_split.py --data FOLDER",
    "paper-compute-times": "paper/compute_times.py --data FOLDER",
    "paper-discoveries": "paper/discoveries.py",
    "paper-queries": "paper/queries.py --data FOLDER",
    "paper-contributions": "paper/contributions.py",
    "paper-mnist": "paper/mnist.py --data FOLDER --seeds 5",
    # costs and times
    "ledger-rules": "ledger_rules.py",
    "publish": "publish.py",
    "publish-for-model": "publish.py --response hospital",
    "publish-20m": "publish.py --rows 20000000 --files --dask",
    "publish-100m": "publish.py --rows 100000000 --files --dask",
    "speed": "speed.py",
    "rehearsals": "rehearsals.py",
    "rehearsals-pymc": "rehearsals.py --pymc --rehearsals 20",
    "neural": "neural.py",
    "imports": "imports.py",
}
#: What is shown of the files that have changed.
_NAMED = 3


def state(name: str) -> tuple[str, float | None, str]:
    """Date and minutes of a result, and why it is stale ("" if it is not)."""
    try:
        content = results.read(name)
    except FileNotFoundError:
        return "never", None, "never run"
    except json.JSONDecodeError:
        return "never", None, "not readable"
    if content["command"] != f"python benchmarks/{RUNS[name]}":
        return content["date"], content["seconds"] / 60, "another command line"
    files = [Path(file).stem for file in results.changed(content)]
    more = f" and {len(files) - _NAMED} more" if len(files) > _NAMED else ""
    return content["date"], content["seconds"] / 60, f"changed: {', '.join(files[:_NAMED])}{more}" if files else ""


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stale", action="store_true", help="only results that are stale")
    parser.add_argument("--run", nargs="*", metavar="NAME", help="run these; without names, all that are shown")
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="folder with public data sets")
    options = parser.parse_args(argv)
    if unknown := sorted({*(options.run or ())} - set(RUNS)):
        parser.error(f"there is no result {unknown}; there are {sorted(RUNS)}")
    found = {name: state(name) for name in options.run or RUNS}
    shown = [name for name, (*_, why) in found.items() if why or not options.stale]
    if options.run is None:
        for name in shown:
            date, minutes, why = found[name]
            print(f"{name:<24}{date:<12}{'' if minutes is None else f'{minutes:.0f} min':>8}  {why or 'fresh'}")
        return int(options.stale and bool(shown))
    worst = 0
    for name in sorted(shown, key=lambda name: found[name][1] or 0.0):
        script, *arguments = shlex.split(RUNS[name].replace("FOLDER", shlex.quote(str(options.data.resolve()))))
        print(f"== {name}: python benchmarks/{RUNS[name]}", flush=True)
        done = subprocess.run([sys.executable, str(HERE / script), *arguments, "--result", name], check=False)
        worst = worst or done.returncode
    return worst


if __name__ == "__main__":
    sys.exit(main())
