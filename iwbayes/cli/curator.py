"""Commands for curators that use private rows or their ledger: publish, ledger and utility."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from iwbayes.cli.app import Debug, Force, Json, LargeDelta, ReleaseFile, SchemaFile, app
from iwbayes.cli.output import (
    REPLICATES,
    as_options,
    check_output,
    columns,
    errors,
    facts_of,
    finite,
    for_reading,
    save_or_rescue,
    say,
    write_exports,
)
from iwbayes.cli.publication import Publication, schema_of, take_options
from iwbayes.cli.schema_and_plan import (
    Adjacency,
    Delta,
    DesignWeightColumn,
    Epsilon,
    ForModel,
    ModelFamily,
    OnUndeclared,
    Response,
    Share,
    named_models,
    named_weights,
)
from iwbayes.utils.display import wrapped

if TYPE_CHECKING:
    from iwbayes.curator.privacy.ledger import Ledger

NO_LEDGER = "no ledger: earlier releases of these rows are not counted (see iwbayes ledger --help)"


@app.command(
    epilog="Examples:\n\n\b\n"
    "  iwbayes publish people.csv -s people.toml --epsilon 1 --delta 1e-6 \\\n"
    "    -o people.iwb\n"
    "  iwbayes publish people.csv -s people.toml --epsilon 1 --delta 1e-6 \\\n"
    "    --ledger people.ledger -o people.iwb\n"
    "  iwbayes publish visits.csv -s visits.toml --user patient \\\n"
    "    --rows-per-user 1,2,4,8 --epsilon 2 --delta 1e-6 -o visits.iwb\n"
    "  iwbayes publish parts/ -s people.toml --epsilon 1 --delta 1e-8 \\\n"
    "    --n-synthetic 100000 -o people.iwb\n"
    "  iwbayes publish people.csv -s people.toml --epsilon 1 --delta 1e-6 \\\n"
    "    --check --n 4000\n"
    "  iwbayes publish publish.toml --dry-run\n"
    "  iwbayes publish publish.toml\n\n"
    "All settings and cells are checked before any budget is spent. If a run is interrupted, its charges to a ledger "
    "remain, and no file is written."
)
def publish(
    context: typer.Context,
    table: Annotated[
        Path,
        typer.Argument(
            help="Private rows: a file of CSV, Parquet, Excel, SPSS, Stata or SAS, or a folder of Parquet files. A "
            "folder may be larger than memory and needs the extra dask. Or a publish.toml, which has all options.",
            callback=take_options,
            is_eager=True,
        ),
    ],
    schema: SchemaFile,
    epsilon: Epsilon,
    delta: Delta,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Release file to write; not needed with --check.")
    ] = None,
    n_synthetic: Annotated[
        int | None,
        typer.Option(help="Number of synthetic rows; required for a folder.", show_default="5 per private row"),
    ] = None,
    for_model: ForModel = None,
    response: Response = None,
    family: ModelFamily = None,
    design_weight: DesignWeightColumn = None,
    generator: Annotated[str, typer.Option(help="Generator of the rows: BayesNet, AIM, MST or Mixture.")] = "BayesNet",
    mechanism: Annotated[str, typer.Option(help="Noise of the weights: gaussian, or cube for delta 0.")] = "gaussian",
    share: Share = 0.3,
    adjacency: Adjacency = "replace-one",
    ledger: Annotated[
        Path | None,
        typer.Option(help="Ledger file to charge (see iwbayes ledger). The release must fit in its remaining budget."),
    ] = None,
    allow_large_delta: LargeDelta = False,
    user: Annotated[
        str | None, typer.Option(help="Column that says who owns a row, if people own several rows.")
    ] = None,
    rows_per_user: Annotated[
        str | None,
        typer.Option(
            help="With --user: candidate bounds on the rows per person, such as 1,2,4,8. One is chosen privately."
        ),
    ] = None,
    drop: Annotated[
        list[str] | None, typer.Option(help="Column to leave out, such as an identifier; may be repeated.")
    ] = None,
    keep_declared: Annotated[bool, typer.Option("--keep-declared", help="Leave out all undeclared columns.")] = False,
    sep: Annotated[
        str | None,
        typer.Option(
            help="Separator of a CSV file, one character; \\t is a tab.", show_default="a comma, or a tab in .tsv files"
        ),
    ] = None,
    encoding: Annotated[
        str | None, typer.Option(help="Text encoding of a CSV file, such as cp1252.", show_default="utf-8")
    ] = None,
    sheet: Annotated[str | None, typer.Option(help="Sheet of an Excel file, if it has several.")] = None,
    on_undeclared: OnUndeclared = "refuse",
    check: Annotated[
        bool,
        typer.Option("--check", help="Only check header, settings and ledger. No cell is read and nothing is charged."),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="As --check, and print exactly what would be charged. Counts the rows.")
    ] = False,
    n: Annotated[
        int | None, typer.Option("--n", help="With --check: number of rows (or people), to predict the noise.")
    ] = None,
    look: Annotated[
        bool,
        typer.Option("--look", help="With --check: also read the cells, and name columns with cells that do not fit."),
    ] = False,
    export: Annotated[
        list[str] | None,
        typer.Option(help="Also write rows and weights as csv, dta or parquet; may be repeated (see iwbayes export)."),
    ] = None,
    replicates: Annotated[int, typer.Option(help="Number of replicate weights in these files, or 0.")] = REPLICATES,
    force: Force = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Publish a private table.

    Writes a release: synthetic rows with weights, under one privacy budget.
    """
    check, said = check or dry_run, cast(Publication, context.obj)
    if not check and (look or (n is not None and "n" not in said.options) or output is None):
        missing, misplaced = ("required without --check", "--output / -o"), ("for --check only", "--look, --n")
        wrong, hint = missing if output is None else misplaced
        raise typer.BadParameter(wrong, param_hint=hint)
    with errors(debug, private=True):
        from iwbayes.curator.privacy.ledger_file import LedgerFile

        ledger_files = [] if ledger is None else [ledger, LedgerFile(ledger).lock_path]
        if output is not None:
            from iwbayes.release.export import files_of

            inside = list(table.iterdir()) if table.is_dir() else []
            used = [table, *inside, schema, *ledger_files]
            exported = [output.with_suffix(f".{kind}") for kind in _kinds(export)]
            for file in (output, *(file for path in exported for file in files_of(path))):
                check_output(file, force, inputs=used)
        from iwbayes.curator.contribution import bounding_events, check_grid
        from iwbayes.curator.generators.aim.aim import AIM
        from iwbayes.curator.generators.aim.mst import MST
        from iwbayes.curator.generators.bayesnet.bayesnet import BayesNet
        from iwbayes.curator.generators.mixture.mixture import Mixture
        from iwbayes.curator.plan import plan as plan_release
        from iwbayes.curator.privacy.accounting import noise_event
        from iwbayes.curator.privacy.ledger import Ledger
        from iwbayes.curator.protocols import check_adjacency
        from iwbayes.curator.publish import BOUND_SHARE, check_ledger, publish_users, release_epsilon
        from iwbayes.curator.publish import publish as publish_table
        from iwbayes.release.replicates import LEAST
        from iwbayes.tables import PrivateTable
        from iwbayes.tables.file_formats import Format
        from iwbayes.tables.read_table import read_table, stored_rows
        from iwbayes.utils import checks

        declared = schema_of(schema, said.columns, [*(drop or []), *([] if user is None else [user])])
        about = {**({} if output is None else {"name": output.stem}), **said.about}
        if table.is_dir() and n_synthetic is None and not check:
            raise ValueError(
                "--n-synthetic is required for a folder, because the default of five synthetic rows per private row "
                "may not fit in memory."
            )
        if replicates:
            checks.whole("replicates", replicates, LEAST, "The default is 100; 0 leaves them out.")
        grid = _grid(user, rows_per_user)
        form = Format(None if sep is None else sep.replace("\\t", "\t"), encoding, sheet)
        # only generators with hardened noise: releases of others are not certified
        kinds: dict[str, Any] = {"BayesNet": BayesNet, "AIM": AIM, "MST": MST, "Mixture": Mixture}
        if generator not in kinds:
            raise ValueError(
                f"--generator must be one of {list(kinds)}; got {generator!r}. Other generators are available in "
                f"Python only."
            )
        models = named_models(declared, for_model, response, family, design_weight)
        weights = named_weights(models, mechanism)
        own = None if ledger is None else _certified(ledger)
        options = {"generator": kinds[generator](), "weights": weights, "share": share}
        planned = epsilon
        if grid:
            check_grid(grid)
            if own is None:
                own = Ledger(epsilon, delta, "replace-user", allow_large_delta=allow_large_delta)
            planned = release_epsilon(epsilon, delta, len(grid), own)
        settings: dict[str, Any] = {"epsilon": planned, "delta": delta, "rows_per_user": max(grid, default=1)}
        settings |= {"adjacency": adjacency if own is None else own.adjacency, **options}
        if own is not None:
            check_ledger(own, cast(Any, adjacency), delta, allow_large_delta=allow_large_delta)
            check_adjacency(own.adjacency, users=bool(grid))
        kept: dict[str, Any] = {"drop": drop or [], "keep_declared": keep_declared, "user": user}
        if check:
            from iwbayes.cli.check import check_release

            checks.whole("n_synthetic", 1 if n_synthetic is None else n_synthetic)
            parts = [bounding_events(BOUND_SHARE * epsilon, len(grid))] if grid else []
            parts.append((noise_event("release", planned, delta),))
            kept |= {"ledger": own if ledger else None, "parts": parts, "n": n, "look": look, "dry_run": dry_run}
            settings |= {"n_synthetic": n_synthetic, "ledger": own if ledger and not grid else None}
            plan_of = partial(plan_release, declared.admitting(on_undeclared), **settings)
            found = check_release(table, form, declared, plan_of, **kept)
            say(json.dumps(found.facts, indent=1) if as_json else wrapped(as_options(str(found)), width=columns()))
            raise typer.Exit(0 if found.fits else 1)
        if table.is_dir():
            stored = stored_rows(table, declared, form, **kept)
            private = PrivateTable.from_dask(stored, declared, user=user, on_undeclared=on_undeclared)
        else:
            rows = read_table(table, declared, on_undeclared=on_undeclared, **kept, **vars(form))
            private = PrivateTable(rows, declared, user=user, on_undeclared=on_undeclared)
        options |= {"n_synthetic": n_synthetic, "ledger": own, "allow_large_delta": allow_large_delta, "about": about}
        options["progressbar"] = not as_json
        if grid:
            release = publish_users(private, epsilon=epsilon, delta=delta, grid=grid, **options)  # type: ignore[arg-type]
        else:
            release = publish_table(private, epsilon=epsilon, delta=delta, adjacency=adjacency, **options)  # type: ignore[arg-type]
        written = save_or_rescue(lambda path: release.save(path, overwrite=force), cast(Path, output))
        others: list[Path] = []
        try:
            paths = [written.with_suffix(f".{kind}") for kind in _kinds(export)]
            others += write_exports(release, paths, 0 if grid else replicates, None, force=force)
        except Exception:
            say(for_reading(f"The release was written to {written}; only its export failed."), err=True)
            raise
        if ledger is None:
            say(for_reading(NO_LEDGER), err=True)
        if as_json:
            exports = {"exports": list(map(str, others))} if others else {}
            say(json.dumps({"path": str(written), **exports, **facts_of(release)}, indent=1))
        else:
            say(f"{release.summary(width=columns())}\n{for_reading(f'written to {written}')}")
            for file in others:
                say(for_reading(f"exported to {file}"))


