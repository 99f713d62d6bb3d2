"""The command line: publish, inspect, fit, demo.

Nothing here prints a private value, also where a library fails: of an error that did not rise in this package
only type and place are shown while private rows are at hand, and tracebacks never show local variables. What a
command needs is imported inside it, so that ``--help`` is quick.
"""

from __future__ import annotations

import json
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    import pandas as pd

    from iwbayes.release import Release

app = typer.Typer(
    name="iwbayes",
    help="Publish differentially private synthetic tables with importance weights, and analyse them.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    pretty_exceptions_show_locals=False,
)

Debug = Annotated[bool, typer.Option("--debug", help="Show where an error rose (never any value).")]
Force = Annotated[bool, typer.Option("--force", help="Replace an existing output file.")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Input = Annotated[Path, typer.Argument(help="Release file.", show_default=False)]


def main() -> None:
    """Run the command line."""
    app()


def _show_version(asked: bool) -> None:
    if asked:
        from iwbayes import __version__

        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass


@app.command()
def publish(
    table: Annotated[Path, typer.Argument(help="Private rows, CSV or Parquet.", show_default=False)],
    schema: Annotated[Path, typer.Option("--schema", "-s", help="Schema, TOML.", show_default=False)],
    epsilon: Annotated[float, typer.Option(help="Privacy budget epsilon.", show_default=False)],
    delta: Annotated[float, typer.Option(help="Privacy budget delta.", show_default=False)],
    output: Annotated[Path, typer.Option("--output", "-o", help="Release file to write.", show_default=False)],
    n_synthetic: Annotated[
        int | None, typer.Option(help="Synthetic rows.", show_default="5 for each private row")
    ] = None,
    for_model: Annotated[
        list[str] | None,
        typer.Option(
            help='Regression that the rows are for, such as "y ~ x + z"; may be repeated.', show_default=False
        ),
    ] = None,
    share: Annotated[float, typer.Option(help="The generator's part of epsilon.")] = 0.3,
    adjacency: Annotated[str, typer.Option(help="replace-one or zero-out.")] = "replace-one",
    force: Force = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Publish a private table: synthetic rows and weights under one privacy budget."""
    with _errors(debug, private=True):
        # everything that can be wrong is looked at before the budget is spent
        _check_output(output, force)
        from iwbayes._read import read_table
        from iwbayes.curator.publish import publish as publish_table
        from iwbayes.schema import Schema
        from iwbayes.tables import PrivateTable

        declared = Schema.from_toml(schema)
        private = PrivateTable(read_table(table, declared), declared)
        release = publish_table(
            private,
            epsilon=epsilon,
            delta=delta,
            n_synthetic=n_synthetic,
            for_models=for_model or (),
            share=share,
            adjacency=adjacency,
            progressbar=not as_json,
        )
        release.save(output, overwrite=force)
        if as_json:
            typer.echo(json.dumps({"path": str(output), **_facts(release)}, indent=1))
        else:
            typer.echo(f"{release.summary()}\nwritten to {output}")


@app.command()
def inspect(release: Input, as_json: Json = False, debug: Debug = False) -> None:
    """Check a release file and show its columns, weights and privacy statement."""
    with _errors(debug):
        from iwbayes.release import load

        found = load(release)
        if as_json:
            facts = _facts(found)
            facts["schema"], facts["recipe"] = found.synthetic.schema.to_dict(), found.recipe
            typer.echo(json.dumps(facts, indent=1))
            return
        lines = [found.summary(), "  schema:", *(f"    {column!r}" for column in found.synthetic.schema)]
        measurement = found.weights.measurement
        if measurement is not None:
            clipped = measurement.clipped_private
            lines.append(
                f"  measured: {measurement.name}, {measurement.noise.dim} coordinates with {measurement.noise.name} "
                f"noise of sd {measurement.noise.covariance[0, 0] ** 0.5:.4g}"
                + (f"; clipped private rows {clipped:.1%} (noisy)" if _finite(clipped) is not None else "")
            )
            if measurement.held_back is not None:
                lines.append(f"  held back as a test of fit: {measurement.held_back.noise.dim} coordinates")
        lines += [f"  {key}: {value}" for key, value in (found.recipe or {}).items()]
        typer.echo("\n".join(lines))


@app.command()
def fit(
    release: Input,
    formula: Annotated[str, typer.Argument(help='Regression, such as "y ~ x + z".', show_default=False)],
    family: Annotated[str, typer.Option(help="bernoulli, gaussian, categorical or poisson.")] = "gaussian",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Posterior to write, netCDF.", show_default=False)
    ] = None,
    method: Annotated[str, typer.Option(help="auto, laplace or nuts.")] = "auto",
    draws: Annotated[int, typer.Option(help="Draws of each chain.")] = 1000,
    chains: Annotated[int, typer.Option(help="Chains.")] = 4,
    seed: Annotated[int | None, typer.Option(help="Seed of the posterior's draws.", show_default=False)] = None,
    calibrate: Annotated[
        bool, typer.Option("--calibrate/--no-calibrate", help="Account for the noise in the weights.")
    ] = True,
    force: Force = False,
    debug: Debug = False,
) -> None:
    """Fit a regression to a release and show its calibrated posterior and the diagnostics."""
    with _errors(debug):
        if output is not None:
            _check_output(output, force)
        from iwbayes.release import load

        found = load(release)
        with _working("loading PyMC and fitting"):
            from iwbayes.analyst import _arviz
            from iwbayes.analyst.diagnostics import diagnose
            from iwbayes.analyst.posterior import fit as fit_posterior

            idata = fit_posterior(
                formula,
                found,
                family=family,
                method=method,
                draws=draws,
                chains=chains,
                random_seed=seed,
                calibrate=calibrate,
                progressbar=False,
            )
        shown = _arviz.summary(idata)[["mean", "sd", "eti90_lb", "eti90_ub", "ess_bulk", "r_hat"]]
        _print_table(shown, f"{formula} ({family}), 90 % intervals")
        _print_table(diagnose(idata, found), "diagnostics")
        if output is not None:
            _arviz.save(idata, output)
            typer.echo(f"written to {output}")


@app.command()
def demo(
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for release and figure.")] = Path(
        "iwbayes-demo"
    ),
    seed: Annotated[int, typer.Option(help="Seed of everything, privacy noise included.")] = 1,
    debug: Debug = False,
) -> None:
    """Publish and analyse a real public table: 20,190 person-years of a health insurance experiment."""
    with _errors(debug):
        with _working("loading") as progress:
            from iwbayes.demo import run_demo

            result = run_demo(seed=seed, output=output, progress=progress)
        typer.echo(str(result))
        typer.echo(f"\nRelease: {result.files['release']}\nFigure:  {result.files['figure']}")


def _facts(release: Release) -> dict[str, Any]:
    """Public facts of a release, as plain JSON values (null for what is not finite)."""
    weights, measurement = release.weights, release.weights.measurement
    clipped = float("nan") if measurement is None else measurement.clipped_private
    return {
        "n_private": release.n_private,
        "n_synthetic": len(release.synthetic),
        "columns": list(release.synthetic.schema.names),
        "origin": release.synthetic.origin,
        "method": weights.method,
        "ess": _finite(weights.ess),
        "pareto_k": _finite(weights.pareto_k),
        "clipped_private": _finite(clipped),
        "certified": release.certified,
        "statement": release.statement.to_dict(),
    }


def _finite(value: float) -> float | None:
    return value if value - value == 0 else None


def _check_output(path: Path, force: bool) -> None:
    if path.is_dir() or (path.exists() and not force):
        raise FileExistsError(f"{path} exists already. Choose another path, or pass --force to replace it.")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"the folder {path.parent} does not exist. Make it first.")


def _print_table(table: pd.DataFrame, title: str) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    shown = Table(title=Text(title), title_justify="left")
    shown.add_column("", no_wrap=True)
    for name in table.columns:
        shown.add_column(Text(str(name)), overflow="fold")
    for label, row in table.iterrows():
        cells = [("" if cell != cell else f"{cell:.4g}") if isinstance(cell, float) else str(cell) for cell in row]
        shown.add_row(*(Text(text) for text in (str(label), *cells)))
    Console(highlight=False).print(shown)


@contextmanager
def _working(text: str) -> Iterator[Any]:
    """Show what is going on, on the error stream and on terminals only."""
    from rich.console import Console
    from rich.text import Text

    with Console(stderr=True).status(Text(text)) as status:
        yield lambda step: status.update(Text(step))


@contextmanager
def _errors(debug: bool, *, private: bool = False) -> Iterator[None]:
    """Turn errors into one line on the error stream and exit code 1, and warnings into one line each."""

    def show_warning(message: Any, category: type[Warning], filename: str, *_: Any) -> None:
        ours = Path(filename).is_relative_to(Path(__file__).parent)
        text = str(message) if ours or not private else f"a {category.__name__} of a library"
        typer.echo(f"warning: {' '.join(text.split())}", err=True)

    with warnings.catch_warnings():
        warnings.showwarning = show_warning  # type: ignore[assignment]
        try:
            yield
        except (typer.Exit, typer.Abort, KeyboardInterrupt):
            raise
        except Exception as error:  # the outermost frame of a program
            if debug:
                typer.echo("".join(traceback.format_tb(error.__traceback__)), err=True, nl=False)
            typer.echo(f"error: {_message(error, private)}", err=True)
            raise typer.Exit(1) from None


def _message(error: Exception, private: bool) -> str:
    """One line; an error of a library may quote private cells and is not repeated."""
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{error.strerror}: {error.filename}"
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    home = "" if last is None else str(last.tb_frame.f_globals.get("__name__", ""))
    if private and home.partition(".")[0] != "iwbayes":
        return (
            f"{type(error).__name__} in {home or 'a library'}. Its message is not shown, since it may hold private "
            f"values; --debug shows where it rose. Please report it."
        )
    text = error.args[0] if isinstance(error, KeyError) and error.args else error
    return " ".join(str(text).split()) or type(error).__name__
