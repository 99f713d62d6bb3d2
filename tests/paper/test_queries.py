"""PrivateLogisticRegression: the minimiser, its sensitivity to rows and users, its noise, and what it refuses."""

import math
import traceback

import numpy as np
import pandas as pd
import pytest
from factories import bounded_table
from noise_sources import SilentNoise
from scipy import stats
from scipy.optimize import minimize

import iwbayes as iw
from iwbayes.curator.privacy.accounting import gaussian_multiplier
from iwbayes.curator.protocols import PublicFacts
from iwbayes.paper.logistic_loss import encoded_reach

SCHEMA = iw.Schema(
    iw.Real("x", -2, 2),
    iw.Integer("k", 0, 9, missing=True),
    iw.Categorical("g", ("a", "b", "c")),
    iw.Binary("y", ("no", "yes"), missing=True),
)
FEATURES = iw.Schema(*(column for column in SCHEMA if column.name != "y"))
#: A private number that no other part of a test holds.
CANARY = 1.2345678912
ADJACENCIES = ("replace-one", "zero-out")
MECHANISMS = ("objective", "gaussian")
SIZE = math.hypot(encoded_reach(FEATURES).radius, 1.0)


def frame(n, rng, extreme=False):
    x = rng.choice([-2.0, 2.0], n) if extreme else rng.normal(0, 1, n)
    y = np.where(rng.random(n) < 1 / (1 + np.exp(-1.5 * x)), "yes", "no").astype(object)
    if extreme:
        y = rng.choice(np.array(["yes", "no"], dtype=object), n)
    y[rng.random(n) < 0.1] = None
    k = rng.choice([0.0, 9.0, np.nan], n) if extreme else rng.integers(0, 10, n).astype(float)
    return pd.DataFrame({"x": x, "k": k, "g": rng.choice(["a", "b", "c"], n), "y": y})


def table(n=400, seed=0, extreme=False):
    rows = frame(n, np.random.default_rng(seed), extreme)
    rows.loc[0, "x"] = CANARY
    return iw.PrivateTable(rows, SCHEMA)


def query(**settings):
    return iw.paper.PrivateLogisticRegression("y", **settings)


def coefficients(private, l2=0.05, mechanism="none", epsilon=1.0, delta=0.0, adjacency="replace-one", noise=None):
    ledger = iw.Ledger(math.inf, 1e-5, adjacency, noise=noise or iw.SeededNoise(1))
    delta = delta if mechanism != "gaussian" else 1e-6
    return query(l2=l2, mechanism=mechanism).fit(private, ledger, epsilon=epsilon, delta=delta).coefficients


def z_rows(private):
    """Rows z = s x as the docstring has them."""
    x = np.column_stack([FEATURES.encode(private.frame) - encoded_reach(FEATURES).center, np.ones(len(private))])
    target = private.frame["y"].astype(object)
    return x * np.select([target == "yes", target == "no"], [1.0, -1.0], 0.0)[:, None]


# --- the regression


@pytest.mark.parametrize("l2", [1e-3, 0.1, 5.0])
def test_without_noise_it_is_the_minimiser(l2):
    private = table()
    rows = z_rows(private)

    def objective(b):
        return np.logaddexp(0, -rows @ b).mean() + l2 / 2 * b @ b

    found = minimize(objective, np.zeros(rows.shape[1]), method="BFGS", options={"gtol": 1e-9})
    np.testing.assert_allclose(coefficients(private, l2), found.x, atol=1e-6 / min(l2, 1))


def test_rows_without_a_target_count_in_the_divisor_alone():
    private = table()
    complete = iw.PrivateTable(private.frame[private.frame["y"].notna()], SCHEMA)
    share = len(complete) / len(private)
    np.testing.assert_allclose(coefficients(private, 0.1 * share), coefficients(complete, 0.1), atol=1e-8)


