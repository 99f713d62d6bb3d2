"""How files of private rows are read: separators, encodings, decimal marks, columns that are left out."""

import gzip

import pandas as pd
import pytest

import iwbayes as iw

SCHEMA = iw.Schema(iw.Real("pay", 0, 9), iw.Categorical("town", ["Ärö", "B"]), iw.Binary("x"))
EXPECTED = pd.DataFrame({"pay": [1.5, 2.0], "town": ["Ärö", "B"], "x": [0.0, 1.0]})


def write(folder, text, encoding="utf-8", name="t.csv"):
    content = text.encode(encoding)
    (folder / name).write_bytes(gzip.compress(content) if name.endswith("gz") else content)
    return folder / name


@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "cp1252", "latin-1", "utf-16", "UTF-16-LE", "utf-32"])
@pytest.mark.parametrize(("sep", "decimal"), [(",", "."), (";", ","), ("\t", ","), ("|", "."), (" ", ".")])
def test_files_are_read_as_they_are_written(tmp_path, name, encoding, sep, decimal):
    text = f"pay{sep}town{sep}x\n1{decimal}5{sep}Ärö{sep}0\n2{sep}B{sep}1\n"
    path = write(tmp_path, text, encoding, name)
    found = iw.read_table(path, SCHEMA, sep=sep, encoding=encoding, decimal=decimal)
    pd.testing.assert_frame_equal(found, EXPECTED, check_dtype=False)
    with pytest.raises(ValueError, match="as many cells in every row"):
        path = write(tmp_path, f"{text}3{sep}B\n", encoding, name)
        iw.read_table(path, SCHEMA, sep=sep, encoding=encoding, decimal=decimal)


def test_a_point_is_no_decimal_comma_and_thousands_are_not_guessed(tmp_path):
    schema = iw.Schema(iw.Real("pay", 0, 9e9))
    path = write(tmp_path, "pay\n1.234\n")
    with pytest.raises(ValueError, match="'pay' is declared Real and has cells that are not numbers"):
        iw.read_table(path, schema, sep=";", decimal=",")
    for option in ("missing", "other"):
        found = iw.read_table(path, schema, sep=";", decimal=",", on_undeclared=option)
        assert found["pay"].isna().all()
    path = write(tmp_path, "pay\n1.234,5\n12e3\n-1,5\n")
    found = iw.read_table(path, schema, sep=";", decimal=",", on_undeclared="missing")["pay"]
    assert found.isna().tolist() == [True, False, False] and found[1:].tolist() == [12e3, -1.5]


def test_levels_keep_their_commas(tmp_path):
    schema = iw.Schema(iw.Categorical("share", ["1,5", "2.5"]))
    found = iw.read_table(write(tmp_path, "share\n1,5\n2.5\n"), schema, sep=";", decimal=",")
    assert found["share"].tolist() == ["1,5", "2.5"]


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_keep_declared_leaves_all_others_out(tmp_path, kind):
    frame = EXPECTED.assign(id=[1, 2], who=["a", "b"])
    path = tmp_path / f"t.{kind}"
    frame.to_csv(path, index=False) if kind == "csv" else frame.to_parquet(path, index=False)
    found = iw.read_table(path, SCHEMA, keep_declared=True)
    assert list(found.columns) == list(SCHEMA.names)
    assert len(iw.PrivateTable(found, SCHEMA)) == 2
    kept = iw.read_table(path, SCHEMA, keep_declared=True, user="who")
    assert list(kept.columns) == [*SCHEMA.names, "who"] and iw.PrivateTable(kept, SCHEMA, user="who").n_users == 2
    with pytest.raises(ValueError, match="columns that the schema does not declare"):
        iw.PrivateTable(iw.read_table(path, SCHEMA), SCHEMA)


def test_a_declared_column_stands_there_once(tmp_path):
    path = write(tmp_path, "pay,pay,town,x\n1,2,B,1\n")
    for keep in (True, False):
        with pytest.raises(ValueError, match=r"\['pay'\] more than once"):
            iw.read_table(path, SCHEMA, keep_declared=keep)
    path = write(tmp_path, "pay,id,id,town,x\n1,2,3,B,1\n")
    assert len(iw.read_table(path, SCHEMA, keep_declared=True)) == 1


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"sep": "ab"}, "sep must be one character"),
        ({"sep": ""}, "sep must be one character"),
        ({"sep": "\n"}, "sep must be one character"),
        ({"sep": '"'}, "sep must be one character"),
        ({"sep": "1"}, "sep must be one character"),
        ({"sep": None}, "sep must be text; got NoneType"),
        ({"decimal": ","}, "must differ from sep"),
        ({"decimal": ";"}, "decimal must be '.' or ','"),
        ({"encoding": "klingon"}, "encoding must be a Python text encoding"),
        ({"encoding": "hex"}, "encoding must be a Python text encoding"),
        ({"encoding": "undefined"}, "encoding must be a Python text encoding"),
        ({"encoding": "a\0"}, "encoding must be a Python text encoding"),
        ({"encoding": 8}, "encoding must be text; got int"),
        ({"encoding": "utf-16", "on_undeclared": "missing"}, "an invalid byte in one cell can change others"),
        ({"encoding": "shift_jis", "on_undeclared": "other"}, "an invalid byte in one cell can change others"),
        ({"encoding": "utf-16"}, "cannot be read as CSV. It must be utf-16"),
    ],
)
def test_wrong_options_are_refused_with_the_remedy(tmp_path, options, match):
    path = write(tmp_path, "pay,town,x\n1,B,1\n")
    with pytest.raises((TypeError, ValueError), match=match) as caught:
        iw.read_table(path, SCHEMA, **options)
    assert caught.value.__cause__ is None and "\n" not in str(caught.value)


def test_formats_of_csv_are_not_for_parquet(tmp_path):
    EXPECTED.to_parquet(tmp_path / "t.parquet")
    with pytest.raises(ValueError, match="sep, encoding and decimal are for CSV files"):
        iw.read_table(tmp_path / "t.parquet", SCHEMA, sep=";")


@pytest.mark.parametrize("encoding", ["utf-8", "cp1252", "latin-1", "cp500"])
def test_a_wrong_byte_is_one_cell_in_encodings_that_on_undeclared_takes(tmp_path, encoding):
    """Replacing any byte of a cell by any other that separates nothing changes no other cell."""
    schema = iw.Schema(iw.Real("pay", 0, 9, missing=True), iw.Categorical("town", ["A", "B"], missing=True))
    content = "pay,town\n1,A\n2,B\n3,A\n".encode(encoding)
    at = content.index("2".encode(encoding))
    special = set('",\n\r'.encode(encoding)) | set("\x85\x1c\x1d\x1e\x0b\x0c".encode(encoding, "ignore"))
    for byte in set(range(256)) - special:
        (tmp_path / "t.csv").write_bytes(content[:at] + bytes([byte]) + content[at + 1 :])
        found = iw.read_table(tmp_path / "t.csv", schema, encoding=encoding, on_undeclared="missing")
        assert found["town"].tolist() == ["A", "B", "A"] and found["pay"][[0, 2]].tolist() == [1, 3]
