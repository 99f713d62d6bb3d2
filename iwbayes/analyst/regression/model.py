"""Regressions as PyMC models, with weakly informative default priors.

Default priors are computed from the synthetic design, which is public, and its weights, following rstanarm and Bambi
(Gelman, Jakulin, Pittau & Su, Annals of Applied Statistics 2, 2008, also scale priors by the columns). Let m_j be the
weighted mean of column j, and s_j the standard deviation that is left when the other columns are given; m_y and s_y are
those of the response for gaussian and t; for gamma m_y is the logarithm of its mean. Otherwise m_y = 0 and s_y = 1.

* Coefficient of column j: Normal(0, 2.5 s_y / s_j), for squares and interactions wherever the zero of their columns is.
  A column of zeros and ones, such as a level of a factor, is treated as if both values were equally frequent (s_j = 1/2
  if it is independent of the columns of other terms), so the prior of a rare level is no wider than of a common one.
* Intercept | b ~ Normal(m_y - sum_j m_j b_j, 2.5 s_y), so that of the centred design is Normal(m_y, 2.5 s_y).
* Thresholds of the family cumulative, at the means of the columns: Normal(-2 to 2, 2.5).
* sigma of the families gaussian and t: HalfStudentT(4, s_y). alpha, nu and psi have Bambi's default priors.
* Scale of group-specific effects: HalfNormal(2.5 s_y) for the intercept, HalfNormal(2.5 s_y / s_j) for slopes.

A prior given by name replaces the default prior of that coefficient, for the column without centring. A prior given for
Intercept is the prior of the intercept itself, at which all columns are zero.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from iwbayes.models.design import Design, build_design
from iwbayes.models.design_spec import GroupEffects, Term
from iwbayes.models.families import FAMILIES, Family, FamilyName
from iwbayes.models.limits import Limits
from iwbayes.models.priors import SCALE, SIGMA_DOF, Density, LogPrior, PriorScales, column_scales, prior_scales
from iwbayes.utils.arrays import Array
from iwbayes.utils.warnings import IwbayesWarning

if TYPE_CHECKING:
    import pymc as pm

Priors = Mapping[str, Any]
#: (module pymc, eta, aux) -> distribution of the response of a family. eta is a tensor (row,), or (row, predictor) for
#: a categorical response; aux are the auxiliary parameters, and numbers of trials.
_RESPONSES: dict[str, Callable[..., Any]] = {
    "bernoulli": lambda pm, eta: pm.Bernoulli.dist(logit_p=eta),
    "gaussian": lambda pm, eta, sigma: pm.Normal.dist(mu=eta, sigma=sigma),
    "poisson": lambda pm, eta: pm.Poisson.dist(mu=pm.math.exp(eta)),
    "categorical": lambda pm, eta: pm.Categorical.dist(
        logit_p=pm.math.concatenate([pm.math.zeros_like(eta[:, :1]), eta], axis=1)
    ),
    "negativebinomial": lambda pm, eta, alpha: pm.NegativeBinomial.dist(mu=pm.math.exp(eta), alpha=alpha),
    "zero_inflated_poisson": lambda pm, eta, psi: pm.ZeroInflatedPoisson.dist(psi=psi, mu=pm.math.exp(eta)),
    "zero_inflated_negativebinomial": lambda pm, eta, psi, alpha: pm.ZeroInflatedNegativeBinomial.dist(
        psi=psi, mu=pm.math.exp(eta), alpha=alpha
    ),
    "hurdle_poisson": lambda pm, eta, psi: pm.HurdlePoisson.dist(psi=psi, mu=pm.math.exp(eta)),
    # the density of pm.HurdleNegativeBinomial has no second derivatives
    "hurdle_negativebinomial": lambda pm, eta, psi, alpha: pm.CustomDist.dist(
        psi, eta, alpha, logp=_hurdle_log_density, random=_hurdle_draw, dtype="int64"
    ),
    "gamma": lambda pm, eta, alpha: pm.Gamma.dist(alpha=alpha, beta=alpha / pm.math.exp(eta)),
    "weibull": lambda pm, eta, alpha: pm.Weibull.dist(alpha=alpha, beta=_weibull_scale(eta, alpha)),
    "exponential": lambda pm, eta: pm.Exponential.dist(lam=pm.math.exp(-eta)),
    "t": lambda pm, eta, sigma, nu: pm.StudentT.dist(nu=nu, mu=eta, sigma=sigma),
    "binomial": lambda pm, eta, trials: pm.Binomial.dist(n=trials, logit_p=eta),
    "cumulative": lambda pm, eta, threshold: pm.OrderedLogistic.dist(eta=eta, cutpoints=threshold),
}
#: (module pymc, scale of the response) -> default prior of an auxiliary parameter.
_AUXILIARY: dict[str, Callable[..., Any]] = {
    "sigma": lambda pm, scale: pm.HalfStudentT.dist(nu=SIGMA_DOF, sigma=scale),
    "alpha": lambda pm, scale: pm.HalfCauchy.dist(1.0),
    "nu": lambda pm, scale: pm.Gamma.dist(2.0, 0.1),
    "psi": lambda pm, scale: pm.Beta.dist(2.0, 2.0),
}
#: A slope of group-specific effects whose mean is more than this many standard deviations from zero.
_FAR = 5.0


def regression(
    formula: str, release: Any, *, family: FamilyName | Family | None = None, priors: Priors | None = None
) -> pm.Model:
    """Build an unweighted PyMC regression on the synthetic rows of a release, to change it before it is weighted.

    For the usual analysis call :func:`~iwbayes.fit` instead.

    Parameters
    ----------
    formula, family, priors : str, str and dict of str to distribution, optional
        As in :func:`~iwbayes.fit`: ``priors={"age": pm.Normal.dist(0, 1), "sigma": pm.Exponential.dist(1)}``.
    release : Release
        Its synthetic rows become the data of the model. Its weights only set the scales of the default priors.

    Returns
    -------
    pymc.Model
        Its free variables have Bambi's names (``Intercept``, ``a``, and ``c`` with dimension ``c_dim``). The coordinate
        of the dimension ``row`` contains the indices of the rows used among the synthetic rows.

    Raises
    ------
    TypeError, ValueError
        If the formula, family, response or a prior is invalid.

    Warns
    -----
    UserWarning
        If rows with missing cells, levels that never occur, or columns of zeros are left out.

    Notes
    -----
    If rows with missing cells were left out, weight the others with their own weights and total:
    ``w = release.weights.values[list(model.coords["row"])]`` and
    ``total=release.n_private * w.sum() / len(release.weights)``.

    Examples
    --------
    >>> model = iw.regression("y ~ x", release)
    >>> [variable.name for variable in model.free_RVs]
    ['x', 'Intercept']
    >>> weighted = iw.reweight(model, release.weights, total=release.n_private)
    """
    synthetic = release.synthetic
    design = build_design(formula, synthetic.frame, synthetic.schema, family)
    return build_model(design, np.asarray(release.weights.values)[design.rows], priors)


def build_model(design: Design, weights: Array, priors: Priors | None = None) -> pm.Model:
    """Build the PyMC model of a design, with weights (row,) for the default priors. Given priors replace them by name.

    Free variables are in the order of `DesignSpec.pack`, if the design is not of the fast path.
    """
    import pymc as pm
    import pytensor.tensor as pt

    scales, given, data = prior_scales(design, weights), _checked(design, priors), data_of(design)
    n_columns = design.x.shape[1]
    columns = list(design.parameter_names[:n_columns])
    if design.n_predictors > 1 or design.response_dim:
        columns = [str(j) for j in range(n_columns)]
    coords = {**design.coords, "row": design.rows, "column": columns}
    with pm.Model(coords=coords) as model:
        blocks: dict[str, Any] = {}
        eta: Any = 0.0
        if n_columns:
            x = pm.Data("design matrix", data["design matrix"], dims=("row", "column"))
            # the intercept comes last because its default prior depends on the slopes
            for term in sorted(design.terms, key=lambda term: term.name == "Intercept"):
                blocks[term.name] = _coefficients(design, term, scales, given.get(term.name), blocks)
            eta = x @ pt.concatenate([blocks[term.name] for term in design.terms], axis=0)
        for own in design.effects:
            eta = eta + _effects(design, own, scales.response_sd, weights, given, data)
        if design.offset is not None:
            eta = eta + pm.Data(name := f"offset of {design.name}", data[name], dims="row")[:, None]
        aux = _auxiliaries(design, scales, given, blocks)
        if design.trials is not None:
            aux["trials"] = pm.Data(name := f"trials of {design.name}", data[name], dims="row")
        predictor = eta if design.response_dim else eta[:, 0]
        law = _RESPONSES[design.family.name](pm, predictor, **aux)
        if design.limits is not None:
            law = _limited(design, design.limits, law, data)
        model.register_rv(law, design.name, observed=data[design.name], dims="row")
    if not design.fast:
        names = [term.name for term in design.terms]
        names += [own.variable(term) for own in design.effects for term in own.terms]
        names += [*design.scales, *design.auxiliaries]
        model.free_RVs.sort(key=lambda variable: names.index(variable.name))
    return model


def data_of(design: Design) -> dict[str, Any]:
    """Return the data of a design's model that have one value per row, by their names in the model."""
    data: dict[str, Any] = {"design matrix": design.x}
    for own in design.effects:
        data[f"group of {own.name}"], values = own.codes(design.frame), own.values(design.frame)
        data |= {f"columns of {own.variable(term)}": values[:, term.columns] for term in own.terms}
    if design.offset is not None:
        data[f"offset of {design.name}"] = design.offsets(design.frame)
    if design.trials is not None:
        data[f"trials of {design.name}"] = design.n_trials.astype(np.int64)
    if design.limits is not None and design.limits.status is not None:
        data |= {f"status of {design.name}": design.statuses, f"limit of {design.name}": design.y}
    return data | {design.name: design.y if design.family.real else design.y.astype(np.int64)}


