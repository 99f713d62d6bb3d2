"""Code books: declarations of columns from a table of them, or from the metadata of a statistical file."""

from __future__ import annotations

import datetime
import json
import math
import re
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from iwbayes.schema.cells import PLAIN_NUMBER, plain
from iwbayes.utils.frames import to_pandas
from iwbayes.utils.optional import import_optional
from iwbayes.utils.statistical_files import ENDINGS, SPSS, counted_from, formats, is_missing, read_statistical
from iwbayes.utils.warnings import IwbayesWarning

#: What a code book says of a column, and its headers. Blanks, case and underscores do not count.
_HEADERS = {
    "name": ("name", "variable", "variable name", "column"),
    "type": ("type",),
    "lower": ("lower", "min", "minimum", "first"),
    "upper": ("upper", "max", "maximum", "last"),
    "levels": ("levels", "level", "codes", "code", "values", "value"),
    "labels": ("labels", "label", "value labels", "value label"),
    "missing": ("missing",),
    "missing_codes": ("missing codes", "missing code", "missing values"),
    "format": ("format",),
    "unit": ("unit",),
    **{name: (name,) for name in ("decimal", "thousands", "symbols", "outside", "transform", "numbers", "heaps")},
}
_KNOWN = {header: key for key, headers in _HEADERS.items() for header in headers}
_TYPES = {
    "real": ("real", "numeric", "number", "float", "double", "continuous", "decimal"),
    "integer": ("integer", "int", "whole", "count"),
    "date": ("date",),
    "categorical": ("categorical", "category", "nominal", "ordinal", "factor", "coded"),
    "binary": ("binary", "boolean", "bool", "dichotomous"),
}
_TYPE_OF = {word: kind for kind, words in _TYPES.items() for word in words}
_TRUTHS = {"yes": True, "true": True, "y": True, "x": True, "1": True, "no": False, "false": False, "0": False}
EXCEL = (".xlsx", ".xlsm")
_MOST_CODES = 100  # that a range of missing values is written out to
#: Formats of Stata for numbers of periods since 1960.
_PERIODS = {"%TM": {"numbers": "months since 1960-01-01"}, "%TY": {"format": "%Y"}}
_OTHER_PERIODS = ("%TW", "%TQ", "%TH")

Said = dict[str, Any]  # what a code book says of a column; "levels" are pairs of code and label


def entries_of(
    source: Any, columns: Mapping[str, Any] | None, drop: Sequence[str], sheet: str | None
) -> list[Said | Incomplete]:
    """Return what a code book says of each column, as in a schema file, or an error that says what it lacks.

    See `Schema.from_codebook`.
    """
    found = _read(source, sheet)
    changes = {name: _change(name, change) for name, change in ({} if columns is None else columns).items()}
    if absent := [name for name in changes if name not in found]:
        raise ValueError(f"columns has the names {absent}, which are not in the code book. Correct them.")
    return [_entry(name, said | changes.get(name, {})) for name, said in found.items() if name not in drop]


def _change(name: str, given: Any) -> Said:
    """Return what is said instead of the code book: a dict of its headers, or a pair of bounds."""
    if isinstance(given, list | tuple) and len(given) == 2:
        given = {"lower": given[0], "upper": given[1]}
    if not isinstance(given, Mapping):
        raise TypeError(f"columns: {name!r} must have a dict, such as {{'levels': 'no; yes'}}, or a pair of bounds.")
    said, unknown = _said(given)
    if unknown:
        raise ValueError(f"columns: {name!r} has the unknown headers {unknown}; known ones are {sorted(_HEADERS)}.")
    return said


def _read(source: Any, sheet: str | None) -> dict[str, Said]:
    if isinstance(source, str | Path):
        path = Path(source)
        with open(path, "rb"):  # raises the error of the system
            pass
        ending = path.suffix.lower()
        if ending in (*ENDINGS, *EXCEL):
            import_optional("openpyxl" if ending in EXCEL else "pyreadstat", f"code books that are {ending} files need")
        try:
            if ending in ENDINGS:
                return _of_metadata(path)
            rows = _rows_of_file(path, sheet)
        except Exception as error:  # of readers of files; a code book is public
            raise ValueError(f"the code book {path} cannot be read: {str(error).rstrip('.')}.") from None
    elif isinstance(source, Mapping) and all(isinstance(row, Mapping) for row in source.values()):
        rows = [{"name": name, **row} for name, row in source.items()]
    elif isinstance(source, Sequence) and all(isinstance(row, Mapping) for row in source):
        rows = list(source)
    else:
        rows = to_pandas(source, "a code book").to_dict("records")
    return _joined(rows)


