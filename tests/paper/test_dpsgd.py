"""Private gradient steps against brute force: clipping, sums, noise, accounting, refusals."""

import copy
import math
import pickle
import sys
import traceback
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

import iwbayes as iw
from iwbayes.curator.privacy.accounting import dpsgd_multiplier, gaussian_multiplier, price
from iwbayes.curator.privacy.noise import SeededNoise
from iwbayes.paper.dpsgd import row_gradients
from iwbayes.paper.dpsgd.private_steps import PrivateSteps
from iwbayes.paper.dpsgd.row_gradients import clipped_sum, reference_gradients, trainable

BUDGET = {"epsilon": 1.0, "delta": 1e-6}
SECRET = 41.2345678912


@pytest.fixture
def torch():
    return pytest.importorskip("torch")


class ScriptedNoise(SeededNoise):
    """Gives the samples of a script and a constant as noise, and writes down what it was asked for."""

    def __init__(self, samples=None, noise=0.0):
        super().__init__(1)
        self.samples, self.constant = samples, noise
        self.scales, self.rates = [], []

    def floating_gaussian(self, values, scale):
        self.scales.append(scale)
        return values + self.constant

    def poisson_sample(self, n, rate):
        self.rates.append((n, rate))
        return np.arange(n) if self.samples is None else np.array(self.samples.pop(0), dtype=np.int64)


def network(torch, kind="perceptron", seed=1, dtype=None):
    """A network whose parameters come from numpy, so that torch's global state stays out of the tests."""
    nn = torch.nn
    built = {
        "perceptron": lambda: nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1), nn.Flatten(0)),
        "convolution": lambda: nn.Sequential(
            nn.Unflatten(1, (1, 3)), nn.Conv1d(1, 4, 2), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(8, 1)
        ),
        "one number": lambda: Slope(torch),
    }[kind]()
    built = built.to(torch.float64 if dtype is None else dtype)
    rng = np.random.default_rng(seed)
    with torch.no_grad():
        for parameter in built.parameters():
            parameter.copy_(torch.from_numpy(rng.normal(size=parameter.shape)))
    return built


def Slope(torch):  # noqa: N802
    class Slope(torch.nn.Module):
        """One parameter without a shape, and one that is not trained."""

        def __init__(self):
            super().__init__()
            self.slope = torch.nn.Parameter(torch.zeros(()))
            self.fixed = torch.nn.Parameter(torch.ones(3), requires_grad=False)

        def forward(self, x):
            return self.slope * (x @ self.fixed)

    return Slope()


def logistic_loss(f, x):
    import torch

    return torch.nn.functional.softplus(-f(x)).reshape(-1)


def rows_of(torch, n=30, seed=2, scale=1.0, dtype=None):
    values = np.random.default_rng(seed).normal(0, scale, (n, 3))
    return torch.from_numpy(values).to(torch.float64 if dtype is None else dtype)


def single_gradients(torch, net, loss, *rows):
    """Gradient of each row by plain automatic differentiation, one row at a time, shape (row, parameter)."""
    found = []
    for index in range(len(rows[0])):
        value = loss(net, *(part[index : index + 1] for part in rows)).sum()
        parts = torch.autograd.grad(value, list(trainable(net).values()))
        found.append(np.concatenate([part.double().numpy().ravel() for part in parts]))
    return np.array(found)


def clipped(gradients, clip_norm):
    return gradients * np.minimum(1, clip_norm / np.linalg.norm(gradients, axis=1, keepdims=True))


def charged(torch, rows, *, noise=None, ledger=None, **settings):
    settings = {"steps": 3, "clip_norm": 1.0, **settings}
    ledger = ledger or iw.Ledger(1.0, 1e-6, noise=noise or ScriptedNoise())
    return PrivateSteps(**settings).charge(ledger, "test", rows, **BUDGET)


# --- the clipped sum


