"""predictions(): against numpy by hand, with the transformations of the fit, over grids, from files, and refusals."""

import itertools
import json
import warnings

import arviz as az
import numpy as np
import pandas as pd
import pytest
from factories import SCHEMA, make_release, release_of
from posterior_tools import coefficients, drawn_fit, values_of
from scipy.special import expit, softmax

import iwbayes as iw
from iwbayes.analyst import arviz_compat
from iwbayes.analyst.regression import design_record
from iwbayes.analyst.regression.design_record import read_design
from iwbayes.models.design import build_design
from iwbayes.schema import Binary, Integer, Real, Schema
from iwbayes.tables import SyntheticTable

RELEASE = make_release(n=60)
FRAME = RELEASE.synthetic.frame
NEW = pd.DataFrame({"x": [-1.5, 0.0, 2.25], "g": ["w", "u", "v"], "k": [0, 3, 7], "z": ["yes", "no", "yes"]})
FORMULAS = [
    ("y ~ x*g + z", "gaussian"),
    ("z ~ center(x) + scale(k)", "bernoulli"),
    ("k ~ poly(x, 2) + g", "poisson"),
    ("g ~ bs(x, df=4) + z - 1", "categorical"),
    ("z ~ np.log1p(k) + I(x**2) + C(g, contr.treatment('v'))", "bernoulli"),
    ("y ~ cr(x, df=4, constraints='center'):z + C(z)", "gaussian"),
    ("np.exp(y * 0.1) ~ . - m - y", "gaussian"),
]


@pytest.fixture(scope="module")
def fitted():
    with warnings.catch_warnings():
        # whether these few rows are inside the domain does not matter here
        warnings.simplefilter("ignore", iw.CalibrationWarning)
        return iw.fit(
            "z ~ center(x) + g", RELEASE, family="bernoulli", draws=50, chains=2, method="laplace", random_seed=1
        )


# by hand


def test_means_of_every_family_by_hand():
    x, row = NEW["x"].to_numpy(), {"row": [0, 1, 2]}
    _, idata = drawn_fit("z ~ x + g", "bernoulli", RELEASE)
    b = arviz_compat.group(idata, "posterior")
    eta = b["Intercept"].values[..., None] + b["x"].values[..., None] * x
    eta[..., 0] += b["g"].sel(g_dim="w").values
    eta[..., 2] += b["g"].sel(g_dim="v").values
    linear, mean = (
        arviz_compat.group(iw.predictions(idata, NEW, kind=kind), "posterior")["z"] for kind in ("linear", "mean")
    )
    assert mean.dims == ("chain", "draw", "row") and list(mean["row"].values) == row["row"]
    np.testing.assert_allclose(linear, eta, rtol=1e-13)
    np.testing.assert_allclose(mean, expit(eta), rtol=1e-13)
    assert mean.attrs["levels"] == ["no", "yes"]
    _, idata = drawn_fit("k ~ x", "poisson", RELEASE)
    b = arviz_compat.group(idata, "posterior")
    expected = np.exp(b["Intercept"].values[..., None] + b["x"].values[..., None] * x)
    np.testing.assert_allclose(arviz_compat.group(iw.predictions(idata, NEW), "posterior")["k"], expected, rtol=1e-13)
    _, idata = drawn_fit("y ~ 1", "gaussian", RELEASE)
    b = arviz_compat.group(idata, "posterior")
    mean = arviz_compat.group(iw.predictions(idata, NEW[[]]), "posterior")["y"]
    np.testing.assert_array_equal(mean, np.repeat(b["Intercept"].values[..., None], 3, axis=2))


