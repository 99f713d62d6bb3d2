"""Averages of one's own PyMC model: those of the same regression by fit, to rounding, and by hand."""

import numpy as np
import pymc as pm
import pytest
import xarray as xr
from factories import seeded_release, simulated_table
from numpy.testing import assert_allclose
from scipy.special import expit

import iwbayes as iw
from iwbayes.analyst import arviz_compat

RELEASE = seeded_release(simulated_table("bernoulli", 2000), 3, epsilon=2, n_synthetic=2000)
ROWS = RELEASE.synthetic.frame
OPTIONS = {"draws": 150, "random_seed": 1, "progressbar": False}


def by_hand() -> pm.Model:
    """The regression y ~ x + treated, with the names of fit in its order."""
    with pm.Model() as found:
        start, x, treated = (pm.Normal(name, 0, 3) for name in ("Intercept", "x", "treated"))
        logit = start + x * ROWS["x"].to_numpy() + treated * ROWS["treated"].to_numpy(float)
        pm.Bernoulli("y", logit_p=logit, observed=ROWS["y"].to_numpy(int))
    return found


@pytest.fixture(scope="module")
def fitted():
    return iw.fit("y ~ x + treated", RELEASE, method="laplace", **OPTIONS)


@pytest.fixture(scope="module")
def weighted():
    return iw.reweight(by_hand(), RELEASE)


def risk(draws, rows, treated):
    return expit(draws["Intercept"] + draws["x"] * rows["x"] + draws["treated"] * treated)


def difference(draws, rows):
    return {"treated": risk(draws, rows, 1) - risk(draws, rows, 0)}


def posterior(idata):
    return arviz_compat.group(idata, "posterior")


@pytest.mark.parametrize("rows", ["random", "fixed"])
@pytest.mark.parametrize("by", [None, "group"])
def test_they_are_those_of_the_same_regression(fitted, weighted, rows, by):
    options = {"rows": rows, "by": by, "random_seed": 5}
    found = iw.averages(fitted, RELEASE, weighted, difference, **options)
    expected = iw.comparisons(fitted, RELEASE, contrast="treated", **options)
    one, other = posterior(found), posterior(expected)
    assert one["treated"].dims == other["treated"].dims
    assert_allclose(one["treated"], other["treated"], rtol=1e-6, atol=1e-9)
    for name in ("noise_included", "rows", "verdict", "calibration"):
        assert one.attrs[name] == other.attrs[name]
    one, other = (arviz_compat.group(idata, "calibration") for idata in (found, expected))
    assert list(one["parameter"].to_numpy()) == list(other["parameter"].to_numpy())
    for name in other.data_vars:
        assert_allclose(one[name].astype(float), other[name].astype(float), rtol=2e-3, atol=1e-6, err_msg=name)


def test_averages_over_fixed_rows_by_hand(fitted, weighted):
    found = iw.averages(
        fitted, RELEASE, weighted, lambda draws, rows: draws["x"] * rows["x"] ** 2, rows="fixed", random_seed=1
    )
    shares = RELEASE.weights.values / RELEASE.weights.values.sum()
    expected = posterior(fitted)["x"].to_numpy() * (shares @ ROWS["x"].to_numpy() ** 2)
    assert_allclose(posterior(found)["average"], expected, rtol=1e-10)
    assert posterior(found).attrs["noise_included"] == "no"


