"""Release files: exact round trips, certification, atomic writing, and one error for every broken file."""

import io
import math
import os
import zipfile
from dataclasses import FrozenInstanceError, replace

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from file_tools import members_of, sealed, zipped
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from iwbayes.evidence import FeatureMap
from iwbayes.evidence.distributions import (
    CubeDistribution,
    GaussianDistribution,
    LaplaceDistribution,
    SphericalDistribution,
)
from iwbayes.evidence.measurement import Measurement
from iwbayes.evidence.scores import RowFeatures
from iwbayes.release import FORMAT_VERSION, Release, ReleaseError, load
from iwbayes.release.statement import Event, PrivacyStatement
from iwbayes.release.weights import Weights
from iwbayes.schema import Binary, Categorical, Integer, Real, Schema
from iwbayes.tables import SyntheticTable
from iwbayes.utils import archive

SCHEMA = Schema(
    Real("age", 17, 90),
    Real("pay", 0, 1e6, transform="log1p", missing=True),
    Integer("children", 0, 12, missing=True),
    Binary("income"),
    Binary("sick", levels=("no", "yes"), missing=True),
    Categorical("sex", ("Female", "Male")),
    Categorical("grade", (3, 1, 2), missing=True),
)
STATEMENT = PrivacyStatement(
    1.0,
    1e-6,
    "replace-one",
    (Event("BayesNet structure", "exponential", 0.1, count=7), Event("TiltWeights", "gaussian", 0.7, 1e-6, 4.5)),
    "hardened",
    True,
)


def draw_features(rng, n, schema=SCHEMA):
    """Encoded rows at random: one level of each block, missing cells now and then."""
    blocks = []
    for column in schema:
        k = len(column.feature_names)
        if column.kind == "categorical":
            blocks.append(np.eye(k)[rng.integers(k, size=n)])
        else:
            block = rng.uniform(-0.5, 0.5, (n, 1))
            blocks.append(np.hstack([block, rng.random((n, 1)) < 0.2]) if column.missing else block)
    return np.hstack(blocks)


def make_release(n=60, *, seed=0, schema=SCHEMA, measured=True, origin="BayesNet", **options):
    rng = np.random.default_rng(seed)
    synthetic = SyntheticTable(schema.decode(draw_features(rng, n, schema)), schema, origin=origin)
    measurement = None
    if measured:
        features = FeatureMap.whitened(synthetic, "linear")
        value = features.transform(synthetic.frame).mean(axis=0) + rng.normal(0, 0.01, features.dim)
        distribution = GaussianDistribution(0.0123456789, features.dim)
        measurement = Measurement("mean of features", value, distribution, 0.01, features, 41)
    weights = Weights(rng.normal(size=(2, n)), "TiltWeights(linear)", ("psis",), measurement)
    return Release(synthetic, weights, options.pop("statement", STATEMENT), n_private=41, **options)


def same(first, second):
    """Compare bit for bit, types included."""
    pd.testing.assert_frame_equal(first.synthetic.frame, second.synthetic.frame, check_exact=True)
    for column in first.synthetic.schema:
        if column.kind == "real":
            left, right = (r.synthetic.frame[column.name].to_numpy() for r in (first, second))
            assert left.tobytes() == right.tobytes()
    assert first.synthetic.schema == second.synthetic.schema
    assert first.synthetic.origin == second.synthetic.origin
    assert first.weights.log_weights.tobytes() == second.weights.log_weights.tobytes()
    assert first.weights.log_weights.shape == second.weights.log_weights.shape
    assert (first.weights.method, first.weights.steps) == (second.weights.method, second.weights.steps)
    assert first.statement == second.statement
    assert (first.n_private, first.recipe) == (second.n_private, second.recipe)
    same_measurement(first.weights.measurement, second.weights.measurement, first.synthetic.frame)


