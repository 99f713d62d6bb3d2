"""FeatureMap: whitening, the bound, and the diameter that the privacy of the tilt rests on."""

import json
import math
from itertools import combinations

import numpy as np
import pandas as pd
import pytest

from iwbayes.curator.plan import uniform_table
from iwbayes.evidence import FeatureMap
from iwbayes.evidence import terms as module
from iwbayes.evidence.feature_map import LEAST_SHARE
from iwbayes.evidence.scores import ColumnScores, ScoreMap
from iwbayes.evidence.terms import MAX_DEGREE, TERMS, count_raw_terms, ordered_terms, raw_chunks, raw_names, raw_ranges
from iwbayes.evidence.unmeasured import unmeasured_features
from iwbayes.schema import Binary, Categorical, Integer, Real, Schema
from iwbayes.tables import SyntheticTable

SCHEMA = Schema(
    Real("x", 0, 10, missing=True), Integer("n", 0, 5), Binary("b"), Categorical("c", levels=("u", "v", "w"))
)
every_map = pytest.mark.parametrize("order", [2, math.inf])
#: x, n, b, c[v], n^2, n:b, x:n^2, n:b:c[v]: x without its missing indicator, c without most of its levels.
EXPLICIT = ((0,), (2,), (3,), (5,), (2, 2), (2, 3), (0, 2, 2), (2, 3, 5))
every_terms = pytest.mark.parametrize("terms", [*TERMS, EXPLICIT], ids=[*TERMS, "explicit"])
every_adjacency = pytest.mark.parametrize("adjacency, reach", [("replace-one", 2.0), ("zero-out", 1.0)])


def table(n: int, seed: int) -> SyntheticTable:
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "x": np.where(rng.random(n) < 0.1, np.nan, np.minimum(rng.gamma(2, 1.5, n), 10)),
            "n": rng.binomial(5, 0.4, n),
            "b": rng.integers(0, 2, n),
            "c": rng.choice(["u", "v", "w"], n, p=[0.5, 0.3, 0.2]),
        }
    )
    return SyntheticTable(frame, SCHEMA)


@pytest.fixture(scope="module")
def synthetic() -> SyntheticTable:
    return table(3000, seed=1)


def raw_terms(frame: pd.DataFrame, terms) -> dict[str, np.ndarray]:
    """Raw terms by their names alone: 'a' a feature, 'a^2' its square, 'a:b' a product."""
    base = dict(zip(SCHEMA.feature_names, SCHEMA.encode(frame).T, strict=True))
    found = {}
    for name in raw_names(SCHEMA, terms):
        factors = [factor.partition("^") for factor in name.split(":")]
        found[name] = np.prod([base[feature] ** int(power or 1) for feature, _, power in factors], axis=0)
    return found


# --- raw terms


def test_raw_names_by_hand():
    linear = ("x", "x[missing]", "n", "b", "c[u]", "c[v]", "c[w]")
    assert raw_names(SCHEMA, "linear") == linear
    assert raw_names(SCHEMA, "squares") == (*linear, "x^2", "n^2")
    blocks = [("x", "x[missing]"), ("n",), ("b",), ("c[u]", "c[v]", "c[w]")]
    products = {f"{a}:{b}" for one, two in combinations(blocks, 2) for a in one for b in two}
    quadratic = raw_names(SCHEMA, "quadratic")
    assert quadratic[:9] == (*linear, "x^2", "n^2")
    assert set(quadratic[9:]) == products and len(quadratic) == 9 + len(products)
    assert raw_names(SCHEMA, EXPLICIT) == ("x", "n", "b", "c[v]", "n^2", "n:b", "x:n^2", "n:b:c[v]")


@every_terms
def test_ranges_hold_every_row_and_are_reached(terms):
    """All corners of the schema, and the middle of its numbers: ends of even and of odd powers lie among them."""
    low, high = raw_ranges(SCHEMA, terms)
    raw = np.vstack([chunk for _, chunk in raw_chunks(SCHEMA, terms, corners())])
    assert (raw >= low).all() and (raw <= high).all()
    # the number of children never is in the middle of its range, nor is the square of its feature zero
    reached = np.isclose(raw.min(axis=0), low) | ["n^2" in name for name in raw_names(SCHEMA, terms)]
    assert reached.all() and np.allclose(raw.max(axis=0), high)


