"""publish() and plan(): joint calibration, one budget, refusals before anything is charged, what rng seeds."""

import json
import traceback
import warnings
from dataclasses import replace

import numpy as np
import pandas as pd
import pymc as pm
import pytest
from factories import seeded_release
from looks import looks_at_rows
from provider_tools import progress_outputs

import iwbayes as iw
from iwbayes.curator.generators.bayesnet.bayesnet import BayesNet
from iwbayes.curator.named_models import weights_for
from iwbayes.curator.plan import Plan, noise_warning, plan, uniform_table
from iwbayes.curator.privacy.accounting import gaussian_epsilon, joint_multiplier, price
from iwbayes.curator.privacy.ledger import BudgetExceeded, Ledger
from iwbayes.curator.privacy.noise import SeededNoise, SystemNoise
from iwbayes.curator.protocols import PublicFacts
from iwbayes.curator.publish import publish
from iwbayes.curator.weight_providers.score_stages import ScoreStages
from iwbayes.curator.weight_providers.tilt import TiltWeights
from iwbayes.evidence.measurement import NOISE_TARGET
from iwbayes.paper.logistic_weights import LogisticWeights
from iwbayes.release.statement import Event
from iwbayes.schema import Binary, Categorical, Integer, Real, Schema
from iwbayes.tables import PrivateTable
from iwbayes.utils.warnings import CalibrationWarning, PrivacyWarning

SCHEMA = Schema(
    Real("age", 18, 90),
    Real("debt", 0, 1e5, transform="log1p", missing=True),
    Integer("visits", 0, 12),
    Binary("insured"),
    Categorical("region", levels=("north", "south", "east")),
)
N = 800
CANARY = 41.2345678912


@pytest.fixture(scope="module")
def private() -> PrivateTable:
    rng = np.random.default_rng(11)
    frame = pd.DataFrame(
        {
            "age": rng.uniform(18, 90, N),
            "debt": np.where(rng.random(N) < 0.2, np.nan, rng.lognormal(7, 1, N)),
            "visits": rng.binomial(12, 0.3, N),
            "insured": rng.integers(0, 2, N),
            "region": rng.choice(["north", "south", "east"], N),
        }
    )
    frame.loc[0, "age"] = CANARY
    return PrivateTable(frame, SCHEMA)


