"""One way to a calibrated posterior: from a weighted posterior and a release to draws, their record and statistics.

The covariance of an estimate has three sources: the formula (a sandwich with the noise of the weights in it), weight
draws (a pool over versions of the weights, or a mixture of row sandwiches), and rehearsals (estimates from replays).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from iwbayes.analyst.arguments import check_enough_draws, check_pool_total
from iwbayes.analyst.calibration.from_rehearsals import Rehearsed, rehearse_estimates, rehearsed_tails
from iwbayes.analyst.calibration.hierarchical import GivenOthers, Hierarchy
from iwbayes.analyst.calibration.marks import mark_uncalibrated, verdict_attributes, warn_outside_domain
from iwbayes.analyst.calibration.measure import Drawn, How
from iwbayes.analyst.calibration.measures import MEASURES
from iwbayes.analyst.calibration.measures.skew import distance
from iwbayes.analyst.calibration.record import NAN, Judged, Moved, calibration_groups, calibration_record
from iwbayes.analyst.calibration.release_limits import weight_checks, weight_facts
from iwbayes.analyst.calibration.sandwich import CalibratedNormal, LikelihoodTerms, calibrate_normal
from iwbayes.analyst.calibration.score_marginals import with_marginals
from iwbayes.analyst.calibration.verdict import (
    NOTHING_MEASURED,
    UNKNOWN_EXPLAINED,
    failed_refits_check,
    nonquadraticity_check,
    rehearsals_check,
    weight_draws_check,
)
from iwbayes.analyst.fit_record import weights_digest
from iwbayes.analyst.inference.nuts import SamplingSettings
from iwbayes.analyst.inference.tilt_posterior import TiltPosterior
from iwbayes.analyst.inference.weight_draws import (
    Component,
    ComponentAssignment,
    Draws,
    draw_components,
    draw_densities,
    sample_statistics,
)
from iwbayes.analyst.inference.weighted_posterior import Mode, WeightedPosterior, map_draws, posterior_dataset
from iwbayes.analyst.released_tilt import ReleasedTilt, has_shares_of, is_noise_aware
from iwbayes.release import Release
from iwbayes.release.rehearsals import Rehearsals
from iwbayes.release.weights import Weights
from iwbayes.utils.arrays import Array

if TYPE_CHECKING:
    from iwbayes.analyst.inference.model_posterior import ModelPosterior

#: The formula of a regression, if the model is one: it names the terms that a release did not measure.
Formula = Callable[[], str | None]


@dataclass(frozen=True, eq=False)
class Calibrated:
    """Draws `theta` (chain, draw, p), their record (None if they are not calibrated), and statistics of sampling.

    `statistics` is None if the draws of the weighted posterior were moved. `method` is that of the sampling.
    """

    theta: Array
    record: xr.Dataset | None
    statistics: xr.Dataset | None
    method: str = ""


def calibrated(
    posterior: WeightedPosterior,
    release: Release,
    how: How | Literal["none"],
    settings: SamplingSettings,
    rng: np.random.Generator,
    *,
    weights: Weights | None = None,
    rehearsals: Rehearsals | None = None,
    sampled: Array | None = None,
    first_run: Callable[[], Array] | None = None,
    formula: Formula | None = None,
) -> Calibrated:
    """Calibrate a weighted posterior, whose intervals then account for the noise in the weights of a release.

    `weights` are those of the release by default. If they have several draws, the posteriors under each are mixed in
    equal parts. `sampled` (sample, p) are draws from the weighted posterior, if there are some already; otherwise they
    are drawn here. `first_run` makes them for a pool whose posterior has no mode. ``how="none"`` only draws.

    ValueError or RuntimeError as in `draw_components` and `calibrate_normal`.

    Theory: docs/theory.md#why-plug-in-weights-give-intervals-that-are-too-narrow.
    """
    weights = release.weights if weights is None else weights
    several = how == "pool" or (
        weights.n_draws > 1 and has_shares_of(posterior.weights, weights) and how != "rehearsals"
    )
    if how == "pool":
        remedy = "Use reweight(model, release.weights, total=release.n_private)."
        check_pool_total(float(posterior.weights.sum()), release.n_private, remedy)
    elif how != "none":
        n = settings.chains * settings.draws
        check_enough_draws(n, len(posterior.names), "Draw more, or do not calibrate (calibrate='none').")
    shape = (settings.chains, settings.draws, -1)
    if sampled is not None and not several:
        if how == "none":
            return Calibrated(sampled.reshape(shape), None, None)
        moved, of_one, statistics = _single(posterior, None, sampled, release, rehearsals, settings, rng, formula)
        return Calibrated(moved.reshape(shape), of_one, statistics)
    vectors = weights.draw_values if several else posterior.weights[None]
    vectors = vectors * (posterior.weights.sum() / vectors.sum(axis=1, keepdims=True))
    assignment = ComponentAssignment.random(len(vectors), settings.chains, settings.draws, rng)
    start = None if sampled is None else sampled.mean(axis=0)
    record: xr.Dataset | None = None
    if how == "pool":
        first = first_run if sampled is None else lambda: sampled
        each, judged = _pooled(posterior, vectors, release, settings, assignment.n_each, rng, start, first)
        theta = assignment.take([one.theta for one in each])
        flat, part = theta.reshape(-1, len(posterior.names)), assignment.part.ravel()
        record = pool_record(posterior.names, flat, part, len(vectors), release, judged, formula)
    else:
        start = posterior.mode(start).theta if several and start is not None else start
        components = draw_components(posterior.modes(vectors, start), settings, assignment.n_each, rng)
        each = [one.draws for one in components]
        theta = assignment.take([one.theta for one in each])
        if several and how != "none":
            theta, record = _mixed(components, assignment, release)
        elif how != "none":
            [own] = components
            flat = theta.reshape(-1, len(posterior.names))
            theta, record, _ = _single(own.posterior, own.mode, flat, release, rehearsals, settings, rng, formula)
    method = "+".join(sorted({one.method for one in each}))
    return Calibrated(theta.reshape(shape), record, sample_statistics(each, assignment), method)


def groups_of(
    posterior: WeightedPosterior,
    found: Calibrated,
    release: Release,
    weights: Weights | None = None,
    *,
    like: xr.Dataset | None = None,
) -> dict[str, xr.Dataset]:
    """Return the groups of a result: the posterior with its marks and digests, statistics and the record; warn.

    The posterior has the coordinates and attributes of `like`, if it is given.
    """
    own = release.weights if weights is None else weights
    dataset = posterior_dataset(posterior, found.theta) if like is None else _like(posterior, found.theta, like)
    pooled = found.record is not None and found.record.attrs["method"] == "pool"
    used = weights_digest(own) if pooled or has_shares_of(posterior.weights, own) else ""
    digests = {"release_digest": weights_digest(release.weights), "weights_digest": used}
    groups = {"posterior": dataset.assign_attrs(verdict_attributes(found.record) | digests)}
    if found.statistics is not None:
        groups["sample_stats"] = found.statistics
    if found.record is not None:
        groups["posterior"] = mark_uncalibrated(groups["posterior"], found.record, posterior.made_of)
        groups |= calibration_groups(found.record)
        warn_outside_domain(found.record, stacklevel=4)  # at the caller of a door
    return groups


def _like(posterior: WeightedPosterior, theta: Array, old: xr.Dataset) -> xr.Dataset:
    """Return a posterior with new values in its variables; coordinates and attributes stay."""
    values, shape, new = posterior.constrain(theta.reshape(-1, theta.shape[-1])), theta.shape[:2], {}
    for name, one in old.data_vars.items():
        array = np.asarray(values[str(name)]).reshape(*shape, *one.shape[2:])
        new[name] = (one.dims, array.astype(one.dtype, copy=False), one.attrs)
    return xr.Dataset(new, coords=old.coords, attrs=old.attrs)


def _single(
    posterior: WeightedPosterior,
    mode: Mode | None,
    draws: Array,
    release: Release,
    rehearsals: Rehearsals | None,
    settings: SamplingSettings,
    rng: np.random.Generator,
    formula: Formula | None,
) -> tuple[Array, xr.Dataset, xr.Dataset | None]:
    """Move draws (sample, p) of a posterior to the calibrated one, or sample it; with record and statistics.

    With rehearsals, standard deviations come from these, and correlations from the formula. Draws that are moved get
    the tails of a t distribution. A likelihood that leaves out hyperparameters is calibrated given these, and its
    product with the prior is sampled.
    """
    center, tilt = draws.mean(axis=0), ReleasedTilt.of(release)
    informed = posterior.in_likelihood(center)
    applied = tilt if tilt is not None and tilt.applies_to(posterior.weights) else None
    if rehearsals is not None:
        if not has_shares_of(posterior.weights, release.weights):
            raise ValueError(
                "rehearsals repeat the release with its own weights, but the model has different weights. Use "
                "reweight(model, release)."
            )
        posterior, applied = posterior.movable(release.synthetic), tilt
    given = posterior if informed.all() else GivenOthers(cast("ModelPosterior", posterior), center, informed)
    moving = mode is not None
    mode = given.mode(center[informed]) if mode is None else mode
    found = None
    if rehearsals is not None:
        found = rehearse_estimates(given.with_weak_prior(), mode, release, rehearsals)
    normal = calibrate_normal(
        LikelihoodTerms.at(given, mode),
        prior=given.prior,
        n_private=release.n_private,
        tilt=applied,
        spread=None if found is None else found.spread if informed.all() else found.normal_spread,
        drawn=Drawn(mode.theta, center[informed], draws.std(axis=0, ddof=1)[informed]),
    )
    if moving or (informed.all() and (found is not None or not normal.prior_directions)):
        judged, statistics, sd = Judged.of(normal), None, np.sqrt(np.diag(normal.likelihood_covariance))
        if found is None:
            [moved] = map_parts([draws], [mode], [normal])
        else:
            [moved] = map_parts([draws], [mode], [replace(normal, marginals={})])
            moved = with_marginals(rehearsed_tails(moved, normal.mean, found, rng), normal.marginals)
    else:
        others = GivenOthers(cast("ModelPosterior", posterior), center, informed)
        near = Hierarchy(others, mode, normal)
        moved, statistics = near.sample(draws, settings, rng)
        judged, sd = near.judged(draws), others.placed(np.sqrt(np.diag(normal.likelihood_covariance)))
        found = None if found is None else near.of_all(found)
    change, unmeasured = Moved.of(draws, moved), None
    if found is not None:
        change = replace(change, own=found.columns(sd, judged.measures))
    if applied is not None and formula is not None:
        how: How = "formula" if found is None else "rehearsals"
        worst = MEASURES["explained"].worst_of(judged.measures["explained"])
        failed = MEASURES["explained"].check(worst, how).verdict == "fail"
        asked = formula() if failed else None
        unmeasured = applied.unmeasured(asked) if asked else None
    record = record_of_single(posterior.names, judged, change, found, release, tilt, applied, unmeasured)
    return moved, record, statistics


def record_of_single(
    names: Sequence[str],
    judged: Judged,
    change: Moved,
    found: Rehearsed | None,
    release: Release,
    tilt: ReleasedTilt | None,
    applied: ReleasedTilt | None,
    unmeasured: str | None,
) -> xr.Dataset:
    """Describe a posterior that was moved or sampled under a single weight draw.

    `found` are its rehearsed estimates, if there are some. `applied` is the tilt, if the formula includes its noise.
    """
    bent = nonquadraticity_check(judged.facts.get("nonquadraticity", NAN))
    if found is not None:
        of_all = [failed_refits_check(found.failed_share), rehearsals_check(found.degrees_of_freedom), bent]
        of_all += [NOTHING_MEASURED] if tilt is None else []
        record = calibration_record(
            names, "rehearsals", judged, change, release, tilt,
            of_all=of_all, unmeasured=unmeasured, more=found.facts | {"unmeasured": unmeasured or ""},
        )  # fmt: skip
        deviations = (("rehearsal", "parameter"), found.deviations)
        return record.assign(deviation=deviations).assign_coords(rehearsal=np.arange(len(found.deviations)))
    if applied is None:
        why = _why_row_sandwich(release, tilt, 1)
        return calibration_record(names, "row sandwich", judged, change, release, tilt, outside=why)
    of_all = [*weight_checks(weight_facts(release, tilt)), bent]
    return calibration_record(names, "tilt", judged, change, release, tilt, of_all=of_all, unmeasured=unmeasured)


def _why_row_sandwich(release: Release, tilt: ReleasedTilt | None, n_draws: int) -> str:
    """Return the reason why intervals leave out the noise of the weights, or a part of it."""
    if n_draws > 1:
        return (
            f"the intervals include the noise of the weights only as far as the {n_draws} weight draws differ because "
            "of it (row sandwich of each, and the variance between them). They leave out shrinkage and the sampling "
            "of the private rows, which all weight draws share, so they may be too narrow. Request a release with "
            "tilt weights."
        )
    own = release.weights
    if tilt is None and own.n_draws == 1:
        why = (
            f"the noise distribution of {own.method} weights is unknown, so intervals may be too narrow. Request a "
            "release with tilt weights."
        )
    else:
        why = (
            "the model's weights are not the released ones, or post-processing changed them, so intervals may be too "
            "narrow. Use reweight(model, release.weights, total=release.n_private)."
        )
    return "the intervals leave out the noise of the weights (row sandwich only): " + why


def _mixed(
    components: Sequence[Component], assignment: ComponentAssignment, release: Release
) -> tuple[Array, xr.Dataset]:
    """Move the draws under each weight draw to the row sandwich of that weight draw, and mix them, (chain, draw, p)."""
    normals = [
        calibrate_normal(
            LikelihoodTerms.at(one.posterior, one.mode), prior=one.posterior.prior, n_private=release.n_private
        )
        for one in components
    ]
    each = [one.draws.theta for one in components]
    flat = [theta.reshape(-1, theta.shape[-1]) for theta in each]
    moved = map_parts(flat, [one.mode for one in components], normals)
    theta = assignment.take([own.reshape(before.shape) for own, before in zip(moved, each, strict=True)])
    between = np.std([normal.mean for normal in normals], axis=0)
    change = Moved.of(assignment.take(each), theta, between)
    drawn = Drawn(np.mean([one.mode.theta for one in components], axis=0), change.mean_before, change.sd_before)
    judged = Judged.worst_of([Judged.of(normal) for normal in normals])
    judged.measures["skew"] = distance(drawn)
    tilt, why = ReleasedTilt.of(release), _why_row_sandwich(release, None, len(normals))
    facts = {"weight_draws": len(normals)}
    names = components[0].posterior.names
    return theta, calibration_record(names, "row sandwich", judged, change, release, tilt, outside=why, more=facts)


def _pooled(
    posterior: WeightedPosterior,
    vectors: Array,
    release: Release,
    settings: SamplingSettings,
    n_each: int,
    rng: np.random.Generator,
    start: Array | None,
    first_run: Callable[[], Array] | None,
) -> tuple[list[Draws], Judged | None]:
    """Draw under each of several weight vectors (draw, row), and judge the pool at the mode under their average.

    If there is no mode, or rows have no scores, it draws around the draws (sample, p) of a first run, if there is one.
    The pool then cannot be judged.
    """
    try:
        at = posterior.mode(start)
        # without the second-order term, because the draws follow the tilt's coefficients to every order
        terms, tilt = replace(LikelihoodTerms.at(posterior, at), gradients_at=None), ReleasedTilt.of(release)
        normal = calibrate_normal(terms, prior=posterior.prior, n_private=release.n_private, tilt=tilt)
        located = posterior.modes(vectors, at.theta)
    except (RuntimeError, ValueError, NotImplementedError):  # NotImplementedError: no second derivatives
        if first_run is None or settings.method == "laplace":
            raise
        sampled = first_run()
        center, precision = sampled.mean(axis=0), np.linalg.inv(np.atleast_2d(np.cov(sampled, rowvar=False)))
        densities = [(posterior.with_weights(own), center, precision) for own in vectors]
        return draw_densities(densities, replace(settings, method="nuts"), n_each, rng, proposals=0), None
    return [one.draws for one in draw_components(located, settings, n_each, rng)], Judged.of(normal)


def pool_record(
    names: Sequence[str],
    draws: Array,
    part: NDArray[np.intp],
    n_parts: int,
    release: Release,
    judged: Judged | None,
    formula: Formula | None = None,
) -> xr.Dataset:
    """Describe a mixture over noise-aware weights: draws (sample, p), and the `part` (sample,) each one belongs to.

    In this record, ``mean_weighted`` and ``mean_calibrated`` are equal. ``sd_weighted`` is the standard deviation
    within weight draws, ``sd_between`` that of the means over weight draws, and ``sd_calibrated`` that of all draws.
    ``misfit_share`` is the share of the sandwich's variance, because the draws do not include the misfit. If nothing
    is `judged`, ``kappa_max`` is an upper bound, and the verdict is "not calibrated".
    """
    tilt, shares = ReleasedTilt.of(release), release.weights.values
    assert tilt is not None  # noqa: S101 - noise-aware weights come from a tilt
    within, between = _spreads(draws, part)
    kept, used = shares > 0, len(np.unique(part))
    rows = TiltPosterior(tilt.features[kept], np.log(shares[kept]), tilt.value, tilt.noise)
    bound = rows.largest_kappa(np.zeros(len(tilt.value)))  # over all parameters of all models
    facts: dict[str, Any] = {"weight_draws": n_parts, "kappa_bound": bound, "weight_draws_used": used}
    if is_noise_aware(release.weights, release):
        with np.errstate(divide="ignore"):
            averaged = Weights(np.log(shares), release.weights.method)
        facts |= {"pareto_k": float(averaged.pareto_k), "ess": float(averaged.ess)}
    of_all = [weight_draws_check(used), *weight_checks(weight_facts(release, tilt) | facts)]
    unmeasured = None
    if judged is None:
        judged, facts["kappa_max"] = Judged.unknown(len(names)), bound
        of_any = replace(MEASURES["kappa"].check(bound, "pool"), name="kappa (at most, of any parameter)")
        of_all = [UNKNOWN_EXPLAINED, of_any, *of_all]
    elif formula is not None and (asked := formula()):
        unmeasured = tilt.unmeasured(asked)
    moved = Moved(draws.mean(axis=0), within, draws, between)
    return calibration_record(
        names, "pool", judged, moved, release, tilt, of_all=of_all, unmeasured=unmeasured, more=facts
    )


def _spreads(draws: Array, part: NDArray[np.intp]) -> tuple[Array, Array]:
    """Return standard deviations within and between parts, by analysis of variance; NaN with one draw per part."""
    labels, number = np.unique(part, return_inverse=True)
    counts = np.bincount(number).astype(np.float64)
    if len(labels) < 2 or len(draws) <= len(labels):
        return np.full(draws.shape[1], NAN), np.full(draws.shape[1], NAN)
    means = np.stack([draws[number == k].mean(axis=0) for k in range(len(labels))])
    within = np.square(draws - means[number]).sum(axis=0) / (len(draws) - len(labels))
    # the means of the parts also vary by chance
    between = means.var(axis=0, ddof=1) - within * np.mean(1 / counts)
    return np.sqrt(within), np.sqrt(np.maximum(between, 0.0))


def map_parts(parts: Sequence[Array], modes: Sequence[Mode], normals: Sequence[CalibratedNormal]) -> list[Array]:
    """Move the draws (sample, p) of each part to the calibrated normal of that part; see `map_draws`.

    A part may have fewer draws than there are parameters. With several parts, the covariance is therefore estimated
    from the draws of all parts together, each in units of the curvature at the mode of its part.
    """
    if len(parts) == 1:
        covariances = [np.atleast_2d(np.cov(parts[0], rowvar=False))]
    else:
        roots = [np.linalg.cholesky(mode.precision) for mode in modes]
        unit = [(draws - mode.theta) @ root for draws, mode, root in zip(parts, modes, roots, strict=True)]
        shape = np.atleast_2d(np.cov(np.concatenate(unit), rowvar=False))
        back = [np.linalg.inv(root) for root in roots]
        covariances = [one.T @ shape @ one for one in back]
    moved = [
        map_draws(draws, mode=mode.theta, covariance=own, target_mean=to.mean, target_covariance=to.covariance)
        for draws, mode, own, to in zip(parts, modes, covariances, normals, strict=True)
    ]
    return [with_marginals(draws, to.marginals) for draws, to in zip(moved, normals, strict=True)]
