"""Simulated tables for audits of whole releases, and an adversary who chooses the worst row when a release is known."""

from collections.abc import Callable

import numpy as np
import pandas as pd

import iwbayes as iw

#: Candidates at once, and how often the search comes closer to the best of them.
CANDIDATES, STEPS = 300, 70


def simulated(frame: pd.DataFrame, schema: iw.Schema) -> iw.SyntheticTable:
    return iw.SyntheticTable(frame, schema, origin="simulated", already_spent=(0, 0))


def gathered(n: int, d: int, *, binary: bool = True, seed: int = 1) -> iw.SyntheticTable:
    """Rows near the middle of d real columns but for the first one, which stands in a corner."""
    rng = np.random.default_rng(seed)
    columns = {f"x{index}": rng.normal(0.5, 0.07, n).clip(0, 1) for index in range(d)}
    schema = [iw.Real(name, 0, 1) for name in columns]
    if binary:
        columns["y"] = rng.integers(0, 2, n)
        schema.append(iw.Binary("y"))
    frame = pd.DataFrame(columns)
    for index, name in enumerate(columns):
        frame.loc[0, name] = 1 if index == 0 or name == "y" else 0
    return simulated(frame, iw.Schema(*schema))


def tilt_loss(release: iw.Release, row: pd.DataFrame, others: pd.DataFrame) -> np.ndarray:
    """Squared mu, or epsilon, of a tilt and its test of fit when the row becomes each of the others."""
    measured = release.weights.measurement
    parts = [part for part in (measured, measured.held_back) if part is not None]
    total = np.zeros(len(others))
    for part in parts:
        moved = part.features.transform(others) - part.features.transform(row)
        total += (np.linalg.norm(moved, ord=part.features.order, axis=1) / part.noise.scale) ** 2
    return total


def farthest_row(table: iw.SyntheticTable, release: iw.Release) -> pd.DataFrame:
    """One row that moves the released features by about as much as any does when it takes the first row's place."""
    schema, row, rng = table.schema, table.frame.iloc[[0]], np.random.default_rng(0)
    real = [column.name for column in schema if column.kind == "real"]
    others = pd.concat([row] * 20 * CANDIDATES, ignore_index=True)
    others[real] = rng.uniform(0, 1, (len(others), len(real)))
    if "y" in schema.names:
        others["y"] = 1 - int(row["y"].iloc[0])

    def best(rows: pd.DataFrame) -> pd.DataFrame:
        return rows.iloc[[int(np.argmax(tilt_loss(release, row, simulated(rows, schema).frame)))]]

    found = best(others)
    for step in range(STEPS):
        near = pd.concat([found] * CANDIDATES, ignore_index=True)
        near[real] = (near[real] + rng.normal(0, 0.4 * 0.77**step, (CANDIDATES, len(real)))).clip(0, 1)
        found = best(pd.concat([found, near], ignore_index=True))
    return found


def replaced(table: iw.SyntheticTable, n: int = 1) -> Callable[[iw.Release], iw.SyntheticTable]:
    """Neighbours whose first n rows, all alike, become the worst row."""

    def choose(release: iw.Release) -> iw.SyntheticTable:
        rows = pd.concat([farthest_row(table, release)] * n)
        return simulated(pd.concat([rows, table.frame.iloc[n:]], ignore_index=True), table.schema)

    return choose


def without_first(table: iw.SyntheticTable) -> iw.SyntheticTable:
    """The same table where the first row is the null row."""
    return simulated(table.frame.iloc[1:].reset_index(drop=True), table.schema)
