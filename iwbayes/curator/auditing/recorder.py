"""A noise source for audits, which records its draws and can replay the draws of another run."""

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
from iwbayes.release.statement import Event

#: Mechanisms that promise privacy for the noisy values themselves. The noise of other mechanisms, such as objective
#: perturbation, is a secret of the algorithm, and so are the rows that a gradient step samples.
PROMISED = {"gaussian", "laplace", "cube", "spherical", "exponential", "dp-sgd"}


class Draw(NamedTuple):
    """One request for noise and its outcome; ``permit`` is the index of the recorder's permit that allowed it."""

    method: str
    values: NDArray[Any]
    scale: Any
    outcome: NDArray[Any]
    promised: bool
    permit: int

    def same_request(self, other: Draw) -> bool:
        """Tell whether the other draw requested the same noise on the same values."""
        alike = self.method == other.method and self.scale == other.scale
        return alike and np.array_equal(self.values, other.values)


class Departed(Exception):  # noqa: N818 - it is a finding, no error
    """Raised when a replayed run does not request the recorded noise."""


@dataclass(frozen=True)
class Recorder:
    """Noise source that records its draws; with a script it returns the script's outcomes instead of noise."""

    source: NoiseSource
    script: Sequence[Draw] | None = None
    draws: list[Draw] = field(default_factory=list)
    #: Events for which noise was handed out, in order.
    permits: list[tuple[Event, ...]] = field(default_factory=list)
    #: Rates below 1 at which rows were sampled, and 1 for each random order.
    sampled: list[float] = field(default_factory=list)
    #: Index of the permit that this source belongs to, and its events.
    permit: int = -1
    events: tuple[Event, ...] = ()

    def under(self, events: Sequence[Event]) -> Recorder:
        """Return the source for a permit of these events, which decide whether its draws are promised."""
        self.permits.append(tuple(events))
        return replace(self, events=tuple(events), permit=len(self.permits) - 1)

    def _draw(self, method: str, values: Any, scale: Any) -> Any:
        asked, index = np.array(values), len(self.draws)
        if self.script is None:
            drawn = getattr(self.source, method)(values, scale)
            outcome = np.eye(len(asked))[drawn] if method == "noisy_max" else np.array(drawn)
        else:
            if index >= len(self.script):
                raise Departed(f"it draws noise more than {len(self.script)} times")
            planned = self.script[index]
            if planned.method != method or planned.outcome.shape != asked.shape:
                raise Departed(
                    f"draw {index + 1} is {method} noise of {asked.size} numbers, not {planned.method} noise of "
                    f"{planned.values.size}"
                )
            outcome = planned.outcome
            drawn = int(np.argmax(outcome)) if method == "noisy_max" else outcome.copy()
        # a permit allows only the methods of its events
        promised = bool(self.events) and all(event.mechanism in PROMISED for event in self.events)
        self.draws.append(Draw(method, asked, scale, outcome, promised, self.permit))
        return drawn

    # the methods that add noise or select: they draw, or replay the script
    gaussian = partialmethod(_draw, "gaussian")
    laplace = partialmethod(_draw, "laplace")
    cube = partialmethod(_draw, "cube")
    spherical = partialmethod(_draw, "spherical")
    floating_gaussian = partialmethod(_draw, "floating_gaussian")
    noisy_max = partialmethod(_draw, "noisy_max")

    def poisson_sample(self, n: int, rate: float) -> Any:
        """Sample rows. A script does not fix the sample: it is secret, and releases depend on it through noise only."""
        if rate < 1:
            self.sampled.append(rate)
        return self.source.poisson_sample(n, rate)

    def permutation(self, n: int) -> Any:
        """Shuffle rows; secret like a sample."""
        self.sampled.append(1.0)
        return self.source.permutation(n)


class RecordingLedger(Ledger):
    """A ledger that tells its recorder the events of each permit."""

    def _hand_out(self, events: Sequence[Event]) -> NoiseSource:
        recorder = cast(Recorder, self._noise)  # audits create this ledger with a Recorder
        return Permit(recorder.under(events), events)