def test_chosen_terms_are_the_quadratic_ones_restricted(synthetic):
    """The same columns, centers and covariances as those of the richer map, and of all its terms the same map."""
    rich = FeatureMap.whitened(synthetic, "quadratic")
    names = raw_names(SCHEMA, "quadratic")
    indices = [names.index(name) for name in ("x", "n", "c[v]", "n^2", "n:b")]
    terms = ((0,), (2,), (5,), (2, 2), (2, 3))
    [(_, all_raw)] = raw_chunks(SCHEMA, "quadratic", synthetic.frame)
    [(_, raw)] = raw_chunks(SCHEMA, terms, synthetic.frame)
    assert (raw == all_raw[:, indices]).all()
    chosen = FeatureMap.whitened(synthetic, terms)
    np.testing.assert_allclose(chosen.center, rich.center[indices], rtol=1e-13)
    covariance = np.cov(all_raw[:, indices].T, bias=True)
    np.testing.assert_allclose(chosen.whitener @ chosen.whitener.T, np.linalg.inv(covariance), rtol=1e-7)
    everything = ordered_terms(set(module.raw_terms(SCHEMA, "quadratic")))
    again = FeatureMap.whitened(synthetic, everything)
    np.testing.assert_allclose(again.norms(synthetic.frame), rich.norms(synthetic.frame), rtol=1e-8)
    assert again.bound == pytest.approx(rich.bound, rel=1e-8)


@every_terms
def test_the_count_bounds_the_names(terms):
    assert len(raw_names(SCHEMA, terms)) <= count_raw_terms(SCHEMA, terms)


@every_terms
@every_map
def test_transform_is_the_formula(synthetic, terms, order):
    """phi = z min(1, bound/|z|), z the whitened raw terms, written out row by row."""
    mapped = FeatureMap.whitened(synthetic, terms, order=order)
    mapped = mapped.with_bound(0.9 * mapped.bound)  # off the row that set it
    frame = synthetic.frame.head(60)
    raw = np.column_stack(list(raw_terms(frame, terms).values()))
    for row, phi in zip(raw, mapped.transform(frame), strict=True):
        z = (row - mapped.center) @ mapped.whitener
        norm = np.linalg.norm(z, ord=order)
        np.testing.assert_allclose(phi[:-1], z * min(1, mapped.bound / norm), atol=1e-10)
        assert phi[-1] == (mapped.bound / 2 if norm > mapped.bound else 0)


# --- whitening


@every_terms
@every_map
def test_synthetic_rows_are_white_before_clipping(synthetic, terms, order):
    wide = FeatureMap.whitened(synthetic, terms, order=order).with_bound(1e9)
    phi = wide.transform(synthetic.frame)
    assert (phi[:, -1] == 0).all()
    k = phi.shape[1] - 1
    np.testing.assert_allclose(phi[:, :k].mean(axis=0), 0, atol=1e-7)
    np.testing.assert_allclose(phi[:, :k].T @ phi[:, :k] / len(phi), np.eye(k), atol=1e-6)


@every_map
def test_dependent_directions_are_dropped(synthetic, order):
    """A one-hot block sums to one: one direction of it has no variance."""
    mapped = FeatureMap.whitened(synthetic, "linear", order=order)
    assert mapped.whitener.shape == (7, 6) and mapped.dim == 7 and mapped.flag


@pytest.mark.parametrize("kind", ["terms", "scores"])
def test_a_level_of_rows_without_weight_does_not_hide_private_rows(kind):
    """After a noisy stage a rare level may have weights such as 1e-50. Its rows must not be scaled until clipped."""
    schema = Schema(Categorical("g", ("a", "b", "c")), Real("x", -3, 3))
    rng = np.random.default_rng(1)
    frame = pd.DataFrame({"g": rng.choice(["a", "b"], 500), "x": rng.normal(size=500).clip(-3, 3)})
    frame.loc[:4, "g"] = "c"
    rows, shares = SyntheticTable(frame, schema), np.where(np.arange(500) < 5, 1e-50, 1 / 495)
    if kind == "terms":
        features = FeatureMap.whitened(rows, "quadratic", shares=shares)
    else:
        columns = ColumnScores(schema, tuple(ordered_terms(set(module.raw_terms(schema, "quadratic")))))
        features = ScoreMap.whitened([columns], rows, shares)
    # a level of 5 among 500 rows with a thousandth of an equal share
    assert np.abs(features.whitener).max() < 10 / np.sqrt(0.01 * LEAST_SHARE)


def test_rows_that_are_all_alike_are_refused(synthetic):
    alike = SyntheticTable(synthetic.frame.iloc[[0] * 20], SCHEMA)
    with pytest.raises(ValueError, match="all alike.*Sample more"):
        FeatureMap.whitened(alike, "linear")


@every_terms
@every_map
def test_the_bound_is_the_95_percent_quantile(synthetic, terms, order):
    mapped = FeatureMap.whitened(synthetic, terms, order=order)
    norms = mapped.norms(synthetic.frame)
    assert mapped.bound == np.quantile(norms, 0.95)
    share = (mapped.transform(synthetic.frame)[:, -1] > 0).mean()
    assert share == (norms > mapped.bound * (1 + 1e-9)).mean() and share <= 0.05


