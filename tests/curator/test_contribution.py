"""People who own several rows: the table, the choice of the bound, and sensitivities that scale with it."""

import math
from functools import partial

import numpy as np
import pandas as pd
import pytest
from factories import MIXED_G, bounded_table, scores_of, seeded_ledger, synthetic_table, wide_rows
from noise_sources import ScriptedNoise, shares_of_claims
from scipy import stats

import iwbayes as iw
from iwbayes.analyst.criticism.diagnose import diagnose
from iwbayes.curator.generators.tables.network import Node
from iwbayes.curator.privacy.accounting import dpsgd_multiplier
from iwbayes.curator.privacy.mechanisms import above_threshold
from iwbayes.curator.protocols import PublicFacts
from iwbayes.curator.publish import release_epsilon
from iwbayes.tables.owners import kept_rows

SECRET = "patient-8273645"
user_ledger = partial(seeded_ledger, adjacency="replace-user")


def owned(counts, rng):
    """Rows of users who own these numbers of them, in a random order, with their owners."""
    frame = wide_rows(sum(counts), rng)
    frame["person"] = [f"person {user}" for user, count in enumerate(counts) for _ in range(count)]
    return frame.sample(frac=1, random_state=int(rng.integers(2**31))).reset_index(drop=True)


def people(counts=(3, 1, 5, 2), seed=0):
    return iw.PrivateTable(owned(counts, np.random.default_rng(seed)), MIXED_G, user="person")


# --- the table


def test_a_table_of_users_tells_their_number_and_not_that_of_the_rows():
    private = people()
    assert private.n_users == 4 and private.rows_per_user is None
    assert "person" not in private.frame.columns and "person" not in repr(private)
    with pytest.raises(TypeError, match="number of rows is private if users own several"):
        len(private)
    with pytest.raises(ValueError, match="bound_contributions"):
        _ = private.n_private
    assert private  # truth asks for no length
    plain = iw.PrivateTable(wide_rows(5, np.random.default_rng(0)), MIXED_G)
    assert (plain.n_private, plain.n_users, plain.rows_per_user, plain.users) == (5, 5, 1, None)


def test_a_wrong_user_column_is_refused_without_showing_it():
    frame = owned((2, 2), np.random.default_rng(0))
    with pytest.raises(ValueError, match="must not be in the schema, because it would be published"):
        iw.PrivateTable(frame, iw.Schema(*MIXED_G, iw.Categorical("person", ("a", "b"))), user="person")
    for wrong in (frame.drop(columns="person"), pd.concat([frame, frame["person"]], axis=1)):
        with pytest.raises(ValueError, match="must have the user column 'person' exactly once"):
            iw.PrivateTable(wrong, MIXED_G, user="person")
    frame["person"] = [SECRET, None, [SECRET], SECRET]
    for rows in (frame, frame.iloc[:2].reset_index(drop=True)):
        with pytest.raises(ValueError, match="every row needs an owner") as caught:
            iw.PrivateTable(rows, MIXED_G, user="person")
        assert SECRET not in str(caught.value) and caught.value.__cause__ is None
    with pytest.raises(TypeError, match="a table must be a frame of pandas"):
        iw.PrivateTable([1, 2], MIXED_G, user="person")


def test_table_and_ledger_must_protect_the_same():
    private, plain = people(), iw.PrivateTable(wide_rows(30, np.random.default_rng(0)), MIXED_G)
    for table, ledger, words in (
        (plain, user_ledger(), "has no user column"),
        (private, user_ledger(), "bound_contributions"),
        (private, iw.Ledger(1.0, 1e-6), "replace-user"),
    ):
        with pytest.raises(ValueError, match=words):
            iw.BayesNet().fit(table, ledger, epsilon=0.5)
        assert ledger.events == ()
    with pytest.raises(ValueError, match="Pass ledger="):
        iw.publish(private, epsilon=1.0, delta=1e-6)


# --- the choice of the bound


