"""report(): one self-contained HTML page about a release and a posterior. It shows public quantities only."""

from __future__ import annotations

import datetime
import hashlib
import math
import os
import time
import warnings
from importlib.metadata import version
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from iwbayes.analyst import arviz_compat
from iwbayes.analyst.arguments import check_release
from iwbayes.analyst.criticism.diagnose import diagnose
from iwbayes.analyst.criticism.diagnostics_table import named_in
from iwbayes.analyst.quantities.intervals import intervals
from iwbayes.analyst.quantities.summary import summary as summarise
from iwbayes.analyst.quantities.summary import with_stars
from iwbayes.release import Release
from iwbayes.release.in_words import for_a_paper, nist_questions, story
from iwbayes.reporting.forest import plot_forest, uncalibrated
from iwbayes.reporting.html import bullets, facts, folded, page, paragraph, picture, table
from iwbayes.reporting.marginal_plots import plot_marginals
from iwbayes.reporting.release_plots import compared_features, plot_budget, plot_overlap, plot_weights
from iwbayes.schema.columns import _Numeric
from iwbayes.schema.schema import column_table
from iwbayes.utils.display import number
from iwbayes.utils.warnings import CalibrationWarning

_NEIGHBOURS = {
    "replace-one": "if any one row of the private table had been any other row",
    "zero-out": "if any one row of the private table had been left empty",
    "replace-user": "if all rows of any one person had been any others",
}
#: Names of texts of the curator on the page, if they are not the key itself.
_ABOUT = {"legal_basis": "Legal basis", "codebook": "Code book"}
#: Largest numbers of columns that are drawn, in one figure and in all, of levels and parameters that are listed, and of
#: parameters that are drawn.
_OVERVIEW, _MOST_COLUMNS, _MOST_LEVELS, _MOST_PARAMETERS, _MOST_DRAWN = 9, 100, 12, 200, 60
#: What is said of empty fields of the registry, other than that they were not given.
_EMPTY = {"tier": "assigned by the registry", "notes": "none", "missing": "nothing"}
#: Largest number of parameters that a warning names.
_MOST_NAMES = 8
#: Columns of the summary, and their names on the page.
_SUMMARY = ("mean", "sd", "eti90_lb", "eti90_ub", "ess_bulk", "ess_tail", "r_hat")
_HEADER = ("parameter", "mean", "sd", "5 %", "95 %", "ESS bulk", "ESS tail", "R-hat")


