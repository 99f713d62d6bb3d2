"""One way to a calibrated posterior: from a weighted posterior and a release to draws, their record and statistics."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from iwbayes.analyst.arguments import check_enough_draws, check_pool_total
from iwbayes.analyst.calibration.from_rehearsals import Rehearsed, rehearse_estimates
from iwbayes.analyst.calibration.hierarchical import GivenOthers, sample_with_prior
from iwbayes.analyst.calibration.measure import Drawn, How, Judged
from iwbayes.analyst.calibration.measures import MEASURES
from iwbayes.analyst.calibration.measures.skew import distance
from iwbayes.analyst.calibration.record import (
    calibration_record,
    columns_of_draws,
    mark_uncalibrated,
    verdict_attributes,
    warn_outside_domain,
)
from iwbayes.analyst.calibration.sandwich import CalibratedNormal, LikelihoodTerms, calibrate_normal
from iwbayes.analyst.calibration.score_marginals import with_marginals
from iwbayes.analyst.calibration.verdict import (
    NOTHING_MEASURED,
    TO_SCORES,
    UNKNOWN_EXPLAINED,
    check_of_fit,
    model_checks,
    weight_checks,
    weight_facts,
)
from iwbayes.analyst.fit_record import weights_digest
from iwbayes.analyst.inference.nuts import SamplingSettings
from iwbayes.analyst.inference.tilt_posterior import TiltPosterior
from iwbayes.analyst.inference.weight_draws import (
    ComponentAssignment,
    Draws,
    draw_components,
    draw_densities,
    draws_near,
    sample_statistics,
)
from iwbayes.analyst.inference.weighted_posterior import Mode, WeightedPosterior, map_draws
from iwbayes.analyst.released_tilt import ReleasedTilt, has_shares_of, is_noise_aware
from iwbayes.release import Release
from iwbayes.release.rehearsals import Rehearsals
from iwbayes.release.weights import Weights
from iwbayes.utils.arrays import Array

if TYPE_CHECKING:
    from iwbayes.analyst.inference.model_posterior import ModelPosterior

#: The formula of a regression, if the model is one: it names the terms that a release did not measure.
Formula = Callable[[], str | None]
#: Facts of a pool whose model has no mode or scores.
_UNKNOWN_FACTS = dict.fromkeys(("kappa0", "misfit", "likelihood_ess"), np.nan)
_UNKNOWN_FACTS |= dict.fromkeys(("cut_directions", "prior_directions"), -1)


class Calibrated(NamedTuple):
    """Draws with their record and statistics."""

    theta: Array  # (chain, draw, p)
    record: xr.Dataset | None  # None if they are not calibrated
    statistics: xr.Dataset | None = None  # of sampling; None if draws of the weighted posterior were moved
    method: str = ""  # of sampling


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

    Theory: docs/theory.md#why-plug-in-weights-give-intervals-that-are-too-narrow.
    """
    weights = release.weights if weights is None else weights
    several = how == "pool" or (
        weights.n_draws > 1 and has_shares_of(posterior.weights, weights) and how != "rehearsals"
    )
    if how == "pool":
        check_pool_total(float(posterior.weights.sum()), release.n_private)
    elif how != "none":
        check_enough_draws(settings.chains * settings.draws, len(posterior.names))
    shape = (settings.chains, settings.draws, len(posterior.names))
    if sampled is not None and not several:
        if how == "none":
            return Calibrated(sampled.reshape(shape), None)
        moved, of_one, statistics = _single(posterior, None, sampled, release, rehearsals, settings, rng, formula)
        return Calibrated(moved.reshape(shape), of_one, statistics)
    vectors = weights.draw_values if several else posterior.weights[None]
    vectors = vectors * (posterior.weights.sum() / vectors.sum(axis=1, keepdims=True))
    assignment = ComponentAssignment.random(len(vectors), settings.chains, settings.draws, rng)
    start = None if sampled is None else sampled.mean(axis=0)
    record: xr.Dataset | None = None
    if how == "pool":
        tilt = ReleasedTilt.of(release)
        first = first_run if sampled is None else lambda: sampled
        each, judged = _pooled(posterior, vectors, release, tilt, settings, assignment.n_each, rng, start, first)
        theta = assignment.take([one.theta for one in each])
        described = posterior.names, theta, assignment.part, len(vectors), release, tilt, judged, formula
        record = pool_record(*described, posterior.facts)
    elif several and how == "none":
        each = _under_each(posterior, vectors, settings, assignment.n_each, rng, posterior.mode(start))()
        theta = assignment.take([one.theta for one in each])
    else:
        start = posterior.mode(start).theta if several and start is not None else start
        located = posterior.modes(vectors, start)
        each = draw_components(located, settings, assignment.n_each, rng)
        theta = assignment.take([one.theta for one in each])
        if several:
            theta, record = _mixed(located, each, assignment, release)
        elif how != "none":
            flat = theta.reshape(-1, len(posterior.names))
            theta, record, _ = _single(*located[0], flat, release, rehearsals, settings, rng, formula)
    method = "+".join(sorted({one.method for one in each}))
    return Calibrated(theta.reshape(shape), record, sample_statistics(each, assignment), method)