def test_probabilities_of_levels_by_hand():
    _, idata = drawn_fit("g ~ x", "categorical", RELEASE)
    b = arviz_compat.group(idata, "posterior")
    slopes = b["x"].transpose("chain", "draw", "g_reduced_dim").values
    eta = b["Intercept"].values[:, :, None] + slopes[:, :, None] * NEW["x"].to_numpy()[:, None]
    linear, mean = (
        arviz_compat.group(iw.predictions(idata, NEW, kind=kind), "posterior")["g"] for kind in ("linear", "mean")
    )
    assert linear.dims == ("chain", "draw", "row", "g_reduced_dim") and list(linear["g_reduced_dim"].values) == [
        "v",
        "w",
    ]
    assert mean.dims == ("chain", "draw", "row", "g_dim") and list(mean["g_dim"].values) == ["u", "v", "w"]
    np.testing.assert_allclose(linear, eta, rtol=1e-13)
    with_reference = np.concatenate([np.zeros((*eta.shape[:3], 1)), eta], axis=3)
    np.testing.assert_allclose(mean, softmax(with_reference, axis=3), rtol=1e-12)


@pytest.mark.parametrize(("formula", "family"), FORMULAS)
def test_rows_of_the_fit_get_its_own_design(formula, family):
    design, idata = drawn_fit(formula, family, RELEASE)
    expected = np.einsum("ic,sck->sik", design.x, coefficients(design, idata))
    frame = FRAME.drop(columns="y") if design.name == "y" else FRAME
    found = values_of(iw.predictions(idata, frame, kind="linear"), design.name).reshape(expected.shape)
    np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-12)
    # nothing is learned from the new rows: each alone, and in another order, gives the same
    for index in (0, 31):
        alone = values_of(iw.predictions(idata, frame.iloc[[index]], kind="linear"), design.name)
        np.testing.assert_allclose(alone.reshape(expected[:, :1].shape), expected[:, [index]], rtol=1e-10, atol=1e-12)
    turned = values_of(iw.predictions(idata, frame.iloc[::-1, ::-1], kind="linear"), design.name)
    np.testing.assert_allclose(turned.reshape(expected.shape), expected[:, ::-1], rtol=1e-10, atol=1e-12)


def test_responses_have_the_law_of_the_family():
    shape, new = (2, 4000), NEW.iloc[:2]
    for formula, family in FORMULAS[:4]:
        p = build_design(formula, FRAME, SCHEMA, family).n_parameters
        theta = np.broadcast_to(0.2 * np.random.default_rng(1).normal(size=p), (*shape, p))
        design, idata = drawn_fit(formula, family, RELEASE, theta)
        drawn = iw.predictions(idata, new, kind="response", random_seed=3)
        values = values_of(drawn, design.name, "predictions")
        mean = values_of(iw.predictions(idata, new), design.name)[0]
        if family == "categorical":
            values = (values[:, :, None] == np.arange(3)).astype(float)
        error = 5 * np.maximum(values.std(axis=0), 1e-3) / np.sqrt(len(values))
        assert (np.abs(values.mean(axis=0) - mean) < error).all()
        if family == "gaussian":
            sigma = float(arviz_compat.group(idata, "posterior")["sigma"][0, 0])
            assert (np.abs(values.std(axis=0) / sigma - 1) < 5 / np.sqrt(2 * len(values))).all()
        again = iw.predictions(idata, new, kind="response", random_seed=3)
        np.testing.assert_array_equal(
            values_of(again, design.name, "predictions"), values_of(drawn, design.name, "predictions")
        )


# grids


