"""What ten default releases cost together under each rule of a ledger: why "gdp" is the default.

Run: python benchmarks/ledger_rules.py

A default release holds Gaussian noise and exponential mechanisms. For tables of several widths and budgets it prints
the epsilon of ten of them, at the delta of one, under each privacy filter (settings may follow from earlier releases)
and by their joint privacy loss distribution (all fixed in advance). "basic" adds deltas up, so its ten releases get a
tenth of delta each. Last, ten releases with private gradient steps, which "gdp" counts by basic composition.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

# coverage.py of this folder would hide the package of that name
HERE = Path(__file__).resolve().parent
sys.path[:] = [str(HERE / "shared"), *(place for place in sys.path if Path(place or ".").resolve() != HERE)]

import command  # noqa: E402, I001 - in shared; before numpy
import pandas as pd  # noqa: E402
from results import table  # noqa: E402

import iwbayes as iw  # noqa: E402
from iwbayes.curator.privacy.accounting import dpsgd_multiplier, price  # noqa: E402
from iwbayes.release.statement import Event  # noqa: E402

RELEASES = 10
RULES = ("gdp", "renyi", "basic")


def schema(width: int) -> iw.Schema:
    """Half numbers, a quarter binary, a quarter of four levels."""
    kinds = [
        lambda name: iw.Real(name, 0, 1),
        lambda name: iw.Real(name, 0, 1),
        lambda name: iw.Binary(name),
        lambda name: iw.Categorical(name, list("abcd")),
    ]
    return iw.Schema(*(kinds[index % 4](f"x{index}") for index in range(width)))


def default_release(width: int, n: int, epsilon: float, delta: float) -> tuple[Event, ...]:
    return iw.plan(schema(width), n, epsilon=epsilon, delta=delta).events


def private_steps(epsilon: float, delta: float) -> tuple[Event, ...]:
    settings = {"sampling_probability": 0.02, "steps": 500}
    return (Event("s", "dp-sgd", epsilon, delta, dpsgd_multiplier(epsilon, delta, **settings), **settings),)


def cost(rule: str, events: tuple[Event, ...], delta: float, budget: float = 1000.0) -> float:
    """Epsilon of the releases under a rule, in a ledger with room for them."""
    ledger = iw.Ledger(budget, delta, rule=rule)
    for _ in range(RELEASES):
        ledger.charge(*events)
    return ledger.spent[0]


def renyi_cost(events: tuple[Event, ...], delta: float, guess: float) -> float:
    """Under "renyi", whose order is the one of a budget that just holds them."""
    for _ in range(3):
        guess = cost("renyi", events, delta, guess)
    return guess


def row(what: str, make: Callable[..., tuple[Event, ...]], epsilon: float, delta: float) -> dict[str, float]:
    events, small = make(epsilon, delta), make(epsilon, delta / RELEASES)
    joint = price(list(events) * RELEASES, delta, scale=epsilon)[0]
    basic = cost("basic", small, delta)
    gdp = cost("gdp", small if events[0].mechanism == "dp-sgd" else events, delta)
    renyi = renyi_cost(events, delta, basic)
    print(f"{what:<34} {epsilon:>4g} {gdp:>7.3f} {renyi:>7.3f} {basic:>7.3f} {joint:>9.3f}")
    return {"gdp": gdp, "renyi": renyi, "basic": basic, "in advance": joint}


def main(argv: Sequence[str] | None = None) -> int:
    parser = command.parser(__doc__)
    parser.add_argument("--widths", nargs="+", type=int, default=[4, 10, 40], help="numbers of columns")
    parser.add_argument("--epsilon", nargs="+", type=float, default=[0.1, 0.3, 1.0], help="of one release")
    return command.run(work, parser, ("--widths 4 --epsilon 0.3",), argv)


def work(arguments: argparse.Namespace) -> None:
    """Print the table."""
    print(f"{'ten releases of epsilon each':<34} {'':>4} {'gdp':>7} {'renyi':>7} {'basic':>7} {'in advance':>9}")
    rows = {}
    for width in arguments.widths:
        for epsilon in arguments.epsilon:
            what = f"default of {width} columns"
            made = partial(default_release, width, 5000)
            rows[what, epsilon] = row(what, made, epsilon, 1e-6)
    for epsilon in arguments.epsilon[-2:]:
        rows["500 private steps", epsilon] = row("500 private steps", private_steps, epsilon, 1e-6)
    shown = pd.DataFrame(rows).T.rename_axis(["release", "epsilon of each"])
    table(shown, shown=dict.fromkeys(shown, ".3f"))


if __name__ == "__main__":
    sys.exit(main())
