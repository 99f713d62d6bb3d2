"""Schema: declarations and their refusals, canonical tables, the encoding and the TOML form."""

import math
import pickle
import string

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from iwbayes.schema import Binary, Categorical, Date, Integer, Real, Schema

quick = settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])

# --- strategies: public declarations of any kind, and tables that fit them

names = st.text(st.characters(exclude_categories=("C", "Z")) | st.just(" "), min_size=1, max_size=12)
flags = st.booleans()


@st.composite
def reals(draw, name):
    transform = draw(st.sampled_from([None, "log1p"]))
    lower = draw(st.floats(-0.99 if transform else -1e9, 1e9))
    width = draw(st.floats(1e-3, 1e9))
    return Real(name, lower, lower + max(width, 1e-6 * abs(lower)), transform=transform, missing=draw(flags))


@st.composite
def integers(draw, name):
    lower = draw(st.integers(-(10**9), 10**9))
    return Integer(name, lower, lower + draw(st.integers(1, 10**9)), missing=draw(flags))


@st.composite
def dates(draw, name):
    days = st.dates()
    first, last = sorted(draw(st.lists(days, min_size=2, max_size=2, unique=True)))
    units = [unit for unit in ("day", "week", "month", "year") if fits_unit(first, last, unit)]
    return Date(name, first, last, unit=draw(st.sampled_from(units)), missing=draw(flags))


def fits_unit(first, last, unit):
    """Whether the range has two units."""
    months = 12 * (last.year - first.year) + last.month - first.month
    return {"day": True, "week": (last - first).days >= 7, "month": months, "year": last.year > first.year}[unit]


@st.composite
def levels_of(draw, least, most):
    kind = draw(st.sampled_from(["text", "number", "truth"]))
    if kind == "truth" and least <= 2:
        return tuple(draw(st.permutations([False, True])))
    values = st.integers(-(10**6), 10**6) if kind == "number" else names
    return tuple(draw(st.lists(values, min_size=least, max_size=most, unique=True)))


@st.composite
def binaries(draw, name):
    return Binary(name, levels=draw(st.just((0, 1)) | levels_of(2, 2)), missing=draw(flags))


@st.composite
def categoricals(draw, name):
    return Categorical(name, levels=draw(levels_of(2, 5)), missing=draw(flags))


@st.composite
def schemas(draw):
    chosen = draw(st.lists(names, min_size=1, max_size=4, unique=True))
    columns = [draw(draw(st.sampled_from([reals, integers, dates, binaries, categoricals]))(name)) for name in chosen]
    features = [name for column in columns for name in column.feature_names]
    assume(len(set(features)) == len(features))
    return Schema(*columns)


def a_table(draw, schema: Schema) -> pd.DataFrame:
    n = draw(st.integers(1, 6))
    cells = {}
    for column in schema:
        if column.kind in ("binary", "categorical"):
            values = st.sampled_from(column.levels)
        elif column.kind == "integer":
            values = st.integers(column.lower, column.upper)
        elif column.kind == "date":
            values = st.integers(0, column.upper) | st.dates() | st.dates().map(str)
        else:
            values = st.floats(column.lower, column.upper)
        drawn = draw(st.lists(st.none() | values if column.missing else values, min_size=n, max_size=n))
        dtype = {"real": "float64", "integer": "Int64"}.get(column.kind, object)
        cells[column.name] = pd.Series(drawn, dtype=dtype)
    return pd.DataFrame(cells)


@st.composite
def tables(draw):
    schema = draw(schemas())
    return schema, schema.admitting("refuse").conform(a_table(draw, schema))


# --- round trips