def test_log_odds_and_probabilities_are_those_of_the_second_level():
    private = table(2000)
    ledger = iw.Ledger(math.inf, 0.0, noise=iw.SeededNoise(1))
    fitted = query(l2=1e-3, mechanism="none").fit(private, ledger, epsilon=1.0)
    rows = iw.SyntheticTable(
        pd.DataFrame({"x": [-1.5, 1.5], "k": [1, None], "g": ["a", "a"], "y": [None, "no"]}), SCHEMA
    )
    odds = fitted.log_odds(rows)
    assert odds.shape == (2,) and odds[0] < -1 and odds[1] > 1
    np.testing.assert_allclose(fitted.predict_proba(rows), 1 / (1 + np.exp(-odds)))
    encoded = np.column_stack([FEATURES.encode(rows.frame) - encoded_reach(FEATURES).center, np.ones(2)])
    np.testing.assert_allclose(odds, encoded @ fitted.coefficients)
    assert fitted.feature_names == (*FEATURES.feature_names, "Intercept")
    assert len(fitted.feature_names) == len(fitted.coefficients)


def test_named_features_are_the_only_ones_that_count():
    private = table()
    ledger = iw.Ledger(math.inf, 0.0, noise=iw.SeededNoise(1))
    fitted = query(features=["x"], l2=0.01, mechanism="none").fit(private, ledger, epsilon=1.0)
    alone = iw.Schema(SCHEMA["x"], SCHEMA["y"])
    other = iw.PrivateTable(private.frame[["x", "y"]], alone)
    expected = query(l2=0.01, mechanism="none").fit(other, ledger, epsilon=1.0)
    np.testing.assert_array_equal(fitted.coefficients, expected.coefficients)
    np.testing.assert_array_equal(fitted.log_odds(other), expected.log_odds(private))
    assert fitted.feature_names == ("x", "Intercept")


# --- sensitivity


def bound(n, l2, adjacency, tau=1):
    change = {"replace-one": 2.0, "zero-out": 1.0}[adjacency] * SIZE
    return (tau * change / n + 2e-12) / l2


@pytest.mark.parametrize("adjacency", ADJACENCIES)
@pytest.mark.parametrize("l2", [0.01, 0.3])
def test_no_neighbours_move_the_coefficients_by_more_than_the_sensitivity(adjacency, l2):
    rng = np.random.default_rng(3)
    worst, n = 0.0, 12
    for trial in range(100):
        rows = frame(n, rng, extreme=trial % 2 == 0)
        if trial % 3 == 0:
            rows = rows.iloc[[0] + [1] * (n - 1)].reset_index(drop=True)
        if adjacency == "zero-out":
            other = rows.assign(y=[None, *rows["y"][1:]])  # as a null row the first adds a constant
        else:
            other = pd.concat([frame(1, rng, extreme=True), rows[1:]], ignore_index=True)
        moved = np.linalg.norm(
            coefficients(iw.PrivateTable(rows, SCHEMA), l2) - coefficients(iw.PrivateTable(other, SCHEMA), l2)
        )
        assert moved <= bound(n, l2, adjacency)
        worst = max(worst, moved / bound(n, l2, adjacency))
    assert worst > (0.2 if l2 == 0.3 else 0.02)


@pytest.mark.parametrize("adjacency", ADJACENCIES)
def test_worst_neighbours_come_near_the_sensitivity(adjacency):
    """All rows but the first agree, and it contradicts them, so that its slope is near 1 wherever else it is."""
    d, n, l2 = 30, 4000, 0.002
    schema = iw.Schema(*(iw.Real(f"x{index}", -0.5, 0.5) for index in range(d)), iw.Binary("y", missing=True))
    rows = pd.DataFrame(np.zeros((n, d)), columns=list(schema.names[:d])).assign(x0=0.5, y=0.0)
    one, other = rows.copy(), rows.copy()
    one.iloc[0] = [*np.full(d, 0.5), 1.0]
    other.iloc[0] = [0.5, *np.full(d - 1, -0.5), 1.0] if adjacency == "replace-one" else [*np.zeros(d), np.nan]
    found = [coefficients(iw.PrivateTable(part, schema), l2) for part in (one, other)]
    size = math.sqrt(d / 4 + 1)
    most = ({"replace-one": 2.0, "zero-out": 1.0}[adjacency] * size / n + 2e-12) / l2
    assert 0.8 * most < np.linalg.norm(found[0] - found[1]) <= most