def lattice_law(queries, threshold, sensitivity, epsilon, *, monotone=False):
    """Chance of each place, and of none, by summing over the lattice of the discrete Laplace laws."""
    narrow = 2 * sensitivity / epsilon
    wide = narrow if monotone else 2 * narrow
    reach = np.arange(-400, 401)
    at = np.tanh(0.5 / narrow) * np.exp(-np.abs(reach) / narrow)  # of the threshold's noise
    passed = np.ones(len(reach))
    distribution = []
    for query in queries:
        needed = threshold + reach - query  # noise of at least that much reaches the threshold
        tail = np.where(needed > 0, 1.0, -1.0) * np.exp(-np.abs(np.where(needed > 0, needed, needed - 1)) / wide)
        tail /= 1 + math.exp(-1 / wide)
        reached = np.where(needed > 0, tail, 1 + tail)
        distribution.append(float(at @ (passed * reached)))
        passed = passed * (1 - reached)
    return np.array([*distribution, float(at @ passed)])


@pytest.mark.parametrize("monotone", [False, True])
def test_above_threshold_follows_its_law(monotone):
    queries, draws = np.array([-9, -4, -1, 2]), 8000
    expected = lattice_law(queries, 0, 1, 1.0, monotone=monotone)
    assert expected.sum() == pytest.approx(1, abs=1e-6)
    found = np.zeros(5)
    noise = iw.SeededNoise(3)
    for _ in range(draws):
        ledger = iw.Ledger(1.0, 0.0, noise=noise)
        options = {"ledger": ledger, "label": "choice", "monotone": monotone}
        index = above_threshold(queries, threshold=0, sensitivity=1, epsilon=1.0, **options)
        found[4 if index is None else index] += 1 / draws
    assert (np.abs(found - expected) < 5 * np.sqrt(expected * (1 - expected) / draws)).all()


@pytest.mark.parametrize("epsilon", [0.3, 1.0, 3.0])
def test_above_threshold_keeps_its_epsilon_for_any_change_of_the_queries(epsilon):
    rng, worst = np.random.default_rng(5), 0.0
    for _ in range(200):
        queries = rng.integers(-12, 5, int(rng.integers(1, 6)))
        kinds = [rng.integers(-1, 2, len(queries)), np.ones(len(queries)), np.append(-np.ones(len(queries) - 1), 1)]
        for change in kinds:
            ratio = lattice_law(queries, 0, 1, epsilon) / lattice_law(queries + change, 0, 1, epsilon)
            worst = max(worst, np.abs(np.log(ratio)).max())
    assert 0.6 * epsilon < worst <= epsilon + 1e-6


@pytest.mark.parametrize("epsilon", [0.3, 1.0, 3.0])
def test_half_the_noise_keeps_epsilon_when_a_user_replaces_another(epsilon):
    """Numbers of users with more than t rows, before and after, over every pair of k and k'."""
    rng, worst = np.random.default_rng(6), 0.0
    grid = np.arange(1, 6)
    for _ in range(60):
        base = -rng.integers(0, 12, 5)
        for k in range(1, 7):
            for other in range(1, 7):
                first, second = (lattice_law(base - (n > grid), -3, 1, epsilon, monotone=True) for n in (k, other))
                worst = max(worst, np.abs(np.log(first / second)).max())
    assert 0.6 * epsilon < worst <= epsilon + 1e-6


def test_above_threshold_charges_first_and_refuses_fractions():
    ledger = iw.Ledger(0.5, 0.0, noise=iw.SeededNoise(0))
    options = {"threshold": 0, "sensitivity": 1, "ledger": ledger, "label": "choice"}
    with pytest.raises(iw.BudgetExceeded):
        above_threshold([1], epsilon=1.0, **options)
    with pytest.raises(TypeError, match="integers"):
        above_threshold([0.5], epsilon=0.5, **options)
    assert ledger.events == ()
    above_threshold([1], epsilon=0.5, **options)
    assert ledger.events == (iw.Event("choice", "above-threshold", 0.5),)


def test_the_bound_is_the_first_that_few_users_pass():
    counts = [1] * 60 + [2] * 30 + [4] * 8 + [9] * 2
    private = people(counts)
    for threshold, tau in ((50, 1), (20, 2), (5, 4), (1, 16)):
        ledger = user_ledger(1e5)
        bounded = iw.bound_contributions(private, ledger, epsilon=1e4, grid=[1, 2, 4, 16], threshold=threshold)
        assert bounded.rows_per_user == tau
        assert bounded.n_private == np.minimum(counts, tau).sum() == len(bounded.frame)
        assert np.bincount(bounded.users).tolist() == np.minimum(np.bincount(private.users), tau).tolist()
    # none of the grid will do: its largest is taken
    assert iw.bound_contributions(private, user_ledger(1e5), epsilon=1e4, grid=[1, 3], threshold=1).rows_per_user == 3