@quick
@given(tables())
def test_conform_is_canonical_and_idempotent(case):
    schema, frame = case
    assert list(frame.columns) == list(schema.names) and frame.index.equals(pd.RangeIndex(len(frame)))
    for column in schema:
        dtype, truth = frame[column.name].dtype, isinstance(getattr(column, "levels", (None,))[0], bool)
        if column.kind == "real":
            assert dtype == np.float64
        elif column.kind in ("integer", "date") or (column.kind == "binary" and column.levels == (0, 1) and not truth):
            assert str(dtype) == ("Int64" if column.missing else "int64")
        else:
            assert isinstance(dtype, pd.CategoricalDtype) and not dtype.ordered
            assert tuple(dtype.categories) == column.levels
    pd.testing.assert_frame_equal(schema.admitting("refuse").conform(frame), frame)


@quick
@given(tables())
def test_decode_inverts_encode(case):
    schema, frame = case
    features = schema.encode(frame)
    assert features.shape == (len(frame), schema.n_features) and features.dtype == np.float64
    back = schema.decode(features)
    for column in schema:
        if column.kind == "real":
            np.testing.assert_array_equal(back[column.name].isna(), frame[column.name].isna())
            # encoding goes through differences of the transformed bounds: errors are relative to their size
            low, high = column.lower, column.upper
            scale = max(abs(low), abs(high)) * (1 + (math.log1p(high) if column.transform else 0))
            np.testing.assert_allclose(back[column.name], frame[column.name], rtol=0, atol=1e-13 * scale)
        else:
            pd.testing.assert_series_equal(back[column.name], frame[column.name])
    np.testing.assert_allclose(schema.encode(back), features, rtol=0, atol=1e-6)


@quick
@given(tables())
def test_features_are_centred_and_bounded(case):
    schema, frame = case
    features = pd.DataFrame(schema.encode(frame), columns=list(schema.feature_names))
    assert np.isfinite(features.to_numpy()).all()
    for column in schema:
        block = features[list(column.feature_names)].to_numpy()
        absent = frame[column.name].isna().to_numpy()
        if column.kind == "categorical":
            np.testing.assert_array_equal(block.sum(axis=1), 1)
            assert set(np.unique(block)) <= {0.0, 1.0}
            assert not column.missing or (block[:, -1] == absent).all()
        else:
            assert (np.abs(block[:, 0]) <= 0.5).all() and (block[absent, 0] == 0).all()
            assert not column.missing or (block[:, 1] == absent).all()


@quick
@given(schemas())
def test_toml_and_dict_round_trips(schema):
    assert Schema.from_toml(schema.to_toml()) == schema
    assert Schema.from_dict(schema.to_dict()) == schema
    assert hash(Schema.from_dict(schema.to_dict())) == hash(schema)
    for column, same in zip(schema, Schema.from_toml(schema.to_toml()), strict=True):
        assert [type(x) for x in vars(column).values()] == [type(x) for x in vars(same).values()]


@quick
@given(schemas(), st.data())
def test_any_array_decodes_to_a_canonical_table(schema, data):
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    frame = schema.decode(rng.normal(0, 2, (5, schema.n_features)))
    pd.testing.assert_frame_equal(schema.admitting("refuse").conform(frame), frame)


@quick
@given(st.text(string.printable, max_size=60))
def test_any_text_is_a_schema_or_one_clear_error(text):
    assume(not text.strip().endswith(".toml"))
    with pytest.raises(ValueError, match="schema"):
        Schema.from_toml(text)


# --- exact values


def test_the_encoding_by_hand():
    schema = Schema(
        Real("age", 20, 60, missing=True),
        Integer("visits", 0, 4),
        Binary("sex", levels=("woman", "man")),
        Categorical("region", levels=("n", "s"), missing=True),
    )
    frame = pd.DataFrame(
        {"age": [20.0, np.nan, 50.0], "visits": [0, 4, 1], "sex": ["man", "woman", "man"], "region": ["s", "n", None]}
    )
    assert schema.feature_names == ("age", "age[missing]", "visits", "sex", "region[n]", "region[s]", "region[missing]")
    expected = [[-0.5, 0, -0.5, 0.5, 0, 1, 0], [0, 1, 0.5, -0.5, 1, 0, 0], [0.25, 0, -0.25, 0.5, 0, 0, 1]]
    np.testing.assert_array_equal(schema.encode(schema.conform(frame)), expected)


