"""Release: everything that an analyst receives, and its file.

A release file is a zip archive with four members:

- ``manifest.json``: versions, schema, privacy statement, recipe, settings of the weights and of their measurement, size
  and SHA-256 of every other member, and the SHA-256 of the manifest itself without that entry;
- ``table.parquet``: the synthetic rows; ``weights.npz``: ``log_weights``, shape (draw, row);
- ``measurements.npz``, if there is a measurement: ``value``, ``center``, ``whitener``, ``coefficients`` of the tilt.

Nothing is pickled, and the same content gives the same bytes.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from iwbayes.evidence import FeatureMap
from iwbayes.evidence.measurement import MEAN_OF_FEATURES, noise_advice, noise_in_words
from iwbayes.evidence.scores import RowFeatures
from iwbayes.release.export import export
from iwbayes.release.file import FORMAT_VERSION, from_bytes, to_bytes
from iwbayes.release.in_words import registry_entry
from iwbayes.release.replicates import ReplicateWeights
from iwbayes.release.statement import PrivacyStatement
from iwbayes.release.weights import ESS_LIMIT, ROWS_PER_FEATURE, Weights, systematic_indices
from iwbayes.tables import SyntheticTable
from iwbayes.tables.released_columns import empty_columns, rare_references
from iwbayes.utils import checks
from iwbayes.utils.archive import ArchiveError, write_atomically
from iwbayes.utils.arrays import Array
from iwbayes.utils.display import WIDTH, html_table, one_line, wrapped

#: Texts that a curator may add for the readers of a release; see `Release.to_registry` for their use.
ABOUT = (
    "name", "publisher", "description", "purpose", "region", "sector", "date", "legal_basis", "codebook", "contact",
)  # fmt: skip
#: Description of the measured features, by the name of their set.
_MEASURED = dict(
    linear="columns alone", squares="columns and squares", quadratic="columns, squares and products of two"
)
#: Next step if the weights are not fit for use.
_UNFIT = (
    "do not use the weights; read the rows without them, as rows of the generator. Publish with fewer columns or for "
    "fewer predictors (for_models), with more private rows or a larger epsilon"
)


class ReleaseError(ValueError):
    """A release file cannot be read, or a release that is not certified would be written; a ValueError."""


@dataclass(frozen=True, eq=False, repr=False)
class Release:
    """Synthetic rows, their weights and the privacy statement: everything that an analyst needs.

    `publish` makes releases, and `load` reads them from files. A release contains no private row, no seed, and no state
    of a noise source.

    Parameters
    ----------
    synthetic : SyntheticTable
    weights : Weights
        One weight per synthetic row.
    statement : PrivacyStatement
        Uses of the private rows and their joint privacy guarantee.
    n_private : int
        Number of private rows N (public). By default, the weights of an analysis sum to it.
    recipe : dict, optional
        Settings of the release, as plain JSON values.
    format_version : int
        Format of release files.
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
        object.__setattr__(self, "n_private", checks.whole("n_private", self.n_private))
        if checks.whole("format_version", self.format_version) != FORMAT_VERSION:
            raise ValueError(f"format_version must be {FORMAT_VERSION}; got {self.format_version}.")
        if len(self.weights) != len(self.synthetic):
            raise ValueError(
                f"there must be one weight per synthetic row; got {len(self.weights)} weights for "
                f"{len(self.synthetic)} synthetic rows. Pass the weights that were fitted to these rows."
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
            raise ValueError(
                f"the weights were measured for {len(rows.values)} synthetic rows; there are {len(self.synthetic)}. "
                f"Pass the rows of these weights."
            )
        for part in () if measurement is None else measurement.parts:
            if part.features is not None and part.features.schema != self.synthetic.schema:
                raise ValueError("weights and synthetic rows have different schemas. Fit the weights to these rows.")
        self._check_parts()

    def _check_parts(self) -> None:
        """Remove the certificate unless the ledger produced the rows and weights or charged their declared cost."""
        products = self.statement.products
        if products is None:  # the statement was read from a file or made by hand
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
    def about(self) -> dict[str, str]:
        """Texts of the curator for readers, such as name, publisher, purpose and contact: those that were given."""
        given = (self.recipe or {}).get("about")
        return {key: str(given[key]) for key in ABOUT if key in given} if isinstance(given, dict) else {}

    @property
    def made_for(self) -> tuple[str, ...]:
        """Models that the release was made for, as its publisher wrote them; empty if none were named."""
        named = (self.recipe or {}).get("for_models")
        return tuple(map(str, named)) if isinstance(named, list) else ()

    @property
    def certified(self) -> bool:
        """Whether the statement is valid for the whole release: hardened noise, all uses charged, known origin."""
        return self.statement.certified and self.synthetic.origin is not None

    @property
    def reasons(self) -> tuple[str, ...]:
        """Reasons why the release is not certified; empty if it is certified."""
        found = []
        if self.statement.noise != "hardened":
            found.append(f"its privacy noise is {self.statement.noise}, not hardened")
        if self.synthetic.origin is None:
            found.append("the privacy cost of its synthetic rows was not declared")
        found.extend(self.statement.notes)
        if not (found or self.certified):
            found.append("its statement is not certified")
        return tuple(found)

    @property
    def verdict(self) -> str:
        """Whether calibrated intervals can be expected from fits, judged by noise, measured features and weights."""
        return self._judged[0]

    @property
    def next_step(self) -> str:
        """Recommended next step: how to use the release, or how it should be published instead."""
        return self._judged[1]

    @property
    def unfit(self) -> str:
        """Why the weights are not fit for use: too few rows have all the weight. Empty if they are, or if unknown."""
        measurement, ess = self.weights.measurement, self.weights.ess
        if measurement is None or measurement.features is None or self.weights.steps:
            return ""
        k = measurement.tilt_columns.stop
        if ess > ROWS_PER_FEATURE * k:
            return ""
        return (
            f"the weights are NOT fit for use: all {len(self.synthetic)} synthetic rows are worth {ess:.0f}, fewer "
            f"than {ROWS_PER_FEATURE:g} for each of the {k} measured features"
        )

    @cached_property
    def _judged(self) -> tuple[str, str]:
        weights, measurement = self.weights, self.weights.measurement
        if self.statement.adjacency == "replace-user":
            verdict = "users own several rows, so no interval is calibrated"
            told = "call fit(formula, release), and read its intervals as descriptions of the rows"
            return verdict, _UNFIT if self.unfit else told
        if measurement is None or measurement.name != MEAN_OF_FEATURES or measurement.features is None:
            verdict = f"{weights.method} weights have no tilt measurement, so no interval accounts for their noise"
            return verdict, "for calibrated intervals, publish with TiltWeights(), the default"
        if weights.steps:
            verdict = f"the weights were changed ({', '.join(weights.steps)}), so no interval accounts for their noise"
            return verdict, "for calibrated intervals, use the weights as they were released"
        features, ratio = measurement.features, measurement.noise_ratio
        own = features.terms if isinstance(features, FeatureMap) else None
        terms = own if isinstance(own, str) else "model"
        models = "; ".join(self.made_for)
        measured = _MEASURED.get(terms) or (f"features of {models}" if models else "named regressions")
        verdict = f"noise ratio {noise_in_words(ratio)}; measured: {measured}"
        if self.unfit:
            return f"{self.unfit}; {verdict}", _UNFIT
        if advice := noise_advice(ratio, features.dim, terms):
            return verdict, advice
        share = weights.ess / len(weights)
        if share < ESS_LIMIT:
            few = f"; few rows have most of the weight (ess {share:.0%} of the rows)"
            return verdict + few, "publish with a larger share for the generator, or with a different generator"
        if terms == "model":
            return verdict, (
                "analysts can fit these models with fit(formula, release). Intervals of other models will probably not "
                "be calibrated; every fit reports its own verdict"
            )
        return verdict, "analysts can fit any regression with fit(formula, release); every fit reports its own verdict"

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
        """Return sizes, origin, weights, verdict and privacy statement as text, with lines of at most `width`."""
        title, facts, notes = self._facts()
        lines = [title, *(f"  {name}: {value}" for name, value in facts)]
        lines.append("  privacy: " + "\n".join(self.statement.lines()).replace("\n", "\n  "))
        return wrapped("\n".join([*lines, *(f"  {note}" for note in notes)]), width=width)

    def _repr_html_(self) -> str:
        title, facts, notes = self._facts()
        return html_table(title, ("", "value"), facts, notes=notes) + self.statement._repr_html_()

    def _facts(self) -> tuple[str, list[tuple[str, str]], list[str]]:
        """Return a title, pairs of names and values, and notes: why it is not certified, and its columns."""
        weights, n_rows = self.weights, len(self.synthetic)
        size = f"{n_rows} synthetic rows x {len(self.synthetic.schema)} columns"
        steps = "".join(f", {step}" for step in weights.steps)
        facts = [
            *self.about.items(),
            ("columns", ", ".join(self.synthetic.schema.names)),
            ("rows from", self.synthetic.origin or "unknown"),
            ("weights", f"{weights.method}{steps}; draws: {weights.n_draws}, ess {weights.ess:.0f} "
             f"({weights.ess / n_rows:.0%}), pareto_k {weights.pareto_k_in_words}"),
            ("verdict", self.verdict),
            ("next", self.next_step),
        ]  # fmt: skip
        notes = [] if self.certified else [f"NOT certified: {'; '.join(self.reasons)}"]
        notes += [
            found.text for find in (empty_columns, rare_references) for found in find(self.synthetic, weights.values)
        ]
        return f"Release of {size} for {self.n_private} private rows", facts, notes

    @property
    def sample_weight(self) -> Array:
        """Weights of the synthetic rows, shape (row,), which sum to the number of private rows.

        Several weight draws are averaged. Use them in any tool that accepts row weights, for example as
        ``sample_weight`` in scikit-learn. The sum determines how much the rows count relative to a penalty.
        """
        values = self.weights.values
        return np.asarray(values * (self.n_private / values.sum()))

    def unweighted(self) -> Release:
        """Return the same release with equal weights, of the method "uniform": for comparisons, never calibrated."""
        return replace(self, weights=Weights(np.zeros(len(self.synthetic)), "uniform"))

    def resample(self, n: int | None = None, *, random_seed: int | np.random.Generator | None = None) -> SyntheticTable:
        """Draw rows in proportion to their weights, for tools that do not accept weights.

        The rows are in random order. A row can appear several times; its count differs from its expectation by less
        than one (systematic resampling). Several weight draws are averaged. Intervals from these rows do not account
        for the noise in the weights.

        Parameters
        ----------
        n : int, optional
            Number of rows to draw. The default is the number of private rows.
        random_seed : int or numpy.random.Generator, optional
            Seed of the draw. By default each call gives different rows.

        Examples
        --------
        >>> len(release.resample(200, random_seed=1))
        200
        """
        n = checks.whole("n", self.n_private if n is None else n)
        rng = np.random.default_rng(random_seed)
        chosen = rng.permutation(systematic_indices(self.weights.values, n, rng))
        table = self.synthetic
        return SyntheticTable(table.frame.iloc[chosen].reset_index(drop=True), table.schema, origin=table.origin)

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False, allow_uncertified: bool = False) -> Path:
        """Write the release to a file, completely or not at all, and return its path.

        Parameters
        ----------
        path : str or path
        overwrite : bool, default False
            Replace an existing file.
        allow_uncertified : bool, default False
            Write the release even if its privacy statement is not certified, for tests and demonstrations.

        Raises
        ------
        ReleaseError
            If the release is not certified; the message gives the reasons.
        FileExistsError, OSError
            If the file already exists or cannot be written.
        """
        if not (self.certified or allow_uncertified):
            raise ReleaseError(
                f"this release is not certified: {'; '.join(self.reasons).rstrip('.')}. Publish again with the default "
                f"noise and a declared generator, or pass allow_uncertified=True if no real person's data is in it."
            )
        path = Path(path)
        write_atomically(path, self.to_bytes(), overwrite=overwrite)
        return path

    def export(
        self, path: str | os.PathLike[str], *, replicates: ReplicateWeights | None = None, overwrite: bool = False
    ) -> list[Path]:
        """Write rows and weights for other programs, and a text on how to read them; return both paths.

        Parameters
        ----------
        path : str or path
            ``.csv``: labels and ISO dates; ``.dta``: Stata, with labelled codes; ``.parquet``: types as they are. The
            text at ``PATH.txt`` has statement and verdict, and code for R, Stata and SAS if there are replicates. The
            column of the weights, "weight", has underscores at its end if the release has such a column.
        replicates : ReplicateWeights, optional
            Replicate weights of :func:`~iwbayes.replicate_weights`, as columns "rep1", "rep2", ...: standard errors
            from them account for the privacy noise.
        overwrite : bool, default False
            Replace existing files.

        Raises
        ------
        TypeError, ValueError, FileExistsError, OSError
            If the ending is a different one, the replicates belong to another release, or a file exists or cannot be
            written.
        """
        said, path = self.summary(), Path(path)
        return export(self.synthetic, self.sample_weight, said, path, replicates=replicates, overwrite=overwrite)

    def to_registry(self) -> dict[str, Any]:
        """Return an entry for the Differential Privacy Deployments Registry, as plain JSON values.

        The keys are those of the registry: ``basic``, ``dp_variant``, ``privacy_loss``, ``deployment_model``,
        ``accounting``, ``implementation`` and ``administrative``. ``administrative`` also names the texts that are
        missing, which the curator gives as ``about`` of `publish` or in publish.toml. Written as JSON, the entry is
        valid YAML, the format of the registry.

        References
        ----------
        C. Dwork, N. Kohli, D. Mulligan (2019). Differential privacy in practice: Expose your epsilons! Journal of
        Privacy and Confidentiality 9(2).
        """
        return registry_entry(self)

    def to_bytes(self) -> bytes:
        """Return the content of the release file; equal releases have equal bytes."""
        return to_bytes(self.synthetic, self.weights, self.statement, self.n_private, self.recipe)


