"""Secrets: canary values in a private table, every public function and command driven, all that comes out searched."""

import io
import json
import logging
import os
import pickle
import pty
import struct
import subprocess
import sys
import tempfile
import traceback
import warnings
import zipfile
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Thread

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pymc as pm
import pytest

import iwbayes as iw
from iwbayes.cli import app

#: Cells of the private table that occur nowhere else, long enough that no synthetic cell has their digits by chance.
AGE, VISITS, PERSON, TEXT = 41.2345678912, 1_739_462_508_137, "person-8675309", "canary-5551212"
SCHEMA = iw.Schema(
    iw.Real("age", 0, 100),
    iw.Real("income", 0, 1e6, transform="log1p"),
    iw.Integer("visits", 0, 2_000_000_000_000, missing=True),
    iw.Binary("insured"),
    iw.Categorical("region", ("north", "south", "east"), missing=True),
)
GERMAN = iw.Schema(*SCHEMA, decimal=",")
MODEL = "insured ~ age + region"


def rows(n=300, seed=1):
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "age": rng.uniform(0, 100, n),
            "income": rng.lognormal(9, 1, n),
            "visits": rng.integers(0, 2_000_000_000_000, n),
            "insured": rng.integers(0, 2, n),
            "region": rng.choice(["north", "south", "east"], n).astype(object),
        }
    )
    frame.loc[:4, "age"], frame.loc[:4, "visits"] = AGE, VISITS
    return frame


def table():
    return iw.PrivateTable(rows(), SCHEMA)


def people():
    frame = rows().assign(person=[PERSON] * 5 + [f"p{place // 2}" for place in range(295)])
    return iw.PrivateTable(frame, SCHEMA, user="person")


def ledger(epsilon=1.0, **options):
    return iw.Ledger(epsilon, 1e-6, **options)


def publish(**options):
    return iw.publish(table(), **{"epsilon": 1.0, "delta": 1e-6, "n_synthetic": 200, **options})


def synthetic():
    return iw.SyntheticTable(rows(200, seed=2).iloc[5:], SCHEMA, origin="elsewhere", already_spent=(0.1, 0.0))


class Interrupted:
    """A noise source that is interrupted at some draw."""

    kind = "seeded"

    def __init__(self, at=1, error=KeyboardInterrupt):
        self._left, self._error, self._source = at, error, iw.SeededNoise(1)

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)

        def draw(*arguments):
            self._left -= 1
            if self._left < 0:
                raise self._error(f"interrupted in {name}")
            return getattr(self._source, name)(*arguments)

        return draw


# --- what comes out, and the search


class Said:
    """Everything that was printed, logged, warned of, raised or returned, and every file that was written."""

    def __init__(self, folder):
        self.folder, self.text, self.content = folder, [], []

    def returned(self, value):
        """Note the printed forms of a result, and its bytes."""
        self.text += [repr(value), str(value)]
        self.content.append(pickle.dumps(value))
        return value

    def fails(self, call, *kinds):
        """Note what an error says, with all its causes."""
        with pytest.raises(kinds or (ValueError, TypeError)) as caught:
            call()
        error = caught.value
        while error is not None:
            self.text += [str(error), repr(error), repr(error.args), *getattr(error, "__notes__", ())]
            error = error.__cause__ or error.__context__
        self.text.append("".join(traceback.format_exception(caught.value)))


def file_texts(path):
    """All that is readable in a file, members of archives and cells of tables included, as bytes."""
    content = path.read_bytes()
    found = [content]
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            members = {name: archive.read(name) for name in archive.namelist()}
        found += members.values()
        for name, member in members.items():
            if name.endswith(".parquet"):
                frame = pq.read_table(io.BytesIO(member)).to_pandas()
                found += [frame.to_csv().encode(), pickle.dumps(frame)]
    return found


FORMS = (
    *(form.encode() for form in (repr(AGE)[:11], str(VISITS), f"{VISITS:,}", PERSON, TEXT)),
    struct.pack("<d", AGE),
    struct.pack("<q", VISITS),
    struct.pack("<d", VISITS),
)


def leaks(content):
    return [form for form in FORMS if form in content]