def _limited(design: Design, limits: Limits, law: Any, data: Mapping[str, Any]) -> Any:
    """Return the distribution of a censored or truncated response."""
    import pymc as pm
    import pytensor.tensor as pt

    if limits.status is None:
        bounds = (bound if np.isfinite(bound) else None for bound in (limits.lower, limits.upper))
        return pm.Truncated.dist(law, *bounds, shape=data[design.name].shape)
    code, y = (
        pm.Data(name, data[name], dims="row") for name in (f"{what} of {design.name}" for what in ("status", "limit"))
    )
    lower, upper = (pt.switch(pt.eq(code, side), y, side * np.inf) for side in (-1, 1))
    return pm.Censored.dist(law, lower, upper)


def _weibull_scale(eta: Any, alpha: Any) -> Any:
    """Return the scale of a Weibull distribution with mean exp(eta) and shape alpha."""
    import pytensor.tensor as pt

    return pt.exp(eta - pt.gammaln(1 + 1 / alpha))


def _hurdle_log_density(value: Any, psi: Any, eta: Any, alpha: Any) -> Any:
    """Return the log density of negative binomial counts that are zero with probability 1 - psi."""
    import pymc as pm
    import pytensor.tensor as pt

    zero = -alpha * pt.log1p(pt.exp(eta) / alpha)
    above = pm.logp(pm.NegativeBinomial.dist(mu=pt.exp(eta), alpha=alpha), value) - pt.log1mexp(zero)
    return pt.switch(pt.eq(value, 0), pt.log1p(-psi), pt.log(psi) + above)


