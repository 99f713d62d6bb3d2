"""publish.toml, the file that describes a publication: commands take from it the options that are not given."""

from __future__ import annotations

import datetime
import tomllib
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from iwbayes.cli.output import errors

if TYPE_CHECKING:
    from iwbayes.schema import Schema

#: Keys of the file, and the options that they are. All others are options of the same name.
_OPTIONS = {"input": "table", "models": "for_model", "exports": "export"}
_PATHS = ("input", "schema", "ledger", "output")
_SAME = (
    "epsilon delta n response family design_weight generator mechanism share adjacency allow_large_delta user "
    "rows_per_user replicates drop keep_declared sep encoding sheet on_undeclared n_synthetic"
).split()


@dataclass(frozen=True)
class Publication:
    """What a publish.toml says beyond the options of commands."""

    options: dict[str, Any] = field(default_factory=dict)  # values by the names of parameters
    about: dict[str, str] = field(default_factory=dict)
    columns: dict[str, Any] | None = None  # what a code book lacks

    @property
    def left_out(self) -> list[str]:
        """Columns of the file that are not columns of the schema."""
        given = self.options.get("drop", []), self.options.get("user", [])
        return [name for names in given for name in ([names] if isinstance(names, str) else names)]

    @classmethod
    def read(cls, path: Path) -> Publication:
        """Read a file; a ValueError or OSError says what is wrong. Its paths are relative to its folder."""
        from iwbayes.release.release import ABOUT

        with open(path, "rb") as file:
            content = file.read()
        try:
            given = tomllib.loads(content.decode("utf-8-sig"))
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{path} is not valid TOML: {error}.") from None
        known = [*_PATHS, "columns", *ABOUT, *(key for key in _OPTIONS if key not in _PATHS), *_SAME]
        if unknown := [key for key in given if key not in known]:
            near = get_close_matches(unknown[0], known, 1)
            hint = f" Did you mean {near[0]!r}?" if near else " See the page on the command line for its keys."
            hint = " It seems to be a schema file: pass it as --schema." if "column" in given else hint
            raise ValueError(f"{path} has the unknown keys {unknown}.{hint}")
        given |= {"date": str(given["date"])} if isinstance(given.get("date"), datetime.date) else {}
        for key in (*_PATHS, *ABOUT):
            if not isinstance(given.get(key, ""), str):
                raise ValueError(f"{path}: {key} must be text; got {given[key]!r}.")
        if not isinstance(given.get("columns", {}), dict):
            raise ValueError(f"{path}: columns must be a table, such as columns = {{age = [18, 90]}}.")
        options = {
            _OPTIONS.get(key, key): str(path.parent / value) if key in _PATHS else value
            for key, value in given.items()
            if key not in ("columns", *ABOUT)
        }
        if isinstance(grid := options.get("rows_per_user"), list):
            options["rows_per_user"] = ",".join(map(str, grid))
        return cls(options, {key: given[key] for key in ABOUT if key in given}, given.get("columns"))


def take_options(context: typer.Context, path: Path | None) -> Path | None:
    """Take the options of a command from a publish.toml, if its argument is one; return the input."""
    known = {parameter.name: parameter for parameter in context.command.params}
    if path is None or path.suffix.lower() != ".toml":
        if path is not None and "table" not in known:
            raise typer.BadParameter("it must be a publish.toml; this command reads no rows.")
        context.obj = Publication()
        return path
    with errors(False):
        found = Publication.read(path)
        context.default_map = {}
        for name, value in found.options.items():
            if name not in known:
                continue
            several, is_list = getattr(known[name], "multiple", False), isinstance(value, list)
            if is_list and not several:
                raise ValueError(f"{path}: {name} must be one value; got a list.")
            context.default_map[name] = [value] if several and not is_list else value
        context.obj = found
        if "table" in known and "table" not in found.options:
            raise ValueError(f"{path} has no input: the file with the private rows.")
    table = found.options.get("table")
    return None if table is None else Path(table)


def schema_of(path: Path, columns: dict[str, Any] | None = None, drop: list[str] | None = None) -> Schema:
    """Return the schema of a schema file, or of a code book if its name does not end in .toml."""
    from iwbayes.schema import Schema

    if path.suffix.lower() != ".toml":
        return Schema.from_codebook(path, columns=columns, drop=drop or [])
    if columns:
        raise ValueError("columns complete a code book, and --schema is a schema file. Change that file instead.")
    return Schema.from_toml(path)
