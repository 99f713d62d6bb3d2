"""Audit a whole release: what `publish` loses between two simulated tables, exactly, by a replay of its noise.

For curators and reviewers. `audit` bounds the epsilon of one algorithm from below, by many runs. A release is several
uses of the private rows, each chosen after the ones before it, and two runs say all about it: the first is recorded,
the second works on the other table and is handed the recorded outcomes in place of noise. Whatever is public (network,
features, synthetic rows, events) is then the same in both. What is left of the difference between the tables is what
noise was added to, and each use has lost exactly what `losses.py` says. The losses are priced as the ledger prices
charges, and held against the statement.

All that is released must be the same, byte by byte: what differs has found its way past the noise. And the second run
must ask for the same noise, in the same order, at the same scales: a scale that follows the rows tells of them.

The noise source is taken at its word: whether it draws noise of the scale that it is asked for is for `audit` to see.
An audit can refute a statement and never proves one. Uses compose by what they lose at worst after any outcomes: a loss
beyond the charge is a defect whatever the outcomes were; a loss within it says that these tables found none.
"""

from __future__ import annotations

import math
import secrets
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from iwbayes.curator.auditing.audit import check_neighbours, check_simulated
from iwbayes.curator.auditing.losses import EXACT, Loss
from iwbayes.curator.auditing.replay import Publisher, ReleaseRun, price_of_losses
from iwbayes.curator.privacy.accounting import check_budget
from iwbayes.curator.privacy.noise import NoiseSource, SeededNoise
from iwbayes.curator.publish import publish
from iwbayes.release import Release
from iwbayes.statement import ROW_ADJACENCIES, Adjacency, PrivacyStatement
from iwbayes.tables import PrivateTable, SyntheticTable

#: Losses may pass charges by this relative amount, which is rounding.
ROUNDING = 1e-9


@dataclass(frozen=True)
class ReleaseAudit:
    """What a replay of a release found.

    Parameters
    ----------
    epsilon : float
        What was lost between the two tables, at the statement's delta; infinite where something else than noisy values
        differs.
    statement : PrivacyStatement
        Of the release: what it claims.
    losses : tuple of Loss
        What each use has lost, and what was charged for it: mu for Gaussian noise, else epsilon.
    departures : tuple of str
        What differs on the second table although all outcomes of the noise are the same.
    """

    epsilon: float
    statement: PrivacyStatement
    losses: tuple[Loss, ...]
    departures: tuple[str, ...] = ()

    @property
    def ratio(self) -> float:
        """What was lost over what is stated; near 1 where the tables are as bad as any."""
        stated = self.statement.epsilon
        return self.epsilon / stated if stated > 0 else math.inf if self.epsilon > 0 else 0.0

    @property
    def passed(self) -> bool:
        """Whether no use lost more than its charge, nor all together, and nothing else differs; it proves nothing."""
        within = all(loss.share <= 1 + ROUNDING for loss in self.losses)
        return within and self.ratio <= 1 + ROUNDING and not self.departures

    def __str__(self) -> str:
        """Say what was found, and what it means."""
        stated = self.statement
        rows = defaultdict(list)
        for loss in self.losses:
            rows[loss.event].append(loss)
        lines = [
            "Audit of a release by replay",
            f"  stated: epsilon {stated.epsilon:.4g} at delta {stated.delta:.3g} under {stated.adjacency}",
            f"  lost between the two tables: epsilon {self.epsilon:.4g}, {self.ratio:.3f} of what is stated",
            f"  {'use':<31}{'uses':>5}  {'':<8}{'charged':>10}{'lost':>10}{'share':>8}",
        ]
        for event, found in rows.items():
            worst = max(found, key=lambda loss: loss.found)
            label = event.label if len(event.label) <= 30 else event.label[:27] + "..."
            amounts = f"{worst.charged:>10.4g}{worst.found:>10.4g}{worst.share:>8.3f}"
            lines.append(f"  {label:<31}{len(found):>5}  {worst.measure:<8}{amounts}")
        lines += [f"  differs: {departure}"[:88] for departure in self.departures]
        if self.passed:
            verdict = "Passed: no use lost more than was charged. That is no proof: other tables may\n  lose more."
        elif self.departures:
            verdict = "FAILED: the tables are told apart although all outcomes of the noise are the same."
        else:
            verdict = "FAILED: more was lost than was charged."
        return "\n".join([*lines, f"  {verdict}"])


