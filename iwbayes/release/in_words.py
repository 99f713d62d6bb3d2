"""A release in words: an entry for a registry of deployments, questions of NIST, how it was made, text for a paper."""

from __future__ import annotations

import math
import re
import unicodedata
from typing import Any, Protocol

from iwbayes.evidence.measurement import MEAN_OF_FEATURES
from iwbayes.release.statement import RULES, PrivacyStatement
from iwbayes.release.weights import Weights
from iwbayes.tables import SyntheticTable


class Described(Protocol):
    """What is read of a release; `iwbayes.release.Release` itself imports this module."""

    @property
    def synthetic(self) -> SyntheticTable: ...  # noqa: D102
    @property
    def weights(self) -> Weights: ...  # noqa: D102
    @property
    def statement(self) -> PrivacyStatement: ...  # noqa: D102
    @property
    def n_private(self) -> int: ...  # noqa: D102
    @property
    def recipe(self) -> dict[str, Any] | None: ...  # noqa: D102
    @property
    def about(self) -> dict[str, str]: ...  # noqa: D102
    @property
    def made_for(self) -> tuple[str, ...]: ...  # noqa: D102
    @property
    def certified(self) -> bool: ...  # noqa: D102
    @property
    def reasons(self) -> tuple[str, ...]: ...  # noqa: D102
    @property
    def verdict(self) -> str: ...  # noqa: D102


_UNITS = {
    "replace-one": "A person, who owns one row. Neighbouring tables have the same number of rows, and differ in one of "
    "them.",
    "zero-out": "A person, who owns one row. Neighbouring tables have the same number of rows; one row is empty in one "
    "of them.",
    "replace-user": "A person, with all of their rows. Neighbouring tables have the same number of persons and differ "
    "in all rows of one person.",
}
_NOISE = {
    "hardened": "Noise is drawn from discrete distributions by the random numbers of the operating system, so that "
    "floating-point arithmetic cannot reveal a value.",
    "floating-point": "Some noise was drawn in floating-point arithmetic, which is known to be attackable.",
    "unverified": "Some noise came from a source outside the package, which nobody verified.",
    "seeded": "The noise can be reproduced from its seed, so it protects nobody.",
}
_UNDECLARED = {
    "refuse": "A table with cells that do not fit the schema is refused; whether this happened is not protected.",
    "missing": "Cells that do not fit the schema became missing; no cell decides whether the table is accepted.",
    "other": "Cells that do not fit the schema became the level 'other', or missing; no cell decides whether the table "
    "is accepted.",
}
#: Texts of the curator without which an entry of the registry is incomplete.
_FIRST_TIER = ("name", "publisher", "description", "purpose", "region", "sector", "date")


def registry_entry(release: Described) -> dict[str, Any]:
    """Return the entry of `Release.to_registry`."""
    about, statement, table = release.about, release.statement, release.synthetic
    names = ", ".join(table.schema.names)
    entry = {
        "basic": {
            "name": about.get("name"),
            "data_curators": [{"data_curator_name": about["publisher"]}] if "publisher" in about else [],
            "description": about.get("description"),
            "intended_use": about.get("purpose"),
            "data_product_type": "Synthetic data",
            "data_product_region": about.get("region"),
            "data_product_sector": about.get("sector"),
            "publication_date": about.get("date"),
        },
        "dp_variant": {
            "variant_name": "Approximate DP" if statement.delta > 0 else "Pure DP",
            "data_domain": f"Tables of {release.n_private:,} {_rows(release)} with the declared columns {names}.",
            "unprotected_quantities": " ".join([
                f"The number of private {_rows(release)}, the schema (names, types, bounds and levels of columns) and "
                "all settings are public.",
                _UNDECLARED[statement.on_undeclared],
            ]),
        },
        "privacy_loss": {
            "privacy_unit": "User-level",
            "privacy_unit_details": _UNITS[statement.adjacency],
            "privacy_parameters": {
                "epsilon": statement.epsilon if math.isfinite(statement.epsilon) else None,
                "delta": statement.delta,
            },
            "privacy_parameters_details": _guarantee(release),
        },
        "deployment_model": {
            "model_name": "Central",
            "model_name_details": "The curator holds the rows, adds the noise and publishes the result.",
            "release_type": "One release",
            "release_type_details": "Earlier releases that the same ledger charged are part of the guarantee.",
            "data_source_type": "Static",
            "access_type": "Non-interactive",
            "access_type_details": "A file of synthetic rows and weights.",
        },
        "accounting": {
            "post_processing": "Synthetic rows and weights are computed from noisy statistics alone, and so is every "
            "analysis of the release.",
            "composition": _composition(release),
        },
        "implementation": {
            "preprocessing_and_hyperparameter_tuning": "Bounds and levels of columns were declared "
            + (f"from {about['codebook']}." if "codebook" in about else "from public knowledge.")
            + " Choosing settings by looking at the private rows is not covered by the guarantee.",
            "mechanisms": [*statement.uses_in_words(), _NOISE[statement.noise]],
            "software": software(release),
        },
        "administrative": {
            "status": "Draft",
            "tier": 3 if all(key in about for key in _FIRST_TIER) else None,
            "missing": [key for key in _FIRST_TIER if key not in about],
            "contact": about.get("contact"),
            "legal_basis": about.get("legal_basis"),
            "notes": list(release.reasons),
        },
    }  # fmt: skip
    return {"url_slug": _slug(about), "deployment": entry}


