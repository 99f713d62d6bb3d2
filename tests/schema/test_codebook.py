"""Schemas from code books: tables of columns in several forms, and metadata of statistical files."""

import json
import re

import pandas as pd
import pyreadstat
import pytest
from commands import run

import iwbayes as iw

EXPECTED = iw.Schema(
    iw.Integer("age", 17, 90, missing_codes=[-1, 999]),
    iw.Categorical("area", {1: "urban", 2: "rural", 3: "abroad"}, missing_codes=[9]),
    iw.Real("wage", 0, 500_000, transform="arcsinh", heaps=[0], symbols=["EUR"], decimal=",", thousands="."),
    iw.Date("visit", "2010-01-01", "2019-12-31", unit="month", format="%d.%m.%Y", missing=True),
    iw.Binary("ill", ["no", "yes"]),
    iw.Integer("hours", 0, 99, missing_codes=["N"]),
)
ROWS = [
    {"name": "age", "type": "Integer", "lower": 17, "upper": 90, "missing codes": "-1; 999"},
    {"name": "area", "levels": "1 = urban; 2 = rural; 3 = abroad", "missing_codes": 9},
    {"name": "wage", "type": "numeric", "lower": 0, "upper": 500_000, "transform": "arcsinh", "heaps": 0,
     "unit": "EUR", "decimal": ",", "thousands": "."},
    {"name": "visit", "type": "date", "lower": "2010-01-01", "upper": "2019-12-31", "format": "DD.MM.YYYY",
     "unit": "month", "missing": "yes"},
    {"name": "ill", "type": "binary", "levels": "no; yes"},
    {"name": "hours", "type": "int", "min": 0, "max": 99, "missing_codes": "N"},
]  # fmt: skip
#: One row for each code, as in many code books of statistical offices.
LONG = """\
Variable;Type;Minimum;Maximum;Code;Label;Missing;Missing codes;Format;Unit;Transform;Heaps;Decimal;Thousands
age;integer;17;90;;;;-1;;;;;;
;;;;999;refused;yes;;;;;;;
area;;;;1;urban;;;;;;;;
;;;;2;rural;no;;;;;;;
area;;;;3;abroad;;;;;;;;
;;;;9;no answer;yes;;;;;;;
wage;real;0;500000;;;;;;EUR;arcsinh;0;,;.
visit;date;2010-01-01;2019-12-31;;;yes;;DD.MM.YYYY;months;;;;
ill;;;;no;;;;;;;;;
;;;;yes;;;;;;;;;
hours;integer;0;99;N;not in universe;yes;;;;;;;
"""


def of_file(folder, kind):
    path = folder / f"book.{kind}"
    frame = pd.DataFrame(ROWS)
    if kind == "csv":
        frame.to_csv(path, index=False)
    elif kind == "tsv":
        frame.to_csv(path, index=False, sep="\t")
    elif kind == "xlsx":
        frame.to_excel(path, index=False)
    elif kind == "json":
        path.write_text(json.dumps(ROWS))
    elif kind == "long":
        path.write_text(LONG)
        path = path.rename(folder / "long.csv")
    return path


@pytest.mark.parametrize("kind", ["csv", "tsv", "xlsx", "json", "long"])
def test_every_form_of_a_code_book_is_the_same_schema(tmp_path, kind):
    path = of_file(tmp_path, kind)
    assert iw.Schema.from_codebook(path) == EXPECTED
    shown = run("schema", "--from-codebook", path)
    assert shown.exit_code == 0 and iw.Schema.from_toml(shown.stdout) == EXPECTED


def test_rows_frames_and_dicts_are_code_books():
    by_name = {row["name"]: {key: value for key, value in row.items() if key != "name"} for row in ROWS}
    for book in (ROWS, pd.DataFrame(ROWS), by_name):
        assert iw.Schema.from_codebook(book) == EXPECTED
    changed = iw.Schema.from_codebook(ROWS, columns={"age": {"upper": 120}}, drop=["ill"])
    assert changed["age"].upper == 120 and changed["age"].missing_codes == (-1, 999) and "ill" not in changed.names
    assert iw.Schema.from_codebook({"a": {"levels": {1: "x", 2: "y"}}})["a"].level_codes == (1, 2)
    assert iw.Schema.from_codebook({"a": {"levels": ["01", "02"]}})["a"].levels == ("01", "02")


@pytest.fixture
def survey(tmp_path):
    rows = pd.DataFrame(
        {"id": [1.0, 2], "age": [25.0, 99], "sex": [1.0, 9], "town": ["a", "zz"], "pay": [1.5, -1], "score": [1.0, 2]}
    )
    pyreadstat.write_sav(
        rows,
        tmp_path / "survey.sav",
        variable_value_labels={
            "sex": {1: "male", 2: "female", 9: "no answer"}, "town": {"a": "Aarhus", "b": "Bonn", "c": "Cork"},
            "age": {97: "97 or older", 99: "refused"}, "score": {1: "low", 2: "high"},
        },
        missing_ranges={"sex": [9], "age": [{"lo": 98, "hi": 99}], "pay": [{"lo": -9, "hi": -1}], "town": ["zz"]},
        variable_measure={"age": "scale", "sex": "nominal", "score": "scale"},
        variable_format={"age": "F3.0", "score": "F1.0"},
    )  # fmt: skip
    return tmp_path / "survey.sav"


