"""Speed of weighted inference against plain PyMC: one table of ratios, times and memory beside their targets.

    python benchmarks/speed.py                             # all parts; NUTS on 100,000 rows takes minutes
    python benchmarks/speed.py --parts gradient merge gram
    python benchmarks/speed.py --draws 100                 # NUTS on a tenth of the draws, extrapolated

Parts, and what each compares:

- gradient: one log density and gradient of `reweight(model, w)` against that of the model itself, both compiled by
  PyMC, positive weights.
- merge: the gradient in numpy of the merged rows, which NUTS of `fit` asks for, against plain PyMC on all rows: five
  categorical columns. It costs less than what PyMC adds to each of its steps; the log density of a proposal, of which
  `fit` evaluates many together, is another line, and the time of merging the third.
- gram: the same for a gaussian regression, whose rows are replaced by their weighted Gram matrix.
- laplace: `fit(method="laplace")`, 4,000 draws, against `pm.sample` (PyMC's NUTS, 4 chains of 1,000 + 1,000, as many
  processes as PyMC takes) on the same rows, plain: both have the same posterior, whose means are compared as well.
- many: 50 weight draws, drawn and pooled: by `fit`, and by `pool` for a PyMC model of six parameters.
- million: `fit` to 1,000,000 rows, calibrated; the peak memory is that of a fresh process with the release in it.

Ratios of gradients are medians of interleaved measurements, so that other load on the machine weighs on both alike;
that of `laplace` is one run of NUTS after five fits, less the time that PyMC takes to compile and to start its
processes (a run of one draw). Linear algebra has one thread. The first line names versions, pytensor's backend and
whether its C code found a BLAS: without one plain products, and so plain gradients, are slower. The releases are
simulated: rows, and weights of a linear tilt with their measurement.
"""

from __future__ import annotations

import argparse
import os
import re
import resource
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

# coverage.py of this folder would hide the package of that name
HERE = Path(__file__).resolve().parent
sys.path[:] = [str(HERE / "shared"), *(place for place in sys.path if Path(place or ".").resolve() != HERE)]

import command  # noqa: E402, I001 - in shared; before numpy
import numpy as np  # noqa: E402
import pandas as pd  # noqa: E402
from results import table  # noqa: E402

import iwbayes as iw  # noqa: E402

PRIVATE, SEED = 20_000, 1
BLOCK = 0.02  # seconds of calls in a row; a sampler's calls follow each other, and find their data in the caches
WARM_UP = 500  # rows of a first fit, which imports what others need
DRAWS = 1000  # of each of PyMC's four chains
BATCH = 1000  # proposals that are evaluated together
LEVELS = (3, 4, 2, 5, 3)
FAMILIES = ("bernoulli", "gaussian", "categorical", "poisson")


class Line(NamedTuple):
    """One line of the table; `good` is None where there is no target."""

    what: str
    measured: str
    target: str
    good: bool | None

    def __str__(self) -> str:
        """Columns of fixed width."""
        verdict = {True: "ok", False: "MISSED", None: ""}[self.good]
        return f"{self.what:<66}{self.measured:>12}{self.target:>10}{verdict:>9}"


# rows and releases


def real_rows(rows: int, columns: int = 10) -> tuple[pd.DataFrame, iw.Schema]:
    """Real columns and a response of each family that depends on them."""
    rng = np.random.default_rng(SEED)
    x = np.clip(rng.normal(size=(rows, columns)), -4, 4)
    eta = 0.3 * x @ np.linspace(-1, 1, columns) - 0.4
    names = [f"x{j}" for j in range(columns)]
    choices = np.argmax(np.column_stack([0 * eta, eta, -eta]) + rng.gumbel(size=(rows, 3)), axis=1)
    frame = pd.DataFrame(x, columns=names).assign(
        bernoulli=(rng.random(rows) < 1 / (1 + np.exp(-eta))).astype(int),
        gaussian=np.clip(eta + rng.normal(size=rows), -10, 10),
        categorical=np.array(["a", "b", "c"])[choices],
        poisson=np.minimum(rng.poisson(np.exp(eta)), 99),
    )
    responses = (
        iw.Binary("bernoulli"),
        iw.Real("gaussian", -10, 10),
        iw.Categorical("categorical", ("a", "b", "c")),
        iw.Integer("poisson", 0, 99),
    )
    return frame, iw.Schema(*(iw.Real(name, -4, 4) for name in names), *responses)


