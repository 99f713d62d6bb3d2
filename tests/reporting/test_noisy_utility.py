"""Margins and means with noise: their exact values, their privacy cost, and what is charged before a row is read."""

import numpy as np
import pandas as pd
import pytest
from factories import bounded_table, seeded_ledger, synthetic_table
from looks import looks_at_rows
from noise_sources import SilentNoise, shares_of_claims

import iwbayes as iw

SCHEMA = iw.Schema(
    iw.Real("x", 0, 8, missing=True),
    iw.Integer("k", 0, 40),
    iw.Categorical("g", ("a", "b", "c")),
    iw.Date("d", "2010-01-01", "2010-12-31", unit="month"),
)
NO_NUMBER = iw.Schema(iw.Categorical("g", ("a", "b", "c")), iw.Binary("y"))


def rows(n, rng):
    """Rows of which many lie on the bounds, as an adversary would choose."""
    x = rng.choice([0.0, 8.0, np.nan, 3.0], n)
    months = pd.to_datetime([f"2010-{month:02d}-01" for month in rng.choice([1, 5, 12], n)])
    return pd.DataFrame({"x": x, "k": rng.choice([0, 40, 7], n), "g": rng.choice(list("abc"), n), "d": months})


def changed(rng):
    """One row, often in a corner of the schema: two opposite corners move everything as far as possible."""
    row, corner = rows(1, rng), rng.integers(4)
    if corner < 2:
        row = row.assign(x=[0.0, 8.0][corner], k=[0, 40][corner], g="ab"[corner])
        row["d"] = pd.to_datetime(["2010-01-01", "2010-12-01"][corner])
    return row


def release_of(schema=SCHEMA, frame=None):
    synthetic = synthetic_table(rows(60, np.random.default_rng(2)) if frame is None else frame, schema)
    weights = iw.Weights(np.linspace(-1, 1, len(synthetic)), "test")
    return iw.Release(synthetic, weights, seeded_ledger().statement(), n_private=50)


def compared(private, ledger, release=None, **budget):
    release = release_of() if release is None else release
    return iw.validation.noisy_utility(release, private, ledger=ledger, **{"epsilon": 0.5, "delta": 1e-6} | budget)


@pytest.mark.parametrize("delta", [0.0, 1e-6])
def test_without_noise_it_gives_shares_and_means(delta):
    frame, release = rows(200, np.random.default_rng(1)), release_of()
    found = compared(iw.PrivateTable(frame, SCHEMA), seeded_ledger(noise=SilentNoise()), release, delta=delta)
    cells, synthetic, weights = found.cells, release.synthetic.frame, release.weights.values
    assert cells.loc[("g", "b"), "private"] == pytest.approx((frame["g"] == "b").mean())
    assert cells.loc[("x", "8"), "private"] == pytest.approx((frame["x"] == 8).mean())
    assert cells.loc[("x", "3 to 4"), "private"] == pytest.approx((frame["x"] == 3).mean())
    assert cells.loc[("x", "missing"), "private"] == pytest.approx(frame["x"].isna().mean())
    assert cells.loc[("d", "2010-01-01"), "private"] == pytest.approx((frame["d"] == "2010-01-01").mean())
    assert cells.loc[("k", "40"), "weighted"] == pytest.approx(weights[synthetic["k"] == 40].sum() / weights.sum())
    assert cells.groupby(level="column").sum().drop(columns="noise").to_numpy() == pytest.approx(1)
    means = found.means
    assert means.loc["x", "private"] == pytest.approx(frame["x"].mean(), abs=1e-4)
    assert means.loc["k", "private"] == pytest.approx(frame["k"].mean(), abs=1e-4)
    assert means.loc["d", "private"] == pytest.approx((frame["d"].dt.month - 1).mean(), abs=1e-4)
    known = synthetic["x"].notna()
    assert means.loc["x", "weighted"] == pytest.approx(np.average(synthetic["x"][known], weights=weights[known]))
    assert means.loc["k", "unweighted"] == pytest.approx(synthetic["k"].mean())
    own = 0.5 * (cells.loc["g", "weighted"] - cells.loc["g", "private"]).abs().sum()
    assert found.margins.loc["g", "weighted"] == pytest.approx(own)


def test_a_column_without_a_synthetic_number_has_no_mean_of_the_release():
    frame = rows(60, np.random.default_rng(2)).assign(x=np.nan)
    private = iw.PrivateTable(rows(200, np.random.default_rng(1)), SCHEMA)
    means = compared(private, seeded_ledger(), release_of(frame=frame)).means
    assert means.loc["x", ["unweighted", "weighted"]].isna().all() and np.isfinite(means.loc["x", "private"])
    assert means.drop(index="x").notna().all().all()