def same_measurement(a, b, frame):
    assert (a is None) == (b is None)
    if a is not None:
        same_measurement(a.held_back, b.held_back, frame)
        same_measurement(a.columns, b.columns, frame)
        assert a.value.tobytes() == b.value.tobytes()
        assert (a.name, a.noise, a.sensitivity, a.n_private) == (b.name, b.noise, b.sensitivity, b.n_private)
        assert (a.features is None) == (b.features is None)
    if a is not None and a.features is not None:
        assert a.features.to_arrays()[0] == b.features.to_arrays()[0]
        for one, other in zip(a.features.to_arrays()[1].values(), b.features.to_arrays()[1].values(), strict=True):
            assert one.tobytes() == other.tobytes()
        left, right = (measurement.features.transform(frame) for measurement in (a, b))
        # the arrays are equal bit for bit; their memory layout, and so the order of BLAS's sums, may not be
        np.testing.assert_allclose(left, right, rtol=1e-12, atol=1e-12)


# --- the object --------------------------------------------------------------------------------------


def test_parts_must_belong_together():
    release = make_release()
    with pytest.raises(ValueError, match="60 weights for 10 synthetic rows"):
        Release(make_release(10).synthetic, release.weights, STATEMENT, n_private=41)
    with pytest.raises(ValueError, match="measured on 41 private rows; n_private is 40"):
        replace(release, n_private=40)
    for n_private in (0, True, 2.0):
        with pytest.raises(ValueError, match="n_private must be a whole number of at least 1"):
            replace(make_release(measured=False), n_private=n_private)
    other = make_release(schema=Schema(Real("age", 17, 90), Real("x", 0, 1)))
    with pytest.raises(ValueError, match="different schemas"):
        replace(release, weights=other.weights)
    with pytest.raises(TypeError, match="statement must be a PrivacyStatement; got dict"):
        replace(release, statement={})
    with pytest.raises(TypeError, match="recipe must"):
        replace(release, recipe={"x": math.nan})
    with pytest.raises(ValueError, match=f"format_version must be {FORMAT_VERSION}"):
        replace(release, format_version=FORMAT_VERSION + 1)
    with pytest.raises(FrozenInstanceError):
        release.n_private = 3


def test_printed_forms():
    release = make_release()
    assert repr(release) == (
        "Release(60 synthetic rows x 7 columns for 41 private rows,\n    epsilon 1, delta 1e-06, certified)"
    )
    assert str(release) == release.summary()
    for part in ("BayesNet structure: exponential", "7 times", "rows from: BayesNet", "pareto_k", "psis"):
        assert part in release.summary()
    assert (
        "NOT certified: the privacy cost of its synthetic rows was not declared" in make_release(origin=None).summary()
    )


def test_recipe_is_a_copy_of_plain_values():
    recipe = {"share": 0.3, "steps": (1, 2)}
    release = make_release(recipe=recipe)
    recipe["share"] = 0.9
    assert release.recipe == {"share": 0.3, "steps": [1, 2]}


# --- certification and writing -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"statement": replace(STATEMENT, noise="seeded", certified=False)}, "noise is seeded"),
        ({"statement": replace(STATEMENT, noise="floating-point", certified=False)}, "noise is floating-point"),
        ({"origin": None}, "the privacy cost of its synthetic rows was not declared"),
        ({"statement": replace(STATEMENT, certified=False, notes=("an outside table",))}, "an outside table"),
        ({"statement": replace(STATEMENT, certified=False)}, "its statement is not certified"),
    ],
)
def test_uncertified_releases_are_written_only_when_asked(tmp_path, options, reason):
    release = make_release(**options)
    path = tmp_path / "r.iwb"
    assert not release.certified
    with pytest.raises(ReleaseError, match=reason) as caught:
        release.save(path)
    assert "allow_uncertified=True" in str(caught.value)
    assert not list(tmp_path.iterdir())
    release.save(path, allow_uncertified=True)
    assert not load(path).certified
    same(release, load(path))


def test_existing_file_stays_unless_overwrite(tmp_path):
    path = tmp_path / "r.iwb"
    path.write_text("mine")
    with pytest.raises(FileExistsError, match="overwrite=True"):
        make_release().save(path)
    assert path.read_text() == "mine"
    assert make_release().save(str(path), overwrite=True) == path
    assert load(path).certified
    assert [item.name for item in tmp_path.iterdir()] == ["r.iwb"]


