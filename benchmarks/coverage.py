"""Coverage study: how often intervals cover known true coefficients, over regressions, sizes, budgets and generators.

    python benchmarks/coverage.py             # a few settings, within 5 minutes on two cores
    python benchmarks/coverage.py --full      # 54 settings x 400 replications, about three hours on two cores
    python benchmarks/coverage.py --full --report coverage.md --picture coverage.png    # tables and a figure as well

A setting (a `Cell`) is a regression with coefficients drawn from a seed, numbers of private and synthetic rows, an
epsilon (delta is 1e-6), and a generator. Each replication simulates private rows and publishes them with seeded noise,
so that a study can be repeated. It fits the same formula by each method and checks whether the interval of each
coefficient covers the true value. Lengths and errors are relative to the row sandwich of a fit to the private rows.

The calibrated tilt has the most replications. Releases made for the model have an eighth of them, and the other
methods, whose coverage is far from nominal, a twentieth. Results are kept in --folder, one file per setting and
weight provider, for the code of today: a stopped run continues from them, and --done shows the results so far.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import warnings
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

# coverage.py of this folder would hide the package of that name
HERE = Path(__file__).resolve().parent
sys.path[:] = [str(HERE / "shared"), *(p for p in sys.path if Path(p or ".").resolve() != HERE)]

import command  # noqa: E402, I001 - in shared; before numpy
import numpy as np  # noqa: E402
import pandas as pd  # noqa: E402
from cells import Cell, Truth, draw_cells  # noqa: E402
from methods import AsPrinted, InTables, combine_tables, fit_release, silent_part  # noqa: E402
import results  # noqa: E402

import iwbayes as iw  # noqa: E402
from iwbayes.reporting.drawing import BLUE, COLOURS, MARKERS  # noqa: E402

OURS = "tilt, calibrated"
NAMED = "tilt for this model, calibrated"
IN_STAGES = "scores of this model in stages, calibrated"
REHEARSED = "tilt, rehearsals"
PUBLISHED = "BetaDebiased, 0.1"
QUICK = ("tilt", PUBLISHED, "5 tables, combined")
LEVELS = (0.9, 0.5, 0.95)
#: Coverage of each nominal level that counts as right.
LIMITS = {0.9: (0.87, 0.93), 0.5: (0.45, 0.55), 0.95: (0.925, 0.975)}
#: A setting is inside the domain if at most this share of its replications warns.
WARNED_INSIDE = 0.1
#: Replications of the calibrated tilt per replication of another study.
FEWER, FEWER_FOR_MODELS = 20, 8
TABLES = 5
#: The seed is the name of the commit that fixed the domain's limits: truths and generators were drawn after it.
CELLS, SEED = 54, 0x4255D45
#: Settings without --full.
FEW = [
    Cell(Truth("logistic3", 1), 2000, 5, 1.0, "BayesNet"),
    Cell(Truth("logistic3", 2), 10_000, 1, 1.0, "BayesNet"),
    Cell(Truth("linear", 3), 2000, 1, 2.0, "tilted"),
    Cell(Truth("poisson", 4), 1000, 1, 5.0, "histograms"),
    Cell(Truth("logistic5", 5), 500, 5, 0.5, "BayesNet"),
]


def logistic(l2: float, mechanism: str, debias: bool) -> iw.paper.LogisticWeights:
    return iw.paper.LogisticWeights(l2=l2, mechanism=mechanism, debias=debias)


#: Weight providers other than the tilt, by the name of the method, with the fit of the weighted posterior.
OTHERS: dict[str, tuple[Any, str]] = {
    "LogReg": (AsPrinted(logistic(0.1, "none", False)), "uncalibrated"),
    "BetaNoised, 0.1": (AsPrinted(logistic(0.1, "paper", False)), "uncalibrated"),
    "BetaDebiased, 0.1": (AsPrinted(logistic(0.1, "paper", True)), "uncalibrated"),
    "BetaDebiased, 0.01": (AsPrinted(logistic(0.01, "paper", True)), "uncalibrated"),
    "Gaussian logistic": (logistic(0.1, "gaussian", True), "row sandwich"),
    "spherical logistic": (logistic(0.1, "spherical", True), "row sandwich"),
}
#: Two settings by the usual studies, one by all others, and what both left.
SMOKE = (
    "--cells 2 --rows 300 --replications 2 --picture coverage.png",
    "--full --cells 1 --rows 1000 --replications 1 --rehearsals 10 --only tilt for_models stages rehearsals plain "
    f"{' '.join(map(repr, OTHERS))}",
    "--full --cells 1 --rows 1000 --replications 1 --done --report coverage.md",
)


def studies(cell: Cell, n_rehearsals: int = 20) -> dict[str, dict[str, Any]]:
    """Return the arguments of `coverage_study` by name of the study: the tilt, and one for each other provider."""
    truth = cell.truth
    model = {"formula": truth.formula, "family": truth.family}
    kinds = ("calibrated", "rehearsals", "row sandwich", "uncalibrated", "unweighted")
    fit = {kind: partial(fit_release, **model, kind=kind) for kind in kinds}
    fit["rehearsals"] = partial(fit["rehearsals"], n_rehearsals=n_rehearsals)
    common = {
        "simulate": cell.simulate(),
        "generator": cell.make_generator(),
        "truth": truth.parameters,
        "publish": cell.publish(),
        "reference": fit["calibrated"],
        "random_seed": truth.seed,
    }
    tilt, named = iw.TiltWeights(), iw.TiltWeights(features="products", for_models=(truth.formula,))
    stages = iw.TiltWeights(for_models=[iw.model(truth.formula, family=truth.family)])
    plain = {"tilt, row sandwich": "row sandwich", "tilt, uncalibrated": "uncalibrated", "unweighted": "unweighted"}
    found = {
        "tilt": {**common, "weights": tilt, "fit": {OURS: fit["calibrated"]}},
        "for_models": {**common, "weights": named, "fit": {NAMED: fit["calibrated"]}},
        "stages": {**common, "weights": stages, "fit": {IN_STAGES: fit["calibrated"]}},
        "rehearsals": {**common, "weights": tilt, "fit": {OURS: fit["calibrated"], REHEARSED: fit["rehearsals"]}},
        "plain": {**common, "weights": tilt, "fit": {name: fit[kind] for name, kind in plain.items()}},
    }
    for name, (provider, kind) in OTHERS.items():
        found[name] = {**common, "weights": provider, "fit": {name: fit[kind]}}
    if not callable(cell.make_generator()):  # rows from a public source do not depend on private rows
        name = f"{TABLES} tables, combined"
        found[name] = {
            **common,
            "generator": InTables(cell.make_generator(TABLES), TABLES),
            "weights": iw.UniformWeights(),
            "publish": {**cell.publish(), "n_synthetic": TABLES * cell.n_private},
            "fit": {name: partial(combine_tables, **model, tables=TABLES)},
        }
    return found


def file_of(cell: Cell, name: str, arguments: argparse.Namespace) -> Path:
    """Return the file for the replications of one study of a setting."""
    return Path(arguments.folder) / f"{cell.name}-{name.replace(',', '').replace(' ', '-')}.jsonl"


def begun(file: Path) -> int:
    """Return how many replications of a study are complete, counted from the first."""
    if not file.exists():
        return 0
    done = {json.loads(line)["replication"] for line in file.read_text().splitlines()[1:]}
    return next(number for number in range(len(done) + 1) if number not in done)


def run(cell: Cell, name: str, replications: int, *, arguments: argparse.Namespace) -> pd.DataFrame:
    """Return the rows of one study of a setting, computed or read; no rows if every replication failed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            found = iw.validation.coverage_study(
                **studies(cell, arguments.rehearsals)[name], n_replications=replications, levels=LEVELS, n_jobs=1,
                path=file_of(cell, name, arguments), progressbar=False,
            )  # fmt: skip
        except RuntimeError as error:
            print(f"{cell.name}, {name}: {error}", file=sys.stderr)
            return pd.DataFrame()
    if len(found.failures):
        share = len(found.failures) / replications
        print(f"{cell.name}, {name}: {share:.1%} failed; {found.failures['error'].iloc[0]}", file=sys.stderr)
    return summary(cell, found)


