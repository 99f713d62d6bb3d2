"""Time of a logistic fit by Laplace and PSIS, and its distance from NUTS.

Prints measurements beside their targets: all of ``fit`` after import within 3 s at 100,000 rows x 10 columns,
posterior means within 0.1 posterior standard deviation of NUTS. The release is simulated: rows, and weights of
a linear tilt with their measurement, so that the calibration is timed too.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

# coverage.py of this folder would hide the package of that name, which numba imports
sys.path = [place for place in sys.path if Path(place).resolve() != Path(__file__).resolve().parent]

import numpy as np  # noqa: E402
import pandas as pd  # noqa: E402

import iwbayes as iw  # noqa: E402
from iwbayes.analyst import _arviz  # noqa: E402


class SimulatedRelease:
    """What `fit` reads of a release."""

    def __init__(self, rows: int, columns: int, n_private: int, seed: int) -> None:
        from iwbayes.features import FeatureMap
        from iwbayes.laws import GaussianLaw, Measurement
        from iwbayes.tables import SyntheticTable
        from iwbayes.weights import Weights

        rng = np.random.default_rng(seed)
        x = rng.normal(size=(rows, columns)) * np.linspace(0.5, 2.0, columns) + np.linspace(-2, 2, columns)
        x = np.clip(x, -10, 10)
        eta = (x - np.linspace(-2, 2, columns)) @ np.linspace(-0.8, 0.8, columns) - 0.4
        names = [f"x{j}" for j in range(columns)]
        frame = pd.DataFrame(x, columns=names).assign(y=(rng.random(rows) < 1 / (1 + np.exp(-eta))).astype(int))
        schema = iw.Schema(*(iw.Real(name, -10, 10) for name in names), iw.Binary("y"))
        self.synthetic = SyntheticTable(frame, schema)
        self.n_private = n_private
        features = FeatureMap.whitened(self.synthetic, "linear")
        sensitivity = features.diameter("replace-one") / n_private
        phi = features.transform(self.synthetic.frame)
        noise = GaussianLaw(4 * sensitivity, phi.shape[1])
        measurement = Measurement("mean of features", phi.mean(axis=0), noise, sensitivity, features, n_private)
        columns_used = measurement.tilt_columns
        tilt = rng.normal(size=phi[:, columns_used].shape[1]) * 0.1
        self.weights = Weights(phi[:, columns_used] @ tilt, "TiltWeights", measurement=measurement)


def moments(idata: object) -> tuple[np.ndarray, np.ndarray]:
    """Posterior means and standard deviations of all coefficients."""
    posterior = _arviz.group(idata, "posterior")
    draws = [np.asarray(posterior[name]).reshape(-1) for name in sorted(posterior.data_vars)]
    return np.array([d.mean() for d in draws]), np.array([d.std() for d in draws])


def timed(formula: str, release: SimulatedRelease, **options: object) -> tuple[float, object]:
    start = time.perf_counter()
    idata = iw.fit(formula, release, family="bernoulli", progressbar=False, **options)
    return time.perf_counter() - start, idata


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--columns", type=int, default=10)
    parser.add_argument("--n-private", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--no-nuts", action="store_true", help="time the fast path only")
    args = parser.parse_args()
    release = SimulatedRelease(args.rows, args.columns, args.n_private, args.seed)
    formula = "y ~ " + " + ".join(f"x{j}" for j in range(args.columns))

    seconds, calibrated = timed(formula, release, method="auto", random_seed=args.seed)
    fast_seconds, fast = timed(formula, release, method="auto", random_seed=args.seed, calibrate=False)
    stats = _arviz.group(fast, "sample_stats").attrs
    lines = [
        ("fit, calibrated, s", f"{seconds:.2f}", "< 3"),
        ("fit, uncalibrated, s", f"{fast_seconds:.2f}", "< 3"),
        ("method", _arviz.group(fast, "posterior").attrs["method"], "laplace"),
        ("pareto_k", f"{stats['pareto_k']:.2f}", "< 0.7"),
        ("proposals", f"{stats['n_proposals']}", ""),
        ("importance ess", f"{stats['importance_ess']:.0f}", ""),
    ]
    if not args.no_nuts:
        nuts_seconds, nuts = timed(formula, release, method="nuts", random_seed=args.seed, calibrate=False)
        (mean, sd), (reference, reference_sd) = moments(fast), moments(nuts)
        lines += [
            ("NUTS, s", f"{nuts_seconds:.1f}", ""),
            ("NUTS / fit", f"{nuts_seconds / fast_seconds:.0f}", ""),
            ("largest difference of means, sd", f"{np.abs((mean - reference) / reference_sd).max():.3f}", "< 0.1"),
            ("sd against NUTS, least", f"{(sd / reference_sd).min():.3f}", ""),
            ("sd against NUTS, most", f"{(sd / reference_sd).max():.3f}", ""),
        ]
    del calibrated
    print(f"logistic, {args.rows} rows x {args.columns} columns, total weight {args.n_private}")
    print(f"{'':34}{'measured':>12}{'target':>10}")
    for name, value, target in lines:
        print(f"{name:34}{value:>12}{target:>10}")


if __name__ == "__main__":
    main()
