"""Ledgers in files: charges outlast crashes, no two processes overspend, and a damaged file is refused."""

import errno
import json
import math
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time

import pandas as pd
import pytest
from factories import unit_schema, unit_table
from file_tools import as_nobody, open_folder
from hypothesis import given, settings
from hypothesis import strategies as st

import iwbayes as iw
from iwbayes.curator.privacy import ledger_file
from iwbayes.curator.privacy.filters import Cost, begin_rule
from iwbayes.curator.privacy.ledger_file import LedgerFile
from iwbayes.curator.privacy.ledger_record import Charge, LedgerRecord
from iwbayes.release.statement import NOISE_KINDS, Event

COUNT = Event("a count", "laplace", 0.25)
SCHEMA = unit_schema()


@pytest.fixture
def path(tmp_path):
    return tmp_path / "people.ledger"


def begin(path, epsilon=1.0, delta=1e-6, **options):
    return iw.Ledger.open(path, epsilon=epsilon, delta=delta, **options)


def test_what_was_charged_is_there_when_the_ledger_is_opened_again(path):
    first = begin(path, adjacency="zero-out")
    first.charge(COUNT)
    first.charge(Event("steps", "dp-sgd", 0.3, 1e-7, 20.0, 1, 0.01, 50))
    second = iw.Ledger.open(path)
    assert second.events == first.events and second.spent == first.spent
    assert (second.epsilon, second.delta, second.adjacency) == (1.0, 1e-6, "zero-out")
    assert second.statement() == first.statement() and second.statement().noise == "floating-point"
    second.charge(COUNT)
    assert len(first.events) == 3  # an open ledger sees what others charge
    with pytest.raises(iw.BudgetExceeded, match="nothing was drawn"):
        first.charge(COUNT, COUNT, COUNT)
    assert len(iw.Ledger.open(path).events) == 3


def test_a_ledger_in_a_file_costs_what_one_in_memory_costs(path):
    kept, free = begin(path), iw.Ledger(1.0, 1e-6)
    for ledger in (kept, free):
        ledger.charge(COUNT)
        ledger.charge(Event("tables", "laplace", 0.01, count=20))
    assert kept.spent == free.spent and repr(kept) == repr(free)
    assert kept.would_cost(COUNT) == free.would_cost(COUNT)


def test_a_budget_begins_a_ledger_and_never_changes(path):
    with pytest.raises(FileNotFoundError, match="Pass epsilon and delta"):
        iw.Ledger.open(path)
    with pytest.raises(ValueError, match="Pass both"):
        iw.Ledger.open(path, epsilon=1.0)
    with pytest.raises(FileNotFoundError, match="folder .* does not exist"):
        begin(path.parent / "no" / "people.ledger")
    with pytest.raises(ValueError, match="epsilon must be positive"):
        begin(path, epsilon=-1.0)
    assert list(path.parent.iterdir()) == []
    begin(path).charge(COUNT)
    assert len(begin(path).events) == 1
    for other in ({"epsilon": 2.0}, {"delta": 1e-5}):
        with pytest.raises(iw.LedgerError, match="does not change"):
            begin(path, **other)
    with pytest.raises(iw.LedgerError, match="has the adjacency 'replace-one', which does not change"):
        iw.Ledger.open(path, adjacency="zero-out")


def test_an_infinite_budget_is_kept_as_one(path):
    begin(path, epsilon=math.inf).charge(Event("no noise", "none", math.inf))
    ledger = iw.Ledger.open(path)
    assert ledger.epsilon == math.inf and not ledger.statement().certified


def test_seeded_noise_notes_and_products_outlast_the_program(path):
    ledger = begin(path, noise=iw.SeededNoise(1))
    ledger.charge(COUNT)
    ledger.note("an outside table")
    ledger._register("abc")
    again = iw.Ledger.open(path)
    assert again.holds("abc") and not again.holds("abd")
    assert again.statement().notes == ("an outside table",) and again.statement().noise == "seeded"
    assert begin(path.with_name("other")).statement().noise == "hardened"


