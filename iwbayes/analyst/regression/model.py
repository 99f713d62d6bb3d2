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
* sigma of the families gaussian and t: HalfStudentT(4, s_y). alpha and nu have Bambi's default priors.
* Scale of group-specific effects: HalfNormal(2.5 s_y) for the intercept, HalfNormal(2.5 s_y / s_j) for slopes.

A prior given by name replaces the default prior of that coefficient, for the column without centring. A prior given for
Intercept is the prior of the intercept itself, at which all columns are zero.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from iwbayes.analyst.regression.built_by_bambi import build, is_beyond
from iwbayes.models.design import Design, Term, build_design
from iwbayes.models.families import Family, FamilyName
from iwbayes.models.priors import SIGMA_DOF, Density, LogPrior, PriorScales, prior_scales

if TYPE_CHECKING:
    import pymc as pm

Priors = Mapping[str, Any]
#: (module pymc, name, eta, aux, observed, dims) -> add the response of a family to the current model. eta is a tensor
#: (row,), or (row, predictor) for a categorical response.
_OBSERVED: dict[str, Callable[..., Any]] = {
    "bernoulli": lambda pm, name, eta, aux, **data: pm.Bernoulli(name, logit_p=eta, **data),
    "gaussian": lambda pm, name, eta, aux, **data: pm.Normal(name, mu=eta, sigma=aux, **data),
    "poisson": lambda pm, name, eta, aux, **data: pm.Poisson(name, mu=pm.math.exp(eta), **data),
    "categorical": lambda pm, name, eta, aux, **data: pm.Categorical(
        name, logit_p=pm.math.concatenate([pm.math.zeros_like(eta[:, :1]), eta], axis=1), **data
    ),
}


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
    ModuleNotFoundError
        If Bambi must build the model and is not installed.

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
    if is_beyond(formula, family):
        return build(formula, release, family, priors)[0]
    synthetic = release.synthetic
    design = build_design(formula, synthetic.frame, synthetic.schema, family)
    return build_model(design, prior_scales(design, np.asarray(release.weights.values)[design.rows]), priors)


def build_model(design: Design, scales: PriorScales, priors: Priors | None = None) -> pm.Model:
    """Build the PyMC model of a design. Given priors replace default priors by name."""
    import pymc as pm
    import pytensor.tensor as pt

    given = _checked(design, priors)
    columns = list(design.parameter_names[: design.x.shape[1]])
    if design.n_predictors > 1 or design.response_dim:
        columns = [str(j) for j in range(design.x.shape[1])]
    coords = {**design.coords, "row": design.rows, "column": columns}
    with pm.Model(coords=coords) as model:
        x = pm.Data("design matrix", design.x, dims=("row", "column"))
        blocks: dict[str, Any] = {}
        # the intercept comes last because its default prior depends on the slopes
        for term in sorted(design.terms, key=lambda term: term.name == "Intercept"):
            blocks[term.name] = _coefficients(design, term, scales, given.get(term.name), blocks)
        eta = x @ pt.concatenate([blocks[term.name] for term in design.terms], axis=0)
        aux = design.auxiliary
        if aux in given:
            aux = model.register_rv(_sized(given[aux], ()), aux)
        elif aux:
            aux = pm.HalfStudentT(aux, nu=SIGMA_DOF, sigma=scales.response_sd)
        predictor = eta if design.response_dim else eta[:, 0]
        response = design.y if design.family.continuous else design.y.astype(np.int64)
        _OBSERVED[design.family.name](pm, design.name, predictor, aux, observed=response, dims="row")
    return model


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
    given = {}
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

    names = [term.name for term in design.terms] + [name for name in (design.auxiliary,) if name]
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
