"""A tilt to scores: the price of its stages, what they may look at, and how near it comes to the private rows."""

import json
import math
import warnings
from dataclasses import replace

import numpy as np
import pandas as pd
import pymc as pm
import pytest
from factories import SCHEMA, simulate

import iwbayes as iw
from iwbayes.analyst.calibration.measures.curvature_error import LIMIT as CURVATURE_LIMIT
from iwbayes.curator.privacy.accounting import gaussian_multiplier, price
from iwbayes.curator.protocols import PublicFacts
from iwbayes.curator.weight_providers import score_stages
from iwbayes.curator.weight_providers.score_stages import STAGES, ScoreStages
from iwbayes.evidence.scores import ColumnScores, ScoreMap
from iwbayes.release import load

FORMULA = "y ~ x + z"


def tables(n=1500, m=4000):
    """Private rows, and synthetic rows of another slope."""
    rng = np.random.default_rng(5)
    private = iw.PrivateTable(simulate(rng, n, slope=0.8, shift=0.3), SCHEMA)
    return private, iw.SyntheticTable(simulate(rng, m, slope=0.2), SCHEMA, origin="elsewhere", already_spent=(0, 0))


def ledger(epsilon=1.0, seed=1):
    return iw.Ledger(epsilon, 1e-6, noise=iw.SeededNoise(seed))


class Watched:
    """A model that keeps what it was fitted to."""

    def __init__(self, model):
        self.model, self.seen = model, []
        self.name, self.check, self.to_data = model.name, model.check, model.to_data

    def on(self, synthetic):
        fit = self.model.on(synthetic)

        def at(weights):
            self.seen.append((synthetic, weights))
            return fit(weights)

        return at


def counted(frame):
    """A PyMC model of a table with levels."""
    with pm.Model() as model:
        level = pm.Data("g", frame["g"].cat.codes.to_numpy())
        effect = pm.Normal("effect", 0, 2, shape=3)
        pm.Bernoulli("y", logit_p=effect[level], observed=frame["y"].astype(float).to_numpy())
    return model


def estimates(formula, rows, weights):
    """Mode of a regression under weights of rows, by the package's own scores."""
    scores = iw.model(formula).on(rows)(weights)
    return scores.theta


def test_the_stages_cost_what_the_whole_costs_and_follow_from_public_numbers_only():
    facts = PublicFacts(SCHEMA, 1500, 4000)
    events = iw.TiltWeights(for_models=[iw.model(FORMULA)]).events(facts, epsilon=0.7, delta=1e-6)
    assert [event.label for event in events] == [f"TiltWeights, stage {stage}" for stage in (1, 2, 3, 4)]
    assert price(events, 1e-6)[0] <= 0.7 and price(events, 1e-6)[0] == pytest.approx(0.7, rel=1e-6)
    whole = gaussian_multiplier(0.7, 1e-6)
    for event, share in zip(events, STAGES, strict=True):
        assert event.noise_multiplier == pytest.approx(whole / math.sqrt(share), rel=1e-9)
    private, synthetic = tables()
    charged = []
    for seed in (1, 2):  # other noise, other synthetic rows: the same multipliers
        account = ledger(seed=seed)
        rows = iw.SyntheticTable(synthetic.frame.iloc[:: seed + 1], SCHEMA, origin="elsewhere", already_spent=(0, 0))
        iw.TiltWeights(for_models=[iw.model(FORMULA)]).fit(private, rows, account, epsilon=0.7, delta=1e-6)
        charged.append([event.noise_multiplier for event in account.statement().events[-4:]])
    assert charged[0] == charged[1] == [event.noise_multiplier for event in events]