@pytest.mark.parametrize("call", ["fsync", "replace", "link"])
def test_a_failed_write_leaves_everything_as_it_was(tmp_path, monkeypatch, call):
    path = tmp_path / "r.iwb"
    path.write_text("old")

    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr(os, call, fail)
    if call == "link":  # a file system without hard links: written all the same, nothing is overwritten
        make_release().save(tmp_path / "new.iwb")
        assert load(tmp_path / "new.iwb").certified
        with pytest.raises(FileExistsError):
            make_release().save(path)
    else:
        with pytest.raises(OSError, match="disk full"):
            make_release().save(path, overwrite=True)
        assert [item.name for item in tmp_path.iterdir()] == ["r.iwb"]
    assert path.read_text() == "old"


def test_a_file_that_comes_while_writing_stays(tmp_path, monkeypatch):
    path = tmp_path / "r.iwb"
    real = os.fsync

    def rival(handle):
        path.write_text("rival")
        real(handle)

    monkeypatch.setattr(os, "fsync", rival)
    with pytest.raises(FileExistsError):
        make_release().save(path)
    assert path.read_text() == "rival"
    assert [item.name for item in tmp_path.iterdir()] == ["r.iwb"]


def test_same_content_same_bytes(tmp_path):
    first, second = (make_release(recipe={"a": 1}).save(tmp_path / name) for name in ("a", "b"))
    assert first.read_bytes() == second.read_bytes()
    again = load(first).save(tmp_path / "c")
    assert again.read_bytes() == first.read_bytes()


def test_members_are_open_formats(tmp_path):
    release = make_release()
    with zipfile.ZipFile(release.save(tmp_path / "r.iwb")) as archive:
        assert archive.namelist() == ["manifest.json", "table.parquet", "weights.npz", "measurements.npz"]
        assert archive.testzip() is None
        table = pd.read_parquet(io.BytesIO(archive.read("table.parquet")))
        assert list(table.columns) == list(SCHEMA.names)
        np.testing.assert_array_equal(table["sex"], release.synthetic.frame["sex"].astype(str))
        with np.load(io.BytesIO(archive.read("weights.npz")), allow_pickle=False) as arrays:
            np.testing.assert_array_equal(arrays["log_weights"], release.weights.log_weights)


# --- round trips -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "distribution", [GaussianDistribution, CubeDistribution, SphericalDistribution, LaplaceDistribution]
)
def test_every_law_returns(tmp_path, distribution):
    measurement = Measurement("mean", np.array([0.1, -0.0, 1 / 3]), distribution(1 / 7, 3), 0.2, None, 9)
    synthetic = make_release(5).synthetic
    release = Release(synthetic, Weights(np.zeros(5), "hand", (), measurement), STATEMENT, n_private=9)
    same(release, load(release.save(tmp_path / "r.iwb")))


def test_feature_map_of_infinite_order_returns(tmp_path):
    release = make_release()
    features = FeatureMap.whitened(release.synthetic, "quadratic", order=math.inf)
    measurement = Measurement("m", np.zeros(features.dim), CubeDistribution(0.1, features.dim), 0.1, features, 41)
    release = replace(release, weights=replace(release.weights, measurement=measurement))
    same(release, load(release.save(tmp_path / "r.iwb")))


#: age, pay, children, income, sick; squares, a product, and one of three columns.
CHOSEN = ((0,), (1,), (3,), (5,), (6,), (0, 0), (3, 5), (0, 1, 5))


def chosen_release(order=2):
    release = make_release()
    features = FeatureMap.whitened(release.synthetic, CHOSEN, order=order)
    measurement = Measurement("m", np.zeros(features.dim), CubeDistribution(0.1, features.dim), 0.1, features, 41)
    return replace(release, weights=replace(release.weights, measurement=measurement))


def release_that_holds_back():
    """With a second measurement that the first holds back."""
    release = chosen_release()
    first = release.weights.measurement
    second = replace(make_release(seed=1).weights.measurement, name="test of fit")
    return replace(release, weights=replace(release.weights, measurement=replace(first, held_back=second)))


