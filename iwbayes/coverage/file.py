"""Results of a study on disk, one line a replication: what is there survives whatever stops the study."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

_FORMAT = 1


class StudyFile:
    """JSON lines: the settings of the study, then one finished replication a line."""

    def __init__(self, path: Path, settings: dict[str, Any]) -> None:
        self._path, self._settings = path, settings

    def read(self) -> dict[int, dict[str, Any]]:
        """Finished replications by their number; a last line that was cut off is taken away.

        A file of no study, or of one with other settings, is refused.
        """
        if not self._path.exists() or self._path.stat().st_size == 0:
            self.append({"format": _FORMAT, "settings": self._settings})
            return {}
        text = self._path.read_text(encoding="utf-8")
        whole = text[: text.rfind("\n") + 1]
        if whole != text:
            self._path.write_text(whole, encoding="utf-8")
        try:
            header, *records = (json.loads(line) for line in whole.splitlines())
            self._check(header)
            return {int(record["replication"]): record for record in records}
        except (json.JSONDecodeError, KeyError, TypeError) as error:
            raise ValueError(f"{self._path} holds no results of a coverage study. Choose another file.") from error

    def append(self, record: dict[str, Any]) -> None:
        """Add a line, such as a finished replication."""
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")

    def _check(self, header: dict[str, Any]) -> None:
        found = header["settings"]
        differing = [
            f"{name}: {found.get(name)!r} there, {value!r} here"
            for name, value in self._settings.items()
            if found.get(name) != value
        ]
        if header["format"] != _FORMAT or differing:
            raise ValueError(
                f"{self._path} holds another study ({'; '.join(differing) or 'an older format'}). Choose another file."
            )
