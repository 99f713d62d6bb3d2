"""One grammar: what fit documents works with and without group effects and offsets, with the names of Bambi."""

import numpy as np
import pandas as pd
import pytest

import iwbayes as iw
from iwbayes.models.design import build_design
from iwbayes.models.formula_parts import Parts

SCHEMA = iw.Schema(
    iw.Real("x", -2, 2), iw.Real("age", 18, 90), iw.Categorical("grp", ["low", "mid", "high"]),
    iw.Categorical("lev", ["a|b", "c d", "e"]), iw.Categorical("h", ["p", "q"]), iw.Binary("y"), iw.Real("z", 0, 1),
    iw.Categorical("my group", ["s", "t"]),
)  # fmt: skip
RNG, N = np.random.default_rng(1), 200
FRAME = SCHEMA.conform(
    pd.DataFrame({
        "x": RNG.uniform(-2, 2, N), "age": RNG.uniform(18, 90, N), "grp": RNG.choice(["low", "mid", "high"], N),
        "lev": RNG.choice(["a|b", "c d", "e"], N), "h": RNG.choice(["p", "q"], N), "y": RNG.integers(0, 2, N),
        "z": RNG.random(N), "my group": RNG.choice(["s", "t"], N),
    })
)  # fmt: skip
#: Right-hand sides, and the levels or columns of their last term.
NAMES = {
    "grp": ("grp", ["mid", "high"]),
    "C(grp, Treatment('high'))": ("C(grp, Treatment('high'))", ["low", "mid"]),
    "C(grp, contr.treatment('high'))": ("C(grp, contr.treatment('high'))", ["low", "mid"]),
    "C(lev, Treatment('a|b'))": ("C(lev, Treatment('a|b'))", ["c d", "e"]),
    "0 + grp": ("grp", ["low", "mid", "high"]),
    "x/grp": ("x:grp", ["mid", "high"]),
    "grp/x": ("grp:x", ["low", "mid", "high"]),
    "grp:h": ("grp:h", ["q", "mid, p", "high, p", "mid, q", "high, q"]),
    "poly(x, 2)": ("poly(x, 2)", [0, 1]),
    "bs(x, df=4)": ("bs(x, df=4)", [0, 1, 2, 3]),
    "cr(x, df=4) - 1": ("cr(x, df=4)", [0, 1, 2, 3]),
    "I(age > 50)": ("I(age > 50)", None),
    "I(age * 0.1)": ("I(age * 0.1)", None),
    "I((x > 0) | (z > 0.5))": ("I((x > 0) | (z > 0.5))", None),
    "np.log(age)": ("np.log(age)", None),
    "scale(x)": ("scale(x)", None),
}


def design(right, family=None):
    return build_design(f"y ~ {right}", FRAME, SCHEMA, family)


@pytest.mark.parametrize("right", NAMES)
@pytest.mark.parametrize("more", ["", " + (1|h)", " + offset(z)", " + (x|`my group`)"])
def test_terms_and_names_are_the_same_on_both_paths(right, more):
    plain, found = design(right), design(right + more)
    name, labels = NAMES[right]
    term = found.terms[-1]
    assert (term.name, None if term.labels is None else list(term.labels)) == (name, labels)
    assert found.terms == plain.terms and found.columns == plain.columns
    np.testing.assert_array_equal(found.x, plain.x)
    assert found.fast is (not more)


def test_a_dot_is_all_columns_but_groups():
    assert [term.name for term in design(". + (1|grp)").terms] == ["Intercept", "x", "age", "lev", "h", "z", "my group"]


def test_columns_of_group_effects():
    """Of each term: group, then column, in rows of the group only; and offsets are added up."""
    found = design("x + (h|grp) + offset(z) + offset(x)")
    [own] = found.effects
    assert own.labels == ("low", "mid", "high") and [own.variable(term) for term in own.terms] == ["1|grp", "h|grp"]
    member = np.stack([FRAME["grp"] == level for level in own.labels], axis=1)
    second = (FRAME["h"] == "q").to_numpy()[:, None]
    shift = (FRAME["z"] + FRAME["x"]).to_numpy()[:, None]
    np.testing.assert_allclose(found.full, np.concatenate([found.x, member, member * second, shift], axis=1))


@pytest.mark.parametrize(
    ("formula", "response", "common", "groups", "offsets", "trials"),
    [
        ("y ~ x + (1|g)", "y", "x", (("1", ("g",)),), (), None),
        ("y ~ (x + z|g/h)", "y", "1", (("x + z", ("g",)), ("x + z", ("g", "h"))), (), None),
        ("y ~ 0 + x + (0 + x | `my g`:h)", "y", "0 + x", (("0 + x", ("my g", "h")),), (), None),
        ("y ~ I((a | b)) + C(g, Treatment('a|b'))", "y", "I((a | b)) + C(g, Treatment('a|b'))", (), (), None),
        ("p( k , `n of all` ) ~ x + offset(np.log(t)) - 1", "k", "x - 1", (), ("np.log(t)",), "n of all"),
        ("`a|b` ~ `(1|g)` + x", "`a|b`", "`(1|g)` + x", (), (), None),
        ("y ~ (a + b)**2", "y", "(a + b)**2", (), (), None),
        ("np.log(y) ~ a:b", "np.log(y)", "a:b", (), (), None),
    ],
)
def test_parts_of_formulas(formula, response, common, groups, offsets, trials):
    found = Parts.of(formula)
    assert found == Parts(formula, response, common, groups, offsets, trials)
    assert found.plain == (f"{response} ~ {common}" if groups or offsets or trials else formula)


def test_a_basis_with_the_intercept_is_announced():
    with pytest.warns(UserWarning, match=r"columns of 'cr\(x, df=4\)' add up to a constant.* constraints='center'"):
        design("cr(x, df=4)")
    design("cr(x, df=4, constraints='center')")


@pytest.mark.parametrize(
    ("right", "message"),
    [
        ("age/10", r"I\(age \* 0.1\)"),
        ("I(age / 10)", r"I\(age \* 0.1\)"),
        ("factor(grp)", "Functions are C, I, poly, bs"),
        ("ns(x, df=3) + (1|grp)", "Functions are C, I, poly, bs"),
        ("x + (1|grp", r"Group effects are written \(1\|region\) in fit"),
    ],
)
def test_hints_suggest_what_works(right, message):
    with pytest.raises(ValueError, match=message):
        design(right)
