"""Bound the rows that a person owns, so that what is released protects people and not single rows."""

from __future__ import annotations

import math
import secrets
from collections.abc import Sequence

import numpy as np

from iwbayes.curator.plan import check_whole
from iwbayes.curator.privacy.accounting import check_budget, gaussian_multiplier
from iwbayes.curator.privacy.ledger import Ledger
from iwbayes.curator.privacy.mechanisms import above_threshold
from iwbayes.statement import Event
from iwbayes.tables import PrivateTable
from iwbayes.tables.owners import row_keys

#: Places in the secret order that the rows' keys follow from: there are more than 2**1600 orders.
_SECRET = 256
#: Part of epsilon that chooses the bound; the rest counts the rows that are kept.
CHOICE_SHARE = 0.5


def bound_contributions(
    private: PrivateTable, ledger: Ledger, *, epsilon: float, grid: Sequence[int], threshold: int | None = None
) -> PrivateTable:
    """Keep at most tau rows of each user, tau chosen privately from a public grid, and count what is kept.

    Every sensitivity of what is fitted to the result is tau times that of one row; gradient steps sample users and
    clip the sum over a user's rows. A small tau drops rows, a large one costs noise.

    Parameters
    ----------
    private : PrivateTable
        With a user column.
    ledger : Ledger
        With adjacency "replace-user"; it is charged before any noise is drawn.
    epsilon : float
        Half of it chooses tau, half counts the rows; all of it counts when the grid has one value. Pure.
    grid : sequence of int
        Candidates for tau, increasing, at least 1, chosen without looking at the rows. The largest is taken when none
        does.
    threshold : int, optional
        Number of users that may lose rows. By default 6 sqrt(p) sigma, p the number of encoded columns and sigma the
        noise multiplier of the ledger's whole budget (sqrt(p)/epsilon where its delta is 0): about where one more row
        for everybody adds as much noise to the mean of p whitened columns, of which rows are clipped at 1.3 sqrt(p), as
        it takes away in bias, when those who own many rows are .4 standard deviations away from the others.

    Returns
    -------
    PrivateTable
        The kept rows, in memory grouped by user, those of each in a secret order; ``rows_per_user`` is tau,
        ``n_private`` the noisy number of rows, at least one and at most tau for each user.

    Raises
    ------
    BudgetExceeded
        When epsilon does not fit in the ledger; nothing is drawn.
    ValueError
        When the table has no users or is bounded already, the ledger does not protect users, or the grid or the
        threshold are none; nothing is charged.

    Notes
    -----
    Tau is the first t of the grid with #{users with more than t rows} + Laplace(2/e) <= threshold + Laplace(2/e), e its
    part of epsilon. Replacing a user who owns k rows by one who owns k' changes the numbers for the t between k and k'
    by one, all in the same direction, so that the queries are monotone (see `above_threshold`). Each row has a secret
    random key (see `row_keys`), and those of a user with the smallest keys are kept, over all partitions of a Dask
    frame together: which ones follows from that user's rows alone. Replacing a user changes their number by at most
    tau. The number of users is public.

    What is published of the result protects people; calibrated intervals for it are out of scope, see `publish_users`.

    References
    ----------
    Amin, Kulesza, Munoz Medina & Vassilvitskii (ICML 2019).

    Examples
    --------
    >>> import pandas as pd
    >>> import iwbayes as iw
    >>> visits = pd.DataFrame({"person": ["a", "a", "a", "b", "b", "c"], "cost": [3.0, 4.0, 5.0, 1.0, 2.0, 7.0]})
    >>> private = iw.PrivateTable(visits, iw.Schema(iw.Real("cost", 0, 10)), user="person")
    >>> ledger = iw.Ledger(1.0, 1e-6, adjacency="replace-user")
    >>> bounded = bound_contributions(private, ledger, epsilon=0.1, grid=[2])
    >>> bounded.rows_per_user, 3 <= bounded.n_private <= 6
    (2, True)
    """
    candidates = check_bounding(private, ledger, grid)
    epsilon, _ = check_budget(epsilon, 0.0)
    limit = _default_threshold(private, ledger) if threshold is None else check_whole("threshold", threshold, 0)
    events = bounding_events(epsilon, len(candidates))
    account = ledger.charge_release(*events)
    counts = private.rows_of_users
    tau, left = candidates[0], events[-1].epsilon
    if len(candidates) > 1:
        above = np.array([np.count_nonzero(counts > t) for t in candidates], dtype=np.int64)
        budget = {"epsilon": events[0].epsilon, "ledger": account, "label": events[0].label}
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
    """List what `bound_contributions` will charge for a grid of so many candidates."""
    if n_candidates == 1:
        return (Event("number of rows", "laplace", epsilon),)
    choice = Event("bound on contributions", "above-threshold", CHOICE_SHARE * epsilon)
    return choice, Event("number of rows", "laplace", (1 - CHOICE_SHARE) * epsilon)


def check_bounding(private: PrivateTable, ledger: Ledger, grid: Sequence[int]) -> list[int]:
    """Refuse a table without users, a ledger of rows, or no grid; return the grid as numbers."""
    if not isinstance(private, PrivateTable):
        raise TypeError(f"bound_contributions takes a PrivateTable; got {type(private).__name__}.")
    if not private.of_users:
        raise ValueError("the table names no users. Use PrivateTable(frame, schema, user=...).")
    if private.rows_per_user is not None:
        raise ValueError("contributions are bounded already. Start from the table as it was read.")
    if not isinstance(ledger, Ledger):
        raise TypeError(f"ledger must be an iwbayes.Ledger; got {type(ledger).__name__}.")
    if ledger.adjacency != "replace-user":
        raise ValueError(
            f"under {ledger.adjacency!r} a ledger protects single rows. Use Ledger(..., adjacency='replace-user')."
        )
    return check_grid(grid)


def check_grid(grid: Sequence[int]) -> list[int]:
    """Return candidates for the bound as numbers; refuse what is no grid."""
    candidates = list(grid)
    whole = all(isinstance(t, int | np.integer) and not isinstance(t, bool) and t >= 1 for t in candidates)
    if not candidates or not whole or any(b <= a for a, b in zip(candidates, candidates[1:], strict=False)):
        raise ValueError(f"grid must be increasing whole numbers of at least 1; got {candidates!r}.")
    return [int(t) for t in candidates]


def _default_threshold(private: PrivateTable, ledger: Ledger) -> int:
    """Choose how many users may lose rows, from public quantities (see `bound_contributions`)."""
    p, epsilon, delta = private.schema.n_features, ledger.epsilon, ledger.delta
    if math.isinf(epsilon):
        return 0
    sigma = gaussian_multiplier(epsilon, delta) if delta > 0 else math.sqrt(p) / epsilon
    return math.ceil(6 * math.sqrt(p) * sigma)
