"""PrivacyStatement: the frozen record of what ran on the private rows and what it costs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, get_args

from iwbayes.display import fill, html_table, wrapped
from iwbayes.schema.cells import check_on_undeclared

#: From the best to the worst source of privacy noise; a statement shows the worst that was used.
NOISE_KINDS = ("hardened", "floating-point", "unverified", "seeded")
#: Mechanisms whose noise has no hardened sampler.
FLOATING_POINT = ("spherical", "objective", "dp-sgd")
MECHANISMS = (
    "gaussian",
    "laplace",
    "cube",
    "spherical",
    "exponential",
    "above-threshold",
    "objective",
    "dp-sgd",
    "declared",
    "none",
)
#: What a statement says of the way in which uses were priced together.
_RULES = {
    "fixed": "Priced together by privacy loss distributions: all was fixed in advance.",
    "gdp": "Priced by the privacy filter gdp (Gaussian DP, mu squared adds up).",
    "renyi": "Priced by the privacy filter renyi (Renyi divergences of one order add up).",
    "basic": "Priced by the privacy filter basic (epsilons and deltas add up).",
}
#: An infinite epsilon in a file: JSON has no such number.
INFINITE = "infinite"
#: What may differ between neighbours when every person owns one row; and when a person may own several.
RowAdjacency = Literal["replace-one", "zero-out"]
Adjacency = Literal["replace-one", "zero-out", "replace-user"]
ROW_ADJACENCIES, ADJACENCIES = get_args(RowAdjacency), get_args(Adjacency)

#: What every statement says of its reach, and what one says where cells that do not fit refuse the table.
_REACH = (
    "It covers the uses above and no others: costs under other ledgers add up, and choosing settings by looking at the "
    "private rows is not covered.",
    "The promise holds among tables that conform to the schema; amending a schema after a refusal is a look at private "
    "rows.",
)
#: Width of these paragraphs, so that they fit on a terminal of 80 columns where they are indented.
_PARAGRAPH = 76


@dataclass(frozen=True)
class Event:
    """One use of the private rows: data, not a price; a ledger prices events jointly.

    Parameters
    ----------
    label : str
        Who used the rows, for example "BayesNet structure".
    mechanism : str
        "gaussian", "laplace", "cube", "spherical", "exponential", "above-threshold", "objective" (objective
        perturbation), "dp-sgd" (Poisson-sampled Gaussian steps), "declared" (what somebody else says that an outside
        table cost) or "none" (no noise at all: epsilon is infinite).
    epsilon, delta : float
        The guarantee of one use on its own; of all steps together for "dp-sgd".
    noise_multiplier : float or None
        Standard deviation over L2 sensitivity, for Gaussian noise; over the clip norm of one gradient for "dp-sgd".
    count : int
        How many times the same mechanism ran.
    sampling_probability : float or None
        Chance of each row to be in a step, for "dp-sgd".
    steps : int or None
        Number of steps, for "dp-sgd".
    """

    label: str
    mechanism: str
    epsilon: float
    delta: float = 0.0
    noise_multiplier: float | None = None
    count: int = 1
    sampling_probability: float | None = None
    steps: int | None = None

    def __post_init__(self) -> None:
        if self.mechanism not in MECHANISMS:
            raise ValueError(f"mechanism must be one of {MECHANISMS}; got {self.mechanism!r}.")
        finite = math.isfinite(self.epsilon) != (self.mechanism == "none")
        if not (finite and self.epsilon > 0 and 0 <= self.delta < 1):
            raise ValueError(f"{self.label}: no guarantee has epsilon {self.epsilon!r}, delta {self.delta!r}.")
        if isinstance(self.count, bool) or not isinstance(self.count, int) or self.count < 1:
            raise ValueError(f"{self.label}: count must be a whole number of at least 1; got {self.count!r}.")
        multiplier, gaussian = self.noise_multiplier, self.mechanism in ("gaussian", "dp-sgd")
        if gaussian != (multiplier is not None) or (multiplier is not None and not 0 < multiplier < math.inf):
            raise ValueError(
                f"{self.label}: a Gaussian event has a positive noise multiplier and no other has one; "
                f"got {self.noise_multiplier!r} for {self.mechanism}."
            )
        rate, steps = self.sampling_probability, self.steps
        if self.mechanism != "dp-sgd":
            if (rate, steps) != (None, None):
                raise ValueError(f"{self.label}: only a dp-sgd event has a sampling probability and steps.")
            return
        if rate is None or not 0 < rate <= 1:
            raise ValueError(f"{self.label}: sampling_probability must be in (0, 1]; got {rate!r}.")
        if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
            raise ValueError(f"{self.label}: steps must be a whole number of at least 1; got {steps!r}.")
        if self.delta == 0:
            raise ValueError(f"{self.label}: Gaussian steps have no guarantee with delta 0.")

    def to_dict(self) -> dict[str, Any]:
        """Plain dictionary, for JSON."""
        return _finite(asdict(self))

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Event:
        """Inverse of `to_dict`."""
        return cls(**_infinite(content))


def count_uses(events: Iterable[Event]) -> dict[Event, int]:
    """Each kind of event, with a count of one, and how many times it happened, in order of appearance."""
    counts: dict[Event, int] = {}
    for event in events:
        alone = replace(event, count=1)
        counts[alone] = counts.get(alone, 0) + event.count
    return counts


@dataclass(frozen=True)
class PrivacyStatement:
    """What was done with the private rows and the (epsilon, delta) guarantee of all of it together.

    Parameters
    ----------
    epsilon, delta : float
        The joint guarantee of all events under ``adjacency``.
    adjacency : {"replace-one", "zero-out", "replace-user"}
        Which tables the guarantee calls neighbours: those that differ in a row, and have the same public number of
        rows; or in all rows of one user, and have the same public number of users.
    events : tuple of Event
    noise : {"hardened", "floating-point", "unverified", "seeded"}
        The worst source of noise used. "unverified" is a source that is not this package's own; the notes name it.
        "seeded" noise can be reproduced: it protects nobody.
    certified : bool
        True only for hardened noise with every input accounted for.
    notes : tuple of str
        Why a release is not certified.
    on_undeclared : {"refuse", "missing", "other"}
        What became of cells that did not fit the schema, see `PrivateTable`. Under "refuse" the promise holds among
        tables that conform to the schema.
    products : frozenset of str or None
        Digests of what the charged events have made, by which a `Release` checks its parts. Not part of a file.
    rule : str or None
        How releases were priced together: "fixed" where all settings were fixed in advance, so that their joint
        privacy loss distribution holds; else the privacy filter of the ledger (see
        `iwbayes.curator.privacy.filters`). None in files of versions before there was one.
    budget : (float, float) or None
        Epsilon and delta that all releases of the ledger together stay within, whatever is chosen when.

    Notes
    -----
    The statement covers its events: one release, and what the same ledger was charged before. Costs under other ledgers
    add up. Settings may be chosen by looking at what the same ledger released, not at the private rows.
    """

    epsilon: float
    delta: float
    adjacency: Adjacency
    events: tuple[Event, ...]
    noise: str
    certified: bool
    notes: tuple[str, ...] = ()
    on_undeclared: str = "refuse"
    products: frozenset[str] | None = field(default=None, repr=False, compare=False)
    rule: str | None = None
    budget: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        if self.noise not in NOISE_KINDS:
            raise ValueError(f"noise must be one of {NOISE_KINDS}; got {self.noise!r}.")
        if self.budget is not None and len(self.budget) != 2:
            raise ValueError(f"budget must be epsilon and delta; got {self.budget!r}.")
        if self.adjacency not in ADJACENCIES:
            raise ValueError(f"adjacency must be one of {ADJACENCIES}; got {self.adjacency!r}.")
        if self.certified and self.noise != "hardened":
            raise ValueError(f"only hardened noise can be certified; got {self.noise!r}.")
        check_on_undeclared(self.on_undeclared)

    @property
    def uses(self) -> dict[Event, int]:
        """Each kind of event, with a count of one, and how many times it happened."""
        return count_uses(self.events)

    def __str__(self) -> str:
        return wrapped("\n".join(self.lines()))

    def lines(self) -> list[str]:
        """Say the guarantee in plain words, in lines that are not wrapped, as others indent them."""
        first, second, *others = self._terms()
        uses = (
            f"  {e.label}: {e.mechanism}, epsilon {e.epsilon:.4g}, delta {e.delta:.3g}"
            + (f", {e.steps} steps with sampling probability {e.sampling_probability:.4g}" if e.steps else "")
            + (f", noise multiplier {e.noise_multiplier:.4g}" if e.noise_multiplier else "")
            + (f", {count} times" if count > 1 else "")
            for e, count in self.uses.items()
        )
        return [first, second, *uses, *others]

    def _repr_html_(self) -> str:
        header = ("use of the private rows", "mechanism", "times", "epsilon each", "delta each", "noise multiplier")
        rows = [(e.label, e.mechanism, n, e.epsilon, e.delta, e.noise_multiplier) for e, n in self.uses.items()]
        first, second, *others = (" ".join(line.split()) for line in self._terms())
        return html_table(f"{first} {second}", header, rows, notes=others)

    def _terms(self) -> list[str]:
        """Say the guarantee, the noise, and what it covers and does not: all but the uses."""
        kind = "certified" if self.certified else "NOT certified"
        lines = [
            f"({self.epsilon:.6g}, {self.delta:.3g})-differential privacy under {self.adjacency} adjacency.",
            f"  {self.noise} noise, {kind}.",
            *(f"  Note: {note}" for note in self.notes),
        ]
        if self.rule is not None:
            lines.append(f"  {_RULES.get(self.rule, self.rule)}")
        if self.budget is not None:
            epsilon, delta = self.budget
            lines.append(f"  Everything charged to this ledger stays within ({epsilon:.6g}, {delta:.3g}).")
        reach = _REACH if self.on_undeclared == "refuse" else _REACH[:1]
        return lines + [fill(text, first="  ", width=_PARAGRAPH) for text in reach]

    def to_dict(self) -> dict[str, Any]:
        """Plain dictionary, for JSON."""
        content = asdict(self)
        content["events"] = [event.to_dict() for event in self.events]
        content["notes"] = list(self.notes)
        if self.budget is not None:
            content["budget"] = [INFINITE if part == math.inf else part for part in self.budget]
        del content["products"]
        return _finite(content)

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> PrivacyStatement:
        """Inverse of `to_dict`."""
        values = _infinite(content)
        values["events"] = tuple(Event.from_dict(event) for event in values["events"])
        values["notes"] = tuple(values.get("notes", ()))
        if values.get("budget") is not None:
            values["budget"] = tuple(math.inf if part == INFINITE else float(part) for part in values["budget"])
        return cls(**values)


def _finite(content: dict[str, Any]) -> dict[str, Any]:
    return {**content, "epsilon": INFINITE} if content["epsilon"] == math.inf else content


def _infinite(content: Mapping[str, Any]) -> dict[str, Any]:
    return {**content, "epsilon": math.inf} if content["epsilon"] == INFINITE else dict(content)
