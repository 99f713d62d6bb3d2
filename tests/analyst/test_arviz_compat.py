"""The two ArviZ containers behave as one."""

import warnings

import numpy as np
import pytest
import xarray as xr

import iwbayes as iw
from iwbayes.analyst import arviz_compat


def dataset(seed=0, chains=4, draws=200):
    rng = np.random.default_rng(seed)
    return xr.Dataset(
        {
            "Intercept": (("chain", "draw"), rng.normal(size=(chains, draws))),
            "c": (("chain", "draw", "c_dim"), rng.normal(size=(chains, draws, 2))),
        },
        coords={"chain": np.arange(chains), "draw": np.arange(draws), "c_dim": ["low", "high"]},
    )


def calibration():
    return xr.Dataset(
        {"kappa": ("parameter", [0.1, 0.2])},
        coords={"parameter": ["Intercept", "c[low]"]},
        attrs={"method": "tilt", "reasons": [], "passed": True, "n": 3, "pareto_k": 0.25},
    )


@pytest.fixture
def idata():
    return arviz_compat.make({"posterior": dataset(), "calibration": calibration()}, {"made_by": "test"})


def test_make_and_group(idata):
    assert arviz_compat.has_group(idata, "posterior") and arviz_compat.has_group(idata, "calibration")
    assert not arviz_compat.has_group(idata, "prior")
    xr.testing.assert_identical(arviz_compat.group(idata, "posterior"), dataset())
    assert idata.attrs["made_by"] == "test"
    assert float(idata.posterior["Intercept"].mean()) == float(dataset()["Intercept"].mean())


def test_missing_group_names_those_present(idata):
    with pytest.raises(KeyError, match="posterior, calibration|calibration, posterior"):
        arviz_compat.group(idata, "prior")


def test_wrong_types_are_refused(idata):
    with pytest.raises(TypeError, match="expected an ArviZ object.*dict"):
        arviz_compat.group({}, "posterior")
    with pytest.raises(TypeError, match="'posterior' must be an xarray.Dataset; got ndarray"):
        arviz_compat.make({"posterior": np.zeros(3)})


def test_with_groups_leaves_the_original_alone(idata):
    other = arviz_compat.with_groups(idata, {"posterior": dataset(1), "log_likelihood": dataset(2)})
    assert not arviz_compat.has_group(idata, "log_likelihood")
    xr.testing.assert_identical(arviz_compat.group(idata, "posterior"), dataset(0))
    xr.testing.assert_identical(arviz_compat.group(other, "posterior"), dataset(1))
    xr.testing.assert_identical(arviz_compat.group(other, "calibration"), calibration())
    assert other.attrs["made_by"] == "test"
    shared = arviz_compat.group(other, "calibration")["kappa"].to_numpy()
    assert np.shares_memory(shared, arviz_compat.group(idata, "calibration")["kappa"].to_numpy())


def test_save_load_round_trip(idata, tmp_path):
    path = tmp_path / "posterior.nc"
    arviz_compat.save(idata, path)
    again = arviz_compat.load(path)
    xr.testing.assert_equal(arviz_compat.group(again, "posterior"), dataset())
    assert list(arviz_compat.group(again, "posterior")["c_dim"].values) == ["low", "high"]
    attrs = arviz_compat.group(again, "calibration").attrs
    assert attrs["method"] == "tilt" and attrs["reasons"] == "" and attrs["passed"] == 1
    assert again.attrs["made_by"] == "test"
    arviz_compat.save(again, path)  # the file is closed after loading, so that it can be replaced
    assert arviz_compat.group(idata, "calibration").attrs["reasons"] == []
    with pytest.raises(FileNotFoundError, match="absent.nc"):
        arviz_compat.load(tmp_path / "absent.nc")


def test_summary_has_equal_tails_and_the_same_columns(idata):
    table = arviz_compat.summary(idata)
    assert list(table.index) == ["Intercept", "c[low]", "c[high]"]
    assert list(table.columns)[:4] == ["mean", "sd", "eti90_lb", "eti90_ub"]
    draws = dataset()["Intercept"].to_numpy().ravel()
    np.testing.assert_allclose(
        table.loc["Intercept", ["eti90_lb", "eti90_ub"]], np.quantile(draws, [0.05, 0.95]), rtol=1e-12
    )
    np.testing.assert_allclose(table.loc["Intercept", "mean"], draws.mean(), rtol=1e-12)
    assert "eti97.5_lb" in arviz_compat.summary(idata, ["c"], prob=0.975)
    with pytest.raises(ValueError, match="prob must be in"):
        arviz_compat.summary(idata, prob=90)


def test_rhat_ess(idata):
    table = arviz_compat.rhat_ess(idata)
    assert list(table.columns) == ["r_hat", "ess_bulk", "ess_tail"]
    assert np.all(abs(table["r_hat"] - 1) < 0.05) and np.all(table["ess_bulk"] > 400)
    stuck = dataset()
    stuck["Intercept"][0] += 3.0
    assert arviz_compat.rhat_ess(arviz_compat.make({"posterior": stuck})).loc["Intercept", "r_hat"] > 1.2


def test_variables_that_share_their_last_dimension_keep_their_numbers():
    """ArviZ 1.3 mixes them up."""
    means = np.arange(1.0, 7).reshape(3, 2)
    draws = means + np.random.default_rng(1).normal(0, 0.01, (2, 100, 3, 2))
    dims = ("chain", "draw", "term", "other")
    data = {"level": (("chain", "draw", "other"), draws[:, :, 0]), "b": (dims, draws)}
    dataset = xr.Dataset(data, {"term": ["x", "y", "n/a"], "other": ["train", "bike"]})
    both = arviz_compat.make({"posterior": dataset})
    names = [f"level[{other}]" for other in ("train", "bike")]
    names += [f"b[{term}, {other}]" for term in ("x", "y", "n/a") for other in ("train", "bike")]
    table = iw.summary(both, round_to="none")
    assert list(table.index) == names
    np.testing.assert_allclose(table["mean"], [1, 2, 1, 2, 3, 4, 5, 6], atol=0.01)
    found = arviz_compat.rhat_ess(both, ["b"])
    for name, one in zip(names[2:], draws.transpose(2, 3, 0, 1).reshape(6, 2, 100), strict=True):
        alone = arviz_compat.make({"posterior": xr.Dataset({"one": (("chain", "draw"), one)})})
        np.testing.assert_allclose(found.loc[name], arviz_compat.rhat_ess(alone).loc["one"])


def test_one_chain_gives_no_rhat():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        table = arviz_compat.rhat_ess(arviz_compat.make({"posterior": dataset(chains=1)}))
    assert table["r_hat"].isna().all() and np.all(table["ess_bulk"] > 50)
