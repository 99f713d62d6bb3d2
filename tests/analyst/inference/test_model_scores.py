"""Scores of PyMC models that releases are made for: exact, of each row alone, and refused where they cannot be."""

from __future__ import annotations

import json
import warnings
from concurrent.futures import ThreadPoolExecutor

import cloudpickle
import numpy as np
import pandas as pd
import pymc as pm
import pytensor.tensor as pt
import pytest
from factories import seeded_release, synthetic_table
from numpy.testing import assert_allclose, assert_array_equal
from pytensor.compile.builders import OpFromGraph
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op
from pytensor.scalar.basic import Composite, UnaryScalarOp, float64, upgrade_to_float
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.elemwise import Elemwise

import iwbayes as iw
from iwbayes.analyst import arviz_compat
from iwbayes.analyst.inference.model_scores import trial_rows
from iwbayes.evidence.scores import ScoreMap, ScoreModel
from iwbayes.replaying.one_replay import check_replayable, replay

SCHEMA = iw.Schema(
    iw.Integer("visits", 0, 30), iw.Real("x", -2, 2), iw.Real("years", 0.5, 3), iw.Categorical("g", ("a", "b", "c")),
    iw.Real("income", 0, 9, missing=True),
)  # fmt: skip
N = 400


def rows(n: int, seed: int, levels: str = "abc") -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    x, years = rng.uniform(-2, 2, n), rng.uniform(0.5, 3, n)
    income = np.where(rng.random(n) < 0.2, np.nan, rng.uniform(0, 9, n))
    visits = rng.poisson(years * np.exp(0.3 + 0.5 * x)).clip(0, 30)
    frame = {"visits": visits, "x": x, "years": years, "g": rng.choice(list(levels), n), "income": income}
    return pd.DataFrame(frame)


def canonical(frame: pd.DataFrame) -> pd.DataFrame:
    return iw.PrivateTable(frame, SCHEMA).frame


TABLE = synthetic_table(rows(N, 1), SCHEMA)


def offset(frame: pd.DataFrame) -> pm.Model:
    with pm.Model() as found:
        x, years = pm.Data("x", frame["x"]), pm.Data("years", frame["years"])
        b = pm.Normal("b", 0, 2, shape=2)
        pm.Poisson("visits", years * pm.math.exp(b[0] + b[1] * x), observed=frame["visits"])
    return found


def overdispersed(frame: pd.DataFrame) -> pm.Model:
    with pm.Model(coords={"g": list("abc")}) as found:
        x, group = pm.Data("x", frame["x"]), pm.Data("group", frame["g"].cat.codes)
        mean, slope = pm.Normal("mean", 0, 1), pm.Normal("slope", 0, 1)
        of_group = pm.Normal("of_group", mean, pm.HalfNormal("scale", 1), dims="g")
        pm.NegativeBinomial(
            "visits", pm.math.exp(of_group[group] + slope * x), pm.Exponential("alpha", 1), observed=frame["visits"]
        )
    return found


def incomplete(frame: pd.DataFrame) -> pm.Model:
    """A model of the rows whose income is there, with a matrix of columns."""
    there = frame["income"].notna().to_numpy()
    columns = np.column_stack([np.ones(len(frame)), frame["income"].fillna(0.0), frame["g"] == "b", frame["g"] == "c"])
    with pm.Model() as found:
        design, kept = pm.Data("design", columns.astype(float)), pm.Data("kept", there.astype(float))
        b, sigma = pm.Normal("b", 0, 2, shape=4), pm.HalfNormal("sigma", 2)
        mean = pm.math.where(pt.eq(kept, 1), pm.math.dot(design, b), 0)
        pm.Normal("x", mean, sigma, observed=frame["x"])
    return found


MODELS = {"offset": offset, "overdispersed": overdispersed, "incomplete": incomplete}


def case(name):
    """Code is generated for a quarter of a minute."""
    return pytest.param(name, marks=[pytest.mark.slow] if name == "overdispersed" else [])


@pytest.fixture(scope="module", params=[*map(case, MODELS)])
def scores(request):
    return iw.model(MODELS[request.param]).on(TABLE)(np.full(N, 1000 / N))


