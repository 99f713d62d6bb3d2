"""A noise source that writes down its draws, and hands out those of another run: what audits look through."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partialmethod
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from iwbayes.curator.privacy.ledger import Ledger
from iwbayes.curator.privacy.noise import NoiseSource
from iwbayes.curator.privacy.permit import Permit
from iwbayes.statement import Event

#: Mechanisms whose draws are promised to be private. Others, such as the noise of an objective, are secrets of the
#: algorithm, and so are the rows that a gradient step samples.
PROMISED = {"gaussian", "laplace", "cube", "spherical", "exponential", "dp-sgd"}


class Draw(NamedTuple):
    """One request for noise and its outcome; ``permit`` is which of the recorder's permits paid for it."""

    method: str
    values: NDArray[Any]
    scale: Any
    outcome: NDArray[Any]
    promised: bool
    permit: int

    def same_request(self, other: Draw) -> bool:
        """Whether the other draw asked for the same noise on the same values."""
        alike = self.method == other.method and self.scale == other.scale
        return alike and np.array_equal(self.values, other.values)


class Departed(Exception):  # noqa: N818 - it is a finding, no error
    """A run did not ask for the noise that it was to be given."""


@dataclass(frozen=True)
class Recorder:
    """Noise source that writes down its draws; with a script it hands out the script's outcomes instead of noise."""

    source: NoiseSource
    script: Sequence[Draw] | None = None
    draws: list[Draw] = field(default_factory=list)
    #: Under which events noise was handed out, in order.
    permits: list[tuple[Event, ...]] = field(default_factory=list)
    #: Rates at which rows were sampled, but for those that take every row; 1 for a random order.
    sampled: list[float] = field(default_factory=list)
    #: The permit that this source is handed out with, and its events.
    permit: int = -1
    events: tuple[Event, ...] = ()

    def under(self, events: Sequence[Event]) -> Recorder:
        """Return the source as handed out for these events, whose promise covers its draws."""
        self.permits.append(tuple(events))
        return replace(self, events=tuple(events), permit=len(self.permits) - 1)

    def _draw(self, method: str, values: Any, scale: Any) -> Any:
        asked, index = np.array(values), len(self.draws)
        if self.script is None:
            drawn = getattr(self.source, method)(values, scale)
            outcome = np.eye(len(asked))[drawn] if method == "noisy_max" else np.array(drawn)
        else:
            if index >= len(self.script):
                raise Departed(f"it draws more often than {len(self.script)} times")
            planned = self.script[index]
            if planned.method != method or planned.outcome.shape != asked.shape:
                raise Departed(
                    f"draw {index + 1} is {method} noise of {asked.size} numbers, not {planned.method} noise of "
                    f"{planned.values.size}"
                )
            outcome = planned.outcome
            drawn = int(np.argmax(outcome)) if method == "noisy_max" else outcome.copy()
        # a permit lets through the methods of its events only
        promised = bool(self.events) and all(event.mechanism in PROMISED for event in self.events)
        self.draws.append(Draw(method, asked, scale, outcome, promised, self.permit))
        return drawn

    # all that add noise or choose: draw, or repeat the script
    gaussian = partialmethod(_draw, "gaussian")
    laplace = partialmethod(_draw, "laplace")
    cube = partialmethod(_draw, "cube")
    spherical = partialmethod(_draw, "spherical")
    floating_gaussian = partialmethod(_draw, "floating_gaussian")
    noisy_max = partialmethod(_draw, "noisy_max")

    def poisson_sample(self, n: int, rate: float) -> Any:
        """Sample rows: secret, and a script leaves it free. What is released may depend on it through noise only."""
        if rate < 1:
            self.sampled.append(rate)
        return self.source.poisson_sample(n, rate)

    def permutation(self, n: int) -> Any:
        """Shuffle rows: as secret as a sample."""
        self.sampled.append(1.0)
        return self.source.permutation(n)


class RecordingLedger(Ledger):
    """A ledger that tells its recorder under which events noise was handed out."""

    def _hand_out(self, events: Sequence[Event]) -> NoiseSource:
        recorder = cast(Recorder, self._noise)  # whoever made the ledger gave it
        return Permit(recorder.under(events), events)
