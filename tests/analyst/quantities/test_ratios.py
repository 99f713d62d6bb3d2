"""odds_ratios(): exponentials of coefficients, and what they are called."""

import arviz as az
import numpy as np
import pandas as pd
import pytest
import xarray as xr
from factories import make_release
from posterior_tools import drawn_fit, values_of

import iwbayes as iw
from iwbayes.analyst import arviz_compat

RELEASE = make_release(n=80)


def test_ratios_are_exponentials():
    _, idata = drawn_fit("z ~ x*g + k", "bernoulli", RELEASE)
    found = iw.odds_ratios(idata, units={"x": 10, "k": -0.5})
    ratios = arviz_compat.group(found, "posterior")
    assert list(ratios.data_vars) == ["x", "g", "k", "x:g"] and ratios.attrs["ratio"] == "odds ratio"
    for name, unit in (("x", 10), ("g", 1), ("k", -0.5), ("x:g", 1)):
        np.testing.assert_allclose(values_of(found, name), np.exp(unit * values_of(idata, name)), rtol=1e-14)
        assert ratios[name].attrs["unit"] == unit
    assert ratios["g"].dims == ("chain", "draw", "g_dim")
    assert len(az.summary(found)) == 6
    odds = (
        np.asarray(iw.predictions(idata, at(0.5))["posterior"]["z"]),
        np.asarray(iw.predictions(idata, at(-0.5))["posterior"]["z"]),
    )
    ratio = odds[0] / (1 - odds[0]) / (odds[1] / (1 - odds[1]))
    np.testing.assert_allclose(ratio[..., 0], np.exp(values_of(idata, "x")).reshape(2, 3), rtol=1e-10)


def at(x):
    return pd.DataFrame({"x": [x], "g": "u", "k": 1})


def test_ratios_of_other_families():
    _, idata = drawn_fit("g ~ x", "categorical", RELEASE)
    found = arviz_compat.group(iw.odds_ratios(idata), "posterior")
    assert found.attrs["ratio"] == "relative risk ratio" and found["x"].dims == ("chain", "draw", "g_reduced_dim")
    np.testing.assert_allclose(found["x"], np.exp(arviz_compat.group(idata, "posterior")["x"]), rtol=1e-14)
    _, idata = drawn_fit("k ~ I(x - np.mean(x))", "poisson", RELEASE)  # a ratio needs no other rows
    assert arviz_compat.group(iw.odds_ratios(idata), "posterior").attrs["ratio"] == "rate ratio"
    for formula, family, message in (
        ("y ~ x", "gaussian", "the family must be one of .*not log ratios"),
        ("z ~ 1", "bernoulli", "must have a term besides the intercept"),
    ):
        _, idata = drawn_fit(formula, family, RELEASE)
        with pytest.raises(ValueError, match=message):
            iw.odds_ratios(idata)


@pytest.mark.parametrize(
    ("units", "error", "message"),
    [
        ({"q": 1}, ValueError, r"got \['q'\]. Use names from \['x', 'g', 'poly\(k, 2\)'\]"),
        ({"Intercept": 1}, ValueError, r"got \['Intercept'\]"),
        ({"g": 2}, ValueError, "the unit of 'g' must be omitted"),
        ({"poly(k, 2)": 2}, ValueError, "the unit of 'poly.* must be omitted"),
        ({"x": 0}, ValueError, "finite and not zero; got 0"),
        ({"x": np.nan}, ValueError, "finite and not zero; got nan"),
        ({"x": "10"}, TypeError, "must be a number; got '10'"),
        ([("x", 1)], TypeError, "units must be a dict"),
    ],
)
def test_units_that_do_not_fit_are_refused(units, error, message):
    _, idata = drawn_fit("z ~ x + g + poly(k, 2)", "bernoulli", RELEASE)
    with pytest.raises(error, match=message):
        iw.odds_ratios(idata, units=units)


def test_a_posterior_of_another_model_is_refused():
    idata = arviz_compat.make({"posterior": xr.Dataset({"b": (("chain", "draw"), np.zeros((1, 4)))})})
    with pytest.raises(ValueError, match="must come from fit, which records formula and family"):
        iw.odds_ratios(idata)
