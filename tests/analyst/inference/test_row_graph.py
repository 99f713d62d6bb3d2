"""Models that fail for some rows: such a row has no scores, affects no other row, and its release looks like others."""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
import pymc as pm
import pytensor.tensor as pt
import pytest
from factories import synthetic_table

import iwbayes as iw
from iwbayes.analyst.inference.model_posterior import ModelPosterior
from iwbayes.analyst.inference.model_scores import ModelScores
from iwbayes.evidence.scores import ScoreMap

SCHEMA = iw.Schema(iw.Integer("a", -40, 400), iw.Real("y", -5, 5), iw.Real("x", -9, 9))
N = 300


def rows(n: int, seed: int) -> pd.DataFrame:
    """Rows with a from 1 to 4, and x above 1."""
    rng = np.random.default_rng(seed)
    return pd.DataFrame({"a": rng.integers(1, 5, n), "y": rng.normal(size=n).clip(-5, 5), "x": rng.uniform(1.1, 9, n)})


TABLE = synthetic_table(rows(N, 1), SCHEMA)


def effects(frame: pd.DataFrame) -> object:
    """One effect for each value up to the largest, at least as many as a trial of the schema needs."""
    return pm.Normal("e", 0, 1, shape=int(frame["a"].max()) + 1)


def index(frame):
    return effects(frame)[pm.Data("a", frame["a"].to_numpy())]


def index_above_the_smallest(frame):
    low = int(frame["a"].min())
    e = pm.Normal("e", 0, 1, shape=int(frame["a"].max()) - low + 1)
    return e[pm.Data("a", frame["a"].to_numpy()) - low]


def index_of_a_small_type(frame):
    small = frame["a"].clip(0, 255).to_numpy().astype("uint8")
    return pm.Normal("e", 0, 1, shape=256)[pm.Data("a", small if (frame["a"] >= 0).all() else frame["a"])]


def index_of_a_matrix(frame):
    e = pm.Normal("e", 0, 1, shape=(3, int(frame["a"].max()) + 1))
    return e[1, pm.Data("a", frame["a"].to_numpy())]


def index_that_is_set(frame):
    a = pm.Data("a", frame["a"].to_numpy())
    one = pt.zeros((a.shape[0], int(frame["a"].max()) + 1))
    return pt.set_subtensor(one[pt.arange(a.shape[0]), a], 1.0) @ effects(frame)