def test_an_outside_table_is_charged_once_over_several_programs(path):
    table = iw.SyntheticTable(pd.DataFrame({"x": [0.1, 0.9], "y": [0, 1]}), SCHEMA, origin="q", already_spent=(0.3, 0))
    for _ in range(2):
        ledger = begin(path, noise=iw.SeededNoise(1))
        iw.UniformWeights().fit(unit_table(400), table, ledger, epsilon=0.1, delta=0.0)
    assert [event.label for event in iw.Ledger.open(path).events] == ["outside table (q)"]


class WatchingNoise:
    """Notes what the file held when noise was asked for."""

    kind = "seeded"

    def __init__(self, path):
        self.path, self.found = path, None

    def laplace(self, *arguments):
        charges = json.loads(self.path.read_text())["charges"]
        self.found = [event["label"] for charge in charges for event in charge["events"]]
        raise OSError("no entropy")

    gaussian = cube = spherical = noisy_max = laplace


def test_a_charge_is_in_the_file_before_noise_is_drawn_and_stays(path):
    from iwbayes.curator.privacy.mechanisms import laplace

    noise = WatchingNoise(path)
    ledger = begin(path, noise=noise)
    with pytest.raises(OSError, match="entropy"):
        laplace([1.0], sensitivity=1.0, epsilon=0.5, ledger=ledger, label="a mean")
    assert noise.found == ["a mean"]
    assert iw.Ledger.open(path).spent[0] == pytest.approx(0.5)


def test_publish_charges_the_file(path):
    release = iw.publish(unit_table(400), epsilon=0.6, delta=1e-6, ledger=begin(path, epsilon=0.7))
    again = iw.Ledger.open(path)
    assert release.statement == again.statement() and again.spent[0] <= 0.6
    with pytest.raises(iw.BudgetExceeded):
        iw.publish(unit_table(400), epsilon=0.6, delta=1e-6, ledger=again)
    assert again.events == release.statement.events


# --- several processes -------------------------------------------------------------------------------


def _charge_often(path, times, queue):
    ledger = iw.Ledger.open(path)
    done = 0
    for _ in range(times):
        try:
            ledger.charge(Event("a count", "laplace", 0.01))
        except iw.BudgetExceeded:
            continue
        done += 1
    queue.put(done)


def _begin_and_charge(path, barrier, queue):
    barrier.wait()
    begin(path).charge(COUNT)
    queue.put("charged")


def _publish_once(path, barrier, queue):
    private, ledger = unit_table(400), iw.Ledger.open(path)
    barrier.wait()
    try:
        iw.publish(private, epsilon=0.6, delta=1e-6, ledger=ledger)
    except iw.BudgetExceeded:
        queue.put("refused")
    else:
        queue.put("published")


def in_processes(target, count, *arguments):
    """What each of several new processes puts into a queue."""
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    processes = [context.Process(target=target, args=(*arguments, queue)) for _ in range(count)]
    for process in processes:
        process.start()
    found = [queue.get(timeout=120) for _ in processes]
    for process in processes:
        process.join()
    return found


def test_processes_that_charge_at_once_never_overspend(path):
    begin(path, epsilon=0.5, delta=0.0)
    found = in_processes(_charge_often, 3, path, 30)
    events = iw.Ledger.open(path).events
    assert sum(found) == len(events) == 50
    assert iw.Ledger.open(path).spent[0] == pytest.approx(0.5)


def test_of_two_releases_at_once_the_second_is_refused_before_it_is_charged(path):
    begin(path, epsilon=0.7)
    barrier = multiprocessing.get_context("spawn").Barrier(2)
    assert sorted(in_processes(_publish_once, 2, path, barrier)) == ["published", "refused"]
    alone = iw.publish(unit_table(400), epsilon=0.6, delta=1e-6).statement
    events = iw.Ledger.open(path).events
    assert [event.label for event in events] == [event.label for event in alone.events]


