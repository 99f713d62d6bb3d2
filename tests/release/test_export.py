"""Releases as files for other programs: the same rows, labels, dates and weights, and a text with the verdict."""

import numpy as np
import pandas as pd
import pytest

import iwbayes as iw

LONG = "k" * 40
SCHEMA = iw.Schema(
    iw.Real("Wages in €", 0, 100, missing=True),
    iw.Integer("weight", 0, 9, missing=True),
    iw.Categorical("area", {1: "urban", 2: "rürál"}, missing=True),
    iw.Date("day", "1960-01-01", "2019-12-31", missing=True),
    iw.Date("old", "1600-01-01", "2019-12-31", missing=True),
    iw.Binary("ill", [False, True]),
    iw.Integer(LONG, 0, 3),
    iw.Integer(LONG[1:], 0, 3),
    iw.Integer("1st", 0, 3),
)


@pytest.fixture(scope="module")
def release():
    rng = np.random.default_rng(1)
    frame = SCHEMA.decode(rng.uniform(-0.5, 0.5, (300, SCHEMA.n_features)))
    frame.loc[:40, ["Wages in €", "weight", "area", "day", "old"]] = None
    table = iw.SyntheticTable(frame, SCHEMA, already_spent=(0, 0))
    weights = iw.Weights(rng.normal(size=300), "given")
    statement = iw.Ledger(1.0, 1e-6).statement()
    return iw.Release(table, weights, statement, n_private=1000, recipe={"about": {"name": "people 2026"}})


def read(path):
    if path.suffix == ".csv":
        return pd.read_csv(path, parse_dates=["day"], dtype={"area": "str"})
    import pyreadstat

    found, metadata = pyreadstat.read_dta(path, apply_value_formats=True)
    assert metadata.column_names_to_labels["Wages_in__"] == "Wages in €"
    assert all(len(name) <= 32 and name.isidentifier() for name in found)
    return found.rename(columns=metadata.column_names_to_labels)


@pytest.mark.parametrize("kind", ["csv", "dta"])
def test_rows_labels_dates_and_weights_arrive(release, tmp_path, kind):
    path, text = release.export(tmp_path / f"people.{kind}")
    found, frame = read(path), release.synthetic.frame
    assert [str(name) for name in found] == [*SCHEMA.names, "weight_"]
    np.testing.assert_allclose(found["weight_"], release.sample_weight)
    for name in ("Wages in €", "weight", LONG, LONG[1:], "1st"):
        np.testing.assert_allclose(found[name], frame[name].to_numpy(dtype=float, na_value=np.nan))
    assert found["area"].astype(object).where(found["area"].notna(), None).tolist() == [
        None if level != level else level for level in frame["area"]
    ]
    assert found["ill"].astype(str).tolist() == frame["ill"].astype(str).tolist()
    for name in ("day", "old"):
        days = SCHEMA[name].dates(frame[name]).dt.strftime("%Y-%m-%d")
        shown = [None if pd.isna(day) or day == "" else str(day)[:10] for day in found[name]]
        assert shown == [None if pd.isna(day) else day for day in days]
    assert kind == "csv" or not isinstance(found["day"].iloc[-1], str)  # dates before 1678 are text in Stata
    said = text.read_text()
    assert text.name == f"people.{kind}.txt" and str(release) in said and "'weight_'" in said
    assert "people 2026" in said and max(map(len, said.splitlines())) <= 88


def test_no_file_is_replaced_and_other_kinds_are_refused(release, tmp_path):
    for name in ("people.csv", "people.csv.txt"):
        (tmp_path / name).write_text("mine")
        with pytest.raises(FileExistsError, match="already exists"):
            release.export(tmp_path / "people.csv")
        assert (tmp_path / name).read_text() == "mine"
        (tmp_path / name).unlink()
        (tmp_path / "people.csv").unlink(missing_ok=True)
    release.export(tmp_path / "people.csv")
    release.export(tmp_path / "people.csv", overwrite=True)
    with pytest.raises(ValueError, match=r"one of \['csv', 'dta'\]"):
        release.export(tmp_path / "people.sas7bdat")