def report(
    release: Release, idata: Any = None, *, title: str | None = None, date: datetime.date | str | None = None
) -> str:
    """Describe a release, and a posterior that was fitted to it, on one HTML page, a text to be written as UTF-8.

    The page loads no script, no font and nothing from a network. Warnings come first, after the date, the version of
    iwbayes and the SHA-256 of the release's file. Equal arguments give equal pages on the same date.

    Parameters
    ----------
    release : Release
        The release to describe.
    idata : arviz.InferenceData or xarray.DataTree, optional
        Result of :func:`~iwbayes.fit` or :func:`~iwbayes.calibrate` with this release.
    title, date : str, datetime.date or str, optional
        Title of the page, which by default names the columns, and date at its top: by default that of the environment
        variable ``SOURCE_DATE_EPOCH`` (seconds since 1970) if it is set, and otherwise today's; both in UTC.

    Raises
    ------
    TypeError, ValueError
        If release is not a Release, or idata not an ArviZ object with a posterior. A CalibrationWarning says that idata
        was fitted with the weights of another release.

    Examples
    --------
    >>> idata = iw.fit("y ~ x + z", release, draws=250, random_seed=1, progressbar=False)
    >>> page = iw.report(release, idata)  # to be written to a file: Path("report.html").write_text(page)
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
    sections = [
        ("warnings", "Warnings", box or paragraph("None: every check passed.", "good")),
        *([] if fitted is None else [("posterior", "Posterior", _posterior(release, idata, fitted))]),
        ("privacy", "Privacy", _privacy(release)),
        ("file", "For the data protection officer", _filed(release)),
        ("columns", "Columns", table("Declared from public knowledge", *column_table(schema))),
        ("weights", "Weights", _weights(release, own)),
        ("marginals", "Marginals", _marginals(release)),
        ("origin", "How it was made", bullets(story(release))),
        ("paper", "For a paper", _paper(release, idata, fitted)),
    ]
    rows, terms = release.synthetic, release.statement
    summary = paragraph(
        f"{len(rows):,} synthetic rows of {len(schema)} columns, weighted to represent {release.n_private:,} private "
        f"rows; epsilon {terms.epsilon:.4g}, delta {terms.delta:.3g}."
    )
    if date is None:
        now = int(os.environ.get("SOURCE_DATE_EPOCH", time.time()))
        date = datetime.datetime.fromtimestamp(now, datetime.UTC).date()
    told = [(_ABOUT.get(key, key.capitalize()), text) for key, text in release.about.items()]
    made = [*told, ("Date", str(date)), ("iwbayes", version("iwbayes"))]
    summary += facts([*made, ("SHA-256 of the release", hashlib.sha256(release.to_bytes()).hexdigest())])
    some = ", ".join(schema.names[:4]) + (f" and {len(schema) - 4} more columns" if len(schema) > 4 else "")
    return page(title or f"Release{' and posterior' * (idata is not None)}: {some}", summary, sections)


def of_another_release(checks: pd.DataFrame) -> bool:
    """Whether a posterior was fitted with the weights of a different release."""
    return "weights" in checks.index and checks.loc["weights", "verdict"] == "fail"


def _warnings(release: Release, checks: pd.DataFrame) -> list[str]:
    """Reasons not to take the numbers as they are, the gravest first, each once for all parameters that it concerns."""
    found = [str(checks.loc["weights", "what_to_do"])] if of_another_release(checks) else []
    found += [f"The release is not certified: {reason}." for reason in release.reasons]
    bad = checks[checks["verdict"].isin(("fail", "warn"))].sort_values("verdict", kind="stable")
    of_parameters: dict[tuple[str, str, str], list[str]] = {}
    for name, row in bad.iterrows():
        check, bracket, parameter = str(name).partition("[")
        value, limit = _value_and_limit(row)
        if bracket:
            said = parameter[:-1] if check == "calibration" else f"{parameter[:-1]} ({value})"
            of_parameters.setdefault((check, limit, str(row["what_to_do"])), []).append(said)
    grouped = {check for check, _, _ in of_parameters}
    uncalibrated_ones = [
        name for (check, _, _), names in of_parameters.items() if check == "calibration" for name in names
    ]
    if uncalibrated_ones:
        count = sum(str(name).startswith("calibration[") for name in checks.index)
        found.append(
            f"{len(uncalibrated_ones)} of {count} parameters are not calibrated: {_listed(uncalibrated_ones)}."
        )
    for (check, limit, advice), names in of_parameters.items():
        if check != "calibration":
            found.append(f"{check} beyond its limit of {limit} for {_listed(names)}: {advice}")
    overall = (
        "" if uncalibrated_ones or "calibration" not in checks.index else str(checks.loc["calibration", "what_to_do"])
    )
    for name, row in bad.iterrows():
        if "[" in str(name) or name in ("certified", "noise", "weights") or str(name) in grouped:
            continue  # said above
        if named_in(overall, str(name)):
            continue  # among the reasons of the calibration
        value, limit = _value_and_limit(row)
        against = f" (limit {limit})" if limit else ""
        found.append(f"{name} {value}{against}: {row['what_to_do']}".removesuffix(": "))
    return found


def _value_and_limit(row: pd.Series) -> tuple[str, str]:
    """Value and threshold of a row of ``diagnose``, as readers see them."""
    value, limit = (number(part) if isinstance(part, float) else str(part) for part in row[["value", "threshold"]])
    return value, limit


def _listed(names: list[str]) -> str:
    """Return names with commas, at most so many."""
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return ", ".join(names[:_MOST_NAMES]) + more


def _privacy(release: Release) -> str:
    statement = release.statement
    plain = "Nothing is promised: rows were used without noise"
    if math.isfinite(statement.epsilon):
        plain = (
            f"Anything seen in this release would have been seen {_NEIGHBOURS[statement.adjacency]}, with a "
            f"probability that differs by a factor of at most {math.exp(min(statement.epsilon, 700)):.4g}"
        )
        plain += f", and by no more than {statement.delta:.2g} beyond that" if statement.delta > 0 else ""
    limits = [
        "It does not cover facts about people in general: that smoking harms can be learned from any table of smokers.",
        "It covers the uses listed below and no others. The costs of other releases of the same rows add up.",
        "Choosing settings by looking at private results is not covered.",
        "The number of private rows, the schema and the settings are public.",
    ]
    if statement.on_undeclared == "refuse":
        limits.append(
            "The promise holds among tables that conform to the schema. Amending a schema after a refusal is a look at "
            "private rows, which is not covered."
        )
    uses = statement.uses.items()
    rows = [(e.label, e.mechanism, times, e.epsilon, e.delta, e.noise_multiplier) for e, times in uses]
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


def _filed(release: Release) -> str:
    """Entry of the registry of deployments, and the questions of NIST."""
    entry = release.to_registry()["deployment"]
    content = paragraph(
        "The first table answers the questions by which NIST SP 800-226 evaluates a guarantee. The second one has the "
        "fields of the Differential Privacy Deployments Registry."
    )
    content += table("Evaluation by NIST SP 800-226", ("question", "answer"), nist_questions(release))
    rows = [
        (part.replace("_", " "), key.replace("_", " "), _in_one_cell(value) or _EMPTY.get(key, "not given"))
        for part, fields in entry.items()
        for key, value in fields.items()
    ]
    content += table("Entry for the Differential Privacy Deployments Registry", ("part", "field", "value"), rows)
    if missing := entry["administrative"]["missing"]:
        content += paragraph(f"The curator did not give: {', '.join(missing)}.")
    return content


def _in_one_cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, dict):
        return ", ".join(f"{key.replace('_', ' ')} {_in_one_cell(part)}" for key, part in value.items())
    if isinstance(value, list):
        return "; ".join(map(_in_one_cell, value))
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _paper(release: Release, idata: Any, checks: pd.DataFrame | None) -> str:
    """Paragraph for a paper, on the data and, with a posterior, on its intervals."""
    text = for_a_paper(release)
    if idata is not None and checks is not None:
        attrs = arviz_compat.group(idata, "posterior").attrs
        model = f"{attrs['formula']} ({attrs.get('family', '')})" if "formula" in attrs else "The model"
        value = str(checks.loc["calibration", "value"])
        text += f" {model} was fitted to these rows; its 90 % intervals are equal-tailed and {value}."
    return paragraph(text) + paragraph("Add the SHA-256 of the release, which is at the top of this page.")


def _checks(caption: str, checks: pd.DataFrame) -> str:
    """Table of failed checks and warnings, the others folded, and one of the measures of each parameter."""
    header = ("check", "verdict", "value", "limit", "what to do")
    named = [str(name).partition("[") for name in checks.index]
    measured = {check for check, bracket, _ in named if bracket}
    own = checks[[not bracket and check not in measured - {"calibration"} for check, bracket, _ in named]].copy()
    if "calibration" in own.index and own.loc["calibration", "what_to_do"]:
        own.loc["calibration", "what_to_do"] = "See the warnings and the measures of each parameter."
    rows = list(own[["verdict", "value", "threshold", "what_to_do"]].itertuples(name=None))
    failed, warned, passed = ([row for row in rows if row[1] == verdict] for verdict in ("fail", "warn", "ok"))
    found = f"{len(failed)} failed, {len(warned)} with a warning, {len(passed)} passed"
    bad, others = failed + warned, [row for row in rows if row[1] not in ("fail", "warn")]
    content = paragraph(f"{caption}: {found}.")
    content += table(f"{caption}: failed and warnings", header, bad) if bad else ""
    if others:
        rest = table(f"{caption}: passed and informative", header, others)
        content += folded(f"Passed and informative checks ({len(others)})", rest)
    return content + (_measures(checks) if measured else "")


def _measures(checks: pd.DataFrame) -> str:
    """Table of the measures of each parameter, with those that fail in words."""
    cells: dict[str, dict[str, str]] = {}
    limits: dict[str, str] = {}
    for name, row in checks.iterrows():
        check, bracket, parameter = str(name).partition("[")
        if not bracket:
            continue
        value, limit = _value_and_limit(row)
        limits[check] = check if check == "calibration" else f"{check} (limit {limit})"
        fails = row["verdict"] == "fail" and check != "calibration"
        cells.setdefault(parameter[:-1], {})[check] = f"{value}, fails" if fails else value
    header = ("parameter", *limits.values())
    rows = [(name, *(own.get(check, "") for check in limits)) for name, own in cells.items()]
    hidden = max(len(rows) - _MOST_PARAMETERS, 0)
    caption = "Measures of each parameter" + (f"; {hidden} more are not shown" if hidden else "")
    found = table(caption, header, rows[:_MOST_PARAMETERS])
    return folded(f"{caption} ({len(rows)})", found)


def _weights(release: Release, checks: pd.DataFrame) -> str:
    weights, n = release.weights, len(release.synthetic)
    content = paragraph(
        f"{weights.method}; weights of each row: {weights.n_draws}. Weighted, the {n:,} rows are worth "
        f"{weights.ess:,.0f} equal ones; the Pareto shape of the largest weights is {weights.pareto_k_in_words}."
    )
    middle = np.quantile(weights.values, [0.05, 0.95])
    content += picture(
        plot_weights(release).figure,
        f"Histogram of the weights on a logarithmic axis: 90 % of them lie between {middle[0]:.3g} and "
        f"{middle[1]:.3g}. The rows are worth {weights.ess:,.0f} of {n:,}; Pareto shape {weights.pareto_k_in_words}.",
        "Weights of the synthetic rows; their mean is one.",
    )
    if weights.measurement is not None and weights.measurement.features is not None:
        found = compared_features(release)
        inside = "; ".join(f"{said}: {part.inside} of {len(part.names)}" for said, part in found.items())
        content += picture(
            plot_overlap(release).figure,
            f"Measured features with 90 % intervals of their noise. Weighted means inside the intervals: {inside}.",
            "Measured features of the private rows, and the synthetic rows before and after weighting. Those that the "
            "weights use agree by construction; those held back, if there are any, test the weights.",
        )
    return content + _checks("Checks of the release", checks)


def _marginals(release: Release) -> str:
    schema = release.synthetic.schema
    names, hidden = schema.names[:_MOST_COLUMNS], max(len(schema) - _MOST_COLUMNS, 0)
    rows = {name: _in_numbers(release, name) for name in names}
    header = ("column", "quantity", "unweighted", "weighted")
    moved = sorted(names, key=lambda name: -max((move for *_, move in rows[name]), default=0.0))
    drawn = names if len(names) <= _OVERVIEW else [name for name in names if name in moved[:_OVERVIEW]]
    most = max((row for own in rows.values() for row in own), key=lambda row: row[-1], default=None)
    largest = ""
    if most is not None:
        before, after = (f"{value:.1%}" if most[1] == "share" else f"{value:.4g}" for value in most[2:4])
        largest = f" The {most[1]} that moves most is {most[0]}: {before} to {after}."
    which = f": the {len(drawn)} of {len(schema)} columns that the weights move most" if len(drawn) < len(names) else ""
    content = picture(
        plot_marginals(release, drawn)[0].figure,
        f"A panel for each of {len(drawn)} columns: shares of its values among the synthetic rows, unweighted and "
        f"weighted.{largest} The numbers are below.",
        f"Synthetic rows, weighted (filled) and unweighted (line){which}.",
    )
    if len(drawn) == len(names):
        numbers = [row[:-1] for own in rows.values() for row in own]
        return content + table("Synthetic rows in numbers", header, numbers)
    content += paragraph("Each column, with its numbers:" + (f" {hidden} more are not shown." if hidden else ""))
    for name in names:
        alone = picture(
            plot_marginals(release, [name])[0].figure,
            f"Shares of the values of {name} among the synthetic rows, unweighted and weighted. The numbers are below.",
            "Synthetic rows, weighted (filled) and unweighted (line).",
        )
        own = alone + table(f"{name} in numbers", header, [row[:-1] for row in rows[name]])
        content += folded(name, own, group="columns")
    return content


def _in_numbers(release: Release, name: str) -> list[tuple[str, str, float, float, float]]:
    """Rows of a column: what it is, mean or share, before and after weighting, and how far this moved."""
    column, cells = release.synthetic.schema[name], release.synthetic.frame[name]
    shares = release.weights.values / len(cells)
    if isinstance(column, _Numeric):
        numbers = cells.to_numpy(dtype=np.float64, na_value=np.nan)
        known = ~np.isnan(numbers)
        if not known.any():
            return []
        before = float(numbers[known].mean())
        after = float(np.average(numbers[known], weights=shares[known])) if shares[known].sum() > 0 else math.nan
        sd = float(numbers[known].std())
        return [(name, "mean", before, after, abs(after - before) / sd / 2 if sd > 0 and math.isfinite(after) else 0.0)]
    found = []
    for level in column.levels[:_MOST_LEVELS]:  # type: ignore[attr-defined]
        same = (cells == level).fillna(False).to_numpy(dtype=bool)
        before, after = float(same.mean()), float(shares[same].sum())
        found.append((f"{name}: {level}", "share", before, after, abs(after - before)))
    return found


def _rehearsed(record: xr.Dataset) -> str:
    """Table of the results of rehearsals, for each parameter."""
    n = int(record.attrs["n_rehearsals"])
    lead = (
        f"Each of {n} rehearsals makes the release again from its own rows and fits the model. The column 'covered' is "
        "the share of rehearsals whose 90 % interval by the formula covers the rehearsed value: near 0.9 the formula "
        "works for this model. 'Length' is the length of the interval by rehearsals over its length by the formula, "
        "and 'unrehearsed' the share of its variance for quantities that the release did not measure."
    )
    keys = ("rehearsed_coverage", "rehearsed_coverage_se", "length_ratio", "unrehearsed_share")
    columns = [map(str, record["parameter"].to_numpy()), *(record[key].to_numpy().tolist() for key in keys)]
    rows = list(zip(*columns, strict=True))[:_MOST_PARAMETERS]
    header = ("parameter", "covered", "its standard error", "length", "unrehearsed")
    return paragraph(lead) + table("What rehearsals say", header, rows)


def _posterior(release: Release, idata: Any, checks: pd.DataFrame) -> str:
    posterior = arviz_compat.group(idata, "posterior")
    names = {"formula": "Model", "family": "family", "method": "computed by", "weights": "weights"}
    facts = [f"{text}: {posterior.attrs[key]}" for key, text in names.items() if key in posterior.attrs]
    left_out = int(posterior.attrs.get("rows_left_out", 0))
    if left_out:
        facts.append(
            f"complete cases only: {left_out:,} synthetic row{'s' if left_out > 1 else ''} with missing cells left "
            f"out, {float(posterior.attrs['share_left_out']):.2%} of all by weight"
        )
    summary = with_stars(summarise(idata, kind="all", round_to="none"))
    hidden, shown = max(len(summary) - _MOST_PARAMETERS, 0), summary.iloc[:_MOST_PARAMETERS]
    content = paragraph("; ".join(facts)) if facts else ""
    record = arviz_compat.group_or_empty(idata, "calibration")
    rehearsed = record.attrs.get("method") == "rehearsals"
    if checks.loc["calibration", "verdict"] == "ok":
        said = (
            f"The widths of the intervals come from {int(record.attrs['n_rehearsals'])} rehearsals of the release, and "
            "account for errors that rehearsals cannot show."
            if rehearsed
            else "The intervals are calibrated: they account for the noise in the weights, within the limits that "
            "simulations support."
        )
        content += paragraph(said, "good")
    else:
        in_part = checks.loc["calibration", "value"] == "calibrated in part"
        those = "The intervals of names with a star" if in_part else "The intervals"
        said = f"{those} are NOT calibrated: they may be wrong in place and length. See the warnings."
        content += paragraph(said, "warn")
    rows = [(name, *(float(row[key]) for key in _SUMMARY)) for name, row in shown.iterrows()]
    more = f"; {hidden} more are not shown" if hidden else ""
    caption = f"Posterior, with equal-tailed 90 % intervals; slopes of numbers per unit of the column{more}"
    content += table(caption, _HEADER, rows)
    if rehearsed:
        content += _rehearsed(record)
    every = intervals(idata)
    forest = every.iloc[:_MOST_DRAWN]
    clear = int(((forest["lower"] > 0) | (forest["upper"] < 0)).sum())
    bad = [str(name) for name in forest.index[uncalibrated(forest)]]
    hollow = f" NOT calibrated, hollow and dashed: {', '.join(bad[:6])}{' and more' if len(bad) > 6 else ''}."
    content += picture(
        plot_forest(idata if len(forest) == len(every) else forest, release=release).figure,
        f"Means and 90 % intervals of {len(forest)} parameters; {clear} intervals exclude zero."
        f"{hollow if bad else ''} The table above has the numbers.",
        "Posterior means and 90 % intervals, slopes of numbers per standard deviation"
        + (f"; the first {_MOST_DRAWN} parameters." if len(every) > _MOST_DRAWN else "."),
    )
    return content + _checks("Checks of the posterior and its release", checks)
