"""What a planted defect is; see `planted_defects.py`."""

from __future__ import annotations

from typing import NamedTuple


class Edit(NamedTuple):
    """Text in a file of the package, and what a defect puts in its place."""

    file: str
    find: str
    put: str
    times: int = 1


class Defect(NamedTuple):
    """A defect and the tests that concern it."""

    name: str
    edits: tuple[Edit, ...]
    tests: tuple[str, ...]


DEFECTS: list[Defect] = []


def plant(file: str, name: str, find: str, put: str, *tests: str, times: int = 1, more: tuple[Edit, ...] = ()) -> None:
    """Add a defect to the list."""
    DEFECTS.append(Defect(name, (Edit(file, find, put, times), *more), tests))