def test_models_see_synthetic_rows_only_with_the_weights_of_the_stage_before():
    private, synthetic = tables()
    model = Watched(iw.model(FORMULA))
    weights = iw.TiltWeights(for_models=[model]).fit(private, synthetic, ledger(), epsilon=1.0, delta=1e-6)
    assert len(model.seen) == len(STAGES) and all(rows is synthetic for rows, _ in model.seen)
    sums = [own.sum() for _, own in model.seen]
    np.testing.assert_allclose(sums, private.n_private)
    assert np.ptp(model.seen[0][1]) == 0 and all(np.ptp(own) > 0 for _, own in model.seen[1:])
    # the last stage's base and coefficients give the weights
    phi = weights.measurement.features.values[:, :-1]
    log_base = np.log(model.seen[-1][1])
    gap = weights.log_weights[0] - log_base - phi @ weights.measurement.coefficients
    assert np.ptp(gap) < 1e-9


def test_without_noise_the_estimate_is_that_of_the_private_rows():
    private, synthetic = tables()
    truth = estimates(FORMULA, iw.SyntheticTable(private.frame, SCHEMA), np.ones(1500))
    before = estimates(FORMULA, synthetic, np.full(4000, 1500 / 4000))
    weights = iw.TiltWeights(for_models=[iw.model(FORMULA)]).fit(
        private, synthetic, ledger(1e6), epsilon=1e5, delta=1e-6
    )
    after = estimates(FORMULA, synthetic, weights.values * 1500 / 4000)
    assert np.abs(after - truth).max() < 0.02 < 0.1 < np.abs(before - truth).max()


def related_tables(n, m, *, seed=8, blurred=True):
    """Private rows with two predictors that nearly agree, and synthetic rows whose generator missed that."""
    schema = iw.Schema(iw.Binary("y"), iw.Real("a", -4, 4), iw.Real("b", -4, 4))

    def rows(size, apart, rng):
        a = rng.normal(size=size)
        b = a + apart * rng.normal(size=size) if apart else rng.normal(size=size)
        y = rng.random(size) < 1 / (1 + np.exp(-(a - 0.5 * b)))
        return pd.DataFrame({"y": y.astype(int), "a": np.clip(a, -4, 4), "b": np.clip(b, -4, 4)})

    rng = np.random.default_rng(seed)
    private = iw.PrivateTable(rows(n, 0.3, rng), schema)
    synthetic = iw.SyntheticTable(rows(m, 0.0 if blurred else 0.3, rng), schema, already_spent=(0, 0), origin="else")
    return private, synthetic


def sd_of(frame, shares, theta):
    """Standard deviations of the coefficients of y ~ a + b by the curvature of these rows."""
    x = np.column_stack([np.ones(len(frame)), frame["a"], frame["b"]])
    mean = 1 / (1 + np.exp(-x @ theta))
    return np.sqrt(np.diag(np.linalg.inv((x * (shares * mean * (1 - mean))[:, None]).T @ x)))


@pytest.mark.parametrize("planted", [False, True], ids=["as it is", "planted: without products"])
def test_how_strongly_predictors_are_related_is_measured(monkeypatch, planted):
    """No score tells it, and rows in which predictors are unrelated make intervals several times too short."""
    if planted:
        monkeypatch.setattr(score_stages, "PRODUCT_NOISE", 0.0)
    private, synthetic = related_tables(4000, 12_000)
    release = iw.publish(
        private, generator=synthetic, for_models=["y ~ a + b"], epsilon=2.0, delta=1e-6, noise=iw.SeededNoise(3),
        random_seed=1, progressbar=False,
    )  # fmt: skip
    of_columns = release.weights.measurement.columns
    assert any(len(term) > 1 for term in of_columns.features.terms) is not planted
    theta = estimates("y ~ a + b", iw.SyntheticTable(private.frame, private.schema), np.ones(4000))
    shares = release.weights.values / release.weights.values.sum()
    ratio = sd_of(synthetic.frame, shares, theta)[1:] / sd_of(private.frame, np.full(4000, 1 / 4000), theta)[1:]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", iw.CalibrationWarning)
        record = iw.fit("y ~ a + b", release, random_seed=1, draws=200, progressbar=False)["calibration"]
    error = record["curvature_error"].sel(parameter=["a", "b"]).to_numpy()
    good = record["calibrated"].sel(parameter=["a", "b"]).to_numpy()
    if planted:
        assert ratio.max() < 0.6 and error.min() > CURVATURE_LIMIT and not good.any()
    else:
        assert np.abs(ratio - 1).max() < 3 * error.max() and error.max() < CURVATURE_LIMIT and good.all()


