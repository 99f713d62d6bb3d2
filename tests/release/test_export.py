"""Releases as files for other programs: the same rows, labels, dates and weights, and a text on how to read them."""

import re
import subprocess

import numpy as np
import pandas as pd
import pytest
from file_tools import has_survey
from posterior_tools import weighted_logistic

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
    if path.suffix == ".parquet":
        return pd.read_parquet(path)
    if path.suffix == ".csv":
        return pd.read_csv(path, parse_dates=["day"], dtype={"area": "str"})
    import pyreadstat

    found, metadata = pyreadstat.read_dta(path, apply_value_formats=True)
    assert metadata.column_names_to_labels["Wages_in__"] == "Wages in €"
    assert all(len(name) <= 32 and name.isidentifier() for name in found)
    return found.rename(columns=metadata.column_names_to_labels)


@pytest.mark.parametrize("kind", ["csv", "dta", "parquet"])
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
    assert kind != "dta" or not isinstance(found["day"].iloc[-1], str)  # dates before 1678 are text in Stata
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
    with pytest.raises(ValueError, match=r"one of \['csv', 'dta', 'parquet'\]"):
        release.export(tmp_path / "people.sas7bdat")


@pytest.fixture(scope="module")
def tilted():
    """A release with tilt weights, a rare level and a column that is called like a replicate."""
    rng = np.random.default_rng(1)
    g = rng.choice(["a", "b", "c"], 1200, p=[0.6, 0.38, 0.02])
    x = rng.normal(size=1200).clip(-4, 4)
    y = (rng.random(1200) < 1 / (1 + np.exp(-x + (g == "b")))).astype(int)
    schema = iw.Schema(iw.Real("x", -4, 4), iw.Categorical("group", list("abc")), iw.Binary("y"), iw.Binary("rep2"))
    frame = pd.DataFrame({"x": x, "group": g, "y": y, "rep2": rng.integers(0, 2, 1200)})
    return iw.publish(
        iw.PrivateTable(frame, schema), epsilon=2.0, delta=1e-6, n_synthetic=2500, for_models=["y ~ x + group"],
        noise=iw.SeededNoise(1), random_seed=1, progressbar=False,
    )  # fmt: skip


@pytest.fixture(scope="module")
def replicates(tilted):
    return iw.replicate_weights(tilted, 30, random_seed=1)


@pytest.mark.parametrize("kind", ["csv", "dta", "parquet"])
def test_replicate_weights_arrive_with_code_that_names_them(tilted, replicates, tmp_path, kind):
    path, text = tilted.export(tmp_path / f"people.{kind}", replicates=replicates)
    found, said = read_plain(path), text.read_text()
    names = [f"rep_{number}" for number in range(1, 31)]
    assert list(found) == [*tilted.synthetic.schema.names, "weight", *names]
    np.testing.assert_allclose(found[names].to_numpy().T, replicates.values, rtol=1e-12)
    assert f"rho = {replicates.rho:g}" in said and f"fay({replicates.rho:g})" in said and "rep_1-rep_30" in said
    assert float(f"{replicates.rho:g}") == replicates.rho
    assert "do not account for the privacy noise" not in said and max(map(len, said.splitlines())) <= 88


def read_plain(path):
    readers = {".csv": pd.read_csv, ".dta": pd.read_stata, ".parquet": pd.read_parquet}
    return readers[path.suffix](path)


def test_replicates_of_another_release_are_refused(tilted, replicates, release, tmp_path):
    with pytest.raises(ValueError, match="belong to a different release"):
        release.export(tmp_path / "people.csv", replicates=replicates)
    with pytest.raises(TypeError, match="must be those of replicate_weights"):
        tilted.export(tmp_path / "people.csv", replicates=replicates.values)
    assert not list(tmp_path.iterdir())


def test_the_code_of_an_export_runs_in_r(tilted, replicates, tmp_path):
    """R's survey finds the standard errors that `ReplicateWeights` computes, from the file and the printed code."""
    if not has_survey():
        pytest.skip("R with the package survey is not installed, so what an export says of R is not run")
    path, text = tilted.export(tmp_path / "people.csv", replicates=replicates)
    code = re.search(r"R, with the package survey:\n(.*?)\n\n", text.read_text(), re.DOTALL)[1]
    more = """
    fit <- svyglm(y ~ x + group, design, family = quasibinomial())
    write.csv(data.frame(estimate = c(coef(svymean(~x, design)), coef(fit)),
                         sd = c(SE(svymean(~x, design)), SE(fit))), "found.csv", row.names = FALSE)
    """
    done = subprocess.run(
        ["Rscript", "-e", f"suppressPackageStartupMessages(library(survey))\n{code}\n{more}"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = pd.read_csv(tmp_path / "found.csv")
    frame = tilted.synthetic.frame
    x, y = frame["x"].to_numpy(), frame["y"].to_numpy()
    design = np.column_stack([np.ones(len(x)), x, frame["group"] == "b", frame["group"] == "c"]).astype(float)

    own = replicates.table(lambda w: [np.average(x, weights=w), *weighted_logistic(design, y, w)])
    np.testing.assert_allclose(found["estimate"], own["estimate"], rtol=1e-5)
    np.testing.assert_allclose(found["sd"], own["sd"], rtol=1e-4)
