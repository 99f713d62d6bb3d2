"""Regressions that Bambi builds for `fit`: more families, binomial trials, offsets and group-specific effects.

Calibration needs parameters that the rows inform directly, so predictors are not centred and group-specific effects use
the centred parametrisation: they are Normal(0, scale) themselves.
"""

from __future__ import annotations

import math
import re
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import xarray as xr

from iwbayes.analyst import arviz_compat
from iwbayes.analyst.inference.nuts import SamplingSettings, WhitenedNuts
from iwbayes.evidence.formulas import named_columns, quoted
from iwbayes.models.design import ready_rows
from iwbayes.models.families import NamedFamily, default_family, get_family
from iwbayes.models.priors import SCALE, SIGMA_DOF, column_scales, response_scale
from iwbayes.release import Release
from iwbayes.release.weights import Weights
from iwbayes.schema import Categorical, Column, Integer, Real, Schema
from iwbayes.utils.arrays import Array
from iwbayes.utils.optional import import_optional
from iwbayes.utils.warnings import IwbayesWarning

if TYPE_CHECKING:
    import pymc as pm

    from iwbayes.analyst.inference.model_posterior import ModelPosterior

#: A predictor whose mean is more than this many standard deviations from zero does not vary around zero.
_FAR = 5.0

_IN_BACKTICKS = re.compile(r"`[^`]*`")
_BEYOND = re.compile(r"\||\boffset\(")
# Bambi's binomial response ``p(successes, trials)``, under any of its three names
_TRIALS = re.compile(r"^(?:p|prop|proportion)\((`[^`]+`|[\w.]+),(`[^`]+`|[\w.]+)\)$")


def _is_count(column: Column) -> bool:
    return isinstance(column, Integer) and column.lower >= 0


#: Families that Bambi builds, by name.
BUILT_FAMILIES = {
    name: NamedFamily(name, link, suits, needs)
    for name, link, suits, needs in (
        ("negativebinomial", "log", _is_count, "an Integer column with a lower bound of 0 or more"),
        ("t", "identity", lambda column: isinstance(column, Real | Integer), "a Real or Integer column"),
        ("gamma", "log", lambda column: isinstance(column, Real | Integer) and column.lower >= 0,
         "a Real or Integer column with a lower bound of 0 or more"),
        ("cumulative", "logit", lambda column: isinstance(column, Categorical) and len(column.levels) > 2,
         "a Categorical column with three levels or more, declared from low to high"),
        ("binomial", "logit", _is_count, "p(successes, trials), two Integer columns with lower bounds of 0 or more"),
    )
}  # fmt: skip


def is_beyond(formula: Any, family: Any) -> bool:
    """Return whether Bambi must build the regression because the fast path of `fit` does not cover it."""
    if not isinstance(formula, str):
        return False
    by_terms = _BEYOND.search(_IN_BACKTICKS.sub("", formula)) or _trials(formula)
    return bool(by_terms) or (isinstance(family, str) and family in BUILT_FAMILIES)


@dataclass(frozen=True, eq=False)
class BuiltRegression:
    """A PyMC model of all rows of a release, weighted, with the interface of `RegressionProblem`."""

    model: pm.Model
    posterior: ModelPosterior
    measurable: str  # a plain formula of the same columns, which is compared with the features the release measured
    family: str
    n_rows: int
    observed: xr.Dataset
    attributes: dict[str, Any]

    @classmethod
    def of(cls, formula: str, release: Release, family: Any, priors: Any, weights: Weights) -> BuiltRegression:
        """Build and weight the model of a formula. The arguments are those of `fit`."""
        from iwbayes.analyst.inference.model_posterior import ModelPosterior
        from iwbayes.analyst.weighting.observed_rows import observed_dataset
        from iwbayes.analyst.weighting.release_rows import check_model
        from iwbayes.analyst.weighting.reweight import reweight

        model, name, measurable = build(formula, release, family, priors)
        weighted = reweight(model, release)
        check_model(weighted, release)
        posterior, attributes = ModelPosterior(weighted, weights.n_draws), {"built_by": "Bambi"}
        observed = observed_dataset(weighted)
        return cls(weighted, posterior, measurable, name, posterior.n_rows, observed, attributes)

    def sampled(self, settings: SamplingSettings, rng: np.random.Generator) -> Array | None:
        """Return draws (sample, p) by NUTS if scales of group-specific effects have no posterior mode; else None."""
        posterior = self.posterior
        informed = posterior.in_likelihood(posterior.start())
        if informed.all():
            return None
        # NUTS moves slowly along the intercept and the slope of a predictor that is far from zero
        mode, precision = posterior.mode(free=informed), np.eye(posterior.size)
        both = np.ix_(informed, informed)
        precision[both] = mode.precision[both]
        nuts = WhitenedNuts(posterior.size, settings, n_runs=1)
        theta, _ = nuts.sample(posterior, mode.theta, precision, draws=settings.draws, rng=rng)
        return theta.reshape(-1, posterior.size)

    def log_likelihoods(self, posterior: xr.Dataset, theta: Array) -> dict[str, xr.Dataset]:
        """Return groups of the unweighted and weighted log likelihood of each row, at the draws of a posterior."""
        from iwbayes.analyst.weighting.reweight import log_likelihood

        found = log_likelihood(arviz_compat.make({"posterior": posterior}), self.model)
        names = ("log_likelihood", "log_likelihood_weighted")
        return {name: arviz_compat.group(found, name) for name in names}


