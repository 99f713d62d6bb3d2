"""noisy_utility(): noisy margins and means of private rows, for a charged budget, compared with a release."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from iwbayes.analyst.arguments import check_release
from iwbayes.curator.generators.tables.bins import ColumnBins, is_numeric
from iwbayes.curator.generators.tables.coding import RowCodes
from iwbayes.curator.generators.tables.counts import count_event, count_moves, measure_counts, split_budget
from iwbayes.curator.privacy.accounting import check_budget, noise_event
from iwbayes.curator.privacy.ledger import Ledger
from iwbayes.curator.privacy.mechanisms import Budget, gaussian, laplace
from iwbayes.curator.protocols import PublicFacts
from iwbayes.release import Release
from iwbayes.release.statement import Event, PrivacyStatement
from iwbayes.reporting.html import bullets, page, table
from iwbayes.reporting.utility import CELLS, WIDTH, cells_of_table, check_rows
from iwbayes.schema import Date
from iwbayes.schema.columns import Real
from iwbayes.tables import PrivateTable
from iwbayes.utils.arrays import Array, IntArray
from iwbayes.utils.display import wrapped

_MARGINS, _MEANS = "utility margins", "utility means"
_MEANS_SHARE = 0.3  # of the budget, if there are numbers
_STEPS = 2**20  # of the width of a column's bounds, to which a number is rounded before it is summed


@dataclass(frozen=True, eq=False)
class NoisyUtility:
    """Margins and means of private rows with noise, and those of a release. They may be shown to anybody.

    Attributes
    ----------
    cells : pandas.DataFrame
        Index ``column`` and ``cell``: levels, parts of the range of a number, its bounds, heaps and missing cells. In
        columns the shares of the ``private`` rows with noise, the standard deviation of this ``noise``, and the shares
        of ``unweighted`` and ``weighted`` synthetic rows.
    means : pandas.DataFrame
        The same for the means of numeric columns; of dates in their unit since the first.
    statement : PrivacyStatement
        The statement of the ledger, which covers the release and this comparison.
    """

    cells: pd.DataFrame
    means: pd.DataFrame
    statement: PrivacyStatement

    @property
    def margins(self) -> pd.DataFrame:
        """Total variation distance of each column's shares from the noisy ones, and its mean ``by_noise`` alone."""
        known = self.cells["private"]
        away = {name: 0.5 * (self.cells[name] - known).abs() for name in ("unweighted", "weighted")}
        found = pd.DataFrame(away | {"by_noise": 0.5 * np.sqrt(2 / np.pi) * self.cells["noise"]})
        return found.groupby(level="column", sort=False).sum()

    def __str__(self) -> str:
        parts = [wrapped("\n".join(self._said), width=WIDTH)]
        parts += ["", "total variation of single columns", self.margins.round(3).to_string()]
        if len(self.means):
            parts += ["", "means", self.means.to_string(float_format=lambda value: f"{value:.4g}")]
        return "\n".join(parts)

    def to_html(self, title: str = "Utility of a release, with noise") -> str:
        """Return one self-contained HTML page."""
        of_cells = self.cells.set_axis([f"{column}: {cell}" for column, cell in self.cells.index])
        sections = [
            ("margins", "Margins", bullets(self._said) + table("Total variation", *cells_of_table(self.margins))),
            ("means", "Means", table("Means of numbers", *cells_of_table(self.means))),
            ("cells", "Cells", table("Shares of cells", *cells_of_table(of_cells))),
        ]
        return page(title, "", [part for part in sections if part[0] != "means" or len(self.means)])

    @property
    def _said(self) -> tuple[str, str]:
        epsilon, delta = self.statement.epsilon, self.statement.delta
        return (
            "Numbers of the private rows have noise. The statement of the ledger covers them: epsilon "
            f"{epsilon:.3g}, delta {delta:.1g} for everything that it has charged.",
            "A distance near 'by noise' says no more than that the noise is as large.",
        )


