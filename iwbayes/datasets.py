"""Example tables with public schemas: the RAND health insurance experiment, and simulated tables."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import pandas as pd

from iwbayes.schema import Binary, Categorical, Integer, Real, Schema
from iwbayes.utils import checks
from iwbayes.utils.optional import import_optional

__all__ = ["Simulated", "load_rand_health", "simulate_rand_health", "simulate_table"]

HEALTH = ("excellent", "good", "fair", "poor")
#: Families of the regressions that `simulate_table` can simulate.
SimulatedFamily: TypeAlias = Literal["bernoulli", "gaussian", "poisson"]


def load_rand_health() -> tuple[pd.DataFrame, Schema]:
    """Load the RAND health insurance experiment: doctor visits per year, insurance plan and health of real people.

    The table has 20,190 person-years. It is the public table ``randhie`` of statsmodels (Cameron & Trivedi,
    *Microeconometrics*, 2005, chapter 20), which requires ``pip install ".[demo]"``.

    Returns
    -------
    frame : pandas.DataFrame, shape (20190, 9)
        One row per person and year.
    schema : Schema
        Public declaration of the columns:

        ==============  ============================================================  =====================
        column          meaning                                                       public declaration
        ==============  ============================================================  =====================
        any_visit       whether there was at least one visit (``visits > 0``)         0, 1
        visits          outpatient visits to a physician in the year                  0 to 52
        lncoins         log(1 + coinsurance rate in percent)                          0 to log 101
        idp             individual deductible plan                                    0, 1
        lpi             log of the yearly participation incentive in dollars          0 to 8
        fmde            log(maximum expenditure / coinsurance share), 0 if idp        0 to log 4000
        physlm          physical limitation                                           0, 1
        disea           index of chronic diseases                                     0 to 60
        health          self-rated health                                             4 levels
        ==============  ============================================================  =====================

    Notes
    -----
    The bounds come from the design and the questionnaire of the experiment, not from these rows; values outside are
    clipped. The yearly maximum was at most 1,000 dollars and the smallest coinsurance 25 %, hence log 4000. Incentives
    compensated for a family's possible losses, far below exp(8) = 2,981 dollars. The code book gives no maximum for the
    disease index. Unlike in its source, self-rated health is one column, and ``physlm`` is rounded: the source contains
    fractions for imputed answers. ``any_visit`` is a separate column because the tilt matches moments of declared
    columns only. Synthetic rows may contradict ``visits``; the weights correct this on average.
    """
    source = import_optional("statsmodels.datasets", "the RAND table needs").randhie.load_pandas().data
    rated = source[["hlthg", "hlthf", "hlthp"]].to_numpy()
    index = np.where(rated.any(axis=1), rated.argmax(axis=1) + 1, 0)
    health = pd.Categorical.from_codes(index, categories=list(HEALTH))
    visits = source["mdvis"]
    frame = source.assign(any_visit=visits > 0, visits=visits, physlm=source["physlm"] >= 0.5, health=health)
    schema = _rand_schema()
    kinds = {"binary": np.int64, "integer": np.int64, "real": np.float64}
    return frame[list(schema.names)].astype({c.name: kinds[c.kind] for c in schema if c.kind in kinds}), schema


def _rand_schema() -> Schema:
    return Schema(
        Binary("any_visit"),
        Integer("visits", 0, 52),
        Real("lncoins", 0, math.log(101)),
        Binary("idp"),
        Real("lpi", 0, 8),
        Real("fmde", 0, math.log(4000)),
        Binary("physlm"),
        Real("disea", 0, 60),
        Categorical("health", HEALTH),
    )


def simulate_rand_health(
    n: int = 20_190, *, random_seed: int | np.random.Generator | None = None
) -> tuple[pd.DataFrame, Schema]:
    """Simulate a table with the columns of `load_rand_health`, for use without statsmodels.

    Visits are overdispersed counts (gamma-Poisson), as the real ones are. No row of the real table is used.

    Parameters
    ----------
    n : int
        Number of rows; by default as many as in the real table.
    random_seed : int or numpy.random.Generator, optional
        Seed of the simulation.

    Returns
    -------
    frame : pandas.DataFrame, shape (n, 9)
    schema : Schema
        As `load_rand_health` declares it.
    """
    checks.whole("n", n)
    rng = np.random.default_rng(random_seed)
    rate = rng.choice([0.0, 25.0, 50.0, 95.0], n, p=[0.45, 0.25, 0.1, 0.2])
    deductible = ((rate == 95) & (rng.random(n) < 0.8)).astype(np.int64)
    incentive = np.where(rate > 0, np.clip(rng.normal(6.4, 0.6, n), 0, 8), 0.0)
    largest = np.where((rate > 0) & (deductible == 0), np.log(1000 / np.maximum(rate / 100, 0.25)), 0.0)
    diseases = np.clip(rng.gamma(2.8, 4.0, n), 0, 60)
    limited = _binary(-3.0 + 0.09 * diseases, rng)
    health = np.sum(rng.logistic(0.06 * (diseases - 11) + 0.5 * limited, 1.0)[:, None] > [0.2, 2.4, 4.1], axis=1)
    log_mean = (
        0.75 - 0.04 * np.log1p(rate) - 0.2 * deductible + 0.03 * incentive - 0.02 * largest
        + 0.25 * limited + 0.03 * diseases + np.array([0.0, 0.0, 0.1, 0.3])[health]
    )  # fmt: skip
    visits = np.minimum(rng.poisson(np.exp(log_mean) * rng.gamma(0.8, 1 / 0.8, n)), 52)
    frame = pd.DataFrame(
        {
            "any_visit": (visits > 0).astype(np.int64),
            "visits": visits.astype(np.int64),
            "lncoins": np.log1p(rate),
            "idp": deductible,
            "lpi": incentive,
            "fmde": largest,
            "physlm": limited,
            "disea": diseases,
            "health": pd.Categorical.from_codes(health, categories=list(HEALTH)),
        }
    )
    return frame, _rand_schema()


@dataclass(frozen=True, eq=False)
class Simulated:
    """A simulated table with the regression that generated its response, from `simulate_table`."""

    frame: pd.DataFrame  # the simulated rows
    schema: Schema
    formula: str  # of the regression that generated the response
    family: SimulatedFamily
    truth: dict[str, float]  # true coefficients, with the parameter names of `iwbayes.fit`


def simulate_table(
    family: SimulatedFamily, n: int, *, random_seed: int | np.random.Generator | None = None, scale: float = 1.0
) -> Simulated:
    """Simulate a table with four covariates and a response from a known regression.

    ``x`` and ``z`` are correlated real columns within [-3, 3]. ``treated`` is binary, with a probability that increases
    with ``x``. ``group`` has the levels a, b and c, with probabilities that depend on ``treated``. The linear predictor
    is

        -0.3 + scale (0.8 x - 0.5 z + 0.6 treated + 0.4 [group b] - 0.7 [group c])

    For ``bernoulli`` it is the log odds. For ``poisson``, half of it is the log mean, and counts above 60 are cut to
    60. For ``gaussian`` it is the mean; the standard deviation is 1, and values are clipped to [-12, 12].

    Parameters
    ----------
    family : {"bernoulli", "gaussian", "poisson"}
        Family of the response ``y``.
    n : int
        Number of rows, at least 1.
    random_seed : int or numpy.random.Generator, optional
        Seed of the simulation. By default each call gives different rows.
    scale : float, default 1.0
        Factor in [0, 1] that multiplies every slope. With 0 the response does not depend on the covariates.

    Examples
    --------
    >>> people = simulate_table("bernoulli", 100, random_seed=1)
    >>> people.frame.shape, people.schema.names
    ((100, 5), ('y', 'x', 'z', 'treated', 'group'))
    """
    checks.one_of("family", family, _RESPONSES)
    checks.whole("n", n)
    if not 0 <= scale <= 1:
        raise ValueError(f"scale must be in [0, 1]; got {scale!r}.")
    rng = np.random.default_rng(random_seed)
    x = np.clip(rng.normal(size=n), -3, 3)
    z = np.clip(0.5 * x + math.sqrt(0.75) * rng.normal(size=n), -3, 3)
    treated = _binary(0.7 * x, rng)
    edges = np.where(treated[:, None] == 1, [0.5, 0.8], [0.3, 0.7])
    group = (rng.random(n)[:, None] > edges).sum(axis=1)
    column, factor, draw = _RESPONSES[family]
    slopes = {"x": 0.8, "z": -0.5, "treated": 0.6, "group[b]": 0.4, "group[c]": -0.7}
    truth = {"Intercept": -0.3 * factor} | {name: factor * scale * slope for name, slope in slopes.items()}
    design = np.column_stack([x, z, treated, group == 1, group == 2])
    response = draw(truth["Intercept"] + design @ np.array([truth[name] for name in slopes]), rng)
    levels = pd.Categorical.from_codes(group, categories=["a", "b", "c"])
    frame = pd.DataFrame({"y": response, "x": x, "z": z, "treated": treated, "group": levels})
    covariates = Real("x", -3, 3), Real("z", -3, 3), Binary("treated"), Categorical("group", ("a", "b", "c"))
    return Simulated(frame, Schema(column, *covariates), "y ~ x + z + treated + group", family, truth)


def _binary(log_odds: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return (rng.random(len(log_odds)) < 1 / (1 + np.exp(-log_odds))).astype(np.int64)


_Draw = Callable[[np.ndarray, np.random.Generator], np.ndarray]
#: For each family: declaration of the response, factor of the linear predictor, and function that draws the response.
_RESPONSES: dict[SimulatedFamily, tuple[Binary | Real | Integer, float, _Draw]] = {
    "bernoulli": (Binary("y"), 1.0, _binary),
    "gaussian": (Real("y", -12, 12), 1.0, lambda mean, rng: np.clip(mean + rng.normal(size=len(mean)), -12, 12)),
    "poisson": (Integer("y", 0, 60), 0.5, lambda log_mean, rng: np.minimum(rng.poisson(np.exp(log_mean)), 60)),
}
