"""Files from strangers: their content is bounded before it is decoded."""

import io
import json
import re
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from file_tools import members_of, sealed, zipped
from test_release import make_release

from iwbayes.analyst import arviz_compat
from iwbayes.curator.privacy.ledger import Ledger
from iwbayes.curator.privacy.ledger_file import LedgerError
from iwbayes.evidence import FeatureMap
from iwbayes.evidence.distributions import GaussianDistribution
from iwbayes.evidence.measurement import Measurement
from iwbayes.evidence.scores import RowFeatures
from iwbayes.release import Release, ReleaseError, load, rehearsal_folder, table
from iwbayes.release.rehearsal_folder import RehearsalFacts
from iwbayes.release.rehearsals import release_digest
from iwbayes.release.statement import Event
from iwbayes.release.weights import Weights
from iwbayes.schema import Binary, Categorical, Real, Schema
from iwbayes.tables import SyntheticTable
from iwbayes.utils import archive

ROOT = Path(__file__).parent.parent


def parquet(columns, **options):
    buffer = io.BytesIO()
    pq.write_table(pa.table(columns), buffer, store_schema=False, **options)
    return buffer.getvalue()


def forged(good, path, change=None, **members):
    path.write_bytes(zipped(sealed({**members_of(good), **members}, change)))
    return path


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    return make_release().save(tmp_path_factory.mktemp("good") / "r.iwb")


def one_level(folder, text, n=10_000):
    """The same text in every row, stored once in the Parquet member."""
    path = make_release(n, schema=Schema(Categorical("c", ("a", "b")))).save(folder / "base.iwb")
    codes = pa.DictionaryArray.from_arrays(pa.array(np.zeros(n, dtype=np.int32)), pa.array([text]))

    def change(manifest):
        manifest["schema"]["column"][0]["levels"] = [text, "b"]

    return forged(path, folder / "level.iwb", change, **{"table.parquet": parquet({"c": codes})})


