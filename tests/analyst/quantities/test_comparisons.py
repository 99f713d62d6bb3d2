"""comparisons(): g-computation by hand, levels, values and steps, ratios, groups, Bambi, and refusals."""

from dataclasses import replace

import arviz as az
import numpy as np
import pandas as pd
import pytest
import xarray as xr
from factories import make_release, release_of
from posterior_tools import coefficients, drawn_fit, values_of
from scipy.special import expit

import iwbayes as iw
from iwbayes.analyst import arviz_compat
from iwbayes.release.weights import Weights
from iwbayes.schema import Binary, Categorical, Integer, Real, Schema
from iwbayes.tables import SyntheticTable

RELEASE = make_release(n=80)
FRAME = RELEASE.synthetic.frame
P = RELEASE.weights.values / RELEASE.weights.values.sum()
X, K = FRAME["x"].to_numpy(), FRAME["k"].to_numpy(dtype=float)


def fixed(idata, release=RELEASE, **options):
    return iw.comparisons(idata, release, rows="fixed", **options)


def averages(idata, name, column, values, shares=P):
    """Averages of the predicted means with a column at each value, each (draw, ...)."""
    found = [values_of(iw.predictions(idata, FRAME.assign(**{column: value})), name) for value in values]
    return [np.tensordot(means, shares, axes=(1, 0)) for means in found]


# differences


def test_contrasts_of_a_linear_model_are_its_coefficients():
    _, idata = drawn_fit("y ~ x + k + g + z", "gaussian", RELEASE)
    found = fixed(idata)
    for name in ("g", "z"):
        np.testing.assert_allclose(values_of(found, name), values_of(idata, name), rtol=1e-9)
    contrasts = arviz_compat.group(found, "posterior")
    assert list(contrasts.data_vars) == ["g", "z"]  # in the schema's order
    assert list(contrasts["g"]["g_dim"].values) == ["v", "w"] and contrasts["g"].attrs["reference"] == "u"
    assert list(contrasts["z"]["z_dim"].values) == ["yes"] and contrasts.attrs["comparison"] == "difference"
    assert len(az.summary(found)) == 3
    # one unit more, another step, values, and in the order that is asked for
    found = fixed(idata, contrast={"k": None, "x": -0.5})
    contrasts = arviz_compat.group(found, "posterior")
    assert list(contrasts.data_vars) == ["k", "x"] and contrasts["x"].attrs == {"step": -0.5}
    np.testing.assert_allclose(values_of(found, "k"), values_of(idata, "k"), rtol=1e-9)
    np.testing.assert_allclose(values_of(found, "x"), -0.5 * values_of(idata, "x"), rtol=1e-9)
    found = fixed(idata, contrast={"x": np.array([2, 0.5, -1])})
    contrasts = arviz_compat.group(found, "posterior")["x"]
    assert list(contrasts["x_dim"].values) == ["0.5", "-1"] and contrasts.attrs == {"reference": "2"}
    np.testing.assert_allclose(values_of(found, "x"), values_of(idata, "x")[:, None] * [-1.5, -3], rtol=1e-9)


def test_differences_of_probabilities_by_hand():
    design, idata = drawn_fit("z ~ center(x) + x:g + g", "bernoulli", RELEASE)
    beta = coefficients(design, idata)[:, :, 0]
    at = {level: expit(beta @ build_at(design, FRAME.assign(g=level)).T) @ P for level in "uvw"}
    expected = np.stack([at["v"] - at["u"], at["w"] - at["u"]], axis=1)
    np.testing.assert_allclose(values_of(fixed(idata), "g"), expected, rtol=1e-10)
    for order in (["w", "u"], ("v", "w", "u")):
        expected = np.stack([at[level] - at[order[0]] for level in order[1:]], axis=1)
        np.testing.assert_allclose(values_of(fixed(idata, contrast={"g": order}), "g"), expected, rtol=1e-10)
    low, high = (expit(beta @ build_at(design, FRAME.assign(x=x)).T) @ P for x in (-1.0, 2.0))
    np.testing.assert_allclose(values_of(fixed(idata, contrast={"x": [-1, 2]}), "x")[:, 0], high - low, rtol=1e-10)
    np.testing.assert_allclose(
        values_of(fixed(idata, contrast={"x": [-1, 2]}, comparison="ratio"), "x")[:, 0], high / low, rtol=1e-10
    )


