"""Priors that the user gives as PyMC distributions: checks, and log densities in Python mode."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from iwbayes.models.design import Design
from iwbayes.models.priors import Density, LogPrior, PriorScales

Priors = Mapping[str, Any]


def log_prior(design: Design, scales: PriorScales, priors: Priors | None = None) -> LogPrior:
    """Return the joint prior of a regression; given priors replace default priors by name.

    Given priors are evaluated in Python mode, because compiling would take longer.
    """
    shapes = {term.name: design.shape(term) for term in design.terms}
    return LogPrior(
        design,
        scales,
        {
            name: _density(prior, shapes.get(name, ()), positive=name == design.auxiliary)
            for name, prior in checked_priors(design, priors).items()
        },
    )


def checked_priors(design: Design, priors: Priors | None) -> dict[str, Any]:
    """Return the given priors as a dict after checking their names and types."""
    priors = dict(priors or {})
    if not priors:
        return {}
    from pytensor.graph.traversal import ancestors
    from pytensor.tensor.random.op import RandomVariable
    from pytensor.tensor.random.type import RandomType

    names = [term.name for term in design.terms] + [name for name in (design.auxiliary,) if name]
    unknown = sorted(set(priors) - set(names))
    if unknown:
        raise ValueError(f"priors must name parameters of the model; got {unknown}. Use names from {names}.")
    for name, prior in priors.items():
        owner = getattr(prior, "owner", None)
        if owner is None or not hasattr(owner.op, "ndim_supp"):
            raise TypeError(
                f"the prior of {name!r} must be a distribution such as pm.Normal.dist(0, 1); "
                f"got {type(prior).__name__}."
            )
        inner = [v for v in ancestors(owner.inputs) if v.owner and isinstance(v.owner.op, RandomVariable)]
        if any(not isinstance(v.type, RandomType) for v in inner):
            raise ValueError(
                f"the prior of {name!r} must have fixed parameters; it depends on another random variable. For a "
                "hierarchical prior write the model in PyMC and weight it with reweight()."
            )
    return priors


def sized(prior: Any, shape: tuple[int, ...]) -> Any:
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
    """Compile a PyMC prior; a positive parameter is evaluated in the space of its logarithm."""
    import pymc as pm
    import pytensor.tensor as pt
    from pytensor.graph.replace import vectorize_graph

    from iwbayes.analyst.weighting.graph_functions import interpreted

    size = int(np.prod(shape))
    x = pt.vector("x", shape=(size,), dtype="float64")
    point = pt.exp(x) if positive else x
    density = pm.logp(sized(prior, shape), point.reshape(shape)).sum() + (x.sum() if positive else 0.0)
    gradient: Any = pt.grad(density, x, disconnected_inputs="ignore")
    rows: list[Any] = [pt.grad(gradient[i], x, disconnected_inputs="ignore") for i in range(size)]
    batch = pt.matrix("batch", shape=(None, size), dtype="float64")
    values = interpreted([batch], vectorize_graph(density, {x: batch}))
    return values, interpreted([x], [gradient, pt.stack(rows)])