@pytest.mark.parametrize("order", [2, math.inf])
def test_a_feature_map_of_chosen_terms_returns(tmp_path, order):
    release = chosen_release(order)
    back = load(release.save(tmp_path / "r.iwb"))
    same(release, back)
    assert back.weights.measurement.features.terms == CHOSEN


def release_in_stages():
    release = make_release()
    first = release.weights.measurement
    features = RowFeatures(
        release.synthetic.schema,
        first.features.transform(release.synthetic.frame),
        first.features.bound,
        first.features.flag,
        "a digest",
        names=("Intercept", "x"),
        back=np.arange(2.0 * (first.features.dim - first.features.flag)).reshape(-1, 2),
    )
    return replace(
        release, weights=replace(release.weights, measurement=replace(first, features=features, misfit=0.01))
    )


def release_with_columns():
    """In stages, with the columns that the early ones measured."""
    release = release_in_stages()
    first, other = release.weights.measurement, chosen_release().weights.measurement
    return replace(release, weights=replace(release.weights, measurement=replace(first, columns=other)))


def test_columns_of_early_stages_return(tmp_path):
    release = release_with_columns()
    back = load(release.save(tmp_path / "r.iwb"))
    same(release, back)
    assert back.weights.measurement.columns.features.terms == CHOSEN
    assert release.weights.fingerprint() != release_in_stages().weights.fingerprint()


def test_features_of_rows_return(tmp_path):
    release = release_in_stages()
    back = load(release.save(tmp_path / "r.iwb"))
    found, expected = back.weights.measurement, release.weights.measurement
    np.testing.assert_array_equal(found.features.values, expected.features.values)
    assert found.features.function == "a digest" and found.misfit == 0.01
    assert found.features.names == ("Intercept", "x")
    np.testing.assert_array_equal(found.features.back, expected.features.back)


@pytest.mark.parametrize(
    "wrong",
    [
        {"function": 3},
        {"names": ["x"]},
        {"names": []},
        {"names": 3},
        {"bound": -1.0},
        {"bound": "x"},
        {"flag": 2},
        {"function": None},
    ],
)
def test_features_of_rows_are_checked(tmp_path, wrong):
    members = members_of(release_in_stages().save(tmp_path / "good.iwb"))

    def change(manifest):
        manifest["weights"]["measurement"]["features"].update(wrong)

    refused(write(tmp_path / "r.iwb", sealed(members, change)), "not valid|cannot be read")


def test_a_measurement_that_is_held_back_returns(tmp_path):
    release = release_that_holds_back()
    back = load(release.save(tmp_path / "r.iwb"))
    same(release, back)
    assert back.weights.measurement.held_back.name == "test of fit"


PARTS = {"held_back": release_that_holds_back, "columns": release_with_columns}


@pytest.mark.parametrize("wrong", [3, [], {}, "x", {"features": None}, True])
@pytest.mark.parametrize("part", PARTS)
def test_parts_of_a_measurement_are_checked(tmp_path, part, wrong):
    members = members_of(PARTS[part]().save(tmp_path / "good.iwb"))

    def change(manifest):
        manifest["weights"]["measurement"][part] = wrong

    refused(write(tmp_path / "r.iwb", sealed(members, change)), "cannot be read")


@pytest.mark.parametrize("inner", PARTS)
@pytest.mark.parametrize("part", PARTS)
def test_parts_of_a_measurement_have_no_parts(tmp_path, part, inner):
    members = members_of(PARTS[part]().save(tmp_path / "good.iwb"))

    def change(manifest):
        own = manifest["weights"]["measurement"][part]
        own[inner] = dict(own)

    refused(write(tmp_path / "r.iwb", sealed(members, change)), "has parts itself")