@pytest.mark.parametrize("delta", [0.0, 1e-6])
def test_the_noise_is_as_large_as_it_says(delta):
    frame = rows(300, np.random.default_rng(3))
    private, release = iw.PrivateTable(frame, SCHEMA), release_of()
    each = [compared(private, seeded_ledger(seed=seed), release, delta=delta) for seed in range(120)]
    noise = np.array([one.cells["private"] - each[0].cells["private"].index.map(lambda _: 0.0) for one in each])
    sd = each[0].cells["noise"].to_numpy()
    # relative error of a standard deviation of 120 draws: 1 / sqrt(240), and sqrt(5 / 4 / 120) for Laplace noise
    assert np.abs(noise.std(axis=0, ddof=1) / sd - 1).max() < 5 * np.sqrt(5 / 4 / 120)
    means = np.array([one.means["private"] for one in each])
    error = np.median([one.means["noise"] for one in each], axis=0)
    assert np.abs(means.std(axis=0, ddof=1) / error - 1).max() < 5 * np.sqrt(5 / 4 / 120)
    truth = [frame["x"].mean(), frame["k"].mean(), (frame["d"].dt.month - 1).mean()]
    assert (np.abs(means.mean(axis=0) - truth) < 5 * error / np.sqrt(120)).all()


@pytest.mark.parametrize("delta", [0.0, 1e-6])
@pytest.mark.parametrize("adjacency", ["replace-one", "zero-out"])
def test_a_neighbour_never_costs_more_than_each_charge(adjacency, delta):
    # where a row is only zeroed, tables that replace one are two steps apart, and their counts move in other cells
    steps = 1 if adjacency == "replace-one" else 2
    most = {"utility margins": np.sqrt(steps) if delta else steps, "utility means": steps}
    rng, release, worst = np.random.default_rng(4), release_of(), dict.fromkeys(most, 0.0)
    for seed in range(40):
        frame, one, other = rows(12, rng), changed(rng), changed(rng)
        tables = [iw.PrivateTable(pd.concat([frame, part], ignore_index=True), SCHEMA) for part in (one, other)]

        def run(table, ledger):
            compared(table, ledger, release, delta=delta)

        for event, share in shares_of_claims(run, tables, seed, adjacency=adjacency):
            assert share <= most[event.label] + 1e-12, event
            worst[event.label] = max(worst[event.label], share)
    assert all(worst[label] > 0.9 * most[label] for label in most)


def test_a_user_never_costs_more_than_each_charge():
    rng, release, worst = np.random.default_rng(5), release_of(), {}
    for seed in range(40):
        frame = rows(9, rng)
        tables = [
            bounded_table(pd.concat([frame, part], ignore_index=True), SCHEMA, np.repeat(range(4), 3), 3, 12)
            for part in (changed(rng).iloc[[0] * 3] for _ in range(2))
        ]

        def run(table, ledger):
            compared(table, ledger, release)

        for event, share in shares_of_claims(run, tables, seed, adjacency="replace-user"):
            assert share <= 1 + 1e-12, event
            worst[event.label] = max(worst.get(event.label, 0.0), share)
    assert min(worst.values()) > 0.9


@pytest.mark.parametrize("delta", [0.0, 1e-6])
@pytest.mark.parametrize("schema", [SCHEMA, NO_NUMBER])
def test_all_of_it_is_charged_before_a_row_is_read_and_costs_the_budget(schema, delta):
    rng = np.random.default_rng(6)
    frame = rows(40, rng) if schema is SCHEMA else pd.DataFrame({"g": list("abca") * 10, "y": [0, 1] * 20})
    private, release, ledger = iw.PrivateTable(frame, schema), release_of(schema, frame), iw.Ledger(1.0, 1e-6)
    with looks_at_rows(ledger) as seen:
        found = compared(private, ledger, release, epsilon=0.5, delta=delta)
    assert seen and all(events == ledger.events for events in seen)
    assert found.statement == ledger.statement()
    if delta:
        assert ledger.spent[0] == pytest.approx(0.5, rel=1e-3) and ledger.spent[0] <= 0.5
    else:
        assert sum(event.epsilon * event.count for event in ledger.events) == pytest.approx(0.5)
    assert len(found.means) == (3 if schema is SCHEMA else 0) and str(found) and "<h1" in found.to_html()
    assert max(map(len, str(found).splitlines())) <= 88


def test_what_does_not_fit_is_refused_before_anything_is_read_or_charged():
    private, ledger = iw.PrivateTable(rows(40, np.random.default_rng(7)), SCHEMA), iw.Ledger(0.3, 1e-6)
    with looks_at_rows(ledger) as seen:
        with pytest.raises(iw.BudgetExceeded):
            compared(private, ledger)
        with pytest.raises(ValueError, match="epsilon"):
            compared(private, ledger, epsilon=-1)
        with pytest.raises(TypeError, match="ledger must be a Ledger"):
            compared(private, None)
        with pytest.raises(TypeError, match="takes a PrivateTable"):
            compared(private.schema, ledger)
        with pytest.raises(ValueError, match="must have the schema of the release"):
            compared(iw.PrivateTable(pd.DataFrame({"g": ["a"], "y": [1]}), NO_NUMBER), ledger)
        with pytest.raises(ValueError, match="protects users"):
            compared(private, iw.Ledger(1.0, 1e-6, "replace-user"))
    assert not seen and ledger.events == ()
