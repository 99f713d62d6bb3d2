"""diagnose(): every row, its verdict and its advice."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from factories import make_statement, release_of, reweighted, synthetic_table
from posterior_tools import formula_record, normal_of

from iwbayes.analyst import arviz_compat
from iwbayes.analyst.calibration.measure import against
from iwbayes.analyst.calibration.measures import MEASURES
from iwbayes.analyst.calibration.verdict import source
from iwbayes.analyst.criticism.diagnose import diagnose
from iwbayes.analyst.fit_record import weights_digest
from iwbayes.analyst.released_tilt import ReleasedTilt
from iwbayes.evidence import FeatureMap
from iwbayes.evidence.distributions import GaussianDistribution
from iwbayes.evidence.measurement import Measurement
from iwbayes.release.weights import kish_ess
from iwbayes.schema import Real, Schema
from iwbayes.utils.psis import psislw

SCHEMA = Schema(Real("x", -1, 1), Real("y", -1, 1))
RELEASE_CHECKS = {
    "pareto_k", "ess_share", "clipped_private", "ess", "psis_ess", "n_synthetic", "clipped_synthetic",
    "epsilon", "delta", "adjacency", "noise", "certified",
}  # fmt: skip
FIT_CHECKS = {
    "calibration", "method", "kappa", "kappa0", "explained", "misfit_share", "dfbetas", "variation", "curvature_error",
    "misfit_bias", "score_ratio", "skew", "likelihood_ess", "second_order",
}  # fmt: skip
OF_EACH = ("kappa", "explained", "misfit_share", "misfit_bias", "curvature_error", "score_ratio")
SAMPLER_CHECKS = {"r_hat", "ess_bulk", "ess_tail"}


def make_release(noise="hardened", spread=0.3, clipped=0.01, n_private=1000):
    rng = np.random.default_rng(2)
    synthetic = synthetic_table(pd.DataFrame(rng.uniform(-1, 1, (2000, 2)), columns=["x", "y"]), SCHEMA)
    features = FeatureMap.whitened(synthetic, "linear")
    value = np.append(np.zeros(features.dim - 1), clipped * features.flag_height)
    distribution = GaussianDistribution(0.01, features.dim)
    b = np.zeros(features.dim - 1)
    measurement = Measurement("mean of features", value, distribution, 1e-3, features, n_private, coefficients=b)
    more = {"measurement": measurement, "n_private": n_private, "statement": make_statement(noise)}
    return release_of(synthetic, spread * rng.normal(size=2000), "TiltWeights(linear)", **more)


def make_idata(
    release, kappa=(0.1, 0.02), mode=0.0, likelihood_ess=1800.0, shift=0.0, calibrated=True, explained=(0.92, 0.95),
    dfbetas=(0.02, 0.01), curvature_error=(0.03, 0.05),
):  # fmt: skip
    rng = np.random.default_rng(3)
    draws = rng.normal(size=(4, 500, 2))
    draws[0] += shift
    posterior = xr.Dataset({"b": (("chain", "draw", "b_dim_0"), draws)}, coords={"chain": range(4), "draw": range(500)})
    groups = {"posterior": posterior}
    if calibrated:
        normal = normal_of(
            np.zeros(2), np.eye(2), mode=np.full(2, mode), kappa=np.array(kappa), kappa0=7.0,
            explained=np.array(explained), likelihood_ess=likelihood_ess, dfbetas=np.array(dfbetas),
            curvature_error=np.array(curvature_error), cut_directions=1,
        )  # fmt: skip
        flat = draws.reshape(-1, 2)
        groups["calibration"] = formula_record(["b[0]", "b[1]"], normal, flat, flat, release, ReleasedTilt.of(release))
    return arviz_compat.make(groups)


def test_a_release_alone():
    release = make_release()
    table = diagnose(release)
    assert list(table.columns) == ["value", "threshold", "verdict", "what_to_do"]
    assert set(table.index) == RELEASE_CHECKS and table.index.is_unique
    assert set(table["verdict"]) <= {"ok", "info"}
    judged = table[table["verdict"] == "ok"]
    assert (judged["what_to_do"] == "").all()
    assert table.loc["ess", "value"] == release.weights.ess
    assert table.loc["ess_share", "value"] == release.weights.ess / 2000
    assert table.loc["psis_ess", "value"] == kish_ess(psislw(release.weights.log_weights[0])[0])
    assert table.loc["epsilon", "value"] == 1.0 and table.loc["delta", "value"] == 1e-6
    assert table.loc["adjacency", "value"] == "replace-one"
    assert table.loc["clipped_private", "value"] == pytest.approx(0.01)


@pytest.mark.parametrize(
    ("settings", "check", "verdict"),
    [
        ({"spread": 3.0}, "pareto_k", "warn"),
        ({"spread": 3.0}, "ess_share", "warn"),
        ({"clipped": 0.07}, "clipped_private", "fail"),
        ({"clipped": -0.07}, "clipped_private", "ok"),
        ({"n_private": 2000}, "n_synthetic", "warn"),
        ({"noise": "seeded"}, "noise", "fail"),
        ({"noise": "floating-point"}, "noise", "warn"),
        ({"noise": "seeded"}, "certified", "warn"),
    ],
)
def test_what_is_wrong_with_a_release_is_said(settings, check, verdict):
    row = diagnose(make_release(**settings)).loc[check]
    assert row["verdict"] == verdict
    assert bool(row["what_to_do"]) == (verdict != "ok")


def test_a_calibrated_fit_with_its_release():
    release = make_release()
    table = diagnose(release, make_idata(release))
    of_each = {f"{check}[b[{j}]]" for check in ("calibration", *OF_EACH) for j in (0, 1)}
    assert set(table.index) == RELEASE_CHECKS | FIT_CHECKS | SAMPLER_CHECKS | of_each
    assert table.index.is_unique and set(table["verdict"]) <= {"ok", "info"}
    assert table.loc["kappa", "value"] == 0.1 and table.loc["kappa[b[1]]", "value"] == 0.02
    # the overall index is shown and not judged
    assert table.loc["kappa0", "value"] == 7.0 and table.loc["kappa0", "verdict"] == "info"
    assert np.isnan(table.loc["kappa0", "threshold"])
    assert table.loc["explained", "value"] == 0.92
    assert table.loc["r_hat", "value"] < 1.01 and table.loc["ess_bulk", "threshold"] == 400


@pytest.mark.parametrize(
    ("settings", "check", "verdict"),
    [
        ({"kappa": (0.1, 0.3)}, "kappa", "fail"),
        ({"kappa": (0.1, 0.3)}, "kappa[b[1]]", "fail"),
        ({"kappa": (0.1, 0.3)}, "kappa[b[0]]", "ok"),
        ({"kappa": (0.1, 0.3)}, "calibration", "warn"),
        ({"kappa": (0.1, 0.3)}, "calibration[b[0]]", "ok"),
        ({"kappa": (0.2, 0.3)}, "calibration", "fail"),
        ({"dfbetas": (0.01, 0.7)}, "dfbetas", "fail"),
        ({"curvature_error": (0.05, 0.4)}, "curvature_error", "fail"),
        ({"curvature_error": (0.05, 0.4)}, "curvature_error[b[1]]", "fail"),
        ({"curvature_error": (0.05, 0.4)}, "calibration[b[0]]", "ok"),
        ({"explained": (0.92, 0.3)}, "explained[b[1]]", "fail"),
        ({"mode": 0.9}, "skew", "fail"),
        ({"likelihood_ess": 80.0}, "likelihood_ess", "warn"),
        ({"explained": (0.9, 0.3)}, "explained", "fail"),
        ({"shift": 3.0}, "r_hat", "fail"),
        ({"shift": 3.0}, "ess_bulk", "warn"),
        ({"calibrated": False}, "calibration", "warn"),
    ],
)
def test_what_is_wrong_with_a_fit_is_said(settings, check, verdict):
    release = make_release()
    row = diagnose(release, make_idata(release, **settings)).loc[check]
    assert row["verdict"] == verdict
    assert bool(row["what_to_do"]) == (verdict != "ok")


def test_the_limit_of_the_likelihood_ess_knows_what_the_features_span():
    release = make_release()
    idata = make_idata(release, likelihood_ess=700.0)
    record = arviz_compat.group(idata, "calibration")
    spanned = record.assign(explained=("parameter", [0.8, 0.9]))
    table = diagnose(release, arviz_compat.with_groups(idata, {"calibration": spanned}))
    assert table.loc["likelihood_ess", "threshold"] == pytest.approx(250.0)
    assert table.loc["likelihood_ess", "verdict"] == "ok"


def test_a_fit_that_is_not_calibrated():
    release = make_release()
    bare = diagnose(release, make_idata(release, calibrated=False))
    advice = bare.loc["calibration", "what_to_do"]
    assert "calibrate()" in advice and "without weights" in advice
    assert set(bare.index) == RELEASE_CHECKS | SAMPLER_CHECKS | {"calibration"}


def test_weights_without_a_measurement():
    release = make_release()
    plain = reweighted(release, np.zeros(2000), "mine")
    table = diagnose(plain)
    assert np.isnan(table.loc["clipped_private", "value"])
    assert table.loc["clipped_private", "verdict"] == "info"


def test_one_chain_has_no_r_hat():
    release = make_release()
    idata = make_idata(release)
    one = arviz_compat.make({"posterior": arviz_compat.group(idata, "posterior").isel(chain=[0])})
    table = diagnose(release, one)
    assert table.loc["r_hat", "verdict"] == "info" and table.loc["ess_bulk", "threshold"] == 100


def test_draws_far_from_the_mode_are_of_another_model():
    skew = MEASURES["skew"]
    near, far = skew.check(2.9, "formula"), skew.check(34.0, "formula")
    assert "tighter priors or fix them; merge small groups" in near.reason() and "entred" not in near.reason()
    assert far.reason().startswith("skew 34 >= 0.5: the draws are far from the mode of the model that was passed")
    assert "Sample the model that reweight() returned, with these weights." in far.reason()
    assert skew.check(0.4, "formula").what_to_do == "" and skew.check(np.nan, "formula").verdict == "info"


def test_limits_are_strict_and_reasons_say_the_numbers():
    assert against("k", 0.7, "<", 0.7, "do this.").verdict == "fail"
    assert against("e", 0.35, ">", 0.35, "do this.").verdict == "fail"
    assert against("e", np.inf, ">", 0.35, "do this.").verdict == "ok"
    assert against("k", 0.83, "<", 0.7, "do this.").reason() == "k 0.83 >= 0.7: do this."
    assert against("e", 0.2, ">", 0.35, "do this.").reason() == "e 0.2 <= 0.35: do this."


def recorded(idata, **attrs):
    """The same posterior, with what fit records of its weights."""
    posterior = arviz_compat.group(idata, "posterior")
    return arviz_compat.with_groups(idata, {"posterior": posterior.assign_attrs(weights="TiltWeights", **attrs)})


def test_weights_of_another_release_fail_the_calibration():
    release, other = make_release(), make_release(spread=0.2)
    idata = recorded(make_idata(release), weights_digest=weights_digest(release.weights))
    good, bad = diagnose(release, idata), diagnose(other, idata)
    assert good.loc["weights", "verdict"] == "ok" and good.loc["calibration", "verdict"] == "ok"
    assert list(bad.index[:2]) == ["weights", "calibration"]
    assert bad.loc["weights", "verdict"] == "fail" and bad.loc["calibration", "verdict"] == "fail"
    assert "Pass the release that the posterior was fitted with." in bad.loc["weights", "what_to_do"]
    assert bad.loc["calibration", "what_to_do"]
    bare = recorded(make_idata(release, calibrated=False), weights_digest=weights_digest(release.weights))
    assert diagnose(other, bare).loc["calibration", "verdict"] == "fail"


def test_weights_of_ones_own_belong_to_the_release_that_they_were_fitted_with():
    release, other = make_release(), make_release(spread=0.2)
    digests = {"weights_digest": "noise-aware draws", "release_digest": weights_digest(release.weights)}
    idata = recorded(make_idata(release), **digests)
    table = diagnose(release, idata)
    assert table.loc["weights", "verdict"] == "info" and table.loc["calibration", "verdict"] == "ok"
    assert diagnose(other, idata).loc["weights", "verdict"] == "fail"
    uniform = recorded(make_idata(release), weights_digest="")
    assert "weights" not in diagnose(other, uniform).index


def test_wrong_arguments():
    release = make_release()
    for wrong in ("idata.nc", release):
        with pytest.raises(TypeError, match="ArviZ object"):
            diagnose(release, wrong)
    with pytest.raises(TypeError, match="release must be a Release"):
        diagnose("release.iwb", make_idata(release))
    with pytest.raises(TypeError, match="release must be a Release"):
        diagnose(make_idata(release), release)


@pytest.mark.parametrize(
    ("family", "warns"), [("bernoulli", False), ("poisson", False), ("gaussian", True), (None, True)]
)
def test_clipped_rows_are_warned_of_where_the_response_may_have_a_scale(family, warns):
    release = make_release(clipped=0.15, n_private=1000)
    idata = make_idata(release)
    record = arviz_compat.group(idata, "calibration")
    record.attrs.update(clipped_private=0.15, noise_ratio=1.0)
    posterior = arviz_compat.group(idata, "posterior").assign_attrs({} if family is None else {"family": family})
    table = diagnose(release, arviz_compat.with_groups(idata, {"posterior": posterior, "calibration": record}))
    assert table.loc["clipped_private", "verdict"] == ("warn" if warns else "ok")


def test_rehearsals_do_not_calibrate_what_the_release_did_not_measure():
    explained = MEASURES["explained"]
    assert [explained.check(0.8, how).verdict for how in ("formula", "rehearsals")] == ["fail", "ok"]
    assert explained.check(0.69, "rehearsals").verdict == "fail"


@pytest.mark.parametrize(
    ("name", "between", "bad"),
    [("misfit_share", 0.45, 0.75), ("curvature_error", 0.25, 0.35), ("explained", 0.88, 0.8)],
)
def test_releases_of_scores_have_limits_of_their_own(name, between, bad):
    assert [MEASURES[name].check(between, source(how)).verdict for how in ("tilt", "tilt to scores")] == ["fail", "ok"]
    assert MEASURES[name].check(bad, "scores").verdict == "fail"
    assert {source(method) for method in (["tilt to scores"], 7, np.zeros(2), "", None)} == {"formula"}


def test_a_printed_table_of_parameters_keeps_the_measures_that_decide_and_no_word_is_broken():
    release = make_release()
    table = diagnose(release, make_idata(release, kappa=(0.1, 0.3)))
    for text in (table.brief(), table.brief(width=60), repr(table)):
        [header] = [line for line in text.splitlines() if line.startswith("parameter")]
        assert "kappa" in header.split() and set(header.split()[2:]) <= set(MEASURES)
        assert "not calibrated" in text and all(len(line) <= 88 for line in text.splitlines())
    assert set(OF_EACH) <= set(re.findall(r"<th[^>]*>([a-z_]+)</th>", table._repr_html_()))