@every_map
@pytest.mark.parametrize("size", [1, 3, 1000])
def test_rows_that_tie_with_the_bound_are_not_flagged(monkeypatch, order, size):
    """All of a discrete table's rows at the quantile share one norm, whatever way their sums are rounded."""
    schema = Schema(Binary("a"), Binary("b"), Categorical("c", levels=("u", "v", "w")))
    rows = uniform_table(schema, 900, random_seed=1)
    mapped = FeatureMap.whitened(rows, "linear", order=order)
    monkeypatch.setattr(module, "_CHUNK", size)  # other products of matrices, rounded another way
    tied = np.isclose(mapped.norms(rows.frame), mapped.bound, rtol=1e-12)
    assert tied.sum() > 10
    assert (mapped.transform(rows.frame)[tied, -1] == 0).all()


# --- the bound and the diameter


def corners(n: int = 400) -> pd.DataFrame:
    """Rows at the corners of the schema and anywhere inside it."""
    grid = pd.MultiIndex.from_product([[0.0, 10.0, np.nan, 5.0], [0, 5, 2], [0, 1], ["u", "v", "w"]])
    frame = grid.to_frame(index=False)
    frame.columns = list(SCHEMA.names)
    return SCHEMA.conform(pd.concat([frame, uniform_table(SCHEMA, n, random_seed=3).frame.astype(frame.dtypes)]))


@every_terms
@every_map
@every_adjacency
@pytest.mark.parametrize("flag", [True, False])
@pytest.mark.parametrize("factor", [0.2, 1.0, 1.5])
def test_no_pair_of_rows_passes_the_diameter(synthetic, terms, order, adjacency, reach, flag, factor):
    mapped = FeatureMap.whitened(synthetic, terms, order=order)
    mapped = FeatureMap(SCHEMA, terms, mapped.center, mapped.whitener, factor * mapped.bound, order, flag)
    phi = mapped.transform(corners())
    body = phi[:, : mapped.whitener.shape[1]]
    assert (np.linalg.norm(body, ord=order, axis=1) <= mapped.bound * (1 + 1e-12)).all()
    limit = mapped.diameter(adjacency) * (1 + 1e-12)
    others = phi if adjacency == "replace-one" else np.zeros((1, mapped.dim))
    for row in others:
        assert np.linalg.norm(phi - row, ord=order, axis=1).max() <= limit


@every_map
@every_adjacency
@pytest.mark.parametrize("flag", [True, False])
def test_the_diameter_is_attained_in_the_limit(order, adjacency, reach, flag):
    """One real column: a row just clipped on one side against a row on the bound of the other, or the null row."""
    schema, bound = Schema(Real("x", 0, 1)), 0.4
    mapped = FeatureMap(schema, "linear", np.zeros(1), np.eye(1), bound, order, flag)
    low, high = mapped.transform(schema.conform(pd.DataFrame({"x": [0.1 + 1e-13, 1.0]})))
    # the low row lies just inside the bound and the high one beyond it
    assert not flag or (low[-1], high[-1]) == (0, bound / 2)
    change = high - low if adjacency == "replace-one" else high
    expected = np.linalg.norm([reach * bound, bound / 2 if flag else 0], ord=order)
    assert mapped.diameter(adjacency) == pytest.approx(expected, rel=1e-12)
    assert np.linalg.norm(change, ord=order) == pytest.approx(mapped.diameter(adjacency), rel=1e-10)
    if flag and adjacency == "replace-one" and order == 2:
        assert mapped.diameter(adjacency) == pytest.approx(2.0616 * bound, rel=1e-4)


def test_an_unknown_adjacency_is_refused(synthetic):
    with pytest.raises(ValueError, match="adjacency must be one of"):
        FeatureMap.whitened(synthetic, "linear").diameter("add-remove")


# --- chunks, arrays, refusals


@every_terms
@pytest.mark.parametrize("size", [1, 7, 599, 600, 601])
def test_chunks_equal_one_piece(monkeypatch, terms, size):
    small = table(600, seed=2)
    mapped = FeatureMap.whitened(small, terms)
    phi, norms = mapped.transform(small.frame), mapped.norms(small.frame)
    monkeypatch.setattr(module, "_CHUNK", size)
    again = FeatureMap.whitened(small, terms)
    np.testing.assert_allclose(mapped.transform(small.frame), phi, atol=1e-12)
    np.testing.assert_allclose(mapped.norms(small.frame), norms, rtol=1e-12)
    np.testing.assert_allclose(again.center, mapped.center, atol=1e-13)
    # directions of equal variance may turn; norms and the bound do not
    np.testing.assert_allclose(again.norms(small.frame), norms, rtol=1e-6)
    assert again.bound == pytest.approx(mapped.bound, rel=1e-6)


