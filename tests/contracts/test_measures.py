"""Every measure appears in records, verdicts, diagnostics, reports and documentation: its one file is enough."""

import importlib.util
import re
from pathlib import Path
from typing import get_args

import numpy as np
import pandas as pd
import pytest
from factories import noisy_release, stretched_features, synthetic_table

import iwbayes as iw
from iwbayes.analyst import arviz_compat
from iwbayes.analyst.calibration import measures
from iwbayes.analyst.calibration.measure import How, Measure

ROOT = Path(__file__).parents[2]
MEASURES = measures.MEASURES
TOY = Measure(
    name="toy",
    meaning="The position of a parameter.",
    what_to_do="this parameter is too far back. Move it.",
    remedy="move it",
    compute=lambda at: np.arange(1.0, len(at.bread) + 1),
    limits={"formula": 1.5, "rehearsals": "Positions do not matter.", "pool": 1.5},
    theory="rehearsals",
)


def rows(rng, n):
    x = rng.uniform(-2, 2, n)
    return pd.DataFrame({"y": (rng.random(n) < 1 / (1 + np.exp(-x))).astype(int), "x": x})


def make_release():
    rng, schema = np.random.default_rng(5), iw.Schema(iw.Binary("y"), iw.Real("x", -2, 2))
    private, synthetic = rows(rng, 4000), synthetic_table(rows(rng, 4000), schema)
    return noisy_release(rng, synthetic, stretched_features(synthetic, "quadratic", 1.6), private, 0.004)


@pytest.fixture(scope="module")
def documented():
    spec = importlib.util.spec_from_file_location("measures", ROOT / "docs" / "measures.py")
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    return tool


def test_each_file_is_a_measure():
    files = {path.stem for path in Path(measures.__file__).parent.glob("*.py")} - {"__init__"}
    assert set(MEASURES) == files and all(name == measure.name for name, measure in MEASURES.items())


@pytest.mark.parametrize("measure", MEASURES.values(), ids=list(MEASURES))
def test_each_measure_answers_for_every_source(measure):
    assert set(measure.limits) == set(get_args(How))
    for how, limit in measure.limits.items():
        bad = 1e6 if measure.worst == "largest" else -1e6
        check = measure.check(bad, how)
        if isinstance(limit, str):
            assert limit.endswith(".") and check.verdict == "info" and not measure.judges(how)
        else:
            assert check.verdict == "fail" and check.what_to_do and measure.remedy
            assert measure.check(-bad, how).verdict == "ok" and measure.check(np.nan, how).verdict == "info"
    text = (ROOT / "docs" / "theory.md").read_text(encoding="utf-8")
    titles = re.findall(r"^##+ (.*)$", text, re.M)
    anchors = {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}
    assert measure.theory in anchors


def test_the_page_has_the_table_of_the_registry(documented):
    assert documented.table() in documented.PAGE.read_text(encoding="utf-8"), "run python docs/measures.py"


def test_a_new_measure_appears_everywhere(monkeypatch, documented):
    monkeypatch.setitem(MEASURES, "toy", TOY)
    release = make_release()
    with pytest.warns(iw.CalibrationWarning, match=r"toy 2 >= 1\.5 \(x\): this parameter is too far back"):
        idata = iw.fit("y ~ x", release, random_seed=1, progressbar=False)
    record = arviz_compat.group(idata, "calibration")
    assert record["toy"].to_numpy().tolist() == [1, 2] and record.attrs["toy_max"] == 2
    assert record["calibrated"].to_numpy().tolist() == [True, False]
    assert record.attrs["verdict"] == "calibrated in part"
    table = iw.diagnose(release, idata)
    assert table.loc["toy", "verdict"] == "fail" and "Move it." in table.loc["toy", "what_to_do"]
    assert [table.loc[f"toy[{name}]", "verdict"] for name in ("Intercept", "x")] == ["ok", "fail"]
    assert "toy" in repr(table)
    assert "this parameter is too far back" in iw.report(release, idata)
    assert "| [`toy`](../theory.md#rehearsals) | The position of a parameter. |" in documented.table()
    # an average has its own value, a prediction the worst of the parameters that concern it
    assert arviz_compat.group(iw.slopes(idata, release), "calibration")["toy"].item() == 1
    far = iw.predictions(idata, pd.DataFrame({"x": [2.0]}))
    assert arviz_compat.group(far, "calibration")["toy"].item() == 2