@contextmanager
def listening(folder):
    """Hold what is printed, logged and warned of meanwhile, then search everything."""
    said, out, log = Said(folder), io.StringIO(), io.StringIO()
    handler = logging.StreamHandler(log)
    root = logging.getLogger()
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    try:
        with warnings.catch_warnings(record=True) as caught, redirect_stdout(out), redirect_stderr(out):
            warnings.simplefilter("always")
            yield said
    finally:
        root.removeHandler(handler)
        root.setLevel(level)
    said.text += [out.getvalue(), log.getvalue(), *(f"{w.message!r} {w.filename}" for w in caught)]
    everything = [text.encode() for text in said.text] + said.content
    for path in folder.rglob("*"):
        everything += [str(path).encode(), *(file_texts(path) if path.is_file() else ())]
    assert len(everything) > 3
    for content in everything:
        assert not leaks(content), content[:2000]


def test_the_canaries_can_be_seen(tmp_path):
    frame = rows()
    assert all(leaks(form) for form in (frame.to_csv().encode(), pickle.dumps(frame), repr(AGE).encode()))
    frame.to_parquet(tmp_path / "a.parquet")
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.write(tmp_path / "a.parquet", "a.parquet")
    assert any(leaks(content) for content in file_texts(tmp_path / "a.zip"))
    for words in ("print(AGE)", "logging.getLogger('x').debug('%s', VISITS)", "warnings.warn(TEXT, stacklevel=1)"):
        with pytest.raises(AssertionError), listening(tmp_path / "none") as said:
            exec(words, globals())
            said.text += ["more"] * 9
    with pytest.raises(AssertionError), listening(tmp_path / "none") as said:
        said.fails(lambda: int(TEXT))


# --- every public name

#: What drives each name that meets private rows.
DRIVERS = {}


def drives(*names):
    def register(function):
        DRIVERS.update(dict.fromkeys(names, function))
        return function

    return register


@drives("read_table")
def drive_reading(said):
    good = rows().to_csv(index=False)
    with tempfile.TemporaryDirectory() as outside:
        path = Path(outside) / "t.csv"
        path.write_text(good)
        iw.PrivateTable(iw.read_table(path, SCHEMA), SCHEMA)
        said.fails(lambda: iw.read_table(path, SCHEMA, drop=["age"]))
        said.fails(lambda: iw.read_table(path, SCHEMA, drop=["ages"]))
        said.fails(lambda: iw.read_table(path.with_name("no.csv"), SCHEMA), OSError)
        path.write_text(f"{AGE}\n{good}")
        said.fails(lambda: iw.read_table(path, SCHEMA, drop=["ages"]))
        for end in (f"{TEXT},1,{VISITS},1,north\n", f"{AGE},1,{VISITS}\n", f'{AGE},"{TEXT}\n', f"{good[9:]},{TEXT}\n"):
            path.write_text(good + end)
            said.fails(lambda: iw.PrivateTable(iw.read_table(path, SCHEMA), SCHEMA))
        path.write_text(good + f"{TEXT},1,{VISITS},1,north\n")
        iw.read_table(path, SCHEMA, on_undeclared="missing")
        german = rows().to_csv(index=False, sep=";", decimal=",")
        for encoding in ("cp1252", "utf-16"):
            form = {"sep": ";", "encoding": encoding}
            path.write_text(german, encoding=encoding)
            iw.PrivateTable(iw.read_table(path, GERMAN, **form), GERMAN)
            said.fails(lambda form=form: iw.PrivateTable(iw.read_table(path, SCHEMA, **form), SCHEMA))
            for wrong in ({"sep": "|"}, {"encoding": "utf-8" if encoding == "utf-16" else "utf-16"}):
                said.fails(lambda form=form | wrong: iw.PrivateTable(iw.read_table(path, GERMAN, **form), GERMAN))
        path.write_bytes(f"{TEXT};{AGE}\n".encode() + german.encode() + f"ä;{TEXT};{VISITS}\n".encode("cp1252"))
        for option in ({}, {"keep_declared": True}, {"keep_declared": True, "user": PERSON[:6]}):
            said.fails(lambda option=option: iw.PrivateTable(iw.read_table(path, SCHEMA, sep=";", **option), SCHEMA))
        path.write_text(f"{good[:-1]},{TEXT}\n")
        said.fails(lambda: iw.read_table(path, SCHEMA, keep_declared=True))
        path.with_suffix(".parquet").write_text(good)
        said.fails(lambda: iw.read_table(path.with_suffix(".parquet"), SCHEMA))
    drive_other_files(said)


