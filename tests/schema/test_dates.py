"""Date columns: units counted by hand and against the calendar, what is no date, and the whole way to a fit."""

import datetime
import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import iwbayes as iw
from iwbayes.analyst import arviz_compat
from iwbayes.schema.cells import AFTER_REFUSAL

FIRST, LAST = datetime.date(2010, 1, 15), datetime.date(2019, 12, 31)


def by_calendar(unit, first, day):
    """Units from one date to another, by the calendar of the standard library."""
    months = 12 * (day.year - first.year) + day.month - first.month
    since = (day - first).days
    return {"day": since, "week": since // 7, "month": months, "year": day.year - first.year}[unit]


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.lists(st.dates(FIRST, LAST), min_size=1, max_size=5), st.sampled_from(["day", "week", "month", "year"]))
def test_units_are_those_of_the_calendar(days, unit):
    column = iw.Date("d", FIRST, LAST, unit=unit)
    expected = [by_calendar(unit, FIRST, day) for day in days]
    assert column.upper == by_calendar(unit, FIRST, LAST) and column.lower == 0
    times = [datetime.datetime.combine(day, datetime.time(23, 59)) for day in days]
    for cells in (days, times, [str(day) for day in days], [f"{day}T23:59:59+09:00" for day in days], expected):
        for dtype in (None, object):
            reads = column.admitting("refuse") if cells is expected else column
            found = reads.conform(pd.Series(cells, dtype=dtype))
            assert found.dtype == np.int64 and found.tolist() == expected
    zoned = pd.Series(pd.DatetimeIndex(times).tz_localize("Asia/Tokyo"))
    assert column.conform(zoned).tolist() == expected
    begins = column.dates(found)
    assert str(begins.dtype) == "datetime64[s]" and column.conform(begins).tolist() == expected
    for day, begin in zip(days, begins.dt.date, strict=True):
        assert begin <= day and by_calendar(unit, FIRST, begin) in (by_calendar(unit, FIRST, day), 0)


def test_the_ends_are_attained_and_dates_beyond_are_moved_to_them():
    column = iw.Date("d", "2010-01-15", "2010-02-15")
    cells = ["1900-01-01", "2010-01-15", "2010-02-15", "9999-12-31"]
    assert column.conform(pd.Series(cells)).tolist() == [0, 0, 31, 31]
    assert column.dates(pd.Series([0, 31])).astype(str).tolist() == ["2010-01-15", "2010-02-15"]
    np.testing.assert_allclose(column.encode(pd.Series([0, 31]))[:, 0], [-0.5, 0.5])


def test_missing_cells_stay_missing():
    column = iw.Date("d", "2010-01-15", "2010-02-15", missing=True)
    found = column.conform(pd.Series(["2010-01-16", None]))
    assert str(found.dtype) == "Int64" and found.tolist() == [1, pd.NA]
    assert column.dates(found).isna().tolist() == [False, True]
    assert column.conform(column.dates(found)).equals(found)
    with pytest.raises(ValueError, match="missing values, which its declaration does not allow"):
        iw.Date("d", "2010-01-15", "2010-02-15").conform(pd.Series(["2010-01-16", None]))


@pytest.mark.parametrize(
    "cell",
    ["03/04/2010", "20100403", "2010", "2010-01", "2010-1-1", "2010-02-30", "2010-W05", "rubbish", "5", True, 1.5, -1,
     32, 1998, 10**9, datetime.timedelta(1), 3j, [1]],
    ids=repr,
)  # fmt: skip
def test_what_is_no_date_is_refused_or_missing(cell):
    column = iw.Date("d", "2010-01-15", "2010-02-15")
    values = pd.Series(["2010-01-16", cell], dtype=object)
    with pytest.raises(ValueError, match="has cells that do not fit: it takes dates and ISO text") as caught:
        column.conform(values)
    assert str(caught.value).endswith(AFTER_REFUSAL) and str(cell) not in str(caught.value).split("it takes")[0]
    assert column.conform(values, "missing").tolist() == [1, pd.NA]


def test_parts_of_dates_are_enough_for_their_units():
    month = iw.Date("d", "2010-01", "2012-12", unit="month")
    assert month.conform(pd.Series(["2010-02", "2011-01-31"])).tolist() == [1, 12]
    year = iw.Date("d", "2010", "2012", unit="year")
    assert year.conform(pd.Series(["2010", "2011-05", "2012-01-31"])).tolist() == [0, 1, 2]
    with pytest.raises(ValueError, match="do not fit"):
        month.conform(pd.Series(["2010"]))
    with pytest.raises(ValueError, match="numbers what numbers mean"):
        year.conform(pd.Series([2011]))  # a year, or a count of what?
    assert replace(year, format="%Y").conform(pd.Series([2011, "2010", 2011.0])).tolist() == [1, 0, 1]


@pytest.mark.parametrize(
    ("settings_", "error", "match"),
    [
        (("d", "2010-13-01", "2012-01-01"), ValueError, "first must be a date or ISO text such as '2010-01-31'"),
        (("d", "2010-01-01", 2012), ValueError, "last must be a date"),
        (("d", "2010-01-01", "2010-01-01"), ValueError, "last must be at least one day after first"),
        (("d", "2012-01-01", "2010-01-01"), ValueError, "last must be at least one day after first"),
        (("d", "2010-01-01", "2010-12-31", "year"), ValueError, "at least one year after first"),
        (("d", "2010", "2012"), ValueError, "first must be a date"),
        (("d", "2010-01-01", "2012-01-01", "hour"), ValueError, "unit must be one of"),
        (("d", "2010-01-01", "2012-01-01", ["day"]), ValueError, "unit must be one of"),
        (("d", "2010-01-01", "2012-01-01", "day", "no"), TypeError, "missing must be True or False"),
        ((3, "2010-01-01", "2012-01-01"), TypeError, "a column name must be a string"),
    ],
)
def test_wrong_declarations_are_refused(settings_, error, match):
    with pytest.raises(error, match=re.escape(match)):
        iw.Date(*settings_)


