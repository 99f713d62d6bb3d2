"""Formulas as text: read by formulaic, with names in backticks and hints for what it does not say."""

from __future__ import annotations

import re
from keyword import iskeyword
from typing import Any

from iwbayes.schema import Schema

#: Largest degree of a predictor or a response as a polynomial of encoded features.
MAX_PREDICTOR_DEGREE = 3
#: A bracket to a power, which formulaic multiplies out before anybody can look at the degree.
_POWER = re.compile(r"\)\s*(?:\*\*|\^)\s*(\d{1,9})")
NAME_IN_BACKTICKS = re.compile(r"`([^`]*)`")


def quoted(name: str) -> str:
    """Name of a column as formulas take it: in backticks unless it is an identifier."""
    return name if name.isidentifier() and not iskeyword(name) else f"`{name}`"


def formula_hints(formula: str, schema: Schema) -> str:
    """Sentences on what a formula may have meant: names that want backticks, groups of varying effects."""
    bare = NAME_IN_BACKTICKS.sub(" ", formula)
    wanting = sorted((name for name in schema.names if quoted(name) != name), key=len, reverse=True)
    longest_first = "|".join(re.escape(name) for name in wanting)
    found = dict.fromkeys(re.findall(rf"(?<!\w)(?:{longest_first})(?!\w)", bare)) if wanting else {}
    hints = f" Names with spaces or signs go in backticks: {', '.join(map(quoted, found))}." if found else ""
    if "|" in bare:
        hints += (
            " A group goes in as a plain column (y ~ x + region); varying effects are for a PyMC model of one's own."
        )
    return hints


def read_formula(formula: str, schema: Schema) -> Any:
    """Let formulaic read a formula, in which ``.`` stands for the schema's columns; ValueError when it cannot."""
    from formulaic import Formula
    from formulaic.errors import FormulaicError

    try:
        return Formula(formula, _context={"__formulaic_variables_available__": list(schema.names)})
    except RecursionError:
        raise ValueError(f"formula {formula[:60]!r}... is nested too deeply. Write it as 'y ~ a + b'.") from None
    except (FormulaicError, SyntaxError, AttributeError) as error:  # the last where brackets do not match
        reason = error.msg if isinstance(error, SyntaxError) else str(error).splitlines()[0]
        reason = "its brackets do not match" if isinstance(error, AttributeError) else reason.rstrip(".?")
        hints = formula_hints(formula, schema) or " Names with spaces or signs go in backticks, as `a name`."
        raise ValueError(f"formula {formula!r} can not be read: {reason}. Write it as 'y ~ a + b'.{hints}") from None


def parse_model(formula: str, schema: Schema) -> Any:
    """Let formulaic read a formula, and check its shape and its names."""
    from formulaic import Formula

    if not isinstance(formula, str):
        raise TypeError(f"a formula must be a string such as 'y ~ a + b'; got {type(formula).__name__}.")
    if any(int(power) > MAX_PREDICTOR_DEGREE for power in _POWER.findall(NAME_IN_BACKTICKS.sub("name", formula))):
        raise ValueError(f"formula {formula!r} must have no power above {MAX_PREDICTOR_DEGREE}.")
    parsed = read_formula(formula, schema)
    if not hasattr(parsed, "lhs") or not isinstance(parsed.lhs, Formula) or not isinstance(parsed.rhs, Formula):
        raise ValueError(
            f"formula {formula!r} must have a response and one part on its right, as 'y ~ a + b'."
            f"{formula_hints(formula, schema)}"
        )
    return parsed