def nist_questions(release: Described) -> list[tuple[str, str]]:
    """Return the factors by which NIST SP 800-226 evaluates a guarantee, and what this release answers to each."""
    statement, table = release.statement, release.synthetic
    per_row = f"{statement.delta * release.n_private:.2g} of one over the number of {_rows(release)}"
    origin = f"Rows come from {table.origin or 'an unknown source'}; weights from {release.weights.method}."
    return [
        ("Epsilon and delta", f"{_guarantee(release)} Delta is {per_row}." if statement.delta else _guarantee(release)),
        ("Unit of privacy", _UNITS[statement.adjacency]),
        ("Composition", _composition(release)),
        ("Algorithms and their correctness", f"{origin} Sensitivities follow from the declared schema, and each use is "
         "charged before its noise is drawn. The release is " + ("certified." if release.certified else
         f"NOT certified: {'; '.join(release.reasons)}.")),
        ("Floating-point arithmetic and random numbers", _NOISE[statement.noise]),
        ("Side channels", "Running time and memory of the publication are not protected: publish where nobody else can "
         f"measure them. {_UNDECLARED[statement.on_undeclared]}"),
        ("Utility and bias", f"{release.verdict[:1].upper()}{release.verdict[1:]}. Rare groups have the largest "
         "relative errors. Each analysis has its own verdict."),
        ("Security and access control", "The release contains no private row and no seed. Protection of the private "
         "rows, the ledger file and logs is the curator's task."),
        ("Trust", "Central model: persons trust the curator, who sees their rows. Nobody has to trust analysts."),
        ("Exposure before publication", "Differential privacy protects published results. It does not protect the "
         "collection and storage of rows."),
    ]  # fmt: skip


def story(release: Described) -> list[str]:
    """Return sentences on how a release was made, in order."""
    recipe, table, weights = release.recipe or {}, release.synthetic, release.weights
    given = recipe.get("settings")
    settings: dict[str, Any] = given if isinstance(given, dict) else {}
    of = {part: _in_plain_words(settings.get(part)) for part in ("generator", "weights")}
    epsilon = {
        part: f", with a nominal epsilon of {settings[f'{part}_epsilon']:.3g}"
        for part in of if isinstance(settings.get(f"{part}_epsilon"), float)
    }  # fmt: skip
    sentences = [
        f"{len(table):,} synthetic rows were drawn by {table.origin or 'an unknown generator'}{of['generator']}"
        f"{epsilon.get('generator', '')}."
    ]
    measurement = weights.measurement
    said = f"Their weights come from {_algorithm(weights)}{of['weights']}{epsilon.get('weights', '')}"
    if measurement is not None and measurement.name == MEAN_OF_FEATURES:
        said += f", by a noisy mean of {measurement.tilt_columns.stop} features of the private rows"
        said += " and a held-back test of the fit" if measurement.held_back is not None else ""
    sentences.append(f"{said}.")
    if release.made_for:
        sentences.append(f"The release was made for {'; '.join(release.made_for)}.")
    if weights.steps:
        sentences.append(f"The weights were then changed: {', '.join(weights.steps)}.")
    if isinstance(recipe.get("calibration"), float):
        sentences.append(
            f"Both nominal epsilons could be {recipe['calibration']:.3g} times as large as shares of the budget, "
            "because joint accounting costs less than their sum."
        )
    if isinstance(recipe.get("rehearsal"), int):
        sentences.append(f"It is rehearsal {recipe['rehearsal']} of another release, and contains no private row.")
    sentences.append(f"It was made with {software(release)}.")
    return sentences


