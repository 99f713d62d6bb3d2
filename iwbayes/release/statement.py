"""PrivacyStatement: the record of all uses of the private rows and of their joint privacy guarantee."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, get_args

from iwbayes.schema.cells import check_on_undeclared
from iwbayes.utils import checks
from iwbayes.utils.display import fill, html_table, one_line, wrapped

#: Sources of privacy noise, from best to worst; a statement shows the worst source used.
NOISE_KINDS = ("hardened", "floating-point", "unverified", "seeded")
#: Mechanisms without a hardened sampler.
FLOATING_POINT = ("spherical", "objective", "dp-sgd", "printed-steps")
#: Mechanisms that train in steps.
STEPS = ("dp-sgd", "printed-steps")
MECHANISMS = ("gaussian", "laplace", "cube", "exponential", "above-threshold", *FLOATING_POINT, "declared", "none")
#: For each rule, the sentence in a statement on how the costs of the uses were combined.
RULES = {
    "fixed": "Costs combined by privacy loss distributions: all uses were fixed in advance.",
    "gdp": "Costs combined by the privacy filter gdp (Gaussian DP: mu squared adds up).",
    "renyi": "Costs combined by the privacy filter renyi (Renyi divergences of one order add up).",
    "basic": "Costs combined by the privacy filter basic (epsilons and deltas add up).",
}
INFINITE = "infinite"  # epsilon in a file, because JSON has no infinite numbers
#: Adjacencies if every person owns one row, and all adjacencies, including the one for persons with several rows.
RowAdjacency = Literal["replace-one", "zero-out"]
Adjacency = Literal["replace-one", "zero-out", "replace-user"]
ROW_ADJACENCIES, ADJACENCIES = get_args(RowAdjacency), get_args(Adjacency)

#: Paragraphs on the scope of a statement. The second one applies if cells that do not fit the schema refuse the table.
_REACH = (
    "The guarantee covers the uses above only. Costs under other ledgers add up, and choosing settings by looking at "
    "the private rows is not covered.",
    "The guarantee holds among tables that conform to the schema. A refusal reveals something about the rows, and no "
    "charge covers it, so do not edit the schema in response.",
)
_PARAGRAPH = 76  # width of these paragraphs: they fit an 80-column terminal even if they are indented


@dataclass(frozen=True)
class Event:
    """One use of the private rows by a mechanism; a ledger computes the joint cost of several events.

    Parameters
    ----------
    label : str
        Algorithm that used the rows, for example "BayesNet structure".
    mechanism : str
        "gaussian", "laplace", "cube", "spherical", "exponential", "above-threshold", "objective" (objective
        perturbation), "dp-sgd" (Poisson-sampled Gaussian steps), "printed-steps" (the same with noise for each sampled
        row, see `iwbayes.paper.PrintedNeuralWeights`), "declared" (cost of a table from outside, as its maker declared
        it) or "none" (no noise, so epsilon is infinite).
    epsilon, delta : float
        Guarantee of one use alone. For steps, the guarantee of all of them together. The default of delta is 0.
    noise_multiplier : float or None, default None
        For "gaussian" and steps, noise standard deviation divided by the L2 sensitivity or the clip norm of the
        gradient of one row. None for other mechanisms.
    count : int, default 1
        Number of times that the mechanism ran.
    sampling_probability, steps : float and int, or None
        For steps, probability that a row is in a step, and number of steps.
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
        object.__setattr__(self, "label", one_line(self.label))
        checks.one_of("mechanism", self.mechanism, MECHANISMS)
        finite = math.isfinite(self.epsilon) != (self.mechanism == "none")
        if not (finite and self.epsilon > 0 and 0 <= self.delta < 1):
            raise ValueError(
                f"{self.label}: epsilon must be positive (infinite for mechanism 'none' only) and delta in [0, 1); got "
                f"epsilon {self.epsilon!r}, delta {self.delta!r}."
            )
        object.__setattr__(self, "count", checks.whole(f"{self.label}: count", self.count))
        multiplier, gaussian = self.noise_multiplier, self.mechanism in ("gaussian", *STEPS)
        if gaussian != (multiplier is not None) or (multiplier is not None and not 0 < multiplier < math.inf):
            raise ValueError(
                f"{self.label}: noise_multiplier must be positive for gaussian events and steps, and None for all "
                f"others; got {self.noise_multiplier!r} for {self.mechanism}."
            )
        rate, steps = self.sampling_probability, self.steps
        if self.mechanism not in STEPS:
            if (rate, steps) != (None, None):
                raise ValueError(
                    f"{self.label}: sampling_probability and steps must be None unless the mechanism is one of {STEPS}."
                )
            return
        checks.share(f"{self.label}: sampling_probability", rate, one=True)
        object.__setattr__(self, "steps", checks.whole(f"{self.label}: steps", steps))
        if self.delta == 0:
            raise ValueError(
                f"{self.label}: delta must be above 0 for {self.mechanism}, whose noise is Gaussian; got 0."
            )

    def to_dict(self) -> dict[str, Any]:
        """Return a plain dictionary for JSON."""
        return _finite(asdict(self))

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Event:
        """Make an event from the dictionary of `to_dict`."""
        return cls(**_infinite(content))


