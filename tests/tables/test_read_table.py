"""How files of private rows are read: separators, encodings, decimal marks, columns that are left out."""

import gzip

import numpy as np
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
    schema = iw.Schema(*SCHEMA, decimal=decimal)
    found = schema.conform(iw.read_table(path, schema, sep=sep, encoding=encoding))
    pd.testing.assert_frame_equal(found, SCHEMA.conform(EXPECTED))
    with pytest.raises(ValueError, match="as many cells in every row"):
        path = write(tmp_path, f"{text}3{sep}B\n", encoding, name)
        iw.read_table(path, schema, sep=sep, encoding=encoding)


def test_a_point_is_no_decimal_comma_and_thousands_are_not_guessed(tmp_path):
    schema = iw.Schema(iw.Real("pay", -9, 9e9, decimal=","))
    path = write(tmp_path, "pay\n1.234\n")
    with pytest.raises(ValueError, match="'pay'.*do not fit.*the decimal mark ','"):
        iw.PrivateTable(iw.read_table(path, schema, sep=";"), schema)
    for option in ("missing", "other"):
        found = schema.conform(iw.read_table(path, schema, sep=";", on_undeclared=option), on_undeclared=option)
        assert found["pay"].isna().all()
    path = write(tmp_path, "pay\n1.234,5\n12e3\n-1,5\n")
    found = schema.conform(iw.read_table(path, schema, sep=";"), on_undeclared="missing")["pay"]
    assert found.isna().tolist() == [True, False, False] and found[1:].tolist() == [12e3, -1.5]


def test_levels_keep_their_commas(tmp_path):
    schema = iw.Schema(iw.Categorical("share", ["1,5", "2.5"]), decimal=",")
    found = schema.conform(iw.read_table(write(tmp_path, "share\n1,5\n2.5\n"), schema, sep=";"))
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
        ({"sep": 3}, "sep must be text; got int"),
        ({"sheet": "t"}, "sheet cannot be used for CSV files, such as .*it is for Excel files"),
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
    with pytest.raises(ValueError, match="sep cannot be used for Parquet files, such as .*it is for CSV files"):
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
        text = iw.read_table(tmp_path / "t.csv", schema, encoding=encoding, on_undeclared="missing")
        found = schema.conform(text, on_undeclared="missing")
        assert found["town"].tolist() == ["A", "B", "A"] and found["pay"][[0, 2]].tolist() == [1, 3]


# --- one reading of the header, strict quotes, owners


@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz"])
def test_names_are_those_of_the_header(tmp_path, name):
    """An index without a name, two columns of one name, and the name that pandas would give the second of them."""
    path = write(tmp_path, ",pay,id,id,id.1,town,x\n0,1,2,3,4,B,1\n", name=name)
    found = iw.read_table(path, SCHEMA, drop=[""])
    assert list(found.columns) == ["pay", "id", "id", "id.1", "town", "x"]
    found = iw.read_table(path, SCHEMA, drop=["", "id", "id.1"])
    assert SCHEMA.conform(found).to_numpy().tolist() == [[1.0, "B", 1]]
    with pytest.raises(ValueError, match=r"lacks the columns to drop \['Unnamed: 0'\]"):
        iw.read_table(path, SCHEMA, drop=["Unnamed: 0"])
    with pytest.raises(ValueError, match=r"has the columns \['id'\] more than once"):
        iw.read_table(path, SCHEMA, keep_declared=True, user="id")


@pytest.mark.parametrize("text", ['1,"B,1\n2,B,1\n', '1,"B"x,1\n', "1,B,1,\n", "1,B\n", "1,B,1\n\n2,B,1\n"])
@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz"])
@pytest.mark.parametrize("option", ["refuse", "missing"])
def test_a_file_whose_rows_are_not_whole_is_refused(tmp_path, text, name, option):
    path = write(tmp_path, f"pay,town,x\n{text}", name=name)
    with pytest.raises(ValueError, match="as many cells in every row as the header has, and no quotes") as refusal:
        iw.read_table(path, SCHEMA, on_undeclared=option)
    assert refusal.value.__cause__ is None and "B" not in str(refusal.value)


