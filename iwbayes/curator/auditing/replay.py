"""Run a release, and replay it on another table with the noise outcomes of the first run, to audit it."""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from iwbayes.curator.auditing.losses import Loss, claim, losses
from iwbayes.curator.auditing.recorder import Departed, Recorder, RecordingLedger
from iwbayes.curator.privacy.ledger import Ledger
from iwbayes.curator.privacy.noise import NoiseSource
from iwbayes.release import Release
from iwbayes.release.statement import Adjacency, Event, count_uses
from iwbayes.tables import PrivateTable

Publisher = Callable[[PrivateTable, Ledger], "Release | Sequence[Release]"]


@dataclass(frozen=True)
class Played:
    """One run: its releases, warnings, draws and ledger."""

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

    def compare(self, one: Played, private: PrivateTable, seed: int) -> tuple[list[Loss], tuple[str, ...]]:
        """Replay a run on another table; return the loss of each use, and the other differences."""
        two, differing = self.replay(one, private, seed)
        return [] if two is None else _all_losses(one, two), differing

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
            one_has, two_has = _parts(left), _parts(right)
            found += [name for name in one_has if one_has[name] != two_has[name]] or ["the release file"]
    return found


def _parts(release: Release) -> dict[str, object]:
    """Return the named parts of a release, for comparison."""
    return {
        "synthetic rows": release.synthetic.fingerprint(),
        "weights": release.weights.fingerprint(),
        "statement": release.statement.to_dict(),
        "recipe": release.recipe,
        "number of private rows": release.n_private,
    }


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
