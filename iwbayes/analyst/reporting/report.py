"""report(): one self-contained HTML page on a release, and on a posterior of it. Public quantities only."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from iwbayes._warnings import CalibrationWarning
from iwbayes.analyst import arviz_compat
from iwbayes.analyst.calibration.record import summary_with_stars
from iwbayes.analyst.checks import check_release
from iwbayes.analyst.criticism.diagnose import diagnose
from iwbayes.analyst.criticism.diagnostics_table import named_in
from iwbayes.analyst.reporting.html import bullets, page, paragraph, picture, settings, table
from iwbayes.analyst.reporting.plots import plot_budget, plot_comparison, plot_marginals, plot_overlap, plot_weights
from iwbayes.display import number
from iwbayes.release import Release
from iwbayes.schema.columns import _Numeric
from iwbayes.schema.schema import column_table

_NEIGHBOURS = {
    "replace-one": "if any one row of the private table had been any other row",
    "zero-out": "if any one row of the private table had been left empty",
    "replace-user": "if all rows of any one person had been any others",
}
#: More columns than this are not drawn one by one, and more parameters are not listed.
_MOST_COLUMNS, _MOST_PARAMETERS = 30, 200
_SUMMARY = {
    "mean": "mean",
    "sd": "sd",
    "eti90_lb": "5 %",
    "eti90_ub": "95 %",
    "ess_bulk": "ESS bulk",
    "ess_tail": "ESS tail",
    "r_hat": "R-hat",
}


def report(release: Release, idata: Any = None, *, title: str | None = None) -> str:
    """Describe a release, and a posterior that was fitted to it, on one HTML page.

    The page needs nothing beside itself: no script, no font, no connection. Warnings come first.

    Parameters
    ----------
    release : Release
    idata : arviz.InferenceData or xarray.DataTree, optional
        Of :func:`~iwbayes.fit` or :func:`~iwbayes.calibrate` with this release.
    title : str, optional

    Returns
    -------
    str
        HTML, to be written as UTF-8.

    Raises
    ------
    TypeError
        When release is no Release or idata no ArviZ object.
    ValueError
        When idata has no posterior.

    Warns
    -----
    CalibrationWarning
        When idata was fitted with the weights of another release.

    Examples
    --------
    >>> Path("report.html").write_text(iw.report(release, idata), encoding="utf-8")  # doctest: +SKIP
    """
    check_release(release)
    if idata is not None and not arviz_compat.has_group(idata, "posterior"):
        raise ValueError("idata has no posterior. Pass the result of fit(), calibrate() or pm.sample().")
    own = diagnose(release)
    fitted = None if idata is None else diagnose(release, idata)
    warned = _warnings(release, own if fitted is None else fitted)
    if fitted is not None and of_another_release(fitted):
        warnings.warn(warned[0], CalibrationWarning, stacklevel=2)
    schema = release.synthetic.schema
    box = f'<div class="warn" role="note">{bullets(warned)}</div>\n' if warned else ""
    origin = [("rows from", release.synthetic.origin or "unknown"), *settings(release.recipe or {})]
    sections = [
        ("warnings", "Warnings", box or paragraph("None: every check passed.", "good")),
        *([] if fitted is None else [("posterior", "Posterior", _posterior(idata, fitted))]),
        ("privacy", "Privacy", _privacy(release)),
        ("columns", "Columns", table("Declared from public knowledge", *column_table(schema))),
        ("weights", "Weights", _weights(release, own)),
        ("marginals", "Marginals", _marginals(release)),
        ("origin", "How it was made", table("Settings of the release", ("setting", "value"), origin)),
    ]
    summary = paragraph(
        f"{len(release.synthetic):,} synthetic rows of {len(schema)} columns, weighted to stand for "
        f"{release.n_private:,} private rows; epsilon {release.statement.epsilon:.4g}, delta "
        f"{release.statement.delta:.3g}."
    )
    kind = "Release and posterior" if idata is not None else "Release"
    some = ", ".join(schema.names[:4]) + (f" and {len(schema) - 4} more columns" if len(schema) > 4 else "")
    return page(title or f"{kind}: {some}", summary, sections)


def of_another_release(checks: pd.DataFrame) -> bool:
    """Whether a posterior was fitted with the weights of another release than the one it is described with."""
    return "weights" in checks.index and checks.loc["weights", "verdict"] == "fail"


def _warnings(release: Release, checks: pd.DataFrame) -> list[str]:
    """All that speaks against taking the numbers as they are, the gravest first."""
    found = [str(checks.loc["weights", "what_to_do"])] if of_another_release(checks) else []
    found += [f"The release is not certified: {reason}." for reason in release.reasons]
    bad = checks[checks["verdict"].isin(("fail", "warn"))].sort_values("verdict", kind="stable")
    said = str(checks.loc["calibration", "what_to_do"]) if "calibration" in checks.index else ""
    for name, row in bad.iterrows():
        if name in ("certified", "noise", "weights") or named_in(said, str(name)):
            continue  # said in words above, or among the reasons of the calibration
        value, limit = (number(part) if isinstance(part, float) else str(part) for part in row[["value", "threshold"]])
        against = f" (limit {limit})" if limit else ""
        found.append(f"{name}: {value}{against}. {row['what_to_do']}".strip())
    return found


def _privacy(release: Release) -> str:
    statement = release.statement
    plain = "Nothing is promised: rows were used without noise"
    if math.isfinite(statement.epsilon):
        plain = (
            f"Whatever can be seen in this release would have been seen {_NEIGHBOURS[statement.adjacency]}, with a "
            f"probability that differs by a factor of at most {math.exp(min(statement.epsilon, 700)):.4g}"
        )
        plain += f", and by no more than {statement.delta:.2g} beyond that" if statement.delta > 0 else ""
    limits = [
        "It says nothing of what is true of people at large: that smoking harms can be learned from any such table.",
        "It covers the uses listed below and no others. The costs of other releases of the same rows add up.",
        "Choosing settings by looking at private results is not covered.",
        "The number of private rows, the schema and the settings are public.",
    ]
    if statement.on_undeclared == "refuse":
        limits.append(
            "The promise holds among tables that conform to the schema. Amending a schema after a refusal is a look at "
            "private rows, which is not covered."
        )
    rows = [
        (e.label, e.mechanism, times, e.epsilon, e.delta, e.noise_multiplier) for e, times in statement.uses.items()
    ]
    header = ("use", "mechanism", "times", "epsilon each", "delta each", "noise multiplier")
    content = paragraph(plain + ".") + "<h3>What it does not promise</h3>\n" + bullets(limits)
    content += "<h3>Exact terms</h3>\n" + paragraph(
        f"({statement.epsilon:.6g}, {statement.delta:.3g})-differential privacy under {statement.adjacency} adjacency; "
        f"noise: {statement.noise}; {'certified' if release.certified else 'NOT certified'}."
    )
    content += bullets(statement.notes) if statement.notes else ""
    content += table("Uses of the private rows, each with its own cost", header, rows)
    if statement.events:
        content += picture(
            plot_budget(release).figure,
            f"Bars of the epsilon of each use; all together {statement.epsilon:.4g}. The table above has the numbers.",
            "What each use costs on its own, and all of them together, composed.",
        )
    return content


def _checks(caption: str, checks: pd.DataFrame) -> str:
    """Table of checks, and which of its rows a reader must look at."""
    rows = zip(checks.index, *(checks[key] for key in ("verdict", "value", "threshold", "what_to_do")), strict=True)
    count = {verdict: int((checks["verdict"] == verdict).sum()) for verdict in ("fail", "warn")}
    there = " and ".join(f"{n} with {verdict}" for verdict, n in count.items() if n) or "none"
    lead = f"Look at the rows that say fail or warn (here: {there}); the others passed or are for the expert."
    return paragraph(lead) + table(caption, ("check", "verdict", "value", "limit", "what to do"), rows)


def _weights(release: Release, checks: pd.DataFrame) -> str:
    weights, n = release.weights, len(release.synthetic)
    content = paragraph(
        f"{weights.method}: {weights.n_draws} draw(s). Weighted, the {n:,} rows are worth {weights.ess:,.0f} equal "
        f"ones; the Pareto shape of the largest weights is {weights.pareto_k_in_words}."
    )
    content += picture(
        plot_weights(release).figure,
        f"Histogram of the weights on a logarithmic axis; Pareto shape {weights.pareto_k_in_words}, worth "
        f"{weights.ess:,.0f} of {n:,} rows.",
        "Weights of the synthetic rows; their mean is one.",
    )
    measurement = weights.measurement
    if measurement is not None and measurement.features is not None:
        content += picture(
            plot_overlap(release).figure,
            "For each measured term: the noisy private mean with 90 % of its noise, and the weighted synthetic mean.",
            "What was measured of the private rows, and where the weights take the synthetic ones. Weighted means "
            "should lie within most of the bars.",
        )
    return content + _checks("Checks of the release", checks)


def _marginals(release: Release) -> str:
    schema, frame = release.synthetic.schema, release.synthetic.frame
    names = schema.names[:_MOST_COLUMNS]
    hidden = len(schema) - len(names)
    shares = release.weights.values / len(frame)
    rows = []
    for name in names:
        column = schema[name]
        if isinstance(column, _Numeric):
            numbers = frame[name].to_numpy(dtype=np.float64, na_value=np.nan)
            known = ~np.isnan(numbers)
            if known.any():
                weighted = np.average(numbers[known], weights=shares[known]) if shares[known].sum() > 0 else math.nan
                rows.append((name, "mean", float(numbers[known].mean()), float(weighted)))
            continue
        for level in column.levels[:12]:  # type: ignore[attr-defined]
            same = (frame[name] == level).fillna(False).to_numpy(dtype=bool)
            rows.append((f"{name}: {level}", "share", float(same.mean()), float(shares[same].sum())))
    content = picture(
        plot_marginals(release, names)[0].figure,
        "A panel for each column: shares of its values among the synthetic rows, weighted and unweighted.",
        "Synthetic rows, weighted (filled) and unweighted (line)."
        + (f" {hidden} columns are not shown." if hidden else ""),
    )
    return content + table("Synthetic rows in numbers", ("column", "quantity", "unweighted", "weighted"), rows)


def _rehearsed(record: xr.Dataset) -> str:
    """Table of what rehearsals say of each parameter."""
    n = int(record.attrs["n_rehearsals"])
    lead = (
        f"In each of {n} rehearsals the release was made again from its own rows, and the model fitted. Covered says "
        "how often the quick formula's 90 % interval held what was rehearsed: near 0.9, the formula will do for this "
        "model. Length is that of the interval by rehearsals over the formula's, and unrehearsed the share of its "
        "variance for what the release did not measure."
    )
    keys = ("rehearsed_coverage", "rehearsed_coverage_se", "length_ratio", "unrehearsed_share")
    columns = [record["parameter"].to_numpy(), *(record[key].to_numpy() for key in keys)]
    rows = [(str(name), *map(float, values)) for name, *values in list(zip(*columns, strict=True))[:_MOST_PARAMETERS]]
    header = ("parameter", "covered", "its standard error", "length", "unrehearsed")
    return paragraph(lead) + table("What rehearsals say", header, rows)


def _posterior(idata: Any, checks: pd.DataFrame) -> str:
    posterior = arviz_compat.group(idata, "posterior")
    names = {"formula": "Model", "family": "family", "method": "computed by", "weights": "weights"}
    facts = [f"{text}: {posterior.attrs[key]}" for key, text in names.items() if key in posterior.attrs]
    left_out = int(posterior.attrs.get("rows_left_out", 0))
    if left_out:
        facts.append(
            f"complete cases only: {left_out:,} synthetic row{'s' if left_out > 1 else ''} with missing cells left "
            f"out, {float(posterior.attrs['share_left_out']):.2%} of all by weight"
        )
    shown = summary_with_stars(idata)
    hidden = max(len(shown) - _MOST_PARAMETERS, 0)
    shown = shown.iloc[:_MOST_PARAMETERS]
    content = paragraph("; ".join(facts)) if facts else ""
    record = arviz_compat.group(idata, "calibration") if arviz_compat.has_group(idata, "calibration") else None
    rehearsed = record if record is not None and record.attrs["method"] == "rehearsals" else None
    if checks.loc["calibration", "verdict"] == "ok":
        said = "The intervals account for the noise in the weights: inside the domain that simulations support."
        if rehearsed is not None:
            n = int(rehearsed.attrs["n_rehearsals"])
            said = (
                f"The intervals are as wide as {n} rehearsals of the release ask for, and account "
                "for what rehearsals cannot see."
            )
        content += paragraph(said, "good")
    else:
        in_part = checks.loc["calibration", "value"] == "calibrated in part"
        those = "The intervals of names with a star" if in_part else "The intervals"
        said = f"{those} are NOT calibrated: they may be wrong in place and length. See the warnings."
        content += paragraph(said, "warn")
    rows = [(name, *(float(row[key]) for key in _SUMMARY)) for name, row in shown.iterrows()]
    caption = "Posterior, with equal-tailed 90 % intervals" + (f"; {hidden} more are not shown" if hidden else "")
    content += table(caption, ("parameter", *_SUMMARY.values()), rows)
    if rehearsed is not None:
        content += _rehearsed(rehearsed)
    forest = pd.DataFrame({"coefficient": shown.index, "method": "posterior", "mean": shown["mean"]})
    forest = forest.assign(lower=shown["eti90_lb"], upper=shown["eti90_ub"])
    content += picture(
        plot_comparison(forest.iloc[:60]).figure,
        "Means and 90 % intervals of the parameters; the table above has the numbers.",
        "Posterior means and 90 % intervals" + (" of the first 60 parameters." if len(forest) > 60 else "."),
    )
    return content + _checks("Checks of the posterior and its release", checks)