@pytest.mark.parametrize("kind", ["perceptron", "convolution", "one number"])
def test_the_clipped_sum_is_that_of_single_rows(torch, kind):
    net, rows = network(torch, kind), rows_of(torch)
    exact = single_gradients(torch, net, logistic_loss, rows)
    norms = np.linalg.norm(exact, axis=1)
    for clip_norm in (0.1 * norms.min(), float(np.median(norms)), 2 * norms.max()):
        found = clipped_sum(net, logistic_loss, (rows,), np.arange(30), clip_norm=clip_norm)
        # clipping stops 2**-20 short of the clip norm
        np.testing.assert_allclose(found, clipped(exact, clip_norm).sum(axis=0), atol=30 * clip_norm * 2.0**-20)
    found = clipped_sum(net, logistic_loss, (rows,), np.array([3, 8, 9]), clip_norm=2 * norms.max())
    np.testing.assert_allclose(found, exact[[3, 8, 9]].sum(axis=0), atol=1e-10)


def test_a_loss_may_read_several_tensors_and_a_public_center(torch):
    net, rows = network(torch), rows_of(torch)
    labels = torch.from_numpy(np.random.default_rng(3).integers(0, 2, 30))

    def loss(f, x, label):
        return torch.where(label == 1, torch.nn.functional.softplus(-f(x)), f(x) ** 2)

    exact = single_gradients(torch, net, loss, rows, labels)
    center = [torch.full_like(value, 0.2) for value in trainable(net).values()]
    found = clipped_sum(net, loss, (rows, labels), np.arange(30), clip_norm=0.7, center=center)
    np.testing.assert_allclose(found, clipped(exact - 0.2, 0.7).sum(axis=0), atol=30 * 0.7 * 2.0**-20)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_chunks_do_not_change_the_sum(torch, monkeypatch, dtype):
    dtype = getattr(torch, dtype)
    net, rows = network(torch, dtype=dtype), rows_of(torch, dtype=dtype)
    sums = []
    for size in (1, 7 * 26 * 8, 2**24):
        monkeypatch.setattr(row_gradients, "CHUNK_BYTES", size)
        sums.append(clipped_sum(net, logistic_loss, (rows,), np.arange(30), clip_norm=0.5))
    # a row's own gradient may round differently by its place in a chunk; the sum adds nothing to that
    tolerance = 30 * 0.5 * 8 * torch.finfo(dtype).eps
    for other in sums[1:]:
        np.testing.assert_allclose(other, sums[0], rtol=0, atol=tolerance)
    assert np.abs(sums[0]).max() > 0.1


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_no_row_moves_the_sum_by_more_than_the_clip_norm(torch, dtype):
    dtype = getattr(torch, dtype)
    net, n, clip_norm = network(torch, dtype=dtype), 200, 0.37
    rows = rows_of(torch, n, dtype=dtype)
    rng = np.random.default_rng(4)
    rows[:120] *= torch.from_numpy(10.0 ** rng.uniform(-6, 30, (120, 1))).to(dtype)
    rows[100:103, 0] = torch.tensor([math.nan, math.inf, -math.inf], dtype=dtype)
    alone = np.array([clipped_sum(net, logistic_loss, (rows,), np.array([i]), clip_norm=clip_norm) for i in range(n)])
    norms = np.linalg.norm(alone, axis=1)
    assert np.isfinite(alone).all() and (norms <= clip_norm).all()
    # the fuzz reaches the bound, and rows without a finite gradient count nothing
    assert (norms > 0.999 * clip_norm).sum() > 20
    assert norms[100] == 0
    # a replaced row: two sums over the same places differ by one row's change alone
    base, indices, largest = rows[120:150].clone(), np.arange(30), 0.0
    total = clipped_sum(net, logistic_loss, (base,), indices, clip_norm=clip_norm)
    for row in rows[:120]:
        other = base.clone()
        other[11] = row
        moved = np.linalg.norm(clipped_sum(net, logistic_loss, (other,), indices, clip_norm=clip_norm) - total)
        assert moved <= 2 * clip_norm
        largest = max(largest, moved)
    assert largest > 1.5 * clip_norm
    # a null row: the places without it
    rounding = 30 * clip_norm * 8 * torch.finfo(dtype).eps
    for index in range(30):
        without = clipped_sum(net, logistic_loss, (base,), np.delete(indices, index), clip_norm=clip_norm)
        assert np.linalg.norm(total - without) <= clip_norm + rounding