def _rows_of_file(path: Path, sheet: str | None) -> list[Mapping[str, Any]]:
    ending = path.suffix.lower()
    if ending in EXCEL:
        with pd.ExcelFile(path) as book:
            which: Any = _sheet(book) if sheet is None else sheet
            frame = pd.read_excel(book, sheet_name=which, dtype=object, keep_default_na=False)
    elif ending in (".csv", ".tsv", ".txt"):
        frame = pd.read_csv(path, sep=None, engine="python", dtype=str, keep_default_na=False, encoding="utf-8-sig")
    elif ending == ".json":
        content = json.loads(path.read_text(encoding="utf-8-sig"))
        return [{"name": name, **row} for name, row in content.items()] if isinstance(content, dict) else list(content)
    else:
        raise ValueError("it must be a file of CSV, Excel, JSON, SPSS, Stata or SAS")
    return frame.to_dict("records")  # type: ignore[return-value]


def _sheet(book: pd.ExcelFile) -> Any:
    """Return the name of the first sheet with the headers of a code book, or of the first sheet."""
    for name in book.sheet_names:
        keys = {_key(header) for header in pd.read_excel(book, sheet_name=name, nrows=0).columns}
        if "name" in keys and keys & {"type", "levels"}:
            return name
    return book.sheet_names[0]


def _key(header: Any) -> str | None:
    """Return what a header says, or None if it is unknown."""
    return _KNOWN.get(re.sub(r"[\s_-]+", " ", str(header)).strip().casefold())


def _joined(rows: Iterable[Mapping[str, Any]]) -> dict[str, Said]:
    """Return what rows say, by column. Rows without a name, or with one that was there, add to their column."""
    found: dict[str, Said] = {}
    ignored: dict[str, None] = {}
    name = ""
    for row in rows:
        said, unknown = _said(row)
        ignored |= dict.fromkeys(unknown)
        name = said.pop("name", name)
        if not name and said:
            raise ValueError("a code book needs the header 'name', and a name in its first row.")
        own = found.setdefault(name, {})
        for key, value in said.items():
            if key in ("levels", "missing_codes"):
                own[key] = [*own.get(key, ()), *value]
            elif own.setdefault(key, value) != value:
                own["error"] = f"its rows have different values of {key!r}, {own[key]!r} and {value!r}"
    found.pop("", None)
    if ignored:
        warnings.warn(
            f"the code book has headers that are not used: {list(ignored)}. Those that are: {sorted(_HEADERS)}.",
            IwbayesWarning,
            stacklevel=5,
        )
    if not found:
        raise ValueError("a code book needs the header 'name', and a row for each column of the table.")
    return found


def _said(row: Mapping[Any, Any]) -> tuple[Said, list[str]]:
    """Return what a row says, and its headers that are unknown."""
    said: Said = {}
    unknown = []
    for header, cell in row.items():
        key = _key(header)
        if key is None:
            unknown.append(str(header))
        elif not _is_empty(cell):
            said[key] = cell
    if "name" in said:
        said["name"] = str(said["name"])
    if "missing_codes" in said:
        said["missing_codes"] = _listed(said["missing_codes"])
    if "missing" in said:
        said["missing"] = _TRUTHS.get(str(plain(said["missing"])).casefold(), said["missing"])
    labels = _listed(said.pop("labels", ()))
    if "levels" in said:
        said["levels"] = _pairs(said["levels"], labels)
        # of a single code, the row says whether that code means missing
        if len(said["levels"]) == 1 and said.pop("missing", False) is True:
            said["missing_codes"] = [code for code, _ in said.pop("levels")]
    return said, unknown


def _pairs(levels: Any, labels: list[Any]) -> list[tuple[Any, Any]]:
    """Return codes with their labels, or None: of a dict, of texts such as "1 = urban", or with a list of labels."""
    if isinstance(levels, Mapping):
        return list(levels.items())
    codes = _listed(levels)
    if len(labels) == len(codes):
        return list(zip(codes, labels, strict=True))
    if codes and all(isinstance(code, str) and "=" in code for code in codes):
        return [(code.strip(), label.strip()) for code, _, label in (text.partition("=") for text in codes)]
    return [(code, None) for code in codes]


