"""Watch private tables: what a ledger had charged at each look at a private row."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any
from unittest.mock import patch

from iwbayes.curator.privacy.ledger import Ledger
from iwbayes.release.statement import Event
from iwbayes.tables import PrivateTable

#: Everything of a private table that depends on its rows. The number of users is public, and is taken from its slot.
_PRIVATE = ("frame", "map_blocks", "sum_blocks", "users", "rows_of_users")


@contextmanager
def looks_at_rows(ledger: Ledger) -> Iterator[list[tuple[Event, ...]]]:
    """Yield a list of the ledger's events at each look at the rows of any private table, in order."""
    seen: list[tuple[Event, ...]] = []
    counting: list[bool] = []

    def watched(look: Any) -> Any:
        @wraps(look)
        def found(self: PrivateTable, *arguments: Any) -> Any:
            if not counting:
                seen.append(ledger.events)
            return look(self, *arguments)

        return found

    def number_of_users(self: PrivateTable) -> int:
        counting.append(True)
        try:
            return n_users.__get__(self)
        finally:
            counting.pop()

    n_users = PrivateTable.n_users
    patches = [patch.object(PrivateTable, "n_users", property(number_of_users))]
    for name in _PRIVATE:
        look = getattr(PrivateTable, name)
        spy = property(watched(look.fget)) if isinstance(look, property) else watched(look)
        patches.append(patch.object(PrivateTable, name, spy))
    for one in patches:
        one.start()
    try:
        yield seen
    finally:
        for one in patches:
            one.stop()