@every_terms
@every_map
@pytest.mark.parametrize("flag", [True, False])
def test_arrays_round_trip(synthetic, terms, order, flag):
    whitened = FeatureMap.whitened(synthetic, terms, order=order)
    mapped = FeatureMap(SCHEMA, terms, whitened.center, whitened.whitener, whitened.bound, order, flag)
    settings, arrays = mapped.to_arrays()
    assert (settings["terms"] == terms) == isinstance(terms, str)
    again = FeatureMap.from_arrays(SCHEMA, json.loads(json.dumps(settings)), arrays)
    assert (again.terms, again.bound, again.order, again.flag) == (terms, mapped.bound, order, flag)
    assert again.dim == mapped.dim == whitened.whitener.shape[1] + flag
    np.testing.assert_array_equal(again.transform(synthetic.frame), mapped.transform(synthetic.frame))


def test_a_map_keeps_its_own_arrays():
    center, whitener = np.zeros(1), np.eye(1)
    mapped = FeatureMap(Schema(Real("x", 0, 1)), "linear", center, whitener, 1.0)
    center[0] = 9
    assert mapped.center[0] == 0
    for array in (mapped.center, mapped.whitener):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1
    assert mapped.with_bound(0.5).bound == 0.5 and mapped.bound == 1.0


@pytest.mark.parametrize(
    "change, message",
    [
        ({"terms": "cubic"}, "terms must be one of"),
        ({"terms": ()}, "nonempty tuple"),
        ({"terms": [(0,)]}, "tuple of tuples"),
        ({"terms": None}, "tuple of tuples"),
        ({"terms": (0,)}, "tuple of tuples"),
        ({"terms": ((),)}, "tuple of tuples"),
        ({"terms": ((1,),)}, "indices from 0 to 0"),
        ({"terms": ((-1,),)}, "indices from 0 to 0"),
        ({"terms": ((0.0,),)}, "indices from 0 to 0"),
        ({"terms": ((False,),)}, "indices from 0 to 0"),
        ({"terms": ((0,), (0,))}, "distinct"),
        ({"terms": ((0, 0), (0,))}, "by degree"),
        ({"terms": ((0,) * (MAX_DEGREE + 1),)}, "at most 7"),
        ({"terms": ((0,), (0, 0))}, "must have 2 rows"),
        ({"order": 1}, "order must be 2 or inf"),
        ({"bound": 0.0}, "bound must be positive"),
        ({"bound": math.inf}, "bound must be positive"),
        ({"bound": math.nan}, "bound must be positive"),
        ({"center": np.zeros(2)}, "must have 1 rows"),
        ({"whitener": np.eye(2)}, "must have 1 rows"),
        ({"whitener": np.zeros(1)}, "must have 1 rows"),
        ({"center": np.array([np.nan])}, "center must be finite"),
        ({"whitener": np.array([[np.inf]])}, "whitener must be finite"),
    ],
)
def test_a_wrong_map_is_refused(change, message):
    arguments = {"terms": "linear", "center": np.zeros(1), "whitener": np.eye(1), "bound": 1.0, "order": 2} | change
    with pytest.raises(ValueError, match=message):
        FeatureMap(Schema(Real("x", 0, 1)), **arguments)


def test_terms_are_checked_before_rows_are_read(synthetic):
    with pytest.raises(ValueError, match="indices from 0 to 6"):
        FeatureMap.whitened(synthetic, ((99,),))


def test_indices_stand_in_order():
    schema = Schema(Real("x", 0, 1), Real("z", 0, 1))
    with pytest.raises(ValueError, match="ascending order"):
        FeatureMap(schema, ((1, 0),), np.zeros(1), np.eye(1), 1.0)
    assert ordered_terms({(1, 1), (0,), (0, 1, 1), (0, 1), (1,)}) == ((0,), (1,), (0, 1), (1, 1), (0, 1, 1))


# --- unmeasured features


def test_rows_of_almost_no_weight_have_no_huge_values_in_unmeasured_features():
    """A term that only such rows have has no variance: divided by it, these rows had values of 1e25."""
    rng = np.random.default_rng(1)
    names, n = {"g": list("abc"), "h": list("uvw")}, 2000
    frame = pd.DataFrame({"x": rng.uniform(size=n), **{name: rng.choice(own, n) for name, own in names.items()}})
    schema = Schema(Real("x", 0, 1), *(Categorical(name, levels=own) for name, own in names.items()))
    rows = SyntheticTable(frame, schema).frame
    features = FeatureMap.whitened(SyntheticTable(frame, schema), "quadratic")
    rare = ((rows["g"] == "c") & (rows["h"] == "w")).to_numpy()
    shares = np.where(rare, 1e-90, 1.0)
    found = unmeasured_features(rows, features, shares / shares.sum())
    assert found.shape[1] > 5
    assert np.abs(found).max() < 1e3