def test_no_user_moves_the_coefficients_by_more_than_the_sensitivity():
    """All rows of a user change, and their number too; the divisor is the public count in both tables."""
    rng, tau, n, l2 = np.random.default_rng(5), 3, 10, 0.3
    worst = 0.0
    for trial in range(100):
        rest = frame(9, rng, extreme=trial % 2 == 0)
        found = []
        for count in (tau, rng.integers(0, tau + 1)):
            own = frame(3, rng, extreme=True).iloc[[0] * count if trial % 3 else range(count)]
            rows = pd.concat([rest, own], ignore_index=True)
            owners = np.append(np.repeat([0, 1, 2], 3), np.full(count, 3))
            found.append(coefficients(bounded_table(rows, SCHEMA, owners, tau, n), l2, adjacency="replace-user"))
        moved = np.linalg.norm(found[0] - found[1])
        assert moved <= bound(n, l2, "replace-one", tau)
        worst = max(worst, moved / bound(n, l2, "replace-one", tau))
    assert worst > 0.2


def test_noise_grows_with_the_rows_of_a_user():
    rows, owners = frame(300, np.random.default_rng(6)), np.repeat(np.arange(100), 3)
    exact = coefficients(bounded_table(rows, SCHEMA, owners, 3, 290), 0.05, adjacency="replace-user")

    noise = SilentNoise()
    silent = coefficients(
        bounded_table(rows, SCHEMA, owners, 3, 290), 0.05, "gaussian", adjacency="replace-user", noise=noise
    )
    np.testing.assert_allclose(silent, exact, atol=1e-4)
    index = np.argmax(np.abs(exact))
    [(values, scale)] = noise.calls
    step = exact[index] / values[index]
    expected = gaussian_multiplier(1.0, 1e-6) * bound(290, 0.05, "replace-one", 3)
    assert scale * step == pytest.approx(expected, rel=1e-4)


# --- noise


@pytest.mark.parametrize("adjacency", ADJACENCIES)
@pytest.mark.parametrize("l2", [0.3, 1e-4])
def test_the_perturbed_minimiser_gives_the_noise_back(adjacency, l2):
    """zeta = -N J'(b) has a Gamma radius of the scale that the proof needs."""
    private = table(200)
    rows, n, k, epsilon = z_rows(private), 200, FEATURES.n_features + 1, 1.0
    used = max(l2, SIZE**2 / (4 * n * (math.exp(epsilon / 2) - 1)))
    left = epsilon - math.log(1 + SIZE**2 / (4 * n * used))
    scale = {"replace-one": 2, "zero-out": 1}[adjacency] * SIZE / left
    radii = []
    for seed in range(300):
        b = coefficients(private, l2, "objective", epsilon, adjacency=adjacency, noise=iw.SeededNoise(seed))
        gradient = used * b - (rows / (1 + np.exp(rows @ b))[:, None]).sum(axis=0) / n
        radii.append(np.linalg.norm(n * gradient))
    assert stats.kstest(radii, stats.gamma(k, scale=scale).cdf).pvalue > 1e-6
    assert stats.kstest(radii, stats.gamma(k, scale=scale / 1.3).cdf).pvalue < 1e-6


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_more_budget_comes_nearer(mechanism):
    private = table(1000)
    exact = coefficients(private, 0.05)
    errors = []
    for epsilon in (0.3, 3.0, 30.0):
        runs = [coefficients(private, 0.05, mechanism, epsilon, noise=iw.SeededNoise(s)) for s in range(30)]
        errors.append(np.mean([np.linalg.norm(run - exact) for run in runs]))
    assert errors[0] > 2 * errors[1] > 4 * errors[2]


@pytest.mark.parametrize("mechanism", [*MECHANISMS, "none"])
def test_fit_charges_what_events_declares_before_it_draws(mechanism):
    private, asked = table(), query(mechanism=mechanism)
    budget = {"epsilon": 1.0, "delta": 0.0 if asked.pure else 1e-6}

    class Witness(iw.SeededNoise):
        def note(self, name, *arguments):
            assert ledger.events
            drawn.append(name)
            return getattr(super(), name)(*arguments)

        def spherical(self, values, scale):
            return self.note("spherical", values, scale)

        def gaussian(self, values, scale):
            return self.note("gaussian", values, scale)

    drawn, ledger = [], iw.Ledger(math.inf, 1e-6, noise=Witness(1))
    fitted = asked.fit(private, ledger, **budget)
    assert ledger.events == asked.events(PublicFacts(SCHEMA, len(private), 0), **budget)
    assert drawn == {"objective": ["spherical"], "gaussian": ["gaussian"], "none": []}[mechanism]
    assert ledger.holds(fitted.fingerprint())
    assert asked.pure == (mechanism != "gaussian")


