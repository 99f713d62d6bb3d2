"""Synthetic tables from elsewhere: what they are declared to have cost is charged once, the rest is noted."""

import math
import pickle

import numpy as np
import pandas as pd
import pytest
from factories import MIXED, mixed_rows

import iwbayes as iw

BUDGET = {"epsilon": 0.5, "delta": 1e-6}


def outside(m=300, seed=2, **settings):
    return iw.SyntheticTable(mixed_rows(m, np.random.default_rng(seed)), MIXED, **settings)


def private(n=400):
    return iw.PrivateTable(mixed_rows(n, np.random.default_rng(1)), MIXED)


def ledger(epsilon=2.0, **settings):
    return iw.Ledger(epsilon, 1e-5, **settings)


def test_a_declared_cost_is_charged_once_and_the_release_certified():
    table, book = outside(origin="elsewhere", already_spent=(0.7, 1e-7)), ledger()
    weights = iw.TiltWeights().fit(private(), table, book, **BUDGET)
    assert [(e.label, e.mechanism, e.epsilon, e.delta) for e in book.events] == [
        ("outside table (elsewhere)", "declared", 0.7, 1e-7),
        ("TiltWeights", "gaussian", 0.5, 1e-6),
    ]
    iw.TiltWeights().fit(private(), table, book, **BUDGET)
    same = pickle.loads(pickle.dumps(table))
    iw.TiltWeights(base=iw.paper.LogisticWeights()).fit(private(), same, book, **BUDGET)
    assert sum(e.mechanism == "declared" for e in book.events) == 1
    assert book.statement().certified and book.statement().epsilon < 2.0
    release = iw.Release(table, weights, book.statement(), n_private=400)
    assert release.certified and "outside table (elsewhere): declared" in str(release.statement)


def test_the_joint_price_covers_the_declared_cost():
    table, book = outside(already_spent=(0.7, 0.0)), ledger()
    iw.TiltWeights("cube").fit(private(), table, book, epsilon=0.5)
    assert book.spent[0] == pytest.approx(1.2, rel=1e-9) and table.origin == "outside"


def test_other_rows_are_another_table():
    book = ledger(3.0)
    for seed in (2, 3):
        iw.UniformWeights().fit(private(), outside(seed=seed, already_spent=(0.7, 0.0)), book, epsilon=1.0)
    assert [e.epsilon for e in book.events] == [0.7, 0.7]


@pytest.mark.parametrize("origin", [None, "elsewhere"])
def test_an_undeclared_cost_leaves_the_release_uncertified(origin):
    book = ledger()
    iw.TiltWeights().fit(private(), outside(origin=origin), book, **BUDGET)
    statement = book.statement()
    assert not statement.certified and any("not declared" in note for note in statement.notes)
    assert len(statement.events) == 1


def test_rows_that_used_no_private_row_cost_nothing():
    book = ledger()
    iw.UniformWeights().fit(private(), outside(already_spent=(0, 0)), book, epsilon=1.0)
    assert book.events == () and book.statement().certified


def test_a_release_of_rows_that_cost_nothing_needs_no_budget():
    """Also under a ledger that other releases used, and used up."""
    book = ledger(0.5)
    iw.publish(private(), epsilon=0.5, delta=1e-6, n_synthetic=100, ledger=book)
    spent = book.events
    settings = {"generator": outside(already_spent=(0, 0)), "weights": iw.UniformWeights()}
    release = iw.publish(private(), epsilon=0.5, delta=1e-6, ledger=book, **settings)
    assert release.certified and book.events == spent == release.statement.events


def test_rows_without_privacy_need_an_endless_budget():
    table = outside(already_spent=(math.inf, 0))
    with pytest.raises(iw.BudgetExceeded, match="infinite"):
        iw.UniformWeights().fit(private(), table, ledger(), epsilon=1.0)
    book = ledger(math.inf)
    iw.UniformWeights().fit(private(), table, book, epsilon=1.0)
    assert book.spent[0] == math.inf and not book.statement().certified


def test_a_cost_beyond_the_budget_is_refused_before_anything_is_charged():
    book = ledger(1.0)
    with pytest.raises(iw.BudgetExceeded, match="outside table"):
        iw.TiltWeights().fit(private(), outside(already_spent=(0.9, 0.0)), book, **BUDGET)
    assert book.events == ()


