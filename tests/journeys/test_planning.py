"""plan_intervals(): lengths of intervals from simulated releases, against those of real ones; and its answers."""

import subprocess
import sys
import warnings
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from factories import seeded_release
from scipy.stats import norm
from statsmodels.genmod import families
from statsmodels.genmod.generalized_linear_model import GLM

import iwbayes as iw
from iwbayes.analyst import arviz_compat
from iwbayes.coverage import interval_plan
from iwbayes.coverage.interval_plan import IntervalPlan
from iwbayes.models.design import build_design
from iwbayes.utils.warnings import CalibrationWarning

SCHEMA = iw.Schema(iw.Real("age", 18, 90), iw.Categorical("sex", ["female", "male"]), iw.Binary("income"))
FORMULA = "income ~ age + sex"
N = 2000
SETTINGS = {"delta": 1e-6, "formula": FORMULA, "random_seed": 1, "progressbar": False}


def rows(n, seed):
    """Rows of one population."""
    rng = np.random.default_rng(seed)
    age, sex = rng.uniform(18, 90, n), rng.choice(["female", "male"], n, p=[0.7, 0.3])
    income = rng.random(n) < 1 / (1 + np.exp(3 - 0.05 * age - 0.4 * (sex == "male")))
    return pd.DataFrame({"age": age, "sex": sex, "income": income.astype(int)})


@pytest.fixture(scope="module")
def public():
    return rows(20_000, 1)


@pytest.fixture(scope="module")
def planned(public):
    return iw.plan_intervals(SCHEMA, N, epsilon=[3, 1], like=public, n_simulations=6, **SETTINGS)


# --- the answers, exactly ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def one():
    return iw.plan(SCHEMA, N, epsilon=1.0, delta=1e-6)


def handmade(one, ratios, verdicts=None, terms="quadratic"):
    """Plan with the ratios (epsilon: parameter: values of the simulations)."""
    table = [
        {
            "simulation": number,
            "epsilon": epsilon,
            "parameter": name,
            "ratio": value,
            "verdict": verdict,
            "calibrated": verdict == "calibrated",
        }
        for epsilon, of in ratios.items()
        for name, values in of.items()
        for number, value in enumerate(values)
        for verdict in [(verdicts or {}).get(epsilon, ["calibrated"] * 9)[number]]
    ]
    plans = tuple(replace(one, epsilon=epsilon, terms=terms) for epsilon in sorted(ratios))
    return IntervalPlan(FORMULA, N, "Simulated rows are made by hand.", plans, pd.DataFrame(table))


def test_lengths_are_medians_and_verdicts_shares(one):
    verdicts = {0.5: ["calibrated", "not calibrated", "not calibrated"]}
    found = handmade(one, {0.5: {"b": [2, 9, 3], "a": [4, 4, 5]}, 2.0: {"b": [1, 1.5, 1.2], "a": [1, 1, 1]}}, verdicts)
    expected = pd.DataFrame({"b": [3.0, 1.2], "a": [4.0, 1.0]}, index=[0.5, 2.0])
    np.testing.assert_array_equal(found.lengths.to_numpy(), expected.to_numpy())
    assert list(found.lengths.columns) == ["b", "a"] and list(found.lengths.index) == [0.5, 2.0]
    assert found.calibrated.to_dict() == {0.5: pytest.approx(1 / 3), 2.0: 1.0}


def test_epsilon_for_a_length_interpolates_in_log_epsilon(one):
    found = handmade(one, {0.5: {"a": [3.0], "b": [2.0]}, 2.0: {"a": [1.5], "b": [1.6]}, 8.0: {"a": [1.1], "b": [1.2]}})
    assert found.epsilon_for(2.25, parameter="a") == pytest.approx(1.0)  # half way from 3 to 1.5, in log epsilon
    assert found.epsilon_for(1.4, parameter="b") == pytest.approx(4.0)
    # by default the longest interval counts: a to the left, b to the right
    assert found.epsilon_for(1.6) == pytest.approx(2.0) and found.epsilon_for(1.4) == pytest.approx(4.0)
    assert found.epsilon_for(2.0) == pytest.approx(0.5 * 4 ** ((3 - 2) / (3 - 1.6)))
    assert found.epsilon_for(3.0) == pytest.approx(0.5) and found.epsilon_for(1.2) == pytest.approx(8.0)
    ratios = np.linspace(1.2, 3.0, 50)
    assert (np.diff([found.epsilon_for(ratio) for ratio in ratios]) < 0).all()


