"""Predictions, slopes, comparisons and checks of families, offsets and group effects: by hand from the draws."""

import numpy as np
import pandas as pd
import pytest
from factories import release_of, synthetic_table
from numpy.testing import assert_allclose
from posterior_tools import drawn_fit
from scipy.special import expit

import iwbayes as iw
from iwbayes.analyst import arviz_compat
from iwbayes.analyst.regression.design_record import read_design

N = 60
SCHEMA = iw.Schema(
    iw.Real("x", -2, 2), iw.Categorical("g", ["u", "v", "w"]), iw.Categorical("h", ["a", "b"]), iw.Real("time", 1, 9),
    iw.Integer("count", 0, 50), iw.Real("y", 0.1, 9), iw.Categorical("grade", ["low", "mid", "high"]),
    iw.Integer("k", 0, 9), iw.Integer("n", 0, 9), iw.Binary("b"), iw.Integer("site", 1, 4),
)  # fmt: skip


def rows(n, seed=1):
    rng = np.random.default_rng(seed)
    trials = rng.integers(1, 10, n)
    return pd.DataFrame({
        "x": rng.uniform(-2, 2, n), "g": rng.choice(["u", "v", "w"], n), "h": rng.choice(["a", "b"], n),
        "time": rng.uniform(1, 9, n), "count": rng.poisson(2, n), "y": rng.uniform(0.5, 8, n),
        "grade": rng.choice(["low", "mid", "high"], n), "k": rng.binomial(trials, 0.5), "n": trials,
        "b": rng.integers(0, 2, n), "site": rng.integers(1, 5, n),
    })  # fmt: skip


RELEASE = release_of(synthetic_table(rows(N), SCHEMA), 0.4 * np.random.default_rng(2).normal(size=N), n_private=50)
NEW = rows(5, seed=3)


def draws(idata, name):
    values = arviz_compat.group(idata, "posterior")[name].transpose("chain", "draw", ...).to_numpy()
    return values.reshape(-1, *values.shape[2:])


def effect(idata, name, group, levels, frame):
    """Effects (draw, row) of the groups of rows."""
    return draws(idata, name)[:, [levels.index(level) for level in frame[group]]]


def line(idata, frame, *names):
    return sum(draws(idata, name)[:, None] * (1 if name == "Intercept" else frame[name].to_numpy()) for name in names)


# mean of the response (draw, row, ...) by hand
def negative_binomial(idata, frame):
    return np.exp(line(idata, frame, "Intercept", "x") + np.log(frame["time"].to_numpy()))


def zero_inflated(idata, frame):
    return draws(idata, "psi")[:, None] * np.exp(line(idata, frame, "Intercept", "x"))


def hurdle(idata, frame):
    mean = np.exp(line(idata, frame, "Intercept", "x"))
    return draws(idata, "psi")[:, None] * mean / (1 - np.exp(-mean))


def hurdle_negative_binomial(idata, frame):
    mean, alpha = np.exp(line(idata, frame, "Intercept", "x")), draws(idata, "alpha")[:, None]
    return draws(idata, "psi")[:, None] * mean / (1 - (alpha / (mean + alpha)) ** alpha)


def gamma(idata, frame):
    own = effect(idata, "1|g", "g", ["u", "v", "w"], frame)
    return np.exp(line(idata, frame, "Intercept", "x") + own)


def log_linear(idata, frame):
    """Means before censoring."""
    return np.exp(line(idata, frame, "Intercept", "x"))


def linear(idata, frame):
    """Means of all rows, also of those outside the bounds of a truncated response."""
    return line(idata, frame, "Intercept", "x")


def student(idata, frame):
    levels = ["u", "v", "w"]
    slope = effect(idata, "x|g", "g", levels, frame) * frame["x"].to_numpy()
    return line(idata, frame, "Intercept", "x") + effect(idata, "1|g", "g", levels, frame) + slope


def binomial(idata, frame):
    site = draws(idata, "1|site")[:, frame["site"].to_numpy() - 1]
    return expit(line(idata, frame, "Intercept", "x") + site)


def cumulative(idata, frame):
    cuts, eta = draws(idata, "threshold"), line(idata, frame, "x")
    inner = [expit(cuts[:, [j]] - eta) for j in range(2)]
    return np.stack([inner[0], inner[1] - inner[0], 1 - inner[1]], axis=-1)


def categorical(idata, frame):
    own = draws(idata, "1|h")[:, [["a", "b"].index(level) for level in frame["h"]]]  # (draw, row, level)
    eta = draws(idata, "Intercept")[:, None] + draws(idata, "x")[:, None] * frame["x"].to_numpy()[:, None] + own
    odds = np.exp(np.concatenate([np.zeros((*eta.shape[:2], 1)), eta], axis=2))
    return odds / odds.sum(axis=2, keepdims=True)


