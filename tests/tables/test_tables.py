"""PrivateTable says its schema and nothing else: canaries in every kind of wrong table never show up anywhere."""

import copy
import decimal
import logging
import pickle
import traceback
import warnings

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from iwbayes.schema import Binary, Categorical, Integer, Real, Schema
from iwbayes.tables import PrivateTable, SyntheticTable

#: Private cells: as text, as a number, as a date.
WORD, NUMBER, YEAR = "Zaphod-Q7x", 8675309, 1977
FORMS = (WORD, str(NUMBER), f"{NUMBER:,}", f"{NUMBER:g}", f"{NUMBER / 1e6:.3f}", str(YEAR), WORD.lower())

SCHEMA = Schema(
    Real("income", 0, 10**7),
    Integer("visits", 0, 10**7),
    Binary("insured"),
    Categorical("city", levels=("Rome", "Oslo")),
)
MISSING = Schema(
    Real("income", 0, 10**7, missing=True),
    Integer("visits", 0, 10**7, missing=True),
    Binary("insured", missing=True),
    Categorical("city", levels=("Rome", "Oslo"), missing=True),
)


def good() -> dict[str, object]:
    return {
        "income": [NUMBER + 0.25, 1.0, 2.0],
        "visits": [NUMBER, 3, 4],
        "insured": [1, 0, 1],
        "city": ["Rome", "Oslo", "Oslo"],
    }


class Secret:
    """An object whose every printed form is a canary."""

    def __repr__(self) -> str:
        return WORD

    __str__ = __repr__


class Raising(Secret):
    """An object that fails, and says a private value when it does."""

    __hash__ = None

    def __float__(self) -> float:
        raise ValueError(WORD)

    def __eq__(self, other: object) -> bool:
        raise ValueError(WORD)


class Colliding(Raising):
    """One that a look-up among the levels must compare, since it hashes as a level does."""

    def __init__(self, level: object) -> None:
        self._level = level

    def __hash__(self) -> int:
        return hash(self._level)


def arrow(values: list, kind: pa.DataType) -> pd.Series:
    return pd.Series(pd.arrays.ArrowExtensionArray(pa.array(values, type=kind)))


#: Cells that break the declaration of any column, in every dtype that pandas has.
CELLS = {
    "text": [WORD, "a", "b"],
    "objects": pd.Series([WORD, NUMBER, None], dtype=object),
    "mixed objects": pd.Series([NUMBER, WORD, (WORD, NUMBER)], dtype=object),
    "lists": pd.Series([[WORD], [NUMBER], []], dtype=object),
    "dictionaries": pd.Series([{WORD: NUMBER}, {}, {}], dtype=object),
    "tuples": pd.Series([(WORD, NUMBER), (1, 2), (3, 4)], dtype=object),
    "secret objects": pd.Series([Secret(), Secret(), Secret()], dtype=object),
    "raising objects": pd.Series([Raising(), Raising(), Raising()], dtype=object),
    "colliding objects": pd.Series([Colliding(0), Colliding(1), Colliding("Rome")], dtype=object),
    "bytes": pd.Series([WORD.encode(), b"1", b"2"], dtype=object),
    "decimals": pd.Series([decimal.Decimal(NUMBER), decimal.Decimal(1), decimal.Decimal(2)], dtype=object),
    "huge integers": pd.Series([NUMBER**40, 1, 2], dtype=object),
    "category": pd.Series([WORD, "a", "b"], dtype="category"),
    "numeric category": pd.Series([NUMBER, 1, 2], dtype="category"),
    "ordered category": pd.Series(pd.Categorical([WORD, "a", "b"], categories=[WORD, "a", "b"], ordered=True)),
    "string": pd.Series([WORD, "a", None], dtype="string"),
    "arrow string": pd.Series([WORD, "a", None], dtype="string[pyarrow]"),
    "arrow dictionary": arrow([WORD, "a", "b"], pa.dictionary(pa.int32(), pa.string())),
    "arrow struct": arrow([{WORD: NUMBER}, {WORD: 1}, {WORD: 2}], pa.struct([(WORD, pa.int64())])),
    "arrow list": arrow([[WORD], ["a"], []], pa.list_(pa.string())),
    "arrow truth": arrow([True, False, None], pa.bool_()),
    "arrow infinite": arrow([float("inf"), float(NUMBER), None], pa.float64()),
    "arrow durations": arrow([NUMBER, 1, 2], pa.duration("s")),
    "arrow date": arrow([pd.Timestamp(f"{YEAR}-03-04"), None, None], pa.timestamp("us")),
    "boolean": pd.Series([True, False, None], dtype="boolean"),
    "complex": [complex(NUMBER, 1), 1j, 2j],
    "dates": pd.to_datetime([f"{YEAR}-03-04"] * 3),
    "dates with zone": pd.to_datetime([f"{YEAR}-03-04"] * 3).tz_localize("UTC"),
    "periods": pd.period_range(f"{YEAR}-03", periods=3, freq="M"),
    "durations": pd.to_timedelta([NUMBER, 1, 2], unit="s"),
    "intervals": pd.interval_range(NUMBER, NUMBER + 3),
    "sparse text": pd.Series(pd.arrays.SparseArray([WORD, WORD, "b"], fill_value=WORD, dtype=object)),
    "infinite": [np.inf, float(NUMBER), 1.0],
    "minus infinite": [-np.inf, float(NUMBER), 1.0],
    "infinite Float64": pd.Series([np.inf, float(NUMBER), None], dtype="Float64"),
}
WHERE = ("income", "visits", "insured", "city")
#: Some of those are fine in some columns (dates are not): pairs that a schema with missing cells accepts.
ACCEPTED_WITH_MISSING = {(name, cells) for name in WHERE[:3] for cells in ("arrow truth", "boolean")}
#: And those that hold numbers are fine where numbers are.
ACCEPTED = {(name, cells) for name in WHERE[:2] for cells in ("decimals", "huge integers", "numeric category")}


