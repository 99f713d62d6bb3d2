"""Frames, schemas, tables and releases that tests share.

Tests hold numbers against each other that follow from the seeds and from the order of draws, so that order stays.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
from scipy.special import expit

import iwbayes as iw
from iwbayes.curator.auditing.audit import opposite_corners
from iwbayes.curator.generators.bayesnet.bayesnet import structure_scores
from iwbayes.curator.generators.tables.network import count_table
from iwbayes.curator.weight_providers.tilt import tilt
from iwbayes.evidence import FeatureMap
from iwbayes.evidence.distributions import GaussianDistribution
from iwbayes.evidence.measurement import Measurement
from iwbayes.evidence.shifts import Shifts

# --- tables, ledgers and releases of given rows


def synthetic_table(rows, schema, *, origin="test", already_spent=(0, 0)):
    """Synthetic rows from outside that cost nothing, given as a frame, by column or as an array."""
    frame = rows if isinstance(rows, pd.DataFrame) else pd.DataFrame(rows, columns=list(schema.names))
    return iw.SyntheticTable(frame, schema, origin=origin, already_spent=already_spent)


def bounded_table(frame, schema, owners, rows_per_user, n_private):
    """Private rows of users who own at most so many each, with a public count of rows."""
    private = iw.PrivateTable(frame.assign(owner=owners), schema, user="owner")
    return private._bounded_by(np.arange, rows_per_user=rows_per_user, n_private=n_private, source="test")


def scores_of(codes, sizes, nodes, n):
    """Structure scores of nodes from the codes of the rows, as an array."""
    tables = (count_table(codes, sizes, node.members) for node in nodes)
    return np.array(structure_scores(tables, sizes, nodes, n))


def seeded_ledger(epsilon=1.0, delta=1e-6, adjacency="replace-one", *, seed=1, noise=None):
    """Ledger of a noise source, a seeded one if none is given."""
    return iw.Ledger(epsilon, delta, adjacency, noise=iw.SeededNoise(seed) if noise is None else noise)


def seeded_release(private, seed=1, **options):
    """Publish so that every run gives the same release."""
    settings = {"epsilon": 1.0, "delta": 1e-6, "noise": iw.SeededNoise(seed), "random_seed": seed}
    return iw.publish(private, **{**settings, **options})


def simulated_table(family, n):
    """Private rows of the package's simulation for a family."""
    simulated = iw.datasets.simulate_table(family, n, random_seed=1)
    return iw.PrivateTable(simulated.frame, simulated.schema)


def make_statement(noise="seeded"):
    """Statement of no uses, for releases that are put together by hand."""
    return iw.PrivacyStatement(1.0, 1e-6, "replace-one", (), noise, noise == "hardened")


STATEMENT = make_statement()


def release_of(synthetic, log_weights=None, method="test", *, measurement=None, n_private=None, statement=STATEMENT):
    """Release of log weights, all zero if none are given, for as many private rows as synthetic ones if not told."""
    n = len(synthetic)
    weights = iw.Weights(np.zeros(n) if log_weights is None else log_weights, method, measurement=measurement)
    return iw.Release(synthetic, weights, statement, n_private=n if n_private is None else n_private)


def reweighted(release, log_weights, method="test", *, measurement=None, n_private=None):
    """The rows of a release with other weights."""
    n_private = release.n_private if n_private is None else n_private
    more = {"measurement": measurement, "n_private": n_private, "statement": release.statement}
    return release_of(release.synthetic, log_weights, method, **more)


# --- releases tilted by hand, so that no curator's defaults matter


def tilted_release(synthetic, features, value, distribution, n_private):
    """Release tilted to the noisy moments `value`."""
    measurement = Measurement("mean of features", value, distribution, 1e-3, features, n_private)
    columns = measurement.tilt_columns
    phi = features.transform(synthetic.frame)[:, columns]
    shares, noise = np.full(len(phi), 1 / len(phi)), distribution.covariance[columns, columns]
    measurement = replace(measurement, floors=(1 / len(phi),) * len(features.block_sizes))
    shifts = Shifts.of(phi, shares, value[columns], noise, measurement.shift_blocks)
    log_weights, b = tilt(phi, shifts.means, shifts.covariance + shifts.spread / n_private)
    measurement = replace(measurement, coefficients=b)
    return release_of(synthetic, log_weights, "TiltWeights", measurement=measurement, n_private=n_private)


def stretched_features(synthetic, terms, factor):
    """Whitened features with a clip bound so many times the usual one."""
    features = FeatureMap.whitened(synthetic, terms)
    return features.with_bound(factor * features.bound)