def test_schema_files_hold_dates_as_text_or_as_toml_has_them():
    schema = iw.Schema(iw.Date("d", FIRST, LAST, unit="month"))
    text = '[[column]]\nname = "d"\ntype = "date"\nfirst = "2010-01-15"\nlast = "2019-12-31"\nunit = "month"\n'
    assert schema.to_toml() == text
    assert iw.Schema.from_toml(text) == iw.Schema.from_toml(re.sub(r'"(\d{4}-\d{2}-\d{2})"', r"\1", text)) == schema
    assert "2010-01-15 to 2019-12-31, in months" in str(schema)
    assert eval(repr(schema), {"Schema": iw.Schema, "Date": iw.Date}) == schema


SCHEMA = iw.Schema(
    iw.Date("visit", "2010-01-01", "2019-12-31", unit="month"),
    iw.Date("seen", "2010-01-01", "2019-12-31", missing=True),
    iw.Binary("y"),
)


@pytest.fixture(scope="module")
def frame():
    rng = np.random.default_rng(1)
    month = rng.integers(0, 120, 4000)
    day = (np.datetime64("2010-01", "M") + month).astype("datetime64[D]") + rng.integers(0, 28, 4000)
    y = rng.random(4000) < 1 / (1 + np.exp(2 - 0.03 * month))
    rows = pd.DataFrame({"visit": day, "seen": day, "y": y.astype(int)})
    rows.loc[::9, "seen"] = pd.NaT
    return rows


@pytest.fixture(scope="module")
def release(frame):
    private = iw.PrivateTable(frame, SCHEMA)
    options = {"noise": iw.SeededNoise(1), "random_seed": 1, "n_synthetic": 8000}
    return iw.publish(private, epsilon=4, delta=1e-6, for_models=["y ~ visit", "visit ~ y"], **options)


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_files_are_read_as_the_frame(frame, tmp_path, kind):
    path = tmp_path / f"t.{kind}"
    frame.to_csv(path, index=False) if kind == "csv" else frame.to_parquet(path, index=False)
    found = iw.PrivateTable(iw.read_table(path, SCHEMA), SCHEMA).frame
    pd.testing.assert_frame_equal(found, iw.PrivateTable(frame, SCHEMA).frame)
    months = found["visit"].to_numpy()
    expected = 12 * (frame["visit"].dt.year - 2010) + frame["visit"].dt.month - 1
    np.testing.assert_array_equal(months, expected)


def test_a_release_keeps_dates_in_its_file(release, tmp_path):
    found = iw.load(release.save(tmp_path / "r.iwb", allow_uncertified=True))
    assert found.synthetic.schema == SCHEMA.admitting("refuse")
    pd.testing.assert_frame_equal(found.synthetic.frame, release.synthetic.frame)
    assert found.synthetic.frame["seen"].isna().any()
    assert "2010-01-01 to 2019-12-31" in str(found.synthetic.schema)


def test_a_fit_counts_units_and_predicts_at_dates(release, frame):
    idata = iw.fit("y ~ visit", release, random_seed=1)
    draws = arviz_compat.group(idata, "posterior")["visit"].to_numpy()
    # the month's effect is .03; the private rows' own standard error is about .001, with the tilt's noise .0015
    assert abs(draws.mean() - 0.03) < 5 * 0.0015
    predicted = [
        arviz_compat.group(iw.predictions(idata, pd.DataFrame({"visit": cells})), "posterior")["y"].to_numpy()
        for cells in (["2010-03-31", "2019-12-01"], [2, 119])
    ]
    np.testing.assert_array_equal(*predicted)
    with pytest.raises(ValueError, match=re.escape("its declared bounds [2010-01-01, 2019-12-31]")):
        iw.predictions(idata, pd.DataFrame({"visit": ["2020-01-01"]}))
    with pytest.raises(ValueError, match="do not fit"):
        iw.predictions(idata, pd.DataFrame({"visit": ["01/02/2015"]}))


def test_a_date_is_a_gaussian_response_and_no_count(release):
    idata = iw.fit("visit ~ y", release, random_seed=1)
    assert arviz_compat.group(idata, "posterior").attrs["family"] == "gaussian"
    with pytest.raises(ValueError, match="the response of family 'poisson' must be an Integer"):
        iw.fit("visit ~ y", release, family="poisson")


def test_pictures_and_reports_take_dates(release):
    import matplotlib.pyplot as plt

    assert len(iw.plots.marginals(release)) == 3
    plt.close("all")
    assert "visit" in iw.report(release)


@pytest.mark.parametrize("generator", [iw.BayesNet(), iw.Mixture(n_components=2, starts=1, random_seed=0)], ids=repr)
def test_generators_draw_dates_within_the_range(frame, generator):
    fitted = generator.fit(iw.PrivateTable(frame, SCHEMA), iw.Ledger(5, 1e-6), epsilon=5, delta=1e-6)
    rows = fitted.sample(500, random_seed=1).frame
    pd.testing.assert_frame_equal(fitted.schema.conform(rows), rows)
    assert rows["visit"].between(0, 119).all() and rows["visit"].nunique() > 40
