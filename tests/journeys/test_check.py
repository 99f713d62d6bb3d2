"""`iwbayes publish --check`: header, settings and ledger are checked, and no cell decides anything unless asked to."""

import gzip
import json

import pandas as pd
import pytest
from commands import run
from typer.testing import CliRunner

import iwbayes as iw
from iwbayes import cli
from iwbayes.cli.check import AFTER_LOOK, NO_CELL

CANARY = "canary-8675309"
SCHEMA = iw.Schema(iw.Real("age", 18, 90), iw.Binary("income"), iw.Categorical("town", ["A", "B"]))
GOOD = "age,income,town\n" + "30.5,1,A\n40,0,B\n" * 30


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "s.toml").write_text(SCHEMA.to_toml(), encoding="utf-8")
    (tmp_path / "t.csv").write_text(GOOD)
    return tmp_path


def check(folder, table, *options, epsilon=1):
    line = ("publish", folder / table, "-s", folder / "s.toml", "--epsilon", epsilon, "--delta", 1e-6, "--check")
    before = {path: path.read_bytes() for path in folder.iterdir()}
    result = run(*line, *options)
    assert before == {path: path.read_bytes() for path in folder.iterdir()}, "a check writes nothing"
    assert CANARY not in result.output
    assert all(len(line) <= 80 for line in result.stdout.splitlines())
    return result


def words(result):
    return " ".join(result.stdout.split())


def test_a_table_that_will_do_is_told_the_noise_and_charged_nothing(folder):
    own = iw.Ledger.open(folder / "l", epsilon=1.0, delta=1e-6)
    result = check(folder, "t.csv", "--n", 4000, "--ledger", folder / "l")
    assert result.exit_code == 0 and result.stderr == ""
    noise = iw.plan(SCHEMA, 4000, epsilon=1.0, delta=1e-6).noise_ratio
    for part in ("columns: as declared", "settings: valid", f"noise ratio: {noise:.3g}", NO_CELL):
        assert part in words(result)
    assert "ledger: epsilon 1 at delta 1e-06 is left; the release fits" in words(result)
    assert own.events == ()
    facts = json.loads(check(folder, "t.csv", "--n", 4000, "--ledger", folder / "l", "--json").stdout)
    assert facts == {
        "fits": True, "n_columns": 3, "hint": "", "absent": [], "repeated": [], "undeclared": [], "unfit": None,
        "without_codes": ["age"], "left": [1.0, 1e-6], "affordable": True, "noise_ratio": noise,
        "price": None, "together": None,
    }  # fmt: skip


JUNK = {
    "bytes of no text": b"\xff\xfe,\xff,\n" * 9,
    "rows of any length": b"1\n1,2,3,4,5,6\n\n\n,,,,,,,\n",
    "an open quote": b'"1,2,3\n4,5,6\n',
    "other cells": b"canary-8675309,canary-8675309,canary-8675309\n" * 40,
    "no cell at all": b"",
    "zeros": b"\0\0,\0\n" * 5,
}


@pytest.mark.parametrize("suffix", ["csv", "csv.gz"])
@pytest.mark.parametrize("name", JUNK)
def test_no_cell_decides_on_a_check(folder, name, suffix):
    pack = gzip.compress if suffix == "csv.gz" else bytes
    found = []
    for header in (b"age,income,town\n", b"age,town,more\n"):
        for cells in (GOOD.split("\n", 1)[1].encode(), JUNK[name]):
            (folder / f"x.{suffix}").write_bytes(pack(header + cells))
            result = check(folder, f"x.{suffix}", "--n", 60)
            found.append((result.exit_code, result.output))
    assert found[0] == found[1] and found[0][0] == 0
    assert found[2] == found[3] and found[2][0] == 1


