"""PATEGAN: what one row can change, what votes cost, what the student learns, and what is refused."""

import importlib.util
import math
import pickle
import traceback

import numpy as np
import pandas as pd
import pytest
from factories import bounded_table, mixed_schema

import iwbayes as iw
from iwbayes.curator.privacy.accounting import gaussian_epsilon, gaussian_multiplier
from iwbayes.curator.protocols import PublicFacts

if importlib.util.find_spec("torch") is not None:
    from iwbayes.paper.pate.teachers import NoisyVotes, Teachers, assign

BUDGET = {"epsilon": 1.0, "delta": 1e-6}
SCHEMA = mixed_schema("k")


def frame(n, seed, shift=1.0):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 2, n)
    return pd.DataFrame(
        {
            "x": np.clip(rng.normal(shift * (y - 0.3), 0.5), -2, 2),
            "k": np.where(rng.random(n) < 0.2, np.nan, rng.poisson(3, n).clip(0, 9)),
            "y": y,
            "g": rng.choice(["a", "b", "c"], n, p=[0.6, 0.3, 0.1]),
        }
    )


def pate(**settings):
    quick = {"teachers": 12, "rounds": 6, "votes": 20, "batch_size": 32, "random_seed": 1, "progressbar": False}
    return iw.paper.PATEGAN(**{**quick, **settings})


class Script(iw.SeededNoise):
    """Answers by a script whatever it is asked, so that everything public is the same; it notes what it was asked."""

    def __init__(self, seed=1):
        super().__init__(seed)
        self.asked, self.scales, self.orders = [], [], []

    def gaussian(self, values, scale):
        self.asked.append(np.array(values))
        self.scales.append(scale)
        return super().gaussian(np.zeros_like(values), scale)

    def permutation(self, n):
        self.orders.append(n)
        return super().permutation(n)


def answers(private, adjacency="replace-one", **settings):
    """Exact counts of votes for each generated row, under scripted noise, and the fitted generator."""
    noise = Script()
    fitted = pate(**settings).fit(private, iw.Ledger(10.0, 1e-5, adjacency, noise=noise), **BUDGET)
    grid = round(noise.scales[0] / (math.sqrt(120) * gaussian_multiplier(**BUDGET)))
    counts = np.concatenate(noise.asked)
    assert grid > 1 and (counts % grid == 0).all()
    return counts // grid, fitted


# --- what one row can change


@pytest.mark.parametrize("trial", range(6))
def test_one_row_changes_one_vote_at_most(trial):
    """With the public course of the training fixed, neighbours' counts differ by at most 1 a query."""
    pytest.importorskip("torch")
    rows = frame(60, seed=trial)
    extreme = pd.DataFrame({"x": [-2.0], "k": [np.nan], "y": [0], "g": ["c"]})
    other = pd.concat([rows[: 10 * trial], extreme, rows[10 * trial + 1 :]], ignore_index=True)
    first, one = answers(iw.PrivateTable(rows, SCHEMA))
    second, two = answers(iw.PrivateTable(other, SCHEMA))
    assert np.abs(first - second).max() <= 1
    assert first.max() <= 12 and first.min() >= 0 and np.ptp(first) > 0
    assert one.fingerprint() == two.fingerprint()  # what is public knows of the rows by the answers alone


def test_neighbours_do_change_votes():
    pytest.importorskip("torch")
    rows = frame(24, seed=1)
    other = pd.concat([pd.DataFrame({"x": [-2.0], "k": [np.nan], "y": [0], "g": ["c"]}), rows[1:]], ignore_index=True)
    first, _ = answers(iw.PrivateTable(rows, SCHEMA), teacher_steps=20)
    second, _ = answers(iw.PrivateTable(other, SCHEMA), teacher_steps=20)
    assert np.abs(first - second).max() == 1