def test_grids_by_hand():
    """Columns that vary, the first fastest; the others at weighted means and the heaviest levels."""
    _, idata = drawn_fit("z ~ x*g + k", "bernoulli", RELEASE)
    w = RELEASE.weights.values
    typical = {"x": w @ FRAME["x"] / w.sum(), "k": round(w @ FRAME["k"] / w.sum())}
    typical["g"] = max("uvw", key=lambda level: w[FRAME["g"] == level].sum())
    low, high = FRAME["x"].min(), FRAME["x"].max()
    cases = [
        ("g", {"g": ["u", "v", "w"]}),
        (["x"], {"x": np.linspace(low, high, 50)}),
        (("k", "g"), {"k": np.arange(FRAME["k"].min(), FRAME["k"].max() + 1), "g": ["u", "v", "w"]}),
        ({"g": ["w", "u"], "x": None}, {"g": ["w", "u"], "x": np.linspace(low, high, 50)}),
        ({"x": [2, -1.5], "k": 4, "g": "v"}, {"x": [2, -1.5], "k": [4], "g": ["v"]}),
    ]
    for conditional, values in cases:
        names = list(values)
        rows = [
            dict(zip(names, row[::-1], strict=True)) for row in itertools.product(*[values[n] for n in names[::-1]])
        ]
        frame = pd.DataFrame([{**typical, **row} for row in rows])
        for kind in ("mean", "linear"):
            found = arviz_compat.group(iw.predictions(idata, RELEASE, conditional=conditional, kind=kind), "posterior")
            expected = arviz_compat.group(iw.predictions(idata, frame, kind=kind), "posterior")
            np.testing.assert_allclose(found["z"], expected["z"], rtol=1e-11, atol=1e-13)
            assert list(found.attrs["conditional"]) == names and "conditional" not in expected.attrs
            for name in ("x", "g", "k"):
                assert found[name].dims == ("row",)
                same = np.testing.assert_array_equal if name == "g" else np.testing.assert_allclose
                same(found[name], frame[name])
    drawn = iw.predictions(idata, RELEASE, conditional="g", kind="response", random_seed=1)
    assert arviz_compat.group(drawn, "predictions")["z"].shape == (2, 3, 3)


def test_grids_of_numbers_with_levels_and_many_whole_numbers():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"y": rng.normal(size=300), "n": rng.integers(0, 1000, 300), "c": rng.choice([2, 5, 9], 300)})
    frame["b"] = rng.integers(0, 2, 300)
    release = release_of(
        SyntheticTable(frame, Schema(Real("y", -9, 9), Integer("n", 0, 999), Integer("c", 0, 9), Binary("b")))
    )
    _, idata = drawn_fit("y ~ n + C(c) + b", "gaussian", release)
    found = arviz_compat.group(iw.predictions(idata, release, conditional="n"), "posterior")
    n = np.asarray(found["n"])
    assert (
        n.dtype == np.int64 and len(np.unique(n)) == 50 and (n.min(), n.max()) == (frame["n"].min(), frame["n"].max())
    )
    assert set(np.asarray(found["c"])) == {frame["c"].mode()[0]} and set(np.asarray(found["b"])) == {
        frame["b"].mode()[0]
    }
    found = arviz_compat.group(iw.predictions(idata, release, conditional=["c", "b"]), "posterior")
    assert np.asarray(found["c"]).tolist() == [2, 5, 9] * 2 and np.asarray(found["b"]).tolist() == [0] * 3 + [1] * 3
    with pytest.raises(
        ValueError, match=r"conditional must give levels of 'c' that occur in the fit; got \[3\]. Use \[2, 5, 9\]"
    ):
        iw.predictions(idata, release, conditional={"c": 3})


@pytest.mark.parametrize(
    ("rows", "options", "error", "message"),
    [
        (RELEASE, {}, ValueError, "conditional must be given with a release and only with a release"),
        (NEW, {"conditional": "x"}, ValueError, "conditional must be given with a release and only with a release"),
        (RELEASE, {"conditional": "q"}, ValueError, r"conditional must name predictors .*got \['q'\]"),
        (RELEASE, {"conditional": []}, ValueError, "got none"),
        (RELEASE, {"conditional": 3}, TypeError, "conditional must be the name of a column.* got 3"),
        (RELEASE, {"conditional": {"x": [4]}}, ValueError, r"within the declared bounds \[-3, 3\] for 'x'; got \[4\]"),
        (RELEASE, {"conditional": {"x": []}}, ValueError, r"at least one value for 'x', without repeats; got \[\]"),
        (RELEASE, {"conditional": {"g": "q"}}, ValueError, r"levels of 'g' that occur in the fit; got \['q'\]"),
        (
            RELEASE,
            {"conditional": {"x": None, "k": range(50), "g": None, "z": None}},
            ValueError,
            "of at most 10,000 rows; it gives 15,000",
        ),
    ],
)
def test_grids_that_do_not_fit_are_refused(rows, options, error, message):
    _, idata = drawn_fit("y ~ x + g + k + z", "gaussian", RELEASE)
    with pytest.raises(error, match=message):
        iw.predictions(idata, rows, **options)


