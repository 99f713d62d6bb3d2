"""Private rows in Dask frames: the same releases as from memory, refusals before a charge, no row in any message."""

from __future__ import annotations

import logging
import sys
import time
import warnings

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_array_equal

import iwbayes as iw
from iwbayes.curator.generators.tables import coding
from iwbayes.curator.generators.tables.bins import ColumnBins, Groups
from iwbayes.tables import blocks

# Dask's readers use what pandas 3.1 announces to remove
pytestmark = pytest.mark.filterwarnings("ignore:The inplace keyword in DataFrame")

SCHEMA = iw.Schema(
    iw.Real("x", -3, 3, missing=True),
    iw.Integer("k", 0, 9),
    iw.Categorical("g", ["u", "v", "w"]),
    iw.Binary("y", ("no", "yes")),
)
CANARY = "canary-4711"


def rows(n=3000, seed=1):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=n).round(3)
    return pd.DataFrame(
        {
            "y": np.where(rng.random(n) < 1 / (1 + np.exp(-x)), "yes", "no"),
            "x": np.where(rng.random(n) < 0.1, np.nan, x),
            "k": rng.integers(0, 10, n),
            "g": rng.choice(["u", "v", "w"], n, p=[0.6, 0.3, 0.1]),
        }
    )


def lazy(frame, blocks=7):
    return dd.from_pandas(frame, npartitions=blocks, sort=False)


def release_of(private, **options):
    settings = {"epsilon": 1.0, "delta": 1e-6, "n_synthetic": 2000, "noise": iw.SeededNoise(3), "random_seed": 4}
    return iw.publish(private, **{**settings, **options}, progressbar=False)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"for_models": ["y ~ x + g"]},
        {"weights": iw.TiltWeights(mechanism="cube")},
        {"generator": iw.BayesNet(max_parents=0)},
        {"generator": iw.BayesNet(max_parents=1)},
        {"generator": iw.AIM(rounds=3)},
        {"generator": iw.MST()},
        {"generator": iw.Mixture(4, 2, starts=1, random_seed=5, progressbar=False)},
    ],
    ids=["default", "stages", "cube", "no parents", "one parent", "AIM", "MST", "Mixture"],
)
def test_the_release_is_that_of_the_same_rows_in_memory(options):
    frame = rows()
    here = release_of(iw.PrivateTable(frame, SCHEMA), **options)
    there = release_of(iw.PrivateTable.from_dask(lazy(frame), SCHEMA), **options)
    pd.testing.assert_frame_equal(here.synthetic.frame, there.synthetic.frame)
    assert_array_equal(here.weights.log_weights, there.weights.log_weights)
    assert here.n_private == there.n_private == 3000 and str(here.statement) == str(there.statement)


def test_rows_in_memory_are_worked_on_in_blocks(monkeypatch):
    private = iw.PrivateTable(rows(), SCHEMA)
    whole = release_of(private)
    monkeypatch.setattr(blocks, "BLOCK_ROWS", 256)
    monkeypatch.setattr("iwbayes.curator.generators.tables.network.COUNTED_ROWS", 100)
    sizes = list(private.map_blocks(len))
    assert sizes == [256] * 11 + [184]
    assert_array_equal(release_of(private).weights.log_weights, whole.weights.log_weights)
    stored = iw.PrivateTable.from_dask(lazy(rows(), blocks=3), SCHEMA)
    assert list(stored.map_blocks(len)) == [256, 256, 256, 232] * 3


