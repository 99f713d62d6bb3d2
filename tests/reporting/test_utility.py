"""Utility reports: distances by brute force, what they say first, and what rehearsals expect."""

import re

import numpy as np
import pandas as pd
import pytest
from factories import seeded_release, simulated_table
from numpy.testing import assert_allclose

import iwbayes as iw
from iwbayes.reporting import utility as module

PRIVATE = simulated_table("bernoulli", 1200)


@pytest.fixture(scope="module")
def release():
    return seeded_release(PRIVATE, 1, epsilon=2, n_synthetic=2000, for_models=["y ~ x + z"])


@pytest.fixture(scope="module")
def found(release):
    return iw.validation.utility(release, PRIVATE, random_seed=1)


def test_margins_are_total_variation_distances(release, found):
    rows, weights = release.synthetic.frame, release.weights.values

    def shares(frame, w, names):
        cells = []
        for name in names:
            column = release.synthetic.schema[name]
            if column.kind in ("binary", "categorical"):
                cells.append(frame[name].astype(str).to_numpy())
            else:
                width = (column.upper - column.lower) / 8
                part = np.clip(np.floor((frame[name].to_numpy(float) - column.lower) / width), 0, 7)
                cells.append(part.astype(int).astype(str))
        return pd.Series(w / w.sum()).groupby(["|".join(cell) for cell in zip(*cells, strict=True)]).sum()

    for names in (("x",), ("group",), ("x", "y"), ("x", "group", "y")):
        order = [name for name in release.synthetic.schema.names if name in names]
        truth = shares(PRIVATE.frame, np.ones(len(PRIVATE)), order)
        for column, w in (("unweighted", np.ones(len(rows))), ("weighted", weights)):
            own = shares(rows, w, order)
            both = pd.concat([truth, own], axis=1).fillna(0)
            expected = 0.5 * (both.iloc[:, 0] - both.iloc[:, 1]).abs().sum()
            assert found.margins.loc[" × ".join(order), column] == pytest.approx(expected)
    assert (found.margins["by_chance"] > 0).all() and set(found.margins["order"]) == {1, 2, 3}


def test_correlations_are_weighted_ones(release, found):
    x, z = (release.synthetic.frame[name].to_numpy(float) for name in ("x", "z"))
    w = release.weights.values
    away = [x - np.average(x, weights=w), z - np.average(z, weights=w)]
    expected = np.average(away[0] * away[1], weights=w) / np.sqrt(
        np.average(away[0] ** 2, weights=w) * np.average(away[1] ** 2, weights=w)
    )
    assert found.correlations.loc["x, z", "weighted"] == pytest.approx(expected)
    assert found.correlations.loc["x, z", "private"] == pytest.approx(PRIVATE.frame[["x", "z"]].corr().iloc[0, 1])


def test_a_propensity_score_is_by_chance_for_equal_rows_and_sees_other_ones():
    rng = np.random.default_rng(1)
    z = rng.normal(size=(4000, 2))
    ones = np.ones(2000)
    same = module._propensity(z[:2000], ones, z[2000:], ones, rng)
    assert same[0] < 0.002 and abs(same[1] - 0.5) < 5 * np.sqrt(1 / (12 * 2000) * 2)
    away = module._propensity(z[:2000] + [1, 0], ones, z[2000:], ones, rng)
    assert abs(away[1] - 0.7602) < 0.03  # Phi(1/sqrt 2)
    # weights that undo the difference
    weights = np.exp(z[2000:, 0])
    again = module._propensity(z[:2000] + [1, 0], ones, z[2000:], weights, rng)
    assert again[1] < 0.56 and again[0] < away[0] / 4


def test_the_auc_counts_pairs_and_half_of_the_ties():
    rng = np.random.default_rng(2)
    score, y, w = rng.integers(0, 4, 60) / 4, rng.integers(0, 2, 60).astype(float), rng.gamma(1.0, size=60)
    pairs = [
        (w[i] * w[j], 1.0 if score[i] > score[j] else 0.5 if score[i] == score[j] else 0.0)
        for i in np.flatnonzero(y == 1) for j in np.flatnonzero(y == 0)
    ]  # fmt: skip
    weights, won = np.array(pairs).T
    assert module._auc(score, y, w) == pytest.approx(np.average(won, weights=weights))


def test_regressions_stand_side_by_side(release, found):
    [(formula, table)] = found.regressions.items()
    assert formula == "y ~ x + z" and list(table.index) == ["Intercept", "x", "z"]
    own = iw.summary(iw.fit("y ~ x + z", release, draws=500, log_likelihood=False, random_seed=1), round_to="none")
    assert_allclose(table["weighted"], own["mean"], rtol=0.05)
    other = iw.validation.utility(release, PRIVATE, models=["x ~ z"], random_seed=1)
    assert list(other.regressions) == ["x ~ z"]


def test_it_says_first_that_it_is_private(found):
    html = found.to_html()
    for text in (str(found), re.sub("<[^>]+>", " ", html[html.index("<body") :])):
        place = text.index("PRIVATE OUTPUT")
        assert place < text.index("total variation") and "no privacy statement covers" in " ".join(text.split())
    assert "look at private rows" in html and max(map(len, str(found).splitlines())) <= 88


def test_rehearsals_tell_what_a_release_expects_of_itself(release):
    rehearsals = iw.rehearse(release, 10, random_seed=1, progressbar=False)
    table = iw.validation.expected_utility(rehearsals, random_seed=1)
    found = iw.validation.utility(release, PRIVATE, random_seed=1).overview
    assert list(table.index) == list(found.index) and list(table.columns) == list(found.columns)
    assert table.loc["total variation, one column", "weighted"] < 0.2
    with pytest.raises(TypeError, match="takes Rehearsals"):
        iw.validation.expected_utility(release)


def test_other_rows_are_refused_without_a_cell(release):
    with pytest.raises(TypeError, match="takes a PrivateTable"):
        iw.validation.utility(release, PRIVATE.frame)
    other = iw.Schema(iw.Real("x", 0, 1))
    with pytest.raises(ValueError, match="must have the schema of the release"):
        iw.validation.utility(release, iw.PrivateTable(pd.DataFrame({"x": [0.25]}), other))
