"""Every generator and every weight provider with settings that are quick, and rows under a schema of all kinds."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from iwbayes.analyst.regression.named_model import model
from iwbayes.curator.generators.aim.aim import AIM
from iwbayes.curator.generators.aim.mst import MST
from iwbayes.curator.generators.bayesnet.bayesnet import BayesNet
from iwbayes.curator.generators.mixture.mixture import Mixture
from iwbayes.curator.privacy.ledger import Ledger
from iwbayes.curator.weight_providers.tilt import TiltWeights
from iwbayes.curator.weight_providers.uniform import UniformWeights
from iwbayes.paper.adversarial.gan import CGAN, DPCGAN, DPGAN, GAN
from iwbayes.paper.beta_weights import BetaCalibratedWeights
from iwbayes.paper.given_ratio import DiscriminatorWeights, KnownRatioWeights
from iwbayes.paper.logistic_weights import LogisticWeights
from iwbayes.paper.neural_weights import NeuralWeights
from iwbayes.paper.output_noise import OutputNoiseWeights
from iwbayes.paper.pate.pate import PATEGAN
from iwbayes.paper.printed_network import PrintedNeuralWeights
from iwbayes.schema import Binary, Categorical, Date, Integer, Real, Schema
from iwbayes.tables import SyntheticTable


@dataclass(frozen=True)
class Entry:
    """One algorithm under the contract, and a budget that it accepts."""

    name: str
    make: Callable[[], Any]
    epsilon: float = 1.0
    delta: float = 0.0
    #: Epsilon of a ledger that it fits in, where that is more than what it is called.
    room: float = 1.0
    #: The same algorithm with so little shrinkage, or so many steps, that a huge epsilon makes it nearly exact.
    sharp: Callable[[], Any] | None = None
    #: Whether it reads private rows, and adds noise to what it learns.
    free: bool = False
    noisy: bool = True
    #: Whether the scale of its noise can be seen from outside.
    visible: bool = True
    #: Whether this scale depends on rows: it is private under a public number of rows only, and refuses users.
    secret_scale: bool = False
    #: What has to happen under a ledger before.
    prepare: Callable[[Ledger], None] = lambda ledger: None
    module: str | None = None
    #: How far the share of missing cells may be from the private one at a huge epsilon, beside the sampling error:
    #: noise and projection of counts move the law of a column by a little; others draw a table from one posterior draw
    #: (the standard error of a share among the private rows), or learn shares by gradient steps only.
    missing_tolerance: float = 0.01
    #: Columns whose complete rows it counts, where it counts no column's missing cells by themselves.
    complete: tuple[str, ...] = ()

    @property
    def budget(self) -> dict[str, float]:
        return {"epsilon": self.epsilon, "delta": self.delta}


class FittedRatio:
    """A fitted object with a log ratio, as a discriminator is."""

    def log_ratio(self, table: SyntheticTable) -> np.ndarray:
        return table.schema.encode(table.frame)[:, 0]

    def fingerprint(self) -> str:
        return "a discriminator"


def neural(**settings: Any) -> Any:
    options = {"hidden": (8,), "steps": 6, "batch_size": 256, "progressbar": False, "random_seed": 0}
    return NeuralWeights(**{**options, **settings})


def printed(**settings: Any) -> Any:
    options = {"hidden": (8,), "steps": 6, "sampling_probability": 0.5, "progressbar": False, "random_seed": 0}
    return PrintedNeuralWeights(**{**options, **settings})


def mixture(**settings: Any) -> Any:
    return Mixture(**{"n_components": 2, "n_draws": 2, "starts": 1, "progressbar": False, "random_seed": 0, **settings})


def adversarial(kind: Callable[..., Any], **settings: Any) -> Any:
    options = {"steps": 8, "discriminator_steps": 2, "generator_rate": 0.03, "batch_size": 256}
    widths = {"generator_hidden": (16,), "discriminator_hidden": (8,)}
    return kind(**{**options, **widths, "progressbar": False, "random_seed": 0, **settings})


def gan(
    name: str, kind: Callable[..., Any], *, taught: int = 40, missing_tolerance: float = 0.04, delta: float = 0.0,
    room: float = 1.0, noisy: bool = True, visible: bool = True, **settings: Any,
) -> Entry:  # fmt: skip
    """An adversarial generator of few steps; as many as it takes to learn something where that is asked for."""
    make = lambda steps: lambda: adversarial(kind, steps=steps, **settings)  # noqa: E731
    return Entry(
        name, make(8), delta=delta, room=room, sharp=make(taught), noisy=noisy, visible=visible, module="torch",
        missing_tolerance=missing_tolerance,
    )  # fmt: skip


def pate(rounds: int = 4) -> Any:
    options = {"teachers": 30, "rounds": rounds, "votes": 32, "batch_size": 64, "teacher_steps": 3}
    widths = {"generator_hidden": (16,), "student_hidden": (8,), "generator_rate": 0.015}
    return PATEGAN(**options, **widths, progressbar=False, random_seed=0)


GENERATORS = [
    Entry("BayesNet", BayesNet),
    Entry("BayesNet, delta", BayesNet, delta=1e-6),
    Entry("BayesNet, independent columns", lambda: BayesNet(max_parents=0)),
    # few bins: all columns together have fewer cells than ask for a junction tree
    Entry("AIM", lambda: AIM(rounds=3, max_bins=2)),
    Entry("AIM, delta", lambda: AIM(rounds=3, max_bins=2), delta=1e-6),
    Entry("AIM, named sets", lambda: AIM([("age", "sex"), ("region",)], max_bins=2), delta=1e-6),
    Entry("MST", lambda: MST(max_bins=2)),
    Entry("MST, delta", lambda: MST(max_bins=2), delta=1e-6),
    Entry("Mixture", mixture, missing_tolerance=5 * (0.3 * 0.7 / 600) ** 0.5),
    Entry("Mixture, delta", mixture, delta=1e-6, visible=False, missing_tolerance=5 * (0.3 * 0.7 / 600) ** 0.5),
    Entry(
        "Mixture, variational",
        lambda: mixture(method="variational", steps=8),
        delta=1e-6,
        visible=False,
        sharp=lambda: mixture(method="variational", steps=20),
        missing_tolerance=0.3,  # so few steps teach it little
        module="torch",
    ),
    gan("GAN", GAN, room=np.inf, noisy=False),
    gan("CGAN", CGAN, room=np.inf, noisy=False, condition="region"),
    gan("DPGAN", DPGAN, delta=1e-6, visible=False),
    # with a fixed clip norm the scale of its noise can be seen
    gan("DPGAN, clip norm", DPGAN, delta=1e-6, missing_tolerance=0.2, clip_norm=0.5),
    gan(
        "DPGAN, wasserstein",
        DPGAN,
        delta=1e-6,
        visible=False,
        missing_tolerance=0.1,
        taught=60,
        loss="wasserstein",
        discriminator_rate=0.3,
    ),  # fmt: skip
    gan("DPCGAN", DPCGAN, delta=1e-6, condition="sex"),
    Entry("PATEGAN", pate, delta=1e-6, sharp=lambda: pate(20), module="torch", visible=False, missing_tolerance=0.15),
]
PROVIDERS = [
    Entry("TiltWeights", TiltWeights, delta=1e-6),
    Entry("TiltWeights, linear", lambda: TiltWeights(features="linear"), delta=1e-6),
    Entry(
        "TiltWeights for models",
        lambda: TiltWeights(features="products", for_models=["insured ~ age + visits + sex + region"]),
        delta=1e-6,
    ),
    Entry(
        "TiltWeights to scores",
        lambda: TiltWeights(for_models=[model("insured ~ age + visits + sex + region")]),
        delta=1e-6,
        complete=("age", "visits", "sex", "region"),
    ),
    Entry("TiltWeights, cube", lambda: TiltWeights(mechanism="cube", features="linear")),
    Entry("TiltWeights on LogisticWeights", lambda: TiltWeights(base=LogisticWeights(), features="linear"), delta=1e-6),
    Entry(
        "TiltWeights, cube on LogisticWeights",
        lambda: TiltWeights("cube", "linear", base=LogisticWeights(mechanism="objective"), base_share=0.4),
    ),
    Entry("LogisticWeights", LogisticWeights, delta=1e-6, sharp=lambda: LogisticWeights(4e-3)),
    *(
        Entry(
            f"LogisticWeights, {name}",
            lambda name=name: LogisticWeights(0.3, name),
            room=2.0 if name == "paper" else 1.0,
            sharp=lambda name=name: LogisticWeights(4e-3, name),
        )
        for name in ("spherical", "laplace", "objective", "paper")
    ),
    Entry(
        "LogisticWeights, none",
        lambda: LogisticWeights(0.1, "none"),
        room=np.inf,
        noisy=False,
        sharp=lambda: LogisticWeights(4e-3, "none"),
    ),
    Entry(
        "OutputNoiseWeights",
        lambda: OutputNoiseWeights(0.3),
        room=1500.0,
        visible=False,
        sharp=lambda: OutputNoiseWeights(4e-3),
    ),
    Entry(
        "OutputNoiseWeights, gaussian",
        lambda: OutputNoiseWeights(0.3, "gaussian"),
        delta=1e-6,
        room=100.0,
        visible=False,
        sharp=lambda: OutputNoiseWeights(4e-3, "gaussian"),
    ),
    Entry(
        "BetaCalibratedWeights",
        lambda: BetaCalibratedWeights(LogisticWeights()),
        delta=1e-6,
        visible=False,
        sharp=lambda: BetaCalibratedWeights(LogisticWeights(4e-3)),
    ),
    Entry(
        "BetaCalibratedWeights, laplace",
        lambda: BetaCalibratedWeights(LogisticWeights(0.3, "objective"), mechanism="laplace"),
        sharp=lambda: BetaCalibratedWeights(LogisticWeights(4e-3, "objective"), mechanism="laplace"),
    ),
    Entry("UniformWeights", UniformWeights, free=True),
    Entry("KnownRatioWeights", lambda: KnownRatioWeights(DISCRIMINATOR.log_ratio), free=True),
    Entry(
        "DiscriminatorWeights",
        lambda: DiscriminatorWeights(DISCRIMINATOR),
        free=True,
        prepare=lambda ledger: ledger._register("a discriminator"),
    ),
    Entry("NeuralWeights", neural, delta=1e-6, sharp=lambda: neural(steps=60), module="torch"),
    Entry(
        "NeuralWeights, sampled",
        lambda: neural(sampling_probability=0.5, draws=2),
        delta=1e-6,
        sharp=lambda: neural(steps=60, sampling_probability=0.5, draws=2),
        module="torch",
    ),
    Entry(
        "NeuralWeights, none",
        lambda: neural(mechanism="none"),
        room=np.inf,
        noisy=False,
        sharp=lambda: neural(mechanism="none", steps=60),
        module="torch",
    ),
    Entry(
        "PrintedNeuralWeights",
        printed,
        delta=1e-6,
        room=0.1,
        sharp=lambda: printed(steps=200, clip_norm=2.0, learning_rate=0.5),
        module="torch",
        visible=False,
        secret_scale=True,
    ),
]
DISCRIMINATOR = FittedRatio()


SCHEMA = Schema(
    Real("age", 0, 100, missing=True),
    Real("income", 0, 1e6, transform="log1p"),
    Integer("visits", 0, 2_000_000, missing=True),
    Integer("children", 0, 4),
    Binary("insured"),
    Binary("sex", levels=("woman", "man"), missing=True),
    Categorical("region", levels=("north", "south", "east"), missing=True),
    Date("since", "2010-01-01", "2019-12-31", unit="month"),
).admitting("refuse")  # as it is published: dates are numbers of this package
#: Private numbers that no other part of a test holds: where they appear, a private row has leaked.
CANARY_AGE, CANARY_VISITS = 41.2345678912, 1_234_567
MISSING_SHARE = 0.3


def rows(n: int, seed: int, missing: float = MISSING_SHARE) -> pd.DataFrame:
    """A table under SCHEMA with canaries in the first row and missing cells where they are declared."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "age": rng.uniform(0, 100, n),
            "income": rng.lognormal(9, 1, n),
            "visits": rng.integers(0, 2_000_000, n).astype(float),
            "children": rng.integers(0, 5, n),
            "insured": rng.integers(0, 2, n),
            "sex": rng.choice(["woman", "man"], n).astype(object),
            "region": rng.choice(["north", "south", "east"], n, p=[0.6, 0.3, 0.1]).astype(object),
            "since": np.datetime64("2010-01-01", "s") + rng.integers(0, 86400 * 3652, n),
        }
    )
    for column in SCHEMA:
        if column.missing:
            frame.loc[rng.random(n) < missing, column.name] = np.nan
    frame.loc[0, ["age", "visits"]] = CANARY_AGE, CANARY_VISITS
    return frame
