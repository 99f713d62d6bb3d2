"""Weights from a given log ratio, discriminators, and the published methods by their names."""

import numpy as np
import pytest
from factories import mixed_tables
from provider_tools import fit

import iwbayes as iw


class Ratio:
    """A fitted log ratio with a slope that can be changed afterwards."""

    def __init__(self, slope=1.0):
        self.slope = slope

    def log_ratio(self, table):
        return self.slope * table.schema.encode(table.frame)[:, 0]

    def fingerprint(self):
        return f"slope {self.slope}"


def test_known_weights_are_the_given_ratio_and_not_certified():
    private, synthetic = mixed_tables()
    weights, ledger = fit(iw.paper.KnownRatioWeights(Ratio(2.0).log_ratio), private, synthetic)
    np.testing.assert_array_equal(weights.log_weights[0], Ratio(2.0).log_ratio(synthetic))
    assert ledger.events == () and "log ratio" in ledger.statement().notes[0]


@pytest.mark.parametrize("wrong", [lambda table: np.zeros(3), lambda table: np.full(len(table), np.nan)])
def test_a_known_ratio_has_one_number_a_row(wrong):
    private, synthetic = mixed_tables()
    with pytest.raises(ValueError, match="shape|NaN"):
        fit(iw.paper.KnownRatioWeights(wrong), private, synthetic)
    with pytest.raises(TypeError, match="callable"):
        iw.paper.KnownRatioWeights(np.zeros(3))


def test_a_discriminator_is_free_when_and_only_when_the_ledger_holds_its_training():
    private, synthetic = mixed_tables()
    gan = Ratio()
    ledger = iw.Ledger(1.0, 1e-6, noise=iw.SeededNoise(1))
    with pytest.raises(ValueError, match="contains no training of exactly this discriminator"):
        iw.paper.DiscriminatorWeights(gan).fit(private, synthetic, ledger, epsilon=1.0)
    ledger._register(gan.fingerprint())  # as the training loop does when its charged steps are done
    weights = iw.paper.DiscriminatorWeights(gan).fit(private, synthetic, ledger, epsilon=1.0)
    np.testing.assert_array_equal(weights.log_weights[0], gan.log_ratio(synthetic))
    assert ledger.events == () and ledger.statement().notes == ()
    gan.slope = 1.5  # fine-tuned since, perhaps on private rows
    with pytest.raises(ValueError, match="exactly this discriminator"):
        iw.paper.DiscriminatorWeights(gan).fit(private, synthetic, ledger, epsilon=1.0)


def test_a_logistic_ratio_serves_as_a_discriminator_under_its_own_ledger_only():
    private, synthetic = mixed_tables()
    ledger = iw.Ledger(1.0, 1e-6, noise=iw.SeededNoise(1))
    ratio = iw.paper.LogisticWeights().fit_ratio(private, synthetic, ledger, epsilon=1.0, delta=1e-6)
    spent = ledger.spent
    weights = iw.paper.DiscriminatorWeights(ratio).fit(private, synthetic, ledger, epsilon=1.0)
    np.testing.assert_array_equal(weights.log_weights[0], ratio.log_ratio(synthetic))
    assert ledger.spent == spent
    with pytest.raises(ValueError, match="contains no training"):
        fit(iw.paper.DiscriminatorWeights(ratio), private, synthetic)


@pytest.mark.parametrize("critic", [object(), Ratio, iw.BayesNet()])
def test_a_critic_without_log_odds_is_refused(critic):
    with pytest.raises(TypeError, match="Wasserstein"):
        iw.paper.DiscriminatorWeights(critic)


def test_the_papers_methods_by_name():
    methods = iw.paper.METHODS
    assert list(methods) == [
        "None", "True", "LogReg", "BetaNoised", "BetaDebiased", "MLP", "DP-MLP", "DP-MLP as printed", "Discriminator",
    ]  # fmt: skip
    assert methods["None"]() == iw.UniformWeights()
    assert methods["LogReg"]() == iw.paper.LogisticWeights(0.1, "none")
    assert methods["BetaNoised"]() == iw.paper.LogisticWeights(0.1, "paper", debias=False)
    assert methods["BetaDebiased"](l2=0.01) == iw.paper.LogisticWeights(0.01, "paper")
    assert methods["MLP"]().mechanism == "none" and methods["DP-MLP"]().mechanism == "dp-sgd"
    assert methods["DP-MLP as printed"](steps=7) == iw.paper.PrintedNeuralWeights(steps=7)
    gan = Ratio()
    assert methods["Discriminator"](gan) == iw.paper.DiscriminatorWeights(gan)
    assert methods["True"](gan.log_ratio) == iw.paper.KnownRatioWeights(gan.log_ratio)
    with pytest.raises(TypeError):
        methods["None"] = None
