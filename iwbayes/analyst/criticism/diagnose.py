"""Diagnostics of a release and of a fit to it, as one table: value, threshold, verdict, what to do."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
from numpy.typing import NDArray

from iwbayes.analyst import arviz_compat
from iwbayes.analyst.calibration.domain import (
    SHAPE_CHECKS,
    Check,
    above,
    below,
    failed_refits_check,
    nonquadraticity_check,
    parameter_checks,
    tail_checks,
    weight_checks,
    weight_facts,
)
from iwbayes.analyst.checks import check_release
from iwbayes.analyst.criticism.pointwise import group_or_empty
from iwbayes.analyst.fit_record import weights_digest
from iwbayes.analyst.inference.nuts import DRAWS_PER_CHAIN, RHAT_FAILURE, RHAT_LIMIT
from iwbayes.analyst.regression.families import FAMILIES
from iwbayes.analyst.released_tilt import ReleasedTilt
from iwbayes.display import WIDTH, cell, fill, html_table, text_table
from iwbayes.release import Release
from iwbayes.statement import PrivacyStatement
from iwbayes.weights import kish_ess, psislw

NAN = float("nan")
_COLUMNS = ["value", "threshold", "verdict", "what_to_do"]
_HEADER = ("check", "value", "limit", "verdict")
#: Checks of each parameter, by the variable of the record, and the attribute with the worst value of all parameters.
_WORST = {
    "kappa": "kappa_max",
    "explained": "explained_min",
    "misfit_share": "misfit_share_max",
    "dfbetas": "dfbetas_max",
    "variation": "variation_min",
    "skew": "skew",
}
#: Variables that the table of parameters shows: of the formula, and of rehearsals, which are not judged.
_OF_EACH = ("kappa", "explained", "misfit_share")
_OF_REHEARSALS = ("length_ratio", "rehearsed_coverage", "unrehearsed_share")
#: Names of the rows of one parameter.
_ONE_PARAMETER = re.compile(rf"(calibration|kappa|explained|misfit|{'|'.join(_OF_REHEARSALS)})\[(.*)\]")
#: Rows of single parameters that a short text names at most.
_MOST_PARAMETERS = 5
#: Checks that a short text gives a row of their own though they pass.
_ALWAYS = {"calibration", "kappa", "explained", "misfit", "dfbetas", "skew", "certified", "r_hat", "ess_bulk"}


class Diagnostics(pd.DataFrame):
    """Data frame of checks, see :func:`~iwbayes.diagnose`; printed, it says once and below what to do.

    Everything that a data frame does works as ever. Without the four columns it shows itself as any data frame.
    """

    @property
    def _constructor(self) -> type[Diagnostics]:
        return Diagnostics

    @property
    def advice(self) -> list[str]:
        """What to do, each thing once: what fails first, then what warns, then what is worth knowing."""
        order = {"fail": 0, "warn": 1, "info": 2}
        checks = self[~self._is_of_one()].iterrows()
        rows = [(str(name), str(row["verdict"]), str(row["what_to_do"])) for name, row in checks]
        # the reasons of the calibration name the checks that they come from
        rows.sort(key=lambda row: (row[0] != "calibration", order.get(row[1], 3)))
        said, found = "", []
        names: dict[str, list[str]] = {}
        for name, _, text in rows:
            if text and text not in said and not named_in(said, name):
                said = text if name == "calibration" else said
                names.setdefault(text, []).append(name)
        for text, of in names.items():
            more = f" and {len(of) - _MOST_PARAMETERS} more" if len(of) > _MOST_PARAMETERS else ""
            found.append(f"{', '.join(of[:_MOST_PARAMETERS])}{more}: {text}")
        return found

    def brief(self, *, width: int = WIDTH) -> str:
        """Text of what was judged; single parameters only where one does not pass, and the rest in one line.

        Parameters
        ----------
        width : int
            Longest line.
        """
        of_one, bad = self._is_of_one(), self["verdict"].isin(("fail", "warn"))
        always = self.index.isin(_ALWAYS)
        judged = self[~of_one & (bad | ((self["verdict"] == "ok") & always))]
        passed = self[~of_one & (self["verdict"] == "ok") & ~always]
        known = self[~of_one & (self["verdict"] == "info")]
        facts = [f"{name} {text}" for name, value in known["value"].items() if (text := cell(value))]
        unknown = [str(name) for name, value in known["value"].items() if not cell(value)]
        said = {
            "passed as well": ", ".join(map(str, passed.index)),
            "for information": "; ".join(facts),
            "not known": ", ".join(unknown),
        }
        header, parameters = self._parameters()
        outside = [row for row in parameters if row[1] != "calibrated"]
        lines = [text_table(_HEADER, _rows(judged), width=width)]
        if 0 < len(outside) < len(parameters):
            lines += ["", text_table(header, outside[:_MOST_PARAMETERS], width=width)]
            if len(outside) > _MOST_PARAMETERS:
                lines.append(f"and {len(outside) - _MOST_PARAMETERS} more parameters that are not calibrated")
        more = [f"{what}: {text}" for what, text in said.items() if text]
        lines += [fill(text, later="  ", width=width) for text in (*more, *self[bad].advice)]
        return "\n".join(lines)

    def _is_of_one(self) -> NDArray[np.bool_]:
        """Which rows are those of single parameters."""
        return np.array([_ONE_PARAMETER.fullmatch(str(name)) is not None for name in self.index], dtype=bool)

    def _parameters(self) -> tuple[tuple[str, ...], list[tuple[object, ...]]]:
        """Header and rows of the table of parameters."""
        found: dict[str, dict[str, object]] = {}
        for name, value in self["value"].items():
            if match := _ONE_PARAMETER.fullmatch(str(name)):
                found.setdefault(match[2], {})[match[1]] = value
        keys = list(dict.fromkeys(["calibration", *(key for one in found.values() for key in one)]))
        rows = [(name, *(one.get(key, NAN) for key in keys)) for name, one in found.items()]
        return ("parameter", *("verdict" if key == "calibration" else key for key in keys)), rows

    def __repr__(self) -> str:
        """Show the checks as a table, and what to do below."""
        if list(self.columns) != _COLUMNS:
            return super().__repr__()
        tables = [text_table(_HEADER, _rows(self[~self._is_of_one()]))]
        header, parameters = self._parameters()
        if parameters:
            tables += ["", text_table(header, parameters), ""]
        return "\n".join([*tables, *(fill(text, later="  ") for text in self.advice)])

    def _repr_html_(self) -> str | None:
        """Show the same in a notebook."""
        if list(self.columns) != _COLUMNS:
            return super()._repr_html_()  # type: ignore[operator]
        tables = html_table("Diagnostics", _HEADER, _rows(self[~self._is_of_one()]), notes=self.advice)
        header, parameters = self._parameters()
        return tables + (html_table("Parameters", header, parameters) if parameters else "")


def _rows(checks: pd.DataFrame) -> Iterable[tuple[object, ...]]:
    return [(str(name), row["value"], row["threshold"], row["verdict"]) for name, row in checks.iterrows()]


def named_in(reasons: str, check: str) -> bool:
    """Whether the reasons of a calibration name a check, as in "kappa 0.2 >= 0.12"."""
    return re.search(rf"\b{re.escape(check)} [-\d]", reasons) is not None


def diagnose(release: Release, idata: arviz_compat.ArvizObject | None = None) -> Diagnostics:
    """Judge a release, and a posterior that was fitted to it.

    Parameters
    ----------
    release : Release
    idata : arviz.InferenceData or xarray.DataTree, optional
        The result of :func:`~iwbayes.fit` or :func:`~iwbayes.calibrate`. Without it the release alone is judged.

    Returns
    -------
    Diagnostics
        A pandas.DataFrame that prints what to do once, below. Index ``check``; columns ``value`` (number or text),
        ``threshold`` (NaN where there is none), ``verdict`` ("ok", "warn", "fail", "info") and ``what_to_do``. Checks:

        - ``weights``: name of the weights that the posterior was fitted with, where :func:`~iwbayes.fit` recorded them;
          "fail" where they came from another release, which fails ``calibration`` as well;
        - ``calibration``: whether the intervals account for the noise in the weights, "warn" where only some of them
          do; ``calibration[parameter]`` for each;
        - ``kappa``: the largest noise of the released moments against the spread of one private row, in the
          direction of a parameter; ``kappa[parameter]`` of each; ``kappa0`` over all directions, for information;
        - ``explained``: the smallest share of a parameter's influence function that the tilt's features span;
          ``explained[parameter]`` of each;
        - ``misfit``: the largest share of a parameter's variance that is due to what the weighted rows miss where the
          tilt does not pull; ``misfit[parameter]`` of each;
        - ``rehearsals``, their number, and ``failed_refits``, the share in which the model failed, where the intervals
          are made of them; ``length_ratio[parameter]``, the standard deviation over the formula's,
          ``rehearsed_coverage[parameter]``, how often the formula's 90 % interval held what was rehearsed, and
          ``unrehearsed_share[parameter]``, the share of the variance for what was not measured. What bounds the formula
          is then for information;
        - ``dfbetas``: the largest shift of an estimate by a single synthetic row, in standard deviations;
        - ``variation``: the smallest variance of a parameter's scores over what the curvature expects: near zero where
          an outcome or a level has too few rows, and a prior alone keeps the estimate finite;
        - ``skew``: largest distance of mean and mode of the weighted posterior, in standard deviations;
        - ``nonquadraticity``, for models with hyperparameters: standard deviation, over the weighted posterior, of the
          log likelihood less its quadratic approximation;
        - ``ess`` (Kish, in rows) against four rows for each feature of the tilt; ``pareto_k``, ``ess_share`` (of the
          synthetic rows), ``psis_ess`` (Kish after Pareto smoothing);
        - ``likelihood_ess``: ``tr(J^-1 sum p_i s_i s_i') / tr(J^-1 sum p_i^2 s_i s_i')`` with p_i = w_i/sum w, s_i
          the centred score of row i and J the weighted curvature: how many equally weighted rows would give
          the mean score the same variance, after the trace form of Ghalebikesabi et al. (UAI 2022), B.5.1; against
          n_private (1 - explained)/explained, at most n_private, where synthetic rows add as much as private ones;
        - ``n_synthetic`` against the number of private rows; ``clipped_private`` (released with noise) and
          ``clipped_synthetic``: shares of rows that the feature map clipped;
        - ``epsilon``, ``delta``, ``adjacency``, ``noise``, ``certified``: the privacy spent;
        - ``r_hat``, ``ess_bulk``, ``ess_tail``: the worst of any scalar of the posterior.

    Raises
    ------
    TypeError
        If release is no Release or idata no ArviZ object.

    Notes
    -----
    No check can certify support: nearly empty corners of the generator and strong non-linear misfit of the weights
    stay unflagged by k-hat and effective sample sizes, and ``misfit`` looks at a few directions only.

    Examples
    --------
    >>> diagnose(release)  # doctest: +SKIP
    >>> diagnose(release, idata).query("verdict == 'fail'")  # doctest: +SKIP
    """
    check_release(release)
    checks: list[Check] = []
    record, has_scale = None, True
    if idata is not None:
        attrs = group_or_empty(idata, "posterior").attrs
        record = arviz_compat.group(idata, "calibration") if arviz_compat.has_group(idata, "calibration") else None
        checks = _weights_of_fit(attrs, release)
        checks += _calibration(record, of_another=any(check.verdict == "fail" for check in checks))
        # only some families of `fit` are known to have no scale
        has_scale = attrs.get("family") not in {name for name, family in FAMILIES.items() if not family.auxiliary}
    facts = weight_facts(release, ReleasedTilt.of(release)) if record is None else record.attrs
    of_weights = _weights(facts, release, scale=has_scale, alone=record is None)
    if record is not None and record.attrs["method"] == "rehearsals":
        of_weights = [_as_information(check) for check in of_weights]
    checks += [*of_weights, *_privacy(release.statement)]
    if idata is not None and arviz_compat.has_group(idata, "posterior"):
        checks += _sampler(idata)
    rows = [(c.name, c.value, c.threshold, c.verdict, c.what_to_do) for c in checks]
    frame = pd.DataFrame(rows, columns=["check", *_COLUMNS])
    return Diagnostics(frame.astype({"value": object, "threshold": object}).set_index("check"))


def _unjudged(judge: Any, value: float) -> Check:
    """Check what bounds the formula where the intervals are not made of it."""
    return _as_information(judge(value))


def _as_information(check: Check) -> Check:
    return replace(check, verdict="info", what_to_do="") if check.verdict == "fail" else check


def _info(name: str, value: Any, what_to_do: str = "") -> Check:
    return Check(name, value, NAN, "info", what_to_do)


def _weights_of_fit(attrs: dict[Any, Any], release: Release) -> list[Check]:
    """Compare the weights that a fit recorded with those of a release; none where it recorded none."""
    used = attrs.get("weights_digest")
    source = attrs.get("release_digest") or used
    if not source:
        return []
    own = weights_digest(release.weights)
    name = str(attrs.get("weights", "unnamed"))
    if source != own:
        advice = (
            "The posterior was fitted with other weights than those of this release. Pass the release that the "
            "posterior was fitted with."
        )
        return [Check("weights", f"{name}, of another release", "of this release", "fail", advice)]
    if used != own:
        return [_info("weights", name, "Not the weights of the release as they are: chosen at the fit.")]
    return [Check("weights", name, "of this release", "ok", "")]


def _calibration(record: xr.Dataset | None, *, of_another: bool) -> list[Check]:
    """Judge the calibration record; it says nothing of the release at hand where it is that `of_another`."""
    if record is None:
        advice = (
            "No calibration is recorded. The intervals of a weighted model take the weights as exact and are too "
            "narrow: use calibrate(). Those of a model without weights describe the synthetic rows alone: use "
            "reweight() first."
        )
        return [Check("calibration", "uncalibrated", "calibrated", "fail" if of_another else "warn", advice)]
    attrs = record.attrs
    text = attrs["reasons"].replace("\n", " ")
    value = attrs["verdict"]
    good, in_part = value == "calibrated" and not of_another, value == "calibrated in part" and not of_another
    if of_another:
        value, text = f"{value} for another release", text or "The record is of other weights: see the row weights."
    spanned = float(record["explained"].min())
    overall = "Not judged: structural zeros raise it though the intervals hold; see kappa for each parameter."
    judges: Any = parameter_checks(pooled=attrs["method"] == "pool")
    by_rehearsals = attrs["method"] == "rehearsals"
    if by_rehearsals:
        judges = {name: judge if name in SHAPE_CHECKS else partial(_unjudged, judge) for name, judge in judges.items()}
    checks = [
        Check("calibration", value, "calibrated", "ok" if good else "warn" if in_part else "fail", text),
        _info("method", attrs["method"]),
        *([_info("rehearsals", attrs["n_rehearsals"])] if by_rehearsals else []),
        *([failed_refits_check(float(attrs["failed_refits"]))] if by_rehearsals else []),
        *(judges[column](float(attrs[fact])) for column, fact in _WORST.items() if column in judges and fact in attrs),
        _info("kappa0", float(attrs["kappa0"]), overall),
    ]
    if not np.isnan(attrs.get("nonquadraticity", NAN)):
        checks.append(nonquadraticity_check(float(attrs["nonquadraticity"])))
    # The tilt takes out the part of the scores that its features span, so that of each influence function the share
    # 1 - explained is averaged over the synthetic rows and the share explained over the private ones.
    ratio = 1.0 if np.isnan(spanned) or spanned <= 0.5 else (1 - spanned) / spanned
    few = (
        "the sampling of synthetic rows adds more to the intervals than that of private rows. Ask for a release with "
        "more synthetic rows."
    )
    enough = ratio * float(attrs["n_private"])
    checks.append(above("likelihood_ess", float(attrs["likelihood_ess"]), enough, few, bad="warn"))
    return [*checks, *_of_parameters(record, judges, of_another)]


def _of_parameters(record: xr.Dataset, judges: Any, of_another: bool) -> list[Check]:
    """Judge each parameter of a record; one of an earlier version has no verdict of its own for them."""
    found = []
    good = record.get("calibrated", record["kappa"] * 0 + (record.attrs["verdict"] == "calibrated")).to_numpy() == 1
    for index, parameter in enumerate(map(str, record["parameter"].to_numpy())):
        inside = bool(good[index]) and not of_another
        said = "calibrated" if inside else "not calibrated"
        found.append(Check(f"calibration[{parameter}]", said, "calibrated", "ok" if inside else "fail", ""))
        for column in _OF_REHEARSALS if "rehearsed_coverage" in record else _OF_EACH:
            if column in _OF_REHEARSALS:
                found.append(_info(f"{column}[{parameter}]", float(record[column].to_numpy()[index])))
            elif column in judges and column in record:
                check = judges[column](float(record[column].to_numpy()[index]))
                found.append(replace(check, name=f"{check.name}[{parameter}]"))
    return found


def _weights(facts: Any, release: Release, *, scale: bool, alone: bool) -> list[Check]:
    """Judge weights and row numbers; their tail only where there is no fit that would show what it does."""
    smoothed = min(kish_ess(psislw(draw)[0]) for draw in release.weights.log_weights)
    few = (
        "the synthetic rows are no more than the private ones and widen the intervals. Ask for more rows: they cost "
        "no privacy."
    )
    return [
        *weight_checks(facts, scale=scale),
        *tail_checks(facts, alone=alone),
        _info("psis_ess", float(smoothed)),
        above("n_synthetic", float(facts["n_synthetic"]), float(facts["n_private"]), few, bad="warn"),
        _info("clipped_synthetic", float(facts["clipped_synthetic"])),
    ]


def _privacy(statement: PrivacyStatement) -> list[Check]:
    """State the privacy spent and judge what it rests on."""
    noise, advice = {
        "hardened": ("ok", ""),
        "floating-point": ("warn", "Floating-point noise can leak through its low bits. Ask for hardened noise."),
        "seeded": ("fail", "Seeded noise can be reproduced and protects nobody: use it with public data only."),
    }[statement.noise]
    notes = "; ".join(statement.notes) or "The statement does not hold as it stands: see print(release)."
    certified, notes = ("ok", "") if statement.certified else ("warn", notes)
    return [
        _info("epsilon", float(statement.epsilon)),
        _info("delta", float(statement.delta)),
        _info("adjacency", statement.adjacency),
        Check("noise", statement.noise, "hardened", noise, advice),
        Check("certified", bool(statement.certified), True, certified, notes),
    ]


def _sampler(idata: arviz_compat.ArvizObject) -> list[Check]:
    """Judge the sampler by the worst scalar of the posterior."""
    table = arviz_compat.rhat_ess(idata)
    chains = arviz_compat.group(idata, "posterior").sizes["chain"]
    r_hat = float(np.nanmax(table["r_hat"])) if table["r_hat"].notna().any() else NAN
    more = "the chains disagree or are too short. Draw more samples, or reparametrise the model."
    need = float(DRAWS_PER_CHAIN * chains)
    bad = "fail" if r_hat >= RHAT_FAILURE else "warn"
    lengths = [above(name, float(table[name].min()), need, more, bad="warn") for name in ("ess_bulk", "ess_tail")]
    return [below("r_hat", r_hat, RHAT_LIMIT, more, bad=bad), *lengths]