def groups_of(
    dataset: xr.Dataset,
    found: Calibrated,
    release: Release,
    posterior: WeightedPosterior | None,
    weights: Weights | None = None,
) -> dict[str, xr.Dataset]:
    """Return the groups of a result, and warn: the posterior with marks and digests, statistics and the record.

    `dataset` has the draws of the `posterior`, which is None for a pool without one.
    """
    weights, record = release.weights if weights is None else weights, found.record
    pooled = record is not None and record.attrs["method"] == "pool"
    used = pooled or posterior is None or has_shares_of(posterior.weights, weights)
    digest = weights_digest(weights) if used else ""
    digests = {"release_digest": weights_digest(release.weights), "weights_digest": digest}
    groups = {"posterior": dataset.assign_attrs(verdict_attributes(record) | digests)}
    if found.statistics is not None:
        groups["sample_stats"] = found.statistics
    if record is not None:
        made_of = None
        if posterior is not None and posterior.deterministics and not record["calibrated"].all():
            made_of = posterior.made_of(found.theta.reshape(-1, len(posterior.names)))
        groups["posterior"] = mark_uncalibrated(groups["posterior"], record, made_of)
        groups["calibration"] = record.drop_vars("influence", errors="ignore")
        if "influence" in record:
            groups["influence"] = record[["influence"]].drop_attrs()
        warn_outside_domain(record)
    return groups


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

    A likelihood that leaves out hyperparameters is calibrated given these, and its product with the prior is sampled.
    """
    center, sd, tilt = draws.mean(axis=0), draws.std(axis=0, ddof=1), ReleasedTilt.of(release)
    applied = tilt if tilt is not None and tilt.applies_to(posterior.weights) else None
    if rehearsals is not None:
        if not has_shares_of(posterior.weights, release.weights):
            raise ValueError(
                "rehearsals repeat the release with its own weights, but the model has different weights. Use "
                "reweight(model, release)."
            )
        posterior, applied = posterior.movable(release.synthetic), tilt
    informed = posterior.in_likelihood(center)
    others = None if informed.all() else GivenOthers(cast("ModelPosterior", posterior), center, informed)
    given = posterior if others is None else others
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
        spread=None if found is None else found.spread(normal=not informed.all()),
        drawn=Drawn(mode.theta, center[informed], sd[informed]),
    )
    judged: Judged = normal
    statistics, of_estimates = None, np.sqrt(np.diag(normal.likelihood_covariance))
    if moving or (informed.all() and (found is not None or not normal.facts["prior_directions"])):
        own = np.atleast_2d(np.cov(draws, rowvar=False))
        moved = map_draws(draws, mode.theta, own, normal.mean, normal.covariance)
        if found is not None:  # tails of a t distribution
            nu = found.degrees_of_freedom
            moved = normal.mean + (moved - normal.mean) * np.sqrt(nu / rng.chisquare(nu, len(moved)))[:, None]
        moved = with_marginals(moved, normal.marginals)
    else:
        others = others or GivenOthers(cast("ModelPosterior", posterior), center, informed)
        moved, statistics, judged = sample_with_prior(others, mode, normal, draws, settings, rng)
        of_estimates = others.placed(of_estimates)
        if found is not None:
            found = Rehearsed(others.placed(found.deviations), others.placed(found.formula_sd), found.misfit)
    columns = columns_of_draws(center, sd, moved)
    if found is not None:
        ratio, covered = (judged.measures[name] for name in ("length_ratio", "rehearsed_coverage"))
        se = np.sqrt(covered * (1 - covered) / len(found.deviations))
        columns |= {"sd_rehearsed": of_estimates, "sd_formula": of_estimates / ratio, "rehearsed_coverage_se": se}
    unmeasured = None
    if applied is not None and formula is not None:
        how: How = "formula" if found is None else "rehearsals"
        worst = MEASURES["explained"].worst_of(judged.measures["explained"])
        failed = MEASURES["explained"].check(worst, how).verdict == "fail"
        asked = formula() if failed else None
        unmeasured = applied.unmeasured(asked) if asked else None
    record = record_of_single(
        posterior.names, judged, columns, found, release, tilt, applied, unmeasured, posterior.facts
    )
    return moved, record, statistics


def record_of_single(
    names: Sequence[str],
    judged: Judged,
    columns: dict[str, Array],
    found: Rehearsed | None,
    release: Release,
    tilt: ReleasedTilt | None,
    applied: ReleasedTilt | None,
    unmeasured: str | None,
    about: Mapping[str, Any] = MappingProxyType({}),
) -> xr.Dataset:
    """Describe a posterior under a single weight draw.

    `applied` is the tilt, if the formula includes its noise; `about` has the facts of the model.
    """
    bent = check_of_fit("nonquadraticity", judged.facts.get("nonquadraticity", np.nan))
    facts, doubts = weight_facts(release, tilt) | dict(about), model_checks(about)
    if found is not None:
        refits = check_of_fit("failed_refits", found.failed_share)
        of_all = [refits, check_of_fit("rehearsals", found.degrees_of_freedom), bent, *doubts]
        of_all += [NOTHING_MEASURED] if tilt is None else []
        facts |= {
            "n_rehearsals": len(found.deviations),
            "failed_refits": found.failed_share,
            "unrehearsed_misfit": found.misfit,
            "unmeasured": unmeasured or "",
        }
        record = calibration_record(names, "rehearsals", judged, columns, facts, of_all=of_all, unmeasured=unmeasured)
        deviations = (("rehearsal", "parameter"), found.deviations)
        return record.assign(deviation=deviations).assign_coords(rehearsal=np.arange(len(found.deviations)))
    if applied is not None:
        of_all = [*weight_checks(facts), bent, *doubts]
        method = TO_SCORES if applied.of_scores else "tilt"
        return calibration_record(names, method, judged, columns, facts, of_all=of_all, unmeasured=unmeasured)
    why, remedy = (
        "the model's weights are not the released ones, or post-processing changed them",
        "Use reweight(model, release.weights, total=release.n_private).",
    )
    if tilt is None and release.weights.n_draws == 1:
        why = f"the noise distribution of {release.weights.method} weights is unknown"
        remedy = "Request a release with tilt weights."
    outside = (
        f"the intervals leave out the noise of the weights (row sandwich only): {why}, so intervals may be too narrow. "
        f"{remedy}"
    )
    return calibration_record(names, "row sandwich", judged, columns, facts, outside=outside)


def _mixed(
    located: Sequence[tuple[WeightedPosterior, Mode]],
    draws: Sequence[Draws],
    assignment: ComponentAssignment,
    release: Release,
) -> tuple[Array, xr.Dataset]:
    """Move the draws under each weight draw to the row sandwich of that weight draw, and mix them, (chain, draw, p)."""
    normals = [
        calibrate_normal(LikelihoodTerms.at(own, mode), prior=own.prior, n_private=release.n_private)
        for own, mode in located
    ]
    names, modes, each = located[0][0].names, [mode for _, mode in located], [one.theta for one in draws]
    moved = map_parts([theta.reshape(-1, len(names)) for theta in each], modes, normals)
    theta = assignment.take([own.reshape(before.shape) for own, before in zip(moved, each, strict=True)])
    before = assignment.take(each).reshape(-1, len(names))
    center, sd = before.mean(axis=0), before.std(axis=0, ddof=1)
    measures = {}
    for name, measure in MEASURES.items():
        values = np.stack([one.measures[name] for one in normals])
        measures[name] = values.max(axis=0) if measure.worst == "largest" else values.min(axis=0)
    measures["skew"] = distance(Drawn(np.mean([mode.theta for mode in modes], axis=0), center, sd))
    facts = {name: max(one.facts[name] for one in normals) for name in normals[0].facts}
    facts["likelihood_ess"] = min(one.facts["likelihood_ess"] for one in normals)
    columns = columns_of_draws(center, sd, theta, np.std([normal.mean for normal in normals], axis=0))
    of_weights = weight_facts(release, ReleasedTilt.of(release)) | {"weight_draws": len(normals)}
    why = (
        f"the intervals include the noise of the weights only as far as the {len(normals)} weight draws differ because "
        "of it (row sandwich of each, and the variance between them). They leave out shrinkage and the sampling of the "
        "private rows, which all weight draws share, so they may be too narrow. Request a release with tilt weights."
    )
    judged = Judged(measures=measures, facts=facts)
    return theta, calibration_record(names, "row sandwich", judged, columns, of_weights, outside=why)


def _pooled(
    posterior: WeightedPosterior,
    vectors: Array,
    release: Release,
    tilt: ReleasedTilt | None,
    settings: SamplingSettings,
    n_each: int,
    rng: np.random.Generator,
    start: Array | None,
    first_run: Callable[[], Array] | None,
) -> tuple[list[Draws], Judged | None]:
    """Draw under each of several weight vectors (draw, row), and judge the pool at the mode under their average.

    Without a mode or scores of rows, it draws around the draws (sample, p) of a first run, and the pool is not judged.
    """
    try:
        at = posterior.mode(start)
        # without the second-order term, because the draws follow the tilt's coefficients to every order
        terms = replace(LikelihoodTerms.at(posterior, at), gradients_at=None)
        normal = calibrate_normal(terms, prior=posterior.prior, n_private=release.n_private, tilt=tilt)
        draw = _under_each(posterior, vectors, settings, n_each, rng, at)
    except (RuntimeError, ValueError, NotImplementedError):  # NotImplementedError: no second derivatives
        if first_run is None or settings.method == "laplace":
            raise
        sampled = first_run()
        check_enough_draws(*sampled.shape)
        center, precision = sampled.mean(axis=0), np.linalg.inv(np.atleast_2d(np.cov(sampled, rowvar=False)))
        densities = [(posterior.with_weights(own), center, precision) for own in vectors]
        return draw_densities(densities, replace(settings, method="nuts"), n_each, rng, proposals=0), None
    return draw(), normal


def _under_each(
    posterior: WeightedPosterior,
    vectors: Array,
    settings: SamplingSettings,
    n_each: int,
    rng: np.random.Generator,
    at: Mode,
) -> Callable[[], list[Draws]]:
    """Find the modes that are needed to draw under several weight vectors (draw, row), and return how to draw.

    `at` is the mode under the posterior's own weights. Errors of the search for modes come here, those of sampling with
    the draws.
    """
    found = draws_near(posterior, vectors, at, settings, n_each, rng)
    left = [index for index in range(len(vectors)) if index not in found]
    located = posterior.modes(vectors[left], at.theta, left) if left else []

    def draw() -> list[Draws]:
        rest = dict(zip(left, draw_components(located, settings, n_each, rng, left), strict=True))
        return [(found | rest)[index] for index in range(len(vectors))]

    return draw


def pool_record(
    names: Sequence[str],
    draws: Array,
    part: NDArray[np.intp],
    n_parts: int,
    release: Release,
    tilt: ReleasedTilt | None,
    judged: Judged | None,
    formula: Formula | None = None,
    about: Mapping[str, Any] = MappingProxyType({}),
) -> xr.Dataset:
    """Describe a mixture over noise-aware weights: draws (..., p), and the `part` (...) each one belongs to.

    In this record, ``sd_weighted`` is the standard deviation within weight draws, and ``sd_calibrated`` that of all
    draws. ``misfit_share`` is the share of the sandwich's variance, because the draws do not include the misfit. If
    nothing is `judged`, ``kappa_max`` is an upper bound, and the verdict is "not calibrated".
    """
    shares, draws, part = release.weights.values, draws.reshape(-1, len(names)), part.ravel()
    assert tilt is not None  # noqa: S101 - noise-aware weights come from a tilt
    within, between = _spreads(draws, part)
    kept, used = shares > 0, len(np.unique(part))
    rows = TiltPosterior(tilt.features[kept], np.log(shares[kept]), tilt.mean, tilt.error)
    bound = rows.largest_kappa(np.zeros(len(tilt.value)))  # over all parameters of all models
    facts: dict[str, Any] = weight_facts(release, tilt) | dict(about)
    facts |= {"weight_draws": n_parts, "kappa_bound": bound, "weight_draws_used": used}
    if is_noise_aware(release.weights, release):
        with np.errstate(divide="ignore"):
            averaged = Weights(np.log(shares), release.weights.method)
        facts |= {"pareto_k": float(averaged.pareto_k), "ess": float(averaged.ess)}
    of_all = [check_of_fit("weight_draws", used), *weight_checks(facts), *model_checks(about)]
    unmeasured = None
    if judged is None:
        judged = Judged(measures={name: np.full(len(names), np.nan) for name in MEASURES}, facts=_UNKNOWN_FACTS)
        facts["kappa_max"] = bound
        of_any = replace(MEASURES["kappa"].check(bound, "pool"), name="kappa (at most, of any parameter)")
        of_all = [UNKNOWN_EXPLAINED, of_any, *of_all]
    elif formula is not None and (asked := formula()):
        unmeasured = tilt.unmeasured(asked)
    columns = columns_of_draws(draws.mean(axis=0), within, draws, between)
    return calibration_record(names, "pool", judged, columns, facts, of_all=of_all, unmeasured=unmeasured)


def _spreads(draws: Array, part: NDArray[np.intp]) -> tuple[Array, Array]:
    """Return standard deviations within and between parts, by analysis of variance; NaN with one draw per part."""
    labels, number = np.unique(part, return_inverse=True)
    counts = np.bincount(number).astype(np.float64)
    if len(labels) < 2 or len(draws) <= len(labels):
        return np.full(draws.shape[1], np.nan), np.full(draws.shape[1], np.nan)
    means = np.stack([draws[number == k].mean(axis=0) for k in range(len(labels))])
    within = np.square(draws - means[number]).sum(axis=0) / (len(draws) - len(labels))
    # the means of the parts also vary by chance
    between = means.var(axis=0, ddof=1) - within * np.mean(1 / counts)
    return np.sqrt(within), np.sqrt(np.maximum(between, 0.0))


def map_parts(parts: Sequence[Array], modes: Sequence[Mode], normals: Sequence[CalibratedNormal]) -> list[Array]:
    """Move the draws (sample, p) of each of several parts to the calibrated normal of that part.

    Their covariance is estimated from all parts together, each in units of the curvature at its mode, because a part
    may have fewer draws than there are parameters.
    """
    roots = [np.linalg.cholesky(mode.precision) for mode in modes]
    unit = [(draws - mode.theta) @ root for draws, mode, root in zip(parts, modes, roots, strict=True)]
    shape = np.atleast_2d(np.cov(np.concatenate(unit), rowvar=False))
    found = []
    for draws, mode, root, to in zip(parts, modes, roots, normals, strict=True):
        one = np.linalg.inv(root)
        moved = map_draws(draws, mode.theta, one.T @ shape @ one, to.mean, to.covariance)
        found.append(with_marginals(moved, to.marginals))
    return found
