"""utility() and expected_utility(): how close synthetic rows are to private rows, and to those of rehearsals."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from numpy.typing import NDArray
from scipy.special import expit

from iwbayes.analyst.arguments import check_release
from iwbayes.analyst.fit import fit
from iwbayes.analyst.quantities.summary import summary
from iwbayes.evidence.terms import feature_owners
from iwbayes.release import Release
from iwbayes.release.rehearsals import Rehearsals
from iwbayes.release.weights import Weights
from iwbayes.reporting.drawing import BLUE, GREY, NotebookFigure, colour, label_axes, label_rows, legend_below
from iwbayes.reporting.html import bullets, page, picture, table
from iwbayes.schema import Binary, Categorical, Schema
from iwbayes.tables import PrivateTable, SyntheticTable
from iwbayes.utils.arrays import Array
from iwbayes.utils.display import text_table, wrapped
from iwbayes.utils.newton import maximise
from iwbayes.utils.threads import one_blas_thread
from iwbayes.utils.warnings import IwbayesWarning

#: What a utility report of private rows begins with.
PRIVATE = (
    "PRIVATE OUTPUT. These numbers come from private rows without noise. They must not leave the organisation that "
    "holds these rows, and no privacy statement covers them.",
    "Choosing settings of a release by these numbers is a look at private rows, which no statement covers either. Try "
    "settings on public rows of the same kind, or on rehearsals.",
)
#: Cells of a number between its bounds, and most pairs and triples of columns that are compared.
CELLS, _MOST_PAIRS, _MOST_TRIPLES = 8, 300, 200
#: Products of features are predictors of the propensity score up to so many features.
_MOST_PRODUCTS = 24
_FOLDS, _RIDGE = 2, 1e-3
WIDTH = 80  # of lines of text: a terminal
_ORDERS = {1: "one column", 2: "two columns", 3: "three columns"}


@dataclass(frozen=True, eq=False)
class Utility:
    """How close synthetic rows are to other rows, before and after weighting.

    Attributes
    ----------
    margins : pandas.DataFrame
        Total variation distance of the shares of cells, for each column and for pairs and triples of columns, in the
        columns ``unweighted`` and ``weighted``. Numbers have eight cells between their bounds. ``by_chance`` is the
        distance of a bootstrap sample of the private rows from these rows; ``order`` is the number of columns.
    correlations : pandas.DataFrame
        Correlations of encoded features of different columns: ``private``, ``unweighted``, ``weighted``.
    propensity : pandas.DataFrame
        How well a logistic regression with products tells both kinds of rows apart, cross-fitted in two folds:
        ``pmse``, the mean square of propensity scores about one half (0 is best, 0.25 worst), and ``auc`` (0.5 is
        best).
    regressions : dict of str to pandas.DataFrame
        Coefficients and standard deviations of each model from private, weighted and unweighted rows, and whether the
        weighted ones are calibrated.
    """

    margins: pd.DataFrame
    correlations: pd.DataFrame
    propensity: pd.DataFrame
    regressions: dict[str, pd.DataFrame] = field(default_factory=dict)

    @property
    def overview(self) -> pd.DataFrame:
        """Means of all distances, with rows for margins of each order, correlations and the propensity score."""
        rows = {
            f"total variation, {_ORDERS[int(order)]}": part[["unweighted", "weighted", "by_chance"]].mean()
            for order, part in self.margins.groupby("order")
        }
        if len(self.correlations):
            away = self.correlations[["unweighted", "weighted"]].sub(self.correlations["private"], axis=0).abs()
            rows["absolute difference of correlations"] = away.mean()
        rows["pMSE of the propensity score"] = self.propensity["pmse"]
        rows["AUC of the propensity score"] = self.propensity["auc"]
        return pd.DataFrame(rows).T[["unweighted", "weighted", "by_chance"]]

    def __str__(self) -> str:
        lines = [wrapped("\n".join(PRIVATE), width=WIDTH), "", self.overview.round(3).to_string(na_rep="")]
        for formula, found in self.regressions.items():
            kinds = ("private", "weighted", "unweighted")
            rows = [
                (str(name), *(f"{row[kind]:.3g} ({row[f'sd, {kind}']:.2g})" for kind in kinds), str(row["calibrated"]))
                for name, row in found.iterrows()
            ]
            header = ("mean (sd)", *kinds, "calibrated")
            lines += ["", wrapped(formula, width=WIDTH), text_table(header, rows, width=WIDTH, right=3)]
        return "\n".join(lines)

    def to_html(self, title: str = "Utility of a release") -> str:
        """Return one self-contained HTML page, which says first that it is private output."""
        worst = self.margins.sort_values("weighted", ascending=False)
        single = self.margins[self.margins["order"] == 1]
        sections = [
            ("overview", "Overview", table("Means of all distances", *cells_of_table(self.overview))),
            ("margins", "Margins", _picture(single) + table("Columns, pairs and triples that are furthest off",
             *cells_of_table(worst.head(30)))),
            ("correlations", "Correlations", table("Correlations that are furthest off",
             *cells_of_table(_furthest(self.correlations).head(30)))),
            *([("regressions", "Regressions", "".join(
                table(formula, *cells_of_table(found)) for formula, found in self.regressions.items()))]
              if self.regressions else []),
        ]  # fmt: skip
        return page(title, f'<div class="warn" role="note">{bullets(PRIVATE)}</div>\n', sections)


def utility(
    release: Release, private: PrivateTable, *, models: Sequence[str] = (), random_seed: int | None = None
) -> Utility:
    """Compare a release with the private rows, inside the organisation that holds them.

    **The result is private output.** It contains statistics of the private rows without noise. It must not leave the
    organisation that holds them, and no statement covers it. A curator who chooses settings by it looks at private
    rows.

    Parameters
    ----------
    release : Release
    private : PrivateTable
        The private rows, with the schema of the release.
    models : sequence of str, optional
        Regressions to fit to private and synthetic rows; by default the formulas that the release was made for.
    random_seed : int, optional
        Seed of the bootstrap sample, the folds, and the choice among many triples of columns.

    Raises
    ------
    TypeError, ValueError
        If an argument is invalid, or the rows have another schema. No message quotes a cell.

    References
    ----------
    J. Snoke et al. (2018). General and specific utility measures for synthetic data. JRSS A 181(3), 663-688.
    """
    check_release(release)
    check_rows(release, private)
    schema = release.synthetic.schema
    rng = np.random.default_rng(random_seed)
    frame = private.frame
    ones = np.ones(len(frame))
    sample = rng.multinomial(len(frame), ones / len(frame)).astype(np.float64)
    found = compared(schema, release, frame, ones, sample, rng)
    named = [model for model in release.made_for if "~" in model]
    return Utility(*found, {formula: _regression(formula, release, frame) for formula in models or named})


def expected_utility(rehearsals: Rehearsals, *, random_seed: int | None = None) -> pd.DataFrame:
    """Return the overview of `Utility` that a release expects of itself, as means over rehearsals; at no cost.

    Each rehearsal is compared with the rows that it was drawn from, which are public. Nothing private is read. What no
    rehearsal can show, such as relations that the release's own rows lack, is missing.
    """
    if not isinstance(rehearsals, Rehearsals):
        raise TypeError(f"expected_utility takes Rehearsals; got {type(rehearsals).__name__}. See iwbayes.rehearse.")
    own, rng = rehearsals.release, np.random.default_rng(random_seed)
    frame, schema, n = own.synthetic.frame, own.synthetic.schema, own.n_private
    tables = []
    for index, replay in enumerate(rehearsals):
        weights = rehearsals.population(index)
        sample = rng.multinomial(n, weights / weights.sum()).astype(np.float64)
        tables.append(Utility(*compared(schema, replay, frame, weights, sample, rng)).overview)
    mean = pd.concat(tables).groupby(level=0, sort=False).mean()
    return mean.reindex(tables[0].index)


def check_rows(release: Release, private: PrivateTable) -> None:
    """Raise unless the private rows are a table with the schema of the release."""
    if not isinstance(private, PrivateTable):
        raise TypeError(f"utility takes a PrivateTable; got {type(private).__name__}. Use PrivateTable(frame, schema).")
    if private.schema != release.synthetic.schema:
        raise ValueError(
            "the private rows must have the schema of the release. Declare them with release.synthetic.schema."
        )


def compared(
    schema: Schema, release: Release, frame: pd.DataFrame, weights: Array, sample: Array, rng: np.random.Generator
) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """Return margins, correlations and propensity of a release's rows, compared with rows of weights (row,)."""
    own, uniform = release.weights.values, np.ones(len(release.weights))
    synthetic = release.synthetic.frame
    with one_blas_thread():
        margins = _margins(schema, (frame, weights, sample), (synthetic, uniform, own), rng)
        features, others = schema.encode(synthetic), schema.encode(frame)
        correlations = _correlations(schema, (others, weights), (features, uniform, own))
        known, made = _predictors(others), _predictors(features)
        propensity = pd.DataFrame(
            {"unweighted": _propensity(known, weights, made, uniform, rng),
             "weighted": _propensity(known, weights, made, own, rng)},
            index=["pmse", "auc"],
        ).T  # fmt: skip
    return margins, correlations, propensity


