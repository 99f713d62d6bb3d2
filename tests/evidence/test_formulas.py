"""Terms that regressions ask for: by hand, against the design matrices themselves, and what is refused."""

import sys

import numpy as np
import pandas as pd
import pytest
from formulaic import Formula

import iwbayes as iw
from iwbayes.evidence.formulas import check_formulas, model_options, model_terms, read_formula, reduced
from iwbayes.evidence.terms import MAX_RAW_TERMS, check_terms, ordered_terms, raw_chunks, raw_names
from iwbayes.models.design import build_design
from iwbayes.schema import Binary, Categorical, Integer, Real, Schema

SCHEMA = Schema(
    Binary("y"),
    Real("x", -3, 9),
    Integer("n", 0, 5),
    Binary("b", levels=("no", "yes")),
    Categorical("c", levels=("u", "v", "w")),
    Real("pay", 0, 1000, transform="log1p"),
    Real("gap", 0, 1, missing=True),
    Real("two words", 0, 1),
)


def rows(n: int = 400) -> pd.DataFrame:
    rng = np.random.default_rng(1)
    frame = pd.DataFrame(
        {
            "y": rng.integers(0, 2, n),
            "x": rng.uniform(-3, 9, n),
            "n": rng.integers(0, 6, n),
            "b": rng.choice(["no", "yes"], n),
            "c": rng.choice(["u", "v", "w"], n),
            "pay": rng.gamma(1, 100, n),
            "gap": np.where(rng.random(n) < 0.3, np.nan, rng.random(n)),
            "two words": rng.random(n),
        }
    )
    return SCHEMA.conform(frame)


def names(terms) -> set[str]:
    return set(raw_names(SCHEMA, ordered_terms(terms)))


def level(formula: str, name: str) -> set[str]:
    return names(dict(model_options((formula,), SCHEMA))[name])


# --- by hand


def test_a_logistic_regression_by_hand():
    model = model_terms("y ~ x + b", SCHEMA)
    assert names(model.core) == {"y", "x", "b", "y:x", "y:b"}
    assert names(model.squares) == {"x^2"}
    assert names(model.products - model.core) == {"x^2", "x:b"}
    assert level("y ~ x + b", "model") == {"y", "x", "b", "y:x", "y:b"}
    assert level("y ~ x + b", "model and square") == {"y", "x", "b", "y:x", "y:b", "x^2"}
    assert level("y ~ x + b", "model, square and product") == {"y", "x", "b", "y:x", "y:b", "x^2", "x:b"}


@pytest.mark.parametrize(
    ("formula", "expected"),
    [
        ("y ~ 1", {"y"}),
        ("y ~ b", {"y", "b", "y:b"}),
        ("y ~ 0 + b", {"y", "b", "y:b"}),
        ("x ~ n", {"x", "n", "x:n"}),
        ("c ~ x", {"x", "c[u]", "c[v]", "c[w]", "x:c[u]", "x:c[v]", "x:c[w]"}),
        ("y ~ x:b", {"y", "x", "b", "x:b", "y:x", "y:b", "y:x:b"}),
        ("y ~ x*b", {"y", "x", "b", "x:b", "y:x", "y:b", "y:x:b"}),
        ("y ~ I(x**2)", {"y", "x", "x^2", "y:x", "y:x^2"}),
        ("y ~ poly(x, 2)", {"y", "x", "x^2", "y:x", "y:x^2"}),
        ("y ~ poly(x, degree=2)", {"y", "x", "x^2", "y:x", "y:x^2"}),
        ("y ~ poly(x, raw=True, degree=2)", {"y", "x", "x^2", "y:x", "y:x^2"}),
        ("y ~ poly(x, 2, True)", {"y", "x", "x^2", "y:x", "y:x^2"}),
        ("y ~ poly(x)", {"y", "x", "y:x"}),
        ("y ~ I(`two words` * `x`)", {"y", "x", "two words", "x:two words", "y:x", "y:two words", "y:x:two words"}),
        ("y ~ C(`b`)", {"y", "b", "y:b"}),
        ("y ~ I((x - 3) / 10)", {"y", "x", "y:x"}),
        ("y ~ center(x) + scale(n)", {"y", "x", "n", "y:x", "y:n"}),
        ("y ~ C(b) + `two words`", {"y", "b", "two words", "y:b", "y:two words"}),
        ("y ~ np.log1p(pay)", {"y", "pay", "y:pay"}),
        ("I(-x * 2 + 1) ~ b", {"x", "b", "x:b"}),
        ("y ~ gap", {"y", "gap", "gap[missing]", "y:gap", "y:gap[missing]"}),
        ("y ~ I(b * b)", {"y", "b", "y:b"}),
    ],
)
def test_the_core_by_hand(formula, expected):
    assert names(model_terms(formula, SCHEMA).core) == expected


