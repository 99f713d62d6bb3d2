"""Commands for curators that read no private row: schema and plan."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from iwbayes.cli.app import Debug, Json, SchemaFile, app
from iwbayes.cli.output import columns, errors, finite, for_reading, records, say, working
from iwbayes.cli.publication import Publication, schema_of, take_options
from iwbayes.utils.display import fill, text_table, wrapped

if TYPE_CHECKING:
    from iwbayes.coverage.interval_plan import IntervalPlan
    from iwbayes.curator.plan import Plan
    from iwbayes.curator.protocols import WeightProvider
    from iwbayes.models.regression_scores import RegressionModel
    from iwbayes.schema import Schema

TEMPLATE = """\
# Declare each column of the table in one [[column]] block. Use public knowledge
# (a questionnaire, a code book), because names, bounds and levels are
# published. Never take them from the private rows. Replace the examples below.
#
# Look up in the code book, for every column: which codes mean "missing" (-1,
# 999, "N", 9999-12-31)? Without missing_codes they are taken for values, and
# moved to a bound.

[[column]]
name = "age"
type = "integer"  # whole numbers
lower = 18  # the questionnaire is for adults; smaller values are moved to it
upper = 90  # choose bounds that hold for almost everybody
missing_codes = [-1, 999]  # cells that mean "missing"; [] if there are none
# outside = "missing"  # instead of moving other values to the bounds

[[column]]
name = "height"
type = "real"  # any numbers
lower = 120.0  # in the unit of the column, here cm
upper = 220.0
missing = true  # cells may be empty; omit it if every cell has a value

[[column]]
name = "income"
type = "real"
# not 0: on a logarithmic scale, 0 is so far from all incomes that most of the
# range would be empty
lower = 5000.0
upper = 500000.0
transform = "log1p"  # log(1 + value), for amounts with a long tail
# decimal = ","  # if numbers are written as 1.234,50 EUR
# thousands = "."
# symbols = ["EUR", "%"]

[[column]]
name = "visit"
type = "date"  # 2015-03-01 in the file; months since 2010-01 in synthetic rows
first = 2010-01-01  # start of the study, not the first date in the rows
last = 2019-12-31
unit = "month"  # or day, week, year
# format = "%d.%m.%Y"  # if dates are written as 01.03.2015
# numbers = "days since 1960-01-01"  # if dates are numbers, as in Stata or SAS

[[column]]
name = "region"
type = "categorical"
# all levels, as text; the first is the reference of regressions
levels = ["north", "south", "east", "west"]
# level_codes = [1, 2, 3, 4]  # if the file has codes for them

[[column]]
name = "insured"
type = "binary"
levels = ["no", "yes"]  # as in the file; models count the second as success
"""

Epsilon = Annotated[float, typer.Option(help="Privacy budget epsilon.")]
Delta = Annotated[float, typer.Option(help="Privacy budget delta.")]
Adjacency = Annotated[str, typer.Option(help="Neighbouring tables: replace-one or zero-out.")]
Share = Annotated[float, typer.Option(help="Share of epsilon for the generator.")]
OnUndeclared = Annotated[
    str, typer.Option(help="Treatment of cells that do not fit the schema: refuse, missing or other.")
]
ForModel = Annotated[
    list[str] | None, typer.Option(help='Regression that analysts will fit, such as "y ~ x + z"; may be repeated.')
]
Response = Annotated[str | None, typer.Option(help="Column whose regression on all other columns analysts will fit.")]
DesignWeightColumn = Annotated[
    str | None, typer.Option("--design-weight", help="Column of design weights of a survey, for all named models.")
]
ModelFamily = Annotated[str | None, typer.Option(help="Family of the named models whose response is a whole number.")]


@app.command(
    epilog="Examples:\n\n\b\n"
    "  iwbayes schema > people.toml\n"
    "  iwbayes schema --from-codebook codebook.xlsx > people.toml\n"
    "  iwbayes schema --from-codebook survey.sav --drop id > survey.toml\n"
    "  iwbayes schema people.toml\n"
    "  iwbayes schema people.toml --explain --n 4000 --epsilon 1 --delta 1e-6"
)
def schema(
    file: Annotated[Path | None, typer.Argument(help="Schema file to check (TOML).")] = None,
    from_codebook: Annotated[
        Path | None,
        typer.Option(
            help="Code book to make a schema file of: CSV, Excel or JSON, or the metadata of a file of SPSS, Stata or "
            "SAS. No row is read."
        ),
    ] = None,
    sheet: Annotated[str | None, typer.Option(help="Sheet of a code book in Excel.")] = None,
    drop: Annotated[
        list[str] | None, typer.Option(help="Column of the code book to leave out; may be repeated.")
    ] = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Show what each column becomes: features, bins, noise.")
    ] = False,
    n: Annotated[int, typer.Option("--n", help="With --explain: number of private rows.")] = 5000,
    epsilon: Annotated[float, typer.Option(help="With --explain: privacy budget epsilon.")] = 1.0,
    delta: Annotated[float, typer.Option(help="With --explain: privacy budget delta.")] = 1e-6,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Check and show a schema, make one from a code book, or print a template.

    Without a file, it prints a template that you can edit.
    """
    with errors(debug):
        if from_codebook is not None:
            if file is not None:
                raise ValueError("pass a schema file to check, or --from-codebook to make one; not both.")
            _say_codebook(from_codebook, drop or [], sheet, as_json)
            return
        if file is None:
            say(json.dumps({"template": TEMPLATE}, indent=1) if as_json else TEMPLATE, nl=as_json)
            return
        from iwbayes.schema import Schema
        from iwbayes.schema.schema import column_table

        found = Schema.from_toml(file)
        planned = None
        if explain:
            from iwbayes.curator.plan import plan as plan_release

            planned = plan_release(found, n, epsilon=epsilon, delta=delta)
        if as_json:
            facts: dict[str, Any] = {"schema": found.to_dict(), "features": found.n_features}
            explained = {} if planned is None else {"columns": records(planned.columns, "column")}
            say(json.dumps(facts | explained, indent=1))
            return
        say(text_table(*column_table(found), width=columns()))
        if planned is not None:
            header = ("column", "features", "bins or levels", "noise of its mean or shares")
            say("\n" + text_table(header, planned.columns.reset_index().values.tolist(), width=columns()))
            say(
                for_reading(
                    f"For {n} rows at epsilon {epsilon:g} and delta {delta:g}. Noise is one standard deviation, in the "
                    f"unit of the column, or of the share of a level, of a release whose weights measure "
                    f"{planned.terms} terms."
                )
            )


