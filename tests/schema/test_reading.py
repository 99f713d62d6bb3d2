"""How cells are read: missing codes, values beyond the bounds, levels, numbers and dates as files write them."""

import datetime
from decimal import Decimal

import numpy as np
import pandas as pd
import pytest

import iwbayes as iw
from iwbayes.schema.cells import AFTER_REFUSAL, Lookup, NumberFormat

OPTIONS = ("refuse", "missing", "other")


def read(column, cells, option="refuse", dtype=object):
    found = column.conform(pd.Series(cells, dtype=dtype), option)
    return [None if pd.isna(cell) else cell for cell in found]


# --- missing codes: before anything else, under every option


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize(
    ("column", "cells", "expected"),
    [
        (iw.Integer("x", 1, 10, missing_codes=[-1, 999]), [3, -1, "999", "-1.0", 11, None],
         [3, None, None, None, 10, None]),
        (iw.Integer("x", 0, 120, missing_codes=[99]), [98, 99, 100], [98, None, 100]),  # within the bounds, too
        (iw.Real("x", 0, 9, missing_codes=["N", -0.5]), ["N", " n ", -0.5, 4], [None, None, None, 4]),
        (iw.Date("x", "2010-01-01", "2010-12-31", missing_codes=["9999-12-31"]),
         ["2010-01-02", "9999-12-31", datetime.date(9999, 12, 31), "2020-01-01"], [1, None, None, 364]),
        (iw.Date("x", "2010-01-01", "2010-12-31", format="%Y%m%d", missing_codes=[99999999]),
         ["20100102", 20100103, 99999999, "99999999"], [1, 2, None, None]),
        (iw.Binary("x", ("no", "yes"), missing_codes=[9, "refused"]), ["yes", 9, "9", "Refused"],
         ["yes", None, None, None]),
        (iw.Binary("x", missing_codes=[8]), [1, 8, "8.0"], [1, None, None]),
        (iw.Categorical("x", [1, 2, 3], missing_codes=[-7, "?"]), [3, -7, "?"], [3, None, None]),
    ],
)  # fmt: skip
def test_missing_codes_are_missing(column, cells, expected, option):
    assert column.missing and read(column, cells, option) == expected
    published = column.admitting(option)
    assert published.missing and published.missing_codes == ()
    assert iw.Schema.from_toml(iw.Schema(column).to_toml()) == iw.Schema(column)


def test_a_missing_code_has_its_share_in_a_release():
    """Undeclared, the code -1 doubles the share of the lowest score without a sign."""
    rng = np.random.default_rng(1)
    score = np.where(rng.random(4000) < 0.16, -1, rng.integers(1, 11, 4000))
    shares = {}
    for codes in ((), (-1,)):
        schema = iw.Schema(iw.Integer("score", 1, 10, missing=True, missing_codes=codes))
        release = iw.publish(
            iw.PrivateTable(pd.DataFrame({"score": score}), schema), epsilon=3.0, delta=1e-6, progressbar=False
        )
        found = release.synthetic.frame["score"]
        shares[codes] = (found == 1).fillna(False).mean(), found.isna().mean()
    assert shares[()][0] > 0.2 and shares[(-1,)][0] < 0.11 and abs(shares[(-1,)][1] - 0.16) < 0.03


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: iw.Real("x", 0, 1, missing_codes=-1), "missing_codes must be a list"),
        (lambda: iw.Real("x", 0, 1, missing_codes={-1, -2}), "missing_codes must be a list"),
        (lambda: iw.Real("x", 0, 1, missing_codes=[None]), "must be text or numbers"),
        (lambda: iw.Real("x", 0, 1, missing_codes=[True]), "must be text or numbers"),
        (lambda: iw.Real("x", 0, 1, missing_codes=[float("inf")]), "must be text or numbers"),
        (lambda: iw.Categorical("x", ["1", "2"], missing_codes=[2]), r"missing_codes must not be levels; \[2\] are"),
        (lambda: iw.Real("x", 0, 1, outside="drop"), "outside must be"),
        (lambda: iw.Real("x", 0, 1, thousands=".."), "thousands must be one character"),
        (lambda: iw.Real("x", 0, 1, thousands=".", decimal="."), "thousands and decimal must differ"),
        (lambda: iw.Real("x", 0, 1, decimal=";"), "decimal must be"),
        (lambda: iw.Real("x", 0, 1, symbols="%"), "symbols must be a list"),
        (lambda: iw.Real("x", 0, 1, symbols=["1"]), "symbols must have no digits"),
        (lambda: iw.Real("x", 0, 1, heaps=[2]), "heaps must be distinct and within the bounds"),
        (lambda: iw.Integer("x", 0, 9, heaps=[0.5]), "heaps must be whole numbers"),
        (lambda: iw.Date("x", "2010", "2011", unit="year", format="d.m.y"), "format must be as for strptime"),
        (lambda: iw.Date("x", "2010", "2011", unit="year", numbers="years"), "numbers must say what they count"),
        (lambda: iw.Date("x", "2010", "2011", unit="year", numbers="days since 1.1.1960"), "must say what they count"),
        (lambda: iw.Date("x", "2010", "2011", unit="year", numbers="years since 0001-01-01", format="%Y"), "excludes"),
        (lambda: iw.Binary("x", {"no", "yes"}), "A set has no order"),
        (lambda: iw.Categorical("x", frozenset("abc")), "A set has no order"),
        (lambda: iw.Categorical("x", ["a", "a "]), "distinct without their blanks"),
        (lambda: iw.Categorical("x", {1: "2", 2: "1"}), "must not be the code of another level"),
        (lambda: iw.Categorical("x", ["a", "b"], level_codes=[1]), "one code for each level"),
    ],
)  # fmt: skip
def test_declarations_that_say_nothing_are_refused(make, match):
    with pytest.raises((TypeError, ValueError), match=match):
        make()


