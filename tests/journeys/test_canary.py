"""Texts from files are shown and never obeyed: no control character and no mark of direction reaches an output."""

import base64
import json
import re
import warnings

import h5py
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from file_tools import members_of, sealed, zipped
from typer.testing import CliRunner

import iwbayes as iw
from iwbayes import cli
from iwbayes.analyst import arviz_compat
from iwbayes.cli import output
from iwbayes.curator.privacy import ledger_file
from iwbayes.release import ReleaseError
from iwbayes.release.rehearsal_folder import RehearsalFacts, RehearsalsError, start_folder
from iwbayes.release.rehearsals import Rehearsals
from iwbayes.release.statement import Event, PrivacyStatement
from iwbayes.release.weights import Weights
from iwbayes.schema import Categorical, Real, Schema
from iwbayes.tables import SyntheticTable
from iwbayes.utils.display import fill, html_table, markup, one_line, printable, text_table, wrapped

#: Commands print warnings; steps of the weights, for example, make the intervals not calibrated.
pytestmark = pytest.mark.filterwarnings("default")
#: Clears a terminal, rings its bell, reverses the direction of writing, and begins a line.
CANARY = "\x1b[2J\x07\u202e\u2028\x9b1m\nFORGED line\r\x00 [bold]<b>$x$"
#: Characters that no output contains; line ends are checked apart.
FORBIDDEN = re.compile(
    "[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)


def safe(text):
    """Whether a text obeys no canary, and whether it shows one."""
    assert not FORBIDDEN.search(text), repr(text)
    assert not [line for line in text.splitlines() if line.startswith("FORGED")], text  # wrapped lines are indented
    return "\\x1b[2J" in "".join(text.split())  # lines may break anywhere in a long path


def with_canaries(value, *, keys=()):
    """Append the canary to every text under these keys, at any depth."""
    if isinstance(value, dict):
        return {
            key: with_canary(part) if key in keys else with_canaries(part, keys=keys) for key, part in value.items()
        }
    return [with_canaries(part, keys=keys) for part in value] if isinstance(value, list) else value


def with_canary(value):
    if isinstance(value, list):
        return [with_canary(part) for part in value] or [CANARY]
    return value + CANARY if isinstance(value, str) else value


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """An ordinary release, and the same release with a canary in every text that can hold one."""
    path = tmp_path_factory.mktemp("canary")
    people = iw.datasets.simulate_table("bernoulli", 600, random_seed=1)
    private = iw.PrivateTable(people.frame, people.schema)
    noise = iw.SeededNoise(1)
    release = iw.publish(
        private, epsilon=3.0, delta=1e-6, n_synthetic=400, for_models=["y ~ x + z"], noise=noise, random_seed=1,
        progressbar=False,
    )  # fmt: skip
    release.save(path / "good.iwb", allow_uncertified=True)

    def change(manifest):
        manifest["origin"] += CANARY
        manifest["package_version"] += CANARY
        manifest["statement"] = with_canaries(manifest["statement"], keys=("label", "notes"))
        manifest["weights"] = with_canaries(manifest["weights"], keys=("method", "steps"))
        manifest["recipe"] = with_canaries(manifest["recipe"], keys=(*manifest["recipe"], "for_models"))
        manifest["recipe"][CANARY] = [CANARY, {CANARY: CANARY}]

    (path / "r.iwb").write_bytes(zipped(sealed(members_of(path / "good.iwb"), change)))
    return path


def run(*arguments, code=0):
    done = CliRunner().invoke(cli.app, [str(argument) for argument in arguments])
    assert done.exit_code == code, done.output
    return safe(done.stdout + done.stderr)


# --- commands ---------------------------------------------------------------------------------------------


def test_commands_show_a_release_without_obeying_it(folder, monkeypatch):
    """A change of columns would be refused; all other texts of a file are free."""
    monkeypatch.chdir(folder)
    assert run("inspect", "r.iwb")
    assert run("inspect", "r.iwb", "--json")
    assert run("fit", "r.iwb", "y ~ x + z", "--seed", 1, "--draws", 100, "-o", "p.nc", "--force")
    assert run("fit", "r.iwb", "y ~ x + z", "--seed", 1, "--draws", 100, "--json")
    (folder / "s.toml").write_text(iw.load("good.iwb").synthetic.schema.to_toml())
    run("plan", "-s", "s.toml", "--n", 600, "--epsilon", 3, "--delta", 1e-6, "--formula", "y ~ x", "--like", "r.iwb",
        "--seed", 1)  # fmt: skip


def test_a_report_shows_a_release_and_a_posterior_without_obeying_them(folder, monkeypatch):
    monkeypatch.chdir(folder)
    run("fit", "r.iwb", "y ~ x + z", "--seed", 1, "--draws", 100, "-o", "q.nc")
    with h5py.File("q.nc", "a") as archive:
        for group in archive.values():
            for name, value in group.attrs.items():
                if isinstance(value, str) and name in ("formula", "family", "method", "weights", "verdict", "reasons"):
                    group.attrs[name] = value.encode() + CANARY.replace("\0", "").encode()
            for name, values in group.items():
                if h5py.check_string_dtype(values.dtype) and name != "calibrated":
                    values[...] = [text + CANARY.replace("\0", "").encode() for text in values[()]]
    run("report", "r.iwb", "q.nc", "-o", "report.html")
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert safe(page)
    figures = [base64.b64decode(data).decode() for data in re.findall(r"svg\+xml;base64,([^\"]+)", page)]
    assert len(figures) > 3 and any([safe(figure) for figure in figures])
    assert "<b>$x$" not in page and "&lt;b&gt;$x$" in page


def test_errors_show_what_they_refuse_without_obeying_it(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    members = members_of(folder / "good.iwb")
    changes = {
        "name": lambda m: m["schema"]["column"][0].update(name=CANARY),
        "level": lambda m: m["schema"]["column"].append({"name": "c", "type": "categorical", "levels": [CANARY, "b"]}),
        "type": lambda m: m["schema"]["column"][0].update(type=CANARY),
        "key": lambda m: m["schema"]["column"][0].update({CANARY: 1}),
        "transform": lambda m: m["schema"]["column"][0].update(transform=CANARY),
        "version": lambda m: m.update(format_version=99, package_version=CANARY),
        "mechanism": lambda m: m["statement"]["events"][0].update(mechanism=CANARY),
        "count": lambda m: m["statement"]["events"][0].update(label=CANARY, count=-1),
        "epsilon": lambda m: m["statement"]["events"][0].update(label=CANARY, epsilon=0.0),
        "adjacency": lambda m: m["statement"].update(adjacency=CANARY),
        "noise": lambda m: m["statement"].update(noise=CANARY),
        "rule": lambda m: m["statement"].update(rule=CANARY),
        "law": lambda m: m["weights"]["measurement"]["noise"].update(law=CANARY),
        "terms": lambda m: m["weights"]["measurement"].update(features={"terms": CANARY, CANARY: 1}),
        "extra": lambda m: m["statement"].update({CANARY: 1}),
    }
    for name, change in changes.items():
        path = tmp_path / f"{name}.iwb"
        path.write_bytes(zipped(sealed(members, change)))
        with pytest.raises(ReleaseError) as caught:
            iw.load(path)
        safe(str(caught.value))
        run("inspect", path, code=1)
    path.write_bytes(zipped({**members, CANARY: b"x"}))
    run("inspect", path, code=1)
    odd = tmp_path / f"{CANARY.translate({0: None, ord('/'): None})}.iwb"  # the name of a file is a text of a stranger
    odd.write_bytes(b"no release")
    assert run("inspect", odd, code=1)
    schema = 'name = {}\ntype = {}\nlevels = ["a", "b"]\n{} = 1\n'
    quoted = json.dumps(CANARY)
    for parts in ((quoted, '"binary"', "missing"), ('"x"', quoted, "missing"), ('"x"', '"binary"', quoted)):
        (tmp_path / "s.toml").write_text("[[column]]\n" + schema.format(*parts))
        run("schema", "s.toml", code=1)
    (tmp_path / "s.toml").write_text(CANARY)
    run("schema", "s.toml", code=1)


def test_a_ledger_is_shown_without_obeying_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ledger = iw.Ledger.open("l.ledger", epsilon=2.0, delta=1e-6)
    ledger.charge(Event("a use", "laplace", 0.5))
    texts = ("events", "name", "date", "notes")
    for key, value in {
        "events": None,
        "name": None,
        "date": None,
        "notes": [CANARY],
        "noise": CANARY,
        "adjacency": CANARY,
        "rule": {"name": CANARY},
    }.items():
        values = json.loads((tmp_path / "l.ledger").read_text())
        if key == "events":
            values["charges"][0]["events"][0]["label"] = CANARY
        elif value is None:
            values["charges"][0][key] = CANARY
        else:
            values[key] = value
        del values["sha256"]
        (tmp_path / "h.ledger").write_text(json.dumps({**values, "sha256": ledger_file._digest(values)}))
        shown = run("ledger", "h.ledger", code=0 if key in texts else 1)
        assert shown or key not in texts
        run("ledger", "h.ledger", "--json", code=0 if key in texts else 1)


# --- objects ----------------------------------------------------------------------------------------------


def forms(found):
    return [repr(found), str(found), *([found._repr_html_()] if hasattr(found, "_repr_html_") else [])]


def test_objects_show_a_release_without_obeying_it(folder):
    release = iw.load(folder / "r.iwb")
    parts = [release, release.statement, release.weights, release.synthetic, release.weights.measurement]
    for part in [*parts, release.synthetic.schema, *release.statement.events]:
        for text in forms(part):
            safe(text)
    assert all(safe(text) for text in (str(release), str(release.statement), repr(release.weights)))
    assert safe(release._repr_html_()) and "<b>$x$" not in release._repr_html_()
    assert safe(release.synthetic.origin) and safe(release.weights.method) and safe(release.verdict)
    for reason in (*release.reasons, *release.statement.notes):
        safe(reason)
    checks = iw.diagnose(release)
    for text in (*forms(checks), checks.to_string(), checks.brief(width=88)):
        safe(text)


def test_figures_show_a_release_without_obeying_it(folder):
    release = iw.load(folder / "r.iwb")
    figures = [iw.plots.budget(release), iw.plots.weights(release), iw.plots.overlap(release)]
    texts = [text.get_text() for ax in figures for text in ax.figure.findobj(plt.Text)]
    assert any([safe(text.replace("\n", " ")) for text in texts])


def test_warnings_show_a_release_without_obeying_it(folder):
    release = iw.load(folder / "r.iwb")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        idata = iw.fit("y ~ x + z", release, draws=100, random_seed=1, progressbar=False)
    for warning in caught:
        safe(str(warning.message))
    for name in arviz_compat.group_names(idata):
        for value in arviz_compat.group(idata, name).attrs.values():
            safe(str(value))


def test_rehearsals_with_a_canary_are_refused(folder, tmp_path):
    content = (folder / "good.iwb").read_bytes()
    path, facts = tmp_path / "r", RehearsalFacts("x", 1, "BayesNet" + CANARY, 10, 0.1)
    start_folder(path, facts, content)
    with pytest.raises(RehearsalsError, match="is damaged"):
        Rehearsals.load(path)


def test_texts_are_made_printable_where_objects_are_made(folder):
    """So every other way to show them is safe, too: an f-string, a log, a data frame."""
    assert safe(Event("a" + CANARY, "laplace", 1.0).label)
    assert safe(PrivacyStatement(1.0, 0.0, "replace-one", (), "hardened", False, (CANARY,)).notes[0])
    weights = Weights(np.zeros(3), "m" + CANARY, (CANARY,))
    assert safe(weights.method) and safe(weights.steps[0])
    with pytest.raises(ValueError, match="rule must be one of"):
        PrivacyStatement(1.0, 0.0, "replace-one", (), "hardened", False, rule="x")
    release = iw.load(folder / "good.iwb")
    made = iw.Release(
        SyntheticTable(release.synthetic.frame, release.synthetic.schema, origin="o" + CANARY),
        release.weights, release.statement, n_private=600, recipe={"k" + CANARY: [{"a": "y ~ a +\n\tb"}]},
    )  # fmt: skip
    assert safe(made.synthetic.origin) and safe(next(iter(made.recipe)))
    assert list(made.recipe.values()) == [[{"a": "y ~ a + b"}]]


def test_a_formula_of_several_lines_is_stored_in_one(folder, tmp_path):
    people = iw.datasets.simulate_table("bernoulli", 300, random_seed=1)
    private = iw.PrivateTable(people.frame, people.schema)
    formula = "y ~ x +\n\u00a0 z"
    release = iw.publish(private, epsilon=3.0, delta=1e-6, n_synthetic=300, for_models=[formula], progressbar=False)
    assert release.recipe["for_models"] == ["y ~ x + z"]
    again = iw.load(release.save(tmp_path / "r.iwb"))
    assert again.recipe == release.recipe and again.to_bytes() == release.to_bytes()


def test_column_names_are_escaped_in_html():
    rows = SyntheticTable(pd.DataFrame({"<b>x": [1.0]}), Schema(Real("<b>x", 0, 2)))
    assert "<b>" not in rows._repr_html_() and "&lt;b&gt;x" in rows._repr_html_()


# --- helpers ----------------------------------------------------------------------------------------------


def test_unusual_printable_texts_stay_as_they_are():
    texts = ["Größe", "年龄", "возраст", "العمر", "naïve café", "a [bold] <b> $x$ \\n", "\U0001f600", "x²"]
    assert [printable(text) for text in texts] == texts == [one_line(text) for text in texts]
    schema = Schema(*(Categorical(text, (text, "b")) for text in texts))
    assert Schema.from_toml(schema.to_toml()) == schema
    assert all(text in repr(schema) for text in texts if "\\" not in text)


def test_display_helpers_escape(capsys):
    shown = [printable(CANARY), wrapped(CANARY), fill(CANARY), text_table(("a", CANARY), [("b", CANARY)])]
    for text in (*shown, markup(CANARY), html_table(CANARY, (CANARY,), [(CANARY,)], notes=[CANARY])):
        assert not FORBIDDEN.search(text) and "\\x1b[2J" in text
    assert one_line("a\n\tb\x1b") == "a b\\x1b"
    assert printable("\ud800") == "\\ud800"
    output.say(f"a{CANARY}")
    assert not FORBIDDEN.search(capsys.readouterr().out)
