"""What the scripts of the paper's experiments share: private and test rows, every method's release, runs, pictures.

Import it before numpy: it keeps linear algebra at one thread.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import command  # noqa: I001 - before numpy
import numpy as np
import pandas as pd
import results
from data_sets import Data, load
from results import table

import iwbayes as iw
from iwbayes.curator.privacy.accounting import price
from iwbayes.curator.protocols import PublicFacts
from iwbayes.reporting.drawing import COLOURS, MARKERS

OUR_DELTA = 1e-6
#: The generator's part of epsilon, for all methods, and in the paper.
GENERATOR_SHARE, PRINTED_SHARE = 0.3, 0.1
#: Synthetic rows for each private row.
PER_ROW = 5
#: Generators and methods that need torch.
OF_TORCH = ("GAN", "CGAN", "DPGAN", "DPCGAN", "MLP", "DP-MLP", "DP-MLP as printed", "Discriminator")


#: Discriminator weights after Pareto smoothing, and after a beta calibration that has 30 % of epsilon.
SMOOTHED, CALIBRATED = "Discriminator, PSIS", "Discriminator, beta"
_ALONE = ("None", "Discriminator", SMOOTHED)


def installed(names: Iterable[str]) -> tuple[str, ...]:
    """Leave out the generators and methods that need torch, where it is not installed."""
    return tuple(name for name in names if name.split(",")[0] not in OF_TORCH or find_spec("torch"))


OURS = ("iwbayes", "iwbayes, delta 1e-6", "iwbayes, for_models")
#: Of the paper: those that promise privacy (BetaNoised and BetaDebiased at another epsilon than they say).
PRIVATE_METHODS = installed(
    ("None", "BetaNoised", "BetaDebiased", "DP-MLP", "DP-MLP as printed", "Discriminator", SMOOTHED, CALIBRATED)
)
METHODS = (*PRIVATE_METHODS, *installed(("LogReg", "MLP", "tilt")), *OURS)
#: No noise: what they cost is infinite.
NO_PRIVACY = ("GAN", "CGAN")
_GANS = {"DPGAN": iw.paper.DPGAN, "DPCGAN": iw.paper.DPCGAN, "GAN": iw.paper.GAN, "CGAN": iw.paper.CGAN}


class Split(NamedTuple):
    """Rows of a data set as the paper splits them: 80 % private, the others to be judged by; and the printed delta."""

    data: Data
    train: pd.DataFrame
    test: pd.DataFrame
    private: iw.PrivateTable
    delta: float


def split(name: str, folder: str | Path, seed: int, most: int | None = None) -> Split:
    """Divide a data set at random, with so many rows in each part at most; frames are in canonical form."""
    data = load(name, str(folder))
    order = np.random.default_rng([seed, 0]).permutation(len(data.frame))
    n = round(0.8 * len(order))
    frame = data.schema.conform(data.frame)
    train, test = (frame.iloc[part].reset_index(drop=True) for part in (order[:n][:most], order[n:][:most]))
    n = len(train)
    return Split(data, train, test, iw.PrivateTable(train, data.schema), 1 / n - 1e-6)


def unweighted(private: iw.PrivateTable) -> iw.Release:
    """Take private rows for a release without weights: what a fit to the private rows themselves gives."""
    n = len(private)
    rows = iw.SyntheticTable(private.frame, private.schema, origin="private rows", already_spent=(0.0, 0.0))
    statement = iw.Ledger(1.0, OUR_DELTA, noise=iw.SeededNoise(0)).statement()
    return iw.Release(rows, iw.Weights(np.zeros(n), "none"), statement, n_private=n)


def formula(data: Data) -> str:
    """Write the regression of the response on all other columns, each in the units that it is declared in."""
    terms = []
    for column in data.schema:
        log = getattr(column, "transform", None) == "log1p"
        terms.append(f"np.log1p(`{column.name}`)" if log else f"`{column.name}`")
    names = list(data.schema.names)
    response = terms.pop(names.index(data.response))
    return f"{response if response.startswith('np') else data.response} ~ {' + '.join(terms)}"


def neural(seed: int, steps: int | None) -> dict[str, Any]:
    """Return settings of networks: as many steps as usual, or these."""
    return {"random_seed": seed, "progressbar": False, **({"steps": steps} if steps else {})}


def make_generator(name: str, data: Data, seed: int, steps: int | None = None, **others: Any) -> Any:
    """Build a generator by its name in the paper; ``steps`` and ``others`` are settings of a GAN."""
    if name == "PrivBayes":
        return iw.BayesNet()
    condition = {"condition": data.condition} if name.endswith("CGAN") else {}
    return _GANS[name](**neural(seed, steps), **others, **condition)


def make_weight_provider(name: str, seed: int, steps: int | None = None) -> Any:
    """Build a weight provider by its name in the paper; "tilt" is ours."""
    if name == "tilt":
        return iw.TiltWeights()
    return iw.paper.METHODS[name](**(neural(seed, steps) if "MLP" in name else {}))


class Outcome(NamedTuple):
    """A release by one method, epsilon that it truly costs at its delta, and seconds of the method alone."""

    method: str
    release: iw.Release
    epsilon: float
    seconds: float


class Methods:
    """Releases of private rows by every method, on the rows of one generator.

    All have the same budget and as many rows. "None" and "Discriminator" (also after PSIS) give all of it to the
    generator, and 70 % if the discriminator's weights are beta-calibrated. Other methods
    of the paper, and "tilt", split epsilon as `publish` does, 30 % for the generator and 70 % for the weights, at the
    paper's delta; the generator has all of delta if the weights need none, and half of it otherwise. On rows of a
    generator without privacy, whose cost is infinite, the weights have all. "iwbayes" is `publish` (its weights alone
    where the generator has no privacy), at the paper's delta and at 1e-6, and with ``for_models`` naming the regression
    of the response on all other columns, at the paper's delta.

    Parameters
    ----------
    rows : Split
    generator : str
    seed : int
    epsilon : float
    n_synthetic : int, optional
        Of all methods; by default five rows for each private row.
    steps : int, optional
        Of networks, other than usual.
    **settings
        Of a GAN.
    """

    def __init__(
        self,
        rows: Split,
        generator: str,
        seed: int,
        epsilon: float,
        n_synthetic: int | None = None,
        steps: int | None = None,
        **settings: Any,
    ) -> None:
        self._rows, self._generator, self._seed, self._epsilon = rows, generator, seed, epsilon
        self._steps, self._settings = steps, settings
        self._free = generator in NO_PRIVACY
        self._n = len(rows.train)
        self._n_synthetic = PER_ROW * self._n if n_synthetic is None else n_synthetic
        self._kept: tuple[Any, iw.SyntheticTable] | None = None

    def outcomes(self, methods: Sequence[str] = METHODS) -> Iterator[Outcome]:
        """Releases by each of these methods that exists for the generator, in the order of `METHODS`."""
        of_network = self._generator != "PrivBayes"
        alone = [m for m in _ALONE if m in methods and (of_network or m == "None")]
        if alone:
            yield from self._generator_alone(alone)
        if CALIBRATED in methods and of_network:
            yield self._calibrated_discriminator()
        apart = (*_ALONE, CALIBRATED)
        given = [m for m in METHODS if m in methods and m not in apart and (self._free or m not in OURS)]
        yield from self.weights_after(GENERATOR_SHARE, given)
        for method in () if self._free else OURS:
            if method in methods:
                yield self.published(method, self._delta(method), weights=self._tilt(method))

    def weights_after(self, share: float, methods: Sequence[str]) -> Iterator[Outcome]:
        """Releases in which the generator has this share of epsilon and the weights the rest."""
        fits: dict[float, tuple[iw.SyntheticTable, Sequence[iw.Event]]] = {}
        for method in methods:
            provider, delta = self._provider(method), self._delta(method)
            part = delta if provider.pure else delta / 2
            if part not in fits:
                ledger = self._ledger(self._seed)
                fits[part] = self._fitted(self._epsilon * share, ledger, part)[1], ledger.statement().events
            yield from self._where_it_exists(method, provider, *fits[part], delta, share)

    def _provider(self, method: str) -> Any:
        return self._tilt(method) if method in OURS else make_weight_provider(method, self._seed, self._steps)

    def _delta(self, method: str) -> float:
        return OUR_DELTA if "1e-6" in method else self._rows.delta

    def _tilt(self, method: str) -> iw.TiltWeights:
        """Return the default, or a tilt in stages to the scores of the regression on all other columns."""
        return iw.TiltWeights(for_models=[formula(self._rows.data)] if "for_models" in method else ())

    def _ledger(self, seed: int, delta: float | None = None) -> iw.Ledger:
        return iw.Ledger(math.inf, self._rows.delta if delta is None else delta, noise=iw.SeededNoise(seed))

    def _made(self) -> Any:
        return make_generator(self._generator, self._rows.data, self._seed, self._steps, **self._settings)

    def _fitted(self, epsilon: float, ledger: iw.Ledger, delta: float) -> tuple[Any, iw.SyntheticTable]:
        made = self._made()
        if self._kept:  # without privacy no budget changes the rows
            facts = PublicFacts(self._rows.data.schema, self._n, self._n_synthetic)
            ledger.charge(*made.events(facts, epsilon=epsilon, delta=delta))
            ledger._register(self._kept[0].fingerprint())  # as its training would have done with this ledger
            return self._kept
        found = made.fit(self._rows.private, ledger, epsilon=epsilon, delta=delta)
        table = found.sample(self._n_synthetic, random_seed=self._seed)
        self._kept = (found, table) if self._free else None
        return found, table

    def _outcome(self, method: str, table: Any, weights: iw.Weights, ledger: iw.Ledger, start: float) -> Outcome:
        seconds = time.perf_counter() - start
        statement = ledger.statement()
        release = iw.Release(table, weights, statement, n_private=self._n)
        return Outcome(method, release, float(price(statement.events, ledger.delta)[0]), seconds)

    def _generator_alone(self, methods: Sequence[str]) -> Iterator[Outcome]:
        ledger, start = self._ledger(self._seed), time.perf_counter()
        fitted, table = self._fitted(self._epsilon, ledger, self._rows.delta)
        weights = {"None": iw.Weights(np.zeros(len(table)), "none")}
        if len(methods) > 1:
            provider = iw.paper.DiscriminatorWeights(fitted)
            own = provider.fit(self._rows.private, table, ledger, epsilon=self._epsilon, delta=0.0)
            weights |= {"Discriminator": own, SMOOTHED: own.psis()}
        for method in methods:
            yield self._outcome(method, table, weights[method], ledger, start)

    def _calibrated_discriminator(self) -> Outcome:
        ledger, start, delta = self._ledger(self._seed), time.perf_counter(), self._rows.delta / 2
        share = GENERATOR_SHARE  # of the calibration: the generator needs more than it
        fitted, table = self._fitted(self._epsilon * (1 - share), ledger, delta)
        provider = iw.paper.BetaCalibratedWeights(iw.paper.DiscriminatorWeights(fitted))
        epsilon = self._epsilon * (1 if self._free else share)
        weights = provider.fit(self._rows.private, table, ledger, epsilon=epsilon, delta=delta)
        return self._outcome(CALIBRATED, table, weights, ledger, start)

    def _where_it_exists(self, method: str, *how: Any) -> Iterator[Outcome]:
        """Leave out BetaDebiased where its factor does not exist: with so much noise the formula has no value."""
        try:
            yield self._weighted(method, *how)
        except ValueError as refusal:
            if method != "BetaDebiased":
                raise
            print(f"no {method}: {refusal}", file=sys.stderr)

    def _weighted(
        self, method: str, provider: Any, table: Any, spent: Sequence[iw.Event], delta: float, share: float
    ) -> Outcome:
        ledger = self._ledger(1000 + self._seed, delta)
        ledger.charge(*spent)
        start = time.perf_counter()
        epsilon = self._epsilon * (1 if self._free else 1 - share)
        # the generator has the other half of delta, where it uses any
        part = 0.0 if provider.pure else delta if self._free else delta / 2
        weights = provider.fit(self._rows.private, table, ledger, epsilon=epsilon, delta=part)
        return self._outcome(method, table, weights, ledger, start)

    def published(self, method: str, delta: float, **settings: Any) -> Outcome:
        """Release by `publish` with its defaults, or other ``settings``."""
        start = time.perf_counter()
        release = iw.publish(
            self._rows.private, epsilon=self._epsilon, delta=delta,
            noise=iw.SeededNoise(self._seed), random_seed=self._seed,
            generator=self._made(), progressbar=False, n_synthetic=self._n_synthetic, **settings,
        )  # fmt: skip
        return Outcome(method, release, release.statement.epsilon, time.perf_counter() - start)


#: Options that make runs small.
SMALL = {"rows": "private rows at most, and rows to judge by", "steps": "steps of networks, instead of the usual ones"}


def options(
    document: str | None, name: str, *, seeds: int | None, small: Sequence[str] = tuple(SMALL)
) -> argparse.ArgumentParser:
    """Start a parser with the options that every script has, and those of `SMALL` that this one has."""
    parser = command.parser(document)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="folder of the data sets")
    parser.add_argument("--output", type=Path, default=Path("paper"), help="folder for CSV, tables and pictures")
    parser.add_argument("--seeds", type=int, default=seeds, help=f"{seeds or 'as usual'} where nothing is said")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes, one thread each")
    for option in small:
        parser.add_argument(f"--{option}", type=int, help=f"{SMALL[option]}; results have a folder of their own")
    parser.set_defaults(name=name)
    return parser


def run(
    work: Callable[[argparse.Namespace], int | None],
    parser: argparse.ArgumentParser,
    smoke: Sequence[str],
    argv: Sequence[str] | None,
) -> int:
    """Do the work as `command.run` does, in a folder of results that is there; small runs have one of their own."""

    def in_folder(settings: argparse.Namespace) -> int | None:
        small = [f"{option}_{value}" for option in SMALL if (value := getattr(settings, option, None))]
        settings.output = settings.output / "_".join(small)
        settings.output.mkdir(parents=True, exist_ok=True)
        return work(settings)

    return command.run(in_folder, parser, smoke, argv)


def _quietly(run: Callable[..., list[dict[str, Any]]], *job: Any, **known: Any) -> list[dict[str, Any]]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return run(*job, **known)


def collect(
    run: Callable[..., list[dict[str, Any]]], keys: Sequence[str], jobs: Sequence[tuple], settings: argparse.Namespace,
    by: Sequence[str] = (), **known: Any,
) -> pd.DataFrame:  # fmt: skip
    """Run what ``OUTPUT/NAME-CODE.csv`` does not hold, in a few processes, and append it there.

    CODE is a digest of all code, so that a file has rows of one version only.

    Parameters
    ----------
    run : callable
        From a job's parts, and ``known`` by name, to rows. A function of a module.
    keys : sequence of str
        Columns in which rows hold the parts of their job.
    jobs : sequence of tuple
    settings : argparse.Namespace
        Of `options`.
    by : sequence of str
        More columns of numbers that distinguish the figures of a result.
    **known
        What all jobs are given.

    Returns
    -------
    pandas.DataFrame
        Rows of these jobs, those from the file among them, in the order of the jobs.

    Raises
    ------
    RuntimeError
        When runs failed, after the others are done and written.
    """
    path = settings.output / f"{settings.name}-{results.digest_of_all()}.csv"
    # "None" is a method, not a missing cell
    parts = [pd.read_csv(path, keep_default_na=False, na_values=[""])] if path.exists() else []
    done = set(parts[0][list(keys)].itertuples(index=False, name=None)) if parts else set()
    failed, rest = [], [job for job in jobs if job not in done]
    for job, found in command.completed(partial(_quietly, run, **known), rest, settings.jobs):
        if reason := found.exception():
            failed.append((job, reason))
            continue
        parts.append(pd.DataFrame(found.result()))
        parts[-1].to_csv(path, mode="a", header=not path.exists(), index=False)
    if failed:  # what went well is in the file
        raise RuntimeError(f"{len(failed)} of {len(jobs)} runs failed: {[job for job, _ in failed]}.") from failed[0][1]
    rows = pd.concat(parts, ignore_index=True)
    order = {job: place for place, job in enumerate(jobs)}
    indices = pd.Series([order.get(key, -1) for key in rows[list(keys)].itertuples(index=False, name=None)])
    found = rows.loc[indices[indices >= 0].sort_values(kind="stable").index].reset_index(drop=True)
    report_means(found, (*keys, *by))
    return found


def report_means(rows: pd.DataFrame, keys: Sequence[str]) -> None:
    """Report mean and standard error over seeds of every number, by the other parts of a job and by words in a row."""
    rows = rows.drop(columns=["refusal"], errors="ignore")
    words = [name for name in rows if rows[name].dtype.kind not in "fiub"]
    by = [name for name in dict.fromkeys((*keys, *words)) if name != "seed"]
    numbers = [name for name in rows if name not in by and name != "seed"]
    groups = rows.astype({name: float for name in numbers}).groupby(by, sort=False, dropna=False)[numbers]
    table(groups.mean().join(groups.sem().add_suffix("_se")).join(groups.size().rename("runs")), n="runs")


def centred(log_weights: np.ndarray) -> np.ndarray:
    """Log weights (row,) of mean one."""
    return np.asarray(log_weights - np.logaddexp.reduce(log_weights) + math.log(len(log_weights)))


def cell(values: pd.Series) -> str:
    """Mean and standard error over seeds."""
    return f"{values.mean():.4g}" + (f" ± {values.sem():.2g}" if len(values) > 1 else "")


def markdown(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Write a table."""
    rows = [head, ["---"] * len(head), *lines]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows) + "\n"


