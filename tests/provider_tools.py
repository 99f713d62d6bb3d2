"""A short way to fit, and what a fit shows of its progress."""

import io
import math
import sys

import iwbayes as iw


def fit(provider, private, synthetic, *, epsilon=1.0, delta=1e-6, noise=None, adjacency="replace-one"):
    ledger = iw.Ledger(math.inf, 1e-5, adjacency, noise=noise or iw.SeededNoise(1))
    return provider.fit(private, synthetic, ledger, epsilon=epsilon, delta=0.0 if provider.pure else delta), ledger


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
