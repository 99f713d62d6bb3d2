"""Three surveys with the code books of statistical offices: from code book to release in at most ten lines."""

import json
from string import ascii_lowercase

import numpy as np
import pandas as pd
import pyreadstat
import pytest
from commands import run

import iwbayes as iw

N = 3000  # at epsilon 1 the noise of a release is then small beside what is checked
#: Columns of each survey: bounds of numbers, labels of codes.
NUMBERS = {"age": (17, 90), "hours": (0, 99), "income": (0, 200_000), "rooms": (1, 20), "children": (0, 12)}
LABELS = {"sex": ["male", "female"], "region": ["north", "south", "east", "west"], "insured": ["no", "yes"]}
LABELS |= {f"q{letter}": ["never", "sometimes", "often"] for letter in ascii_lowercase[:13]}
MISSING = [97, 99]  # codes of every labelled column, and of the age: refused, not asked
DAYS = ("2024-01-01", "2024-12-31")

CSV = """\
input = "survey.csv"
schema = "codebook.csv"
drop = ["id"]
epsilon = 1
delta = 1e-6
models = ["insured ~ age + sex + qa"]
ledger = "survey.ledger"
output = "first.iwb"
"""
EXCEL = CSV.replace('"survey.csv"', '"survey.xlsx"\nsheet = "data"').replace("codebook.csv", "survey.xlsx")
BOUNDS = ", ".join(f"{name} = {list(bounds)}" for name, bounds in {**NUMBERS, "interview": DAYS}.items())
SPSS = CSV.replace("survey.csv", "survey.sav").replace(
    '"codebook.csv"', f'"survey.sav"\ncolumns = {{ {BOUNDS} }}'.replace("'", '"')
)


@pytest.fixture
def rows():
    rng = np.random.default_rng(5)
    codes = {name: rng.integers(1, len(labels) + 1, N).astype(float) for name, labels in LABELS.items()}
    tops = {name: (low, 100_000 if name == "income" else min(high, 80)) for name, (low, high) in NUMBERS.items()}
    numbers = {name: rng.integers(low, top + 1, N).astype(float) for name, (low, top) in tops.items()}
    table = pd.DataFrame({"id": np.arange(N, dtype=float), **numbers, **codes})
    for name in ("age", *LABELS):
        table.loc[rng.random(N) < 0.05, name] = 99
    table["interview"] = pd.Timestamp(DAYS[0]) + pd.to_timedelta(rng.integers(0, 366, N), "D")
    return table


def as_csv(rows, folder):
    """One row for each code, dates as 31.12.2024, numbers with thousands and a currency."""
    shown = rows.astype({name: int for name in rows if name != "interview"})
    money = shown["income"].map(lambda value: f"{value:,} EUR".replace(",", "."))
    shown.assign(interview=rows["interview"].dt.strftime("%d.%m.%Y"), income=money).to_csv(
        folder / "survey.csv", index=False
    )
    lines = ["variable;type;min;max;code;label;missing;missing codes;format;unit;thousands;decimal"]
    for name, (low, high) in NUMBERS.items():
        marks = "EUR;.;," if name == "income" else ";;"
        lines.append(f"{name};integer;{low};{high};;;;{'97|99' if name == 'age' else ''};;{marks}")
    for name, labels in LABELS.items():
        for code, label in enumerate(labels, start=1):
            lines.append(f"{name if code == 1 else ''};;;;{code};{label};;;;;;")
        lines += [f";;;;{code};refused;yes;;;;;" for code in MISSING]
    lines.append(f"interview;date;{DAYS[0]};{DAYS[1]};;;;;DD.MM.YYYY;month;;")
    (folder / "codebook.csv").write_text("\n".join(lines))


def as_excel(rows, folder):
    """Rows and code book are two sheets of one file."""
    book = [{"Name": name, "Type": "integer", "Lower": low, "Upper": high} for name, (low, high) in NUMBERS.items()]
    book[0]["Missing codes"] = "97; 99"
    for name, labels in LABELS.items():
        levels = "; ".join(f"{code} = {label}" for code, label in enumerate(labels, start=1))
        book.append({"Name": name, "Levels": levels, "Missing codes": "97; 99"})
    book.append({"Name": "interview", "Type": "date", "Lower": DAYS[0], "Upper": DAYS[1], "Unit": "month"})
    with pd.ExcelWriter(folder / "survey.xlsx") as file:
        rows.to_excel(file, sheet_name="data", index=False)
        pd.DataFrame(book).to_excel(file, sheet_name="codes", index=False)


def as_spss(rows, folder):
    """Labels and user-missing values are in the file."""
    pyreadstat.write_sav(
        rows.assign(interview=rows["interview"].dt.date),
        folder / "survey.sav",
        variable_value_labels={
            name: dict(enumerate(labels, start=1)) | dict.fromkeys(MISSING, "refused")
            for name, labels in LABELS.items()
        },
        missing_ranges={name: [{"lo": 97, "hi": 99}] for name in ("age", *LABELS)},
        variable_format=dict.fromkeys(NUMBERS, "F8.0"),
    )


@pytest.mark.parametrize(("write", "own"), [(as_csv, CSV), (as_excel, EXCEL), (as_spss, SPSS)])
def test_ten_lines_lead_from_a_code_book_to_two_releases(rows, tmp_path, write, own):
    assert len(own.splitlines()) <= 10 and len(rows.columns) >= 20
    write(rows, tmp_path)
    file = tmp_path / "publish.toml"
    file.write_text(own)
    assert run("ledger", tmp_path / "survey.ledger", "--epsilon", 2, "--delta", 1e-6).exit_code == 0
    assert run("plan", file, "--n", N).exit_code == 0
    assert run("publish", file, "--check").exit_code == 0
    for name in ("first", "second"):
        more = ("--json", "--output", tmp_path / f"{name}.iwb")
        priced = json.loads(run("publish", file, "--dry-run", *more).stdout)
        charged = json.loads(run("publish", file, *more).stdout)
        assert charged["statement"]["epsilon"] == priced["together"] and charged["certified"]
    schema = iw.load(tmp_path / "first.iwb").synthetic.schema
    assert list(schema["sex"].levels) == LABELS["sex"] and list(schema["qa"].levels) == LABELS["qa"]
    assert (schema["age"].lower, schema["age"].upper, schema["age"].missing) == (17, 90, True)
    frame = iw.load(tmp_path / "first.iwb").synthetic.frame
    assert 0.01 < frame["age"].isna().mean() < 0.2 and 30 < frame["age"].mean() < 70
    for name in ("hours", "income", "rooms"):
        assert abs(frame[name].mean() / rows[name].mean() - 1) < 0.5, name