def test_the_mean_of_columns_has_independent_noise_of_the_stage():
    """Noise of one variance in a stage's coordinates is that in the coordinates of its columns."""
    _, synthetic = related_tables(10, 3000)
    shares = np.full(3000, 1 / 3000)
    score = iw.model("y ~ a + b").on(synthetic)(np.ones(3000))
    [columns] = ColumnScores.read_by([score], synthetic.schema, products=True)
    features = ScoreMap.whitened([score, columns], synthetic, shares).with_bound(1e6)
    own, turned = features.of_columns(synthetic.schema)
    np.testing.assert_allclose(turned.T @ turned, np.eye(turned.shape[1]), atol=1e-8)
    z = features.transform(synthetic.frame)[:, :-1]
    np.testing.assert_allclose(z @ turned, own.transform(synthetic.frame), atol=1e-6)
    assert set(own.terms) == {(1,), (2,), (1, 1), (1, 2), (2, 2)}
    assert ScoreMap.whitened([score], synthetic, shares).of_columns(synthetic.schema) is None


def test_columns_that_depend_on_each_other_are_what_was_measured():
    """The levels of a column add up to one, and after a tilt some of them may have next to no weight."""
    rng = np.random.default_rng(7)
    schema = iw.Schema(iw.Binary("y"), iw.Categorical("g", ("a", "b", "c", "rare")), iw.Real("x", 0, 9))
    g = rng.choice(["a", "b", "c", "rare"], 4000, p=[0.7, 0.25, 0.045, 0.005])
    frame = pd.DataFrame({"y": rng.integers(0, 2, 4000), "g": g, "x": rng.uniform(0, 9, 4000)})
    synthetic, shares = iw.SyntheticTable(frame, schema), np.where(g == "rare", 1e-12, 1.0)
    shares = shares / shares.sum()
    score = iw.model("y ~ g + x").on(synthetic)(np.ones(4000))
    [columns] = ColumnScores.read_by([score], schema, products=True)
    features = ScoreMap.whitened([score, columns], synthetic, shares).with_bound(1e9)
    own, turned = features.of_columns(schema)
    z = features.transform(synthetic.frame)[:, :-1]
    common = g != "rare"
    np.testing.assert_allclose((z @ turned)[common], own.transform(synthetic.frame)[common], atol=1e-5)
    assert own.n_coordinates == 8  # three levels, x, its square and its three products: no weight hides them


@pytest.mark.parametrize("build", [None, counted], ids=["formula", "PyMC"])
def test_how_many_rows_have_a_rare_level_is_measured(build):
    """No score tells it, and ten times too many rows make the level's interval three times too short."""
    schema = iw.Schema(iw.Binary("y"), iw.Categorical("g", ("a", "b", "rare")), iw.Real("beside", 0, 1))

    def rows(n, rare, seed):
        rng = np.random.default_rng(seed)
        level = rng.choice(["a", "b", "rare"], n, p=[0.8 - rare, 0.2, rare])
        y = (rng.random(n) < np.where(level == "rare", 0.3, 0.5)).astype(int)
        return pd.DataFrame({"y": y, "g": level, "beside": rng.random(n)})

    private = iw.PrivateTable(rows(10_000, 0.01, 1), schema)
    synthetic = iw.SyntheticTable(rows(20_000, 0.1, 2), schema, origin="elsewhere", already_spent=(0, 0))
    model = iw.model("y ~ g") if build is None else iw.model(build)
    weights = iw.TiltWeights(for_models=[model]).fit(private, synthetic, ledger(3.0), epsilon=2.0, delta=1e-6)
    share = np.average((synthetic.frame["g"] == "rare").to_numpy(float), weights=weights.values)
    assert abs(share - 0.01) < 0.005
    assert model.on(synthetic)(np.ones(20_000)).columns == ("g",)


