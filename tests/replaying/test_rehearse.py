"""Rehearsals: replays of a release by its own settings, from its own rows, in any process, and their folder."""

from __future__ import annotations

import importlib
import json
import math
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from factories import make_statement, release_of, seeded_release, simulated_table, synthetic_table
from numpy.testing import assert_allclose
from scipy import stats

import iwbayes as iw
from iwbayes.analyst.released_tilt import ReleasedTilt
from iwbayes.curator.pipeline import Pipeline
from iwbayes.curator.settings import from_data, to_data
from iwbayes.evidence.unmeasured import unmeasured_features
from iwbayes.release import rehearsal_folder
from iwbayes.release import rehearsals as module_of_rehearsals
from iwbayes.release.rehearsal_folder import RehearsalsError
from iwbayes.release.rehearsals import Rehearsals, population_weights
from iwbayes.replaying import one_replay
from iwbayes.replaying.one_replay import check_replayable, drawn_rows
from iwbayes.utils.warnings import IwbayesWarning

PRIVATE = simulated_table("bernoulli", 300)
RELEASE = seeded_release(PRIVATE, n_synthetic=600)
OTHER = seeded_release(PRIVATE, seed=2, n_synthetic=600)
N = 10


def rehearse(release=RELEASE, n=N, **options) -> Rehearsals:
    return iw.rehearse(release, n, **{"random_seed": 1, "progressbar": False, **options})


@pytest.fixture(scope="module")
def rehearsals():
    return rehearse()


def contents(rehearsals: Rehearsals) -> list[bytes]:
    return [rehearsals._contents[index] for index in range(len(rehearsals))]


def test_a_replay_repeats_what_publish_did():
    """The kept settings, run on the private rows with the noise and the seed of the release, give the release."""
    pipeline = Pipeline.from_data(RELEASE.recipe["settings"], RELEASE.synthetic)
    ledger = iw.Ledger(math.inf, 0.0, noise=iw.SeededNoise(1))
    synthetic, weights = pipeline.run(PRIVATE, ledger, np.random.default_rng(1))
    assert synthetic.fingerprint() == RELEASE.synthetic.fingerprint()
    assert weights.fingerprint() == RELEASE.weights.fingerprint()


def test_rehearsals_are_made_in_the_release_s_own_way(rehearsals):
    assert len(rehearsals) == N
    for replay in rehearsals:
        assert len(replay.synthetic) == len(RELEASE.synthetic) and replay.n_private == RELEASE.n_private
        # the same noise, up to the bound of features that are made of other rows
        own, other = (
            release.weights.measurement.noise.scale / release.weights.measurement.sensitivity
            for release in (replay, RELEASE)
        )
        assert own == pytest.approx(other, rel=1e-6)
    assert len({replay.synthetic.fingerprint() for replay in rehearsals}) == N


def test_rows_are_drawn_in_proportion_to_the_weights_of_the_release():
    n, counts = len(RELEASE.synthetic), np.zeros(len(RELEASE.synthetic))
    heavy = np.where(np.arange(n) < 50, 8.0, np.where(np.arange(n) < 100, 0.0, 1.0))
    with np.errstate(divide="ignore"):
        weighted = replace(RELEASE, weights=iw.Weights(np.log(heavy), "test"), n_private=1000)
    frame = weighted.synthetic.frame.assign(x=np.linspace(-3, 3, n))
    weighted = replace(weighted, synthetic=synthetic_table(frame, weighted.synthetic.schema))
    position = pd.Series(np.arange(n), index=weighted.synthetic.frame["x"].to_numpy())
    rng = np.random.default_rng(0)
    for _ in range(20):
        drawn = drawn_rows(weighted, weighted.weights.values, rng).frame["x"]
        assert len(drawn) == 1000
        counts += np.bincount(position[drawn].to_numpy(), minlength=n)
    expected = 20_000 * heavy / heavy.sum()
    assert counts[50:100].sum() == 0
    share = counts[:50].sum() / 20_000
    assert abs(share - 400 / 900) < 5 * math.sqrt(share * (1 - share) / 20_000)
    assert np.sum((counts - expected)[expected > 0] ** 2 / expected[expected > 0]) < 549 + 5 * math.sqrt(2 * 549)


