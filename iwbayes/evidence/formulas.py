"""Moments that regressions use, derived from their formulas and the public schema.

The score of a regression of y on x with a canonical link is x (y - m(x'b)): the moments y x and x, to second order in
x'b also x x', and y^2 if a variance is estimated. Formulas are read here but never evaluated.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache, reduce
from itertools import combinations_with_replacement, product
from keyword import iskeyword
from typing import Any

from iwbayes.evidence.terms import MAX_RAW_TERMS, Term, feature_owners, ordered_terms
from iwbayes.schema import Schema
from iwbayes.schema.columns import TRANSFORMS, Column, Real
from iwbayes.schema.levels import Categorical

#: Terms, each the tuple of indices of encoded features that it multiplies; the empty tuple is the constant.
Span = frozenset[Term]
MAX_PREDICTOR_DEGREE = 3  # largest degree of a predictor or a response as a polynomial of encoded features
#: A bracket to a power; formulaic expands it before its degree could be checked.
_POWER = re.compile(r"\)\s*(?:\*\*|\^)\s*(\d{1,9})")
#: Functions of formulaic that its messages suggest.
_FUNCTIONS = ("C", "I", "poly", "bs", "cr", "center", "scale", "log", "exp")
_NAME_IN_BACKTICKS = re.compile(r"`([^`]*)`")
_ONE: Span = frozenset({()})


@dataclass(frozen=True)
class ScoreTerms:
    """Terms of a regression's scores: ``response`` spans the response, and ``design`` spans the predictors."""

    column: Column | None  # of the response; None if it is an expression
    response: Span
    design: Span
    schema: Schema

    @property
    def kept(self) -> Span:
        """The constant and the missing indicators, because a regression leaves out rows with missing cells."""
        owners = feature_owners(self.schema)
        used = {owners[index] for term in self.response | self.design for index in term}
        last = {owner: index for index, owner in enumerate(owners)}  # the missing indicator is the last feature
        return _ONE | {(last[owner],) for owner in used if self.schema[self.schema.names[owner]].missing}

    @property
    def core(self) -> Span:
        """Response, predictors, and products of the two: the terms of scores to first order."""
        return _times(_times(self.response, self.design, self.schema), self.kept, self.schema) - _ONE

    @property
    def squares(self) -> Span:
        """Squares of the predictors' terms, and terms of the squared response that the response itself lacks."""
        own = (reduced(term + term, self.schema) for term in self.design)
        of_response = _times(self.response, self.response, self.schema) - self.response
        return _times(frozenset(term for term in own if term) | of_response, self.kept, self.schema) - _ONE

    @property
    def products(self) -> Span:
        """Products among predictors; the search stops as soon as there are more than `MAX_RAW_TERMS`."""
        found: set[Term] = set()
        for one, two in combinations_with_replacement(sorted(self.design), 2):
            found |= {term for more in self.kept if (term := reduced(one + two + more, self.schema))}
            if len(found) > MAX_RAW_TERMS:
                break
        return frozenset(found)

    @property
    def second_order(self) -> Span:
        """All these terms: the terms of scores to second order, and everything that linear regressions use."""
        return self.core | self.squares | self.products


def check_formulas(formulas: Sequence[str]) -> tuple[str, ...]:
    """Raise a TypeError unless the argument is a list of formulas; their terms are checked later against a schema."""
    if isinstance(formulas, str) or not isinstance(formulas, Sequence):
        raise TypeError(f"for_models must be a list of formulas such as ['y ~ a + b']; got {type(formulas).__name__}.")
    for formula in formulas:
        if not isinstance(formula, str):
            raise TypeError(f"for_models must contain formulas such as 'y ~ a + b'; got {type(formula).__name__}.")
    return tuple(formulas)


@lru_cache(maxsize=16)
def model_options(formulas: tuple[str, ...], schema: Schema) -> tuple[tuple[str, tuple[Term, ...]], ...]:
    """Return sets of terms for the scores of some models, from the richest to the poorest, each with its name."""
    models = [model_terms(formula, schema) for formula in formulas]
    core: Span = frozenset().union(*(model.core for model in models))
    squares = core.union(*(model.squares for model in models))
    products = squares.union(*(model.products for model in models))
    if len(core) > MAX_RAW_TERMS:
        raise ValueError(
            f"products of the models' responses and predictors give {len(core)} features; at most {MAX_RAW_TERMS} are "
            f"supported. Merge levels, or name fewer models."
        )
    options = [("model", core)]
    for name, terms in (("model and square", squares), ("model, square and product", products)):
        if len(options[-1][1]) < len(terms) <= MAX_RAW_TERMS:
            options.append((name, terms))
    return tuple((name, ordered_terms(terms)) for name, terms in reversed(options))