def test_the_tables_own_log_ratio_gives_the_weights():
    rng = np.random.default_rng(4)
    ratio = rng.normal(size=300)
    ratio[7] = -np.inf
    table, book = outside(log_ratio=ratio, already_spent=(0.5, 0.0)), ledger()
    weights = iw.paper.KnownRatioWeights().fit(private(), table, book, epsilon=1.0)
    np.testing.assert_array_equal(weights.log_weights[0], ratio)
    assert [e.mechanism for e in book.events] == ["declared"] and book.statement().certified
    assert weights.values[7] == 0
    tilted = iw.TiltWeights(base=weights).fit(private(), table, book, **BUDGET)
    assert tilted.values[7] == 0 and book.statement().certified
    with pytest.raises(ValueError, match="needs a log ratio; the synthetic table contains none"):
        iw.paper.KnownRatioWeights().fit(private(), outside(already_spent=(0.5, 0.0)), book, epsilon=1.0)


def test_a_log_ratio_that_is_given_leaves_the_release_uncertified():
    table, book = outside(already_spent=(0, 0)), ledger()
    iw.paper.KnownRatioWeights(lambda rows: np.zeros(len(rows))).fit(private(), table, book, epsilon=1.0)
    assert any("log ratio comes from outside" in note for note in book.statement().notes)
    assert not book.statement().certified


@pytest.mark.parametrize(
    ("settings", "error", "words"),
    [
        ({"log_ratio": np.zeros(3)}, ValueError, "shape"),
        ({"log_ratio": np.full(300, np.nan)}, ValueError, r"must not contain NaN or \+inf"),
        ({"log_ratio": np.full(300, np.inf)}, ValueError, r"must not contain NaN or \+inf"),
        ({"already_spent": 1.0}, TypeError, "pair"),
        ({"already_spent": (1.0, 1e-6, 2)}, TypeError, "pair"),
        ({"already_spent": (-1.0, 0.0)}, ValueError, "already_spent"),
        ({"already_spent": (1.0, 1.0)}, ValueError, "already_spent"),
        ({"already_spent": (0.0, 1e-6)}, ValueError, "already_spent"),
        ({"already_spent": (math.nan, 0.0)}, ValueError, "already_spent"),
    ],
)
def test_wrong_declarations_are_refused(settings, error, words):
    with pytest.raises(error, match=words):
        outside(**settings)


def test_publish_takes_a_table_in_the_place_of_a_generator():
    table = outside(origin="elsewhere", already_spent=(0.7, 0.0))
    release = iw.publish(private(), epsilon=1.5, delta=1e-6, generator=table)
    assert release.certified and release.statement.epsilon <= 1.5
    declared, tilt = release.statement.events
    assert declared.mechanism == "declared" and tilt.epsilon > 0.75  # joint pricing leaves more than the difference
    pd.testing.assert_frame_equal(release.synthetic.frame, table.frame)
    with pytest.raises(ValueError, match="all 300 rows"):
        iw.publish(private(), epsilon=1.5, delta=1e-6, generator=table, n_synthetic=200)
    with pytest.raises((iw.BudgetExceeded, ValueError), match=r"cost|budget"):
        iw.publish(private(), epsilon=0.5, delta=1e-6, generator=table)


def test_publish_refuses_weights_that_the_generator_cannot_give():
    book = ledger()
    for weights in (iw.paper.DiscriminatorWeights(), iw.TiltWeights(base=iw.paper.DiscriminatorWeights())):
        with pytest.raises(ValueError, match="discriminator"):
            iw.publish(private(), epsilon=1.0, delta=1e-6, weights=weights, ledger=book)
    assert book.events == ()
    with pytest.raises(ValueError, match="no discriminator"):
        iw.paper.DiscriminatorWeights().fit(private(), outside(), book, epsilon=1.0)


class GanLike:
    """A generator whose fitted object has a log ratio, without torch."""

    pure = True
    gives_log_ratio = True

    def events(self, facts, *, epsilon, delta=0.0):
        return (iw.Event("gan-like", "laplace", epsilon),)

    def fit(self, private, ledger, *, epsilon, delta=0.0):
        ledger.charge(*self.events(None, epsilon=epsilon))
        ledger._register("gan-like")
        return self

    def sample(self, n, *, random_seed=None):
        return outside(n, origin="gan-like")._from_source("gan-like")

    def log_ratio(self, table):
        return MIXED.encode(table.frame)[:, 0]

    def fingerprint(self):
        return "gan-like"