def test_of_an_offset_they_are_as_the_closed_form_says():
    weights = np.random.default_rng(2).gamma(2.0, 1.0, N)
    found = iw.model(offset).on(TABLE)(weights)
    private = rows(250, 3)
    x = private["x"].to_numpy()
    away = private["visits"] - private["years"] * np.exp(found.theta[0] + found.theta[1] * x)
    assert_allclose(found(canonical(private)), np.column_stack([away, away * x]), rtol=1e-9, atol=1e-12)
    # at the mode they are what the prior pulls, with a variance of four
    assert_allclose(weights @ found(TABLE.frame), found.theta / 4, atol=1e-5)


def test_the_scores_of_a_row_depend_on_this_row_alone(scores):
    one, two = (canonical(rows(300, seed)) for seed in (4, 5))
    mixed = one.copy()
    mixed.iloc[::2] = two.iloc[::2]
    found = scores(one)
    assert found.shape == (300, len(scores.theta)) and np.isfinite(found).all() and (np.ptp(found, axis=0) > 0).any()
    assert (np.ptp(found, axis=0) > 0).sum() == {"offset": 2, "overdispersed": 5, "incomplete": 5}[scores.name]
    np.testing.assert_array_equal(scores(mixed)[1::2], found[1::2])
    np.testing.assert_array_equal(scores(mixed)[::2], scores(two)[::2])
    assert scores(one.iloc[:0]).shape == (0, len(scores.theta))


def test_the_rounding_of_a_row_depends_neither_on_its_place_nor_on_how_many_rows_there_are(scores):
    features = ScoreMap.whitened([scores], TABLE, np.full(N, 1 / N))
    frame = canonical(rows(200, 4))
    whole = features.transform(frame)
    for part in (slice(0, 1), slice(3, 5), slice(7, 70), slice(1, 128), slice(0, 199)):
        np.testing.assert_array_equal(features.transform(frame.iloc[part]), whole[part])


def yes_or_no(frame: pd.DataFrame) -> pm.Model:
    with pm.Model() as found:
        x, a = pm.Data("x", frame["x"]), pm.Data("a", (frame["g"] == "a").astype(float))
        b = pm.Normal("b", 0, 2, shape=3)
        pm.Bernoulli("y", logit_p=b[0] + b[1] * x + b[2] * a, observed=frame["y"].cat.codes)
    return found


def in_order(frame: pd.DataFrame) -> pm.Model:
    with pm.Model() as found:
        x = pm.Data("x", frame["x"])
        cuts = pm.Normal("cuts", np.array([-1.0, 1.0]), 2, shape=2)
        pm.OrderedLogistic("g", pm.Normal("slope", 0, 2) * x, cuts, observed=frame["g"].cat.codes)
    return found


LEVELS = iw.Schema(iw.Binary("y", ("no", "yes")), iw.Real("x", -2, 2), iw.Categorical("g", ("a", "b", "c", "d")))


@pytest.mark.parametrize(
    ("build", "response"),
    [(yes_or_no, ("y", (0, 1))), pytest.param(in_order, ("g", (0, 1, 2)), marks=pytest.mark.slow)],
)
def test_the_outcomes_of_a_model_are_the_levels_of_its_response(build, response):
    rng = np.random.default_rng(6)
    frame = rows(N, 6)[["x", "g"]].assign(y=rng.choice(["no", "yes"], N, p=[0.8, 0.2]))[["y", "x", "g"]]
    table = synthetic_table(frame, LEVELS)
    scores = iw.model(build).on(table)(np.full(N, 1.0))
    assert scores.levels == response  # a level that no row has is none of the model's
    private = iw.PrivateTable(frame.assign(g=np.where(rng.random(N) < 0.05, "d", frame["g"])), LEVELS).frame
    found, unknown = scores.outcomes(private), (private["g"] == "d").to_numpy()
    there = ~unknown  # of a predictor it is none either
    assert_allclose(found.probabilities.sum(axis=0)[there], 1)
    assert_allclose(np.einsum("vr,vrp->rp", found.probabilities, found.scores)[there], 0, atol=1e-8)
    own = scores(private)
    np.testing.assert_array_equal(found.scores[found.observed, np.arange(N)], own)
    assert np.isnan(own[~there]).all() and np.isfinite(own[there]).all()