def build_at(design, frame):
    """Design of changed rows, the columns written out: Intercept, center(x), x:g, g in formulaic's order."""
    columns = {"Intercept": [np.ones(len(frame))], "center(x)": [frame["x"] - X.mean()]}
    columns["x:g"] = [frame["x"] * (frame["g"] == level) for level in "uvw"]
    columns["g"] = [(frame["g"] == level).astype(float) for level in "vw"]
    return np.column_stack([column for term in design.terms for column in columns[term.name]])


def test_steps_stay_within_the_range_of_the_rows():
    """A spline cannot be evaluated outside."""
    _, idata = drawn_fit("y ~ bs(x, df=4) + np.log1p(k)", "gaussian", RELEASE)
    for name, column, steps in (("x", X, (1, 0.3, -2)), ("k", K.astype(int), (1, 2, -1))):
        for step in steps:
            start = np.clip(column, column.min() - min(step, 0), column.max() - max(step, 0))
            below, above = (
                values_of(iw.predictions(idata, FRAME.assign(**{name: np.clip(own, column.min(), column.max())})), "y")
                @ P
                for own in (start, start + step)
            )
            found = values_of(fixed(idata, contrast={name: step}), name)
            np.testing.assert_allclose(found, above - below, rtol=1e-9, atol=1e-12)
    # most rows are where they were
    assert (X <= X.max() - 1).mean() > 0.9


CASES = [
    ("y ~ x*z + g", "gaussian", {"z": None, "g": ["w", "v"]}),
    ("z ~ x + k*g", "bernoulli", {"g": None, "k": [0, 3, 1]}),
    ("k ~ poly(x, 2) * g", "poisson", {"x": [0.5, -1], "g": None}),
    ("g ~ x + z", "categorical", {"z": None, "x": [-1, 1]}),
]


@pytest.mark.parametrize("comparison", ["difference", "ratio"])
@pytest.mark.parametrize(("formula", "family", "contrast"), CASES)
def test_g_computation(formula, family, contrast, comparison):
    """Averages of predictions with a column set, over all rows and over those of each level of a column."""
    shape = None
    if family == "gaussian":  # ratios need means above zero
        p = drawn_fit(formula, family, RELEASE)[0].n_parameters
        shape = 0.1 * np.random.default_rng(0).normal(size=(2, 3, p)) + 9 * (np.arange(p) == 0)
    design, idata = drawn_fit(formula, family, RELEASE, shape)
    levels = {"z": ["no", "yes"], "g": ["u", "v", "w"]}
    whole = fixed(idata, contrast=contrast, comparison=comparison)
    grouped = fixed(idata, contrast=contrast, comparison=comparison, by="z")
    assert arviz_compat.group(grouped, "posterior")["by_z"].values.tolist() == ["no", "yes"]
    for name, given in contrast.items():
        values = given or levels[name]
        for group in (None, "no", "yes"):
            shares = P if group is None else np.where(FRAME["z"] == group, P, 0) / P[FRAME["z"] == group].sum()
            first, *others = averages(idata, design.name, name, values, shares)
            change = [other - first if comparison == "difference" else other / first for other in others]
            own = values_of(whole, name) if group is None else values_of(grouped, name)[:, ["no", "yes"].index(group)]
            np.testing.assert_allclose(own, np.stack(change, axis=1), rtol=1e-9, atol=1e-12)
    if family == "categorical":
        dims = arviz_compat.group(grouped, "posterior")["x"].dims
        assert dims == ("chain", "draw", "by_z", "x_dim", "g_dim")
    drawn = arviz_compat.group(iw.comparisons(idata, RELEASE, contrast=contrast, comparison=comparison), "posterior")
    assert all(
        np.isfinite(drawn[name]).all() and (comparison == "difference" or (drawn[name] > 0).all()) for name in drawn
    )


def test_a_level_of_a_column_is_the_same_as_its_rows_alone():
    for average, name in ((iw.slopes, "x"), (iw.comparisons, "g")):
        _, idata = drawn_fit("z ~ x*g", "bernoulli", RELEASE)
        found = arviz_compat.group(average(idata, RELEASE, by="k", rows="fixed"), "posterior")[name]
        for k in found["by_k"].values:
            with np.errstate(divide="ignore"):
                weights = Weights(np.where(FRAME["k"] == k, RELEASE.weights.log_weights[0], -np.inf), "one level")
            alone = replace(RELEASE, weights=weights)
            _, own = drawn_fit("z ~ x*g", "bernoulli", alone)
            np.testing.assert_allclose(
                found.sel(by_k=k), arviz_compat.group(average(own, alone, rows="fixed"), "posterior")[name], rtol=1e-9
            )