def audit_release(
    first: SyntheticTable,
    second: SyntheticTable | Callable[[Release], SyntheticTable],
    *,
    epsilon: float,
    delta: float,
    adjacency: Adjacency = "replace-one",
    users: ArrayLike | tuple[ArrayLike, ArrayLike] | None = None,
    release: Publisher | None = None,
    noise: Callable[[int], NoiseSource] = SeededNoise,
    random_seed: int | None = None,
    **settings: Any,
) -> ReleaseAudit:
    """Find what a whole release loses between two neighbouring simulated tables, exactly.

    Parameters
    ----------
    first, second : SyntheticTable
        Simulated rows that take the place of the private ones, under one schema. Under "replace-one" they differ in one
        row, at the same place; under "zero-out" ``second`` lacks one row of ``first``, which is the null row. With
        users all rows of one user differ; where that user owns more rows in one table, they stand last. ``second`` may
        be a function of what was released on ``first``: an adversary chooses the worst row when the features are known.
    epsilon, delta : float
        Budget of the release, or of the ledger of ``release``.
    adjacency : {"replace-one", "zero-out"}
        Of the ledger; "replace-user" with users.
    users : array_like, shape (row,), or a pair of them, optional
        Owners of the rows, of both tables or of either.
    release : callable, optional
        What is audited: from a private table and its ledger to a `Release`, or to several. By default `publish` with
        the given settings. Users need it, since `bound_contributions` comes first.
    noise : callable
        From a seed to the noise source of the first run, which is taken to draw what it is asked for.
    random_seed : int, optional
        Of the noise, and of `publish`.
    **settings
        Of `publish`: ``n_synthetic``, ``generator``, ``weights``, ``share``.

    Returns
    -------
    ReleaseAudit

    Raises
    ------
    TypeError
        When a table is private: what an audit returns depends on its rows without noise.
    ValueError
        When the tables are no neighbours; when the release draws public randomness without a seed; or when it adds
        noise to gradient steps or to an objective, whose loss no replay shows: use `audit`.

    Notes
    -----
    Secret orders of rows, by which `bound_contributions` keeps rows, are alike on both tables as far as these are:
    whatever is averaged over secret randomness loses no more than at worst. Selections, and all else that is counted in
    epsilon, count as what they lose at worst over their outcomes.

    Examples
    --------
    >>> import iwbayes as iw
    >>> first, second = iw.validation.opposite_corners(iw.Schema(iw.Binary("y"), iw.Binary("z")), 50)
    >>> print(audit_release(first, second, epsilon=1.0, delta=1e-6, n_synthetic=100, random_seed=1))
    Audit of a release by replay
      stated: epsilon 0.9995 at delta 1e-06 under replace-one
      lost between the two tables: epsilon 0.56..., 0.56... of what is stated
      use                             uses             charged      lost   share
      BayesNet structure                 1  epsilon    0.03885         0   0.000
      BayesNet tables                    1  mu         0.08882   0.08882   1.000
      TiltWeights                        1  mu          0.2161    0.107...   0.49...
      Passed: no use lost more than was charged. That is no proof: other tables may
      lose more.
    """
    epsilon, delta = check_budget(epsilon, delta)
    owners = _owners(users)
    if adjacency not in ROW_ADJACENCIES and not (owners and adjacency == "replace-user"):
        raise ValueError(f"adjacency must be one of {list(ROW_ADJACENCIES)}; got {adjacency!r}. For users pass users=.")
    adjacency = adjacency if owners is None else "replace-user"
    publisher = _publisher(release, owners, epsilon, delta, settings, random_seed)
    run = ReleaseRun(publisher, epsilon, delta, adjacency, noise)
    seed = secrets.randbits(63) if random_seed is None else random_seed
    check_simulated(first)
    one = run.play(_private(first, owners and owners[0], first), seed)
    if callable(second):
        second = second(one.releases[0])
    check_simulated(first, second)
    _check_pair(first, second, adjacency, owners)
    for event in one.ledger.events:
        if event.mechanism not in (*EXACT, "declared"):
            raise ValueError(
                f"{event.label}: what {event.mechanism} loses cannot be read off its draws. Use audit() for the part."
            )
    if run.compare(one, _private(first, owners and owners[0], first), seed)[1]:
        raise ValueError(
            "the same rows and the same outcomes of the noise gave another release: it draws public randomness of its "
            "own. Give random_seed= to publish, generator and weights."
        )
    found, departures = run.compare(one, _private(second, owners and owners[1], first), seed)
    lost = math.inf if departures else price_of_losses(one.ledger, found)
    return ReleaseAudit(lost, one.ledger.statement(), tuple(found), departures)