CHARGES = """
import os, sys
import iwbayes as iw
from iwbayes.release.statement import Event
ledger = iw.Ledger.open(sys.argv[1])
handed_out = os.open(sys.argv[2], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
print("ready", flush=True)
while True:
    ledger.charge(Event("a count", "laplace", 1e-5))
    os.write(handed_out, b".")  # noise was handed out
"""


def kill_at_random(path, times, rng):
    log = path.with_name("handed_out")
    log.touch()
    before = 0
    for _ in range(times):
        with subprocess.Popen([sys.executable, "-c", CHARGES, str(path), str(log)], stdout=subprocess.PIPE) as process:
            assert process.stdout.readline() == b"ready\n"
            time.sleep(rng.uniform(0, 0.05))
            process.send_signal(signal.SIGKILL)
        events = iw.Ledger.open(path).events
        assert log.stat().st_size <= len(events) <= log.stat().st_size + before + 1
        before += len(events) > log.stat().st_size + before
    return events


@pytest.mark.parametrize("times", [4, pytest.param(50, marks=pytest.mark.slow)])
def test_a_killed_process_never_makes_the_ledger_count_too_little(path, times):
    begin(path, epsilon=1.0, delta=0.0)
    assert kill_at_random(path, times, random.Random(1))
    iw.Ledger.open(path).charge(COUNT)  # and its lock is free
    drafts = [found for found in path.parent.iterdir() if found.suffix == ".tmp"]
    assert len(drafts) <= times


# --- damage ------------------------------------------------------------------------------------------