def test_each_replay_has_a_population_from_the_posterior_of_the_measured_means():
    tilt = ReleasedTilt.of(RELEASE)
    values, phi = RELEASE.weights.values, tilt.features
    spread = np.cov(phi.T, aweights=values, bias=True)
    root = one_replay._opened(RELEASE.to_bytes(), b"")[2]
    # to first order, the means of the population vary as those of the private rows do, given the release
    assert_allclose(spread @ root @ root.T @ spread, tilt.error, atol=1e-3 * np.abs(tilt.error).max())
    shift = root @ np.random.default_rng(1).normal(size=root.shape[1])
    moved = population_weights(RELEASE, {"population": shift.tolist()})
    expected = values * np.exp(phi @ shift)
    assert_allclose(moved, expected / expected.mean(), rtol=1e-9)
    assert_allclose(population_weights(RELEASE, {}), values)
    with pytest.raises(RehearsalsError, match="does not belong to the release"):
        population_weights(RELEASE, {"population": [0.0]})


def test_errors_of_replays_are_those_against_their_own_populations(rehearsals):
    def mean(frame, weights):
        return np.array([np.average(frame["x"].to_numpy(float), weights=weights)])

    table = RELEASE.synthetic.frame
    away = [
        mean(replay.synthetic.frame, replay.weights.values) - mean(table, rehearsals.population(index))
        for index, replay in enumerate(rehearsals)
    ]
    assert rehearsals.spread(mean, random_seed=1).variance == pytest.approx(np.mean(np.square(away)))
    assert len({rehearsals.population(index)[0] for index in range(N)}) == N


def test_a_rehearsal_follows_from_its_seed_and_number_alone(rehearsals):
    with ThreadPoolExecutor(2) as pool:
        assert contents(rehearse(executor=pool)) == contents(rehearsals)
    assert contents(rehearse(n=N + 1))[:N] == contents(rehearsals)
    assert not set(contents(rehearse(random_seed=2))) & set(contents(rehearsals))


def test_processes_give_the_same(rehearsals):
    assert contents(rehearse(n_jobs=2)) == contents(rehearsals)


def test_a_dask_client_gives_its_executor(rehearsals):
    class Client:
        def submit(self, *args: object) -> None:
            raise AssertionError("its futures are not those of the library")

        def get_executor(self) -> ThreadPoolExecutor:
            return ThreadPoolExecutor(1)

    assert contents(rehearse(executor=Client())) == contents(rehearsals)


def test_nothing_is_certified(rehearsals, tmp_path):
    for replay in rehearsals:
        assert not replay.certified and replay.statement.noise == "seeded"
        with pytest.raises(iw.ReleaseError, match="not certified"):
            replay.save(tmp_path / "replay.iwb")


def test_only_rows_of_the_release_are_read(monkeypatch):
    """A canary: every cell that a replay takes for private is one of the release's rows."""
    seen = []

    def run(self, private, *args):
        seen.append(private.frame)
        return real(self, private, *args)

    real = Pipeline.run
    monkeypatch.setattr(Pipeline, "run", run)
    rehearse()
    rows = set(RELEASE.synthetic.frame.itertuples(index=False, name=None))
    assert len(seen) == N and all(set(frame.itertuples(index=False, name=None)) <= rows for frame in seen)


@pytest.mark.parametrize("given", [PRIVATE, PRIVATE.frame, RELEASE.synthetic, "release.iwb"], ids=type)
def test_it_takes_a_release_and_nothing_else(given):
    with pytest.raises(TypeError, match="rehearse takes a Release"):
        rehearse(given)


