"""Files for scripts and assistants, made from the pages: llms.txt and SKILL.md. ``python docs/assistants.py``."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
_LONGEST = 200  # characters of what a page is about

#: What an assistant must know beyond the pages. Commands and their outputs follow from them.
SKILL = """\
---
name: iwbayes
description: Publish a private table as differentially private synthetic rows with importance weights, and analyse such
  releases with calibrated Bayesian models. For tasks that name iwbayes, .iwb files, or private tables to be released.
---
# Work with iwbayes

Two roles: a **curator** holds private rows and publishes a release (`.iwb`); an **analyst** has the release only.

## Rules

1. **Never publish private rows unasked.** `publish` spends privacy budget that nobody can give back, also if it fails.
   Plan first, show the plan, and wait for a clear order that names table, epsilon and delta.
2. **Never read private rows to choose settings,** bounds or levels. Take them from a code book or from the curator.
   Do not print, summarise or plot private rows, and do not put them into messages, logs or prompts.
3. **Always use the ledger** that belongs to the rows, if there is one. A second ledger hides earlier costs.
4. **Do not call an interval calibrated** unless its verdict says so. Report verdict and reason with every number.
5. `iwbayes utility --private` and any comparison with private rows are private output. Do not carry them elsewhere.
6. Use `--json` and exit codes. Do not use `--allow-large-delta`, `--force` or seeded noise to get past a refusal.

## Curator: plan, check, publish

```bash
{curator}
```

## Analyst: inspect, fit, read the verdict

```bash
{analyst}
```

In Python: `release = iw.load(path)`, then `idata = iw.fit(formula, release, random_seed=1)` for a regression, or
`iw.sample(model, release, random_seed=1)` for any PyMC model. `iw.summary(idata)` has intervals, verdicts and reasons,
and `iw.diagnose(release, idata)` says what helps. Other estimators: `iw.replicate_weights(release)`.

## Output of the commands

{json}

{exits}

## Where to look

`llms.txt` lists the pages of the documentation.
"""
_CURATOR = """\
iwbayes schema --from-codebook codebook.xlsx > people.toml
iwbayes plan -s people.toml --n 4000 --epsilon 1 --delta 1e-6 --for-model "insured ~ age" --json
iwbayes publish people.csv -s people.toml --epsilon 1 --delta 1e-6 --ledger people.ledger --dry-run --json
iwbayes publish people.csv -s people.toml --epsilon 1 --delta 1e-6 --ledger people.ledger -o people.iwb --json"""
_ANALYST = """\
iwbayes inspect people.iwb --json
iwbayes fit people.iwb "insured ~ age" --seed 1 -o posterior.nc --json
iwbayes report people.iwb posterior.nc -o report.html"""


def _about(page: Path) -> tuple[str, str]:
    """Title of a page, and its first sentence."""
    text = page.read_text(encoding="utf-8")
    text = re.sub(r"\A---\n.*?\n---\n", "", text, flags=re.DOTALL)
    title = re.search(r"^# (.+)$", text, re.MULTILINE)
    rest = text[title.end() :] if title else text
    plain = re.sub(r"(?ms)^(```|:::|<|\||- |#|\{).*?(\n\n|\Z)", "", rest).strip()
    first = re.split(r"(?<=[.!?])(?<!al\.)\s", " ".join(plain.split("\n\n")[0].split()) + " ")[0] if plain else ""
    first = re.sub(r"\[([^\]]*)\]\([^)]*\)|\{[\w:]+\}`~?([^`<]*)(?:<[^>]*>)?`", lambda m: m[1] or m[2], first)
    return (title[1] if title else page.stem), first.replace("**", "") if len(first) <= _LONGEST else ""


def llms() -> str:
    """Text of llms.txt: what the package is, and a line for each page, in the order of the landing page."""
    index = (DOCS / "index.md").read_text(encoding="utf-8")
    summary = re.search(r"\*\*(.+?)\*\*", index, re.DOTALL)
    assert summary is not None
    lines = [
        "# iwbayes",
        "",
        f"> {' '.join(summary[1].split())}",
        "",
        "A curator publishes one file: synthetic rows, importance weights and a privacy statement. An analyst fits any "
        "PyMC model to it. SKILL.md has the rules for assistants: never publish private rows unasked.",
    ]
    for caption, names in re.findall(
        r"```\{toctree\}\n:hidden:\n:caption: (.+?)\n(?::glob:\n)?\n(.*?)```", index, re.DOTALL
    ):
        lines += ["", f"## {caption}", ""]
        for name in names.split():
            page = DOCS / f"{name}.md"
            if name == "tutorials/*":
                lines.append("- [Tutorials](examples/): notebooks, each a whole analysis")
            elif page.exists():
                title, about = _about(page)
                lines.append(f"- [{title}](docs/{name}.md)" + (f": {about}" if about else ""))
    return "\n".join(lines) + "\n"


def skill() -> str:
    """Text of SKILL.md: rules, and the tables of keys and exit codes of the page on the command line."""
    page = (DOCS / "howto" / "command_line.md").read_text(encoding="utf-8")
    tables = [re.search(rf"(?m)^\| {head}.*\n(?:\|.*\n)+", page) for head in ("command \\| keys", "exit code")]
    found = [table[0].rstrip() for table in tables if table is not None]
    return SKILL.format(curator=_CURATOR, analyst=_ANALYST, json=found[0], exits=found[1])


def main() -> None:
    """Write both files."""
    (ROOT / "llms.txt").write_text(llms(), encoding="utf-8")
    (ROOT / "SKILL.md").write_text(skill(), encoding="utf-8")


if __name__ == "__main__":
    main()
