"""The report page: self-contained, escaped, warnings first, and readable without seeing its pictures."""

import base64
import datetime
import hashlib
import re
import shutil
import subprocess
from dataclasses import replace
from html import escape
from html.parser import HTMLParser

import numpy as np
import pandas as pd
import pytest
from commands import run
from factories import seeded_release, simulated_table

import iwbayes as iw
from iwbayes.analyst import arviz_compat
from iwbayes.reporting import drawing, report
from iwbayes.reporting import html as html_parts
from iwbayes.utils.display import number

VOID = {"meta", "link", "img", "br"}


class Page(HTMLParser):
    """A page taken apart: elements, text by section, and whether every element is closed."""

    def __init__(self, html):
        super().__init__()
        self.elements, self.open, self.text, self.sections = [], [], "", {}
        self._section = "top"
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
        if tag == "section":
            self._section = dict(attrs)["aria-labelledby"]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data
        self.sections[self._section] = self.sections.get(self._section, "") + data

    def all(self, tag):
        return [attrs for own, attrs in self.elements if own == tag]


@pytest.fixture(scope="module")
def release():
    return seeded_release(simulated_table("bernoulli", 2000), 3, epsilon=3, n_synthetic=4000)


@pytest.fixture(scope="module")
def idata(release):
    return iw.fit("y ~ x + group", release, family="bernoulli", draws=200, chains=2, random_seed=1)


@pytest.fixture(scope="module")
def html(release, idata):
    return iw.report(release, idata)


@pytest.fixture
def words_only(monkeypatch):
    """Pages without pictures, which take most of their time."""
    monkeypatch.setattr(report, "picture", lambda *_: "")