@pytest.mark.parametrize(
    "terms",
    [
        [],
        [[]],
        [[0], [0]],
        [[1], [0]],
        [[0], [1, 0]],
        [[0, 1], [0]],
        [[-1], *CHOSEN[1:]],
        [[True], *CHOSEN[1:]],
        [[0.0], *CHOSEN[1:]],
        ["0", *CHOSEN[1:]],
        [0, *CHOSEN[1:]],
        [*CHOSEN[:-1], [0, 1, 99]],
        [*CHOSEN[:-1], [0] * 8],
        [*CHOSEN[:-1], [0, 10**20]],
        list(CHOSEN[:-1]),
        [*CHOSEN, [1, 3, 5]],
        {"0": [0]},
        None,
        3,
        "linear",
        "model",
        "",
    ],
    ids=str,
)
def test_terms_that_no_map_has_are_refused(tmp_path, terms):
    members = members_of(chosen_release().save(tmp_path / "good.iwb"))

    def change(manifest):
        manifest["weights"]["measurement"]["features"]["terms"] = terms

    refused(write(tmp_path / "r.iwb", sealed(members, change)), "cannot be read")


TEXT = st.text(st.characters(exclude_categories=("C", "Z")), min_size=1, max_size=6)
BOUND = st.floats(-1e12, 1e12, allow_nan=False)


@st.composite
def columns(draw, name):
    missing = draw(st.booleans())
    kind = draw(st.sampled_from(["real", "log", "integer", "binary", "bool", "text", "number"]))
    if kind in ("real", "integer"):
        low, high = sorted(draw(st.tuples(BOUND, BOUND).filter(lambda b: abs(b[0] - b[1]) > 1)))
        if kind == "real":
            return Real(name, low, high, missing=missing)
        return Integer(name, math.floor(low), math.floor(high), missing=missing)
    if kind == "log":
        return Real(name, 0, draw(st.floats(1e-3, 1e9)), transform="log1p", missing=missing)
    if kind == "binary":
        return Binary(name, missing=missing)
    if kind == "bool":
        return Binary(name, levels=(False, True), missing=missing)
    levels = draw(st.lists(TEXT if kind == "text" else st.integers(-99, 99), min_size=2, max_size=5, unique=True))
    return Categorical(name, tuple(levels), missing=missing)


@st.composite
def releases(draw):
    names = draw(st.lists(TEXT, min_size=1, max_size=4, unique=True))
    columns_ = [draw(columns(f"{name}{index}")) for index, name in enumerate(names)]
    schema = Schema(*columns_)
    n = draw(st.integers(1, 12))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    synthetic = SyntheticTable(schema.decode(draw_features(rng, n, schema)), schema, origin=draw(st.none() | TEXT))
    numbers = st.floats(-1e100, 1e100) | st.just(-np.inf)
    logs = draw(hnp.arrays(float, (draw(st.integers(1, 3)), n), elements=numbers))
    logs[:, 0] = np.where(np.isneginf(logs[:, 0]), -0.0, logs[:, 0])
    weights = Weights(logs, draw(TEXT), tuple(draw(st.lists(TEXT, max_size=2))))
    recipe = draw(st.none() | st.dictionaries(TEXT, st.integers() | st.floats(-9, 9) | st.booleans() | TEXT))
    n_private = draw(st.integers(1, 10**12))
    return Release(synthetic, weights, STATEMENT, n_private=n_private, recipe=recipe)


@settings(max_examples=80, deadline=None)
@given(release=releases())
def test_round_trip_of_any_release(tmp_path_factory, release):
    path = tmp_path_factory.mktemp("any") / "r.iwb"
    same(release, load(release.save(path, allow_uncertified=True)))


# --- broken files ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    return make_release(recipe={"a": 1}).save(tmp_path_factory.mktemp("good") / "r.iwb")


def write(path, members, **options):
    path.write_bytes(zipped(members, **options))
    return path


def refused(path, match):
    with pytest.raises(ReleaseError, match=match) as caught:
        load(path)
    assert str(path) in str(caught.value)
    assert "Ask its publisher" in str(caught.value) or "pip install --upgrade" in str(caught.value)
    assert caught.value.__cause__ is None


def test_sealing_alone_changes_nothing(good, tmp_path):
    same(load(good), load(write(tmp_path / "r.iwb", sealed(members_of(good)))))


def test_absent_file(tmp_path):
    with pytest.raises(FileNotFoundError):
        load(tmp_path / "nothing.iwb")


