"""Verdicts of derived quantities: by their own influence functions, and the same as those of coefficients."""

from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from factories import noisy_release, stretched_features, synthetic_table

import iwbayes as iw
from iwbayes.analyst import arviz_compat
from iwbayes.analyst.calibration.derived import derived_record, gradient_of
from iwbayes.analyst.calibration.measure import Influences
from iwbayes.analyst.calibration.measures import MEASURES
from iwbayes.analyst.quantities.fitted_rows import fit_record

LEVELS = ("u", "v", "w")
OF_INFLUENCES = ("kappa", "explained", "misfit_share")


def rows(rng: np.random.Generator, n: int, shares: tuple[float, ...]) -> pd.DataFrame:
    g, x = rng.choice(3, n, p=shares), rng.normal(size=n).clip(-3, 3)
    y = rng.random(n) < 1 / (1 + np.exp(-(0.2 + 0.5 * x + np.array([0.0, 0.6, -0.4])[g])))
    return pd.DataFrame({"y": y.astype(int), "x": x, "g": np.array(LEVELS)[g]})


def made(shares: tuple[float, ...] = (0.2, 0.3, 0.5)) -> iw.Release:
    rng = np.random.default_rng(5)
    schema = iw.Schema(iw.Binary("y"), iw.Real("x", -3, 3), iw.Categorical("g", LEVELS))
    private, synthetic = rows(rng, 4000, shares), synthetic_table(rows(rng, 4000, shares), schema)
    return noisy_release(rng, synthetic, stretched_features(synthetic, "quadratic", 1.6), private, 0.004)


def fitted(formula: str, release: iw.Release, **options: object) -> object:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", iw.CalibrationWarning)
        warnings.filterwarnings("ignore", "'u', the first level of 'g'")
        return iw.fit(formula, release, draws=500, random_seed=1, progressbar=False, **options)


def record_of(idata: object) -> object:
    return fit_record(idata)


def test_the_measures_of_a_coefficient_are_those_of_its_gradient():
    record = record_of(fitted("y ~ x + g", made()))
    p = record.sizes["parameter"]
    influences = Influences(*record["influence"].to_numpy())
    for name in OF_INFLUENCES:
        np.testing.assert_allclose(MEASURES[name].of_influences(influences, np.eye(p)), record[name], rtol=1e-10)
    own = derived_record([*map(str, record["parameter"].to_numpy())], np.eye(p), record["sd_calibrated"].values, record)
    np.testing.assert_array_equal(own["calibrated"], record["calibrated"])


def test_a_contrast_of_levels_is_judged_as_the_coefficient_of_the_other_order():
    release = made()
    by_first, by_last = (record_of(fitted(f"y ~ x + {term}", release)) for term in ("g", "C(g, Treatment('w'))"))
    names, others = ([*map(str, one["parameter"].to_numpy())] for one in (by_first, by_last))
    gradient = np.zeros((1, len(names)))
    gradient[0, names.index("g[v]")], gradient[0, names.index("g[w]")] = 1, -1
    influences = Influences(*by_first["influence"].to_numpy())
    found = {name: one.of_influences(influences, gradient) for name, one in MEASURES.items() if one.of_influences}
    at = next(index for index, name in enumerate(others) if name.endswith("[v]") or "[T.v]" in name)
    for name in found:
        np.testing.assert_allclose(found[name][0], by_last[name].to_numpy()[at], rtol=1e-3)


def test_a_rare_reference_does_not_decide_about_contrasts_of_common_levels():
    """Coefficients are contrasts with the rare level and have its faults; a contrast of the others is the same."""
    release, found = made(shares=(0.004, 0.456, 0.54)), []
    for term in ("g", "C(g, Treatment('w'))"):
        idata = fitted(f"y ~ x + {term}", release)
        found.append((record_of(idata), record_of(iw.comparisons(idata, release, contrast={"g": ["w", "v"]}))))
    (by_rare, of_rare), (by_common, of_common) = found
    assert by_rare["calibrated"].to_numpy().tolist() == [False, True, False, False]
    assert by_common["calibrated"].to_numpy().tolist() == [True, True, False, True]
    assert of_rare["calibrated"].all() and of_common["calibrated"].all()
    for name in (name for name, one in MEASURES.items() if one.judges("formula") and name != "skew"):
        np.testing.assert_allclose(of_rare[name], of_common[name], rtol=0.03, err_msg=name)  # priors differ a little
    assert np.isnan(of_rare["skew"]).all()  # that of the parameters that concern the contrast; here there is none


def test_a_gradient_is_that_of_the_function():
    matrix = np.random.default_rng(1).normal(size=(2, 3))
    at, sd = np.array([0.1, -0.4, 2.0]), np.array([0.01, 0.0, 0.02])
    found = gradient_of(lambda points: np.sin(points) @ matrix.T, at, sd)
    np.testing.assert_allclose(found, matrix * np.cos(at), rtol=1e-4)


