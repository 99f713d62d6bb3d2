"""Models that Bambi builds, weighted by `reweight`; and the names that `fit` shares with Bambi."""

import numpy as np
import pandas as pd
import pymc as pm
import pytest
from factories import release_of

from iwbayes.analyst import arviz_compat
from iwbayes.analyst.fit import fit
from iwbayes.analyst.weighting.reweight import reweight
from iwbayes.schema import Categorical, Integer, Real, Schema
from iwbayes.tables import SyntheticTable

bambi = pytest.importorskip("bambi", reason="Bambi is not installed")
pytestmark = pytest.mark.interpreted

ROWS = 30
WEIGHTS = np.random.default_rng(3).integers(1, 5, ROWS)
SCHEMA = Schema(Real("x", -4, 4), Real("y", -9, 9), Categorical("g", ["u", "v", "w"]), Integer("k", 0, 60))
SAMPLING = {
    "nuts_sampler": "pymc",
    "draws": 300,
    "tune": 300,
    "chains": 2,
    "cores": 1,
    "progressbar": False,
    "random_seed": 1,
}
FORMULAS = [
    ("y ~ x + g + x:g", "gaussian"),
    ("y ~ 0 + x", "gaussian"),
    ("k ~ x * g", "poisson"),
    ("g ~ x", "categorical"),
]


def table():
    rng = np.random.default_rng(5)
    x = rng.normal(size=ROWS).clip(-4, 4)
    g = pd.Categorical(rng.choice(["u", "v", "w"], ROWS), categories=["u", "v", "w"])
    y = (0.5 + x + rng.normal(size=ROWS)).clip(-9, 9)
    return pd.DataFrame({"x": x, "y": y, "g": g, "k": rng.poisson(2, ROWS)})


def built(formula, frame, **options):
    model = bambi.Model(formula, frame, **options)
    model.build()
    return model.backend.model


def by_bambi(frame):
    priors = {"Intercept": bambi.Prior("Normal", mu=0, sigma=2), "x": bambi.Prior("Normal", mu=0, sigma=1.5)}
    return built(
        "y ~ x", frame, priors={**priors, "sigma": bambi.Prior("HalfNormal", sigma=1)}, center_predictors=False
    )


def by_hand(frame):
    with pm.Model() as model:
        # arrays, as Bambi's: pytensor takes the logarithm of a plain number in single precision
        sigma = pm.HalfNormal("sigma", np.array(1.0))
        intercept, slope = pm.Normal("Intercept", 0, np.array(2.0)), pm.Normal("x", 0, np.array(1.5))
        pm.Normal("y", intercept + slope * frame["x"].to_numpy(), sigma, observed=frame["y"])
    return model


def test_density_is_that_of_the_model_by_hand_and_of_repeated_rows():
    frame = table()
    models = [
        reweight(by_bambi(frame), WEIGHTS),
        reweight(by_hand(frame), WEIGHTS),
        by_bambi(frame.loc[np.repeat(np.arange(ROWS), WEIGHTS)].reset_index(drop=True)),
    ]
    at = {"Intercept": np.array(0.3), "x": np.array(-0.4), "sigma_log__": np.array(0.2)}
    assert all({value.name for value in model.value_vars} == set(at) for model in models)
    density = [model.compile_logp()(at) for model in models]
    np.testing.assert_allclose(density, density[0], rtol=1e-12)


def test_posterior_is_that_of_the_model_by_hand():
    """Two models of one density, drawn apart: their means agree within 5 standard errors of the difference."""
    frame = table()
    tables = []
    for seed, model in enumerate((by_bambi(frame), by_hand(frame))):
        idata = pm.sample(model=reweight(model, WEIGHTS, total=20), **{**SAMPLING, "random_seed": seed})
        tables.append(arviz_compat.summary(idata, ["Intercept", "x", "sigma"]))
    for value in ("mean", "sd"):
        error = np.hypot(*(each[f"mcse_{value}"] for each in tables))
        assert np.all(abs(tables[0][value] - tables[1][value]) < 5 * error)


def test_varying_effects_and_deterministics_survive():
    model = built("k ~ x + (1|g)", table(), family="poisson")
    weighted = reweight(model, WEIGHTS)
    assert [rv.name for rv in weighted.free_RVs] == [rv.name for rv in model.free_RVs]
    assert [var.name for var in weighted.deterministics] == [var.name for var in model.deterministics]
    dims = [{name: tuple(each) for name, each in m.named_vars_to_dims.items() if each} for m in (model, weighted)]
    assert dims[1] == dims[0]
    rng = np.random.default_rng(2)
    at = {name: rng.normal(size=value.shape) / 2 for name, value in model.initial_point(0).items()}
    repeated = built("k ~ x + (1|g)", table().loc[np.repeat(np.arange(ROWS), WEIGHTS)], family="poisson")
    # Bambi centres x by the mean of the rows that it sees: the intercept of the repeated rows is another one
    x = table()["x"].to_numpy()
    moved = {**at, "Intercept": at["Intercept"] + at["x"] * (np.average(x, weights=WEIGHTS) - x.mean())}
    got, want = (m.compile_logp(vars=m.observed_RVs)(point) for m, point in ((weighted, at), (repeated, moved)))
    np.testing.assert_allclose(got, want, rtol=1e-12)


@pytest.mark.parametrize(("formula", "family"), FORMULAS)
def test_fit_names_coefficients_as_bambi_does(formula, family):
    model = built(formula, table(), family=family)
    expected = {
        rv.name: [list(map(str, model.coords[dim])) for dim in model.named_vars_to_dims.get(rv.name) or ()]
        for rv in model.free_RVs
    }
    release = release_of(SyntheticTable(table(), SCHEMA))
    idata = fit(formula, release, family=family, calibrate="none", draws=50, chains=1, random_seed=1)
    posterior = arviz_compat.group(idata, "posterior")
    found = {
        name: [list(map(str, values.coords[dim].to_numpy())) for dim in values.dims[2:]]
        for name, values in posterior.data_vars.items()
    }
    assert found == expected
    dims = {name: tuple(map(str, values.dims[2:])) for name, values in posterior.data_vars.items()}
    assert dims == {rv.name: tuple(model.named_vars_to_dims.get(rv.name) or ()) for rv in model.free_RVs}