def test_the_sum_is_exact(torch):
    """Gradients that are one coordinate each: the sum has no rounding that another order could change."""
    net = Slope(torch).double()
    values = 10.0 ** np.random.default_rng(5).uniform(-9, 0, 1000)
    rows = torch.from_numpy(np.stack([values, 0 * values, 0 * values], axis=1))

    def loss(f, x):
        return f(x)

    sums = {
        clipped_sum(net, loss, (rows[order],), np.arange(1000), clip_norm=2.0)[0]
        for order in (np.arange(1000), np.arange(1000)[::-1].copy(), np.random.default_rng(6).permutation(1000))
    }
    assert len(sums) == 1
    # each row is rounded toward zero by less than a step of the grid, which is at most 2**(1 + 10 - 53)
    assert 0 <= math.fsum(values) - sums.pop() < 1000 * 2.0**-42


# --- steps


def test_a_step_divides_by_the_expected_sample_size(torch):
    net, rows = network(torch), rows_of(torch)
    exact = single_gradients(torch, net, logistic_loss, rows)
    noise = ScriptedNoise([[1, 4, 7], [], range(30)])
    gradients = charged(torch, (rows,), noise=noise, sampling_probability=0.5, clip_norm=0.5)
    for indices in ([1, 4, 7], [], list(range(30))):
        found = gradients.gradient(net, logistic_loss)
        flat = np.concatenate([value.numpy().ravel() for value in found.values()])
        expected = clipped(exact, 0.5)[indices].sum(axis=0) / (0.5 * 30)
        np.testing.assert_allclose(flat, expected, atol=30 * 2.0**-20)
        assert {name: value.shape for name, value in found.items()} == {
            name: value.shape for name, value in trainable(net).items()
        }
    assert noise.rates == [(30, 0.5)] * 3


def test_every_step_has_noise_the_empty_one_too(torch):
    net, rows = network(torch), rows_of(torch)
    noise = ScriptedNoise([[], [2], []], noise=0.7)
    ledger = iw.Ledger(1.0, 1e-6, noise=noise)
    gradients = charged(torch, (rows,), ledger=ledger, sampling_probability=0.5, clip_norm=0.3)
    assert len(ledger.events) == 1 and noise.scales == []
    found = [gradients.gradient(net, logistic_loss) for _ in range(3)]
    for index in (0, 2):
        assert all(torch.allclose(value, torch.full_like(value, 0.7 / 15)) for value in found[index].values())
    multiplier = dpsgd_multiplier(1.0, 1e-6, sampling_probability=0.5, steps=3)
    assert noise.scales == [pytest.approx(0.3 * multiplier)] * 3
    assert gradients.noise_sd(99.0) == pytest.approx(0.3 * multiplier / 15)


def test_noise_is_drawn_once_a_step_and_no_step_is_taken_that_was_not_charged(torch):
    net, rows = network(torch), rows_of(torch)
    noise = ScriptedNoise()
    ledger = iw.Ledger(1.0, 1e-6, noise=noise)
    gradients = charged(torch, (rows,), ledger=ledger, steps=3, sampling_probability=0.5)
    (event,) = ledger.events
    assert (event.mechanism, event.steps, event.sampling_probability, event.count) == ("dp-sgd", 3, 0.5, 1)
    assert ledger.spent == (1.0, 1e-6)
    for left in (2, 1, 0):
        gradients.gradient(net, logistic_loss)
        assert gradients.left == left
    with pytest.raises(RuntimeError, match="all 3 charged steps are taken"):
        gradients.gradient(net, logistic_loss)
    assert len(noise.scales) == len(noise.rates) == 3 and len(ledger.events) == 1


def test_a_step_that_fails_is_spent(torch):
    net, rows = network(torch), rows_of(torch)

    class BrokenNoise(ScriptedNoise):
        def floating_gaussian(self, values, scale):
            raise OSError("the source of noise broke")

    gradients = charged(torch, (rows,), noise=BrokenNoise())
    with pytest.raises(OSError, match="broke"):
        gradients.gradient(net, logistic_loss)
    assert gradients.left == 2


def test_too_large_a_budget_charges_and_draws_nothing(torch):
    noise = ScriptedNoise()
    ledger = iw.Ledger(0.5, 1e-6, noise=noise)
    with pytest.raises(iw.BudgetExceeded, match="test"):
        charged(torch, (rows_of(torch),), ledger=ledger)
    with pytest.raises(ValueError, match="same number of rows"):
        charged(torch, (rows_of(torch), rows_of(torch, 29)), ledger=ledger)
    with pytest.raises(ValueError, match="delta above 0"):
        PrivateSteps(3).charge(ledger, "test", (rows_of(torch),), epsilon=0.5, delta=0.0)
    assert ledger.events == () and noise.scales == []


