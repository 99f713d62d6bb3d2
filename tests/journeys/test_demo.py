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
    LABELS,
    METHODS,
    MODELS,
    PRIVATE,
    UNWEIGHTED,
    WEIGHTED,
    DemoResult,
    _private_table,
    demo_figure,
    run_demo,
)
from iwbayes.release import load


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """Run the command once, with fewer synthetic rows, and keep its result."""
    folder = tmp_path_factory.mktemp("demo") / "out"
    kept = []

    def run(**options):
        kept.append(run_demo(n_synthetic=5000, **options))
        return kept[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(iwbayes.demo, "run_demo", run)
        result = CliRunner().invoke(cli.app, ["demo", "-o", str(folder), "--seed", "2"])
    assert result.exit_code == 0, result.stderr
    return kept[0], folder, result.stdout


def test_every_method_has_every_coefficient(small):
    table = small[0].table
    assert list(table.columns) == ["model", "coefficient", "method", "mean", "lower", "upper", "calibrated"]
    assert table.groupby(["model", "method"])["coefficient"].nunique().eq(9).all()
    assert set(table["coefficient"]) == set(LABELS)
    assert set(table["method"]) == set(METHODS)
    assert set(table["model"]) == set(MODELS)
    assert (table["lower"] < table["mean"]).all()
    assert (table["mean"] < table["upper"]).all()


def test_json_has_the_numbers_and_the_keys_that_the_page_lists(small, monkeypatch):
    monkeypatch.setattr(iwbayes.demo, "run_demo", lambda **_: small[0])
    found = json.loads(CliRunner().invoke(cli.app, ["demo", "-o", str(small[1]), "--json"]).stdout)
    text = (Path(__file__).parents[2] / "docs" / "howto" / "command_line.md").read_text(encoding="utf-8")
    [listed] = re.findall(r"^\| `demo` \| (.*) \|$", text, re.MULTILINE)
    assert list(found) == re.findall(r"`(\w+)`", listed)
    assert found["contained"] == small[0].contained().sum().to_dict()
    assert len(found["intervals"]) == len(small[0].table) and found["intervals"][0]["calibrated"] in (None, True, False)


def test_the_private_estimate_is_that_of_statsmodels(small):
    families = pytest.importorskip("statsmodels.genmod.families")
    from statsmodels.genmod.generalized_linear_model import GLM

    from iwbayes.models.design import build_design

    rows = _private_table()[0]
    for model, (formula, family) in MODELS.items():
        design = build_design(formula, rows.frame, rows.schema, family)
        table = small[0].table
        table = table[(table["model"] == model) & (table["method"] == PRIVATE)].set_index("coefficient")
        distribution = {"bernoulli": families.Binomial, "poisson": families.Poisson}[family]()
        fitted = GLM(design.y, design.x, family=distribution).fit(cov_type="HC0")
        own = table.loc[list(design.parameter_names)]
        np.testing.assert_allclose(own["mean"], fitted.params, rtol=1e-6)
        np.testing.assert_allclose((own["upper"] - own["lower"]) / 2 / fitted.bse, 1.6448536, rtol=1e-5)


def test_calibrated_intervals_contain_more_and_are_wider(small):
    result = small[0]
    shares = result.contained().mean()
    assert shares[CALIBRATED] >= 0.85 and shares[CALIBRATED] >= shares[WEIGHTED] > shares[UNWEIGHTED]
    width = (result.table["upper"] - result.table["lower"]).groupby(result.table["method"]).median()
    assert width[CALIBRATED] > width[WEIGHTED]


def test_files_and_words(small):
    result, folder, text = small
    assert sorted(path.name for path in folder.iterdir()) == ["rand.iwb", "rand.png"]
    assert (folder / "rand.png").read_bytes().startswith(b"\x89PNG")
    release = load(folder / "rand.iwb")
    assert not release.certified
    assert release.statement.noise == "seeded"
    assert release.statement.epsilon <= 2
    assert release.n_private == 20_190
    assert str(result) in text and not [line for line in str(result).split("\n") if len(line) > 80]
    lines = text.rstrip("\n").split("\n")
    assert len(lines) <= 25
    assert lines[0] == f"{result.source}: 20,190 rows"
    counts = result.contained().sum()
    for line, method in zip(lines[2:5], (CALIBRATED, WEIGHTED, UNWEIGHTED), strict=True):
        assert line.split() == [*method.split(), str(counts[method]), "of", "18"]
    for part in ("not certified", "health: fair or poor", result.verdict(), "protects nobody", *MODELS):
        assert part in " ".join(text.split())


def test_the_title_of_the_figure_is_its_result(small):
    figure = demo_figure(small[0])
    counts = small[0].contained().sum()
    title = figure.get_suptitle()
    assert f"contain the private estimate of {counts[CALIBRATED]} of 18 coefficients" in title
    assert f"rows {counts[UNWEIGHTED]}" in title and small[0].verdict() in title
    assert [ax.get_title() for ax in figure.axes] == list(MODELS)
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == list(LABELS.values())


def test_without_statsmodels_the_table_is_simulated_and_said_to_be(monkeypatch):
    monkeypatch.setattr(iwbayes.demo.importlib.util, "find_spec", lambda name: None)
    result = run_demo(n_synthetic=2000, seed=1)
    assert str(result).split("\n")[0] == "SIMULATED table (statsmodels is not installed): 20,190 rows"
    assert len(str(result).split("\n")) <= 23
    table = result.table[result.table["method"] == PRIVATE].set_index(["model", "coefficient"])
    assert (table.loc[("number of visits (Poisson)", "disea"), "lower"] > 0).all()
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


def test_models_that_are_not_calibrated_are_named():
    rows = [("a (first)", "disea", False), ("a (first)", "idp", True), ("b (second)", "disea", True)]
    table = pd.DataFrame(rows, columns=["model", "coefficient", "calibrated"]).assign(method=CALIBRATED)
    result = DemoResult(table, None, "s", {})
    assert result.verdict() == "first 1 of 2 NOT calibrated (chronic diseases); second calibrated"


def test_contained_counts_by_hand():
    rows = [
        ("m", "a", PRIVATE, 1.0, 0.5, 1.5),
        ("m", "a", CALIBRATED, 2.0, 1.0, 3.0),
        ("m", "a", WEIGHTED, 2.0, 1.1, 3.0),
        ("m", "a", UNWEIGHTED, 0.0, -1.0, 0.9),
        ("m", "b", PRIVATE, 0.0, -1, 1),
        ("m", "b", CALIBRATED, 0.0, -1, 1),
        ("m", "b", WEIGHTED, -1.0, -2, -0.1),
        ("m", "b", UNWEIGHTED, 0.0, -1, 1),
    ]
    table = pd.DataFrame(rows, columns=["model", "coefficient", "method", "mean", "lower", "upper"])
    result = DemoResult(table, None, "by hand", {})
    found = result.contained()
    assert found[CALIBRATED].tolist() == [True, True]
    assert found[WEIGHTED].tolist() == [False, False]
    assert found[UNWEIGHTED].tolist() == [False, True]


def test_same_seed_same_table():
    first, second = (run_demo(n_synthetic=1000, seed=4) for _ in range(2))
    pd.testing.assert_frame_equal(first.table, second.table, rtol=1e-9)
    assert not first.files