def noisy_release(rng, synthetic, features, private, noise_sd):
    """Release tilted to the means of the private rows' features and Gaussian noise."""
    exact = features.transform(synthetic.schema.conform(private)).mean(axis=0)
    value = exact + noise_sd * rng.normal(size=features.dim)
    return tilted_release(synthetic, features, value, GaussianDistribution(noise_sd, features.dim), len(private))


# --- rows of regressions: two real columns, a gap, a category, a count and a binary one


def _regression_schema(bound, real, gap, binary):
    return iw.Schema(
        iw.Real("x", -bound, bound),
        iw.Real(real, -9, 9),
        iw.Real("m", -gap, gap, missing=True),
        iw.Categorical("g", ["u", "v", "w"]),
        iw.Integer("k", 0, 60),
        iw.Binary(binary, ("no", "yes")),
    )


SCHEMA = _regression_schema(3, "y", 9, "z")
OTHER_SCHEMA = _regression_schema(4, "z", 4, "y")


def _regression_rows(rng, schema, x, real, gap, missing, logit):
    """Rows of a regression schema; x, the real column, what has gaps and the logit of the binary one are given."""
    n = len(x)
    columns = (
        x,
        real,
        np.where(rng.random(n) < missing, np.nan, gap),
        rng.choice(["u", "v", "w"], n, p=[0.5, 0.3, 0.2]),
        np.minimum(rng.poisson(np.exp(0.3 + 0.4 * x)), 60),
        np.where(rng.random(n) < expit(logit), "yes", "no"),
    )
    return pd.DataFrame(dict(zip(schema.names, columns, strict=True)))


def simulate(rng, n, *, slope=0.8, shift=0.0):
    """Rows of `SCHEMA`, of one truth: y linear in x, k Poisson and z logistic in x, g apart, m is y with gaps."""
    x = np.clip(rng.normal(size=n) + shift, -3, 3)
    y = np.clip(0.3 + slope * x + rng.normal(size=n), -9, 9)
    return _regression_rows(rng, SCHEMA, x, y, y, 0.2, 0.2 + slope * x)


def simulate_other(rng, n, *, digits=None, exact=False):
    """Rows of `OTHER_SCHEMA`: z linear in x, or x as a whole number; m is x with gaps; rows of rounded x coincide."""
    x = np.clip(rng.normal(size=n), -4, 4)
    x = x if digits is None else np.round(x, digits)
    z = np.round(x) if exact else np.clip(0.5 + x + rng.normal(size=n), -9, 9)
    return _regression_rows(rng, OTHER_SCHEMA, x, z, x, 0.3, 0.5 + x)


def make_release(n=300, n_private=200, seed=3, noise_sd=0.02, features="linear", frame=None):
    """Release of simulated rows for private ones that lie a little off them."""
    rng = np.random.default_rng(seed)
    synthetic = iw.SyntheticTable(simulate(rng, n) if frame is None else frame, SCHEMA)
    return noisy_release(
        rng, synthetic, stretched_features(synthetic, features, 2), simulate(rng, n_private, shift=0.2), noise_sd
    )


def grouped_release(effects, *, n, n_private, shrink, seed):
    """Release of rows in groups a, b, c, ...: y normal around 1 + the group's effect, shrunken in synthetic rows."""
    rng, effects = np.random.default_rng(seed), np.asarray(effects)
    levels = "abcdefgh"[: len(effects)]
    schema = iw.Schema(iw.Categorical("g", list(levels)), iw.Real("y", -9, 9))

    def rows(size, means):
        g = rng.integers(0, len(levels), size)
        return pd.DataFrame({"g": np.array(list(levels))[g], "y": np.clip(1 + means[g] + rng.normal(size=size), -9, 9)})

    synthetic = iw.SyntheticTable(rows(n, shrink * effects), schema)
    return noisy_release(
        rng, synthetic, stretched_features(synthetic, "quadratic", 1.5), rows(n_private, effects), 0.02
    )


# --- rows of four kinds of columns: real x, count k, binary y and category g


def mixed_schema(missing=""):
    """Schema of four kinds of columns, of which those named may be missing."""
    return iw.Schema(
        iw.Real("x", -2, 2, missing="x" in missing),
        iw.Integer("k", 0, 9, missing="k" in missing),
        iw.Binary("y"),
        iw.Categorical("g", ("a", "b", "c"), missing="g" in missing),
    )


#: With gaps in x and g; and in g alone.
MIXED, MIXED_G = mixed_schema("xg"), mixed_schema("g")


def mixed_rows(n, rng, extreme=False, *, sd=1.0, gaps=0.2, order="xkyg"):
    """Rows of four kinds of columns, drawn in this order; extreme ones stand at the bounds."""

    def real():
        x = rng.choice([-2.0, 2.0], n) if extreme else rng.normal(0, sd, n)
        return np.where(rng.random(n) < gaps, np.nan, x) if gaps else x

    draw = {
        "x": real,
        "k": lambda: rng.choice([0, 9], n) if extreme else rng.poisson(3, n),
        "y": lambda: rng.integers(0, 2, n),
        "g": lambda: pd.Series(rng.choice(np.array(["a", "b", "c", None], dtype=object), n), dtype=object),
    }
    return pd.DataFrame({name: draw[name]() for name in order})[list("xkyg")]