def assert_silent(error: BaseException) -> None:
    """No printed form of the error, its chain or its arguments holds a canary."""
    texts = ["".join(traceback.format_exception(error)), str(error), repr(error), repr(error.args)]
    texts += ["".join(traceback.format_exception(error, chain=False)), repr(getattr(error, "__notes__", ""))]
    for text in texts:
        assert not [form for form in FORMS if form in text]


def test_the_canaries_can_be_seen():
    """A message that does quote a cell is caught, so that silence means something."""
    with pytest.raises(AssertionError):
        assert_silent(ValueError(f"bad value {NUMBER}"))
    try:
        float(WORD)
    except ValueError as error:
        with pytest.raises(AssertionError):
            assert_silent(error)


@pytest.mark.parametrize("schema", [SCHEMA, MISSING], ids=["complete", "missing"])
@pytest.mark.parametrize("column", WHERE)
@pytest.mark.parametrize("cells", CELLS)
def test_wrong_cells_are_refused_by_column_and_never_quoted(schema, column, cells, capfd, caplog):
    frame = pd.DataFrame(good() | {column: CELLS[cells]})
    if (column, cells) in ACCEPTED or (schema is MISSING and (column, cells) in ACCEPTED_WITH_MISSING):
        assert len(PrivateTable(frame, schema)) == 3
        return
    with caplog.at_level(logging.DEBUG), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with pytest.raises((TypeError, ValueError), match=f"'{column}'") as raised:
            PrivateTable(frame, schema)
    assert_silent(raised.value)
    assert raised.value.__cause__ is None
    printed = "".join(capfd.readouterr()) + caplog.text + "".join(str(w.message) for w in caught)
    assert not [form for form in FORMS if form in printed]


HEADERS = {
    "a file without a header": [NUMBER, WORD, str(YEAR), f"{WORD}.1"],
    "one unknown name": ["income", "visits", "insured", "city", WORD],
    "a date": ["income", "visits", "insured", "city", pd.Timestamp(f"{YEAR}-03-04")],
    "a number": ["income", "visits", "insured", "city", NUMBER],
    "a tuple": ["income", "visits", "insured", "city", (WORD, NUMBER)],
    "an object": ["income", "visits", "insured", "city", Secret()],
    "missing": ["income", "visits", "insured", "city", np.nan],
    "two alike": ["income", "visits", "insured", "city", "city"],
    "two unknown alike": ["income", "visits", "insured", "city", WORD, WORD],
    "another case": ["INCOME", "visits", "insured", "city"],
}


@pytest.mark.parametrize("header", HEADERS)
def test_wrong_headers_are_refused_and_never_quoted(header):
    names = HEADERS[header]
    frame = pd.DataFrame([[1.0] * len(names)] * 2)
    frame.columns = pd.Index(names, dtype=object)
    with pytest.raises(ValueError, match="column") as raised:
        PrivateTable(frame, SCHEMA)
    assert_silent(raised.value)


def test_a_multi_level_header_is_refused_and_never_quoted():
    frame = pd.DataFrame([[1.0] * 4], columns=pd.MultiIndex.from_product([["income", WORD], ["a", NUMBER]]))
    with pytest.raises(ValueError, match="lacks the declared columns") as raised:
        PrivateTable(frame, SCHEMA)
    assert_silent(raised.value)