def test_a_grid_is_of_the_release_that_was_fitted(fitted):
    with pytest.raises(
        ValueError, match="both are 'TiltWeights', but their values differ. Pass the release that was fitted"
    ):
        iw.predictions(fitted, make_release(n=61), conditional="x")


# real fits, files, and ArviZ


def test_a_fit_from_a_file_predicts_the_same(fitted, tmp_path):
    expected = iw.predictions(fitted, NEW)
    arviz_compat.save(fitted, tmp_path / "fit.nc")
    found = iw.predictions(arviz_compat.load(tmp_path / "fit.nc"), NEW)
    np.testing.assert_array_equal(values_of(found, "z"), values_of(expected, "z"))
    arviz_compat.save(expected, tmp_path / "mean.nc")
    read = arviz_compat.group(arviz_compat.load(tmp_path / "mean.nc"), "posterior")
    np.testing.assert_array_equal(read["z"], arviz_compat.group(expected, "posterior")["z"])
    assert list(read["g"].values) == ["w", "u", "v"] and list(read["x"].values) == [-1.5, 0.0, 2.25]
    assert read.attrs["kind"] == "mean" and read.attrs["formula"] == "z ~ center(x) + g"
    assert len(az.summary(expected)) == 3
    # centred at the mean of the fit's rows
    b = arviz_compat.group(fitted, "posterior")
    eta = b["Intercept"] + b["center(x)"] * (NEW["x"][1] - FRAME["x"].mean())
    np.testing.assert_allclose(arviz_compat.group(expected, "posterior")["z"][:, :, 1], expit(eta), rtol=1e-12)


def test_the_calibration_of_the_draws_is_passed_on(fitted):
    made = iw.predictions(fitted, NEW)
    found, record = arviz_compat.group(made, "posterior").attrs, arviz_compat.group(made, "calibration")
    assert found["calibration"] == record.attrs["method"] == "tilt"
    assert found["verdict"] == record.attrs["verdict"] and list(record["parameter"].values) == ["z[0]", "z[1]", "z[2]"]
    _, idata = drawn_fit("z ~ x", "bernoulli", RELEASE)
    found = arviz_compat.group(iw.predictions(idata, NEW), "posterior").attrs
    assert (found["calibration"], found["verdict"]) == ("none", "not calibrated")


@pytest.mark.filterwarnings("ignore::iwbayes.CalibrationWarning")
def test_the_record_of_linear_predictors_names_the_level_of_two():
    options = {"draws": 20, "chains": 2, "method": "laplace", "random_seed": 1}
    idata = iw.fit("z ~ x", RELEASE, family="categorical", **options)
    found = iw.predictions(idata, NEW, kind="linear")
    names = list(arviz_compat.scalars(arviz_compat.group(found, "posterior")))
    assert (
        list(arviz_compat.group(found, "calibration")["parameter"].values)
        == names
        == [f"z[{i}, yes]" for i in range(3)]
    )