def main_effects(response: str, schema: Schema) -> str:
    """Return the formula of the regression of a response on all other columns (main effects)."""
    if response not in schema.names:
        raise ValueError(f"response must be one of the columns {list(schema.names)}; got {response!r}.")
    terms = {c.name: _transformed(c) for c in schema}
    left = terms.pop(response)
    if not terms:
        raise ValueError(f"response needs another column as predictor; {response!r} is the only column of the schema.")
    return f"{left} ~ {' + '.join(terms.values())}"


def model_terms(formula: str, schema: Schema) -> ScoreTerms:
    """Read the formula ``response ~ terms`` of a regression, in the syntax of formulaic.

    Terms may be columns, interactions, and polynomials of numeric columns up to degree 3: ``I(a**2)``, ``I(a / 10)``,
    ``poly(a, 2)``, ``center(a)``, ``scale(a)``; also ``C(g)`` for a column with levels, and ``np.log1p(a)`` or
    ``np.arcsinh(a)`` for a column declared with that transform. Anything else raises a TypeError or ValueError with the
    remedy. A regression leaves out rows with missing cells, so each term is also multiplied by single columns' missing
    indicators.
    """
    bare = _NAME_IN_BACKTICKS.sub("name", formula) if isinstance(formula, str) else ""
    if any(int(power) > MAX_PREDICTOR_DEGREE for power in _POWER.findall(bare)):
        raise ValueError(f"formula {formula!r} must have no power above {MAX_PREDICTOR_DEGREE}.")
    parsed = read_formula(formula, schema)
    name = str(parsed.lhs[0])
    response = _Reader(formula, schema, name).factor(parsed.lhs[0].factors[0])
    if response == _ONE:
        raise _without_response(formula)
    design = _ONE
    for term in parsed.rhs:
        reader, span = _Reader(formula, schema, str(term)), _ONE
        for factor in term.factors:
            span = reader.times(span, reader.factor(factor))
        design |= span
    return ScoreTerms(schema[name] if name in schema.names else None, response, design, schema)


def _transform(column: Column) -> str | None:
    """Return the name of the numpy function whose polynomials are the features of a column; None without one."""
    return column.transform if isinstance(column, Real) else None


def _transformed(column: Column) -> str:
    """Return a column as formulas write its feature."""
    name, transform = quoted(column.name), _transform(column)
    return name if transform is None else f"np.{transform}({name})"


def quoted(name: str) -> str:
    """Return the name of a column for use in formulas: in backticks unless it is an identifier."""
    return name if name.isidentifier() and not iskeyword(name) else f"`{name}`"


def named_columns(text: str, exprs: Iterable[str], schema: Schema) -> list[str]:
    """List the columns that a formula uses, by names in backticks in its text, and words in its expressions."""
    # formulaic does not list the variables inside stateful transforms, such as a in poly(a, 2)
    found = {*exprs, *_NAME_IN_BACKTICKS.findall(text)}
    found |= {word for expr in exprs for word in re.findall(r"(?<![\w.'\"])[^\W\d]\w*(?!\w|\s*\()", expr)}
    return [name for name in schema.names if name in found]


def formula_hints(formula: str, schema: Schema) -> str:
    """Return hints for error messages: names that need backticks, and how group effects are written."""
    bare = _NAME_IN_BACKTICKS.sub(" ", formula)
    unquoted = sorted((name for name in schema.names if quoted(name) != name), key=len, reverse=True)
    longest_first = "|".join(re.escape(name) for name in unquoted)
    found = dict.fromkeys(re.findall(rf"(?<!\w)(?:{longest_first})(?!\w)", bare)) if unquoted else {}
    hints = f" Put names with spaces or signs in backticks: {', '.join(map(quoted, found))}." if found else ""
    if re.search(r"/\s*[\d.]", bare):
        hints += " Write a division by a number as a product: I(age * 0.1)."
    if "|" in bare:
        hints += " Group effects are written (1|region) in fit; a release is made for plain columns, y ~ x + region."
    return hints


def no_such_columns(formula: str, names: Sequence[str], schema: Schema) -> ValueError:
    """Return the error for names in a formula that are not columns of the schema."""
    called = [name for name in names if re.search(rf"(?<![\w.]){re.escape(name)}\s*\(", formula)]
    known = (
        f" Functions are {', '.join(_FUNCTIONS)} and those of np; others need a PyMC or Bambi model." if called else ""
    )
    return ValueError(
        f"formula {formula!r} must use columns of the schema; got {names}, it has {list(schema.names)}."
        f"{known}{formula_hints(formula, schema)}"
    )