class CountingNoise(SeededNoise):
    """A seeded source that counts its draws."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.draws = 0

    def __getattribute__(self, name: str):
        if name in ("gaussian", "laplace", "cube", "spherical", "noisy_max"):
            object.__setattr__(self, "draws", object.__getattribute__(self, "draws") + 1)
        return super().__getattribute__(name)


# --- the joint price


@pytest.mark.parametrize(
    "epsilon, delta, share", [(0.3, 1e-6, 0.3), (1.0, 1e-6, 0.1), (1.0, 1e-6, 0.8), (5.0, 1e-9, 0.3), (1.0, 1e-3, 0.3)]
)
def test_the_joint_price_is_the_budget_and_close_below(private, epsilon, delta, share):
    release = seeded_release(private, epsilon=epsilon, delta=delta, share=share, n_synthetic=500)
    statement = release.statement
    cost = price(statement.events, delta, scale=epsilon)
    assert cost[0] <= epsilon * (1 + 1e-12) and cost[1] <= delta
    assert 0.98 * epsilon < statement.epsilon <= epsilon
    assert statement.delta <= delta
    # basic composition of the nominal parts would have asked for more: that is what joint calibration buys
    nominal = sum(event.count * event.epsilon for event in statement.events)
    assert nominal >= epsilon * (1 - 1e-9)


def test_each_part_gets_its_share(private):
    release = seeded_release(private, share=0.2, n_synthetic=300)
    own = [event for event in release.statement.events if event.label.startswith("BayesNet")]
    gaussians = [event for event in own if event.mechanism == "gaussian"]
    # Gaussians of one guarantee: as one they have its epsilon at its delta
    generator = gaussian_epsilon(joint_multiplier(gaussians), 1e-6)
    generator += sum(event.count * event.epsilon for event in own if event.mechanism != "gaussian")
    (tilt,) = [event for event in release.statement.events if event not in own]
    np.testing.assert_allclose(generator / (generator + tilt.epsilon), 0.2, rtol=1e-6)


def test_a_pure_release(private):
    weights = TiltWeights(mechanism="cube", features="linear")
    release = seeded_release(private, delta=0.0, weights=weights, n_synthetic=500)
    assert release.statement.delta == 0
    assert 0.98 < release.statement.epsilon <= 1
    assert {event.mechanism for event in release.statement.events} == {"laplace", "exponential", "cube"}
    assert release.weights.measurement.noise.name == "cube"


def test_cube_weights_beside_delta_spend_no_delta_of_their_own(private):
    weights = TiltWeights(mechanism="cube", features="linear")
    release = seeded_release(private, weights=weights, n_synthetic=500)
    (tilt,) = [event for event in release.statement.events if event.label == "TiltWeights"]
    assert tilt.mechanism == "cube" and tilt.delta == 0
    assert 0.98 < release.statement.epsilon <= 1


# --- what comes out


def test_the_release_holds_together_and_its_recipe_is_plain(private):
    release = seeded_release(private)
    assert release.n_private == N
    assert len(release.synthetic) == len(release.weights) == 5 * N
    assert release.synthetic.schema == SCHEMA and release.synthetic.origin is not None
    assert json.loads(json.dumps(release.recipe)) == release.recipe
    assert {"generator", "weights", "share", "calibration"} <= set(release.recipe)
    assert release.recipe["calibration"] >= 1
    for text in (repr(release), str(release), json.dumps(release.recipe), str(release.statement)):
        assert str(CANARY)[:8] not in text


def test_the_release_says_what_it_was_made_for(private):
    models = ["insured ~ age + region", iw.model("visits ~ age", family="poisson")]
    names = ["insured ~ age + region", "visits ~ age"]
    settings = {"epsilon": 1.0, "delta": 1e-6, "n_synthetic": 800, "random_seed": 1}
    release = publish(private, for_models=models, noise=SeededNoise(1), **settings)
    assert release.recipe["for_models"] == names and all(name in " ".join(str(release).split()) for name in names)
    # naming them in the weights is the same
    own = TiltWeights(for_models=[iw.model(models[0]), models[1]])
    again = publish(private, weights=own, noise=SeededNoise(1), **settings)
    np.testing.assert_array_equal(again.weights.log_weights, release.weights.log_weights)
    assert again.recipe == release.recipe
    assert "for_models" not in publish(private, noise=SeededNoise(1), **settings).recipe
    products = publish(
        private, weights=TiltWeights(features="products"), for_models=names, noise=SeededNoise(1), **settings
    )
    assert products.recipe["for_models"] == names and products.weights.method.startswith("TiltWeights(model")


def test_only_system_noise_is_certified(private):
    arguments = {"epsilon": 1.0, "delta": 1e-6, "n_synthetic": 300, "random_seed": 1}
    assert publish(private, **arguments).statement.certified
    assert publish(private, noise=SystemNoise(), **arguments).statement.noise == "hardened"
    seeded = publish(private, noise=SeededNoise(1), **arguments).statement
    assert not seeded.certified and seeded.noise == "seeded"


def test_zero_out_is_stated(private):
    release = seeded_release(private, adjacency="zero-out", n_synthetic=300)
    assert release.statement.adjacency == "zero-out"


# --- what rng seeds


def test_rng_repeats_a_release_under_seeded_noise(private):
    seeds = 3, np.random.default_rng(3), 4
    first, again, other = (seeded_release(private, 5, n_synthetic=400, random_seed=seed) for seed in seeds)
    pd.testing.assert_frame_equal(first.synthetic.frame, again.synthetic.frame)
    np.testing.assert_array_equal(first.weights.log_weights, again.weights.log_weights)
    assert not first.synthetic.frame.equals(other.synthetic.frame)
    assert first.recipe == other.recipe  # the noise was the same, the sampling was not


def test_rng_never_seeds_the_privacy_noise(private):
    schema = Schema(Binary("insured"))
    table = PrivateTable(private.frame[["insured"]], schema)
    values, noisy = set(), set()
    for _ in range(3):
        release = publish(table, epsilon=1.0, delta=1e-6, n_synthetic=2000, random_seed=3)
        assert release.statement.certified
        values.add(release.weights.measurement.value.tobytes())
        noisy.add(release.synthetic.frame["insured"].sum())
    # had rng seeded any noise, the three would agree; by chance alone the measurement cannot
    assert len(values) == 3 and len(noisy) > 1


def test_neither_rng_nor_noise_touches_the_global_state(private):
    np.random.seed(1)  # noqa: NPY002 - the global state is what is watched
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    seeded_release(private, n_synthetic=300)
    np.testing.assert_array_equal(before, np.random.get_state()[1])  # noqa: NPY002


# --- the ledger


def test_a_given_ledger_is_continued(private):
    ledger = Ledger(2.0, 1e-6, noise=SeededNoise(1))
    ledger.charge(Event("a count before", "laplace", 0.5))
    release = publish(private, epsilon=1.0, delta=1e-6, n_synthetic=300, ledger=ledger, random_seed=1)
    assert release.statement.events == ledger.events
    assert release.statement.events[0].label == "a count before" and len(ledger.events) > 2
    assert 1.0 < release.statement.epsilon <= 1.5
    assert ledger.spent == (release.statement.epsilon, release.statement.delta)


def test_two_releases_under_one_ledger_add_up(private):
    ledger = Ledger(2.0, 2e-6, noise=SeededNoise(1))
    first = publish(private, epsilon=1.0, delta=1e-6, n_synthetic=300, ledger=ledger, random_seed=1)
    second = publish(private, epsilon=0.5, delta=1e-6, n_synthetic=300, ledger=ledger, random_seed=2)
    assert first.statement.epsilon < second.statement.epsilon <= 2
    assert len(second.statement.events) > len(first.statement.events)


def test_the_ledgers_adjacency_is_used(private):
    ledger = Ledger(1.0, 1e-6, "zero-out", noise=SeededNoise(1))
    assert publish(private, epsilon=1.0, delta=1e-6, n_synthetic=300, ledger=ledger).statement.adjacency == "zero-out"


@pytest.mark.parametrize("before, delta", [(0.9, 1e-6), (0.0, 1e-4)])
def test_a_spent_ledger_refuses_and_nothing_is_drawn_or_charged(private, before, delta):
    noise = CountingNoise(1)
    ledger = Ledger(1.0, 1e-6, noise=noise)
    if before:
        ledger.charge(Event("earlier", "laplace", before))
    events = ledger.events
    with pytest.raises(BudgetExceeded, match="nothing was drawn") as caught:
        publish(private, epsilon=1.0, delta=delta, n_synthetic=300, ledger=ledger, random_seed=1)
    assert ledger.events == events and noise.draws == 0
    assert str(CANARY)[:8] not in "".join(traceback.format_exception(caught.value))


def test_the_counting_source_counts(private):
    noise = CountingNoise(1)
    publish(private, epsilon=1.0, delta=1e-6, n_synthetic=300, noise=noise, random_seed=1)
    assert noise.draws > 3


# --- wrong arguments

WRONG = {
    "no table": ({"private": pd.DataFrame({"age": [CANARY]})}, TypeError, "PrivateTable"),
    "epsilon 0": ({"epsilon": 0.0}, ValueError, "epsilon"),
    "epsilon inf": ({"epsilon": np.inf}, ValueError, "epsilon"),
    "epsilon NaN": ({"epsilon": np.nan}, ValueError, "epsilon"),
    "delta 1": ({"delta": 1.0}, ValueError, "delta"),
    "delta -1": ({"delta": -1e-6}, ValueError, "delta"),
    "Gaussian without delta": ({"delta": 0.0}, ValueError, "cube"),
    "n_synthetic 0": ({"n_synthetic": 0}, ValueError, "n_synthetic"),
    "n_synthetic True": ({"n_synthetic": True}, ValueError, "n_synthetic"),
    "n_synthetic 2.5": ({"n_synthetic": 2.5}, ValueError, "n_synthetic"),
    "share 0": ({"share": 0.0}, ValueError, "share"),
    "share 1": ({"share": 1.0}, ValueError, "share"),
    "share NaN": ({"share": np.nan}, ValueError, "share"),
    "ledger and noise": ({"noise": SeededNoise(1)}, ValueError, "both ledger= and noise="),
    "two adjacencies": ({"adjacency": "zero-out"}, ValueError, "adjacency"),
    "unknown adjacency": ({"adjacency": "add-remove"}, ValueError, "adjacency"),
    "no generator": ({"generator": object()}, TypeError, "generator"),
    "a generator's class": ({"generator": BayesNet}, TypeError, "generator"),
    "no provider": ({"weights": 3}, TypeError, "weights"),
    "a weight provider's class": ({"weights": TiltWeights}, TypeError, "weights"),
    "no ledger": ({"ledger": "mine"}, TypeError, "ledger"),
    "rows for a generator": ({"generator": pd.DataFrame({"age": [CANARY]})}, TypeError, "generator"),
    "models of other columns": (
        {"for_models": ["insured ~ wealth"]},
        ValueError,
        r"must use columns of the schema; got \['wealth'\]",
    ),
    "a model that is no polynomial": ({"for_models": ["insured ~ np.exp(age)"]}, ValueError, "not a polynomial"),
    "a model that is no list": ({"for_models": "insured ~ age"}, TypeError, "list of formulas"),
    "models for other weights": (
        {"for_models": ["insured ~ age"], "weights": LogisticWeights()},
        TypeError,
        "weights must be TiltWeights or left out; got LogisticWeights",
    ),
    "models twice": (
        {"for_models": ["insured ~ age"], "weights": TiltWeights(features="products", for_models=["insured ~ age"])},
        ValueError,
        "passed twice",
    ),
    "rows for models": ({"for_models": pd.DataFrame({"age": [CANARY]})}, TypeError, "list of formulas"),
    "rows for a weight provider": ({"weights": pd.DataFrame({"age": [CANARY]})}, TypeError, "weights"),
    "rows for a ledger": ({"ledger": pd.DataFrame({"age": [CANARY]})}, TypeError, "ledger"),
    "a negative seed": ({"random_seed": -1}, ValueError, "non-negative"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_argument_is_refused_before_anything_is_charged(private, case):
    change, error, message = WRONG[case]
    noise = CountingNoise(1)
    ledger = Ledger(1.0, 1e-5, noise=noise)
    arguments = {"epsilon": 1.0, "delta": 1e-6, "n_synthetic": 300, "ledger": ledger, "private": private} | change
    with pytest.raises(error, match=message) as caught:
        publish(arguments.pop("private"), **arguments)
    assert ledger.events == () and noise.draws == 0
    assert str(CANARY)[:8] not in "".join(traceback.format_exception(caught.value))


def test_an_unknown_adjacency_of_a_new_ledger_is_refused(private):
    with pytest.raises(ValueError, match="adjacency"):
        publish(private, epsilon=1.0, delta=1e-6, adjacency="add-remove")


def test_a_wrong_noise_source_is_refused(private):
    with pytest.raises(TypeError, match="noise"):
        publish(private, epsilon=1.0, delta=1e-6, noise=42)


# --- plan


def test_the_plan_is_near_the_release(private):
    expected = plan(SCHEMA, N, epsilon=2.0, delta=1e-6)
    release = seeded_release(private, epsilon=2.0)
    assert expected.events == release.statement.events  # what is planned is what is charged
    np.testing.assert_allclose(
        expected.epsilon_generator / (expected.epsilon_generator + expected.epsilon_weights), 0.3, rtol=1e-12
    )
    measurement = release.weights.measurement
    assert expected.terms == measurement.features.terms
    assert abs(expected.n_features - measurement.features.dim) <= 2
    sd = float(np.sqrt(measurement.noise.covariance[0, 0]))
    assert 0.7 < expected.noise_sd / sd < 1.4
    assert 0.7 < expected.noise_ratio / (sd * np.sqrt(measurement.features.dim - 1)) < 1.4


def test_the_plan_for_models_has_fewer_features(private):
    model = "insured ~ age + visits"
    expected = plan(SCHEMA, N, epsilon=0.4, delta=1e-6, weights=TiltWeights(features="products"), for_models=[model])
    everything = plan(SCHEMA, N, epsilon=0.4, delta=1e-6, weights=TiltWeights(features="quadratic"))
    assert everything.terms == "quadratic" and "model, square and product terms, 9 features" in str(expected)
    assert expected.noise_ratio < 0.4 * everything.noise_ratio and expected.noise_sd < 0.65 * everything.noise_sd
    # at this budget the default keeps no product of response and predictor at all
    assert plan(SCHEMA, N, epsilon=0.4, delta=1e-6).terms == "squares"
    release = seeded_release(private, epsilon=0.4, weights=TiltWeights(features="products"), for_models=[model])
    assert abs(release.weights.measurement.features.dim - expected.n_features) <= 1
    sd = float(np.sqrt(release.weights.measurement.noise.covariance[0, 0]))
    assert 0.7 < expected.noise_sd / sd < 1.4


def test_the_plan_of_stages_is_near_the_release(private):
    expected = plan(SCHEMA, N, epsilon=1.0, delta=1e-6, response="insured")
    release = seeded_release(private, epsilon=1.0, response="insured")
    assert release.recipe["for_models"] == ["insured ~ age + np.log1p(debt) + visits + region"]
    assert expected.events == release.statement.events and len(expected.stage_noise_sd) == 4
    measurement = release.weights.measurement
    # Intercept, age, debt, visits, two regions, the rows that are complete, and the rows that are clipped
    assert expected.n_features == 8 and abs(measurement.features.dim - expected.n_features) <= 1
    sd = float(np.sqrt(measurement.noise.covariance[0, 0]))
    assert 1 / expected.noise_sd**2 == pytest.approx(sum(1 / sd**2 for sd in expected.stage_noise_sd))
    assert 0.6 < expected.noise_sd / sd < 1.6
    text = " ".join(str(expected).split())
    assert (
        "measured: scores of insured ~ age + np.log1p(debt) + visits + region, 8 features" in text
        and "4 stages, sd " in text
    )


def test_a_release_that_measures_too_little_says_so_before_it_charges(private):
    ledger = Ledger(1.0, 1e-5, noise=SeededNoise(1))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(CalibrationWarning, match="Products of columns are not measured, so few regressions"):
            publish(private, epsilon=0.4, delta=1e-6, n_synthetic=300, ledger=ledger)
        assert ledger.events == ()
        publish(private, epsilon=0.9, delta=1e-6, n_synthetic=300, ledger=ledger, for_models=["insured ~ age"])
    with pytest.warns(CalibrationWarning, match="noise ratio") as caught:
        publish(private, epsilon=0.4, delta=1e-6, n_synthetic=300, noise=SeededNoise(1))
    assert [warning.filename for warning in caught] == [__file__]


SCHEMAS = {
    "mixed": SCHEMA,
    "bits": Schema(*(Binary(f"b{index}") for index in range(8))),
    "reals": Schema(*(Real(f"r{index}", 0, 1) for index in range(10))),
    "wide": Schema(*(Categorical(f"c{index}", [str(level) for level in range(30)]) for index in range(10))),
}
MODELS = {"mixed": ["insured ~ age + region", "age ~ visits"], "bits": ["b0 ~ b1 + b2"], "reals": ["r0 ~ r1 + r2 + r3"]}


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("schema", SCHEMAS)
def test_the_warning_is_near_the_plan_though_it_makes_no_rows(schema, named, monkeypatch):
    """Same advice wherever the plan's noise ratio is not near the target, and the ratio within a factor of two."""
    found = []
    for n in (300, 2000, 20_000):
        for epsilon in (0.1, 1.0):
            weights = weights_for(None, MODELS.get(schema, []) if named else [])
            expected = plan(SCHEMAS[schema], n, epsilon=epsilon, delta=1e-6, weights=weights)
            facts = PublicFacts(SCHEMAS[schema], n, 5 * n)
            with monkeypatch.context() as patch:
                patch.setattr("iwbayes.curator.plan.uniform_table", None)
                patch.setattr(ScoreStages, "fitters", None)
                said = noise_warning(weights, facts, expected.epsilon_weights, 1e-6)
            if said:
                ratio = float(said.split()[3].rstrip(","))
                found.append(ratio)
                assert 0.5 < ratio / expected.noise_ratio < 2 or expected.noise_ratio < NOISE_TARGET
            if not 0.3 < expected.noise_ratio < 0.8:
                assert said.partition(". ")[2] == expected.advice
    assert found