def _listed(cell: Any) -> list[Any]:
    """Return a list: of a list, of one value, or of a text with items between ";", "|", line ends or else ","."""
    if isinstance(cell, list | tuple):
        return list(cell)
    if not isinstance(cell, str):
        return [_whole(cell)]
    separator = next((mark for mark in (";", "|", "\n") if mark in cell), ",")
    return [item.strip() for item in cell.split(separator) if item.strip()]


def _is_empty(cell: Any) -> bool:
    return cell is None or cell is pd.NaT or cell != cell or (isinstance(cell, str) and not cell.strip())


def _whole(cell: Any) -> Any:
    """Return a float without a fraction as a whole number."""
    return int(cell) if isinstance(cell, float) and cell.is_integer() else cell


def _codes(cells: Sequence[Any]) -> list[Any]:
    """Return codes as whole numbers if all are written as such, without leading zeros; else as text."""
    texts = [str(_whole(cell)).strip() for cell in cells]
    return list(map(int, texts)) if all(re.fullmatch(r"0|-?[1-9]\d{0,14}", text) for text in texts) else texts


class Incomplete(ValueError):
    """What a code book lacks or has wrong for a column, and its entry so far."""

    def __init__(self, entry: Said, reason: str) -> None:
        super().__init__(f"column {entry['name']!r}: {reason.rstrip('.')}.")
        self.entry = entry


def _entry(name: str, said: Said) -> Said | Incomplete:
    entry: Said = {"name": name}
    try:
        _declare(said, entry)
    except ValueError as error:
        return Incomplete(entry, str(error))
    return entry


def _declare(said: Said, entry: Said) -> None:
    """Fill an entry of a schema file; a ValueError if the code book does not say enough."""
    if "error" in said:
        raise ValueError(said["error"])
    kind = entry["type"] = _kind(said)
    missing = said.get("missing_codes", [])
    levels = [(code, label) for code, label in said.get("levels", ()) if str(code) not in map(str, missing)]
    if missing:
        entry["missing_codes"] = [code for each in missing for code in _codes([each])]
    elif "missing" in said:
        if not isinstance(said["missing"], bool):
            raise ValueError(f"'missing' is yes or no; got {said['missing']!r}. Codes belong to 'missing codes'")
        entry["missing"] = said["missing"]
    entry |= {key: str(said[key]) for key in ("decimal", "thousands", "outside", "transform") if key in said}
    if kind in ("categorical", "binary"):
        entry |= _levels(levels)
    elif kind == "date":
        entry |= _of_date(said)
        entry |= _bounds(said, {"lower": "first", "upper": "last"}, _date)
    else:
        entry |= _of_number(said)
        entry |= _bounds(said, {"lower": "lower", "upper": "upper"}, _number)
        _check_labelled(levels, entry["lower"], entry["upper"])


def _kind(said: Said) -> str:
    """Return the type: what the code book says, or what levels or the format of a date leave no doubt of."""
    word = str(said.get("type", "")).strip().casefold()
    if word:
        if word not in _TYPE_OF:
            raise ValueError(f"its type must be one of {sorted(_TYPES)}; got {said['type']!r}")
        return _TYPE_OF[word]
    missing = list(map(str, said.get("missing_codes", ())))
    codes = [code for code, _ in said.get("levels", ()) if str(code) not in missing]
    if codes and not {"lower", "upper"} & set(said):
        return "binary" if len(codes) == 2 else "categorical"
    if "%" in _strptime(str(said.get("format", ""))):
        return "date"
    raise ValueError(f"it needs a type of {sorted(_TYPES)}")


def _levels(levels: Sequence[tuple[Any, Any]]) -> Said:
    if not levels:
        raise ValueError("it needs levels, from public knowledge and never from the rows")
    codes = _codes([code for code, _ in levels])
    if all(label is None for _, label in levels):
        return {"levels": codes}
    labels = [str(code if label is None else label) for code, (_, label) in zip(codes, levels, strict=True)]
    return {"levels": labels, "level_codes": codes}


def _bounds(said: Said, names: Mapping[str, str], read: Callable[[Any], Any]) -> Said:
    if absent := [name for key, name in names.items() if key not in said]:
        raise ValueError(f"it needs {' and '.join(absent)}, from public knowledge and never from the rows")
    return {name: read(said[key]) for key, name in names.items()}