BOUNDS = {"age": (17, 97), "pay": (0, 9), "score": [1, 2]}


def test_metadata_of_spss_are_a_code_book_but_for_bounds(survey):
    found = iw.Schema.from_codebook(survey, columns=BOUNDS, drop=["id"])
    assert found == iw.Schema(
        iw.Integer("age", 17, 97, missing_codes=[98, 99]),
        iw.Binary("sex", {1: "male", 2: "female"}, missing_codes=[9]),
        iw.Categorical("town", {"a": "Aarhus", "b": "Bonn", "c": "Cork"}, missing_codes=["zz"]),
        iw.Real("pay", 0, 9, missing_codes=list(range(-9, 0))),
        iw.Integer("score", 1, 2),
    )
    private = iw.PrivateTable(iw.read_table(survey, found, keep_declared=True), found)
    assert private.frame["age"].tolist() == [25, pd.NA] and private.frame["town"].tolist()[:1] == ["Aarhus"]
    factor = iw.Schema.from_codebook(survey, columns={**BOUNDS, "score": {"type": "categorical"}}, drop=["id"])
    assert factor["score"].levels == ("low", "high")


def test_no_row_of_a_statistical_file_is_read(survey, monkeypatch):
    read = pyreadstat.read_sav
    asked = []
    monkeypatch.setattr(pyreadstat, "read_sav", lambda *a, **k: asked.append(k["metadataonly"]) or read(*a, **k))
    iw.Schema.from_codebook(survey, columns=BOUNDS, drop=["id"])
    assert asked == [True]


def test_metadata_of_stata_are_a_code_book(tmp_path):
    rows = pd.DataFrame(
        {"sex": [1, 2], "n": [3, 4], "pay": [0.5, 1.5], "day": [1.0, 2], "m": [1.0, 2], "y": [2001.0, 2]}
    )
    rows = rows.astype({"n": "int32"})
    pyreadstat.write_dta(
        rows,
        tmp_path / "t.dta",
        variable_value_labels={"sex": {1: "m", 2: "f"}},
        variable_format={"day": "%td", "m": "%tm", "y": "%ty"},
    )
    sides = {"lower": "2000-01-01", "upper": "2020-12-31"}
    columns = {"n": {"lower": 0, "upper": 9}, "pay": {"lower": 0, "upper": 9}, "day": sides,
               "m": {**sides, "unit": "month"}, "y": {**sides, "unit": "year"}}  # fmt: skip
    found = iw.Schema.from_codebook(tmp_path / "t.dta", columns=columns)
    assert [column.kind for column in found] == ["binary", "integer", "real", "date", "date", "date"]
    assert found["m"].numbers == "months since 1960-01-01"
    moved = iw.read_table(tmp_path / "t.dta", found)
    assert found.conform(moved, on_undeclared="missing")["y"].tolist()[0] == 1
    pyreadstat.write_dta(rows[["m"]], tmp_path / "q.dta", variable_format={"m": "%tq"})
    with pytest.raises(ValueError, match="'m': numbers of the format '%tq' cannot be read"):
        iw.Schema.from_codebook(tmp_path / "q.dta")


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"type": "integer", "upper": 3}, "it needs lower, from public knowledge and never from the rows"),
        ({"type": "date"}, "it needs first and last"),
        ({"type": "categorical"}, "it needs levels"),
        ({"lower": 0, "upper": 1}, "it needs a type of"),
        ({"type": "quaternion"}, "its type must be one of .*got 'quaternion'"),
        ({"type": "real", "lower": "low", "upper": 3}, "bounds and heaps must be numbers; got 'low'"),
        ({"type": "real", "lower": True, "upper": 3}, "bounds and heaps must be numbers; got True"),
        ({"type": "real", "lower": 5, "upper": 3}, "lower must be below upper"),
        (
            {"type": "integer", "lower": 0, "upper": 9, "levels": "97 = 97 or more; 99 = refused"},
            r"codes \['97', '99'\]",
        ),
        ({"type": "integer", "lower": 0, "upper": 9, "levels": "N = not in universe"}, r"codes \['N'\] have labels"),
        ({"levels": "1; 2", "missing": "9"}, "'missing' is yes or no; got '9'"),
        ({"levels": "1 = a; 2 = a"}, "must be distinct"),
        ({"type": "date", "first": "1.1.2010", "last": "2019-12-31"}, "first must be a date or ISO text"),
        (
            {"type": "date", "first": "2010-01-01", "last": "2019-12-31", "format": "?"},
            "format must be as for strptime",
        ),
    ],
)
def test_what_a_code_book_lacks_is_said_by_column(change, match):
    with pytest.raises(ValueError, match=match) as raised:
        iw.Schema.from_codebook({"v": change})
    assert "v" in str(raised.value) and "\n" not in str(raised.value)


