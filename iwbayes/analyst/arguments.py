"""Checks of arguments that several functions share: each message states rule, value and remedy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, get_args

import numpy as np

from iwbayes.release import Release
from iwbayes.utils import checks

#: Methods to draw from a posterior.
Method = Literal["auto", "laplace", "nuts"]
#: Seconds after which NUTS stops by default.
TIME_LIMIT = 600.0
# Arguments of pymc.sample that are not allowed, and why.
_NOT_ALLOWED = (
    (
        {"chains", "draws", "initvals", "model", "random_seed", "return_inferencedata", "step", "var_names"},
        "each run sets these itself. Leave them out. draws, chains and random_seed are arguments of fit; calibrate "
        "takes random_seed and keeps the number of draws.",
    ),
    (
        {"init", "jitter_max_retries", "n_init", "nuts_sampler"},
        "PyMC's NUTS starts at the mode, in units of the curvature there. Leave it out. To sample in a different way, "
        "use reweight() and pass the weighted model to pymc.sample.",
    ),
)


def check_total(total: Any, remedy: str = "Use release.n_private.") -> None:
    """Raise unless a total is None or a positive finite number; `remedy` is a sentence for the message."""
    if total is not None:
        checks.positive("total", total, remedy)


def check_pool_total(total: float, n_private: int) -> None:
    """Raise unless the weights sum to the number of private rows, as each weight draw must in a pool."""
    if not np.isclose(total, n_private, rtol=1e-6):
        raise ValueError(
            f"to pool posteriors, the weights must sum to the number of private rows, {n_private}, because each weight "
            f"draw represents these rows; they sum to {total:.6g}. Use reweight(model, release.weights, "
            "total=release.n_private)."
        )


def check_sampling(method: str, sampler: Any) -> dict[str, Any]:
    """Return the additional arguments of ``pymc.sample``; raise for an unknown method and for others than allowed."""
    checks.one_of("method", method, get_args(Method), "'auto' works for most models.")
    if sampler is not None and not isinstance(sampler, Mapping):
        raise TypeError(
            f"sampler must be a dict of arguments of pymc.sample; got {type(sampler).__name__}. Pass, for example, "
            'sampler={"tune": 500}.'
        )
    options = dict(sampler or {})
    for names, why in _NOT_ALLOWED:
        if found := sorted(names & set(options)):
            raise ValueError(f"sampler must not contain {found}, because {why}")
    seconds = options.get("max_seconds", TIME_LIMIT)
    if not checks.is_real(seconds) or not seconds > 0:
        raise ValueError(
            f"sampler's max_seconds must be a positive number; got {seconds!r}. The default is {TIME_LIMIT:g}."
        )
    return options


def check_release(release: Any) -> Release:
    """Return a release; raise for other objects."""
    if not isinstance(release, Release):
        raise TypeError(f"release must be a Release; got {type(release).__name__}. Use iwbayes.load(path).")
    return release


def check_pymc_model(model: Any, remedy: str = "") -> None:
    """Raise unless a model is one of PyMC; `remedy` is a sentence for the message."""
    import pymc as pm

    if isinstance(model, pm.Model):
        return
    if hasattr(model, "backend"):
        # predict and interpret of Bambi need the intercept of predictors that are not centred
        remedy = (
            "Build the Bambi model with center_predictors=False (and noncentered=False if it has group effects), and "
            f"pass its backend.model. {remedy}"
        )
    raise TypeError(f"model must be a PyMC model; got {type(model).__name__}. {remedy}".rstrip())


def check_enough_draws(n_draws: int, n_parameters: int) -> None:
    """Raise if there are too few draws to estimate a covariance, which calibration needs."""
    if n_draws <= n_parameters:
        raise ValueError(
            f"calibration needs more draws than parameters; got {n_draws} for {n_parameters}. Draw more, or do not "
            "calibrate (in fit, calibrate='none')."
        )