def test_every_truncation_is_refused(good, tmp_path):
    content, path = good.read_bytes(), tmp_path / "r.iwb"
    cuts = [0, 1, 3, 4, 30, len(content) - 1, len(content) - 22, *range(50, len(content), 701)]
    for cut in cuts:
        path.write_bytes(content[:cut])
        refused(path, "cannot be read")


def test_a_changed_byte_is_refused_or_means_nothing(good, tmp_path):
    content, path, whole = good.read_bytes(), tmp_path / "r.iwb", load(good)
    n_refused = 0
    for index in range(0, len(content), 97):
        path.write_bytes(content[:index] + bytes([content[index] ^ 0x55]) + content[index + 1 :])
        try:
            release = load(path)
        except ReleaseError:
            n_refused += 1
        else:  # a byte of the zip's own book-keeping that nobody reads, such as a timestamp
            same(whole, release)
    assert n_refused > 0.9 * len(content) / 97


@pytest.mark.parametrize("content", [b"", b"no zip", b"\x00" * 1000, b"PK\x05\x06" + b"\x00" * 18])
def test_other_files_are_refused(tmp_path, content):
    path = tmp_path / "r.iwb"
    path.write_bytes(content)
    refused(path, "not a zip archive|lacks the members")


def test_missing_unknown_and_repeated_members(good, tmp_path):
    members, path = members_of(good), tmp_path / "r.iwb"
    for name in members:
        refused(write(path, {k: v for k, v in members.items() if k != name}), "lacks the members|not those")
    refused(write(path, {**members, "extra.txt": b"x"}), "unexpected members|5 members")
    without = {k: v for k, v in members.items() if k != "measurements.npz"}
    for name in ("../../etc/passwd", "/etc/passwd", "C:\\x", "table.parquet/../x", "a/b"):
        refused(write(path, {**without, name: b"x"}), "unexpected members")
    with pytest.warns(UserWarning, match="Duplicate name"), zipfile.ZipFile(path, "w") as archive:
        for name in ("manifest.json", "table.parquet", "weights.npz", "weights.npz"):
            archive.writestr(name, members[name])
    refused(path, "or a duplicate member")
    assert [item.name for item in tmp_path.iterdir()] == ["r.iwb"]


def test_compressed_members_and_bombs_are_refused(good, tmp_path):
    members, path = members_of(good), tmp_path / "r.iwb"
    refused(write(path, members, compression=zipfile.ZIP_DEFLATED), "compressed")
    bomb = {**members, "weights.npz": b"\x00" * 50_000_000}
    refused(write(path, bomb, compression=zipfile.ZIP_DEFLATED), "compressed")


def test_sizes_are_limited_before_reading(good, monkeypatch):
    monkeypatch.setattr(archive, "MAX_BYTES", 100)
    refused(good, "larger than 100 bytes")


def test_a_false_size_in_the_directory_is_refused(good, tmp_path):
    """The directory says 3 GiB for a stored member of a few bytes: nothing is allocated for it."""
    content = bytearray(good.read_bytes())
    entry = content.rindex(b"PK\x01\x02", 0, content.rindex(b"PK\x01\x02"))
    content[entry + 20 : entry + 28] = (3 * 2**30).to_bytes(4, "little") * 2
    path = tmp_path / "r.iwb"
    path.write_bytes(content)
    refused(path, f"declare more than its {len(content)} bytes")


def test_an_altered_member_is_refused(good, tmp_path):
    members = members_of(good)
    other = members_of(make_release(seed=5).save(tmp_path / "other.iwb"))
    for name in ("table.parquet", "weights.npz", "measurements.npz"):
        refused(write(tmp_path / "r.iwb", {**members, name: other[name]}), f"{name} was altered")
    changed = members["manifest.json"].replace(b'"epsilon": 1.0', b'"epsilon": 0.1')
    assert changed != members["manifest.json"]
    refused(write(tmp_path / "r.iwb", {**members, "manifest.json": changed}), "manifest was altered")


