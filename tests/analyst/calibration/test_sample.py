"""sample(): the three steps in one call, refusals before anything is sampled."""

import numpy as np
import pymc as pm
import pytest
from factories import make_release

import iwbayes as iw
from iwbayes.analyst import arviz_compat

QUICK = {"draws": 60, "tune": 60, "chains": 2, "cores": 1, "progressbar": False}


def model_of(frame, rows=False):
    with pm.Model() as model:
        b, s = pm.Normal("b", 0, 2, shape=2), pm.HalfNormal("s", 1)
        extra = pm.Normal("extra", shape=len(frame)) if rows else 0.0
        pm.Normal("y", b[0] + b[1] * frame["x"].to_numpy() + extra, s, observed=frame["y"])
    return model


@pytest.mark.filterwarnings("ignore::iwbayes.CalibrationWarning")
def test_it_is_the_three_steps():
    release = make_release()
    model = model_of(release.synthetic.frame)
    idata = iw.sample(model, release, random_seed=3, **QUICK)
    weighted = iw.reweight(model, release)
    seed = int(np.random.default_rng(3).integers(2**31))
    expected = iw.calibrate(pm.sample(model=weighted, random_seed=seed, **QUICK), weighted, release)
    found, reference = (arviz_compat.group(each, "posterior") for each in (idata, expected))
    for name in ("b", "s"):
        np.testing.assert_allclose(found[name], reference[name], rtol=1e-12)
    assert iw.diagnose(release, idata).loc["weights", "verdict"] == "ok"


def test_refusals_come_before_the_sampler(monkeypatch):
    def never(**options):
        raise AssertionError("sampled")

    monkeypatch.setattr(pm, "sample", never)
    release = make_release()
    frame = release.synthetic.frame
    with pytest.raises(ValueError, match="'extra' .300 values. grows with the rows"):
        iw.sample(model_of(frame, rows=True), release)
    with pytest.raises(ValueError, match="in a different order"):
        iw.sample(model_of(frame.sort_values("y")), release)
    with pytest.raises(TypeError, match="release must be a Release"):
        iw.sample(model_of(frame), release.weights)
