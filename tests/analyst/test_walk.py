"""A release walks through `fit` and `calibrate` as ARCHITECTURE.md says, and rarely comes back to a module."""

import re
import sys
from pathlib import Path

import pymc as pm
import pytest
from factories import make_release
from posterior_tools import start_of

import iwbayes as iw

ROOT = Path(__file__).parents[2]
PACKAGE = f"{ROOT / 'iwbayes'}/"


def listed(walk):
    """Steps of a walk, each (module, function)."""
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    found = re.search(rf"^- {walk}: (.*?)(?=^- |^$)", text, re.M | re.S)
    return [tuple(step.rsplit(".", 1)) for step in re.findall(r"`([^`]+)`", found[1])]


def followed(function):
    """Functions in the order in which they are first called, each (module, name), without the folder analyst."""
    order = {}

    def note(frame, event, argument):
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(PACKAGE):
            module = code.co_filename.removeprefix(PACKAGE).removeprefix("analyst/").removesuffix(".py")
            order.setdefault((module, code.co_name))

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        function()
    finally:
        sys.setprofile(before)
    return list(order)


def fitted(release):
    return lambda: iw.fit("y ~ x", release, random_seed=1)


def calibrated(release):
    frame = release.synthetic.frame
    with pm.Model() as plain:
        mean = pm.Normal("a", 0, 2) + pm.Normal("b", 0, 2) * frame["x"].to_numpy()
        pm.Normal("y", mean, pm.HalfNormal("sigma", 2), observed=frame["y"].to_numpy())
    model = iw.reweight(plain, release.weights, total=release.n_private)
    idata, _ = start_of(model)
    return lambda: iw.calibrate(idata, model, release, random_seed=1)


@pytest.mark.filterwarnings("ignore::iwbayes.CalibrationWarning")
@pytest.mark.parametrize(("walk", "made"), [("fit", fitted), ("calibrate", calibrated)])
def test_a_release_walks_as_the_page_says(walk, made):
    steps, order = listed(walk), followed(made(make_release()))
    assert len(steps) > 15 and [step for step in order if step in set(steps)] == steps
    assert len(steps) <= 30 and len(steps) - len({module for module, _ in steps}) <= 12