def test_it_is_nearer_than_a_tilt_to_products():
    private, synthetic = tables()
    truth = estimates(FORMULA, iw.SyntheticTable(private.frame, SCHEMA), np.ones(1500))
    errors = {}
    for name, provider in (("staged", iw.TiltWeights(for_models=[iw.model(FORMULA)])), ("products", iw.TiltWeights())):
        found = []
        for seed in range(8):
            weights = provider.fit(private, synthetic, ledger(seed=seed), epsilon=0.5, delta=1e-6)
            found.append(estimates(FORMULA, synthetic, weights.values * 1500 / 4000) - truth)
        errors[name] = np.sqrt(np.mean(np.square(found)))
    assert errors["staged"] < 0.7 * errors["products"]


class OfOthers:
    """A planted defect: scores that look at other rows."""

    name, to_data = "defect", staticmethod(lambda: None)

    def check(self, schema):
        pass

    def on(self, synthetic):
        return lambda weights: self

    def __call__(self, rows):
        y = rows[["y", "x"]].to_numpy(dtype=float)
        return y - y.mean(axis=0)

    response, columns = None, ()

    def digest(self):
        return "defect"


def alone(model, rows, others):
    """Whether each row's scores stay where other rows change."""
    scores = model.on(rows)(np.ones(len(rows)))
    mixed = rows.frame.copy()
    mixed.iloc[::2] = others.frame.iloc[::2]
    return np.array_equal(scores(rows.frame)[1::2], scores(mixed)[1::2], equal_nan=True)


def test_a_score_that_looks_at_other_rows_would_be_seen():
    rng = np.random.default_rng(3)
    one, two = (iw.SyntheticTable(simulate(rng, 400), SCHEMA) for _ in range(2))
    assert alone(iw.model(FORMULA), one, two) and not alone(OfOthers(), one, two)


def test_a_clip_that_is_left_out_is_a_defect_before_noise_is_drawn(monkeypatch):
    private, synthetic = tables()

    def unclipped(self, z):
        return np.column_stack([z, np.zeros(len(z))])

    monkeypatch.setattr(ScoreMap, "clip", unclipped)
    account = ledger()
    with pytest.raises(
        RuntimeError, match="exceed their bound. This is a bug in iwbayes; please report it. No noise was drawn"
    ):
        iw.TiltWeights(for_models=[iw.model(FORMULA)]).fit(private, synthetic, account, epsilon=1.0, delta=1e-6)


BAD = 0.123456789  # a cell for which scores fail


class Failing:
    """Scores that raise for some rows, with one of their values in the message."""

    def __init__(self, scores):
        self.scores, self.response, self.columns, self.digest = scores, None, scores.columns, scores.digest

    def __call__(self, frame):
        if (frame["x"] == BAD).any():
            raise KeyError(f"the secret {BAD}")
        return self.scores(frame)


def test_a_row_whose_scores_fail_counts_as_clipped_and_affects_no_other_row():
    private, synthetic = tables()
    own = iw.model(FORMULA).on(synthetic)(np.ones(len(synthetic)))
    features = ScoreMap.whitened([Failing(own)], synthetic, np.full(len(synthetic), 1 / len(synthetic)))
    frame, lost = private.frame.copy(), [3, 70]
    expected = features.transform(frame)
    frame.loc[lost, "x"] = BAD
    found, others = features.transform(frame), np.setdiff1d(np.arange(len(frame)), lost)
    np.testing.assert_array_equal(found[others], expected[others])
    assert (found[lost, :-1] == 0).all() and (found[lost, -1] == features.flag_height).all()


class OnlySynthetic(OfOthers):
    """A model whose scores fail for one private row, or for all."""

    def __init__(self, all_fail):
        self.all_fail = all_fail

    def __call__(self, rows):
        if (rows["x"] == BAD).any() or (self.all_fail and len(rows) < 2000):
            raise KeyError(f"the secret {BAD}")
        return rows[["y", "x"]].to_numpy(dtype=float)