def test_log1p_is_linear_in_the_logarithm():
    schema = Schema(Real("income", 0, math.expm1(10), transform="log1p"))
    values = np.expm1([0.0, 2.5, 5.0, 10.0])
    features = schema.encode(schema.conform(pd.DataFrame({"income": values})))
    np.testing.assert_allclose(features[:, 0], [-0.5, -0.25, 0, 0.5], atol=1e-12)
    np.testing.assert_allclose(schema.decode(features)["income"], values, rtol=1e-12)


def test_numbers_outside_their_bounds_are_clipped():
    schema = Schema(Real("x", -1, 1), Integer("n", 0, 3), Integer("m", 0, 3, missing=True))
    frame = pd.DataFrame({"x": [-7.0, 0.5, 9.0], "n": [-2, 2, 99], "m": pd.array([99, None, -1], dtype="Int64")})
    clipped = schema.conform(frame)
    assert clipped["x"].tolist() == [-1, 0.5, 1] and clipped["n"].tolist() == [0, 2, 3]
    assert clipped["m"].isna().tolist() == [False, True, False] and clipped["m"].dropna().tolist() == [3, 0]
    assert frame["x"].tolist() == [-7.0, 0.5, 9.0]  # the caller's table is left alone


def test_integer_bounds_are_attained_and_fractions_rounded_to_them():
    schema = Schema(Integer("n", -2, 2))
    assert schema.decode(np.array([[-0.5], [0.5], [-9.0], [9.0], [0.13]]))["n"].tolist() == [-2, 2, -2, 2, 1]


@pytest.mark.parametrize(
    "column, cells",
    [
        (Real("x", 0, 1, missing=True), [0.25, None]),
        (Integer("x", 0, 9, missing=True), [3, None]),
        (Binary("x", missing=True), [1, None]),
        (Binary("x", levels=("no", "yes"), missing=True), ["yes", None]),
        (Binary("x", levels=(False, True), missing=True), [True, None]),
        (Categorical("x", levels=("a", "b"), missing=True), ["b", None]),
        (Categorical("x", levels=(1, 2, 3), missing=True), [3, None]),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_missing_cells_of_every_type_stay_missing(column, cells):
    schema = Schema(column)
    assert column.feature_names[-1] == "x[missing]"
    frame = schema.conform(pd.DataFrame({"x": pd.Series(cells, dtype=object).infer_objects()}))
    back = schema.decode(schema.encode(frame))
    assert back["x"].isna().tolist() == [False, True] and back["x"].iloc[0] == cells[0]
    pd.testing.assert_frame_equal(back, frame)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "float32", "Int64", "Float64", "int64[pyarrow]"])
def test_numeric_dtypes_come_out_canonical(dtype):
    schema = Schema(Integer("n", 0, 9), Real("x", 0, 9), Binary("b"))
    values = pd.Series([0, 1, 1], dtype=dtype)
    frame = schema.conform(pd.DataFrame({"n": values, "x": values, "b": values}))
    assert frame.dtypes.map(str).tolist() == ["int64", "float64", "int64"]
    assert frame.to_numpy().tolist() == [[0, 0, 0], [1, 1, 1], [1, 1, 1]]


@pytest.mark.parametrize("dtype", [object, "str", "string", "category", "string[pyarrow]"])
def test_text_dtypes_come_out_canonical(dtype):
    schema = Schema(Categorical("c", levels=("z", "a")))
    frame = schema.conform(pd.DataFrame({"c": pd.Series(["a", "z", "a"], dtype=dtype)}))
    assert frame["c"].cat.codes.tolist() == [1, 0, 1]


def test_unicode_names_and_levels():
    schema = Schema(
        Categorical("région 日本", levels=("Île-de-France", "北海道", "🙂", 'say "hi"\\')), Real("größe", 0, 2)
    )
    assert Schema.from_toml(schema.to_toml()) == schema
    frame = schema.conform(pd.DataFrame({"größe": [1.0], "région 日本": ["北海道"]}))
    pd.testing.assert_frame_equal(schema.decode(schema.encode(frame)), frame)