def test_a_model_whose_parameters_are_not_known_counts_as_the_smallest_regression():
    def build(frame):
        raise AssertionError("a model was built before the charge")

    unknown = TiltWeights(for_models=[iw.model("age ~ bs(visits, df=4)"), iw.model(build)])
    known = TiltWeights(for_models=[iw.model("insured ~ age + region")])
    facts = PublicFacts(SCHEMA, 100, 500)
    assert noise_warning(unknown, facts, 0.1, 1e-6) and noise_warning(known, facts, 0.1, 1e-6)
    assert not noise_warning(unknown, replace(facts, n_private=10**5), 1.0, 1e-6)


def test_publish_makes_no_rows_of_its_own_and_asks_for_each_events_once(private, monkeypatch):
    asked = []

    class Counting(BayesNet):
        def events(self, facts, *, epsilon, delta=0.0):
            asked.append(epsilon)
            return super().events(facts, epsilon=epsilon, delta=delta)

    monkeypatch.setattr("iwbayes.curator.plan.uniform_table", None)
    monkeypatch.setattr(ScoreStages, "planned", None)
    release = publish(
        private, epsilon=1.0, delta=1e-6, n_synthetic=300, generator=Counting(), for_models=["insured ~ age"],
        noise=SeededNoise(1),
    )  # fmt: skip
    before = asked[: asked.index(release.recipe["settings"]["generator_epsilon"]) + 1]
    assert len(before) == len(set(before)) > 1


