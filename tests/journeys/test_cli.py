"""The command line: results, one-line errors, exit codes, and no private value in any output."""

import errno
import gzip
import importlib
import json
import os
import re
import signal
import subprocess
import sys
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from commands import run
from factories import seeded_release, simulated_table
from file_tools import as_nobody, open_folder
from typer.testing import CliRunner

from iwbayes import cli
from iwbayes.coverage.interval_plan import plan_intervals
from iwbayes.curator.plan import plan
from iwbayes.curator.privacy.ledger import Ledger
from iwbayes.datasets import simulate_table
from iwbayes.release import Release, load
from iwbayes.release.statement import PrivacyStatement
from iwbayes.release.weights import Weights
from iwbayes.schema import Binary, Categorical, Integer, Real, Schema
from iwbayes.schema.schema import COLUMN_TYPES
from iwbayes.tables import PrivateTable, SyntheticTable
from iwbayes.tables.read_table import read_table

#: A private cell that must never be printed, whatever fails.
CANARY = "canary-8675309"
COMMANDS = ("schema", "plan", "publish", "ledger", "utility", "inspect", "rehearse", "fit", "report", "export", "demo")
NUMBER = "42.8675309"


def failed(result, match, code=1):
    """Assert one message on the error stream, nothing on the other."""
    assert result.exit_code == code
    assert result.stdout == ""
    assert match in result.stderr
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    return result


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cli")
    simulated = simulate_table("bernoulli", 600, random_seed=1)
    simulated.frame.to_csv(folder / "t.csv", index=False)
    simulated.frame.to_parquet(folder / "t.parquet", index=False)
    (folder / "s.toml").write_text(simulated.schema.to_toml(), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def released(folder):
    path = folder / "r.iwb"
    result = run("publish", folder / "t.csv", "-s", folder / "s.toml", "--epsilon", 1, "--delta", 1e-6, "-o", path)
    assert result.exit_code == 0, result.stderr
    return path


def publish(folder, table, *options, schema="s.toml"):
    return run("publish", folder / table, "--schema", folder / schema, "--epsilon", 1, "--delta", 1e-6, *options)


# --- publish -----------------------------------------------------------------------------------------


def test_publish_writes_a_certified_release(released, folder):
    release = load(released)
    assert release.certified
    assert release.n_private == 600
    assert len(release.synthetic) == 3000
    assert release.statement.epsilon <= 1
    assert release.synthetic.schema == Schema.from_toml(folder / "s.toml")


@pytest.mark.parametrize("table", ["t.csv", "t.parquet"])
def test_publish_options_and_json(folder, tmp_path, table):
    path = tmp_path / "r.iwb"
    result = publish(
        folder, table, "-o", path, "--n-synthetic", 700, "--share", 0.4, "--adjacency", "zero-out", "--json"
    )
    assert result.exit_code == 0, result.stderr
    facts, release = json.loads(result.stdout), load(path)
    assert facts["path"] == str(path)
    assert facts["n_synthetic"] == len(release.synthetic) == 700
    assert facts["certified"] is True
    assert facts["statement"] == release.statement.to_dict()
    assert release.statement.adjacency == "zero-out"
    assert release.recipe["share"] == 0.4


def test_publish_without_a_ledger_says_so_and_nothing_else(folder, tmp_path):
    said = "no ledger: earlier releases of these rows are not counted (see iwbayes ledger --help)\n"
    for options in ((), ("--json",)):
        result = publish(folder, "t.csv", "-o", tmp_path / "r.iwb", "-f", "--n-synthetic", 50, *options)
        assert result.exit_code == 0 and result.stderr == said and "no ledger" not in result.stdout
        assert {"verdict", "next_step"} <= set(json.loads(result.stdout)) if options else "\n  next: " in result.stdout
    run("ledger", tmp_path / "l", "--epsilon", 2, "--delta", 1e-6)
    result = publish(folder, "t.csv", "-o", tmp_path / "r.iwb", "-f", "--n-synthetic", 50, "--ledger", tmp_path / "l")
    assert result.exit_code == 0 and result.stderr == ""


@pytest.mark.filterwarnings("default:noise ratio")
def test_publish_tells_beforehand_that_few_models_will_be_calibrated(folder, tmp_path, monkeypatch):
    line = ("publish", folder / "t.csv", "-s", folder / "s.toml", "--delta", 1e-6, "-o", tmp_path / "r.iwb", "--json")
    result = run(*line, "--epsilon", 0.05, "--n-synthetic", 50)
    assert result.exit_code == 0 and json.loads(result.stdout)["n_synthetic"] == 50
    warned = result.stderr.splitlines()[0]
    expected = plan(Schema.from_toml(folder / "s.toml"), 600, epsilon=0.05, delta=1e-6)
    assert warned.startswith("warning: noise ratio about ") and warned.endswith(
        f"ABOVE the target of 0.5. {expected.advice}"
    )
    assert "few regressions will be calibrated. Use more rows or a larger epsilon" in warned
    # no private value decides on it: other rows of the same number have the same warning
    constant = pd.read_csv(folder / "t.csv").iloc[[0] * 600]
    constant.to_csv(tmp_path / "c.csv", index=False)
    other = run("publish", tmp_path / "c.csv", *line[2:], "-f", "--epsilon", 0.05, "--n-synthetic", 50)
    assert other.exit_code == 0 and other.stderr.splitlines()[0] == warned

    def refuses(*_, **__):
        raise ValueError("not spent")

    monkeypatch.setattr("iwbayes.curator.privacy.ledger.Ledger.charge_release", refuses)
    result = run(*line, "-f", "--epsilon", 0.05)
    assert result.exit_code == 1 and result.stderr.splitlines()[0] == warned


@pytest.mark.filterwarnings("default:noise ratio")
def test_publish_tells_beforehand_what_is_not_measured(folder, tmp_path):
    line = ("-o", tmp_path / "r.iwb", "--n-synthetic", 50, "--epsilon", 0.4)
    options = {"epsilon": 0.4, "delta": 1e-6}
    expected = plan(Schema.from_toml(folder / "s.toml"), 600, **options)
    assert expected.terms in ("linear", "squares")
    result = run("publish", folder / "t.csv", "-s", folder / "s.toml", "--delta", 1e-6, *line)
    said = result.stderr.splitlines()[0].replace("--for-model", "for_models")
    assert said.endswith(f"within the target of 0.5. {expected.advice}")
    assert expected.advice.endswith(
        "are not measured, so few regressions will be calibrated. Name your regressions in for_models."
    )
    assert "in --for-model." in result.stderr  # as the command line calls it


@pytest.mark.filterwarnings("default::iwbayes.utils.warnings.PrivacyWarning")
def test_a_delta_of_one_over_the_rows_is_refused_and_the_plan_warns_of_it(folder, tmp_path):
    options = "t.csv", "-o", tmp_path / "r.iwb", "--n-synthetic", 50, "--delta", 0.01
    refused = failed(publish(folder, *options), "delta must be below one over the number of rows, 1/600")
    assert "--allow-large-delta" in refused.stderr
    assert not (tmp_path / "r.iwb").exists()
    ledger = tmp_path / "a.ledger"
    run("ledger", ledger, "--epsilon", 1, "--delta", 0.01)
    with_ledger = *options, "--ledger", ledger
    failed(publish(folder, *with_ledger), "delta must be below one over the number of rows, 1/600")
    failed(publish(folder, *with_ledger, "--allow-large-delta"), "a given ledger has its own setting")
    allowed = tmp_path / "allowed.ledger"
    run("ledger", allowed, "--epsilon", 1, "--delta", 0.01, "--allow-large-delta")
    for more in (["--allow-large-delta"], ["--ledger", allowed, "--force"]):
        result = publish(folder, *options, *more)
        assert result.exit_code == 0, result.stderr
        assert load(tmp_path / "r.iwb").statement.large_delta == 600
    result = run("plan", "-s", folder / "s.toml", "--n", 50, "--epsilon", 1, "--delta", 0.1, "--json")
    assert json.loads(result.stdout)["noise_ratio"] > 0
    assert result.stderr.count("warning: delta 0.1 is at least one over the number of rows (50)") == 1


def test_publish_for_models(folder, tmp_path):
    path, models = tmp_path / "r.iwb", ["y ~ x + group", "treated ~ z"]
    result = publish(
        folder, "t.csv", "-o", path, "--n-synthetic", 300, *(a for m in models for a in ("--for-model", m))
    )
    assert result.exit_code == 0, result.stderr
    release = load(path)
    assert release.recipe["for_models"] == models
    for output in (result.stdout, run("inspect", path).stdout):
        assert all(model in " ".join(output.split()) for model in models)
    failed(publish(folder, "t.csv", "-o", path, "--force", "--for-model", "zz ~ 1"), "got ['zz']")
    assert load(path).recipe["for_models"] == models


def test_models_of_whole_numbers_have_a_family(tmp_path):
    schema = simulate_table("poisson", 50, random_seed=1).schema
    (tmp_path / "s.toml").write_text(schema.to_toml(), encoding="utf-8")
    assert isinstance(schema["y"], Integer)
    line = ("plan", "-s", tmp_path / "s.toml", "--n", 600, "--epsilon", 2, "--delta", 1e-6)
    named = ("--for-model", "y ~ x", "--response", "treated")
    failed(run(*line, *named), "or --family poisson in a command")
    result = run(*line, *named, "--family", "poisson")  # the other model has the family of its column
    assert result.exit_code == 0 and "scores of y ~ x; treated ~ " in " ".join(result.stdout.split())
    for wrong, said in (("treated", "must have a response"), ("", "must have a response"), ("zz ~ x", "got ['zz']")):
        failed(run(*line, "--for-model", wrong), said)
    failed(run(*line, "--response", "zz"), "response must be one of the columns")


def test_csv_and_parquet_read_alike(folder):
    schema = Schema.from_toml(folder / "s.toml")
    frames = [PrivateTable(read_table(folder / name, schema), schema).frame for name in ("t.csv", "t.parquet")]
    pd.testing.assert_frame_equal(*frames, rtol=1e-12)


def test_an_existing_output_stays_and_nothing_is_spent(folder, tmp_path, monkeypatch):
    path = tmp_path / "r.iwb"
    path.write_text("mine")
    publishing = importlib.import_module("iwbayes.curator.publish")
    monkeypatch.setattr(publishing, "publish", None)  # would fail if it were reached
    failed(publish(folder, "t.csv", "-o", path), "pass --force")
    failed(publish(folder, "t.csv", "-o", tmp_path / "no" / "r.iwb"), "does not exist. Create it first")
    failed(publish(folder, "t.csv", "-o", tmp_path, "--force"), "already exists")
    assert path.read_text() == "mine"


def test_no_output_replaces_an_input_even_by_force(folder, tmp_path, monkeypatch):
    for name in ("t.csv", "s.toml"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    assert run("ledger", tmp_path / "l", "--epsilon", 2, "--delta", 1e-6).exit_code == 0
    (tmp_path / "soft").symlink_to(tmp_path / "t.csv")
    os.link(tmp_path / "s.toml", tmp_path / "hard")
    publishing = importlib.import_module("iwbayes.curator.publish")
    monkeypatch.setattr(publishing, "publish", None)  # would fail if it were reached
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    for name in ("t.csv", "s.toml", "l", ".l.lock", "soft", "hard"):
        result = publish(tmp_path, "t.csv", "-o", tmp_path / name, "-f", "--ledger", tmp_path / "l")
        failed(result, "which this command uses. Choose another path. Nothing was read or charged")
    failed(publish(tmp_path, "soft", "-o", tmp_path / "t.csv", "-f"), "which this command uses")
    (tmp_path / ".l.lock").unlink()
    failed(
        publish(tmp_path, "t.csv", "-o", tmp_path / ".l.lock", "--ledger", tmp_path / "l"), "which this command uses"
    )
    assert before == {path.name: path.read_bytes() for path in tmp_path.iterdir()} | {".l.lock": b""}


def test_analyses_never_replace_what_they_read(released, tmp_path):
    path, posterior = tmp_path / "r.iwb", tmp_path / "p.nc"
    content = released.read_bytes()
    path.write_bytes(content)
    posterior.write_bytes(b"mine")
    failed(run("fit", path, "y ~ x", "-o", path, "-f"), "which this command uses")
    failed(run("report", path, "-o", path, "-f"), "which this command uses")
    failed(run("report", path, posterior, "-o", posterior, "-f"), "which this command uses")
    assert (path.read_bytes(), posterior.read_bytes()) == (content, b"mine")


def test_force_replaces(folder, tmp_path):
    path = tmp_path / "r.iwb"
    path.write_text("mine")
    assert publish(folder, "t.csv", "-o", path, "--force", "--n-synthetic", 50).exit_code == 0
    assert len(load(path).synthetic) == 50


@pytest.mark.parametrize(
    ("options", "match"),
    [
        (("--epsilon", -1), "epsilon must be positive"),
        (("--delta", 2), "delta must be in [0, 1)"),
        (("--delta", 0), "delta above 0"),
        (("--share", 1.5), "share must be in (0, 1)"),
        (("--n-synthetic", 0), "--n-synthetic must be"),
        (("--adjacency", "add-one"), "adjacency must be one of"),
    ],
)
def test_wrong_settings(folder, tmp_path, options, match):
    failed(publish(folder, "t.csv", "-o", tmp_path / "r.iwb", *options), match)
    assert not list(tmp_path.iterdir())


def test_usage_errors_have_exit_code_2(folder):
    for arguments in (["publish", folder / "t.csv"], ["nonsense"], ["publish", "--epsilon", "much"]):
        result = run(*arguments)
        assert result.exit_code == 2
        assert result.stdout == ""


def test_absent_and_unfit_files(folder, tmp_path):
    output = ("-o", tmp_path / "r.iwb")
    failed(publish(folder, "absent.csv", *output), "No such file or directory")
    failed(publish(folder, "t.csv", *output, schema="absent.toml"), "No such file or directory")
    failed(publish(folder, "s.toml", *output), "It seems to be a schema file")
    failed(publish(folder, "t.txt", *output), "must be a file of one of the kinds .csv, .tsv, .parquet")
    (tmp_path / "bad.toml").write_text("[[column]\n")
    failed(publish(folder, "t.csv", *output, schema=tmp_path / "bad.toml"), "not valid TOML")


# --- planning, ledgers, users -------------------------------------------------------------------------


def test_the_template_is_a_schema_of_every_type_without_traps(tmp_path):
    shown = run("schema").stdout
    template = Schema.from_toml(shown)
    assert {column.kind for column in template} == set(COLUMN_TYPES)
    assert max(map(len, shown.splitlines())) <= 120
    for column in template:
        if getattr(column, "transform", None) == "log1p":
            # half of the encoded range is left for values of the upper half, on a logarithmic scale, of those declared
            assert column.lower >= 0.01 * column.upper
    (tmp_path / "s.toml").write_text(shown, encoding="utf-8")
    shown_table = run("schema", tmp_path / "s.toml").stdout
    assert (
        "region" in shown_table
        and "north, south, east, west" in shown_table
        and "5000 to 500000, encoded as log1p" in shown_table
        and "2010-01-01 to 2019-12-31, in months" in shown_table
    )
    (tmp_path / "s.toml").write_text(shown.replace("upper = 90", "upper = -1"), encoding="utf-8")
    failed(run("schema", tmp_path / "s.toml"), "age")


def test_a_table_is_published_by_the_template_as_it_is(tmp_path):
    (tmp_path / "s.toml").write_text(run("schema").stdout, encoding="utf-8")
    rng = np.random.default_rng(1)
    rows = pd.DataFrame(
        {
            "age": rng.integers(18, 91, 300),
            "height": np.where(rng.random(300) < 0.1, np.nan, rng.normal(170, 10, 300)),
            "income": rng.lognormal(10, 0.7, 300),
            "visit": np.datetime64("2010-01-01") + rng.integers(0, 3652, 300),
            "region": rng.choice(["north", "south", "east", "west"], 300),
            "insured": rng.choice(["no", "yes"], 300),
        }
    )
    rows.to_csv(tmp_path / "t.csv", index=False)
    result = publish(tmp_path, "t.csv", "-o", tmp_path / "r.iwb", "--n-synthetic", 200)
    assert result.exit_code == 0, result.stderr
    synthetic = load(tmp_path / "r.iwb").synthetic
    assert synthetic.schema == Schema.from_toml(tmp_path / "s.toml").admitting("refuse")
    assert synthetic.frame["visit"].between(0, 119).all()
    assert CliRunner().invoke(cli.app, ["inspect", str(tmp_path / "r.iwb")]).exit_code == 0


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (("upper = 90", "maximum = 90"), "'age' of type 'integer': the key 'maximum' is unknown, the key 'upper'"),
        (
            ('levels = ["north", "south", "east", "west"]', ""),
            "'region' of type 'categorical': the key 'levels' is missing",
        ),
        (
            ("transform =", "transfrom ="),
            "Its keys are type, name, lower, upper, transform, missing, missing_codes, outside, heaps, "
            "decimal, thousands, symbols.",
        ),
        (('name = "insured"', ""), "a column of type 'binary': the key 'name' is missing. Its keys are"),
        (("lower = 18 ", 'lower = "18" '), "bounds must be numbers; got str.\n"),
        (("first = 2010-01-01 ", "first = 2010 "), "first must be a date or ISO text such as '2010-01-31'"),
    ],
)
def test_a_wrong_key_of_a_schema_is_named_with_those_that_are_allowed(tmp_path, change, match):
    (tmp_path / "s.toml").write_text(run("schema").stdout.replace(*change), encoding="utf-8")
    result = failed(run("schema", tmp_path / "s.toml"), match)
    assert "__init__" not in result.stderr


