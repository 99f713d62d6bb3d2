"""Scores as features: a row's scores depend on this row alone, and no row moves their mean by more than the bound."""

import warnings
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from posterior_tools import problem_of

import iwbayes as iw
from iwbayes.evidence import FeatureMap
from iwbayes.evidence.scores import RowFeatures, ScoreMap

N = 1500
SCHEMA = iw.Schema(
    iw.Real("a", 0, 1, missing=True),
    iw.Categorical("g", levels=("u", "v", "w", "z")),
    iw.Binary("b", levels=("no", "yes")),
    iw.Integer("c", 0, 9),
    iw.Real("y", -5, 8),
    iw.Categorical("k", levels=("r", "s", "t")),
)
MODELS = {
    "gaussian": iw.model("y ~ a + g + b"),
    "interaction": iw.model("b ~ a*g + c"),
    "poisson": iw.model("c ~ a + poly(a, 2) + C(g)", family="poisson"),
    "categorical": iw.model("k ~ a + center(c)"),
    "expression": iw.model("I(y**2) ~ scale(c) + b"),
}


def frame(rng, n, levels="uvw"):
    rows = pd.DataFrame(
        {
            "a": rng.uniform(0, 1, n),
            "g": rng.choice(list(levels), n),
            "b": rng.choice(["no", "yes"], n),
            "c": rng.poisson(3, n).clip(0, 9),
            "k": rng.choice(list("rst"), n),
        }
    )
    rows["y"] = (rows.a + rng.normal(size=n)).clip(-5, 8)
    rows.loc[rng.random(n) < 0.1, "a"] = np.nan
    return rows[list(SCHEMA.names)]


def synthetic(seed=0):
    return iw.SyntheticTable(frame(np.random.default_rng(seed), N), SCHEMA)


@pytest.mark.parametrize("name", MODELS)
def test_scores_are_those_of_the_posterior_at_its_mode(name):
    table = synthetic()
    scores = MODELS[name].on(table)(np.full(N, 400 / N))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        weights = iw.Weights(np.zeros((1, N)), "equal")
        release = iw.Release(table, weights, iw.Ledger(1.0, 1e-6).statement(), n_private=400)
        problem = problem_of(MODELS[name].formula, release, MODELS[name].family)
    mode = problem.posterior.mode()
    found = scores(table.frame)
    complete = table.frame[list(problem.posterior.design.schema.names)].notna().all(axis=1).to_numpy()
    p = len(mode.theta)
    np.testing.assert_allclose(found[:, :p], problem.posterior.scores(mode.theta), rtol=1e-6, atol=1e-8)
    assert (found[~complete] == 0).all()
    if not complete.all():  # how many rows are complete is told as well
        np.testing.assert_array_equal(found[:, p:], complete[:, None].astype(float))


@pytest.mark.parametrize("name", MODELS)
def test_the_scores_of_a_row_depend_on_this_row_alone(name):
    """To the last bit, also where others lose a cell or have a level that no synthetic row has; and no warning."""
    rng = np.random.default_rng(1)
    table = synthetic()
    features = ScoreMap.whitened([MODELS[name].on(table)(np.full(N, 1.0))], table, np.full(N, 1 / N))
    rows = iw.SyntheticTable(frame(rng, 300), SCHEMA).frame
    before = features.transform(rows)
    for other in (frame(rng, 300), frame(rng, 300, "z"), frame(rng, 300).assign(a=np.nan)):
        changed = rng.choice(300, 40, replace=False)
        mixed = rows.copy()
        mixed.iloc[changed] = iw.SyntheticTable(other, SCHEMA).frame.iloc[changed]
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            after = features.transform(mixed)
        kept = np.delete(np.arange(300), changed)
        np.testing.assert_array_equal(before[kept], after[kept])
        assert np.linalg.norm(after[:, :-1], axis=1).max() <= features.bound * (1 + 1e-12)


@pytest.mark.parametrize("name", [*MODELS, "products of columns"])
def test_the_rounding_of_a_row_depends_neither_on_its_place_nor_on_how_many_rows_there_are(name):
    """If users own several rows, the number of rows is private, and a sum of rounded rows may not tell it."""
    table = synthetic()
    if name in MODELS:
        features = ScoreMap.whitened([MODELS[name].on(table)(np.full(N, 1.0))], table, np.full(N, 1 / N))
    else:
        features = FeatureMap.whitened(table, "quadratic")
    rows = iw.SyntheticTable(frame(np.random.default_rng(1), 200), SCHEMA).frame
    whole = features.transform(rows)
    for part in (slice(0, 1), slice(3, 5), slice(0, 3), slice(7, 70), slice(0, 65), slice(1, 128), slice(0, 199)):
        np.testing.assert_array_equal(features.transform(rows.iloc[part]), whole[part])


