"""Release: everything that the analyst's side receives, and its file.

A release file is a zip of four members:

- ``manifest.json``: versions, schema, privacy statement, recipe, the plain settings of the weights and of
  their measurement, size and SHA-256 of every other member, and the SHA-256 of itself without that entry;
- ``table.parquet``: the synthetic rows, in values that any tool reads;
- ``weights.npz``: ``log_weights``, shape (draw, row);
- ``measurements.npz``: ``value``, ``center`` and ``whitener`` of the measurement, where there is one, and the
  ``coefficients`` of the tilt.

Nothing is pickled and the same content gives the same bytes.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from iwbayes._archive import ArchiveError, write_atomically
from iwbayes.arrays import Array
from iwbayes.display import WIDTH, html_table, wrapped
from iwbayes.features import FeatureMap
from iwbayes.features.scores import RowFeatures
from iwbayes.measurement import MEAN_OF_FEATURES, noise_advice, noise_in_words
from iwbayes.release.file import FORMAT_VERSION, from_bytes, to_bytes
from iwbayes.statement import PrivacyStatement
from iwbayes.tables import SyntheticTable
from iwbayes.weights import ESS_LIMIT, HARMLESS_STEPS, Weights

#: What features of a name are of.
_MEASURED = {
    "linear": "columns alone",
    "squares": "columns and squares",
    "quadratic": "columns, squares and products of two",
}


class ReleaseError(ValueError):
    """A release file cannot be read, or a release must not be written."""


@dataclass(frozen=True, eq=False, repr=False)
class Release:
    """Synthetic rows, their weights, and what making them cost: all that an analyst needs.

    Parameters
    ----------
    synthetic : SyntheticTable
    weights : Weights
        Of the rows of ``synthetic``.
    statement : PrivacyStatement
    n_private : int
        Number of private rows N (public): by default the total weight of a likelihood.
    recipe : dict, optional
        How the release was made, as plain JSON values.
    format_version : int
        Newest format of release files that this package knows; a file has the oldest that holds its content.

    Raises
    ------
    TypeError, ValueError
        When a part has the wrong type, or the parts do not belong together.

    Notes
    -----
    It holds no private row, no seed and no state of any noise.
    """

    synthetic: SyntheticTable
    weights: Weights
    statement: PrivacyStatement
    n_private: int = field(kw_only=True)
    recipe: dict[str, Any] | None = field(default=None, kw_only=True)
    format_version: int = field(default=FORMAT_VERSION, kw_only=True)

    def __post_init__(self) -> None:
        for name, kind in (("synthetic", SyntheticTable), ("weights", Weights), ("statement", PrivacyStatement)):
            if not isinstance(part := getattr(self, name), kind):
                raise TypeError(f"{name} must be a {kind.__name__}; got {type(part).__name__}.")
        object.__setattr__(self, "n_private", _whole("n_private", self.n_private))
        if _whole("format_version", self.format_version) != FORMAT_VERSION:
            raise ValueError(f"format_version must be {FORMAT_VERSION}; got {self.format_version}.")
        if len(self.weights) != len(self.synthetic):
            raise ValueError(
                f"there are {len(self.weights)} weights for {len(self.synthetic)} synthetic rows. "
                f"Pass the weights that were fitted to these rows."
            )
        object.__setattr__(self, "recipe", _plain(self.recipe))
        measurement = self.weights.measurement
        if measurement is not None and measurement.n_private != self.n_private:
            raise ValueError(
                f"the weights were measured on {measurement.n_private} private rows; n_private is "
                f"{self.n_private}. Pass the number of rows of the private table."
            )
        rows = None if measurement is None else measurement.features
        if isinstance(rows, RowFeatures) and len(rows.values) != len(self.synthetic):
            raise ValueError(f"the weights were measured for {len(rows.values)} rows; there are {len(self.synthetic)}.")
        for part in () if measurement is None else (measurement, measurement.held_back):
            if part is not None and part.features is not None and part.features.schema != self.synthetic.schema:
                raise ValueError("weights and synthetic rows have different schemas. Fit the weights to these rows.")
        self._check_parts()

    def _check_parts(self) -> None:
        """Take back the certificate of a ledger that did not make, or was not told the cost of, rows or weights."""
        products = self.statement.products
        if products is None:  # a file's, or somebody's own statement
            return
        notes = self.statement.notes
        if self.synthetic.source not in products and self.synthetic.fingerprint() not in products:
            notes = (*notes, "The synthetic rows come from outside and what their making cost was not declared.")
        if self.weights.source not in products:
            notes = (*notes, "The weights come from outside and what their making cost was not declared.")
        notes = tuple(dict.fromkeys(notes))
        if notes != self.statement.notes:
            object.__setattr__(self, "statement", replace(self.statement, certified=False, notes=notes))

    @property
    def certified(self) -> bool:
        """Whether the statement holds for all of it: hardened noise, every use charged, rows of known origin."""
        return self.statement.certified and self.synthetic.origin is not None

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why the release is not certified; empty when it is."""
        found = []
        if self.statement.noise != "hardened":
            found.append(f"its privacy noise is {self.statement.noise}, not hardened")
        if self.synthetic.origin is None:
            found.append("nobody declared what the making of its synthetic rows cost")
        found.extend(self.statement.notes)
        if not (found or self.certified):
            found.append("its statement is not certified")
        return tuple(found)

    @property
    def verdict(self) -> str:
        """Whether fits can be expected to have calibrated intervals: noise, what was measured, weights."""
        return self._judged[0]

    @property
    def next_step(self) -> str:
        """What to do with it, or to ask for instead."""
        return self._judged[1]

    @cached_property
    def _judged(self) -> tuple[str, str]:
        """Verdict and next step from the release alone; each fit has a verdict of its own."""
        weights, measurement = self.weights, self.weights.measurement
        changed = [step for step in weights.steps if step not in HARMLESS_STEPS]
        if self.statement.adjacency == "replace-user":
            verdict = "people own several rows, for which no interval is calibrated"
            return verdict, "fit(formula, release), and read its intervals as descriptions of the rows"
        if measurement is None or measurement.name != MEAN_OF_FEATURES or measurement.features is None:
            verdict = f"{weights.method} weights hold no measurement of a tilt: no interval accounts for their noise"
            return verdict, "publish with TiltWeights(), the default, for calibrated intervals"
        if changed:
            verdict = f"the weights were changed ({', '.join(changed)}): no interval accounts for their noise"
            return verdict, "take the weights as they were released for calibrated intervals"
        features, ratio = measurement.features, measurement.noise_over_spread
        own = features.terms if isinstance(features, FeatureMap) else None
        terms = own if isinstance(own, str) else "model"
        verdict = f"noise over spread {noise_in_words(ratio)}; measured: {_MEASURED.get(terms) or self._models}"
        if advice := noise_advice(ratio, features.dim, terms):
            return verdict, advice
        share = weights.ess / len(weights)
        if share < ESS_LIMIT:
            few = f"; the weights rest on few rows (ess {share:.0%} of them)"
            return verdict + few, "publish with a larger share for the generator, or with one that suits the columns"
        which = "those; expect no calibrated intervals of others" if terms == "model" else "any regression"
        return verdict, f"fit(formula, release) for {which}. Each fit has its own verdict"

    @property
    def _models(self) -> str:
        """Name the regressions that the release was made for, as its publisher wrote them."""
        named = (self.recipe or {}).get("for_models")
        return f"what {'; '.join(map(str, named))} uses" if isinstance(named, list) and named else "named regressions"

    def __repr__(self) -> str:
        kind = "certified" if self.certified else "NOT certified"
        return (
            f"Release({len(self.synthetic)} synthetic rows x {len(self.synthetic.schema)} columns for "
            f"{self.n_private} private rows,\n    epsilon {self.statement.epsilon:.4g}, "
            f"delta {self.statement.delta:.3g}, {kind})"
        )

    def __str__(self) -> str:
        return self.summary()

    def summary(self, *, width: int = WIDTH) -> str:
        """Sizes, origin, weights and privacy in a few lines of plain text, of at most so many columns."""
        title, facts, notes = self._facts()
        lines = [title, *(f"  {name}: {value}" for name, value in facts)]
        lines.append("  privacy: " + "\n".join(self.statement.lines()).replace("\n", "\n  "))
        return wrapped("\n".join([*lines, *(f"  {note}" for note in notes)]), width=width)

    def _repr_html_(self) -> str:
        title, facts, notes = self._facts()
        return html_table(title, ("", "value"), facts, notes=notes) + self.statement._repr_html_()

    def _facts(self) -> tuple[str, list[tuple[str, str]], list[str]]:
        """Return its sizes, names and values for reading, and why it is not certified."""
        weights, n_rows = self.weights, len(self.synthetic)
        size = f"{n_rows} synthetic rows x {len(self.synthetic.schema)} columns"
        steps = "".join(f", {step}" for step in weights.steps)
        facts = {
            "columns": ", ".join(self.synthetic.schema.names),
            "rows from": self.synthetic.origin or "unknown",
            "weights": f"{weights.method}{steps}; {weights.n_draws} draw(s), ess {weights.ess:.0f} "
            f"({weights.ess / n_rows:.0%}), pareto_k {weights.pareto_k_in_words}",
        }
        facts |= {"verdict": self.verdict, "next": self.next_step}
        notes = [] if self.certified else [f"NOT certified: {'; '.join(self.reasons)}"]
        return f"Release of {size} for {self.n_private} private rows", list(facts.items()), notes

    @property
    def sample_weight(self) -> Array:
        """Weights of the synthetic rows that sum to the number of private rows, shape (row,).

        Several draws of the weights are averaged. Any tool that takes weights of rows takes them, as scikit-learn does
        by ``sample_weight``: the sum sets how much the rows count against a penalty.

        Examples
        --------
        >>> import iwbayes as iw
        >>> people = iw.datasets.simulate_table("bernoulli", 500, random_seed=1)
        >>> private = iw.PrivateTable(people.frame, people.schema)
        >>> release = iw.publish(private, epsilon=1.0, delta=1e-6)
        >>> round(float(release.sample_weight.sum()))
        500
        """
        values = self.weights.values
        return np.asarray(values * (self.n_private / values.sum()))

    def resample(self, n: int | None = None, *, random_seed: int | np.random.Generator | None = None) -> SyntheticTable:
        """Draw rows by their weights, for tools that take no weights.

        Parameters
        ----------
        n : int, optional
            Rows to draw, by default as many as there were private rows.
        random_seed : int or numpy.random.Generator, optional

        Returns
        -------
        SyntheticTable
            See `Weights.resample`: each row's count differs from its expectation by less than one. Rows drawn more
            than once are copies, so that intervals from them do not account for the noise in the weights.

        Raises
        ------
        ValueError
            When ``n`` is below 1.

        Examples
        --------
        >>> import iwbayes as iw
        >>> people = iw.datasets.simulate_table("bernoulli", 500, random_seed=1)
        >>> private = iw.PrivateTable(people.frame, people.schema)
        >>> release = iw.publish(private, epsilon=1.0, delta=1e-6)
        >>> len(release.resample(200, random_seed=1))
        200
        """
        n = self.n_private if n is None else n
        return self.weights.resample(self.synthetic, n=n, random_seed=random_seed)

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False, allow_uncertified: bool = False) -> Path:
        """Write the release file, atomically.

        Parameters
        ----------
        path : str or path
        overwrite : bool
            Replace an existing file.
        allow_uncertified : bool
            Write a release whose privacy statement is not certified, for tests and demonstrations.

        Returns
        -------
        pathlib.Path
            Where it was written.

        Raises
        ------
        ReleaseError
            When the release is not certified, with the reason.
        FileExistsError, OSError
            When the file exists already or cannot be written; nothing is left behind.
        """
        if not (self.certified or allow_uncertified):
            raise ReleaseError(
                f"this release is not certified: {'; '.join(self.reasons).rstrip('.')}. Publish again with the default "
                f"noise and a declared generator, or pass allow_uncertified=True if no real person's data is in it."
            )
        path = Path(path)
        write_atomically(path, self.to_bytes(), overwrite=overwrite)
        return path

    def to_bytes(self) -> bytes:
        """Return the content of its file; equal releases have equal bytes."""
        return to_bytes(self.synthetic, self.weights, self.statement, self.n_private, self.recipe)


