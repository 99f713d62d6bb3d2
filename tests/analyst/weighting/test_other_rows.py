"""PyMC models on other rows: what they hold of columns is recognised, and read from the other rows."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pymc as pm
import pytest
from factories import release_of, synthetic_table
from numpy.testing import assert_allclose

import iwbayes as iw
from iwbayes.analyst.inference.model_posterior import ModelPosterior
from iwbayes.analyst.weighting.release_rows import OfColumn

SCHEMA = iw.Schema(
    iw.Real("x", 0.1, 10), iw.Integer("k", 0, 5), iw.Categorical("g", ("a", "b", "c")), iw.Binary("y", ("no", "yes"))
)


def frame(n: int, seed: int, levels: str = "abc") -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    return pd.DataFrame({
        "x": rng.uniform(1, 10, n),
        "k": rng.integers(0, 6, n),
        "g": rng.choice(list(levels), n),
        "y": rng.choice(["no", "yes"], n),
    })  # fmt: skip


TABLE = synthetic_table(frame(300, 1), SCHEMA)
OTHER = synthetic_table(frame(300, 2), SCHEMA)
WEIGHTS = np.random.default_rng(5).gamma(2.0, 1.0, 300)


def test_functions_of_a_column_are_recognised():
    x, k = TABLE.frame["x"].to_numpy(), TABLE.frame["k"].to_numpy(np.float64)
    y, z = np.linspace(0.2, 9.9, 50), np.arange(6.0)
    for function in (lambda v: v, lambda v: 3 - 2 * v, lambda v: v**2 - 5 * v, lambda v: (v - 4) ** 3):
        for cells, others in ((x, y), (k, z)):
            found = OfColumn.of(function(cells), "x", cells, ordered=True)
            values, known = found.at(others)
            assert known.all()
            assert_allclose(values, function(others), rtol=1e-7, atol=1e-6)
    # what rises or falls, between its points; what repeats, at its cells
    assert_allclose(OfColumn.of(np.log(x), "x", x, ordered=True).at(y[6:-3])[0], np.log(y[6:-3]), atol=0.01)
    assert_allclose(OfColumn.of(np.sin(k), "k", k, ordered=True).at(z)[0], np.sin(z), atol=1e-12)
    assert OfColumn.of(np.sin(3 * x), "x", x, ordered=True) is None
    assert OfColumn.of(np.random.default_rng(1).normal(size=300), "x", x, ordered=True) is None
    assert OfColumn.of(x, "k", k, ordered=True) is None
    # what is known has no rounding error, because a model may compare it with other data
    for values in (x, 0.1 * x - 3, x**2):
        found = OfColumn.of(values, "x", x, ordered=True)
        np.testing.assert_array_equal(found.at(x)[0], values)
    np.testing.assert_array_equal(OfColumn.of(x, "x", x, ordered=True).at(y)[0], y)


def test_levels_and_missing_cells():
    codes = np.array([0.0, 1.0, 2.0, 0.0, np.nan, np.nan, 1.0, 2.0])
    found = OfColumn.of(np.where(np.isnan(codes), 7.0, codes == 1), "g", codes, ordered=False)
    values, known = found.at(np.array([1.0, 0.0, np.nan, 3.0]))
    assert values[:3].tolist() == [1.0, 0.0, 7.0] and known.tolist() == [True, True, True, False]
    without = OfColumn.of(np.array([0.0, 1.0, 0.0, 0.0]), "g", codes[:4], ordered=False)
    assert without.at(np.array([np.nan, 1.0]))[1].tolist() == [False, True]


def model(table: iw.SyntheticTable, product: bool = False) -> pm.Model:
    rows = table.frame
    x, k, codes = rows["x"].to_numpy(), rows["k"].to_numpy(np.int64), rows["g"].cat.codes.to_numpy()
    with pm.Model() as found:
        b = pm.Normal("b", 0, 2, shape=3)
        group = pm.Normal("group", 0, 1, shape=3)
        held = pm.Data("k", k)
        predictor = b[0] + b[1] * np.log(x) + b[2] * held + group[codes]
        if product:
            predictor = predictor + 0.1 * (x * k)
        pm.Bernoulli("y", logit_p=predictor, observed=(rows["y"] == "yes").to_numpy(np.int64))
    return found


def moved(table: iw.SyntheticTable, weights: np.ndarray = WEIGHTS) -> ModelPosterior:
    release = release_of(TABLE, np.log(WEIGHTS))
    posterior = ModelPosterior(iw.reweight(model(TABLE), release))
    return posterior.movable(release.synthetic).on_rows(table, weights)


def test_a_model_on_other_rows_is_the_model_of_those_rows():
    theta = np.random.default_rng(3).normal(size=6) * 0.3
    other = release_of(OTHER, np.log(WEIGHTS))
    expected = ModelPosterior(iw.reweight(model(OTHER), other)).with_weights(WEIGHTS)
    found = moved(OTHER)
    # the logarithm is read between its points
    assert_allclose(found.scores(theta), expected.scores(theta), atol=2e-2)
    assert_allclose(found.mode().theta, expected.mode().theta, atol=5e-3)
    assert_allclose(found.mode().precision, expected.mode().precision, rtol=2e-3, atol=0.05)


def test_posteriors_of_several_tables_do_not_disturb_each_other():
    theta = np.full(6, 0.1)
    release = release_of(TABLE, np.log(WEIGHTS))
    weighted = iw.reweight(model(TABLE), release)
    base = ModelPosterior(weighted).movable(release.synthetic)
    there = base.on_rows(OTHER, WEIGHTS)
    first, elsewhere = base.scores(theta), there.scores(theta)
    assert np.abs(first - elsewhere).max() > 0.1
    for _ in range(2):  # rows are loaded before each evaluation
        assert_allclose(base.scores(theta), first)
        assert_allclose(there.scores(theta), elsewhere)
    assert_allclose(first, ModelPosterior(weighted).scores(theta), atol=1e-12)


def test_rows_with_levels_that_the_model_does_not_know_have_no_weight():
    release = release_of(synthetic_table(frame(300, 1, "ab"), SCHEMA), np.log(WEIGHTS))
    posterior = ModelPosterior(iw.reweight(model(release.synthetic), release)).movable(release.synthetic)
    found = posterior.on_rows(OTHER, WEIGHTS)
    assert_allclose(found.weights, np.where(OTHER.frame["g"] == "c", 0.0, WEIGHTS))


def test_models_that_cannot_be_moved():
    release = release_of(TABLE, np.log(WEIGHTS))
    with pytest.raises(ValueError, match="not a function of a single column of the release"):
        ModelPosterior(iw.reweight(model(TABLE, product=True), release)).movable(release.synthetic)
    with pytest.raises(ValueError, match="cannot be evaluated on 300 other rows"):
        ModelPosterior(iw.reweight(model(TABLE), release)).on_rows(OTHER, WEIGHTS)
    with pytest.raises(ValueError, match="cannot be evaluated on 20 other rows"):
        moved(synthetic_table(frame(20, 1), SCHEMA))
    with pm.Model() as bare:
        pm.Normal("y", pm.Normal("b", 0, 1), 1.0, observed=np.zeros(300))
    with pytest.raises(ValueError, match="no column of the release"):
        ModelPosterior(iw.reweight(bare, release.weights, total=300)).movable(release.synthetic)