def test_an_interaction_that_hardly_enters_an_average_does_not_decide_about_it():
    """Products of x and y are measured, those of x, g and y are not; the average contrast hardly needs them."""
    release = made()
    idata = fitted("y ~ x * g", release)
    record = record_of(idata)
    good = dict(zip(map(str, record["parameter"].to_numpy()), record["calibrated"].to_numpy(), strict=True))
    assert not any(good[name] for name in good if ":" in name)
    found = iw.comparisons(idata, release, contrast="g", random_seed=1)
    own, attrs = record_of(found), arviz_compat.group(found, "posterior").attrs
    assert list(map(str, own["parameter"].to_numpy())) == ["g[v]", "g[w]"]
    assert own["calibrated"].all() and (own["explained"] > 0.9).all()
    assert attrs["verdict"] == own.attrs["verdict"] == "calibrated" and "calibrated" not in attrs
    assert iw.intervals(found)["calibrated"].all()
    within = record_of(iw.slopes(idata, release, wrt="x", by="g", random_seed=1))
    assert not within["calibrated"].all()  # slopes within levels are the interaction
    assert "explained" in within.attrs["reasons"]


@pytest.mark.parametrize("kind", ["mean", "linear", "response"])
def test_predictions_are_judged_one_by_one(kind):
    release = made()
    idata = fitted("y ~ x * g", release)
    new = pd.DataFrame({"x": [0.0, 2.5], "g": ["w", "u"]})
    record = record_of(iw.predictions(idata, new, kind=kind, random_seed=1))
    assert list(map(str, record["parameter"].to_numpy())) == ["y[0]", "y[1]"]
    assert record["explained"].to_numpy()[0] > record["explained"].to_numpy()[1]
    assert not record["calibrated"].to_numpy()[1]


def test_predicted_responses_keep_the_reasons_of_their_means():
    idata = fitted("x ~ y * g", made())
    of_fit = record_of(idata)
    planted = of_fit.assign(calibrated=of_fit["calibrated"] & (of_fit["parameter"] != "sigma"))
    idata = arviz_compat.with_groups(idata, {"calibration": planted})
    new = pd.DataFrame({"y": [0, 1], "g": ["w", "u"]})
    own = [record_of(iw.predictions(idata, new, kind=kind, random_seed=1)) for kind in ("mean", "response")]
    means, responses = (record.attrs["reasons"].split("\n") for record in own)
    assert means[0] and responses == [*means, responses[-1]]
    assert "depend on sigma, which is not calibrated" in responses[-1]


def test_odds_ratios_have_the_verdicts_of_their_coefficients():
    idata = fitted("y ~ x * g", made())
    found, of_fit = iw.odds_ratios(idata), record_of(idata)
    record = record_of(found)
    np.testing.assert_array_equal(record["calibrated"], of_fit["calibrated"].sel(parameter=record["parameter"]))
    assert record.attrs["verdict"] == "calibrated in part"
    assert dict(iw.intervals(found)["calibrated"])["x"] == bool(record["calibrated"].sel(parameter="x"))


def test_nothing_of_an_uncalibrated_fit_is_calibrated():
    release = made()
    plain = replace(release, weights=iw.Weights(np.zeros(len(release.synthetic)), "uniform"))
    for of, options in ((release, {"calibrate": "none"}), (plain, {})):
        idata = fitted("y ~ x + g", of, **options)
        for found in (iw.comparisons(idata, of, contrast="g"), iw.odds_ratios(idata)):
            assert arviz_compat.group(found, "posterior").attrs["verdict"] == "not calibrated"
            assert not iw.intervals(found)["calibrated"].any()


def test_a_table_of_some_variables_says_which_are_calibrated():
    idata = fitted("y ~ x * g", made())
    table = iw.intervals(idata, var_names=["x:g", "g"])
    assert list(table.index) == ["x:g[v]", "x:g[w]", "g[v]", "g[w]"]
    assert list(table["calibrated"]) == [False, False, False, True]
    assert list(iw.intervals({"a": idata}, var_names="x").index) == [("a", "x")]
    with pytest.raises(ValueError, match=r"var_names must name variables of the posterior; got \['age'\]"):
        iw.intervals(idata, var_names=["x", "age"])


def test_quantities_are_not_a_fit_that_can_be_diagnosed():
    release = made()
    found = iw.comparisons(fitted("y ~ x + g", release), release, contrast="g", random_seed=1)
    with pytest.raises(ValueError, match="idata must be the result of a fit; got quantities"):
        iw.diagnose(release, found)
