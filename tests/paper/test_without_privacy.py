"""Baselines without privacy are rows and weights, never a release, and nothing else accepts an infinite epsilon."""

import math

import numpy as np
import pandas as pd
import pytest
from factories import synthetic_table
from numpy.testing import assert_allclose, assert_array_equal

import iwbayes as iw
from iwbayes.paper import METHODS, run_without_privacy

N = 400
SCHEMA = iw.Schema(iw.Real("x", -4, 4), iw.Binary("y"))


def rows(n, seed, shift=0.0):
    rng = np.random.default_rng(seed)
    return pd.DataFrame({"x": rng.normal(shift, 1, n).clip(-4, 4), "y": rng.integers(0, 2, n)})


PUBLIC = iw.PrivateTable(rows(N, 1, 1.0), SCHEMA)
TABLE = synthetic_table(rows(700, 2), SCHEMA)


def test_weights_of_a_regression_without_noise_move_rows_toward_the_private_ones():
    frame, weights = run_without_privacy(PUBLIC, TABLE, METHODS["LogReg"](l2=1e-4))
    assert type(frame) is pd.DataFrame and type(weights) is np.ndarray and weights.shape == (700,)
    assert weights.mean() == pytest.approx(1) and abs(np.average(frame["x"], weights=weights) - 1) < 0.2
    ledger = iw.Ledger(math.inf, 1e-6)
    known = METHODS["LogReg"](l2=1e-4).fit(PUBLIC, TABLE, ledger, epsilon=1.0, delta=0.0)
    assert_allclose(weights, known.values / known.values.mean())


def test_generators_draw_as_many_rows_as_asked_for_and_seeds_repeat():
    first, again, other = (run_without_privacy(PUBLIC, iw.BayesNet(), n_synthetic=90, random_seed=s) for s in (1, 1, 2))
    assert len(first[0]) == 90
    assert_array_equal(first[1], np.ones(90))
    pd.testing.assert_frame_equal(first[0], again[0])
    assert not first[0].equals(other[0])
    assert len(run_without_privacy(PUBLIC, iw.BayesNet())[0]) == N


def test_a_gan_and_its_discriminator_run():
    pytest.importorskip("torch")
    small = {
        "steps": 10,
        "batch_size": 32,
        "generator_hidden": (8,),
        "discriminator_hidden": (8,),
        "progressbar": False,
    }
    gan = iw.paper.GAN(random_seed=1, **small)
    frame, weights = run_without_privacy(PUBLIC, gan, METHODS["Discriminator"](), n_synthetic=50)
    assert len(frame) == len(weights) == 50 and weights.std() > 0
    _, weights = run_without_privacy(PUBLIC, TABLE, METHODS["MLP"](hidden=(4,), steps=5, random_seed=0))
    assert weights.shape == (700,)


@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        ((PUBLIC.schema, TABLE), TypeError, "must be a PrivateTable"),
        ((PUBLIC, iw.BayesNet), TypeError, "generator"),
        ((PUBLIC, TABLE, "LogReg"), TypeError, "weights"),
        ((PUBLIC, iw.BayesNet(), METHODS["Discriminator"]()), ValueError, "discriminator"),
    ],
)
def test_wrong_arguments(arguments, error, match):
    with pytest.raises(error, match=match):
        run_without_privacy(*arguments)
    with pytest.raises(ValueError, match="epsilon"):
        run_without_privacy(PUBLIC, TABLE, epsilon=math.inf)


def test_publish_refuses_an_infinite_epsilon_and_parts_without_noise():
    with pytest.raises(ValueError, match="epsilon must be positive and finite"):
        iw.publish(PUBLIC, epsilon=math.inf, delta=1e-6)
    with pytest.raises((ValueError, iw.BudgetExceeded)):
        iw.publish(PUBLIC, epsilon=1.0, delta=1e-6, generator=TABLE, weights=METHODS["LogReg"]())