@pytest.mark.parametrize("free", ["generator", "weights"])
def test_where_one_part_is_free_the_other_has_the_whole_budget(private, free):
    settings = {"epsilon": 1.0, "delta": 1e-6, "noise": SeededNoise(1)}
    if free == "generator":
        release = publish(private, generator=uniform_table(SCHEMA, 300, random_seed=1), **settings)
        part = "weights_epsilon"
    else:
        release = publish(private, weights=iw.UniformWeights(), n_synthetic=300, **settings)
        part = "generator_epsilon"
    assert release.recipe["share"] is None
    assert release.recipe["settings"][part] == pytest.approx(release.recipe["calibration"])
    assert release.statement.epsilon == pytest.approx(1.0, rel=1e-3) and release.statement.epsilon <= 1


def test_the_plan_needs_no_private_row(private, monkeypatch):
    def forbidden(self):
        raise AssertionError("a private row was touched")

    monkeypatch.setattr(PrivateTable, "frame", property(forbidden))
    first = plan(SCHEMA, N, epsilon=1.0, delta=1e-6)
    assert isinstance(first, Plan) and first == plan(SCHEMA, N, epsilon=1.0, delta=1e-6)
    with pytest.raises(AssertionError, match="touched"):
        publish(private, epsilon=1.0, delta=1e-6, noise=SeededNoise(1))


