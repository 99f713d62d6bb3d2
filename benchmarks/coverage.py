"""Coverage study: how often nominal intervals contain the truth, over truths, sizes, budgets and generators.

    python benchmarks/coverage.py --quick            # a few cells, within 5 minutes on two cores
    python benchmarks/coverage.py --full             # 54 cells x 400 replications, hours
    python benchmarks/coverage.py --full --report coverage.md    # the tables in Markdown as well

A cell is a regression with coefficients drawn by a seed, a number of private rows, a number of synthetic ones, an
epsilon (delta is 1e-6), and a generator. Each replication simulates private rows, publishes them (noise seeded, so
that a study can be repeated), fits the same formula by each method and asks whether the interval of each coefficient
contains the truth. Lengths and errors are compared with the row sandwich of a fit to the private rows.

Results are kept in --folder, one file a cell and estimator: a run that was stopped goes on from there.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

# before numpy loads its linear algebra; and coverage.py of this folder would hide the package of that name
for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, "1")
HERE = Path(__file__).resolve().parent
sys.path[:] = [str(HERE / "shared"), *(p for p in sys.path if Path(p or ".").resolve() != HERE)]

import warnings  # noqa: E402
from functools import partial  # noqa: E402
from typing import Any  # noqa: E402

import pandas as pd  # noqa: E402
from cells import Cell, Truth, draw_cells  # noqa: E402
from methods import AsPrinted, InTables, combine_tables, fit_release  # noqa: E402

import iwbayes as iw  # noqa: E402

OURS = "tilt, calibrated"
QUICK = ("tilt", "BetaDebiased, 0.1", "5 tables, combined")
LEVELS = (0.9, 0.5, 0.95)
LIMITS = (0.87, 0.93)
TABLES = 5
CELLS, SEED = 54, 20261121


def logistic(l2: float, mechanism: str, debias: bool) -> iw.LogisticWeights:
    return iw.LogisticWeights(l2=l2, mechanism=mechanism, debias=debias)


#: Estimators beside ours, by the name of the method, with the fit of the weighted posterior.
OTHERS: dict[str, tuple[Any, str]] = {
    "LogReg": (AsPrinted(logistic(0.1, "none", False)), "uncalibrated"),
    "BetaNoised, 0.1": (AsPrinted(logistic(0.1, "paper", False)), "uncalibrated"),
    "BetaDebiased, 0.1": (AsPrinted(logistic(0.1, "paper", True)), "uncalibrated"),
    "BetaDebiased, 0.01": (AsPrinted(logistic(0.01, "paper", True)), "uncalibrated"),
    "Gaussian logistic": (logistic(0.1, "gaussian", True), "row sandwich"),
    "spherical logistic": (logistic(0.1, "spherical", True), "row sandwich"),
}


def studies(cell: Cell) -> dict[str, dict[str, Any]]:
    """Arguments of `coverage_study` by the name of the study: ours, and one for each other estimator."""
    truth = cell.truth
    model = {"formula": truth.formula, "family": truth.family}
    kinds = ("calibrated", "row sandwich", "uncalibrated", "unweighted")
    fit = {kind: partial(fit_release, **model, kind=kind) for kind in kinds}
    common = {
        "simulate": cell.simulate(),
        "generator": cell.make_generator(),
        "truth": truth.parameters,
        "publish": cell.publish(),
        "reference": fit["calibrated"],
        "random_seed": truth.seed,
    }
    ours = {OURS: "calibrated", "tilt, row sandwich": "row sandwich", "tilt, uncalibrated": "uncalibrated"}
    names = {**ours, "unweighted": "unweighted"}
    found = {"tilt": {**common, "weights": iw.TiltWeights(), "fit": {name: fit[kind] for name, kind in names.items()}}}
    for name, (estimator, kind) in OTHERS.items():
        found[name] = {**common, "weights": estimator, "fit": {name: fit[kind]}}
    if not callable(cell.make_generator()):  # rows of a public source know nothing of the private ones
        name = f"{TABLES} tables, combined"
        found[name] = {
            **common,
            "generator": InTables(cell.make_generator(), TABLES),
            "weights": iw.UniformWeights(),
            "publish": {**cell.publish(), "n_synthetic": TABLES * cell.n_private},
            "fit": {name: partial(combine_tables, **model, tables=TABLES)},
        }
    return found


def run(cell: Cell, name: str, replications: int, arguments: argparse.Namespace) -> pd.DataFrame:
    """Rows of one study of a cell, computed or read."""
    file = arguments.folder / f"{cell.name}-{name.replace(',', '').replace(' ', '-')}.jsonl"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = iw.coverage_study(
            **studies(cell)[name], n_replications=replications, levels=LEVELS, n_jobs=arguments.jobs, path=file,
            progressbar=False,
        )  # fmt: skip
    if len(found.failures):
        share = len(found.failures) / replications
        print(f"{cell.name}, {name}: {share:.1%} failed; {found.failures['error'].iloc[0]}", file=sys.stderr)
    return summary(cell, found)


def summary(cell: Cell, study: iw.CoverageStudy) -> pd.DataFrame:
    """One row a method of a study: coverage at each level, lengths, and the medians of the diagnostics."""
    main = study.summary(LEVELS[0])
    for level in LEVELS[1:]:
        main[f"coverage_{100 * level:g}"] = study.summary(level)["coverage"]
    each = study.replications.groupby(["method", "replication"], sort=False).first()
    for fact in ("kappa_max", "clipped_private", "pareto_k", "ess"):
        main[fact] = each[fact].astype(float).groupby("method", sort=False).median()
    main["ess"] /= cell.n_synthetic
    settings = {"truth": cell.truth.kind, "N": cell.n_private, "M": cell.n_synthetic, "epsilon": cell.epsilon}
    return main.reset_index().assign(cell=cell.name, **settings, generator=cell.generator)


def outside(row: pd.Series, margin: float = 0.0) -> bool:
    """Whether the mean coverage at 90 % leaves 87-93 % by more than `margin` standard errors."""
    return not LIMITS[0] - margin * row.coverage_se <= row.coverage <= LIMITS[1] + margin * row.coverage_se


def verdicts(rows: pd.DataFrame) -> list[str]:
    """Say what the study must show for ours, and what it shows."""
    ours = rows[rows["method"] == OURS]
    inside = ours[ours["warned"] < 0.5]
    off = inside.apply(outside, axis=1) if len(inside) else pd.Series(dtype=bool)
    far = inside.apply(outside, axis=1, margin=2) if len(inside) else pd.Series(dtype=bool)
    bad = ours.apply(outside, axis=1)
    return [
        f"cells inside the domain (fewer than half of the replications warn): {len(inside)} of {len(ours)}",
        f"of these within 87-93 %: {1 - off.mean():.0%} (wanted 95 %); off by over two standard errors: {far.sum()}",
        f"worst coefficient inside the domain: {inside['worst'].min():.1%} (wanted 83 %)",
        f"cells that leave 87-93 %: smallest share of warnings {ours[bad]['warned'].min():.0%} (wanted 95 %)",
        f"cells that do not: largest share of warnings {ours[~bad]['warned'].max():.0%} (wanted 10 %)",
    ]


def percent(value: float, error: float | None = None) -> str:
    return f"{100 * value:.1f}" + ("" if error is None else f" ± {100 * error:.1f}")


def report(rows: pd.DataFrame) -> str:
    """Tables in Markdown: one line a cell for ours; medians over cells inside the domain for every method."""
    ours = rows[rows["method"] == OURS].sort_values(["truth", "N", "epsilon"])
    head = ("truth", "N", "M", "eps", "generator", "n", "kappa", "clipped", "k-hat", "ESS/M", "warned",
            "90 %", "worst", "50 %", "95 %", "length")  # fmt: skip
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for _, row in ours.iterrows():
        cells = (
            row.truth, f"{row.N:,}", f"{row.M:,}", f"{row.epsilon:g}", row.generator, str(row.n),
            f"{row.kappa_max:.3f}", percent(row.clipped_private), f"{row.pareto_k:.2f}", f"{row.ess:.2f}",
            percent(row.warned), percent(row.coverage, row.coverage_se), percent(row.worst), percent(row.coverage_50),
            percent(row.coverage_95), f"{row.length_ratio:.2f}",
        )  # fmt: skip
        lines.append("| " + " | ".join(cells) + " |")
    inside = set(ours[ours["warned"] < 0.5]["cell"])
    lines += [
        "",
        "| method | cells | coverage at 90 %: median | smallest | largest | length: median |",
        "|---|" + "---|" * 5,
    ]
    for method, group in rows[rows["cell"].isin(inside)].groupby("method", sort=False):
        share, each = group["coverage"], group.drop_duplicates("cell")
        lines.append(
            f"| {method} | {len(each)} | {percent(share.median())} | {percent(share.min())} | {percent(share.max())} | "
            f"{group['length_ratio'].median():.2f} |"
        )
    return "\n".join([*lines, "", *verdicts(rows)])


def chosen_cells(arguments: argparse.Namespace) -> list[Cell]:
    """All cells of a run, those of the same cost side by side."""
    if arguments.full:
        return sorted(draw_cells(CELLS, arguments.seed), key=lambda cell: cell.n_synthetic)
    return [
        Cell(Truth("logistic3", 1), 2000, 5, 1.0, "BayesNet"),
        Cell(Truth("logistic3", 2), 10_000, 1, 1.0, "BayesNet"),
        Cell(Truth("linear", 3), 2000, 1, 2.0, "tilted"),
        Cell(Truth("poisson", 4), 1000, 1, 5.0, "histograms"),
        Cell(Truth("logistic5", 5), 500, 5, 0.5, "BayesNet"),
    ]


def main() -> None:
    """Run the studies that are missing and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_true", help="five cells, ours and two other methods (the default)")
    size.add_argument("--full", action="store_true", help="54 cells, all methods")
    parser.add_argument("--replications", type=int, help="of ours; a quarter of them for other estimators")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--seed", type=int, default=SEED, help="of the cells of --full")
    parser.add_argument("--folder", type=Path, default=Path("coverage_results"))
    parser.add_argument("--report", type=Path, help="write the tables to this file as well")
    arguments = parser.parse_args()
    replications = arguments.replications or (400 if arguments.full else 60)
    arguments.folder.mkdir(parents=True, exist_ok=True)
    start, rows = time.perf_counter(), []
    for place, cell in enumerate(cells := chosen_cells(arguments), start=1):
        names = [name for name in studies(cell) if arguments.full or name in QUICK]
        rows += [
            run(cell, name, replications if name == "tilt" else max(replications // 4, 1), arguments) for name in names
        ]
        own = rows[-len(names)].set_index("method").loc[OURS]
        print(
            f"{place}/{len(cells)} {cell.name}: {percent(own.coverage, own.coverage_se)} %, "
            f"length {own.length_ratio:.2f}, warned {percent(own.warned)} %; {time.perf_counter() - start:.0f} s",
            file=sys.stderr, flush=True,
        )  # fmt: skip
    text = report(pd.concat(rows, ignore_index=True).drop_duplicates(["cell", "method"]))
    print(text)
    if arguments.report:
        arguments.report.write_text(text + "\n")


if __name__ == "__main__":
    main()
