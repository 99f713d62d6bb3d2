"""The two-dimensional toy of Ghalebikesabi et al. (UAI 2022), Figure 1, with a number for each panel.

Synthetic rows are uniform on a square, private rows uniform on a triangle, half of it; epsilon = 1, lambda = .1.
Each panel shows synthetic rows drawn by weight, and the root mean squared error of the first two weighted moments
(x, y, x**2, y**2, x y, each column scaled to [-1/2, 1/2]) against the triangle's exact ones; the number in brackets
is its median over the seeds.

    python benchmarks/toy.py                     # toy.png and the table, 20 seeds
    python benchmarks/toy.py --output other.png --seeds 5
"""

import argparse
import math
import sys
import warnings
from importlib.util import find_spec
from pathlib import Path

# coverage.py of this folder would hide the package of that name, which numba imports
sys.path = [place for place in sys.path if Path(place).resolve() != Path(__file__).resolve().parent]

import numpy as np  # noqa: E402
import pandas as pd  # noqa: E402

import iwbayes as iw  # noqa: E402
from iwbayes.curator.paper import PAPER_METHODS  # noqa: E402

N, M, EPSILON, DELTA, L2 = 1000, 5000, 1.0, 1e-6, 0.1
SCHEMA = iw.Schema(iw.Real("x", 0, 1), iw.Real("y", 0, 1))
#: Moments of x, y, x**2, y**2, x y on the triangle y < x of the square [-1/2, 1/2]**2.
TRUTH = np.array([1 / 6, -1 / 6, 1 / 12, 1 / 12, 0.0])


def simulate(seed: int) -> tuple[iw.PrivateTable, iw.SyntheticTable]:
    """Draw the rows of the triangle and of the square."""
    rng = np.random.default_rng(seed)
    corner = np.sort(rng.random((N, 2)), axis=1)[:, ::-1]
    private = iw.PrivateTable(pd.DataFrame(corner, columns=["x", "y"]), SCHEMA)
    square = pd.DataFrame(rng.random((M, 2)), columns=["x", "y"])
    return private, iw.SyntheticTable(square, SCHEMA, origin="uniform", already_spent=(0, 0))


def true_ratio(table: iw.SyntheticTable) -> np.ndarray:
    """Log density ratio: log 2 on the triangle, no weight elsewhere."""
    inside = (table.frame["y"] < table.frame["x"]).to_numpy()
    return np.where(inside, math.log(2), -np.inf)


def providers(seed: int) -> dict:
    """Panels in the order of the figure."""
    found = {
        "None": PAPER_METHODS["None"](),
        "True": PAPER_METHODS["True"](true_ratio),
        "LogReg (no privacy)": PAPER_METHODS["LogReg"](l2=L2),
        "BetaNoised": PAPER_METHODS["BetaNoised"](l2=L2),
        "BetaDebiased": PAPER_METHODS["BetaDebiased"](l2=L2),
    }
    if find_spec("torch"):
        options = {"random_seed": seed, "progressbar": False}
        found["MLP (no privacy)"] = PAPER_METHODS["MLP"](**options)
        found["DP-MLP"] = PAPER_METHODS["DP-MLP"](**options)
    found["tilt, linear"] = iw.TiltWeights(features="linear")
    found["tilt, quadratic"] = iw.TiltWeights(features="quadratic")
    return found


def moment_error(weights: iw.Weights, synthetic: iw.SyntheticTable) -> float:
    """Root mean squared error of the five weighted moments."""
    x, y = synthetic.schema.encode(synthetic.frame).T
    moments = np.column_stack([x, y, x**2, y**2, x * y]).T @ weights.values / len(synthetic)
    return float(np.sqrt(np.mean((moments - TRUTH) ** 2)))


def run(seed: int) -> tuple[dict, iw.SyntheticTable]:
    """Weights of every provider for one seed."""
    private, synthetic = simulate(seed)
    weights = {}
    for name, estimator in providers(seed).items():
        ledger = iw.Ledger(math.inf, DELTA, noise=iw.SeededNoise(seed))
        delta = 0.0 if estimator.pure else DELTA
        weights[name] = estimator.fit(private, synthetic, ledger, epsilon=EPSILON, delta=delta)
    return weights, synthetic


def draw(weights: dict, synthetic: iw.SyntheticTable, errors: pd.DataFrame, path: Path) -> None:
    """One panel a provider: rows drawn by weight, the triangle, the error."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    columns = math.ceil(len(weights) / 2)
    figure, axes = plt.subplots(2, columns, figsize=(3 * columns, 7.6), sharex=True, sharey=True, layout="constrained")
    for axis, (name, found) in zip(axes.flat, weights.items(), strict=False):
        rows = iw.resample(found, synthetic, n=1500, rng=0).frame
        axis.scatter(rows["x"], rows["y"], s=4, alpha=0.5, linewidths=0, color="C0")
        axis.plot([0, 1, 1, 0], [0, 0, 1, 0], color="C1", linewidth=1.5)
        axis.set(title=f"{name}\n{errors.loc[0, name]:.3f} ({errors[name].median():.3f})", aspect="equal")
    for axis in axes.flat[len(weights) :]:
        axis.axis("off")
    figure.suptitle(
        f"Synthetic rows drawn by weight; truth uniform on the triangle (N = {N}, M = {M}, epsilon = {EPSILON:g}, "
        f"lambda = {L2}). Error of the first two moments (median over seeds)."
    )
    figure.savefig(path, dpi=120)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--output", type=Path, default=Path("toy.png"))
    options = parser.parse_args()
    warnings.simplefilter("ignore", iw.PrivacyWarning)
    if not find_spec("torch"):
        print("torch is not installed: no MLP and no DP-MLP")
    runs = [run(seed) for seed in range(options.seeds)]
    errors = pd.DataFrame([{name: moment_error(w, rows) for name, w in found.items()} for found, rows in runs])
    draw(*runs[0], errors, options.output)
    table = pd.DataFrame({"median": errors.median(), "largest": errors.max()})
    print(table.to_string(float_format="{:.4f}".format))
    reached = float(errors["tilt, quadratic"].median())
    print(f"tilt, quadratic: {reached:.4f}, target 0.02: {'reached' if reached <= 0.02 else 'MISSED'}")
    print(f"figure: {options.output}")


if __name__ == "__main__":
    main()