def test_a_calibrated_model_with_groups_and_levels():
    """Effects of groups are chosen by label, and values of rows that are deterministic in the model can be averaged."""
    labels = list(RELEASE.synthetic.schema["group"].levels)
    with pm.Model(coords={"group": labels}) as model:
        place = pm.Data("place", ROWS["group"].cat.codes.to_numpy())
        effect, slope = pm.Normal("effect", 0, 2, dims="group"), pm.Normal("slope", 0, 2)
        p = pm.Deterministic("p", pm.math.sigmoid(effect[place] + slope * pm.Data("x", ROWS["x"].to_numpy())))
        pm.Bernoulli("y", p, observed=ROWS["y"].to_numpy(int))
    weighted = iw.reweight(model, RELEASE)
    drawn = pm.sample(150, tune=300, chains=2, cores=1, model=weighted, random_seed=1, progressbar=False)
    idata = iw.calibrate(drawn, weighted, RELEASE, random_seed=1)

    def means(draws, rows):
        own = expit(draws["effect"].sel(group=rows["group"]) + draws["slope"] * rows["x"])
        held = draws["p"].rename({draws["p"].dims[1]: "row"})
        return {"by label": own, "held by the model": held}

    found = iw.averages(idata, RELEASE, weighted, means, random_seed=2)
    group = posterior(found)
    assert_allclose(group["by label"], group["held by the model"], rtol=1e-8)
    shares = RELEASE.weights.values / RELEASE.weights.values.sum()
    assert abs(float(group["by label"].mean()) - shares @ ROWS["y"].to_numpy(float)) < 0.03
    assert "calibrated" in arviz_compat.group(found, "calibration")
    assert list(iw.summary(found).index) == ["by label", "held by the model"]


@pytest.mark.filterwarnings("ignore::iwbayes.utils.warnings.CalibrationWarning")  # of so few draws of the weights
def test_weight_draws_are_those_of_the_draws():
    """A pool has several vectors of weights; each draw is averaged with its own."""
    weights = iw.noise_aware_weights(RELEASE, 4, random_seed=1)
    release = iw.Release(RELEASE.synthetic, weights, RELEASE.statement, n_private=RELEASE.n_private)
    fitted = iw.fit("y ~ x + treated", release, method="laplace", **OPTIONS)
    found = iw.averages(fitted, release, iw.reweight(by_hand(), release), difference, random_seed=3)
    expected = iw.comparisons(fitted, release, contrast="treated", random_seed=3)
    assert_allclose(posterior(found)["treated"], posterior(expected)["treated"], rtol=1e-6, atol=1e-9)


WRONG = {
    "a number": (lambda draws, rows: 3, ValueError, "dimensions sample and row; got int for 'average'"),
    "one per draw": (lambda draws, rows: draws["x"], ValueError, r"got dimensions \['sample'\]"),
    "text": (lambda draws, rows: (draws["x"] * rows["x"]).astype(str), ValueError, "must return numbers"),
    "nothing": (lambda draws, rows: {}, ValueError, "at least one array"),
    "some rows": (
        lambda draws, rows: draws["x"] * rows["x"][:7], ValueError, "each of 1 draws and 2000 rows",
    ),
    "a mean of rows": (
        lambda draws, rows: draws["x"] * (rows["x"] - rows["x"].mean()), ValueError, "depend on this row only",
    ),
    "no function": ("x", TypeError, "must be a function of draws and rows; got str"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_wrong_functions(fitted, weighted, name):
    function, error, message = WRONG[name]
    with pytest.raises(error, match=message):
        iw.averages(fitted, RELEASE, weighted, function)


def test_draws_weights_and_model_must_belong_together(fitted, weighted):
    other = iw.reweight(by_hand(), np.random.default_rng(1).gamma(2, size=len(ROWS)))
    with pytest.raises(ValueError, match="must be those of the release; they differ"):
        iw.averages(fitted, RELEASE, other, difference)
    with pytest.raises(ValueError, match=r"\['treated'\] are missing"):
        iw.averages(iw.fit("y ~ x", RELEASE, method="laplace", **OPTIONS), RELEASE, weighted, difference)
    with pytest.raises(ValueError, match="calibrated with another model"):
        longer = iw.fit("y ~ x + treated + z", RELEASE, method="laplace", **OPTIONS)
        iw.averages(longer, RELEASE, weighted, difference)
    with pytest.raises(ValueError, match="no weighted likelihood"):
        iw.averages(fitted, RELEASE, by_hand(), difference)
    bare = arviz_compat.make({"posterior": xr.Dataset()}, {})
    with pytest.raises(ValueError, match="must have the group posterior"):
        iw.averages(bare, RELEASE, weighted, difference)