def noisy_utility(
    release: Release, private: PrivateTable, *, ledger: Ledger, epsilon: float, delta: float = 0.0
) -> NoisyUtility:
    """Compare a release with noisy margins and means of the private rows, for a declared budget.

    The ledger is charged before a row is read. The result is covered by its statement, so that it may leave the
    organisation and settings may be chosen by it. Counts of all single columns get one part of the budget, and sums of
    all numbers the other. Relations between columns have no version with noise; see `utility`.

    Parameters
    ----------
    release : Release
    private : PrivateTable
        The private rows, with the schema of the release.
    ledger : Ledger
        Ledger of these rows, which charged the release.
    epsilon, delta : float
        Budget of this comparison. The noise is discrete Gaussian with a delta above 0, and discrete Laplace otherwise.

    Raises
    ------
    BudgetExceeded
        If the comparison does not fit in the ledger. Nothing is charged.
    TypeError, ValueError
        If an argument is invalid, or the rows have another schema. Nothing is charged, and no message quotes a cell.

    Examples
    --------
    >>> people = iw.datasets.simulate_table("bernoulli", 2000, random_seed=1)
    >>> private, ledger = iw.PrivateTable(people.frame, people.schema), iw.Ledger(1.5, 1e-6)
    >>> release = iw.publish(private, epsilon=1.0, delta=1e-6, ledger=ledger, progressbar=False)
    >>> found = noisy_utility(release, private, ledger=ledger, epsilon=0.3, delta=1e-6)
    >>> found.means.index.tolist(), list(found.margins)
    (['x', 'z'], ['unweighted', 'weighted', 'by_noise'])
    """
    check_release(release)
    check_rows(release, private)
    epsilon, delta = check_budget(epsilon, delta)
    facts = PublicFacts.of(private, None, ledger)
    events = _events(facts, epsilon, delta)
    account = ledger.charge_release(*events, delta=delta, name="utility of a release")
    bins = [ColumnBins.of(column, CELLS) for column in facts.schema]
    counts = list(RowCodes(private, bins, keep=False).count([(index,) for index in range(len(bins))]))
    parts = _parts(facts, epsilon, delta)
    noisy = measure_counts(counts, account, _MARGINS, facts, **parts[0]._asdict())
    n, rows, weights = facts.n_private, release.synthetic.frame, release.weights.values
    shares, uniform = weights / weights.sum(), np.full(len(rows), 1 / len(rows))
    tables, missing = [], {}
    for b, (value, variance) in zip(bins, noisy, strict=True):
        codes = b.codes(rows[b.column.name])
        made = [np.bincount(codes, own, b.size) for own in (uniform, shares)]
        index = pd.MultiIndex.from_product([[b.column.name], _labels(b)], names=["column", "cell"])
        found = {"private": value / n, "noise": np.sqrt(variance) / n, "unweighted": made[0], "weighted": made[1]}
        tables.append(pd.DataFrame(found, index=index))
        if b.column.missing:
            missing[b.column.name] = (float(value[-1]), variance)
    means = _means(private, account, facts, parts[1], missing) if len(parts) > 1 else {}
    of_rows = {name: _weighted_means(rows[name], (uniform, shares)) for name in means}
    columns = ["private", "noise", "unweighted", "weighted"]
    found_means = pd.DataFrame([(*means[name], *of_rows[name]) for name in means], index=list(means), columns=columns)
    return NoisyUtility(pd.concat(tables), found_means, ledger.statement())


def _numbers(facts: PublicFacts) -> list[Any]:
    return [column for column in facts.schema if is_numeric(column)]


def _parts(facts: PublicFacts, epsilon: float, delta: float) -> list[Budget]:
    """Split the budget between counts and, if there are numbers, means."""
    return split_budget(epsilon, delta, [1 - _MEANS_SHARE, _MEANS_SHARE] if _numbers(facts) else [1.0])