def test_products_are_dropped_first_then_squares():
    options = model_options(("x ~ n + b",), SCHEMA)
    assert [name for name, _ in options] == ["model, square and product", "model and square", "model"]
    richest, middle, poorest = (set(terms) for _, terms in options)
    assert names(middle - poorest) == {"x^2", "n^2"} and names(richest - middle) == {"n:b"}
    for _, terms in options:
        check_terms(SCHEMA, terms)
    # a level that adds nothing is left out
    assert [name for name, _ in model_options(("y ~ b",), SCHEMA)] == ["model"]
    assert [name for name, _ in model_options(("y ~ x",), SCHEMA)] == ["model and square", "model"]


def test_several_models_are_a_union():
    one, two = (set(model_options((formula,), SCHEMA)[0][1]) for formula in ("y ~ x + b", "n ~ b"))
    assert set(model_options(("y ~ x + b", "n ~ b"), SCHEMA)[0][1]) == one | two


def test_products_of_features_in_their_lowest_degree():
    index = {name: at for at, name in enumerate(SCHEMA.feature_names)}
    y, x, u, v, gap, absent = (index[name] for name in ("y", "x", "c[u]", "c[v]", "gap", "gap[missing]"))
    assert reduced((x, y, x), SCHEMA) == (y, x, x)
    assert reduced((y, y), SCHEMA) == () and reduced((y, y, y), SCHEMA) == (y,)
    assert reduced((u, u), SCHEMA) == (u,) and reduced((u, v), SCHEMA) is None
    assert reduced((absent, absent), SCHEMA) == (absent,) and reduced((gap, absent), SCHEMA) is None


# --- against the design itself


def spanned(wanted: np.ndarray, terms, frame: pd.DataFrame) -> float:
    """Largest distance of columns from the linear combinations of the constant and the raw terms, in their own size."""
    [(_, raw)] = raw_chunks(SCHEMA, ordered_terms(terms), frame)
    basis = np.column_stack([np.ones(len(raw)), raw])
    left = wanted - basis @ np.linalg.lstsq(basis, wanted, rcond=None)[0]
    return float((np.abs(left).max(axis=0) / np.abs(wanted).max(axis=0).clip(1e-9)).max())