def count_uses(events: Iterable[Event]) -> dict[Event, int]:
    """Return the distinct events, each with a count of one, and how often they happened, in order of appearance."""
    counts: dict[Event, int] = {}
    for event in events:
        alone = replace(event, count=1)
        counts[alone] = counts.get(alone, 0) + event.count
    return counts


@dataclass(frozen=True)
class PrivacyStatement:
    """All uses of the private rows and their joint (epsilon, delta) guarantee.

    It is ``release.statement``, or ``ledger.statement()``. It covers one release and all earlier uses that the same
    ledger charged; costs under other ledgers add up. You may choose settings by looking at earlier releases of the same
    ledger, but not by looking at the private rows.

    Parameters
    ----------
    epsilon, delta : float
        Joint guarantee of all events under ``adjacency``.
    adjacency : {"replace-one", "zero-out", "replace-user"}
        Which tables are neighbours. Under the first two they have the same public number of rows, and one row is
        replaced or is a null row. Under "replace-user" they have the same public number of users and differ in all rows
        of one user.
    events : tuple of Event
    noise : {"hardened", "floating-point", "unverified", "seeded"}
        Worst source of noise used. "unverified" noise comes from a source outside this package, which the notes name.
        "seeded" noise can be reproduced, so it protects no person.
    certified : bool
        True only if all noise is hardened and the cost of every input is accounted for.
    notes : tuple of str, default ()
        Reasons why a release is not certified.
    on_undeclared : {"refuse", "missing", "other"}, default "refuse"
        Treatment of cells that did not fit the schema; see `PrivateTable`.
    products : frozenset of str or None, default None
        Digests of tables and weights that the events produced, to check a `Release`; not stored in files.
    rule : str or None, default None
        How costs were combined: "fixed" (the joint privacy loss distribution, if all settings were fixed in advance)
        or the privacy filter of the ledger. None if no ledger gave the statement.
    budget : (float, float) or None, default None
        What all releases of the ledger together never exceed, even if later settings depend on earlier releases.
    large_delta : int or None, default None
        Number of rows, or of users, if delta is at least one over it, which the curator allowed.

    Examples
    --------
    >>> event = Event("mean income", "laplace", 0.5)
    >>> statement = PrivacyStatement(0.5, 0.0, "replace-one", (event,), "hardened", certified=True)
    >>> print(statement.lines()[0])
    (0.5, 0)-differential privacy under replace-one adjacency.
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
    large_delta: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "notes", tuple(map(one_line, self.notes)))
        checks.one_of("noise", self.noise, NOISE_KINDS)
        if self.rule is not None:
            checks.one_of("rule", self.rule, RULES)
        if self.budget is not None and len(self.budget) != 2:
            raise ValueError(f"budget must be a pair (epsilon, delta); got {self.budget!r}.")
        checks.one_of("adjacency", self.adjacency, ADJACENCIES)
        if self.certified and self.noise != "hardened":
            raise ValueError(f"noise must be 'hardened' if certified is True; got {self.noise!r}.")
        check_on_undeclared(self.on_undeclared)
        if self.large_delta is not None:
            object.__setattr__(self, "large_delta", checks.whole("large_delta", self.large_delta))

    @property
    def uses(self) -> dict[Event, int]:
        """Distinct events, each with a count of one, and how often they happened."""
        return count_uses(self.events)

    def __str__(self) -> str:
        return wrapped("\n".join(self.lines()))

    def lines(self) -> list[str]:
        """Return the statement as lines of text, not wrapped, so that other objects can indent them."""
        first, second, *others = self._terms()
        return [first, second, *(f"  {use}" for use in self.uses_in_words()), *others]

    def uses_in_words(self) -> list[str]:
        """Return a line on each distinct use of the private rows: algorithm, mechanism and cost."""
        return [
            f"{e.label}: {e.mechanism}, epsilon {e.epsilon:.4g}, delta {e.delta:.3g}"
            + (f", {e.steps} steps with sampling probability {e.sampling_probability:.4g}" if e.steps else "")
            + (f", noise multiplier {e.noise_multiplier:.4g}" if e.noise_multiplier else "")
            + (f", {count} times" if count > 1 else "")
            for e, count in self.uses.items()
        ]

    def _repr_html_(self) -> str:
        header = ("use of the private rows", "mechanism", "times", "epsilon each", "delta each", "noise multiplier")
        rows = [(e.label, e.mechanism, n, e.epsilon, e.delta, e.noise_multiplier) for e, n in self.uses.items()]
        first, second, *others = (" ".join(line.split()) for line in self._terms())
        return html_table(f"{first} {second}", header, rows, notes=others)

    def _terms(self) -> list[str]:
        """Return the lines of the statement except the uses: guarantee, noise, notes and scope."""
        kind = "certified" if self.certified else "NOT certified"
        lines = [
            f"({self.epsilon:.6g}, {self.delta:.3g})-differential privacy under {self.adjacency} adjacency.",
            f"  {self.noise} noise, {kind}.",
            *(f"  Note: {note}" for note in self.notes),
        ]
        if self.rule is not None:
            lines.append(f"  {RULES[self.rule]}")
        if self.budget is not None:
            epsilon, delta = self.budget
            lines.append(f"  All charges to this ledger together stay within ({epsilon:.6g}, {delta:.3g}).")
        if self.large_delta is not None:
            units = "users" if self.adjacency == "replace-user" else "rows"
            said = (
                f"Large delta, allowed by allow_large_delta=True: delta is at least one over the number of {units} "
                f"({self.large_delta}), so that {units} may be exposed completely with this probability."
            )
            lines.append(fill(said, first="  ", width=_PARAGRAPH))
        reach = _REACH if self.on_undeclared == "refuse" else _REACH[:1]
        return lines + [fill(text, first="  ", width=_PARAGRAPH) for text in reach]

    def to_dict(self) -> dict[str, Any]:
        """Return a plain dictionary for JSON."""
        content = asdict(self)
        content["events"] = [event.to_dict() for event in self.events]
        content["notes"] = list(self.notes)
        if self.budget is not None:
            content["budget"] = [INFINITE if part == math.inf else part for part in self.budget]
        del content["products"]
        return _finite(content)

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> PrivacyStatement:
        """Make a statement from the dictionary of `to_dict`."""
        values = _infinite(content)
        values["events"] = tuple(Event.from_dict(event) for event in values["events"])
        values["notes"] = tuple(values["notes"])
        if values.get("budget") is not None:
            values["budget"] = tuple(math.inf if part == INFINITE else float(part) for part in values["budget"])
        return cls(**values)


def _finite(content: dict[str, Any]) -> dict[str, Any]:
    return {**content, "epsilon": INFINITE} if content["epsilon"] == math.inf else content


def _infinite(content: Mapping[str, Any]) -> dict[str, Any]:
    return {**content, "epsilon": math.inf} if content["epsilon"] == INFINITE else dict(content)