def read_formula(formula: str, schema: Schema, not_in_dot: Sequence[str] = ()) -> Any:
    """Parse a formula with one response by formulaic; raise a ValueError if it is invalid.

    ``.`` means all columns but the response and those of `not_in_dot`.
    """
    from formulaic import Formula
    from formulaic.errors import FormulaicError

    if not isinstance(formula, str):
        raise TypeError(f"formula must be a string such as 'y ~ a + b'; got {type(formula).__name__}.")
    try:
        available = [name for name in schema.names if name not in not_in_dot]
        parsed: Any = Formula(formula, _context={"__formulaic_variables_available__": available})
    except RecursionError:
        raise ValueError(f"formula {formula[:60]!r}... is nested too deeply. Write it as 'y ~ a + b'.") from None
    except (FormulaicError, SyntaxError, AttributeError) as error:  # AttributeError if brackets do not match
        reason = error.msg if isinstance(error, SyntaxError) else str(error).splitlines()[0]
        reason = "its brackets do not match" if isinstance(error, AttributeError) else reason.rstrip(".?")
        hints = formula_hints(formula, schema) or " Put names with spaces or signs in backticks, such as `a name`."
        raise ValueError(f"formula {formula!r} cannot be read: {reason}. Write it as 'y ~ a + b'.{hints}") from None
    if not isinstance(getattr(parsed, "lhs", None), Formula) or not isinstance(parsed.rhs, Formula):
        raise ValueError(
            f"formula {formula!r} must have a response and one right-hand side, such as 'y ~ a + b'."
            f"{formula_hints(formula, schema)}"
        )
    if len(parsed.lhs) != 1 or len(parsed.lhs[0].factors) != 1:
        raise _without_response(formula)
    left, _, right = formula.partition("~")
    if not right.strip() or not list(parsed.rhs):
        raise ValueError(f"formula {formula!r} has nothing on its right. Write it as 'y ~ a + b', or 'y ~ 1'.")
    used = [
        named_columns(text, [*map(str, terms)], schema) for text, terms in ((left, parsed.lhs), (right, parsed.rhs))
    ]
    if used[0] and set(used[0]) <= set(used[1]):
        raise ValueError(f"formula {formula!r} must not predict {used[0]} by itself. Leave it out on the right.")
    return parsed


def _without_response(formula: str) -> ValueError:
    return ValueError(f"formula {formula!r} needs one response on its left. Write it as 'y ~ a + b'.")


def reduced(term: Iterable[int], schema: Schema) -> Term | None:
    """Reduce a product of features to its lowest degree, up to scale; return None if it is zero in every row.

    A binary feature is 1/2 or -1/2, so its square is constant (missing cells are handled by their indicators).
    """
    kinds = _kinds(schema)
    kept: list[int] = []
    seen: dict[int, int] = {}
    for index, power in sorted(Counter(term).items()):
        owner, kind = kinds[index]
        if seen.setdefault(owner, index) != index:
            return None  # two indicators of one column
        kept += [index] * {"number": power, "binary": power % 2, "indicator": 1}[kind]
    return tuple(kept)


@lru_cache(maxsize=8)
def _kinds(schema: Schema) -> tuple[tuple[int, str], ...]:
    """Return for each encoded feature the position of its column, and its kind: number, binary or indicator."""
    own = {"binary": "binary", "categorical": "indicator"}
    return tuple(
        (index, "indicator" if rank else own.get(column.kind, "number"))
        for index, column in enumerate(schema)
        for rank in range(len(column.feature_names))
    )


def _times(one: Span, two: Span, schema: Schema) -> Span:
    """Return all products of two sets of terms, reduced."""
    found = (reduced(a + b, schema) for a, b in product(one, two))
    return frozenset(term for term in found if term is not None)


