"""publish.toml: one file for plan, check, dry run, publish and a second release, and what a dry run says."""

import datetime
import json

import numpy as np
import pandas as pd
import pytest
from commands import run

import iwbayes as iw

FILE = """\
input = "people.csv"
schema = "book.csv"
columns = { age = [18, 90] }
drop = ["id"]
epsilon = 1
delta = 1e-6
models = ["ill ~ age"]
n_synthetic = 900
ledger = "people.ledger"
output = "people-2026.iwb"
exports = ["csv"]
publisher = "Office"
purpose = "teaching"
contact = "a@b.example"
"""


@pytest.fixture
def folder(tmp_path):
    rng = np.random.default_rng(3)
    rows = {"id": range(600), "age": rng.integers(18, 91, 600), "ill": rng.choice(["no", "yes"], 600)}
    pd.DataFrame(rows).to_csv(tmp_path / "people.csv", index=False)
    (tmp_path / "book.csv").write_text("name,type,lower,upper,levels\nid,,,,\nage,integer,18,,\nill,,,,no;yes\n")
    (tmp_path / "publish.toml").write_text(FILE)
    assert run("ledger", tmp_path / "people.ledger", "--epsilon", 2, "--delta", 1e-6).exit_code == 0
    return tmp_path


def facts(*arguments):
    done = run(*arguments, "--json")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_one_file_serves_plan_check_publish_and_a_second_release(folder, monkeypatch):
    monkeypatch.chdir(folder.parent)  # paths are relative to the file
    file = folder / "publish.toml"
    assert "scores of ill ~ age" in run("plan", file, "--n", 600).stdout
    assert facts("publish", file, "--check")["fits"] is True
    assert sorted(each.name for each in folder.iterdir() if not each.name.startswith(".")) == [
        "book.csv", "people.csv", "people.ledger", "publish.toml",
    ]  # fmt: skip
    first = facts("publish", file)
    assert first["about"] == {
        "name": "people-2026", "publisher": "Office", "purpose": "teaching", "contact": "a@b.example",
    }  # fmt: skip
    assert first["n_synthetic"] == 900
    assert pd.read_csv(folder / "people-2026.csv").filter(regex="^rep[0-9]+$").shape == (900, 100)
    assert "publisher: Office" in run("inspect", folder / "people-2026.iwb").stdout
    # what is given on the command line goes before the file
    more = ("--output", folder / "second.iwb", "--epsilon", 0.5)
    priced = facts("publish", file, *more, "--dry-run")
    assert facts("publish", file, *more)["statement"]["epsilon"] == priced["together"]
    shown = run("ledger", folder / "people.ledger").stdout
    today = datetime.date.today().isoformat()
    rows = [line.split() for line in shown.splitlines() if today in line]
    assert [row[0] for row in rows] == ["people-2026", "second"] and [row[1] for row in rows] == [today] * 2
    assert "TiltWeights" not in shown and "Ledger(" not in shown and "not epsilons" in shown
    assert "TiltWeights" in run("ledger", folder / "people.ledger", "--uses").stdout
    refused = run("publish", file, "--output", folder / "third.iwb", "--epsilon", 1.9)
    assert refused.exit_code == 1 and "third: epsilon" in refused.stderr and not (folder / "third.iwb").exists()


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"rule": "basic"},
        {"rule": "renyi"},
        {"ledger": None},
        {"delta": 0, "mechanism": "cube"},
        {"generator": "AIM"},
        {"input": "people.parquet", "adjacency": "zero-out"},
    ],
    ids=str,
)
def test_the_price_of_a_dry_run_is_the_charge_to_the_last_digit(folder, options):
    pd.read_csv(folder / "people.csv").to_parquet(folder / "people.parquet", index=False)
    given = dict(options)
    rule, delta = given.pop("rule", None), given.get("delta", 1e-6) * (2 if options == {"rule": "basic"} else 1)
    adjacency = given.get("adjacency", "replace-one")
    settings = {"ledger": "own.ledger", **given}
    if settings["ledger"] is not None:
        iw.Ledger.open(folder / "own.ledger", epsilon=3, delta=delta, rule=rule, adjacency=adjacency)
    lines = [line for line in FILE.splitlines() if line.split(" = ")[0] not in settings]
    lines += [f"{key} = {json.dumps(value)}" for key, value in settings.items() if value is not None]
    (folder / "publish.toml").write_text("\n".join(lines))
    for name in ("one", "two"):
        common = ("publish", folder / "publish.toml", "--output", folder / f"{name}.iwb")
        priced = facts(*common, "--dry-run")
        before = None if settings["ledger"] is None else (folder / "own.ledger").read_bytes()
        assert facts(*common, "--dry-run") == priced  # nothing was charged
        if before is not None:
            assert (folder / "own.ledger").read_bytes() == before
        assert not (folder / f"{name}.iwb").exists()
        charged = facts(*common)["statement"]["epsilon"]
        assert charged == (priced["price"] if before is None else priced["together"])
        if before is None:
            return
        (*_, last) = facts("ledger", folder / "own.ledger")["releases"]
        assert last["together"] == charged and last["epsilon"] == pytest.approx(priced["price"], rel=0.04)


