"""Publish a synthetic table that another library made, with tilt weights, under one ledger.

How do you publish rows from another library so that an analyst can trust the estimates? Run this example:

    pip install DataSynthesizer==0.1.13       # only this example needs it
    python examples/outside_table.py

DataSynthesizer (Ping, Stoyanovich & Howe, SSDBM 2017) draws each column from noisy shares of its values. In this mode
all shares together are epsilon-differentially private if one row is replaced: their sensitivity is 2/N. By default,
DataSynthesizer reads levels from the data. This example passes all levels from the code book instead, and first turns
numbers into codes of public bins. The rows of DataSynthesizer have no dependence between columns. The weights restore
it.

The user declares the privacy cost of the table, and the ledger adds this cost to the cost of the weights. The ledger
cannot check the declaration. The guarantee of the release is only as good as the guarantee of the other library, whose
noise is floating-point, for example.

What to conclude: with weights, you can analyse the rows of another library and report one privacy cost for both.
"""

import json
import secrets
import tempfile
from pathlib import Path

import arviz as az
import numpy as np
import pandas as pd
from DataSynthesizer.DataDescriber import DataDescriber
from DataSynthesizer.DataGenerator import DataGenerator

import iwbayes as iw
from iwbayes.datasets import simulate_table

EPSILON_TABLE, EPSILON_WEIGHTS, DELTA = 0.3, 0.7, 1e-6
BINS = 12


def to_codes(
    frame: pd.DataFrame, schema: iw.Schema
) -> tuple[pd.DataFrame, dict[str, list[int]]]:
    """Return codes of public bins and levels, and all possible codes, without reading levels from the data."""
    codes, levels = {}, {}
    for column in schema:
        if isinstance(column, iw.Real):
            edges = np.linspace(column.lower, column.upper, BINS + 1)
            codes[column.name] = np.digitize(frame[column.name], edges[1:-1])
            levels[column.name] = list(range(BINS))
        elif isinstance(column, iw.Binary | iw.Categorical):
            codes[column.name] = column.codes(column.conform(frame[column.name]))
            levels[column.name] = list(range(len(column.levels)))
    return pd.DataFrame(codes), levels


def from_codes(
    codes: pd.DataFrame, schema: iw.Schema, rng: np.random.Generator
) -> pd.DataFrame:
    """Invert `to_codes`; numbers are uniform within their bin."""
    frame = {}
    for column in schema:
        drawn = codes[column.name].to_numpy(dtype=np.int64)
        if isinstance(column, iw.Real):
            width = (column.upper - column.lower) / BINS
            frame[column.name] = column.lower + width * (drawn + rng.random(len(drawn)))
        elif isinstance(column, iw.Binary | iw.Categorical):
            frame[column.name] = column.from_codes(drawn)
    return pd.DataFrame(frame)


def synthesize(
    frame: pd.DataFrame, schema: iw.Schema, n: int, folder: Path
) -> pd.DataFrame:
    """Make n rows with the other library at epsilon ``EPSILON_TABLE``."""
    codes, levels = to_codes(frame, schema)
    private, domain, description = (
        folder / "private.csv",
        folder / "levels.json",
        folder / "description.json",
    )
    codes.to_csv(private, index=False)
    domain.write_text(json.dumps(levels))
    describer = DataDescriber()
    describer.describe_dataset_in_independent_attribute_mode(
        str(private),
        epsilon=EPSILON_TABLE,
        attribute_to_datatype=dict.fromkeys(levels, "Integer"),
        attribute_to_is_categorical=dict.fromkeys(levels, True),
        attribute_to_is_candidate_key=dict.fromkeys(levels, False),
        categorical_attribute_domain_file=str(domain),
        # its default, 0, would make the privacy noise predictable
        seed=secrets.randbits(32),
    )
    describer.save_dataset_description_to_file(str(description))
    generator = DataGenerator()
    generator.generate_dataset_in_independent_mode(
        n, str(description), seed=secrets.randbits(32)
    )
    return from_codes(generator.synthetic_dataset, schema, np.random.default_rng())


def main() -> None:
    """Make, weight, save, load and analyse a table."""
    data = simulate_table("bernoulli", 4000, random_seed=1)
    private = iw.PrivateTable(data.frame, data.schema)
    with tempfile.TemporaryDirectory() as folder:
        rows = synthesize(data.frame, data.schema, 20_000, Path(folder))
        table = iw.SyntheticTable(
            rows,
            data.schema,
            origin="DataSynthesizer 0.1.13",
            already_spent=(EPSILON_TABLE, 0.0),
        )

        ledger = iw.Ledger(EPSILON_TABLE + EPSILON_WEIGHTS, DELTA)
        weights = iw.TiltWeights().fit(
            private, table, ledger, epsilon=EPSILON_WEIGHTS, delta=DELTA
        )
        release = iw.Release(table, weights, ledger.statement(), n_private=len(private))
        release = iw.load(release.save(Path(folder) / "outside.iwb"))
    print(release.summary())

    fitted = iw.fit(data.formula, release, family=data.family)
    print(az.summary(fitted, var_names=list(fitted.posterior.data_vars), kind="stats"))
    print("truth:", data.truth)


if __name__ == "__main__":
    main()
