"""Regressions as PyMC models, and their priors in plain numpy for the fast path of `fit`.

Default priors are weakly informative and computed from the public, weighted synthetic design, as rstanarm and
Bambi do. With m_j and s_j the weighted mean and standard deviation of column j, m_y and s_y those of the
response for the gaussian family, and m_y = 0, s_y = 1 for the others:

* coefficient of column j: Normal(0, 2.5 s_y / s_j), where a column of zeros and ones, such as a level of a factor,
  has s_j = 1/2, as if it were balanced: the prior of a rare level is no wider than that of a common one;
* Intercept: the intercept of the centred design, Intercept + sum_j m_j b_j, is Normal(m_y, 2.5 s_y). The model
  states it as Intercept | b ~ Normal(m_y - sum_j m_j b_j, 2.5 s_y), the same joint density, so that the
  free variable is the intercept of the columns as they are;
* sigma of the gaussian family: HalfStudentT(4, s_y).

A prior given by name replaces the default of that coefficient, on the column as it is; the one given for
Intercept is the prior of the intercept itself, where all columns are zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from iwbayes.analyst.regression.built_by_bambi import build, is_beyond
from iwbayes.analyst.regression.design import Design, Term, build_design
from iwbayes.analyst.regression.families import Family, FamilyName
from iwbayes.analyst.regression.priors import SIGMA_DOF, Priors, PriorScales, checked_priors, prior_scales, sized

if TYPE_CHECKING:
    import pymc as pm


def regression(
    formula: str, release: Any, *, family: FamilyName | Family | None = None, priors: Priors | None = None
) -> pm.Model:
    """Build an unweighted PyMC regression on the synthetic rows of a release.

    Parameters
    ----------
    formula : str
        See :func:`~iwbayes.analyst.regression.design.build_design`.
    release : Release
        Its weights enter only the scales of the default priors.
    family : {"bernoulli", "gaussian", "categorical", "poisson"}, optional
        By default that of the response's declared column; see :func:`~iwbayes.fit`.
    priors : dict of str to distribution, optional
        Replace default priors by name: ``{"age": pm.Normal.dist(0, 1), "sigma": pm.Exponential.dist(1)}``.

    Returns
    -------
    pymc.Model
        Free variables named as Bambi names them (``Intercept``, ``a``, ``c`` with dimension ``c_dim``), the
        design as data ``design matrix``, and the observed response with dimension ``row``, whose coordinate
        holds the positions of the rows used among the synthetic rows.

    Raises
    ------
    TypeError, ValueError
        A formula, family, response or prior that does not fit; the message says what does.

    Notes
    -----
    Give the rows their weights by ``reweight(model, release.weights, total=release.n_private)``. Where rows
    with missing cells were left out (a warning says so), take weights and total of the rows kept:
    ``w = release.weights.values[list(model.coords["row"])]`` and
    ``total=release.n_private * w.sum() / len(release.weights)``.
    """
    if is_beyond(formula, family):
        return build(formula, release, family, priors).model
    synthetic = release.synthetic
    design = build_design(formula, synthetic.frame, synthetic.schema, family)
    scales = prior_scales(design, np.asarray(release.weights.values)[design.rows])
    return build_model(design, scales, priors)


def build_model(design: Design, scales: PriorScales, priors: Priors | None = None) -> pm.Model:
    """Build the PyMC model of a design; given priors replace the default ones by name."""
    import pymc as pm
    import pytensor.tensor as pt

    given = checked_priors(design, priors)
    columns = list(design.parameter_names[: design.x.shape[1]])
    if design.n_predictors > 1 or design.response_dim:
        columns = [str(j) for j in range(design.x.shape[1])]
    coords = {**design.coords, "row": design.rows, "column": columns}
    with pm.Model(coords=coords) as model:
        x = pm.Data("design matrix", design.x, dims=("row", "column"))
        blocks: dict[str, Any] = {}
        # the intercept comes last since its default depends on the slopes
        for term in sorted(design.terms, key=lambda term: term.name == "Intercept"):
            blocks[term.name] = _coefficients(design, term, scales, given.get(term.name), blocks)
        beta = pt.concatenate([blocks[term.name] for term in design.terms], axis=0)
        eta = x @ beta
        aux = None
        if design.auxiliary and design.auxiliary in given:
            aux = model.register_rv(sized(given[design.auxiliary], ()), design.auxiliary)
        elif design.auxiliary:
            aux = pm.HalfStudentT(design.auxiliary, nu=SIGMA_DOF, sigma=scales.response_sd)
        predictor = eta if design.response_dim else eta[:, 0]
        design.family.observe(pm, design.name, predictor, design.y, aux)
    return model


def _coefficients(design: Design, term: Term, scales: PriorScales, prior: Any, slopes: Mapping[str, Any]) -> Any:
    """Add the coefficients of a term to the current model; a tensor (column of the term, predictor)."""
    import pymc as pm

    dims, shape = design.dims(term), design.shape(term)
    if prior is not None:
        variable = pm.modelcontext(None).register_rv(sized(prior, shape), term.name, dims=dims or None)
    else:
        mean: Any = 0.0
        if term.name == "Intercept":
            mean = scales.mean
            for other in design.terms:
                if other.name in slopes:
                    mean = mean - scales.center[other.columns] @ slopes[other.name]
            mean = mean if design.response_dim or isinstance(mean, float) else mean[0]
        sd = scales.sd[term.columns]
        if design.response_dim and term.dim:
            sd = sd[:, None]
        variable = pm.Normal(term.name, mu=mean, sigma=sd if term.dim else sd[0], dims=dims or None)
    return variable.reshape((term.columns.stop - term.columns.start, design.n_predictors))
