"""diagnose(): checks of a release and of a fit to it, with value, threshold, verdict and advice."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from iwbayes.analyst import arviz_compat
from iwbayes.analyst.arguments import check_release
from iwbayes.analyst.calibration.measure import Check, against
from iwbayes.analyst.calibration.measures import MEASURES
from iwbayes.analyst.calibration.verdict import check_of_fit, source, tail_checks, weight_checks, weight_facts
from iwbayes.analyst.criticism.diagnostics_table import COLUMNS, NAN, Diagnostics
from iwbayes.analyst.fit_record import weights_digest
from iwbayes.analyst.inference.nuts import DRAWS_PER_CHAIN, RHAT_FAILURE, RHAT_LIMIT
from iwbayes.analyst.released_tilt import ReleasedTilt
from iwbayes.models.families import FAMILIES
from iwbayes.release import Release
from iwbayes.release.statement import PrivacyStatement
from iwbayes.release.weights import kish_ess
from iwbayes.tables.released_columns import MOSTLY, RARE_SHARE, empty_columns, rare_references
from iwbayes.utils.psis import psislw


def diagnose(release: Release, idata: arviz_compat.ArvizObject | None = None) -> Diagnostics:
    """Check a release, or a posterior fitted to it: whether to trust its intervals, and what to do if not.

    Parameters
    ----------
    release, idata : Release, and optionally arviz.InferenceData or xarray.DataTree
        A release, and a result of :func:`~iwbayes.fit`, :func:`~iwbayes.sample` or :func:`~iwbayes.calibrate` with it.

    Returns
    -------
    Diagnostics
        A pandas.DataFrame that prints each advice once, below the table. Its index is ``check``. Its columns are
        ``value`` (number or text), ``threshold`` (NaN if there is none), ``verdict`` ("ok", "warn", "fail" or "info")
        and ``what_to_do``. The checks are:

        - ``weights``: those that :func:`~iwbayes.fit` recorded. "fail", also of ``calibration``, if they belong to a
          different release.
        - ``calibration``: whether the intervals account for the noise in the weights ("warn" if only some do), and
          ``calibration[parameter]`` for each parameter.
        - each of the measures in :doc:`/user_guide/intervals_that_cover` by its worst value, and for single parameters
          as in ``kappa[parameter]``. Limits depend on the source of the intervals; a measure without one is for
          information. ``kappa0`` (for information) is the noise ratio of all directions together.
        - ``rehearsals`` and ``failed_refits``, if intervals come from rehearsals: their number, and the share in which
          the model could not be fitted.
        - ``reference_level of <column>``: weighted share of a rare level with which other levels are compared.
        - ``emptiness of <column>``: weighted share of rows in which a column is missing, or "other", if most are.
        - ``nonquadraticity``, for models with hyperparameters: standard deviation, over the weighted posterior, of the
          difference between the log likelihood and its quadratic approximation.
        - ``ess``: Kish's effective number of weighted rows; it must exceed four per feature of the tilt. ``pareto_k``,
          ``ess_share`` (of the synthetic rows) and ``psis_ess`` (after Pareto smoothing) describe the tail.
        - ``likelihood_ess``: number of equally weighted rows that would give the mean score the same variance; see
          "Pareto k and effective sample sizes" on the theory page. At the threshold n_private (1 -
          explained)/explained, at most n_private, synthetic rows add as much variance as private rows.
        - ``n_synthetic``: must exceed the number of private rows. ``clipped_private`` (released with noise) and
          ``clipped_synthetic`` are the shares of rows that the feature map clipped.
        - ``epsilon``, ``delta``, ``adjacency``, ``noise``, ``certified``: the privacy guarantee of the release.
        - ``r_hat``, ``ess_bulk``, ``ess_tail``: convergence of the sampler, for the worst scalar of the posterior.

    Raises
    ------
    TypeError, ValueError
        If an argument has the wrong type, or `idata` contains quantities computed from a fit, such as comparisons.

    Notes
    -----
    No check can prove that the synthetic rows cover the private population. k-hat and effective sample sizes do not
    detect nearly empty regions of the generator or a strong non-linear misfit of the weights, and ``misfit`` covers a
    few directions only.

    Examples
    --------
    >>> idata = iw.fit("y ~ x + z", release, draws=500, random_seed=1, progressbar=False)
    >>> iw.diagnose(release, idata).loc["calibration", "verdict"]
    'ok'
    """
    check_release(release)
    checks: list[Check] = []
    record, has_scale = None, True
    if idata is not None:
        attrs = arviz_compat.group_or_empty(idata, "posterior").attrs
        record = arviz_compat.group_or_empty(idata, "calibration") or None
        if record is not None and "kappa0" not in record.attrs:
            raise ValueError(
                "idata must be the result of a fit; got quantities computed from one, which have their own group "
                "calibration. Pass the fit, and see iw.intervals(quantities) for the verdicts."
            )
        checks = _weights_of_fit(attrs, release)
        checks += _calibration(record, of_another=any(check.verdict == "fail" for check in checks))
        # only for some families of `fit` we know that they have no scale parameter
        has_scale = attrs.get("family") not in {name for name, family in FAMILIES.items() if not family.auxiliaries}
        names = [] if record is None else [str(name) for name in record["parameter"].to_numpy()]
        # a regression compares other levels with the first one
        for one in rare_references(release.synthetic, release.weights.values, names):
            checks.append(Check(f"reference_level of {one.column}", one.share, RARE_SHARE, "warn", one.text, ">"))
    for one in empty_columns(release.synthetic, release.weights.values):
        checks.append(Check(f"emptiness of {one.column}", one.share, MOSTLY, "warn", one.text))
    facts = weight_facts(release, ReleasedTilt.of(release)) if record is None else record.attrs
    of_weights = _weights(facts, release, scale=has_scale, alone=record is None)
    if record is not None and record.attrs["method"] == "rehearsals":
        of_weights = [replace(c, verdict="info", what_to_do="") if c.verdict == "fail" else c for c in of_weights]
    checks += [*of_weights, *_privacy(release.statement)]
    if idata is not None and arviz_compat.has_group(idata, "posterior"):
        checks += _sampler(idata)
    rows = [(c.name, c.value, c.threshold, c.verdict, c.what_to_do) for c in checks]
    frame = pd.DataFrame(rows, columns=["check", *COLUMNS])
    return Diagnostics(frame.astype({"value": object, "threshold": object}).set_index("check"))


def _info(name: str, value: Any, what_to_do: str = "") -> Check:
    return Check(name, value, NAN, "info", what_to_do)


def _weights_of_fit(attrs: dict[Any, Any], release: Release) -> list[Check]:
    """Compare the weights that a fit recorded with the weights of the release. Without a record there is no check."""
    used = attrs.get("weights_digest")
    source = attrs.get("release_digest") or used
    if not source:
        return []
    own, name = weights_digest(release.weights), str(attrs.get("weights", "unnamed"))
    if source != own:
        advice = (
            "The posterior was fitted with the weights of a different release. Pass the release that the posterior "
            "was fitted with."
        )
        return [Check("weights", f"{name}, different release", "of this release", "fail", advice)]
    if used != own:
        return [_info("weights", name, "These weights were passed to fit. They are not the weights of the release.")]
    return [Check("weights", name, "of this release", "ok", "")]


def _calibration(record: xr.Dataset | None, *, of_another: bool) -> list[Check]:
    """Judge the calibration record, which is invalid for this release if it is `of_another` release."""
    if record is None:
        advice = (
            "No calibration is recorded. Intervals of a weighted model treat the weights as exact and are too narrow: "
            "use calibrate(). Intervals of a model without weights describe only the synthetic rows: use reweight() "
            "first."
        )
        return [Check("calibration", "uncalibrated", "calibrated", "fail" if of_another else "warn", advice)]
    attrs = record.attrs
    text, value = attrs["reasons"].replace("\n", " "), attrs["verdict"]
    verdict = {"calibrated": "ok", "calibrated in part": "warn"}.get(value, "fail")
    if of_another:
        value, verdict = f"{value} for a different release", "fail"
        text = text or "The calibration used different weights: see the check weights."
    spanned = float(record["explained"].min())
    overall = (
        "Not judged, because structural zeros raise it without harm to the intervals. See kappa for each parameter."
    )
    how = source(attrs["method"])
    checks = [Check("calibration", value, "calibrated", verdict, text), _info("method", attrs["method"])]
    if how == "rehearsals":
        checks.append(_info("rehearsals", attrs["n_rehearsals"]))
        checks.append(check_of_fit("failed_refits", float(attrs["failed_refits"])))
    for measure in MEASURES.values():
        check = measure.check(float(attrs[measure.worst_name]), how)
        if check.verdict != "info" or measure.judges(how) or not np.isnan(check.value):
            checks.append(check)
    checks.append(_info("kappa0", float(attrs["kappa0"]), overall))
    if not np.isnan(attrs.get("nonquadraticity", NAN)):
        checks.append(check_of_fit("nonquadraticity", float(attrs["nonquadraticity"])))
    # the share 1 - explained of an influence function is averaged over synthetic rows, the rest over private rows
    ratio = 1.0 if np.isnan(spanned) or spanned <= 0.5 else (1 - spanned) / spanned
    few = (
        "the sampling of synthetic rows widens the intervals more than the sampling of private rows. Request a "
        "release with more synthetic rows."
    )
    enough = ratio * float(attrs["n_private"])
    checks.append(against("likelihood_ess", float(attrs["likelihood_ess"]), ">", enough, few, bad="warn"))
    return [*checks, *_of_parameters(record, of_another)]


def _of_parameters(record: xr.Dataset, of_another: bool) -> list[Check]:
    """Judge each parameter of a record."""
    found, how = [], source(record.attrs["method"])
    for index, parameter in enumerate(map(str, record["parameter"].to_numpy())):
        inside = bool(record["calibrated"].to_numpy()[index]) and not of_another
        said = "calibrated" if inside else "not calibrated"
        found.append(Check(f"calibration[{parameter}]", said, "calibrated", "ok" if inside else "fail", ""))
        for name, measure in MEASURES.items():
            if how in measure.listed:
                check = measure.check(float(record[name].to_numpy()[index]), how)
                found.append(replace(check, name=f"{name}[{parameter}]"))
    return found


def _weights(facts: Any, release: Release, *, scale: bool, alone: bool) -> list[Check]:
    """Judge the weights and the number of rows. The tail of the weights is judged only without a fit (`alone`)."""
    smoothed = min(kish_ess(psislw(draw)[0]) for draw in release.weights.log_weights)
    few = (
        "there are not more synthetic than private rows, which widens the intervals. Request a release with more "
        "synthetic rows: they have no privacy cost."
    )
    return [
        *weight_checks(facts, scale=scale),
        *tail_checks(facts, alone=alone),
        _info("psis_ess", float(smoothed)),
        against("n_synthetic", float(facts["n_synthetic"]), ">", float(facts["n_private"]), few, bad="warn"),
        _info("clipped_synthetic", float(facts["clipped_synthetic"])),
    ]


def _privacy(statement: PrivacyStatement) -> list[Check]:
    """Report the privacy guarantee, and judge the noise and the proof it depends on."""
    noise, advice = {
        "hardened": ("ok", ""),
        "floating-point": (
            "warn",
            "Floating-point noise can leak private data through its low bits. Request a release with hardened noise.",
        ),
        "seeded": ("fail", "Seeded noise can be reproduced and gives no privacy. Use it with public data only."),
    }[statement.noise]
    reasons = "The privacy statement is not certified. The reasons are printed by print(release)."
    certified, notes = ("ok", "") if statement.certified else ("warn", "; ".join(statement.notes) or reasons)
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
    more = "the chains have not converged or are too short. Draw more samples, or reparametrise the model."
    need = float(DRAWS_PER_CHAIN * chains)
    bad = "fail" if r_hat >= RHAT_FAILURE else "warn"
    lengths = [
        against(name, float(table[name].min()), ">", need, more, bad="warn") for name in ("ess_bulk", "ess_tail")
    ]
    return [against("r_hat", r_hat, "<", RHAT_LIMIT, more, bad=bad), *lengths]
