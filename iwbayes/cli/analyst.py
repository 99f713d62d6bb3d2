"""Commands for analysts: inspect, rehearse, fit, report and export; and the demonstration."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from iwbayes.cli.app import Debug, Force, Json, ReleaseFile, app
from iwbayes.cli.output import (
    REPLICATES,
    check_output,
    columns,
    errors,
    facts_of,
    finite,
    for_reading,
    on_terminal,
    posterior_lines,
    records,
    save_or_rescue,
    say,
    working,
    write_exports,
)
from iwbayes.utils.display import fill, text_table, wrapped

_SUMMARY = ["mean", "sd", "eti90_lb", "eti90_ub", "ess_bulk", "r_hat"]  # of each parameter
#: Largest number of lines that a fit prints, and smallest number of lines for parameters, which may exceed the former.
_MOST_LINES, _FEWEST_PARAMETERS = 40, 6


@app.command(epilog="Examples:\n\n\b\n  iwbayes inspect people.iwb\n  iwbayes inspect people.iwb --json")
def inspect(release: ReleaseFile, as_json: Json = False, debug: Debug = False) -> None:
    """Check a release file and show its content.

    Shows size, weights, verdict, privacy statement and columns.
    """
    with errors(debug):
        from iwbayes.release import load
        from iwbayes.release.in_words import story
        from iwbayes.schema.schema import column_table

        found = load(release)
        if as_json:
            facts = facts_of(found)
            facts["schema"], facts["recipe"] = found.synthetic.schema.to_dict(), found.recipe
            facts["registry"] = found.to_registry()
            say(json.dumps(facts, indent=1))
            return
        columns_of = text_table(*column_table(found.synthetic.schema), indent="    ", width=columns())
        lines = []
        measurement = found.weights.measurement
        if measurement is not None:
            clipped, noise = measurement.clipped_private, measurement.noise
            known = (
                f"; clipped private rows: {clipped:.1%} (noisy share of rows whose feature norm was clipped, not of "
                "values outside the schema's bounds)"
            )
            sd = f"{noise.variance**0.5:.4g}" + (known if clipped == clipped else "")
            lines.append(f"  measured: {measurement.name}, {noise.dim} coordinates, {noise.name} noise with sd {sd}")
            parts = {"held-back test": measurement.held_back}
            parts["columns and products in early stages"] = measurement.columns
            lines += [f"  {name}: {part.noise.dim} coordinates" for name, part in parts.items() if part is not None]
        lines += ["  how it was made:", *(f"    {sentence}" for sentence in story(found))]
        say(f"{found.summary(width=columns())}\n  schema:\n{columns_of}")
        say(wrapped("\n".join(lines), width=columns()))


@app.command(
    epilog="Example:\n\n\b\n"
    "  iwbayes rehearse people.iwb -o rehearsals --jobs 2 --seed 1\n"
    '  iwbayes fit people.iwb "income ~ age + sex" --rehearsals rehearsals'
)
def rehearse(
    release: ReleaseFile,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Folder for the rehearsals. Those that it contains are kept.")
    ],
    n: Annotated[int, typer.Option("--n", "-n", help="Number of rehearsals, at least 10.")] = 40,
    jobs: Annotated[int, typer.Option(help="Number of processes.")] = 1,
    seed: Annotated[
        int | None, typer.Option(help="Seed of the rehearsals. A run that continues keeps the seed of its folder.")
    ] = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Repeat a release from its own rows, for intervals of any model.

    Each rehearsal is saved when it ends. If the command is stopped, run it again: it continues. Rehearsals use the
    release only, and cost no privacy.
    """
    with errors(debug):
        from iwbayes.release import load

        found = load(release)
        with working("loading"):
            from iwbayes.replaying import rehearse as repeated

        try:
            made = repeated(found, n, path=output, n_jobs=jobs, random_seed=seed, progressbar=sys.stderr.isatty())
        except KeyboardInterrupt:
            there = len([*output.glob("[0-9]*.iwb")])
            said = f"interrupted: {output} contains {there} of {n} rehearsals. Run the command again to continue."
            say(for_reading(said), err=True)
            raise typer.Exit(130) from None
        if as_json:
            facts = {"path": str(output), "n": len(made), "seed": made.facts.random_seed}
            say(json.dumps(facts | {"unmeasured_error": finite(made.misfit)}, indent=1))
            return
        say(for_reading(f"{output} contains {len(made)} rehearsals. Pass the folder to iwbayes fit --rehearsals."))