def _hurdle_draw(psi: Any, eta: Any, alpha: Any, rng: Any = None, size: Any = None) -> Any:
    """Draw such counts."""
    psi, eta, alpha = (
        np.broadcast_to(each, np.broadcast_shapes(np.shape(eta), size or ())) for each in (psi, eta, alpha)
    )
    return FAMILIES["hurdle_negativebinomial"].draw(eta[None], np.stack([psi, alpha]), rng).astype(np.int64)


def _auxiliaries(design: Design, scales: PriorScales, given: dict[str, Any], slopes: dict[str, Any]) -> dict[str, Any]:
    """Add the auxiliary parameters to the current model; return them by the names of the family."""
    import pymc as pm

    found, model = dict[str, Any](), pm.modelcontext(None)
    for name, own in zip(design.auxiliaries, design.family.auxiliaries, strict=True):
        dims: tuple[str, ...] = ()
        shape: tuple[int, ...] = ()
        options: dict[str, Any] = {}
        if own.transform == "ordered":
            dims, shape = (f"{name}_dim",), (len(design.levels) - 1,)
            location: Any = np.linspace(-2, 2, len(design.levels) - 1)
            for term in design.terms:
                location = location + scales.center[term.columns] @ slopes[term.name][:, 0]
            prior = pm.Normal.dist(location, SCALE)
            options["default_transform"] = pm.distributions.transforms.ordered
        else:
            prior = _AUXILIARY[own.name](pm, scales.response_sd)
        found[own.name] = model.register_rv(_sized(given.get(name, prior), shape), name, dims=dims or None, **options)
    return found