def test_plan_tells_the_noise_without_any_row(folder):
    from iwbayes.curator.plan import plan

    expected = plan(Schema.from_toml(folder / "s.toml"), 600, epsilon=1, delta=1e-6)
    line = ("plan", "-s", folder / "s.toml", "--n", 600, "--epsilon", 1, "--delta", 1e-6)
    assert run(*line).stdout == f"{expected}\n"
    facts = json.loads(run(*line, "--json").stdout)
    assert facts["noise_ratio"] == expected.noise_ratio and facts["events"] == [
        event.to_dict() for event in expected.events
    ]
    failed(run(*line, "--for-model", "nothing ~ x"), "got ['nothing']")


FORMULA = ("--formula", "y ~ x", "--seed", 1)


@pytest.fixture(scope="module")
def planning(folder):
    return ("plan", "-s", folder / "s.toml", "--n", 400, "--delta", 1e-6)


def test_plan_tells_lengths_at_several_budgets(folder, planning, released, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    schema = Schema.from_toml(folder / "s.toml")
    options = {"delta": 1e-6, "formula": "y ~ x", "random_seed": 1}
    expected = plan_intervals(schema, 400, epsilon=[1, 3], **options, like=read_table(folder / "t.csv", schema))
    line = (*planning, "--epsilon", 3, "--epsilon", 1, *FORMULA, "--like", folder / "t.csv")
    result = run(*line)
    assert result.exit_code == 0 and result.stderr == "" and result.stdout == f"{expected.summary(width=80)}\n"
    assert (
        max(map(len, result.stdout.split("\n"))) <= 80 and "drawn from the 600 rows of a public table" in result.stdout
    )
    facts = json.loads(run(*line, "--json").stdout)
    assert [each["epsilon"] for each in facts["plans"]] == [1, 3] and facts["formula"] == "y ~ x"
    for each in facts["plans"]:
        assert each["lengths"] == expected.lengths.loc[each["epsilon"]].to_dict()
        assert each["calibrated"] == expected.calibrated[each["epsilon"]] and each["noise_ratio"] > 0
    earlier = run(*planning, "--epsilon", 1, *FORMULA, "--like", released)
    assert "the 3000 rows of an earlier release, by their weights" in " ".join(earlier.stdout.split())
    said = " ".join(earlier.stdout.split())
    assert "At epsilon 1, the interval of " in said and "times as long as from the private rows" in said


def test_named_models_are_simulated_one_by_one(folder, planning):
    schema = Schema.from_toml(folder / "s.toml")
    models = ["y ~ x", "y ~ z"]
    line = (*planning, "--epsilon", 3, "--seed", 1, "--simulate", "--for-model", models[0], "--for-model", models[1])
    facts = json.loads(run(*line, "--json").stdout)
    assert [each["formula"] for each in facts] == models
    for formula, each in zip(models, facts, strict=True):
        found = plan_intervals(
            schema, 400, epsilon=3, delta=1e-6, formula=formula, for_models=models, random_seed=1, progressbar=False
        )
        assert each["plans"][0]["lengths"] == found.lengths.loc[3].to_dict()
    shown = run(*line, "--formula", "y ~ x + z").stdout
    assert [shown.count(f"{formula}, 400 rows") for formula in (*models, "y ~ x + z")] == [1, 1, 1]


def test_plan_refuses_in_one_line_what_it_cannot_simulate(folder, planning, tmp_path):
    several = failed(run(*planning, "--epsilon", 1, "--epsilon", 3), "several epsilons need models")
    assert several.stderr.startswith("error: ")
    failed(run(*planning, "--epsilon", 1, "--like", folder / "t.csv"), "--like is for simulations")
    failed(run(*planning, "--epsilon", 1, "--simulate"), "simulates the named models")
    failed(run(*planning, "--epsilon", 1, "--design-weight", "x"), "--design-weight needs a model")
    weighted = ("--for-model", "y ~ x", "--design-weight", "z", "--simulate")
    failed(run(*planning, "--epsilon", 1, *weighted), "--simulate does not know design weights")
    failed(run(*planning, "--epsilon", 1, "--formula", "y ~ nothing"), "nothing")
    failed(run(*planning, "--epsilon", 1, *FORMULA, "--like", tmp_path / "none.csv"), "No such file")
    failed(run(*planning, "--epsilon", 1, *FORMULA, "--family", "logit"), "family must be")
    pd.DataFrame({"y": [0, 1]}).to_csv(tmp_path / "less.csv", index=False)
    failed(run(*planning, "--epsilon", 1, *FORMULA, "--like", tmp_path / "less.csv"), "x")


def test_a_ledger_is_begun_shown_charged_and_refuses(folder, tmp_path):
    path = tmp_path / "l.ledger"
    failed(run("ledger", path), "Pass epsilon and delta")
    failed(run("ledger", path, "--epsilon", 1), "Pass both")
    assert "the budget epsilon 1.2 and delta 1e-06" in run("ledger", path, "--epsilon", 1.2, "--delta", 1e-6).stdout
    options = ("--ledger", path, "--n-synthetic", 50)
    assert publish(folder, "t.csv", "-o", tmp_path / "a.iwb", *options).exit_code == 0
    spent = json.loads(run("ledger", path, "--json").stdout)
    assert spent["budget"] == {"epsilon": 1.2, "delta": 1e-6}
    assert spent["spent"] == load(tmp_path / "a.iwb").statement.to_dict()
    failed(publish(folder, "t.csv", "-o", tmp_path / "b.iwb", *options), "nothing was drawn")
    assert json.loads(run("ledger", path, "--json").stdout) == spent and not (tmp_path / "b.iwb").exists()
    failed(run("ledger", path, "--epsilon", 9, "--delta", 1e-6), "does not change")
    failed(run("ledger", folder / "t.csv"), "cannot be read as a ledger")
    failed(publish(folder, "t.csv", "-o", tmp_path / "b.iwb", "--ledger", tmp_path / "no.ledger"), "there is no ledger")


def test_a_ledger_whose_release_could_not_be_saved_is_refused_before_it_is_charged(folder, tmp_path):
    own = Ledger.open(tmp_path / "l", epsilon=3, delta=1e-6)
    own.note("somebody else's rows")
    failed(publish(folder, "t.csv", "-o", tmp_path / "r.iwb", "--ledger", tmp_path / "l"), "somebody else's rows")
    assert own.events == ()


@pytest.mark.filterwarnings("default:noise ratio")
def test_people_with_several_rows(folder, tmp_path):
    frame = pd.read_csv(folder / "t.csv")
    frame.assign(who=[f"p{place // 2}" for place in range(len(frame))]).to_csv(tmp_path / "u.csv", index=False)
    line = (tmp_path / "u.csv", "-s", folder / "s.toml", "--epsilon", 2, "--delta", 1e-6, "--n-synthetic", 50)
    users = ("--user", "who", "--rows-per-user", "1,2,4")
    result = run("publish", *line, "-o", tmp_path / "r.iwb", *users)
    assert result.exit_code == 0, result.stderr
    statement = load(tmp_path / "r.iwb").statement
    assert statement.adjacency == "replace-user" and statement.epsilon <= 2
    failed(run("publish", *line, "-o", tmp_path / "s.iwb", "--user", "who"), "belong together")
    failed(run("publish", *line, "-o", tmp_path / "s.iwb", *users[:3], "1,two"), "numbers such as")
    run("ledger", tmp_path / "l", "--epsilon", 2, "--delta", 1e-6, "--adjacency", "replace-user")
    wrong = ("--ledger", tmp_path / "l", "--for-model", "zz ~ 1")
    failed(run("publish", *line, "-o", tmp_path / "s.iwb", *users, *wrong), "got ['zz']")
    assert "Spent: epsilon 0 " in run("ledger", tmp_path / "l").stdout  # the bound on rows was not charged either
    run("ledger", tmp_path / "small", "--epsilon", 1, "--delta", 1e-6, "--adjacency", "replace-user")
    result = run("publish", *line, "-o", tmp_path / "s.iwb", *users, "--ledger", tmp_path / "small")
    warned, refused = result.stderr.splitlines()
    assert result.exit_code == 1 and refused.startswith("error: ") and "nothing was drawn" in refused
    assert warned.startswith("warning: noise ratio ")
    assert "Spent: epsilon 0 " in run("ledger", tmp_path / "small").stdout


def test_generators_and_mechanisms(folder, tmp_path):
    path = tmp_path / "r.iwb"
    options = ("--generator", "Mixture", "--mechanism", "cube", "--delta", 0, "--n-synthetic", 50)
    result = publish(folder, "t.csv", "-o", path, *options)
    assert result.exit_code == 0, result.stderr
    assert load(path).recipe["generator"].startswith("Mixture") and load(path).statement.delta == 0
    failed(
        publish(folder, "t.csv", "-o", path, "-f", "--generator", "GAN"),
        "must be one of ['BayesNet', 'AIM', 'MST', 'Mixture']",
    )


# --- interrupted, and when a file cannot be written ----------------------------------------------------


WAITS = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever runs the tests may ignore it
from iwbayes.curator import publish
def waits(*_, **__):
    print("waiting", flush=True)
    time.sleep(60)
publish.largest_scale = waits
from iwbayes.cli import main
main()
"""


def test_an_interrupted_command_says_so_and_leaves_nothing(folder, tmp_path):
    line = ["publish", folder / "t.csv", "-s", folder / "s.toml", "--epsilon", "1", "--delta", "1e-6"]
    command = [sys.executable, "-c", WAITS, *map(str, line), "-o", str(tmp_path / "r.iwb")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"waiting\n"
        process.send_signal(signal.SIGINT)
        said = process.stderr.read()
    assert process.returncode == 130
    assert said == b"interrupted: nothing was written. Charges already made to a ledger remain.\n"
    assert list(tmp_path.iterdir()) == []


def test_a_release_that_cannot_be_written_where_asked_is_written_elsewhere(folder, tmp_path, monkeypatch):
    from iwbayes.release import release

    real, path = release.write_atomically, tmp_path / "r.iwb"

    def full(target, content, **options):
        if target == path:
            raise OSError(errno.ENOSPC, "No space left on device", str(target))
        return real(target, content, **options)

    monkeypatch.setattr(release, "write_atomically", full)
    result = publish(folder, "t.csv", "-o", path, "--n-synthetic", 50, "--json")
    assert result.exit_code == 0 and "No space left" in result.stderr and result.stderr.count("\n") == 2
    rescued = Path(json.loads(result.stdout)["path"])
    assert rescued != path and not path.exists() and len(load(rescued).synthetic) == 50


def test_a_folder_that_cannot_be_written_to_is_found_before_anything_is_spent(folder, monkeypatch):
    publishing = importlib.import_module("iwbayes.curator.publish")
    monkeypatch.setattr(publishing, "publish", None)  # would fail if it were reached
    with open_folder() as closed:
        closed.chmod(0o555)
        with as_nobody():
            failed(publish(folder, "t.csv", "-o", closed / "r.iwb"), "Permission denied")


@pytest.mark.parametrize("lines", [1, 3])
def test_a_reader_that_goes_away_is_no_error(released, lines):
    shell = f'"{sys.executable}" -m iwbayes inspect "{released}" | head -n {lines} > /dev/null'
    done = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, check=True)
    assert done.stderr == ""


def test_a_notebook_that_asks_for_colours_gets_no_spinner(released, tmp_path):
    """Jupyter sets these variables, and a cell with ``!iwbayes`` is no terminal."""
    command = [sys.executable, "-m", "iwbayes", "report", released, "-o", tmp_path / "report.html"]
    settings = {**os.environ, "FORCE_COLOR": "1", "CLICOLOR_FORCE": "1", "TERM": "xterm-color"}
    done = subprocess.run(command, env=settings, capture_output=True, text=True, check=True)
    assert "\x1b" not in done.stdout + done.stderr


def test_nothing_is_said_where_nobody_listens(released, monkeypatch):
    def gone(*_, **__):
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    monkeypatch.setattr("typer.echo", gone)
    result = run("inspect", released)
    assert (result.exit_code, result.output) == (1, "")


def test_completion_knows_the_commands():
    script = Path(sys.executable).with_name("iwbayes")
    settings = {"_IWBAYES_COMPLETE": "complete_bash", "COMP_WORDS": "iwbayes pub", "COMP_CWORD": "1"}
    done = subprocess.run([script], env={**os.environ, **settings}, capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["publish"]


# --- no private value in any output ------------------------------------------------------------------

PRIVATE_SCHEMA = Schema(
    Real("pay", 0, 100),
    Integer("age", 0, 99, missing=True),
    Categorical("town", ("north", "south", "NA")),
    Binary("sick", levels=(False, True)),
    Binary("owner"),
)
HEADER = "pay,age,town,sick,owner"
GOOD = "12.5,33,north,True,1"

BROKEN = {
    "text in a number": f"{HEADER}\n{GOOD}\n{CANARY},3,north,True,1\n",
    "fractions": f"{HEADER}\n{GOOD}\n1,{NUMBER},north,True,1\n",
    "unknown level": f"{HEADER}\n{GOOD}\n1,3,{CANARY},True,1\n",
    "unknown boolean": f"{HEADER}\n{GOOD}\n1,3,north,{CANARY},1\n",
    "unknown code": f"{HEADER}\n{GOOD}\n1,3,north,True,{NUMBER}\n",
    "missing": f"{HEADER}\n{GOOD}\n,3,{CANARY},True,1\n",
    "infinite": f"{HEADER}\n{GOOD}\ninf,3,{CANARY},True,1\n",
    "more cells": f"{HEADER}\n{GOOD}\n1,3,north,True,1,{CANARY}\n",
    "more cells in every row": f"{HEADER}\n{GOOD},{CANARY}\n{GOOD},{CANARY}\n",
    "fewer cells": f"{HEADER}\n{GOOD}\n{CANARY}\n",
    "no header": f"{CANARY},33,north,True,1\n{GOOD}\n",
    "undeclared column": f"{HEADER},{CANARY}\n{GOOD},{NUMBER}\n",
    "repeated column": f"{HEADER},pay\n{GOOD},{NUMBER}\n",
    "open quote": f'{HEADER}\n{GOOD}\n"{CANARY},3,north,True,1\n',
    "no rows": f"{HEADER}\n",
    "nothing": "",
    "null bytes": f"{HEADER}\n\x00{CANARY},3,north,True,1\n",
    "other separator": f"{HEADER}\n{GOOD}\n{CANARY};3;north;True;1\n".replace(",", ";"),
}


@pytest.mark.parametrize("debug", [False, True])
@pytest.mark.parametrize("name", BROKEN)
def test_no_private_value_is_printed_when_reading_fails(tmp_path, name, debug):
    (tmp_path / "s.toml").write_text(PRIVATE_SCHEMA.to_toml())
    (tmp_path / "t.csv").write_text(BROKEN[name], encoding="utf-8")
    result = publish(tmp_path, "t.csv", "-o", tmp_path / "r.iwb", *(["--debug"] if debug else []))
    assert result.exit_code == 1
    assert "error: " in result.stderr
    assert CANARY not in result.output
    assert NUMBER[:7] not in result.output
    if not debug:
        failed(result, "")
    assert not (tmp_path / "r.iwb").exists()


@pytest.mark.parametrize("content", [f"PAR1{CANARY}PAR1".encode(), CANARY.encode(), b""])
def test_broken_parquet(tmp_path, content):
    (tmp_path / "s.toml").write_text(PRIVATE_SCHEMA.to_toml())
    (tmp_path / "t.parquet").write_bytes(content)
    result = failed(publish(tmp_path, "t.parquet", "-o", tmp_path / "r.iwb"), "cannot be read as Parquet")
    assert CANARY not in result.output


def test_bytes_that_are_no_utf8(tmp_path):
    (tmp_path / "s.toml").write_text(PRIVATE_SCHEMA.to_toml())
    (tmp_path / "t.csv").write_bytes(f"{HEADER}\n{GOOD}\n1,3,{CANARY}".encode() + b"\xff\xfe,True,1\n")
    result = failed(publish(tmp_path, "t.csv", "-o", tmp_path / "r.iwb"), "must be utf-8")
    assert CANARY not in result.output


LIBRARY = """
def fails(*_, **__):
    secret = CANARY
    try:
        int(secret)
    except ValueError as error:
        raise ValueError(f"bad cell {secret}") from error
"""


@pytest.mark.parametrize("debug", [False, True])
def test_an_error_of_a_library_is_not_repeated(folder, tmp_path, monkeypatch, debug):
    """A library that quotes a cell, three ways: its message, its cause, and a local variable."""
    library = {"__name__": "somelibrary", "CANARY": CANARY}
    exec(LIBRARY, library)
    publishing = importlib.import_module("iwbayes.curator.publish")
    monkeypatch.setattr(publishing, "publish", library["fails"])
    result = publish(folder, "t.csv", "-o", tmp_path / "r.iwb", *(["--debug"] if debug else []))
    assert result.exit_code == 1
    assert CANARY not in result.output
    assert "error: ValueError in somelibrary. Its message is not shown" in result.stderr
    assert ("in fails" in result.stderr) is debug


def test_a_warning_of_a_library_is_not_repeated(folder, tmp_path, monkeypatch):
    publishing = importlib.import_module("iwbayes.curator.publish")
    real = publishing.publish

    def warns(*arguments, **options):
        warnings.warn(f"cell {CANARY} is odd", RuntimeWarning, stacklevel=1)
        return real(*arguments, **options)

    monkeypatch.setattr(publishing, "publish", warns)
    monkeypatch.setattr(warnings, "filters", [("always", None, Warning, None, 0)])
    result = publish(folder, "t.csv", "-o", tmp_path / "r.iwb", "--n-synthetic", 50)
    assert result.exit_code == 0
    assert CANARY not in result.output
    assert "warning: a RuntimeWarning of a library" in result.stderr


# --- reading -----------------------------------------------------------------------------------------


def test_cells_are_read_as_declared(tmp_path):
    schema = Schema(
        Categorical("code", ("007", "7", "NA"), missing=True),
        Categorical("grade", (1, 2)),
        Binary("sick", levels=(False, True), missing=True),
        Integer("age", 0, 99, missing=True),
        Real("pay", 0, 100, missing=True),
    )
    (tmp_path / "t.csv").write_text(
        '\ufeffpay,age,code,grade,sick\n1.5,7,007,1,true\nNA,,7,2,FALSE\n 1e1 ,NaN,NA,1,\n0.1,99,"",2.0,True\n',
        encoding="utf-8",
    )
    frame = PrivateTable(read_table(tmp_path / "t.csv", schema), schema).frame
    assert frame["code"].astype(object).where(frame["code"].notna(), None).tolist() == ["007", "7", "NA", None]
    assert frame["grade"].tolist() == [1, 2, 1, 2]
    assert frame["sick"].astype(object).where(frame["sick"].notna(), None).tolist() == [True, False, None, True]
    assert frame["age"].fillna(-1).tolist() == [7, -1, -1, 99]
    np.testing.assert_array_equal(frame["pay"], [1.5, np.nan, 10.0, 0.1])


@pytest.mark.parametrize("option", ["missing", "other"])
def test_cells_that_do_not_fit_are_published_as_the_option_says(folder, tmp_path, option):
    frame, declared = pd.read_csv(folder / "t.csv"), Schema.from_toml(folder / "s.toml")
    (tmp_path / "s.toml").write_text(declared.to_toml())
    output = ("-o", tmp_path / "r.iwb", "--n-synthetic", 50)
    frame.to_csv(tmp_path / "t.csv", index=False)
    conforming = publish(tmp_path, "t.csv", *output, "--on-undeclared", option)
    assert conforming.exit_code == 0, conforming.stderr
    first = load(tmp_path / "r.iwb")
    wrong = frame.astype(object)
    wrong.iloc[3] = CANARY
    wrong.to_csv(tmp_path / "t.csv", index=False)
    refusal = failed(
        publish(tmp_path, "t.csv", *output, "-f"), "do not change bounds or levels because of this message"
    )
    assert "--on-undeclared missing or other, chosen before reading" in refusal.stderr
    result = publish(tmp_path, "t.csv", *output, "-f", "--on-undeclared", option)
    assert result.exit_code == 0 and CANARY not in result.output
    second = load(tmp_path / "r.iwb")
    assert first.synthetic.schema == second.synthetic.schema == declared.admitting(option)
    assert str(first.statement) == str(second.statement) and second.statement.on_undeclared == option
    assert result.stderr == conforming.stderr
    assert first.n_private == second.n_private == len(frame)
    failed(publish(tmp_path, "t.csv", *output, "-f", "--on-undeclared", "no"), 'must be "refuse", "missing" or "other"')


def test_a_plan_is_that_of_the_schema_that_will_be_published(folder, tmp_path):
    admitted = Schema.from_toml(folder / "s.toml").admitting("missing")
    (tmp_path / "s.toml").write_text(admitted.to_toml())
    options = ("--n", 600, "--epsilon", 1, "--delta", 1e-6)
    planned = run("plan", "-s", folder / "s.toml", *options, "--on-undeclared", "missing")
    assert planned.exit_code == 0
    assert planned.stdout == run("plan", "-s", tmp_path / "s.toml", *options).stdout
    assert planned.stdout != run("plan", "-s", folder / "s.toml", *options).stdout


SHORT = {
    "the last cell": "x,y\n0.1,1\n0.2\n",
    "in the first row": "x,y\n0.1\n0.2,1\n",
    "in every row": "x,y\n0.1\n0.2\n",
    "after a quoted break": 'x,y\n"0.1",1\n"0.2\n"\n',
}


@pytest.mark.parametrize("suffix", ["csv", "csv.gz"])
@pytest.mark.parametrize("name", SHORT)
def test_rows_shorter_than_the_header_are_refused(tmp_path, name, suffix):
    path, schema = tmp_path / f"t.{suffix}", Schema(Real("x", 0, 1), Integer("y", 0, 1, missing=True))
    content = SHORT[name].encode()
    path.write_bytes(gzip.compress(content) if suffix == "csv.gz" else content)
    with pytest.raises(ValueError, match="as many cells in every row as the header has"):
        read_table(path, schema)
    content = b"x,y\n0.1,\n0.2,1\n"  # an empty cell is one
    path.write_bytes(gzip.compress(content) if suffix == "csv.gz" else content)
    assert read_table(path, schema)["y"].isna().tolist() == [True, False]


@pytest.mark.parametrize("suffix", ["csv", "csv.gz"])
def test_a_blank_line_among_rows_is_refused(tmp_path, suffix):
    path, schema = tmp_path / f"t.{suffix}", Schema(Integer("a", 0, 9), Integer("b", 0, 9))
    for text, fits in (("a,b\n1,2\n3,4\n", True), ("a,b\n1,2\n\n3,4\n", False), ("a,b\n\n1,2\n3,4\n", False)):
        path.write_bytes(gzip.compress(text.encode()) if suffix == "csv.gz" else text.encode())
        if fits:
            assert len(read_table(path, schema)) == 2
            continue
        with pytest.raises(ValueError, match="as many cells in every row"):
            read_table(path, schema)
    (tmp_path / "ends.csv").write_text("a,b\n1,2\n3,4\n\n\n")
    assert len(read_table(tmp_path / "ends.csv", schema)) == 2


def test_short_rows_are_found_at_the_end(tmp_path):
    path, schema = tmp_path / "t.csv", Schema(Real("x", 0, 1), Integer("y", 0, 1, missing=True))
    path.write_text("x,y\n" + "0.1,1\n" * 5)
    assert len(read_table(path, schema)) == 5
    path.write_text("x,y\n" + "0.1,1\n" * 5 + "0.2\n")
    with pytest.raises(ValueError, match="as many cells"):
        read_table(path, schema)


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_columns_are_dropped_by_name(folder, tmp_path, kind):
    path, schema = tmp_path / f"t.{kind}", Schema.from_toml(folder / "s.toml")
    frame = pd.read_csv(folder / "t.csv").assign(id=CANARY, day="2020-01-01")
    frame.to_csv(path, index=False) if kind == "csv" else frame.to_parquet(path, index=False)
    output = ("-o", tmp_path / "r.iwb", "--n-synthetic", 50)
    result = failed(publish(folder, path, *output), "Drop them, or declare them; always drop identifiers")
    assert CANARY not in result.output
    result = publish(folder, path, *output, "--drop", "id", "--drop", "day")
    assert result.exit_code == 0, result.stderr
    assert load(tmp_path / "r.iwb").synthetic.schema == schema
    assert list(read_table(path, schema, drop=["id"]).columns) == [*schema.names, "day"]
    lacks = "lacks the columns to drop ['person']. Correct"
    for name, match in (("person", lacks), ("y", "the schema declares; got ['y']")):
        result = failed(publish(folder, path, *output, "-f", "--drop", name), match)
        assert "day" not in result.stderr
    with pytest.raises(TypeError, match="list of column names"):
        read_table(path, schema, drop="id")
    with pytest.raises(TypeError, match="must be an iwbayes.Schema"):
        read_table(path, {"id": "text"})


@pytest.mark.parametrize("sep", [";", "\\t"])
def test_files_of_other_formats_are_published(folder, tmp_path, sep):
    """A tab is written as two characters, since a shell passes no other easily."""
    schema, frame = Schema.from_toml(folder / "s.toml"), pd.read_csv(folder / "t.csv")
    frame = frame.assign(id=CANARY, who=[f"p{place // 2}" for place in range(len(frame))])
    settings = {"sep": sep.replace("\\t", "\t"), "decimal": ",", "encoding": "cp1252"}
    (tmp_path / "s.toml").write_text('decimal = ","\n\n' + schema.to_toml())
    frame.to_csv(tmp_path / "t.csv", index=False, **settings)
    options = ("-o", tmp_path / "r.iwb", "--n-synthetic", 50, "--sep", sep, "--encoding", "cp1252")
    folder = tmp_path
    failed(publish(folder, tmp_path / "t.csv", *options), "columns that the schema does not declare")
    users = ("--user", "who", "--rows-per-user", "1,2")
    for more in ((), users):
        result = publish(folder, tmp_path / "t.csv", *options, "--keep-declared", "--force", *more)
        assert result.exit_code == 0, result.stderr
        assert load(tmp_path / "r.iwb").synthetic.schema == schema
    assert load(tmp_path / "r.iwb").statement.adjacency == "replace-user"
    result = failed(publish(folder, tmp_path / "t.csv", *options, "--force", "--encoding", "utf-16"), "must be utf-16")
    assert CANARY not in result.output


# --- inspect and the rest ----------------------------------------------------------------------------


def test_inspect_shows_what_an_analyst_must_know(released):
    result = run("inspect", released)
    assert result.exit_code == 0
    said, release = " ".join(result.stdout.split()), load(released)
    for part in ("hardened noise, certified", "categorical", "clipped private rows", "were drawn by BayesNet"):
        assert part in said
    assert f"verdict: {release.verdict}" in said and f"next: {release.next_step}" in said


def test_inspect_json(released):
    result = run("inspect", released, "--json")
    facts, release = json.loads(result.stdout), load(released)
    assert Schema.from_dict(facts["schema"]) == release.synthetic.schema
    assert facts["ess"] == release.weights.ess
    assert (facts["verdict"], facts["next_step"]) == (release.verdict, release.next_step)
    assert facts["recipe"] == release.recipe and facts["registry"] == release.to_registry()


def test_inspect_json_of_a_hand_made_release(tmp_path):
    schema = Schema(Real("[bold]x", 0, 1))
    synthetic = SyntheticTable(pd.DataFrame({"[bold]x": [0.1, 0.2]}), schema)
    statement = PrivacyStatement(0.0, 0.0, "replace-one", (), "hardened", True)
    release = Release(synthetic, Weights([0.0, 0.0], "hand"), statement, n_private=2)
    path = release.save(tmp_path / "r.iwb", allow_uncertified=True)
    facts = json.loads(run("inspect", path, "--json").stdout)
    assert facts["pareto_k"] is None
    assert facts["clipped_private"] is None
    assert facts["certified"] is False
    assert "[bold]x" in run("inspect", path).stdout


def test_broken_releases(tmp_path):
    (tmp_path / "r.iwb").write_text("nothing")
    failed(run("inspect", tmp_path / "r.iwb"), "cannot be read as an iwbayes release")
    failed(run("inspect", tmp_path / "absent.iwb"), "No such file or directory")
    failed(run("fit", tmp_path / "r.iwb", "y ~ x"), "cannot be read as an iwbayes release")


@pytest.fixture(scope="module")
def seeded(folder):
    """Build a release that is the same in every run, since a verdict hangs on the noise."""
    release = seeded_release(simulated_table("bernoulli", 8000), 3, epsilon=2, n_synthetic=8000)
    return release.save(folder / "seeded.iwb", allow_uncertified=True)


def test_fit_prints_and_writes_a_posterior(seeded, tmp_path):
    from iwbayes.analyst import arviz_compat

    released = seeded
    output = tmp_path / "posterior.nc"
    options = ("--family", "bernoulli", "-o", output, "--draws", 200, "--chains", 2, "--seed", 1)
    result = run("fit", released, "y ~ x + treated", *options)
    assert result.exit_code == 0, result.stderr
    for part in ("Intercept", "treated", "diagnostics", f"written to {output}"):
        assert part in result.stdout
    posterior = arviz_compat.group(arviz_compat.load(output), "posterior")
    assert posterior.sizes["chain"] * posterior.sizes["draw"] == 400
    failed(run("fit", released, "y ~ x", "-o", output), "pass --force")
    assert [path.name for path in tmp_path.iterdir()] == ["posterior.nc"]
    again = run("fit", released, "y ~ x + treated", *options, "--force", "--json")
    facts = json.loads(again.stdout)
    assert facts["path"] == str(output) and isinstance(facts["calibrated"], bool)
    assert [entry["parameter"] for entry in facts["summary"]][0] == "Intercept"
    assert {entry["check"] for entry in facts["diagnostics"]} >= {"calibration", "kappa"}
    verdict = next(entry["verdict"] for entry in facts["diagnostics"] if entry["check"] == "calibration")
    assert facts["calibrated"] is (verdict == "ok")


@pytest.mark.filterwarnings("default::iwbayes.utils.warnings.CalibrationWarning")
def test_a_fit_outside_the_domain_warns_in_one_line(seeded, tmp_path):
    release = load(seeded)
    logs = np.where(np.arange(len(release.synthetic)) < 20, 8.0, 0.0)
    path = replace(release, weights=replace(release.weights, log_weights=logs)).save(
        tmp_path / "heavy.iwb", allow_uncertified=True
    )
    result = run("fit", path, "y ~ x", "--family", "bernoulli", "--method", "laplace", "--seed", 1)
    assert result.exit_code == 0, result.stderr
    assert result.stderr == "warning: not calibrated: see the advice in the diagnostics\n"
    advice = " ".join(result.stdout.partition("diagnostics\n")[2].split())
    assert advice.count("the synthetic rows differ much from the private ones") == 1
    assert "ess_share" in advice.split("calibration:")[0]


def test_fit_errors_name_the_remedy(released):
    result = failed(run("fit", released, "y ~ unknown", "--family", "bernoulli"), "unknown")
    assert "must use columns of the schema" in result.stderr
    failed(run("fit", released, "y ~ x", "--family", "cauchy"), "cauchy")


@pytest.mark.filterwarnings("default::iwbayes.utils.warnings.IwbayesWarning")
@pytest.mark.parametrize("stopped_after", [3, 10])
def test_rehearsals_continue_in_their_folder_and_a_fit_takes_them(folder, tmp_path, monkeypatch, stopped_after):
    from iwbayes.replaying import rehearse

    module, made = sys.modules[rehearse.__module__], []
    original = module.replay

    def stopping(*arguments):
        if len(made) == stopped_after:
            raise KeyboardInterrupt
        made.append(arguments[1])
        return original(*arguments)

    release = seeded_release(simulated_table("bernoulli", 300), 3).save(tmp_path / "r.iwb", allow_uncertified=True)
    rehearsals = tmp_path / "rehearsals"
    line = ("rehearse", release, "-o", rehearsals, "-n", 11, "--seed", 5)
    monkeypatch.setattr(module, "replay", stopping)
    result = run(*line)
    said = " ".join(result.stderr.split())
    if stopped_after < 10:
        assert result.exit_code == 130
        told = f"interrupted: {rehearsals} contains 3 of 11 rehearsals. Run the command again to continue."
        assert said.replace(" ", "") == told.replace(" ", "")  # a long path is wrapped, too
    else:  # enough for a result
        assert result.exit_code == 0 and "interrupted: 10 of 11 rehearsals were made" in said
    monkeypatch.setattr(module, "replay", original)
    failed(run(*line[:-1], 6), "--seed must be 5")
    result = run(*line[:-2], "--jobs", 1, "--json")
    assert json.loads(result.stdout)["n"] == 11 and json.loads(result.stdout)["seed"] == 5
    assert "contains11rehearsals" in "".join(run(*line).stdout.split())  # all are there
    alone = rehearse(load(release), 11, random_seed=5)
    assert [one.to_bytes() for one in alone] == [
        (rehearsals / f"{number:04d}.iwb").read_bytes() for number in range(1, 12)
    ]
    fitted = run("fit", release, "y ~ x", "--rehearsals", rehearsals, "--seed", 1, "--draws", 250, "--json")
    assert fitted.exit_code == 0, fitted.stderr
    assert "failed_refits" in fitted.stdout
    failed(run("fit", release, "y ~ x", "--rehearsals", tmp_path), "is not a folder of rehearsals")


def test_help_names_families_that_exist():
    from iwbayes.models.families import FAMILIES

    named = " ".join(run("fit", "--help").stdout.split()).partition("Such as ")[2].partition(";")[0]
    assert set(re.findall(r"\w+", named)) - {"or"} <= set(FAMILIES)


@pytest.fixture(scope="module")
def long_names(folder):
    """Build a release of columns with long names, the same in every run."""
    rng = np.random.default_rng(1)
    levels = ("north-eastern coast", "south-western plains", "central highlands")
    schema = Schema(
        Real("household_income_in_thousands", 0, 100),
        Integer("years_of_schooling_completed", 0, 20),
        Real("distance_to_the_nearest_hospital", 0, 50),
        Categorical("region_of_residence", levels),
        Binary("ever_diagnosed_with_diabetes"),
    )
    frame = pd.DataFrame(
        {
            "household_income_in_thousands": rng.normal(50, 12, 3000),
            "years_of_schooling_completed": rng.integers(0, 20, 3000),
            "distance_to_the_nearest_hospital": rng.uniform(0, 50, 3000),
            "region_of_residence": rng.choice(levels, 3000),
            "ever_diagnosed_with_diabetes": rng.integers(0, 2, 3000),
        }
    )
    release = seeded_release(PrivateTable(frame, schema), 3, epsilon=1, n_synthetic=6000)
    return release.save(folder / "long.iwb", allow_uncertified=True)


MODELS = {
    "all columns": "ever_diagnosed_with_diabetes ~ household_income_in_thousands + years_of_schooling_completed + "
    "distance_to_the_nearest_hospital + region_of_residence",
    "products": "ever_diagnosed_with_diabetes ~ (household_income_in_thousands + years_of_schooling_completed + "
    "distance_to_the_nearest_hospital) * region_of_residence",
}


#: A line of the summary: a parameter and four numbers.
NUMBERS = re.compile(r"^\S.*?(?: +-?[\d.,]+(?:e[-+]\d+)?){4}$", re.MULTILINE)


@pytest.mark.filterwarnings("default::iwbayes.utils.warnings.CalibrationWarning")
@pytest.mark.parametrize("model", MODELS)
def test_a_fit_fits_on_a_terminal(long_names, tmp_path, monkeypatch, model):
    """80 columns and 40 lines, no number in two lines, and no advice twice."""
    from iwbayes.analyst import arviz_compat
    from iwbayes.analyst.quantities.summary import summary as summarised

    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(importlib.import_module("iwbayes.cli.analyst"), "on_terminal", lambda: True)
    monkeypatch.chdir(tmp_path)  # a path is never broken, however long
    result = run("fit", long_names, MODELS[model], "--seed", 1, "-o", "p.nc")
    assert result.exit_code == 0, result.stderr
    lines = result.stdout.splitlines()
    assert [line for line in lines if len(line) > 80] == []
    assert len(lines) <= 40 or model == "products"  # whose advice names long products
    posterior, _, below = result.stdout.partition("\ndiagnostics\n")
    summary = summarised(arviz_compat.load(tmp_path / "p.nc"), round_to="none")
    rows = [found[0] for found in NUMBERS.finditer(posterior)]
    assert rows[0].startswith("Intercept")
    for line, (_, row) in zip(rows, summary.iterrows(), strict=False):
        numbers = [float(text.replace(",", "")) for text in line.split()[-4:]]
        np.testing.assert_allclose(
            numbers, row[["mean", "sd", "eti90_lb", "eti90_ub"]].astype(float), atol=row["sd"] / 9
        )
    assert len(rows) == len(summary) or f"and {len(summary) - len(rows)} more: use --json to print all" in posterior
    assert len(rows) == 6 if model == "all columns" else len(rows) >= 4
    advice = [sentence for sentence in re.findall(r"[^.]+\.", " ".join(below.split())) if len(sentence) > 40]
    assert len(advice) == len(set(advice))


def test_a_fit_that_is_read_by_a_program_shows_all_parameters(long_names):
    result = run("fit", long_names, MODELS["products"], "--seed", 1, "--calibrate", "none")
    posterior = result.stdout.partition("\ndiagnostics\n")[0]
    assert result.exit_code == 0 and len(NUMBERS.findall(posterior)) == 12  # 1 + 3 + 2 + 3 * 2


def test_other_commands_fit_on_a_terminal(long_names, folder, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    budget = ("--epsilon", 0.5, "--delta", 1e-6)
    (tmp_path / "s.toml").write_text(load(long_names).synthetic.schema.to_toml(), encoding="utf-8")
    for line in (
        ("inspect", long_names),
        ("schema", tmp_path / "s.toml"),
        ("plan", "-s", tmp_path / "s.toml", "--n", 300, *budget),
        ("ledger", tmp_path / "l", "--epsilon", 2, "--delta", 1e-6),
        ("publish", folder / "t.csv", "-s", folder / "s.toml", *budget, "-o", tmp_path / "r.iwb"),
    ):
        result = run(*line)
        said = result.stdout.replace(str(tmp_path), "FOLDER")
        assert result.exit_code == 0 and max(map(len, said.splitlines())) <= 80, said
    assert "household_income_in_thousands" in run("inspect", long_names).stdout


def test_a_report_of_another_release_is_refused(seeded, released, tmp_path):
    posterior, page = tmp_path / "p.nc", tmp_path / "page.html"
    assert run("fit", seeded, "y ~ x", "-o", posterior, "--draws", 50, "--chains", 2, "--seed", 1).exit_code == 0
    for line in ((released, posterior), (posterior,), (tmp_path / "absent.iwb",)):
        result = run("report", *line, "-o", page)
        assert result.exit_code == 1 and result.stdout == "" and result.stderr.count("error: ") == 1
        assert not page.exists()
    failed(run("report", released, posterior, "-o", page), "was fitted to a different release")
    assert run("report", seeded, posterior, "-o", page).exit_code == 0 and page.exists()


def test_json_has_the_keys_that_the_page_lists(seeded, folder, tmp_path):
    page = Path(__file__).parents[2] / "docs" / "howto" / "command_line.md"
    text = page.read_text(encoding="utf-8").partition("keys of its JSON")[2].partition("\n\n")[0]
    listed = dict(re.findall(r"^\| `([a-z -]+)` \| (.*) \|$", text, re.MULTILINE))
    keys = {command: re.findall(r"`(\w+)`", re.split(r";", said)[0]) for command, said in listed.items()}
    keys["inspect"] = [*(key for key in keys["publish"] if key != "path"), "schema", "recipe", "registry"]
    budget = ("--epsilon", 2, "--delta", 1e-6)
    table = (folder / "t.csv", "-s", folder / "s.toml", *budget)
    lines = {
        "schema": (folder / "s.toml",),
        "plan": ("-s", folder / "s.toml", "--n", 600, *budget),
        "publish": (*table, "-o", tmp_path / "p.iwb", "--n-synthetic", 300),
        "publish --check": (*table, "--check", "--n", 600),
        "ledger": (tmp_path / "l.ledger", *budget),
        "utility": (seeded, "--private", folder / "t.csv"),
        "inspect": (seeded,),
        "rehearse": (seeded, "-o", tmp_path / "rehearsals", "-n", 10),
        "fit": (seeded, "y ~ x", "--draws", 50, "--chains", 2),
        "report": (seeded, "-o", tmp_path / "r.html"),
        "export": (seeded, "-o", tmp_path / "e.csv", "--replicates", 10),
    }
    assert {*lines, "demo"} == set(keys) and {command.split()[0] for command in keys} == set(COMMANDS)
    for command, line in lines.items():
        done = run(command.split()[0], *line, "--json")
        assert done.exit_code == 0, done.stderr
        assert set(json.loads(done.stdout)) == set(keys[command]), command
    assert list(json.loads(run("schema", "--json").stdout)) == ["template"]


def test_utility_of_private_rows_says_that_it_is_private_and_quotes_no_cell(seeded, folder, tmp_path):
    page = tmp_path / "utility.html"
    done = run("utility", seeded, "--private", folder / "t.csv", "-o", page, "--for-model", "y ~ x", "--seed", 1)
    said = " ".join(done.stdout.split())
    assert done.exit_code == 0 and said.startswith("PRIVATE OUTPUT") and "must not leave" in said
    text = page.read_text(encoding="utf-8")
    assert text.index("PRIVATE OUTPUT") < text.index("<nav") and "which is private output" in said
    facts = json.loads(run("utility", seeded, "--private", folder / "t.csv", "--seed", 1, "--json").stdout)
    assert facts["private"] is True and facts["path"] is None
    assert 0 < facts["overview"]["total variation, one column"]["weighted"] < 1
    frame = pd.read_csv(folder / "t.csv", dtype=str)
    frame.loc[3, "x"] = NUMBER + "?"
    frame.to_csv(tmp_path / "bad.csv", index=False)
    result = run("utility", seeded, "--private", tmp_path / "bad.csv")
    assert result.exit_code == 1 and NUMBER not in result.stderr + result.stdout and "'x'" in result.stderr
    assert run("utility", seeded, "-o", page).exit_code == 2
    failed(run("utility", seeded, "--private", folder / "t.csv", "-o", page), "already exists")


def test_utility_with_noise_is_charged_to_a_ledger(seeded, folder, tmp_path):
    ledger, page = tmp_path / "t.ledger", tmp_path / "noisy.html"
    assert run("ledger", ledger, "--epsilon", 1, "--delta", 1e-6).exit_code == 0
    line = ("utility", seeded, "--private", folder / "t.csv", "--ledger", ledger, "--epsilon", 0.6, "--delta", 1e-6)
    done = run(*line, "-o", page, "--json")
    facts = json.loads(done.stdout)
    assert facts["private"] is False and facts["path"] == str(page) and set(facts["means"]) == {"x", "z"}
    assert set(facts) == {"private", "overview", "means", "regressions", "path"}
    assert facts["overview"]["x"]["by_noise"] > 0 and "PRIVATE" not in page.read_text(encoding="utf-8")
    spent = Ledger.open(ledger).spent
    assert 0.59 < spent[0] <= 0.6
    failed(run(*line, "--epsilon", 0.9), "nothing was drawn")
    assert Ledger.open(ledger).spent == spent
    assert run("utility", seeded, "--private", folder / "t.csv", "--epsilon", 0.1).exit_code == 2
    assert run("utility", seeded, "--ledger", ledger, "--epsilon", 0.1).exit_code == 2
    assert run(*line, "--for-model", "y ~ x").exit_code == 2
    failed(run(*line[:5], tmp_path / "absent.ledger", "--epsilon", 0.1), "absent.ledger")


@pytest.mark.slow
def test_utility_by_rehearsals_reads_no_private_row(seeded):
    facts = json.loads(run("utility", seeded, "--n", 10, "--seed", 1, "--json").stdout)
    assert facts["private"] is False and 0 < facts["overview"]["total variation, one column"]["weighted"] < 1


def test_export_writes_replicates_and_the_code_to_read_them(seeded, folder, tmp_path):
    path = tmp_path / "people.csv"
    done = run("export", seeded, "-o", path, "--replicates", 12, "--seed", 1)
    assert done.exit_code == 0 and f"writtento{path}" in "".join(done.stdout.split())
    found, said = pd.read_csv(path), path.with_name("people.csv.txt").read_text()
    assert list(found.filter(regex="^rep")) == [f"rep{number}" for number in range(1, 13)] and "svrepdesign" in said
    again = run("export", seeded, "-o", path, "--replicates", 12, "--seed", 1, "--force", "--json")
    assert json.loads(again.stdout) == {"paths": [str(path), f"{path}.txt"], "replicates": 12}
    pd.testing.assert_frame_equal(pd.read_csv(path), found)
    assert run("export", seeded, "-o", tmp_path / "plain.csv", "--replicates", 0).exit_code == 0
    assert list(pd.read_csv(tmp_path / "plain.csv")) == [*load(seeded).synthetic.schema.names, "weight"]
    failed(run("export", seeded, "-o", path), "already exists")
    failed(run("export", seeded, "-o", tmp_path / "b.csv", "--replicates", 3), "must be")
    failed(run("export", seeded, "-o", tmp_path / "b.sav"), "one of ['csv', 'dta', 'parquet']")
    assert not (tmp_path / "b.csv").exists()
    plain = tmp_path / "uniform.iwb"
    load(seeded).unweighted().save(plain, allow_uncertified=True)
    failed(run("export", plain, "-o", tmp_path / "c.csv"), "--replicates 0")
    assert run("export", plain, "-o", tmp_path / "c.csv", "--replicates", 0).exit_code == 0


def test_errors_are_wrapped(monkeypatch, folder, tmp_path):
    line = ["publish", str(folder / "t.csv"), "-s", str(folder / "s.toml"), "--epsilon", "1", "--delta", "1e-6"]
    for width in (60, 80):
        monkeypatch.setenv("COLUMNS", str(width))
        result = CliRunner().invoke(cli.app, [*line, "-o", str(tmp_path / "r.iwb"), "--for-model", "nothing ~ y"])
        first, *later = result.stderr.splitlines()
        assert first.startswith("error: ") and later and all(part.startswith("  ") for part in later)
        assert max(map(len, [first, *later])) <= width


def test_version_and_help():
    from iwbayes import __version__

    assert run("--version").stdout.strip() == __version__
    indices = [run("--help").stdout.index(f"\n  {command} ") for command in COMMANDS]
    assert indices == sorted(indices)
    for command in COMMANDS:
        shown = run(command, "--help").stdout
        assert "--debug" in shown and f"  iwbayes {command}" in shown.partition("Example")[2]


def test_help_loads_nothing_heavy():
    code = (
        "import sys; from typer.testing import CliRunner; from iwbayes.cli import app;"
        "CliRunner().invoke(app, ['publish', '--help']);"
        "print(sorted({'pymc', 'pandas', 'numpy', 'scipy', 'arviz', 'torch', 'matplotlib'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_locals_are_never_shown():
    assert cli.app.pretty_exceptions_show_locals is False


# --- messages in the words of the command line


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help_has_a_short_option_and_fits_a_terminal(command):
    long, short = (run(*([command] if command else []), option) for option in ("--help", "-h"))
    assert short.exit_code == 0 and short.stdout == long.stdout and short.stdout.startswith("Usage")
    assert all(len(line) <= 80 for line in short.stdout.splitlines())


def test_the_template_fits_a_terminal_and_is_a_schema_with_a_mark_of_bytes(tmp_path):
    text = run("schema").stdout
    assert all(len(line) <= 80 for line in text.splitlines()) and "missing_codes" in text
    (tmp_path / "s.toml").write_bytes(b"\xef\xbb\xbf" + text.encode())
    result = run("schema", tmp_path / "s.toml")
    assert result.exit_code == 0 and "age" in result.stdout
    assert all(len(line) <= 80 for line in result.stdout.splitlines())
    assert Schema.from_toml(tmp_path / "s.toml") == Schema.from_toml(text)


def test_options_have_the_names_of_the_command_line(folder, tmp_path):
    text = (folder / "t.csv").read_text()
    (tmp_path / "semicolons.csv").write_text(text.replace(",", ";"))
    (tmp_path / "wrong.csv").write_text(text + text.split("\n")[1].replace(".", "x") + "\n")
    schema = (folder / "s.toml").read_text()
    (tmp_path / "s.toml").write_text(schema)
    said = {
        "semicolons.csv": "pass --sep ';'",
        "wrong.csv": "use --on-undeclared missing or other, chosen before reading the rows",
    }
    for name, expected in said.items():
        result = publish(tmp_path, name, "-o", tmp_path / "r.iwb")
        failed(result, expected)
        assert "on_undeclared" not in result.stderr and "sep=" not in result.stderr


def test_an_index_without_a_name_is_left_out_by_an_empty_name(folder, tmp_path):
    """`DataFrame.to_csv` writes the index under an empty name, which pandas itself reads as Unnamed: 0."""
    pd.read_csv(folder / "t.csv").to_csv(tmp_path / "t.csv")
    options = ("-o", tmp_path / "r.iwb", "--n-synthetic", 50)
    failed(publish(folder, tmp_path / "t.csv", *options), "at positions [0]")
    lacks = "lacks the columns to drop ['Unnamed: 0']"
    failed(publish(folder, tmp_path / "t.csv", *options, "--drop", "Unnamed: 0"), lacks)
    for line in (("--check",), options):
        assert publish(folder, tmp_path / "t.csv", *line, "--drop", "").exit_code == 0
    assert load(tmp_path / "r.iwb").synthetic.schema == Schema.from_toml(folder / "s.toml")


@pytest.mark.parametrize("formula", ["y ~", "y ~ 0", "y ~ y", "y ~ I(y + x0)"])
def test_a_model_that_says_nothing_is_refused_before_the_charge(folder, tmp_path, formula):
    run("ledger", tmp_path / "l", "--epsilon", 1, "--delta", 1e-6)
    line = ("-o", tmp_path / "r.iwb", "--ledger", tmp_path / "l", "--for-model", formula)
    result = publish(folder, folder / "t.csv", *line)
    assert result.exit_code == 1 and "formula" in result.stderr
    assert "Spent: epsilon 0 " in run("ledger", tmp_path / "l").stdout
