"""Lengths of intervals from simulated releases, relative to intervals from the simulated rows, for `plan_intervals`."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from iwbayes.analyst.fit import fit
from iwbayes.coverage.replication import REFERENCE, bounds_of, fitted, release_of_rows
from iwbayes.curator.plan import uniform_table
from iwbayes.curator.privacy.ledger import Ledger
from iwbayes.curator.privacy.noise import SeededNoise
from iwbayes.curator.progress import progress
from iwbayes.curator.publish import publish
from iwbayes.curator.settings import seeded
from iwbayes.release import Release
from iwbayes.schema import Schema
from iwbayes.tables import PrivateTable, SyntheticTable
from iwbayes.tables.reference_levels import RareReference, rare_references
from iwbayes.utils.arrays import Array
from iwbayes.utils.threads import one_blas_thread
from iwbayes.utils.warnings import CalibrationWarning, PrivacyWarning

_LEVEL = 0.9


def simulated_lengths(
    schema: Schema,
    n: int,
    formula: str,
    family: Any,
    like: Any,
    budgets: Sequence[float],
    settings: dict[str, Any],
    *,
    n_simulations: int,
    rng: np.random.Generator,
    progressbar: bool,
) -> tuple[pd.DataFrame, str]:
    """Simulate releases at each budget; return the table of an `IntervalPlan`, and a sentence on its rows."""
    draw, rows_from = population(schema, n, like, formula)
    call = partial(fit, formula, family=family, log_likelihood=False, progressbar=False)
    rows: list[dict[str, Any]] = []
    with progress(progressbar, "simulating releases", n_simulations) as step, warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivacyWarning)  # the plan itself warns once
        warnings.simplefilter("ignore", CalibrationWarning)  # the table says how many intervals are calibrated
        for number in range(n_simulations):
            with one_blas_thread():
                found = _simulated(PrivateTable(draw(rng), schema), call, budgets, settings, rng)
            rows += [{"simulation": number, **row} for row in found]
            step()
    notes = [found.text for found in _rare_references(schema, like, {row["parameter"] for row in rows})]
    return pd.DataFrame(rows), " ".join([rows_from, *notes])


def _rare_references(schema: Schema, like: Any, parameters: set[str]) -> list[RareReference]:
    """Return the columns with such parameters whose first level is rare in the public rows, if there are any."""
    return [] if like is None else rare_references(*_public_rows(schema, like), sorted(parameters))


def population(
    schema: Schema, n: int, like: Any, formula: str
) -> tuple[Callable[[np.random.Generator], pd.DataFrame], str]:
    """Return a function that draws n public rows, and a sentence about their source."""
    if isinstance(like, PrivateTable):
        raise TypeError(
            "like must be public rows; got a PrivateTable. A plan from private rows would use them without any budget. "
            "Pass a public table or an earlier release, or leave it out."
        )
    if like is None:
        return (
            lambda rng: uniform_table(schema, n, random_seed=rng).frame,
            f"Simulated rows are uniform within the schema, so {formula.partition('~')[0].strip()} does not depend on "
            f"any predictor. For a more realistic answer, pass public rows as like.",
        )
    if not isinstance(like, SyntheticTable | pd.DataFrame | Release):
        raise TypeError(f"like must be a SyntheticTable, a DataFrame or a Release; got {type(like).__name__}.")
    table, shares = _public_rows(schema, like)
    frame = table.frame
    kind = "rows of an earlier release, by their weights" if isinstance(like, Release) else "rows of a public table"
    return (
        lambda rng: frame.iloc[rng.choice(len(frame), n, p=shares / shares.sum())].reset_index(drop=True),
        f"Simulated rows are drawn from the {len(frame)} {kind}.",
    )


def _public_rows(schema: Schema, like: Any) -> tuple[SyntheticTable, Array]:
    """Return public rows as a table of the schema, and their shares (row,); an error if they do not fit the schema."""
    table = like.synthetic if isinstance(like, Release) else like
    rows = SyntheticTable(table.frame if isinstance(table, SyntheticTable) else table, schema)
    return rows, like.weights.values / len(rows) if isinstance(like, Release) else np.full(len(rows), 1 / len(rows))


def _simulated(
    private: PrivateTable,
    call: Callable[..., Any],
    budgets: Sequence[float],
    settings: dict[str, Any],
    rng: np.random.Generator,
) -> list[dict[str, Any]]:
    """Fit simulated rows, and their release at each budget; return the ratio of lengths per parameter."""
    noise, sample, posterior, train = rng.integers(2**31, size=4).tolist()
    lower, upper = bounds_of(_LEVEL)

    def lengths(name: str, release: Release) -> tuple[dict[str, tuple[float, bool]], str]:
        rows = fitted(name, call, release, None, (_LEVEL,), posterior)
        of_each = {row["parameter"]: (row[upper] - row[lower], bool(row["calibrated"])) for row in rows}
        return of_each, str(rows[0]["verdict"])

    # the statement of a ledger with seeded noise and no charges: it is not certified
    own, _ = lengths(REFERENCE, release_of_rows(private, Ledger(1.0, 0.0, noise=SeededNoise(noise)).statement()))
    parts = {name: seeded(settings[name], train) for name in ("generator", "weights")}
    found = []
    for epsilon in budgets:
        try:
            release = publish(
                private,
                epsilon=epsilon,
                noise=SeededNoise(noise),
                random_seed=sample,
                progressbar=False,
                **settings | parts,
            )
            those, verdict = lengths("release", release)
        except (RuntimeError, ValueError) as error:  # the fit to the simulated rows worked, the fit to the release not
            those, verdict = {}, f"failed: {' '.join(str(error).split())}"
        for name, (length, _) in own.items():
            other, good = those.get(name, (np.nan, False))
            row = {"ratio": other / length, "calibrated": good, "verdict": verdict}
            found.append({"epsilon": float(epsilon), "parameter": name, **row})
    return found