def test_the_bound_costs_what_it_charges_and_one_candidate_needs_no_choice():
    ledger = user_ledger()
    iw.bound_contributions(people(), ledger, epsilon=0.2, grid=[1, 2, 8])
    assert [(e.label, e.mechanism, e.epsilon) for e in ledger.events] == [
        ("bound on contributions", "above-threshold", 0.1),
        ("number of rows", "laplace", 0.1),
    ]
    ledger = user_ledger()
    iw.bound_contributions(people(), ledger, epsilon=0.2, grid=[3])
    assert ledger.events == (iw.Event("number of rows", "laplace", 0.2),)
    spent = user_ledger(0.1)
    with pytest.raises(iw.BudgetExceeded):
        iw.bound_contributions(people(), spent, epsilon=0.2, grid=[1, 2])
    assert spent.events == ()


def test_the_bound_and_the_count_ask_for_the_noise_that_they_charge():
    """The threshold, one query for each candidate, and the number of rows; what is chosen follows the noise alone."""

    class Noted(iw.SeededNoise):
        def laplace(self, values, scale):
            asked.append((values.tolist(), scale))
            return values + (100 if len(values) == 3 else 0)

    private, asked = people([1] * 60 + [2] * 30 + [4] * 8 + [9] * 2), []
    ledger = iw.Ledger(1.0, 0.0, "replace-user", noise=Noted(1))
    bounded = iw.bound_contributions(private, ledger, epsilon=0.5, grid=[1, 2, 4], threshold=5)
    assert bounded.rows_per_user == 1  # 40 users have more: without noise it would be 4
    scales = pytest.approx([2 / 0.25, 2 / 0.25, 1 / 0.25])
    assert [values for values, _ in asked] == [[-5], [-40, -10, -2], [100]]
    assert [scale for _, scale in asked] == scales


def test_the_number_of_rows_is_noisy_with_the_scale_of_the_bound():
    private, tau, epsilon, draws = people([1, 2, 40] * 20), 10, 0.5, 600
    exact = 20 * (1 + 2 + 10)
    found = []
    for seed in range(draws):
        bounded = iw.bound_contributions(private, user_ledger(seed=seed), epsilon=epsilon, grid=[tau])
        assert 60 <= bounded.n_private <= 600
        found.append(bounded.n_private - exact)
    spread = np.abs(found)  # Laplace with scale tau/epsilon: mean tau/epsilon, standard deviation the same
    assert abs(spread.mean() - tau / epsilon) < 5 * tau / epsilon / math.sqrt(draws)
    assert abs(np.mean(found)) < 5 * math.sqrt(2) * tau / epsilon / math.sqrt(draws)


def test_each_user_keeps_a_random_part_of_its_own_rows():
    users = np.array([0, 1, 0, 0, 2, 0, 1, 2, 0])
    rng, draws = np.random.default_rng(3), 4000
    times = np.zeros(len(users))
    for _ in range(draws):
        kept = kept_rows(users, rng.permutation(len(users)), 2)
        assert len(set(kept)) == len(kept) == 6
        times[kept] += 1
    assert (times[users != 0] == draws).all()
    share = times[users == 0] / draws
    assert (np.abs(share - 2 / 5) < 5 * math.sqrt(0.4 * 0.6 / draws)).all()
    # a user's rows are kept independently of how many rows others own: pairs of places are uniform
    pairs = [tuple(sorted(k for k in kept_rows(users, rng.permutation(9), 2) if users[k] == 0)) for _ in range(draws)]
    counts = pd.Series(pairs).value_counts()
    assert len(counts) == 10 and stats.chisquare(counts).pvalue > 1e-6


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"grid": []}, ValueError, "grid"),
        ({"grid": [2, 1]}, ValueError, "increasing"),
        ({"grid": [0, 1]}, ValueError, "at least 1"),
        ({"grid": [1.5]}, ValueError, "whole"),
        ({"threshold": -1}, ValueError, "threshold"),
        ({"threshold": 1.5}, ValueError, "threshold"),
        ({"epsilon": 0}, ValueError, "epsilon"),
    ],
)
def test_wrong_settings_are_refused_before_any_charge(change, error, words):
    ledger = user_ledger()
    with pytest.raises(error, match=words):
        iw.bound_contributions(people(), ledger, **{"epsilon": 0.1, "grid": [1, 2], **change})
    assert ledger.events == ()