def coded_rows(rows: int) -> tuple[pd.DataFrame, iw.Schema]:
    """Five categorical columns and a binary response."""
    rng = np.random.default_rng(SEED)
    codes = np.column_stack([rng.integers(0, n, rows) for n in LEVELS])
    probability = 1 / (1 + np.exp(-(codes @ np.linspace(-0.3, 0.4, len(LEVELS)))))
    frame = pd.DataFrame({f"c{j}": np.array([f"l{v}" for v in range(n)])[codes[:, j]] for j, n in enumerate(LEVELS)})
    columns = [iw.Categorical(f"c{j}", tuple(f"l{v}" for v in range(n))) for j, n in enumerate(LEVELS)]
    frame["bernoulli"] = (rng.random(rows) < probability).astype(int)
    return frame, iw.Schema(*columns, iw.Binary("bernoulli"))


def make_release(frame: pd.DataFrame, schema: iw.Schema) -> iw.Release:
    """Simulate what the analyst's side reads of a release."""
    from iwbayes.evidence import FeatureMap
    from iwbayes.evidence.distributions import GaussianDistribution
    from iwbayes.evidence.measurement import Measurement
    from iwbayes.release.statement import PrivacyStatement
    from iwbayes.release.weights import Weights
    from iwbayes.tables import SyntheticTable

    rng = np.random.default_rng(SEED)
    synthetic = SyntheticTable(frame, schema)
    features = FeatureMap.whitened(synthetic, "linear")
    sensitivity = features.diameter("replace-one") / PRIVATE
    phi = features.transform(synthetic.frame)
    noise = GaussianDistribution(4 * sensitivity, phi.shape[1])
    measurement = Measurement("mean of features", phi.mean(axis=0), noise, sensitivity, features, PRIVATE)
    tilts = 0.1 * rng.normal(size=(1, phi[:, measurement.tilt_columns].shape[1]))
    measurement = replace(measurement, coefficients=tilts[0])
    log_weights = tilts @ phi[:, measurement.tilt_columns].T
    weights = Weights(log_weights, "TiltWeights", measurement=measurement)
    statement = PrivacyStatement(1.0, 1e-6, "replace-one", (), "seeded", False)
    return iw.Release(synthetic, weights, statement, n_private=PRIVATE)


def formula(response: str, frame: pd.DataFrame) -> str:
    return f"{response} ~ " + " + ".join(name for name in frame.columns if name[1:].isdigit())


# ratios of gradients


def gradient_of(model: Any) -> Callable[[], Any]:
    """Log density and gradient of a model, compiled, at a fixed point."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        function = model.logp_dlogp_function(ravel_inputs=True)
    function.set_extra_values({})
    point = model.initial_point(0)
    theta = np.concatenate([np.ravel(point[var.name]) for var in model.continuous_value_vars]) + 0.01
    return lambda: function(theta)


def density_of(model: Any) -> Callable[[], Any]:
    """Log density alone, compiled, at a fixed point."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        function = model.compile_logp()
    function.f.trust_input = True
    point = {name: np.array(value + 0.01) for name, value in model.initial_point(0).items()}
    return lambda: function(point)


def seconds(call: Callable[[], Any], calls: int) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        call()
    return (time.perf_counter() - start) / calls


def interleaved(first: Callable[[], Any], second: Callable[[], Any], budget: float) -> tuple[float, float, float]:
    """Median of the ratio of neighbouring measurements, and median seconds of each."""
    for call in (first, second):
        call()  # numba compiles at the first call
    calls = [max(1, int(BLOCK / seconds(call, 3))) for call in (first, second)]
    pairs, until = [], time.perf_counter() + budget
    while time.perf_counter() < until or len(pairs) < 21:
        order = (0, 1) if len(pairs) % 2 else (1, 0)
        found = {index: seconds((first, second)[index], calls[index]) for index in order}
        pairs.append((found[0], found[1]))
    one, other = np.array(pairs).T
    return float(np.median(one / other)), float(np.median(one)), float(np.median(other))