def deflated(folder, n_bytes=2**30):
    """A rehearsal whose manifest is a thousand times smaller in the file."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("manifest.json", "w") as member:
        member.write(b'{"recipe": {"misfit": 1.0}}')
        for _ in range(n_bytes // 2**20):
            member.write(b" " * 2**20)
    release, path = make_release(), folder / "deflated"
    facts = RehearsalFacts(release_digest(release), 1, "", 10, 0.1)
    rehearsal_folder.start_folder(path, facts, release.to_bytes())
    rehearsal_folder.add_replay(path, 0, content.getvalue())
    return path


def many_pages(folder, n=20_000):
    """Each cell is written in full, in pages that are compressed well: 240 MB, which are never in memory together."""
    names, level = [f"c{index}" for index in range(6)], "\U0001f600" * 500
    path = make_release(n, schema=Schema(*(Categorical(name, (level, "b")) for name in names))).save(folder / "p.iwb")
    cells = pa.array([level] * n)
    options = {"use_dictionary": False, "compression": "zstd"}
    return forged(path, folder / "pages.iwb", **{"table.parquet": parquet(dict.fromkeys(names, cells), **options)})


def many_cells(folder, n=40_000):
    """A thousand constant columns: a few bytes each."""
    schema = Schema(*(Binary(f"c{index}") for index in range(1000)))
    rows = pd.DataFrame({name: np.zeros(n, dtype=np.int64) for name in schema.names})
    release = Release(SyntheticTable(rows, schema), Weights(np.zeros(n), "m"), make_release().statement, n_private=9)
    return release.save(folder / "cells.iwb", allow_uncertified=True)


def many_coordinates(folder, k=20_000):
    """A measurement of so many features that their covariance has 3 GiB."""
    release = make_release(2, measured=False)
    features = RowFeatures(release.synthetic.schema, np.zeros((2, k)), 1.0, False, "f")
    measurement = Measurement("mean of features", np.zeros(k), GaussianDistribution(0.1, k), 0.1, features, 41)
    return replace(release, weights=replace(release.weights, measurement=measurement)).save(folder / "wide.iwb")


def many_levels(folder, k=9_000):
    """A measured column whose levels, as corners of its range, are a square table of 650 MB."""
    schema = Schema(Categorical("c", [str(level) for level in range(k)]))
    rows = SyntheticTable(pd.DataFrame({"c": ["0", "1"]}), schema, origin="x")
    features = FeatureMap(schema, "linear", np.zeros(k), np.ones((k, 1)), 1.0)
    measurement = Measurement("mean of features", np.zeros(2), GaussianDistribution(0.1, 2), 0.1, features, 41)
    weights = Weights(np.zeros(2), "TiltWeights", (), measurement)
    return Release(rows, weights, make_release().statement, n_private=41).save(folder / "levels.iwb")


def many_products(folder, k=9_000):
    """The name of all products of so many columns that their list has 40 million entries."""

    def change(manifest):
        manifest["weights"]["measurement"]["features"]["terms"] = "quadratic"
        names = [{"name": f"c{index}", "type": "binary", "levels": [0, 1]} for index in range(k)]
        manifest["schema"]["column"] += names

    return forged(make_release().save(folder / "few.iwb"), folder / "products.iwb", change)


def constant_posterior(folder):
    path = folder / "posterior.nc"
    with h5py.File(path, "w") as archive:
        archive.create_dataset("posterior/b", shape=(4, 50_000_000), dtype="f8", fillvalue=0.0, chunks=(1, 1000))
    return path


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    """What came of each hostile file, and the growth of memory: all of them in one process."""
    folder = tmp_path_factory.mktemp("hostile")
    makers = [many_coordinates, many_levels, many_products, many_cells, many_pages, deflated, constant_posterior]
    paths = [make(folder) for make in makers] + [one_level(folder, "x" * 200_000)]
    assert max(path.stat().st_size for path in paths) < 2**21
    command = [sys.executable, ROOT / "load_hostile.py", *paths]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("wide.iwb", "loaded"),
        ("levels.iwb", "loaded"),
        ("products.iwb", r"ReleaseError: .*are more than 100000"),
        ("cells.iwb", r"ReleaseError: .*40000 rows and 1000 columns is too large for a file of its size"),
        ("pages.iwb", "loaded"),
        ("deflated", r"RehearsalsError: .*contain an invalid release"),
        ("level.iwb", r"ReleaseError: .*at most 500 characters; one has 200000"),
        ("posterior.nc", r"ValueError: posterior.nc decodes to more than"),
    ],
)
def test_a_small_file_cannot_fill_the_memory(loaded, name, said):
    found, grown = loaded[name]
    assert re.match(said, found), found
    assert grown < 150, f"{grown} MiB"


# --- pages of the table ----------------------------------------------------------------------------------


def chunks(content):
    metadata = pq.ParquetFile(io.BytesIO(content)).metadata
    groups = [metadata.row_group(index) for index in range(metadata.num_row_groups)]
    return [group.column(index) for group in groups for index in range(group.num_columns)]


@pytest.mark.parametrize("compression", ["zstd", "none", "snappy"])
@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("use_dictionary", [True, False])
def test_headers_of_pages_are_read_as_they_were_written(compression, version, use_dictionary):
    """Without compression, pages and their headers fill each chunk; counts add up to the rows in any case."""
    rng = np.random.default_rng(1)
    columns = {
        "a": pa.array(rng.normal(size=5000)),
        "b": pa.array(rng.integers(4, size=5000), mask=rng.random(5000) < 0.1),
        "c": pa.array(rng.choice(["x", "yy", "z" * 100], 5000)),
        "d": pa.array(rng.random(5000) < 0.5),
    }
    options = {"data_page_version": version, "use_dictionary": use_dictionary, "write_statistics": False}
    sizes = {"data_page_size": 512, "row_group_size": 2000, "write_batch_size": 100}
    content = parquet(columns, compression=compression, **options, **sizes)
    for own, chunk in zip(table._chunks(table._footer(content)), chunks(content), strict=True):
        assert own[table._LENGTH] == chunk.total_compressed_size and own[table._DATA] == chunk.data_page_offset
        assert own.get(table._DICTIONARY) == chunk.dictionary_page_offset
        sizes = list(table._page_sizes(content, own))
        has_dictionary = chunk.has_dictionary_page
        assert sum(count for _, count in sizes[has_dictionary:]) == chunk.num_values
        assert len(sizes) > 3 or chunk.path_in_schema != "a"
        headers = chunk.total_uncompressed_size - sum(size for size, _ in sizes)
        assert 10 * len(sizes) < headers < 100 * len(sizes)


def test_a_footer_that_contradicts_itself_does_not_end_the_process(tmp_path):
    """A column that is required has no levels, but its statistics count some: pyarrow ended the process."""
    good = make_release(60, schema=Schema(Categorical("c", ("a", "b"), missing=True))).save(tmp_path / "good.iwb")
    content = members_of(good)["table.parquet"]
    start, paths = len(content) - 8 - int.from_bytes(content[-8:-4], "little"), []
    for place in (at for at in range(start, len(content) - 8) if content[at] == 2):  # 1, as Thrift stores it: optional
        changed = content[:place] + b"\x00" + content[place + 1 :]
        paths.append(forged(good, tmp_path / f"{place}.iwb", **{"table.parquet": changed}))
    done = subprocess.run([sys.executable, ROOT / "load_hostile.py", *paths], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    said = [said for said, _ in json.loads(done.stdout).values()]
    assert all(one.startswith(("ReleaseError", "loaded")) for one in said)
    counts = int(pa.__version__.split(".")[0]) >= 19  # older versions write no such statistics
    assert any("histogram" in one for one in said) == counts


def test_encodings_in_which_a_text_repeats_the_one_before_are_refused(tmp_path):
    """Each text takes a byte and can be as long as its page."""
    path = make_release(5000, schema=Schema(Categorical("c", ("a" * 400, "b")))).save(tmp_path / "good.iwb")
    cells = pa.array(["a" * 400] * 5000)
    for column_encoding in ("DELTA_BYTE_ARRAY", "DELTA_LENGTH_BYTE_ARRAY"):
        content = parquet({"c": cells}, use_dictionary=False, column_encoding=column_encoding)
        with pytest.raises(ReleaseError, match="pages of an unexpected kind"):
            load(forged(path, tmp_path / "r.iwb", **{"table.parquet": content}))
    content = parquet({"c": cells}, use_dictionary=False)
    assert len(load(forged(path, tmp_path / "r.iwb", **{"table.parquet": content})).synthetic) == 5000


def test_sizes_are_those_of_the_pages_and_not_of_the_footer(tmp_path, monkeypatch):
    """The footer of a forger can state any size; readers allocate what the pages state."""
    path = make_release(5000, schema=Schema(Categorical("c", ("a" * 400, "b")))).save(tmp_path / "good.iwb")
    content = parquet({"c": pa.array(["a" * 400] * 5000)}, use_dictionary=False, compression="zstd")

    (chunk,) = chunks(content)
    number, true = 2 * chunk.total_uncompressed_size, []  # Thrift stores numbers of one sign as even ones
    while number:
        true.append(number & 127 | 128 * (number > 127))
        number >>= 7
    footer = len(content) - int.from_bytes(content[-8:-4], "little") - 8
    lie = bytes([130] + [128] * (len(true) - 2) + [0])  # the number 1
    lying = content[:footer] + content[footer:].replace(bytes(true), lie)
    assert chunks(lying)[0].total_uncompressed_size == 1
    monkeypatch.setattr(archive, "_LEAST_LIMIT", 10**6)
    monkeypatch.setattr(archive, "_RATIO", 1)
    with pytest.raises(ReleaseError, match="decompresses to more than 5000 rows or"):
        load(forged(path, tmp_path / "r.iwb", **{"table.parquet": lying}))


def test_the_bound_leaves_room_for_honest_files(tmp_path):
    """An ordinary release of few columns needs a small part of what is allowed."""
    path = make_release(20_000).save(tmp_path / "r.iwb")
    assert 20 * 20_000 * len(load(path).synthetic.schema) * table._CELL < archive.decoded_limit(path.stat().st_size)


# --- texts that are parsed -------------------------------------------------------------------------------


LIMITS = {"MAX_TEXT": "larger than 300 bytes", "MAX_VALUES": "more than 300 values"}


@pytest.mark.parametrize("limit", LIMITS)
def test_texts_are_not_parsed_if_they_are_long_or_have_many_values(good, tmp_path, monkeypatch, limit):
    schema, path = tmp_path / "s.toml", tmp_path / "people.ledger"
    schema.write_text("\n" * 400)
    path.write_text("[" * 400)
    monkeypatch.setattr(archive, limit, 300)
    with pytest.raises(ReleaseError, match=f"its manifest cannot be parsed: it .*{LIMITS[limit]}"):
        load(forged(good, tmp_path / "r.iwb", lambda manifest: manifest.update(recipe={"a": [[]] * 400})))
    with pytest.raises(ValueError, match=f"the schema is not valid TOML: it .*{LIMITS[limit]}"):
        Schema.from_toml(schema)
    with pytest.raises(LedgerError, match=LIMITS[limit]):
        Ledger.open(path)


def test_no_file_is_written_that_could_not_be_read(tmp_path, monkeypatch):
    """A ledger that is full keeps what it has, and charges nothing more."""
    ledger = Ledger.open(tmp_path / "people.ledger", epsilon=5.0, delta=1e-6)
    ledger.charge(Event("a", "laplace", 0.5))
    monkeypatch.setattr(archive, "MAX_TEXT", (tmp_path / "people.ledger").stat().st_size + 10)
    with pytest.raises(LedgerError, match="is full.*Nothing was charged"):
        ledger.charge(Event("b", "laplace", 0.5))
    assert Ledger.open(tmp_path / "people.ledger").spent == (0.5, 0.0)
    monkeypatch.setattr(archive, "MAX_TEXT", 100)
    with pytest.raises(ValueError, match="must not be so large: it is larger than 100 bytes"):
        make_release().save(tmp_path / "r.iwb")
    assert not (tmp_path / "r.iwb").exists()


def test_a_schema_that_is_nested_deeply_is_refused():
    with pytest.raises(ValueError, match="not valid TOML"):
        Schema.from_toml("a = " + "[" * 100_000)


def test_names_and_levels_have_a_largest_length_and_features_a_largest_number():
    long = "ä" * 500
    assert Schema(Real(long, 0, 1), Categorical("c", (long, "b"))).n_features == 3
    with pytest.raises(ValueError, match="a column name must have at most 500 characters; 'ä{40}'... has 501"):
        Real(long + "ä", 0, 1)
    with pytest.raises(ValueError, match="c: levels must have at most 500 characters; one has 501"):
        Categorical("c", (long + "ä", "b"))
    with pytest.raises(ValueError, match="at most 20000 features, .* got 20001. Group rare levels"):
        Schema(Real("x", 0, 1), Categorical("c", [str(level) for level in range(20_000)]))


# --- posteriors ------------------------------------------------------------------------------------------


def test_one_long_label_does_not_make_all_of_them_long(tmp_path):
    """In memory, all labels of an array have the length of the longest."""
    path = tmp_path / "p.nc"
    with h5py.File(path, "w") as archive:
        labels = archive.create_dataset("posterior/k", shape=(3000,), dtype=h5py.string_dtype())
        labels[0] = "x" * 50_000
    with pytest.raises(ValueError, match=r"p.nc decodes to more than \d+ bytes"):
        arviz_compat.load(path)


def test_links_of_a_posterior_are_refused(tmp_path):
    """One array could be read under thousands of names, or another file on this machine."""
    path = tmp_path / "p.nc"
    for link in (h5py.SoftLink("/posterior/b"), h5py.ExternalLink("other.nc", "/b")):
        with h5py.File(path, "w") as archive:
            archive["posterior/b"] = np.zeros((4, 100))
            archive["posterior/c"] = link
        with pytest.raises(ValueError, match="has a link, 'c'"):
            arviz_compat.load(path)
