"""Release files under hostile bytes and killed writers: the same data or one error, the old file or the new one."""

import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from factories import unit_table
from file_tools import as_nobody, open_folder

import iwbayes as iw

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def release():
    return iw.publish(unit_table(40, "xyz"), epsilon=1, delta=1e-6, n_synthetic=60)


@pytest.mark.parametrize(("count", "seed"), [(1000, 1), pytest.param(10_000, 2, marks=pytest.mark.slow)])
def test_mutated_files_load_the_same_data_or_raise_the_one_error(release, tmp_path, count, seed):
    good = release.save(tmp_path / "good.iwb")
    command = [
        *(sys.executable, "-W", "error"),
        str(HERE.parent.parent / "fuzz_release.py"),
        str(good),
        str(count),
        str(seed),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout)
    assert found.pop("MiB") < 200
    assert sum(found.values()) == count
    assert found["refused"] > 0.9 * count / 2 and found["refused, forged"] > 0.5 * count / 2
    assert found["loaded, forged"] > 0


PUBLISHES = """
import sys
sys.path.append(sys.argv.pop())
from factories import unit_table
import iwbayes as iw
private, (path, ledger) = unit_table(40, "xyz"), sys.argv[1:]
iw.publish(private, epsilon=0.1, delta=1e-6)  # all is imported
print("ready", flush=True)
for size in range(61, 1000):
    release = iw.publish(private, epsilon=0.1, delta=1e-6, n_synthetic=size, ledger=iw.Ledger.open(ledger))
    for _ in range(20):
        release.save(path, overwrite=True)
"""


@pytest.mark.parametrize("times", [3, pytest.param(50, marks=pytest.mark.slow)])
def test_a_killed_publisher_leaves_the_old_file_or_the_new_one(release, tmp_path, times):
    rng, path = random.Random(2), release.save(tmp_path / "r.iwb")
    sizes = []
    for index in range(times):
        ledger = tmp_path / f"{index}.ledger"
        iw.Ledger.open(ledger, epsilon=2.0, delta=1e-6)
        command = [sys.executable, "-c", PUBLISHES, str(path), str(ledger), str(HERE.parent.parent)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=HERE) as process:
            assert process.stdout.readline() == b"ready\n"
            time.sleep(rng.uniform(0, 0.8))
            process.send_signal(signal.SIGKILL)
        found, charged = iw.load(path), iw.Ledger.open(ledger).events
        if len(found.synthetic) != (sizes or [60])[-1]:  # a new one: all that it cost is in the ledger
            assert found.statement.events == charged[: len(found.statement.events)]
        sizes.append(len(found.synthetic))
    assert times < 50 or len(set(sizes)) > 1


def test_a_folder_that_cannot_be_written_to_gets_nothing(release):
    with open_folder() as folder:
        release.save(folder / "old.iwb")
        before = (folder / "old.iwb").read_bytes()
        folder.chmod(0o555)
        with as_nobody():
            for name, overwrite in (("new.iwb", False), ("old.iwb", True)):
                with pytest.raises(PermissionError):
                    release.save(folder / name, overwrite=overwrite)
        assert [path.name for path in folder.iterdir()] == ["old.iwb"]
        assert (folder / "old.iwb").read_bytes() == before


FILLS_THE_DISK = """
import resource, signal, sys
from pathlib import Path
import iwbayes as iw
release, ledger = iw.load(sys.argv[1]), iw.Ledger.open(sys.argv[2])
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))  # no file may grow beyond 100 bytes
from iwbayes.release.statement import Event
for use in (
    lambda: release.save(sys.argv[1], overwrite=True),
    lambda: release.save(Path(sys.argv[1]).with_name("other.iwb")),
    lambda: ledger.charge(Event("a count", "laplace", 0.1)),
):
    try:
        use()
    except OSError as error:
        print(error.strerror)
"""


def test_a_write_that_fails_midway_leaves_everything_as_it_was(release, tmp_path):
    path = release.save(tmp_path / "r.iwb")
    iw.Ledger.open(tmp_path / "l", epsilon=1.0, delta=1e-6)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    command = [sys.executable, "-c", FILLS_THE_DISK, str(path), str(tmp_path / "l")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["File too large"] * 3
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before
    assert iw.Ledger.open(tmp_path / "l").events == ()
