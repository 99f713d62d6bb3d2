"""Design weights of a survey: the same as repeated rows, in posteriors and in measured scores; never calibrated."""

import numpy as np
import pandas as pd
import pytest
from posterior_tools import problem_of

import iwbayes as iw
from iwbayes.models.regression_scores import RegressionModel

SCHEMA = iw.Schema(
    iw.Real("x", -3, 3), iw.Real("y", -9, 9), iw.Integer("n", 0, 30), iw.Binary("b"), iw.Integer("w", 1, 4),
    iw.Integer("zero", 0, 4), iw.Real("gap", 1, 4, missing=True),
)  # fmt: skip
MODELS = {"gaussian": "y ~ x + b", "bernoulli": "b ~ x", "poisson": "n ~ x + b"}
N = 400
LOG_WEIGHTS = np.random.default_rng(3).normal(size=N)


def rows(n=N, random_seed=2):
    rng = np.random.default_rng(random_seed)
    x, b = rng.normal(size=n).clip(-3, 3), rng.integers(0, 2, n)
    y, count = 0.5 * x + b + rng.normal(size=n), rng.poisson(np.exp(0.3 * x + 0.2 * b)).clip(0, 30)
    w = rng.integers(1, 5, n)
    frame = pd.DataFrame({"x": x, "y": y, "n": count, "b": b, "w": w, "zero": w, "gap": w.astype(float)})
    return iw.SyntheticTable(frame, SCHEMA, already_spent=(0, 0))


def repeated(table):
    """The rows as often as their design weights say, and the positions of these rows."""
    which = np.repeat(np.arange(len(table)), table.frame["w"])
    return iw.SyntheticTable(table.frame.iloc[which].reset_index(drop=True), SCHEMA, already_spent=(0, 0)), which


def release_of(table, log_weights):
    statement = iw.Ledger(1.0, 1e-6).statement()
    return iw.Release(table, iw.Weights(log_weights, "given"), statement, n_private=1000)


@pytest.mark.parametrize("family", MODELS)
def test_a_posterior_is_that_of_rows_repeated_by_their_design_weights(family):
    table = rows()
    again, which = repeated(table)
    options = {"family": family, "calibrate": "none", "draws": 200, "chains": 2, "random_seed": 1}
    own = iw.fit(MODELS[family], release_of(table, LOG_WEIGHTS), design_weight="w", **options)
    other = iw.fit(MODELS[family], release_of(again, LOG_WEIGHTS[which]), **options)
    for name in own["posterior"].data_vars:
        np.testing.assert_allclose(own["posterior"][name], other["posterior"][name], rtol=1e-5, atol=1e-8)
    assert own["posterior"].attrs["design_weight"] == "w" and "design_weight" not in other["posterior"].attrs
    weighted, plain = own["log_likelihood_weighted"], own["log_likelihood"]
    factors = (weighted / plain)[next(iter(plain.data_vars))].to_numpy()[0, 0]
    shares = np.exp(LOG_WEIGHTS) * table.frame["w"].to_numpy()
    np.testing.assert_allclose(factors, 1000 * shares / shares.sum())


@pytest.mark.parametrize("family", MODELS)
def test_scores_and_curvatures_are_those_of_the_weighted_likelihood(family):
    table = rows()
    release = release_of(table, LOG_WEIGHTS)
    posterior = problem_of(MODELS[family], release, family, "w").posterior
    theta = posterior.mode().theta + 0.05
    prior, _ = posterior.prior(theta)
    np.testing.assert_allclose(posterior.weights @ posterior.scores(theta) + prior, posterior.gradient(theta)[1])
    everything = np.arange(N)
    shares = posterior.weights / posterior.weights.sum()
    moved = posterior.gradients_at(everything, shares[None], theta[None])[0]
    np.testing.assert_allclose(moved, shares @ posterior.scores(theta))
    step = 1e-5 * np.eye(len(theta))[0]
    along = (posterior.scores(theta + step) - posterior.scores(theta - step))[:, 0] / 2e-5
    unit = np.eye(len(theta))[:, :1]
    np.testing.assert_allclose(-posterior.curvatures(theta, everything, unit, unit)[:, 0], along, atol=1e-6, rtol=1e-4)
    # rows of another table have their own factors, divided by the same mean
    again, _ = repeated(table)
    on_others = posterior.on_rows(again, np.ones(len(again)))
    np.testing.assert_allclose(np.unique(on_others.factors.values), np.unique(posterior.factors.values))


