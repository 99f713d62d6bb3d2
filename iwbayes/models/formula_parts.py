"""The parts of a formula: response with trials or limits, common and group-specific terms, ``(x|g)``, and offsets."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from iwbayes.models.limits import Limits

#: Bambi's binomial response ``p(successes, trials)``, under any of its three names.
_TRIALS = re.compile(r"(?:p|prop|proportion)\((`[^`]+`|[\w.]+),(`[^`]+`|[\w.]+)\)")
#: Responses that are observed within limits, with Bambi's names, and R's function for one of them.
_LIMITED = re.compile(r"(censored|truncated|Surv)\((.*)\)", flags=re.DOTALL)
_OPEN, _CLOSE, _QUOTES = "([{", ")]}", "'\"`"


@dataclass(frozen=True)
class Parts:
    """A formula, taken apart; all parts are text in formulaic's syntax."""

    formula: str
    response: str
    common: str  # terms of the right-hand side that are neither group-specific nor offsets; "1" if there are none
    groups: tuple[tuple[str, tuple[str, ...]], ...] = ()  # of (x|g:h): "x" and ("g", "h")
    offsets: tuple[str, ...] = ()  # of offset(x): "x"
    trials: str | None = None  # column of p(successes, trials)
    limits: Limits | None = None  # of censored(y, status) and truncated(y, lb, ub)

    @classmethod
    def of(cls, formula: str) -> Parts:
        """Take a formula apart; a TypeError or ValueError says what cannot be a part. Others are left to formulaic."""
        if not isinstance(formula, str):
            raise TypeError(f"formula must be a string such as 'y ~ a + b'; got {type(formula).__name__}.")
        pieces = list(_pieces(formula, "~"))
        if len(pieces) != 2:
            return cls(formula, pieces[0][1], "".join(sign + text for sign, text in pieces[1:]))
        response, right = (text for _, text in pieces)
        trials = None
        if found := _TRIALS.fullmatch(re.sub(r"\s+(?=[(),])|(?<=[(,])\s+", "", response.strip())):
            response, trials = found[1], found[2].strip("`")
        limits = None
        if found := _LIMITED.fullmatch(response.strip()):
            response, limits = Limits.of(found[1], [text.strip() for _, text in _pieces(found[2], ",")])
        common, groups, offsets = "", list[tuple[str, tuple[str, ...]]](), list[str]()
        for sign, text in _pieces(right, "+-"):
            term = text.strip()
            effects = _inside(term, "(")
            bar = [] if effects is None else list(_pieces(effects, "|"))
            if len(bar) == 2 and sign != "-":
                groups += [(bar[0][1].strip() or "1", factors) for factors in _factors(formula, bar[1][1])]
            elif len(bar) > 1:
                raise ValueError(
                    f"the term {term!r} of formula {formula!r} must have one '|', and a '+' before it. Write (x|g); "
                    f"effects are independent of each other."
                )
            elif (shift := _inside(term, "offset(")) is not None and sign != "-":
                offsets.append(shift)
            elif term or sign:
                common += f" {sign} {text.strip()}" if common or sign == "-" else text.strip()
        return cls(formula, response.strip(), common.strip() or "1", tuple(groups), tuple(offsets), trials, limits)

    @property
    def apart(self) -> list[str]:
        """Columns that name groups, or have numbers of trials or a status; ``.`` does not mean them."""
        of_response = (self.trials, self.limits and self.limits.status)
        return [*(name for _, names in self.groups for name in names), *(name for name in of_response if name)]

    @property
    def plain(self) -> str:
        """The formula of response and common terms."""
        special = self.groups or self.offsets or self.trials or self.limits
        return f"{self.response} ~ {self.common}" if special else self.formula


def _pieces(text: str, marks: str) -> Iterator[tuple[str, str]]:
    """Split at marks outside of brackets and quotes; yield the mark before each piece ("" for the first) and it."""
    depth, quote, start, mark = 0, "", 0, ""
    for index, sign in enumerate(text):
        if quote:
            quote = "" if sign == quote else quote
        elif sign in _QUOTES:
            quote = sign
        else:
            depth += (sign in _OPEN) - (sign in _CLOSE)
            if depth == 0 and sign in marks:
                yield mark, text[start:index]
                start, mark = index + 1, sign
    yield mark, text[start:]


def _inside(term: str, opening: str) -> str | None:
    """Return what is between an opening bracket at the start and the closing one at the end; None if they differ."""
    if not (term.startswith(opening) and term.endswith(")")):
        return None
    inner = term[len(opening) : -1]
    depth = 0
    for sign in re.sub(r"'[^']*'|\"[^\"]*\"|`[^`]*`", "", inner):
        depth += (sign in _OPEN) - (sign in _CLOSE)
        if depth < 0:
            return None
    return inner.strip()


def _factors(formula: str, text: str) -> list[tuple[str, ...]]:
    """Return the columns of each group of ``g``, ``g:h``, or ``g/h``, which is ``g`` and ``g:h``."""
    nested = [[name.strip() for _, name in _pieces(part, ":")] for _, part in _pieces(text.strip(), "/")]
    if any(not re.fullmatch(r"`[^`]+`|[^\W\d][\w.]*", name) for names in nested for name in names):
        raise ValueError(
            f"the group {text.strip()!r} in formula {formula!r} must be a column, or columns joined by ':' or '/'. "
            f"Write (1|g), (1|g:h) or (1|g/h)."
        )
    return [tuple(name.strip("`") for names in nested[: index + 1] for name in names) for index in range(len(nested))]
