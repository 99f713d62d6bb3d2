"""People with several rows in Dask frames: bounded over all partitions together; releases are those from memory."""

import math
import pickle

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from noise_sources import shares_of_claims
from numpy.testing import assert_array_equal

import iwbayes as iw
from iwbayes.tables import blocks, owners
from iwbayes.tables.owners import Owners, PartOwners, kept_rows, row_keys

# Dask's readers use what pandas 3.1 announces to remove
pytestmark = pytest.mark.filterwarnings("ignore:The inplace keyword in DataFrame")

SCHEMA = iw.Schema(
    iw.Real("cost", 0, 10), iw.Integer("id", 0, 9999), iw.Categorical("g", ["a", "b", "c"]), iw.Binary("ill")
)
CANARY = "canary-4711"


def visits(n_users=120, seed=1, most=12):
    """Rows of users who own from one to many, in a random order; the id tells rows apart."""
    rng = np.random.default_rng(seed)
    person = np.repeat([f"person {user}" for user in range(n_users)], rng.integers(1, most + 1, n_users))
    n = len(person)
    frame = pd.DataFrame({"person": person, "cost": rng.uniform(0, 10, n), "g": rng.choice(["a", "b", "c"], n)})
    frame = frame.assign(ill=rng.integers(0, 2, n)).sample(frac=1, random_state=seed).reset_index(drop=True)
    return frame.assign(id=np.arange(n))


def lazy(frame, parts=7):
    return dd.from_pandas(frame, npartitions=parts, sort=False)


def of_parts(parts):
    """Dask frame of these partitions, whose cells stay what they are."""
    with dask.config.set({"dataframe.convert-string": False}):
        delayed = [dask.delayed(part) for part in parts]
        return dd.from_delayed(delayed, meta=parts[0].iloc[:0], verify_meta=False)


def user_ledger(seed=3, epsilon=2.0):
    return iw.Ledger(epsilon, 1e-6, "replace-user", noise=iw.SeededNoise(seed))


def both(frame, parts=7):
    here = iw.PrivateTable(frame, SCHEMA, user="person")
    return here, iw.PrivateTable.from_dask(lazy(frame, parts), SCHEMA, user="person")


def ids(private):
    """Ids of the rows of a table, from its blocks."""
    return np.concatenate([block["id"].to_numpy(dtype=int) for block in private.map_blocks(lambda block: block)])