def test_ratios_that_rise_with_epsilon_are_pooled(one):
    found = handmade(one, {1.0: {"a": [2.0]}, 2.0: {"a": [1.4]}, 4.0: {"a": [1.6]}, 8.0: {"a": [1.0]}})
    assert found.epsilon_for(1.5) == pytest.approx(2.0)  # 1.5 at 2 and 4: the smaller one does
    assert found.epsilon_for(1.25) == pytest.approx(4 * 2**0.5)
    assert found.epsilon_for(1.75) == pytest.approx(2**0.5)


def test_nothing_is_extrapolated(one):
    found = handmade(one, {1.0: {"a": [1.8]}, 3.0: {"a": [1.2]}})
    with pytest.raises(
        ValueError, match=r"1.2 at epsilon 3 to 1.8 at epsilon 1; got 2. Plan with a smaller epsilon as well\.$"
    ):
        found.epsilon_for(2)
    with pytest.raises(ValueError, match="got 1.1. Plan with a larger epsilon"):
        found.epsilon_for(1.1)
    with pytest.raises(ValueError, match="got nan"):
        found.epsilon_for(float("nan"))
    with pytest.raises(ValueError, match=r"one of \['a'\]; got 'b'"):
        found.epsilon_for(1.5, parameter="b")
    assert "twice" not in str(found)


def test_lengths_of_fits_that_are_not_calibrated_answer_nothing(one):
    ratios = {0.5: {"a": [1.1]}, 1.0: {"a": [1.8]}, 3.0: {"a": [1.2]}}
    found = handmade(one, ratios, {0.5: ["not calibrated"]})
    assert found.epsilon_for(1.5) == pytest.approx(3**0.5)  # the short interval at 0.5 takes no part
    assert "At epsilon 0.5, do not expect" in found.advice and f"Pass for_models=['{FORMULA}']" in found.advice
    assert "more rows or a larger epsilon" in handmade(one, ratios, {0.5: ["failed: so"]}, terms="model").advice
    none = handmade(one, {0.5: {"a": [np.nan]}}, {0.5: ["failed: all rows are alike."]})
    assert "At epsilon 0.5, no fit succeeded; failed: all rows are alike." in str(none)
    with pytest.raises(ValueError, match="most parameters are calibrated; there are 0. At epsilon 0.5"):
        none.epsilon_for()
    with pytest.raises(ValueError, match="there are 1. Plan with more epsilons"):
        handmade(one, {0.5: {"a": [1.2]}}).epsilon_for()


def test_it_is_said_in_words(one):
    single = str(handmade(one, {1.0: {"age": [1.84], "sex": [1.3]}}))
    said = " ".join(single.split())
    assert (
        "At epsilon 1, the interval of age is about 1.8 times as long as from the private rows. "
        "Expected verdict: calibrated." in said
    )
    several = " ".join(str(handmade(one, {1.0: {"age": [3.0]}, 4.0: {"age": [1.0]}})).split())
    assert "From epsilon 2, no interval is more than twice as long." in several and "calibrated 100% 100%" in several
    wide = handmade(one, {1.0 + place / 7: {"a long name of a parameter[level]": [3.0]} for place in range(14)})
    assert max(map(len, wide.summary(width=80).split("\n"))) <= 80


# --- simulations against releases --------------------------------------------------------------------


def own_lengths(frame):
    """Lengths of 90 % intervals with the sandwich covariance, by an implementation that is not ours."""
    design = build_design(FORMULA, frame, SCHEMA, "bernoulli")
    robust = GLM(design.y, design.x, family=families.Binomial()).fit(cov_type="HC0")
    return pd.Series(2 * norm.ppf(0.95) * robust.bse, index=list(design.parameter_names))