@pytest.mark.parametrize("count", [0, 1, 3])
def test_one_user_changes_one_vote_at_most(count):
    """All rows of a user change, appear or vanish: they have one teacher."""
    pytest.importorskip("torch")
    found = []
    for own in (frame(3, seed=5), frame(3, seed=6, shift=-4.0)[:count]):
        rows = pd.concat([own, frame(90, seed=7)], ignore_index=True)
        owners = np.append(np.zeros(len(own), dtype=np.int64), 1 + np.repeat(np.arange(30), 3))
        private = bounded_table(rows, SCHEMA, owners, 3, 90)
        # a user without rows keeps the place that the user of the other table has
        object.__setattr__(private, "_users", owners)
        counts, fitted = answers(private, "replace-user")
        found.append((counts, fitted.fingerprint()))
    assert np.abs(found[0][0] - found[1][0]).max() <= 1
    assert found[0][1] == found[1][1]


def test_all_rows_of_a_user_have_one_teacher():
    pytest.importorskip("torch")
    order = np.random.default_rng(1).permutation(50)
    users = np.random.default_rng(2).integers(0, 50, 300)
    teacher = assign(order, 7, users)
    for user in range(50):
        assert len(np.unique(teacher[users == user])) <= 1
    sizes = np.bincount(assign(order, 7, None), minlength=7)
    assert sizes.sum() == 50 and np.ptp(sizes) <= 1


def test_the_split_depends_on_no_value():
    """The source is asked for an order of as many places as there are rows, or users, which is public."""
    pytest.importorskip("torch")
    for private, adjacency, n in (
        (iw.PrivateTable(frame(60, 1), SCHEMA), "replace-one", 60),
        (bounded_table(frame(90, 1), SCHEMA, np.repeat(np.arange(30), 3), 3, 85), "replace-user", 30),
    ):
        noise = Script()
        pate().fit(private, iw.Ledger(10.0, 1e-5, adjacency, noise=noise), **BUDGET)
        assert noise.orders == [n]


def teachers(rows, seed=3):
    torch = pytest.importorskip("torch")
    made = Teachers(rows, assign(np.arange(len(rows)), 5, None), 5, 4, 8, np.random.default_rng(seed))
    made.learn(torch.from_numpy(np.random.default_rng(4).normal(size=(30, 3)).astype(np.float32)), 15)
    return {name: value.detach().numpy() for name, value in made._parameters.items()}, made


def test_a_teacher_learns_from_its_own_rows_alone():
    """Bit for bit: teacher 2 of five has rows 2, 7, 12 and 17."""
    rows = np.random.default_rng(5).normal(size=(20, 3))
    changed = rows.copy()
    changed[12] = 9.0
    one, two = teachers(rows)[0], teachers(changed)[0]
    for name, value in one.items():
        others = np.arange(5) != 2
        np.testing.assert_array_equal(value[others], two[name][others])
        assert not np.array_equal(value[2], two[name][2])


def test_a_teacher_is_a_classifier_of_its_rows():
    """Private rows lie around 1.5 in each coordinate, generated ones around 0."""
    torch = pytest.importorskip("torch")
    rows = np.random.default_rng(6).normal(1.5, 0.3, size=(20, 3))
    _, made = teachers(rows)
    near = torch.full((1, 3), 1.5)
    far = torch.full((1, 3), -1.5)
    assert made._count(near)[0] == 5 and made._count(far)[0] == 0


def test_a_broken_teacher_votes_against_and_says_nothing():
    torch = pytest.importorskip("torch")
    rows = np.random.default_rng(6).normal(1.5, 0.3, size=(20, 3))
    rows[2] = np.inf
    _, made = teachers(rows)
    assert made._count(torch.full((1, 3), 1.5))[0] == 4


# --- what votes cost


@pytest.mark.parametrize("count", [(6, 20), (100, 256)])
@pytest.mark.parametrize("budget", [BUDGET, {"epsilon": 6.0, "delta": 1e-5}, {"epsilon": 0.01, "delta": 0.1}])
def test_all_votes_together_cost_the_budget_exactly(count, budget):
    rounds, votes = count
    facts = PublicFacts(SCHEMA, 600, 0)
    (event,) = pate(rounds=rounds, votes=votes).events(facts, **budget)
    assert event.count == rounds * votes
    joint = event.noise_multiplier / math.sqrt(event.count)
    assert joint == pytest.approx(gaussian_multiplier(**budget), rel=1e-11)
    ledger = iw.Ledger(**budget, noise=iw.SeededNoise(1))
    ledger.charge(event)
    assert ledger.spent[0] == pytest.approx(gaussian_epsilon(joint, budget["delta"]), rel=1e-9)
    assert ledger.would_cost(event) > 1.3 * ledger.spent[0]