def test_publish_hands_the_generator_to_the_weights_that_wait_for_it():
    release = iw.publish(
        private(), epsilon=1.0, delta=1e-6, generator=GanLike(), weights=iw.paper.DiscriminatorWeights()
    )
    assert release.weights.method == "DiscriminatorWeights(GanLike)" and release.certified
    np.testing.assert_array_equal(release.weights.log_weights[0], GanLike().log_ratio(release.synthetic))
    (event,) = release.statement.events
    assert event.epsilon == pytest.approx(1.0, rel=5e-3)  # the weights are free, so that the generator gets it all
    tilt = iw.TiltWeights(features="linear", base=iw.paper.DiscriminatorWeights())
    release = iw.publish(private(), epsilon=1.0, delta=1e-6, generator=GanLike(), weights=tilt)
    assert len(release.statement.events) == 2 and "DiscriminatorWeights" in release.weights.method


# --- where rows and weights come from


def assembled(table, weights, book, n=400):
    return iw.Release(table, weights, book.statement(), n_private=n)


def test_rows_that_were_edited_after_they_were_drawn_are_outside_rows():
    own, book = private(), ledger()
    table = iw.BayesNet().fit(own, book, epsilon=0.5).sample(400, random_seed=1)
    for edited in (table, pickle.loads(pickle.dumps(table))):
        assert book.holds(edited.source)
        edited.frame["k"] = own.frame["k"].to_numpy()
        assert edited.source is None and pickle.loads(pickle.dumps(edited)).source is None
    weights = iw.TiltWeights().fit(own, table, book, **BUDGET)
    assert any("synthetic rows come from outside" in note for note in book.statement().notes)
    assert not assembled(table, weights, book).certified


def test_a_release_put_together_by_hand_is_certified_for_what_its_ledger_made():
    own, book = private(), ledger()
    table = iw.BayesNet().fit(own, book, epsilon=0.5).sample(400, random_seed=1)
    weights = iw.TiltWeights().fit(own, table, book, **BUDGET)
    good = assembled(table, weights, book)
    assert good.certified and assembled(table, weights.psis(), book).certified
    rows = iw.SyntheticTable(own.frame, MIXED, origin="CTGAN")
    for release, words in (
        (assembled(rows, weights, book), "rows come from outside"),
        (assembled(table, iw.Weights(np.zeros(400), "mine"), book), "weights come from outside"),
        (assembled(table, weights, ledger()), "rows come from outside"),
    ):
        assert not release.certified and any(words in reason for reason in release.reasons)


def test_a_file_keeps_the_certificate_and_its_parts_are_outside_ones_elsewhere(tmp_path):
    release = iw.publish(private(), epsilon=1.0, delta=1e-6, n_synthetic=300)
    loaded = iw.load(release.save(tmp_path / "a.iwb"))
    assert release.certified and loaded.certified and loaded.statement == release.statement
    book = ledger()
    iw.TiltWeights(base=loaded.weights).fit(private(), loaded.synthetic, book, **BUDGET)
    assert len(book.statement().notes) == 2


class Undeclared:
    """A weight provider that says it costs nothing and registers nothing."""

    pure = True

    def events(self, facts, *, epsilon, delta=0.0):
        return ()

    def fit(self, private, synthetic, ledger, *, epsilon, delta=0.0):
        return iw.Weights(np.resize(MIXED.encode(private.frame)[:, 1], len(synthetic)), "Undeclared")


def test_weights_of_a_provider_that_registers_nothing_are_not_certified():
    for weights in (Undeclared(), iw.TiltWeights(base=Undeclared())):
        release = iw.publish(private(), epsilon=1.0, delta=1e-6, n_synthetic=400, weights=weights)
        assert not release.certified and any("weights come from outside" in reason for reason in release.reasons)


def test_unpickled_weights_cannot_be_written_to():
    weights = pickle.loads(pickle.dumps(iw.Weights(np.zeros(5), "mine")))
    with pytest.raises(ValueError, match="read-only"):
        weights.log_weights[0, 0] = 1.0


def test_another_declared_cost_is_another_table():
    book = ledger(3.0)
    for spent in ((0, 0), (0.8, 0.0)):
        iw.UniformWeights().fit(private(), outside(already_spent=spent), book, epsilon=1.0)
    assert [event.epsilon for event in book.events] == [0.8]


def test_publish_counts_a_declared_cost_once_and_checks_the_schema_first():
    table, book = outside(already_spent=(0.7, 0.0)), ledger(3.0)
    for _ in range(2):
        iw.publish(private(), epsilon=1.5, delta=1e-6, generator=table, ledger=book)
    declared = [event for event in book.events if event.mechanism == "declared"]
    tilts = [event for event in book.events if event.mechanism != "declared"]
    assert len(declared) == 1 and tilts[1].epsilon > tilts[0].epsilon * 1.3
    other = iw.SyntheticTable(table.frame[["x"]], iw.Schema(MIXED["x"]), already_spent=(0.7, 0.0))
    book = ledger()
    with pytest.raises(ValueError, match="share one schema"):
        iw.publish(private(), epsilon=1.5, delta=1e-6, generator=other, ledger=book)
    assert book.events == ()