def test_columns_are_compared_with_the_schema(folder):
    (folder / "t.csv").write_text(f"{CANARY},age,town,town\n1,2,A,B\n")
    result = check(folder, "t.csv")
    assert result.exit_code == 1
    said = words(result)
    assert "['income'] are not in the file" in said and "['town'] appear more than once" in said
    assert "at positions [0] (counted from 0)" in said
    assert "at positions" not in words(check(folder, "t.csv", "--keep-declared"))
    (folder / "t.csv").write_text("id;age;income;town\n")
    assert "pass --sep ';'." in words(check(folder, "t.csv"))
    assert check(folder, "t.csv", "--sep", ";", "--drop", "id").exit_code == 0
    assert "['day'] are not in the file" in words(check(folder, "t.csv", "--sep", ";", "--drop", "day"))


def test_parquet_is_checked_by_its_schema(folder):
    frame = pd.DataFrame({"age": [CANARY], "income": [1], "town": ["A"]}, index=pd.Index([7], name="row"))
    frame.to_parquet(folder / "t.parquet")
    assert check(folder, "t.parquet").exit_code == 0
    assert "some of ['age'] do not fit" in words(check(folder, "t.parquet", "--look"))
    frame.assign(more=1).to_parquet(folder / "t.parquet")
    assert "at positions [3]" in words(check(folder, "t.parquet"))


def test_what_does_not_fit_in_the_ledger_is_told_as_publishing_would(folder):
    iw.Ledger.open(folder / "l", epsilon=1.2, delta=1e-6)
    options = ("--ledger", folder / "l")
    assert check(folder, "t.csv", *options, epsilon=1.2).exit_code == 0
    result = check(folder, "t.csv", *options, epsilon=1.3)
    assert result.exit_code == 1 and "the release does not fit; use a smaller budget" in words(result)
    line = ("publish", folder / "t.csv", "-s", folder / "s.toml", "--delta", 1e-6, *options, "--n-synthetic", 20)
    for epsilon, output, code in ((1.3, "a.iwb", 1), (1.2, "b.iwb", 0)):
        done = CliRunner().invoke(cli.app, [str(p) for p in (*line, "--epsilon", epsilon, "-o", folder / output)])
        assert done.exit_code == code, done.output
    assert check(folder, "t.csv", *options, epsilon=0.1).exit_code == 1


def test_the_bound_on_rows_is_part_of_what_must_fit(folder):
    (folder / "t.csv").write_text("who,age,income,town\n")
    users = ("--user", "who", "--rows-per-user", "1,2,4")
    assert check(folder, "t.csv", *users, "--n", 500).exit_code == 0
    iw.Ledger.open(folder / "l", epsilon=1.0, delta=1e-6, adjacency="replace-user")
    assert check(folder, "t.csv", *users, "--ledger", folder / "l").exit_code == 0
    assert check(folder, "t.csv", *users, "--ledger", folder / "l", epsilon=1.1).exit_code == 1
    rows = check(folder, "t.csv", "--drop", "who", "--ledger", folder / "l")
    assert rows.exit_code == 1 and "the table has no user column" in rows.stderr


@pytest.mark.parametrize(
    ("options", "match"),
    [
        (("--share", 2), "share must be in (0, 1)"),
        (("--delta", 0), "delta above 0"),
        (("--generator", "GAN"), "must be one of"),
        (("--n-synthetic", 0), "--n-synthetic must be"),
        (("--n", -3), "n must be"),
        (("--adjacency", "add"), "adjacency must be one of"),
        (("--for-model", "zz ~ age"), "got ['zz']"),
        (("--drop", "age"), "columns that the schema declares"),
        (("--sep", "ab"), "sep must be one character"),
        (("--encoding", "klingon"), "encoding must be a Python text encoding"),
        (("--on-undeclared", "no"), "--on-undeclared must be"),
        (("--user", "age", "--rows-per-user", "2,1"), "grid must be increasing"),
        (("-o", "absent/r.iwb"), "does not exist. Create it first"),
    ],
)
def test_wrong_settings_are_refused_in_one_line(folder, options, match):
    result = check(folder, "t.csv", *options)
    assert result.exit_code == 1 and result.stdout == "" and result.stderr.count("\n") == 1
    assert match in result.stderr