def test_where_rows_came_from_outside_they_are_kept():
    table = synthetic_table(RELEASE.synthetic.frame, RELEASE.synthetic.schema)
    release = seeded_release(PRIVATE, generator=table)
    found = rehearse(release)
    assert found.release.n_private == release.n_private  # its file has no declared cost of the table
    assert "rows kept unchanged" in repr(found) and found.facts.generator == ""
    assert all(replay.synthetic.frame.equals(table.frame) for replay in found)
    assert len({replay.weights.fingerprint() for replay in found}) == N


@pytest.mark.parametrize(
    ("release", "words"),
    [
        (replace(RELEASE, recipe=None), "does not contain its settings"),
        (
            replace(RELEASE, recipe={"settings": {"generator": None, "weights": None}}),
            "contain no budget for generator and weights",
        ),
        (replace(RELEASE, recipe={"settings": {**RELEASE.recipe["settings"], "weights": None}}), "not plain data"),
        (
            replace(RELEASE, recipe={"settings": {**RELEASE.recipe["settings"], "generator": {"algorithm": "os"}}}),
            "is not an algorithm whose settings",
        ),
        (replace(RELEASE, weights=RELEASE.weights.temper(power=0.5)), "weights of the release were changed"),
        (release_of(RELEASE.synthetic, statement=make_statement()), "does not contain its settings"),
    ],
)
def test_releases_that_cannot_be_replayed(release, words):
    with pytest.raises(ValueError, match=words):
        rehearse(release)


def test_releases_of_users_are_refused():
    rows = PRIVATE.frame.assign(person=np.arange(len(PRIVATE.frame)) // 2)
    private = iw.PrivateTable(rows, PRIVATE.schema, user="person")
    ledger = iw.Ledger(3.0, 1e-6, "replace-user", noise=iw.SeededNoise(1))
    release = iw.publish_users(private, epsilon=3.0, delta=1e-6, grid=[2], ledger=ledger, n_synthetic=100)
    with pytest.raises(ValueError, match="user-level privacy cannot be rehearsed"):
        rehearse(release)


def test_only_algorithms_of_the_registry_are_made():
    assert to_data(object()) is None and to_data(iw.TiltWeights(base=RELEASE.weights)) is None
    for data in ({"algorithm": "Popen"}, {}, None, [], {"algorithm": ["BayesNet"]}):
        with pytest.raises(ValueError, match="is not an algorithm whose settings"):
            from_data(data)
    with pytest.raises(ValueError, match="no setting 'shell'"):
        from_data({"algorithm": "BayesNet", "shell": True})
    with pytest.raises(ValueError, match="max_parents must be"):
        from_data({"algorithm": "BayesNet", "max_parents": -1})
    assert from_data(
        json.loads(json.dumps(to_data(iw.TiltWeights(features="products", for_models=["y ~ x"]))))
    ).for_models == ("y ~ x",)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"n": 9}, ValueError, "n must be a whole number of at least 10"),
        ({"n": 10.5}, ValueError, "n must be"),
        ({"n_jobs": 0}, ValueError, "n_jobs must be"),
        ({"random_seed": "1"}, ValueError, "random_seed must be"),
        ({"executor": 4}, TypeError, "executor must be"),
    ],
)
def test_wrong_arguments(options, error, words):
    with pytest.raises(error, match=words):
        rehearse(**options)


# --- the folder


def names(path):
    return sorted(file.name for file in path.iterdir())


def test_save_and_load(rehearsals, tmp_path):
    path = rehearsals.save(tmp_path / "r")
    assert names(path) == [*(f"{number:04d}.iwb" for number in range(1, N + 1)), "facts.json", "release.iwb"]
    again = Rehearsals.load(path)
    assert again.facts == rehearsals.facts and contents(again) == contents(rehearsals)
    assert len(again[2:5]) == 3 and again[2:5][0].to_bytes() == rehearsals[2].to_bytes()
    with pytest.raises(FileExistsError):
        rehearsals.save(path)
    again.check(RELEASE)
    with pytest.raises(ValueError, match="belong to a different release"):
        again.check(OTHER)