def divisor(frame):
    a = pm.Data("a", frame["a"].to_numpy())
    return pm.Normal("e", 0, 1) * (12 // (a - 17) + 12 % (a - 17))


def exponent(frame):
    a = pm.Data("a", frame["a"].to_numpy())
    return pm.Normal("e", 0, 1) * pt.constant(2) ** pt.minimum(a, 5)


def cast(frame):
    x = pm.Data("x", frame["x"])
    return pm.Normal("e", 0, 1, shape=10)[pt.cast(pt.sqrt(x), "int64")]


def scale(frame):
    return pm.Normal("e", 0, 1), pm.Data("x", frame["x"])


HOSTILE = {
    index: {"a": 400},
    index_above_the_smallest: {"a": -40},
    index_of_a_small_type: {"a": 300},
    index_of_a_matrix: {"a": -1},
    index_that_is_set: {"a": 77},
    divisor: {"a": 17},
    exponent: {"a": -2},
    cast: {"x": -4.0},
    scale: {"x": -2.0},
}


def model(mean) -> object:
    def build(frame):
        with pm.Model() as found:
            mu = mean(frame)
            mu, sd = mu if isinstance(mu, tuple) else (mu, 1.0)
            pm.Normal("y", mu, sd, observed=frame["y"])
        return found

    return iw.model(build, name=mean.__name__)


def case(mean):
    """Only compiled code raises an error for a division by zero."""
    return pytest.param(mean, id=mean.__name__, marks=[] if mean is divisor else [pytest.mark.interpreted])


@pytest.mark.parametrize("mean", [*map(case, HOSTILE)])
def test_a_row_outside_the_domain_of_a_model_has_no_scores_and_affects_no_other_row(mean):
    scores = model(mean).on(TABLE)(np.full(N, 1.0))
    frame = iw.PrivateTable(rows(130, 2), SCHEMA).frame
    expected = scores(frame)
    assert np.isfinite(expected).all() and (np.ptp(expected, axis=0) > 0).any()
    other = frame.copy()
    for name, cell in HOSTILE[mean].items():
        other.loc[[4, 129], name] = cell
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = scores(other)
    rest = np.setdiff1d(np.arange(130), [4, 129])
    np.testing.assert_array_equal(found[rest], expected[rest])
    assert np.isnan(found[[4, 129]]).all()


@pytest.mark.parametrize("mean", [index, divisor], ids=lambda mean: mean.__name__)
def test_a_row_outside_the_domain_of_a_model_does_not_decide_whether_a_release_succeeds(mean, capfd, caplog, recwarn):
    public = iw.SyntheticTable(rows(N, 3), SCHEMA, origin="public", already_spent=(0, 0))
    said = []
    for cells in ({}, {}, HOSTILE[mean]):  # PyTensor warns when it compiles for the first time
        private = rows(200, 4)
        for name, cell in cells.items():
            private.loc[7, name] = cell
        ledger = iw.Ledger(1.0, 1e-6)
        settings = {"generator": public, "for_models": [model(mean)], "progressbar": False}
        release = iw.publish(iw.PrivateTable(private, SCHEMA), epsilon=1.0, delta=1e-6, ledger=ledger, **settings)
        assert release.weights.measurement is not None and np.ptp(release.weights.values) > 0
        said.append((capfd.readouterr(), caplog.text, [str(one.message) for one in recwarn.list], ledger.spent))
        recwarn.clear()
    assert said[1] == said[2] and said[1][-1][0] == pytest.approx(1.0)


@pytest.mark.interpreted
def test_a_row_of_any_cells_within_the_bounds_has_features():
    extremes = pd.DataFrame(
        [(a, y, x) for a in (-40, 0, 400) for y in (-5, 0, 5) for x in (-9, 0, 9)], columns=[*"ayx"]
    )
    frame = iw.PrivateTable(extremes, SCHEMA).frame
    for mean in (index, index_that_is_set, divisor, cast, scale):
        features = ScoreMap.whitened([model(mean).on(TABLE)(np.ones(N))], TABLE, np.full(N, 1 / N))
        assert np.isfinite(features.transform(frame)).all()


def repeats(frame):
    return pt.arange(pm.Data("a", frame["a"].to_numpy())[0]).sum() * pm.Normal("e", 0, 1)


def chosen(frame):
    x = pm.Data("x", frame["x"])
    return pt.sum(x[pt.gt(x, 0)]) * pm.Normal("e", 0, 1)


def sliced(frame):
    e = pm.Normal("e", 0, 1, shape=5)
    return pt.sum(e[: pm.Data("a", frame["a"].to_numpy())[0]])


def inverted(frame):
    x = pm.Data("x", frame["x"])
    square = pt.stack([pt.stack([x[0], 1.0]), pt.stack([1.0, x[0]])])
    return pt.linalg.inv(square).sum() * pm.Normal("e", 0, 1)


@pytest.mark.parametrize(
    ("mean", "message"),
    [
        (repeats, "ARange of the cells of a row, which may fail"),
        (chosen, "its shape may change"),
        (sliced, "its shape may change"),
        (inverted, "MatrixInverse of the cells of a row, which may fail"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_an_operation_that_may_fail_for_a_row_is_refused_before_anything_is_charged(mean, message):
    ledger = iw.Ledger(1.0, 1e-6)
    with pytest.raises(ValueError, match=f"the model '{mean.__name__}' cannot be measured: .*{message}"):
        settings = {"for_models": [model(mean)], "ledger": ledger, "progressbar": False}
        iw.publish(iw.PrivateTable(rows(200, 4), SCHEMA), epsilon=1.0, delta=1e-6, **settings)
    assert ledger.spent == (0.0, 0.0)


@pytest.mark.interpreted
def test_operations_of_parameters_alone_may_fail_because_parameters_are_public():
    def build(frame):
        with pm.Model() as found:
            sd, mean = pm.HalfNormal("sd", 2), pm.Normal("mean", 0, 2, shape=2)
            chol = sd * np.array([[1.0, 0.0], [0.5, 2.0]])
            both = frame[["y", "x"]].to_numpy()
            pm.MvNormal("both", mean, chol=chol, observed=pm.Data("rows", both))
        return found

    posterior = iw.model(build).built(TABLE)
    scores = ModelScores.of(posterior, "both", posterior.start())
    assert np.isfinite(scores(TABLE.frame.iloc[:5])).all()


def test_an_effect_of_a_group_is_taken_for_all_rows_at_once():
    """PyTensor for PyMC 5 would loop over the rows in Python."""
    frame = TABLE.frame
    with pm.Model() as model:
        pm.Normal("y", index(frame), 1, observed=frame["y"].to_numpy())
    posterior = ModelPosterior(iw.reweight(model, np.ones(N)), table=TABLE).on_rows(TABLE, np.ones(N))
    theta = np.random.default_rng(2).normal(size=posterior.size)
    graphs = posterior.graphs
    cells = [column[:, None] for column in posterior.held.arrays(frame)[0]]
    scores, density, defined = graphs.of_one_row(*cells, others=[theta])
    away = frame["y"].to_numpy() - theta[frame["a"]]
    np.testing.assert_allclose(scores, away[:, None] * (frame["a"].to_numpy()[:, None] == np.arange(posterior.size)))
    np.testing.assert_allclose(density, -0.5 * away**2 - 0.5 * np.log(2 * np.pi), rtol=1e-12)
    assert defined.all()
    names = [str(node.op) for node in graphs.of_one_row._function._compiled.maker.fgraph.toposort()]
    assert not [name for name in names if "Blockwise" in name and "Subtensor" in name]