@pytest.mark.parametrize("all_fail", [False, True])
def test_scores_that_fail_on_private_rows_tell_nothing_of_them(all_fail, capfd, recwarn):
    private, synthetic = tables()
    frame = private.frame.copy()
    frame.loc[5, "x"] = BAD
    for rows in (private, iw.PrivateTable(frame, SCHEMA)):
        iw.TiltWeights(for_models=[OnlySynthetic(all_fail)]).fit(rows, synthetic, ledger(), epsilon=1.0, delta=1e-6)
        assert capfd.readouterr() == ("", "") and not recwarn.list


class Modeless(OfOthers):
    name = "modeless"

    def on(self, synthetic):
        raise RuntimeError("no mode")


class Scoreless(OfOthers):
    def __call__(self, rows):
        return np.full((len(rows), 2), np.nan)


class Constant(OfOthers):
    def __call__(self, rows):
        return np.ones((len(rows), 2))


@pytest.mark.parametrize("model", [Modeless(), Scoreless(), Constant()], ids=lambda model: type(model).__name__)
def test_models_without_scores_leave_the_columns_to_be_measured(model):
    private, synthetic = tables()
    weights = iw.TiltWeights(for_models=[model]).fit(private, synthetic, ledger(), epsilon=1.0, delta=1e-6)
    assert weights.measurement.features.terms in ("linear", "squares", "quadratic") and np.ptp(weights.values) > 0
    assert math.isnan(weights.measurement.misfit)  # that of scores is not known


def test_a_model_that_loses_its_mode_in_a_later_stage_keeps_what_was_measured(monkeypatch):
    private, synthetic = tables()
    design, calls = ScoreStages.design, []

    def at_first(self, *arguments):
        calls.append(arguments)
        return design(self, *arguments) if len(calls) == 1 else None

    monkeypatch.setattr(ScoreStages, "design", at_first)
    weights = iw.TiltWeights(for_models=[iw.model(FORMULA)]).fit(private, synthetic, ledger(), epsilon=1.0, delta=1e-6)
    assert len(calls) == 2 and weights.measurement is not None and np.ptp(weights.values) > 0


def test_rows_that_are_all_alike_stay_as_they_are():
    private, synthetic = tables()
    same = iw.SyntheticTable(synthetic.frame.iloc[[0] * 50], SCHEMA, origin="elsewhere", already_spent=(0, 0))
    account = ledger()
    weights = iw.TiltWeights(for_models=[iw.model(FORMULA)]).fit(private, same, account, epsilon=1.0, delta=1e-6)
    assert "alike" in weights.method and np.ptp(weights.values) == 0 and weights.measurement is None


@pytest.mark.parametrize(
    ("models", "error", "why"),
    [
        ({"for_models": "y ~ x"}, TypeError, "for_models must be a list of formulas"),
        ({"for_models": [3]}, TypeError, "for_models must contain formulas .* or models from iwbayes.model; got int"),
        ({"for_models": ["y ~ x"], "mechanism": "cube"}, ValueError, "need mechanism='gaussian'.*features='products'"),
        ({"for_models": ["y ~ x"], "features": "linear"}, ValueError, "must be 'auto', 'scores' or 'products'"),
        ({"for_models": ["y ~ x"], "test_of_fit": True}, ValueError, "scores have no such test"),
    ],
)
def test_settings_that_models_do_not_have(models, error, why):
    with pytest.raises(error, match=why):
        iw.TiltWeights(**models)


@pytest.mark.parametrize("features", ["scores", "products"])
def test_features_of_models_need_models_before_anything_is_charged(features):
    private, synthetic = tables()
    account = ledger()
    with pytest.raises(ValueError, match=f"features='{features}' needs for_models"):
        iw.TiltWeights(features=features).fit(private, synthetic, account, epsilon=1.0, delta=1e-6)
    assert account.events == ()