def spread(frame):
    """Most partitions in which a user has rows."""
    return pd.Series(np.arange(len(frame)) * 7 // len(frame)).groupby(frame["person"]).nunique().max()


# --- what is public of the table


def test_a_table_of_users_tells_their_number_and_not_that_of_the_rows():
    frame = visits()
    here, there = both(frame)
    assert there.of_users and not there.in_memory and there.n_users == here.n_users == frame["person"].nunique()
    assert there.rows_per_user is None and repr(there) == repr(here) and bool(there)
    with pytest.raises(TypeError, match="number of rows is private if users own several"):
        len(there)
    with pytest.raises(ValueError, match="bound_contributions"):
        _ = there.n_private
    with pytest.raises(ValueError, match="this needs them in memory"):
        _ = there.users
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(there)
    plain = iw.PrivateTable.from_dask(lazy(frame.drop(columns="person")), SCHEMA)
    assert not plain.of_users and plain.users is None and plain.n_users == len(plain) == len(frame)


def test_table_and_ledger_must_protect_the_same_and_users_are_bounded_first():
    _, private = both(visits())
    for ledger, words in ((iw.Ledger(1.0, 1e-6), "replace-user"), (user_ledger(), "bound_contributions")):
        with pytest.raises(ValueError, match=words):
            iw.BayesNet().fit(private, ledger, epsilon=0.5)
        assert ledger.events == ()
    with pytest.raises(ValueError, match="Pass ledger="):
        bounded = iw.bound_contributions(private, user_ledger(), epsilon=0.1, grid=[2])
        iw.publish(bounded, epsilon=1.0, delta=1e-6, n_synthetic=10)
    ledger = user_ledger()
    with pytest.raises(ValueError, match="Pass n_synthetic"):
        iw.publish_users(private, epsilon=1.0, delta=1e-6, grid=[1, 2], ledger=ledger)
    with pytest.raises(ValueError, match="LogisticWeights needs the private rows in memory"):
        weights = iw.paper.LogisticWeights()
        iw.publish_users(private, epsilon=1.0, delta=1e-6, grid=[1], ledger=ledger, weights=weights, n_synthetic=10)
    assert ledger.events == ()


def test_wrong_owners_are_refused_without_showing_any():
    frame = visits().astype({"person": object})
    for name, schema, words in (
        ("id", SCHEMA, "must not be in the schema, because it would be published"),
        ("owner", SCHEMA, "must have the user column 'owner' exactly once"),
    ):
        with pytest.raises(ValueError, match=words):
            iw.PrivateTable.from_dask(lazy(frame), schema, user=name)
    for cell in (None, [CANARY]):  # in the last partition only
        frame.at[len(frame) - 1, "person"] = cell
        frame.at[len(frame) - 2, "person"] = CANARY
        parts = [frame.iloc[:50], frame.iloc[50:]]
        stored = of_parts(parts)
        with pytest.raises(ValueError, match="every row needs an owner: the user column 'person'") as caught:
            iw.PrivateTable.from_dask(stored, SCHEMA, user="person")
        assert CANARY not in str(caught.value) and caught.value.__cause__ is None
    wrong = visits().assign(g=["z", *["a"] * (len(frame) - 1)])
    with pytest.raises(ValueError, match="'g'"):
        iw.PrivateTable.from_dask(lazy(wrong), SCHEMA, user="person")


# --- bounded over all partitions together


@pytest.mark.parametrize("parts", [1, 2, 7, 40])
@pytest.mark.parametrize("tau", [1, 3, 20])
def test_no_user_keeps_more_rows_than_the_bound_wherever_they_lie(parts, tau):
    frame = visits()
    assert spread(frame) > 4  # a user's rows are in most of the partitions
    here, there = both(frame, parts)
    kept = [ids(iw.bound_contributions(t, user_ledger(), epsilon=0.5, grid=[tau])) for t in (here, there)]
    assert len(set(kept[1])) == len(kept[1]) and sorted(kept[0]) == sorted(kept[1])
    owned, left = frame["person"].value_counts(), frame["person"][kept[1]].value_counts()
    assert left.sort_index().tolist() == np.minimum(owned, tau).sort_index().tolist()


def test_what_is_held_on_the_way_changes_nothing(monkeypatch):
    frame = visits(most=30)
    whole = ids(iw.bound_contributions(both(frame)[1], user_ledger(), epsilon=0.5, grid=[2]))
    monkeypatch.setattr(owners, "_NEW_ROWS", 20)
    monkeypatch.setattr(blocks, "_OWNERS_AT_ONCE", 2)
    assert_array_equal(ids(iw.bound_contributions(both(frame, 23)[1], user_ledger(), epsilon=0.5, grid=[2])), whole)


def test_chosen_rows_are_those_of_the_definition_by_brute_force():
    rng = np.random.default_rng(5)
    for _ in range(100):
        n, tau = int(rng.integers(1, 25)), int(rng.integers(1, 5))
        names, cuts = rng.choice(["a", "b", "c", 1, 2], n), np.sort(rng.integers(0, n + 1, 3))
        parts = [pd.DataFrame({"who": part}) for part in np.split(names, cuts)]
        coded = [PartOwners.of(part, "who") for part in parts]
        numbers = rng.integers(0, 6, n).astype(np.uint64)  # with ties
        found = Owners.over(coded)
        places = found.choose(coded, lambda start, stop, numbers=numbers: numbers[start:stop], tau)
        brute = []
        for name in set(names):
            own = [place for place in range(n) if names[place] == name]
            brute += sorted(own, key=lambda place: (numbers[place], place))[:tau]
        assert places.tolist() == sorted(brute)
        codes = pd.factorize(names)[0]
        assert found.counts.tolist() == np.bincount(codes).tolist()
        assert sorted(kept_rows(codes, numbers, tau)) == sorted(brute)
        starts = np.cumsum([0, *map(len, parts)])
        back = [start + part for start, part in zip(starts, found.local(places), strict=False)]
        assert np.concatenate(back).tolist() == places.tolist()


def test_keys_of_rows_do_not_depend_on_the_blocks_and_are_uniform():
    secret = iw.SeededNoise(1).permutation(256)
    keys = row_keys(secret)
    whole, n = keys(0, 100_000), 100_000
    for start, stop in ((0, 1), (5, 5), (32_767, 32_769), (40_000, 99_999)):
        assert_array_equal(keys(start, stop), whole[start:stop])
    assert len(set(whole.tolist())) == n and (row_keys(secret[::-1])(0, 100) != whole[:100]).all()
    counts = np.bincount((whole >> np.uint64(60)).astype(int), minlength=16)
    assert (np.abs(counts - n / 16) < 5 * math.sqrt(n / 16)).all()


@pytest.mark.parametrize("kind", ["numbers", "text and numbers", "categories", "days"])
def test_owners_of_any_kind_are_told_apart_over_partitions(kind):
    frame = visits()
    codes = pd.factorize(frame["person"])[0]
    names = {
        "numbers": codes * 7,
        "text and numbers": pd.Series([code if code % 2 else str(code - 1) for code in codes], dtype=object),
        "categories": frame["person"].astype("category"),
        "days": pd.Timestamp("2020-01-01") + pd.to_timedelta(codes, unit="D"),
    }
    frame["person"] = names[kind]
    parts = [frame.iloc[:100], frame.iloc[100:100], frame.iloc[100:260], frame.iloc[260:]]
    stored = of_parts(parts)
    there = iw.PrivateTable.from_dask(stored, SCHEMA, user="person")
    assert there.rows_of_users.tolist() == np.bincount(codes).tolist()
    here = iw.PrivateTable(frame, SCHEMA, user="person")
    kept = [ids(iw.bound_contributions(t, user_ledger(), epsilon=0.5, grid=[2])) for t in (here, there)]
    assert sorted(kept[0]) == sorted(kept[1])


@pytest.mark.parametrize("kinds", [(int, str), (int, float), (str, int)])
def test_owners_of_different_types_in_different_partitions_are_refused(kinds):
    """Else 1 and "1" would be two users, and one person would keep twice as many rows."""
    frame = visits()
    codes = pd.Series(pd.factorize(frame["person"])[0] + 700)
    parts = [
        frame.iloc[rows].assign(person=codes.iloc[rows].astype(kind))
        for rows, kind in zip((slice(0, 120), slice(120, None)), kinds, strict=True)
    ]
    with pytest.raises(ValueError, match="different types in different partitions") as caught:
        iw.PrivateTable.from_dask(of_parts(parts), SCHEMA, user="person")
    assert not any(str(code) in str(caught.value) for code in codes)


# --- neighbours: all rows of one user are others, in whatever partitions they lie

OF_USERS = {"epsilon": math.inf, "delta": 1e-5, "adjacency": "replace-user"}


def neighbours(tau, rng):
    """Two bounded tables of Dask frames that differ in all rows of one user, who owns more of them in the first."""
    frame = visits(int(rng.integers(2, 9)), int(rng.integers(1, 1000)))
    mine = np.sort(rng.choice(len(frame), int(rng.integers(1, len(frame) // 2 + 1)), replace=False))
    extra = frame.iloc[rng.integers(0, len(frame), int(rng.integers(0, 9)))]  # they stand last: other places stay
    secret, n_private = rng.permutation(256), len(frame)
    tables = []
    for more in (True, False):
        own = {"cost": rng.choice([0.0, 10.0]), "id": rng.choice([0, 9999]), "g": rng.choice(["a", "b", "c"])}
        other = frame.copy()
        other.loc[mine, ["person", "cost", "id", "g", "ill"]] = ["me", *own.values(), int(rng.integers(0, 2))]
        last = extra.assign(person="me", **own) if more else extra[:0]
        stored = lazy(pd.concat([other, last], ignore_index=True), int(rng.integers(2, 9)))
        private = iw.PrivateTable.from_dask(stored, SCHEMA, user="person")
        facts = {"rows_per_user": tau, "n_private": n_private, "source": "test"}
        tables.append(private._bounded_by(row_keys(secret), **facts))
    return tables


def test_replacing_a_user_moves_no_count_and_no_sum_by_more_than_the_bound():
    rng, worst = np.random.default_rng(2), 0.0
    for seed in range(40):
        tau = (1, 2, 5)[seed % 3]
        frames = [pd.concat(list(t.map_blocks(lambda block: block))).astype(str) for t in neighbours(tau, rng)]
        counts = [frame.value_counts() for frame in frames]
        moved = counts[0].sub(counts[1], fill_value=0).abs().sum()
        assert moved <= 2 * tau
        worst = max(worst, moved / (2 * tau))
    assert worst == 1


ALGORITHMS = {
    "BayesNet": (lambda: iw.BayesNet(theta=0.5), 0.0, 0.8),
    "BayesNet, Gaussian": (lambda: iw.BayesNet(theta=0.5), 1e-6, 0.8),
    "AIM": (lambda: iw.AIM(rounds=2, max_bins=3), 0.0, 0.8),
    "MST": (lambda: iw.MST(max_bins=3), 0.0, 0.8),
    "Mixture": (lambda: iw.Mixture(1, 1, starts=1, progressbar=False), 0.0, 0.8),
    "TiltWeights": (lambda: iw.TiltWeights(features="linear"), 1e-6, 0.4),
}


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.filterwarnings("ignore::iwbayes.utils.warnings.PrivacyWarning")
def test_replacing_a_user_never_costs_more_than_each_charge(name):
    make, delta, least = ALGORITHMS[name]
    rng, worst = np.random.default_rng(7), 0.0
    rows = visits(20).drop(columns="person")
    inputs = (iw.SyntheticTable(rows, SCHEMA, already_spent=(0, 0)),) if name == "TiltWeights" else ()
    for seed in range(9):

        def run(table, ledger):
            make().fit(table, *inputs, ledger, epsilon=1.0, delta=delta)

        for _, share in shares_of_claims(run, neighbours((1, 2, 4)[seed % 3], rng), seed, **OF_USERS):
            assert share <= 1 + 1e-9
            worst = max(worst, share)
    assert worst > least


# --- the same releases as from memory


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"for_models": ["ill ~ cost + g"]},
        {"generator": iw.AIM(rounds=3)},
        {"generator": iw.MST()},
        {"generator": iw.Mixture(3, 2, starts=1, random_seed=5, progressbar=False)},
    ],
    ids=["default", "stages", "AIM", "MST", "Mixture"],
)
@pytest.mark.filterwarnings("ignore::iwbayes.utils.warnings.CalibrationWarning")
def test_the_release_is_that_of_the_same_rows_in_memory(options):
    frame, releases = visits(800, most=6), []
    for private in both(frame):
        ledger = user_ledger()
        settings = {"n_synthetic": 300, "ledger": ledger, "random_seed": 4, "progressbar": False}
        release = iw.publish_users(private, epsilon=2.0, delta=1e-6, grid=[1, 2, 4, 8], **settings, **options)
        releases.append((release, str(ledger.statement())))
    (here, said), (there, same) = releases
    assert said == same and here.n_private == there.n_private
    pd.testing.assert_frame_equal(here.synthetic.frame, there.synthetic.frame)
    assert_array_equal(here.weights.log_weights, there.weights.log_weights)


# --- files that change under the table


def stored_visits(folder, frame):
    for part in range(3):
        frame.iloc[part::3].to_parquet(folder / f"{part}.parquet", index=False)
    return dd.read_parquet(folder)


def test_rows_that_change_hands_are_refused(tmp_path):
    frame = visits()
    private = iw.PrivateTable.from_dask(stored_visits(tmp_path, frame), SCHEMA, user="person")
    bounded = iw.bound_contributions(private, user_ledger(), epsilon=0.1, grid=[1])
    assert len(ids(bounded)) == private.n_users
    # as many rows, of which one person owns all that were kept: they would be that person's, and more than one
    stored_visits(tmp_path, frame.assign(person=CANARY))
    with pytest.raises(RuntimeError, match="user column of the Dask frame changed") as caught:
        ids(bounded)
    assert CANARY not in str(caught.value)
    with pytest.raises(RuntimeError, match="user column of the Dask frame changed"):
        iw.bound_contributions(private, user_ledger(), epsilon=0.1, grid=[1])
    stored_visits(tmp_path, frame)
    assert len(ids(bounded)) == private.n_users
    stored_visits(tmp_path, frame.iloc[:200])
    with pytest.raises(RuntimeError, match="changed after the table was made"):
        ids(bounded)