def _effects(
    design: Design,
    own: GroupEffects,
    response_sd: float,
    weights: Array,
    given: dict[str, Any],
    data: Mapping[str, Any],
) -> Any:
    """Add group-specific effects to the current model; return their sum (row, predictor)."""
    import pymc as pm
    import pytensor.tensor as pt

    model, share = pm.modelcontext(None), weights / weights.sum()
    code, total = pm.Data(name := f"group of {own.name}", data[name], dims="row"), 0.0
    for term in own.terms:
        name = own.variable(term)
        part = data[f"columns of {name}"]
        for dim, labels in own.coords(term).items():
            if dim not in model.coords:
                model.add_coord(dim, list(labels))
        _warn_far(own, term, part)
        scale = np.ones(1) if term.name == "Intercept" else column_scales(part, share, [])[1]
        outer = tuple(dim for dim in own.coords(term) if dim != f"{own.name}__factor_dim")
        levels = (design.response_dim,) if design.response_dim else ()
        shape = tuple(len(model.coords[dim]) for dim in (*outer, *levels))
        sd = np.broadcast_to((SCALE * response_sd / scale)[:, None], (len(scale), design.n_predictors)).reshape(shape)
        prior = given.get(f"{name}_sigma", pm.HalfNormal.dist(sd))
        sigma = model.register_rv(_sized(prior, shape), f"{name}_sigma", dims=(*outer, *levels) or None)
        effects = pm.Normal(name, 0.0, sigma, dims=(f"{own.name}__factor_dim", *outer, *levels))
        whole: Any = effects.reshape((len(own.groups), part.shape[1], design.n_predictors))[code]
        x = pm.Data(f"columns of {name}", part) if term.name != "Intercept" else pt.ones((len(part), 1))
        total = total + sum(x[:, j, None] * whole[:, j] for j in range(part.shape[1]))
    return total


def _warn_far(own: GroupEffects, term: Term, part: Array) -> None:
    """Warn of slopes whose predictor does not vary around zero, where the effects of the intercept are defined."""
    if part.shape[1] != 1 or term.name == "Intercept" or not abs(np.mean(part)) > _FAR * np.std(part) > 0:
        return
    center = np.format_float_positional(float(f"{np.mean(part):.3g}"), trim="-")
    warnings.warn(
        f"the values of {term.name!r} in ({term.name}|{own.name}) are far from zero (mean {center}, standard deviation "
        f"{np.std(part):.2g}), where the group effects of the intercept are defined. Their default prior hardly allows "
        f"lines that differ. Write (I({term.name} - {center})|{own.name}).",
        IwbayesWarning,
        stacklevel=6,
    )