def test_the_plan_follows_the_settings():
    def kappa(n: int = 5000, **settings) -> float:
        settings = {"epsilon": 1.0, "delta": 1e-7, "weights": TiltWeights(features="linear")} | settings
        return plan(SCHEMA, n, **settings).noise_ratio

    # with the clip bound at its widest on both sides the noise is proportional to 1/n
    np.testing.assert_allclose(kappa(10**6) / kappa(2 * 10**6), 2, rtol=1e-9)
    assert kappa(epsilon=2.0) < kappa() < kappa(epsilon=0.5)
    assert kappa(adjacency="zero-out") < kappa()
    assert kappa(share=0.1) < kappa() < kappa(share=0.9)
    assert kappa(weights=TiltWeights(mechanism="cube", features="linear"), delta=0.0) > 0


def test_the_plan_says_its_verdict():
    good = plan(SCHEMA, 10**6, epsilon=1.0, delta=1e-7)
    assert "within the target" in str(good) and good.advice == ""
    assert str(good).startswith("Plan of a release at epsilon 1 and delta 1e-07\n") and "quadratic terms" in str(good)
    assert f"noise ratio: {good.noise_ratio:.3g}, within" in str(good)
    poor = str(plan(SCHEMA, 50, epsilon=0.1, delta=1e-6))
    assert "ABOVE the target" in poor and "Use more rows or a larger epsilon" in poor and "for_models" not in poor


