"""The Typer application of the commands, and the options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    name="iwbayes",
    help="Publish differentially private synthetic tables with importance weights, and analyse them.",
    epilog="""Examples:

\b
  iwbayes demo                        publish and analyse a real public table
  iwbayes publish people.csv -s people.toml --epsilon 1 --delta 1e-6 \\
    -o people.iwb
  iwbayes fit people.iwb "income ~ age + sex" --family bernoulli \\
    -o posterior.nc
  iwbayes report people.iwb posterior.nc -o report.html

Exit codes: 0 success, 1 failure (the error stream gives the reason), 2 wrong usage, 130 interrupted.""",
    context_settings={"help_option_names": ["-h", "--help"]},
    no_args_is_help=True,
    add_completion=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    pretty_exceptions_show_locals=False,
)

Debug = Annotated[bool, typer.Option("--debug", help="Show where in the code an error occurred (never a value).")]
Force = Annotated[bool, typer.Option("--force", "-f", help="Replace an existing output file.")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
LargeDelta = Annotated[
    bool,
    typer.Option(
        "--allow-large-delta",
        help="Accept a delta of one over the number of rows or more, which does not protect single rows.",
    ),
]
ReleaseFile = Annotated[Path, typer.Argument(help="Release file (.iwb).")]
SchemaFile = Annotated[Path, typer.Option("--schema", "-s", help="Schema file (TOML).")]


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
