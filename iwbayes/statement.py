"""PrivacyStatement: the frozen record of what ran on the private rows and what it costs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

#: From the best to the worst source of privacy noise; a statement shows the worst that was used.
NOISE_KINDS = ("hardened", "floating-point", "seeded")
MECHANISMS = ("gaussian", "laplace", "cube", "spherical", "exponential")
ADJACENCIES = ("replace-one", "zero-out")


@dataclass(frozen=True)
class Event:
    """One use of the private rows: data, not a price; a ledger prices events jointly.

    Parameters
    ----------
    label : str
        Who used the rows, for example "BayesNet structure".
    mechanism : str
        "gaussian", "laplace", "cube", "spherical" or "exponential".
    epsilon, delta : float
        The guarantee of one use on its own.
    noise_multiplier : float or None
        Standard deviation over L2 sensitivity, for Gaussian noise.
    count : int
        How many times the same mechanism ran.
    """

    label: str
    mechanism: str
    epsilon: float
    delta: float = 0.0
    noise_multiplier: float | None = None
    count: int = 1

    def __post_init__(self) -> None:
        if self.mechanism not in MECHANISMS:
            raise ValueError(f"mechanism must be one of {MECHANISMS}; got {self.mechanism!r}.")
        if not (math.isfinite(self.epsilon) and self.epsilon > 0 and 0 <= self.delta < 1):
            raise ValueError(f"{self.label}: no guarantee has epsilon {self.epsilon!r}, delta {self.delta!r}.")
        if isinstance(self.count, bool) or not isinstance(self.count, int) or self.count < 1:
            raise ValueError(f"{self.label}: count must be a whole number of at least 1; got {self.count!r}.")
        multiplier, gaussian = self.noise_multiplier, self.mechanism == "gaussian"
        if gaussian != (multiplier is not None) or (multiplier is not None and not 0 < multiplier < math.inf):
            raise ValueError(
                f"{self.label}: a Gaussian event has a positive noise multiplier and no other has one; "
                f"got {self.noise_multiplier!r} for {self.mechanism}."
            )


@dataclass(frozen=True)
class PrivacyStatement:
    """What was done with the private rows and the (epsilon, delta) guarantee of all of it together.

    Parameters
    ----------
    epsilon, delta : float
        The joint guarantee of all events under ``adjacency``.
    adjacency : {"replace-one", "zero-out"}
        Which tables the guarantee calls neighbours; their number of rows is public.
    events : tuple of Event
    noise : {"hardened", "floating-point", "seeded"}
        The worst source of noise used. "seeded" noise can be reproduced: it protects nobody.
    certified : bool
        True only for hardened noise with every input accounted for.
    notes : tuple of str
        Why a release is not certified.

    Notes
    -----
    The statement covers one release. The costs of releases of the same rows add up, and choosing settings
    by looking at private results is not covered.
    """

    epsilon: float
    delta: float
    adjacency: str
    events: tuple[Event, ...]
    noise: str
    certified: bool
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.noise not in NOISE_KINDS:
            raise ValueError(f"noise must be one of {NOISE_KINDS}; got {self.noise!r}.")
        if self.adjacency not in ADJACENCIES:
            raise ValueError(f"adjacency must be one of {ADJACENCIES}; got {self.adjacency!r}.")
        if self.certified and self.noise != "hardened":
            raise ValueError(f"only hardened noise can be certified; got {self.noise!r}.")

    def __str__(self) -> str:
        """Say the guarantee in plain words."""
        kind = "certified" if self.certified else "NOT certified"
        counts = dict.fromkeys((replace(e, count=1) for e in self.events), 0)
        for event in self.events:
            counts[replace(event, count=1)] += event.count
        lines = [
            f"({self.epsilon:.6g}, {self.delta:.3g})-differential privacy under {self.adjacency} adjacency, "
            f"{self.noise} noise, {kind}.",
            *(
                f"  {e.label}: {e.mechanism}, epsilon {e.epsilon:.4g}, delta {e.delta:.3g}"
                + (f", {count} times" if count > 1 else "")
                for e, count in counts.items()
            ),
            *(f"  Note: {note}" for note in self.notes),
            "  It covers this release only: the costs of releases of the same rows add up, and choosing",
            "  settings by looking at private results is not covered.",
        ]
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Plain dictionary, for JSON."""
        content = asdict(self)
        content["events"] = [asdict(event) for event in self.events]
        content["notes"] = list(self.notes)
        return content

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> PrivacyStatement:
        """Inverse of `to_dict`."""
        values = dict(content)
        values["events"] = tuple(Event(**event) for event in values["events"])
        values["notes"] = tuple(values.get("notes", ()))
        return cls(**values)
