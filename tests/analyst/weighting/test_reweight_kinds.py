"""Every kind of observed variable: weights against repeated rows, and densities without rows refused."""

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from pymc.pytensorf import gradient, rewrite_pregrad
from pytensor.compile.mode import Mode

from iwbayes.analyst.weighting.reweight import reweight

ROWS = 6
ONES = np.ones(ROWS, int)
INTEGERS = np.array([1, 3, 2, 1, 4, 2])
WITH_ZEROS = np.array([0, 3, 0, 1, 2, 2])
INDEX = np.arange(ROWS)

# Interpreted as built, since generating code takes most of the time; test_reweight.py applies all rewrites.
MODE = Mode(linker="py", optimizer=None)


def table():
    """One column of data a kind of support; rows on the first axis."""
    rng = np.random.default_rng(5)
    return {
        "x": rng.normal(size=ROWS),
        "real": rng.normal(size=ROWS),
        "positive": np.array([0.0, 0.7, 1.3, 0.0, 2.5, 0.4]) + 0.2,
        "hurdle": np.array([0.0, 0.7, 1.3, 0.0, 2.5, 0.4]),
        "unit": rng.uniform(0.1, 0.9, ROWS),
        "binary": np.array([0, 1, 1, 0, 1, 0]),
        "level": np.array([0, 2, 1, 1, 0, 2]),
        "count": np.array([0, 3, 1, 0, 5, 2]),
        "trials": np.array([4, 6, 5, 7, 9, 8]),
        "pair": rng.normal(size=(ROWS, 2)),
        "counts": rng.integers(0, 5, (ROWS, 3)),
        "simplex": rng.dirichlet(np.ones(3), ROWS),
        "series": rng.normal(size=(ROWS, 4)),
        "matrix": rng.normal(size=(ROWS, 2, 3)),
    }


def line(data):
    b = pm.Normal("b", 0, 2, shape=2)
    return b[0] + b[1] * data["x"]


def scale():
    return pm.HalfNormal("s", 1)


def simple(kind, column, **parameters):
    """Build a kind whose location, parameter `at`, is a line."""

    def build(data):
        at, link = parameters.get("at", "mu"), parameters.get("link", lambda eta: eta)
        others = {k: v(data) if callable(v) else v for k, v in parameters.items() if k not in ("at", "link")}
        others |= {"sigma": scale()} if kind in SCALED else {}
        kind("y", **{at: link(line(data))}, **others, observed=data[column])

    return build


SCALED = (pm.Normal, pm.StudentT, pm.Laplace, pm.HurdleLogNormal, pm.LogNormal, pm.SkewNormal)


def categorical(data):
    b = pm.Normal("b", 0, 1, shape=(2, 3))
    pm.Categorical("y", logit_p=b[0] + b[1] * data["x"][:, None], observed=data["level"])


def cutpoints():
    return {"cutpoints": pm.Normal("c", np.array([-1.0, 1.0]), 1, transform=pm.distributions.transforms.ordered)}


def ordered_logistic(data):
    pm.OrderedLogistic("y", eta=line(data), **cutpoints(), compute_p=False, observed=data["level"])


def ordered_probit(data):
    pm.OrderedProbit("y", eta=line(data), **cutpoints(), sigma=1.0, compute_p=False, observed=data["level"])


def ordered_multinomial(data):
    totals = data["counts"].sum(axis=1)
    pm.OrderedMultinomial("y", eta=line(data), n=totals, **cutpoints(), compute_p=False, observed=data["counts"])


def multinomial(data):
    pm.Multinomial("y", n=data["counts"].sum(axis=1), p=pm.Dirichlet("p", np.ones(3)), observed=data["counts"])


def dirichlet_multinomial(data):
    a = pm.Exponential("a", 1, shape=3)
    pm.DirichletMultinomial("y", n=data["counts"].sum(axis=1), a=a, observed=data["counts"])


def dirichlet(data):
    pm.Dirichlet("y", a=pm.Exponential("a", 1, shape=3), observed=data["simplex"])


def covariance():
    return np.array([[1, 0.3], [0.3, 2]])


def mvnormal(data):
    mean = pm.Normal("mean", 0, 1, shape=2)
    pm.MvNormal("y", mean * data["x"][:, None], cov=covariance(), observed=data["pair"])