@app.command(
    epilog="Examples:\n\n\b\n"
    "  iwbayes ledger people.ledger --epsilon 2 --delta 1e-6      create a ledger\n"
    "  iwbayes ledger people.ledger                               show a ledger"
)
def ledger(
    file: Annotated[Path, typer.Argument(help="Ledger file.")],
    epsilon: Annotated[float | None, typer.Option(help="To create a ledger: epsilon of the whole budget.")] = None,
    delta: Annotated[float | None, typer.Option(help="To create a ledger: delta of the whole budget.")] = None,
    adjacency: Annotated[
        str | None, typer.Option(help="To create a ledger: replace-one (default), zero-out or replace-user.")
    ] = None,
    rule: Annotated[
        str | None, typer.Option(help="To create a ledger: how the costs of releases add up, gdp, renyi or basic.")
    ] = None,
    allow_large_delta: LargeDelta = False,
    uses: Annotated[bool, typer.Option("--uses", help="Also show each use of the private rows.")] = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Show or create a ledger.

    A ledger records the privacy cost of all releases of the same rows, and limits their total.
    """
    with errors(debug):
        from iwbayes.curator.privacy.ledger import Ledger

        settings: dict[str, Any] = {"adjacency": adjacency, "rule": rule, "allow_large_delta": allow_large_delta}
        found = Ledger.open(file, epsilon=epsilon, delta=delta, **settings)
        statement = found.statement()
        if as_json:
            facts = {"path": str(file), "budget": {"epsilon": found.epsilon, "delta": found.delta}, "rule": found.rule}
            facts["releases"] = found.releases.to_dict("records")
            say(json.dumps({**facts, "left": found.left, "spent": statement.to_dict()}, indent=1))
        else:
            say(found.summary(width=columns()))
            if uses:
                say(f"\n{wrapped(str(statement), width=columns())}")


@app.command(
    epilog="Examples:\n\n\b\n"
    "  iwbayes utility people.iwb                  by rehearsals, public\n"
    "  iwbayes utility people.iwb --private people.csv -o utility.html\n"
    "  iwbayes utility people.iwb --private p.csv --ledger p.ledger --epsilon 0.2\n\n"
    "With --private the output is private: it has statistics of the rows without noise, no statement covers it, and "
    "choosing settings by it is a look at private rows. With --epsilon, margins and means have noise, which is charged "
    "to the ledger, and its statement covers the output."
)
def utility(
    release: ReleaseFile,
    private: Annotated[
        Path | None, typer.Option(help="File with the private rows, for a report that must not leave the house.")
    ] = None,
    schema: Annotated[
        Path | None,
        typer.Option(
            "--schema", "-s", help="Schema file with which the rows are read.", show_default="that of the release"
        ),
    ] = None,
    for_model: ForModel = None,
    epsilon: Annotated[float | None, typer.Option(help="With --private: budget for noisy margins and means.")] = None,
    delta: Annotated[float, typer.Option(help="Delta of this budget.")] = 0.0,
    ledger: Annotated[Path | None, typer.Option(help="Ledger file of these rows, to charge epsilon and delta.")] = None,
    n: Annotated[int, typer.Option("--n", "-n", help="Without --private: number of rehearsals, at least 10.")] = 10,
    jobs: Annotated[int, typer.Option(help="Number of processes for rehearsals.")] = 1,
    seed: Annotated[int | None, typer.Option(help="Seed of rehearsals and samples.")] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="HTML file to write, with --private.")] = None,
    force: Force = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Compare synthetic rows with private rows, or with rows of rehearsals.

    Without --private, no private row is read: the release is rehearsed, at no cost in privacy.
    """
    if private is None and (output is not None or schema is not None or for_model or epsilon is not None):
        raise typer.BadParameter("for private rows only", param_hint="--output, --schema, --for-model, --epsilon")
    if (epsilon is None) != (ledger is None):
        raise typer.BadParameter("pass both: noise is charged to a ledger", param_hint="--epsilon, --ledger")
    if epsilon is not None and for_model:
        raise typer.BadParameter("only margins and means have a version with noise", param_hint="--for-model")
    with errors(debug, private=private is not None):
        if output is not None:
            check_output(output, force, inputs=[release, private, schema, ledger])
        from iwbayes.release import load

        found = load(release)
        from iwbayes.reporting.utility import expected_utility
        from iwbayes.reporting.utility import utility as compare

        if private is None:
            from iwbayes.replaying import rehearse

            overview = expected_utility(rehearse(found, n, n_jobs=jobs, random_seed=seed), random_seed=seed)
            told = {"private": False, "overview": _plain(overview), "regressions": {}, "path": None}
            say(json.dumps(told, indent=1) if as_json else overview.round(3).to_string(na_rep=""))
            return
        from iwbayes.tables import PrivateTable
        from iwbayes.tables.read_table import read_table
        from iwbayes.utils.archive import write_atomically

        declared = found.synthetic.schema if schema is None else schema_of(schema)
        cells = found.statement.on_undeclared
        rows = read_table(private, declared, keep_declared=True, on_undeclared=cells)
        table = PrivateTable(rows, declared, on_undeclared=cells)
        made: Any
        if epsilon is None or ledger is None:
            made = compare(found, table, models=for_model or (), random_seed=seed)
            regressions = {formula: _plain(one) for formula, one in made.regressions.items()}
            said = {"private": True, "overview": _plain(made.overview), "regressions": regressions}
        else:
            from iwbayes.curator.privacy.ledger import Ledger
            from iwbayes.reporting.noisy_utility import noisy_utility

            made = noisy_utility(found, table, ledger=Ledger.open(ledger), epsilon=epsilon, delta=delta)
            overview = _plain(made.margins)
            said = {"private": False, "overview": overview, "means": _plain(made.means), "regressions": {}}
        if output is not None:
            write_atomically(output, made.to_html().encode("utf-8"), overwrite=force)
        if as_json:
            say(json.dumps(said | {"path": output and str(output)}, indent=1))
            return
        say(str(made))
        if output is not None:
            say(for_reading(f"written to {output}{', which is private output' if epsilon is None else ''}"))


def _plain(table: Any) -> dict[str, dict[str, float | None]]:
    """Return a table by rows and columns; numbers that are not finite become null."""
    return {str(name): {str(key): finite(float(v)) for key, v in row.items()} for name, row in table.iterrows()}


def _kinds(export: list[str] | None) -> list[str]:
    """Return the kinds of exported files, or raise if one is unknown."""
    from iwbayes.release.export import KINDS

    if unknown := [kind for kind in export or () if kind not in KINDS]:
        raise ValueError(f"--export must be one of {list(KINDS)}; got {unknown}.")
    return list(dict.fromkeys(export or ()))


def _grid(user: str | None, rows_per_user: str | None) -> list[int]:
    """Return the candidate bounds on the rows per person, as numbers; empty if every person owns one row."""
    if (user is None) != (rows_per_user is None):
        raise ValueError(
            "--user and --rows-per-user belong together. Pass both, or neither if people own one row each."
        )
    try:
        return [] if rows_per_user is None else [int(part) for part in rows_per_user.split(",")]
    except ValueError:
        raise ValueError(f"--rows-per-user must be numbers such as 1,2,4,8; got {rows_per_user!r}.") from None


def _certified(path: Path) -> Ledger:
    """Open a ledger, and raise unless its releases are certified and can be saved."""
    from iwbayes.curator.privacy.ledger import Ledger

    found = Ledger.open(path)
    statement = found.statement()
    if not statement.certified:
        reasons = "; ".join(statement.notes) or f"its noise was {statement.noise}, or its budget is infinite"
        raise ValueError(f"the ledger must be certified; {path} is not ({reasons}). Use a different ledger.")
    return found