# --- values beyond the bounds


def test_what_is_outside_is_clipped_or_missing_or_does_not_fit():
    cells = [-5, 5, 50]
    assert read(iw.Real("x", 0, 9), cells) == [0, 5, 9]
    assert read(iw.Real("x", 0, 9, outside="missing"), cells) == [None, 5, None]
    assert iw.Integer("x", 0, 9, outside="missing").missing
    refuses = iw.Integer("x", 0, 9, outside="refuse")
    with pytest.raises(ValueError, match="whole numbers, no fractions from 0 to 9") as refusal:
        read(refuses, cells)
    assert str(refusal.value).endswith(AFTER_REFUSAL) and "50" not in str(refusal.value)
    assert read(refuses, cells, "missing") == [None, 5, None]  # the option decides what does not fit
    day = iw.Date("x", "2010-01-01", "2010-12-31", outside="missing")
    assert read(day, ["1900-01-01", "2010-01-03"]) == [None, 2]


# --- levels: as text, without case, as numbers


@pytest.mark.parametrize(
    ("levels", "cell", "expected"),
    [
        (("1", "2"), "1.0", 0), (("1", "2"), 1.0, 0), (("1", "2"), "01", 0), (("1", "2"), 2, 1),
        (("1", "2"), Decimal("2.00"), 1), (("01", "02"), 2, 1), ((1, 2), "2.0", 1), ((1, 2), " 01 ", 0),
        (("urban", "rural"), "  Rural\u00a0", 1), (("no answer", "b"), "no  answer", 0),
        (("Île", "b"), "I\u0302le", 0), (("I\u0302le", "b"), "Île", 0), (("Straße", "b"), "STRASSE", 0),
        ((True, False), "TRUE", 0), (("TRUE", "FALSE"), True, 0), ((0, 1), "true", 1), (("0", "1"), False, 0),
        (("a", "A"), "A", 1), (("a", "A"), " a", 0), (("a", "A"), "ａ", -1), (("007", "7"), 7, -1),
        (("007", "7"), "07", -1), (("1", "2"), "1.5", -1), (("1", "2"), "x", -1), (("1e3", "b"), "1000", 0),
        ((1, 2), None, -1), ((1, 2), "nan", -1), ((1, 2), "1_0", -1), (("9007199254740993", "b"), 2**53, -1),
    ],
)  # fmt: skip
def test_a_cell_is_a_level(levels, cell, expected):
    assert Lookup(levels)(cell) == expected