def test_the_plan_advises_to_name_the_regressions_where_that_helps():
    settings = {"epsilon": 0.4, "delta": 1e-6}
    for weights, words in (
        (None, "Products of columns are not measured"),
        (TiltWeights(features="quadratic"), "The noise of so many features is too large"),
    ):
        found = plan(SCHEMA, N, weights=weights, **settings)
        assert words in found.advice and "Name your regressions in for_models" in found.advice
        assert found.noise_ratio > plan(SCHEMA, N, for_models=["insured ~ age"], **settings).noise_ratio
    assert "for_models" not in plan(SCHEMA, 20, for_models=["insured ~ age"], **settings).advice
    assert plan(SCHEMA, N, for_models=["insured ~ age"], **settings).advice == ""


def test_the_plan_warns_of_a_delta_that_is_refused():
    with pytest.warns(PrivacyWarning, match=r"number of rows \(100\).*well below 0.01, such as 0.0001") as caught:
        plan(SCHEMA, 100, epsilon=1.0, delta=0.01)
    assert [warning.filename for warning in caught] == [__file__]
    with pytest.warns(PrivacyWarning, match="users may be exposed.*publish refuses it"):
        plan(SCHEMA, 100, epsilon=1.0, delta=0.02, adjacency="replace-user", rows_per_user=2)
    plan(SCHEMA, 100, epsilon=1.0, delta=0.0099)


