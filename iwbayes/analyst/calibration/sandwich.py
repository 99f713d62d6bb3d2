"""Sandwich covariance at the mode of a weighted posterior, with the noise of tilt weights: arrays only.

The calibrated likelihood is ``N(theta_L, J^-1 V J^-1)`` on the directions that the rows inform, with the meat V
(`Meat`) and J = -sum p_i Hessian log f(x_i | theta). The posterior is described by the mode and the curvature of this
likelihood times the prior.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from iwbayes.analyst.calibration.measure import CurvaturesAt, Drawn, Estimates, Influences, Judged, Replayed, Slope
from iwbayes.analyst.calibration.measures import MEASURES
from iwbayes.analyst.calibration.meat import GradientsAt, Meat, second_order_covariance
from iwbayes.analyst.calibration.score_marginals import OF_FORMULA, OF_REPEATED_NOISE, ScoreEquation, ScoreMarginal
from iwbayes.analyst.inference.weighted_posterior import DEFINITE, Mode, WeightedScores
from iwbayes.analyst.released_tilt import ReleasedTilt
from iwbayes.utils.arrays import Array, symmetric
from iwbayes.utils.threads import one_blas_thread

Prior = Callable[[Array], tuple[Array, Array]]

#: Directions in which scores vary less than this, in units of the posterior precision, count as informed by the prior
#: alone.
SCORE_CUT = 1e-10


@dataclass(frozen=True, eq=False)
class LikelihoodTerms:
    """Derivatives of the rows' log likelihood at the mode of the weighted posterior, in unconstrained space."""

    theta: Array  # (p,), the mode
    scores: Array  # (row, p), gradient of each row's unweighted log likelihood
    curvature: Array  # (p, p), J = -sum p_i Hessian log f(x_i | theta): of the weighted mean, not of the sum
    shares: Array  # (row,), p_i = w_i / sum w; other non-negative weights are scaled
    gradients_at: GradientsAt | None = None  # enables the second-order term in the noise of the moments
    scores_at: Callable[[Array], Array] | None = None  # scores at other theta; enables marginals by the score equation
    curvatures: CurvaturesAt | None = None  # enables `curvature_error`

    @classmethod
    def at(cls, posterior: WeightedScores, mode: Mode) -> LikelihoodTerms:
        """Evaluate them for a posterior at its mode."""
        theta, total = mode.theta, posterior.weights.sum()
        return cls(
            theta, posterior.scores(theta), mode.curvature / total, posterior.weights / total,
            posterior.gradients_at, posterior.scores, partial(posterior.curvatures, theta),
        )  # fmt: skip

    def __post_init__(self) -> None:
        """Check shapes and values, and scale the shares."""
        for name in ("theta", "scores", "curvature", "shares"):
            array = np.asarray(getattr(self, name), dtype=np.float64)
            if not np.isfinite(array).all():
                raise ValueError(f"{name} must be finite. Check the model's density at its mode.")
            object.__setattr__(self, name, array)
        p, m = self.theta.size, self.shares.size
        found = (self.theta.shape, self.scores.shape, self.curvature.shape, self.shares.shape)
        if found != ((p,), (m, p), (p, p), (m,)):
            raise ValueError(
                "theta, scores, curvature and shares must have shapes (p,), (row, p), (p, p) and (row,); "
                f"got {', '.join(map(str, found))}."
            )
        total = self.shares.sum()
        if (self.shares < 0).any() or total <= 0:
            raise ValueError("shares must not be negative and must have a positive sum. Pass weights, not their logs.")
        object.__setattr__(self, "shares", self.shares / total)


