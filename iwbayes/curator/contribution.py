"""Bound the number of rows per person, so that a release protects people and not only single rows."""

from __future__ import annotations

import math
import secrets
from collections.abc import Sequence

import numpy as np

from iwbayes.curator.privacy.accounting import check_budget, gaussian_multiplier
from iwbayes.curator.privacy.ledger import Ledger
from iwbayes.curator.privacy.mechanisms import above_threshold
from iwbayes.curator.protocols import meet
from iwbayes.release.statement import Event
from iwbayes.tables import PrivateTable
from iwbayes.tables.owners import row_keys
from iwbayes.utils import checks

_SECRET = 256  # length of the secret order that gives the rows' keys; there are more than 2**1600 orders
CHOICE_SHARE = 0.5  # of epsilon for choosing the bound; the rest counts the kept rows


def bound_contributions(
    private: PrivateTable,
    ledger: Ledger,
    *,
    epsilon: float,
    grid: Sequence[int],
    threshold: int | None = None,
    name: str = "",
) -> PrivateTable:
    """Keep at most tau rows per user and count them, before `publish`; tau is chosen privately from a public grid.

    Every sensitivity is then multiplied by tau; gradient steps sample users and clip the sum over a user's rows. The
    method is that of Amin, Kulesza, Munoz Medina & Vassilvitskii (ICML 2019); the methods page explains its privacy.

    Parameters
    ----------
    private : PrivateTable
        Table with a user column.
    ledger : Ledger
        Ledger with adjacency "replace-user", charged before any noise is drawn.
    epsilon : float
        Pure epsilon, above 0: half chooses tau, and half counts the rows; all of it if the grid has one value.
    grid : sequence of int
        Increasing candidates for tau, at least 1, chosen without looking at the rows. If none meets the threshold, tau
        is the largest. A small tau drops rows; a large one adds noise.
    threshold : int, optional
        Number of users that may lose rows, at least 0. By default 6 sqrt(p) sigma: p is the number of encoded columns,
        and sigma the noise multiplier of the ledger's whole budget (sqrt(p)/epsilon if its delta is 0).
    name : str, default ""
        Name of this use in the ledger.

    Returns
    -------
    PrivateTable
        The kept rows, in memory grouped by user, and the rows of each user in a secret order. ``rows_per_user`` is tau;
        ``n_private`` the noisy number of rows, between 1 and tau for each user.

    Raises
    ------
    BudgetExceeded
        If epsilon does not fit in the ledger; nothing is drawn.
    TypeError, ValueError
        If an argument is invalid, contributions are bounded already, or the ledger does not protect users; nothing is
        charged.

    Examples
    --------
    >>> import pandas as pd
    >>> visits = pd.DataFrame({"person": ["a", "a", "a", "b", "b", "c"], "cost": [3.0, 4.0, 5.0, 1.0, 2.0, 7.0]})
    >>> private = iw.PrivateTable(visits, iw.Schema(iw.Real("cost", 0, 10)), user="person")
    >>> ledger = iw.Ledger(1.0, 1e-6, adjacency="replace-user")
    >>> bounded = bound_contributions(private, ledger, epsilon=0.1, grid=[2])
    >>> bounded.rows_per_user, 3 <= bounded.n_private <= 6
    (2, True)
    """
    candidates = check_bounding(private, ledger, grid)
    epsilon, _ = check_budget(epsilon, 0.0)
    limit = _default_threshold(private, ledger) if threshold is None else checks.whole("threshold", threshold, 0)
    events = bounding_events(epsilon, len(candidates))
    account = ledger.charge_release(*events, name=name)
    counts = private.rows_of_users
    tau, left = candidates[0], events[-1].epsilon
    if len(candidates) > 1:
        above = np.array([np.count_nonzero(counts > t) for t in candidates], dtype=np.int64)
        budget = {"epsilon": events[0].epsilon, "ledger": account, "label": events[0].label}
        # one user changes the counts between two numbers of rows by one, all in the same direction
        index = above_threshold(-above, threshold=-limit, sensitivity=1, monotone=True, **budget)  # type: ignore[arg-type]
        tau = candidates[-1 if index is None else index]
    total = np.array([np.minimum(counts, tau).sum()], dtype=np.int64)
    noise = account.charge(events[-1])
    noisy = int(noise.laplace(total, math.nextafter(tau / left, math.inf))[0])
    keys = row_keys(noise.permutation(_SECRET))
    source = f"bounded {secrets.token_hex(16)}"
    ledger._register(source)
    n_private = int(np.clip(noisy, private.n_users, private.n_users * tau))
    return private._bounded_by(keys, rows_per_user=tau, n_private=n_private, source=source)


def bounding_events(epsilon: float, n_candidates: int) -> tuple[Event, ...]:
    """Return the events that `bound_contributions` will charge for a grid with this number of candidates."""
    if n_candidates == 1:
        return (Event("number of rows", "laplace", epsilon),)
    choice = Event("bound on contributions", "above-threshold", CHOICE_SHARE * epsilon)
    return choice, Event("number of rows", "laplace", (1 - CHOICE_SHARE) * epsilon)


def check_bounding(private: PrivateTable, ledger: Ledger, grid: Sequence[int]) -> list[int]:
    """Check table, ledger and grid before anything is charged; return the grid as int."""
    if not isinstance(private, PrivateTable):
        raise TypeError(
            f"bound_contributions takes a PrivateTable; got {type(private).__name__}. Use PrivateTable(frame, schema, "
            f"user=...)."
        )
    if not private.of_users:
        raise ValueError("the table has no user column. Use PrivateTable(frame, schema, user=...).")
    if private.rows_per_user is not None:
        raise ValueError("contributions of this table are bounded already. Pass the original table.")
    if not isinstance(ledger, Ledger):
        raise TypeError(
            f"ledger must be an iwbayes.Ledger; got {type(ledger).__name__}. Use Ledger(..., adjacency='replace-user')."
        )
    if ledger.adjacency != "replace-user":
        raise ValueError(
            f"under {ledger.adjacency!r} a ledger protects single rows. Use Ledger(..., adjacency='replace-user')."
        )
    meet(ledger, private)
    return check_grid(grid)


def check_grid(grid: Sequence[int]) -> list[int]:
    """Return the candidates for the bound as int, or raise ValueError if they are not a valid grid."""
    candidates = list(grid)
    whole = all(checks.is_whole(t) and t >= 1 for t in candidates)
    if not candidates or not whole or any(b <= a for a, b in zip(candidates, candidates[1:], strict=False)):
        raise ValueError(
            f"grid must be increasing whole numbers of at least 1; got {candidates!r}. Pass for example (1, 2, 4, 8)."
        )
    return [int(t) for t in candidates]


def _default_threshold(private: PrivateTable, ledger: Ledger) -> int:
    """Return how many users may lose rows, from public quantities (see `bound_contributions`)."""
    p, epsilon, delta = private.schema.n_features, ledger.epsilon, ledger.delta
    if math.isinf(epsilon):
        return 0
    sigma = gaussian_multiplier(epsilon, delta) if delta > 0 else math.sqrt(p) / epsilon
    return math.ceil(6 * math.sqrt(p) * sigma)