USES = {
    "publish": lambda private, ledger, delta: publish(private, epsilon=0.1, delta=delta, ledger=ledger, n_synthetic=99),
    "generator": lambda private, ledger, delta: BayesNet().fit(private, ledger, epsilon=0.1),
    "weights": lambda private, ledger, delta: TiltWeights().fit(
        private, uniform_table(SCHEMA, 99, random_seed=1), ledger, epsilon=0.1, delta=delta
    ),
    "query": lambda private, ledger, delta: iw.paper.PrivateLogisticRegression("insured").fit(
        private, ledger, epsilon=0.1
    ),
}
USES_OF_USERS = {
    "bound": lambda private, ledger, delta: iw.bound_contributions(private, ledger, epsilon=0.1, grid=[1, 2]),
    "publish_users": lambda private, ledger, delta: iw.publish_users(
        private, epsilon=0.1, delta=delta, ledger=ledger, n_synthetic=99
    ),
}


@pytest.mark.parametrize("use", USES | USES_OF_USERS)
def test_a_delta_of_one_over_the_number_of_rows_is_refused_where_a_ledger_meets_a_table(use, private, tmp_path):
    of_users = use in USES_OF_USERS
    call, table = (USES | USES_OF_USERS)[use], one_user_each(private) if of_users else private
    adjacency, units = ("replace-user", "users") if of_users else ("replace-one", "rows")
    for own in (1 / N, 1e-6):  # of the release; that of the ledger counts too
        ledger = Ledger.open(tmp_path / f"{own}.ledger", epsilon=1.0, delta=1 / N, adjacency=adjacency)
        with pytest.raises(
            ValueError, match=f"delta must be below one over the number of {units}, 1/800.*such as 1e-05"
        ):
            call(table, ledger, own)
        assert ledger.spent == (0.0, 0.0)
    below = Ledger(1.0, 1 / (N + 1), adjacency, noise=SeededNoise(1))
    call(table, below, 1e-6)
    assert below.statement().large_delta is None
    path = tmp_path / "allowed.ledger"
    Ledger.open(path, epsilon=1.0, delta=1 / N, adjacency=adjacency, allow_large_delta=True)
    allowed = Ledger.open(path, noise=SeededNoise(1))
    call(table, allowed, 1 / N)
    said = " ".join(str(Ledger.open(path).statement()).split())
    assert f"allowed by allow_large_delta=True: delta is at least one over the number of {units} (800)" in said


def test_a_release_with_a_large_delta_names_it_and_keeps_it_in_its_file(private, tmp_path):
    settings = {"epsilon": 1.0, "delta": 0.002, "n_synthetic": 300, "random_seed": 1}
    with pytest.raises(ValueError, match="delta must be below one over the number of rows"):
        publish(private, **settings)
    release = publish(private, **settings, allow_large_delta=True)
    back = iw.load(release.save(tmp_path / "large.iwb"))
    assert back.statement.large_delta == 800 and "allow_large_delta=True" in str(back)
    for given in (Ledger(1.0, 0.002), Ledger(1.0, 1e-6)):
        with pytest.raises(ValueError, match="a given ledger has its own setting"):
            publish(private, **settings | {"delta": 1e-6}, ledger=given, allow_large_delta=True)
        assert given.spent == (0.0, 0.0)
    path = tmp_path / "small.ledger"
    Ledger.open(path, epsilon=1.0, delta=1e-6)
    with pytest.raises(iw.LedgerError, match="was created without allow_large_delta"):
        Ledger.open(path, allow_large_delta=True)
    with pytest.raises(ValueError, match="large_delta must be a whole number"):
        replace(back.statement, large_delta=0)


@pytest.mark.parametrize("n", [0, -3, 2.5, True])
def test_the_plan_refuses_a_wrong_number_of_rows(n):
    with pytest.raises(ValueError, match="n must be"):
        plan(SCHEMA, n, epsilon=1.0, delta=1e-6)


def test_the_plan_refuses_an_unknown_adjacency():
    with pytest.raises(ValueError, match="adjacency"):
        plan(SCHEMA, 100, epsilon=1.0, delta=1e-6, adjacency="add-remove")