def gradient(arguments: argparse.Namespace) -> Iterator[Line]:
    """Weighted against plain, by family and number of rows."""
    for family in FAMILIES:
        for rows in sorted({min(rows, arguments.rows) for rows in (1_000, 10_000, 100_000)}):
            frame, schema = real_rows(rows)
            release = make_release(frame, schema)
            model = iw.regression(formula(family, frame), release, family=family)
            weighted = iw.reweight(model, release.weights, total=PRIVATE)
            ratio, _, plain = interleaved(gradient_of(weighted), gradient_of(model), arguments.budget)
            what = f"gradient, {family}, {rows:,} rows: weighted / plain ({1e6 * plain:.0f} us)"
            yield Line(what, f"{ratio:.3f}", "<= 1.10", ratio <= 1.10)


def compressed(family: str, frame: pd.DataFrame, schema: iw.Schema, least: float, budget: float) -> Iterator[Line]:
    """Plain PyMC on all rows against the compressed ones in numpy."""
    from iwbayes.analyst.regression.regression_posterior import RegressionProblem
    from iwbayes.models.design import build_design
    from iwbayes.models.weighted_rows import merge_draws

    release = make_release(frame, schema)
    model = iw.regression(formula(family, frame), release, family=family)
    design = build_design(formula(family, frame), release.synthetic.frame, release.synthetic.schema, family)
    posterior = RegressionProblem.of(design, release, None, release.weights).posterior
    design, rows = posterior.design, posterior.merged
    merging = np.median([seconds(lambda: merge_draws(design, posterior.weights[None]), 1) for _ in range(11)])
    start = np.zeros(design.n_parameters)
    ratio, plain, own = interleaved(gradient_of(model), lambda: posterior.gradient(start), budget)
    name = {"bernoulli": "merge", "gaussian": "gram"}[family]
    what = f"{name}, gradient, {len(frame):,} -> {len(rows.weights)} rows: plain / as in fit ({1e6 * own:.0f} us)"
    yield Line(what, f"{ratio:.0f}", f">= {least:g}", ratio >= least)
    points = 0.1 * np.random.default_rng(SEED).normal(size=(BATCH, design.n_parameters))
    ratio, _, own = interleaved(density_of(model), lambda: rows.values(points), budget)
    what = f"{name}, log density of a proposal: plain / as in fit ({1e6 * own / BATCH:.1f} us)"
    yield Line(what, f"{ratio * BATCH:.0f}", f">= {least:g}", ratio * BATCH >= least)
    yield Line(f"{name}, once, ms (as many as {merging / plain:.0f} plain gradients)", f"{1e3 * merging:.1f}", "", None)


def merge(arguments: argparse.Namespace) -> Iterator[Line]:
    """Identical rows of five categorical columns."""
    yield from compressed("bernoulli", *coded_rows(min(100_000, arguments.rows)), 100, arguments.budget)


def gram(arguments: argparse.Namespace) -> Iterator[Line]:
    """Gaussian rows as a weighted Gram matrix."""
    yield from compressed("gaussian", *real_rows(min(100_000, arguments.rows)), 50, arguments.budget)


# whole fits


def timed_fit(release: Any, frame: pd.DataFrame, family: str, **options: Any) -> tuple[float, Any]:
    """Seconds of a fit, without the imports that the first one makes."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        start = time.perf_counter()
        idata = iw.fit(
            formula(family, frame), release, family=family, progressbar=False, random_seed=SEED, **options
        )  # fmt: skip
        return time.perf_counter() - start, idata


def warm_up() -> None:
    frame, schema = real_rows(WARM_UP)
    timed_fit(make_release(frame, schema), frame, "bernoulli", draws=20)


def moments(idata: Any) -> tuple[np.ndarray, np.ndarray]:
    """Posterior means and standard deviations of all coefficients."""
    from iwbayes.analyst import arviz_compat
    from iwbayes.analyst.calibration.record import NOT_CALIBRATED

    posterior = arviz_compat.group(idata, "posterior")
    draws = [np.asarray(posterior[name]).reshape(-1) for name in sorted(set(posterior.data_vars) - {NOT_CALIBRATED})]
    return np.array([d.mean() for d in draws]), np.array([d.std() for d in draws])


def timed_nuts(model: Any, draws: int, cores: int | None) -> tuple[float, Any]:
    """Seconds of PyMC's NUTS, compilation included."""
    import pymc as pm

    start = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        idata = pm.sample(
            draws, tune=draws, chains=4, cores=cores, nuts_sampler="pymc", progressbar=False, random_seed=SEED,
            compute_convergence_checks=False, model=model,
        )  # fmt: skip
    return time.perf_counter() - start, idata


