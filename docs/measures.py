"""The table of measures in "Intervals that cover", made from their registry: ``python docs/measures.py``."""

from __future__ import annotations

from pathlib import Path

from iwbayes.analyst.calibration.measure import Measure
from iwbayes.analyst.calibration.measures import MEASURES

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "user_guide" / "intervals_that_cover.md"
BEGIN, END = "<!-- measures: python docs/measures.py -->\n", "<!-- end of measures -->\n"


def limit_of(measure: Measure) -> str:
    """Say the limits of a measure, by the source of the intervals."""
    judged = {how: limit for how, limit in measure.limits.items() if measure.judges(how)}
    if judged.get("scores") == judged.get("formula"):  # the formula, too
        judged.pop("scores", None)
    if not judged:
        return "none"
    side = "below" if measure.worst == "largest" else "above"
    if {"formula", "rehearsals", "pool"} <= set(judged) and len(set(judged.values())) == 1:
        return f"{side} {next(iter(judged.values()))}"
    return "; ".join(f"{how}: {side} {limit}" for how, limit in sorted(judged.items()))


def table(measures: dict[str, Measure] = MEASURES) -> str:
    """Make the table: what each number means, its limit, and what helps."""
    rows = [
        f"| [`{name}`](../theory.md#{one.theory}) | {one.meaning} | {limit_of(one)} | {one.remedy} |"
        for name, one in measures.items()
    ]
    return "\n".join(["| number | meaning | limit | what helps |", "|---|---|---|---|", *rows]) + "\n"


def main() -> None:
    """Write the table into the page."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    PAGE.write_text(before + BEGIN + "\n" + table() + "\n" + END + rest.partition(END)[2], encoding="utf-8")


if __name__ == "__main__":
    main()