def _publisher(
    release: Publisher | None, users: Any, epsilon: float, delta: float, settings: dict[str, Any], seed: int | None
) -> Publisher:
    for name in ("ledger", "private", "progressbar"):
        if name in settings:
            raise TypeError(f"{name} is the audit's own; leave it out.")
    if release is not None:
        if settings:
            raise TypeError(f"settings of publish belong into release=, which is given; got {sorted(settings)}.")
        return release
    if users is not None:
        raise ValueError("a release of users' rows bounds contributions first. Give both steps as release=.")
    if isinstance(seed, np.random.Generator):
        raise TypeError("random_seed must be a whole number: each run begins with it anew.")
    options = {**settings, "random_seed": 0 if seed is None else seed, "progressbar": False}
    return lambda private, ledger: publish(private, epsilon=epsilon, delta=delta, ledger=ledger, **options)


def _owners(users: Any) -> tuple[NDArray[Any], NDArray[Any]] | None:
    if users is None:
        return None
    pair = users if isinstance(users, tuple) and len(users) == 2 and np.ndim(users[0]) == 1 else (users, users)
    return np.asarray(pair[0]), np.asarray(pair[1])


def _private(table: SyntheticTable, users: NDArray[Any] | None, first: SyntheticTable) -> PrivateTable:
    """Put simulated rows in the place of private ones; a null row is left out, but for the number of rows."""
    if users is not None:
        if users.shape != (len(table),):
            raise ValueError(f"users must have shape ({len(table)},), one a row; got {users.shape}.")
        name = "user"
        while name in table.schema.names:
            name += "_"
        return PrivateTable(table.frame.assign(**{name: users}), table.schema, user=name)
    private = PrivateTable(table.frame, table.schema)
    if len(table) < len(first):
        private._set(_n_private=len(first))
    return private


def _check_pair(first: SyntheticTable, second: SyntheticTable, adjacency: str, owners: Any) -> None:
    if adjacency == "replace-one":
        check_neighbours(first, second)
        return
    one, two = (
        list(table.frame.astype(object).where(table.frame.notna(), None).itertuples(index=False))
        for table in (first, second)
    )
    if adjacency == "zero-out":
        index = next((p for p, rows in enumerate(zip(one, two, strict=False)) if rows[0] != rows[1]), len(two))
        if one[:index] + one[index + 1 :] != two:
            raise ValueError("under 'zero-out' the second table lacks one row of the first, and is the same else.")
        return
    shared = min(len(one), len(two))
    users = {user for side in owners for user in side[shared:]}
    for index in range(shared):
        if one[index] != two[index] or owners[0][index] != owners[1][index]:
            users |= {owners[0][index], owners[1][index]}
    if len(users) != 1 or set(owners[0]) != set(owners[1]):
        raise ValueError(
            "neighbours have the same users and differ in the rows of exactly one, at the same places or the last "
            f"ones; these differ in those of {len(users)}."
        )