def test_a_dry_run_counts_rows_and_judges_no_cell(folder):
    rows = pd.read_csv(folder / "people.csv", dtype=object)
    rows.loc[0, "age"] = "secret"
    rows.to_csv(folder / "people.csv", index=False)
    done = run("publish", folder / "publish.toml", "--dry-run")
    assert done.exit_code == 0 and "price: epsilon" in done.stdout and "secret" not in done.output
    priced = facts("publish", folder / "publish.toml", "--dry-run")
    assert priced == facts("publish", folder / "publish.toml", "--dry-run", "--n", 600)
    text = (folder / "people.csv").read_bytes()
    (folder / "people.csv").write_bytes(text.replace(b"secret", b"\xff\xfe"))  # no byte decides either
    assert facts("publish", folder / "publish.toml", "--dry-run") == priced


def test_a_dry_run_of_users_needs_their_number(folder):
    users = ("--user", "id", "--rows-per-user", "1", "--output", folder / "u.iwb")
    (folder / "publish.toml").write_text(FILE.replace('drop = ["id"]\n', "").replace('ledger = "people.ledger"\n', ""))
    failed = run("publish", folder / "publish.toml", *users, "--dry-run")
    assert failed.exit_code == 1 and "Pass it as --n" in failed.stderr
    done = facts("publish", folder / "publish.toml", *users, "--dry-run", "--n", 600)
    assert done["price"] is None and done["fits"]


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (("epsilon", "epsylon"), "unknown keys ['epsylon']. Did you mean 'epsilon'?"),
        (('input = "people.csv"', ""), "has no input"),
        (('schema = "book.csv"', "schema = 3"), "schema must be text; got 3"),
        (("delta = 1e-6", "delta = [1e-6, 2e-6]"), "delta must be one value; got a list"),
        (("columns = {", "columns = 3 #"), "columns must be a table"),
        (("epsilon = 1", "epsilon = "), "not valid TOML"),
        (('exports = ["csv"]', 'exports = ["sav"]'), "--export must be one of ['csv', 'dta', 'parquet']"),
        (('exports = ["csv"]', 'exports = ["csv"]\nreplicates = 3'), "replicates must be"),
        (("age = [18, 90]", "age = 3"), "must have a dict"),
        (('contact = "a@b.example"', "contact = 3"), "contact must be text; got 3"),
    ],
    ids=str,
)
def test_what_is_wrong_in_the_file_is_said_and_nothing_is_charged(folder, change, match):
    (folder / "publish.toml").write_text(FILE.replace(*change))
    before = (folder / "people.ledger").read_bytes()
    done = run("publish", folder / "publish.toml")
    assert done.exit_code == 1 and match in done.stderr.replace("\n", " "), done.output
    assert (folder / "people.ledger").read_bytes() == before and not (folder / "people-2026.iwb").exists()


def test_a_schema_file_is_no_publication_and_an_export_replaces_no_file(folder):
    (folder / "s.toml").write_text(iw.Schema(iw.Binary("x")).to_toml())
    done = run("publish", folder / "s.toml")
    assert done.exit_code == 1 and "It seems to be a schema file" in done.stderr
    assert "No such file" in run("publish", folder / "absent.toml").stderr
    done = run("plan", folder / "people.csv", "-s", folder / "s.toml", "--n", 9, "--epsilon", 1, "--delta", 1e-6)
    assert done.exit_code == 2 and "it must be a publish.toml" in " ".join(done.stderr.split())
    (folder / "people-2026.csv").write_text("mine")
    done = run("publish", folder / "publish.toml")
    assert done.exit_code == 1 and "already exists" in done.stderr
    assert (folder / "people-2026.csv").read_text() == "mine"
    assert facts("ledger", folder / "people.ledger")["releases"] == []


def test_an_export_that_fails_says_where_the_release_is(folder, monkeypatch):
    def broken(*_, **__):
        raise OSError(28, "No space left on device", "people-2026.csv")

    monkeypatch.setattr(iw.Release, "export", broken)
    done = run("publish", folder / "publish.toml")
    said = "".join(done.stderr.split())  # a long path is broken anywhere
    assert done.exit_code == 1 and "people-2026.iwb;onlyitsexportfailed" in said and "Nospaceleft" in said
    assert len(iw.load(folder / "people-2026.iwb").synthetic) == 900


def test_a_byte_order_mark_and_one_model_as_text_are_read(folder):
    (folder / "publish.toml").write_text("\ufeff" + FILE.replace('["ill ~ age"]', '"ill ~ age"'), encoding="utf-8")
    assert "scores of ill ~ age" in run("plan", folder / "publish.toml", "--n", 600).stdout