def test_new_rows_may_be_of_any_type_that_fits():
    _, idata = drawn_fit("y ~ x + g + k + z", "gaussian", RELEASE)
    expected = values_of(iw.predictions(idata, NEW), "y")
    forms = {
        "categorical": NEW.assign(g=pd.Categorical(NEW["g"], ["w", "v", "u"]), k=NEW["k"].astype("Int64")),
        "floats": NEW.assign(k=NEW["k"].astype(float), other="?"),
        "small": NEW.astype({"k": np.int8}).set_index(pd.Index(["a", "a", "b"])),
    }
    for form in forms.values():
        np.testing.assert_array_equal(values_of(iw.predictions(idata, form), "y"), expected)
    posterior = arviz_compat.group(idata, "posterior")
    turned = arviz_compat.make({"posterior": posterior.transpose(..., "draw", "chain")})
    np.testing.assert_array_equal(values_of(iw.predictions(turned, NEW), "y"), expected)


def test_columns_with_missing_cells_are_used_where_complete():
    design, idata = drawn_with_warning("y ~ m", "gaussian")
    frame = FRAME.iloc[design.rows]
    expected = coefficients(design, idata)[:, :, 0] @ design.x.T
    np.testing.assert_allclose(values_of(iw.predictions(idata, frame), "y"), expected, rtol=1e-12)
    with pytest.raises(ValueError, match=r"no missing cells in the columns used; \d+ of 60 are missing in 'm'"):
        iw.predictions(idata, FRAME)


def drawn_with_warning(formula, family):
    with pytest.warns(UserWarning):
        return drawn_fit(formula, family, RELEASE)


# refusals


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (
            lambda f: f.drop(columns="x"),
            ValueError,
            r"\['x'\] are missing or repeated. Pass the columns \['x', 'g', 'k'\]",
        ),
        (lambda f: pd.concat([f, f[["k"]]], axis=1), ValueError, r"\['k'\] are missing or repeated"),
        (lambda f: f.assign(x=[0, np.nan, 1]), ValueError, "1 of 3 are missing in 'x'"),
        (lambda f: f.assign(g=["u", None, "v"]), ValueError, "1 of 3 are missing in 'g'"),
        (lambda f: f.assign(x=[0, 3.5, 9]), ValueError, r"declared bounds \[-3.0, 3.0\]; 2 of 3 values .*first is 3.5"),
        (lambda f: f.assign(x=[0, np.inf, 1]), ValueError, "1 of 3 values are outside"),
        (lambda f: f.assign(x=["0", "1", "2"]), TypeError, "'x' of newdata must contain numbers"),
        (lambda f: f.assign(k=[0, 1, 2.5]), ValueError, "whole numbers, no fractions"),
        (lambda f: f.assign(g=["u", "v", "q"]), ValueError, "'g' .* it takes its declared levels"),
        (lambda f: f.iloc[:0], ValueError, "must have at least one row"),
        (lambda f: f.to_numpy(), TypeError, "newdata must be a frame of pandas, .* got numpy ndarray"),
    ],
)
def test_rows_that_do_not_fit_are_refused(change, error, message):
    _, idata = drawn_fit("y ~ x + g + k", "gaussian", RELEASE)
    with pytest.raises(error, match=message):
        iw.predictions(idata, change(NEW))


