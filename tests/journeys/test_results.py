"""Results of benchmarks are files, and the numbers of pages that come from them are those of today's files."""

import importlib.util
import json
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def loaded(path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def docs(monkeypatch):
    return loaded(ROOT / "docs" / "results.py", monkeypatch)


#: Numbers in the form of a measurement: a share, a time, a size, or several decimals.
MEASURED = re.compile(
    r"(?<![\w.`/<=-])\d[\d,.]*(?: ?%| (?:times|seconds|minutes|hours|GB|MB|s)\b)|(?<![\w.`/<=-])0\.\d{2,}"
)
#: What is no measurement: code, formulas, numbers and reports of results.
_NO_TEXT = (
    r"\A---\n.*?\n---\n", r"<!--report.*?<!--end of report-->", r"<!-- measures: .*?<!-- end of measures -->",
    r"```.*?```", r"<!--[a-z][\w-]* \S+ [\w.]+-->.*?<!---->", r"`[^`]*`", r"\$\$.*?\$\$", r"\$[^$]*\$",
)  # fmt: skip
#: Levels of intervals.
_LEVELS = re.compile(r"(?:nominal |equal-tailed |cover about |promise of )?\b(?:90|95) %(?: (?:credible )?intervals?)?")
#: Numbers of pages that are definitions, limits, settings, examples or versions: not measured by a benchmark.
GIVEN = {
    "about.md": ["0.23 ("],
    "analyst.md": ["highest-density intervals of 94 % (ArviZ 0.23) or 89 % (ArviZ 1)"],
    "comparison.md": ["0.16.0", "0.21.0", "25 times in the files"],
    "howto/dates.md": ["about 0.03 on this scale"],
    "howto/declare_columns.md": ["or 12 %"],
    "howto/from_your_file.md": ["that 40 % have", "12,5 %"],
    "howto/offsets_and_counts.md": ["grows by 2 % per year", "is 0.02"],
    "install.md": ["ArviZ 0.23"],
    "start.md": ["intervals of 94 % (ArviZ 0.23) or 89 % (ArviZ 1)", "slopes of 0.04 (age), 0.5 (male) and 0.05 (bmi)"],
    "theory.md": [
        "5, 20, 15 and 60 %", "a level of 1 % five times", "have 25 % of", "below 0.12", "300 rows and 3 %",
        "is 0.03 to 0.3", "beyond 98 %", "at least 0.02", "1.5 times the mean square", "the assumed one (0.02)",
    ],
    "user_guide/intervals_that_cover.md": [
        "at most 5 % of the private rows", "20 % if the noise is the larger error", "is 0.03 or more", "spends 8 %",
        "becomes 4\n% larger", "2.6 times the noise of the test",
    ],
}  # fmt: skip
#: Pages with numbers of benchmarks that have not run again since results are files.
PENDING = {
    "benchmarks.md", "comparison.md", "howto/machine_learning.md", "methods.md", "user_guide/coverage_study.md",
    *(f"paper/{name}.md" for name in (
        "compute_times", "contributions", "discoveries", "index", "log_weights", "mnist", "privacy_split", "queries",
        "regressions", "tables",
    )),
}  # fmt: skip


@pytest.fixture
def every(monkeypatch):
    return loaded(ROOT / "benchmarks" / "all.py", monkeypatch)


def test_numbers_of_pages_are_those_of_the_results(docs):
    found = 0
    for page in docs.pages():
        text = page.read_text(encoding="utf-8")
        assert docs.current(text) == text, f"python docs/results.py brings {page.name} up to date"
        found += len(docs.BOUND.findall(text))
    assert found


def unbound(text, given=()):
    """Return the measured numbers of a page that come from no result, with what stands around them."""
    for pattern in _NO_TEXT:
        text = re.sub(pattern, "", text, flags=re.DOTALL)
    for part in given:
        assert re.search(r"\s+".join(map(re.escape, part.split())), text), f"GIVEN is out of date: {part}"
        text = re.sub(r"\s+".join(map(re.escape, part.split())), "", text)
    text = _LEVELS.sub("", text)
    return [" ".join(text[max(0, one.start() - 60) : one.end() + 30].split()) for one in MEASURED.finditer(text)]


def test_numbers_that_were_measured_come_from_results(docs):
    """A number of a page is one of a result (`docs/results.py`), or stands in GIVEN."""
    names = {
        page: str(page.relative_to(ROOT / "docs")) if ROOT / "docs" in page.parents else page.name
        for page in docs.pages()
    }
    found = {name: unbound(page.read_text(encoding="utf-8"), GIVEN.get(name, ())) for page, name in names.items()}
    assert set(GIVEN) <= set(names.values())
    assert {name for name, numbers in found.items() if numbers} == PENDING, found


def test_a_number_without_a_result_is_found():
    found = unbound("90 % intervals cover in 91.5 % of cases and need 3 s")
    assert len(found) == 2 and all("91.5 % of cases and need 3 s" in text for text in found)
    assert unbound("It covers <!--r a/b p0-->91<!----> %, and `0.123` or $0.456$; 90 % intervals") == []


def test_numbers_are_written_in_their_format(docs):
    content = {
        "date": "2026-11-30",
        "python": "3.13.0",
        "command": "python benchmarks/r.py",
        "seconds": 290,
        "report": "| new |\n",
        "figures": {"a/b": {"value": 0.98765, "se": 0.0123, "n": 1200}},
    }
    text = (
        "<!--r a/b .2f-->9<!----> (<!--r a/b± .3f-->9<!---->) of <!--r a/b# ,d-->9<!---->; <!--r a/b p1-->9<!----> % "
        "on <!--r @date s--><!---->, <!--r @python s-->2<!---->"
    )
    new = docs.current(text.replace(",d", "d"), lambda name: content)
    assert re.sub("<!--.*?-->", "", new) == "0.99 (0.012) of 1,200; 98.8 % on 2026-11-30, 3.13"
    whole = docs.current("a\n<!--report r-->\nold\n<!--end of report-->\nb", lambda name: content)
    line = "`python benchmarks/r.py`: Python 3.13, 2026-11-30, 5 minutes."
    assert whole == f"a\n<!--report r-->\n\n| new |\n\n{line}\n\n<!--end of report-->\nb"
    after = docs.current("<!--report r-->\n<!--end of report-->\n<!--r a/b .2f-->9<!---->", lambda name: content)
    assert after.endswith("<!--end of report-->\n<!--r a/b .2f-->0.99<!---->")
    with pytest.raises(KeyError, match="c"):
        docs.current("<!--r c .2f-->9<!---->", lambda name: content)


def test_charts_are_drawn_from_the_results_and_say_which(docs, monkeypatch, tmp_path):
    figures = {
        f"{table}/100/{epsilon}/{generator}/2-way": {"value": 0.1, "se": 0.01}
        for table in ("adult-7", "churn", "wives")
        for epsilon in ("0.3", "1", "3")
        for generator in ("AIM", "AIM,-same-bins", "AIM-of-mbi")
    } | {
        f"{method}/BayesNet-0.3/{kind}/{name}": {"value": None if name == "covered" else 0.8, "se": 0.1, "n": 9}
        for method in ("formula", "rehearsals")
        for kind in ("default", "named")
        for name in ("covered", "calibrated", "private_covered")
    }
    monkeypatch.setattr(docs.charts, "FOLDER", tmp_path)

    def read(name):
        if name == "marginals" and missing:
            raise FileNotFoundError
        return {"figures": figures}

    missing = True
    assert [path.name for path in docs.charts.draw(read)] == ["populations.png"]
    missing = False
    assert [path.name for path in docs.charts.draw(read)] == ["marginals.png"]
    assert docs.charts.draw(read) == []
    figures["churn/100/3/AIM/2-way"] = {"value": 0.2}
    assert len(docs.charts.draw(read)) == 2


def test_charts_of_the_pages_show_the_results_of_today(docs, every):
    for name, (_, sources) in docs.charts.CHARTS.items():
        assert set(sources) <= set(every.RUNS)
        if (path := docs.charts.FOLDER / f"{name}.png").exists():
            figures = {source: docs.results.read(source)["figures"] for source in sources}
            assert docs.charts.shown_by(path) == docs.charts.digest_of(figures), "python docs/results.py draws it again"


def test_results_are_listed_and_complete(every):
    files = {path.stem for path in every.results.FOLDER.glob("*.json")}
    assert files and files <= set(every.RUNS)
    for name in files:
        content = every.results.read(name)
        assert content["command"] == f"python benchmarks/{every.RUNS[name]}"
        assert content["figures"] and content["seconds"] >= 0 and content["versions"]["iwbayes"]
        assert f"benchmarks/{every.RUNS[name].split()[0]}" in content["code"]
        assert any(path.startswith("iwbayes/") for path in content["code"])
        assert not re.search(r"/root|/home|\.\./", json.dumps(content))  # no path of a machine


def test_a_digest_sees_code_and_no_comment(every, tmp_path):
    texts = [
        'def f(x):\n    """Add."""\n    return x + 1\n',
        '# Why.\ndef f(x):\n    """Add one."""\n\n    return (x + 1)  # one\n',
        "def f(x):\n    return x + 2\n",
        'def f(x):\n    return x + 1\n\n\nNAME = "a"\n',
    ]
    digests = []
    for index, text in enumerate(texts):
        path = tmp_path / f"{index}.py"
        path.write_text(text)
        digests.append(every.results.digest_of(path))
    assert digests[0] == digests[1] and len(set(digests)) == 3
    assert every.results.digest_of(tmp_path / "none.py") == "gone"


def test_a_result_is_stale_if_its_code_or_its_command_changed(every, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(every.results, "FOLDER", tmp_path)
    monkeypatch.setattr(every, "RUNS", {"one": "one.py --n 3", "two": "two.py"})
    content = {"command": "python benchmarks/one.py --n 3", "date": "2026-11-30", "seconds": 120, "figures": {}}
    known = {path: every.results.digest_of(ROOT / path) for path in ("iwbayes/plots.py", "iwbayes/validation.py")}
    for code, command, said in (
        (known, "one.py --n 3", "fresh"),
        (known | {"iwbayes/plots.py": "0"}, "one.py --n 3", "changed: plots"),
        (known, "one.py --n 4", "another command line"),
    ):
        kept = content | {"code": code, "command": f"python benchmarks/{command}"}
        (tmp_path / "one.json").write_text(json.dumps(kept))
        assert every.main([]) == 0
        out = capsys.readouterr().out
        assert said in out and "never run" in out and "2 min" in out
        assert every.main(["--stale"]) == 1
        assert ("one " in capsys.readouterr().out) == (said != "fresh")


def test_a_run_leaves_its_figures_and_the_code_that_it_loaded(every, monkeypatch, tmp_path):
    results = every.results
    monkeypatch.setattr(results, "FOLDER", tmp_path)
    monkeypatch.setattr(results, "PICTURES", tmp_path / "images")
    (tmp_path / "images").mkdir()
    (tmp_path / "drawn.png").write_bytes(b"picture")
    line = results.line_of("napsu.py", ["--data", "/home/me/data", "--result", "x", "--jobs", "2", "--epsilon", "1"])
    assert line == "napsu.py --data FOLDER --epsilon 1"
    with results.record("the-x", line):
        results.figure("a", 0.123456789, 0.5, 3)
        results.figure("b", 4.0)
        results.report("| table |")
        results.picture(tmp_path / "drawn.png")
        with pytest.raises(ValueError, match="twice"):
            results.figure("a", 1.0)
    content = results.read("the-x")
    assert content["figures"] == {"a": {"value": 0.123457, "se": 0.5, "n": 3}, "b": {"value": 4}}
    assert content["report"] == "| table |"
    assert "benchmarks/napsu.py" in content["code"] and not results.changed(content)
    with pytest.raises(ValueError, match="reported no figure"), results.record("y", line):
        pass
    assert not (tmp_path / "y.json").exists()
    assert (tmp_path / "images" / "the_x.png").read_bytes() == b"picture"