# --- rows and weights that were changed in place

_MASK = 2**64 - 1


def _unshifted(value, shift):
    """Inverse of value ^= value >> shift, on 64 bits."""
    found = value
    for _ in range(64 // shift):
        found = value ^ (found >> shift)
    return found


def _with_pandas_hash(wanted):
    """The float64 whose hash by pandas is the wanted one: the hash can be undone."""
    value = _unshifted(wanted, 31)
    value = _unshifted(value * pow(0x94D049BB133111EB, -1, 2**64) & _MASK, 27)
    value = _unshifted(value * pow(0xBF58476D1CE4E5B9, -1, 2**64) & _MASK, 30)
    return np.array([value], dtype=np.uint64).view(np.float64)[0]


def _row_hashes(values):
    return [int(h) for h in pd.util.hash_array(np.ascontiguousarray(values, dtype=np.float64))]


def test_a_drawn_table_that_was_overwritten_with_its_row_hashes_kept_is_no_longer_the_drawn_one():
    """A private column in the place of a synthetic one, and a second column solved such that 64-bit row hashes stay."""
    schema = iw.Schema(iw.Real("x", 0, 1), iw.Real("z", 0, 1))
    rng = np.random.default_rng(1)
    rows = iw.PrivateTable(pd.DataFrame(rng.random((200, 2)), columns=["x", "z"]), schema)
    book = iw.Ledger(5.0, 1e-6)
    table = iw.BayesNet().fit(rows, book, epsilon=1.0, delta=1e-6).sample(50, random_seed=1)
    weights = iw.TiltWeights(features="linear").fit(rows, table, book, epsilon=1.0, delta=1e-6)
    assert iw.Release(table, weights, book.statement(), n_private=200).certified
    before = pd.util.hash_pandas_object(table.frame, index=False)
    drawn, stolen = _row_hashes(table.frame["x"]), rows.frame["x"].to_numpy()[:50]
    solved = []
    for old, new, second in zip(drawn, _row_hashes(stolen), _row_hashes(table.frame["z"]), strict=True):
        first, other = ((0x345678 ^ h) * 1000003 & _MASK for h in (old, new))
        solved.append(_with_pandas_hash(first ^ second ^ other))
    table.frame["x"], table.frame["z"] = stolen, np.array(solved)
    same = before == pd.util.hash_pandas_object(table.frame, index=False)
    assert same[~np.isnan(solved)].all() and same.sum() > 40  # the digest of before was blind to it
    assert table.source is None and not book.holds(table.fingerprint())
    release = iw.Release(table, weights, book.statement(), n_private=200)
    assert not release.certified and "come from outside" in str(release.statement)


def _swapped(frame):
    return frame.iloc[::-1].reset_index(drop=True)


@pytest.mark.parametrize(
    "change",
    [
        lambda frame: frame.__setitem__("x", frame["x"] + np.spacing(frame["x"])),
        lambda frame: frame.__setitem__("x", _swapped(frame)["x"]),
        lambda frame: frame.__setitem__("y", frame["y"].astype("int32")),
        lambda frame: setattr(frame, "columns", ["w", *frame.columns[1:]]),
        lambda frame: frame.__setitem__("w", frame["x"]),
    ],
    ids=["the last bit", "order of rows", "type", "name", "a column more"],
)
def test_any_change_in_place_takes_the_source_away(change):
    book = ledger(3.0)
    table = iw.BayesNet().fit(private(), book, epsilon=1.0, delta=1e-6).sample(40, random_seed=1)
    assert book.holds(table.source)
    change(table.frame)
    assert table.source is None


def test_weights_that_were_changed_in_place_are_nobodys():
    book = ledger(3.0)
    table = iw.BayesNet().fit(private(), book, epsilon=1.0, delta=1e-6).sample(40, random_seed=1)
    weights = iw.TiltWeights(features="linear").fit(private(), table, book, epsilon=1.0, delta=1e-6)
    tempered = weights.temper(power=0.5)
    assert book.holds(weights.source) and book.holds(tempered.source)
    weights.log_weights.setflags(write=True)
    weights.log_weights[0, 0] += 1e-3
    assert weights.source is None
    tempered.measurement.value.setflags(write=True)
    tempered.measurement.value[0] += 1e-9
    assert tempered.source is None