def _margins(
    schema: Schema,
    private: tuple[pd.DataFrame, Array, Array],
    synthetic: tuple[pd.DataFrame, Array, Array],
    rng: np.random.Generator,
) -> pd.DataFrame:
    """Total variation of margins: weights and bootstrap sample of private rows; uniform and released weights."""
    cells = [_codes(schema, frame) for frame in (private[0], synthetic[0])]
    sizes = [int(max(np.max(part[:, j]) for part in cells)) + 1 for j in range(len(schema))]
    rows = {}
    for order, most in ((1, len(schema)), (2, _MOST_PAIRS), (3, _MOST_TRIPLES)):
        for chosen in _chosen(len(schema), order, most, rng):
            keys = [
                np.ravel_multi_index(tuple(part[:, j] for j in chosen), [sizes[j] for j in chosen]) for part in cells
            ]
            n = math.prod(sizes[j] for j in chosen)
            truth, again = (_shares(keys[0], w, n) for w in private[1:])
            distances = [0.5 * np.abs(_shares(keys[1], w, n) - truth).sum() for w in synthetic[1:]]
            name = " × ".join(schema.names[j] for j in chosen)
            rows[name] = (order, *distances, 0.5 * np.abs(again - truth).sum())
    return pd.DataFrame(rows, index=["order", "unweighted", "weighted", "by_chance"]).T.astype({"order": int})


