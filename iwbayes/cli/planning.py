"""Commands of a curator before any private row is read: schema, plan."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from iwbayes.cli.app import Debug, Json, SchemaFile, app
from iwbayes.cli.output import columns, errors, finite, working
from iwbayes.display import text_table, wrapped

if TYPE_CHECKING:
    import pandas as pd

    from iwbayes.curator.plan import Plan
    from iwbayes.curator.protocols import WeightEstimator
    from iwbayes.release import Release
    from iwbayes.schema import Schema

TEMPLATE = """\
# One [[column]] for each column of the table, from public knowledge (a questionnaire, a code book): names, bounds and
# levels are published. Never take them from the private rows. Replace all that is below by your own.

[[column]]
name = "age"
type = "integer"  # whole numbers
lower = 18  # those below are moved to this bound: the questionnaire is for adults
upper = 90  # and those above to this one: choose bounds that nearly everybody is known to keep

[[column]]
name = "height"
type = "real"  # any numbers
lower = 120.0  # in the column's own unit, here cm
upper = 220.0
missing = true  # cells may be empty, in a column of any type; leave it out otherwise

[[column]]
name = "income"
type = "real"
lower = 5000.0  # not 0: on a logarithmic scale 0 is so far from all incomes that most of the range would be empty
upper = 500000.0
transform = "log1p"  # log(1 + value), for amounts with a long tail; leave it out otherwise

[[column]]
name = "visit"
type = "date"  # ISO text such as 2015-03-01 in the file; whole months since 2010-01 in the synthetic rows
first = 2010-01-01  # when the study began, and not the first date in the rows
last = 2019-12-31
unit = "month"  # or day, week, year

[[column]]
name = "region"
type = "categorical"
levels = ["north", "south", "east", "west"]  # all of the code book, as text; the first is a regression's reference

