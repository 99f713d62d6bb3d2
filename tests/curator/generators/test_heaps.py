"""Values that many rows share: each generator gives them their share, and only them."""

import numpy as np
import pandas as pd
import pytest

import iwbayes as iw
from iwbayes.curator.privacy.noise import SeededNoise

N = 4000
SCHEMA = iw.Schema(
    iw.Real("income", -9000, 1_341_000, transform="arcsinh", heaps=[0]),
    iw.Integer("pension", 0, 60_000, heaps=[12_000], missing=True),
    iw.Binary("sex", ["f", "m"]),
)
SHARE, NEGATIVE = 0.3, 0.03


def rows():
    rng = np.random.default_rng(3)
    income = np.exp(rng.normal(10, 1, N)).round(2)
    which = rng.random(N)
    income[which < SHARE] = 0
    income[which > 1 - NEGATIVE] *= -0.1
    pension = np.where(rng.random(N) < SHARE, 12_000, rng.integers(0, 60_001, N)).astype(float)
    pension[rng.random(N) < 0.1] = np.nan
    return pd.DataFrame({"income": income, "pension": pension, "sex": rng.choice(["f", "m"], N)})


def shares(frame, weights=None):
    pension = (frame["pension"] == 12_000).fillna(False)
    flags = {"no income": frame["income"] == 0, "12000": pension, "debts": frame["income"] < 0}
    return {name: np.average(flag.astype(float), weights=weights) for name, flag in flags.items()}


@pytest.mark.parametrize(
    "generator", [iw.BayesNet(), iw.AIM(), iw.MST(), iw.Mixture(starts=1, n_components=5, random_seed=1)], ids=repr
)
def test_a_heap_keeps_its_share(generator):
    """Within three points at epsilon 2. The noise of a count is below 20 of 4,000 rows."""
    private = iw.PrivateTable(rows(), SCHEMA)
    exact = shares(private.frame)
    ledger = iw.Ledger(2.0, 1e-6, noise=SeededNoise(1))
    release = iw.publish(private, epsilon=2.0, delta=1e-6, generator=generator, ledger=ledger, progressbar=False)
    for weights in (None, release.sample_weight):
        found = shares(release.synthetic.frame, weights)
        assert abs(found["no income"] - exact["no income"]) < 0.03
        assert abs(found["12000"] - exact["12000"]) < 0.03
        assert abs(found["debts"] - exact["debts"]) < 0.04  # without the heap, a fifth of the rows and more


def test_without_a_declaration_it_is_lost():
    """What is tested above would fail."""
    plain = iw.Schema(
        iw.Real("income", -9000, 1_341_000), iw.Integer("pension", 0, 60_000, missing=True), SCHEMA["sex"]
    )
    private = iw.PrivateTable(rows(), plain)
    release = iw.publish(private, epsilon=2.0, delta=1e-6, progressbar=False)
    found = shares(release.synthetic.frame)
    assert found["no income"] < 0.01 and found["12000"] < 0.01


def test_gans_choose_heaps_and_numbers():
    pytest.importorskip("torch")
    import torch

    from iwbayes.paper.adversarial.architecture import Heads

    heads, rng = Heads(SCHEMA), torch.Generator().manual_seed(1)
    raw = torch.randn((3000, heads.n_raw), generator=rng)
    gumbel = -torch.log(-torch.log(torch.rand((3000, heads.n_logits), generator=rng)))
    features = heads.rows(raw, gumbel).numpy().astype(float)
    frame = SCHEMA.decode(features)
    np.testing.assert_allclose(SCHEMA.encode(frame), features, atol=1e-5)
    found = shares(frame)
    # before training, a row has the heap with the probability of one of two choices, and here of one of three
    assert abs(found["no income"] - 0.5) < 0.05 and abs(found["12000"] - 0.5 * 0.9) < 0.2
    assert frame["pension"].isna().any() and frame["income"].nunique() > 1000


def test_a_variational_mixture_has_heaps_among_its_outcomes():
    pytest.importorskip("torch")
    private = iw.PrivateTable(rows(), SCHEMA)
    mixture = iw.Mixture(method="variational", n_components=2, random_seed=1)
    table = mixture.fit(private, iw.Ledger(8.0, 1e-5), epsilon=8.0, delta=1e-5).sample(1000, random_seed=1)
    assert shares(table.frame)["no income"] > 0.05 and shares(table.frame)["12000"] > 0.05