def test_all_columns_that_are_wrong_are_named_at_once(tmp_path, survey):
    with pytest.raises(ValueError) as raised:
        iw.Schema.from_codebook(survey)
    assert max(map(len, str(raised.value).splitlines())) <= 88
    first, *others = re.split(r"\n  (?=\S)", str(raised.value))
    assert first == "4 columns cannot be declared:"
    assert [line.split("'")[1] for line in others] == ["id", "age", "pay", "score"]
    shown = run("schema", "--from-codebook", survey, "--drop", "id")
    assert shown.exit_code == 1 and all(f"column '{name}'" in shown.stderr for name in ("age", "pay", "score"))
    # what is known is printed, with the rest to be filled in
    (tmp_path / "draft.toml").write_text(shown.stdout)
    assert "3 columns cannot be declared" in run("schema", tmp_path / "draft.toml").stderr
    filled = shown.stdout
    for name, bounds in BOUNDS.items():
        lines = "lower = {}\nupper = {}\n".format(*bounds)
        filled = filled.replace(f'name = "{name}"\n', f'name = "{name}"\n{lines}')
    assert iw.Schema.from_toml(filled) == iw.Schema.from_codebook(survey, columns=BOUNDS, drop=["id"])


def test_errors_of_a_schema_file_are_collected_too(tmp_path):
    entries = [{"name": "a", "type": "real"}, {"name": "b", "type": "binary"}, {"name": "c"}]
    with pytest.raises(ValueError, match="(?s)2 columns cannot be declared:\n  column 'a'.*\n  column 'c' needs"):
        iw.Schema.from_dict({"column": entries})


def test_headers_that_are_not_used_and_files_that_are_none_are_said(tmp_path):
    with pytest.warns(UserWarning, match=r"not used: \['question', 'missng codes'\]") as caught:
        iw.Schema.from_codebook([{"name": "a", "levels": "1; 2", "question": "?", "missng codes": 9}])
    assert caught[0].filename == __file__
    for content, name, match in (
        ("", "a.csv", "cannot be read"),
        ("x", "a.xlsx", "cannot be read"),
        ("{", "a.json", "cannot be read"),
    ):
        (tmp_path / name).write_text(content)
        with pytest.raises(ValueError, match=match):
            iw.Schema.from_codebook(tmp_path / name)
    with pytest.raises(ValueError, match="it must be a file of CSV, Excel"):
        iw.Schema.from_codebook(__file__)
    with pytest.raises(FileNotFoundError):
        iw.Schema.from_codebook("absent.csv")
    for book, error, match in (
        ([], ValueError, "needs the header 'name', and a row"),
        ([{"levels": "1; 2"}], ValueError, "needs the header 'name', and a name"),
        (3, TypeError, "a code book must be a frame"),
    ):
        with pytest.raises(error, match=match):
            iw.Schema.from_codebook(book)
    assert iw.Schema.from_codebook(ROWS, drop=["absent"]) == EXPECTED
    with pytest.raises(ValueError, match="columns has the names"):
        iw.Schema.from_codebook(ROWS, columns={"absent": {}})
    with pytest.raises(TypeError, match="columns: 'age' must have a dict"):
        iw.Schema.from_codebook(ROWS, columns={"age": 3})
    with pytest.raises(ValueError, match=r"columns: 'age' has the unknown headers \['lwer'\]"):
        iw.Schema.from_codebook(ROWS, columns={"age": {"lwer": 3}})
    with pytest.raises(ValueError, match="different values of 'lower', 1 and 2"):
        iw.Schema.from_codebook([{"name": "a", "type": "real", "lower": 1, "upper": 9}, {"name": "a", "lower": 2}])


def test_explain_shows_what_each_column_becomes(tmp_path):
    (tmp_path / "s.toml").write_text(EXPECTED.to_toml())
    lines = run("schema", tmp_path / "s.toml", "--explain", "--n", "2000", "--epsilon", "2").stdout.splitlines()
    shown = {line.split()[0]: line.split() for line in lines if line and line.split()[0] in EXPECTED.names}
    assert shown["area"][1:3] == ["4", "4"] and shown["age"][1] == "2"
    plans = [iw.plan(EXPECTED, n, epsilon=2.0, delta=1e-6).columns for n in (2000, 8000)]
    assert float(shown["age"][3]) == pytest.approx(plans[0]["noise"]["age"], rel=1e-3)
    assert (plans[0]["noise"] > 2 * plans[1]["noise"]).all()  # the noise of a mean falls as 1/n
    assert plans[1]["bins"]["wage"] >= plans[0]["bins"]["wage"] > 4
    assert not plans[0].isna().any().any()