def load(path: str | os.PathLike[str]) -> Release:
    """Read a release file from anyone: it runs no code and is checked in full.

    Checksums find damage, not forgery: take the file, or its hash, from a source that you trust.

    Parameters
    ----------
    path : str or path

    Returns
    -------
    Release
        Equal bit for bit to the one saved.

    Raises
    ------
    ReleaseError
        When the file is cut short, damaged, altered, too large, written by a newer version, or no release;
        it names the path and the remedy.
    OSError
        When the file is absent or cannot be opened.
    """
    path = Path(path)
    with open(path, "rb") as source:
        try:
            return Release(**from_bytes(source))
        except ArchiveError as error:
            problem = str(error).rstrip(".")
        except Exception as error:  # a reader of files from anyone has one failure, whatever bytes caused it
            said = " ".join(str(error)[:300].split()).rstrip(".")
            problem = f"its content is not valid ({type(error).__name__}: {said})"
    remedy = (
        "Upgrade with: pip install --upgrade iwbayes."
        if "newer" in problem
        else "Ask its publisher for the file again and compare the SHA-256 of the two."
    )
    raise ReleaseError(f"{path} cannot be read as an iwbayes release: {problem}. {remedy}")


def _whole(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise TypeError(f"{name} must be a whole number; got {type(value).__name__}.")
    if value < 1:
        raise ValueError(f"{name} must be at least 1; got {value}.")
    return int(value)


def _plain(recipe: dict[str, Any] | None) -> dict[str, Any] | None:
    """Copy the recipe as the JSON values that its file will hold."""
    if recipe is None:
        return None
    if not isinstance(recipe, dict):
        raise TypeError(f"recipe must be a dict or None; got {type(recipe).__name__}.")
    try:
        return json.loads(json.dumps(recipe, allow_nan=False))
    except (TypeError, ValueError, RecursionError):
        raise TypeError("recipe must hold plain JSON values only: text, finite numbers, lists, dicts.") from None
