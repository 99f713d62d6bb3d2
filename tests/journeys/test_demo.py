"""The demonstration in small: its numbers are those of the parts, and it says what it is."""

import json
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import iwbayes.demo
from iwbayes import cli
from iwbayes.datasets import load_rand_health, simulate_rand_health
from iwbayes.demo import (
    CALIBRATED,
    FORMULA,
    LABELS,
    METHODS,
    PRIVATE,
    TITLE,
    UNWEIGHTED,
    WEIGHTED,
    DemoResult,
    _estimate,
    _population,
    demo_figure,
    run_demo,
)
from iwbayes.release import load


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """Run the command once, with fewer releases, and keep its result."""
    folder = tmp_path_factory.mktemp("demo") / "out"
    kept = []

    def run(**options):
        kept.append(run_demo(n_releases=3, **options))
        return kept[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(iwbayes.demo, "run_demo", run)
        result = CliRunner().invoke(cli.app, ["demo", "-o", str(folder), "--seed", "2"])
    assert result.exit_code == 0, result.stderr
    return kept[0], folder, result.stdout


def test_every_release_and_method_has_every_coefficient(small):
    table = small[0].table
    assert list(table.columns) == ["release", "coefficient", "method", "mean", "lower", "upper", "calibrated"]
    assert table.groupby(["release", "method"])["coefficient"].nunique().eq(9).all()
    assert set(table["coefficient"]) == set(LABELS) == set(small[0].truth.index)
    assert set(table["method"]) == set(METHODS) and set(table["release"]) == {1, 2, 3}
    assert (table["lower"] < table["mean"]).all()
    assert (table["mean"] < table["upper"]).all()


def test_json_has_the_numbers_and_the_keys_that_the_page_lists(small, monkeypatch):
    monkeypatch.setattr(iwbayes.demo, "run_demo", lambda **_: small[0])
    found = json.loads(CliRunner().invoke(cli.app, ["demo", "-o", str(small[1]), "--json"]).stdout)
    text = (Path(__file__).parents[2] / "docs" / "howto" / "command_line.md").read_text(encoding="utf-8")
    [listed] = re.findall(r"^\| `demo` \| (.*) \|$", text, re.MULTILINE)
    assert list(found) == re.findall(r"`(\w+)`", listed)
    assert {row["method"]: row["share"] for row in found["coverage"]} == small[0].coverage()["share"].to_dict()
    assert found["truth"] == small[0].truth.to_dict()
    assert len(found["intervals"]) == len(small[0].table) and found["intervals"][-1]["calibrated"] in (True, False)


def test_the_estimates_are_those_of_statsmodels(small):
    families = pytest.importorskip("statsmodels.genmod.families")
    from statsmodels.genmod.generalized_linear_model import GLM

    from iwbayes.models.design import build_design

    frame, schema, _ = _population()
    design = build_design(FORMULA, frame, schema, "bernoulli")
    fitted = GLM(design.y, design.x, family=families.Binomial()).fit(cov_type="HC0")
    own = _estimate(frame, schema).set_index("coefficient").loc[list(design.parameter_names)]
    np.testing.assert_allclose(own["mean"], fitted.params, rtol=1e-6)
    np.testing.assert_allclose((own["upper"] - own["lower"]) / 2 / fitted.bse, 1.6448536, rtol=1e-5)
    np.testing.assert_array_equal(small[0].truth.loc[list(design.parameter_names)], own["mean"])


def test_calibrated_intervals_contain_more_and_are_wider(small):
    found = small[0].coverage()
    share = found["share"]
    assert share[CALIBRATED] >= 0.8 and share[CALIBRATED] >= share[WEIGHTED] > share[UNWEIGHTED] + 0.3
    assert found.loc[PRIVATE, "length"] == 1 and found.loc[CALIBRATED, "length"] > found.loc[WEIGHTED, "length"]
    assert list(found.index) == list(METHODS)


def test_files_and_words(small):
    result, folder, text = small
    assert sorted(path.name for path in folder.iterdir()) == ["rand.iwb", "rand.png"]
    assert (folder / "rand.png").read_bytes().startswith(b"\x89PNG")
    release = load(folder / "rand.iwb")
    assert not release.certified
    assert release.statement.noise == "seeded"
    assert release.statement.epsilon <= 1
    assert release.n_private == len(release.synthetic) == 5000
    assert str(result) in text and not [line for line in str(result).split("\n") if len(line) > 80]
    lines = text.rstrip("\n").split("\n")
    assert len(lines) <= 27
    assert lines[:2] == [f"{result.source}: 3 releases of 5,000 rows each, epsilon 1", f"Regression: {TITLE}"]
    for line, (method, row) in zip(lines[4:8], result.coverage().iterrows(), strict=True):
        assert line.split() == [*method.split(), f"{row.share:.0%}", "±", f"{row.se:.0%}", f"{row.length:.1f}"]
    for part in ("not certified", "health: fair or poor", result.verdict(), "protect nobody"):
        assert part in " ".join(text.split())


def test_the_figure_has_the_coverage_and_the_first_release(small):
    figure = demo_figure(small[0])
    above, below = figure.axes
    assert [bar.get_width() for bar in above.patches] == small[0].coverage()["share"].tolist()
    assert [label.get_text() for label in above.get_yticklabels()] == list(METHODS)
    assert [label.get_text() for label in below.get_yticklabels()] == list(LABELS.values())
    assert [text.get_text() for text in below.get_legend().get_texts()] == list(METHODS)
    first = small[0].table.query("release == 1 and method == @PRIVATE")
    own = next(line for line in below.lines if line.get_label() == PRIVATE)
    expected = (first["mean"] - first["coefficient"].map(small[0].truth)) / ((first["upper"] - first["lower"]) / 2)
    np.testing.assert_allclose(own.get_xdata(), expected)


def test_without_statsmodels_the_table_is_simulated_and_said_to_be(monkeypatch):
    monkeypatch.setattr(iwbayes.demo.importlib.util, "find_spec", lambda name: None)
    result = run_demo(n_releases=2, n_private=2000, seed=1)
    assert str(result).startswith("SIMULATED table (statsmodels is not installed): 2 releases of 2,000 rows each")
    frame, schema = simulate_rand_health(500, random_seed=2)
    assert schema == simulate_rand_health(10)[1] and frame.equals(simulate_rand_health(500, random_seed=2)[0])
    with pytest.raises(ValueError, match="n must be a whole number of at least 1"):
        simulate_rand_health(0)


def test_the_simulated_table_has_the_shape_of_the_real_one():
    pytest.importorskip("statsmodels")
    real, schema = load_rand_health()
    own, own_schema = simulate_rand_health(random_seed=1)
    assert own_schema == schema and own.shape == real.shape and own.dtypes.equals(real.dtypes)
    assert own["visits"].var() > 3 * own["visits"].mean() and real["visits"].var() > 3 * real["visits"].mean()


def by_hand():
    rows = [
        (1, "a", PRIVATE, 1.0, 0.5, 1.5, None),
        (1, "a", CALIBRATED, 2.0, 1.0, 3.0, True),
        (1, "b", PRIVATE, 0.5, 0.25, 0.75, None),
        (1, "b", CALIBRATED, 0.0, -1, 1, False),
        (2, "a", PRIVATE, 1.0, 0.5, 1.5, None),
        (2, "a", CALIBRATED, 2.0, 1.1, 3.0, True),
        (2, "b", PRIVATE, 0.0, -1, 1, None),
        (2, "b", CALIBRATED, 2.0, 1.0, 3.0, True),
    ]
    table = pd.DataFrame(rows, columns=["release", "coefficient", "method", "mean", "lower", "upper", "calibrated"])
    return DemoResult(table, pd.Series({"a": 1.0, "b": 0.0}), None, "by hand", {})


def test_coverage_by_hand():
    result = by_hand()
    found = result.coverage()
    assert result.contained()[CALIBRATED].tolist() == [True, True, False, False]
    assert result.contained()[PRIVATE].tolist() == [True, False, True, True]
    assert found["share"].to_dict() == {CALIBRATED: 0.5, PRIVATE: 0.75}
    assert found["se"].to_dict() == pytest.approx({CALIBRATED: 0.5, PRIVATE: 0.25})  # over the two releases
    assert found["length"].to_dict() == pytest.approx({CALIBRATED: 1.975 / 1.125, PRIVATE: 1.0})
    assert result.verdict() == "3 of 4 intervals called calibrated"


def test_same_seed_same_table():
    first, second = (run_demo(n_releases=2, n_private=500, seed=4) for _ in range(2))
    pd.testing.assert_frame_equal(first.table, second.table, rtol=1e-9)
    assert not first.files
    other = run_demo(n_releases=1, n_private=500, seed=5)
    assert not np.allclose(other.table["mean"], first.table.loc[first.table["release"] == 1, "mean"])