@dataclass(frozen=True)
class _Reader:
    """Reader of one term of a formula: it converts each factor to a set of terms that spans it."""

    formula: str
    schema: Schema
    text: str  # of the term, for messages

    def factor(self, factor: Any) -> Span:
        """Return the span of a factor: a column, a contrast of levels, or a polynomial."""
        from formulaic.utils.code import sanitize_variable_names

        text, aliases = str(factor.expr), dict[str, str]()
        with_levels = [column.name for column in self.schema if column.kind in ("categorical", "binary")]
        if factor.eval_method.name != "PYTHON":
            return _ONE if factor.eval_method.name == "LITERAL" else self._column(text)
        try:
            bare = sanitize_variable_names(text, dict.fromkeys(self.schema.names), aliases)
            tree = ast.parse(bare, mode="eval").body
            for node in ast.walk(tree):
                if isinstance(node, ast.Name):
                    node.id = aliases.get(node.id, node.id)  # names in backticks, which need not be identifiers
            match tree:
                case ast.Call(func=ast.Name(id="C"), args=[ast.Name(id=name), *_]) if name in with_levels:
                    return self._column(name)
                case ast.Call(func=ast.Name(id="poly"), args=[inner, *_]):
                    return self._power(self._polynomial(inner), self._degree(tree))
            return self._polynomial(tree)
        except SyntaxError:
            raise self._refusal("is not a polynomial of declared columns") from None
        except (RecursionError, MemoryError):
            raise self._refusal("is nested too deeply") from None

    def times(self, one: Span, two: Span) -> Span:
        """Return all products of two sets of terms, or raise a ValueError if their degree is too large."""
        span = _times(one, two, self.schema)
        if max(map(len, span)) > MAX_PREDICTOR_DEGREE:
            raise self._refusal(f"has a degree above {MAX_PREDICTOR_DEGREE}")
        return span

    def _refusal(self, why: str) -> ValueError:
        return ValueError(
            f"formula {self.formula!r}: {self.text[:60]} {why}, but a release can measure polynomials of its encoded "
            f"columns only. Use columns, their interactions and powers up to {MAX_PREDICTOR_DEGREE}, or add a declared "
            f"column with the transformed values to the table (transform='log1p' or 'arcsinh' for logarithms). Or "
            "name a function that builds the model with PyMC, as iwbayes.model describes."
        )

    def _column(self, name: str, *, transform: str | None = None) -> Span:
        """Return the terms of a column: the constant and its encoded features."""
        if name not in self.schema.names:
            raise no_such_columns(self.formula, [name], self.schema)
        declared, written = _transform(self.schema[name]), _transformed(self.schema[name])
        if transform is not None and declared != transform:
            raise self._refusal(f"uses a column that is not declared with transform={transform!r}")
        if declared != transform:
            raise ValueError(
                f"formula {self.formula!r}: column {name!r} is declared with transform={declared!r}, so its features "
                f"are polynomials of {written}. Write {written}, or declare the column without the transform."
            )
        own = self.schema.names.index(name)
        return _ONE | {(index,) for index, owner in enumerate(feature_owners(self.schema)) if owner == own}

    def _polynomial(self, node: ast.AST) -> Span:
        match node:
            case ast.Name(id=name):
                span = self._column(name)
                if isinstance(self.schema[name], Categorical):
                    raise self._refusal("has a column with levels, used inside an expression")
                return span
            case ast.Constant(value=int() | float()):
                return _ONE
            case (
                ast.UnaryOp(op=ast.UAdd() | ast.USub(), operand=inner)
                | ast.Call(func=ast.Name(id="I" | "center" | "scale"), args=[inner], keywords=[])
            ):
                return self._polynomial(inner)
            case ast.BinOp(left=one, op=ast.Add() | ast.Sub(), right=two):
                return self._polynomial(one) | self._polynomial(two)
            case ast.BinOp(left=one, op=ast.Mult(), right=two):
                return self.times(self._polynomial(one), self._polynomial(two))
            case ast.BinOp(left=one, op=ast.Div(), right=two) if self._polynomial(two) == _ONE:
                return self._polynomial(one)
            case ast.BinOp(left=one, op=ast.Pow(), right=ast.Constant(value=int(power))) if power > 0:
                return self._power(self._polynomial(one), power)
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id="np"), attr=function), args=[ast.Name(id=name)], keywords=[]
            ) if function in TRANSFORMS:
                return self._column(name, transform=function)
        raise SyntaxError

    def _degree(self, node: ast.Call) -> int:
        """Return the degree of ``poly(a, 2)`` or ``poly(a, degree=2)``, with or without ``raw``."""
        given = dict(zip(("degree", "raw"), node.args[1:], strict=False)) | {k.arg: k.value for k in node.keywords}
        values = {name: value.value for name, value in given.items() if isinstance(value, ast.Constant)}
        degree = values.get("degree", 1)
        readable = len(values) == len(given) and len(node.args) <= 3 and set(given) <= {"degree", "raw"}
        if not readable or type(degree) is not int or degree < 1:
            raise SyntaxError
        return degree

    def _power(self, span: Span, power: int) -> Span:
        # any power above the limit is refused by `times`
        return reduce(self.times, [span] * min(power, MAX_PREDICTOR_DEGREE + 1))