def _chosen(n: int, order: int, most: int, rng: np.random.Generator) -> list[tuple[int, ...]]:
    if math.comb(n, order) <= most:
        return list(combinations(range(n), order))
    found: set[tuple[int, ...]] = set()
    while len(found) < most:
        found.add(tuple(sorted(rng.choice(n, order, replace=False).tolist())))
    return sorted(found)


def _codes(schema: Schema, frame: pd.DataFrame) -> NDArray[np.int64]:
    """Return the cell of each value (row, column): a level, a part of the range of a number, or missing (0)."""
    found = []
    for column in schema:
        cells = frame[column.name]
        if isinstance(column, Binary | Categorical):
            codes = pd.Index(list(column.levels)).get_indexer(pd.Index(cells.astype(object))) + 1
        else:
            numbers = np.asarray(column.encode(cells), dtype=np.float64).reshape(len(cells), -1)[:, 0]
            inside = np.clip(np.floor((numbers + 0.5) * CELLS), 0, CELLS - 1)
            codes = np.where(cells.isna().to_numpy(), 0, np.nan_to_num(inside) + 1)
        found.append(np.asarray(codes, dtype=np.int64))
    return np.column_stack(found)


def _shares(keys: NDArray[np.int64], weights: Array, n: int) -> Array:
    return np.asarray(np.bincount(keys, weights / weights.sum(), n), dtype=np.float64)


def _correlations(schema: Schema, private: tuple[Array, Array], synthetic: tuple[Array, Array, Array]) -> pd.DataFrame:
    features, uniform, own = synthetic
    found = [_correlation(*private), _correlation(features, uniform), _correlation(features, own)]
    owner, names = feature_owners(schema), schema.feature_names
    pairs = [(i, j) for i, j in combinations(range(len(owner)), 2) if owner[i] != owner[j]]
    table_of = pd.DataFrame(
        {
            name: [part[i, j] for i, j in pairs]
            for name, part in zip(("private", "unweighted", "weighted"), found, strict=True)
        },
        index=[f"{names[i]}, {names[j]}" for i, j in pairs],
    )
    return table_of.dropna()


def _correlation(features: Array, weights: Array) -> Array:
    covariance = np.atleast_2d(np.cov(features, rowvar=False, aweights=weights))
    sd = np.sqrt(np.diag(covariance))
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(covariance / np.outer(sd, sd))


def _predictors(features: Array) -> Array:
    """Return features and, if there are few, their products (row, k)."""
    k = features.shape[1]
    if k > _MOST_PRODUCTS:
        return features
    first, second = np.triu_indices(k)
    return np.column_stack([features, features[:, first] * features[:, second]])