def build(formula: str, release: Release, family: Any, priors: Any) -> tuple[pm.Model, str, str]:
    """Let Bambi build the model of a formula on all rows of a release. The arguments are those of `fit`.

    Returns the model, the name of the family, and a plain formula of the same columns. Raises ValueError, or
    ModuleNotFoundError if Bambi is not installed.
    """
    bambi = import_optional("bambi", f"the model {formula!r} needs")
    schema, frame = release.synthetic.schema, release.synthetic.frame
    response = formula.partition("~")[0].strip()
    used = named_columns(formula, [_IN_BACKTICKS.sub("", formula)], schema)
    own = _trials(formula) or (response.strip("`"),)
    unknown = [name for name in own if name not in schema.names]
    if "~" not in formula or unknown:
        raise ValueError(
            f"the response of formula {formula!r} must be a column of the release; got {response!r}. Use one of "
            f"{list(schema.names)}."
        )
    name = family if family is not None else "binomial" if len(own) > 1 else default_family(schema[own[0]])
    if missing := [column for column in used if frame[column].isna().any()]:
        raise ValueError(
            f"the columns of {formula!r} must have no missing cells, because this model uses all rows; {missing} have "
            "some. Leave these columns out, or impute the cells in your own PyMC model."
        )
    data = _ready_response(ready_rows(frame[used], skip=own[0]), own, schema, name)
    # formulae sorts unordered levels; ordered ones keep the first declared level as the reference
    data = data.assign(**{key: data[key].cat.as_ordered() for key in data if hasattr(data[key], "cat")})
    options = {} if name not in BUILT_FAMILIES else {"link": BUILT_FAMILIES[name].link}
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="The intercept is omitted in ordinal families")
            model = bambi.Model(
                formula, data, family=name, priors=priors, auto_scale=False, center_predictors=False, noncentered=False,
                extra_namespace={"np": np}, **options,
            )  # fmt: skip
            model.build()
    except Exception as error:  # formulae and Bambi raise many types of exceptions
        reason = next(iter(str(error).splitlines()), type(error).__name__).rstrip(".")
        raise ValueError(
            f"Bambi could not build {formula!r} with family {name!r}: {reason}. Columns are {list(schema.names)}."
        ) from error
    values = data[own[0]].to_numpy(np.float64) if name in ("gaussian", "t", "gamma") else None
    built = _with_default_priors(model, name, values, priors or {}, release.weights.values)
    deterministics = list(built.deterministics)
    built.deterministics.clear()  # PyMC's lists cannot be assigned to
    for var in deterministics:
        if len(frame) not in var.shape.eval():
            built.deterministics.append(var)
        else:
            built.named_vars.pop(var.name)
            built.named_vars_to_dims.pop(var.name, None)
    predictors = [column for column in used if column != own[0]]
    return built, name, f"{quoted(own[0])} ~ {' + '.join(map(quoted, predictors)) or '1'}"