def test_codes_have_labels_that_everything_shows():
    column = iw.Categorical("area", {1: "urban", 2: "rural", 3: "island"}, missing_codes=[9])
    assert column == iw.Categorical("area", ["urban", "rural", "island"], level_codes=[1, 2, 3], missing_codes=[9])
    cells = ["2", 3.0, "Urban", 9, "2 "]
    assert read(column, cells) == ["rural", "island", "urban", None, "rural"]
    assert read(column, [*cells, "x"], "other")[-1] == "other"
    private = iw.PrivateTable(pd.DataFrame({"area": [1, 2, 3] * 200}), iw.Schema(column))
    assert private.schema["area"] == iw.Categorical("area", ["urban", "rural", "island"], missing=True)
    release = iw.publish(private, epsilon=1.0, delta=1e-6, progressbar=False)
    assert set(release.synthetic.frame["area"].dropna()) == {"urban", "rural", "island"}


def test_equal_cells_of_different_types_are_read_each():
    """1 and True are equal, but only one of them is the text True."""
    column = iw.Categorical("x", ["True", "1", "b"])
    for cells in ([True, 1, "1"], [1, True, "1"]):
        expected = [{bool: "True", int: None, str: "1"}[type(cell)] for cell in cells]
        assert read(column, cells, "missing") == expected


# --- numbers as text writes them


@pytest.mark.parametrize(
    ("format", "text", "expected"),
    [
        (NumberFormat(), "1,234.50", np.nan), (NumberFormat(thousands=","), "1,234.50", 1234.5),
        (NumberFormat(thousands=","), "1,5", np.nan), (NumberFormat(thousands=","), "12,34,567", 1234567),
        (NumberFormat(",", "."), "1.234,5", 1234.5), (NumberFormat(",", "."), "1.5", np.nan),
        (NumberFormat(","), "1.5", np.nan), (NumberFormat(",", " "), "1\u202f234,5", 1234.5),
        (NumberFormat(thousands="'"), "1'234", 1234), (NumberFormat(symbols=("€",)), "-€ 5.5", -5.5),
        (NumberFormat(symbols=("€",)), "€-5.5", -5.5), (NumberFormat(symbols=("%",)), "12.5 %", 12.5),
        (NumberFormat(symbols=("USD", "$")), "$1e3 USD", 1000), (NumberFormat(), "5 %", np.nan),
        (NumberFormat(), "\u22125", -5), (NumberFormat(), "--5", np.nan), (NumberFormat(), "1_0", np.nan),
        (NumberFormat(), "TRUE", 1), (NumberFormat(), "inf", np.nan), (NumberFormat(), "", np.nan),
    ],
)  # fmt: skip
def test_a_number_is_what_its_format_says(format, text, expected):
    np.testing.assert_equal(format.number(text), expected)


def test_a_cell_fits_or_does_not_whatever_the_option():
    """What "missing" accepts, "refuse" accepts, and what it does not, it makes missing."""
    columns = [iw.Real("x", 0, 9), iw.Integer("x", 0, 9), iw.Binary("x"), iw.Binary("x", ("false", "true"))]
    for cell in (Decimal("1"), True, "TRUE", "1", 1.0, np.float32(1), b"1", 1.5, "x", "nan", (1,), "1.0000000000001"):
        for column in columns:
            column = iw.Schema.from_dict(iw.Schema(column).to_dict())["x"]
            [found] = read(column, [cell], "missing")
            try:
                assert read(column, [cell]) == [found] and found is not None
            except ValueError:
                assert found is None
    empty = pd.Series([None, None], dtype=pd.ArrowDtype(__import__("pyarrow").null()))
    for column in (iw.Real("x", 0, 9, missing=True), iw.Categorical("x", ["a", "b"], missing=True)):
        assert column.conform(empty).isna().all() and column.conform(empty, "missing").isna().all()


def test_a_number_too_large_for_a_float_warns_nobody():
    """A warning would depend on a private cell."""
    huge = pd.Series(np.array([1.0, np.longdouble("1e4000")]))
    for option in ("missing", "other"):
        assert read(iw.Real("x", 0, 9), huge, option, dtype=huge.dtype) == [1.0, None]