def nested(idata, frame):
    levels = [f"{g}:{h}" for g in "uvw" for h in "ab"]
    both = frame.assign(gh=frame["g"].astype(str) + ":" + frame["h"].astype(str))
    own = effect(idata, "1|g", "g", ["u", "v", "w"], frame) + effect(idata, "1|g:h", "gh", levels, both)
    return expit(line(idata, frame, "Intercept", "x") + own)


def levels_of_groups(idata, frame):
    """Slopes of a column with levels in groups: dims are the group, then the level."""
    own = draws(idata, "h|g")[:, [["u", "v", "w"].index(level) for level in frame["g"]], 0]
    first = effect(idata, "1|g", "g", ["u", "v", "w"], frame)
    return line(idata, frame, "Intercept", "x") + first + own * (frame["h"] == "b").to_numpy()


CASES = {
    "offset": ("count ~ x + offset(np.log(time))", "negativebinomial", negative_binomial),
    "zero-inflated": ("count ~ x", "zero_inflated_poisson", zero_inflated),
    "zero-inflated negative binomial": ("count ~ x", "zero_inflated_negativebinomial", zero_inflated),
    "hurdle": ("count ~ x", "hurdle_poisson", hurdle),
    "hurdle negative binomial": ("count ~ x", "hurdle_negativebinomial", hurdle_negative_binomial),
    "gamma": ("y ~ x + (1|g)", "gamma", gamma),
    "weibull": ("y ~ x", "weibull", log_linear),
    "censored": ("censored(y, h == 'a') ~ x", "exponential", log_linear),
    "truncated": ("truncated(y, lb=0.2, ub=9) ~ x", "gaussian", linear),
    "student": ("y ~ x + (x|g)", "t", student),
    "binomial": ("p(k, n) ~ x + (1|site)", None, binomial),
    "cumulative": ("grade ~ x", "cumulative", cumulative),
    "categorical": ("g ~ x + (1|h)", None, categorical),
    "nested": ("b ~ x + (1|g/h)", None, nested),
    "levels in groups": ("y ~ x + (h|g)", None, levels_of_groups),
}
cases = pytest.mark.parametrize("case", CASES)


@pytest.fixture(scope="module")
def fits():
    return {}


def fitted(case, fits):
    """A fit with a few draws, and its function of means."""
    formula, family, means = CASES[case]
    if case not in fits:
        fits[case] = drawn_fit(formula, family, RELEASE, shape=(2, 6))[1]
    return fits[case], means


@cases
def test_means_of_new_rows_by_hand(case, fits, tmp_path):
    idata, means = fitted(case, fits)
    arviz_compat.save(idata, tmp_path / "p.nc")
    for own in (idata, arviz_compat.load(tmp_path / "p.nc")):
        found = arviz_compat.group(iw.predictions(own, NEW), "posterior")
        name = read_design(arviz_compat.group(own, "posterior")).name
        values = found[name].to_numpy().reshape(12, len(NEW), *found[name].shape[3:])
        assert_allclose(values, means(idata, NEW), rtol=1e-8)


@cases
def test_averages_over_rows_are_those_of_predictions(case, fits):
    """Slopes and contrasts of given rows against differences of predicted means, at each draw."""
    idata, means = fitted(case, fits)
    frame, weights = RELEASE.synthetic.frame, RELEASE.weights.values / N

    def averaged(values):
        return np.tensordot(values, weights, axes=(1, 0))

    name = read_design(arviz_compat.group(idata, "posterior")).name
    step = 1e-5
    up, down = (means(idata, frame.assign(x=frame["x"] + way * step)) for way in (1, -1))
    found = arviz_compat.group(iw.slopes(idata, RELEASE, wrt="x", rows="fixed"), "posterior")["x"].to_numpy()
    assert_allclose(found.reshape(12, *found.shape[2:]), averaged((up - down) / (2 * step)), rtol=1e-5, atol=1e-8)
    low, high = (means(idata, frame.assign(x=value)) for value in (-1.0, 1.0))
    contrast = iw.comparisons(idata, RELEASE, contrast={"x": [-1, 1]}, rows="fixed")
    found = arviz_compat.group(contrast, "posterior")["x"].to_numpy()
    assert_allclose(found.reshape(12, *found.shape[3:]), averaged(high - low), rtol=1e-8, atol=1e-12)
    spread = [
        np.std(arviz_compat.group(iw.slopes(idata, RELEASE, rows=own, wrt="x", random_seed=1), "posterior")["x"])
        for own in ("fixed", "random")
    ]
    assert name and np.isfinite(spread).all() and spread[1] > 0