[[column]]
name = "insured"
type = "binary"
levels = ["no", "yes"]  # as they stand in the file; the second is what a model counts as success
"""

Epsilon = Annotated[float, typer.Option(help="Privacy budget epsilon.", show_default=False)]
Delta = Annotated[float, typer.Option(help="Privacy budget delta.", show_default=False)]
Adjacency = Annotated[str, typer.Option(help="replace-one or zero-out.")]
Share = Annotated[float, typer.Option(help="The generator's part of epsilon.")]
OnUndeclared = Annotated[
    str, typer.Option(help="What becomes of cells that do not fit the schema: refuse, missing or other.")
]
ForModel = Annotated[
    list[str] | None,
    typer.Option(help='Regression that the rows are for, such as "y ~ x + z"; may be repeated.', show_default=False),
]
Response = Annotated[
    str | None,
    typer.Option(help="Response of a regression on all other columns that the rows are for.", show_default=False),
]
ModelFamily = Annotated[
    str | None,
    typer.Option(help="Family of the named models, where their response is a whole number.", show_default=False),
]


@app.command(epilog="Examples:\n\n\b\n  iwbayes schema > people.toml\n  iwbayes schema people.toml")
def schema(
    file: Annotated[Path | None, typer.Argument(help="Schema to check, TOML.", show_default=False)] = None,
    debug: Debug = False,
) -> None:
    """Check a schema and show it, or print a template.

    Without a file it prints a template to edit.
    """
    with errors(debug):
        if file is None:
            typer.echo(TEMPLATE, nl=False)
            return
        from iwbayes.schema import Schema
        from iwbayes.schema.schema import column_table

        typer.echo(text_table(*column_table(Schema.from_toml(file)), width=columns()))


@app.command(
    epilog="Examples:\n\n\b\n"
    "  iwbayes plan -s people.toml --n 4000 --epsilon 1 --delta 1e-6\n"
    '  iwbayes plan -s people.toml --n 4000 --epsilon 1 --delta 1e-6 --for-model "income ~ age"\n'
    '  iwbayes plan -s people.toml --n 4000 --epsilon 0.5 --epsilon 2 --delta 1e-6 --formula "income ~ age"'
)
def plan(
    schema: SchemaFile,
    n: Annotated[int, typer.Option("--n", help="Number of private rows.", show_default=False)],
    epsilon: Annotated[
        list[float], typer.Option(help="Privacy budget epsilon; with --formula it may be repeated.", show_default=False)
    ],
    delta: Delta,
    for_model: ForModel = None,
    response: Response = None,
    share: Share = 0.3,
    adjacency: Adjacency = "replace-one",
    on_undeclared: OnUndeclared = "refuse",
    formula: Annotated[
        str | None,
        typer.Option(help='Simulate how long the intervals of a regression will be: "y ~ x + z".', show_default=False),
    ] = None,
    family: Annotated[
        str | None,
        typer.Option(help="Of the formula and of named models, as iwbayes fit takes it.", show_default=False),
    ] = None,
    like: Annotated[
        Path | None,
        typer.Option(help="PUBLIC rows to simulate from, CSV or Parquet, or an earlier release.", show_default=False),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the simulations.", show_default=False)] = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Tell the noise of a release beforehand, and the lengths of intervals.

    No private row is touched: it needs the schema and the number of rows.
    """
    with errors(debug):
        from iwbayes.planning import plan as plan_release
        from iwbayes.schema import Schema

        declared = Schema.from_toml(schema).admitting(on_undeclared)
        weights = named_weights(declared, for_model, response, family)
        options: dict[str, Any] = {"delta": delta, "weights": weights, "share": share, "adjacency": adjacency}
        options["like"] = None if like is None else _public_rows(like, declared, on_undeclared)
        if formula is None:
            one: Any = epsilon[0] if len(epsilon) == 1 else epsilon
            alone = plan_release(declared, n, epsilon=one, **options)
            typer.echo(json.dumps(_plan_facts(alone), indent=1) if as_json else wrapped(str(alone), width=columns()))
            return
        with working("simulating releases"):
            options |= {"random_seed": seed, "progressbar": False, "family": family}
            found = plan_release(declared, n, epsilon=epsilon, formula=formula, **options)
        if as_json:
            answers = [
                {
                    **_plan_facts(planned),
                    "calibrated": float(found.calibrated[planned.epsilon]),
                    "lengths": {str(name): finite(x) for name, x in found.lengths.loc[planned.epsilon].items()},
                }
                for planned in found.plans
            ]
            typer.echo(json.dumps({"formula": formula, "n": n, "rows": found.rows_from, "plans": answers}, indent=1))
        else:
            typer.echo(found.summary(width=columns()))


def named_weights(
    schema: Schema, for_model: list[str] | None, response: str | None, family: str | None, mechanism: str = "gaussian"
) -> WeightEstimator:
    """Weights of a release for the models that are named."""
    from iwbayes.curator.estimators.tilting.tilt import TiltWeights
    from iwbayes.features.formulas import main_effects
    from iwbayes.publishing import weights_for

    formulas = [*(for_model or ()), *([] if response is None else [main_effects(response, schema)])]
    tilt = TiltWeights(mechanism=mechanism)
    if mechanism != "gaussian" or not formulas:
        return weights_for(tilt, formulas)
    from iwbayes.analyst.regression.scores import RegressionModel
    from iwbayes.features.formulas import response_column
    from iwbayes.schema import Integer

    asks = [isinstance(response_column(formula, schema), Integer) for formula in formulas]
    families: Any = [family if ask else None for ask in asks]
    return weights_for(None, [RegressionModel(*named) for named in zip(formulas, families, strict=True)])


def _plan_facts(expected: Plan) -> dict[str, Any]:
    """Facts of a plan, as plain JSON values."""
    names = ("epsilon", "epsilon_generator", "epsilon_weights", "terms", "n_features", "noise_sd", "noise_over_spread")
    facts = {name: getattr(expected, name) for name in names}
    facts["stage_noise_sd"] = list(expected.stage_noise_sd)
    return facts | {"events": [event.to_dict() for event in expected.events]}


def _public_rows(path: Path, schema: Schema, on_undeclared: str) -> pd.DataFrame | Release:
    """Read a public table, or an earlier release."""
    from iwbayes._read import read_table
    from iwbayes.release import load

    return load(path) if path.suffix == ".iwb" else read_table(path, schema, on_undeclared=on_undeclared)