def test_a_look_names_columns_and_says_what_it_costs(folder):
    (folder / "t.csv").write_text(GOOD + f"{CANARY},1,A\n20,1,{CANARY}\n20,1,A\n")
    result = check(folder, "t.csv", "--look")
    assert result.exit_code == 1
    assert "cells: some of ['age', 'town'] do not fit the schema" in words(result)
    assert AFTER_LOOK in words(result) and NO_CELL not in words(result)
    assert json.loads(check(folder, "t.csv", "--look", "--json").stdout)["unfit"] == ["age", "town"]
    (folder / "t.csv").write_text(GOOD)
    result = check(folder, "t.csv", "--look")
    assert result.exit_code == 0 and "cells: all fit the schema" in words(result) and AFTER_LOOK in words(result)
    (folder / "t.csv").write_text(GOOD + "20,1\n")
    result = check(folder, "t.csv", "--look")
    assert result.exit_code == 1 and "as many cells in every row" in result.stderr


def test_a_look_and_a_number_come_with_a_check(folder):
    line = ["publish", str(folder / "t.csv"), "-s", str(folder / "s.toml"), "--epsilon", "1", "--delta", "1e-6"]
    for more in (["--look"], ["--n", "60"]):
        result = CliRunner().invoke(cli.app, [*line, "-o", str(folder / "r.iwb"), *more])
        assert result.exit_code == 2 and more[0] in result.stderr
    assert CliRunner().invoke(cli.app, line).exit_code == 2
    assert not (folder / "r.iwb").exists()


def test_columns_without_missing_codes_are_listed(folder):
    columns = [
        iw.Real("age", 18, 90), iw.Integer("n", 0, 9, missing_codes=[-1]), iw.Real("x", 0, 1, outside="missing"),
        iw.Date("day", "2010-01-01", "2011-01-01"), iw.Binary("income"),
    ]  # fmt: skip
    (folder / "s.toml").write_text(iw.Schema(*columns).to_toml(), encoding="utf-8")
    (folder / "t.csv").write_text("age,n,x,day,income\n")
    said = words(check(folder, "t.csv"))
    assert "missing codes: none are declared for the numbers in ['age', 'day']" in said


@pytest.mark.parametrize(
    ("header", "said"),
    [
        ("age;income;town", "The header is one column with ';' in it: pass --sep ';'."),
        ("Age,income, town", "differ from them only in case or blanks, at positions 0, 2 (counted from 0)"),
    ],
)
def test_names_that_almost_fit_are_explained(folder, header, said):
    (folder / "t.csv").write_text(header + "\n")
    result = check(folder, "t.csv")
    assert result.exit_code == 1 and said in words(result)
    with pytest.raises(ValueError, match="sep=';'" if ";" in header else "only in case or blanks"):
        iw.read_table(folder / "t.csv", SCHEMA)


def test_a_derived_column_may_be_absent_and_look_tries_the_rules(folder):
    schema = iw.Schema(
        iw.Real("a", 0, 9), iw.Real("b", 0, 9), iw.Real("total", 0, 18), derived={"total": "a + b"}, rules=["a <= b"]
    )
    (folder / "s.toml").write_text(schema.to_toml(), encoding="utf-8")
    for header in ("a,b", "a,b,total"):
        (folder / "t.csv").write_text(header + "\n")
        assert check(folder, "t.csv").exit_code == 0
    for cells, unfit in (("1,2,3", []), ("2,1,3", ["rules"]), ("1,2,9", ["rules"]), ("x,2,3", ["a"])):
        (folder / "t.csv").write_text(f"a,b,total\n{cells}\n")
        result = check(folder, "t.csv", "--look", "--json")
        assert json.loads(result.stdout)["unfit"] == unfit
