"""Audit a whole release: compute its exact privacy loss between two simulated tables, by replaying its noise.

Two runs are enough: the first is recorded, and the second works on the other table and receives the recorded outcomes
instead of noise. Everything public (network, features, synthetic rows, events) is then the same in both. Only the
values to which noise is added differ, and `losses.py` computes the exact loss of each use from them. The ledger's rules
compute the cost of the losses, which is compared with the statement.

Both releases must be the same, byte by byte: a part that differs has escaped the noise. The second run must also
request the same noise, in the same order, at the same scales, because a scale that depends on the rows reveals them.
"""

from __future__ import annotations

import math
import secrets
import warnings
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from iwbayes.curator.auditing.audit import check_neighbours, check_simulated
from iwbayes.curator.auditing.losses import EXACT, Loss, claim, losses
from iwbayes.curator.auditing.recorder import Departed, Recorder, RecordingLedger
from iwbayes.curator.privacy.accounting import check_budget
from iwbayes.curator.privacy.ledger import Ledger
from iwbayes.curator.privacy.noise import NoiseSource, SeededNoise
from iwbayes.curator.publish import publish
from iwbayes.release import Release
from iwbayes.release.statement import ROW_ADJACENCIES, Adjacency, Event, PrivacyStatement, count_uses
from iwbayes.tables import PrivateTable, SyntheticTable

ROUNDING = 1e-9  # relative amount by which losses may exceed charges, because of rounding

Publisher = Callable[[PrivateTable, Ledger], "Release | Sequence[Release]"]


@dataclass(frozen=True)
class ReleaseAudit:
    """Result of `audit_release`: the privacy loss of a release between two tables, and the statement that limits it."""

    #: Privacy loss between the two tables, at the statement's delta; infinite if ``departures`` is not empty.
    epsilon: float
    #: The guarantee that the release claims.
    statement: PrivacyStatement
    #: Loss and charge of each use of the private rows: mu for Gaussian noise, else epsilon.
    losses: tuple[Loss, ...]
    #: Parts of the second run that differ from the first, although all outcomes of the noise are the same.
    departures: tuple[str, ...] = ()

    @property
    def ratio(self) -> float:
        """Loss divided by the stated epsilon; close to 1 if these tables are a worst case."""
        stated = self.statement.epsilon
        return self.epsilon / stated if stated > 0 else math.inf if self.epsilon > 0 else 0.0

    @property
    def passed(self) -> bool:
        """Whether no loss, single or joint, exceeds its charge, and nothing else differs. True is not a proof."""
        within = all(loss.share <= 1 + ROUNDING for loss in self.losses)
        return within and self.ratio <= 1 + ROUNDING and not self.departures

    def __str__(self) -> str:
        stated = self.statement
        rows = defaultdict(list)
        for loss in self.losses:
            rows[loss.event].append(loss)
        lines = [
            "Audit of a release by replay",
            f"  stated: epsilon {stated.epsilon:.4g} at delta {stated.delta:.3g} under {stated.adjacency}",
            f"  lost between the two tables: epsilon {self.epsilon:.4g}, {self.ratio:.3f} of the stated epsilon",
            f"  {'use':<31}{'uses':>5}  {'':<8}{'charged':>10}{'lost':>10}{'share':>8}",
        ]
        for event, found in rows.items():
            worst = max(found, key=lambda loss: loss.found)
            label = event.label if len(event.label) <= 30 else event.label[:27] + "..."
            amounts = f"{worst.charged:>10.4g}{worst.found:>10.4g}{worst.share:>8.3f}"
            lines.append(f"  {label:<31}{len(found):>5}  {worst.measure:<8}{amounts}")
        lines += [f"  differs: {departure}"[:88] for departure in self.departures]
        if self.passed:
            verdict = "Passed: no use lost more than its charge. This is not a proof: other tables may\n  lose more."
        elif self.departures:
            verdict = "FAILED: the outputs differ although all outcomes of the noise are the same."
        else:
            verdict = "FAILED: the loss exceeds the charge."
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
    """Compute the exact privacy loss of a whole release between two neighbouring simulated tables.

    It trusts the noise source; `audit` checks that it draws noise of the requested scale. A loss above the charge is a
    defect, whatever the outcomes were; a loss within it only means that these tables show no defect. Selections, and
    all losses in units of epsilon, count with their worst loss over the outcomes. Rows that both tables share have one
    secret order in `bound_contributions`: an average over orders loses no more than the worst one.

    Parameters
    ----------
    first, second : SyntheticTable
        Simulated rows that replace the private ones, under one schema. Under "replace-one" they differ in one row, at
        the same index. Under "zero-out" ``second`` lacks one row of ``first``, the null row. With ``users`` all rows of
        one user differ; if it owns more rows in one table, the additional ones are last. ``second`` may be a function
        of the release on ``first``: an adversary who knows the features chooses the worst row.
    epsilon, delta : float
        Budget of the release, or of the ledger that ``release`` gets; epsilon above 0, delta in [0, 1).
    adjacency : {"replace-one", "zero-out"}
        Adjacency of the ledger; always "replace-user" with ``users``.
    users : array_like, shape (row,), or a pair of them, optional
        Owner of each row: one array for both tables, or one for each.
    release : callable, optional
        The release to audit: a function from a private table and its ledger to a `Release`, or to several. By default
        `publish` with the given settings. Needed with ``users``, because `bound_contributions` comes first.
    noise : callable, default SeededNoise
        Function from a seed to the noise source of the first run.
    random_seed : int, optional
        Seed of the noise and of `publish`.
    **settings
        Settings of `publish`: ``n_synthetic``, ``generator``, ``weights``, ``share``.

    Raises
    ------
    TypeError, ValueError
        If a table is private; if the tables are not neighbours; if the release draws public randomness without a seed;
        or if it adds noise to gradient steps or to an objective, whose loss a replay does not show: use `audit` then.

    Examples
    --------
    >>> first, second = iw.validation.opposite_corners(iw.Schema(iw.Binary("y"), iw.Binary("z")), 50)
    >>> print(audit_release(first, second, epsilon=1.0, delta=1e-6, n_synthetic=100, random_seed=1))
    Audit of a release by replay
      stated: epsilon 0.9995 at delta 1e-06 under replace-one
      lost between the two tables: epsilon 0.76..., 0.76... of the stated epsilon
      use                             uses             charged      lost   share
      BayesNet structure                 1  epsilon    0.03885         0   0.000
      BayesNet tables                    1  mu         0.08882   0.08882   1.000
      TiltWeights                        1  mu          0.2161    0.160...   0.74...
      Passed: no use lost more than its charge. This is not a proof: other tables may
      lose more.
    """
    epsilon, delta = check_budget(epsilon, delta)
    owners = _owners(users)
    if adjacency not in ROW_ADJACENCIES and not (owners and adjacency == "replace-user"):
        raise ValueError(
            f"adjacency must be one of {list(ROW_ADJACENCIES)}; got {adjacency!r}. Pass users= to audit user-level "
            f"privacy."
        )
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
                f"{event.label}: a replay does not show the loss of the mechanism {event.mechanism!r}. Use audit() for "
                f"this algorithm."
            )
    if run.replay(one, _private(first, owners and owners[0], first), seed)[1]:
        raise ValueError(
            "the same rows and the same outcomes of the noise gave two different releases, because the release draws "
            "public randomness without a seed. Pass random_seed= to publish, generator and weights."
        )
    two, departures = run.replay(one, _private(second, owners and owners[1], first), seed)
    found = [] if two is None else _all_losses(one, two)
    lost = math.inf if departures else price_of_losses(one.ledger, found)
    return ReleaseAudit(lost, one.ledger.statement(), tuple(found), departures)