def test_wrong_tables_and_ledgers_are_refused():
    options = {"epsilon": 0.1, "grid": [1, 2]}
    with pytest.raises(TypeError, match="PrivateTable"):
        iw.bound_contributions(people().frame, user_ledger(), **options)
    with pytest.raises(TypeError, match="Ledger"):
        iw.bound_contributions(people(), None, **options)
    with pytest.raises(ValueError, match="protects single rows"):
        iw.bound_contributions(people(), iw.Ledger(1.0, 0.0), **options)
    with pytest.raises(ValueError, match="has no user column"):
        iw.bound_contributions(
            iw.PrivateTable(wide_rows(3, np.random.default_rng(0)), MIXED_G), user_ledger(), **options
        )
    bounded = iw.bound_contributions(people(), user_ledger(), **options)
    with pytest.raises(ValueError, match="bounded already"):
        iw.bound_contributions(bounded, user_ledger(), **options)


def test_a_bound_of_another_ledger_leaves_the_release_uncertified():
    bounded = iw.bound_contributions(people([2] * 50), user_ledger(), epsilon=0.1, grid=[2])
    for ledger in (user_ledger(), iw.Ledger(1.0, 1e-6, "replace-user")):
        iw.BayesNet().fit(bounded, ledger, epsilon=0.5)
        assert any("another ledger" in note for note in ledger.statement().notes) and not ledger.statement().certified
    own = iw.Ledger(1.0, 1e-6, "replace-user")
    bounded = iw.bound_contributions(people([2] * 50), own, epsilon=0.1, grid=[2])
    iw.BayesNet().fit(bounded, own, epsilon=0.5)
    assert own.statement().certified and own.statement().adjacency == "replace-user"


# --- sensitivities: a user's rows are replaced by another number of other rows


OF_USERS = {"epsilon": math.inf, "delta": 1e-5, "adjacency": "replace-user"}


def bounded_neighbours(tau, rng):
    """Two tables with the same public facts that differ in all rows of one user, also in their number."""
    n_users = int(rng.integers(2, 12))
    counts = rng.integers(1, tau + 1, n_users)
    common = wide_rows(int(counts[1:].sum()), rng)
    if rng.random() < 0.4:
        common = common.iloc[[0] * len(common)]
    users = np.concatenate([np.repeat(user, count) for user, count in enumerate(counts) if user])
    n_private = int(rng.integers(n_users, n_users * tau + 1))
    tables = []
    for _ in range(2):
        size = tau if rng.random() < 0.7 else int(rng.integers(1, tau + 1))
        own = wide_rows(size, rng)  # all rows of a user alike and on the bounds, as an adversary would have them
        own["x"], own["k"] = rng.choice([-2.0, 2.0]), rng.choice([0, 9])
        own["y"], own["g"] = rng.integers(0, 2), rng.choice(["a", "b", "c"])
        frame = pd.concat([own, common], ignore_index=True)
        owners = np.concatenate([np.zeros(size, dtype=int), users])
        tables.append(bounded_table(frame, MIXED_G, owners, tau, n_private))
    return tables


GENERATORS = {
    "BayesNet": (lambda: iw.BayesNet(theta=0.5), 0.0, 0.8),
    "BayesNet, Gaussian": (lambda: iw.BayesNet(theta=0.5), 1e-6, 0.8),
    "AIM": (lambda: iw.AIM(rounds=2, max_bins=3), 0.0, 0.8),
    "AIM, Gaussian": (lambda: iw.AIM(rounds=2, max_bins=3), 1e-6, 0.8),
    "MST": (lambda: iw.MST(max_bins=3), 0.0, 0.8),
    "MST, Gaussian": (lambda: iw.MST(max_bins=3), 1e-6, 0.8),
    "Mixture": (lambda: iw.Mixture(1, 1, starts=1, progressbar=False), 0.0, 0.8),
    "Mixture, Gaussian": (lambda: iw.Mixture(1, 1, starts=1, progressbar=False), 1e-6, 0.8),
}
PROVIDERS = {
    "TiltWeights": (lambda: iw.TiltWeights(features="linear"), 1e-6, 0.5),
    "TiltWeights, cube": (lambda: iw.TiltWeights("cube", "quadratic"), 0.0, 0.5),
    "LogisticWeights": (lambda: iw.paper.LogisticWeights(10.0), 1e-6, 0.3),
    "LogisticWeights, laplace": (lambda: iw.paper.LogisticWeights(10.0, "laplace", debias=False), 0.0, 0.1),
    "LogisticWeights, spherical": (lambda: iw.paper.LogisticWeights(10.0, "spherical", debias=False), 0.0, 0.3),
    "OutputNoiseWeights": (lambda: iw.paper.OutputNoiseWeights(10.0, "gaussian"), 1e-6, 0.01),
    "BetaCalibratedWeights": (lambda: iw.paper.BetaCalibratedWeights(iw.paper.LogisticWeights(10.0)), 1e-6, 0.02),
}