def test_each_file_is_an_ordinary_release_file(rehearsals, tmp_path):
    path = rehearsals.save(tmp_path / "r")
    assert iw.load(path / "0003.iwb").to_bytes() == rehearsals[2].to_bytes()
    assert iw.load(path / "release.iwb").to_bytes() == RELEASE.to_bytes()


def test_replays_that_are_saved_keep_their_numbers(rehearsals, tmp_path):
    """So a folder of a part is continued with the others."""
    path = rehearsals[3:].save(tmp_path / "r")
    assert names(path)[0] == "0004.iwb"
    assert contents(rehearse(path=path)) == contents(rehearsals)


def test_a_save_that_fails_leaves_nothing(rehearsals, tmp_path, monkeypatch):
    def fail(*arguments):
        raise OSError("the disk is full")

    monkeypatch.setattr(rehearsal_folder, "add_replay", fail)
    with pytest.raises(OSError, match="disk is full"):
        rehearsals.save(tmp_path / "r")
    assert not names(tmp_path)


def test_a_run_goes_on_where_it_stopped(rehearsals, tmp_path):
    path = tmp_path / "r"
    rehearse(path=path)
    before = {file.name: file.read_bytes() for file in path.iterdir()}
    (path / "0010.iwb").rename(path / ".0010.iwb.0123456789abcdef.tmp")  # stopped while the last one was written
    (path / "0004.iwb").unlink()
    assert len(Rehearsals.load(path)) == N - 2
    again = rehearse(path=path, random_seed=None, n=N + 1)
    assert contents(again) == contents(rehearse(n=N + 1)) and contents(again)[:N] == contents(rehearsals)
    assert all((path / name).read_bytes() == content for name, content in before.items())


@pytest.mark.parametrize("left", [(), ("release.iwb",), ("release.iwb", ".facts.json.0123456789abcdef.tmp")])
def test_a_start_that_was_interrupted_is_repeated(rehearsals, tmp_path, left):
    path = tmp_path / "r"
    path.mkdir()
    for name in left:
        (path / name).write_bytes(b"a part")
    assert contents(rehearse(path=path)) == contents(rehearsals)


def test_folders_of_others_are_refused(tmp_path):
    path = tmp_path / "r"
    rehearse(path=path)
    before = {file: file.read_bytes() for file in path.iterdir()}
    with pytest.raises(RehearsalsError, match="rehearsals of a different release"):
        rehearse(OTHER, path=path)
    with pytest.raises(RehearsalsError, match="random_seed must be 1, the seed of .*; got 2"):
        rehearse(path=path, random_seed=2)
    other = tmp_path / "diary"
    other.mkdir()
    (other / "notes.txt").write_text("dear diary")
    for wrong in (other, other / "notes.txt"):
        with pytest.raises(RehearsalsError, match="is not a folder of rehearsals"):
            rehearse(path=wrong)
        with pytest.raises(RehearsalsError, match="is not a folder of rehearsals"):
            Rehearsals.load(wrong)
    with pytest.raises(FileNotFoundError):
        Rehearsals.load(tmp_path / "none")
    assert {file: file.read_bytes() for file in path.iterdir()} == before and names(other) == ["notes.txt"]


