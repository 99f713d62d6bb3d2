"""Results of benchmarks as files: figures with their errors, how they were obtained, and by which code.

`record` collects what `figure` reports while a benchmark runs, and writes it to `benchmarks/results/NAME.json`, and
the benchmark's picture to `docs/images/NAME.png`. The file names each module of the package that was loaded, in this
process or in those that it started, with a digest of its syntax tree without docstrings: a change of comments leaves a
result as it is, and a change of code makes it stale.
"""

from __future__ import annotations

import ast
import hashlib
import json
import math
import multiprocessing
import multiprocessing.util
import os
import platform
import shlex
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "benchmarks" / "results"
#: Where pages find the picture of a result, by its name.
PICTURES = ROOT / "docs" / "images"
#: Where processes that a benchmark starts leave the names of their modules.
_MODULES = "IWBAYES_BENCHMARK_MODULES"
_PACKAGES = ("numpy", "scipy", "pandas", "pymc", "arviz", "iwbayes")

_figures: dict[str, dict[str, Any]] = {}
_reports: list[str] = []
_pictures: list[bytes] = []


def figure(key: str, value: float, se: float | None = None, n: int | None = None) -> None:
    """Report a figure by its key, which is unique in the benchmark, with its standard error and number of cases.

    Spaces of the key become hyphens.
    """
    key = key.replace(" ", "-")
    if key in _figures:
        raise ValueError(f"the figure {key!r} was reported twice.")
    given = {"value": value, "se": se, "n": n}
    _figures[key] = {name: _plain(part) for name, part in given.items() if part is not None}


def table(frame: Any, prefix: str = "", *, n: str | None = None, shown: Mapping[str, str] | None = None) -> None:
    """Report every number of a data frame, by the names of row and column; ``x_se`` is the error of column ``x``.

    ``n`` names the column with the number of cases. ``shown`` are the columns of a table for pages, with the format of
    each, see `formatted`.
    """
    if shown:
        report(markdown(frame, shown))
    for row in frame.reset_index().to_dict("records"):
        index = [row.pop(name) for name in (frame.index.names if frame.index.names[0] else ["index"])]
        labels = [f"{part:g}" if isinstance(part, float) else str(part) for part in index]
        for name, value in row.items():
            if isinstance(value, str) or name == n or str(name).endswith("_se"):
                continue
            key = "/".join((*([prefix] if prefix else []), *labels, str(name)))
            figure(key, value, row.get(f"{name}_se"), None if n is None else int(row[n]))


def formatted(value: float | None, form: str) -> str:
    """Write a number in a format of Python, or in percent with so many digits (``p1``); a dash for a missing one."""
    if value is None or math.isnan(value):
        return "–"
    if form == "d":
        return f"{value:,.0f}"
    return f"{100 * value:.{form[1:]}f} %" if form[0] == "p" else f"{value:{form}}"


def markdown(frame: Any, shown: Mapping[str, str]) -> str:
    """Write some columns of a data frame as a table, beside the levels of its index that vary, with standard errors."""
    flat = frame.reset_index()
    varies = [name for name in frame.index.names if flat[name].nunique() > 1]
    lines = [[*varies, *(name.replace("_", " ") for name in shown)]]
    lines.append(["---"] * len(lines[0]))
    for _, row in flat.iterrows():
        cells = [f"{part:g}" if isinstance(part, float) else str(part) for part in row[varies]]
        for name, form in shown.items():
            text, se = formatted(row[name], form), row.get(f"{name}_se")
            known = se is not None and math.isfinite(se) and text != "–"
            cells.append(f"{text} ± {formatted(se, form).removesuffix(' %')}" if known else text)
        lines.append(cells)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def clustered_se(values: Any, clusters: Any) -> float:
    """Return the standard error of a mean whose values depend on each other within clusters; NaN of one cluster."""
    totals: dict[Any, float] = {}
    numbers = [float(value) for value in values]
    mean = sum(numbers) / len(numbers) if numbers else math.nan
    for value, cluster in zip(numbers, clusters, strict=True):
        totals[cluster] = totals.get(cluster, 0.0) + value - mean
    if len(totals) < 2:
        return math.nan
    spread = sum(total**2 for total in totals.values()) * len(totals) / (len(totals) - 1)
    return math.sqrt(spread) / len(numbers)


def _plain(value: float) -> float | int | None:
    if not math.isfinite(value):
        return None
    return int(value) if float(value).is_integer() else float(f"{float(value):.6g}")


def clear() -> None:
    """Forget all figures, reports and pictures."""
    _figures.clear()
    _reports.clear()
    _pictures.clear()