def test_the_kind_of_noise_is_recorded():
    for mechanism, kind, delta in (("objective", "floating-point", 0.0), ("gaussian", "hardened", 1e-6)):
        ledger = iw.Ledger(1.0, delta)
        query(mechanism=mechanism).fit(table(), ledger, epsilon=1.0, delta=delta)
        assert ledger.statement().noise == kind
        assert ledger.statement().certified == (kind == "hardened")


# --- refusals


@pytest.mark.parametrize(
    ("settings", "error", "text"),
    [
        ({"l2": 0.0}, ValueError, "l2"),
        ({"l2": "1"}, TypeError, "l2"),
        ({"mechanism": "laplace"}, ValueError, "mechanism"),
        ({"features": "x"}, TypeError, "features"),
        ({"features": [1]}, TypeError, "features"),
        ({"features": []}, ValueError, "features"),
        ({"features": ["x", "x"]}, ValueError, "features"),
        ({"features": ["x", "y"]}, ValueError, "features"),
    ],
)
def test_wrong_settings_are_refused(settings, error, text):
    with pytest.raises(error, match=text):
        query(**settings)
    with pytest.raises(TypeError, match="target"):
        iw.paper.PrivateLogisticRegression(3)


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        (iw.paper.PrivateLogisticRegression("income"), r"no columns \['income'\]"),
        (iw.paper.PrivateLogisticRegression("y", ["x", "z"]), r"no columns \['z'\]"),
        (iw.paper.PrivateLogisticRegression("g"), "Binary column; 'g' is Categorical"),
        (iw.paper.PrivateLogisticRegression("y", mechanism="gaussian"), "delta"),
    ],
)
def test_a_query_that_the_schema_or_the_budget_cannot_answer_charges_nothing(asked, text):
    ledger = iw.Ledger(1.0, 1e-6)
    with pytest.raises(ValueError, match=text) as caught:
        asked.fit(table(), ledger, epsilon=1.0)
    assert ledger.events == ()
    assert_nothing_private(caught.value)


def test_a_target_alone_is_refused():
    alone = iw.PrivateTable(pd.DataFrame({"y": [0, 1]}), iw.Schema(iw.Binary("y")))
    with pytest.raises(ValueError, match="no predictor column besides the target"):
        query().fit(alone, iw.Ledger(1.0, 0.0), epsilon=1.0)


def test_over_budget_nothing_is_charged_or_drawn():
    for mechanism in (*MECHANISMS, "none"):
        ledger = iw.Ledger(0.5, 1e-6)
        delta = 1e-6 if mechanism == "gaussian" else 0.0
        with pytest.raises(iw.BudgetExceeded, match="nothing was drawn") as caught:
            query(mechanism=mechanism).fit(table(), ledger, epsilon=1.0, delta=delta)
        assert ledger.events == ()
        assert_nothing_private(caught.value)


def test_other_columns_are_refused_where_it_predicts():
    ledger = iw.Ledger(1.0, 0.0, noise=iw.SeededNoise(1))
    fitted = query().fit(table(), ledger, epsilon=1.0)
    wider = iw.Schema(iw.Real("x", -3, 3), SCHEMA["g"])
    rows = iw.SyntheticTable(pd.DataFrame({"x": [0.0], "g": ["a"]}), wider)
    with pytest.raises(ValueError, match=r"\['x', 'k'\], or declares"):
        fitted.predict_proba(rows)


def test_a_fitted_regression_is_whole_and_constant():
    ledger = iw.Ledger(1.0, 0.0, noise=iw.SeededNoise(1))
    fitted = query().fit(table(), ledger, epsilon=1.0)
    with pytest.raises(ValueError, match="read-only"):
        fitted.coefficients[0] = 0.0
    with pytest.raises(ValueError, match="one for each feature"):
        type(fitted)(fitted.target, fitted.features, fitted.coefficients[:-1])
    changed = type(fitted)(fitted.target, fitted.features, fitted.coefficients + 1e-9)
    assert fitted.fingerprint() != changed.fingerprint()
    assert fitted.fingerprint() == type(fitted)(fitted.target, fitted.features, fitted.coefficients).fingerprint()


def assert_nothing_private(error):
    assert str(CANARY)[:8] not in "".join(traceback.format_exception(error))