def test_damage_is_found(rehearsals, tmp_path):
    path = rehearsals.save(tmp_path / "r")
    whole = bytearray((path / "0010.iwb").read_bytes())
    whole[len(whole) // 2] ^= 1
    (path / "0010.iwb").write_bytes(whole)
    with pytest.raises(RehearsalsError, match="contain an invalid release"):
        list(Rehearsals.load(path))
    rng, facts = np.random.default_rng(3), (path / "facts.json").read_bytes()
    for _ in range(60):
        bad = bytearray(facts)
        for place in rng.integers(len(facts), size=3):
            bad[place] = rng.integers(128, 256)
        (path / "facts.json").write_bytes(bad)
        with pytest.raises(RehearsalsError, match="facts.json is damaged"):
            Rehearsals.load(path)


@pytest.mark.parametrize(
    "change",
    [
        {"format": "iwbayes release"},
        {"format_version": 2},
        {"release": 3},
        {"random_seed": True},
        {"random_seed": "1"},
        {"generator": "Bayes\x1b[2J"},
        {"n_synthetic": 1.5},
        {"misfit": "0"},
        {"more": 1},
    ],
    ids=str,
)
def test_facts_that_no_run_has_are_refused(rehearsals, tmp_path, change):
    path = rehearsals.save(tmp_path / "r")
    facts = json.loads((path / "facts.json").read_text())
    (path / "facts.json").write_text(json.dumps({**facts, **change}))
    with pytest.raises(RehearsalsError, match="facts.json is damaged"):
        Rehearsals.load(path)


@pytest.mark.parametrize("text", ["", "[]", "3", "{}", "[" * 100_000, '{"format": 1, "format_version": ' + "9" * 9999])
def test_facts_that_are_no_facts_are_refused(rehearsals, tmp_path, text):
    path = rehearsals[:1].save(tmp_path / "r")
    (path / "facts.json").write_text(text)
    with pytest.raises(RehearsalsError, match="facts.json is damaged"):
        Rehearsals.load(path)


@pytest.mark.parametrize("name", ["0000.iwb", "00003.iwb"])
def test_numbers_that_no_run_writes_are_refused(rehearsals, tmp_path, name):
    path = rehearsals.save(tmp_path / "r")
    (path / "0003.iwb").rename(path / name)
    with pytest.raises(RehearsalsError, match="are not numbered from 0001.iwb on"):
        Rehearsals.load(path)


@pytest.mark.parametrize("name", ["0003.iwb", "release.iwb", "facts.json"])
def test_links_devices_and_gaps_are_refused(rehearsals, tmp_path, name):
    """A link could name any file of the reader, and a pipe would never end."""
    path = rehearsals.save(tmp_path / "r")
    (path / name).rename(tmp_path / "elsewhere")
    for make in (lambda: (path / name).symlink_to(tmp_path / "elsewhere"), lambda: os.mkfifo(path / name)):
        make()
        with pytest.raises(RehearsalsError, match="is not a file of at most"):
            list(Rehearsals.load(path))
        (path / name).unlink()
    if name == "release.iwb":
        with pytest.raises(RehearsalsError, match="is missing"):
            Rehearsals.load(path)


def test_another_release_than_the_facts_name_is_refused(rehearsals, tmp_path):
    path = rehearsals.save(tmp_path / "r")
    (path / "release.iwb").write_bytes(OTHER.to_bytes())
    with pytest.raises(RehearsalsError, match="different release than their facts name"):
        _ = Rehearsals.load(path).release


def test_contents_that_are_no_releases_are_refused(rehearsals, tmp_path):
    for bad in (b"", b"no zip", contents(rehearsals)[0][:500], contents(rehearsals)[0][100:]):
        path = rehearsals[:1].save(tmp_path / str(len(bad)))
        (path / "0001.iwb").write_bytes(bad)
        with pytest.raises(RehearsalsError, match="contain an invalid release"):
            list(Rehearsals.load(path))
        with pytest.raises(RehearsalsError, match="contain an invalid release"):
            _ = Rehearsals.load(path).misfit


def test_an_interrupted_run_keeps_what_it_made(monkeypatch, tmp_path):
    def replay(content, index, seed, models):
        if index == stop:
            raise KeyboardInterrupt
        return real(content, index, seed, models)

    module = importlib.import_module("iwbayes.replaying.rehearse")
    real = module.replay
    monkeypatch.setattr(module, "replay", replay)
    stop = 12
    with pytest.warns(IwbayesWarning, match="12 of 14 rehearsals were made"):
        assert len(rehearse(n=14)) == 12
    stop = 4
    path = tmp_path / "r"
    with pytest.raises(KeyboardInterrupt):
        rehearse(path=path)
    stop = None
    assert len(rehearse(path=path)) == N


def test_replays_that_fail_are_left_out(monkeypatch):
    def replay(content, index, seed, models):
        if index in bad:
            raise ValueError(f"all rows of rehearsal {index} are alike")
        return real(content, index, seed, models)

    module = importlib.import_module("iwbayes.replaying.rehearse")
    real, bad = module.replay, {3}
    monkeypatch.setattr(module, "replay", replay)
    with pytest.warns(IwbayesWarning, match="1 of 12 replays failed; the first error was: all rows of rehearsal 3"):
        assert len(rehearse(n=12)) == 11
    bad = {3, 5}
    with pytest.raises(RuntimeError, match="2 of 12 replays failed"):
        rehearse(n=12)


def test_what_it_shows(rehearsals):
    assert repr(rehearsals) == str(rehearsals)
    assert str(rehearsals) == "Rehearsals(10 of 600 synthetic rows, BayesNet and weights replayed)"
    assert "BayesNet and weights replayed" in rehearsals._repr_html_()


def test_settings_hold_no_seed():
    assert "seed" not in json.dumps(RELEASE.recipe["settings"])
    assert check_replayable(RELEASE).n_synthetic == 600


# --- intervals of statistics


def weighted_mean(rows, weights):
    return float(np.average(rows["x"], weights=weights))


def test_the_interval_of_a_measured_mean_is_that_of_its_replays(rehearsals):
    found = rehearsals.interval(weighted_mean, random_seed=1)
    own = weighted_mean(RELEASE.synthetic.frame, RELEASE.weights.values)
    each = np.array([weighted_mean(replay.synthetic.frame, replay.weights.values) for replay in rehearsals])
    populations = [weighted_mean(RELEASE.synthetic.frame, rehearsals.population(index)) for index in range(N)]
    sd = math.sqrt(np.mean((each - populations) ** 2))
    assert found.estimate == own and found.unrehearsed_share < 0.05
    assert found.sd == pytest.approx(sd, rel=0.03) and rehearsals.release.to_bytes() == RELEASE.to_bytes()
    half = stats.t.ppf(0.95, N) * found.sd
    assert (found.lower, found.upper) == pytest.approx((own - half, own + half))
    wide = rehearsals.interval(weighted_mean, level=0.99, random_seed=1)
    assert wide.upper - own == pytest.approx(stats.t.ppf(0.995, N) * found.sd)


def test_what_was_not_measured_widens_the_interval_of_a_statistic(monkeypatch):
    """By the variance of what the measured terms leave of the statistic's influence."""
    weights = iw.TiltWeights(features="linear", test_of_fit=False)
    release = seeded_release(PRIVATE, n_synthetic=600, weights=weights)
    found = rehearse(release)
    monkeypatch.setattr(module_of_rehearsals, "_SLOPES", 400)

    def product(rows, weights):
        return float(np.average(rows["x"] * rows["z"], weights=weights))

    rows, values = release.synthetic.frame, release.weights.values
    shares = values / values.sum()
    phi = unmeasured_features(rows, release.weights.measurement.features, shares)
    assert_allclose(phi.T @ (phi * shares[:, None]), np.eye(phi.shape[1]), atol=1e-8)
    own = (rows["x"] * rows["z"]).to_numpy() @ (phi * shares[:, None])
    missed = found.misfit * float(own @ own)
    interval = found.interval(product, random_seed=1)
    assert interval.unrehearsed_share * interval.sd**2 == pytest.approx(missed, rel=5 * math.sqrt(2 / 400))
    assert interval.unrehearsed_share > 0.2


def test_statistics_that_have_no_interval(rehearsals):
    with pytest.raises(ValueError, match="level must be"):
        rehearsals.interval(weighted_mean, level=90)
    with pytest.raises(ValueError, match="statistic of the release is not finite"):
        rehearsals.interval(lambda rows, weights: float("nan"))
    calls = iter([1.0] * 3 + [float("nan")] * 100)  # of the release, a replay and its population
    with pytest.raises(ValueError, match="finite in 10 rehearsals or more; got 1"):
        rehearsals.interval(lambda rows, weights: next(calls))
