"""Diagnostics: a data frame of checks that prints its advice once, below the table."""

from __future__ import annotations

import re
from collections.abc import Iterable

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from iwbayes.analyst.calibration.measures import MEASURES
from iwbayes.utils.display import GAP, WIDTH, cell, fill, html_table, text_table

NAN = float("nan")
#: Columns of the table of checks.
COLUMNS = ["value", "threshold", "verdict", "what_to_do"]
_HEADER = ("check", "value", "limit", "verdict")
#: Most parameters in a short text.
_MOST_PARAMETERS = 5
#: Characters of a parameter's name that a table of several measures has room for, and more if there are few.
_LONGEST_NAME = 30
#: Checks with a row in the short text even if they pass.
_ALWAYS = {"calibration", "kappa", "explained", "misfit_share", "dfbetas", "skew", "certified", "r_hat", "ess_bulk"}


class Diagnostics(pd.DataFrame):
    """Data frame of checks that :func:`~iwbayes.diagnose` returns; it prints each advice once, below the table.

    All methods of a pandas.DataFrame work. Without its four columns it prints like any other data frame.
    """

    @property
    def _constructor(self) -> type[Diagnostics]:
        return Diagnostics

    @property
    def advice(self) -> list[str]:
        """Advice of the column ``what_to_do``, each text once: failures first, then warnings, then information."""
        order = {"fail": 0, "warn": 1, "info": 2}
        checks = self[~self._is_of_one()].iterrows()
        rows = [(str(name), str(row["verdict"]), str(row["what_to_do"])) for name, row in checks]
        # the reasons of the calibration already name the checks that they come from
        rows.sort(key=lambda row: (row[0] != "calibration", order.get(row[1], 3)))
        said, found = "", []
        names: dict[str, list[str]] = {}
        for name, _, text in rows:
            if text and text not in said and not named_in(said, name):
                said = text if name == "calibration" else said
                names.setdefault(text, []).append(name)
        for text, of in names.items():
            more = f" and {len(of) - _MOST_PARAMETERS} more" if len(of) > _MOST_PARAMETERS else ""
            found.append(f"{', '.join(of[:_MOST_PARAMETERS])}{more}: {text}")
        return found

    def brief(self, *, width: int = WIDTH) -> str:
        """Return a short text with lines of at most ``width`` characters: important checks as a table, others listed.

        Single parameters are shown only if some of them, but not all, are not calibrated.
        """
        of_one, bad = self._is_of_one(), self["verdict"].isin(("fail", "warn"))
        always = self.index.isin(_ALWAYS)
        judged = self[~of_one & (bad | ((self["verdict"] == "ok") & always))]
        passed = self[~of_one & (self["verdict"] == "ok") & ~always]
        known = {name: cell(value) for name, value in self[~of_one & (self["verdict"] == "info")]["value"].items()}
        said = {
            "also passed": ", ".join(map(str, passed.index)),
            "for information": "; ".join(f"{name} {text}" for name, text in known.items() if text),
            "not known": ", ".join(str(name) for name, text in known.items() if not text),
        }
        header, parameters = self._parameters(width)
        outside = [row for row in parameters if row[1] != "calibrated"]
        lines = [text_table(_HEADER, _rows(judged), width=width)]
        if 0 < len(outside) < len(parameters):
            lines += ["", text_table(header, outside[:_MOST_PARAMETERS], width=width)]
            if len(outside) > _MOST_PARAMETERS:
                lines.append(f"and {len(outside) - _MOST_PARAMETERS} more parameters that are not calibrated")
        more = [f"{what}: {text}" for what, text in said.items() if text]
        lines += [fill(text, later="  ", width=width) for text in (*more, *self[bad].advice)]
        return "\n".join(lines)

    def _is_of_one(self) -> NDArray[np.bool_]:
        return np.array([_of_one(str(name)) is not None for name in self.index], dtype=bool)

    def _parameters(self, width: int | None = None) -> tuple[tuple[str, ...], list[tuple[object, ...]]]:
        """Return header and rows of the table of parameters: all measures, or those with room, failed ones first."""
        found: dict[str, dict[str, object]] = {}
        failed: set[str] = set()
        for name, row in self.iterrows():
            if match := _of_one(str(name)):
                found.setdefault(match[2], {})[match[1]] = row["value"]
                failed |= {match[1]} if row["verdict"] == "fail" else set()
        keys = list(dict.fromkeys(["calibration", *(key for one in found.values() for key in one)]))
        if width is not None:
            sizes = {key: max([len(key), *(len(cell(one.get(key, NAN))) for one in found.values())]) for key in keys}
            # long names are wrapped
            left = width - min(_LONGEST_NAME, max([len("parameter"), *map(len, found)]))
            shown = {"calibration"}
            for key in sorted(keys, key=lambda key: (key != "calibration", key not in failed)):
                left -= sizes[key] + GAP
                shown |= {key} if left >= 0 else set()
            keys = [key for key in keys if key in shown]
        rows = [(name, *(one.get(key, NAN) for key in keys)) for name, one in found.items()]
        return ("parameter", *("verdict" if key == "calibration" else key for key in keys)), rows

    def __repr__(self) -> str:
        if list(self.columns) != COLUMNS:
            return super().__repr__()
        tables = [text_table(_HEADER, _rows(self[~self._is_of_one()]))]
        header, parameters = self._parameters(WIDTH)
        if parameters:
            tables += ["", text_table(header, parameters), ""]
        return "\n".join([*tables, *(fill(text, later="  ") for text in self.advice)])

    def _repr_html_(self) -> str | None:
        if list(self.columns) != COLUMNS:
            return super()._repr_html_()  # type: ignore[operator]
        tables = html_table("Diagnostics", _HEADER, _rows(self[~self._is_of_one()]), notes=self.advice)
        header, parameters = self._parameters()
        return tables + (html_table("Parameters", header, parameters) if parameters else "")


def _of_one(name: str) -> re.Match[str] | None:
    """Match the name of a check of one parameter, such as kappa[age]: check and parameter."""
    return re.fullmatch(rf"(calibration|{'|'.join(MEASURES)})\[(.*)\]", name)


def _rows(checks: pd.DataFrame) -> Iterable[tuple[object, ...]]:
    return [(str(name), row["value"], row["threshold"], row["verdict"]) for name, row in checks.iterrows()]


def named_in(reasons: str, check: str) -> bool:
    """Return whether the reasons of a calibration name a check, as in "kappa 0.2 >= 0.12"."""
    return re.search(rf"\b{re.escape(check)} [-\d]", reasons) is not None