def _events(facts: PublicFacts, epsilon: float, delta: float) -> list[Event]:
    parts = _parts(facts, epsilon, delta)
    events = [count_event(_MARGINS, *parts[0], len(facts.schema))]
    for part in parts[1:]:
        events.append(noise_event(_MEANS, *part) if delta > 0 else Event(_MEANS, "laplace", part.epsilon))
    return events


def _means(
    private: PrivateTable, account: Ledger, facts: PublicFacts, budget: Budget, missing: dict[str, tuple[float, float]]
) -> dict[str, tuple[float, float]]:
    """Return noisy means of numeric columns and the standard deviations of their noise.

    A row's numbers lie in [-1/2, 1/2] in units of the width of the bounds, and missing ones are 0. A replaced row moves
    each sum by at most 1, and a zeroed one by at most 1/2.
    """
    columns = _numbers(facts)
    sums = private.sum_blocks(partial(_sums, columns=columns))
    most = facts.rows_per_user * count_moves(facts) / 2
    settings: dict[str, Any] = {"epsilon": budget.epsilon, "ledger": account, "label": _MEANS, "grid": 1 / _STEPS}
    if budget.delta > 0:
        noisy = gaussian(sums, sensitivity=most * np.sqrt(len(columns)), delta=budget.delta, **settings)
        sd = noisy.distribution.scale
    else:
        noisy = laplace(sums, sensitivity=most * len(columns), **settings)
        sd = np.sqrt(2) * noisy.distribution.scale
    found = {}
    for column, total in zip(columns, noisy.value, strict=True):
        absent, variance = missing.get(column.name, (0.0, 0.0))
        present = max(facts.n_private - absent, 1.0)
        mean, width = total / present, column.upper - column.lower
        error = np.sqrt(sd**2 + variance * mean**2) / present  # of the sum, and of the number of present cells
        middle = (column.lower + column.upper) / 2
        found[column.name] = (float(middle + width * mean), float(width * error))
    return found


def _sums(block: pd.DataFrame, *, columns: Sequence[Any]) -> IntArray:
    """Sum the numbers of a block, in steps of the width of their bounds; missing cells count as the middle."""
    sums = np.zeros(len(columns), dtype=np.int64)
    for index, column in enumerate(columns):
        numbers = block[column.name].to_numpy(dtype=np.float64, na_value=np.nan)
        middle, width = (column.lower + column.upper) / 2, column.upper - column.lower
        steps = np.rint(np.clip(np.nan_to_num((numbers - middle) / width), -0.5, 0.5) * _STEPS)
        sums[index] = steps.astype(np.int64).sum()
    return sums


def _weighted_means(values: pd.Series, weights: tuple[Array, Array]) -> tuple[float, float]:
    numbers = values.to_numpy(dtype=np.float64, na_value=np.nan)
    known = ~np.isnan(numbers)
    # a column may have no number, or none with weight
    first, second = (float(own[known] @ numbers[known] / (own[known].sum() or np.nan)) for own in weights)
    return first, second


def _labels(bins: ColumnBins) -> list[str]:
    """Name the cells of a column in the order of their codes."""
    column = bins.column
    apart = [*(f"{heap:g}" for heap in bins.heaps), *(["missing"] if column.missing else [])]
    if bins.edges is None:
        return [*map(str, column.levels), *apart]
    if isinstance(column, Real):
        edges: NDArray[Any] = column._backward(bins.edges[1:-1])
        inner = [f"{low:.4g} to {high:.4g}" for low, high in zip(edges[:-1], edges[1:], strict=True)]
        return [f"{column.lower:g}", *inner, f"{column.upper:g}", *apart]
    first, last = np.ceil(bins.edges[:-1]).astype(int), np.floor(bins.edges[1:]).astype(int)
    if isinstance(column, Date):
        ends = [[f"{date:%Y-%m-%d}" for date in column.dates(pd.Series(part))] for part in (first, last)]
    else:
        ends = [list(map(str, part)) for part in (first, last)]
    return [low if low == high else f"{low} to {high}" for low, high in zip(*ends, strict=True)] + apart