@pytest.mark.parametrize("levels", [(0, 1), (1, 2), (False, True)])
def test_levels_that_are_no_text_are_outcomes_too(levels):
    """Columns of whole numbers are no categories in canonical form; they may be predictors as well."""

    def build(frame):
        with pm.Model() as found:
            x = pm.Data("x", frame["x"])
            treated = pm.Data("treated", (frame["treated"] == 1).astype(float))
            b = pm.Normal("b", 0, 2, shape=3)
            observed = (frame["y"] == levels[1]).astype(int)
            pm.Bernoulli("response", logit_p=b[0] + b[1] * x + b[2] * treated, observed=observed)
        return found

    rng = np.random.default_rng(7)
    schema = iw.Schema(iw.Binary("treated"), iw.Real("x", -2, 2), iw.Binary("y", levels))
    cells = {"treated": rng.integers(0, 2, N), "x": rng.uniform(-2, 2, N), "y": np.array(levels)[rng.integers(0, 2, N)]}
    table = synthetic_table(pd.DataFrame(cells), schema)
    scores = iw.model(build).on(table)(np.full(N, 1.0))
    found = scores.outcomes(table.frame)
    assert scores.response == ("y", tuple(map(str, levels)))
    assert_allclose(found.probabilities.sum(axis=0), 1)
    np.testing.assert_array_equal(found.scores[found.observed, np.arange(N)], scores(table.frame))


def test_a_response_of_numbers_has_no_outcomes(scores):
    assert scores.response is None


def test_a_row_that_the_model_has_no_number_for_is_zero_and_counts_as_clipped():
    def grouped(frame):
        with pm.Model() as built:
            group = pm.Data("group", frame["g"].cat.codes)
            pm.Poisson("visits", pm.math.exp(pm.Normal("effect", 0, 2, shape=3)[group]), observed=frame["visits"])
        return built

    without = synthetic_table(rows(N, 1, levels="ab"), SCHEMA)
    found = iw.model(grouped).on(without)(np.ones(N))(canonical(rows(100, 6)))
    unknown = (rows(100, 6)["g"] == "c").to_numpy()
    assert np.isnan(found[unknown]).all() and np.isfinite(found[~unknown]).all()

    def logged(frame):
        with pm.Model() as built:
            income = pm.Data("income", frame["income"].fillna(0.0))
            b = pm.Normal("b", 0, 2, shape=2)
            pm.Normal("x", b[0] + b[1] * pm.math.log(income - 1), income - 1, observed=frame["x"])
        return built

    above = synthetic_table(rows(N, 1).assign(income=np.linspace(1.5, 9, N)), SCHEMA)
    features = ScoreMap.whitened([iw.model(logged).on(above)(np.ones(N))], above, np.full(N, 1 / N))
    private = rows(6, 7).assign(income=[2, 3, 0.5, 0, 8, 9.0])
    found = features.transform(canonical(private))
    assert (found[2:4, :-1] == 0).all() and (found[2:4, -1] == features.flag_height).all()
    assert found[[0, 1, 4, 5], :-1].all()


class Somebodys(Op):
    """An operation that calls Python."""

    def make_node(self, x):
        return Apply(self, [pt.as_tensor(x)], [pt.as_tensor(x).type()])

    def perform(self, node, inputs, outputs):
        outputs[0][0] = inputs[0]

    def pullback(self, inputs, outputs, gradients):
        return gradients

    def grad(self, inputs, gradients):
        return gradients


def joint(frame):
    with pm.Model() as found:
        pm.MvNormal("x", pm.Normal("b", 0, 1) * np.ones(len(frame)), np.eye(len(frame)), observed=frame["x"])
    return found


def centred(frame):
    with pm.Model() as found:
        x = pm.Data("x", frame["x"])
        pm.Poisson("visits", pm.math.exp(pm.Normal("b", 0, 1) * (x - x.mean())), observed=frame["visits"])
    return found


def counted(frame):
    with pm.Model() as found:
        x = pm.Data("x", frame["x"])
        pm.Poisson("visits", pm.math.exp(pm.Normal("b", 0, 1) * x / x.shape[0]), observed=frame["visits"])
    return found


class SomebodysScalar(UnaryScalarOp):
    """An operation on single numbers that calls Python."""

    nfunc_spec = ("positive", 1, 1)

    def impl(self, x):
        return x

    def pullback(self, inputs, outputs, gradients):
        return gradients

    def grad(self, inputs, gradients):
        return gradients

    def c_code(self, node, name, inputs, outputs, sub):
        return f"{outputs[0]} = {inputs[0]};"


def calling(op):
    """A model that applies an operation to a column."""

    def build(frame):
        with pm.Model() as found:
            rate = pm.math.exp(pm.Normal("b", 0, 1) + op(pm.Data("x", frame["x"])))
            pm.Poisson("visits", rate, observed=frame["visits"])
        return found

    return build


