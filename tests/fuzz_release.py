"""Load mutated release files: ``python fuzz_release.py GOOD COUNT SEED``; a process of its own, since it limits memory.

Half of the files are mutated as they are: each must load the same data or raise `ReleaseError`. Half are mutated inside
(values of the manifest, bytes of a member) and sealed with fitting checksums, as a forger would: each must load some
valid release or raise `ReleaseError`. Prints what came of them, and the growth of memory in MiB.
"""

import contextlib
import io
import json
import random
import resource
import sys
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
from file_tools import members_of, sealed, zipped

from iwbayes.release import Release, ReleaseError, load

#: More address space than this, in bytes, is never needed to load a small file, whatever it says.
MEMORY = 2**30
ODD = [None, True, -1, 0, 1, 2**31, 2**63, 10**30, 1e308, -0.0, 0.5, "", "x", "\x00", "a" * 300, [], {}, [[]], [None]]


def mutate_bytes(content, rng):
    """One to four changes: bytes flipped, dropped, doubled, moved, set to 0 or 255, or the end cut off."""
    content = bytearray(content)
    for _ in range(rng.choice([1, 1, 1, 2, 4])):
        if not content:
            break
        start = rng.randrange(len(content))
        stop = min(len(content), start + rng.choice([1, 1, 2, 4, 8, 64]))
        kind = rng.randrange(6)
        if kind == 0:
            content[start] ^= 1 << rng.randrange(8)
        elif kind == 1:
            del content[start:stop]
        elif kind == 2:
            content[start:start] = content[start:stop]
        elif kind == 3:
            other = rng.randrange(len(content))
            content[other : other + stop - start] = content[start:stop]
        elif kind == 4:
            content[start:stop] = rng.choice([b"\x00", b"\xff"]) * (stop - start)
        else:
            del content[rng.randrange(len(content)) :]
    return bytes(content)


def mutate_values(content, rng):
    """Change one value somewhere inside plain JSON values, or drop, add or rename one."""
    indices = []

    def walk(node):
        keys = list(node) if isinstance(node, dict) else range(len(node))
        for key in keys:
            indices.append((node, key))
            if isinstance(node[key], dict | list):
                walk(node[key])

    walk(content)
    node, key = rng.choice(indices)
    kind = rng.randrange(4)
    if kind == 0:
        del node[key]
    elif kind == 1 and isinstance(node[key], int | float):
        node[key] = rng.choice([-node[key], node[key] + 1, node[key] * 10**9, node[key] / 3, str(node[key])])
    elif kind == 2:
        node[key] = rng.choice(indices)[0]
        if node[key] is node or node[key] is content:
            node[key] = rng.choice(ODD)
    else:
        node[key] = rng.choice(ODD)


def forge(good, rng):
    """Bytes of a sealed file with one member changed inside."""
    members = members_of(io.BytesIO(good))
    name = rng.choice(["manifest.json", "manifest.json", *members])
    if name == "manifest.json":
        with contextlib.suppress(ValueError, RecursionError):  # a value that contains itself has no JSON
            return zipped(sealed(members, lambda manifest: mutate_values(manifest, rng)))
        return good
    if name.endswith(".npz") and rng.random() < 0.7:  # past the checks of the inner archive
        arrays = members_of(io.BytesIO(members[name]))
        inner = rng.choice(list(arrays))
        arrays[inner] = mutate_bytes(arrays[inner], rng)
        members[name] = zipped(arrays)
    else:
        members[name] = mutate_bytes(members[name], rng)
    return zipped(sealed(members))


def same(first, second):
    return (
        first.synthetic.frame.equals(second.synthetic.frame)
        and first.synthetic.schema == second.synthetic.schema
        and np.array_equal(first.weights.log_weights, second.weights.log_weights)
        and first.statement == second.statement
        and (first.n_private, first.recipe) == (second.n_private, second.recipe)
        and repr(first.weights.measurement) == repr(second.weights.measurement)
    )


def main(path, count, seed):
    good = Path(path).read_bytes()
    whole, rng, found = load(path), random.Random(seed), Counter()
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with tempfile.TemporaryDirectory() as folder:
        mutated = Path(folder) / "r.iwb"
        for index in range(count):
            forged = index % 2 == 1
            content = forge(good, rng) if forged else mutate_bytes(good, rng)
            mutated.write_bytes(content)
            try:
                release = load(mutated)
                assert isinstance(release, Release) and (forged or same(whole, release))
                str(release)
                repr(release.weights.measurement)
            except ReleaseError as error:
                assert str(mutated) in str(error) and "\n" not in str(error) and len(str(error)) < 1000
                found["refused, forged" if forged else "refused"] += 1
            except BaseException:
                Path(path).with_name(f"failing-{seed}-{index}.iwb").write_bytes(content)
                raise
            else:
                found["loaded, forged" if forged else "loaded"] += 1
    found["MiB"] = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