def test_the_effect_on_the_treated():
    """The column that is compared may be the one that makes the groups."""
    _, idata = drawn_fit("y ~ x*z", "gaussian", RELEASE)
    found = values_of(fixed(idata, contrast="z", by="z"), "z")[..., 0]
    for index, level in enumerate(("no", "yes")):
        own = (FRAME["z"] == level).to_numpy()
        expected = values_of(idata, "z")[:, 0] + values_of(idata, "x:z")[:, 0] * (P[own] @ X[own] / P[own].sum())
        np.testing.assert_allclose(found[:, index], expected, rtol=1e-9)


def test_rows_without_a_group_are_left_out():
    frame = FRAME.assign(h=pd.array(np.where(np.arange(80) % 3, "a", None), dtype=object))
    schema = Schema(*(RELEASE.synthetic.schema[name] for name in FRAME), Categorical("h", ("a", "b"), missing=True))
    release = release_of(SyntheticTable(frame, schema), RELEASE.weights.log_weights[0])
    _, idata = drawn_fit("y ~ x*z", "gaussian", release)
    found = arviz_compat.group(fixed(idata, release, by="h"), "posterior")["z"]
    assert found["by_h"].values.tolist() == ["a"]  # no row has the other
    own = np.arange(80) % 3 > 0
    expected = values_of(idata, "z")[:, 0] + values_of(idata, "x:z")[:, 0] * (P[own] @ X[own] / P[own].sum())
    np.testing.assert_allclose(np.asarray(found).ravel(), expected, rtol=1e-9)


def test_names_of_contrasts_are_those_of_coefficients():
    rng = np.random.default_rng(2)
    frame = pd.DataFrame({
        "y": rng.normal(size=60), "c": rng.choice([1, 2, 3], 60), "b": rng.random(60) < 0.5,
        "t": rng.integers(0, 2, 60), "d": rng.integers(0, 2, 60),
    })  # fmt: skip
    columns = Categorical("c", (3, 1, 2)), Binary("b", (False, True)), Binary("t"), Categorical("d", (0, 1))
    release = release_of(SyntheticTable(frame, Schema(Real("y", -9, 9), *columns)))
    _, idata = drawn_fit("y ~ c + b + t + d", "gaussian", release)
    found = fixed(idata, release)
    assert {*arviz_compat.summary(found).index} == {*arviz_compat.summary(idata).index} - {"Intercept", "sigma"}
    contrasts, own = arviz_compat.group(found, "posterior"), arviz_compat.group(idata, "posterior")
    for name in contrasts.data_vars:
        np.testing.assert_allclose(contrasts[name], own[name], rtol=1e-9)


def test_numbers_as_levels():
    _, idata = drawn_fit("y ~ C(k)", "gaussian", RELEASE)
    found = fixed(idata)
    np.testing.assert_allclose(values_of(found, "k"), values_of(idata, "C(k)"), rtol=1e-9, atol=1e-12)
    levels = sorted(set(K.astype(int)))
    assert list(arviz_compat.group(found, "posterior")["k_dim"].values) == [str(k) for k in levels[1:]]
    np.testing.assert_allclose(
        values_of(fixed(idata, contrast={"k": [levels[1], levels[0]]}), "k"),
        -values_of(idata, "C(k)")[:, :1],
        rtol=1e-9,
    )


# Bambi


@pytest.mark.interpreted
@pytest.mark.parametrize("comparison", ["difference", "ratio"])
def test_averages_are_those_of_bambi(comparison):
    """Its comparisons of a single row, where average and row are one, at the same draws of a logistic model."""
    bambi = pytest.importorskip("bambi", reason="Bambi is not installed")
    frame = FRAME.assign(z=(FRAME["z"] == "yes").astype(int))[["x", "g", "z"]]
    model = bambi.Model("z ~ x + g", frame, family="bernoulli")
    model.build()
    _, idata = drawn_fit("z ~ x + g", "bernoulli", RELEASE)
    b = arviz_compat.group(idata, "posterior")
    own = xr.Dataset({name: b[name] for name in ("Intercept", "x", "g")})
    seen = xr.Dataset({"z": ("__obs__", frame["z"])}, {"__obs__": np.arange(len(frame))})
    draws = arviz_compat.make({"posterior": own.assign_coords(g_dim=["v", "w"]), "observed_data": seen})
    name = "comparison_type" if tuple(map(int, bambi.__version__.split(".")[:2])) < (0, 18) else "comparison"
    options = {"conditional": {"x": [0.5]}, name: {"difference": "diff", "ratio": "ratio"}[comparison]}
    theirs = bambi.interpret.comparisons(model, draws, contrast={"g": ["u", "w"]}, **options)
    theirs = getattr(theirs, "summary", theirs)
    one = release_of(SyntheticTable(FRAME.iloc[:30].assign(x=0.5), RELEASE.synthetic.schema))
    _, ours = drawn_fit("z ~ x + g", "bernoulli", one)
    ours = arviz_compat.make(
        {"posterior": b.assign_attrs(arviz_compat.group(ours, "posterior").attrs)}
        | {"observed_data": arviz_compat.group(ours, "observed_data")}
    )
    found = values_of(fixed(ours, one, contrast={"g": ["u", "w"]}, comparison=comparison), "g")
    assert float(theirs["estimate"].iloc[0]) == pytest.approx(found.mean(), rel=1e-9)


