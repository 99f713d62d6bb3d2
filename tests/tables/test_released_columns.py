"""What released rows say of their columns: rare reference levels, columns that are mostly empty, and where."""

from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from factories import release_of, synthetic_table

import iwbayes as iw
from iwbayes.tables.released_columns import empty_columns, rare_references
from iwbayes.utils.warnings import IwbayesWarning

N = 1000
LEVELS = ("rare", "common", "other")


def release(first: str = "rare") -> iw.Release:
    """A release of rows of which 1 % have the level 'rare'."""
    levels = (first, *(level for level in LEVELS if level != first))
    schema = iw.Schema(iw.Binary("y"), iw.Categorical("g", levels), iw.Categorical("two", ("a", "b")))
    g = np.repeat(["rare", "common", "other"], [10, 700, 290])
    rng = np.random.default_rng(1)
    frame = pd.DataFrame({"y": rng.integers(0, 2, N), "g": g, "two": np.where(np.arange(N) % 100, "b", "a")})
    return release_of(synthetic_table(frame, schema), np.zeros(N), n_private=N)


def test_the_first_occurring_level_is_compared_with_the_most_frequent_one():
    found = rare_references(release().synthetic, np.ones(N))
    assert [(one.column, one.share) for one in found] == [("g", 0.01)]
    assert "'rare', the first level of 'g', has 1.0% of the weighted rows" in found[0].text
    assert "C(g, Treatment('common'))" in found[0].text
    assert not rare_references(release("common").synthetic, np.ones(N))
    # a level that does not occur is no reference
    assert rare_references(release("absent").synthetic, np.ones(N)) == found
    assert not rare_references(release().synthetic, np.ones(N), ["x", "C(g, Treatment('common'))[other]"])


def test_weights_decide():
    weights = np.where(np.arange(N) < 10, 50.0, 1.0)
    assert not rare_references(release().synthetic, weights)


@pytest.mark.filterwarnings("ignore::iwbayes.CalibrationWarning")
def test_fit_diagnose_and_the_release_say_it():
    found = release()
    with pytest.warns(IwbayesWarning, match="'rare', the first level of 'g', has 1.0% of the weighted rows"):
        idata = iw.fit("y ~ g", found, calibrate="formula", draws=100, random_seed=1, progressbar=False)
    row = iw.diagnose(found, idata).loc["reference_level of g"]
    assert (row["verdict"], row["value"], row["threshold"]) == ("warn", 0.01, 0.05)
    assert "Treatment('common')" in found.summary() and "the first level of" in found._repr_html_()
    assert "Treatment" not in release("common").summary()


@pytest.mark.parametrize("formula", ["y ~ two", "y ~ C(g, Treatment('common'))"])
def test_a_fit_that_does_not_compare_with_it_says_nothing(formula):
    with warnings.catch_warnings():
        warnings.simplefilter("error", IwbayesWarning)
        warnings.simplefilter("ignore", iw.CalibrationWarning)
        idata = iw.fit(formula, release(), draws=100, random_seed=1, progressbar=False)
    assert not any(name.startswith("reference_level") for name in iw.diagnose(release(), idata).index)


def test_several_weight_draws_are_averaged():
    found = release()
    draws = np.zeros((2, N))
    draws[0, :10] = np.log(100.0)
    several = replace(found, weights=iw.Weights(draws, "two draws"))
    assert not rare_references(several.synthetic, several.weights.values)


def test_a_plan_from_public_rows_says_it():
    settings = {"epsilon": 5.0, "delta": 1e-6, "n_simulations": 1, "random_seed": 1, "progressbar": False}
    for formula, said in (("y ~ g", True), ("y ~ two", False), ("y ~ C(g, Treatment('common'))", False)):
        like = release().synthetic
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", IwbayesWarning)
            planned = iw.plan_intervals(like.schema, 300, formula=formula, like=like, **settings)
        assert ("'rare', the first level of 'g'" in planned.rows_from) == said


# --- columns that are mostly missing or "other"


def ugly(**changes):
    """A release of cells that are written differently from their declaration, with the options that accept all."""
    rng = np.random.default_rng(1)
    frame = pd.DataFrame({"pay": rng.uniform(0, 9, N).round(2), "town": rng.choice(["A", "B"], N)})
    schema = iw.Schema(iw.Real("pay", 0, 9), iw.Categorical("town", ["A", "B"]))
    private = iw.PrivateTable(frame.assign(**changes), schema, on_undeclared="other")
    return iw.publish(private, epsilon=2.0, delta=1e-6, n_synthetic=500, progressbar=False)


@pytest.mark.parametrize(
    ("changes", "column", "what"),
    [
        ({"pay": "1,5 EUR"}, "pay", "missing in"),
        ({"pay": [3.5] * 300 + ["?"] * 700}, "pay", "missing in"),
        ({"town": "München"}, "town", "'other' in"),
        ({"town": ["A"] * 200 + ["01"] * 800}, "town", "'other' in"),
    ],
)
def test_a_column_that_the_declaration_empties_is_said_everywhere(changes, column, what, tmp_path):
    with pytest.warns(IwbayesWarning, match=f"column '{column}' is {what}") as caught:
        release = ugly(**changes)
    assert len(caught) == 1 and release.certified
    [found] = empty_columns(release.synthetic, release.weights.values)
    assert found.column == column and found.share > 0.5 and "publish again" in found.text
    row = iw.diagnose(release).loc[f"emptiness of {column}"]
    assert (row["verdict"], row["value"]) == ("warn", found.share)
    for text in (str(release), release._repr_html_(), iw.report(release)):
        assert f"column '{column}' is" in text.replace("&#x27;", "'").replace("&#39;", "'")


@pytest.mark.filterwarnings("error")
def test_a_column_that_is_fine_says_nothing_and_a_warning_loses_no_release():
    release = ugly()
    assert not empty_columns(release.synthetic, release.weights.values)
    assert not [name for name in iw.diagnose(release).index if "emptiness" in name]
    assert ugly(pay="x").certified  # where warnings are errors, the release has been paid for