def test_columns_and_index_are_put_in_order():
    schema = Schema(Real("x", 0, 1), Binary("b"))
    frame = schema.conform(pd.DataFrame({"b": [1, 0], "x": [0.1, 0.2]}, index=["r", "r"]))
    assert list(frame.columns) == ["x", "b"] and frame["x"].tolist() == [0.1, 0.2]


# --- refusals of a table: the rule and the column, and a remedy

FRUIT = Schema(
    Real("weight", 0, 1), Integer("seeds", 0, 9), Binary("ripe"), Categorical("kind", levels=("apple", "pear"))
)
GOOD = {"weight": [0.1, 0.2], "seeds": [1, 2], "ripe": [0, 1], "kind": ["apple", "pear"]}
REFUSED = {
    "absent column": ({"seeds": None}, ValueError, r"lacks.*'seeds'.*leave them out"),
    "unknown column": ({"colour": ["red", "blue"]}, ValueError, r"positions \[4\].*declare"),
    "level": ({"kind": ["apple", "plum"]}, ValueError, r"'kind'.*do not fit: it takes its declared levels"),
    "level of another type": ({"kind": [1, 2]}, ValueError, r"'kind'.*declared levels"),
    "binary level": ({"ripe": [0, 2]}, ValueError, r"'ripe'.*declared levels"),
    "text in a real": ({"weight": ["a", "b"]}, ValueError, r"'weight'.*takes finite numbers.*decimal, thousands"),
    "text in an integer": ({"seeds": ["1", "2x"]}, ValueError, r"'seeds'.*whole numbers"),
    "nullable truth": ({"seeds": pd.array([True, None], dtype="boolean")}, ValueError, r"'seeds' has missing"),
    "complex": ({"weight": [1j, 2j]}, ValueError, r"'weight'.*finite numbers"),
    "dates": ({"weight": pd.to_datetime(["2020-01-01", "2020-01-02"])}, ValueError, r"'weight'.*finite numbers"),
    "durations": ({"seeds": pd.to_timedelta([1, 2], unit="s")}, ValueError, r"'seeds'.*whole numbers"),
    "fractions": ({"seeds": [1.5, 2.0]}, ValueError, r"'seeds'.*whole numbers, no fractions"),
    "infinite": ({"weight": [np.inf, 0.1]}, ValueError, r"'weight'.*finite numbers"),
    "minus infinite": ({"seeds": [-np.inf, 1]}, ValueError, r"'seeds'.*whole numbers"),
    "missing real": ({"weight": [np.nan, 0.1]}, ValueError, r"'weight' has missing.*missing=True"),
    "missing integer": ({"seeds": pd.array([1, None], dtype="Int64")}, ValueError, r"'seeds' has missing"),
    "missing binary": ({"ripe": [np.nan, 1]}, ValueError, r"'ripe' has missing"),
    "missing level": ({"kind": ["apple", None]}, ValueError, r"'kind' has missing"),
    "lists": ({"kind": [["apple"], ["pear"]]}, ValueError, r"'kind'"),
    "empty": ({name: [] for name in GOOD}, ValueError, "no rows"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_table_that_breaks_its_declaration_is_refused(case):
    change, error, message = REFUSED[case]
    cells = {name: values for name, values in (GOOD | change).items() if values is not None}
    with pytest.raises(error, match=message):
        FRUIT.conform(pd.DataFrame(cells))
    assert len(FRUIT.conform(pd.DataFrame(GOOD))) == 2


def test_a_column_that_appears_twice_is_refused():
    frame = pd.concat([pd.DataFrame(GOOD), pd.DataFrame({"seeds": [1, 2]})], axis=1)
    with pytest.raises(ValueError, match=r"'seeds'.*more than once.*rename"):
        FRUIT.conform(frame)


@pytest.mark.parametrize("table", [None, [1, 2], np.zeros((2, 4)), pd.Series([1.0])])
def test_only_frames_and_dicts_are_tables(table):
    with pytest.raises(TypeError, match="a table must be a frame of pandas, polars, Arrow or DuckDB, or a dict"):
        FRUIT.conform(table)
    pd.testing.assert_frame_equal(FRUIT.conform(GOOD), FRUIT.conform(pd.DataFrame(GOOD)))


@pytest.mark.parametrize("shape", [(3,), (3, 4), (3, 6), (1, 3, 5)])
def test_features_of_another_shape_are_refused(shape):
    with pytest.raises(ValueError, match=r"shape \(row, 5\)"):
        FRUIT.decode(np.zeros(shape))


# --- refusals of a declaration

BAD_COLUMNS = {
    "bounds the wrong way": (lambda: Real("x", 2, 1), ValueError, "x: lower must be below upper"),
    "equal bounds": (lambda: Integer("x", 1, 1), ValueError, "x: lower must be below upper"),
    "infinite bound": (lambda: Real("x", 0, math.inf), ValueError, "x: bounds must be finite"),
    "NaN bound": (lambda: Real("x", math.nan, 1), ValueError, "x: bounds must be finite"),
    "text bound": (lambda: Real("x", "0", 1), TypeError, "x: bounds must be numbers"),
    "truth bound": (lambda: Integer("x", False, True), TypeError, "x: bounds must be numbers"),
    "no bound": (lambda: Real("x", None, 1), TypeError, "x: bounds must be numbers"),
    "too wide": (lambda: Real("x", -1e308, 1e308), ValueError, "x: .*bounds"),
    "too narrow for log1p": (lambda: Real("x", 1e20, 1e20 + 2e4, transform="log1p"), ValueError, "x: .*bounds"),
    "fractional bound": (lambda: Integer("x", 0.5, 3), ValueError, "x: bounds must be whole"),
    "integer beyond float": (lambda: Integer("x", 0, 2**60), ValueError, "x: bounds must be between"),
    "transform": (lambda: Real("x", 0, 1, transform="sqrt"), ValueError, "x: transform must be"),
    "log1p below -1": (lambda: Real("x", -1, 1, transform="log1p"), ValueError, "x: transform 'log1p' requires"),
    "name": (lambda: Real(3, 0, 1), TypeError, "name must be a string"),
    "empty name": (lambda: Real("", 0, 1), ValueError, "printable and not empty"),
    "control character": (lambda: Real("a\nb", 0, 1), ValueError, "printable"),
    "missing": (lambda: Real("x", 0, 1, missing="yes"), TypeError, "x: missing must be True or False"),
    "three levels": (lambda: Binary("x", levels=(0, 1, 2)), ValueError, "x: Binary takes 2 levels.*Categorical"),
    "one level": (lambda: Categorical("x", levels=("a",)), ValueError, "x: Categorical takes at least 2"),
    "equal levels": (lambda: Categorical("x", levels=("a", "b", "a")), ValueError, "x: levels must be distinct"),
    "mixed levels": (lambda: Categorical("x", levels=("a", 1)), TypeError, "x: levels must be all"),
    "mixed truth": (lambda: Binary("x", levels=(False, 1)), TypeError, "x: levels must be all"),
    "fractional levels": (lambda: Binary("x", levels=(0.5, 1.5)), TypeError, "x: levels must be all"),
    "a string for levels": (lambda: Categorical("x", levels="ab"), TypeError, "x: levels must be a list"),
    "no list of levels": (lambda: Categorical("x", levels=3), TypeError, "x: levels must be a list"),
    "unprintable level": (lambda: Categorical("x", levels=("a", "b\t")), ValueError, "x: levels must be printable"),
}


@pytest.mark.parametrize("case", BAD_COLUMNS)
def test_a_wrong_declaration_is_refused(case):
    make, error, message = BAD_COLUMNS[case]
    with pytest.raises(error, match=message):
        make()


def test_a_schema_refuses_repeated_and_foreign_columns():
    with pytest.raises(ValueError, match=r"column names must be distinct.*'x'"):
        Schema(Real("x", 0, 1), Binary("x"))
    with pytest.raises(ValueError, match=r"feature names must be distinct.*'x\[missing\]'"):
        Schema(Categorical("x", levels=("missing", "b"), missing=True))
    with pytest.raises(ValueError, match="at least one column"):
        Schema()
    with pytest.raises(TypeError, match="got str"):
        Schema("age")
    with pytest.raises(TypeError, match="got type"):
        Schema(Real)


def test_a_schema_does_not_change():
    schema = Schema(Real("x", 0, 1), Binary("b"))
    with pytest.raises(AttributeError, match="cannot be changed"):
        schema.columns = ()
    with pytest.raises(AttributeError):
        schema["x"].lower = -1
    assert schema == pickle.loads(pickle.dumps(schema)) and schema != Schema(Real("x", 0, 1))
    assert [column.name for column in schema] == ["x", "b"] and len(schema) == 2 and schema.n_features == 2
    with pytest.raises(KeyError, match="no column 'y'"):
        schema["y"]
    assert eval(repr(schema)) == schema  # noqa: S307 - a repr that can be pasted


# --- TOML from a file, and its refusals


def test_toml_by_hand_and_from_a_file(tmp_path):
    text = """
[[column]]
name = "age"
type = "real"
lower = 17
upper = 90

[[column]]
name = "region"
type = "categorical"
levels = ["north", "south"]
missing = true
"""
    schema = Schema(Real("age", 17, 90), Categorical("region", levels=("north", "south"), missing=True))
    path = tmp_path / "s.toml"
    path.write_text(text, encoding="utf-8")
    assert Schema.from_toml(text) == Schema.from_toml(path) == Schema.from_toml(str(path)) == schema
    with pytest.raises(FileNotFoundError):
        Schema.from_toml(tmp_path / "absent.toml")
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match="not valid TOML"):
        Schema.from_toml(path)


@pytest.mark.parametrize(
    "text, error, message",
    [
        ("a = ", ValueError, "not valid TOML"),
        ("", ValueError, r"\[\[column\]\]"),
        ("column = 3", ValueError, r"\[\[column\]\]"),
        ("version = 1\n[[column]]\nname='x'\ntype='binary'", ValueError, "nothing else"),
        ("[[column]]\nname='x'", ValueError, "type"),
        ("[[column]]\nname='x'\ntype='time'", ValueError, "'x'.*type must be one of.*'date'"),
        ("[[column]]\nname='x'\ntype='real'\nlower=0", TypeError, "'x'.*upper"),
        ("[[column]]\nname='x'\ntype='binary'\ncolour='red'", TypeError, "'x'.*colour"),
        ("[[column]]\nname='x'\ntype='categorical'\nlevels=3", TypeError, "x.*levels"),
        ("[[column]]\ntype='binary'", TypeError, "name"),
    ],
)
def test_a_wrong_schema_file_is_refused(text, error, message):
    with pytest.raises(error, match=message):
        Schema.from_toml(text)


@pytest.mark.parametrize("dtype", ["bool", "boolean", "object"])
def test_truth_values_are_zeros_and_ones(dtype):
    values = pd.Series([True, False, True], dtype=dtype)
    assert Binary("a").conform(values).tolist() == [1, 0, 1]
    assert Binary("a", (1, 0)).conform(values).tolist() == [1, 0, 1]
    assert Binary("a", (True, False)).conform(pd.Series([1, 0, 1], dtype=object)).tolist() == [True, False, True]
    with pytest.raises(ValueError, match="its declared levels"):
        Binary("a", ("no", "yes")).conform(values)
    with pytest.raises(ValueError, match="its declared levels"):
        Categorical("a", (0, 2, 3)).conform(values)
