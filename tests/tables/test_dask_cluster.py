"""The same code on a Dask cluster of two workers, each a process of its own: the releases of rows in memory."""

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_array_equal

import iwbayes as iw

distributed = pytest.importorskip("distributed", reason="a cluster needs the package distributed")

# Dask's readers use what pandas 3.1 announces to remove
pytestmark = pytest.mark.filterwarnings("ignore:The inplace keyword in DataFrame")

SCHEMA = iw.Schema(iw.Real("x", -3, 3, missing=True), iw.Categorical("g", ["u", "v", "w"]), iw.Binary("y"))


@pytest.fixture(scope="module")
def cluster():
    options = {"n_workers": 2, "threads_per_worker": 1, "processes": True, "dashboard_address": None}
    with distributed.LocalCluster(**options) as workers, distributed.Client(workers) as client:
        yield client


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(1)
    person = np.repeat(np.arange(400), rng.integers(1, 6, 400))
    frame = pd.DataFrame({"person": person, "x": rng.normal(size=len(person)).round(3)})
    frame["y"] = (rng.random(len(frame)) < 1 / (1 + np.exp(-frame["x"]))).astype(int)
    frame["g"] = rng.choice(["u", "v", "w"], len(frame))
    frame.loc[::9, "x"] = np.nan
    return frame.sample(frac=1, random_state=1).reset_index(drop=True)


@pytest.fixture(scope="module")
def stored(rows, tmp_path_factory):
    folder = tmp_path_factory.mktemp("rows")
    for place in range(6):
        rows.iloc[place * 250 : (place + 1) * 250 if place < 5 else None].to_parquet(folder / f"{place}.parquet")
    return folder


def test_blocks_are_worked_on_by_both_workers(cluster, stored, rows):
    private = iw.PrivateTable.from_dask(dd.read_parquet(stored), SCHEMA, user="person")
    found = list(private.map_blocks(lambda block: (__import__("os").getpid(), len(block))))
    assert {pid for pid, _ in found} == set(cluster.run(lambda: __import__("os").getpid()).values())
    assert sum(n for _, n in found) == len(rows) and len({pid for pid, _ in found}) == 2


def test_the_release_is_that_of_the_same_rows_in_memory(cluster, stored, rows):
    generator = iw.Mixture(3, 2, starts=1, random_seed=5, progressbar=False)
    releases, settings = [], {"epsilon": 1.0, "delta": 1e-6, "n_synthetic": 300}
    columns = dd.read_parquet(stored, columns=list(SCHEMA.names))
    for private in (iw.PrivateTable.from_dask(columns, SCHEMA), iw.PrivateTable(rows[list(SCHEMA.names)], SCHEMA)):
        options = {**settings, "noise": iw.SeededNoise(3), "generator": generator, "for_models": ["y ~ x + g"]}
        releases.append(iw.publish(private, **options, random_seed=4, progressbar=False))
    assert_array_equal(*(release.weights.log_weights for release in releases))
    pd.testing.assert_frame_equal(*(release.synthetic.frame for release in releases))


@pytest.mark.filterwarnings("ignore::iwbayes.utils.warnings.CalibrationWarning")
def test_people_are_bounded_over_the_files_of_all_workers(cluster, stored, rows):
    releases = []
    for private in (
        iw.PrivateTable.from_dask(dd.read_parquet(stored), SCHEMA, user="person"),
        iw.PrivateTable(rows, SCHEMA, user="person"),
    ):
        ledger = iw.Ledger(2.0, 1e-6, "replace-user", noise=iw.SeededNoise(3))
        settings = {"n_synthetic": 300, "ledger": ledger, "random_seed": 4, "progressbar": False}
        releases.append(iw.publish_users(private, epsilon=2.0, delta=1e-6, grid=[1, 2, 4], **settings))
    assert_array_equal(*(release.weights.log_weights for release in releases))
    assert releases[0].n_private == releases[1].n_private


def test_a_refusal_on_a_worker_names_the_column_and_no_cell(cluster, stored, rows):
    wrong = dd.read_parquet(stored).assign(g="canary-4711")
    with pytest.raises(ValueError, match="column 'g'") as caught:
        iw.PrivateTable.from_dask(wrong, SCHEMA, user="person")
    assert "canary" not in str(caught.value)