def test_noise_has_the_scale_that_was_charged():
    """A count moves by 1, so the scale in votes is the noise multiplier."""
    torch = pytest.importorskip("torch")
    _, made = teachers(np.random.default_rng(6).normal(size=(20, 3)))
    rows = torch.zeros((20_000, 3))
    exact = made._count(rows[:1])[0] / 5
    for scale in (0.3, 40.0):
        votes = NoisyVotes(made, iw.SeededNoise(2), scale, 20_000)
        noise = votes.ask(rows) - exact
        sd = scale / 5
        assert votes.noise_sd == pytest.approx(sd)
        assert abs(noise.mean()) < 5 * sd / math.sqrt(20_000)
        assert abs(noise.std() / sd - 1) < 5 / math.sqrt(2 * 20_000)
        assert len(np.unique(noise)) > 2**10 / 2  # a fine grid, however little noise


def test_no_more_votes_than_were_charged():
    torch = pytest.importorskip("torch")
    _, made = teachers(np.random.default_rng(6).normal(size=(20, 3)))
    votes = NoisyVotes(made, iw.SeededNoise(2), 1.0, 5)
    votes.ask(torch.zeros((3, 3)))
    with pytest.raises(RuntimeError, match="charged votes that are left, 2; got 3"):
        votes.ask(torch.zeros((3, 3)))
    assert votes.left == 2


def test_fit_spends_all_votes_and_charges_them_first():
    pytest.importorskip("torch")

    class Witness(Script):
        def gaussian(self, values, scale):
            assert ledger.events == declared
            return super().gaussian(values, scale)

        def permutation(self, n):
            assert ledger.events == declared
            return super().permutation(n)

    private, noise = iw.PrivateTable(frame(60, 1), SCHEMA), Witness()
    declared = pate().events(PublicFacts(SCHEMA, 60, 0), **BUDGET)
    ledger = iw.Ledger(**BUDGET, noise=noise)
    fitted = pate().fit(private, ledger, **BUDGET)
    assert sum(map(len, noise.asked)) == declared[0].count == 120
    assert ledger.holds(fitted.fingerprint())
    assert not pate().pure and pate().gives_log_ratio


def test_the_noise_is_hardened():
    pytest.importorskip("torch")
    ledger = iw.Ledger(**BUDGET)
    pate().fit(iw.PrivateTable(frame(60, 1), SCHEMA), ledger, **BUDGET)
    assert ledger.statement().noise == "hardened" and ledger.statement().certified


# --- what is learned


@pytest.mark.slow
def test_rows_come_nearer_to_the_private_ones():
    """With little noise the generator learns the column's place and spread, which it starts without."""
    pytest.importorskip("torch")
    private = iw.PrivateTable(frame(600, 1), SCHEMA)
    before, after = [], []
    for seed in range(2):
        for rounds, found in ((4, before), (60, after)):
            ledger = iw.Ledger(1000.0, 1e-5, noise=iw.SeededNoise(seed))
            generator = iw.paper.PATEGAN(
                teachers=60, rounds=rounds, votes=128, batch_size=128, random_seed=seed, progressbar=False
            )
            drawn = generator.fit(private, ledger, epsilon=1000.0, delta=1e-5).sample(4000, random_seed=1).frame
            share = drawn["g"].astype(object).value_counts(normalize=True).reindex(["a", "b", "c"], fill_value=0.0)
            truth = private.frame["g"].astype(object).value_counts(normalize=True)
            cuts = np.linspace(-2, 2, 11)
            distributions = [np.histogram(part, cuts)[0] / len(part) for part in (drawn["x"], private.frame["x"])]
            found.append(np.abs(share - truth).sum() / 2 + np.abs(distributions[0] - distributions[1]).sum() / 2)
    assert np.mean(after) < 0.6 * np.mean(before)