@pytest.mark.parametrize("name", [*GENERATORS, *PROVIDERS])
@pytest.mark.filterwarnings("ignore::iwbayes.utils.warnings.PrivacyWarning")
def test_replacing_a_user_never_costs_more_than_each_charge(name):
    make, delta, least = {**GENERATORS, **PROVIDERS}[name]
    rng, worst, taus = np.random.default_rng(7), 0.0, (1, 4, 9)
    single = 0.0
    for seed in range(30):
        tau = taus[seed % 3]
        inputs = (synthetic_table(wide_rows(60, rng), MIXED_G),) if name in PROVIDERS else ()

        def run(table, ledger, inputs=inputs):
            make().fit(table, *inputs, ledger, epsilon=1.0, delta=delta)

        for _, share in shares_of_claims(run, bounded_neighbours(tau, rng), seed, **OF_USERS):
            assert share <= 1 + 1e-9
            worst = max(worst, share)
            # what it would be of a claim for one row: without the factor tau the bound would be passed
            single = max(single, share * tau)
    assert worst > least and (single > 1 or least < 0.2)


def test_gradient_steps_sample_users_and_clip_their_sums():
    torch = pytest.importorskip("torch")
    from iwbayes.paper.dpsgd.private_steps import PrivateSteps

    rng, worst = np.random.default_rng(3), 0.0
    for seed in range(20):
        first, second = bounded_neighbours(6, rng)
        calls = []
        for table in (first, second):
            noise = ScriptedNoise(seed)
            ledger = iw.Ledger(noise=noise, **OF_USERS)
            rows = torch.from_numpy(table.schema.encode(table.frame) * 5).float()
            options = {"epsilon": 1.0, "delta": 1e-6, "users": table.users, "n_private": table.n_private}
            steps = PrivateSteps(3, 0.5, clip_norm=0.7).charge(ledger, "steps", (rows,), **options)
            network = torch.nn.Linear(rows.shape[1], 1)
            torch.nn.init.zeros_(network.weight), torch.nn.init.zeros_(network.bias)
            for _ in range(3):
                steps.gradient(network, lambda net, x: net(x)[:, 0])
            calls.append(noise.calls)
        for (_, a, scale), (_, b, same) in zip(*calls, strict=True):
            assert scale == same == pytest.approx(ledger.events[0].noise_multiplier * 0.7)
            assert np.linalg.norm(a - b) <= 2 * 0.7
            worst = max(worst, np.linalg.norm(a - b) / 1.4)
    assert worst > 0.75
    expected = dpsgd_multiplier(1.0, 1e-6, sampling_probability=0.5, steps=3, adjacency="replace-one")
    assert ledger.events[0].noise_multiplier == expected


def test_user_gradients_are_sums_of_row_gradients():
    torch = pytest.importorskip("torch")
    from iwbayes.paper.dpsgd import row_gradients
    from iwbayes.paper.dpsgd.private_steps import rows_of_users

    rng = np.random.default_rng(4)
    rows = torch.from_numpy(rng.normal(size=(23, 4))).double()
    users = np.concatenate([np.arange(5), rng.integers(0, 5, 18)])
    network = torch.nn.Linear(4, 1).double()

    def loss(net, x):
        return torch.nn.functional.softplus(net(x))[:, 0]

    chosen = np.array([0, 2, 3])
    indices, owners = rows_of_users(users)(chosen)
    assert sorted(indices) == sorted(np.flatnonzero(np.isin(users, chosen)))
    brute = np.zeros(5)
    for user in chosen:
        own = row_gradients.plain_sum(network, loss, (rows,), np.flatnonzero(users == user))
        brute += own * min(1, (1 - 2**-20) * 0.9 / np.linalg.norm(own))
    for size in (2**24, 200, 40):  # all users in a chunk; some; fewer rows than a user owns
        before, row_gradients.CHUNK_BYTES = row_gradients.CHUNK_BYTES, size
        try:
            found = row_gradients.clipped_sum(network, loss, (rows,), indices, clip_norm=0.9, owners=owners, n_units=5)
        finally:
            row_gradients.CHUNK_BYTES = before
        np.testing.assert_allclose(found, brute, rtol=0, atol=1e-12)