@pytest.mark.parametrize("name", ["interaction", "categorical", "gaussian"])
def test_the_features_of_a_row_are_the_same_whether_another_is_far_or_not(name):
    """To the last bit: with levels of the response, only rows that are far under one of them are centred."""
    table = synthetic()
    features = ScoreMap.whitened([MODELS[name].on(table)(np.full(N, 1.0))], table, np.full(N, 1 / N))
    score = features.scores[0]
    raw = score(table.frame)[None] if score.response is None else score.outcomes(table.frame).scores
    norms = np.linalg.norm((raw - features.center) @ features.whitener, axis=2).max(axis=0)
    far, near = (table.frame[mask].iloc[:60] for mask in (norms > features.bound, norms < 0.99 * features.bound))
    assert len(far) == len(near) == 60
    all_far, all_near = features.transform(far), features.transform(near)
    for chosen in (np.arange(60) == 7, np.arange(60) != 7, np.arange(60) < 30):
        rows = pd.concat([far, near]).iloc[np.where(chosen, np.arange(60), np.arange(60, 120))]
        np.testing.assert_array_equal(features.transform(rows), np.where(chosen[:, None], all_far, all_near))


@pytest.mark.parametrize(("name", "response"), [("interaction", "b"), ("categorical", "k")])
def test_clipping_shifts_no_mean_given_the_predictors(name, response):
    """Which is what a model says of its scores: the mean over all that the response could be is zero at the mode."""
    table = synthetic()
    scores = MODELS[name].on(table)(np.full(N, 1.0))
    features = ScoreMap.whitened([scores], table, np.full(N, 1 / N))
    features = features.with_bound(0.5 * features.bound)
    rows = table.frame.dropna().iloc[:200]
    found = scores.outcomes(rows)
    np.testing.assert_allclose(found.probabilities.sum(axis=0), 1)
    own = [level for level in SCHEMA[response].levels]
    with_each = [rows.assign(**{response: pd.Categorical([level] * len(rows), categories=own)}) for level in own]
    for raw, mixed in zip(found.scores, with_each, strict=True):
        np.testing.assert_array_equal(raw, scores(mixed))
    np.testing.assert_array_equal(found.scores[found.observed, np.arange(len(rows))], scores(rows))
    weighted = np.einsum("vr,vrp->rp", found.probabilities, found.scores)
    body = slice(0, found.scores.shape[2] - 1)  # the last says that the row is complete
    np.testing.assert_allclose(weighted[:, body], 0, atol=1e-9)

    def shift(transform):
        means = np.einsum("vr,vrk->rk", found.probabilities, [transform(mixed) for mixed in with_each])
        return np.linalg.norm(means - (weighted - features.center) @ features.whitener, axis=1)

    clipped = shift(lambda frame: features.clip((scores(frame) - features.center) @ features.whitener)[:, :-1])
    centred = shift(lambda frame: features.transform(frame)[:, :-1])
    assert np.mean(clipped > 0.05 * features.bound) > 0.2
    assert centred.max() < 0.05 * clipped.max() and np.median(centred) < 1e-3 * features.bound


def test_models_of_one_response_are_centred_together_and_others_not_at_all():
    table = synthetic()
    of = {name: MODELS[name].on(table)(np.full(N, 1.0)) for name in MODELS}
    also = iw.model("b ~ g").on(table)(np.full(N, 1.0))
    same = ScoreMap.whitened([of["interaction"], also], table, np.full(N, 1 / N))
    other = ScoreMap.whitened([of["interaction"], of["categorical"]], table, np.full(N, 1 / N))
    assert of["gaussian"].response is None is of["poisson"].response
    for features, alike in ((same, False), (other, True)):
        raw = np.hstack([scores(table.frame) for scores in features.scores])
        clipped = features.clip((raw - features.center) @ features.whitener)
        found = features.transform(table.frame)
        np.testing.assert_array_equal(found[:, -1], clipped[:, -1])
        assert np.allclose(found, clipped) == alike


def test_a_row_without_a_score_is_zero_and_counts_as_clipped():
    table = synthetic()
    features = ScoreMap.whitened([MODELS["gaussian"].on(table)(np.full(N, 1.0))], table, np.full(N, 1 / N))
    rows = table.frame.iloc[:4].copy()
    rows["a"] = 0.5
    rows.iloc[1, 1] = "z"  # a level without a coefficient
    phi = features.transform(rows)
    assert (phi[1, :-1] == 0).all() and phi[1, -1] == features.flag_height
    assert (phi[[0, 2, 3], :-1] != 0).any(axis=1).all()


