"""Permit: the noise source that a ledger hands out for a charge, limited to the draws that were charged."""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Sequence
from functools import partialmethod
from typing import Any, NoReturn

from iwbayes.curator.privacy.noise import NoiseSource, SeededNoise, SystemNoise
from iwbayes.release.statement import STEPS, Event


class Permit:
    """Draw the noise of charged events from the ledger's source, each kind as often as the events say (`_draws`).

    A Gaussian or Laplace event of one use pays for one vector; one of several uses for that many numbers, in one or
    more calls. Every permit also allows one random order of rows, which adds no noise. A permit cannot be copied.
    """

    __slots__ = ("_each", "_label", "_left", "_lock", "_source")

    def __init__(self, source: NoiseSource, events: Sequence[Event]) -> None:
        self._source, self._lock = source, threading.Lock()
        self._label = ", ".join(dict.fromkeys(event.label for event in events))
        self._left: Counter[str] = Counter({"permutation": 1})
        self._each: set[str] = set()
        for event in events:
            for method, draws in _draws(event).items():
                self._left[method] += draws  # type: ignore[assignment]
            if event.count > 1 and event.mechanism in ("gaussian", "laplace"):
                self._each.add(event.mechanism)

    def _draw(self, method: str, *arguments: Any) -> Any:
        """Count a draw and pass it to the source, or refuse it before anything is drawn."""
        draws = len(arguments[0]) if method in self._each else 1
        with self._lock:
            if draws > self._left[method]:
                raise RuntimeError(
                    f"{self._label}: all charged {method.replace('_', ' ')} draws are used. Charge another event first."
                )
            self._left[method] -= draws
        return getattr(self._source, method)(*arguments)

    gaussian = partialmethod(_draw, "gaussian")
    laplace = partialmethod(_draw, "laplace")
    cube = partialmethod(_draw, "cube")
    spherical = partialmethod(_draw, "spherical")
    floating_gaussian = partialmethod(_draw, "floating_gaussian")
    poisson_sample = partialmethod(_draw, "poisson_sample")
    permutation = partialmethod(_draw, "permutation")
    noisy_max = partialmethod(_draw, "noisy_max")

    def __repr__(self) -> str:
        return f"Permit({self._label})"

    def __reduce__(self) -> NoReturn:  # a copy would draw the charged noise twice
        raise TypeError("a Permit cannot be copied, because it counts the draws that were charged. Charge again.")


def _draws(event: Event) -> dict[str, Any]:
    """Return how often each method of a source may be used for an event."""
    steps = (event.steps or 0) * event.count
    others: dict[str, dict[str, Any]] = {
        "exponential": {"noisy_max": event.count},
        "above-threshold": {"laplace": 2 * event.count},  # the threshold's noise, and that of the queries
        "objective": {"spherical": event.count},
        **dict.fromkeys(STEPS, {"floating_gaussian": steps, "poisson_sample": steps}),
        "declared": {},
        "none": {"poisson_sample": math.inf},
    }
    vectors = {name: {name: event.count} for name in ("gaussian", "laplace", "cube", "spherical")}
    return (vectors | others)[event.mechanism]


def noise_kind(source: object) -> str:
    """Return the kind of a noise source by its class, not by its ``kind``: only `SystemNoise` itself is hardened."""
    if type(source) is SystemNoise:
        return "hardened"
    draws = any(hasattr(type(source), name) for name in ("gaussian", "__getattr__"))
    if isinstance(source, type) or not draws:
        raise TypeError(
            f"noise must be a noise source; got {type(source).__name__}. Leave it out, or pass SystemNoise()."
        )
    return "seeded" if isinstance(source, SeededNoise) else "unverified"