def summary(cell: Cell, study: iw.validation.CoverageStudy) -> pd.DataFrame:
    """Return one row per method of a study: coverage at each level, lengths, and medians of the diagnostics."""
    main = study.summary(LEVELS[0])
    for level in LEVELS[1:]:
        main[f"coverage_{100 * level:g}"] = study.summary(level)["coverage"]
    each = study.replications.groupby(["method", "replication"], sort=False).first()
    for fact in ("kappa_max", "explained_min", "misfit_share_max", "clipped_private", "pareto_k", "ess"):
        main[fact] = each[fact].astype(float).groupby("method", sort=False).median()
    main["ess"] /= cell.n_synthetic
    for method in main.index:
        part, n_silent = silent_part(study, method)
        silent = float("nan") if part is None else part.summary(LEVELS[0]).loc[method, "coverage"]
        main.loc[method, ["coverage_silent", "n_silent"]] = silent, n_silent
    settings = {"truth": cell.truth.kind, "N": cell.n_private, "M": cell.n_synthetic, "epsilon": cell.epsilon}
    failed = len(study.failures)
    return main.reset_index().assign(cell=cell.name, failed=failed, **settings, generator=cell.generator)


def calibrated(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the calibrated tilt's row of each setting; the study of rehearsals has another one."""
    return rows[rows["method"] == OURS].drop_duplicates("cell")


def outside(row: pd.Series, margin: float = 0.0) -> bool:
    """Return whether the mean coverage at 90 % is more than `margin` standard errors outside 87-93 %."""
    low, high = LIMITS[0.9]
    return not low - margin * row.coverage_se <= row.coverage <= high + margin * row.coverage_se


def verdicts(rows: pd.DataFrame) -> list[str]:
    """Return one line per target of the calibrated tilt, with the result."""
    ours = calibrated(rows)
    if ours.empty:
        return ["the calibrated tilt was not run"]
    bad = ours.apply(outside, axis=1).astype(bool)
    inside = ours[ours["warned"] <= WARNED_INSIDE]
    lines = [f"settings inside the domain: {len(inside)} of {len(ours)}"]
    if len(inside):
        far = [f"{row.cell} covers {percent(row.coverage)} %" for _, row in inside.iterrows() if outside(row, margin=2)]
        lines += [
            f"inside, settings whose 90 % intervals cover 87-93 %: {100 * (1 - bad[inside.index].mean()):.0f} % "
            "(target: 95 %)",
            f"inside, settings more than two standard errors outside 87-93 %: {len(far)} (target: 0)"
            f"{': ' * bool(far)}{'; '.join(far)}",
            f"inside, smallest coverage of a single coefficient: {percent(inside['worst'].min())} % (target: 83 %)",
        ]
        for level in LEVELS[1:]:
            low, high = LIMITS[level]
            good = inside[f"coverage_{100 * level:g}"].between(low, high).mean()
            lines.append(
                f"inside, settings whose {100 * level:g} % intervals cover {100 * low:g}-{100 * high:g} %: "
                f"{100 * good:.0f} %"
            )
        for n, epsilon, most in ((10_000, 1.0, 1.5), (2000, 5.0, 1.5), (2000, 1.0, 2.5)):
            own = inside[(inside["N"] == n) & (inside["epsilon"] == epsilon)]["length_ratio"]
            if len(own):
                lines.append(
                    f"inside, median length relative to the private rows' intervals, N = {n:,}, epsilon {epsilon:g}: "
                    f"{own.median():.2f} (target: {most}; settings: {len(own)})"
                )
    total, n_silent = of_silent(ours)
    if n_silent:
        lines.append(f"all settings, coverage of the {n_silent:,} fits that do not warn: {percent(total)} %")
    lines += [
        f"settings outside 87-93 %: {bad.sum()}; in {(ours[bad]['warned'] >= 0.95).sum()} of them at least 95 % of the "
        f"fits warn; smallest share of warnings: {100 * ours[bad]['warned'].min():.0f} %",
        f"settings within 87-93 %: {(~bad).sum()}; in {(ours[~bad]['warned'] <= 0.1).sum()} of them at most 10 % of "
        f"the fits warn; largest share of warnings: {100 * ours[~bad]['warned'].max():.0f} %",
    ]
    return lines + gain(ours.set_index("cell"), rows[rows["method"] == NAMED].set_index("cell"))


def of_silent(ours: pd.DataFrame) -> tuple[float, int]:
    """Return the coverage of all fits that do not warn, NaN if there are none, and their number."""
    n = int(ours["n_silent"].sum())
    return float((ours["coverage_silent"] * ours["n_silent"]).sum() / n) if n else float("nan"), n


def gain(ours: pd.DataFrame, named: pd.DataFrame) -> list[str]:
    """Return lines that compare releases made for the model with the default."""
    if named.empty:
        return []
    own, quiet = ours.loc[named.index], named["warned"] <= WARNED_INSIDE
    before = own["warned"] <= WARNED_INSIDE
    good = named[quiet]["coverage"].between(*LIMITS[0.9]).mean()
    ratio = (named["length_ratio"] / own["length_ratio"])[before & quiet]
    poor = own["explained_min"] < 0.5  # the default has left products out
    shares = [percent(part["coverage"][poor].mean()) for part in (named, own)]
    more = (
        f"for_models, mean coverage in the {poor.sum()} settings in which the default explains less than half: "
        f"{shares[0]} % (default: {shares[1]} %)"
    )
    lines = [
        f"for_models, settings inside the domain: {quiet.sum()} of {len(named)} (default: {before.sum()})",
        f"for_models, inside, settings whose 90 % intervals cover 87-93 %: {100 * good:.0f} %; "
        f"median coverage: {percent(named[quiet]['coverage'].median())} %",
        f"for_models, median length relative to the default's, if both are inside: {ratio.median():.2f}",
    ]
    return [*lines, more] if poor.any() else lines


def percent(value: float, error: float | None = None) -> str:
    """Return per cent with one decimal, and a standard error if it is given."""
    return f"{100 * value:.1f}" + ("" if error is None else f" ± {100 * error:.1f}")


def report(rows: pd.DataFrame) -> str:
    """Return Markdown tables: each setting of the calibrated tilt, medians inside the domain, and every method."""
    ours = calibrated(rows).sort_values(["truth", "N", "epsilon"])
    head = ("truth", "N", "M", "epsilon", "generator", "n", "kappa", "explained", "misfit", "clipped", "k-hat", "ESS/M",
            "warned", "90 %", "worst coefficient", "50 %", "95 %", "90 %, no warning", "private rows",
            "length")  # fmt: skip
    private = rows[rows["method"] == "private rows"].drop_duplicates("cell").set_index("cell")["coverage"]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for _, row in ours.iterrows():
        cells = (
            row.truth, f"{row.N:,}", f"{row.M:,}", f"{row.epsilon:g}", row.generator, str(row.n),
            f"{row.kappa_max:.3f}", f"{row.explained_min:.2f}",
            "-" if np.isnan(row.misfit_share_max) else f"{row.misfit_share_max:.2f}",
            percent(row.clipped_private), f"{row.pareto_k:.2f}", f"{row.ess:.2f}", percent(row.warned),
            percent(row.coverage, row.coverage_se), percent(row.worst), percent(row.coverage_50),
            percent(row.coverage_95), percent(row.coverage_silent) if row.n_silent else "-",
            percent(private[row.cell]), f"{row.length_ratio:.2f}",
        )  # fmt: skip
        lines.append("| " + " | ".join(cells) + " |")
    inside = set(ours[ours["warned"] <= WARNED_INSIDE]["cell"])
    results.figure("inside/settings", len(inside), n=len(ours))
    total, n_silent = of_silent(ours)
    results.figure("silent/covered", total, n=n_silent)
    lines += [
        "",
        "| method | settings | coverage of 90 % intervals: median | smallest | largest | within 87-93 % | "
        "50 % intervals | 95 % intervals | length: median | RMSE ratio: median |",
        "|---|" + "---|" * 9,
    ]
    for method, group in rows[rows["cell"].isin(inside)].groupby("method", sort=False):
        group = group.drop_duplicates("cell")
        share = group["coverage"]
        for name, value in (("median", share.median()), ("smallest", share.min()), ("largest", share.max())):
            results.figure(f"inside/{method}/{name}", value, n=len(group))
        results.figure(f"inside/{method}/length", group["length_ratio"].median(), n=len(group))
        lines.append(
            f"| {method} | {len(group)} | {percent(share.median())} | {percent(share.min())} | {percent(share.max())} "
            f"| {share.between(*LIMITS[0.9]).mean():.0%} | {percent(group['coverage_50'].median())} | "
            f"{percent(group['coverage_95'].median())} | {group['length_ratio'].median():.2f} | "
            f"{group['rmse_ratio'].median():.2f} |"
        )
    return "\n".join([*lines, "", *by_cell(rows, ours), "", *(f"- {line}" for line in verdicts(rows))])


def by_cell(rows: pd.DataFrame, ours: pd.DataFrame) -> list[str]:
    """Return coverage of 90 % intervals by setting (in the order of `ours`) and method, and warnings of for_models.

    A method that failed in every replication of a setting, or does not apply to it, has a dash.
    """
    table = rows.pivot_table(index="cell", columns="method", values="coverage", sort=False)
    table = table.drop(columns="private rows")
    if NAMED in table:
        table["warned, for this model"] = rows[rows["method"] == NAMED].set_index("cell")["warned"]
    head = ["truth", "N", "M", "epsilon", "generator", *table.columns]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for _, row in ours.iterrows():
        shares = ("-" if np.isnan(share) else percent(share) for share in table.loc[row.cell])
        cells = [row.truth, f"{row.N:,}", f"{row.M:,}", f"{row.epsilon:g}", row.generator, *shares]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def draw_picture(rows: pd.DataFrame, path: Path) -> None:
    """Draw coverage and length by setting; a setting outside the domain has an open mark."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    ours = calibrated(rows).set_index("cell").sort_values("coverage")
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 5), layout="constrained")
    left.axhspan(*(100 * limit for limit in LIMITS[0.9]), color="0.9", zorder=0, label="87-93 %")
    left.axhline(90, color="0.5", linewidth=1, zorder=0)
    position = {cell: number for number, cell in enumerate(ours.index)}
    inside = ours["warned"] <= WARNED_INSIDE
    styles = [*zip((OURS, PUBLISHED, "unweighted"), COLOURS, MARKERS, strict=False)]
    for method, color, marker in reversed(styles):  # ours above the others
        own = rows[rows["method"] == method].set_index("cell")
        if own.empty:
            continue
        x = [position[cell] for cell in own.index]
        faces = [color if inside[cell] else "none" for cell in own.index]
        left.scatter(x, 100 * own["coverage"], s=22, marker=marker, facecolors=faces, edgecolors=color)
        left.scatter([], [], s=22, marker=marker, color=color, label=method)
    left.xaxis.get_major_locator().set_params(integer=True)
    left.set(
        xlabel="setting, by coverage of the calibrated tilt", ylabel="coverage of 90 % intervals, %", ylim=(0, 101)
    )
    left.legend(loc="upper center", bbox_to_anchor=(0.5, -0.13), ncols=4, fontsize="small", title="open: fits warn")
    for n, marker in zip(sorted(ours["N"].unique()), "sDo^", strict=False):
        own = ours[ours["N"] == n]
        faces = [BLUE if inside[cell] else "none" for cell in own.index]
        right.scatter([], [], marker=marker, color=BLUE, label=f"N = {n:,}")
        right.scatter(own["epsilon"], own["length_ratio"], marker=marker, facecolors=faces, edgecolors=BLUE)
    right.axhline(1, color="0.5", linewidth=1, zorder=0)
    right.set(xscale="log", yscale="log", xlabel="epsilon", ylabel="length relative to intervals from the private rows")
    for axis, ticks in ((right.xaxis, [0.5, 1, 2, 5]), (right.yaxis, [0.5, 1, 1.5, 2, 3, 5])):
        axis.set_ticks(ticks, [f"{tick:g}" for tick in ticks])
        axis.set_ticks([], minor=True)
    right.legend(
        loc="upper center", bbox_to_anchor=(0.5, -0.13), ncols=4, fontsize="small", title=f"{OURS}; open: fits warn"
    )
    figure.savefig(path, dpi=130)
    plt.close(figure)


def chosen_cells(arguments: argparse.Namespace) -> list[Cell]:
    """Return all settings of a run, ordered by cost."""
    if arguments.full:
        cells = sorted(draw_cells(arguments.cells, arguments.seed), key=lambda cell: cell.n_synthetic)
    else:
        cells = FEW[: arguments.cells]
    return [replace(cell, n_private=arguments.rows) for cell in cells] if arguments.rows else cells


def chosen_studies(arguments: argparse.Namespace, replications: int) -> list[tuple[Cell, str, int]]:
    """Return the settings, studies and numbers of replications of a run."""
    found = []
    for cell in chosen_cells(arguments):
        for name in studies(cell):
            # a replication of rehearsals takes half a minute
            by_default = name in QUICK or (arguments.full and name not in ("rehearsals", "stages"))
            if not (name in arguments.only if arguments.only else by_default):
                continue
            fewer = {"tilt": 1, "for_models": FEWER_FOR_MODELS, "stages": FEWER_FOR_MODELS}
            n = max(replications // fewer.get(name, FEWER), 1)
            n = min(n, begun(file_of(cell, name, arguments))) if arguments.done else n
            if n:
                found.append((cell, name, n))
    return found


def main(argv: Sequence[str] | None = None) -> int:
    parser = command.parser(__doc__)
    parser.add_argument("--full", action="store_true", help="all settings and methods")
    parser.add_argument(
        "--replications", type=int, help="of the tilt; an eighth of them for for_models, a twentieth for others"
    )
    parser.add_argument("--rehearsals", type=int, default=20, help="of each release, in the study of rehearsals")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--cells", type=int, default=CELLS, help=f"number of settings; {CELLS} of --full by default")
    parser.add_argument("--rows", type=int, help="private rows of each setting, instead of its own number")
    parser.add_argument("--seed", type=int, default=SEED, help="seed of the settings of --full")
    parser.add_argument("--folder", type=Path, default=Path("coverage_results"))
    parser.add_argument("--report", type=Path, help="write the tables to this file as well")
    parser.add_argument("--picture", type=Path, help="draw coverage and lengths into this file")
    parser.add_argument("--only", metavar="STUDY", nargs="+", help="run these studies, such as tilt, of each setting")
    parser.add_argument("--done", action="store_true", help="compute nothing: show the studies that have results")
    return command.run(work, parser, SMOKE, argv)


def work(arguments: argparse.Namespace) -> int:
    """Run the studies that are missing and print the tables."""
    replications = arguments.replications or (400 if arguments.full else 60)
    arguments.folder /= results.digest_of_all()  # results of other code are not continued
    arguments.folder.mkdir(parents=True, exist_ok=True)
    start, parts = time.perf_counter(), {}
    tasks = chosen_studies(arguments, replications)
    # each process runs whole studies: starting one takes as long as ten replications
    for task, done in command.completed(partial(run, arguments=arguments), tasks, arguments.jobs):
        part = parts[task] = done.result()
        for _, row in part.iterrows() if not arguments.done else ():
            if row["method"] == "private rows":
                continue
            print(
                f"{len(parts)}/{len(tasks)} {row.cell}, {row.method}: {percent(row.coverage, row.coverage_se)} %, "
                f"length {row.length_ratio:.2f}, warned {percent(row.warned)} %; "
                f"{time.perf_counter() - start:.0f} s",
                file=sys.stderr, flush=True,
            )  # fmt: skip
    found = pd.concat([parts[task] for task in tasks], ignore_index=True)
    text = report(found)
    results.report(text)
    print(text)
    if arguments.report:
        arguments.report.write_text(text + "\n")
    if arguments.picture:
        draw_picture(found, arguments.picture)
        results.picture(arguments.picture)
    return int(any(part.empty for part in parts.values()))


if __name__ == "__main__":
    sys.exit(main())
