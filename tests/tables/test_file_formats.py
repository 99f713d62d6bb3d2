"""Files of Excel, SPSS, Stata and SAS, tabs and archives: each with what is easily read wrongly."""

import datetime
import zipfile

import numpy as np
import openpyxl
import pandas as pd
import pyreadstat
import pytest
from openpyxl.styles import Font

import iwbayes as iw
from iwbayes.tables.file_formats import Format
from iwbayes.tables.read_table import header, unfit_columns

SCHEMA = iw.Schema(
    iw.Integer("age", 0, 110, missing=True),
    iw.Categorical("area", {1: "urban", 2: "rural"}, missing=True),
    iw.Date("day", "2000-01-01", "2029-12-31", missing=True),
)
DAY = datetime.date(2020, 5, 6)
CODES = pd.DataFrame({"age": [30.0, 999, 41], "area": [1.0, 2, 9], "day": [DAY, None, datetime.date(2001, 1, 2)]})
EXPECTED = SCHEMA.conform(
    pd.DataFrame({"age": [30, None, 41], "area": ["urban", "rural", None], "day": ["2020-05-06", None, "2001-01-02"]})
)


def read(path, schema=SCHEMA, **options):
    return iw.PrivateTable(iw.read_table(path, schema, **options), schema).frame


def as_excel(folder):
    book = openpyxl.Workbook()
    sheet = book.active
    sheet.append([])  # the header need not be the first row
    sheet.append(["age", "area", "day"])
    sheet.append([30, "1", datetime.datetime(2020, 5, 6, 12)])  # a code as text, a time of day
    sheet.append(["NA", 2.0])  # a short row
    sheet.append(["041", None, "2001-01-02"])
    sheet["A9"].font = Font(bold=True)  # an empty row that only has a style is none
    book.save(folder / "t.xlsx")
    return folder / "t.xlsx"


def as_spss(folder, name="t.sav", **options):
    missing = {"age": [{"lo": 990, "hi": 999}], "area": [9]}
    pyreadstat.write_sav(CODES, folder / name, missing_ranges=missing, **options)
    return folder / name


def as_stata(folder):
    rows = CODES.assign(age=[30, None, 41], area=[1, 2, None])
    pyreadstat.write_dta(rows, folder / "t.dta", variable_value_labels={"area": {1: "urban", 2: "rural"}})
    return folder / "t.dta"


def as_sas(folder):
    pyreadstat.write_xport(CODES.assign(age=[30, None, 41], area=[1, 2, None]), folder / "t.xpt")
    return folder / "t.xpt"


def as_tabs(folder):
    (folder / "t.tsv").write_text("age\tarea\tday\n30\turban\t2020-05-06\nNA\trural\t\n41\t\t2001-01-02\n")
    return folder / "t.tsv"


def as_zip(folder):
    with zipfile.ZipFile(folder / "t.csv.zip", "w") as archive:
        archive.writestr("inside.csv", "age,area,day\n30,urban,2020-05-06\nNA,rural,\n41,,2001-01-02\n")
    return folder / "t.csv.zip"


KINDS = [as_excel, as_spss, as_stata, as_sas, as_tabs, as_zip]


@pytest.mark.parametrize("write", KINDS)
def test_every_kind_of_file_is_the_same_table(tmp_path, write):
    path = write(tmp_path)
    pd.testing.assert_frame_equal(read(path), EXPECTED)
    for option in ("missing", "other"):
        rows = iw.read_table(path, SCHEMA, on_undeclared=option)
        found = SCHEMA.conform(rows, on_undeclared=option)
        np.testing.assert_array_equal(found["age"].isna(), EXPECTED["age"].isna())
    assert header(path, Format()) == ["age", "area", "day"]
    assert unfit_columns(path, SCHEMA, Format()) == []
    assert unfit_columns(path, iw.Schema(iw.Integer("age", 0, 110), *SCHEMA.columns[1:]), Format()) == ["age"]


def test_a_level_that_spss_calls_missing_is_a_level_if_the_schema_says_so(tmp_path):
    area = iw.Categorical("area", {1: "urban", 2: "rural", 9: "no answer"})
    found = read(as_spss(tmp_path), iw.Schema(SCHEMA["age"], area, SCHEMA["day"]))
    assert found["area"].tolist() == ["urban", "rural", "no answer"]