def _publisher(
    release: Publisher | None, users: Any, epsilon: float, delta: float, settings: dict[str, Any], seed: int | None
) -> Publisher:
    for name in ("ledger", "private", "progressbar"):
        if name in settings:
            raise TypeError(f"the audit sets {name} itself; got {name}=. Leave it out.")
    if release is not None:
        if settings:
            raise TypeError(
                f"with release= the settings of publish have no effect; got {sorted(settings)}. Use them in release=."
            )
        return release
    if users is not None:
        raise ValueError(
            "a release with users must bound contributions first; got users= without release=. Pass a function that "
            "calls bound_contributions and publish as release=."
        )
    if isinstance(seed, np.random.Generator):
        raise TypeError("random_seed must be a whole number, because each run starts from it; got a Generator.")
    options = {**settings, "random_seed": 0 if seed is None else seed, "progressbar": False}
    return lambda private, ledger: publish(private, epsilon=epsilon, delta=delta, ledger=ledger, **options)


def _owners(users: Any) -> tuple[NDArray[Any], NDArray[Any]] | None:
    if users is None:
        return None
    pair = users if isinstance(users, tuple) and len(users) == 2 and np.ndim(users[0]) == 1 else (users, users)
    return np.asarray(pair[0]), np.asarray(pair[1])


def _private(table: SyntheticTable, users: NDArray[Any] | None, first: SyntheticTable) -> PrivateTable:
    """Make a private table of simulated rows. A null row is left out, but counted in the number of rows."""
    if users is not None:
        if users.shape != (len(table),):
            raise ValueError(f"users must have shape ({len(table)},), one owner per row; got {users.shape}.")
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
            raise ValueError(
                "under 'zero-out' the second table must be the first one without one row; these tables differ more. "
                "Drop exactly one row."
            )
        return
    shared = min(len(one), len(two))
    users = {user for side in owners for user in side[shared:]}
    for index in range(shared):
        if one[index] != two[index] or owners[0][index] != owners[1][index]:
            users |= {owners[0][index], owners[1][index]}
    if len(users) != 1 or set(owners[0]) != set(owners[1]):
        raise ValueError(
            "neighbours must have the same users and differ in the rows of exactly one user, at the same indices or at "
            f"the end; these differ for this many: {len(users)}. Change the rows of one user only."
        )


@dataclass(frozen=True)
class Played:
    """One run."""

    releases: tuple[Release, ...]
    warned: tuple[str, ...]
    recorder: Recorder
    ledger: Ledger