def test_the_page_is_whole_and_needs_nothing_beside_itself(html):
    page = Page(html)
    assert not page.all("script") and not re.search(r"(?i)\bon\w+=|javascript:|@import|url\(", html)
    for attrs in page.all("a") + page.all("link"):
        assert attrs["href"].startswith(("#", "data:"))
    assert len(page.all("img")) == 5
    for attrs in page.all("img"):
        kind, _, data = attrs["src"].partition(";base64,")
        assert kind == "data:image/svg+xml" and base64.b64decode(data).startswith(b"<?xml")
        assert len(attrs["alt"]) > 30
    policy = next(m["content"] for m in page.all("meta") if m.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'")
    assert iw.report.__doc__


def test_it_can_be_read_by_keyboard_and_by_ear(html):
    page = Page(html)
    assert page.all("html") == [{"lang": "en"}] and len(page.all("h1")) == 1 and len(page.all("main")) == 1
    levels = [int(tag[1]) for tag, _ in page.elements if re.fullmatch("h[1-6]", tag)]
    assert all(after <= before + 1 for before, after in zip(levels, levels[1:], strict=False))
    ids = [attrs["id"] for _, attrs in page.elements if "id" in attrs]
    assert len(ids) == len(set(ids))
    assert {a["href"][1:] for a in page.all("a") if a["href"].startswith("#")} <= set(ids)
    assert all("scope" in attrs for attrs in page.all("th")) and len(page.all("caption")) == len(page.all("table"))
    for attrs in page.all("div"):  # what scrolls can be reached by keyboard and has a name
        assert attrs.get("class") != "scroll" or (attrs["tabindex"] == "0" and attrs["aria-label"])


def test_warnings_come_first_and_numbers_are_those_of_the_objects(html, release, idata):
    page = Page(html)
    headings = [attrs["id"] for attrs in page.all("h2")]
    assert headings == [
        "warnings", "posterior", "privacy", "file", "columns", "weights", "marginals", "origin", "paper",
    ]  # fmt: skip
    assert "not certified: its privacy noise is seeded" in page.sections["warnings"]
    privacy = page.sections["privacy"]
    assert f"factor of at most {np.exp(release.statement.epsilon):.4g}" in privacy
    assert "by no more than 1e-06 beyond that" in privacy and "TiltWeights" in privacy
    assert "if any one row of the private table had been any other row" in privacy
    for name, row in arviz_compat.summary(idata).iterrows():
        assert name in page.sections["posterior"] and f"{row['mean']:.4g}" in page.sections["posterior"]
    structure = [event for event in release.statement.events if event.label == "BayesNet structure"]
    assert privacy.count("BayesNet structure") == 1 and sum(event.count for event in structure) > 1
    assert f"{release.weights.pareto_k:.2f}" in page.sections["weights"]
    assert all(column.name in page.sections["columns"] for column in release.synthetic.schema)
    assert f"could be {release.recipe['calibration']:.3g} times as large" in page.sections["origin"]
    assert "calibration" not in page.sections["origin"]
    for name in ("posterior", "weights"):
        assert re.search(r"\d+ failed, \d+ with a warning, \d+ passed", page.sections[name])
    weighted = np.average(release.synthetic.frame["x"], weights=release.weights.values)
    assert f"{weighted:.4g}" in page.sections["marginals"]


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs Chromium")
@pytest.mark.parametrize("width", [400, 1400])
def test_a_browser_shows_it_without_a_complaint(html, tmp_path, width):
    (tmp_path / "report.html").write_text(html, encoding="utf-8")
    (tmp_path / "frame.html").write_text(
        f'<!DOCTYPE html><iframe src="report.html" style="width:{width}px;height:900px"></iframe>', encoding="utf-8"
    )
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]
    options += ["--enable-logging=stderr", f"--user-data-dir={tmp_path / 'user'}", "--window-size=1500,1000"]
    command = ["chromium", *options, f"--screenshot={tmp_path / 'a.png'}", (tmp_path / "frame.html").as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    assert "CONSOLE" not in done.stderr and (tmp_path / "a.png").stat().st_size > 10_000


def test_a_release_alone_and_the_same_bytes(release):
    html = iw.report(release, title="Only <this>", date="2026-01-02")
    assert html == iw.report(release, title="Only <this>", date=datetime.date(2026, 1, 2))
    page = Page(html)
    assert "posterior" not in page.sections and "<title>Only &lt;this&gt;</title>" in html


def test_the_top_says_date_version_and_digest(release, tmp_path, monkeypatch, words_only):
    monkeypatch.setenv("SOURCE_DATE_EPOCH", str(86_400 * 365))
    text = Page(iw.report(release)).sections["top"]
    path = release.save(tmp_path / "r.iwb", allow_uncertified=True)
    assert hashlib.sha256(path.read_bytes()).hexdigest() in text and iw.__version__ in text and "1971-01-01" in text
    monkeypatch.delenv("SOURCE_DATE_EPOCH")
    days = [datetime.datetime.now(datetime.UTC).date()]
    text = Page(iw.report(release)).sections["top"]
    days.append(datetime.datetime.now(datetime.UTC).date())
    assert any(str(day) in text for day in days)


def test_every_field_of_the_registry_is_there_for_the_data_protection_officer(release):
    section = Page(iw.report(release)).sections["file"]
    entry = release.to_registry()["deployment"]
    for part, fields in entry.items():
        for field, value in fields.items():
            assert part.replace("_", " ") in section and field.replace("_", " ") in section
            if isinstance(value, str):
                assert value in section, field
    assert section.count("not given") >= sum(value in (None, []) for value in entry["basic"].values()) > 0
    about = {"name": "people 2026", "publisher": "Office", "date": "2026-11-30", "contact": "dp@example.org"}
    named = replace(release, recipe=release.recipe | {"about": about})
    section = Page(iw.report(named)).sections["file"]
    assert all(text in section for text in about.values())


def test_failed_checks_and_warnings_are_open_and_the_others_folded(release, idata, words_only):
    html = iw.report(release, idata)
    checks = iw.diagnose(release, idata)
    inside = "".join(re.findall("(?s)<details>.*?</details>", html))
    outside = re.sub("(?s)<details>.*?</details>", "", html)
    # measures have one row for each parameter, and not one for each pair
    measured = {str(name).partition("[")[0] for name in checks.index if "[" in str(name)}
    matrix = inside.partition("Measures of each parameter")[2].partition("</details>")[0]
    assert measured and all(f"{check} (limit " in matrix or check == "calibration" for check in measured)
    assert matrix.count('<th scope="row">') == sum(str(name).startswith("calibration[") for name in checks.index)
    for name, verdict in checks["verdict"].items():
        check, bracket, parameter = str(name).partition("[")
        if check in measured and check != "calibration":
            continue
        row = f'<th scope="row">{escape(parameter[:-1] if bracket else str(name))}</th>'
        assert row in (outside if verdict in ("fail", "warn") else inside), name
    bad = checks["verdict"].isin(["fail", "warn"]).sum()
    some = sum("[" in str(name) or str(name) in measured - {"calibration"} for name in checks.index)
    assert bad and html.count("<summary>") == 3
    assert f"Passed and informative checks ({len(checks) - bad - some})" in html


def test_texts_have_enough_contrast():
    """At least 4.5:1 by the formula of WCAG 2, against the page and the backgrounds of boxes, light and dark."""

    def luminance(colour):
        parts = np.array([int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)])
        linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
        return linear @ [0.2126, 0.7152, 0.0722]

    style = re.sub(r"#([0-9a-f])([0-9a-f])([0-9a-f])(?![0-9a-f])", r"#\1\1\2\2\3\3", html_parts._STYLE)
    light, dark = (dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{6})", part)) for part in style.split("@media (prefers", 1))
    assert set(light) == set(dark) and not re.search(r"(?<![-\w])(color|background): #", style)
    for theme, figures in ((light, [drawing.GOOD_TEXT, drawing.BAD_TEXT]), (dark, [])):
        for text in [*(theme[name] for name in ("text", "muted", "link", "fail", "warned")), *figures]:
            for ground in (theme[name] for name in ("page", "warn", "good", "code")):
                bright, dim = sorted((luminance(text), luminance(ground)), reverse=True)
                assert (bright + 0.05) / (dim + 0.05) >= 4.5, (text, ground)


def test_a_clean_release_has_no_warning(release, words_only):
    statement = replace(release.statement, noise="hardened", certified=True, products=None)
    clean = iw.Release(release.synthetic, release.weights, statement, n_private=release.n_private)
    assert "None: every check passed." in Page(iw.report(clean)).sections["warnings"]


def test_a_posterior_of_other_weights_and_one_that_is_not_calibrated_are_said(release, idata, words_only):
    other = replace(release, weights=iw.Weights(np.zeros(4000), "other"))
    with pytest.warns(iw.CalibrationWarning):
        plain = iw.fit("y ~ x", other, family="bernoulli", draws=100, chains=2, random_seed=1)
    with pytest.warns(iw.CalibrationWarning, match="the weights of a different release. Pass the release"):
        html = iw.report(release, plain)
    assert "weights of a different release" in Page(html).sections["warnings"]
    page = Page(iw.report(other, plain))
    assert "weights of a different release" not in page.sections["warnings"]
    assert "NOT calibrated" in page.sections["posterior"]


def test_a_calibrated_posterior_is_not_that_of_another_release(html, release, idata, words_only):
    log_weights = release.weights.log_weights + 0.1 * release.synthetic.frame["x"].to_numpy()
    other = replace(release, weights=replace(release.weights, log_weights=log_weights))
    assert "The intervals are calibrated: they account for" in Page(html).sections["posterior"]
    with pytest.warns(iw.CalibrationWarning, match="weights of a different release") as caught:
        page = Page(iw.report(other, idata))
    assert len(caught) == 1 and caught[0].filename == __file__
    said = page.sections["warnings"].removeprefix("Warnings").strip()
    assert said.startswith(str(caught[0].message)) and said.count("weights of a different release") == 1
    assert "account for" not in page.sections["posterior"] and "NOT calibrated" in page.sections["posterior"]


def test_the_command_refuses_a_posterior_of_another_release(release, idata, tmp_path, words_only):
    weights = replace(release.weights, log_weights=release.weights.log_weights * 0.9)
    replace(release, weights=weights).save(tmp_path / "other.iwb", allow_uncertified=True)
    arviz_compat.save(idata, tmp_path / "idata.nc")
    paths = [str(tmp_path / name) for name in ("other.iwb", "idata.nc", "report.html")]
    done = run("report", *paths[:2], "-o", paths[2])
    assert done.exit_code == 1 and done.stderr.startswith("error: ") and done.stderr.count("\n") == 1
    assert "was fitted to a different release" in done.stderr
    assert not (tmp_path / "report.html").exists()


def test_rows_left_out_for_missing_cells_are_counted(html, release, idata, words_only):
    assert "complete cases" not in html
    posterior = arviz_compat.group(idata, "posterior").assign_attrs(rows_left_out=1603, share_left_out=0.0412)
    page = Page(iw.report(release, arviz_compat.with_groups(idata, {"posterior": posterior})))
    said = "complete cases only: 1,603 synthetic rows with missing cells left out, 4.12% of all by weight"
    assert said in page.sections["posterior"]


def test_rehearsals_are_shown(release, words_only):
    rehearsals = iw.rehearse(release, 10, random_seed=1, progressbar=False)
    own = iw.fit("y ~ x", release, rehearsals=rehearsals, random_seed=1, draws=200, chains=2)
    page = iw.report(release, own)
    record = arviz_compat.group(own, "calibration").sel(parameter="x")
    text = Page(page).sections["posterior"]
    assert "The widths of the intervals come from 10 rehearsals of the release" in text
    said = text[text.index("What rehearsals say") :]
    assert all(number(float(record[key])) in said for key in ("rehearsed_coverage", "length_ratio"))


def test_hostile_names_are_text():
    names = "<script>x</script>", "a\"b'&lt;", "$x^2$ 性别"
    schema = iw.Schema(
        iw.Real(names[0], 0, 1), iw.Categorical(names[1], ("<b>", "</table>")), iw.Binary(names[2], missing=True)
    )
    rng = np.random.default_rng(1)
    frame = pd.DataFrame({names[0]: rng.random(300), names[1]: rng.choice(["<b>", "</table>"], 300), names[2]: 1})
    page = Page(iw.report(iw.publish(iw.PrivateTable(frame, schema), epsilon=1, delta=1e-6)))
    assert not page.all("script") and not page.all("b")
    assert all(name in page.sections["columns"] for name in (*names, "</table>"))


def test_releases_of_other_kinds():
    schema = iw.Schema(*(iw.Real(f"x{index}", 0, 1, transform="log1p") for index in range(105)))
    frame = pd.DataFrame(np.random.default_rng(1).random((50, 105)), columns=schema.names)
    table = iw.SyntheticTable(frame, schema, origin="somewhere", already_spent=(np.inf, 0))
    statement = iw.PrivacyStatement(
        np.inf, 0.0, "replace-user", (iw.Event("no noise", "none", np.inf),), "hardened", False, ("a note",)
    )
    release = iw.Release(table, iw.Weights(np.zeros(50), "equal"), statement, n_private=20)
    page = Page(iw.report(release))
    assert "Nothing is promised" in page.sections["privacy"] and "a note" in page.sections["privacy"]
    assert "the 9 of 105 columns that the weights move most" in page.sections["marginals"]
    assert "5 more are not shown" in page.sections["marginals"]
    assert "x99 in numbers" in page.sections["marginals"] and "x100" not in page.sections["marginals"]
    assert "encoded as log1p" in page.sections["columns"]


def test_wrong_arguments(release, idata):
    with pytest.raises(TypeError, match="must be a Release"):
        iw.report(idata)
    with pytest.raises(ValueError, match="no posterior"):
        iw.report(release, arviz_compat.make({"prior": arviz_compat.group(idata, "posterior")}))
