"""A fit says the same wherever the zero and the unit of its columns are, and in whichever order levels are declared."""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
import pytest
from factories import release_of, synthetic_table
from scipy.special import expit

import iwbayes as iw
from iwbayes.analyst import arviz_compat
from iwbayes.utils.warnings import IwbayesWarning

N, MOVED, UNIT = 400, 2000.0, 10.0
LEVELS = ("u", "v", "w")
#: Formula without its predictors, and family.
FAMILIES = {
    "bernoulli": ("b ~ {}", None),
    "gaussian": ("y ~ {}", None),
    "poisson": ("count ~ {}", "poisson"),
    "categorical": ("grade ~ {}", "categorical"),
    "bernoulli with an offset": ("b ~ {} + offset(0.5 * time)", None),
    "gaussian with an offset": ("y ~ {} + offset(0.5 * time)", None),
    "negativebinomial": ("count ~ {}", "negativebinomial"),
    "t": ("y ~ {}", "t"),
    "gamma": ("cost ~ {}", "gamma"),
    "cumulative": ("grade ~ {}", "cumulative"),
    "binomial": ("p(k, n) ~ {}", None),
    "groups": ("b ~ {} + (1|h)", None),
}


def rows() -> pd.DataFrame:
    rng = np.random.default_rng(3)
    x, g, trials = rng.normal(size=N).clip(-3, 3), rng.choice(3, N, p=(0.2, 0.5, 0.3)), rng.integers(1, 9, N)
    eta = 0.3 + (0.4 + 0.5 * (g == 2)) * x + np.array([0.0, 0.6, -0.5])[g]
    frame = pd.DataFrame({
        "x": x, "g": np.array(LEVELS)[g], "time": rng.uniform(0, 1, N), "h": rng.choice(list("pqrs"), N),
        "b": (rng.random(N) < expit(eta)).astype(int), "y": (eta + rng.standard_t(5, N)).clip(-20, 20),
        "k": rng.binomial(trials, expit(eta)), "n": trials, "count": rng.negative_binomial(2, 2 / (2 + np.exp(eta))),
        "cost": (rng.gamma(2.0, np.exp(eta) / 2)).clip(0.01, 60),
        "grade": np.array(["low", "mid", "high"])[np.digitize(eta + rng.logistic(size=N), [-0.5, 1.2])],
    })  # fmt: skip
    # groups that differ: otherwise their scale has a funnel, in which chains get stuck
    moved = np.random.default_rng(4).random(N) < 0.4
    return frame.assign(h=np.where(moved, np.where(frame["b"] == 1, "p", "s"), frame["h"]))


def release(frame: pd.DataFrame, levels: tuple[str, ...] = LEVELS) -> iw.Release:
    schema = iw.Schema(
        iw.Real("x", -3, 4000), iw.Categorical("g", levels), iw.Real("time", 0, 1), iw.Categorical("h", tuple("pqrs")),
        iw.Binary("b"), iw.Real("y", -20, 20), iw.Integer("k", 0, 9), iw.Integer("n", 0, 9), iw.Integer("count", 0, 99),
        iw.Real("cost", 0, 60), iw.Categorical("grade", ("low", "mid", "high")),
    )  # fmt: skip
    return release_of(synthetic_table(frame, schema), 0.3 * np.random.default_rng(5).normal(size=N), n_private=N)


def draws(name: str, predictors: str, of: iw.Release) -> dict[str, np.ndarray]:
    formula, family = FAMILIES[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", IwbayesWarning)
        found = iw.fit(
            formula.format(predictors), of, family=family, calibrate="none", draws=1000, chains=2, random_seed=1,
            log_likelihood=False, progressbar=False,
            sampler={"tune": 1000, "cores": 1, "target_accept": 0.95} if name == "groups" else None,
        )  # fmt: skip
    return arviz_compat.scalars(arviz_compat.group(found, "posterior"))


def assert_alike(own: np.ndarray, other: np.ndarray) -> None:
    """Compare means and standard deviations; draws are different ones."""
    assert abs(own.mean() - other.mean()) < 0.2 * own.std()
    assert abs(own.std() / other.std() - 1) < 0.15


#: NUTS takes the time of all others: these run with ``--all``. The graph of a model with groups is evaluated often.
SLOW = ("negativebinomial", "t", "gamma", "cumulative", "groups", "bernoulli with an offset", "gaussian with an offset")


def case(name: str) -> object:
    marks = [pytest.mark.slow] if name in SLOW else []
    return pytest.param(name, marks=marks if name == "groups" else [*marks, pytest.mark.interpreted])


@pytest.mark.parametrize("name", [*map(case, FAMILIES)])
def test_slopes_follow_a_column_that_is_moved_and_scaled(name):
    frame = rows()
    own = draws(name, "x*g", release(frame))
    other = draws(name, "x*g", release(frame.assign(x=MOVED + UNIT * frame["x"])))
    slopes = [key for key in own if key.split("[")[0] in ("x", "x:g")]
    assert len(slopes) >= 3
    for key in slopes:
        assert_alike(own[key], UNIT * other[key])


@pytest.mark.parametrize("name", [*map(case, FAMILIES)])
def test_contrasts_do_not_depend_on_the_order_of_levels(name):
    frame = rows()
    own, other = draws(name, "x + g", release(frame)), draws(name, "x + g", release(frame, LEVELS[::-1]))
    ends = {key.partition("v")[2] for key in own if key.startswith("g[v")}
    assert ends
    for end in ends:
        assert_alike(own[f"g[v{end}"] - own[f"g[w{end}"], other[f"g[v{end}"])
        assert_alike(-own[f"g[w{end}"], other[f"g[u{end}"])


@pytest.mark.parametrize("name", ["bernoulli", "gaussian", "categorical"])
def test_a_square_far_from_zero_has_a_weak_prior(name):
    """The prior of ``year**2`` may not be narrow because years are large."""
    frame = rows()
    own = draws(name, "x + I(x**2)", release(frame))
    other = draws(name, "x + I(x**2)", release(frame.assign(x=MOVED + UNIT * frame["x"])))
    for key in own:
        if "**" in key:
            assert_alike(own[key], UNIT**2 * other[key])