def _with_default_priors(model: Any, family: str, response: Array | None, given: Any, weights: Array) -> Any:
    """Return the PyMC model of a built Bambi model, with the default priors of `regression`, except for `given` ones.

    Predictors are not centred, but the priors of intercept and thresholds apply at their weighted means.
    """
    import pymc as pm
    from pymc.model.fgraph import ModelFreeRV

    from iwbayes.analyst.weighting.reweight import transform_model

    parts = model.parameters if hasattr(model, "parameters") else model.components
    part, share = parts[model.family.likelihood.parent], weights / weights.sum()
    y_mean, y_sd = (0.0, 1.0) if response is None else response_scale(response, share)
    if family == "gamma":
        y_mean, y_sd = math.log(y_mean), 1.0
    columns = {name: np.reshape(term.data, (len(share), -1)) for name, term in part.common_terms.items()}
    ends = np.cumsum([0, *(data.shape[1] for data in columns.values())])
    places = dict(zip(columns, map(slice, ends, ends[1:]), strict=True))
    means, scales = column_scales(np.hstack([np.empty((len(share), 0)), *columns.values()]), share, [*places.values()])
    sds: dict[str, Any] = {name: SCALE * y_sd / scales[at] for name, at in places.items()}
    sds |= {"Intercept": SCALE * y_sd, "threshold": SCALE, "sigma": y_sd}
    for name, term in part.group_specific_terms.items():
        own = np.reshape(term.predictor, (len(share), -1))
        sds[f"{name}_sigma"] = SCALE * y_sd / (1.0 if term.kind == "intercept" else column_scales(own, share, [])[1])
        if own.shape[1] == 1 and abs(np.mean(own)) > _FAR * np.std(own) > 0:
            slope, _, group = name.partition("|")
            center = np.format_float_positional(float(f"{np.mean(own):.3g}"), trim="-")
            warnings.warn(
                f"the values of {slope!r} in ({slope}|{group}) are far from zero (mean {center}, standard deviation "
                f"{np.std(own):.2g}), where the group effects of the intercept are defined. Their default prior hardly "
                f"allows lines that differ. Write (I({slope} - {center})|{group}).",
                IwbayesWarning,
                stacklevel=6,
            )
    given = {*given, *(f"{name}_sigma" for name in given)}

    built = model.backend.model
    spread = np.linspace(-2, 2, int(built["threshold"].shape.eval()[0])) if "threshold" in built.named_vars else None

    def edit(fgraph: Any, name: str, rv: Any, value: Any) -> Any:
        if name in given or name not in sds:
            return rv
        sd: Any = np.asarray(sds[name], dtype=np.float64)
        if sd.size == 1:
            sd = sd.reshape(())
        elif rv.type.ndim > 1:  # dimensions: columns, then levels of the response
            sd = sd[:, None]
        size = rv.owner.op.size_param(rv.owner)
        if name == "sigma":
            return pm.HalfStudentT.dist(SIGMA_DOF, sd, size=size)
        if name not in places and name not in ("Intercept", "threshold"):
            return pm.HalfNormal.dist(sd, size=size)
        location: Any = 0.0
        if name not in places:
            slopes = {node.outputs[0].name: node.outputs[0] for node in fgraph.apply_nodes}
            found = [means[at] @ slopes[own].reshape((at.stop - at.start, -1)) for own, at in places.items()]
            by_level = name == "Intercept" and rv.type.ndim  # an intercept for each level of the response
            at_means: Any = sum(one if by_level else one[0] for one in found)
            location = y_mean - at_means if spread is None else spread + at_means
        return pm.Normal.dist(location, sd, size=size)

    return transform_model(built, edit, kind=ModelFreeRV)


def _trials(formula: str) -> tuple[str, str] | None:
    """Return the columns of successes and trials of a binomial response, or None for other responses."""
    found = _TRIALS.match(re.sub(r"\s*([(),])\s*", r"\1", formula.partition("~")[0].strip()))
    return None if found is None else (found[1].strip("`"), found[2].strip("`"))


def _ready_response(data: pd.DataFrame, own: tuple[str, ...], schema: Schema, family: str) -> pd.DataFrame:
    """Check the response and convert it to the form that Bambi reads; clip cells outside the family's support."""
    if family not in BUILT_FAMILIES:
        known = get_family(family)
        response = known.response(schema[own[0]], data[own[0]])
        return data if known.by_level else data.assign(**{own[0]: response.values})
    kind = BUILT_FAMILIES[family]
    for name in own:
        kind.check(schema[name])
    if family == "binomial" and len(own) == 1:
        raise ValueError(f"the response of family 'binomial' must be {kind.needs}; got {own[0]!r}.")
    values = data[own[0]]
    if family == "cumulative":
        values = values.cat.remove_unused_categories()
    elif family == "binomial":
        values = _within(values, f"more than {own[1]}", upper=data[own[1]])
    elif family == "gamma":
        values = _within(values, "zero or negative", lower=values[values > 0].min())
    return data.assign(**{own[0]: values})


def _within(values: pd.Series, why: str, *, lower: Any = None, upper: Any = None) -> pd.Series:
    """Clip cells to the bounds, and warn with the number of cells changed."""
    clipped = values.clip(lower=lower, upper=upper)
    if changed := int((clipped != values).sum()):
        warnings.warn(
            f"{changed} of {len(values)} synthetic rows have a value of {values.name!r} that is {why}. Private rows "
            "cannot have these values, so the cells are set to the nearest allowed value.",
            IwbayesWarning,
            stacklevel=5,
        )
    return clipped