def _number(cell: Any) -> float:
    found = _whole(PLAIN_NUMBER.number(cell))
    if isinstance(cell, bool) or found != found:
        raise ValueError(f"bounds and heaps must be numbers; got {cell!r}")
    return found  # type: ignore[no-any-return]


def _date(cell: Any) -> str:
    return cell.date().isoformat() if isinstance(cell, datetime.datetime) else str(cell).strip()


def _of_date(said: Said) -> Said:
    """Return unit and format of dates."""
    found = {} if "unit" not in said else {"unit": str(said["unit"]).strip().casefold().removesuffix("s")}
    found |= {} if "numbers" not in said else {"numbers": str(said["numbers"])}
    return found if "format" not in said else found | {"format": _strptime(str(said["format"]))}


def _strptime(format: str) -> str:
    """Return a format such as "DD.MM.YYYY" in the form of strptime."""
    if "%" in format:
        return format
    for word, part in (("YYYY", "%Y"), ("YY", "%y"), ("MM", "%m"), ("DD", "%d")):
        format = re.sub(word, part, format, flags=re.IGNORECASE)
    return format


def _of_number(said: Said) -> Said:
    """Return heaps, and symbols that may stand next to numbers: the unit is one."""
    given = [*_listed(said.get("symbols", ())), *([str(said["unit"])] if "unit" in said else [])]
    symbols = [each for each in map(str, given) if not any(character in "0123456789+-.," for character in each)]
    heaps = [_number(each) for each in _listed(said.get("heaps", ()))]
    return ({"symbols": symbols} if symbols else {}) | ({"heaps": heaps} if heaps else {})


def _check_labelled(levels: Sequence[tuple[Any, Any]], lower: float, upper: float) -> None:
    """Refuse labels of codes that are no values: they would be moved to a bound."""
    beyond = [code for code, _ in levels if not lower <= PLAIN_NUMBER.number(code) <= upper]
    if beyond:
        raise ValueError(
            f"its codes {beyond} have labels and are beyond its bounds. Add them to the missing codes, or extend the "
            f"bounds"
        )


def _of_metadata(path: Path) -> dict[str, Said]:
    """Return what the metadata of a file of SPSS, Stata or SAS say; no row is read."""
    ending = path.suffix.lower()
    _, metadata = read_statistical(path, metadataonly=True)
    written = formats(metadata)
    return {name: _of_variable(name, metadata, written.get(name, ""), ending) for name in metadata.column_names}


def _of_variable(name: str, metadata: Any, written: str, ending: str) -> Said:
    """Return what metadata say of a variable. Labels make levels, unless SPSS calls the variable a scale."""
    labelled = metadata.variable_value_labels.get(name, {})
    ranges = metadata.missing_ranges.get(name, []) if ending in SPSS else []
    stored = metadata.readstat_variable_types.get(name)
    said: Said = {"missing": True} if ranges else {}
    if missing := [*_listed_codes(ranges), *(code for code in labelled if is_missing(code, ranges))]:
        said["missing_codes"] = list(dict.fromkeys(map(_whole, missing)))
    if labelled:
        said["levels"] = [(_whole(code), label) for code, label in labelled.items()]
    period = next((key for key in _PERIODS if written.startswith(key)), None)
    if written.startswith(_OTHER_PERIODS):
        said["error"] = f"numbers of the format {written.lower()!r} cannot be read. Convert them to dates, or drop it"
    elif period:
        said |= {"type": "date", **_PERIODS[period]}
    elif counted_from(written, ending):
        said["type"] = "date"
    elif stored == "string":
        said |= {} if labelled else {"type": "categorical"}
    elif not labelled or metadata.variable_measure.get(name) == "scale":
        is_whole = stored in ("int8", "int16", "int32") or re.fullmatch(r"F\d+(\.0)?", written)
        said["type"] = "integer" if is_whole else "real"
    return said


def _listed_codes(ranges: list[dict[str, Any]]) -> list[Any]:
    """Return the codes of ranges of missing values, as far as they can be listed."""
    codes: list[Any] = []
    for each in ranges:
        low, high = each["lo"], each["hi"]
        if isinstance(low, str) or low == high:
            codes.append(low)
        elif high - low < _MOST_CODES:
            codes += range(math.ceil(low), math.floor(high) + 1)
    return codes