def mvnormal_lkj(data):
    chol, *_ = pm.LKJCholeskyCov("chol", n=2, eta=2, sd_dist=pm.Exponential.dist(1, shape=2))
    pm.MvNormal("y", pm.Normal("mean", 0, 1, shape=2), chol=chol, observed=data["pair"])


def mvstudent(data):
    pm.MvStudentT("y", nu=5, mu=pm.Normal("mean", 0, 1, shape=2), scale=covariance(), observed=data["pair"])


def mixture(data):
    w = pm.Dirichlet("w", np.ones(2))
    parts = [pm.Normal.dist(line(data), 1), pm.StudentT.dist(nu=4, mu=1, sigma=2)]
    pm.Mixture("y", w, parts, observed=data["real"])


def mixture_of_vectors(data):
    w = pm.Dirichlet("w", np.ones(2))
    parts = [pm.MvNormal.dist(pm.Normal("m", 0, 1, shape=2), covariance()), pm.MvNormal.dist(np.ones(2), np.eye(2))]
    pm.Mixture("y", w, parts, observed=data["pair"])


def normal_mixture(data):
    w = pm.Dirichlet("w", np.ones(2))
    pm.NormalMixture("y", w, mu=pm.Normal("m", 0, 1, shape=2), sigma=1, observed=data["real"])


def censored(data):
    latent = pm.Normal.dist(line(data), 1)
    pm.Censored("y", latent, lower=None, upper=0.4, observed=data["real"].clip(-9, 0.4))


def truncated(data):
    pm.Truncated("y", pm.Normal.dist(line(data), 1), lower=0, upper=None, observed=data["positive"])


def ar_rows(data):
    rho = pm.Normal("rho", 0, 0.5, shape=2)
    pm.AR("y", rho=rho, sigma=scale(), init_dist=pm.Normal.dist(0, 1), observed=data["series"])


def random_walk_rows(data):
    pm.GaussianRandomWalk("y", sigma=scale(), init_dist=pm.Normal.dist(0, 1), observed=data["series"])


def custom_logp(data):
    def log_density(value, mu):
        return -pt.sqr(value - mu) / 2

    pm.CustomDist("y", line(data), logp=log_density, observed=data["real"])


def custom_dist(data):
    def draw(mu, size):
        return pt.exp(pm.Normal.dist(mu, 1, size=size))

    pm.CustomDist("y", line(data), dist=draw, observed=data["positive"])


def custom_signature(data):
    def log_density(value, mu):
        return -pt.sqr(value - mu).sum(axis=-1) / 2

    mean = pm.Normal("mean", 0, 1, shape=2)
    pm.CustomDist("y", mean, logp=log_density, signature="(k)->(k)", observed=data["pair"])


def zero_sum_rows(data):
    centred = data["series"] - data["series"].mean(axis=1)[:, None]
    pm.ZeroSumNormal("y", sigma=scale(), observed=centred)


def interpolated(data):
    grid = np.linspace(-5, 5, 11)
    pm.Normal("b", 0, 1)
    pm.Interpolated("y", grid, np.exp(-(grid**2) / 2), observed=data["real"])


def matrix_of_rows(data):
    pm.Normal("y", pm.Normal("mean", 0, 1, shape=(2, 3)), 1, observed=data["matrix"])


def sharing_rows(data):
    eta = line(data)
    y = pm.Normal("y", eta, 1, observed=data["real"])
    pm.Bernoulli("z", logit_p=2 * eta + y, observed=data["binary"])


def hierarchical(data):
    group = pm.Normal("group", 0, pm.HalfNormal("tau", 1), shape=3)
    pm.Potential("pull", -(pt.sum(group) ** 2))
    pm.Deterministic("doubled", 2 * group)
    pm.Normal("y", group[data["level"]], 1, observed=data["real"])


def positive(eta):
    return pt.exp(0.3 * eta)


def probability(eta):
    return pt.sigmoid(0.3 * eta)