class Broken:
    """Scores that are no numbers in some rows, and huge in others."""

    def __call__(self, rows):
        y = rows["y"].to_numpy(dtype=float)
        return np.column_stack([np.where(y > 2, np.nan, y), np.where(y < -1, np.inf, np.where(y > 1, 1e300 * y, y))])

    response, columns = None, ()

    def digest(self):
        return "broken"


def test_scores_that_are_no_numbers_never_pass_the_bound():
    table = synthetic()
    features = ScoreMap((Broken(),), np.zeros(2), np.eye(2), 1.5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        phi = features.transform(table.frame)
    y = table.frame["y"].to_numpy(dtype=float)
    assert np.isfinite(phi).all() and np.linalg.norm(phi[:, :-1], axis=1).max() <= 1.5 * (1 + 1e-12)
    broken = (y > 2) | (y < -1)
    assert broken.any() and (phi[broken, :-1] == 0).all() and (phi[broken, -1] == 0.75).all()


def test_features_of_rows_are_those_of_the_rows_and_of_no_others():
    table = synthetic()
    features = ScoreMap.whitened([MODELS["poisson"].on(table)(np.full(N, 1.0))], table, np.full(N, 1 / N))
    known = features.of_rows(table)
    np.testing.assert_array_equal(known.transform(table.frame), features.transform(table.frame))
    settings, arrays = known.to_arrays()
    again = RowFeatures.from_arrays(SCHEMA, settings, arrays)
    np.testing.assert_array_equal(again.values, known.values)
    assert again.to_arrays()[0] == settings and again.dim == features.dim
    np.testing.assert_array_equal(again.back, known.back)
    with pytest.raises(ValueError, match="features belong to the 1500 rows of a release; got 3"):
        known.transform(table.frame.iloc[:3])
    for values, why in (
        (known.values * 2, "norms within the bound"),
        (np.full((3, 2), np.nan), "finite"),
        (np.zeros(3), "of shape"),
        (np.zeros((3, 1)), "of shape"),
    ):
        with pytest.raises(ValueError, match=why):
            RowFeatures(SCHEMA, values, known.bound, True, "x")
    for back in (np.zeros((1, 1)), np.full(known.back.shape, np.inf)):
        with pytest.raises(ValueError, match="back must have finite numbers"):
            RowFeatures(SCHEMA, known.values, known.bound, True, "x", names=known.names, back=back)


@pytest.mark.parametrize("name", MODELS)
def test_raw_scores_have_names_and_are_linear_in_the_features(name):
    table = synthetic()
    found = MODELS[name].on(table)(np.full(N, 1.0))
    features = ScoreMap.whitened([found], table, np.full(N, 1 / N)).with_bound(1e9)
    known, raw = features.of_rows(table), found(table.frame)
    assert len(set(known.names)) == len(known.names) == raw.shape[1] and known.names[0].startswith("Intercept")
    np.testing.assert_allclose(known.values[:, :-1] @ known.back, raw - raw.mean(axis=0), atol=1e-6 * np.abs(raw).max())
    nameless = replace(features, scores=(lambda frame: frame,))
    assert nameless.names == tuple(str(number) for number in range(1, raw.shape[1] + 1))
    both = ScoreMap.whitened([found, found], table, np.full(N, 1 / N))
    assert both.names == tuple(f"{name} (model {number})" for number in (1, 2) for name in known.names)


def test_the_digest_changes_with_the_point():
    table = synthetic()
    one, two = (MODELS["gaussian"].on(table)(np.full(N, weight)) for weight in (1.0, 0.1))
    assert one.digest() == MODELS["gaussian"].on(table)(np.full(N, 1.0)).digest() != two.digest()


@pytest.mark.parametrize(
    ("formula", "family", "why"),
    [
        ("y ~ np.exp(a)", None, "not a polynomial"),
        ("y ~ nobody", None, r"must use columns of the schema; got \['nobody'\]"),
        ("c ~ a", None, "must be given for the response 'c', because whole numbers"),
        ("y ~ a", "bernoulli", "the response of family 'bernoulli' must be"),
        ("c ~ a", "negativebinomial", "cannot be made for the formula"),
    ],
)
def test_models_that_cannot_be_measured(formula, family, why):
    with pytest.raises(ValueError, match=why):
        iw.model(formula, family=family).check(SCHEMA)