def test_the_noise_is_recorded_as_floating_point(torch):
    ledger = iw.Ledger(1.0, 1e-6)
    assert ledger.statement().noise == "hardened"
    gradients = charged(torch, (rows_of(torch),), ledger=ledger, sampling_probability=0.5)
    found = [gradients.gradient(network(torch), logistic_loss) for _ in range(2)]
    assert ledger.statement().noise == "floating-point" and not ledger.statement().certified
    assert any(not torch.equal(found[0][name], found[1][name]) for name in found[0])


def test_reference_rows_center_and_clip(torch):
    net, rows, public = network(torch), rows_of(torch), rows_of(torch, 300, seed=7, scale=0.5)
    exact = single_gradients(torch, net, logistic_loss, rows)
    reference = single_gradients(torch, net, logistic_loss, public)
    middle = reference.mean(axis=0)
    center, clip_norm = reference_gradients(net, logistic_loss, (public,))
    np.testing.assert_allclose(np.concatenate([part.numpy().ravel() for part in center]), middle, atol=1e-12)
    distance = np.linalg.norm(reference[:256] - middle, axis=1)
    assert clip_norm == pytest.approx(np.quantile(distance, 0.7))
    noise = ScriptedNoise()
    gradients = charged(torch, (rows,), noise=noise, clip_norm=None)
    found = gradients.gradient(net, logistic_loss, (public,))
    flat = np.concatenate([value.numpy().ravel() for value in found.values()])
    np.testing.assert_allclose(flat, middle + clipped(exact - middle, clip_norm).mean(axis=0), atol=1e-5)
    multiplier = dpsgd_multiplier(1.0, 1e-6, sampling_probability=1.0, steps=3)
    assert noise.scales == [pytest.approx(clip_norm * multiplier)]
    with pytest.raises(ValueError, match="reference rows"):
        gradients.gradient(net, logistic_loss)
    assert gradients.left == 2