KINDS = {
    "normal": simple(pm.Normal, "real"),
    "student": simple(pm.StudentT, "real", nu=4),
    "laplace": lambda data: pm.Laplace("y", line(data), scale(), observed=data["real"]),
    "exponential": simple(pm.Exponential, "positive", at="scale", link=positive),
    "gamma": simple(pm.Gamma, "positive", alpha=2, at="beta", link=positive),
    "beta": simple(pm.Beta, "unit", beta=2, at="alpha", link=positive),
    "uniform": simple(pm.Uniform, "real", lower=-9, at="upper", link=lambda eta: 9 + probability(eta)),
    "bernoulli": simple(pm.Bernoulli, "binary", at="logit_p"),
    "binomial": simple(pm.Binomial, "count", n=lambda data: data["trials"], at="logit_p"),
    "betabinomial": simple(pm.BetaBinomial, "count", n=9, beta=2, at="alpha", link=positive),
    "poisson": simple(pm.Poisson, "count", link=positive),
    "negative binomial": simple(pm.NegativeBinomial, "count", alpha=2, link=positive),
    "geometric": simple(pm.Geometric, "trials", at="p", link=probability),
    "zero-inflated poisson": simple(pm.ZeroInflatedPoisson, "count", psi=0.6, link=positive),
    "zero-inflated binomial": simple(pm.ZeroInflatedBinomial, "count", psi=0.6, n=9, at="p", link=probability),
    "zero-inflated negative binomial": simple(
        pm.ZeroInflatedNegativeBinomial, "count", psi=0.6, alpha=2, link=positive
    ),
    "hurdle poisson": simple(pm.HurdlePoisson, "count", psi=0.6, link=positive),
    "hurdle negative binomial": simple(pm.HurdleNegativeBinomial, "count", psi=0.6, alpha=2, link=positive),
    "hurdle gamma": simple(pm.HurdleGamma, "hurdle", psi=0.6, alpha=2, at="beta", link=positive),
    "hurdle lognormal": simple(pm.HurdleLogNormal, "hurdle", psi=0.6),
} | {
    build.__name__: build
    for build in (
        categorical, ordered_logistic, ordered_probit, ordered_multinomial, multinomial, dirichlet_multinomial,
        dirichlet, mvnormal, mvnormal_lkj, mvstudent, mixture, mixture_of_vectors, normal_mixture, censored, truncated,
        ar_rows, random_walk_rows, custom_logp, custom_dist, custom_signature, zero_sum_rows, interpolated,
        matrix_of_rows, sharing_rows, hierarchical,
    )
}  # fmt: skip


def density(model):
    """Log density and gradient as functions of a point."""
    logp = rewrite_pregrad(model.logp())  # as Model.dlogp does, which builds the density once more
    # without a compiler also graphs inside of Ops are interpreted
    with pytensor.config.change_flags(cxx=""):
        return model.compile_fn(
            [logp, gradient(logp, model.value_vars)], inputs=model.value_vars, on_unused_input="ignore", mode=MODE
        )


def value_shapes(model):
    """Shapes of the unconstrained values."""
    return {var.name: var.type.shape for var in model.value_vars}


def with_repeated_rows(build):
    """Return the model whose rows are those of the table at an index that can be swapped."""
    index = pytensor.shared(INDEX, "index", shape=(None,))
    with pm.Model() as model:
        build({name: pt.as_tensor(column)[index] for name, column in table().items()})
    return model, index


#: Kinds of univariate, vector, mixed, custom and grouped rows, which weights that are never zero meet as well.
UNGUARDED = ("normal", "categorical", "mvnormal", "mixture", "custom_signature", "hierarchical")


# PyMC 5 builds the truncated part of hurdle distributions by a call of scan that pytensor deprecates.
@pytest.mark.parametrize(("kind", "guard"), [(k, True) for k in KINDS] + [(k, False) for k in UNGUARDED])
def test_weights_equal_repeated_rows(kind, guard):
    with pm.Model() as model:
        KINDS[kind](table())
    repeated, index = with_repeated_rows(KINDS[kind])
    expected = density(repeated)
    rng = np.random.default_rng(2)
    point = {name: rng.normal(size=shape) * 0.5 for name, shape in value_shapes(model).items()}
    weighted = reweight(model, WITH_ZEROS if guard else ONES)
    f = density(weighted)
    for weights in (WITH_ZEROS, ONES, INTEGERS) if guard else (ONES, INTEGERS):
        with weighted:
            pm.set_data({"likelihood_weights": weights.astype(float)})
        index.set_value(np.repeat(INDEX, weights))
        tolerance = 1e-14 if weights is ONES else 1e-12
        for got, want in zip(f(point), expected(point), strict=True):
            assert np.isfinite(want).all()
            np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance * np.abs(want).max())
