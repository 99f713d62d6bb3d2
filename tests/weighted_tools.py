"""Releases and ArviZ objects that tests of weighted model checks share."""

from __future__ import annotations

import numpy as np
import pandas as pd
import xarray as xr

from iwbayes.analyst import arviz_compat
from iwbayes.analyst.inference.model_posterior import ModelPosterior
from iwbayes.analyst.released_tilt import ReleasedTilt
from iwbayes.curator.estimators.tilting.tilt import tilt
from iwbayes.features import FeatureMap
from iwbayes.measurement import GaussianDistribution, Measurement
from iwbayes.release import Release
from iwbayes.schema import Binary, Categorical, Integer, Real, Schema
from iwbayes.statement import PrivacyStatement
from iwbayes.tables import SyntheticTable
from iwbayes.weights import Weights

SCHEMA = Schema(
    Real("x", -3, 3),
    Real("y", -9, 9),
    Real("m", -9, 9, missing=True),
    Categorical("g", ["u", "v", "w"]),
    Integer("k", 0, 60),
    Binary("z", ("no", "yes")),
)
STATEMENT = PrivacyStatement(1.0, 1e-6, "replace-one", (), "seeded", False)


def simulate(rng, n, *, slope=0.8, shift=0.0):
    """Rows of one truth: y linear in x, k Poisson and z logistic in x, g apart."""
    x = np.clip(rng.normal(size=n) + shift, -3, 3)
    y = np.clip(0.3 + slope * x + rng.normal(size=n), -9, 9)
    return pd.DataFrame(
        {
            "x": x,
            "y": y,
            "m": np.where(rng.random(n) < 0.2, np.nan, y),
            "g": rng.choice(["u", "v", "w"], n, p=[0.5, 0.3, 0.2]),
            "k": np.minimum(rng.poisson(np.exp(0.3 + 0.4 * x)), 60),
            "z": np.where(rng.random(n) < 1 / (1 + np.exp(-(0.2 + slope * x))), "yes", "no"),
        }
    )


def tilted_release(synthetic, features, value, distribution, n_private):
    """Release of rows tilted by hand to the noisy moments `value`, so that no curator's defaults matter here."""
    measurement = Measurement("mean of features", value, distribution, 1e-3, features, n_private)
    columns = measurement.tilt_columns
    phi = features.transform(synthetic.frame)[:, columns]
    log_weights, _ = tilt(phi, value[columns], distribution.covariance[columns, columns], n_private)
    weights = Weights(log_weights, "TiltWeights", measurement=measurement)
    return Release(synthetic, weights, STATEMENT, n_private=n_private)


def make_release(n=300, n_private=200, seed=3, noise_sd=0.02, features="linear", frame=None):
    """Release of simulated rows for private ones that lie a little off them."""
    rng = np.random.default_rng(seed)
    synthetic = SyntheticTable(simulate(rng, n) if frame is None else frame, SCHEMA)
    feature_map = FeatureMap.whitened(synthetic, features)
    feature_map = feature_map.with_bound(2 * feature_map.bound)
    distribution = GaussianDistribution(noise_sd, feature_map.dim)
    private = SCHEMA.conform(simulate(rng, n_private, shift=0.2))
    value = feature_map.transform(private).mean(axis=0) + noise_sd * rng.normal(size=feature_map.dim)
    return tilted_release(synthetic, feature_map, value, distribution, n_private)


def draws_object(terms, weights=None, *, chains=2, observed=None, row=None, attrs=None, **posterior):
    """ArviZ object of pointwise log likelihoods: by name, each (draw of all chains, row, ...)."""
    plain, weighted = {}, {}
    coords = {} if row is None else {"row": row}
    for name, values in terms.items():
        values = np.asarray(values, dtype=float)
        values = values.reshape(chains, -1, *values.shape[1:])
        dims = ["row" if row is not None else f"{name}_dim_0"] + [f"{name}_dim_{i}" for i in range(1, values.ndim - 2)]
        plain[name] = (("chain", "draw", *dims), values)
        if weights is not None:
            vector = np.reshape(weights, (-1, *[1] * (values.ndim - 3)))
            with np.errstate(invalid="ignore"):
                products = np.where(vector > 0, vector * values, 0.0)
            weighted[name] = (("chain", "draw", *dims), products)
    first = next(iter(plain.values()))[1]
    posterior = posterior or {"theta": np.zeros(first.shape[:2])}
    groups = {
        "posterior": xr.Dataset(
            {name: (("chain", "draw"), np.reshape(v, first.shape[:2])) for name, v in posterior.items()},
            attrs=attrs or {},
        ),
        "log_likelihood": xr.Dataset(plain, coords=coords),
    }
    if weights is not None:
        groups["log_likelihood_weighted"] = xr.Dataset(weighted, coords=coords)
    if observed is not None:
        groups["observed_data"] = xr.Dataset(
            {name: ((plain[name][0][2],), np.asarray(v)) for name, v in observed.items()}
        )
    return arviz_compat.make(groups)


def start_of(model, n=400, chains=2, deterministics=()):
    """ArviZ object of independent normal draws around the mode, which give `calibrate` its start; and the mode."""
    terms = ModelPosterior(model)
    mode = terms.mode()
    rng = np.random.default_rng(1)
    draws = rng.multivariate_normal(mode.theta, np.linalg.inv(mode.precision), chains * n)
    free = [rv.name for rv in model.free_RVs]
    found = {name: value for name, value in terms.constrain(draws).items() if name in [*free, *deterministics]}
    return as_idata(found, n), mode.theta


def as_idata(values, n):
    """ArviZ object of values by name, each (sample, ...), in chains of n draws."""
    dims = {name: ["chain", "draw", *[f"{name}_{i}" for i in range(value.ndim - 1)]] for name, value in values.items()}
    data = {name: (dims[name], value.reshape(-1, n, *value.shape[1:])) for name, value in values.items()}
    chains = len(next(iter(values.values()))) // n
    posterior = xr.Dataset(data, coords={"chain": np.arange(chains), "draw": np.arange(n)})
    return arviz_compat.make({"posterior": posterior})


def as_tilt(phi, noise, value=None, **more) -> ReleasedTilt:
    """Return a tilt by its arrays alone, for the formulas that need no release."""
    return ReleasedTilt(phi, noise, np.zeros(len(noise)) if value is None else value, **more)
