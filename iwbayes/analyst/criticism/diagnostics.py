"""Diagnostics: the table of checks that `diagnose` returns, and how it shows itself as text and in notebooks."""

from __future__ import annotations

import re
from collections.abc import Iterable

import pandas as pd

from iwbayes.display import WIDTH, cell, fill, html_table, text_table

__all__ = ["COLUMNS", "Diagnostics", "named_in"]

COLUMNS = ["value", "threshold", "verdict", "what_to_do"]
_HEADER = ("check", "value", "limit", "verdict")
#: Rows of single parameters that a short text names at most.
_MOST_PARAMETERS = 5
#: Checks that a short text gives a row of their own though they pass.
_ALWAYS = {"calibration", "kappa", "explained", "misfit", "skew", "ess_share", "certified", "r_hat", "ess_bulk"}


class Diagnostics(pd.DataFrame):
    """Data frame of checks, see :func:`~iwbayes.diagnose`; printed, it says once and below what to do.

    Everything that a data frame does works as ever. Without the four columns it shows itself as any data frame.
    """

    @property
    def _constructor(self) -> type[Diagnostics]:
        return Diagnostics

    @property
    def advice(self) -> list[str]:
        """What to do, each thing once: what fails first, then what warns, then what is worth knowing."""
        order = {"fail": 0, "warn": 1, "info": 2}
        rows = [(str(name), str(row["verdict"]), str(row["what_to_do"])) for name, row in self.iterrows()]
        # the reasons of the calibration name the checks that they come from
        rows.sort(key=lambda row: (order.get(row[1], 3), row[0] != "calibration"))
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
        """Text of what was judged; single parameters only where one does not pass, and the rest in one line.

        Parameters
        ----------
        width : int
            Longest line.
        """
        names = self.index.astype(str)
        of_one, bad = names.str.startswith("kappa["), self["verdict"].isin(("fail", "warn"))
        beyond = names[of_one & bad][_MOST_PARAMETERS:]
        judged = self[(bad & ~names.isin(beyond)) | ((self["verdict"] == "ok") & names.isin(_ALWAYS))]
        passed = self[(self["verdict"] == "ok") & ~names.isin(_ALWAYS) & ~of_one]
        known = self[(self["verdict"] == "info") & ~of_one]
        facts = [f"{name} {text}" for name, value in known["value"].items() if (text := cell(value))]
        unknown = [str(name) for name, value in known["value"].items() if not cell(value)]
        said = {
            "passed as well": ", ".join(map(str, passed.index)),
            "for information": "; ".join(facts),
            "not known": ", ".join(unknown),
        }
        more = [f"and {len(beyond)} more parameters beyond the limit of kappa"] if len(beyond) else []
        more += [f"{what}: {text}" for what, text in said.items() if text]
        lines = [text_table(_HEADER, _rows(judged), width=width)]
        lines += [fill(text, later="  ", width=width) for text in (*more, *self[bad].advice)]
        return "\n".join(lines)

    def __repr__(self) -> str:
        """Show the checks as a table, and what to do below."""
        if list(self.columns) != COLUMNS:
            return super().__repr__()
        return "\n".join([text_table(_HEADER, _rows(self)), *(fill(text, later="  ") for text in self.advice)])

    def _repr_html_(self) -> str | None:
        """Show the same in a notebook."""
        if list(self.columns) != COLUMNS:
            return super()._repr_html_()  # type: ignore[operator]
        return html_table("Diagnostics", _HEADER, _rows(self), notes=self.advice)


def _rows(checks: pd.DataFrame) -> Iterable[tuple[object, ...]]:
    return [(str(name), row["value"], row["threshold"], row["verdict"]) for name, row in checks.iterrows()]


def named_in(reasons: str, check: str) -> bool:
    """Whether the reasons of a calibration name a check, as in "kappa 0.2 >= 0.12"."""
    return re.search(rf"\b{re.escape(check)} [-\d]", reasons) is not None
