"""Tables, silent noise and a short way to fit, shared by the tests of weight estimators."""

import io
import math
import sys

import numpy as np
import pandas as pd

import iwbayes as iw

SCHEMA = iw.Schema(
    iw.Real("x", -2, 2, missing=True),
    iw.Integer("k", 0, 9),
    iw.Binary("y"),
    iw.Categorical("g", ("a", "b", "c"), missing=True),
)


class SilentNoise(iw.SeededNoise):
    """Adds nothing."""

    def __init__(self):
        super().__init__(0)

    def gaussian(self, values, scale):
        return values

    laplace = cube = spherical = floating_gaussian = gaussian


def frame(n, rng, extreme=False):
    x = rng.choice([-2.0, 2.0], n) if extreme else rng.normal(0, 1, n)
    return pd.DataFrame(
        {
            "x": np.where(rng.random(n) < 0.2, np.nan, x),
            "k": rng.choice([0, 9], n) if extreme else rng.poisson(3, n),
            "y": rng.integers(0, 2, n),
            "g": rng.choice(np.array(["a", "b", "c", None], dtype=object), n),
        }
    )


def tables(n=300, m=900, seed=0):
    rng = np.random.default_rng(seed)
    shifted = frame(n, rng).assign(k=rng.poisson(5, n))
    return iw.PrivateTable(shifted, SCHEMA), iw.SyntheticTable(
        frame(m, rng), SCHEMA, origin="test", already_spent=(0, 0)
    )


def fit(estimator, private, synthetic, *, epsilon=1.0, delta=1e-6, noise=None, adjacency="replace-one"):
    ledger = iw.Ledger(math.inf, 1e-5, adjacency, noise=noise or iw.SeededNoise(1))
    return estimator.fit(private, synthetic, ledger, epsilon=epsilon, delta=0.0 if estimator.pure else delta), ledger


def progress_outputs(monkeypatch, run):
    """What ``run(progressbar=...)`` writes to the error stream, by (progressbar, whether that is a terminal)."""

    class Terminal(io.StringIO):
        def isatty(self):
            return True

    outputs = {}
    for show, stream in ((True, Terminal()), (False, Terminal()), (True, io.StringIO())):
        monkeypatch.setattr(sys, "stderr", stream)
        run(progressbar=show)
        outputs[show, stream.isatty()] = stream.getvalue()
    monkeypatch.undo()
    return outputs