def load(path: str | os.PathLike[str]) -> Release:
    """Read a release file; the release is equal, bit for bit, to the saved one.

    Reading is safe for files from untrusted sources: no code from the file runs, all content is checked, and its size
    is bounded before it is decoded. In texts, characters that are not printable are escaped. Checksums detect damage,
    but not forgery: get the file, or its hash, from a source that you trust.

    Parameters
    ----------
    path : str or path

    Raises
    ------
    ReleaseError
        If the file is truncated, damaged, altered, too large, written by a newer version, or not a release.
    OSError
        If the file does not exist or cannot be opened.
    """
    path = Path(path)
    with open(path, "rb") as source:
        try:
            return Release(**from_bytes(source))
        except ArchiveError as error:
            problem = str(error).rstrip(".")
        except Exception as error:  # every failure on content from an untrusted source becomes one exception type
            said = " ".join(str(error)[:300].split()).rstrip(".")
            problem = f"its content is not valid ({type(error).__name__}: {said})"
    remedy = (
        "Upgrade with: pip install --upgrade iwbayes."
        if "newer" in problem
        else "Ask its publisher for the file again, and compare the SHA-256 of both files."
    )
    raise ReleaseError(one_line(f"{path} cannot be read as an iwbayes release: {problem}. {remedy}"))


def _plain(recipe: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return a copy of the recipe as plain JSON values, as its file stores it; each text becomes one printable line."""
    if recipe is None:
        return None
    if not isinstance(recipe, dict):
        raise TypeError(f"recipe must be a dict or None; got {type(recipe).__name__}.")
    try:
        return _in_lines(json.loads(json.dumps(recipe, allow_nan=False)))
    except (TypeError, ValueError, RecursionError):
        raise TypeError("recipe must contain plain JSON values only: text, finite numbers, lists, dicts.") from None


def _in_lines(value: Any) -> Any:
    if isinstance(value, dict):
        return {one_line(key): _in_lines(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_in_lines(part) for part in value]
    return one_line(value) if isinstance(value, str) else value
