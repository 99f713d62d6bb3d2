"""CoverageStudy: coverage, lengths and errors of intervals over many replications of a release and its fits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Name of the reference method, which uses the private rows.
REFERENCE = "private rows"


def bounds_of(level: float) -> tuple[str, str]:
    """Return the names of the columns with the bounds of an interval."""
    return f"lower_{100 * level:g}", f"upper_{100 * level:g}"


@dataclass(frozen=True, eq=False, repr=False)
class CoverageStudy:
    """Coverage, lengths and errors of intervals over many replications; `coverage_study` returns it.

    Parameters
    ----------
    replications : pandas.DataFrame
        One row per ``replication``, ``method`` ("private rows" is the reference) and ``parameter``. Columns: ``truth``;
        ``mean`` and ``sd`` of the posterior; ``pit``, the share of its draws below the truth; ``lower_90`` and
        ``upper_90``, and so on for each level in percent; ``warned``, whether a CalibrationWarning was raised; facts of
        the calibration record (``verdict``, ``kappa_max``, ``explained_min``, ``second_order_max``,
        ``misfit_share_max``, ``skew_max``, ``pareto_k``, ``ess``, ``clipped_private``; None for a fit without a
        record); and for the parameter ``kappa``, ``explained`` and ``calibrated``.
    failures, levels : pandas.DataFrame, tuple of float
        Failed replications, with columns ``replication`` and ``error``, and nominal levels of the intervals.
    """

    replications: pd.DataFrame
    failures: pd.DataFrame
    levels: tuple[float, ...]

    def __repr__(self) -> str:
        n, level = self.replications["replication"].nunique(), self.levels[0]
        table = self.summary(level).round(3).to_string()
        return f"{n} replications, {len(self.failures)} failed; intervals of {100 * level:g} %\n{table}"

    def table(self, level: float = 0.9) -> pd.DataFrame:
        """Return coverage, length and error of each method and parameter.

        Parameters
        ----------
        level : float, default 0.9
            Nominal level, one of `levels`; otherwise a ValueError.

        Returns
        -------
        pandas.DataFrame
            Index ``method`` and ``parameter``. Columns: ``coverage``; ``coverage_se``, its binomial standard error;
            ``length``, the median length; ``length_ratio``, the median ratio to the length from the private rows of the
            same replication; ``bias`` and ``bias_se`` of the posterior mean; ``rmse_ratio``, its root mean squared
            error relative to the private rows; ``warned``, the share of replications with a CalibrationWarning; ``n``,
            the number of replications.
        """
        rows = self._judged(level)
        keys = ["replication", "parameter"]
        reference = rows[rows["method"] == REFERENCE].set_index(keys)["length"].rename("reference_length")
        rows = rows.join(reference, on=keys).assign(ratio=lambda f: f["length"] / f["reference_length"])
        groups = rows.groupby(["method", "parameter"], sort=False)
        n, share = groups.size(), groups["covered"].mean()
        rmse = groups["error"].agg(lambda e: np.sqrt(np.mean(e**2)))
        own = rmse.index.get_level_values("parameter")
        return pd.DataFrame({
            "coverage": share,
            "coverage_se": np.sqrt(share * (1 - share) / n),
            "length": groups["length"].median(),
            "length_ratio": groups["ratio"].median(),
            "bias": groups["error"].mean(),
            "bias_se": groups["error"].std(ddof=1) / np.sqrt(n),
            "rmse_ratio": rmse / rmse[REFERENCE].reindex(own).to_numpy(),
            "warned": groups["warned"].mean(),
            "n": n,
        })  # fmt: skip

    def summary(self, level: float = 0.9) -> pd.DataFrame:
        """Return averages over the parameters, one row per method.

        Parameters
        ----------
        level : float, default 0.9
            Nominal level, one of `levels`; otherwise a ValueError.

        Returns
        -------
        pandas.DataFrame
            Index ``method``. Columns: ``coverage``, the mean over parameters; ``coverage_se``, its standard error over
            replications, because parameters of one replication are dependent; ``worst``, the smallest coverage of a
            parameter; ``length_ratio`` and ``rmse_ratio``, medians over parameters; ``warned``; ``n``.
        """
        by_method = self.table(level).groupby("method", sort=False)
        each = self._judged(level).groupby(["method", "replication"], sort=False)["covered"].mean()
        over = each.groupby("method", sort=False)
        return pd.DataFrame({
            "coverage": over.mean(),
            "coverage_se": over.std(ddof=1) / np.sqrt(over.size()),
            "worst": by_method["coverage"].min(),
            "length_ratio": by_method["length_ratio"].median(),
            "rmse_ratio": by_method["rmse_ratio"].median(),
            "warned": by_method["warned"].mean(),
            "n": over.size(),
        })  # fmt: skip

    def plot_coverage(self, level: float = 0.9, *, ax: Axes | None = None) -> Axes:
        """Plot the coverage of each method and parameter, with two standard errors.

        Parameters
        ----------
        level : float, default 0.9
            Nominal level, one of `levels`; otherwise a ValueError.
        ax : matplotlib.axes.Axes, optional
            Axes to draw on, which are returned; by default new ones.
        """
        from iwbayes.reporting.drawing import axes_or_new, label_axes, legend_below
        from iwbayes.reporting.forest import draw_forest

        rows = self.table(level).reset_index().rename(columns={"parameter": "coefficient", "coverage": "mean"})
        ends = {"lower": rows["mean"] - 2 * rows["coverage_se"], "upper": rows["mean"] + 2 * rows["coverage_se"]}
        methods = rows["method"].unique()
        ax = axes_or_new(ax, 7, 1.2 + 0.16 * rows["coefficient"].nunique() * (len(methods) + 1))
        draw_forest(ax, rows.assign(**ends, calibrated=True), methods, at=level)
        ax.set_xlim(right=1.02)
        label_axes(ax, x=f"share of {100 * level:g} % intervals that cover the true value (bars: 2 standard errors)")
        legend_below(ax)
        return ax

    def plot_calibration(self, *, ax: Axes | None = None) -> Axes:
        """Plot the coverage of equal-tailed intervals of every level, averaged over the parameters.

        Above the diagonal, intervals are too long, and below it too short.

        Parameters
        ----------
        ax : matplotlib.axes.Axes, optional
            Axes to draw on, which are returned; by default new ones.
        """
        from iwbayes.reporting.drawing import axes_or_new, colour, label_axes, legend_below

        ax = axes_or_new(ax, 4.8, 4.6)
        levels = np.linspace(0, 1, 101)
        ax.plot([0, 1], [0, 1], color="0.5", linewidth=1, linestyle="--", zorder=0)
        for index, (method, own) in enumerate(self.replications.groupby("method", sort=False)):
            needed = np.abs(2 * own["pit"].to_numpy() - 1)  # smallest level at which the interval covers the truth
            covered = pd.DataFrame(needed[:, None] <= levels).groupby(own["replication"].to_numpy()).mean()
            mean, se = covered.mean(), covered.std(ddof=1) / np.sqrt(len(covered))
            ax.plot(levels, mean, color=colour(index), label=str(method))
            ax.fill_between(levels, mean - 2 * se, mean + 2 * se, color=colour(index), alpha=0.15, linewidth=0)
        ax.set(xlim=(0, 1), ylim=(0, 1), aspect="equal")
        label_axes(ax, x="nominal level", y="coverage (bands: 2 standard errors)")
        legend_below(ax)
        return ax

    def plot_ranks(self, method: str, parameters: Sequence[str] | None = None) -> np.ndarray:
        """Plot the ranks of the true values among the posterior draws with ArviZ, one panel per parameter.

        If the true values were drawn from the prior and the posteriors are correct, the ranks are uniform and the curve
        stays in its band (simulation-based calibration; Talts et al., 2018, and Säilynoja et al., Statistics and
        Computing 2022).

        Parameters
        ----------
        method : str
            Name of a method.
        parameters : sequence of str, optional
            Names of parameters, whose axes are returned; by default all. Unknown names are a ValueError.
        """
        from iwbayes.analyst.arviz_compat import plot_pit

        ranks = self.replications.pivot(index="replication", columns=["method", "parameter"], values="pit")
        if method not in ranks.columns.levels[0]:
            raise ValueError(f"method must be one of {list(ranks.columns.levels[0])}; got {method!r}.")
        own = ranks[method]
        shown = list(own.columns) if parameters is None else list(parameters)
        unknown = sorted(set(shown) - set(own.columns))
        if unknown or not shown:
            raise ValueError(f"parameters must be some of {list(own.columns)}; got {unknown or 'none'}.")
        return plot_pit({name: own[name].to_numpy() for name in shown})

    def _judged(self, level: float) -> pd.DataFrame:
        """Return the replications with length and coverage of their intervals, and the error of their means."""
        if not any(np.isclose(level, own) for own in self.levels):
            raise ValueError(f"level must be one of {self.levels}; got {level}.")
        rows = self.replications
        lower, upper = (rows[name] for name in bounds_of(level))
        covered = rows["truth"].between(lower, upper)
        return rows.assign(covered=covered, length=upper - lower, error=rows["mean"] - rows["truth"])
