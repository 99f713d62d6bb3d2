"""The demonstration."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from iwbayes.cli.app import Debug, app
from iwbayes.cli.output import errors, working


@app.command(epilog="Example:\n\n\b\n  iwbayes demo -o iwbayes-demo --seed 2")
def demo(
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for release and figure.")] = Path(
        "iwbayes-demo"
    ),
    seed: Annotated[int, typer.Option(help="Seed of everything, privacy noise included.")] = 1,
    debug: Debug = False,
) -> None:
    """Publish and analyse a real public table.

    20,190 person-years of the RAND health insurance experiment.
    """
    with errors(debug):
        with working("loading") as progress:
            from iwbayes.demo import run_demo

            result = run_demo(seed=seed, output=output, progress=progress)
        typer.echo(str(result))
        typer.echo(f"\nRelease: {result.files['release']}\nFigure:  {result.files['figure']}")
