"""The pages run as printed, block after block, and show what they say."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pymc as pm
import pytest
from docs_tools import EXECUTED, IN_A_SHELL, ROOT, blocks, run_page, too_long

from iwbayes.analyst import arviz_compat
from iwbayes.analyst.regression.fit import fit

pytestmark = pytest.mark.pages("3.11")
GUIDE = ROOT / "docs" / "user_guide" / "weight_your_own_pymc_model.md"


#: What pages show, apart from the layout of lines.
SHOWN = {
    "audit_a_release": ("Passed: nothing was found", "Passed: no use lost more"),
    "choose_a_generator": ("MST True",),
    "curator": ("hardened noise, certified", "epsilon 0.9998, delta 1e-06, certified"),
    "declare_columns": ("region categorical north, south, east, west", "True"),
    "errors_and_logs": ("column 'region'", "['north', 'south']"),
    "larger_than_memory": ("6000 rows", "synthetic rows for 6000 private rows"),
    "outside_table": ("outside table (another library): declared, epsilon 0.5", "noise, certified"),
    "read_a_file": ("levels=('007', '008')",),
    "read_the_statement": ("hardened noise, certified", "False seeded", "not saved: ReleaseError"),
    "second_release": ("nothing was drawn", "of (1.5, 1e-06)"),
    "survey_weights": ("survey design weights of private rows are out of scope",),
    "users_with_several_rows": ("under replace-user adjacency", "bound on contributions"),
}
#: What pages show and write that run in a shell too.
WRITTEN = {
    "start": (
        ("hardened noise, certified", "written to page.html"),
        ("people.iwb", "small.iwb", "report.html", "posterior.nc", "page.html"),
    ),
    "command_line": (
        ("No cell was read; nothing was charged or written", "hardened noise, certified", "written to report.html"),
        ("people.iwb", "posterior.nc", "report.html", "people.html", "people.json"),
    ),
}


@pytest.mark.parametrize("page", EXECUTED, ids=lambda page: page.stem)
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


@pytest.mark.parametrize("page", IN_A_SHELL, ids=lambda page: page.stem)
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
    return run_page(GUIDE, tmp_path_factory.mktemp("guide"), pytestconfig)


def test_intervals_that_cover(tmp_path, pytestconfig):
    space, shown = run_page(GUIDE.with_name("intervals_that_cover.md"), tmp_path, pytestconfig)
    assert space["named"].noise_sd < space["everything"].noise_sd
    assert "not calibrated: " in shown and "the release measured the scores of" in " ".join(shown.split())
    assert list(space["study"].table().index.get_level_values("method").unique()) == ["private rows", "calibrated"]


def test_rehearse_a_release(tmp_path, pytestconfig):
    space, shown = run_page(GUIDE.with_name("rehearse_a_release.md"), tmp_path, pytestconfig)
    assert "Rehearsals(20 of " in shown and "synthetic rows, BayesNet and weights replayed)" in shown
    assert "rehearsed_coverage" in shown and len(space["ax"].get_yticklabels()) == 4
    assert arviz_compat.group(space["calibrated"], "calibration").attrs["method"] == "rehearsals"


def test_more_models(tmp_path, pytestconfig):
    pytest.importorskip("bambi", reason="Bambi is not installed")
    space, shown = run_page(GUIDE.with_name("more_models.md"), tmp_path, pytestconfig)
    for name, variables in (
        ("counts", {"Intercept", "age", "alpha"}),
        ("costs", {"Intercept", "age", "alpha"}),
        ("answers", {"threshold", "age"}),
        ("shares", {"Intercept", "age"}),
        ("groups", {"Intercept", "age", "alpha", "1|clinic", "1|clinic_sigma"}),
    ):
        assert set(arviz_compat.group(space[name], "posterior").data_vars) - {"not_calibrated"} == variables
        assert arviz_compat.has_group(space[name], "calibration")
    slope = arviz_compat.group(space["counts"], "posterior")["age"]
    assert abs(float(slope.mean()) - 0.02) < 5 * float(slope.std())
    assert "['alpha', 'Intercept', 'age']" in shown or "['Intercept', 'age', 'alpha']" in shown


def test_predict_and_compare(tmp_path, pytestconfig):
    space, shown = run_page(GUIDE.with_name("predict_and_compare.md"), tmp_path, pytestconfig)
    assert "group[b]" in shown and shown.rstrip().endswith("fail\n90 % intervals, NOT calibrated")
    [values] = space["grid"]["posterior"].data_vars.values()
    assert values.sizes["row"] == 100 and len(space["few"]["posterior"]["row"]) == 6
    assert (tmp_path / "predictions.png").stat().st_size > 1000
    replies = arviz_compat.group(space["replies"], "predictions")
    assert set(np.unique(replies[list(replies.data_vars)[0]])) <= {0, 1}


def test_the_guide_runs_and_shows_what_it_says(guide):
    space, shown = guide
    release = space["release"]
    assert "likelihood_weights_visits" in shown
    assert "'y' cannot be weighted by row" in shown
    assert space["part"]["likelihood_weights_visits"].get_value().shape == (len(release.synthetic),)
    assert list(space["scores"]) == ["clinic and age", "clinic"]
    assert space["scores"]["clinic and age"].elpd > space["scores"]["clinic"].elpd


def test_the_guides_intervals_hold_the_truth(guide):
    """The slope that made the private table is -0.3 a decade: within 5 calibrated standard deviations."""
    space, _ = guide
    slopes = [np.asarray(arviz_compat.group(space[name], "posterior")["slope"]) for name in ("idata", "calibrated")]
    assert abs(slopes[1].mean() + 0.3) < 5 * slopes[1].std()
    assert slopes[1].std() != slopes[0].std()
    odds = np.asarray(arviz_compat.group(space["calibrated"], "posterior")["odds_ratio"])
    np.testing.assert_allclose(odds, np.exp(slopes[1]), rtol=1e-12)


def test_the_guides_minibatch_is_near_the_exact_mode(guide):
    """ADVI with a decaying step: its mean within 3 posterior standard deviations of the weighted mode."""
    space, _ = guide
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


def test_bambis_names(guide):
    pytest.importorskip("bambi")
    assert [rv.name for rv in guide[0]["from_bambi"].free_RVs] == ["Intercept", "age", "clinic"]