def test_formulas_are_models_and_other_weights_may_come_first():
    """The stages start from the weights of a base, whose statistics take their part of the budget."""
    assert iw.TiltWeights(for_models=["y ~ x"]).for_models[0].name == "y ~ x"
    private, synthetic = tables()
    first = np.where(synthetic.frame["y"] == synthetic.frame["y"].iloc[0], 0.5, -0.5)
    given = iw.TiltWeights(for_models=[FORMULA], base=iw.Weights(first, "given"))
    plain = iw.TiltWeights(for_models=[FORMULA])
    found = [one.fit(private, synthetic, ledger(), epsilon=1.0, delta=1e-6) for one in (given, plain)]
    assert found[0].method.endswith(" on given)") and len(found[0]) == len(synthetic)
    assert not np.allclose(found[0].values, found[1].values)
    base = iw.paper.LogisticWeights()
    facts = PublicFacts(SCHEMA, 3000, 3000)
    events = iw.TiltWeights(for_models=[FORMULA], base=base).events(facts, epsilon=1.0, delta=1e-6)
    assert [event.label for event in events][1:] == [f"TiltWeights, stage {stage}" for stage in (1, 2, 3, 4)]
    assert price(events, 1e-6)[0] <= 1.0


def test_models_that_the_schema_lacks_cost_nothing():
    private, synthetic = tables()
    account = ledger()
    for provider in (
        iw.TiltWeights(for_models=[iw.model("y ~ nobody")]),
        iw.TiltWeights(for_models=[iw.model(FORMULA), iw.model("y ~ 1 |")]),
    ):
        with pytest.raises(ValueError, match=r"nobody|cannot be read|one right-hand side"):
            provider.fit(private, synthetic, account, epsilon=1.0, delta=1e-6)
        with pytest.raises(ValueError, match=r"nobody|cannot be read|one right-hand side"):
            iw.publish(private, epsilon=1.0, delta=1e-6, weights=provider, ledger=account, progressbar=False)
    assert account.spent == (0.0, 0.0)


def test_a_release_in_stages_is_stored_replayed_and_calibrated(tmp_path):
    private, _ = tables()
    weights = iw.TiltWeights(for_models=[iw.model(FORMULA), iw.model("z ~ x")])
    release = iw.publish(
        private, epsilon=3.0, delta=1e-6, weights=weights, noise=iw.SeededNoise(2), random_seed=1, progressbar=False
    )
    path = tmp_path / "release.iwb"
    release.save(path, allow_uncertified=True)
    again = load(path)
    assert again.to_bytes() == release.to_bytes() and json.loads(json.dumps(again.recipe)) == release.recipe
    one, other = (found.weights.measurement for found in (again, release))
    np.testing.assert_array_equal(one.features.values, other.features.values)
    assert one.misfit == other.misfit and math.isfinite(one.misfit)
    short = iw.SyntheticTable(again.synthetic.frame.iloc[:-1], SCHEMA)
    lost = iw.Weights(again.weights.log_weights[:, :-1], "test", measurement=one)
    with pytest.raises(ValueError, match="were measured for"):
        iw.Release(short, lost, again.statement, n_private=again.n_private)
    rehearsals = iw.rehearse(again, 10, random_seed=1, progressbar=False)
    stages = [event.label for event in rehearsals[0].statement.events]
    assert stages[-4:] == [event.label for event in release.statement.events][-4:]
    idata = iw.fit(FORMULA, again, rehearsals=rehearsals, random_seed=1)
    record = getattr(idata["calibration"], "dataset", idata["calibration"])
    assert record["calibrated"].values.all() and (record["sd_rehearsed"].values > 0).all()
    damaged = replace(release, recipe={**release.recipe, "settings": {**release.recipe["settings"], "weights": None}})
    with pytest.raises(ValueError, match="cannot be replayed"):
        iw.rehearse(damaged, 10, random_seed=1, progressbar=False)
