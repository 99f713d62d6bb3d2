"""What objects show of themselves: no line beyond 88 columns, no broken number, and valid, escaped HTML."""

import ast
import re
import warnings
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import iwbayes as iw
from iwbayes.analyst.criticism.diagnostics_table import Diagnostics
from iwbayes.release.statement import Event, PrivacyStatement
from iwbayes.utils.display import WIDTH, cell, fill, html_table, text_table, wrapped
from iwbayes.utils.warnings import IwbayesWarning

LONG = "household_income_in_thousands_of_the_currency_of_the_year"
EVIL = '<script>alert("&")</script>'


def test_numbers_are_whole_and_words_are_folded():
    rows = [(f"{LONG}:{LONG}[south-west]", -1234.5678, "some words that go on and on", 1e-7), ("b", 2, "", np.nan)]
    for width in (60, 80, 88):
        lines = text_table(("name", "value", "words", "small"), rows, width=width).split("\n")
        assert max(map(len, lines)) <= width
        assert any("-1,235" in line and "1e-07" in line for line in lines) and lines[-1].split() == ["b", "2"]
    folded = text_table(("n", "v"), [(f"{LONG}[x y]", 1.5)], width=30)
    assert "1.5" in folded and LONG in "".join(folded.replace("1.5", "").split()) and "[x y]" in folded


def test_wrapping_keeps_indents_and_every_word():
    text = f"title\n  privacy: {'word ' * 40}end\n    short"
    lines = wrapped(text).split("\n")
    assert lines[0] == "title" and lines[-1] == "    short" and max(map(len, lines)) <= WIDTH
    assert all(line.startswith("    ") for line in lines[2:-1])
    assert " ".join(" ".join(lines).split()) == " ".join(text.split())
    assert fill("a  b\nc", first="> ") == "> a b c"


def test_cells():
    shown = [cell(value) for value in (None, float("nan"), True, 3, 12345.678, 0.000123456, "x")]
    assert shown == ["", "", "True", "3", "12,346", "0.0001235", "x"]


def texts(html):
    """All text of HTML that is well-formed, and so valid as XML too."""
    return [text.strip() for text in ET.fromstring(f"<root>{html}</root>").itertext() if text.strip()]


def test_html_is_escaped():
    html = html_table(EVIL, (EVIL, "n"), [(EVIL, 1.5), ("b", EVIL)], notes=[EVIL])
    assert texts(html) == [EVIL, EVIL, "n", EVIL, "1.5", "b", EVIL, EVIL] and "<script" not in html
    assert 'class="dataframe"' in html


@pytest.fixture(scope="module")
def private():
    rng = np.random.default_rng(1)
    frame = pd.DataFrame({LONG: rng.normal(50.123456, 12, 800), EVIL: rng.choice(["<b>", "north & south"], 800)})
    schema = iw.Schema(iw.Real(LONG, 0, 100), iw.Categorical(EVIL, ["<b>", "north & south"], missing=True))
    return iw.PrivateTable(frame, schema)


@pytest.fixture(scope="module")
def shown(private):
    """Every kind of object that shows itself."""
    release = iw.publish(private, epsilon=1.0, delta=1e-6, n_synthetic=900)
    event = Event("a use of the rows with a long label " * 3, "gaussian", 1.0, 1e-6, 2.0)
    uncertified = PrivacyStatement(1.0, 1e-6, "replace-one", (event,), "seeded", False, ("a note " * 30,))
    return {
        "schema": private.schema,
        "plan": iw.plan(private.schema, 40, epsilon=0.1, delta=1e-6),
        "intervals": iw.plan_intervals(
            iw.Schema(iw.Real(LONG, 0, 1), iw.Binary("y")),
            40,
            epsilon=[1, 3],
            delta=1e-6,
            formula=f"y ~ `{LONG}`",
            n_simulations=1,
            random_seed=1,
        ),
        "release": release,
        "uncertified": iw.Release(release.synthetic, release.weights, uncertified, n_private=release.n_private),
        "weights": release.weights.psis(),
        "statement": release.statement,
        "seeded": uncertified,
        "diagnostics": iw.diagnose(release),
    }