def test_codes_are_codes_and_never_labels(tmp_path):
    path = as_spss(tmp_path, variable_value_labels={"area": {1: "2", 2: "1"}})
    assert read(path, iw.Schema(SCHEMA["age"], iw.Categorical("area", [1, 2], missing=True), SCHEMA["day"]))[
        "area"
    ].tolist()[:2] == [1, 2]


@pytest.mark.parametrize(("ending", "format"), [("sav", "DATE11"), ("dta", "%td")])
@pytest.mark.parametrize("option", ["missing", "other"])
def test_one_date_out_of_range_changes_no_other_cell(tmp_path, ending, format, option):
    rows = pd.DataFrame({"day": [1e18, 5.0, np.nan, -1e18]})
    path = tmp_path / f"t.{ending}"
    getattr(pyreadstat, f"write_{ending}")(rows, path, variable_format={"day": format})
    schema = iw.Schema(iw.Date("day", "1500-01-01", "2029-12-31", missing=True))
    found = schema.conform(iw.read_table(path, schema, on_undeclared=option), on_undeclared=option)["day"]
    first = schema["day"].dates(found)[1].date()
    assert first == (datetime.date(1582, 10, 14) if ending == "sav" else datetime.date(1960, 1, 6))
    assert found.isna().tolist() == [True, False, True, True]
    with pytest.raises(ValueError, match="'day'.*do not fit"):
        read(path, schema)


def test_periods_of_stata_are_read_as_the_schema_says(tmp_path):
    pyreadstat.write_dta(pd.DataFrame({"m": [0.0, 13.0]}), tmp_path / "t.dta", variable_format={"m": "%tm"})
    schema = iw.Schema(iw.Date("m", "1960-01", "1969-12", unit="month", numbers="months since 1960-01-01"))
    assert read(tmp_path / "t.dta", schema)["m"].tolist() == [0, 13]


def test_a_sheet_is_named_if_there_are_several(tmp_path):
    path = as_excel(tmp_path)
    book = openpyxl.load_workbook(path)
    book.create_sheet("notes").append(["secret"])
    book.save(path)
    with pytest.raises(ValueError, match="has 2 sheets. Pass sheet=") as raised:
        read(path)
    assert "notes" not in str(raised.value)
    pd.testing.assert_frame_equal(read(path, sheet=book.sheetnames[0]), EXPECTED)
    with pytest.raises(ValueError, match="has no sheet 'x'"):
        read(path, sheet="x")
    with pytest.raises(ValueError, match="lacks the declared columns"):
        read(path, sheet="notes")


def test_a_cell_beyond_the_header_or_a_broken_date_of_excel_quotes_nothing(tmp_path, recwarn):
    book = openpyxl.Workbook()
    book.active.append(["age"])
    book.active.append([30])
    book.active["A3"] = 123456789
    book.active["A3"].number_format = "yyyy-mm-dd"  # openpyxl warns of it, and quotes it
    book.save(tmp_path / "t.xlsx")
    schema = iw.Schema(SCHEMA["age"])
    rows = iw.read_table(tmp_path / "t.xlsx", schema, on_undeclared="missing")
    assert schema.conform(rows, on_undeclared="missing")["age"].isna().tolist() == [False, True]
    book.active["B2"] = "secret"
    book.save(tmp_path / "t.xlsx")
    with pytest.raises(ValueError, match="cannot be read as Excel") as raised:
        read(tmp_path / "t.xlsx", schema)
    assert "secret" not in str(raised.value) and not recwarn.list


@pytest.mark.parametrize("ending", ["xlsx", "sav", "por", "dta", "sas7bdat", "xpt", "csv.zip"])
def test_damaged_files_are_refused_without_their_content(tmp_path, ending):
    (tmp_path / f"t.{ending}").write_bytes(b"secret" * 50)
    with pytest.raises(ValueError, match="cannot be read as") as raised:
        read(tmp_path / f"t.{ending}")
    assert "secret" not in str(raised.value)
    with pytest.raises(FileNotFoundError):
        read(tmp_path / f"absent.{ending}")


def test_an_archive_of_two_files_and_other_endings_are_refused(tmp_path):
    path = as_zip(tmp_path)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("other.csv", "secret")
    with pytest.raises(ValueError, match="cannot be read as CSV"):
        read(path)
    for name, match in (("t.csv.zst", "must end in .csv.gz"), ("t.xls", "one of the kinds .*.sas7bdat"), ("t", "got")):
        with pytest.raises(ValueError, match=match):
            read(tmp_path / name)
    with pytest.raises(ValueError, match="sep cannot be used for SPSS, Stata or SAS files"):
        read(as_spss(tmp_path), sep=";")