def actual_ratios(n_releases):
    """Ratios of lengths in releases of other samples of the same population."""
    found = []
    for seed in range(100, 100 + n_releases):
        private = iw.PrivateTable(rows(N, seed), SCHEMA)
        release = seeded_release(private, seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", CalibrationWarning)
            idata = iw.fit(FORMULA, release, random_seed=seed, progressbar=False, log_likelihood=False)
        draws = arviz_compat.group(idata, "posterior")
        age, intercept = (np.quantile(draws[name], [0.05, 0.95]) for name in ("age", "Intercept"))
        own = own_lengths(private.frame)
        found.append([np.ptp(age) / own["age"], np.ptp(intercept) / own["Intercept"]])
    return np.array(found)


def test_the_planned_lengths_are_those_of_releases(planned):
    """Means over simulations and over real releases agree within 5 standard errors, which are small."""
    table = planned.simulations.query("epsilon == 1").pivot(index="simulation", columns="parameter", values="ratio")
    simulated, actual = table[["age", "Intercept"]].to_numpy(), actual_ratios(6)
    se = np.sqrt(simulated.var(axis=0, ddof=1) / len(simulated) + actual.var(axis=0, ddof=1) / len(actual))
    assert (np.abs(simulated.mean(axis=0) - actual.mean(axis=0)) < 5 * se).all()
    assert (5 * se < 0.5).all() and (simulated.mean(axis=0) > 1.3).all()


def test_a_larger_budget_makes_intervals_shorter(planned):
    assert list(planned.lengths.index) == [1.0, 3.0] and planned.n == N
    assert (planned.lengths.loc[3.0] < planned.lengths.loc[1.0]).all()
    assert planned.calibrated[3.0] == 1.0 and set(planned.simulations["simulation"]) == set(range(6))
    assert planned.plans == tuple(iw.plan(SCHEMA, N, epsilon=e, delta=1e-6) for e in (1.0, 3.0))
    middle = planned.lengths["age"].mean()
    assert planned.epsilon_for(middle, parameter="age") == pytest.approx(3**0.5)
    assert "drawn from the 20000 rows of a public table" in planned.rows_from


def test_seeds_repeat_it_and_settings_reach_the_releases(public):
    settings = {**SETTINGS, "n_simulations": 1, "like": iw.SyntheticTable(public, SCHEMA)}
    first, second = (iw.plan_intervals(SCHEMA, 500, epsilon=1.0, **settings) for _ in range(2))
    pd.testing.assert_frame_equal(first.simulations, second.simulations)
    other = iw.plan_intervals(SCHEMA, 500, epsilon=1.0, **settings | {"random_seed": 2})
    assert not first.simulations["ratio"].equals(other.simulations["ratio"])
    # at this budget nothing is measured that the formula needs, unless it is named
    small = settings | {"epsilon": 0.3}
    poor, named = iw.plan_intervals(SCHEMA, 500, **small), iw.plan_intervals(SCHEMA, 500, **small, for_models=[FORMULA])
    assert poor.plans[0].terms in ("linear", "squares") and poor.calibrated[0.3] == 0 and "for_models" in poor.advice
    assert named.plans[0].terms == f"scores of {FORMULA}" and not named.lengths.equals(poor.lengths)


def test_rows_of_an_earlier_release_are_drawn_by_their_weights():
    release = seeded_release(iw.PrivateTable(rows(N, 3), SCHEMA), epsilon=3.0, n_synthetic=3000)
    draw, said = interval_plan.population(SCHEMA, 50_000, release, FORMULA)
    ages, synthetic = draw(np.random.default_rng(1))["age"], release.synthetic.frame["age"]
    weighted, se = np.average(synthetic, weights=release.weights.values), ages.std() / len(ages) ** 0.5
    assert abs(ages.mean() - weighted) < 5 * se and "earlier release, by their weights" in said
    spread = iw.Weights(np.where(synthetic > 60, 0.0, -np.inf), "a half")
    half = iw.Release(release.synthetic, spread, release.statement, n_private=N)
    draw, _ = interval_plan.population(SCHEMA, 500, half, FORMULA)
    assert (draw(np.random.default_rng(1))["age"] > 60).all()


def test_without_public_rows_the_response_depends_on_nothing():
    draw, said = interval_plan.population(SCHEMA, 40_000, None, FORMULA)
    frame = draw(np.random.default_rng(1))
    assert abs(np.corrcoef(frame["age"], frame["income"])[0, 1]) < 5 / 200
    assert "uniform within the schema, so income does not depend on any predictor" in said
    found = iw.plan_intervals(SCHEMA, 300, epsilon=3.0, **SETTINGS, n_simulations=1)
    assert said in " ".join(str(found).split())


def test_a_response_with_more_parameters_and_a_family(public):
    schema = iw.Schema(iw.Integer("visits", 0, 20), iw.Categorical("g", ["a", "b", "c"]))
    settings = {**SETTINGS, "formula": "visits ~ g", "n_simulations": 1, "epsilon": 3.0}
    found = iw.plan_intervals(schema, 400, **settings, family="poisson")
    assert list(found.lengths) == ["Intercept", "g[b]", "g[c]"]
    with pytest.raises(ValueError, match="family"):  # a count or a measurement: nobody can tell
        iw.plan_intervals(schema, 400, **settings)


# --- what is refused ---------------------------------------------------------------------------------


def test_private_rows_are_refused(public):
    private = iw.PrivateTable(public, SCHEMA)
    with pytest.raises(TypeError, match="got a PrivateTable. A plan from private rows would use them without any bud"):
        iw.plan_intervals(SCHEMA, N, epsilon=1.0, like=private, **SETTINGS)


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"formula": 3}, TypeError, "formula must be a string"),
        ({"formula": "income ~ nothing"}, ValueError, "nothing"),
        ({"epsilon": []}, ValueError, "got an empty sequence"),
        ({"epsilon": [1, -1]}, ValueError, "epsilon must be positive"),
        ({"like": "t.csv"}, TypeError, "like must be a frame of pandas, .* got str"),
        ({"like": pd.DataFrame({"age": [30.0]})}, ValueError, "sex"),
        ({"adjacency": "replace-user"}, ValueError, "cannot be planned if users own several rows"),
        ({"n_simulations": 0}, ValueError, "n_simulations must be a whole number"),
        ({"generator": iw.BayesNet}, TypeError, "generator"),
    ],
)
def test_wrong_arguments_are_refused_in_one_line(options, error, match):
    with pytest.raises(error, match=match) as raised:
        iw.plan_intervals(SCHEMA, 100, **{"epsilon": 1.0, **SETTINGS, **options})
    assert "\n" not in str(raised.value)