def _say_codebook(path: Path, drop: list[str], sheet: str | None, as_json: bool) -> None:
    """Print the schema file of a code book. Comments say what is lacking, and an error follows them."""
    from iwbayes.schema import Schema
    from iwbayes.schema.codebook import Incomplete, entries_of
    from iwbayes.schema.schema import entry_to_toml

    entries = entries_of(path, None, drop, sheet)
    if as_json:
        found = Schema.from_dict({"column": entries})
        say(json.dumps({"schema": found.to_dict(), "features": found.n_features}, indent=1))
        return
    for entry in entries:
        if isinstance(entry, Incomplete):
            say(fill(str(entry), first="# ", width=columns()))
        say(entry_to_toml(entry.entry if isinstance(entry, Incomplete) else entry))
    Schema.from_dict({"column": entries})


@app.command(
    epilog="Examples:\n\n\b\n"
    "  iwbayes plan -s people.toml --n 4000 --epsilon 1 --delta 1e-6\n"
    "  iwbayes plan -s people.toml --n 4000 --epsilon 1 --delta 1e-6 \\\n"
    '    --for-model "income ~ age" --epsilon 3\n'
    "  iwbayes plan publish.toml --n 4000\n"
    "  iwbayes plan -s people.toml --n 4000 --epsilon 0.5 --epsilon 2 \\\n"
    '    --delta 1e-6 --formula "income ~ age"'
)
def plan(
    context: typer.Context,
    schema: SchemaFile,
    n: Annotated[int, typer.Option("--n", help="Number of private rows.")],
    epsilon: Annotated[list[float], typer.Option(help="Privacy budget epsilon; may be repeated.")],
    delta: Delta,
    settings: Annotated[
        Path | None, typer.Argument(help="A publish.toml, which has all options.", callback=take_options, is_eager=True)
    ] = None,
    for_model: ForModel = None,
    response: Response = None,
    design_weight: DesignWeightColumn = None,
    share: Share = 0.3,
    adjacency: Adjacency = "replace-one",
    on_undeclared: OnUndeclared = "refuse",
    simulate: Annotated[
        bool, typer.Option("--simulate", help="Simulate the interval lengths of the named models; takes minutes.")
    ] = False,
    formula: Annotated[
        str | None, typer.Option(help='Simulate those of this regression, such as "y ~ x + z", named or not.')
    ] = None,
    family: Annotated[
        str | None, typer.Option(help="Family of the formula and of the named models, as in iwbayes fit.")
    ] = None,
    like: Annotated[
        Path | None,
        typer.Option(help="PUBLIC rows to simulate from (CSV or Parquet), or an earlier release. Never private rows."),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the simulations.")] = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Predict the noise of a release and the lengths of intervals.

    Uses the schema and the number of rows, and reads no private row.
    """
    with errors(debug):
        said = cast(Publication, context.obj)
        written = schema_of(schema, said.columns, said.left_out)
        declared = written.admitting(on_undeclared)
        models = named_models(declared, for_model, response, family, design_weight)
        options: dict[str, Any] = {"weights": named_weights(models), "share": share, "adjacency": adjacency}
        options["delta"] = delta
        if formula is None and not simulate:
            if like is not None:
                raise ValueError("--like is for simulations. Pass --simulate, or --formula, too.")
            if len(epsilon) > 1 and not models:
                raise ValueError("several epsilons need models, --for-model, or a simulation, --formula.")
            _say_plans(declared, n, epsilon, options, as_json)
            return
        if simulate and not models:
            raise ValueError("--simulate simulates the named models. Pass --for-model, or --formula instead.")
        if simulate and design_weight is not None:
            raise ValueError("--simulate does not know design weights. Leave one of the two options out.")
        pairs = [] if formula is None else [(formula, family)]
        pairs += [(model.formula, model.family) for model in models] if simulate else []
        with working("simulating releases"):
            from iwbayes.coverage.interval_plan import plan_intervals

            options |= {"like": _public(like, written, on_undeclared), "random_seed": seed, "progressbar": False}
            found = [
                plan_intervals(declared, n, epsilon=epsilon, formula=each, family=cast(Any, its_family), **options)
                for each, its_family in pairs
            ]
        if as_json:
            facts = [_interval_facts(each) for each in found]
            say(json.dumps(facts if len(facts) > 1 else facts[0], indent=1))
        else:
            say("\n\n".join(each.summary(width=columns()) for each in found))


def named_models(
    schema: Schema, for_model: list[str] | None, response: str | None, family: str | None, design_weight: str | None
) -> list[RegressionModel]:
    """Return the named models. The family is that of models whose response are whole numbers."""
    from iwbayes.evidence.formulas import main_effects, model_terms
    from iwbayes.models.regression_scores import RegressionModel
    from iwbayes.schema import Integer

    formulas = [*(for_model or ()), *([] if response is None else [main_effects(response, schema)])]
    if design_weight is not None and not formulas:
        raise ValueError("--design-weight needs a model. Pass --for-model or --response, too.")
    asks = [isinstance(model_terms(formula, schema).column, Integer) for formula in formulas]
    families: Any = [family if ask else None for ask in asks]
    return [RegressionModel(*pair, design_weight) for pair in zip(formulas, families, strict=True)]


def named_weights(models: list[RegressionModel], mechanism: str = "gaussian") -> WeightProvider:
    """Return the weight provider for the named models."""
    from iwbayes.curator.named_models import weights_for
    from iwbayes.curator.weight_providers.tilt import TiltWeights

    if mechanism == "gaussian":
        return weights_for(None, models)
    if any(model.design_weight for model in models):
        raise ValueError("--design-weight needs the gaussian mechanism. Leave one of the two options out.")
    features: Any = "products" if models else "auto"
    return weights_for(TiltWeights(mechanism=mechanism, features=features), [model.formula for model in models])


def _public(like: Path | None, written: Schema, on_undeclared: str) -> Any:
    """Read the public rows, or the earlier release, to simulate from."""
    from iwbayes.release import load
    from iwbayes.tables.read_table import read_table

    if like is None or like.suffix == ".iwb":
        return None if like is None else load(like)
    return written.conform(read_table(like, written, on_undeclared=on_undeclared), on_undeclared=on_undeclared)


def _say_plans(schema: Schema, n: int, epsilon: list[float], options: dict[str, Any], as_json: bool) -> None:
    """Say the noise of a release at each epsilon, and the lengths to expect."""
    from iwbayes.curator.plan import plan as plan_release

    plans = [plan_release(schema, n, epsilon=each, **options) for each in epsilon]
    if as_json:
        facts = [_plan_facts(planned) for planned in plans]
        say(json.dumps(facts if len(facts) > 1 else facts[0], indent=1))
    else:
        say(_expected_lengths(plans) if len(plans) > 1 else wrapped(str(plans[0]), width=columns()))


def _expected_lengths(plans: list[Plan]) -> str:
    """Return a table of the lengths to expect at several epsilons."""
    rows: list[tuple[Any, ...]] = []
    for planned in plans:
        found = planned.expected
        told = ("", "not studied", "") if found is None else (
            f"{found.length:.2g}", f"{found.low:.2g} to {found.high:.2g}", f"{found.calibrated:.0%}"
        )  # fmt: skip
        rows.append((f"{planned.epsilon:g}", *told))
    header = ("epsilon", "length", "half of populations", "calibrated")
    note = (
        f"For {plans[0].n} private rows and {plans[0].terms}. Length is that of 90 % intervals over the private rows' "
        f"own, in releases of real populations with about the same noise; calibrated is the share of coefficients."
    )
    return f"{text_table(header, rows, width=columns())}\n\n{for_reading(note)}"


def _plan_facts(expected: Plan) -> dict[str, Any]:
    """Return the facts of a plan, as plain JSON values."""
    names = ("epsilon", "epsilon_generator", "epsilon_weights", "terms", "n_features", "noise_sd", "noise_ratio")
    facts = {name: getattr(expected, name) for name in names}
    facts["expected_length"] = None if expected.expected is None else expected.expected._asdict()
    events = [event.to_dict() for event in expected.events]
    return facts | {"stage_noise_sd": list(expected.stage_noise_sd), "events": events}


def _interval_facts(found: IntervalPlan) -> dict[str, Any]:
    """Return simulated lengths, as plain JSON values."""
    answers = [
        {
            **_plan_facts(planned),
            "calibrated": float(found.calibrated[planned.epsilon]),
            "lengths": {str(name): finite(x) for name, x in found.lengths.loc[planned.epsilon].items()},
        }
        for planned in found.plans
    ]
    return {"formula": found.formula, "n": found.n, "rows": found.rows_from, "plans": answers}