def test_newer_version_says_upgrade(good, tmp_path):
    def newer(manifest):
        manifest["format_version"] = FORMAT_VERSION + 1
        manifest["package_version"] = "9.9"

    path = write(tmp_path / "r.iwb", sealed(members_of(good), newer))
    with pytest.raises(
        ReleaseError, match=rf"format version {FORMAT_VERSION + 1}, written by a newer iwbayes \(9\.9\).*--upgrade"
    ):
        load(path)


@pytest.mark.parametrize(
    "text", [b"", b"[]", b"null", b"{", b"\xff\xfe", b"{}", b'{"format": NaN}', b"[" * 100_000, b'{"format": "x"}']
)
def test_a_manifest_that_is_no_manifest(good, tmp_path, text):
    members = {**members_of(good), "manifest.json": text}
    refused(write(tmp_path / "r.iwb", members), "manifest")


BAD_VALUES = {
    "format_version": ["1", None, 0, -1, True, 1.5],
    "n_private": [0, -3, "9", None, 2.5, True, 40],
    "n_synthetic": [0, 59, 61, 10**15, "60", None],
    "origin": [3, ["x"]],
    "recipe": [[1], "x"],
    "schema": [None, {}, {"column": []}, {"column": [{"name": "age"}]}, {"column": [{"name": "z", "type": "real"}]}],
    "statement": [None, {}, [], 3],
    "weights": [None, {}, []],
}


@pytest.mark.parametrize(("key", "value"), [(k, v) for k, values in BAD_VALUES.items() for v in values])
def test_bad_values_under_good_checksums(good, tmp_path, key, value):
    path = write(tmp_path / "r.iwb", sealed(members_of(good), lambda m: m.update({key: value})))
    refused(path, "cannot be read")


@pytest.mark.parametrize(
    ("path_to", "value"),
    [
        (("statement", "epsilon"), "1"),
        (("statement", "epsilon"), -1),
        (("statement", "delta"), 2),
        (("statement", "delta"), True),
        (("statement", "noise"), "none"),
        (("statement", "noise"), "seeded"),  # a certified statement of seeded noise
        (("statement", "adjacency"), "add-one"),
        (("statement", "on_undeclared"), "drop"),
        (("statement", "on_undeclared"), 3),
        (("statement", "rule"), 3),
        (("statement", "budget"), 3),
        (("statement", "certified"), 1),
        (("statement", "events", 0, "epsilon"), None),
        (("statement", "events", 0, "count"), 1.5),
        (("statement", "events", 0, "label"), 7),
        (("statement", "notes"), [3]),
        (("weights", "method"), 3),
        (("weights", "steps"), [3]),
        (("weights", "measurement"), None),
        (("weights", "measurement", "sensitivity"), -1),
        (("weights", "measurement", "n_private"), 42),
        (("weights", "measurement", "noise", "law"), "cauchy"),
        (("weights", "measurement", "noise", "scale"), 0),
        (("weights", "measurement", "noise", "dim"), 3),
        (("weights", "measurement", "features", "terms"), "cubic"),
        (("weights", "measurement", "features", "bound"), -1.0),
        (("weights", "measurement", "features", "order"), 3),
        (("weights", "measurement", "features"), None),
        (("schema", "column", 0, "upper"), 18.0),
        (("schema", "column", 0, "name"), "renamed"),
        (("schema", "column", 5, "levels"), ["Female", "Other"]),
        (("schema", "column", 1, "missing"), False),
    ],
)
def test_bad_inner_values_under_good_checksums(good, tmp_path, path_to, value):
    def change(manifest):
        *parents, last = path_to
        for key in parents:
            manifest = manifest[key]
        manifest[last] = value

    refused(write(tmp_path / "r.iwb", sealed(members_of(good), change)), "cannot be read")


def npz(**arrays):
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


