"""How many functions and modules of the analyst's side a call enters: what somebody reads who follows it."""

import sys
from pathlib import Path

import pymc as pm
import pytest
from factories import make_release
from posterior_tools import start_of

import iwbayes as iw

PACKAGE = f"{Path(iw.__file__).parent}/"


def entered(function):
    """Functions of the package that a call enters, each (module, name), without nested functions and measures."""
    found = set()

    def note(frame, event, argument):
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(PACKAGE) and "<" not in code.co_qualname:
            found.add((code.co_filename.removeprefix(PACKAGE), code.co_qualname))

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        function()
    finally:
        sys.setprofile(before)
    return {(module, name) for module, name in found if "/measures/" not in module}


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


#: A tenth above what was counted when the limits were set.
LIMITS = {"fit": (fitted, 117, 20), "calibrate": (calibrated, 132, 20)}


@pytest.mark.filterwarnings("ignore::iwbayes.CalibrationWarning")
@pytest.mark.parametrize("call", LIMITS)
def test_a_call_enters_few_functions(call):
    made, functions, modules = LIMITS[call]
    walk = {(module, name) for module, name in entered(made(make_release())) if module.startswith("analyst/")}
    assert len(walk) <= functions and len({module for module, _ in walk}) <= modules
