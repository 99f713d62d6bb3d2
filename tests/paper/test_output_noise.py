"""Weights with noise on each log weight: their cost, their variance and their sensitivity."""

import math

import numpy as np
import pytest
from factories import MIXED, mixed_rows, mixed_tables
from noise_sources import SilentNoise
from provider_tools import fit

import iwbayes as iw
from iwbayes.curator.privacy.accounting import gaussian_multiplier, price
from iwbayes.paper.logistic_loss import design, encoded_reach, minimise

quiet = pytest.mark.filterwarnings("ignore::iwbayes.utils.warnings.PrivacyWarning")


@pytest.mark.parametrize("mechanism", ["laplace", "gaussian"])
def test_noise_on_each_weight_costs_one_use_a_row_and_says_so(mechanism):
    private, synthetic = mixed_tables(200, 90)
    provider = iw.paper.OutputNoiseWeights(0.5, mechanism)
    with pytest.warns(iw.PrivacyWarning, match="90 times the budget"):
        _, ledger = fit(provider, private, synthetic)
    (event,) = ledger.events
    assert event.count == 90 and event.mechanism == mechanism
    if mechanism == "laplace":
        assert price(ledger.events, 0.0)[0] == pytest.approx(90.0)
    else:
        multiplier = gaussian_multiplier(1.0, 1e-6)
        assert event.noise_multiplier == multiplier
        many = iw.Event("one", "gaussian", 1.0, 1e-6, multiplier)
        assert price([many] * 90, 1e-6, scale=10)[0] == pytest.approx(price(ledger.events, 1e-6, scale=10)[0])


@quiet
@pytest.mark.parametrize("mechanism", ["laplace", "gaussian"])
def test_noisy_weights_stay_unbiased_with_the_stated_variance(mechanism):
    private, synthetic = mixed_tables(400, 3000)
    n, epsilon = len(synthetic), 20.0
    exact, _ = fit(iw.paper.LogisticWeights(0.5, "none"), private, synthetic)
    noisy, _ = fit(iw.paper.OutputNoiseWeights(0.5, mechanism), private, synthetic, epsilon=epsilon)
    factor = np.exp(noisy.log_weights[0] - exact.log_weights[0])
    assert abs(factor.mean() - 1) < 5 * factor.std() / math.sqrt(n)
    shift = fit(iw.paper.OutputNoiseWeights(0.5, mechanism), private, synthetic, epsilon=epsilon, noise=SilentNoise())[
        0
    ]
    down = float((shift.log_weights - exact.log_weights).mean())
    variance = math.expm1(-2 * down) if mechanism == "gaussian" else None
    if mechanism == "laplace":
        rho2 = -math.expm1(down)
        variance = (1 - rho2) ** 2 / (1 - 4 * rho2) - 1
    squares = (factor - 1) ** 2
    assert abs(squares.mean() - variance) < 5 * squares.std() / math.sqrt(n)


@quiet
def test_a_log_weight_moves_by_no_more_than_its_sensitivity():
    rng = np.random.default_rng(1)
    reach, worst = encoded_reach(MIXED), 0.0
    synthetic = design(iw.SyntheticTable(mixed_rows(40, rng, True), MIXED), reach)
    private, table = mixed_tables(12, 40)
    weights, _ = fit(iw.paper.OutputNoiseWeights(2.0), private, table, noise=SilentNoise(), epsilon=4.0)
    exact, _ = fit(iw.paper.LogisticWeights(2.0, "none"), private, table)
    rho = math.sqrt(-math.expm1(float((weights.log_weights - exact.log_weights).mean())))
    for _ in range(100):
        rows = design(iw.SyntheticTable(mixed_rows(12, rng, True), MIXED), reach)
        other = rows.copy()
        other[0] = design(iw.SyntheticTable(mixed_rows(1, rng, True), MIXED), reach)[0]
        moved = np.abs(synthetic @ (minimise(rows, synthetic, 2.0) - minimise(other, synthetic, 2.0))).max()
        worst = max(worst, moved)
    assert 0.1 * 4.0 * rho < worst <= 4.0 * rho


@quiet
def test_wide_laplace_noise_on_weights_is_refused_before_a_charge():
    private, synthetic = mixed_tables(50, 30)
    ledger = iw.Ledger(math.inf, 0.0, noise=iw.SeededNoise(1))
    with pytest.raises(ValueError, match="rho.*Nothing was charged"):
        iw.paper.OutputNoiseWeights(0.01).fit(private, synthetic, ledger, epsilon=1.0)
    assert ledger.events == ()
    with pytest.warns(iw.WeightsWarning, match="infinite variance"):
        iw.paper.OutputNoiseWeights(0.15).fit(private, synthetic, ledger, epsilon=1.0)


@pytest.mark.parametrize("settings", [{"l2": 0}, {"l2": math.nan}, {"mechanism": "cube"}])
def test_wrong_settings_of_output_noise_are_refused(settings):
    with pytest.raises(ValueError, match=next(iter(settings))):
        iw.paper.OutputNoiseWeights(**settings)
