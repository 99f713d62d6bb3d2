"""Digests of public content: every change of a table, array, text or number is another digest."""

import itertools
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

import iwbayes as iw
from iwbayes.evidence import FeatureMap
from iwbayes.evidence.distributions import GaussianDistribution
from iwbayes.evidence.measurement import Measurement
from iwbayes.release.weights import Weights
from iwbayes.utils.digest import digest

SCHEMA = iw.Schema(
    iw.Real("x", 0, 9, missing=True),
    iw.Integer("k", 0, 9, missing=True),
    iw.Categorical("g", ("a", "b", "c"), missing=True),
)


def canonical(**changes):
    frame = pd.DataFrame(
        {"x": [0.5, 2.0, np.nan, 2.0] * 50, "k": [0, None, 2, 3] * 50, "g": ["a", "b", None, "c"] * 50}
    )
    return SCHEMA.conform(frame.assign(**changes))


def apart(contents):
    prints = [digest(*content) if isinstance(content, tuple) else digest(content) for content in contents]
    return len(set(prints)) == len(prints)


def test_every_change_of_a_table_is_another_digest():
    frame = canonical()
    last = frame.copy()
    last.loc[199, "x"] = 2.5
    tables = [
        frame,
        last,
        frame.iloc[::-1],
        frame.iloc[[1, 0, *range(2, 200)]],
        *(frame.assign(**{name: frame[name].iloc[::-1].array}) for name in SCHEMA.names),
        frame.iloc[:-1],
        frame.rename(columns={"x": "z"}),
        frame[["k", "x", "g"]],
        frame[["x", "k"]],
        frame.assign(x=frame["x"].astype(np.float32)),
        frame.assign(k=frame["k"].fillna(0)),
        frame.assign(x=frame["x"].fillna(0.0)),
        frame.assign(g=frame["g"].cat.rename_categories({"a": "d"})),
        frame.assign(g=frame["g"].cat.rename_categories({"a": 1, "b": 2, "c": 3})),
        frame.assign(g=frame["g"].cat.as_ordered()),
        frame.assign(g=frame["g"].fillna("a")),
    ]
    assert apart(tables)
    assert digest(frame) == digest(frame.copy()) == digest(frame.set_axis(range(7, 207)))


def test_every_change_of_an_array_is_another_digest():
    array = np.arange(6.0)
    assert apart(
        [array, array[::-1], array.reshape(2, 3), array.reshape(3, 2), array.astype(np.float32), array.astype(np.int64),
         array.view(np.int64), array[:5], array + 1e-15, np.where(array == 5, np.nan, array)]
    )  # fmt: skip
    assert digest(array) == digest(np.arange(12.0)[::2] / 2)  # however it lies in memory
    assert digest(np.array([0.0, np.nan])) == digest(np.array([-0.0, -np.nan]))
    with pytest.raises(TypeError, match="no canonical bytes"):
        digest(np.array([{}]))
    with pytest.raises(TypeError, match="no canonical bytes"):
        digest({})


def test_parts_do_not_run_into_each_other():
    cut = [(b"ab", b"c"), (b"a", b"bc"), (b"abc",), (b"abc", b""), ((b"ab", b"c"),), ([b"ab", b"c"],)]
    assert apart([*cut, (b"abytesb", b""), (b"a", b"b", b""), ("1",), (1,), (1.0,), (True,), (b"1",), (None,), ((),)])
    heads = [part for pair in itertools.product((b"", b"5:bytes1:a", b"a"), repeat=2) for part in [pair]]
    assert apart(heads)


def test_another_process_gives_the_same_digest():
    imports = "import numpy as np; from iwbayes.utils.digest import digest"
    code = f"{imports}; print(digest('a', 1, np.arange(3.0), ('b', None)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == digest("a", 1, np.arange(3.0), ("b", None))


# --- what ledgers know tables and weights by


def test_a_synthetic_table_is_known_by_rows_ratio_schema_and_cost():
    settings = {"log_ratio": np.zeros(200), "already_spent": (0.5, 0.0)}
    tables = [
        iw.SyntheticTable(canonical(), SCHEMA, **settings),
        iw.SyntheticTable(canonical(k=1), SCHEMA, **settings),
        iw.SyntheticTable(canonical(), SCHEMA, **{**settings, "log_ratio": np.full(200, 1e-9)}),
        iw.SyntheticTable(canonical(), SCHEMA, **{**settings, "log_ratio": None}),
        iw.SyntheticTable(canonical(), SCHEMA, **{**settings, "already_spent": (0.5, 1e-9)}),
        iw.SyntheticTable(canonical(), iw.Schema(iw.Real("x", 0, 10, missing=True), *list(SCHEMA)[1:]), **settings),
    ]
    assert len({table.fingerprint() for table in tables}) == len(tables)
    assert iw.SyntheticTable(canonical(), SCHEMA, **settings).fingerprint() == tables[0].fingerprint()


def test_weights_are_known_by_their_values_and_what_they_were_measured_from():
    features = FeatureMap(iw.Schema(iw.Real("x", 0, 1)), "linear", np.zeros(1), np.ones((1, 1)), 0.25)

    def measured(value, held_back=None):
        return Measurement("m", np.full(2, value), GaussianDistribution(1.0, 2), 1.0, features, 10, held_back)

    weights = [
        Weights(np.zeros(5), "test"),
        Weights(np.array([0, 0, 0, 0, 1e-12]), "test"),
        Weights(np.zeros((2, 5)), "test"),
        *(Weights(np.zeros(5), "test", measurement=measured(value)) for value in (0.0, 1.0)),
        Weights(np.zeros(5), "test", measurement=measured(0.0, measured(0.0))),
        Weights(np.zeros(5), "test", measurement=measured(0.0, measured(1.0))),
    ]
    assert len({each.fingerprint() for each in weights}) == len(weights)


def test_weights_that_were_changed_since_have_no_source():
    made = Weights(np.zeros(5), "test")._from_source("a fit")
    assert made.source == "a fit"
    object.__setattr__(made, "log_weights", np.ones(5))
    assert made.source is None
