"""Recipes of Bambi's documentation on weighted rows: as on a table that repeats each row as often as its weight says.

Each recipe has the title of its page, or the page's subtitle where several share a title. Weights are 1, 2 and 3, so
the repeated rows are an exact reference for log densities, their gradients, predictions and averages.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import version
from typing import Any

import numpy as np
import pandas as pd
import pymc as pm
import pytensor.tensor as pt
import pytest
import xarray as xr
from factories import make_release, release_of, synthetic_table
from numpy.testing import assert_allclose
from posterior_tools import drawn_fit, start_of, values_of
from pytensor.compile.mode import Mode

import iwbayes as iw
from iwbayes.analyst import arviz_compat
from iwbayes.analyst.regression.model import regression

bmb = pytest.importorskip("bambi", reason="Bambi is not installed")
pytestmark = [
    pytest.mark.interpreted,
    pytest.mark.filterwarnings("ignore:The intercept is omitted in ordinal families:UserWarning"),
]
#: Bambi 0.16 cannot predict group effects with current versions of what it needs.
OLD = tuple(map(int, bmb.__version__.split(".")[:2])) < (0, 18)

SCHEMA = iw.Schema(
    iw.Real("x", -2, 2), iw.Integer("year", 1900, 2000), iw.Categorical("g", ["u", "v", "w"]),
    iw.Binary("f", ("female", "male")), iw.Categorical("s", list("abcdef")), iw.Real("y", -9, 9),
    iw.Real("cost", 0, 20), iw.Real("share", 0, 1), iw.Real("angle", -3.2, 3.2), iw.Real("time", 0, 20),
    iw.Real("exposure", 0, 9), iw.Integer("count", 0, 60), iw.Integer("k", 0, 9), iw.Integer("n", 1, 9), iw.Binary("b"),
    iw.Categorical("status", ["none", "right"]), iw.Categorical("grade", ["low", "mid", "high"]),
)  # fmt: skip


def rows(n: int, seed: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    x, trials = rng.uniform(-2, 2, n), rng.integers(1, 10, n)
    return pd.DataFrame({
        "x": x, "year": rng.integers(1900, 2001, n), "g": rng.choice(list("uvw"), n),
        "f": rng.choice(["female", "male"], n), "s": rng.choice(list("abcdef"), n), "y": rng.normal(x, 1).clip(-9, 9),
        "cost": rng.gamma(2, 1, n).clip(0.05, 20), "share": rng.beta(2, 2, n).clip(0.02, 0.98),
        "angle": rng.vonmises(0, 2, n), "time": rng.exponential(2, n).clip(0.1, 20), "exposure": rng.uniform(0.5, 9, n),
        "count": rng.poisson(2, n) * (rng.random(n) < 0.7), "k": rng.binomial(trials, 0.5), "n": trials,
        "b": rng.integers(0, 2, n), "status": rng.choice(["none", "right"], n),
        "grade": rng.choice(["low", "mid", "high"], n),
    })  # fmt: skip


N = 60
COUNTS = np.repeat([1, 2, 3], N // 3)
RELEASE = release_of(synthetic_table(rows(N, 1), SCHEMA), np.log(COUNTS), n_private=int(COUNTS.sum()))
FRAME = RELEASE.synthetic.frame.assign(grade=RELEASE.synthetic.frame["grade"].cat.as_ordered())
REPEATED = FRAME.loc[np.repeat(np.arange(N), COUNTS)].reset_index(drop=True)
NEW = SCHEMA.conform(rows(7, 2)).assign(year=[1910, 1930, 1940, 1950, 1960, 1970, 1990])


@dataclass(frozen=True)
class Recipe:
    """A model of a page, and the parameters of its response that the page predicts."""

    formula: Any
    family: str = "gaussian"
    predicted: tuple[str, ...] = ("mu",)
    options: dict[str, Any] = field(default_factory=dict)

    def built(self, frame: pd.DataFrame, **more: Any) -> Any:
        model = bmb.Model(self.formula, frame, family=self.family, **self.options, **more)
        model.build()
        return model


KNOTS = {"knots": np.array([1925.0, 1950.0, 1975.0])}
#: Whole bases of splines; newer versions of formulae centre others by the rows that they see.
WHOLE = "center=False" if tuple(map(int, version("formulae").split(".")[:2])) > (0, 6) else "intercept=True"
RECIPES = {
    "Zero inflated models": Recipe("count ~ x + g", "zero_inflated_poisson"),
    "Zero inflated models, with psi": Recipe(
        bmb.Formula("count ~ x + g", "psi ~ g"), "zero_inflated_poisson", ("mu", "psi")
    ),
    "Zero inflated models, hurdle": Recipe(bmb.Formula("count ~ x", "psi ~ x"), "hurdle_poisson", ("mu", "psi")),
    "Negative Binomial regression": Recipe("count ~ 0 + g + x + g:x", "negativebinomial"),
    "Count Regression with Variable Exposure": Recipe("count ~ x + f + offset(log(exposure))", "poisson"),
    "Beta regression": Recipe(bmb.Formula("share ~ x", "kappa ~ g"), "beta", ("mu", "kappa")),
    "Wald and Gamma regression": Recipe("cost ~ f + g", "wald", options={"link": "log"}),
    "Distributional models": Recipe(
        bmb.Formula("cost ~ x", "alpha ~ x"), "gamma", ("mu", "alpha"), {"link": {"mu": "log", "alpha": "log"}}
    ),
    "Regression splines": Recipe(f"y ~ 0 + bs(year, knots=knots, {WHOLE})", options={"extra_namespace": KNOTS}),
    "Polynomial regression": Recipe("y ~ x + I(x**2)"),
    "Quantile regression": Recipe("y ~ x", "asymmetriclaplace", options={"priors": {"kappa": 3.0}}),
    "Survival models": Recipe("censored(time, status) ~ 1 + f", "weibull", options={"link": "log"}),
    "truncated": Recipe("truncated(y, lb=-6, ub=6) ~ x"),  # a function of Bambi's reference, without a page
    "Ordinal regression": Recipe("grade ~ x + f", "cumulative", ("p",)),
    "Ordinal regression, sequential": Recipe("grade ~ x + f", "sratio", ("p",)),
    "Categorical outcomes": Recipe("g ~ x", "categorical", ("p",)),
    "Logistic regression": Recipe("f['male'] ~ g + g:x", "bernoulli", ("p",)),
    "Alternative link functions": Recipe("p(k, n) ~ x", "binomial", ("p",), {"link": "cloglog"}),
    "Hierarchical logistic regression": Recipe("p(k, n) ~ 1 + (1|s)", "binomial", ("p",)),
    "Sleep deprivation": Recipe("y ~ 1 + x + (1 + x|s)"),
    "Radon contamination": Recipe("y ~ 0 + f + (0 + f|s)", options={"noncentered": False}),
    "Circular regression": Recipe("angle ~ x", "vonmises"),
    "Robust linear regression": Recipe("y ~ x", "t"),
    "Gaussian processes": Recipe("y ~ 0 + hsgp(x, m=5, L=4)"),
}
#: Gradients take longer than densities.
GRADIENTS = {
    "Zero inflated models, with psi", "Beta regression", "Distributional models", "Regression splines",
    "Sleep deprivation", "Survival models", "Categorical outcomes",
}  # fmt: skip
GROUPED = {"Hierarchical logistic regression", "Sleep deprivation", "Radon contamination", "MrP"}


def recipe(name: str) -> Any:
    """Recipes without a gradient, which are most, wait for ``--all``."""
    return pytest.param(name, marks=[] if name in {*GRADIENTS, "truncated"} else [pytest.mark.slow])


recipes = pytest.mark.parametrize("name", [*map(recipe, RECIPES)])


def predictable(names: Any) -> Any:
    """Parametrise by the recipes that Bambi can predict."""
    possible = [name for name in names if not (OLD and name in GROUPED)]
    return pytest.mark.parametrize("name", [recipe(name) if names is RECIPES else name for name in possible])


@cache
def models(name: str, centered: bool = False) -> tuple[Any, pm.Model, Any]:
    """Return Bambi's model of the release's rows, the same with weights, and Bambi's model of the repeated rows."""
    own, repeated = (RECIPES[name].built(frame, center_predictors=centered) for frame in (FRAME, REPEATED))
    return own, iw.reweight(own.backend.model, RELEASE), repeated


