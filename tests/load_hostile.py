"""Load files that are small and ask for much memory: ``python load_hostile.py FILE ...``, a process of its own.

Prints, for each file, the kind and the message of the error, or "loaded", and the growth of memory in MiB since the
start. Memory is limited, so that a mistake fails here and not on the whole machine.
"""

import json
import os
import resource
import sys
from pathlib import Path

import pyarrow.parquet  # noqa: F401 - loaded before the memory is measured

from iwbayes.analyst import arviz_compat
from iwbayes.curator.privacy.ledger import Ledger
from iwbayes.release import load
from iwbayes.release.rehearsals import Rehearsals
from iwbayes.schema import Schema

#: Address space for all files together, in bytes.
MEMORY = 2 * 2**30


def read(path):
    if path.is_dir():
        return Rehearsals.load(path).misfit
    reader = {".iwb": load, ".nc": arviz_compat.load, ".toml": Schema.from_toml, ".ledger": Ledger.open}[path.suffix]
    found = reader(path)
    if path.suffix == ".iwb":
        assert found._repr_html_() and found.summary() and repr(found.weights)
        measurement = found.weights.measurement
        assert measurement is None or measurement.noise_ratio != measurement.clipped_private
    return found


def main(paths):
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
    before, found = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, {}
    for path in map(Path, paths):
        try:
            read(path)
            said = "loaded"
        except (ValueError, OSError) as error:
            said = f"{type(error).__name__}: {error}"
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024
        found[path.name] = [said.replace(str(path), path.name), grown]
    print(json.dumps(found), flush=True)
    os._exit(0)  # on a busy machine, threads of Arrow abort one process in 150 while it ends


if __name__ == "__main__":
    main(sys.argv[1:])