# --- dates


@pytest.mark.parametrize(
    ("settings", "cell", "expected"),
    [
        ({"format": "%d.%m.%Y"}, "31.12.2010", "2010-12-31"), ({"format": "%d.%m.%Y"}, "2010-12-31", None),
        ({"format": "%m/%d/%Y"}, "03/04/2010", "2010-03-04"), ({"format": "%d/%m/%Y"}, "03/04/2010", "2010-04-03"),
        ({"format": "%Y%m%d"}, 20100403, "2010-04-03"), ({"format": "%Y"}, 2011.0, "2011-01-01"),
        ({"numbers": "days since 1960-01-01"}, 18263, "2010-01-01"),
        ({"numbers": "days since 1960-01-01"}, "18263", "2010-01-01"),
        ({"numbers": "days since 1899-12-30"}, 40179.75, "2010-01-01"),
        ({"numbers": "months since 1960-01-01"}, 600, "2010-01-01"),
        ({"numbers": "weeks since 1960-01-01"}, 2609, "2010-01-01"),
        ({"numbers": "years since 1900-01-01"}, 110, "2010-01-01"),
        ({"numbers": "seconds since 1582-10-14"}, 13481683200.0, "2010-01-01"),  # SPSS
        ({"numbers": "days since 1960-01-01"}, "2010-12-31", "2010-12-31"),
        ({"numbers": "days since 1960-01-01"}, True, None), ({}, 18262, None), ({}, "18262", None), ({}, 0, None),
        ({}, pd.Timestamp("2010-05-05 23:59"), "2010-05-05"), ({}, " 2010-05-05 ", "2010-05-05"),
    ],
)  # fmt: skip
def test_a_date_is_what_its_column_says(settings, cell, expected):
    column = iw.Date("x", "2000-01-01", "2020-12-31", **settings)
    found = column.conform(pd.Series([cell], dtype=object), "missing")
    assert (None if found.isna()[0] else str(column.dates(found)[0].date())) == expected
    if expected is None:
        with pytest.raises(ValueError, match="do not fit: it takes dates"):
            read(column, [cell])


def test_days_of_another_origin_are_no_dates_ten_years_later():
    """Days since 1960, as Stata and SAS store them, against days since the column's first date."""
    days = pd.Series([18263, 18264])
    column = iw.Date("visit", "1960-01-01", "2019-12-31")
    with pytest.raises(ValueError, match="numbers what numbers mean"):
        column.conform(days)
    told = iw.Date("visit", "2010-01-01", "2019-12-31", numbers="days since 1960-01-01")
    assert told.conform(days).tolist() == [0, 1]
    assert told.admitting("refuse").conform(pd.Series([0, 1])).tolist() == [0, 1]  # published: numbers of this package


# --- heaps


def test_a_heap_is_a_feature_and_survives_encoding():
    column = iw.Real("x", -9000, 1e6, transform="arcsinh", heaps=[0, 12000], missing=True)
    assert column.feature_names == ("x", "x[=0]", "x[=12000]", "x[missing]")
    values = pd.Series([0.0, 12000.0, np.nan, -50.0, 7e5])
    features = column.encode(values)
    assert features[:, 1:].tolist() == [[1, 0, 0], [0, 1, 0], [0, 0, 1], [0, 0, 0], [0, 0, 0]]
    np.testing.assert_allclose(column.decode(features), values, rtol=1e-12)
    ends = column.corners
    assert ends[:, 0].tolist()[:2] == [-0.5, 0.5] and ends[2:, 1:].tolist() == np.eye(3).tolist()
    np.testing.assert_allclose(ends[2:4, 0], column.scaled(np.array([0.0, 12000.0])))


def test_amounts_below_zero_have_a_logarithm_with_sign():
    column = iw.Real("x", -9000, 1341000, transform="arcsinh")
    values = pd.Series([-9000.0, -1.0, 0.0, 1.0, 1341000.0])
    np.testing.assert_allclose(column.decode(column.encode(values)), values, rtol=1e-12, atol=1e-9)
    share = np.diff(column.encode(values)[:, 0])
    assert share[0] > 0.3 and share[3] > 0.4  # not a thousandth of the range, as without it
