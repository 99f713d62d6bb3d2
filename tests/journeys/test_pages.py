"""The pages run as printed, block after block, and show what they say."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pymc as pm
import pytest
from docs_tools import EXECUTED, IN_A_SHELL, ROOT, blocks, run_page, too_long
from file_tools import has_survey

from iwbayes.analyst import arviz_compat
from iwbayes.analyst.fit import fit

pytestmark = pytest.mark.pythons("3.12", "3.13")
GUIDE, HOWTO = ROOT / "docs" / "user_guide", ROOT / "docs" / "howto"
#: Pages that run in a test below.
BELOW = (
    "own_pymc_model", "own_pymc_model_details", "compare_and_check_models", "more_models", "offsets_and_counts",
    "hierarchical_models", "splines", "predict_and_compare", "report_results", "r_users",
)  # fmt: skip


#: They take longest and run with ``--all``, and when the documentation is built.
SLOW = (
    "analyst", "causal_effects", "command_line", "panels", "priors_and_sampling", "replicate_weights",
    "several_analyses", "survival", "theory",
)  # fmt: skip


def case(page):
    """Newcomers of CI run the first page (tests/newcomer.py)."""
    slow = page.stem in SLOW or (page in IN_A_SHELL and page.stem == "start")
    return pytest.param(page, marks=[pytest.mark.slow] if slow else [], id=page.stem)


#: What pages show, apart from the layout of lines.
SHOWN = {
    "audit_a_release": ("Passed: the audit does not refute the claim", "Passed: no use lost more"),
    "choose_a_generator": ("MST True",),
    "curator": ("hardened noise, certified", "epsilon 0.9998, delta 1e-06, certified"),
    "declare_columns": ("region categorical north, south, east, west", "True"),
    "errors_and_logs": ("column 'region'", "['north', 'south']"),
    "larger_than_memory": ("6000 rows", "synthetic rows for 6000 private rows"),
    "outside_table": ("outside table (another library): declared, epsilon 0.5", "noise, certified"),
    "read_a_file": ("levels=('007', '008')",),
    "read_the_statement": ("hardened noise, certified", "False seeded", "not saved: ReleaseError"),
    "second_release": ("nothing was drawn", "the budget epsilon 1.5 and delta 1e-06", "insurance 2026"),
    "survey_weights": ("calibrated",),
    "users_with_several_rows": ("under replace-user adjacency", "bound on contributions"),
}
#: What pages show and write that run in a shell too.
WRITTEN = {
    "start": (
        ("hardened noise, certified", "written to page.html"),
        ("people.iwb", "small.iwb", "report.html", "posterior.nc", "page.html"),
    ),
    "command_line": (
        ("No cell was read, and nothing was charged or written", "hardened noise, certified", "written to report.html"),
        ("people.iwb", "posterior.nc", "report.html", "people.html", "people.json"),
    ),
}


@pytest.mark.parametrize("page", [case(page) for page in EXECUTED if page.stem not in BELOW])
def test_cells_run(page, tmp_path, pytestconfig):
    space, shown = run_page(page, tmp_path, pytestconfig)
    assert space
    said = " ".join(shown.split())
    assert [words for words in SHOWN.get(page.stem, ()) if words not in said] == []


def test_pages_that_show_something_are_there():
    assert {page.stem for page in EXECUTED} >= SHOWN.keys()
    assert {page.stem for page in IN_A_SHELL} == WRITTEN.keys()


def test_no_private_value_is_shown(tmp_path, pytestconfig):
    """The page on messages has a level in its rows that it does not declare."""
    space, shown = run_page(ROOT / "docs" / "howto" / "errors_and_logs.md", tmp_path, pytestconfig)
    assert "somewhere" in set(space["frame"]["region"]) and "somewhere" not in shown


def test_the_second_release_is_counted_with_the_first(tmp_path, pytestconfig):
    space, _ = run_page(ROOT / "docs" / "howto" / "second_release.md", tmp_path, pytestconfig)
    first, second = (space[name].statement.epsilon for name in ("first", "second"))
    assert first <= 1 < second < 2 and space["ledger"].left[0] < 1.9
    assert len(space["planned"].events) == len(space["release"].statement.events)


@pytest.mark.parametrize("page", [*map(case, IN_A_SHELL)])
def test_pages_run_in_python_and_in_a_shell(page, tmp_path, pytestconfig):
    run_page(page, tmp_path, pytestconfig)
    settings = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    shown = ""
    for block in blocks(page, "bash"):
        line = ["bash", "-euo", "pipefail", "-c", block.code]
        done = subprocess.run(line, cwd=tmp_path, env=settings, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        shown += done.stdout
    words, files = WRITTEN[page.stem]
    assert [part for part in words if part not in shown] == []
    assert too_long(shown) == []
    for name in files:
        assert (tmp_path / name).stat().st_size > 1000


@pytest.fixture(scope="module")
def guide(tmp_path_factory, pytestconfig):
    return run_page(HOWTO / "own_pymc_model.md", tmp_path_factory.mktemp("guide"), pytestconfig)


@pytest.fixture(scope="module")
def details(tmp_path_factory, pytestconfig):
    return run_page(HOWTO / "own_pymc_model_details.md", tmp_path_factory.mktemp("details"), pytestconfig)


def test_intervals_that_cover(tmp_path, pytestconfig):
    space, shown = run_page(GUIDE / "intervals_that_cover.md", tmp_path, pytestconfig)
    assert space["named"].noise_sd < space["everything"].noise_sd
    assert "not calibrated: " in shown and "the release was made for" in " ".join(shown.split())
    assert list(space["study"].table().index.get_level_values("method").unique()) == ["private rows", "calibrated"]


@pytest.mark.slow
def test_rehearse_a_release(tmp_path, pytestconfig):
    space, shown = run_page(GUIDE / "rehearse_a_release.md", tmp_path, pytestconfig)
    assert "Rehearsals(20 of " in shown and "synthetic rows, BayesNet and weights replayed)" in shown
    assert "rehearsed_coverage" in shown and len(space["ax"].get_yticklabels()) == 4
    assert arviz_compat.group(space["calibrated"], "calibration").attrs["method"] == "rehearsals"


def check_variables(space, **expected):
    """Fits have these variables, and were calibrated."""
    for name, variables in expected.items():
        assert set(arviz_compat.group(space[name], "posterior").data_vars) - {"not_calibrated"} == variables
        assert arviz_compat.has_group(space[name], "calibration")


@pytest.mark.slow  # a minute of compiling; families run in their own tests
def test_more_models(tmp_path, pytestconfig):
    space, shown = run_page(HOWTO / "more_models.md", tmp_path, pytestconfig)
    check_variables(
        space,
        costs={"Intercept", "age", "alpha"},
        pressures={"Intercept", "age", "sigma", "nu"},
        answers={"threshold", "age"},
        shares={"Intercept", "age"},
    )
    slope = arviz_compat.group(space["answers"], "posterior")["age"]
    assert abs(float(slope.mean()) - 0.02) < 5 * float(slope.std())
    assert "['alpha', 'Intercept', 'age']" in shown or "['Intercept', 'age', 'alpha']" in shown


@pytest.mark.slow
def test_offsets_and_counts(tmp_path, pytestconfig):
    space, shown = run_page(HOWTO / "offsets_and_counts.md", tmp_path, pytestconfig)
    check_variables(space, counts={"Intercept", "age", "alpha"}, poisson={"Intercept", "age", "np.log(years)"})
    for name in ("counts", "poisson"):
        slope = arviz_compat.group(space[name], "posterior")["age"]
        assert abs(float(slope.mean()) - 0.02) < 5 * float(slope.std())
    exponent = arviz_compat.group(space["poisson"], "posterior")["np.log(years)"]
    assert abs(float(exponent.mean()) - 1) < 5 * float(exponent.std())
    assert "alpha_log__" in shown


@pytest.mark.slow
def test_hierarchical_models(tmp_path, pytestconfig):
    space, _ = run_page(HOWTO / "hierarchical_models.md", tmp_path, pytestconfig)
    check_variables(
        space,
        groups={"Intercept", "age", "sigma", "1|clinic", "1|clinic_sigma"},
        own={"mean", "scale", "effect", "slope", "sigma"},
    )
    effect = arviz_compat.group(space["own"], "posterior")["effect"]
    away = effect.mean(("chain", "draw")).to_numpy() - space["level"]
    assert (abs(away) < 5 * effect.std(("chain", "draw")).to_numpy()).all()


@pytest.mark.slow
def test_splines(tmp_path, pytestconfig):
    """A default release did not measure the curve; one made for it did, and one for the spline with knots."""
    space, _ = run_page(HOWTO / "splines.md", tmp_path, pytestconfig)
    explained = arviz_compat.group(space["idata"], "calibration")["explained"].to_numpy()
    assert space["record"]["explained"].min() < 0.5 and explained.min() > 0.9
    for name in ("idata", "spline"):
        assert arviz_compat.group(space[name], "calibration").attrs["verdict"] == "calibrated"
    knots = arviz_compat.group(space["knots"], "calibration")
    assert knots["calibrated"].to_numpy().all()
    assert knots["misfit_share"].to_numpy()[0] > 0.2


@pytest.mark.slow
def test_compare_and_check_models(tmp_path, pytestconfig):
    space, shown = run_page(HOWTO / "compare_and_check_models.md", tmp_path, pytestconfig)
    assert list(space["scores"]) == ["x and treated", "x"]
    assert space["scores"]["x and treated"].elpd > space["scores"]["x"].elpd
    assert space["table"].index[0] == "y ~ x + z + treated + group" and space["table"].attrs["noise_included"]
    checked = space["checked"]
    away = (checked["observed"] - checked["mean"]).abs() / checked["se"]
    assert away.max() > 2 and checked["p_value"].min() < 0.05
    assert shown.count("share[1]") == 6


def test_report_results(tmp_path, pytestconfig):
    _, shown = run_page(HOWTO / "report_results.md", tmp_path, pytestconfig)
    said = " ".join(shown.split())
    assert "-differentially private under replace-one adjacency" in said and "Intervals are calibrated" in said
    for name in ("people.iwb", "report.html"):
        assert (tmp_path / name).stat().st_size > 1000


def test_r_users(tmp_path, pytestconfig):
    """What R reads: weights of a total of the private rows, in each file; and its code runs, where R is installed."""
    space, shown = run_page(HOWTO / "r_users.md", tmp_path, pytestconfig)
    n, rho = space["release"].n_private, space["replicates"].rho
    table = pd.read_csv(tmp_path / "people.csv")
    assert abs(table["weight"].sum() - n) < 1e-6 * n and table.filter(regex="^rep[0-9]+$").shape[1] == 100
    draws = pd.read_csv(tmp_path / "weight_draws.csv")
    assert draws.shape == (len(table), 40)
    np.testing.assert_allclose(draws.sum(), n, rtol=1e-9)
    text = (HOWTO / "r_users.md").read_text(encoding="utf-8")
    [code] = [block for block in re.findall(r"```r\n(.*?)```", text, re.DOTALL) if "svrepdesign" in block]
    assert f"rho = {rho:g}," in code and f"rho = {rho:g}," in shown
    if not has_survey():
        pytest.skip("R with the package survey is not installed, so the R code of the page is not run")
    done = subprocess.run(["Rscript", "-e", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "treated" in done.stdout, done.stderr
    standard_error = float(re.search(r"^treated\S* +\S+ +(\S+)", done.stdout, re.MULTILINE)[1])
    record = arviz_compat.group(space["calibrated"], "calibration")
    assert standard_error == pytest.approx(float(record["sd_calibrated"].sel(parameter="treated")), rel=0.4)


def test_predict_and_compare(tmp_path, pytestconfig):
    space, shown = run_page(HOWTO / "predict_and_compare.md", tmp_path, pytestconfig)
    assert re.search(r"^z .*False$", shown, re.MULTILINE) and re.search(r"^group\[b\] .*True$", shown, re.MULTILINE)
    assert shown.rstrip().endswith("90 % intervals, NOT calibrated")
    [values] = space["grid"]["posterior"].data_vars.values()
    assert values.sizes["row"] == 100 and len(space["few"]["posterior"]["row"]) == 6
    assert (tmp_path / "predictions.png").stat().st_size > 1000
    replies = arviz_compat.group(space["replies"], "predictions")
    assert set(np.unique(replies[list(replies.data_vars)[0]])) <= {0, 1}


@pytest.mark.slow
def test_the_details_run_and_show_what_they_say(details):
    space, shown = details
    release = space["release"]
    assert "likelihood_weights_visits" in shown
    assert "'y' cannot be weighted by row" in shown
    assert space["part"]["likelihood_weights_visits"].get_value().shape == (len(release.synthetic),)


def test_the_guides_intervals_hold_the_truth(guide):
    """The slope that made the private table is -0.3 a decade: within 5 calibrated standard deviations."""
    space, _ = guide
    slopes = [np.asarray(arviz_compat.group(space[name], "posterior")["slope"]) for name in ("idata", "calibrated")]
    assert abs(slopes[1].mean() + 0.3) < 5 * slopes[1].std()
    assert slopes[1].std() != slopes[0].std()
    odds = np.asarray(arviz_compat.group(space["calibrated"], "posterior")["odds_ratio"])
    np.testing.assert_allclose(odds, np.exp(slopes[1]), rtol=1e-12)


@pytest.mark.slow
def test_the_minibatch_is_near_the_exact_mode(details):
    """ADVI with a decaying step: its mean within 3 posterior standard deviations of the weighted mode."""
    space, _ = details
    release = space["release"]
    idata = fit(
        "well ~ I((age - 50) * 0.1)",
        release,
        family="bernoulli",
        calibrate="none",
        log_likelihood=False,
        random_seed=1,
        priors={"Intercept": pm.Normal.dist(0, 1), "I((age - 50) * 0.1)": pm.Normal.dist(0, 1)},
    )
    posterior = arviz_compat.group(idata, "posterior")
    found = space["approximation"].mean.eval()
    for value, name in zip(found, posterior.data_vars, strict=True):
        assert abs(value - float(posterior[name].mean())) < 3 * float(posterior[name].std())


@pytest.mark.slow
def test_bambis_names(details):
    pytest.importorskip("bambi")
    assert [rv.name for rv in details[0]["from_bambi"].free_RVs] == ["Intercept", "age", "clinic"]