@pytest.mark.parametrize("mechanism", ["dp-sgd", "none"])
def test_without_noise_and_clipping_training_is_plain_training(torch, mechanism):
    rows, public = rows_of(torch, 60), rows_of(torch, 90, seed=8) - 0.5
    ledger = iw.Ledger(math.inf, 1e-6, noise=ScriptedNoise())
    gradients = charged(torch, (rows,), ledger=ledger, steps=25, clip_norm=50.0, mechanism=mechanism)
    trained, plain = network(torch), network(torch)
    optimizer = torch.optim.SGD(trained.parameters(), lr=0.2, momentum=0.5)
    reference = torch.optim.SGD(plain.parameters(), lr=0.2, momentum=0.5)

    def public_loss(f):
        return torch.nn.functional.softplus(f(public)).mean()

    before = [p.detach().clone() for p in trained.parameters()]
    for _ in range(25):
        gradients.descend(trained, optimizer, logistic_loss, public_loss, (public,))
        reference.zero_grad()
        (logistic_loss(plain, rows).mean() + public_loss(plain)).backward()
        reference.step()
    for found, expected in zip(trained.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
    assert not any(torch.equal(found, old) for found, old in zip(trained.parameters(), before, strict=True))


def test_without_clipping_and_noise_the_cost_is_infinite(torch):
    rows = rows_of(torch)
    with pytest.raises(iw.BudgetExceeded, match="math.inf"):
        charged(torch, (rows,), mechanism="none")
    noise = ScriptedNoise([[0, 5]])
    ledger = iw.Ledger(math.inf, 0.0, noise=noise)
    gradients = charged(torch, (rows,), ledger=ledger, mechanism="none", sampling_probability=0.2)
    found = gradients.gradient(network(torch), logistic_loss)
    exact = single_gradients(torch, network(torch), logistic_loss, rows)[[0, 5]].sum(axis=0) / 6
    np.testing.assert_allclose(np.concatenate([v.numpy().ravel() for v in found.values()]), exact, atol=1e-12)
    assert noise.scales == [] and ledger.spent[0] == math.inf


# --- the price


@pytest.mark.parametrize("adjacency", ["replace-one", "zero-out"])
@pytest.mark.parametrize(("rate", "steps"), [(1.0, 20), (0.3, 20), (0.02, 100)])
def test_the_event_meets_its_budget(adjacency, rate, steps):
    settings = PrivateSteps(steps, rate)
    event = settings.event("steps", **BUDGET, adjacency=adjacency)
    assert price([event], 1e-6, adjacency=adjacency)[0] <= 1.0
    # with 1 % less noise the event's claim is refused
    with pytest.raises(ValueError, match="cost epsilon"):
        price([replace(event, noise_multiplier=0.99 * event.noise_multiplier)], 1e-6, adjacency=adjacency)
    if rate == 1:
        # all rows in each step: Gaussian mechanisms; a replaced row moves the sum by twice the clip norm
        reach = {"replace-one": 2, "zero-out": 1}[adjacency]
        exact = reach * math.sqrt(steps) * gaussian_multiplier(1.0, 1e-6)
        assert exact * (1 - 1e-6) <= event.noise_multiplier <= exact * (1 + 1e-3)


@pytest.mark.parametrize("adjacency", ["replace-one", "zero-out"])
@pytest.mark.parametrize("rate", [0.5, 0.1])
def test_one_sampled_step_has_the_delta_of_its_mixtures(adjacency, rate):
    """A row moves the sum by the clip norm where it is sampled, against nothing or the opposite move."""
    event = PrivateSteps(1, rate).event("one step", **BUDGET, adjacency=adjacency)
    sd = event.noise_multiplier
    z, step = np.linspace(-60 * sd, 60 * sd, 400_001, retstep=True)

    def mixture(move):
        return (1 - rate) * stats.norm.pdf(z, 0, sd) + rate * stats.norm.pdf(z, move, sd)

    first, second = mixture(1.0), mixture(-1.0 if adjacency == "replace-one" else 0.0)
    deltas = [np.maximum(p - math.e * q, 0).sum() * step for p, q in ((first, second), (second, first))]
    assert 0.98e-6 < max(deltas) <= 1e-6 * (1 + 1e-6)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"steps": 0}, "steps"),
        ({"steps": 2.5}, "steps"),
        ({"steps": True}, "steps"),
        ({"sampling_probability": 0.0}, "sampling_probability"),
        ({"sampling_probability": 1.1}, "sampling_probability"),
        ({"sampling_probability": math.nan}, "sampling_probability"),
        ({"clip_norm": 0.0}, "clip_norm"),
        ({"clip_norm": math.inf}, "clip_norm"),
        ({"clip_norm": math.nan}, "clip_norm"),
        ({"mechanism": "gaussian"}, "mechanism"),
    ],
)
def test_wrong_settings_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        PrivateSteps(**{"steps": 5, **settings})


# --- modules


def test_modules_that_mix_or_remember_rows_are_refused(torch):
    nn, rows = torch.nn, (rows_of(torch, dtype=torch.float32),)

    class Remembering(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 1)
            self.register_buffer("seen", torch.zeros(()))

        def forward(self, x):
            self.seen = self.seen + 1
            return self.layer(x)

    class Random(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 1)

        def forward(self, x):
            return self.layer(nn.functional.dropout(x, 0.5))

    frozen = nn.Linear(3, 1).requires_grad_(False)
    cases = [
        (nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)), "mixes the rows"),
        (nn.Sequential(nn.Unflatten(1, (1, 3)), nn.InstanceNorm1d(1, True, track_running_stats=True)), "running stat"),
        (nn.Sequential(nn.Dropout(0.5), nn.Linear(3, 1)), "is random"),
        (Random(), "randomness"),
        (Remembering(), "'seen'"),
        (nn.Linear(3, 1).to(torch.bfloat16), "float32 or float64"),
        (frozen, "parameters that require a gradient"),
        (nn.Linear(2, 1), "on rows of zeros it failed"),
        (nn.Linear(3, 2), "one number per row"),
    ]
    noise = ScriptedNoise()
    gradients = charged(torch, rows, noise=noise)
    for module, message in cases:
        with pytest.raises(ValueError, match=message):
            gradients.gradient(module, logistic_loss)
    assert noise.scales == [] and gradients.left == 3
    quiet = nn.Sequential(nn.Dropout(0.5), nn.Linear(3, 1)).eval()
    assert set(gradients.gradient(quiet, logistic_loss)) == {"1.weight", "1.bias"}