def test_warnings_are_wrapped_wherever_they_are_issued(monkeypatch):
    monkeypatch.setattr(IwbayesWarning, "columns", WIDTH)
    with pytest.warns(iw.CalibrationWarning) as caught:
        warnings.warn("not calibrated: " + "a reason " * 50, iw.CalibrationWarning, stacklevel=1)
    lines = str(caught[0].message).split("\n")
    assert len(lines) > 4 and max(map(len, lines)) <= WIDTH
    ours = {kind.__name__ for kind in (IwbayesWarning, *IwbayesWarning.__subclasses__())}
    for path in Path(iw.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "warnings.warn":
                names = {ast.unparse(argument) for argument in node.args[1:]}
                assert names & (ours | {"warning.category"}), f"{path}:{node.lineno} warns in lines of any width"


def test_code_of_a_schema_is_short_and_makes_it_again():
    levels = [f"level {index}, of a region's name" for index in range(30)]
    schema = iw.Schema(iw.Categorical("region", levels), iw.Real("x" * 60, 0, 1, missing=True), iw.Binary("b"))
    assert max(map(len, repr(schema).split("\n"))) <= WIDTH
    names = {kind: getattr(iw, kind) for kind in ("Schema", "Categorical", "Real", "Binary")}
    assert eval(repr(schema), names) == schema  # noqa: S307 - a repr that can be pasted


KINDS = ("schema", "plan", "intervals", "release", "uncertified", "weights", "statement", "seeded", "diagnostics")


@pytest.mark.filterwarnings("ignore::iwbayes.utils.warnings.PrivacyWarning")
@pytest.mark.parametrize("kind", KINDS)
def test_objects_show_themselves_in_short_lines_and_valid_html(shown, private, kind):
    thing = shown[kind]
    lines = str(thing).split("\n")
    assert kind in ("seeded", "statement") or max(map(len, repr(thing).split("\n"))) <= WIDTH
    assert len(lines) > 2 and max(map(len, lines)) <= WIDTH
    html = thing._repr_html_()
    assert len(texts(html)) > 4 and "<script" not in html and "<b>" not in html and len(html) < 20_000
    # no private cell: none of the values of the table is in any text
    cells = {f"{value:.6g}" for value in private.frame[LONG].astype(float)}
    assert not cells & set(re.findall(r"\d+\.\d+", str(thing) + html))


def test_what_stands_in_the_tables(shown):
    assert texts(shown["schema"]._repr_html_())[5:8] == [LONG, "real", "0 to 100"]
    assert EVIL in str(shown["schema"]) and "allowed" in str(shown["schema"])
    assert "NOT certified" in str(shown["uncertified"]) and "NOT certified" in shown["uncertified"]._repr_html_()
    labels = {event.label for event in shown["statement"].uses}
    assert labels <= set(texts(shown["statement"]._repr_html_())) and labels <= set(
        texts(shown["release"]._repr_html_())
    )
    assert "psis" in str(shown["weights"]) and "pareto_k" in str(shown["weights"])


def diagnostics(**rows):
    frame = pd.DataFrame.from_dict(rows, orient="index", columns=["value", "threshold", "verdict", "what_to_do"])
    return Diagnostics(frame.astype({"value": object, "threshold": object}))


def test_advice_is_given_once_and_below():
    noisy = "the privacy noise is too large."
    table = diagnostics(
        **{
            "kappa": (0.2, 0.12, "fail", noisy),
            "kappa[a]": (0.2, 0.12, "fail", noisy),
            "calibration[a]": ("no", "", "fail", ""),
            "r_hat": (1.0, 1.01, "ok", ""),
        },
        calibration=("no", "calibrated", "fail", f"kappa 0.2 >= 0.12 (a): {noisy} skew 0.6 >= 0.5: too skew"),
        skew=(0.6, 0.5, "fail", "too skew"),
        other=(1.0, 0.5, "warn", "look"),
    )
    for text in (" ".join(shown.split()) for shown in (repr(table), table.brief(), table._repr_html_())):
        assert text.count(noisy) == 1 and text.count("too skew") == 1 and text.count("look") == 1
        assert text.index(noisy) < text.index("other: look")
    assert diagnostics(a=(1.0, 0.5, "warn", "go"), b=(1.0, 0.5, "fail", "go")).advice == ["b, a: go"]


def test_a_short_text_names_parameters_where_one_does_not_pass():
    rows = {"kappa[b0]": (0.01, 0.12, "ok", ""), "calibration[b0]": ("calibrated", "calibrated", "ok", "")}
    for index in range(1, 9):
        rows[f"kappa[b{index}]"] = (0.2, 0.12, "fail", "too noisy")
        rows[f"calibration[b{index}]"] = ("not calibrated", "calibrated", "fail", "")
    checks = diagnostics(**rows, ess=(10.0, np.nan, "info", ""), skew=(np.nan, 0.5, "info", ""))
    text = checks.brief()
    assert [line.split()[0] for line in text.split("\n") if "not calibrated  " in line] == [
        f"b{j}" for j in range(1, 6)
    ]
    assert "and 3 more parameters that are not calibrated" in text and "for information: ess 10\n" in text
    assert "not known: skew" in text
    # the whole table has them all, and where all or none are outside the short one has none of them
    assert "b0" in repr(checks) and "b6" in repr(checks)
    assert "b5" not in checks.drop(["kappa[b0]", "calibration[b0]"]).brief()


def test_diagnostics_are_a_data_frame(shown):
    table = shown["diagnostics"]
    assert isinstance(table, pd.DataFrame) and isinstance(table[table["verdict"] == "ok"], Diagnostics)
    assert "verdict" in repr(table[["verdict"]]) and table[["verdict"]]._repr_html_().startswith("<div>")
    assert table.loc["noise", "verdict"] == "ok"