@dataclass(frozen=True, eq=False, kw_only=True)
class CalibratedNormal(Judged):
    """Normal approximation of the calibrated posterior, in unconstrained space, and what it is judged by.

    `facts` are those of `facts_of_fit`, ``misfit`` (see `Misfit`), and the numbers of ``cut_directions`` of phi, where
    the weighted rows hardly vary, and of ``prior_directions`` of theta, in which no row's score varies.
    """

    mode: Array  # (p,), of the weighted posterior, where the terms were evaluated
    mean: Array  # (p,), mode of calibrated likelihood times prior
    covariance: Array  # (p, p), the inverse curvature there
    #: ``theta_L`` (p,) and ``Sigma_L = J^-1 V J^-1`` on the directions that the rows inform. Along the others the
    #: covariance is infinite, and zero is stored.
    likelihood_mean: Array
    likelihood_covariance: Array
    uncalibrated_covariance: Array  # (n_private J + prior precision)^-1: that of the weighted posterior alone
    #: Distributions, by the score equation, of the parameters that are far from normal.
    marginals: Mapping[int, ScoreMarginal] = field(default_factory=dict)

    @property
    def likelihood_precision(self) -> Array:
        """Inverse of `likelihood_covariance` on the directions that the rows inform, zero along the others, (p, p)."""
        root = np.linalg.cholesky(self.uncalibrated_covariance)
        whitened = np.linalg.solve(root, np.linalg.solve(root, self.likelihood_covariance).T)
        values, vectors = np.linalg.eigh(symmetric(whitened))
        informed = slice(self.facts["prior_directions"], None)
        back = np.linalg.solve(root.T, vectors[:, informed])
        # a variance of zero means that a parameter is known exactly, as in `_posterior`
        return symmetric((back / np.maximum(values[informed], 1e-14 * values[-1])) @ back.T)


class Spread(NamedTuple):
    """What rehearsals show of estimates."""

    variance: Array  # (p,), about the truth
    misfit: float  # of the rows, which no rehearsal shows; it must be added
    coverage: Array  # (p,), of the formula, see `Replayed`


def calibrate_normal(
    terms: LikelihoodTerms,
    *,
    prior: Prior,
    n_private: float,
    tilt: ReleasedTilt | None = None,
    spread: Spread | None = None,
    drawn: Drawn | None = None,
) -> CalibratedNormal:
    """Calibrate the likelihood of a weighted posterior and return the normal approximation with its prior.

    Theory: docs/theory.md#the-sandwich-with-the-noise-in-it.

    ``prior`` maps theta (p,) to the gradient (p,) and Hessian (p, p) of the log prior. Without a tilt the result is the
    row sandwich, which leaves out the noise of the weights. With a ``spread``, standard deviations come from rehearsals
    and correlations from the formula, because a few dozen rehearsals cannot estimate a covariance of many parameters.
    ``drawn`` describes draws from the weighted posterior, for measures that compare them with the mode.

    The result is equivariant under linear reparametrisation. One Newton step leads from the mode to the maximum of the
    likelihood. If noise is too large for a formula that is linear in the moments, the second-order term is added to V,
    with `gradients_at`, and parameters that are far from normal get `marginals`, with `scores_at`.
    """
    if not n_private > 0:
        raise ValueError(f"n_private must be positive; got {n_private!r}.")
    with one_blas_thread():
        theta, scores, shares = terms.theta, terms.scores, terms.shares
        meat = Meat.of(scores, shares, tilt, n_private)
        information, moments = meat.scores.information, meat.tilt
        precision = symmetric(n_private * terms.curvature - prior(theta)[1])
        basis, n_prior, inner = _directions(precision, terms.curvature, information, n_private)
        informed = basis[:, n_prior:]
        half = np.linalg.solve(inner, informed.T)
        bread = informed @ half  # J^-1 when n_prior = 0
        unknown = np.full(len(theta), np.nan)
        bias = meat.bias(scores, shares, bread)
        of_scores = terms.curvature @ bias
        meat = replace(meat, misfit_meat=meat.misfit_meat + np.outer(of_scores, of_scores))
        if tilt is not None and moments is not None and terms.gradients_at is not None:
            of_estimates = second_order_covariance(
                theta, scores, shares, tilt.features, moments, terms.gradients_at, n_private=n_private,
                basis=informed, inner=inner, covariance=half @ meat.total @ half.T,
            )  # fmt: skip
            outward = terms.curvature @ informed  # maps a covariance of estimates to one of scores
            meat = replace(meat, second_order_meat=outward @ of_estimates @ outward.T)
        model = np.asarray(np.linalg.inv(precision), dtype=np.float64)
        excess = model @ (n_private * (information - terms.curvature)) @ model
        at = Estimates(
            scores=scores, bread=bread, shares=shares, meat=meat, tilt=tilt, n_private=n_private,
            slope=Slope(bread, scores, information, terms.curvatures), influences=Influences.of(meat, bread),
            drawn=drawn, score_ratio=unknown, model_variance=np.diag(model), model_excess=np.diag(excess),
        )  # fmt: skip
        of_formula = meat
        if spread is not None:
            meat, replayed = _rehearsed(meat, bread, terms.curvature, spread, bias)
            at = replace(at, replayed=replayed)
        mean, posterior = _posterior(prior, theta, basis, n_prior, inner, meat.total, shares @ scores)
        marginals: Mapping[int, ScoreMarginal] = {}
        measures = {name: one.of(at) for name, one in MEASURES.items()}
        if tilt is not None and terms.scores_at is not None:
            equation = ScoreEquation(
                scores, terms.scores_at, prior, shares, tilt, of_formula, terms.curvature, precision, n_private
            )
            varying = np.diag(bread @ information @ bread) > 0
            # Scores away from the mode are known if the tilt measured products of columns, not scores at some mode.
            # Draws under many weight draws follow the noise of the curvature and of the second order already.
            known = tilt.columns is None and terms.gradients_at is not None and spread is None
            tested = measures["curvature_error"] if known else unknown
            # rehearsals and draws under many weight draws repeat the noise of a count
            few = OF_FORMULA if spread is None and terms.gradients_at is not None else OF_REPEATED_NOISE
            measures["score_ratio"], marginals = equation.marginals(mean, posterior, varying, tested, few)
    facts = facts_of_fit(bread, meat) | {"prior_directions": n_prior}
    return CalibratedNormal(
        measures=measures, facts=facts, influences=Influences.of(meat, bread), marginals=marginals,
        mode=theta, mean=mean, covariance=posterior, uncalibrated_covariance=model,
        likelihood_mean=theta + bread @ (shares @ scores),
        likelihood_covariance=symmetric(bread @ meat.total @ bread),
    )  # fmt: skip