def _propensity(
    private: Array, of_private: Array, synthetic: Array, of_synthetic: Array, rng: np.random.Generator
) -> tuple[float, float]:
    """Return pMSE and AUC of a logistic regression that tells two kinds of weighted rows apart."""
    z = np.concatenate([private, synthetic])
    z = (z - z.mean(axis=0)) / np.maximum(z.std(axis=0), 1e-9)
    z = np.column_stack([np.ones(len(z)), z])
    y = np.repeat([1.0, 0.0], [len(private), len(synthetic)])
    w = np.concatenate([part / (2 * part.sum()) for part in (of_private, of_synthetic)])
    fold, score = rng.integers(_FOLDS, size=len(z)), np.zeros(len(z))
    for one in range(_FOLDS):
        used = fold != one
        score[~used] = expit(z[~used] @ _logistic(z[used], y[used], w[used] / w[used].sum()))
    return float(w @ np.square(score - 0.5)), _auc(score, y, w)


def _auc(score: Array, y: Array, w: Array) -> float:
    """Return the weighted share of pairs of rows with y 1 and 0 whose scores have this order; ties count half."""
    _, place = np.unique(score, return_inverse=True)
    ones, zeros = (np.bincount(place, w * kind) for kind in (y, 1 - y))
    return float(ones @ (np.cumsum(zeros) - zeros / 2) / (ones.sum() * zeros.sum()))


def _logistic(z: Array, y: Array, w: Array) -> Array:
    """Return the coefficients of a logistic regression with a small ridge."""

    def value(theta: Array) -> float:
        eta = z @ theta
        return float(w @ (y * eta - np.logaddexp(0.0, eta)) - _RIDGE / 2 * theta @ theta)

    def derivatives(theta: Array) -> tuple[Array, Array]:
        fitted = expit(z @ theta)
        curvature = (z * (w * fitted * (1 - fitted))[:, None]).T @ z
        return z.T @ (w * (y - fitted)) - _RIDGE * theta, -curvature - _RIDGE * np.eye(len(theta))

    return maximise(value, derivatives, np.zeros(z.shape[1]))


def _regression(formula: str, release: Release, frame: pd.DataFrame) -> pd.DataFrame:
    """Return means and standard deviations of coefficients from private, weighted and unweighted rows."""
    schema, statement = release.synthetic.schema, release.statement
    rows = SyntheticTable(frame, schema, origin="private rows")
    private = Release(rows, Weights(np.zeros(len(rows)), "none"), statement, n_private=len(rows))
    settings: dict[str, Any] = {"log_likelihood": False, "progressbar": False, "random_seed": 1, "draws": 500}
    with warnings.catch_warnings():  # the verdict is in the table
        warnings.simplefilter("ignore", IwbayesWarning)
        fits = {
            "private": fit(formula, private, calibrate="none", **settings),
            "weighted": fit(formula, release, **settings),
            "unweighted": fit(formula, release.unweighted(), calibrate="none", **settings),
        }
    parts = {}
    for name, idata in fits.items():
        found = summary(idata, round_to="none")
        parts[name], parts[f"sd, {name}"] = found["mean"], found["sd"]
    return pd.DataFrame(parts).assign(calibrated=summary(fits["weighted"])["calibrated"])


def _furthest(correlations: pd.DataFrame) -> pd.DataFrame:
    away = (correlations["weighted"] - correlations["private"]).abs()
    return correlations.loc[away.sort_values(ascending=False).index]


def cells_of_table(frame: pd.DataFrame) -> tuple[tuple[str, ...], list[tuple[Any, ...]]]:
    """Return header and rows of an HTML table."""
    header = ("", *(str(name).replace("_", " ") for name in frame.columns))
    values = [[None if isinstance(v, float) and v != v else v for v in row] for row in frame.to_numpy(object).tolist()]
    return header, [(str(name), *row) for name, row in zip(frame.index, values, strict=True)]


def _picture(single: pd.DataFrame) -> str:
    figure: Figure = NotebookFigure(figsize=(7, 1.2 + 0.28 * len(single)), layout="constrained")
    ax = figure.add_subplot()
    for name, color, mark in (("by_chance", colour(2), "v"), ("unweighted", GREY, "|"), ("weighted", BLUE, "D")):
        style: dict[str, Any] = {"color": color, "marker": mark, "markersize": 9 if mark == "|" else 6}
        ax.plot(single[name], np.arange(len(single)), label=name.replace("_", " "), linestyle="none", **style)
    label_rows(ax, list(map(str, single.index)))
    ax.set_xlim(left=0)
    label_axes(ax, x="total variation distance from the private rows")
    legend_below(ax)
    return picture(
        figure,
        "Points for each column: distance of its margin from that of the private rows, before and after weighting, and "
        "for a sample of as many private rows.",
        "Margins of single columns. 'By chance' is the distance of a bootstrap sample of the private rows.",
    )