def parts(formula: str, frame: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """Statistics of the response, one column each, and the design."""
    lhs, rhs = (part.strip() for part in formula.split("~"))
    design = Formula(rhs).get_model_matrix(frame, context={"np": np}).to_numpy(dtype=float)
    return Formula("0 + " + lhs).get_model_matrix(frame, context={"np": np}).to_numpy(dtype=float), design


FORMULAS = [
    "y ~ x + b",
    "y ~ x + n + c",
    "x ~ n + C(b) + c",
    "c ~ x + n",
    "n ~ x*b",
    "x ~ b:c + n",
    "y ~ x:n - 1",
    "n ~ I(x**2) + poly(x, 3)",
    "np.log1p(pay) ~ scale(x) + I((n - 2) * x / 3)",
    "y ~ (x + n + b)**2",
    "b ~ np.log1p(pay):c",
]


@pytest.mark.parametrize("formula", FORMULAS)
def test_the_scores_lie_in_the_span(formula):
    """Every column of the response times every column of the design, and those of the design alone."""
    frame = rows()
    model = model_terms(formula, SCHEMA)
    response, design = parts(formula, frame)
    scores = (response[:, :, None] * design[:, None, :]).reshape(len(frame), -1)
    assert spanned(np.hstack([response, design, scores]), model.core, frame) < 1e-9
    # of a linear regression also x x' and y^2; the latter times the terms of degree 1 that are in the core anyway
    seconds = (design[:, :, None] * design[:, None, :]).reshape(len(frame), -1)
    everything = model.core | model.squares | model.products
    assert spanned(np.hstack([seconds, response**2]), everything, frame) < 1e-9


@pytest.mark.parametrize("formula", ["y ~ x + b", "n ~ x*b", "x ~ n + I(n**2)"])
def test_nothing_in_the_core_can_be_left_out(formula):
    frame = rows()
    core = model_terms(formula, SCHEMA).core
    response, design = parts(formula, frame)
    scores = (response[:, :, None] * design[:, None, :]).reshape(len(frame), -1)
    wanted = np.hstack([response, design, scores])
    for term in core:
        assert spanned(wanted, core - {term}, frame) > 1e-3, term


def test_rows_with_missing_cells_are_left_out_within_the_span():
    """One column with missing cells: the scores of the complete rows, zero elsewhere, are spanned exactly."""
    frame = rows()
    complete = frame["gap"].notna().to_numpy()
    x = frame["gap"].fillna(0).to_numpy()
    y = frame["y"].to_numpy()
    scores = np.column_stack([complete, y * complete, x * complete, y * x * complete]).astype(float)
    assert spanned(scores, model_terms("y ~ gap", SCHEMA).core, frame) < 1e-9


# --- refusals


@pytest.mark.parametrize(
    ("formula", "message"),
    [
        ("y ~ z", r"must use columns of the schema; got \['z'\]"),
        ("z ~ x", r"must use columns of the schema; got \['z'\]"),
        ("y ~ poly(z, 2)", r"must use columns of the schema; got \['z'\]"),
        ("y ~ np.log(x)", r"np\.log\(x\) is not a polynomial.*declared column"),
        ("y ~ np.log1p(x)", "not declared with transform='log1p'"),
        ("y ~ pay", "Write np.log1p"),
        ("pay ~ y", "Write np.log1p"),
        ("y ~ I(1 / x)", "not a polynomial"),
        ("y ~ I(x ** 0.5)", "not a polynomial"),
        ("y ~ I(x ** -1)", "not a polynomial"),
        ("y ~ I(x > 2)", "not a polynomial"),
        ("y ~ bs(x, df=4)", "not a polynomial"),
        ("y ~ C(x)", "not a polynomial"),
        ("y ~ poly(x, degree=n)", "not a polynomial"),
        ("y ~ poly(x, degree='2')", "not a polynomial"),
        ("y ~ poly(x, degree=True)", "not a polynomial"),
        ("y ~ poly(x, 0)", "not a polynomial"),
        ("y ~ poly(x, df=2)", "not a polynomial"),
        ("y ~ poly(`two words`, 4)", r"poly\(`two words`, 4\) has a degree above 3"),
        ("y ~ np.log(`two words`)", r"np\.log\(`two words`\) is not a polynomial"),
        ("y ~ I(`no words` ** 2)", r"must use columns of the schema; got \['no words'\]"),
        ("y ~ I(c)", "column with levels, used inside"),
        ("y ~ I(x ** 4)", "degree above 3"),
        ("y ~ I(x ** 999999999)", "degree above 3"),
        ("y ~ I(x * x * n * n)", "degree above 3"),
        ("y ~ I(x**2):I(n**2)", "degree above 3"),
        ("y ~ x:n:b:c", "degree above 3"),
        ("y + x ~ n", "one response"),
        ("1 ~ n", "one response"),
        ("y:x ~ n", "one response"),
        ("x", "a response and one right-hand side"),
        ("~ x", "a response and one right-hand side"),
        ("", "a response and one right-hand side"),
        ("y ~ x | n", "a response and one right-hand side"),
        ("y ~ (1 | c)", "cannot be read"),
        ("y ~ x $ n", "cannot be read"),
        ("y ~ x +", "cannot be read"),
        ("y ~ I(2, **x)", "not a polynomial"),
        ("y ~ I(x if n else 2)", "not a polynomial"),
        ("y ~ (]n}-", "cannot be read"),
    ],
)
def test_what_is_no_polynomial_model_is_refused(formula, message):
    with pytest.raises(ValueError, match=message):
        model_terms(formula, SCHEMA)


@pytest.mark.parametrize(
    ("formula", "message"),
    [
        ("y ~ `wage (EUR)`", r"Write np\.log1p\(`wage \(EUR\)`\), or declare the column without the transform"),
        ("y ~ np.log1p(net wage (EUR))", r"read: invalid syntax.*\. Write .*signs in backticks: `net wage \(EUR\)`\."),
        ("y ~ wage (EUR)", r"cannot be read: .*signs in backticks: `wage \(EUR\)`\."),
        ("y ~ a-b", r"must use columns of the schema; got .*signs in backticks: `a-b`\."),
        ("y ~ x $ n", r"cannot be read: .*signs in backticks, such as `a name`\."),
        ("y ~ (]n}-", "cannot be read: its brackets do not match"),
        ("y ~ x + (1|region)", r"made for plain columns, y ~ x \+ region"),
        ("y ~ x | region", r"made for plain columns, y ~ x \+ region"),
        ("y ~ `no such`", "must use columns of the schema; got \\['no such'\\]"),
    ],
)
def test_messages_say_how_names_and_groups_are_written(formula, message):
    wages = (Real(name, 0, 9, transform="log1p") for name in ("wage (EUR)", "net wage (EUR)"))
    schema = Schema(Binary("y"), Real("x", 0, 1), *wages, Real("a-b", 0, 1), Categorical("region", ("u", "v")))
    with pytest.raises(ValueError, match=message) as caught:
        model_terms(formula, schema)
    assert "<unknown>" not in str(caught.value) and "\n" not in str(caught.value)
    if formula not in ("y ~ `wage (EUR)`", "y ~ x + (1|region)"):  # which are models, though not of encoded columns
        cells = {"y": [0, 1], "region": "u"}
        frame = schema.conform(pd.DataFrame({name: cells.get(name, [0.5, 0.5]) for name in schema.names}))
        with pytest.raises(ValueError, match="plain column|backticks|do not match|must use columns of the schema"):
            build_design(formula, frame, schema, "bernoulli")
    assert model_terms("y ~ np.log1p(`wage (EUR)`) + `a-b` + region", schema).core


def test_columns_called_like_those_that_stand_for_quoted_names():
    schema = Schema(Binary("y"), Real("column_2", 0, 1), Real("a b", 0, 1))
    found = model_terms("y ~ I(column_2 ** 2) + I(`a b` ** 3)", schema).core
    assert set(raw_names(schema, ordered_terms(found))) >= {"column_2^2", "a b^3"}
    assert "column_2^3" not in raw_names(schema, ordered_terms(found))
    with pytest.raises(ValueError, match=r"must use columns of the schema; got \['column_1'\]"):
        model_terms("y ~ I(column_1 ** 2) + I(`a b`)", schema)


def test_rows_with_missing_levels_are_left_out_too():
    schema = Schema(Binary("y"), Real("a", 0, 1), Categorical("g", ("u", "v"), missing=True), Real("b", 0, 1))
    found = set(raw_names(schema, ordered_terms(model_terms("y ~ a + g", schema).core)))
    assert {"y", "a", "y:a", "y:g[missing]", "a:g[missing]", "y:a:g[missing]"} <= found
    assert not any("b" in name.split(":") for name in found)


def test_what_is_no_list_of_formulas_is_refused():
    for wrong in ("y ~ x", 3, {"y ~ x"}, None):
        with pytest.raises(TypeError, match=r"list of formulas such as \['y ~ a \+ b'\]"):
            check_formulas(wrong)
    with pytest.raises(TypeError, match="must contain formulas.*got int"):
        check_formulas(["y ~ x", 3])
    assert check_formulas(["y ~ x"]) == ("y ~ x",)


def test_models_with_too_many_terms():
    levels = [f"l{index}" for index in range(60)]
    schema = Schema(Binary("y"), Categorical("g", levels), Categorical("h", levels))
    [(name, terms)] = model_options(("y ~ g + h",), schema)  # 3600 products of the two are not tried
    assert name == "model" and len(terms) == 1 + 2 * 60 + 2 * 60
    with pytest.raises(ValueError, match=f"3720 features; at most {MAX_RAW_TERMS} are supported. Merge levels"):
        model_options(("g ~ h",), schema)


def test_the_square_of_a_polynomial_response_is_measured():
    schema = Schema(Real("a", -1, 1), Integer("k", 0, 5))
    squared = model_terms("I(k**2) ~ a", schema).squares
    assert {(1, 1, 1), (1, 1, 1, 1)} <= squared  # k is centred: (k^2)^2 needs its third power too


@pytest.mark.parametrize("inner", ["+".join(["a"] * 3000), "-" * 3000 + "a"])
def test_formulas_nested_too_deeply_are_refused(inner):
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(1000)  # as it is where nobody has raised it
    try:
        with pytest.raises(ValueError, match="nested too deeply"):
            model_terms(f"y ~ I({inner})", Schema(Real("a", -1, 1), Binary("y")))
    finally:
        sys.setrecursionlimit(limit)


def test_an_expression_is_no_column_of_that_name():
    schema = Schema(Real("a", -1, 1), Real("b", -1, 1), Real("a + b", -1, 1), Binary("y"))
    assert model_terms("y ~ {a + b}", schema).design == {(), (0,), (1,)}
    assert model_terms("y ~ `a + b`", schema).design == {(), (2,)}


@pytest.mark.parametrize(
    ("formula", "match"),
    [
        ("y ~", "nothing on its right"), ("y ~ 0", "nothing on its right"), ("y ~ y", "must not predict"),
        ("y ~ x + I(y**2)", "must not predict"), ("y ~ x*y", "must not predict"),
        ("x ~ poly(x, 2)", "must not predict"), ("np.log1p(pay) ~ pay", "must not predict"),
    ],
)  # fmt: skip
def test_a_formula_that_says_nothing_is_refused_before_the_budget(formula, match):
    with pytest.raises(ValueError, match=match):
        read_formula(formula, SCHEMA)
    ledger = iw.Ledger(1.0, 1e-6)
    frame = SCHEMA.decode(np.random.default_rng(1).uniform(-0.5, 0.5, (50, SCHEMA.n_features)))
    private = iw.PrivateTable(frame, SCHEMA)
    with pytest.raises(ValueError, match=match):
        iw.publish(private, epsilon=1.0, delta=1e-6, for_models=[formula], ledger=ledger, progressbar=False)
    assert ledger.spent == (0, 0)