def test_files_and_empty_blocks(tmp_path):
    frame = rows()
    for part in range(3):
        frame.iloc[part::3].to_parquet(tmp_path / f"{part}.parquet", index=False)
    stored = dd.read_parquet(tmp_path)
    private = iw.PrivateTable.from_dask(stored[stored["k"] < 5], SCHEMA)
    assert len(private) == private.n_private == private.n_users == (frame["k"] < 5).sum()
    # what a filter leaves in no row of a block
    sparse = lazy(frame.assign(k=np.arange(len(frame)) // 1500), blocks=10)
    some = iw.PrivateTable.from_dask(sparse[sparse["k"] == 1], SCHEMA)
    assert len(some) == 1500 and len(list(some.map_blocks(len))) == 5
    with pytest.raises(ValueError, match="no rows"):
        iw.PrivateTable.from_dask(sparse[sparse["k"] == 7], SCHEMA)


def test_what_needs_rows_in_memory_is_refused_before_anything_is_charged():
    private = iw.PrivateTable.from_dask(lazy(rows()), SCHEMA)
    assert not private.in_memory and repr(private) == repr(iw.PrivateTable(rows(), SCHEMA))
    ledger = iw.Ledger(1.0, 1e-6)
    options = {"epsilon": 1.0, "delta": 1e-6, "ledger": ledger, "n_synthetic": 100, "progressbar": False}
    steps = iw.Mixture(method="variational")
    with pytest.raises(ValueError, match=r"Mixture needs the private rows in memory.*frame.compute\(\)"):
        iw.publish(private, generator=steps, **options)
    with pytest.raises(ValueError, match="LogisticWeights needs the private rows in memory"):
        iw.publish(private, weights=iw.paper.LogisticWeights(), **options)
    with pytest.raises(ValueError, match="TiltWeights needs the private rows in memory"):
        iw.publish(private, weights=iw.TiltWeights(base=iw.paper.LogisticWeights()), **options)
    with pytest.raises(ValueError, match="Pass n_synthetic"):
        iw.publish(private, **{**options, "n_synthetic": None})
    synthetic = iw.SyntheticTable(rows(), SCHEMA, already_spent=(0, 0))
    with pytest.raises(ValueError, match="LogisticWeights needs the private rows in memory"):
        iw.paper.LogisticWeights().fit(private, synthetic, ledger, epsilon=1.0, delta=1e-6)
    with pytest.raises(ValueError, match="this needs them in memory"):
        private.frame  # noqa: B018
    assert ledger.statement().events == ()
    assert len(iw.publish(private, generator=synthetic, **{**options, "n_synthetic": None}).weights) == 3000


def test_generators_of_gradients_refuse_by_themselves_before_anything_is_charged():
    pytest.importorskip("torch")
    private, ledger = iw.PrivateTable.from_dask(lazy(rows()), SCHEMA), iw.Ledger(1.0, 1e-6)
    for generator in (iw.Mixture(method="variational"), iw.paper.PATEGAN()):
        with pytest.raises(
            ValueError, match=r"needs the private rows in memory.* Use BayesNet\(\), AIM\(\), MST\(\) or Mixture"
        ):
            generator.fit(private, ledger, epsilon=1.0, delta=1e-6)
    assert ledger.statement().events == ()


@pytest.mark.parametrize("limits", [(2**22, 2**24, 20_000), (60, 2**24, 20_000), (60, 100, 20_000), (40, 2**24, 3)])
def test_tables_are_those_of_the_rows_however_few_cells_a_pass_may_count(monkeypatch, limits):
    """Against counts cell by cell: in one pass or many, as sums of larger tables or from the rows anew."""
    for name, value in zip(("PASS_CELLS", "KEPT_CELLS", "KEPT_TABLES"), limits, strict=True):
        monkeypatch.setattr(coding, name, value)
    frame = rows(700)
    private = iw.PrivateTable.from_dask(lazy(frame), SCHEMA)
    bins = [ColumnBins.of(column, 5) for column in SCHEMA]
    groups = [Groups(np.arange(b.size) // 2, np.ones(b.size)) for b in bins]
    codes = [
        g.of[b.codes(column)] for g, b, (_, column) in zip(groups, bins, SCHEMA.conform(frame).items(), strict=True)
    ]
    coded = coding.RowCodes(private, bins, keep=False)
    coded.group(groups)
    coded.remember(3, 60)
    asked = [(1,), (2, 0), (3, 1, 2), (0, 1, 2), (0,), (1, 3), (0, 3, 2), (3, 2, 1, 0)]
    for columns, found in zip(asked, coded.count(asked), strict=True):
        table = np.zeros([groups[c].size for c in columns], dtype=int)
        np.add.at(table, tuple(codes[c] for c in columns), 1)
        assert_array_equal(found, table.ravel())


def test_declarations_are_checked_in_every_block():
    frame = rows()
    frame.loc[2900, "g"] = CANARY
    with pytest.raises(ValueError, match="'g'") as caught:
        iw.PrivateTable.from_dask(lazy(frame), SCHEMA)
    assert CANARY not in str(caught.value) and caught.value.__context__ is None
    with pytest.raises(ValueError, match="lacks the declared columns"):
        iw.PrivateTable.from_dask(lazy(rows().drop(columns="k")), SCHEMA)
    with pytest.raises(TypeError, match=r"takes a dask.dataframe.DataFrame; got DataFrame"):
        iw.PrivateTable.from_dask(rows(), SCHEMA)
    with pytest.raises(TypeError, match="schema"):
        iw.PrivateTable.from_dask(lazy(rows()), "x")


def test_what_dask_says_of_rows_is_not_passed_on(caplog, capsys, tmp_path):
    path = tmp_path / "rows.csv"
    frame = rows(400)
    frame.to_csv(path, index=False)
    frame["k"] = frame["k"].astype(object)
    frame.loc[399, "k"] = CANARY
    stored = dd.read_csv(path, dtype={"k": "int64"}, blocksize=2000)
    private = iw.PrivateTable.from_dask(stored, SCHEMA)
    frame.to_csv(path, index=False)  # the files change under the table
    with caplog.at_level(logging.DEBUG), pytest.raises(RuntimeError, match="could not be read") as caught:
        iw.PrivateTable.from_dask(stored, SCHEMA)
    chain = [caught.value, caught.value.__cause__, caught.value.__context__]
    with pytest.raises(RuntimeError, match="could not be read") as sorted_rows:  # it is read to find its partitions
        iw.PrivateTable.from_dask(stored.sort_values("x"), SCHEMA)
    chain += [sorted_rows.value, sorted_rows.value.__cause__, sorted_rows.value.__context__]
    assert all(CANARY not in repr(error) for error in chain)
    for content, message in (
        (frame, "could not be read"),
        (rows(300), "(could not be read|number of rows of the Dask frame changed)"),
    ):
        content.to_csv(path, index=False)
        ledger = iw.Ledger(1.0, 1e-6)
        with pytest.raises(RuntimeError, match=message):
            iw.publish(private, epsilon=1.0, delta=1e-6, n_synthetic=100, ledger=ledger, progressbar=False)
        assert ledger.spent[0] > 0.99  # whether rows can be read may depend on them
    assert CANARY not in caplog.text + "".join(capsys.readouterr())


def test_a_block_with_a_defect_says_its_kind_only():
    private = iw.PrivateTable.from_dask(lazy(rows()), SCHEMA)

    def fails(block):
        raise KeyError(CANARY)

    with pytest.raises(ValueError, match=r"KeyError.*bug") as caught:
        list(private.map_blocks(fails))
    assert CANARY not in str(caught.value)


def test_other_schedulers():
    frame = rows()
    with dask.config.set(scheduler="processes", num_workers=2):
        there = release_of(iw.PrivateTable.from_dask(lazy(frame, blocks=3), SCHEMA))
    assert_array_equal(there.weights.log_weights, release_of(iw.PrivateTable(frame, SCHEMA)).weights.log_weights)


def test_without_dask_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "dask", None)
    monkeypatch.delitem(sys.modules, "dask.dataframe", raising=False)
    with pytest.raises(ModuleNotFoundError, match=r'pip install "\.\[dask\]"'):
        iw.PrivateTable.from_dask(rows(), SCHEMA)


def test_threads_that_suppress_warnings_do_not_suppress_those_of_a_release():
    """Each thread restores the filters that it found, and these may be those of another thread."""
    frame = pd.DataFrame({"x": np.linspace(-1, 1, 80), "k": 1, "g": "u", "y": "no"})
    private = iw.PrivateTable.from_dask(dd.from_pandas(frame, npartitions=8), SCHEMA)
    before, turn = list(warnings.filters), iter(range(100))

    def quietly(block: pd.DataFrame) -> int:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            time.sleep(0.02 * (1 + next(turn) % 3))
            return len(block)

    with dask.config.set(scheduler="threads", num_workers=4):
        for _ in range(3):
            assert sum(private.map_blocks(quietly)) == 80
            assert list(warnings.filters) == before