def test_a_delta_above_one_in_the_rows_is_warned_of_once_and_here():
    with pytest.warns(iw.PrivacyWarning) as caught:
        iw.plan_intervals(SCHEMA, 200, epsilon=[1.0, 3.0], **SETTINGS | {"delta": 0.01}, n_simulations=1)
    assert [warning.filename for warning in caught] == [__file__]


def test_simulated_releases_do_not_warn_of_their_noise():
    """The plan says how many intervals are calibrated. Warnings are errors here."""
    with pytest.warns(CalibrationWarning, match="noise ratio"):
        iw.publish(
            iw.PrivateTable(rows(60, 1), SCHEMA), epsilon=1.0, delta=1e-6, noise=iw.SeededNoise(1), random_seed=1
        )
    assert iw.plan_intervals(SCHEMA, 60, epsilon=1.0, **SETTINGS | {"n_simulations": 1}).calibrated[1.0] < 0.5


# --- imports -----------------------------------------------------------------------------------------


def test_for_the_noise_alone_nothing_of_the_analysts_side_is_imported():
    code = (
        "import sys, iwbayes as iw\n"
        "print(iw.plan(iw.Schema(iw.Real('x', 0, 1), iw.Binary('y')), 500, epsilon=1.0, delta=1e-6))\n"
        "print([m for m in ('pymc', 'arviz', 'iwbayes.analyst', 'iwbayes.coverage') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.startswith("Plan of a release") and out.stdout.splitlines()[-1] == "[]"


def test_public_rows_are_read_as_the_file_of_the_private_ones_would_be(tmp_path):
    """With dates of a format, missing codes and a derived column, from Python and from the command line."""
    from commands import run

    schema = iw.Schema(
        iw.Date("start", "2010-01-01", "2019-12-31", unit="year", format="%d.%m.%Y"),
        iw.Real("pay", 0, 10, missing_codes=[-1], decimal=","), iw.Real("twice", 0, 20), iw.Binary("ill"),
        derived={"twice": "2 * pay"}, rules=["pay <= 9.5"],
    )  # fmt: skip
    rng = np.random.default_rng(1)
    public = pd.DataFrame({
        "start": [f"01.02.{year}" for year in rng.integers(2010, 2020, 400)],
        "pay": ["-1" if rng.random() < 0.1 else f"{x:.2f}".replace(".", ",") for x in rng.uniform(0, 9.4, 400)],
        "ill": rng.integers(0, 2, 400),
    })  # fmt: skip
    settings = {"epsilon": 3.0, "delta": 1e-6, "formula": "ill ~ pay", "n_simulations": 1, "random_seed": 1}
    for like in (public, None):
        found = iw.plan_intervals(schema, 300, like=like, progressbar=False, **settings)
        assert np.isfinite(found.lengths.to_numpy()).all()
    (tmp_path / "s.toml").write_text(schema.to_toml(), encoding="utf-8")
    public.to_csv(tmp_path / "like.csv", index=False)
    line = ("plan", "-s", tmp_path / "s.toml", "--n", 300, "--epsilon", 3, "--delta", 1e-6, "--formula", "ill ~ pay")
    result = run(*line, "--like", tmp_path / "like.csv", "--seed", 1)
    assert result.exit_code == 0 and "drawn from the 400 rows of a public table" in " ".join(result.stdout.split())