@dataclass(frozen=True)
class ReleaseRun:
    """The release to audit, with the settings that its runs share."""

    publish: Publisher
    epsilon: float
    delta: float
    adjacency: Adjacency
    noise: Callable[[int], NoiseSource]

    def play(self, private: PrivateTable, seed: int, script: Recorder | None = None) -> Played:
        """Run once on a new ledger; a replay shows no warnings."""
        source = cast(NoiseSource, _SameOrders(self.noise(seed), seed))
        recorder = Recorder(source, None if script is None else script.draws)
        ledger = RecordingLedger(self.epsilon, self.delta, self.adjacency, noise=recorder, allow_large_delta=True)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            made = self.publish(private, ledger)
        if script is None:
            for warning in caught:
                warnings.warn(str(warning.message), warning.category, stacklevel=3)
        releases = (made,) if isinstance(made, Release) else made
        if not (isinstance(releases, list | tuple) and releases and all(isinstance(r, Release) for r in releases)):
            raise TypeError(
                f"release must return a Release, or a list of them; got {type(made).__name__}. Return the result of "
                f"publish."
            )
        return Played(tuple(releases), tuple(str(warning.message) for warning in caught), recorder, ledger)

    def replay(self, one: Played, private: PrivateTable, seed: int) -> tuple[Played | None, tuple[str, ...]]:
        """Replay a run on another table; return it, or None if it requests other noise, and all that differs."""
        try:
            two = self.play(private, seed, one.recorder)
        except Departed as departed:
            return None, (str(departed),)
        except Exception as error:  # a release that fails on one table only distinguishes the tables
            return None, (f"it fails with {type(error).__name__}: {error}",)
        off = _off_script(one.recorder, two.recorder)
        return (None if off else two), (*([off] if off else []), *_differences(one, two))


class _SameOrders:
    """A source whose secret orders of rows come from a seed, so that two tables order shared rows alike."""

    def __init__(self, source: NoiseSource, seed: int) -> None:
        self._source, self._keys = source, np.random.default_rng([seed, 1])

    def permutation(self, n: int) -> NDArray[np.int64]:
        """Order indices by random keys, so that indices in both tables have the same order in both."""
        return np.argsort(np.random.default_rng(self._keys.integers(2**63)).random(n))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)


def _off_script(one: Recorder, two: Recorder) -> str | None:
    """Name the first difference between the noise requests of two runs; None if there is none."""
    if one.permits != two.permits:
        return "the charged events"
    if len(one.draws) != len(two.draws):
        return f"it draws {len(two.draws)} times, not {len(one.draws)} times"
    for index, (left, right) in enumerate(zip(one.draws, two.draws, strict=True)):
        if left.scale != right.scale or left.permit != right.permit:
            return f"the scale of draw {index + 1} ({left.method})"
    return None


def _all_losses(one: Played, two: Played) -> list[Loss]:
    """Return the loss of each use, in the order of the charges; 0 for a charge without a draw."""
    found = defaultdict(list)
    for permit, events in enumerate(one.recorder.permits):
        draws = [[draw for draw in run.recorder.draws if draw.permit == permit] for run in (one, two)]
        for loss in losses(events, *draws):
            found[loss.event].append(loss)
    for event, count in count_uses(one.ledger.events).items():
        found[event] += [Loss(event, 0.0, claim(event))] * (count - len(found[event]))
    return [loss for event in count_uses(one.ledger.events) for loss in found[event]]


def _differences(one: Played, two: Played) -> list[str]:
    """Name the released parts that differ."""
    found = [] if one.warned == two.warned else ["warnings"]
    if one.ledger.statement() != two.ledger.statement():
        found.append("the statement of the ledger")
    if len(one.releases) != len(two.releases):
        return [*found, "the number of releases"]
    for left, right in zip(one.releases, two.releases, strict=True):
        if left.to_bytes() != right.to_bytes():
            parts = {
                "synthetic rows": (left.synthetic.fingerprint(), right.synthetic.fingerprint()),
                "weights": (left.weights.fingerprint(), right.weights.fingerprint()),
                "statement": (left.statement.to_dict(), right.statement.to_dict()),
                "recipe": (left.recipe, right.recipe),
                "number of private rows": (left.n_private, right.n_private),
            }
            found += [name for name, (one_has, two_has) in parts.items() if one_has != two_has] or ["the release file"]
    return found


def price_of_losses(ledger: Ledger, found: Sequence[Loss]) -> float:
    """Return the epsilon that the ledger would state if the losses had been charged."""
    lost: dict[Event, list[Event | None]] = defaultdict(list)
    for loss in found:
        lost[loss.event].append(loss.as_event())
    charged = ledger._now()
    record = replace(charged, charges=())
    for charge in charged.charges:
        events: list[Event] = []
        for event, count in count_uses(charge.events).items():
            events += [part for part in lost[event][:count] if part is not None]
            del lost[event][:count]
        if events:
            record = record.after(record.trial(events, max(event.delta for event in charge.events)))
    return record.spent[0]