def facts_of_fit(bread: Array, meat: Meat) -> dict[str, Any]:
    """Return facts of the whole fit from J^-1 and the meat; those of the tilt are NaN or zero without one.

    ``kappa0 = sqrt(tr(H^+ Sigma_zeta))`` is the root mean square noise of a log weight. So many rows of equal weight as
    ``likelihood_ess = tr(J^-1 sum p_i s_i s_i') / tr(J^-1 sum p_i^2 s_i s_i')`` would give the mean score the same
    variance. It is a trace form of Ghalebikesabi et al. 2022, B.5.1.

    Theory: docs/theory.md#kappa-and-what-explained-means. Theory: docs/theory.md#pareto-k-and-effective-sample-sizes.
    """
    tilt, scores = meat.tilt, meat.scores
    return {
        "kappa0": np.nan if tilt is None else float(np.sqrt(np.sum(np.diag(tilt.noise) / tilt.h))),
        "misfit": meat.misfit.value,
        "likelihood_ess": float(np.sum(bread * scores.information) / np.sum(bread * scores.squared)),
        "cut_directions": 0 if tilt is None else len(tilt.center) - tilt.h.size,
    }


def _rehearsed(meat: Meat, bread: Array, curvature: Array, spread: Spread, bias: Array) -> tuple[Meat, Replayed]:
    """Return the meat with the standard deviations of rehearsals, and the parts of these."""
    formula = bread @ meat.total @ bread
    unmeasured = meat.scores.information if meat.tilt is None else meat.tilt.unspanned(meat.scores.information)
    tails = meat.misfit.beyond * (bread @ meat.scores.beyond)
    missed = spread.misfit * np.diag(bread @ unmeasured @ bread) + np.square(bias) + np.square(tails)
    own, wanted = np.diag(formula), spread.variance + missed
    scale = np.sqrt(np.divide(wanted, own, out=np.ones_like(own), where=(own > 0) & np.isfinite(wanted)))
    beyond = curvature @ (formula * np.outer(scale, scale) - formula) @ curvature
    parts = Replayed(own, spread.variance, missed, spread.coverage)
    return replace(meat, rehearsed_meat=symmetric(beyond)), parts