@app.command(
    epilog="Examples:\n\n\b\n"
    '  iwbayes fit people.iwb "income ~ age + sex"\n'
    '  iwbayes fit people.iwb "visits ~ age" --family poisson --seed 1 \\\n'
    "    -o posterior.nc --json"
)
def fit(
    release: ReleaseFile,
    formula: Annotated[str, typer.Argument(help='Regression, such as "y ~ x + z".')],
    family: Annotated[
        str | None,
        typer.Option(
            help="Such as gaussian, bernoulli, poisson, negativebinomial, zero_inflated_poisson or gamma; a wrong name "
            "lists all. Default: chosen by the type of the response column."
        ),
    ] = None,
    design_weight: Annotated[
        str | None, typer.Option(help="Column of design weights of a survey, which multiply log likelihoods.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write the posterior to this netCDF file.")
    ] = None,
    method: Annotated[str, typer.Option(help="Posterior computation: auto, laplace or nuts.")] = "auto",
    draws: Annotated[int, typer.Option(help="Posterior draws per chain.")] = 1000,
    chains: Annotated[int, typer.Option(help="Number of chains.")] = 4,
    seed: Annotated[int | None, typer.Option(help="Seed of the posterior draws.")] = None,
    calibrate: Annotated[
        str, typer.Option(help="How to account for the noise in the weights: auto, formula, pool or none.")
    ] = "auto",
    rehearsals: Annotated[
        Path | None, typer.Option(help="Folder of iwbayes rehearse, for intervals by rehearsals.")
    ] = None,
    force: Force = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Fit a regression to a release.

    Prints the calibrated posterior and the diagnostics.
    """
    with errors(debug):
        if output is not None:
            check_output(output, force, inputs=[release])
        from iwbayes.release import load

        found = load(release)
        with working("loading PyMC"):
            from iwbayes.analyst import arviz_compat
            from iwbayes.analyst.criticism.diagnose import diagnose
            from iwbayes.analyst.fit import fit as fit_posterior
            from iwbayes.analyst.quantities.summary import summary, with_stars
            from iwbayes.release.rehearsals import Rehearsals

        idata = fit_posterior(
            formula,
            found,
            family=cast(Any, family),
            method=cast(Any, method),
            design_weight=design_weight,
            draws=draws,
            chains=chains,
            random_seed=seed,
            calibrate=cast(Any, calibrate),
            rehearsals=None if rehearsals is None else Rehearsals.load(rehearsals),
            progressbar=sys.stderr.isatty(),
        )
        used = arviz_compat.group(idata, "posterior").attrs["family"]
        table, checks = summary(idata, kind="all", round_to="none"), diagnose(found, idata)
        written = None if output is None else save_or_rescue(lambda path: arviz_compat.save(idata, path), output)
        if as_json:
            facts = {
                "formula": formula,
                "family": used,
                "design_weight": design_weight,
                "calibrated": "calibration" in checks.index and bool(checks.loc["calibration", "verdict"] == "ok"),
                "summary": records(table[[*_SUMMARY, "calibrated", "why"]].astype({"calibrated": bool}), "parameter"),
                "diagnostics": records(checks, "check"),
                "path": written and str(written),
            }
            say(json.dumps(facts, indent=1))
            return
        shown = with_stars(table)[_SUMMARY]
        title = fill(f"{formula} ({used}), 90 % intervals", later="  ", width=columns()).split("\n")
        star = ["* not calibrated"] if any(name.endswith(" *") for name in shown.index) else []
        below = [*star, "", "diagnostics", *checks.brief(width=columns()).split("\n")]
        below += [] if written is None else [f"written to {written}"]
        room = max(_MOST_LINES - len(title) - len(below) - 1, _FEWEST_PARAMETERS) if on_terminal() else sys.maxsize
        say("\n".join([*title, "", *posterior_lines(shown, most=room), *below]))


@app.command(
    epilog="Examples:\n\n\b\n"
    "  iwbayes report people.iwb -o report.html\n"
    "  iwbayes report people.iwb posterior.nc -o report.html --force"
)
def report(
    release: ReleaseFile,
    posterior: Annotated[Path | None, typer.Argument(help="Posterior file from iwbayes fit (netCDF).")] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="HTML file to write.")] = Path("report.html"),
    title: Annotated[str | None, typer.Option(help="Title of the page.")] = None,
    force: Force = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Write a report on a release as one HTML page.

    The report has warnings first, then the posterior, the privacy statement, the weights and the marginals.
    """
    with errors(debug):
        check_output(output, force, inputs=[release, posterior])
        from iwbayes.release import load
        from iwbayes.utils.archive import write_atomically

        found = load(release)
        with working("drawing"):
            from iwbayes.analyst import arviz_compat
            from iwbayes.analyst.criticism.diagnose import diagnose
            from iwbayes.reporting.report import of_another_release
            from iwbayes.reporting.report import report as describe

            idata = None if posterior is None else arviz_compat.load(posterior)
            if idata is not None and of_another_release(diagnose(found, idata)):
                raise ValueError(
                    f"{posterior} must be a fit to {release}; it was fitted to a different release. Pass the release "
                    "of this fit. Nothing was written."
                )
            content = describe(found, idata, title=title)
        write_atomically(output, content.encode("utf-8"), overwrite=force)
        say(json.dumps({"path": str(output)}, indent=1) if as_json else f"written to {output}")


@app.command(
    epilog="Examples:\n\n\b\n"
    "  iwbayes export people.iwb -o people.csv\n"
    "  iwbayes export people.iwb -o people.dta --replicates 200 --seed 1\n\n"
    "PATH.txt, next to the file, has the privacy statement, and code that reads the file in R, Stata and SAS."
)
def export(
    release: ReleaseFile,
    output: Annotated[Path, typer.Option("--output", "-o", help="File to write: .csv, .dta or .parquet.")],
    replicates: Annotated[
        int, typer.Option(help="Number of replicate weights, at least 10; 0 for weights only.")
    ] = REPLICATES,
    seed: Annotated[int | None, typer.Option(help="Seed of the replicate weights.")] = None,
    force: Force = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Write rows and weights for other programs.

    With replicate weights, standard errors of survey packages account for the privacy noise.
    """
    with errors(debug):
        from iwbayes.release import load
        from iwbayes.release.export import files_of
        from iwbayes.release.replicates import ReplicatesError

        for file in files_of(output):
            check_output(file, force, inputs=[release])
        try:
            written = write_exports(load(release), [output], replicates, seed, force=force)
        except ReplicatesError as error:
            raise ValueError(f"{error} Use --replicates 0 for a file without standard errors.") from None
        if as_json:
            say(json.dumps({"paths": list(map(str, written)), "replicates": replicates}, indent=1))
            return
        for file in written:
            say(for_reading(f"written to {file}"))


@app.command(epilog="Example:\n\n\b\n  iwbayes demo -o iwbayes-demo --seed 2")
def demo(
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the first release and the figure.")] = Path(
        "iwbayes-demo"
    ),
    seed: Annotated[int, typer.Option(help="Seed of all random numbers, including the privacy noise.")] = 1,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Publish samples of a real public table, and count intervals that contain the true coefficients.

    The table has 20,190 person-years of the RAND health insurance experiment. Twenty times, 5,000 of them are published
    and analysed. If statsmodels is missing, a simulated table of the same shape is used instead.
    """
    with errors(debug):
        with working("loading") as progress:
            from iwbayes.demo import run_demo

            result = run_demo(seed=seed, output=output, progress=progress)
        if as_json:
            facts = {
                "source": result.source,
                "n_private": result.first.n_private,
                "coverage": records(result.coverage(), "method"),
                "truth": result.truth.to_dict(),
                "verdict": result.verdict(),
                "intervals": records(result.table, "number"),
                "files": {name: str(path) for name, path in result.files.items()},
            }
            say(json.dumps(facts, indent=1, default=str))
            return
        say(str(result))
        say(f"Release: {result.files['release']}\nFigure:  {result.files['figure']}")