def test_a_quote_that_swallows_rows_leaves_no_level(tmp_path):
    """The next quote closes it, two rows later: a valid file, with a cell that holds the rows in between."""
    found = iw.read_table(write(tmp_path, 'pay,town,x\n1,"B,1\n2,B,1\n3,B",1\n4,B,1\n'), SCHEMA)
    assert len(found) == 2
    with pytest.raises(ValueError, match="column 'town'.* has cells that do not fit"):
        iw.PrivateTable(found, SCHEMA)


def test_quotes_blank_lines_and_marks_of_bytes_are_read(tmp_path):
    path = write(tmp_path, '\ufeff\n"pay",town,x\n"1",B,"1"\n2,"B"," 0"\n\n\n')
    assert SCHEMA.conform(iw.read_table(path, SCHEMA)).to_numpy().tolist() == [[1.0, "B", 1], [2.0, "B", 0]]


@pytest.mark.parametrize("owner", ["", " ", "NA", "NULL", "nan"])
def test_a_row_without_an_owner_is_refused(tmp_path, owner):
    path = write(tmp_path, f"pay,town,x,who\n1,B,1,a\n2,B,0,{owner}\n")
    with pytest.raises(ValueError, match="every row needs an owner"):
        iw.PrivateTable(iw.read_table(path, SCHEMA, user="who"), SCHEMA, user="who")


def test_blanks_and_forms_of_letters_make_no_other_person(tmp_path):
    path = write(tmp_path, "pay,town,x,who\n1,B,1,Zoë\n2,B,0, Zoe\u0308 \n3,B,1,Zoe\n")
    table = iw.PrivateTable(iw.read_table(path, SCHEMA, user="who"), SCHEMA, user="who")
    assert table.n_users == 2 and table.users.tolist() == [0, 0, 1]
    assert iw.PrivateTable(EXPECTED.assign(who=[7, 7.0]), SCHEMA, user="who").n_users == 1
    with pytest.raises(ValueError, match="every row needs an owner"):
        iw.PrivateTable(EXPECTED.assign(who=["a", "  "]), SCHEMA, user="who")


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("pay;town;x\n1;B;1\n", "The header is one column with ';' in it: pass sep=';'"),
        ("pay\ttown\tx\n1\tB\t1\n", r"pass sep='\\t'"),
        ("Pay, town,x\n1,B,1\n", r"\['pay', 'town'\].*differ from them only in case or blanks, at positions 0, 1"),
    ],
)
def test_what_is_wrong_with_a_header_is_said(tmp_path, text, match):
    with pytest.raises(ValueError, match=match):
        iw.read_table(write(tmp_path, text), SCHEMA)


def test_missing_cells_of_a_file_are_none_unless_they_are_levels(tmp_path):
    schema = iw.Schema(
        iw.Categorical("code", ["NA", "b"], missing=True), iw.Categorical("kind", {"NULL": "none", "b": "some"}),
        iw.Integer("n", 0, 9, missing_codes=["None"]),
    )  # fmt: skip
    path = write(tmp_path, "code,kind,n\nNA,NULL,1\n NULL ,b, NA\nnan,b,None\n")
    found = schema.conform(iw.read_table(path, schema))
    assert found["code"].tolist()[:1] == ["NA"] and found["code"].isna().tolist() == [False, True, True]
    assert found["kind"].tolist() == ["none", "some", "some"] and found["n"].isna().tolist() == [False, True, True]


def test_numbers_are_read_exactly_by_file_and_by_frame(tmp_path):
    rng = np.random.default_rng(1)
    frame = pd.DataFrame({"pay": rng.uniform(0, 9, 200), "town": "B", "x": rng.integers(0, 2, 200)})
    frame.to_csv(tmp_path / "t.csv", index=False)
    pd.testing.assert_frame_equal(SCHEMA.conform(iw.read_table(tmp_path / "t.csv", SCHEMA)), SCHEMA.conform(frame))
