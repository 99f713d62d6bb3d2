"""Moments that regressions use, derived from their formulas and the public schema.

The score of a regression of y on x with a canonical link is x (y - m(x'b)). It depends on the moments y x and x, to
second order in x'b also on x x', and on y^2 if a variance is estimated. Curator and analyst both read formulas here,
and formulas are never evaluated.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import combinations_with_replacement, product
from keyword import iskeyword
from typing import Any

from iwbayes.evidence.terms import MAX_RAW_TERMS, Term, feature_owners, ordered_terms
from iwbayes.schema import Schema
from iwbayes.schema.columns import Categorical, Column, Real

#: Terms, each the tuple of indices of encoded features that it multiplies; the empty tuple is the constant.
Span = frozenset[Term]
#: Largest degree of a predictor or a response as a polynomial of encoded features.
MAX_PREDICTOR_DEGREE = 3
#: A bracket to a power; formulaic expands it before its degree could be checked.
_POWER = re.compile(r"\)\s*(?:\*\*|\^)\s*(\d{1,9})")
_NAME_IN_BACKTICKS = re.compile(r"`([^`]*)`")
#: Functions of one argument whose result is a polynomial if the argument is.
_AFFINE = ("I", "center", "scale")
_ONE: Span = frozenset({()})


@dataclass(frozen=True)
class ScoreTerms:
    """Terms of a regression's scores: ``response`` spans the response, and ``design`` spans the predictors."""

    formula: str
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
        kept = sorted(self.kept)
        for one, two in combinations_with_replacement(sorted(self.design), 2):
            found |= {term for more in kept if (term := reduced(one + two + more, self.schema))}
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
    """Return sets of terms for the scores of some models, from the richest to the poorest, each with its name.

    Products among predictors are dropped first, then squares. Response, predictors and products of the two always
    remain. A ValueError is raised if a formula cannot be read, is not a polynomial of encoded columns, or has too many
    terms.
    """
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
    terms = {column.name: quoted(column.name) for column in schema}
    terms |= {name: f"np.log1p({term})" for name, term in terms.items() if _is_logged(schema[name])}
    left = terms.pop(response)
    if not terms:
        raise ValueError(f"response needs another column as predictor; {response!r} is the only column of the schema.")
    return f"{left} ~ {' + '.join(terms.values())}"


def response_column(formula: str, schema: Schema) -> Column | None:
    """Return the response column of a regression, or None if it is an expression. See `model_terms` for errors."""
    model_terms(formula, schema)
    name = str(read_formula(formula, schema).lhs[0])
    return schema[name] if name in schema.names else None


def model_terms(formula: str, schema: Schema) -> ScoreTerms:
    """Read the formula ``response ~ terms`` of a regression, in the syntax of formulaic.

    Terms may be columns, interactions, and polynomials of numeric columns: ``I(a**2)``, ``I(a / 10)``, ``poly(a, 2)``,
    ``center(a)``, ``scale(a)``; also ``C(g)`` for a column with levels, and ``np.log1p(a)`` for a column declared with
    that transform. Anything else raises a TypeError or ValueError with the remedy.

    A regression leaves out rows with missing cells. So each term is also multiplied by the missing indicator of each
    column. Products of the missing indicators of several columns are not included.
    """
    from formulaic import Formula

    if not isinstance(formula, str):
        raise TypeError(f"a formula must be a string such as 'y ~ a + b'; got {type(formula).__name__}.")
    if any(int(power) > MAX_PREDICTOR_DEGREE for power in _POWER.findall(_NAME_IN_BACKTICKS.sub("name", formula))):
        raise ValueError(f"formula {formula!r} must have no power above {MAX_PREDICTOR_DEGREE}.")
    parsed = read_formula(formula, schema)
    if not hasattr(parsed, "lhs") or not isinstance(parsed.lhs, Formula) or not isinstance(parsed.rhs, Formula):
        raise ValueError(
            f"formula {formula!r} must have a response and one right-hand side, such as 'y ~ a + b'."
            f"{formula_hints(formula, schema)}"
        )
    reader = _Reader(formula, schema)
    terms = list(parsed.lhs)
    response = reader.factor(terms[0].factors[0]) if len(terms) == 1 and len(terms[0].factors) == 1 else _ONE
    if response == _ONE:
        raise ValueError(f"formula {formula!r} needs one response on its left. Write it as 'y ~ a + b'.")
    design = _ONE
    for term in parsed.rhs:
        span = _ONE
        for factor in term.factors:
            span = reader.checked(_times(span, reader.factor(factor), schema), str(term))
        design |= span
    return ScoreTerms(formula, response, design, schema)


def _is_logged(column: Column) -> bool:
    return isinstance(column, Real) and column.transform == "log1p"