def laplace(arguments: argparse.Namespace) -> Iterator[Line]:
    """All of `fit` against NUTS of plain PyMC on the same rows: 100,000 x 10, bernoulli."""
    warm_up()
    frame, schema = real_rows(min(100_000, arguments.rows))
    release = make_release(frame, schema)
    even = replace(release.unweighted(), n_private=len(frame))
    fits = [timed_fit(even, frame, "bernoulli", method="laplace", calibrate="none") for _ in range(5)]
    fast, idata = float(np.median([s for s, _ in fits])), fits[0][1]
    once, _ = timed_fit(release, frame, "bernoulli", method="laplace")
    yield Line(f"laplace, fit, {len(frame):,} rows x 10, s", f"{fast:.2f}", "", None)
    yield Line("laplace, fit with weights, calibrated, s", f"{once:.2f}", "< 3", once < 3)
    model = iw.regression(formula("bernoulli", frame), release, family="bernoulli")
    draws, short = arguments.draws, arguments.draws < DRAWS  # short runs give no verdicts
    start_up, _ = timed_nuts(model, 1, arguments.cores)
    whole, reference = timed_nuts(model, draws, arguments.cores)
    slow = (whole - start_up) * DRAWS / draws
    note = f", from {draws} + {draws}" if short else ""
    yield Line(f"laplace, NUTS of plain PyMC, 1,000 + 1,000 draws, 4 chains, s{note}", f"{slow:.0f}", "", None)
    yield Line("laplace, compiling and starting it (not in the line above), s", f"{start_up:.0f}", "", None)
    fast_enough = None if short else slow / fast >= 100
    yield Line("laplace, NUTS / fit", f"{slow / fast:.0f}", ">= 100", fast_enough)
    own, _ = timed_fit(even, frame, "bernoulli", method="nuts", calibrate="none", draws=draws)
    # as many draws, but `fit` does not shorten its warm-up for few of them
    verdict = None if short else whole / own >= 2
    yield Line(f"laplace, NUTS of plain PyMC / NUTS of fit ({own:.0f} s)", f"{whole / own:.1f}", ">= 2", verdict)
    (mean, _), (other, sd) = moments(idata), moments(reference)
    apart = float(np.max(np.abs(mean - other) / sd))
    limit = None if short else apart < 0.1
    yield Line("laplace, largest difference of means, posterior sd", f"{apart:.3f}", "< 0.1", limit)


def many(arguments: argparse.Namespace) -> Iterator[Line]:
    """Fifty weight draws: 100,000 x 10, bernoulli and gaussian; and a PyMC model of six parameters, 10,000 x 4."""
    warm_up()
    frame, schema = real_rows(min(100_000, arguments.rows))
    release = make_release(frame, schema)
    for family in ("bernoulli", "gaussian"):
        start = time.perf_counter()
        weights = iw.noise_aware_weights(release, arguments.weights, random_seed=SEED)
        drawn = time.perf_counter() - start
        found, _idata = timed_fit(replace(release, weights=weights), frame, family)
        yield pooled(f"fit, {family}", arguments.weights, len(frame), drawn + found)
    frame, schema = real_rows(min(10_000, arguments.rows), columns=4)
    release = make_release(frame, schema)
    model = iw.reweight(iw.regression(formula("gaussian", frame), release, family="gaussian"), release)
    model.compile_logp()  # who has a model has compiled before: PyTensor has read its cache of modules
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        start = time.perf_counter()
        iw.pool(model, release, n_draws=arguments.weights, random_seed=SEED)
        yield pooled("pool, PyMC model", arguments.weights, len(frame), time.perf_counter() - start)


