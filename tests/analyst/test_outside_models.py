"""What an analyst is told who fits another model than the release was made for."""

from dataclasses import replace

import numpy as np
import pytest
from factories import SCHEMA, make_release, seeded_release, simulated_table

import iwbayes as iw
from iwbayes.analyst.released_tilt import ReleasedTilt
from iwbayes.evidence.formulas import model_options


def unmeasured(release: iw.Release, formula: str) -> str | None:
    tilt = ReleasedTilt.of(release)
    return None if tilt is None else tilt.unmeasured(formula)


def release_for(*formulas: str, level: int = 0) -> iw.Release:
    """Release by hand of the richest set of terms for some models, or of a poorer one."""
    return make_release(features=model_options(formulas, SCHEMA)[level][1])


@pytest.mark.parametrize(
    ("made_for", "fitted"),
    [
        ("z ~ x + g", "z ~ x + g"),
        ("z ~ x + g", "z ~ x"),
        ("z ~ x + g", "z ~ 0 + C(g)"),
        ("z ~ x + g", "z ~ I((x - 1) / 2)"),
        ("z ~ x + g", "x ~ z"),
        ("z ~ x*k", "z ~ x + k"),
        ("z ~ poly(x, 2)", "z ~ x"),
        ("z ~ x", "z ~ 1"),
        ("z ~ x + k", "x ~ k"),
    ],
)
def test_models_inside(made_for, fitted):
    assert unmeasured(release_for(made_for), fitted) is None


@pytest.mark.parametrize(
    ("made_for", "fitted", "absent"),
    [
        ("z ~ x", "z ~ x + k", "k, k:z"),
        ("z ~ x + k", "z ~ x*k", "x:k:z"),
        ("z ~ x", "z ~ I(x**2)", "x^2:z"),
        ("z ~ x + g", "x ~ k", "k, x:k"),
        ("z ~ x", "z ~ g", "g[u], g[v], g[w] and 3 more"),
    ],
)
def test_models_outside_are_told_with_what_is_missing(made_for, fitted, absent):
    reason = unmeasured(release_for(made_for), fitted)
    assert f"the release did not measure {absent}, and the interval may be too narrow. Request" in reason
    assert f"for_models=[{fitted!r}]" in reason and reason.endswith(".")


def test_what_the_budget_left_out_is_told():
    formula = "y ~ x + k"
    rich, middle, poor = (unmeasured(release_for(formula, level=level), formula) for level in range(3))
    assert rich is None
    for reason, absent in ((middle, "x:k"), (poor, "x^2, x:k, y^2 and 1 more")):
        assert reason.endswith(
            f"measure {absent}, and the interval may be too narrow. "
            "Request a release with more private rows or a larger epsilon."
        )
    # of another model it is not the budget
    assert "with for_models=['y ~ x + g']" in unmeasured(release_for(formula, level=2), "y ~ x + g")


@pytest.mark.parametrize("formula", ["z ~ np.exp(x)", "z ~ nobody", "nonsense"])
def test_what_cannot_be_measured_is_outside(formula):
    reason = unmeasured(release_for("z ~ x"), formula)
    assert "made for other models, and cannot measure this one" in reason


def test_what_releases_for_no_model_in_particular_have_measured():
    formula = "z ~ x + k"
    reason = unmeasured(make_release(features="linear"), formula)
    assert reason == (
        "the release did not measure x:z, k:z, and the interval may be too narrow. Request a release with "
        f"for_models=[{formula!r}]."
    )
    assert "x:z, k:z" in unmeasured(make_release(features="squares"), formula)
    rich = make_release(features="quadratic", n=2000)
    for inside in (formula, "y ~ x + k + g", "g ~ x + z"):
        assert unmeasured(rich, inside) is None
    # a regression leaves rows with a missing cell out: the product of response and predictor counts without them
    assert "x:m[missing]:g[u]" in unmeasured(rich, "g ~ m + x + z")
    assert "did not measure x:k:z" in unmeasured(rich, "z ~ x*k")
    # what is no polynomial, such as the exponential of a column, no release measures: it says nothing
    assert unmeasured(rich, "z ~ np.exp(x)") is None


def test_weights_that_are_no_tilt_say_nothing():
    chosen = release_for("z ~ x")
    bare = replace(chosen, weights=replace(chosen.weights, measurement=None))
    assert unmeasured(bare, "z ~ x*k") is None


def test_through_publish_and_a_file(tmp_path):
    release = seeded_release(simulated_table("bernoulli", 400), for_models=["y ~ x"], n_synthetic=600)
    back = iw.load(release.save(tmp_path / "r.iwb", allow_uncertified=True))
    for found in (release, back):
        assert unmeasured(found, "y ~ x") is None
        said = unmeasured(found, "y ~ x + z")
        assert "the release was made for y ~ x." in said and "for_models=['y ~ x + z']" in said
        assert np.isfinite(found.weights.log_weights).all()