def quoted(name: str) -> str:
    """Return the name of a column for use in formulas: in backticks unless it is an identifier."""
    return name if name.isidentifier() and not iskeyword(name) else f"`{name}`"


def formula_hints(formula: str, schema: Schema) -> str:
    """Return hints for error messages: names that need backticks, and the groups of varying effects."""
    bare = _NAME_IN_BACKTICKS.sub(" ", formula)
    unquoted = sorted((name for name in schema.names if quoted(name) != name), key=len, reverse=True)
    longest_first = "|".join(re.escape(name) for name in unquoted)
    found = dict.fromkeys(re.findall(rf"(?<!\w)(?:{longest_first})(?!\w)", bare)) if unquoted else {}
    hints = f" Put names with spaces or signs in backticks: {', '.join(map(quoted, found))}." if found else ""
    if "|" in bare:
        hints += " For varying effects, name their group as a plain column: y ~ x + region."
    return hints


def read_formula(formula: str, schema: Schema) -> Any:
    """Parse a formula with formulaic, with ``.`` as all columns of the schema; raise a ValueError if it is invalid."""
    from formulaic import Formula
    from formulaic.errors import FormulaicError

    try:
        return Formula(formula, _context={"__formulaic_variables_available__": list(schema.names)})
    except RecursionError:
        raise ValueError(f"formula {formula[:60]!r}... is nested too deeply. Write it as 'y ~ a + b'.") from None
    except (FormulaicError, SyntaxError, AttributeError) as error:  # AttributeError if brackets do not match
        reason = error.msg if isinstance(error, SyntaxError) else str(error).splitlines()[0]
        reason = "its brackets do not match" if isinstance(error, AttributeError) else reason.rstrip(".?")
        hints = formula_hints(formula, schema) or " Put names with spaces or signs in backticks, such as `a name`."
        raise ValueError(f"formula {formula!r} cannot be read: {reason}. Write it as 'y ~ a + b'.{hints}") from None


def reduced(term: Iterable[int], schema: Schema) -> Term | None:
    """Reduce a product of features to its lowest degree, up to scale; return None if it is zero in every row.

    The square of an indicator is the indicator itself, and the product of two indicators of one column is zero. A
    binary feature is 1/2 or -1/2, so its square is constant (missing cells are handled by their indicators).
    """
    kinds = _kinds(schema)
    kept: list[int] = []
    seen: dict[int, int] = {}
    for index, power in sorted(Counter(term).items()):
        owner, kind = kinds[index]
        if seen.setdefault(owner, index) != index:
            return None
        kept += [index] * {"number": power, "binary": power % 2, "indicator": 1}[kind]
    return tuple(kept)


@lru_cache(maxsize=8)
def _kinds(schema: Schema) -> tuple[tuple[int, str], ...]:
    """Return for each encoded feature the position of its column, and its kind: number, binary or indicator."""
    own = {"real": "number", "integer": "number", "date": "number", "binary": "binary", "categorical": "indicator"}
    return tuple(
        (index, "indicator" if rank else own[column.kind])
        for index, column in enumerate(schema)
        for rank in range(len(column.feature_names))
    )


def _times(one: Span, two: Span, schema: Schema) -> Span:
    """Return all products of two sets of terms, reduced."""
    found = (reduced(a + b, schema) for a, b in product(one, two))
    return frozenset(term for term in found if term is not None)