def test_rows_with_owners_and_a_ledger_for_rows_do_not_go_together():
    torch = pytest.importorskip("torch")
    from iwbayes.paper.dpsgd.private_steps import PrivateSteps

    rows, budget = torch.zeros(4, 2), {"epsilon": 1.0, "delta": 1e-6}
    users = np.array([0, 0, 1, 1])
    for ledger, given in (
        (user_ledger(), {}),
        (iw.Ledger(1.0, 1e-6), {"users": users, "n_private": 4}),
        (user_ledger(), {"users": users}),
        (user_ledger(), {"users": users[:2], "n_private": 4}),
        (user_ledger(), {"users": users * 2, "n_private": 4}),
    ):
        with pytest.raises(ValueError, match=r"users|owner"):
            PrivateSteps(1).charge(ledger, "steps", (rows,), **budget, **given)
        assert ledger.events == ()


def test_structure_scores_keep_their_sensitivity_when_rows_appear():
    rng, worst = np.random.default_rng(9), 0.0
    sizes, node = [2, 2], Node(0, (1,))
    for _ in range(3000):
        tau, n_users = int(rng.integers(1, 4)), int(rng.integers(1, 5))
        most = tau * n_users
        common = np.concatenate([rng.integers(0, 2, (int(rng.integers(1, tau + 1)), 2)) for _ in range(n_users)])
        common = common[int(rng.integers(1, tau + 1)) :] if n_users > 1 else common[:0]
        common = common[: tau * (n_users - 1)]
        scores = []
        for _ in range(2):
            own = np.tile(rng.integers(0, 2, 2), (int(rng.integers(1, tau + 1)), 1))
            scores.append(int(scores_of(np.concatenate([own, common]), sizes, [node], most)[0]))
        worst = max(worst, abs(scores[0] - scores[1]) / (6 * tau * most))
        assert abs(scores[0] - scores[1]) <= 6 * tau * most
    assert worst > 0.05


def test_the_selection_of_a_network_has_the_noise_of_its_sensitivity():
    tau, n_users = 4, 6
    rng = np.random.default_rng(1)
    private = people([4] * n_users)
    facts = {"rows_per_user": tau, "n_private": 20, "source": "a test's"}
    bounded = private._bounded_by(lambda start, stop: rng.permutation(stop), **facts)
    noise = ScriptedNoise(0)
    ledger = iw.Ledger(1.0, 0.0, "replace-user", noise=noise)
    iw.BayesNet().fit(bounded, ledger, epsilon=1.0)
    (epsilon,) = {event.epsilon for event in ledger.events if event.mechanism == "exponential"}
    scales = [scale for name, _, scale in noise.calls if name == "noisy_max"]
    # 2 S/epsilon with S = 6 K tau, K = U tau
    assert scales == pytest.approx([2 * 6 * n_users * tau * tau / epsilon] * 3)


# --- the whole way


def test_a_release_of_users_end_to_end(tmp_path):
    rng = np.random.default_rng(2)
    counts = rng.geometric(0.4, 400)
    private = people(counts.tolist(), seed=2)
    ledger = iw.Ledger(2.0, 1e-6, "replace-user")
    bounded = iw.bound_contributions(private, ledger, epsilon=0.2, grid=[1, 2, 4, 8])
    release = iw.publish(bounded, epsilon=1.8, delta=1e-6, ledger=ledger, random_seed=1)
    assert release.certified and release.statement.adjacency == "replace-user"
    assert release.n_private == bounded.n_private == release.weights.measurement.n_private
    loaded = iw.load(release.save(tmp_path / "users.iwb"))
    assert loaded.statement == release.statement
    checks = diagnose(loaded)
    assert checks.loc["unit of privacy", "verdict"] == "fail" and checks.loc["adjacency", "value"] == "replace-user"
    with pytest.warns(iw.CalibrationWarning, match="unit of privacy user: .* rows of one person are alike"):
        iw.fit("y ~ x", loaded, family="bernoulli", draws=100, random_seed=1)