def drawn(weighted: pm.Model, n: int = 6) -> Any:
    """Draws of the prior, with the names and dims of the weighted model; deterministics of rows are left out."""
    names = [
        v.name for v in weighted.unobserved_RVs if "__obs__" not in (weighted.named_vars_to_dims.get(v.name) or ())
    ]
    idata = pm.sample_prior_predictive(n, model=weighted, var_names=names, random_seed=1)
    return arviz_compat.make({"posterior": arviz_compat.group(idata, "prior")})


def likelihood(model: pm.Model, gradient: bool = False) -> Any:
    """Function from a point to the log likelihood, its gradient if asked, and the log density of the prior."""
    total = sum(term.sum() for term in model.logp(vars=model.observed_RVs, sum=False))
    more = {"disconnected_inputs": "ignore", "return_disconnected": "zero"}
    gradient = pt.grad(total, model.value_vars, **more) if gradient else []
    outputs = [total, *gradient, model.logp(vars=model.free_RVs)]
    function = model.compile_fn(
        outputs, inputs=model.value_vars, mode=Mode("py", "fast_compile"), on_unused_input="ignore"
    )

    def evaluated(point: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        value, *slopes, prior = function(point)
        return value, np.concatenate([np.zeros(0), *map(np.ravel, slopes)]), prior

    return evaluated


def point_of(model: pm.Model, flat: np.ndarray) -> dict[str, np.ndarray]:
    start = model.initial_point(0)
    ends = np.cumsum([value.size for value in start.values()])
    parts = np.split(flat, ends[:-1])
    return {name: part.reshape(value.shape) for (name, value), part in zip(start.items(), parts, strict=True)}


@recipes
def test_density_and_gradient_are_those_of_repeated_rows(name):
    own, weighted, repeated = models(name)
    size = sum(value.size for value in weighted.initial_point(0).values())
    functions = [likelihood(model, name in GRADIENTS) for model in (weighted, repeated.backend.model)]
    prior = own.backend.model.compile_logp(vars=own.backend.model.free_RVs)
    for seed in range(2):
        point = point_of(weighted, np.random.default_rng(seed).normal(size=size) / 3)
        found, expected = (function(point) for function in functions)
        assert_allclose(found[0], expected[0], rtol=1e-8)
        assert_allclose(found[1], expected[1], rtol=1e-8, atol=1e-9)
        assert_allclose(found[2], prior(point), rtol=1e-8)


@pytest.mark.parametrize("name", ["Zero inflated models, with psi", "Sleep deprivation", "Distributional models"])
def test_with_centred_predictors_the_intercept_is_that_of_centred_rows(name):
    """Bambi centres predictors by the mean of the rows that it sees, which are others if rows are repeated."""
    own, weighted, repeated = models(name, centered=True)
    size = sum(value.size for value in weighted.initial_point(0).values())
    at = point_of(weighted, np.random.default_rng(1).normal(size=size) / 3)
    moved = dict(at)
    for key, part in own.backend.distributional_components.items():
        other = repeated.backend.distributional_components[key]
        before, after = (each.design_matrix_without_intercept.mean(axis=0) for each in (part, other))
        prefix = "" if key == own.family.likelihood.parent else f"{key}_"
        terms = np.concatenate([np.ravel(at[prefix + term]) for term in part.component.common_terms])
        moved[f"{prefix}Intercept"] = at[f"{prefix}Intercept"] + (after - before) @ terms
    found, expected = (likelihood(m)(p)[0] for m, p in ((weighted, at), (repeated.backend.model, moved)))
    assert_allclose(found, expected, rtol=1e-8)


@predictable(RECIPES)
def test_new_rows_are_predicted_as_from_repeated_rows(name):
    """Bambi's `predict` takes draws of the weighted model, by names, dims and labels."""
    own, weighted, repeated = models(name)
    idata, recipe = drawn(weighted), RECIPES[name]
    # PyMC draws no counts above zero with means that are tiny, as some of the prior are
    kind = "response_params" if "hurdle" in name else "response"
    found, expected = (one.predict(idata, kind=kind, data=NEW, inplace=False, random_seed=1) for one in (own, repeated))
    groups = [arviz_compat.group(one, "posterior") for one in (found, expected)]
    for parameter in recipe.predicted:
        assert groups[0][parameter].sizes["__obs__"] == len(NEW)
        assert_allclose(groups[0][parameter], groups[1][parameter], rtol=1e-8)
    if kind == "response_params":
        return
    responses = [arviz_compat.group(one, "posterior_predictive") for one in (found, expected)]
    [(label, values)] = responses[0].data_vars.items()
    assert_allclose(values, responses[1][label])


SAMPLING = {"draws": 5, "tune": 5, "chains": 1, "random_seed": 1, "progressbar": False}
SAMPLING |= {"compute_convergence_checks": False}


def test_bambis_fit_samples_a_weighted_backend():
    """Page "Alternative sampling backends": `fit` samples the model of the backend, and converts its intercept."""
    [own, weighted, _] = models("Sleep deprivation", centered=True)
    own = RECIPES["Sleep deprivation"].built(FRAME)
    own.backend.model = weighted
    found = own.fit(**SAMPLING, inference_method="pymc")
    plain = pm.sample(model=weighted, nuts_sampler="pymc", **SAMPLING)
    for name in ("x", "x|s", "sigma"):
        assert_allclose(values_of(found, name), values_of(plain, name))
    shift = FRAME["x"].mean() * values_of(plain, "x")
    assert_allclose(values_of(found, "Intercept"), values_of(plain, "Intercept") - shift, rtol=1e-8)
    if not OLD:
        assert_allclose(values_of(own.predict(found, inplace=False), "mu"), values_of(plain, "mu"), rtol=1e-8)
    # the draws of `fit` leave out what calibration moves
    with pytest.raises(ValueError, match=r"lacks the free variables \['1\|s_offset', 'x\|s_offset'\]"):
        iw.calibrate(found, weighted, RELEASE)


def test_sampled_ordinal_models_predict_levels():
    """Bambi's `fit` leaves out the parameters of rows; those of ordinal models have dims that do not fit them."""
    own, weighted, repeated = models("Ordinal regression")
    names = [rv.name for rv in weighted.free_RVs]
    idata = pm.sample(model=weighted, nuts_sampler="pymc", var_names=names, **SAMPLING)
    found, expected = (values_of(one.predict(idata, data=NEW, inplace=False), "p") for one in (own, repeated))
    assert_allclose(found, expected, rtol=1e-8)
    assert_allclose(found.sum(axis=-1), 1, rtol=1e-8)


@pytest.mark.filterwarnings("ignore:'sample_new_groups' is deprecated:FutureWarning")
@pytest.mark.filterwarnings("ignore:Constructing a Categorical with a dtype")  # of formulae, with pandas 3
@pytest.mark.skipif(OLD, reason="Bambi 0.16 cannot predict group effects with current versions of what it needs")
def test_predict_new_groups():
    """Page "Predict new groups": effects of a new group are those of a random known group, at each draw."""
    own, weighted, _ = models("Hierarchical logistic regression")
    idata, new = drawn(weighted), NEW.astype({"s": str}).assign(s="elsewhere")
    with pytest.raises(ValueError, match="new groups"):
        own.predict(idata, data=new, inplace=False)
    found = values_of(own.predict(idata, data=new, inplace=False, sample_new_groups=True), "p")
    logits = values_of(idata, "Intercept")[:, None] + values_of(idata, "1|s")
    known = 1 / (1 + np.exp(-logits))
    assert np.all(np.abs(found[:, :1] - known).min(axis=1) < 1e-9)


@pytest.mark.parametrize("name", ["Survival models", "Logistic regression", "Zero inflated models"])
def test_log_likelihoods_are_those_of_repeated_rows(name):
    """Page "Model comparison with ArviZ": terms of rows, and their weighted sums."""
    _, weighted, repeated = models(name)
    idata = drawn(weighted)
    found = iw.log_likelihood(idata, weighted)
    model, [rv] = repeated.backend.model, weighted.observed_RVs
    terms = pm.compute_log_likelihood(idata, model=model, extend_inferencedata=False, progressbar=False)
    expected = np.asarray(terms[rv.name]).reshape(6, -1)
    plain = values_of(found, rv.name, "log_likelihood")
    assert_allclose(np.repeat(plain, COUNTS, axis=1), expected, rtol=1e-8)
    assert_allclose(values_of(found, rv.name, "log_likelihood_weighted").sum(1), expected.sum(1), rtol=1e-8)


FITS = {
    "Count Regression with Variable Exposure": ("count ~ x + f + offset(log(exposure))", "poisson", "mu", None),
    "Negative Binomial regression": ("count ~ 0 + g + x + g:x", "negativebinomial", "mu", None),
    "Wald and Gamma regression": ("cost ~ x + f + g", "gamma", "mu", {"link": "log"}),
    "Polynomial regression": ("y ~ poly(x, 2) + f", "gaussian", "mu", None),
    "Robust linear regression": ("y ~ x * f", "t", "mu", None),
    "Logistic regression": ("b ~ g + g:x", "bernoulli", "p", None),
    "Sleep deprivation": ("y ~ x + (x|s)", "gaussian", "mu", None),
    "MrP": ("p(k, n) ~ x + (1|s) + (1|g)", "binomial", "p", None),
    "Ordinal regression": ("grade ~ x + f", "cumulative", "p", None),
    "Zero inflated models": ("count ~ x + g", "zero_inflated_poisson", "mu", None),
    "Zero inflated models, hurdle": ("count ~ x + g", "hurdle_poisson", "mu", None),
}


@cache
def fitted(name: str) -> tuple[Any, Any, Any]:
    """Return an iwbayes fit of a recipe with random draws, and Bambi's models of the rows and of the repeated rows."""
    formula, family, _, options = FITS[name]
    both = [
        Recipe(formula, family, options=options or {}).built(frame, center_predictors=False)
        for frame in (FRAME, REPEATED)
    ]
    return drawn_fit(formula, family, RELEASE)[1], *both


def of_bambi(idata: Any) -> Any:
    """Return a copy of the posterior, to which Bambi adds, and the rows that it observed."""
    rows_of_bambi = xr.Dataset({"row": ("__obs__", np.arange(len(REPEATED)))}, {"__obs__": np.arange(len(REPEATED))})
    return arviz_compat.make({"posterior": arviz_compat.group(idata, "posterior"), "observed_data": rows_of_bambi})


@predictable(FITS)
def test_fits_predict_new_rows_as_bambi_does(name):
    """At the same draws; Bambi predicts the mean of counts before zeros are added or taken out."""
    idata, own, _ = fitted(name)
    found = values_of(iw.predictions(idata, NEW), FITS[name][0].split(" ~ ")[0].removeprefix("p(").removesuffix(", n)"))
    expected = values_of(own.predict(of_bambi(idata), data=NEW, inplace=False), FITS[name][2])
    if name.startswith("Zero"):
        psi = values_of(idata, "psi")[:, None]
        expected = psi * expected / (1 - np.exp(-expected) if "hurdle" in name else 1)
    assert_allclose(found, expected, rtol=1e-8)


AVERAGED = ["Negative Binomial regression", "Wald and Gamma regression", "Logistic regression"]


@pytest.mark.filterwarnings("ignore:is_categorical_dtype is deprecated")  # of Bambi 0.16, with pandas 3
@pytest.mark.parametrize("by", [None, "g"])
@pytest.mark.parametrize("name", AVERAGED)
def test_comparisons_average_over_rows_as_bambi_does_over_repeated_rows(name, by):
    """Page "Comparisons": averages of all rows, and of those with each level of a column."""
    idata, _, repeated = fitted(name)
    average = by or (True if OLD else "all")
    theirs = bmb.interpret.comparisons(repeated, of_bambi(idata), contrast={"x": [-1.0, 1.0]}, average_by=average)
    found = iw.comparisons(idata, RELEASE, contrast={"x": [-1, 1]}, rows="fixed", **({"by": by} if by else {}))
    assert_allclose(values_of(found, "x").mean(axis=0).ravel(), estimates(theirs, by), rtol=1e-7)


@predictable([*AVERAGED, "Sleep deprivation"])
def test_slopes_average_over_rows_as_predictions_of_bambi_do(name):
    """Bambi's own slopes are those at the mean of the column, so differences of its predictions are the reference."""
    idata, _, repeated = fitted(name)
    step = 1e-5
    up, down = (
        values_of(repeated.predict(of_bambi(idata), data=moved, inplace=False), FITS[name][2])
        for moved in (REPEATED.assign(x=REPEATED["x"] + way * step) for way in (1, -1))
    )
    found = values_of(iw.slopes(idata, RELEASE, wrt="x", rows="fixed"), "x")
    assert_allclose(found, (up - down).mean(axis=1) / (2 * step), rtol=1e-5, atol=1e-9)


def estimates(found: Any, by: str | None) -> np.ndarray:
    table = getattr(found, "summary", found)
    return (table.sort_values(by) if by else table)["estimate"].to_numpy()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::iwbayes.utils.warnings.CalibrationWarning")
def test_calibration_is_that_of_the_model_by_hand():
    """Page "Distributional models": the record and the draws do not depend on who wrote the density."""
    release = make_release()
    frame = release.synthetic.frame
    priors = {"Intercept": bmb.Prior("Normal", mu=0, sigma=2), "x": bmb.Prior("Normal", mu=0, sigma=1)}
    formula, every = bmb.Formula("y ~ x", "sigma ~ x"), {**priors, "sigma": priors}
    built = bmb.Model(formula, frame, priors=every, center_predictors=False)
    built.build()
    with pm.Model() as by_hand:
        a, b, c, d = (
            pm.Normal(f"{prefix}{name}", 0, sd)
            for prefix in ("", "sigma_")
            for name, sd in (("Intercept", np.array(2.0)), ("x", np.array(1.0)))
        )
        x = frame["x"].to_numpy()
        pm.Normal("y", a + b * x, pm.math.exp(c + d * x), observed=frame["y"].to_numpy())
    both = [iw.reweight(model, release) for model in (built.backend.model, by_hand)]
    idata, _ = start_of(both[1], 100)
    found, expected = (iw.calibrate(idata, model, release, random_seed=1) for model in both)
    records = [arviz_compat.group(one, "calibration") for one in (found, expected)]
    assert records[0].attrs["verdict"] == records[1].attrs["verdict"]
    for name in ("Intercept", "x", "sigma_Intercept", "sigma_x"):
        assert_allclose(values_of(found, name), values_of(expected, name), rtol=1e-6, atol=1e-9)
    order = records[1]["parameter"].to_numpy()
    for name in ("sd_calibrated", "explained", "kappa"):
        assert_allclose(records[0][name].sel(parameter=order), records[1][name], rtol=1e-5)


@pytest.mark.parametrize(
    ("formula", "family", "error", "message"),
    [
        ("f['male'] ~ g + g:x", "bernoulli", ValueError, r"\"f\['male'\]\". Write f ~ ...: the last"),
        ("constrained(y, lb=-9) ~ x", None, ValueError, r"must use columns of the schema; got \['constrained'\]"),
        ("y ~ hsgp(x, m=5, c=2)", None, ValueError, r"must use columns of the schema; got \['hsgp'\]"),
        ("cost ~ f", "wald", ValueError, "got 'wald'.* Other families need a PyMC or Bambi"),
        ("grade ~ x", "sratio", ValueError, "family must be one of .*; got 'sratio'"),
        ("y ~ bs(x, df=5, intercept=True)", None, ValueError, "unexpected keyword argument 'intercept'"),
        (bmb.Formula("cost ~ x", "alpha ~ x"), "gamma", TypeError, "formula must be a string .* got Formula"),
    ],
)
def test_recipes_that_fit_refuses(formula, family, error, message):
    """Weighted Bambi models take all of them but the last argument of `bs`, which formulaic names otherwise."""
    with pytest.raises(error, match=message):
        iw.fit(formula, RELEASE, family=family)


@pytest.mark.parametrize("name", ["Survival models", "truncated"])
def test_fit_has_the_limits_of_bambi(name):
    recipe, (_, weighted, _) = RECIPES[name], models(name)
    own = iw.reweight(regression(recipe.formula, RELEASE, family=recipe.family), RELEASE)
    point = {key: np.asarray(value) + 0.3 for key, value in own.initial_point(1).items()}
    assert set(point) == set(weighted.initial_point(1))
    found, expected = (likelihood(model)(point)[0] for model in (own, weighted))
    assert_allclose(found, expected, rtol=1e-8)


def test_a_bambi_model_is_not_yet_a_pymc_model():
    """The message says how it becomes one, before anything is sampled."""
    own, weighted, _ = models("Polynomial regression")
    idata = drawn(weighted)
    for call in (
        lambda: iw.reweight(own, RELEASE),
        lambda: iw.sample(own, RELEASE),
        lambda: iw.calibrate(idata, own, RELEASE),
        lambda: iw.pool(own, RELEASE),
        lambda: iw.log_likelihood(idata, own),
        lambda: iw.averages(idata, RELEASE, own, lambda draws, rows: {"x": draws["x"]}),
    ):
        with pytest.raises(TypeError, match=r"got Model. Build the Bambi model with center_predictors=False .*backend"):
            call()


def test_priors_are_those_of_pymc():
    with pytest.raises(TypeError, match=r"must be a distribution such as pm.Normal.dist\(0, 1\); got Prior"):
        regression("y ~ x", RELEASE, priors={"x": bmb.Prior("Normal", mu=0, sigma=1)})