@cases
def test_replicated_responses_have_their_means(case, fits):
    idata, means = fitted(case, fits)
    wide = pd.concat([NEW] * 2000, ignore_index=True)
    drawn = arviz_compat.group(iw.predictions(idata, wide, kind="response", random_seed=1), "predictions")
    [values] = drawn.data_vars.values()
    values = values.to_numpy().reshape(12, 2000, len(NEW)).astype(float)
    exact = means(idata, NEW)
    if exact.ndim == 3:
        exact = exact @ np.arange(exact.shape[2])
    if case == "binomial":
        exact = exact * NEW["n"].to_numpy()
    middle, error = values.mean(axis=1), values.std(axis=1) / np.sqrt(2000) + 1e-3
    if case == "student":  # its tails are too heavy for a mean
        middle, error = np.median(values, axis=1), 1.3 * error
    assert (abs(middle - exact) < 5.5 * error).all()
    checked = iw.ppc(RELEASE, idata, draws=12, random_seed=1)
    assert np.isfinite(checked[["observed", "mean"]]).all(axis=None)


def test_a_new_group_has_an_effect_from_the_distribution_of_groups(fits):
    idata, _ = fitted("student", fits)
    new = NEW.assign(g=["u", "elsewhere", "elsewhere", "nowhere", "v"])
    with pytest.raises(ValueError, match="g"):
        iw.predictions(idata, new)
    known = iw.predictions(idata, NEW.assign(g=["u", "u", "u", "u", "v"]), kind="linear")
    found = iw.predictions(idata, new, kind="linear", sample_new_groups=True, random_seed=1)
    own, other = (arviz_compat.group(one, "posterior")["y"].to_numpy().reshape(12, 5) for one in (found, known))
    assert_allclose(own[:, [0, 4]], other[:, [0, 4]])
    plain = line(idata, new, "Intercept", "x")
    scale = np.sqrt(
        draws(idata, "1|g_sigma")[:, None] ** 2 + (draws(idata, "x|g_sigma")[:, None] * new["x"].to_numpy()) ** 2
    )
    z = (own - plain)[:, [1, 3]] / scale[:, [1, 3]]
    assert abs(z.mean()) < 5 / np.sqrt(z.size) and 0.4 < z.std() < 1.7
    # one effect for each new group and draw
    one = iw.predictions(idata, new.assign(x=0.5), kind="linear", sample_new_groups=True, random_seed=1)
    values = arviz_compat.group(one, "posterior")["y"].to_numpy().reshape(12, 5)
    assert_allclose(values[:, 1], values[:, 2]) and np.all(values[:, 1] != values[:, 3])


def test_odds_ratios_are_of_coefficients_only(fits):
    idata, _ = fitted("offset", fits)
    assert list(arviz_compat.group(iw.odds_ratios(idata), "posterior").data_vars) == ["x"]
    idata, _ = fitted("nested", fits)
    assert list(arviz_compat.group(iw.odds_ratios(idata), "posterior").data_vars) == ["x"]


@pytest.mark.parametrize(
    ("formula", "family", "options"),
    [("count ~ x + offset(np.log(time))", "poisson", {}), ("y ~ x + (1|g)", None, {"sampler": {"tune": 200}})],
)
@pytest.mark.filterwarnings("ignore::iwbayes.utils.warnings.CalibrationWarning", "ignore::UserWarning")
def test_a_fit_passes_every_function(formula, family, options):
    idata = iw.fit(formula, RELEASE, family=family, draws=200, chains=2, random_seed=1, progressbar=False, **options)
    record = arviz_compat.group(idata, "calibration")
    predicted = iw.predictions(idata, NEW)
    assert len(arviz_compat.group(predicted, "calibration")["parameter"]) == len(NEW)
    slope = iw.slopes(idata, RELEASE, wrt="x", random_seed=1)
    assert arviz_compat.group(slope, "calibration").attrs["method"] == record.attrs["method"]
    assert len(iw.ppc(RELEASE, idata, draws=50, random_seed=1)) == 7
    more = {"family": family, "draws": 200, "chains": 2, "random_seed": 1, "progressbar": False, "calibrate": "none"}
    fits = {name: iw.fit(formula.replace("x", name, 1), RELEASE, **more | options) for name in ("x", "1")}
    assert np.isfinite(iw.loo(fits["x"], RELEASE).elpd) and len(iw.compare(fits, RELEASE)) == 2