def product(frame):
    with pm.Model() as found:
        both = pm.Data("both", frame["x"] * frame["years"])
        pm.Poisson("visits", pm.math.exp(pm.Normal("b", 0, 1) * both), observed=frame["visits"])
    return found


def failing(frame):
    raise KeyError("nobody")


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (joint, "does not factorise over rows"),
        (centred, "does not depend on its own cells alone"),
        (counted, "does not depend on its own cells alone"),
        (calling(Somebodys()), "which may call a user's function"),
        (product, "not a function of a single column"),
        (failing, "KeyError"),
        (lambda frame: frame, "must return a pymc.Model or a Bambi model; got DataFrame"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_anything_is_charged(build, message):
    ledger = iw.Ledger(1.0, 1e-6)
    with pytest.raises(ValueError, match=f"cannot be measured: .*{message}"):
        iw.publish(
            iw.PrivateTable(rows(300, 1), SCHEMA), epsilon=1.0, delta=1e-6, ledger=ledger, for_models=[iw.model(build)]
        )
    assert ledger.events == ()


class SomebodysGraph(OpFromGraph):
    """A graph that calls Python instead."""

    def perform(self, node, inputs, outputs):
        outputs[0][0] = inputs[0]


def composite(times):
    """Return an operation on single numbers, of which somebody's is a part, so many levels deep."""
    found = SomebodysScalar(upgrade_to_float)
    for _ in range(times):
        number = float64("number")
        found = Composite([number], [found(number) * 2.0])
    return Elemwise(found)


def graph_by_row(kind, inner=lambda number: number * 2.0):
    number = pt.scalar("number")
    return Blockwise(kind([number], [inner(number)]), signature="()->()")


#: Operations of the library that hold one of somebody's.
HOLDING = {
    "by element": lambda: composite(0),
    "in a composite": lambda: composite(1),
    "in a composite of composites": lambda: composite(2),
    "by row": lambda: Blockwise(Somebodys(), signature="()->()"),
    "in a graph by row": lambda: graph_by_row(OpFromGraph, composite(0)),
    "a graph by row": lambda: graph_by_row(SomebodysGraph),
}


@pytest.mark.parametrize("name", HOLDING)
def test_a_function_inside_another_operation_is_refused_too(name):
    with pytest.raises(ValueError, match="its density uses Somebodys(Scalar|Graph)?, which may call a user's function"):
        iw.model(calling(HOLDING[name]())).check(SCHEMA)


def test_a_function_is_called_with_synthetic_rows_only():
    seen, private = list[pd.DataFrame](), iw.PrivateTable(rows(500, 9), SCHEMA)

    def watched(frame):
        seen.append(frame)
        return offset(frame)

    settings = {"epsilon": 1.0, "delta": 1e-6, "noise": iw.SeededNoise(1), "random_seed": 1, "progressbar": False}
    release = iw.publish(private, n_synthetic=700, for_models=[iw.model(watched)], **settings)
    # to check it, and once on the synthetic rows
    assert len(seen) == 2 and private.n_private not in map(len, seen)
    pd.testing.assert_frame_equal(seen[-1], release.synthetic.frame)


def test_names_and_wrong_arguments():
    assert iw.model(offset).name == "offset" and iw.model(offset, name="visits a year").name == "visits a year"
    assert isinstance(iw.model(offset), ScoreModel) and iw.model(offset).to_data() == {"build": "offset"}
    for wrong, error, message in (
        ({"model": 3}, TypeError, "model must be a formula or a function"),
        ({"model": offset, "family": "poisson"}, ValueError, "family must be omitted for a function"),
        ({"model": "y ~ x", "name": "mine"}, ValueError, "name must be omitted for a formula"),
    ):
        with pytest.raises(error, match=message):
            iw.model(**wrong)


def test_the_rows_of_a_trial_have_all_levels_and_missing_cells():
    table = trial_rows(SCHEMA)
    assert set(table.frame["g"]) == {"a", "b", "c"} and table.frame["income"].isna().sum() == 1
    assert table.frame["x"].min() == -2 and table.frame["visits"].max() == 30


def test_the_rows_of_a_trial_have_whole_dates():
    """Otherwise no model of a table with dates could be measured."""
    dated = iw.Schema(*SCHEMA, iw.Date("since", "2010-01-01", "2019-12-31", unit="month"))
    since = trial_rows(dated).frame["since"]
    assert since.min() == 0 and since.max() == 119


def knots(at: float):
    """A model with data that are not of rows, as knots of splines are."""

    def build(frame: pd.DataFrame) -> pm.Model:
        with pm.Model() as found:
            x, knot = pm.Data("x", frame["x"]), pm.Data("knot", at)
            b = pm.Normal("b", 0, 1)
            pm.Normal("income", b * pm.math.maximum(x - knot, 0), 1, observed=frame["x"])
        return found

    return build


def prior_from_rows(frame: pd.DataFrame) -> pm.Model:
    with pm.Model() as found:
        b = pm.Normal("b", 0, 2 + frame["x"].std())
        pm.Normal("x", b + pm.Data("years", frame["years"]), 1, observed=frame["x"])
    return found


def start_from_rows(frame: pd.DataFrame) -> pm.Model:
    """The hyperparameter stays at its initial value."""
    with pm.Model() as found:
        mean = pm.Normal("mean", 0, 1, initval=frame["x"].mean())
        b = pm.Normal("b", mean, 1, shape=3)
        group = pm.Data("group", pd.factorize(frame["g"].astype(str))[0])  # numbers in the order of the rows
        pm.Normal("x", b[group], 1, observed=frame["x"])
    return found


@pytest.mark.parametrize(
    ("first", "second", "shares"),
    [
        (offset, offset, True), (start_from_rows, start_from_rows, True), (knots(0.5), knots(0.5), True),
        (knots(0.5), knots(1.5), False), (prior_from_rows, prior_from_rows, False), (offset, knots(0.5), False),
    ],
    ids=["offset", "start", "knots", "other knots", "prior", "other model"],
)  # fmt: skip
def test_models_that_differ_in_their_data_only_share_functions(first, second, shares):
    """In replays, making functions took most of the time; the scores are those of a model that was made alone."""
    other, private = synthetic_table(rows(N, 12), SCHEMA), canonical(rows(250, 13))
    weights, builds = np.random.default_rng(14).gamma(2.0, 1.0, N), iter([first, second])
    model = iw.model(lambda frame: next(builds)(frame), name="both")
    one = model.on(TABLE)(weights)
    scores = one(private)
    two, alone = model.on(other)(weights), iw.model(second).on(other)(weights)
    assert (two.function is one.function) == shares
    assert_array_equal(two.theta, alone.theta)
    assert_array_equal(two(private), alone(private))
    assert_array_equal(one(private), scores)  # and those of the first stay its own


def test_threads_share_no_functions():
    """A function of PyTensor keeps its inputs between calls, so two threads would read each other's."""
    model, weights = iw.model(offset), np.ones(N)
    with ThreadPoolExecutor(1) as other:
        there = other.submit(lambda: model.on(TABLE)(weights)).result()
    here = model.on(TABLE)(weights)
    assert here.function is not there.function
    assert cloudpickle.loads(cloudpickle.dumps(model)).name == "offset"


@pytest.mark.pythons("3.12", "3.13")
def test_a_release_names_the_function_and_is_replayed_with_it(tmp_path):
    private = iw.PrivateTable(rows(500, 8), SCHEMA)
    models = [iw.model(offset), iw.model("x ~ g")]
    release = seeded_release(private, for_models=models, n_synthetic=700, progressbar=False)
    back = iw.load(release.save(tmp_path / "r.iwb", allow_uncertified=True))
    assert back.recipe["for_models"] == ["offset", "x ~ g"] and "features of offset; x ~ g" in " ".join(
        str(back).split()
    )
    assert json.loads(json.dumps(back.recipe["settings"]["weights"]["for_models"]))[0] == {"build": "offset"}
    with pytest.raises(
        ValueError, match=r"model function 'offset' and stores the name only\. Pass it: models=\[iwbayes\.model\(offset"
    ):
        iw.rehearse(back, progressbar=False)
    assert check_replayable(back, models).weights == iw.TiltWeights(for_models=models)
    again = replay(back.to_bytes(), 0, 1, cloudpickle.dumps(tuple(models)))
    assert again == replay(back.to_bytes(), 0, 1, cloudpickle.dumps(tuple(models)))
    weighted = iw.reweight(offset(back.synthetic.frame), back)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a short chain, and of all that the formula does not hold for
        with weighted:
            idata = pm.sample(200, tune=200, chains=2, cores=1, random_seed=1, progressbar=False)
        record = arviz_compat.group(iw.calibrate(idata, weighted, back, random_seed=1), "calibration")
    assert record.attrs["explained_min"] > 0.8
    # nobody knows which columns a function reads, so the release may well have measured this model
    assert "the release was made for" not in record.attrs["reasons"]
