"""What a release says of itself: a verdict and a next step, from public quantities alone and by the rule of a plan."""

import subprocess
import sys
import warnings
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from factories import seeded_release, simulated_table

import iwbayes as iw
from iwbayes.evidence.measurement import NOISE_TARGET, noise_advice

MODELS = ["y ~ x + treated", "y ~ z"]


@pytest.fixture(scope="module")
def private():
    return simulated_table("bernoulli", 3000)


@pytest.fixture(scope="module")
def release(private):
    return seeded_release(private, epsilon=2.0, n_synthetic=3000)


def with_weights(release, **changes):
    return iw.Release(
        release.synthetic, replace(release.weights, **changes), release.statement, n_private=release.n_private
    )


def test_a_release_that_measured_products_asks_for_a_fit(release):
    features, noise = release.weights.measurement.features, release.weights.measurement.noise
    ratio = np.sqrt(noise.covariance[0, 0] * features.whitener.shape[1])
    assert features.terms == "quadratic" and release.weights.measurement.noise_ratio == pytest.approx(ratio)
    assert release.verdict == (
        f"noise ratio {ratio:.3g}, within the target of 0.5; measured: columns, squares and products of two"
    )
    assert release.next_step == (
        "analysts can fit any regression with fit(formula, release); every fit reports its own verdict"
    )


def test_it_stands_where_a_release_is_shown(release):
    for text in (str(release), release.summary(width=80), release._repr_html_()):
        said = " ".join(text.split())
        assert release.verdict in said and release.next_step in said
    lines = release.summary(width=80).split("\n")
    first = next(place for place, line in enumerate(lines) if line.startswith("  verdict: "))
    last = next(place for place, line in enumerate(lines) if line.startswith("  privacy: "))
    assert max(map(len, lines)) <= 80 and last - first <= 4


def test_named_regressions_are_told(private):
    found = seeded_release(private, epsilon=2.0, n_synthetic=3000, for_models=MODELS)
    assert found.verdict.endswith("within the target of 0.5; measured: features of y ~ x + treated; y ~ z")
    assert found.next_step.startswith(
        "analysts can fit these models with fit(formula, release). Intervals of other models will probably not"
    )
    # what a publisher wrote may be anything
    for recipe in (None, {}, {"for_models": 3}, {"for_models": []}):
        other = iw.Release(found.synthetic, found.weights, found.statement, n_private=3000, recipe=recipe)
        assert other.verdict.endswith("measured: named regressions")
    odd = iw.Release(found.synthetic, found.weights, found.statement, n_private=3000, recipe={"for_models": [1, None]})
    assert odd.verdict.endswith("measured: features of 1; None")


@pytest.mark.parametrize(
    ("epsilon", "models", "words"),
    [
        (0.12, (), "Products of columns are not measured, so few regressions will be calibrated. Name"),
        (0.01, MODELS, "even for the features of the named regressions"),
    ],
)
def test_the_next_step_is_the_advice_of_a_plan(private, epsilon, models, words):
    found = seeded_release(private, epsilon=epsilon, n_synthetic=3000, for_models=models)
    planned = iw.plan(private.schema, 3000, epsilon=epsilon, delta=1e-6, for_models=models)
    assert found.next_step == planned.advice and words in planned.advice
    assert (found.weights.measurement.noise_ratio > NOISE_TARGET) == bool(models) == ("ABOVE" in found.verdict)


def test_weights_that_rest_on_few_rows_are_told(release):
    log_weights = release.weights.log_weights + np.where(np.arange(3000) < 300, 4.0, 0.0)
    found = with_weights(release, log_weights=log_weights)
    assert f"few rows have most of the weight (ess {found.weights.ess / 3000:.0%} of the rows)" in found.verdict
    assert "a larger share for the generator" in found.next_step


def test_weights_that_are_not_fit_for_use_are_told(release):
    """Four effective rows for each measured feature are the fewest, as in the verdict of a fit."""
    k = release.weights.measurement.tilt_columns.stop
    few = release.weights.log_weights + np.where(np.arange(3000) < 3 * k, 20.0, 0.0)
    found = with_weights(release, log_weights=few)
    assert found.weights.ess <= 4 * k < release.weights.ess and not release.unfit
    assert found.verdict.startswith(
        f"the weights are NOT fit for use: all 3000 synthetic rows are worth {found.weights.ess:.0f}, fewer than 4 for "
        f"each of the {k} measured features; noise ratio "
    )
    assert found.next_step.startswith("do not use the weights; read the rows without them")
    users = replace(found.statement, adjacency="replace-user")
    owned = iw.Release(found.synthetic, found.weights, users, n_private=3000)
    assert owned.verdict.startswith("users own several rows") and owned.next_step == found.next_step
    for other in (with_weights(found, steps=("psis",)), with_weights(found, measurement=None)):
        assert not other.unfit


@pytest.mark.parametrize("how", ["default", "error"])
def test_publish_warns_of_weights_that_are_not_fit_for_use_but_never_loses_them(how):
    names, rng = [f"x{j}" for j in range(60)], np.random.default_rng(1)
    schema = iw.Schema(*(iw.Real(name, -3, 3) for name in names))
    private = iw.PrivateTable(pd.DataFrame(rng.uniform(-3, 3, (100, 60)), columns=names), schema)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", iw.CalibrationWarning)
        warnings.simplefilter(how, iw.WeightsWarning)
        found = seeded_release(private, epsilon=1.0, n_synthetic=100)
    assert found.unfit and found.unfit in found.summary(width=1000)
    said = [warning for warning in caught if warning.category is iw.WeightsWarning]
    assert len(said) == (how == "default")
    assert all(" ".join(str(one.message).split()) == f"{found.unfit}: {found.next_step}." for one in said)


def test_no_calibrated_interval_is_promised_where_there_is_none(private, release):
    uniform = seeded_release(private, weights=iw.UniformWeights(), n_synthetic=500)
    assert uniform.verdict.startswith("UniformWeights weights have no tilt measurement")
    assert uniform.next_step.startswith("for calibrated intervals, publish with TiltWeights()")
    changed = with_weights(release, log_weights=release.weights.psis().log_weights, steps=("psis",))
    assert "were changed (psis), so no interval" in changed.verdict and "as they were released" in changed.next_step
    users = replace(release.statement, adjacency="replace-user")
    owned = iw.Release(release.synthetic, release.weights, users, n_private=3000)
    assert owned.verdict.startswith("users own several rows") and "descriptions of the rows" in owned.next_step


def test_the_rule_of_the_noise_is_the_one_that_plans_have(private):
    """One feature more or less decides at the target, whoever asks."""
    planned = iw.plan(private.schema, 3000, epsilon=1.0, delta=1e-6)
    for ratio in (0.1, NOISE_TARGET, NOISE_TARGET + 1e-9, 1.0, 20.0):
        for terms in ("linear", "squares", "quadratic", "model", "model and square"):
            other = replace(planned, noise_ratio=ratio, terms=terms)
            assert other.advice == noise_advice(ratio, planned.n_features, terms)
            assert bool(other.advice) == (ratio > NOISE_TARGET or terms in ("linear", "squares"))


def test_a_verdict_needs_neither_side(release, tmp_path):
    path = release.save(tmp_path / "r.iwb", allow_uncertified=True)
    code = (
        f"import sys, iwbayes as iw; print(iw.load({str(path)!r}).verdict)\n"
        "print([m for m in ('pymc', 'arviz', 'iwbayes.analyst', 'iwbayes.curator') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.splitlines() == [release.verdict, "[]"]