def wide_rows(n, rng, order="xkyg"):
    """Rows of `MIXED_G` of which many lie beyond the bounds of x."""
    return mixed_rows(n, rng, sd=1.5, gaps=0, order=order)


def mixed_tables(n=300, m=900, seed=0):
    """Private rows with larger counts, and synthetic ones."""
    rng = np.random.default_rng(seed)
    shifted = mixed_rows(n, rng).assign(k=rng.poisson(5, n))
    return iw.PrivateTable(shifted, MIXED), synthetic_table(mixed_rows(m, rng), MIXED)


# --- rows without structure, for tests of what is around them


def unit_schema(columns="xy"):
    """Schema of some of x in [0, 1], binary y, z one of a, b, c, and k from 0 to 9."""
    known = (iw.Real("x", 0, 1), iw.Binary("y"), iw.Categorical("z", ("a", "b", "c")), iw.Integer("k", 0, 9))
    return iw.Schema(*(column for column in known if column.name in columns))


def unit_rows(n, rng, columns="xy"):
    """Rows of such a schema, uniform and independent."""
    draw = {
        "x": lambda: rng.random(n),
        "y": lambda: rng.integers(0, 2, n),
        "z": lambda: rng.choice(list("abc"), n),
        "k": lambda: rng.integers(0, 10, n),
    }
    return pd.DataFrame({name: draw[name]() for name in columns})


def unit_table(n, columns="xy", seed=1):
    """Private rows of such a schema."""
    return iw.PrivateTable(unit_rows(n, np.random.default_rng(seed), columns), unit_schema(columns))


def real_schema(d, lower=0, upper=1):
    """Schema of d real columns x0, x1, ..."""
    return iw.Schema(*(iw.Real(f"x{index}", lower, upper) for index in range(d)))


# --- neighbouring tables for audits: two that differ in their first row, and rows to weight where those are needed


def one_row(first, second):
    """Two tables of one row each."""
    schema = real_schema(len(first))
    return synthetic_table([first], schema), synthetic_table([second], schema), None


def corners(schema, n):
    """Tables whose first rows stand at opposite corners."""
    return *opposite_corners(schema, n), None


def around_the_middle(d=1):
    """Few private rows, one of them at either end; synthetic rows close to the middle, so that both ends clip."""
    schema = real_schema(d)
    first = np.full((8, d), 0.5)
    second = first.copy()
    first[0], second[0] = 1.0, 0.0
    rows = np.random.default_rng(0).uniform(0.4, 0.6, (60, d))
    return tuple(synthetic_table(each, schema) for each in (first, second, rows))


def surprising(d, n):
    """A row that the regression takes for synthetic, at opposite corners of features where no other row stands.

    Private rows stand at one end of the first feature, synthetic ones and the differing row at the other, so that
    its residual is nearly one; all the others are in the middle of the other features, so that only the penalty
    curves the objective there.
    """
    schema = real_schema(d)
    private, synthetic = np.full((n, d), 0.5), np.full((2, d), 0.5)
    private[:, 0], synthetic[:, 0] = 0.0, 1.0
    first, second = private.copy(), private.copy()
    first[0], second[0], second[0, 0] = 1.0, 0.0, 1.0
    return tuple(synthetic_table(each, schema) for each in (first, second, synthetic))


def row_of_ends():
    """One private row at either end, with two synthetic rows to weight."""
    schema = real_schema(1)
    return tuple(synthetic_table(rows, schema) for rows in ([[0.0]], [[1.0]], [[0.0], [1.0]]))


def apart(n, m):
    """Private rows at one corner, synthetic ones at the other but for one, one private row at either."""
    schema = real_schema(1)
    return *opposite_corners(schema, n), synthetic_table([[0.0]] + [[1.0]] * (m - 1), schema)


def gathered(n, d, *, binary=True, seed=1):
    """Rows near the middle of d real columns but for the first one, which stands in a corner."""
    rng = np.random.default_rng(seed)
    rows = {name: rng.normal(0.5, 0.07, n).clip(0, 1) for name in real_schema(d).names}
    if binary:
        rows["y"] = rng.integers(0, 2, n)
    frame = pd.DataFrame(rows)
    for index, name in enumerate(rows):
        frame.loc[0, name] = 1 if index == 0 or name == "y" else 0
    schema = iw.Schema(*real_schema(d), *([iw.Binary("y")] if binary else []))
    return synthetic_table(frame, schema, origin="simulated")