def huge_npz():
    """Build an array whose header declares a terabyte."""
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(buffer, {"descr": "<f8", "fortran_order": False, "shape": (1, 2**37)})
    return archive.pack({"log_weights.npy": buffer.getvalue()})


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"x" * 500,
        npz(log_weights=np.zeros(60)),
        npz(log_weights=np.zeros((1, 59))),
        npz(log_weights=np.zeros((1, 60), dtype=np.float32)),
        npz(log_weights=np.zeros((1, 60), dtype=np.int64)),
        npz(log_weights=np.full((1, 60), np.nan)),
        npz(log_weights=np.full((1, 60), -np.inf)),
        npz(log_weights=np.zeros((0, 60))),
        npz(log_weights=np.asfortranarray(np.zeros((2, 60)))),
        npz(other=np.zeros((1, 60))),
        npz(log_weights=np.zeros((1, 60)), other=np.zeros(1)),
        npz(log_weights=np.array([[{"an": "object"}] * 60], dtype=object)),
        huge_npz(),
        archive.pack({"log_weights.npy": b"\x93NUMPY\x01\x00\x10\x00" + b"(" * 16}),
        archive.pack({"log_weights.npy": b"\x93NUMPY\x03\x00\x10\x00\x00\x00" + b"(" * 16}),
    ],
)
def test_bad_weights_under_good_checksums(good, tmp_path, content):
    members = {**members_of(good), "weights.npz": content}
    refused(write(tmp_path / "r.iwb", sealed(members)), "cannot be read")


def test_no_pickle_is_ever_read(good, tmp_path, monkeypatch):
    class Trap:
        def __reduce__(self):
            return (os.mkdir, (str(tmp_path / "owned"),))

    members = {**members_of(good), "weights.npz": npz(log_weights=np.array([[Trap()] * 60], dtype=object))}
    refused(write(tmp_path / "r.iwb", sealed(members)), "float64")
    assert not (tmp_path / "owned").exists()


def test_bad_measurements_under_good_checksums(good, tmp_path):
    members = members_of(good)
    with np.load(io.BytesIO(members["measurements.npz"])) as archive:
        arrays = dict(archive)
    for name, value in (
        ("value", arrays["value"][:-1]),
        ("value", arrays["value"] * np.nan),
        ("center", arrays["center"][:-1]),
        ("whitener", arrays["whitener"].T.copy()),
        ("whitener", arrays["whitener"] * np.inf),
    ):
        with np.errstate(invalid="ignore"):
            content = npz(**{**arrays, name: value})
        refused(write(tmp_path / "r.iwb", sealed({**members, "measurements.npz": content})), "cannot be read")


def parquet(table):
    buffer = pa.BufferOutputStream()
    pq.write_table(table, buffer)
    return buffer.getvalue().to_pybytes()


def test_bad_tables_under_good_checksums(good, tmp_path):
    members = members_of(good)
    table = pq.read_table(io.BytesIO(members["table.parquet"]))
    age, grade = table.column("age").to_numpy(), table.column("grade").to_pylist()
    bad = [
        table.drop_columns(["age"]),
        table.rename_columns(["AGE", *table.column_names[1:]]),
        table.slice(0, 59),
        pa.concat_tables([table, table]),
        table.append_column("more", pa.array(age)),
        table.set_column(0, "age", pa.array(age.astype(np.float32))),
        table.set_column(0, "age", pa.array([None, *age[1:]], type=pa.float64())),
        table.set_column(0, "age", pa.array([np.nan, *age[1:]])),
        table.set_column(0, "age", pa.array([np.inf, *age[1:]])),
        table.set_column(0, "age", pa.array([91.0, *age[1:]])),
        table.set_column(5, "sex", pa.array(["Other"] * 60)),
        table.set_column(5, "sex", pa.array([None] * 60, type=pa.string())),
        table.set_column(6, "grade", pa.array([4, *grade[1:]])),
        table.set_column(3, "income", pa.array([2] * 60)),
        table.set_column(2, "children", pa.array([13] * 60)),
    ]
    for content in (b"", b"PAR1", *map(parquet, bad)):
        refused(write(tmp_path / "r.iwb", sealed({**members, "table.parquet": content})), "cannot be read")


def test_without_weights_the_rows_stay():
    release = make_release(60)
    plain = release.unweighted()
    assert plain.synthetic is release.synthetic and plain.n_private == release.n_private
    assert plain.weights.method == "uniform" and np.allclose(plain.weights.values, 1)