@pytest.mark.parametrize(
    "frame", [[WORD], {WORD: NUMBER}, WORD, np.array([NUMBER]), pd.Series([WORD], name=WORD), Secret()]
)
def test_what_is_no_table_is_refused_and_never_quoted(frame):
    with pytest.raises((TypeError, ValueError), match="a table") as raised:
        PrivateTable(frame, SCHEMA)
    assert_silent(raised.value)


def test_an_empty_table_is_refused():
    with pytest.raises(ValueError, match="no rows"):
        PrivateTable(pd.DataFrame(good()).iloc[:0], SCHEMA)


@pytest.mark.parametrize("schema", [None, {"income": "real"}, Secret(), SCHEMA.columns])
def test_a_wrong_schema_is_refused(schema):
    for kind in (PrivateTable, SyntheticTable):
        with pytest.raises(TypeError, match="schema must be an iwbayes.Schema") as raised:
            kind(pd.DataFrame(good()), schema)
        assert_silent(raised.value)


# --- a table that is fine


@pytest.fixture
def private() -> PrivateTable:
    return PrivateTable(pd.DataFrame(good()), SCHEMA)


def test_its_printed_forms_show_the_schema_only(private):
    forms = [repr(private), str(private), f"{private}", f"{private!r}", ascii(private)]
    for name in dir(private):  # whatever a notebook would ask for
        if name.startswith("_repr_") and callable(getattr(private, name)):
            forms.append(str(getattr(private, name)()))
    for text in forms:
        assert "income" in text and not [form for form in FORMS if form in text]
    assert repr(private) == f"PrivateTable of {SCHEMA!r}"


def test_a_container_prints_the_schema_only(private):
    assert not [form for form in FORMS if form in repr([private]) + repr({"table": private})]


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_it_cannot_be_pickled(private, protocol):
    with pytest.raises(TypeError, match="cannot be pickled.*Build it again"):
        pickle.dumps(private, protocol=protocol)
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps({"inside": [private]}, protocol=protocol)


@pytest.mark.parametrize("copier", [copy.copy, copy.deepcopy])
def test_it_cannot_be_copied_by_pickle(private, copier):
    with pytest.raises(TypeError, match="cannot be pickled"):
        copier(private)


def test_it_does_not_change(private):
    for name in ("frame", "schema", "_frame", "_schema", "anything"):
        with pytest.raises(AttributeError, match="cannot be changed"):
            setattr(private, name, None)
    assert not hasattr(private, "__dict__")
    assert len(private) == 3 and private.schema == SCHEMA


def test_it_keeps_its_own_copy_of_the_rows():
    frame = pd.DataFrame(good())
    private, synthetic = PrivateTable(frame, SCHEMA), SyntheticTable(frame, SCHEMA)
    frame.loc[0, "income"], frame.loc[0, "city"], frame.loc[0, "visits"] = -1.0, "Oslo", 0
    for table in (private, synthetic):
        assert table.frame.loc[0].tolist() == [NUMBER + 0.25, NUMBER, 1, "Rome"]


def test_reals_outside_their_bounds_are_clipped_in_silence(capfd):
    table = PrivateTable(pd.DataFrame(good() | {"income": [-5.0, 1e9, 3.0]}), SCHEMA)
    assert table.frame["income"].tolist() == [0.0, 1e7, 3.0]
    assert capfd.readouterr() == ("", "")


# --- synthetic rows are public


def test_a_synthetic_table_pickles_and_prints():
    table = SyntheticTable(pd.DataFrame(good()), SCHEMA, origin="BayesNet")
    again = pickle.loads(pickle.dumps(table))
    pd.testing.assert_frame_equal(again.frame, table.frame)
    assert (again.schema, again.origin, len(again)) == (SCHEMA, "BayesNet", 3)
    assert repr(table) == "SyntheticTable(3 rows: income, visits, insured, city)"
    assert "Rome" in table._repr_html_()
    assert SyntheticTable(pd.DataFrame(good()), SCHEMA).origin is None


def test_a_synthetic_table_does_not_change():
    table = SyntheticTable(pd.DataFrame(good()), SCHEMA)
    for name in ("frame", "schema", "origin"):
        with pytest.raises(AttributeError, match="cannot be changed"):
            setattr(table, name, None)


def test_a_synthetic_table_keeps_to_the_schema():
    with pytest.raises(ValueError, match="'city'"):
        SyntheticTable(pd.DataFrame(good() | {"city": ["Rome", "Oslo", "Bonn"]}), SCHEMA)