def pooled(what: str, draws: int, rows: int, found: float) -> Line:
    return Line(f"many, {what}, {draws} x {rows:,} rows, s", f"{found:.1f}", "<= 6", found <= 6)


def peak() -> float:
    """Largest resident memory of this process so far, GB (kilobytes on Linux, bytes on macOS)."""
    unit = 1e9 if sys.platform == "darwin" else 1e9 / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit


def measure_million(family: str, rows: int) -> tuple[float, float, float, bool]:
    """Seconds, peak memory, that before the fit, and whether pointwise log likelihoods were left out."""
    from iwbayes.analyst import arviz_compat

    warm_up()
    frame, schema = real_rows(rows)
    frame = frame.drop(columns=[name for name in FAMILIES if name != family])
    schema = iw.Schema(*(schema[name] for name in frame.columns))
    release = make_release(frame, schema)
    before = peak()
    found, idata = timed_fit(release, frame, family)
    return found, peak(), before, not arviz_compat.has_group(idata, "log_likelihood")


def million(arguments: argparse.Namespace) -> Iterator[Line]:
    """Fit a million rows x 10, calibrated, each family in a process of its own."""
    for family in ("bernoulli", "gaussian"):
        found, memory, before, lean = command.alone(measure_million, family, arguments.rows, here=arguments.here)
        what = f"million, {family}, {arguments.rows:,} rows x 10, calibrated"
        yield Line(f"{what}, s", f"{found:.1f}", "<= 30", found <= 30)
        yield Line(f"{what}, peak GB ({before:.2f} before)", f"{memory:.2f}", "<= 4", memory <= 4)
        yield Line(f"{what}, pointwise log likelihoods left out", str(lean), "True", lean)


def machine() -> str:
    """Versions and backend, which weigh on all ratios."""
    import pymc as pm
    import pytensor

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        blas = "with BLAS" if pytensor.config.blas__ldflags else "no BLAS in its C code"
    mode = type(pytensor.compile.mode.get_default_mode().linker).__name__
    python = ".".join(map(str, sys.version_info[:2]))
    versions = f"Python {python}, PyMC {pm.__version__}, pytensor {pytensor.__version__}"
    return f"{versions} ({mode}, {blas}), numpy {np.__version__}, {os.cpu_count()} cores"


PARTS: dict[str, Callable[[argparse.Namespace], Iterator[Line]]] = {
    "gradient": gradient,
    "merge": merge,
    "gram": gram,
    "laplace": laplace,
    "many": many,
    "million": million,
}


def main(argv: Sequence[str] | None = None) -> int:
    parser = command.parser(__doc__)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--draws", type=int, default=DRAWS, help="of each chain of NUTS; few are extrapolated")
    parser.add_argument("--budget", type=float, default=4.0, help="seconds of measurements for each ratio")
    parser.add_argument("--rows", type=int, default=1_000_000, help="most rows of a part")
    parser.add_argument("--weights", type=int, default=50, help="draws of the weights in the part many")
    parser.add_argument("--cores", type=int, help="of PyMC's NUTS; as many as it takes by itself")
    parser.add_argument("--here", action="store_true", help="a million rows in this process: it shares its peak memory")
    return command.run(work, parser, ("--rows 60 --draws 5 --cores 1 --weights 3 --budget 0.01 --here",), argv)


def work(arguments: argparse.Namespace) -> None:
    """Run the parts and print the table as it grows."""
    measured = {}
    print(machine())
    print(f"{'what':<66}{'measured':>12}{'target':>10}{'verdict':>9}")
    for part in arguments.parts:
        for line in PARTS[part](arguments):
            if re.fullmatch(r"[\d.]+x?", line.measured):
                measured[line.what] = {"measured": float(line.measured.rstrip("x"))}
            print(line, flush=True)
    table(pd.DataFrame(measured).T.rename_axis("what"), shown={"measured": ".2f"})


if __name__ == "__main__":
    sys.exit(main())