# refusals


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"contrast": ["q"]}, ValueError, r"contrast must name predictors of .*; got \['q'\]. .* of \['x', 'g', 'k'\]"),
        ({"contrast": {}}, ValueError, "got none"),
        (
            {"contrast": 3},
            TypeError,
            "contrast must be the name of a column, a list of names, or a dict of name to values; got 3",
        ),
        (
            {"contrast": {"g": ["u", "q"]}},
            ValueError,
            r"contrast must give levels of 'g' that occur in the fit; got \['q'\]",
        ),
        ({"contrast": {"g": "v"}}, ValueError, "contrast must compare 2 to 100 values of 'g'; got 1"),
        ({"contrast": {"g": ["v", "v"]}}, ValueError, "contrast must give at least one value for 'g', without repeats"),
        (
            {"contrast": {"x": [0, 9]}},
            ValueError,
            r"numbers within the declared bounds \[-3, 3\] for 'x'; got \[9\]. The model was not",
        ),
        ({"contrast": {"x": [0, np.nan]}}, ValueError, r"for 'x'; got \[nan\]"),
        ({"contrast": {"x": [0, "1"]}}, ValueError, r"for 'x'; got \['1'\]"),
        (
            {"contrast": {"k": [0, 1.5]}},
            ValueError,
            r"whole numbers within the declared bounds .* for 'k'; got \[1.5\]",
        ),
        ({"contrast": {"x": 0}}, ValueError, "the step of 'x' in contrast must be a nonzero number"),
        ({"contrast": {"x": 7}}, ValueError, "number of at most .*, the range of its values; got 7"),
        ({"contrast": {"k": 0.5}}, ValueError, "the step of 'k' in contrast must be a nonzero whole number"),
        ({"contrast": {"x": "1"}}, ValueError, "the step of 'x'.*got '1'"),
        ({"contrast": {"x": True}}, ValueError, "the step of 'x'.*got True"),
        ({"comparison": "diff"}, ValueError, r"comparison must be one of \['difference', 'ratio'\]; got 'diff'"),
        ({"rows": "all"}, ValueError, r"rows must be one of \['random', 'fixed'\]"),
        ({"by": "x"}, ValueError, "by must be a Categorical, Binary, Integer or Date column"),
    ],
)
def test_options_that_do_not_fit_are_refused(options, error, message):
    _, idata = drawn_fit("z ~ x + g + k", "bernoulli", RELEASE)
    with pytest.raises(error, match=message):
        iw.comparisons(idata, RELEASE, **options)


def test_ratios_of_means_that_are_not_positive_are_refused():
    _, idata = drawn_fit("y ~ g", "gaussian", RELEASE)
    with pytest.raises(ValueError, match="needs positive average means at every draw; the smallest is -.*'difference'"):
        iw.comparisons(idata, RELEASE, comparison="ratio")


def test_what_cannot_be_compared_is_refused():
    _, idata = drawn_fit("z ~ x", "bernoulli", RELEASE)
    with pytest.raises(ValueError, match="if no predictor has levels, .* Name a number"):
        iw.comparisons(idata, RELEASE)
    frame = pd.DataFrame({"y": [0.0, 1, 2, 1], "a": ["u", "u", "v", "v"], "b": ["s", "t", "s", "s"], "n": [1, 1, 1, 1]})
    columns = Real("y", -9, 9), Categorical("a", ("u", "v")), Categorical("b", ("s", "t")), Integer("n", 0, 9)
    release = release_of(SyntheticTable(frame, Schema(*columns)))
    with pytest.warns(UserWarning, match="zero in all rows"):
        _, idata = drawn_fit("y ~ a*b + n", "gaussian", release)
    with pytest.raises(ValueError, match=r"columns \['a\[T.v\]:b\[T.t\]'\] of the design matrix must be zero"):
        fixed(idata, release)
    with pytest.raises(ValueError, match="of at most 0, the range of its values"):
        fixed(idata, release, contrast="n")