def _coefficients(design: Design, term: Term, scales: PriorScales, prior: Any, slopes: Mapping[str, Any]) -> Any:
    """Add the coefficients of a term to the current model; return a tensor (column of the term, predictor)."""
    import pymc as pm

    dims, shape = design.dims(term), design.shape(term)
    if prior is not None:
        variable = pm.modelcontext(None).register_rv(_sized(prior, shape), term.name, dims=dims or None)
    else:
        mean: Any = 0.0
        if term.name == "Intercept":
            mean = scales.mean
            for other in [other for other in design.terms if other.name in slopes]:
                mean = mean - scales.center[other.columns] @ slopes[other.name]
            mean = mean if design.response_dim or isinstance(mean, float) else mean[0]
        sd = scales.sd[term.columns]
        if design.response_dim and term.dim:
            sd = sd[:, None]
        variable = pm.Normal(term.name, mu=mean, sigma=sd if term.dim else sd[0], dims=dims or None)
    return variable.reshape((term.columns.stop - term.columns.start, design.n_predictors))


def log_prior(design: Design, scales: PriorScales, priors: Priors | None = None) -> LogPrior:
    """Return the joint prior of a regression in numpy; given priors replace default priors by name."""
    shapes = {term.name: design.shape(term) for term in design.terms}
    given: dict[Any, Density] = {}
    for name, prior in _checked(design, priors).items():
        given[name] = _density(prior, shapes.get(name, ()), positive=name == design.auxiliary)
    return LogPrior(design, scales, given)


def _checked(design: Design, priors: Priors | None) -> dict[str, Any]:
    """Return the given priors as a dict after checking their names and types."""
    if not priors:
        return {}
    from pytensor.graph.traversal import ancestors
    from pytensor.tensor.random.op import RandomVariable
    from pytensor.tensor.random.type import RandomType

    names = [term.name for term in design.terms] + [*design.scales, *design.auxiliaries]
    if unknown := sorted(set(priors) - set(names)):
        raise ValueError(f"priors must name parameters of the model; got {unknown}. Use names from {names}.")
    for name, prior in priors.items():
        owner, kind = getattr(prior, "owner", None), type(prior).__name__
        if owner is None or not hasattr(owner.op, "ndim_supp"):
            raise TypeError(f"the prior of {name!r} must be a distribution such as pm.Normal.dist(0, 1); got {kind}.")
        inner = [v for v in ancestors(owner.inputs) if v.owner and isinstance(v.owner.op, RandomVariable)]
        if any(not isinstance(v.type, RandomType) for v in inner):
            raise ValueError(
                f"the prior of {name!r} must have fixed parameters; it depends on another random variable. For a "
                "hierarchical prior write the model in PyMC and weight it with reweight()."
            )
    return dict(priors)


def _sized(prior: Any, shape: tuple[int, ...]) -> Any:
    """Return a copy of a distribution with the given shape."""
    from pymc.distributions.shape_utils import change_dist_size

    from iwbayes.analyst.weighting.graph_functions import interpreted

    n_support = prior.owner.op.ndim_supp
    try:
        copy = change_dist_size(prior, shape[: len(shape) - n_support])
        found = interpreted([], copy)().shape
    except ValueError as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"a prior must have the shape of its coefficients, {shape}: {reason}") from None
    if found != shape:
        raise ValueError(
            f"a prior must have the shape of its coefficients, {shape}; got {found}. Use a scalar prior or this shape."
        )
    return copy


def _density(prior: Any, shape: tuple[int, ...], *, positive: bool) -> Density:
    """Return a PyMC prior in Python mode, without compiling; of a positive parameter, in the space of its logarithm."""
    import pymc as pm
    import pytensor.tensor as pt
    from pytensor.graph.replace import vectorize_graph

    from iwbayes.analyst.weighting.graph_functions import interpreted

    size = int(np.prod(shape))
    x = pt.vector("x", shape=(size,), dtype="float64")
    point = pt.exp(x) if positive else x
    density = pm.logp(_sized(prior, shape), point.reshape(shape)).sum() + (x.sum() if positive else 0.0)
    gradient: Any = pt.grad(density, x, disconnected_inputs="ignore")
    rows: list[Any] = [pt.grad(gradient[i], x, disconnected_inputs="ignore") for i in range(size)]
    batch = pt.matrix("batch", shape=(None, size), dtype="float64")
    values = interpreted([batch], vectorize_graph(density, {x: batch}))
    return values, interpreted([x], [gradient, pt.stack(rows)])