def for_a_paper(release: Described) -> str:
    """Return a paragraph on the data for a paper, without the analysis."""
    statement, weights, about = release.statement, release.weights, release.about
    source = f" ({', '.join(about[key] for key in ('name', 'publisher') if key in about)})" if about else ""
    named = f", made for {'; '.join(release.made_for)}" if release.made_for else ""
    return (
        f"The data are {len(release.synthetic):,} synthetic rows{source} that represent {release.n_private:,} private "
        f"{_rows(release)}. They satisfy {_guarantee(release)[:1].lower()}{_guarantee(release)[1:-1]}; the noise is "
        f"{statement.noise} and the release {'certified' if release.certified else 'not certified'}. Rows were "
        f"generated by {release.synthetic.origin or 'an unknown generator'} and weighted by {_algorithm(weights)}"
        f"{named} (effective sample size {weights.ess:,.0f}), with {software(release)}. Row log likelihoods were "
        f"multiplied by the weights, which sum to {release.n_private:,}."
    )


def software(release: Described) -> str:
    """Return the package and the version that made a release, as far as it is known."""
    made = (release.recipe or {}).get("package_version")
    return f"iwbayes {made}" if isinstance(made, str) else "iwbayes"


def _rows(release: Described) -> str:
    return "persons" if release.statement.adjacency == "replace-user" else "rows"


def _guarantee(release: Described) -> str:
    statement = release.statement
    if not math.isfinite(statement.epsilon):
        return "No guarantee: rows were used without noise."
    return (
        f"({statement.epsilon:.4g}, {statement.delta:.2g})-differential privacy under {statement.adjacency} adjacency."
        if statement.delta
        else f"{statement.epsilon:.4g}-differential privacy under {statement.adjacency} adjacency."
    )


def _composition(release: Described) -> str:
    statement = release.statement
    found = [RULES.get(statement.rule or "", "How costs were combined is not recorded.")]
    if statement.budget is not None and math.isfinite(statement.budget[0]):
        epsilon, delta = statement.budget
        found.append(f"All releases of this ledger together stay within ({epsilon:.4g}, {delta:.2g}).")
    found.append("Releases of the same rows under other ledgers add to the cost.")
    return " ".join(found)


def _algorithm(weights: Weights) -> str:
    """Return the name of the algorithm of weights, without the models that they were made for."""
    return weights.method.partition("(")[0]


def _in_plain_words(settings: Any) -> str:
    """Return settings of an algorithm that are numbers, switches or names: ' (largest bins 128, ...)'."""
    if not isinstance(settings, dict):
        return ""
    plain = {
        key.replace("_", " "): value
        for key, value in settings.items()
        if key != "algorithm" and isinstance(value, int | float | str) and value not in ("", "auto")
    }
    told = [
        name if value is True else f"no {name}" if value is False else f"{name} {value:g}"
        if isinstance(value, int | float) else f"{name} {value}"
        for name, value in plain.items()
    ]  # fmt: skip
    return f" ({', '.join(told)})" if told else ""


def _slug(about: dict[str, str]) -> str | None:
    """Return name, publisher and year in letters and digits, joined by hyphens, as addresses of the registry are."""
    parts = [about.get("name", ""), about.get("publisher", ""), about.get("date", "")[:4]]
    plain = unicodedata.normalize("NFKD", " ".join(parts)).encode("ascii", "ignore").decode().lower()
    return re.sub(r"[^a-z0-9]+", "-", plain).strip("-") or None
