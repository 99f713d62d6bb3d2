"""fit(): a calibrated posterior from a formula and a release in one call."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version
from typing import Any, Literal, get_args

import numpy as np

from iwbayes.analyst import arviz_compat
from iwbayes.analyst.arguments import Method, check_release, check_sampling
from iwbayes.analyst.calibration.calibrated import calibrated, groups_of
from iwbayes.analyst.calibration.noise_aware import noise_aware_weights
from iwbayes.analyst.fit_record import recorded_weights
from iwbayes.analyst.inference.nuts import SamplingSettings
from iwbayes.analyst.inference.weighted_posterior import posterior_dataset
from iwbayes.analyst.regression.built_regression import BuiltRegression
from iwbayes.analyst.regression.regression_posterior import RegressionProblem
from iwbayes.analyst.released_tilt import is_noise_aware
from iwbayes.models.design import build_design
from iwbayes.models.families import Family, FamilyName
from iwbayes.release import Release
from iwbayes.release.rehearsals import Rehearsals
from iwbayes.tables.released_columns import warn_of_rare_references
from iwbayes.utils import checks

#: With log_likelihood="auto", both log likelihood groups are stored if together they need at most this many bytes.
LOG_LIKELIHOOD_LIMIT = 256 * 2**20
#: How `fit` accounts for the noise in the weights.
Calibration = Literal["auto", "formula", "rehearsals", "pool", "none"]


def fit(
    formula: str,
    release: Release,
    *,
    family: FamilyName | Family | None = None,
    method: Method = "auto",
    priors: Mapping[str, Any] | None = None,
    calibrate: Calibration = "auto",
    rehearsals: Rehearsals | None = None,
    design_weight: str | None = None,
    draws: int = 1000,
    chains: int = 4,
    random_seed: int | np.random.Generator | None = None,
    log_likelihood: bool | Literal["auto"] = "auto",
    progressbar: bool = True,
    sampler: Mapping[str, Any] | None = None,
) -> arviz_compat.ArvizObject:
    """Fit a weighted Bayesian regression to a release and calibrate its posterior.

    Parameters
    ----------
    formula : str
        ``response ~ terms`` in formulaic's syntax, for example ``"y ~ x + C(group) + poly(age, 2)"``; see
        :func:`~iwbayes.models.design.build_design`. Also ``offset(x)`` and group-specific effects: ``(1|g)``,
        ``(x|g)``, ``(1|g:h)``, ``(1|g/h)``. Numbers and counts may be censored, with a column of the levels none, right
        and left, ``censored(y, status)``, or where a condition holds, ``censored(time, event == 0)``; or truncated,
        ``truncated(y, lb=0, ub=9)``. Predictions are then those of all responses, without limits.
    release : Release
        Synthetic rows with their weights, as read by :func:`~iwbayes.load`.
    family : {"bernoulli", "gaussian", "categorical", "poisson", "negativebinomial", "t", ...}, optional
        Distribution of the response. By default bernoulli for `Binary` or two levels, categorical for more levels,
        gaussian for `Real` and for expressions of columns; for an `Integer` response, which may be a count or a
        measurement, it must be given. PyMC computes "negativebinomial", "zero_inflated_poisson",
        "zero_inflated_negativebinomial", "hurdle_poisson", "hurdle_negativebinomial", "t" (Student), "gamma", "weibull"
        and "exponential" (log link of the mean), "cumulative" (ordinal, levels declared from low to high) and
        "binomial" (response ``p(successes, trials)``). All have Bambi's names and links.
    method : {"auto", "laplace", "nuts"}, default "auto"
        "laplace": Student-t proposal at the mode with Pareto-smoothed importance weights, adapted to its draws if k-hat
        is 0.7 or more. "nuts": PyMC's NUTS. "auto": "laplace" if its k-hat is below 0.7 (below 0.5 for an adapted
        proposal), otherwise "nuts".
    priors : dict of str to distribution, optional
        Priors that replace default priors, by the name of the coefficient, ``{"age": pm.Normal.dist(0, 1)}``, or of the
        scale of group-specific effects, ``"1|g_sigma"``. See :func:`~iwbayes.analyst.regression.model.regression` for
        the defaults.
    calibrate : {"auto", "formula", "rehearsals", "pool", "none"}, default "auto"
        How intervals account for the noise in the weights.

        - "formula": a calibrated posterior whose sandwich covariance includes this noise.
        - "rehearsals": standard deviations from replays of the release. They include errors that no formula describes.
        - "pool": a mixture of the posteriors under weight draws; see :func:`~iwbayes.noise_aware_weights`.
        - "none": the draws of the weighted posterior, whose intervals treat the weights as exact.
        - "auto": "rehearsals" if `rehearsals` is given, "pool" if the release has weights from
          :func:`~iwbayes.noise_aware_weights`, otherwise "formula".
    rehearsals : Rehearsals, optional
        Rehearsals of this release, from :func:`~iwbayes.rehearse`.
    design_weight : str, optional
        Column of the release with design weights of a survey. The log likelihood of each row is multiplied by its
        design weight, divided by their mean (pseudo-likelihood). Such fits are never called calibrated, because no
        study supports it yet, and functions that judge the fit of rows (`loo`, `ppc`) ignore design weights.
    draws, chains : int, default 1000 and 4
        Number of draws per chain, and of chains. The chains of "laplace" are independent draws.
    random_seed : int, numpy.random.Generator or None
        Seed or generator. The same integer gives the same result.
    log_likelihood : bool or "auto", default "auto"
        Whether to store the groups ``log_likelihood`` and ``log_likelihood_weighted`` of all rows used. "auto" stores
        them if both together need at most 256 MiB (16 bytes x chains x draws x rows).
    progressbar : bool, default True
        Whether to show PyMC's progress bar.
    sampler : dict, optional
        Further arguments of ``pymc.sample`` for "nuts", for example ``{"tune": 1000}``; ``init`` and ``nuts_sampler``
        are not allowed. NUTS starts at the mode and scales by the curvature there, so its default is 500 tuning steps,
        or 200 per weight draw if there are several. Sampling stops after ``max_seconds`` (600 by default) or when it is
        interrupted; it then warns and returns the draws so far, repeated to fill the result.

    Returns
    -------
    arviz.InferenceData or xarray.DataTree
        With these groups:

        - ``posterior``: coefficients, named as Bambi names them. Attributes are ``formula``, ``family``, ``method``,
          ``total``, ``weights``, ``weight_draws`` (their number), ``calibration`` (its method, or "none"), ``verdict``,
          digests of the weights used and of those of the release, and the ``design`` that :func:`~iwbayes.predictions`
          needs; ``rows_left_out`` and ``share_left_out`` (of the weights) count rows with missing cells.
        - ``sample_stats``: statistics of the draws before calibration: ``lp``, the log density up to a constant, those
          of NUTS, and ``weight_draw``, the weight draw behind each draw, if there are several. The attributes
          ``pareto_k``, ``importance_ess`` and ``n_proposals`` describe the importance sampling, at the worst weight
          draw.
        - ``observed_data``: the response of the rows used.
        - ``calibration``: the record of the calibration, if there was one, and ``influence``: matrices by which
          :func:`~iwbayes.predictions` and other quantities are judged.
        - ``log_likelihood`` and ``log_likelihood_weighted`` (by the averaged weights), if stored.

    Raises
    ------
    TypeError, ValueError
        If an argument is invalid, or if arguments contradict each other.
    RuntimeError
        If the mode was not found, if k-hat is 0.7 or more with method="laplace", or if NUTS made no draw.

    Warns
    -----
    UserWarning
        If rows, levels or columns are left out, if the level with which a column's other levels are compared is rare,
        or if NUTS takes long or was stopped.
    CalibrationWarning
        If the fit is outside the domain in which intervals cover as often as they claim; see :func:`~iwbayes.diagnose`.

    Notes
    -----
    Group-specific effects are centred, and NUTS samples models with them. In models that numpy computes, identical
    rows are merged, and gaussian rows are replaced by their weighted Gram matrix, which does not change the posterior.
    Calibration maps the draws linearly, in unconstrained space (sigma on the log scale); see
    :func:`~iwbayes.calibrate`, docs/theory.md.

    References
    ----------
    Ghalebikesabi et al., Mitigating statistical bias within differentially private synthetic data, UAI 2022 (weighted
    posteriors); Vehtari, Simpson, Gelman, Yao & Gabry, Pareto smoothed importance sampling, JMLR 25, 2024 (k-hat).

    Examples
    --------
    With ``release`` as in the example of :func:`~iwbayes.publish`:

    >>> idata = iw.fit("y ~ x + z", release, draws=500, random_seed=1, progressbar=False)
    >>> list(idata["posterior"].data_vars)
    ['Intercept', 'x', 'z']
    >>> idata["posterior"].attrs["verdict"]
    'calibrated'
    """
    check_release(release)
    options = check_sampling(method, sampler)
    checks.whole("draws", draws)
    checks.whole("chains", chains)
    if log_likelihood not in (True, False, "auto"):
        raise ValueError(f"log_likelihood must be True, False or 'auto'; got {log_likelihood!r}.")
    how = how_to_calibrate(calibrate, rehearsals, release)
    settings = SamplingSettings(chains, draws, method, {"progressbar": progressbar, **options})
    rng = np.random.default_rng(random_seed)
    weights = release.weights
    if how == "pool" and not is_noise_aware(weights, release):
        weights = noise_aware_weights(release, random_seed=rng)
    design = build_design(formula, release.synthetic.frame, release.synthetic.schema, family)
    regression: RegressionProblem | BuiltRegression
    if design.fast:
        regression, sampled = RegressionProblem.of(design, release, priors, weights, design_weight), None
    else:
        regression = BuiltRegression.of(design, release, priors, weights, design_weight)
        sampled = regression.sampled(settings, rng)
    posterior = regression.posterior
    found = calibrated(
        posterior, release, how, settings, rng,
        weights=weights, rehearsals=rehearsals, formula=lambda: regression.measurable, sampled=sampled,
    )  # fmt: skip
    groups = groups_of(posterior_dataset(posterior, found.theta), found, release, posterior, weights)
    groups["observed_data"] = regression.observed
    warn_of_rare_references(release.synthetic, weights.values, posterior.names)
    size = 16 * chains * draws * regression.n_rows
    if log_likelihood is True or (log_likelihood == "auto" and size <= LOG_LIKELIHOOD_LIMIT):
        groups |= regression.log_likelihoods(groups["posterior"], found.theta)
    attrs = groups["posterior"].attrs
    attrs |= {
        "formula": formula,
        "family": regression.family,
        "method": found.method,
        "weights": recorded_weights(weights),
        "weight_draws": weights.n_draws,
        "total": float(release.n_private),
        "inference_library": "iwbayes",
        "inference_library_version": version("iwbayes"),
    }
    attrs |= regression.attributes
    return arviz_compat.make(groups, attrs)


def how_to_calibrate(
    asked: Calibration, rehearsals: Rehearsals | None, release: Release
) -> Literal["formula", "rehearsals", "pool", "none"]:
    """Return the source of the intervals, and raise if it contradicts the other arguments."""
    remedy = "Use 'auto', or 'none' to get the draws of the weighted posterior without calibration."
    checks.one_of("calibrate", asked, get_args(Calibration), remedy)
    if rehearsals is None:
        if asked == "rehearsals":
            raise ValueError(
                "calibrate='rehearsals' needs rehearsals of the release; got None. Run rehearsals = "
                "iwbayes.rehearse(release) once for all models, and pass rehearsals=rehearsals."
            )
        if asked == "auto":
            return "pool" if is_noise_aware(release.weights, release) else "formula"
        return asked
    if not isinstance(rehearsals, Rehearsals):
        raise TypeError(
            f"rehearsals must be a Rehearsals; got {type(rehearsals).__name__}. Use iwbayes.rehearse(release)."
        )
    if asked not in ("auto", "rehearsals"):
        raise ValueError(
            f"rehearsals must be omitted with calibrate={asked!r}, which does not use them. Pass one of the two."
        )
    rehearsals.check(release)
    return "rehearsals"
