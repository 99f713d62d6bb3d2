"""The demonstration in small: its numbers are those of the parts, and it says what it is."""

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import iwbayes.demo
from iwbayes import cli
from iwbayes.demo import CALIBRATED, METHODS, MODELS, PRIVATE, UNWEIGHTED, WEIGHTED, DemoResult, run_demo
from iwbayes.release import load

pytest.importorskip("statsmodels")


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
    assert list(table.columns) == ["model", "coefficient", "method", "mean", "lower", "upper"]
    assert table.groupby(["model", "method"])["coefficient"].nunique().eq(10).all()
    assert set(table["method"]) == set(METHODS)
    assert set(table["model"]) == set(MODELS)
    assert (table["lower"] < table["mean"]).all()
    assert (table["mean"] < table["upper"]).all()


def test_private_estimate_solves_the_likelihood_equations(small):
    """Score zero and a sandwich by hand, without statsmodels."""
    from iwbayes.analyst.regression.design import build_design
    from iwbayes.datasets import load_rand_health
    from iwbayes.tables import PrivateTable

    frame, schema = load_rand_health()
    rows = PrivateTable(frame, schema).frame
    mean = {"bernoulli": lambda eta: 1 / (1 + np.exp(-eta)), "poisson": np.exp}
    for model, (formula, family) in MODELS.items():
        design = build_design(formula, rows, schema, family)
        table = small[0].table
        table = table[(table["model"] == model) & (table["method"] == PRIVATE)].set_index("coefficient")
        estimate = table.loc[list(design.parameter_names), "mean"].to_numpy()
        mu = mean[family](design.x @ estimate)
        scores = design.x * (design.y - mu)[:, None]
        bread = np.linalg.inv((design.x * (mu if family == "poisson" else mu * (1 - mu))[:, None]).T @ design.x)
        sd = np.sqrt(np.diag(bread @ scores.T @ scores @ bread))
        np.testing.assert_allclose(bread @ scores.sum(axis=0) / sd, 0, atol=1e-4)
        half = (table["upper"] - table["lower"]).loc[list(design.parameter_names)] / 2
        np.testing.assert_allclose(half / sd, 1.6448536, rtol=1e-4)


def test_calibrated_intervals_contain_more_and_are_wider(small):
    result = small[0]
    shares = result.contained().mean()
    assert shares[CALIBRATED] > shares[WEIGHTED] > shares[UNWEIGHTED]
    width = (result.table["upper"] - result.table["lower"]).groupby(result.table["method"]).median()
    assert width[CALIBRATED] > width[WEIGHTED]
    ratios = result.model_based.groupby("model")["ratio"].median()
    assert ratios["number of visits (Poisson)"] > 2 > 1.1 > ratios["any doctor visit (logistic)"]


def test_files_and_words(small):
    result, folder, text = small
    assert sorted(path.name for path in folder.iterdir()) == ["rand.iwb", "rand.png"]
    assert (folder / "rand.png").read_bytes().startswith(b"\x89PNG")
    release = load(folder / "rand.iwb")
    assert not release.certified
    assert release.statement.noise == "seeded"
    assert release.statement.epsilon <= 1
    assert release.n_private == 20_190
    assert str(result) in text and not [line for line in str(result).split("\n") if len(line) > 80]
    for part in ("seeds are fixed", "not certified", "health[poor]", "model-based", *METHODS):
        assert part in " ".join(text.split())


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
    result = DemoResult(table, pd.DataFrame(), None, 1, {}, (), {})
    found = result.contained()
    assert found[CALIBRATED].tolist() == [True, True]
    assert found[WEIGHTED].tolist() == [False, False]
    assert found[UNWEIGHTED].tolist() == [False, True]


def test_same_seed_same_table():
    first, second = (run_demo(n_synthetic=1000, seed=4) for _ in range(2))
    pd.testing.assert_frame_equal(first.table, second.table, rtol=1e-9)
    assert not first.files