def test_the_uniform_table_is_uniform_within_the_bounds():
    n = 20_000
    frame = uniform_table(SCHEMA, n, random_seed=1).frame
    for name, levels in (("visits", range(13)), ("insured", (0, 1)), ("region", ("north", "south", "east"))):
        p = 1 / len(levels)
        share = frame[name].value_counts(normalize=True)
        assert all(abs(share[level] - p) < 5 * np.sqrt(p * (1 - p) / n) for level in levels)
    assert abs(frame["age"].mean() - 54) < 5 * 72 / np.sqrt(12 * n)
    assert frame["debt"].isna().any() and frame["debt"].dropna().between(0, 1e5).all()


def test_the_stages_are_shown_on_terminals_only(private, monkeypatch):
    outputs = progress_outputs(monkeypatch, lambda **show: seeded_release(private, n_synthetic=800, **show))
    assert outputs[False, True] == outputs[True, False] == ""
    assert "weighting synthetic rows" in outputs[True, True] and "left:" in outputs[True, True]
    assert str(CANARY) not in outputs[True, True]


def test_a_delta_above_the_ledgers_is_refused(private):
    ledger = Ledger(50.0, 1e-6)
    with pytest.raises(BudgetExceeded, match="must be at most the ledger's, 1e-06.*got 1e-05"):
        publish(private, epsilon=1.0, delta=1e-5, n_synthetic=100, ledger=ledger, progressbar=False)
    assert ledger.statement().events == ()


# --- the whole release is charged before anybody looks at a private row


def one_user_each(private):
    frame = private.frame.assign(person=range(private.n_private))
    return PrivateTable(frame, SCHEMA, user="person")


def released(private, ledger):
    return publish(private, epsilon=1.0, delta=1e-6, ledger=ledger, n_synthetic=300, progressbar=False)


def released_with_a_given_table(private, ledger):
    given = uniform_table(SCHEMA, 300, random_seed=1)
    settings = {"generator": given, "for_models": ["insured ~ age + region"], "progressbar": False}
    return publish(private, epsilon=1.0, delta=1e-6, ledger=ledger, **settings)


def released_of_users(private, ledger):
    settings = {"ledger": ledger, "grid": [1, 2], "n_synthetic": 300, "progressbar": False}
    return iw.publish_users(private, epsilon=1.0, delta=1e-6, **settings)


def bounded_contributions(private, ledger):
    return iw.bound_contributions(private, ledger, epsilon=0.1, grid=[1, 2])


def queried(private, ledger):
    return iw.paper.PrivateLogisticRegression("insured").fit(private, ledger, epsilon=1.0)


@pytest.mark.parametrize(
    "use", [released, released_with_a_given_table, queried, released_of_users, bounded_contributions]
)
def test_every_use_of_rows_is_charged_before_the_first_look(use, private):
    of_users = use in (released_of_users, bounded_contributions)
    ledger = Ledger(1.0, 1e-6, "replace-user" if of_users else "replace-one", noise=SeededNoise(1))
    table = one_user_each(private) if of_users else private
    with looks_at_rows(ledger) as looks:
        use(table, ledger)
    # of users, the bound is one release and the rest is another
    assert looks and all(looks)
    assert use is released_of_users or set(looks) == {ledger.events}


@pytest.mark.parametrize("given", [False, True])
def test_a_release_that_fails_at_its_first_look_stays_charged(given, private, monkeypatch):
    def broken(self, function):
        raise OSError("the disk broke")

    ledger = Ledger(1.0, 1e-6, noise=SeededNoise(1))
    monkeypatch.setattr(PrivateTable, "map_blocks", broken)
    monkeypatch.setattr(PrivateTable, "sum_blocks", broken)
    with pytest.raises(OSError, match="the disk broke"):
        (released_with_a_given_table if given else released)(private, ledger)
    assert ledger.spent[0] > 0.99


def test_a_model_that_fails_on_a_given_table_is_refused_by_name_before_anything_is_charged(private):
    def build(frame):
        if len(frame) == 300:
            raise KeyError("nobody")
        with pm.Model() as found:
            pm.Normal("age", pm.Normal("mean", 50, 20), 20, observed=pm.Data("rows", frame["age"]))
        return found

    ledger, given = Ledger(1.0, 1e-6, noise=SeededNoise(1)), uniform_table(SCHEMA, 300, random_seed=1)
    with pytest.raises(ValueError, match="the model 'build' cannot be fitted to the given table: KeyError: 'nobody'"):
        publish(private, epsilon=1.0, delta=1e-6, ledger=ledger, generator=given, for_models=[iw.model(build)])
    assert ledger.spent == (0.0, 0.0)