def test_errors_and_printed_forms_hold_no_private_value(torch):
    net, rows = network(torch), rows_of(torch)
    rows[4, 1] = SECRET
    gradients = charged(torch, (rows,))

    def talkative(f, x):
        if bool((x != 0).any()):
            raise ValueError(f"cannot take {SECRET} among {rows.tolist()}")
        return f(x)

    # values decide nothing inside vmap, so the branch is taken where rows are differentiated together
    plain = charged(torch, (rows,), ledger=iw.Ledger(math.inf, 0.0), mechanism="none")
    with pytest.raises(ValueError, match="on rows of zeros it failed"):
        gradients.gradient(net, talkative)

    def failing(f, x):
        if x.shape[0] > 2:
            raise ValueError(f"cannot take {SECRET} among {rows.tolist()}")
        return f(x)

    with pytest.raises(RuntimeError, match="failed; the error is withheld") as caught:
        plain.gradient(net, failing)
    assert str(SECRET)[:8] not in "".join(traceback.format_exception(caught.value))
    assert caught.value.__context__ is None
    assert repr(gradients) == str(gradients) == "PrivateGradients(3 of 3 steps left)"
    for copied in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="cannot be copied"):
            copied(gradients)


def test_the_global_state_of_torch_stays_as_it_is(torch):
    gradients = charged(torch, (rows_of(torch),), sampling_probability=0.5, noise=SeededNoise(1))
    net = network(torch)
    state, threads, dtype = torch.get_rng_state(), torch.get_num_threads(), torch.get_default_dtype()
    gradients.descend(net, torch.optim.SGD(net.parameters(), lr=0.1), logistic_loss)
    assert torch.equal(torch.get_rng_state(), state)
    assert (torch.get_num_threads(), torch.get_default_dtype()) == (threads, dtype)


def test_on_cuda_the_sum_is_the_same(torch):
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    net, rows = network(torch), rows_of(torch)
    expected = clipped_sum(net, logistic_loss, (rows,), np.arange(30), clip_norm=0.5)
    before = [p.detach().clone() for p in net.parameters()]
    found = clipped_sum(net.to("cuda"), logistic_loss, (rows,), np.arange(30), clip_norm=0.5)
    np.testing.assert_allclose(found, expected, atol=1e-12)
    assert all(torch.equal(found.cpu(), old) for found, old in zip(net.parameters(), before, strict=True))


@pytest.mark.parametrize("size", [1, 7 * 26 * 8, 2**28])
def test_on_cuda_no_row_moves_the_sum_by_more_than_the_clip_norm(torch, monkeypatch, size):
    """Rows that are there already, of any size, some at a time; the sum of all is exactly that of the single rows."""
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    monkeypatch.setattr(row_gradients, "DEVICE_CHUNK_BYTES", size)
    net, n, clip_norm = network(torch, dtype=torch.float32).to("cuda"), 60, 0.37
    scales = torch.from_numpy(10.0 ** np.random.default_rng(4).uniform(-6, 30, (n, 1)))
    rows = (rows_of(torch, n) * scales).float().to("cuda")
    alone = np.array([clipped_sum(net, logistic_loss, (rows,), np.array([i]), clip_norm=clip_norm) for i in range(n)])
    norms = np.linalg.norm(alone, axis=1)
    assert np.isfinite(alone).all() and (norms <= clip_norm).all() and (norms > 0.999 * clip_norm).sum() > 10
    total = clipped_sum(net, logistic_loss, (rows,), np.arange(n), clip_norm=clip_norm)
    np.testing.assert_allclose(total, alone.sum(axis=0), rtol=0, atol=n * clip_norm * 8 * 2.0**-23)


def test_without_torch_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    ledger = iw.Ledger(1.0, 1e-6)
    with pytest.raises(ModuleNotFoundError, match="needs the package torch, which is not installed"):
        PrivateSteps(3).charge(ledger, "test", ([1.0],), **BUDGET)
    assert ledger.events == ()