def test_a_damaged_file_is_refused_and_never_begun_anew(path):
    begin(path).charge(COUNT)
    good = path.read_bytes()
    damaged = [good[:size] for size in (0, 1, len(good) // 2, len(good) - 3)]
    damaged += [good.replace(b"0.25", b"0.05"), good.replace(b'"hardened"', b'"seeded"'), b"[]", b"{}", b"\xff"]
    damaged += [good.replace(b'"format_version": 1', b'"format_version": 9'), b"[" * 100_000, b"NaN"]
    for content in damaged:
        path.write_bytes(content)
        for arguments in ({}, {"epsilon": 1.0, "delta": 1e-6}):
            with pytest.raises(iw.LedgerError, match="cannot be read as a ledger"):
                iw.Ledger.open(path, **arguments)
    assert path.read_bytes() == content


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_any_changed_byte_is_found(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("ledger") / "l"
    begin(path).charge(COUNT)
    good = bytearray(path.read_bytes())
    good[data.draw(st.integers(0, len(good) - 1))] ^= data.draw(st.integers(1, 255))
    path.write_bytes(good)
    try:
        assert iw.Ledger.open(path).events == (COUNT,)  # white space between values is no content
    except iw.LedgerError:
        pass


def test_charges_that_are_gone_are_missed(path):
    ledger = begin(path)
    older = path.read_bytes()
    ledger.charge(COUNT)
    path.write_bytes(older)
    for use in (lambda: ledger.charge(COUNT), ledger.statement, lambda: ledger.spent):
        with pytest.raises(iw.LedgerError, match="has lost charges"):
            use()
    path.unlink()
    with pytest.raises(iw.LedgerError, match="is gone"):
        ledger.charge(COUNT)
    assert not path.exists()


def test_a_ledger_that_is_gone_is_not_begun_anew_while_its_lock_file_stands(path, monkeypatch):
    monkeypatch.setattr(ledger_file, "_GRACE", 0.1)
    begin(path).charge(COUNT)
    content = path.read_bytes()
    path.unlink()
    for arguments in ({}, {"epsilon": 1.0, "delta": 1e-6}):
        with pytest.raises(iw.LedgerError, match="whole budget counts as spent. Restore it from a backup"):
            iw.Ledger.open(path, **arguments)
    assert not path.exists()
    path.write_bytes(content)
    assert len(iw.Ledger.open(path).events) == 1
    path.unlink()
    path.with_name(".people.ledger.lock").unlink()  # as the message says of one that never held anything
    assert begin(path).events == ()


def test_a_process_that_waits_for_the_one_that_begins_finds_its_ledger(path, monkeypatch):
    """The other has made the lock file, and takes the lock and writes some moments later."""
    path.with_name(".people.ledger.lock").touch()
    other = LedgerFile(path)

    def late(seconds):
        with other.lock:
            if not path.exists():
                record = LedgerRecord(1.0, 1e-6, "replace-one", begin_rule(None, 1.0, 1e-6))
                other.write(record.after(record.admit([COUNT])), begins=True)

    monkeypatch.setattr(ledger_file.time, "sleep", late)
    assert begin(path).events == (COUNT,)


def test_processes_that_begin_one_ledger_at_once_share_it(path):
    barrier = multiprocessing.get_context("spawn").Barrier(2)
    assert in_processes(_begin_and_charge, 2, path, barrier) == ["charged"] * 2
    assert len(iw.Ledger.open(path).events) == 2


def test_another_name_of_the_file_is_the_same_ledger(path):
    begin(path)
    other = path.with_name("link")
    other.symlink_to(path)
    iw.Ledger.open(other).charge(COUNT)
    assert other.is_symlink() and len(iw.Ledger.open(path).events) == 1
    os.link(path, path.with_name("hard"))
    with pytest.raises(iw.LedgerError, match="hard links"):
        iw.Ledger.open(path).charge(COUNT)
    assert len(iw.Ledger.open(path).events) == 1


def test_a_full_disk_refuses_the_charge_and_leaves_the_file(path, monkeypatch):
    ledger = begin(path)
    before = path.read_bytes()

    def full(handle):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space left"):
            ledger.charge(COUNT)
    assert path.read_bytes() == before and ledger.events == ()
    assert not list(path.parent.glob("*.tmp"))
    ledger.charge(COUNT)
    assert len(ledger.events) == 1


def test_a_read_only_folder_shows_the_ledger_and_refuses_the_charge():
    with open_folder() as folder:
        begin(folder / "l").charge(COUNT)
        folder.chmod(0o555)
        with as_nobody():
            ledger = iw.Ledger.open(folder / "l")
            assert ledger.spent == (0.25, 0.0)
            with pytest.raises(PermissionError):
                ledger.charge(COUNT)
        assert len(ledger.events) == 1


def test_permissions_are_kept(path):
    ledger = begin(path)
    path.chmod(0o600)
    ledger.charge(COUNT)
    assert path.stat().st_mode & 0o777 == 0o600


numbers = st.floats(1e-6, 1e3)
events = st.builds(Event, st.text(max_size=20), st.just("laplace"), numbers, count=st.integers(1, 9)) | st.builds(
    Event,
    st.text(max_size=20),
    st.just("dp-sgd"),
    numbers,
    st.just(1e-7),
    numbers,
    st.just(1),
    st.just(0.1),
    st.just(5),
)
costs = st.builds(Cost, st.floats(0), st.floats(0, 0.5))
charges = st.builds(
    Charge, st.lists(events, min_size=1, max_size=4).map(tuple), costs, costs, st.none() | st.integers(0, 9)
)


@st.composite
def records(draw):
    epsilon, delta = draw(numbers | st.just(math.inf)), draw(st.floats(1e-12, 0.5))
    return LedgerRecord(
        epsilon,
        delta,
        draw(st.sampled_from(["replace-one", "zero-out", "replace-user"])),
        begin_rule(draw(st.sampled_from(["gdp", "renyi", "basic"])), epsilon, delta),
        noise=draw(st.sampled_from(NOISE_KINDS)),
        notes=draw(st.lists(st.text(), max_size=3).map(tuple)),
        products=draw(st.frozensets(st.text())),
        plan=draw(st.lists(charges, max_size=3).map(tuple)),
        charges=draw(st.lists(charges, max_size=3).map(tuple)),
    )


@settings(max_examples=100, deadline=None)
@given(records())
def test_a_record_is_read_as_it_was_written(tmp_path_factory, record):
    file = LedgerFile(tmp_path_factory.mktemp("record") / "l")
    file.write(record, begins=True)
    assert file.read() == record