def finish(settings: argparse.Namespace, text: str) -> None:
    """Print a report, and write it beside the results."""
    if "steps" in settings and not find_spec("torch"):
        text += "\ntorch is not installed: no MLP, no DP-MLP and no GAN.\n"
    (settings.output / f"{settings.name}.md").write_text(text)
    results.report(text)
    print(text)


def panels(rows: int, columns: int, width: float = 3.6, height: float = 3.0) -> tuple[Any, Any]:
    """Make a figure with a grid of axes, without a display; each series has a colour and a marker of its own."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    size = (width * columns, height * rows)
    with plt.rc_context({"axes.prop_cycle": plt.cycler(color=COLOURS, marker=list(MARKERS))}):
        return plt.subplots(rows, columns, figsize=size, squeeze=False, layout="constrained")


def dots(axis: Any, parts: Mapping[str, pd.DataFrame], column: str, shown: Sequence[str], *, names: bool) -> None:
    """Draw mean and standard error of a column by method, a line a method and a colour a part.

    Parameters
    ----------
    axis : matplotlib.axes.Axes
    parts : mapping of str to DataFrame
        From a label to rows with the columns "method" and ``column``.
    column : str
    shown : sequence of str
        Methods from top to bottom.
    names : bool
        Write their names.
    """
    for place, (label, part) in enumerate(parts.items()):
        own = part.groupby("method")[column]
        levels = np.array([shown.index(m) for m in own.groups]) + 0.2 * (2 * place - len(parts) + 1)
        axis.errorbar(own.mean(), levels, xerr=own.sem(), linestyle="", markersize=4, label=label)
    lines(axis, shown, names=names)


def lines(axis: Any, shown: Sequence[str], *, names: bool) -> None:
    """Give each method a line of a panel, from top to bottom."""
    axis.set_yticks(range(len(shown)), shown if names else [""] * len(shown))
    axis.invert_yaxis()
    axis.grid(axis="x", alpha=0.3)


def save(figure: Any, settings: argparse.Namespace) -> None:
    """Write the picture beside the results."""
    import matplotlib.pyplot as plt

    path = settings.output / f"{settings.name}.png"
    figure.savefig(path, dpi=110)
    plt.close(figure)
    results.picture(path)
