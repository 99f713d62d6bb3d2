"""Folders of Parquet files on the command line: read through Dask, refused by header, no cell in any message."""

import json
import sys

import pandas as pd
import pytest
from commands import run
from typer.testing import CliRunner

from iwbayes import cli
from iwbayes.datasets import simulate_table
from iwbayes.release import load
from iwbayes.schema import Schema
from iwbayes.tables.file_formats import Format
from iwbayes.tables.read_table import read_table, stored_rows

CANARY = "canary-8675309"
# Dask's readers use what pandas 3.1 announces to remove
pytestmark = pytest.mark.filterwarnings("ignore:The inplace keyword in DataFrame", "default:noise ratio")


def write(folder, frame, parts=3):
    folder.mkdir()
    for place in range(parts):
        frame.iloc[place::parts].to_parquet(folder / f"{place}.parquet", index=False)
    (folder / "_SUCCESS").touch()  # as Spark leaves it


@pytest.fixture
def folder(tmp_path):
    simulated = simulate_table("bernoulli", 600, random_seed=1)
    who = [f"p{place // 2}" for place in range(600)]
    write(tmp_path / "parts", simulated.frame)
    write(tmp_path / "visits", simulated.frame.assign(who=who, note=CANARY))
    simulated.frame.to_parquet(tmp_path / "t.parquet", index=False)
    (tmp_path / "s.toml").write_text(simulated.schema.to_toml(), encoding="utf-8")
    return tmp_path


def publish(folder, table, *options):
    line = ("publish", folder / table, "-s", folder / "s.toml", "--epsilon", 2, "--delta", 1e-6, *options)
    result = run(*line)
    assert CANARY not in result.output
    return result


def failed(result, match):
    """Assert one message on the error stream, nothing on the other."""
    assert (result.exit_code, result.stdout) == (1, "")
    assert match in result.stderr and result.stderr.startswith("error: ") and result.stderr.count("\n") == 1


def test_a_folder_is_published_as_a_file_is(folder):
    for table in ("parts", "t.parquet"):
        result = publish(folder, table, "-o", folder / "r.iwb", "-f", "--n-synthetic", 50)
        assert result.exit_code == 0, result.stderr
        assert "warning" not in result.stderr
        release = load(folder / "r.iwb")
        assert release.certified and release.n_private == 600 and len(release.synthetic) == 50


@pytest.mark.parametrize("generator", ["AIM", "MST", "Mixture"])
def test_the_generators_of_the_command_line_read_folders(folder, generator):
    options = ("--generator", generator, "--n-synthetic", 50, "--response", "y")
    result = publish(folder, "parts", "-o", folder / "r.iwb", *options)
    assert result.exit_code == 0, result.stderr


def test_people_with_several_rows_in_several_files(folder):
    users = ("--user", "who", "--rows-per-user", "1,2,4", "--drop", "note", "--n-synthetic", 50)
    result = publish(folder, "visits", "-o", folder / "r.iwb", *users)
    assert result.exit_code == 0, result.stderr
    statement = load(folder / "r.iwb").statement
    assert statement.adjacency == "replace-user" and statement.epsilon <= 2


def test_rows_are_those_of_the_files(folder):
    schema, form = Schema.from_toml(folder / "s.toml"), Format()
    for options in ({"drop": ["who", "note"]}, {"keep_declared": True}, {"keep_declared": True, "user": "who"}):
        found = stored_rows(folder / "visits", schema, form, **options).compute()
        parts = [read_table(folder / "visits" / f"{place}.parquet", schema, **options) for place in range(3)]
        assert list(found.columns) == list(parts[0].columns)
        pd.testing.assert_frame_equal(
            found.astype(str).reset_index(drop=True), pd.concat(parts, ignore_index=True).astype(str)
        )
    with pytest.raises(ValueError, match="read_table reads one file, and .* is a folder"):
        read_table(folder / "parts", schema)


def test_a_folder_is_checked_by_its_headers(folder):
    found = json.loads(publish(folder, "visits", "--check", "--n", 600, "--json").stdout)
    assert (found["n_columns"], found["undeclared"], found["unfit"], found["fits"]) == (7, [5, 6], None, False)
    assert json.loads(publish(folder, "parts", "--check", "--look", "--json").stdout)["fits"]
    frame = pd.read_parquet(folder / "parts" / "2.parquet")
    frame.astype({"group": object}).assign(group=CANARY).to_parquet(folder / "parts" / "2.parquet", index=False)
    assert json.loads(publish(folder, "parts", "--check", "--look", "--json").stdout)["unfit"] == ["group"]


def test_what_is_wrong_with_a_folder_is_said_before_a_cell_is_read(folder, monkeypatch):
    ledger = CliRunner().invoke(cli.app, ["ledger", str(folder / "l"), "--epsilon", "2", "--delta", "1e-6"])
    assert ledger.exit_code == 0
    charged = (folder / "l").read_bytes()
    output = ("-o", folder / "r.iwb", "--ledger", folder / "l")
    failed(publish(folder, "parts", *output), "--n-synthetic is required for a folder")
    output = (*output, "--n-synthetic", 50)
    failed(publish(folder, "parts", *output, "--sep", ";"), "sep cannot be used for Parquet files")
    failed(publish(folder, "parts", *output, "--drop", "who"), "lacks the columns to drop ['who']. Correct")
    failed(publish(folder, "visits", *output), "columns that the schema does not declare")
    inside = ("-o", folder / "parts" / "0.parquet", "-f", "--n-synthetic", 50)
    failed(publish(folder, "parts", *inside), "which this command uses")
    (folder / "none").mkdir()
    failed(publish(folder, "none", *output), "is empty. Move the Parquet files to a separate folder")
    (folder / "parts" / "3.csv").write_text(CANARY)
    failed(publish(folder, "parts", *output), "contains '3.csv'. Move the Parquet files to a separate folder")
    (folder / "parts" / "3.csv").unlink()
    (folder / "parts" / "year=2020").mkdir()
    failed(publish(folder, "parts", *output), "contains 'year=2020'")
    (folder / "parts" / "year=2020").rmdir()
    pd.DataFrame({"y": [0]}).to_parquet(folder / "parts" / "3.parquet")
    failed(publish(folder, "parts", *output), "all files must have the same columns; ")
    (folder / "parts" / "3.parquet").write_text(CANARY)
    failed(publish(folder, "parts", *output), "3.parquet cannot be read as Parquet")
    (folder / "parts" / "3.parquet").unlink()
    monkeypatch.setitem(sys.modules, "dask", None)
    monkeypatch.delitem(sys.modules, "dask.dataframe", raising=False)
    failed(
        publish(folder, "parts", *output),
        'need the package dask, which is not installed. In a checkout of iwbayes run: pip install ".[dask]"',
    )
    assert (folder / "l").read_bytes() == charged and not (folder / "r.iwb").exists()