@dataclass(frozen=True)
class _Reader:
    """Reader of the factors of one formula: converts each to a set of terms that spans it."""

    formula: str
    schema: Schema

    def factor(self, factor: Any) -> Span:
        text = str(factor.expr)
        if factor.eval_method.name == "LITERAL":
            return _ONE
        if factor.eval_method.name == "LOOKUP":
            return self._column(text)
        try:
            # names in backticks become identifiers; see `_name`
            bare = _NAME_IN_BACKTICKS.sub(lambda found: f"{self._identifier}{self._position(found[1])}", text)
            return self.checked(self._whole(ast.parse(bare, mode="eval").body), text)
        except SyntaxError:
            raise self._refusal(text, "is not a polynomial of declared columns") from None
        except (RecursionError, MemoryError):
            raise self._refusal(text[:60], "is nested too deeply") from None

    def checked(self, span: Span, text: str) -> Span:
        if max(len(term) for term in span) > MAX_PREDICTOR_DEGREE:
            raise self._refusal(text, f"has a degree above {MAX_PREDICTOR_DEGREE}")
        return span

    @cached_property
    def _identifier(self) -> str:
        """Prefix of the identifiers that replace names in backticks; it does not occur in the formula."""
        found = "column_"
        while found in self.formula:
            found += "_"
        return found

    def _name(self, identifier: str) -> str:
        """Return the name of a column from an identifier in an expression."""
        number = identifier.removeprefix(self._identifier)
        return identifier if number == identifier else self.schema.names[int(number)]

    def _position(self, name: str) -> int:
        if name not in self.schema.names:
            raise ValueError(
                f"formula {self.formula!r} must use columns of the schema; got {[name]}, it has "
                f"{list(self.schema.names)}."
                f"{formula_hints(self.formula, self.schema)}"
            )
        return self.schema.names.index(name)

    def _refusal(self, text: str, why: str) -> ValueError:
        text = re.sub(rf"{self._identifier}\d+", lambda found: f"`{self._name(found[0])}`", text)
        return ValueError(
            f"formula {self.formula!r}: {text} {why}, but a release can measure polynomials of its encoded columns "
            f"only. Use columns, their interactions and powers up to {MAX_PREDICTOR_DEGREE}, or add a declared column "
            f"with the transformed values to the table (transform='log1p' for logarithms)."
        )

    def _column(self, name: str, *, logged: bool = False) -> Span:
        """Return the terms of a column: the constant and its encoded features."""
        own = self._position(name)
        column = self.schema[name]
        if logged and not _is_logged(column):
            raise self._refusal(
                f"np.log1p({quoted(name)})", "uses a column that is not declared with transform='log1p'"
            )
        if _is_logged(column) and not logged:
            raise ValueError(
                f"formula {self.formula!r}: column {name!r} is declared with transform='log1p', so its features are "
                f"polynomials of np.log1p({quoted(name)}). Write np.log1p({quoted(name)}), or declare the column "
                "without the transform."
            )
        return _ONE | {(index,) for index, owner in enumerate(feature_owners(self.schema)) if owner == own}

    def _whole(self, node: ast.AST) -> Span:
        """Return the terms of a factor: a contrast of levels, or a polynomial."""
        with_levels = [column.name for column in self.schema if column.kind in ("categorical", "binary")]
        match node:
            case ast.Call(func=ast.Name(id="C"), args=[ast.Name(id=name), *_]) if self._name(name) in with_levels:
                return self._column(self._name(name))
            case ast.Call(func=ast.Name(id="poly"), args=[inner, *_]):
                return self._power(self._polynomial(inner), self._degree(node), node)
            case _:
                return self._polynomial(node)

    def _polynomial(self, node: ast.AST) -> Span:
        match node:
            case ast.Name(id=identifier):
                name = self._name(identifier)
                span = self._column(name)
                if isinstance(self.schema[name], Categorical):
                    raise self._refusal(ast.unparse(node), "is a column with levels, used inside an expression")
                return span
            case ast.Constant(value=int() | float()):
                return _ONE
            case ast.UnaryOp(op=ast.UAdd() | ast.USub(), operand=inner):
                return self._polynomial(inner)
            case ast.BinOp(left=one, op=ast.Add() | ast.Sub(), right=two):
                return self._polynomial(one) | self._polynomial(two)
            case ast.BinOp(left=one, op=ast.Mult(), right=two):
                span = _times(self._polynomial(one), self._polynomial(two), self.schema)
                return self.checked(span, ast.unparse(node))
            case ast.BinOp(left=one, op=ast.Div(), right=two) if self._polynomial(two) == _ONE:
                return self._polynomial(one)
            case ast.BinOp(left=one, op=ast.Pow(), right=ast.Constant(value=int(power))) if power > 0:
                return self._power(self._polynomial(one), power, node)
            case ast.Call(func=ast.Name(id=name), args=[inner], keywords=[]) if name in _AFFINE:
                return self._polynomial(inner)
            case ast.Call(func=function, args=[ast.Name(id=name)], keywords=[]) if ast.unparse(function) == "np.log1p":
                return self._column(self._name(name), logged=True)
            case _:
                raise self._refusal(ast.unparse(node), "is not a polynomial of declared columns")

    def _degree(self, node: ast.Call) -> int:
        """Return the degree of ``poly(a, 2)`` or ``poly(a, degree=2)``, with or without ``raw``."""
        given = dict(zip(("degree", "raw"), node.args[1:], strict=False)) | {k.arg: k.value for k in node.keywords}
        values = {name: value.value for name, value in given.items() if isinstance(value, ast.Constant)}
        degree = values.get("degree", 1)
        readable = len(values) == len(given) and len(node.args) <= 3 and set(given) <= {"degree", "raw"}
        if not readable or type(degree) is not int or degree < 1:
            raise self._refusal(ast.unparse(node), "is not a polynomial of declared columns")
        return degree

    def _power(self, span: Span, power: int, node: ast.AST) -> Span:
        found = span
        for _ in range(min(power, MAX_PREDICTOR_DEGREE + 1) - 1):  # any power above the limit is refused below
            found = _times(found, span, self.schema)
        return self.checked(found, ast.unparse(node))