def test_what_the_fit_has_not_seen_is_refused():
    release = make_release(frame=FRAME.assign(g=np.where(FRAME["g"] == "v", "u", FRAME["g"])))
    with pytest.warns(UserWarning, match="occur in no row"):
        _, idata = drawn_fit("y ~ g", "gaussian", release)
    with pytest.raises(
        ValueError, match=r"levels of column 'g' must be levels of the fit, .*; \['v'\] occurred in no row of the fit"
    ):
        iw.predictions(idata, NEW)
    assert values_of(iw.predictions(idata, NEW.iloc[:2]), "y").shape == (6, 2)
    # a cell of a product without rows
    release = make_release(frame=FRAME.assign(z=np.where(FRAME["g"] == "v", "no", FRAME["z"])))
    with pytest.warns(UserWarning, match="zero in all rows"):
        _, idata = drawn_fit("y ~ g*z", "gaussian", release)
    with pytest.raises(ValueError, match=r"columns \['g\[T.v\]:z\[T.yes\]'\] of the design matrix must be zero"):
        iw.predictions(idata, NEW)
    # numbers as levels, and the end of a spline
    _, idata = drawn_fit("y ~ C(k)", "gaussian", RELEASE)
    with pytest.raises(ValueError, match="must occur in the rows of the fit; some do not"):
        iw.predictions(idata, NEW.assign(k=[0, 1, 59]))
    _, idata = drawn_fit("y ~ bs(x, df=4)", "gaussian", RELEASE)
    with pytest.raises(ValueError, match=r"cannot be evaluated on these rows: .*beyond upper"):
        iw.predictions(idata, NEW.assign(x=-3.0))
    schema = Schema(Real("y", -9, 9), Integer("n", 0, 9))
    release = release_of(SyntheticTable(pd.DataFrame({"y": [1.0, 2.0, 3.0], "n": [1, 2, 4]}), schema))
    _, idata = drawn_fit("y ~ np.log(n)", "gaussian", release)
    with pytest.raises(ValueError, match=r"'np.log\(n\)' must be finite; it is not finite in 1 rows"):
        iw.predictions(idata, pd.DataFrame({"n": [0, 1]}))


def test_formulas_that_look_at_all_rows_are_refused():
    _, idata = drawn_fit("y ~ I(x - np.mean(x))", "gaussian", RELEASE)
    with pytest.raises(ValueError, match="depends on all rows at once. Use formulaic's center"):
        iw.predictions(idata, NEW)


def test_records_that_no_file_holds_are_refused(monkeypatch):
    monkeypatch.setattr(design_record, "MOST_CHARACTERS", 100)
    _, idata = drawn_fit("y ~ x", "gaussian", RELEASE)
    with pytest.raises(ValueError, match=r"take \d+ characters, more than the 100 that fit in a file"):
        iw.predictions(idata, NEW)


def test_other_objects_are_refused():
    _, idata = drawn_fit("y ~ x", "gaussian", RELEASE)
    posterior = arviz_compat.group(idata, "posterior")
    with pytest.raises(ValueError, match=r"must come from fit.*\['design'\] are missing"):
        without = posterior.copy()
        del without.attrs["design"]
        read_design(without)
    with pytest.raises(ValueError, match="must have version 1; got 9"):
        read_design(posterior.assign_attrs(design=json.dumps({"version": 9})))
    with pytest.raises(ValueError, match=r"all coefficients of the formula; 'x' is missing"):
        iw.predictions(arviz_compat.make({"posterior": posterior.drop_vars("x")}), NEW)
    with pytest.raises(ValueError, match="all coefficients of the formula; 'sigma' is missing"):
        iw.predictions(arviz_compat.make({"posterior": posterior.drop_vars("sigma")}), NEW, kind="response")
    with pytest.raises(ValueError, match="must have the group posterior; it is missing"):
        iw.predictions(arviz_compat.make({"observed_data": arviz_compat.group(idata, "observed_data")}), NEW)
    with pytest.raises(TypeError, match="expected an ArviZ object"):
        iw.predictions(posterior, NEW)
    with pytest.raises(ValueError, match="kind must be one of"):
        iw.predictions(idata, NEW, kind="odds")


def test_schemas_with_odd_names_are_recorded():
    schema = Schema(Real("my y", -9, 9), Real("my x", -9, 9), Binary("b", (False, True)))
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"my y": rng.normal(size=9), "my x": rng.normal(size=9), "b": rng.random(9) < 0.5})
    release = release_of(SyntheticTable(frame, schema))
    design, idata = drawn_fit("`my y` ~ `my x` + b", "gaussian", release)
    expected = coefficients(design, idata)[:, :, 0] @ design.x.T
    np.testing.assert_allclose(values_of(iw.predictions(idata, frame[["my x", "b"]]), "my y"), expected, rtol=1e-12)