def test_the_log_ratio_is_larger_where_private_rows_are():
    """A generator that stays where it is spreads x evenly, private rows have it above 1: the student's logit tells."""
    pytest.importorskip("torch")
    rows = frame(600, 1).assign(x=np.random.default_rng(2).uniform(1, 2, 600))
    settings = {"teachers": 30, "rounds": 20, "votes": 128, "student_steps": 50, "random_seed": 1}
    generator = iw.paper.PATEGAN(generator_rate=1e-9, progressbar=False, **settings)
    ledger = iw.Ledger(1000.0, 1e-5, noise=iw.SeededNoise(1))
    private = iw.PrivateTable(rows, SCHEMA)
    fitted = generator.fit(private, ledger, epsilon=1000.0, delta=1e-5)
    table = fitted.sample(2000, random_seed=1)
    ratio, inside = fitted.log_ratio(table), table.frame["x"].to_numpy() > 1
    assert ratio.shape == (2000,)
    assert np.mean(ratio[inside][:, None] > ratio[~inside]) > 0.9
    weights = iw.paper.DiscriminatorWeights(fitted).fit(private, table, ledger, epsilon=1.0)
    np.testing.assert_allclose(weights.log_weights[0], ratio)
    assert np.average(inside, weights=weights.values) > 2 * inside.mean()


def test_seeds_fix_the_result_and_leave_torchs_own_alone():
    torch = pytest.importorskip("torch")
    private, found = iw.PrivateTable(frame(60, 1), SCHEMA), []
    state = torch.random.get_rng_state()
    for seed, noise in ((1, 1), (1, 1), (2, 1), (1, 2)):
        ledger = iw.Ledger(10.0, 1e-5, noise=iw.SeededNoise(noise))
        found.append(pate(random_seed=seed).fit(private, ledger, **BUDGET).fingerprint())
    assert found[0] == found[1] and len(set(found)) == 3
    assert torch.equal(torch.random.get_rng_state(), state)


# --- refusals and failures


def test_diverged_training_says_so_and_stays_charged():
    pytest.importorskip("torch")
    ledger = iw.Ledger(10.0, 1e-5, noise=iw.SeededNoise(1))
    rows = frame(60, 1).assign(x=1.2345678912)
    with pytest.raises(RuntimeError, match=r"diverged.*stays charged") as caught:
        pate(student_rate=1e30).fit(iw.PrivateTable(rows, SCHEMA), ledger, **BUDGET)
    assert [event.count for event in ledger.events] == [120]
    assert "1.234567" not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("teachers", 1),
        ("teachers", 2.5),
        ("rounds", 3),
        ("votes", 0),
        ("batch_size", True),
        ("teacher_steps", 0),
        ("student_steps", -1),
        ("teacher_hidden", 0),
        ("latent", 0),
        ("generator_hidden", ()),
        ("student_hidden", (0,)),
        ("generator_rate", 0.0),
        ("student_rate", math.inf),
        ("random_seed", -1),
    ],
)
def test_wrong_settings_are_refused(name, value):
    with pytest.raises(ValueError, match=name):
        pate(**{name: value})


def test_more_teachers_than_rows_are_refused():
    facts = PublicFacts(SCHEMA, 10, 0)
    with pytest.raises(ValueError, match="at most the number of rows, 10; got 12"):
        pate().events(facts, **BUDGET)
    users = PublicFacts(SCHEMA, 500, 0, "replace-user", 50, 11)
    with pytest.raises(ValueError, match="at most the number of users, 11; got"):
        pate().events(users, **BUDGET)
    with pytest.raises(ValueError, match="delta"):
        pate().events(PublicFacts(SCHEMA, 100, 0), epsilon=1.0)


def test_teachers_and_votes_print_and_copy_nothing():
    _, made = teachers(np.full((20, 3), 1.2345678912))
    votes = NoisyVotes(made, iw.SeededNoise(1), 1.0, 5)
    for thing in (made, votes):
        assert "1.234" not in repr(thing)
        with pytest.raises(TypeError, match="private rows"):
            pickle.dumps(thing)


def test_a_bound_that_does_not_hold_is_a_defect_that_asks_nothing():
    pytest.importorskip("torch")
    rows = np.zeros((20, 3))
    with pytest.raises(RuntimeError, match="public bound"):
        Teachers(rows, assign(np.arange(20), 5, None), 5, 3, 8, np.random.default_rng(1))
