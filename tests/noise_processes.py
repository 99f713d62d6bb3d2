"""Secrets drawn by every method of `SystemNoise`, in one process or in several: no two may ever agree."""

import copy
import json
import os
import pickle
import random
import sys
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np

from iwbayes.curator.privacy.noise import SystemNoise

#: Integers this wide agree once in 1e15 pairs.
WIDE = 10**15
ZEROS = np.zeros(4, dtype=np.int64)

#: Of each method: values of some calls, each one of so many that two alike come less than once in 1e8 runs.
SECRETS: dict[str, Callable[[Any], list]] = {
    "gaussian": lambda noise: noise.gaussian(ZEROS, float(WIDE)).tolist(),
    "laplace": lambda noise: noise.laplace(ZEROS, float(WIDE)).tolist(),
    "cube": lambda noise: noise.cube(ZEROS, Fraction(WIDE)).tolist(),
    "spherical": lambda noise: noise.spherical(np.zeros(4), 1.0).tolist(),
    "floating_gaussian": lambda noise: noise.floating_gaussian(np.zeros(4), 1.0).tolist(),
    "poisson_sample": lambda noise: [tuple(noise.poisson_sample(200, 0.5).tolist())],
    "permutation": lambda noise: [tuple(noise.permutation(40).tolist())],
    "noisy_max": lambda noise: [tuple(noise.noisy_max(np.zeros(64, dtype=np.int64), 1.0) for _ in range(10))],
}


def secrets_of_objects(method: str) -> list:
    """Draw from one object several times, then from others, copies of it among them."""
    first = SystemNoise()
    others = [SystemNoise(), copy.deepcopy(first), pickle.loads(pickle.dumps(first))]
    return [secret for noise in [first] * 20 + others * 4 for secret in SECRETS[method](noise)]


def secrets_of_methods() -> dict[str, list]:
    return {name: draw(SystemNoise()) for name, draw in SECRETS.items()}


def main() -> None:
    """Draw, fork twice, and print what was drawn before, in each child and after."""
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002 - the global state is what must not matter
    drawn = [secrets_of_methods()]
    for _ in range(2):
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            with os.fdopen(write, "w") as file:
                json.dump(secrets_of_methods(), file)
            os._exit(0)
        os.close(write)
        with os.fdopen(read) as file:
            drawn.append(json.load(file))
        os.waitpid(child, 0)
    drawn.append(secrets_of_methods())
    json.dump(drawn, sys.stdout)


if __name__ == "__main__":
    main()