@pytest.mark.interpreted
@pytest.mark.parametrize("formula", ["n ~ x + offset(0.1 * b)", "n ~ x + (1|b)", "censored(n, b == 0) ~ x"])
def test_models_of_pymc_are_those_of_repeated_rows(formula):
    table = rows(80)
    again, which = repeated(table)
    logs = LOG_WEIGHTS[: len(table)]
    own = problem_of(formula, release_of(table, logs), "poisson", "w").posterior
    other = problem_of(formula, release_of(again, logs[which]), "poisson").posterior
    thetas = own.start() + np.random.default_rng(1).normal(0.1, 0.1, (3, own.size))

    def likelihoods(posterior):
        return posterior.log_densities(thetas) - posterior.graphs.prior.values(thetas)

    np.testing.assert_allclose(likelihoods(own), likelihoods(other), rtol=1e-10)
    for theta in thetas:
        np.testing.assert_allclose(own.likelihood(theta)[1], other.likelihood(theta)[1], rtol=1e-8, atol=1e-8)
        np.testing.assert_allclose(own.weights @ own.scores(theta), own.likelihood(theta)[0], rtol=1e-8, atol=1e-8)
        shares = own.weights / own.weights.sum()
        moved = own.gradients_at(np.arange(len(table)), shares[None], theta[None])[0]
        np.testing.assert_allclose(moved, shares @ own.scores(theta), rtol=1e-8, atol=1e-8)
        unit = np.eye(own.size)[:, :1]
        bent = own.curvatures(theta, np.arange(len(table)), unit, unit)[:, 0]
        np.testing.assert_allclose(own.weights @ bent, -own.likelihood(theta)[1][0, 0], rtol=1e-4, atol=1e-4)
    # rows of another table have their own factors
    order = np.random.default_rng(4).permutation(len(table))
    moved = own.movable(table).on_rows(shuffled(table, order), own.weights[order])
    np.testing.assert_allclose(moved.log_likelihoods(thetas), own.log_likelihoods(thetas), rtol=1e-10)
    np.testing.assert_allclose(moved.scores(thetas[0]), own.scores(thetas[0])[order], rtol=1e-8, atol=1e-10)


def shuffled(table, order):
    return iw.SyntheticTable(table.frame.iloc[order].reset_index(drop=True), table.schema, already_spent=(0, 0))


@pytest.mark.parametrize("family", MODELS)
def test_measured_scores_are_zero_on_average_at_the_mode_of_repeated_rows(family):
    table = rows()
    again, which = repeated(table)
    weights = 1000 * np.exp(LOG_WEIGHTS) / np.exp(LOG_WEIGHTS).sum()
    scores = RegressionModel(MODELS[family], family, "w").on(table)(weights)
    # the mean of the design weights is that under the weights, so both sums of weights are the number of rows
    total = weights[which] * 1000 / weights[which].sum()
    other = RegressionModel(MODELS[family], family).on(again)(total)
    np.testing.assert_allclose(scores.theta, other.theta, rtol=1e-6)
    np.testing.assert_allclose(weights @ scores(table.frame), total @ other(again.frame), atol=1e-6)
    if scores.response is not None:
        outcomes = scores.outcomes(table.frame)
        observed = outcomes.scores[outcomes.observed, np.arange(N)]
        np.testing.assert_allclose(observed, scores(table.frame))
    assert scores.digest() != other.digest()
    model = iw.model(MODELS[family], family=family, design_weight="w")
    assert model == RegressionModel(**model.to_data()) and "weighted by w" in model.name


def test_a_release_for_a_weighted_model_measures_it_but_its_fit_is_not_calibrated():
    table = rows(3000, 5)
    model = iw.model("b ~ x", design_weight="w")
    release = iw.publish(
        iw.PrivateTable(table.frame, SCHEMA), epsilon=5.0, delta=1e-6, for_models=[model], noise=iw.SeededNoise(1),
        random_seed=1, progressbar=False,
    )  # fmt: skip
    with pytest.warns(iw.CalibrationWarning, match="design weights"):
        idata = iw.fit("b ~ x", release, design_weight="w", draws=500, random_seed=1)
    record = idata["calibration"]
    assert record.attrs["verdict"] == "not calibrated" and record.attrs["design_weight"] == "w"
    assert record["explained"].min() > 0.95
    checks = iw.diagnose(release, idata)
    assert checks.loc["calibration", "verdict"] == "fail"
    # the interval is near that of the private rows, repeated by their weights, but longer: unequal weights cost rows
    again, _ = repeated(table)
    exact = iw.fit("b ~ x", release_of(again, np.zeros(len(again))), calibrate="none", draws=500, random_seed=1)
    away = float(idata["posterior"]["x"].mean() - exact["posterior"]["x"].mean())
    assert abs(away) < 5 * float(idata["posterior"]["x"].std())
    replayed = iw.rehearse(release, 10, random_seed=1, progressbar=False)
    with pytest.warns(iw.CalibrationWarning, match="design weights"):
        by_rehearsals = iw.fit("b ~ x", release, design_weight="w", rehearsals=replayed, draws=200, random_seed=1)
    assert by_rehearsals["calibration"].attrs["verdict"] == "not calibrated"
    with pytest.warns(iw.CalibrationWarning, match="design weights"):
        pooled = iw.fit("b ~ x", release, design_weight="w", calibrate="pool", draws=300, random_seed=1)
    assert pooled["calibration"].attrs["verdict"] == "not calibrated"


@pytest.mark.parametrize("column", ["absent", "zero", "gap", "b", 3])
def test_columns_that_are_no_design_weights_are_refused(column):
    release = release_of(rows(), LOG_WEIGHTS)
    with pytest.raises(ValueError, match="design_weight"):
        iw.fit("y ~ x", release, design_weight=column)
    private = iw.PrivateTable(release.synthetic.frame, SCHEMA)
    ledger = iw.Ledger(1.0, 1e-6)
    with pytest.raises(ValueError, match="design_weight"):
        iw.publish(
            private, epsilon=1.0, delta=1e-6, for_models=[iw.model("y ~ x", design_weight=column)], ledger=ledger
        )
    assert ledger.events == ()


def test_the_response_is_no_design_weight_and_functions_have_none():
    release = release_of(rows(), LOG_WEIGHTS)
    with pytest.raises(ValueError, match="other than the response"):
        iw.fit("w ~ x", release, family="poisson", design_weight="w")
    with pytest.raises(ValueError, match="omitted for a function"):
        iw.model(lambda frame: None, design_weight="w")