def _directions(precision: Array, curvature: Array, information: Array, n: float) -> tuple[Array, int, Array]:
    """Return T (p, p), how many of its first columns no row's score informs, and J in the others.

    T whitens the weighted posterior's precision and is rotated to the eigenvectors of the scores' information.
    """
    scale = np.sqrt(np.maximum(np.diag(precision), 0.0))
    scale[scale == 0] = 1.0  # a diagonal entry that is not positive appears in the eigenvalues
    values = np.linalg.eigvalsh(precision / np.outer(scale, scale))
    if not values[0] > DEFINITE * values[-1]:
        raise ValueError(
            "the curvature of the weighted log likelihood plus that of the prior must be positive definite at the "
            f"mode; its smallest eigenvalue, on a unit diagonal, is {values[0]:.1e}. Drop collinear or redundant "
            "terms, or give them proper priors."
        )
    whiten = np.linalg.inv(np.linalg.cholesky(precision)).T
    informed, vectors = np.linalg.eigh(symmetric(n * whiten.T @ information @ whiten))
    if not informed[-1] > SCORE_CUT:
        raise ValueError("the scores must vary over the weighted rows. Check the weights and the observed values.")
    basis, n_prior = whiten @ vectors, int((informed <= SCORE_CUT).sum())
    inner = symmetric(basis[:, n_prior:].T @ curvature @ basis[:, n_prior:])
    values = np.linalg.eigvalsh(inner)
    if not values[0] > DEFINITE * abs(values[-1]):
        raise ValueError(
            "the curvature of the weighted log likelihood must be positive definite in the directions that the rows "
            f"inform; its smallest relative eigenvalue is {values[0] / abs(values[-1]):.1e}. The mode is at an edge or "
            "in a flat part of the likelihood. Use tighter priors or a centred parametrisation (in Bambi, "
            "noncentered=False, or hsgp(..., centered=True))."
        )
    return basis, n_prior, inner


def _posterior(
    prior: Prior, origin: Array, basis: Array, n_prior: int, inner: Array, meat: Array, mean_score: Array
) -> tuple[Array, Array]:
    """Maximise calibrated likelihood times prior by a damped Newton method in v, with theta = origin + basis v."""
    informed = basis[:, n_prior:]
    half = np.linalg.solve(inner, informed.T)
    values, vectors = np.linalg.eigh(symmetric(half @ meat @ half.T))
    if not values[-1] > 0:
        raise ValueError("the weighted scores must have a positive variance. Check the weights and the noise.")
    center, likelihood = np.zeros(len(basis)), np.zeros_like(basis)
    center[n_prior:] = half @ mean_score
    # a variance of zero means that a parameter is known exactly: use a floor far below any posterior variance
    likelihood[n_prior:, n_prior:] = (vectors / np.maximum(values, 1e-14 * values[-1])) @ vectors.T

    def derivatives(v: Array) -> tuple[Array, Array]:
        gradient, hessian = prior(origin + basis @ v)
        return (
            basis.T @ np.asarray(gradient) - likelihood @ (v - center),
            likelihood - basis.T @ symmetric(hessian) @ basis,
        )

    v, curvature = _newton(derivatives, np.zeros(len(basis)))
    values, vectors = np.linalg.eigh(symmetric(curvature))
    if not values[0] > 1e-14 * values[-1]:
        raise ValueError(
            "the calibrated posterior must be concave at its mode; the smallest relative eigenvalue of its precision "
            f"is {values[0] / values[-1]:.1e}. Give proper priors to the parameters that the rows do not inform."
        )
    axes = basis @ vectors
    return origin + basis @ v, symmetric((axes / values) @ axes.T)


def _newton(derivatives: Callable[[Array], tuple[Array, Array]], v: Array) -> tuple[Array, Array]:
    """Find a zero of the gradient uphill, where steps do not end in a steep fall; also return minus the Hessian."""
    gradient, curvature = derivatives(v)
    for _ in range(200):
        values, vectors = np.linalg.eigh(symmetric(curvature))
        size = np.maximum(np.abs(values), 1e-14 * np.abs(values).max())
        step = vectors @ ((vectors.T @ gradient) / size)
        slope = gradient @ step  # squared Newton decrement: squared distance to the mode in standard deviations
        if slope < 1e-16:
            return v, curvature
        for halvings in range(60):
            new = v + step * 0.5**halvings
            try:
                gradient, curvature = derivatives(new)
            except ValueError:  # PyMC's densities reject parameters at an edge, such as a scale that underflows
                continue
            finite = np.isfinite(gradient).all() and np.isfinite(curvature).all()
            if finite and gradient @ step >= -0.5 * slope:
                v = new
                break
        else:
            break
    raise RuntimeError(
        "the mode of the calibrated posterior was not found. Check the gradient and the Hessian of the prior, or use "
        "tighter priors for the parameters that the rows hardly inform."
    )