def drive_other_files(said):
    """Files of Excel, SPSS and Stata: readers quote cells in errors and warnings; metadata are public."""
    import polars as pl
    import pyreadstat

    with tempfile.TemporaryDirectory() as outside:
        for ending in ("xlsx", "sav", "dta"):
            path = Path(outside) / f"t.{ending}"
            frame = rows().assign(more=TEXT)
            if ending == "xlsx":
                frame.to_excel(path, index=False)
            else:
                getattr(pyreadstat, f"write_{ending}")(frame, str(path))
                said.fails(lambda path=path: iw.Schema.from_codebook(path))
            iw.PrivateTable(iw.read_table(path, SCHEMA, keep_declared=True), SCHEMA)
            narrow = iw.Schema(iw.Binary("age", [0, 1]), *SCHEMA.columns[1:])
            said.fails(lambda path=path: iw.PrivateTable(iw.read_table(path, SCHEMA), SCHEMA))
            said.fails(
                lambda path=path, narrow=narrow: iw.PrivateTable(
                    iw.read_table(path, narrow, keep_declared=True), narrow
                )
            )
            content = path.read_bytes()
            for part in (content[: len(content) // 2], content[:-40] + TEXT.encode()):
                path.write_bytes(part)
                with suppress(ValueError):
                    iw.read_table(path, SCHEMA, keep_declared=True)
            path.write_text(rows().to_csv())
            said.fails(lambda path=path: iw.read_table(path, SCHEMA))
    wrong = pl.DataFrame({"age": [TEXT, str(AGE)]}).lazy().with_columns(pl.col("age").cast(pl.Float64))
    said.fails(lambda: iw.PrivateTable(wrong, SCHEMA))


@drives("shared_users")
def drive_shared_users(said):
    people = [PERSON, TEXT, PERSON]
    iw.validation.shared_users(people, people)
    for other in ([VISITS], [PERSON, None], [[TEXT], PERSON], TEXT):
        said.fails(lambda other=other: iw.validation.shared_users(people, other))


@drives("PrivateTable", "Schema")
def drive_tables(said):
    said.text += [repr(table()), str(table()), repr(people()), f"{table()}"]
    frame = rows()
    broken = [
        frame.assign(age=frame["age"].astype(object).where(frame.index > 2, TEXT)),
        frame.assign(visits=frame["visits"] + AGE),
        frame.assign(region=TEXT),
        frame.assign(insured=VISITS),
        frame.assign(age=np.where(frame.index < 5, np.inf, AGE)),
        frame.assign(age=frame["age"].where(frame.index > 2)),
        frame.assign(**{"more": TEXT}),
        frame.rename(columns={"age": "ages"}),
        frame.drop(columns="age"),
        pd.concat([frame, frame[["age"]]], axis=1),
        frame.iloc[:0],
        frame.to_numpy(),
        frame.assign(age=[[AGE]] * len(frame)),
        frame.assign(age=pd.Timestamp("2020-01-01")),
    ]
    for wrong in broken:
        said.fails(lambda wrong=wrong: iw.PrivateTable(wrong, SCHEMA))
    dated = iw.Schema(iw.Date("day", "2010-01-01", "2019-12-31"))
    for cell in (TEXT, AGE, VISITS, None, f"2010-01-01T{TEXT}"):
        days = pd.DataFrame({"day": pd.Series(["2010-01-02", cell], dtype=object)})
        said.fails(lambda days=days: iw.PrivateTable(days, dated))
        said.returned(iw.PrivateTable(days, dated, on_undeclared="missing").schema)
    for wrong in (*broken[:6], broken[12], broken[13]):  # those that a cell breaks
        for option in ("missing", "other"):
            admitted = iw.PrivateTable(wrong, SCHEMA, on_undeclared=option)
            said.text += [repr(admitted), str(admitted.schema), admitted.on_undeclared]
    said.fails(lambda: iw.PrivateTable(frame, SCHEMA, on_undeclared=frame))
    table_with_text = iw.PrivateTable(broken[2], SCHEMA, on_undeclared="other")
    said.returned(iw.publish(table_with_text, epsilon=1.0, delta=1e-6, n_synthetic=200))
    said.fails(lambda: iw.PrivateTable(frame, SCHEMA, user="person"))
    said.fails(lambda: iw.PrivateTable(frame.assign(person=[None, *[PERSON] * 299]), SCHEMA, user="person"))
    said.fails(lambda: pickle.dumps(table()), TypeError)
    said.fails(lambda: len(people()))
    said.fails(lambda: setattr(table(), "frame", frame), AttributeError)
    said.fails(lambda: SCHEMA.conform(broken[0]))


@drives("publish", "Release", "load", "Ledger", "BudgetExceeded", "Event", "PrivacyStatement", "LedgerError")
def drive_publish(said):
    kept = iw.Ledger.open(said.folder / "a.ledger", epsilon=3.0, delta=1e-6)
    release = publish(ledger=kept)
    said.text += [repr(kept), release.summary(), str(release.recipe), str(release.statement.to_dict())]
    said.returned(release)
    said.returned(iw.load(release.save(said.folder / "a.iwb")))
    said.returned(publish(for_models=[MODEL], adjacency="zero-out", noise=iw.SeededNoise(1)))
    said.fails(lambda: publish(epsilon=9.0, ledger=kept), iw.BudgetExceeded)
    said.fails(lambda: publish(epsilon=-1.0))
    said.fails(lambda: publish(share=2.0))
    said.fails(lambda: publish(for_models=[f"age ~ {TEXT[:6]}"]))
    said.fails(lambda: publish(generator=iw.BayesNet))
    said.fails(lambda: iw.publish(rows(), epsilon=1.0, delta=1e-6))
    said.fails(lambda: iw.publish(people(), epsilon=1.0, delta=1e-6))
    for at in range(3):
        said.fails(lambda at=at: publish(noise=Interrupted(at)), KeyboardInterrupt)
        said.fails(lambda at=at: publish(noise=Interrupted(at, MemoryError)), MemoryError)
    said.fails(lambda: publish(generator=synthetic().frame))


@drives("noisy_utility", "NoisyUtility")
def drive_noisy_utility(said):
    """The comparison with noise is published; without, it is private output, and no driver is asked for it."""
    release, own = publish(), ledger(3.0)
    found = iw.validation.noisy_utility(release, table(), ledger=own, epsilon=0.5, delta=1e-6)
    said.text += [str(found), repr(found), found.to_html(), found.cells.to_csv(), found.means.to_csv(), repr(own)]
    said.fails(lambda: iw.validation.noisy_utility(release, table(), ledger=own, epsilon=9.0), iw.BudgetExceeded)
    said.fails(lambda: iw.validation.noisy_utility(release, people(), ledger=own, epsilon=0.5))
    said.fails(lambda: iw.validation.noisy_utility(release, rows(), ledger=own, epsilon=0.5))
    for at in range(2):
        broken = ledger(3.0, noise=Interrupted(at))
        said.fails(
            lambda broken=broken: iw.validation.noisy_utility(release, table(), ledger=broken, epsilon=0.5, delta=1e-6),
            KeyboardInterrupt,
        )


@drives("publish_users")
def drive_users(said):
    settings = {"epsilon": 2.0, "delta": 1e-6, "n_synthetic": 40, "progressbar": False}
    said.returned(iw.publish_users(people(), grid=[1, 2, 4], **settings))
    for wrong in ({"grid": [2, 1]}, {"share": 2.0}, {"bound_share": 0}, {"n_synthetic": 0}, {"weights": 3}):
        said.fails(lambda wrong=wrong: iw.publish_users(people(), **{"grid": [1, 2], **settings, **wrong}))
    said.fails(lambda: iw.publish_users(table(), grid=[1], **settings))


@drives("bound_contributions")
def drive_bound(said):
    own = ledger(2.0, adjacency="replace-user")
    bounded = iw.bound_contributions(people(), own, epsilon=0.5, grid=[1, 2, 4])
    said.text += [repr(bounded), str(bounded.rows_per_user), repr(own)]
    said.returned(iw.publish(bounded, epsilon=1.0, delta=1e-6, n_synthetic=100, ledger=own))
    for broken in (Interrupted(0), Interrupted(3, OSError)):
        other = ledger(2.0, adjacency="replace-user", noise=broken)
        said.fails(
            lambda other=other: iw.bound_contributions(people(), other, epsilon=0.5, grid=[1, 2]),
            KeyboardInterrupt,
            OSError,
        )
    said.fails(lambda: iw.bound_contributions(people(), own, epsilon=0.5, grid=[2, 1]))
    said.fails(lambda: iw.bound_contributions(people(), ledger(), epsilon=0.5, grid=[1]))
    said.fails(lambda: iw.bound_contributions(table(), own, epsilon=0.5, grid=[1]))


def drive_generator(said, settings, epsilon=1.0, **budget):
    fitted = said.returned(settings.fit(table(), ledger(epsilon), **{"epsilon": 1.0, "delta": 1e-6, **budget}))
    said.returned(fitted.sample(100, random_seed=1))
    said.returned(settings)
    said.fails(lambda: settings.fit(table(), ledger(1e-3), epsilon=1.0, delta=1e-6))
    for broken in (Interrupted(0), Interrupted(0, MemoryError)):
        if epsilon < np.inf:
            own = ledger(noise=broken)
            said.fails(
                lambda own=own: settings.fit(table(), own, epsilon=1.0, delta=1e-6), KeyboardInterrupt, MemoryError
            )


@drives("AIM", "BayesNet", "MST", "Mixture")
def drive_generators(said):
    drive_generator(said, iw.AIM(rounds=2, max_bins=2))
    drive_generator(said, iw.BayesNet())
    drive_generator(said, iw.MST(max_bins=2))
    drive_generator(said, iw.Mixture(n_components=2, n_draws=2, starts=1, random_seed=0))


@drives("DPGAN", "DPCGAN", "PATEGAN", "GAN", "CGAN")
def drive_neural_generators(said):
    pytest.importorskip("torch")
    quick = {"steps": 10, "batch_size": 64, "random_seed": 0, "generator_hidden": (8,), "discriminator_hidden": (8,)}
    drive_generator(said, iw.paper.DPGAN(**quick))
    drive_generator(said, iw.paper.DPCGAN(condition="insured", **quick))
    drive_generator(said, iw.paper.GAN(**quick), epsilon=np.inf)
    drive_generator(said, iw.paper.CGAN(condition="insured", **quick), epsilon=np.inf)
    pate = {"teachers": 10, "rounds": 5, "votes": 16, "batch_size": 32, "teacher_steps": 2, "random_seed": 0}
    drive_generator(said, iw.paper.PATEGAN(**pate, generator_hidden=(8,), student_hidden=(8,)))


def drive_provider(said, settings, epsilon=1.0):
    made = synthetic()
    said.returned(settings.fit(table(), made, ledger(1.1 * epsilon), epsilon=1.0, delta=1e-6))
    said.returned(settings)
    if epsilon == 1.0:
        for broken in (Interrupted(0), Interrupted(0, MemoryError)):
            own = ledger(1.2, noise=broken)
            said.fails(
                lambda own=own: settings.fit(table(), made, own, epsilon=1.0, delta=1e-6),
                KeyboardInterrupt,
                MemoryError,
            )
        said.fails(lambda: settings.fit(table(), made, ledger(0.5), epsilon=1.0, delta=1e-6))
    said.fails(lambda: settings.fit(table(), made.frame, ledger(), epsilon=1.0, delta=1e-6))
    said.fails(lambda: settings.fit(table().frame, made, ledger(), epsilon=1.0, delta=1e-6))


@drives("TiltWeights", "LogisticWeights", "BetaCalibratedWeights", "UniformWeights", "OutputNoiseWeights",
        "KnownRatioWeights", "PrivateLogisticRegression")  # fmt: skip
def drive_providers(said):
    for settings in (
        iw.TiltWeights(),
        iw.TiltWeights("cube", "linear"),
        iw.TiltWeights(features="products", for_models=[MODEL]),
        iw.TiltWeights(for_models=[iw.model(MODEL)]),
        iw.paper.LogisticWeights(),
        iw.paper.LogisticWeights(0.3, "objective"),
        iw.paper.BetaCalibratedWeights(iw.paper.LogisticWeights()),
    ):
        drive_provider(said, settings)
    for free in (iw.UniformWeights(), iw.paper.KnownRatioWeights(lambda rows: np.zeros(len(rows)))):
        said.text.append(repr(free.fit(table(), synthetic(), ledger(), epsilon=1.0, delta=1e-6)))
    drive_provider(said, iw.paper.OutputNoiseWeights(0.3), epsilon=np.inf)
    drive_provider(said, iw.paper.METHODS["LogReg"](), epsilon=np.inf)
    query = iw.paper.PrivateLogisticRegression(target="insured")
    said.returned(query.fit(table(), ledger(), epsilon=1.0, delta=1e-6))
    said.fails(lambda: query.fit(table(), ledger(noise=Interrupted(0)), epsilon=1.0, delta=1e-6), KeyboardInterrupt)
    said.fails(lambda: iw.paper.PrivateLogisticRegression(target="no").fit(table(), ledger(), epsilon=1.0, delta=1e-6))


@drives("NeuralWeights", "PrintedNeuralWeights", "DiscriminatorWeights")
def drive_neural_weights(said):
    pytest.importorskip("torch")
    drive_provider(said, iw.paper.NeuralWeights(hidden=(8,), steps=5, random_seed=0))
    drive_provider(said, iw.paper.PrintedNeuralWeights(hidden=(8,), steps=5, random_seed=0))
    quick = {"steps": 10, "batch_size": 64, "generator_hidden": (8,), "discriminator_hidden": (8,), "random_seed": 0}
    said.returned(publish(generator=iw.paper.DPGAN(**quick), weights=iw.paper.DiscriminatorWeights()))


@dataclass
class Study:
    """What a statistician may have at hand, private rows included: its repr shows some of them."""

    frame: pd.DataFrame

    def build(self, frame):
        with pm.Model() as model:
            x = pm.Data("x", frame["income"] / 1e6)
            pm.Normal("age", pm.Normal("mean", 50, 20) + pm.Normal("slope", 0, 20) * x, 20, observed=frame["age"])
        return model

    def __call__(self, frame):
        return self.build(frame)


def build_with(frame, *, kept):
    return Study(kept).build(frame)


@drives("model")
def drive_models(said):
    """Functions that hold the private frame; a release names them, and its bytes are the same in each process."""
    study = Study(rows())
    assert leaks(repr(study).encode()) and leaks(repr(partial(build_with, kept=study.frame)).encode())
    functions = {
        "build": study.build,
        "partial": partial(build_with, kept=study.frame),
        "closure": closure_of(study),
        "<lambda>": lambda frame: study.build(frame),
        "Study": study,
    }
    for name, function in functions.items():
        model = iw.model(function)
        said.text += [repr(model), str(model), repr(iw.TiltWeights(for_models=[model])), repr([model])]
        release = publish(for_models=[model], noise=iw.SeededNoise(1), random_seed=1)
        assert release.recipe["for_models"] == [name]
        assert f"for_models=['{name}']" in release.recipe["weights"]
        said.text += [str(release), repr(release), release._repr_html_(), str(release.recipe)]
        said.returned(iw.load(release.save(said.folder / f"{len(said.text)}.iwb", allow_uncertified=True)))
        assert b"0x" not in json.dumps(release.recipe).encode()
        failing = iw.model(partial(fail_with, kept=study.frame), name=name)
        said.fails(lambda failing=failing: publish(for_models=[failing]))
        said.fails(lambda function=function: iw.TiltWeights(for_models=function))
        said.fails(lambda function=function: iw.TiltWeights(for_models=[function]))
        said.fails(lambda function=function: publish(for_models=[function]))
        said.fails(lambda function=function: iw.model(function, family="poisson"))
    known = iw.paper.KnownRatioWeights(partial(ratio_with, kept=study.frame))
    said.returned(publish(weights=known, generator=synthetic(), n_synthetic=None).recipe)
    said.text += [repr(known), str(publish(weights=known))]


def closure_of(study):
    def closure(frame):
        return study.build(frame)

    return closure


def fail_with(frame, *, kept):
    raise KeyError("nobody")


def ratio_with(table, *, kept):
    return np.zeros(len(table))


#: Names that take no private row: public declarations, results that the above return, and the analyst's side, which
#: gets a release and never a private table (the layers are tested in test_architecture.py).
PUBLIC_ONLY = {
    "AuditResult", "BetaCalibration", "Binary", "CalibrationWarning", "Categorical", "CoverageStudy", "Date",
    "FiniteVarianceTest", "Integer", "METHODS", "PrivacyWarning", "Real", "Rehearsals", "ReleaseAudit",
    "ReleaseError", "ReplicateWeights", "SeededNoise", "SharedUsers", "SyntheticTable", "SystemNoise", "Weights",
    "WeightsWarning", "__version__", "audit", "audit_release", "averages", "beta_calibrate", "budget", "calibrate",
    "compare", "comparisons", "coverage_study", "datasets", "diagnose", "expected_utility", "finite_variance_test",
    "fit", "forest", "intervals", "log_likelihood", "loo", "marginals", "noise_aware_weights", "odds_ratios",
    "opposite_corners", "overlap", "paper", "pareto_k", "plan", "plan_intervals", "plots", "pool", "ppc", "predictions",
    "regression", "rehearsals", "rehearse", "replicate_weights", "report", "reweight", "sample", "slopes",
    "summary", "validation", "vcov", "weights",
}  # fmt: skip


#: Names whose results are private output, as they say first, and which the above therefore do not concern.
PRIVATE_OUTPUT = {"Utility", "run_without_privacy", "utility"}


def test_every_public_name_is_driven_or_takes_no_private_row():
    assert not set(DRIVERS) & PUBLIC_ONLY
    assert (
        "private output" in iw.validation.utility.__doc__ and "private output" in iw.paper.run_without_privacy.__doc__
    )
    inside = [set(space.__all__) for space in (iw.paper, iw.plots, iw.validation)]
    assert set(DRIVERS) | PUBLIC_ONLY | PRIVATE_OUTPUT == set(iw.__all__).union(*inside)


@pytest.mark.parametrize("driver", dict.fromkeys(DRIVERS.values()), ids=lambda driver: driver.__name__)
def test_nothing_that_comes_out_holds_a_private_value(driver, tmp_path):
    with listening(tmp_path) as said:
        driver(said)


def test_the_analysts_side_holds_no_private_value(tmp_path):
    release = publish(epsilon=5.0, for_models=[MODEL])
    with listening(tmp_path) as said:
        from iwbayes.analyst import arviz_compat

        idata = iw.fit(MODEL, release, family="bernoulli", draws=100, chains=2, random_seed=1)
        said.text += [str(idata), str(iw.diagnose(release, idata)), str(iw.ppc(release, idata))]
        rehearsals = iw.rehearse(release, 10, random_seed=1, path=tmp_path / "replays")
        rehearsed = iw.fit(MODEL, release, rehearsals=rehearsals, draws=100, chains=2, random_seed=1)
        said.text += [repr(rehearsals), rehearsals._repr_html_(), str(iw.diagnose(release, rehearsed)), str(rehearsed)]
        arviz_compat.save(idata, tmp_path / "posterior.nc")
        said.text.append(iw.report(release, idata))
        said.fails(lambda: iw.fit(f"{TEXT[:6]} ~ age", release))


# --- the command line


def in_a_process(line, write):
    """Run a command in a process of its own, which prints to an open file; its exit code."""
    line = [sys.executable, "-m", "iwbayes", *line]
    return subprocess.run(line, stdin=write, stdout=write, stderr=write, check=False).returncode


def in_this_process(line, write):
    """Run a command here, which spares the start of Python; all of this process prints to an open file meanwhile."""
    sys.stdout.flush()
    sys.stderr.flush()
    kept = [os.dup(place) for place in (1, 2)]
    try:
        for place in (1, 2):  # what libraries print below Python, too
            os.dup2(write, place)
        with (
            open(write, "w", closefd=False) as out,
            redirect_stdout(out),
            redirect_stderr(out),
            warnings.catch_warnings(),
        ):
            # those of pytest would make errors of warnings, or keep them
            warnings.simplefilter("always")
            warnings.showwarning = lambda message, *_: print(repr(message), file=sys.stderr)
            logging.getLogger().addHandler(handler := logging.StreamHandler(out))
            try:
                app(line)
            except SystemExit as end:
                return end.code
            except BaseException:
                traceback.print_exc()
                return "not caught"
            finally:
                logging.getLogger().removeHandler(handler)
    finally:
        for place, old in zip((1, 2), kept, strict=True):
            os.dup2(old, place)
            os.close(old)


def command(*arguments, tty=False, run=in_this_process):
    """Run a command; on a terminal where progress is shown. Its exit code, and everything that it prints, as bytes."""
    read, write = pty.openpty() if tty else os.pipe()
    said = []

    def listen():
        with suppress(OSError):  # a terminal whose other end is closed
            while more := os.read(read, 65536):
                said.append(more)

    listener = Thread(target=listen)
    listener.start()
    try:
        code = run([str(argument) for argument in arguments], write)
    finally:
        os.close(write)
        listener.join()
        os.close(read)
    return code, b"".join(said)


def test_what_a_command_says_is_heard():
    words = (
        f"import os, subprocess; print('{TEXT}'); logging.warning('%s', {VISITS}); os.write(1, b'{PERSON}');"
        f"subprocess.run(['echo', '{AGE}'], check=True); warnings.warn('{VISITS:,}'); print(sys.stderr.isatty())"
    )

    def here(line, write):
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(globals(), "app", lambda line: exec(*line))
            return in_this_process(line, write)

    for tty in (False, True):
        code, said = command(words, tty=tty, run=here)
        assert code is None and all(form in said for form in FORMS[:5]), said
        assert said.endswith(b"True\r\n" if tty else b"False\n")
        assert command("raise SystemExit(3)", tty=tty, run=here) == (3, b"")
        code, said = command("raise KeyError(TEXT)", tty=tty, run=here)
        assert code == "not caught" and TEXT.encode() in said
    assert command("--version", run=in_a_process) == command("--version") == (0, f"{iw.__version__}\n".encode())


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("private")
    rows().to_csv(folder / "t.csv", index=False)
    rows().assign(region=TEXT).to_csv(folder / "level.csv", index=False)
    rows().assign(age=TEXT).to_csv(folder / "text.csv", index=False)
    rows().assign(more=TEXT).to_csv(folder / "more.csv", index=False)
    rows().to_csv(folder / "headless.csv", index=False, header=False)
    german = rows().assign(region="Köln").to_csv(index=False, sep=";", decimal=",")
    (folder / "german.csv").write_text(german, encoding="cp1252")
    (folder / "cut.csv").write_text((folder / "t.csv").read_text()[:-9] + f',{TEXT},"{TEXT}')
    (folder / "s.toml").write_text(SCHEMA.to_toml(), encoding="utf-8")
    return folder


@pytest.mark.parametrize("look", [(), ("--look",)], ids=["check", "look"])
@pytest.mark.parametrize(
    ("source", "options", "code"),
    [
        ("t.csv", (), (0, 0)),
        ("t.csv", ("--json", "--n", 300), (0, 0)),
        ("level.csv", ("--json",), (0, 1)),
        ("text.csv", ("--n", 300), (0, 1)),
        ("more.csv", (), (1, 1)),
        ("more.csv", ("--keep-declared",), (0, 0)),
        ("cut.csv", ("--debug",), (0, 1)),
        ("headless.csv", ("--debug",), (1, 1)),
        ("headless.csv", ("--keep-declared", "--json"), (1, 1)),
        ("t.csv", ("--sep", ";"), (1, 1)),
        ("german.csv", ("--sep", ";", "--encoding", "cp1252"), (0, 1)),
        ("german.csv", ("--sep", ";", "--debug"), (0, 1)),
        ("german.csv", ("--encoding", "utf-16", "--debug"), (1, 1)),
    ],
)
def test_no_check_prints_or_writes_a_private_value(folder, source, options, code, look):
    before = {path: path.read_bytes() for path in folder.iterdir()}
    line = ("publish", folder / source, "-s", folder / "s.toml", "--epsilon", 1, "--delta", 1e-6, "--check")
    status, said = command(*line, *look, *options)
    assert status == code[bool(look)], said
    assert said and not leaks(said)
    assert before == {path: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("tty", [False, True])
@pytest.mark.parametrize(
    ("source", "options", "code", "run"),
    [
        ("t.csv", (), 0, in_a_process),  # one that is done and one that fails are processes of their own
        ("t.csv", ("--json",), 0, in_this_process),
        ("t.csv", ("--epsilon", "-1", "--debug"), 1, in_this_process),
        ("level.csv", ("--debug",), 1, in_this_process),
        ("text.csv", ("--debug",), 1, in_a_process),
        ("level.csv", ("--on-undeclared", "other"), 0, in_this_process),
        ("text.csv", ("--on-undeclared", "drop", "--debug"), 1, in_this_process),
        ("more.csv", ("--debug",), 1, in_this_process),
        ("cut.csv", ("--debug",), 1, in_this_process),
    ],
)
def test_no_command_prints_or_writes_a_private_value(folder, tmp_path, source, options, code, run, tty):
    output = tmp_path / "r.iwb"
    budget = () if "--epsilon" in options else ("--epsilon", 1)
    line = ("publish", folder / source, "-s", folder / "s.toml", *budget, "--delta", 1e-6, "-o", output, *options)
    status, said = command(*line, tty=tty, run=run)
    assert status == code, said
    assert said and not leaks(said)
    assert output.exists() is (code == 0)
    for path in Path(tmp_path).rglob("*"):
        assert not any(leaks(content) for content in file_texts(path))
    if code == 0 and not tty:
        for line in (("inspect", output), ("inspect", output, "--json"), ("inspect", folder / "t.csv", "--debug")):
            assert not leaks(command(*line)[1])