def report(text: str) -> None:
    """Keep a report in Markdown, for pages that show it whole."""
    _reports.append(text)


def picture(path: Path) -> None:
    """Keep the picture of a benchmark, a PNG file, for pages."""
    _pictures[:] = [path.read_bytes()]


def line_of(script: str, arguments: Sequence[str]) -> str:
    """Return a command line without the name of the result, and without folders and processes of a machine."""
    kept, skipped = [script], False
    for argument in arguments:
        if skipped:
            skipped = False
        elif argument in ("--result", "--jobs", "--folder", "--output", "--csv"):
            skipped = True
        else:
            kept.append(argument)
    for index, argument in enumerate(kept):
        if argument == "--data":
            kept[index + 1] = "FOLDER"
    return shlex.join(kept)


@contextmanager
def record(name: str, line: str) -> Iterator[None]:
    """Write the figures of a run by its command line; nothing is written if it fails or reports none."""
    clear()
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        os.environ[_MODULES] = folder
        try:
            yield
        finally:
            del os.environ[_MODULES]
        loaded = set(_loaded()).union(*(path.read_text().split() for path in Path(folder).iterdir()))
    if not _figures:
        raise ValueError(f"{name} reported no figure.")
    content = {
        "command": f"python benchmarks/{line}",
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "seconds": round(time.perf_counter() - start),
        "python": platform.python_version(),
        "versions": {package: version(package) for package in _PACKAGES},
        "figures": dict(_figures),
        **({"report": "\n\n".join(_reports)} if _reports else {}),
        "code": {path: digest_of(ROOT / path) for path in sorted({*loaded, f"benchmarks/{line.split()[0]}"})},
    }
    FOLDER.mkdir(exist_ok=True)
    text = json.dumps(content, indent=1, ensure_ascii=False) + "\n"
    (FOLDER / f"{name}.json").write_text(text, encoding="utf-8")
    for image in _pictures:
        (PICTURES / f"{name.replace('-', '_')}.png").write_bytes(image)


def read(name: str) -> dict[str, Any]:
    """Return the content of a result."""
    content: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    return content


def changed(content: dict[str, Any]) -> list[str]:
    """Return the files whose code is not what it was when a result was measured."""
    return [path for path, known in content["code"].items() if digest_of(ROOT / path) != known]


def _loaded() -> list[str]:
    """Return the files of the package, and of `shared`, that this process has loaded."""
    files = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
    inside = (Path(file).resolve() for file in files if file)
    ours = (ROOT / "iwbayes", ROOT / "benchmarks")
    return [str(path.relative_to(ROOT)) for path in inside if any(path.is_relative_to(own) for own in ours)]


def report_modules() -> None:
    """In a process that a recorded benchmark started, leave the names of its modules when it ends."""
    folder = os.environ.get(_MODULES)
    if folder and multiprocessing.parent_process() is not None:
        multiprocessing.util.Finalize(None, _leave, args=(folder,), exitpriority=1)


def _leave(folder: str) -> None:
    if Path(folder).is_dir():  # the benchmark still waits for it
        (Path(folder) / str(os.getpid())).write_text("\n".join(_loaded()))


@cache
def digest_of(path: Path) -> str:
    """Return a digest of a file's code without comments and docstrings, the same for each version of Python."""
    if not path.is_file():
        return "gone"
    if path.suffix != ".py":
        return hashlib.sha256(path.read_bytes()).hexdigest()[:16]
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        documented = isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        if documented and body and ast.get_docstring(node, clean=False) is not None:
            body[0] = ast.Pass()
    return hashlib.sha256("".join(_flat(tree)).encode()).hexdigest()[:16]


def digest_of_all() -> str:
    """Return a digest of the code of the package and of all benchmarks."""
    folders = (ROOT / "iwbayes", ROOT / "benchmarks")
    every = sorted(path for folder in folders for path in folder.rglob("*.py"))
    return hashlib.sha256("".join(map(digest_of, every)).encode()).hexdigest()[:8]


def _flat(node: Any) -> Iterable[str]:
    """Yield the parts of a syntax tree; fields that are empty, and exist in some versions only, are left out."""
    if isinstance(node, ast.AST):
        yield f"({type(node).__name__}"
        for name, value in ast.iter_fields(node):
            if value not in (None, []) and name != "kind":
                yield f" {name}="
                yield from _flat(value)
        yield ")"
    elif isinstance(node, list):
        yield "["
        for part in node:
            yield from _flat(part)
        yield "]"
    else:
        yield repr(node)
