"""Noise sources that keep a record or follow a script, and what the change of a table costs under them."""

from dataclasses import replace

import numpy as np

import iwbayes as iw


class SilentNoise(iw.SeededNoise):
    """Adds nothing, and writes down what it was asked for: (values, scale) by calls."""

    def __init__(self, seed=0):
        super().__init__(seed)
        self.calls = []

    def _keep(self, values, scale):
        self.calls.append((np.array(values), scale))
        return np.array(values)

    gaussian = laplace = cube = spherical = floating_gaussian = _keep

    def noisy_max(self, scores, scale):
        return int(np.argmax(self._keep(scores, scale)))


class SilentSteps(iw.SeededNoise):
    """Adds nothing to gradients, and writes down at which scales it was asked to."""

    def __init__(self):
        super().__init__(1)
        self.asked = []

    def floating_gaussian(self, values, scale):
        self.asked.append(scale)
        return values


class ScriptedNoise:
    """Outputs that depend on the order of the calls only, so that neighbouring tables take the same path."""

    kind = "seeded"

    def __init__(self, seed):
        self.rng, self.calls = np.random.default_rng(seed), []

    def _script(self, name, values, scale):
        self.calls.append((name, np.array(values), float(scale)))
        return self.rng.integers(0, 30, len(values))

    def __getattr__(self, name):
        if name in ("gaussian", "laplace", "cube"):
            return lambda values, scale: self._script(name, values, scale)
        if name in ("spherical", "floating_gaussian"):
            return lambda values, scale: self._script(name, values, scale) / 30.0
        raise AttributeError(name)

    def noisy_max(self, scores, scale):
        self._script("noisy_max", scores, scale)
        return int(self.rng.integers(len(scores)))

    def poisson_sample(self, n, rate):
        return np.flatnonzero(self.rng.random(n) < rate)

    def permutation(self, n):
        raise AssertionError("a random order of a private number of rows would part the paths of neighbours")


#: Size of a change in units of the noise's scale, as each method's cost counts it.
NORMS = {
    "gaussian": np.linalg.norm,
    "spherical": np.linalg.norm,
    "floating_gaussian": lambda change: np.linalg.norm(change) / 2,  # the accountant knows of both clip norms
    "laplace": lambda change: np.abs(change).sum(),
    "cube": lambda change: np.abs(change).max(),
    "noisy_max": lambda change: 2 * np.abs(change).max(),
}


def shares_of_claims(run, tables, seed, *, epsilon=2.0, delta=1e-6, adjacency="replace-one"):
    """By event, what the change from one table to the other really costs over what was charged for it.

    That is epsilon of a pure mechanism, and 1/multiplier of a Gaussian one.
    """
    calls, charged = [], []
    for table in tables:
        noise = ScriptedNoise(seed)
        ledger = iw.Ledger(epsilon, delta, adjacency, noise=noise)
        run(table, ledger)
        calls.append(noise.calls)
        charged.append(ledger.events)
    assert charged[0] == charged[1]
    if len(calls[0]) < ledger.events[0].count:  # a release of its own for each coordinate of one draw
        calls = [[(name, v[[k]], scale) for name, v, scale in part for k in range(len(v))] for part in calls]
    events = [replace(event, count=1) for event in ledger.events for _ in range(event.count * (event.steps or 1))]
    assert len(events) == len(calls[0]) == len(calls[1]) > 0
    found = []
    for (name, a, scale), (other, b, same) in zip(*calls, strict=True):
        # choices and noise may take turns: each draw is the next event of its kind
        choice = name == "noisy_max"
        event = next(event for event in events if (event.mechanism == "exponential") == choice)
        events.remove(event)
        assert (name, len(a), scale) == (other, len(b), same), event
        claim = 1 / event.noise_multiplier if event.noise_multiplier else event.epsilon
        found.append((event, NORMS[name]((a - b).astype(float)) / scale / claim))
    return found
