"""A release in words: fields of the registry, answers to NIST's questions, how it was made, a paragraph for a paper."""

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from factories import seeded_release, simulated_table

import iwbayes as iw
from iwbayes.release.in_words import for_a_paper, nist_questions, story

ABOUT = {
    "name": "Health 2026", "publisher": "Büro für Statistik", "description": "Visits of patients.",
    "purpose": "teaching", "region": "Bavaria", "sector": "Healthcare", "date": "2026-11-30",
    "legal_basis": "Article 89 GDPR", "codebook": "the code book of 2025", "contact": "data@office.example",
}  # fmt: skip
#: Fields of the registry's own entries, by their parts: those that entries of synthetic data fill.
FIELDS = {
    "basic": "name data_curators description intended_use data_product_type data_product_region data_product_sector "
    "publication_date",
    "dp_variant": "variant_name data_domain unprotected_quantities",
    "privacy_loss": "privacy_unit privacy_unit_details privacy_parameters privacy_parameters_details",
    "deployment_model": "model_name release_type data_source_type access_type",
    "accounting": "post_processing composition",
    "implementation": "preprocessing_and_hyperparameter_tuning mechanisms",
    "administrative": "status tier",
}


@pytest.fixture(scope="module")
def release():
    return seeded_release(simulated_table("bernoulli", 800), 1, epsilon=2, n_synthetic=900, about=ABOUT)


def test_every_field_of_the_registry_is_filled(release, tmp_path):
    entry = release.to_registry()
    for part, names in FIELDS.items():
        for name in names.split():
            assert entry["deployment"][part][name], (part, name)
    assert entry["url_slug"] == "health-2026-buro-fur-statistik-2026"
    assert entry["deployment"]["basic"]["data_curators"] == [{"data_curator_name": "Büro für Statistik"}]
    loss, statement = entry["deployment"]["privacy_loss"], release.statement
    assert loss["privacy_parameters"] == {"epsilon": statement.epsilon, "delta": statement.delta}
    assert entry["deployment"]["administrative"]["missing"] == [] and entry["deployment"]["administrative"]["tier"] == 3
    mechanisms = entry["deployment"]["implementation"]["mechanisms"]
    assert all(any(said.startswith(event.label) for said in mechanisms) for event in statement.events)
    assert "800 rows" in entry["deployment"]["dp_variant"]["data_domain"]
    assert "the code book of 2025" in entry["deployment"]["implementation"]["preprocessing_and_hyperparameter_tuning"]
    assert json.loads(json.dumps(entry, allow_nan=False)) == entry
    path = release.save(tmp_path / "r.iwb", allow_uncertified=True)
    assert iw.load(path).to_registry() == entry


def test_what_the_curator_did_not_say_is_named(release):
    bare = replace(release, recipe=None)
    entry = bare.to_registry()
    assert entry["url_slug"] is None and entry["deployment"]["administrative"]["tier"] is None
    assert entry["deployment"]["administrative"]["missing"] == [
        "name", "publisher", "description", "purpose", "region", "sector", "date",
    ]  # fmt: skip
    assert story(bare)[-1] == "It was made with iwbayes."


@pytest.mark.parametrize(
    ("adjacency", "delta", "variant", "unit"),
    [("replace-one", 0.0, "Pure DP", "differ in one of them"), ("zero-out", 1e-6, "Approximate DP", "is empty in one"),
     ("replace-user", 1e-6, "Approximate DP", "all rows of one person")],
)  # fmt: skip
def test_variant_and_unit_follow_the_statement(release, adjacency, delta, variant, unit):
    other = replace(release, statement=iw.PrivacyStatement(1.0, delta, adjacency, (), "hardened", certified=False))
    entry = other.to_registry()["deployment"]
    assert entry["dp_variant"]["variant_name"] == variant and unit in entry["privacy_loss"]["privacy_unit_details"]
    people = "persons" if adjacency == "replace-user" else "rows"
    assert f"800 {people}" in entry["dp_variant"]["data_domain"]
    assert dict(nist_questions(other))["Unit of privacy"] == entry["privacy_loss"]["privacy_unit_details"]


def test_a_release_without_a_guarantee_says_so(release):
    events = (iw.Event("plain", "none", np.inf),)
    other = replace(
        release, statement=iw.PrivacyStatement(np.inf, 0.0, "replace-one", events, "seeded", certified=False)
    )
    entry = other.to_registry()
    assert entry["deployment"]["privacy_loss"]["privacy_parameters"]["epsilon"] is None
    assert "No guarantee" in dict(nist_questions(other))["Epsilon and delta"]
    json.dumps(entry, allow_nan=False)


def test_words_have_no_dicts_of_python_and_name_what_was_done(release):
    said = " ".join(story(release))
    assert "900 synthetic rows were drawn by BayesNet" in said and "noisy mean of" in said and iw.__version__ in said
    assert not any(sign in said for sign in "{}[]=")
    text = for_a_paper(release)
    for part in (
        "900 synthetic rows (Health 2026, Büro für Statistik)",
        "800 private rows",
        "not certified",
        "BayesNet",
    ):
        assert part in text
    named = seeded_release(simulated_table("bernoulli", 800), 1, epsilon=2, n_synthetic=900, for_models=["y ~ x"])
    assert "The release was made for y ~ x." in story(named) and "made for y ~ x" in for_a_paper(named)
    changed = replace(release, weights=release.weights.temper(power=0.5))
    assert "The weights were then changed: temper(0.5)." in story(changed)


def test_rows_from_outside_have_words_too():
    schema = iw.Schema(iw.Real("x", 0, 1))
    table = iw.SyntheticTable(pd.DataFrame({"x": [0.1, 0.2]}), schema)
    statement = iw.PrivacyStatement(0.0, 0.0, "replace-one", (), "hardened", certified=True)
    made = iw.Release(table, iw.Weights([0.0, 0.0], "hand"), statement, n_private=2)
    assert "unknown" in story(made)[0] and "hand" in for_a_paper(made)
    assert made.to_registry()["deployment"]["administrative"]["notes"]