def test_plan_knows_users():
    options = {"epsilon": 1.0, "delta": 1e-6}
    one = iw.plan(MIXED_G, 5000, **options)
    many = iw.plan(MIXED_G, 5000, **options, adjacency="replace-user", rows_per_user=4)
    assert many.noise_sd > 2 * one.noise_sd
    with pytest.raises(ValueError, match="every person owns one row"):
        iw.plan(MIXED_G, 5000, **options, rows_per_user=4)
    with pytest.raises(ValueError, match="whole number"):
        iw.plan(MIXED_G, 5000, **options, adjacency="replace-user", rows_per_user=0)


def test_public_facts_of_users():
    private = people([4, 4, 1])
    ledger = user_ledger()
    bounded = iw.bound_contributions(private, ledger, epsilon=0.5, grid=[3])
    facts = PublicFacts.of(bounded, None, ledger, n_synthetic=7)
    assert (facts.rows_per_user, facts.n_users, facts.most_rows, facts.n_synthetic) == (3, 3, 9, 7)
    assert facts.row_adjacency == "replace-one" and facts.n_private == bounded.n_private


# --- bounding and publishing in one call


def own_table():
    rng = np.random.default_rng(4)
    rows = pd.DataFrame(
        {"person": rng.integers(0, 150, 400), "cost": rng.uniform(0, 10, 400), "ill": rng.integers(0, 2, 400)}
    )
    return iw.PrivateTable(rows, iw.Schema(iw.Real("cost", 0, 10), iw.Binary("ill")), user="person")


def test_publish_users_is_the_two_steps_within_one_budget():
    private, settings = own_table(), {"n_synthetic": 80, "random_seed": 3, "progressbar": False}
    ledger = iw.Ledger(2.0, 1e-6, "replace-user", noise=iw.SeededNoise(5))
    release = iw.publish_users(private, epsilon=2.0, delta=1e-6, grid=[1, 2, 4], ledger=ledger, **settings)
    by_hand = iw.Ledger(2.0, 1e-6, "replace-user", noise=iw.SeededNoise(5))
    left = release_epsilon(2.0, 1e-6, 3, by_hand)
    bounded = iw.bound_contributions(private, by_hand, epsilon=0.2, grid=[1, 2, 4])
    same = iw.publish(bounded, epsilon=left, delta=1e-6, ledger=by_hand, **settings)
    assert ledger.events == by_hand.events and ledger.spent[0] <= 2.0
    assert release.n_private == same.n_private
    np.testing.assert_array_equal(release.weights.log_weights, same.weights.log_weights)
    assert ledger.spent[0] > 1.8  # the bound leaves the release nearly all of it


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"grid": [2, 1]}, "grid must be increasing"),
        ({"grid": []}, "grid must be increasing"),
        ({"share": 2.0}, "share must be in"),
        ({"bound_share": 1.0}, "bound_share must be in"),
        ({"n_synthetic": 0}, "n_synthetic must be a whole number"),
        ({"weights": "tilt"}, "weights must have pure"),
        ({"generator": iw.BayesNet}, "generator must have pure"),
        ({"weights": iw.paper.LogisticWeights(mechanism="none")}, "without noise the cost is infinite"),
        ({"for_models": ["nobody ~ cost"]}, "nobody"),
        ({"epsilon": 9.0}, "exceed|left|budget"),
        ({"epsilon": 1.0, "delta": 1e-5}, "delta must be at most the ledger's"),
    ],
)
def test_publish_users_refuses_before_anything_is_charged(change, message):
    ledger = iw.Ledger(2.0, 1e-6, "replace-user", noise=iw.SeededNoise(5))
    given = {"epsilon": 2.0, "delta": 1e-6, "grid": [1, 2], "n_synthetic": 50, "progressbar": False, **change}
    with pytest.raises((ValueError, TypeError, iw.BudgetExceeded), match=message):
        iw.publish_users(own_table(), ledger=ledger, **given)
    assert ledger.events == ()


def test_publish_users_needs_users():
    rows = iw.PrivateTable(pd.DataFrame({"ill": [0, 1] * 20}), iw.Schema(iw.Binary("ill")))
    with pytest.raises(ValueError, match="has no user column"):
        iw.publish_users(rows, epsilon=1.0, delta=1e-6, grid=[1])
