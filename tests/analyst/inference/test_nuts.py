"""NUTS says how long it will take, ends in time, and keeps the draws that it has."""

import time

import numpy as np
import pymc as pm
import pytest
from factories import make_release

import iwbayes as iw
from iwbayes.analyst import arviz_compat
from iwbayes.analyst.arguments import check_sampling
from iwbayes.analyst.inference import nuts
from iwbayes.analyst.inference.nuts import SamplingSettings, WhitenedNuts, sample_model
from iwbayes.analyst.inference.weighted_posterior import LogDensity

QUIET = {"cores": 1, "quiet": True, "compute_convergence_checks": False}


class SlowNormal(LogDensity):
    """Standard normal of which each gradient takes a while."""

    def __init__(self, seconds=0.001):
        self.seconds = seconds

    def log_densities(self, theta):
        return -0.5 * np.square(theta).sum(axis=1)

    def gradient(self, theta):
        time.sleep(self.seconds)
        return float(self.log_densities(theta[None])[0]), -theta


def run(settings, draws, seconds=0.001, n_runs=1):
    sampler = WhitenedNuts(2, settings, n_runs=n_runs)
    return sampler.sample(SlowNormal(seconds), np.zeros(2), np.eye(2), draws=draws, rng=np.random.default_rng(1))


def test_a_run_that_is_ended_keeps_its_draws():
    settings = SamplingSettings(2, 20_000, "nuts", {**QUIET, "tune": 50, "max_seconds": 2.0})
    with pytest.warns(UserWarning, match="NUTS was stopped after . s, with .* of 40,000 draws"):
        theta, statistics = run(settings, 20_000)
    assert theta.shape == (2, 20_000, 2) and statistics["diverging"].shape == (2, 20_000)
    made = np.unique(theta.reshape(-1, 2), axis=0)
    assert 20 < len(made) < 4000
    # each draw comes several times in a row, so that the effective size stays that of the draws made
    assert np.any(np.diff(theta, axis=1) != 0, axis=2).sum() <= len(made)
    assert np.all(np.abs(theta.mean(axis=(0, 1))) < 5 / np.sqrt(len(made) / 10))


def test_a_run_without_a_draw_is_an_error_that_says_what_to_do():
    settings = SamplingSettings(2, 100, "nuts", {**QUIET, "max_seconds": 0.2})
    with pytest.raises(RuntimeError, match=r"(?s)stopped after .* before its first draw.*max_seconds"):
        run(settings, 100, seconds=0.01)


def test_several_runs_share_the_time():
    settings = SamplingSettings(1, 50_000, "nuts", {**QUIET, "tune": 20, "max_seconds": 3.0})
    began = time.monotonic()
    with pytest.warns(UserWarning, match="was stopped after"):
        run(settings, 50_000, n_runs=3)
    assert time.monotonic() - began < 2.5


def test_a_long_run_is_announced_once(monkeypatch):
    monkeypatch.setattr(nuts, "SAY_AFTER", 0.3)
    monkeypatch.setattr(nuts, "WORTH_SAYING", 1.0)
    settings = SamplingSettings(1, 300, "nuts", {**QUIET, "tune": 50})
    with pytest.warns(UserWarning) as caught:
        theta, _ = run(settings, 300, seconds=0.002)
    [said] = [str(warning.message) for warning in caught]
    assert "NUTS will take about 1 minutes" in said and "of 350 steps took 0 s" in said and "600 s" in said
    assert len(np.unique(theta)) > 100


def test_draws_that_were_all_made_are_left_as_they_are():
    settings = SamplingSettings(2, 40, "nuts", {**QUIET, "tune": 20, "max_seconds": 60})
    theta, _ = run(settings, 40, seconds=0.0)
    assert theta.shape == (2, 40, 2)


def test_a_model_that_pymc_samples_is_ended_too():
    with pm.Model(coords={"side": ["left", "right"]}) as model:
        pm.Normal("mu", 0, 1, dims="side")
    calls = []
    settings = SamplingSettings(
        2, 30_000, "nuts", {**QUIET, "tune": 50, "max_seconds": 1.5, "callback": lambda trace, draw: calls.append(0)}
    )
    with pytest.warns(UserWarning, match="was stopped after"):
        drawn = sample_model(model, settings, 30_000, np.random.default_rng(1))
    assert dict(drawn.sizes) == {"chain": 2, "draw": 30_000, "side": 2} and drawn["mu"].dims == (
        "chain",
        "draw",
        "side",
    )
    assert list(drawn["side"]) == ["left", "right"] and len(calls) > 100


@pytest.mark.parametrize("seconds", [0, -1.0, "60", True, float("nan")])
def test_a_wrong_time_is_refused(seconds):
    with pytest.raises(ValueError, match="max_seconds must be a positive number"):
        check_sampling("nuts", {"max_seconds": seconds})


def test_fit_keeps_what_an_interrupted_run_has():
    def interrupt(trace, draw):
        if draw.draw_idx == 150 and not draw.tuning:
            raise KeyboardInterrupt

    sampler = {**QUIET, "tune": 50, "callback": interrupt}
    with pytest.warns(UserWarning, match="was stopped after"):
        idata = iw.fit(
            "y ~ x",
            make_release(),
            method="nuts",
            calibrate="none",
            draws=400,
            chains=2,
            sampler=sampler,
            random_seed=1,
            progressbar=False,
        )
    assert arviz_compat.group(idata, "posterior")["x"].shape == (2, 400)
