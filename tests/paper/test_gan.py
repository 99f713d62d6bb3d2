"""GAN, CGAN, DPGAN, DPCGAN: their heads, their steps, what they learn and charge, and refusals."""

import math
import pickle
import sys
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from factories import bounded_table, real_schema, seeded_ledger
from noise_sources import SilentSteps
from provider_tools import progress_outputs
from scipy.special import softmax

import iwbayes as iw
from iwbayes.curator.privacy.accounting import dpsgd_multiplier
from iwbayes.curator.privacy.noise import SeededNoise
from iwbayes.curator.protocols import FittedGenerator, Generator, LogRatio, PublicFacts
from iwbayes.paper.adversarial.gan import FittedGAN, FittedWassersteinGAN
from iwbayes.paper.dpsgd.private_steps import PrivateSteps

torch = pytest.importorskip("torch")

from iwbayes.paper.adversarial.architecture import Architecture, Heads  # noqa: E402
from iwbayes.paper.adversarial.gan_networks import START_SPREAD, _enlarged, make_generator  # noqa: E402
from iwbayes.paper.adversarial.gan_training import LOSSES, Training, TrainingSettings  # noqa: E402

BUDGET = {"epsilon": 1.0, "delta": 1e-6}
MIXED = iw.Schema(
    iw.Real("x", 0, 10, missing=True),
    iw.Categorical("g", ("a", "b", "c"), missing=True),
    iw.Real("y", 1, 1000, transform="log1p"),
    iw.Integer("few", -1, 3, missing=True),
    iw.Binary("b", missing=True),
    iw.Integer("many", 0, 10_000, missing=True),
    iw.Binary("s", levels=("no", "yes")),
    iw.Categorical("h", ("u", "v")),
    iw.Integer("count", 0, 4),
)
SCHEMA = iw.Schema(iw.Real("x", -0.5, 0.5), iw.Binary("y"))


def frame(n, seed):
    """Two levels, and a number around -.25 or .25 by level."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 2, n)
    return pd.DataFrame({"x": np.clip(rng.normal(0.5 * y - 0.25, 0.1), -0.5, 0.5), "y": y})


@pytest.fixture(scope="module")
def private():
    return iw.PrivateTable(frame(400, 1), SCHEMA)


def quick(kind=iw.paper.DPGAN, **settings):
    options = {"steps": 20, "batch_size": 64, "generator_hidden": (8,), "discriminator_hidden": (6,)}
    return kind(**{**options, "random_seed": 3, "progressbar": False, **settings})


def free():
    return seeded_ledger(math.inf)


def draws(heads, n, seed):
    """Raw outputs and Gumbel draws, from numpy."""
    rng = np.random.default_rng(seed)
    raw, gumbel = rng.normal(0, 2, (n, heads.n_raw)), rng.gumbel(size=(n, heads.n_logits))
    return torch.from_numpy(raw), torch.from_numpy(gumbel)


# --- heads


def test_rows_have_exactly_the_form_that_the_schema_encodes():
    """Decoding to a table and encoding it gives the same rows, so that no form tells a discriminator apart."""
    heads = Heads(MIXED)
    raw, gumbel = draws(heads, 500, 1)
    rows = heads.rows(raw, gumbel).numpy()
    table = MIXED.decode(rows)
    again = MIXED.encode(MIXED.conform(table))
    tolerance = np.full(MIXED.n_features, 1e-12)
    tolerance[MIXED.feature_names.index("many")] = 0.5 / 10_000 + 1e-12  # rounded to whole numbers
    assert (np.abs(again - rows) <= tolerance).all()
    for column in MIXED:
        assert table[column.name].isna().any() == column.missing
        assert set(table["few"].dropna()) == {-1, 0, 1, 2, 3} and set(table["g"].dropna()) == {"a", "b", "c"}


def test_each_head_is_the_one_of_its_column():
    """Every head by hand: tanh/2 for numbers, the largest noisy logit for levels, missing cells at zero."""
    schema = iw.Schema(iw.Real("x", 0, 1, missing=True), iw.Categorical("g", ("a", "b")), iw.Binary("b", missing=True))
    heads = Heads(schema)
    assert (heads.n_raw, heads.n_logits, heads.n_given) == (8, 7, 0)
    raw, gumbel = draws(heads, 300, 2)
    rows = heads.rows(raw, gumbel).numpy()
    noisy = raw.numpy()[:, 1:] + gumbel.numpy()
    absent, g, b = (noisy[:, part].argmax(axis=1) for part in (slice(0, 2), slice(2, 4), slice(4, 7)))
    expected = np.column_stack(
        [
            np.where(absent == 1, 0.0, np.tanh(raw.numpy()[:, 0]) / 2),
            absent,
            np.eye(2)[g],
            np.array([-0.5, 0.5, 0.0])[b],
            b == 2,
        ]
    )
    np.testing.assert_allclose(rows, expected, atol=1e-12)


def test_levels_are_drawn_by_the_softmax_of_their_logits():
    heads = Heads(iw.Schema(iw.Categorical("g", ("a", "b", "c"))))
    n, logits = 40_000, np.array([0.3, -1.0, 1.2])
    gumbel = torch.from_numpy(np.random.default_rng(3).gumbel(size=(n, 3)))
    share = heads.rows(torch.from_numpy(np.tile(logits, (n, 1))), gumbel).numpy().mean(axis=0)
    distribution = softmax(logits)
    assert (np.abs(share - distribution) < 5 * np.sqrt(distribution * (1 - distribution) / n)).all()


def test_gradients_are_those_of_the_softmax_and_of_tanh():
    schema = iw.Schema(iw.Categorical("g", ("a", "b", "c")), iw.Real("x", 0, 1))
    heads = Heads(schema)
    raw, gumbel = draws(heads, 50, 4)
    direction = torch.from_numpy(np.random.default_rng(5).normal(size=schema.n_features))
    raw.requires_grad_()
    (found,) = torch.autograd.grad((heads.rows(raw, gumbel) @ direction).sum(), raw)
    free_raw = raw.detach().clone().requires_grad_()
    soft = torch.softmax((free_raw[:, 1:] + gumbel) / 0.7, dim=1)
    value = (soft @ direction[:3] + torch.tanh(free_raw[:, 0]) / 2 * direction[3]).sum()
    (expected,) = torch.autograd.grad(value, free_raw)
    np.testing.assert_allclose(found.numpy(), expected.numpy(), atol=1e-12)


def test_bounds_hold_for_any_raw_output():
    heads = Heads(MIXED)
    raw, gumbel = draws(heads, 200, 6)
    table = MIXED.decode(heads.rows(raw * 1e6, gumbel).numpy())
    pd.testing.assert_frame_equal(table, MIXED.conform(table))  # nothing is clipped
    for column in MIXED:
        if column.kind in ("real", "integer"):
            assert table[column.name].dropna().between(column.lower, column.upper).all()


@pytest.mark.parametrize("condition", ["g", "b", "s"])
def test_a_condition_is_given_and_not_drawn(condition):
    heads, drawn_heads = Heads(MIXED, condition), Heads(MIXED)
    column = MIXED[condition]
    size = len(column.levels) + int(column.missing)
    assert heads.n_given == size and heads.n_raw == drawn_heads.n_raw - size
    codes = np.random.default_rng(7).integers(0, size, 300)
    raw, gumbel = draws(heads, 300, 8)
    given = torch.nn.functional.one_hot(torch.from_numpy(codes), size)
    table = MIXED.decode(heads.rows(raw, gumbel, given).numpy())
    found = column.codes(table[condition])
    np.testing.assert_array_equal(np.where(found < 0, len(column.levels), found), codes)


def test_a_generator_starts_with_independent_columns_that_fill_their_bounds():
    """Public start: numbers as tanh of normal draws, levels even, a tenth of cells missing."""
    heads = Heads(MIXED)
    spec = Architecture(heads, 8, (16,), (4,))
    module = make_generator(spec, np.random.default_rng(1))
    n = 20_000
    with torch.no_grad():
        rows = spec.draw(module, n, torch.Generator().manual_seed(2)).double().numpy()
    table = MIXED.decode(rows)
    absent = table.isna().mean()[[c.name for c in MIXED if c.missing]]
    assert (np.abs(absent - 0.1) < 5 * math.sqrt(0.09 / n)).all()
    for name, size in (("g", 3), ("h", 2), ("count", 5), ("few", 5)):
        shares = table[name].value_counts(normalize=True)
        assert len(shares) == size and (np.abs(shares - 1 / size) < 5 * math.sqrt(0.25 / n)).all()
    numbers = rows[:, heads.numbers]
    drawn = np.tanh(START_SPREAD * np.random.default_rng(3).standard_normal(n)) / 2
    spread = drawn.std()
    present = np.abs(numbers) > 0
    for index in range(numbers.shape[1]):
        values = numbers[present[:, index], index]
        assert abs(values.mean()) < 5 * spread / math.sqrt(len(values))
        assert abs(np.quantile(np.abs(values), 0.5) - np.quantile(np.abs(drawn), 0.5)) < 0.01
    assert np.abs(np.corrcoef(rows[:, [heads.numbers[1], heads.numbers[2]]].T)[0, 1]) < 5 / math.sqrt(n)


# --- steps


def training(settings=None, distribution=None, schema=SCHEMA, condition=None, seed=5):
    spec = Architecture(Heads(schema, condition), 4, (5,), (6,))
    defaults = TrainingSettings("logistic", 10, 2, 4, 50, 1e-2, 0.1, 0.0, 0.1)
    return Training(spec, settings or defaults, distribution, np.random.default_rng(seed), torch.device("cpu"))


def parameters(module):
    return {name: value.detach().clone() for name, value in module.named_parameters()}


@pytest.mark.parametrize("penalty", [0.0, 0.7])
def test_a_step_of_the_discriminator_is_dpsgd_on_private_rows_and_plain_descent_on_synthetic_ones(private, penalty):
    """Without noise and clipping it is one step along the gradient of the whole objective."""
    own = torch.from_numpy(SCHEMA.encode(private.frame).astype(np.float32))
    settings = PrivateSteps(3, 1.0, 1000.0)
    gradients = settings.charge(seeded_ledger(noise=SilentSteps()), "test", (own,), **BUDGET)
    run, twin = training(), training()
    before, descent = parameters(run._discriminator), torch.optim.SGD(run._discriminator.parameters(), lr=0.3)
    run._discriminate(gradients, descent, penalty)
    batch, network = twin._batch(), twin._discriminator
    rows = batch.clone().requires_grad_()
    logits = network(rows)
    (slope,) = torch.autograd.grad(logits.sum(), rows, create_graph=True)
    steepness = ((slope * torch.from_numpy(twin._scale)) ** 2).sum(dim=1).mean()
    softplus = torch.nn.functional.softplus
    objective = softplus(-network(own)).mean() + softplus(logits).mean() + penalty / 2 * steepness
    objective.backward()
    for name, value in network.named_parameters():
        expected = before[name] - 0.3 * value.grad
        np.testing.assert_allclose(run._discriminator.get_parameter(name).detach(), expected.detach(), atol=1e-6)
    assert gradients.left == 2


def test_a_step_of_the_generator_moves_it_alone_and_reads_no_private_row():
    run = training()
    with torch.no_grad():
        run._discriminator.linear.weight.fill_(1.0)
    before, other = parameters(run._generator), parameters(run._discriminator)
    adam = torch.optim.Adam(run._groups(), betas=(0.5, 0.99))
    first = run._batch(4000).mean(dim=0)
    for _ in range(50):
        run._generate(adam, 0.02)
    after = run._batch(4000).mean(dim=0)
    assert any(not torch.equal(value, before[name]) for name, value in run._generator.named_parameters())
    assert all(torch.equal(value, other[name]) for name, value in run._discriminator.named_parameters())
    assert (after > first + 0.2).all()  # towards rows that the discriminator calls private


def test_all_charged_steps_are_taken_with_the_noise_that_was_charged(private):
    noise = SilentSteps()
    ledger = seeded_ledger(noise=noise)
    quick(clip_norm=0.8, steps=23).fit(private, ledger, **BUDGET)
    (event,) = ledger.events
    assert event.noise_multiplier == dpsgd_multiplier(1.0, 1e-6, sampling_probability=1.0, steps=23)
    assert noise.asked == [pytest.approx(0.8 * event.noise_multiplier)] * 23


def test_each_setting_of_the_training_counts(private):
    base = {"clip_norm": 1.0, "discriminator_rate": 0.02}
    fitted = {
        str(changed): quick(**{**base, **changed}).fit(private, seeded_ledger(noise=SilentSteps()), **BUDGET)
        for changed in (
            {},
            {"discriminator_rate": 0.04},
            {"generator_rate": 0.03},
            {"discriminator_steps": 2},
            {"frozen_share": 0.5},
            {"averaged_share": 1.0},
            {"discriminator_optimizer": "adam"},
            {"batch_size": 32},
            {"gradient_penalty": 3.0},
            {"sampling_probability": 0.5},
            {"clip_norm": 0.1},
            {"latent": 3},
            {"steps": 25},
            {"generator_hidden": (5, 4)},
            {"discriminator_hidden": (3,)},
        )
    }
    rows = iw.SyntheticTable(frame(50, 2), SCHEMA, origin="test")
    values = [one.log_ratio(rows) for one in fitted.values()]
    assert all(np.abs(a - b).max() > 1e-5 for index, a in enumerate(values) for b in values[:index])


def test_the_generator_does_not_move_while_the_discriminator_settles(private, monkeypatch):
    """What is released is the mean of the generator's last iterates, and the discriminator is trained for that."""
    seen = []
    plain = Training._discriminate

    def recorded(self, *inputs):
        plain(self, *inputs)
        seen.append((inputs[-1], parameters(self._generator)))

    monkeypatch.setattr(Training, "_discriminate", recorded)
    fitted = quick(steps=20, frozen_share=0.4, discriminator_steps=3).fit(private, seeded_ledger(), **BUDGET)
    assert len(seen) == 20
    frozen = [state for penalty, state in seen if penalty == 0.0]
    assert len(frozen) == 8
    for state in frozen:
        for name, value in state.items():
            np.testing.assert_array_equal(value.numpy(), fitted.trained.generator[name])
    moving = [state for penalty, state in seen if penalty > 0]
    turns = [*moving[3::3], None]  # the generator after each turn but the last one
    assert len({state["skip.bias"].numpy().tobytes() for state in moving}) == len(turns)


@pytest.mark.parametrize(("share", "averaged"), [(0.0, 1), (0.3, 2), (1.0, 5)])
def test_the_released_generator_is_the_mean_of_its_last_steps(private, monkeypatch, share, averaged):
    seen, plain = [], Training._generate

    def recorded(self, *inputs):
        plain(self, *inputs)
        seen.append(parameters(self._generator))

    monkeypatch.setattr(Training, "_generate", recorded)
    settings = {"steps": 18, "frozen_share": 0.15, "discriminator_steps": 3, "averaged_share": share}
    fitted = quick(**settings).fit(private, seeded_ledger(), **BUDGET)
    assert len(seen) == 5 and not torch.equal(seen[-1]["skip.bias"], seen[-2]["skip.bias"])
    for name, value in fitted.trained.generator.items():
        mean = torch.stack([state[name] for state in seen[-averaged:]]).double().mean(dim=0)
        np.testing.assert_allclose(value, mean.numpy(), atol=1e-6)


@pytest.mark.parametrize(
    ("settings", "kind", "rate"),
    [
        ({}, torch.optim.SGD, None),
        ({"discriminator_optimizer": "adam"}, torch.optim.Adam, 2e-3),
        ({"discriminator_optimizer": "adam", "discriminator_rate": 0.03}, torch.optim.Adam, 0.03),
        ({"image_shape": (8, 8)}, torch.optim.Adam, 2e-3),
        ({"image_shape": (8, 8), "loss": "wasserstein"}, torch.optim.SGD, None),
        ({"image_shape": (8, 8), "discriminator_optimizer": "momentum"}, torch.optim.SGD, None),
    ],
)
def test_the_discriminator_of_images_descends_by_adam(monkeypatch, settings, kind, rate):
    """By default; the rate of Adam does not depend on the noise, that of momentum does."""
    made, plain = [], Training._descent

    def recorded(self, gradients):
        made.append(plain(self, gradients))
        made.append(made[0].param_groups[0]["lr"])
        return made[0]

    monkeypatch.setattr(Training, "_descent", recorded)
    widths = {"generator_hidden": (6, 4), "discriminator_hidden": (4,), "steps": 10, "batch_size": 8}
    gan = quick(**{**widths, **settings})
    gan.fit(images(40, (8, 8), 1), seeded_ledger(), **BUDGET)
    assert type(made[0]) is kind
    assert made[1] == rate if rate else 0 < made[1] < math.inf


# --- what it learns


def test_the_log_ratio_is_that_of_private_rows_to_the_released_generator():
    """A generator that stands still at its start has a known density, and so has the log ratio.

    x = tanh(s z)/2 with z standard normal has density phi(z)/s times 2/(1 - 4 x^2).
    """
    rng = np.random.default_rng(1)
    n = 20_000
    schema = iw.Schema(iw.Real("x", -0.5, 0.5))
    x = rng.beta(2, 2, n) - 0.5
    private = iw.PrivateTable(pd.DataFrame({"x": x}), schema)
    gan = iw.paper.GAN(
        steps=300, generator_rate=1e-12, sampling_probability=1.0, batch_size=4096, random_seed=1, progressbar=False,
        frozen_share=0.9,
    )  # fmt: skip
    rows = (fitted := gan.fit(private, free(), **BUDGET)).sample(5000, random_seed=2)
    x = rows.frame["x"].to_numpy()
    z = np.arctanh(2 * x) / START_SPREAD
    log_start = -(z**2) / 2 - math.log(math.sqrt(2 * math.pi) * START_SPREAD) + math.log(2) - np.log1p(-4 * x**2)
    truth = math.log(6) + np.log(0.5 + x) + np.log(0.5 - x) - log_start  # beta(2, 2) has density 6 u (1 - u)
    inside = np.abs(x) < 0.45  # the truth has logarithmic poles at the bounds, which a bounded slope does not reach
    error, found = (fitted.log_ratio(rows) - truth)[inside], fitted.log_ratio(rows)[inside]
    assert np.sqrt(np.mean(error**2)) < 0.2 < 0.4 * truth[inside].std()
    assert np.corrcoef(found, truth[inside])[0, 1] > 0.95


def test_a_gan_learns_what_goes_together():
    """Before training number and level are independent: the sign of x agrees with y for half of the rows."""
    private = iw.PrivateTable(frame(2000, 3), SCHEMA)
    gan = iw.paper.GAN(random_seed=1, progressbar=False, batch_size=512, sampling_probability=0.25)
    drawn = gan.fit(private, free(), **BUDGET).sample(5000, random_seed=1).frame
    assert ((drawn["x"] > 0) == (drawn["y"] == 1)).mean() > 0.85
    for level, center in ((0, -0.25), (1, 0.25)):
        assert abs(drawn["x"][drawn["y"] == level].mean() - center) < 0.08
    assert abs(drawn["y"].mean() - 0.5) < 0.08


@pytest.mark.slow
def test_private_training_learns_at_a_usual_budget():
    """N = 1000 and epsilon 2: most of what goes together is learned, whatever the noise."""
    private = iw.PrivateTable(frame(1000, 4), SCHEMA)
    for seed in range(2):
        ledger = iw.Ledger(2.0, 1e-5, noise=SeededNoise(seed))
        gan = iw.paper.DPGAN(random_seed=seed, progressbar=False, batch_size=512, steps=400)
        drawn = gan.fit(private, ledger, epsilon=2.0, delta=1e-5).sample(5000, random_seed=1).frame
        assert ((drawn["x"] > 0) == (drawn["y"] == 1)).mean() > 0.8


# --- the condition


def test_a_conditional_generator_draws_its_levels_by_their_noisy_law(private):
    noise = SeededNoise(5)
    ledger = seeded_ledger(noise=noise)
    fitted = quick(iw.paper.DPCGAN, condition="y", condition_share=0.3).fit(private, ledger, **BUDGET)
    counts = private.frame["y"].value_counts().sort_index().to_numpy()
    # the same noise again: discrete Laplace of scale 2/.3 on each count, drawn first
    noisy = SeededNoise(5).laplace(counts * 2**10, 2 / 0.3 * 2**10) / 2**10
    assert np.abs(fitted.distribution * 400 - counts).max() > 0.5
    assert (
        abs(fitted.distribution.sum() - 1) < 1e-12
        and np.abs(fitted.distribution - counts / 400).max() < 10 * 2 / 0.3 / 400
    )
    assert noisy.shape == fitted.distribution.shape
    n = 20_000
    share = fitted.sample(n, random_seed=1).frame["y"].mean()
    assert abs(share - fitted.distribution[1]) < 5 * math.sqrt(0.25 / n)
    distribution, steps = ledger.events
    assert (distribution.label, distribution.mechanism, distribution.epsilon) == (
        "DPCGAN condition",
        "laplace",
        pytest.approx(0.3),
    )
    assert (steps.label, steps.mechanism, steps.epsilon) == ("DPCGAN discriminator", "dp-sgd", pytest.approx(0.7))


@pytest.mark.parametrize(("adjacency", "scale"), [("replace-one", 2.0), ("zero-out", 1.0), ("replace-user", 6.0)])
def test_the_law_of_a_condition_has_the_noise_of_its_sensitivity(private, adjacency, scale):
    """Replacing a row moves two counts by one, nulling it one; replacing a user of three rows moves six."""
    asked = []

    class Counts(SilentSteps):
        def laplace(self, values, scale):
            asked.append((values.tolist(), scale))
            return values

    if adjacency == "replace-user":
        private = bounded_table(private.frame, SCHEMA, np.arange(400) // 3, 3, 390)
    ledger = iw.Ledger(1.0, 1e-6, adjacency, noise=Counts())
    quick(iw.paper.DPCGAN, condition="y", condition_share=0.3, steps=10).fit(private, ledger, **BUDGET)
    ((counts, found),) = asked
    assert counts == np.bincount(private.frame["y"]).tolist()
    assert scale / 0.3 <= found <= scale / 0.3 * (1 + 1e-9)


def test_without_noise_the_law_is_exact():
    table = MIXED.decode(MIXED_ROWS)
    fitted = quick(iw.paper.CGAN, condition="g").fit(iw.PrivateTable(table, MIXED), free(), **BUDGET)
    counts = [(table["g"] == level).sum() for level in "abc"] + [table["g"].isna().sum()]
    np.testing.assert_allclose(fitted.distribution, np.array(counts) / len(table), atol=1e-12)
    assert fitted.sample(4000, random_seed=1).frame["g"].isna().mean() > 0


MIXED_HEADS = Heads(MIXED)
MIXED_ROWS = MIXED_HEADS.rows(*draws(MIXED_HEADS, 300, 9)).numpy()


def test_levels_may_be_given(private):
    fitted = quick(iw.paper.CGAN, condition="y").fit(private, free(), **BUDGET)
    wanted = np.arange(500) % 3 // 2
    table = fitted.sample(500, random_seed=1, condition=wanted)
    # the caller had a part in these rows: no ledger takes them for the generator's alone
    assert table.source is None and fitted.sample(5, random_seed=1).source == fitted.fingerprint()
    np.testing.assert_array_equal(table.frame["y"], wanted)
    with pytest.raises(ValueError, match="one level per row, so 500 levels; got 3"):
        fitted.sample(500, condition=[0, 1, 1])
    with pytest.raises(ValueError, match="its declared levels"):
        fitted.sample(2, condition=[0, 7])
    with pytest.raises(ValueError, match="must be None, because this GAN was trained without one"):
        quick(iw.paper.GAN).fit(private, free(), **BUDGET).sample(2, condition=[0, 1])


def test_a_conditional_gan_learns_what_a_level_means():
    private = iw.PrivateTable(frame(1000, 5), SCHEMA)
    gan = iw.paper.CGAN(condition="y", random_seed=1, progressbar=False, batch_size=256, steps=300)
    fitted = gan.fit(private, free(), **BUDGET)
    for level, center in ((0, -0.25), (1, 0.25)):
        x = fitted.sample(2000, random_seed=1, condition=np.full(2000, level)).frame["x"]
        assert abs(x.mean() - center) < 0.08


@pytest.mark.parametrize(("schema", "condition"), [(SCHEMA, "x"), (SCHEMA, "z"), (iw.Schema(iw.Binary("y")), "y")])
def test_a_condition_must_be_a_column_of_levels_beside_others(schema, condition):
    with pytest.raises(ValueError, match="condition"):
        quick(iw.paper.DPCGAN, condition=condition).events(PublicFacts(schema, 100, 0), **BUDGET)


# --- images


def images(n, shape, seed):
    """A bright half, upper or lower by label."""
    rng = np.random.default_rng(seed)
    label = rng.integers(0, 3, n)
    pixels = rng.uniform(0, 0.2, (n, *shape))
    pixels[label == 1, : shape[0] // 2] += 0.7
    pixels[label == 2, shape[0] // 2 :] += 0.7
    schema = iw.Schema(*real_schema(math.prod(shape)), iw.Categorical("label", (0, 1, 2)))
    table = pd.DataFrame(pixels.reshape(n, -1), columns=schema.names[:-1])
    return iw.PrivateTable(table.assign(label=label), schema)


@pytest.mark.parametrize("shape", [(8, 8), (7, 9)])
@pytest.mark.parametrize("kind", ["CGAN", "DPGAN", "DPCGAN"])
def test_images_of_any_shape(kind, shape):
    private = images(40, shape, 1)
    settings = {} if kind == "DPGAN" else {"condition": "label"}
    gan = getattr(iw.paper, kind)(
        image_shape=shape, steps=10, batch_size=16, generator_hidden=(8, 4), discriminator_hidden=(4, 6),
        random_seed=1, progressbar=False, **settings,
    )  # fmt: skip
    ledger = free() if gan.pure else seeded_ledger()
    fitted = gan.fit(private, ledger, **BUDGET)
    table = fitted.sample(30, random_seed=1)
    assert table.frame.shape == (30, math.prod(shape) + 1)
    assert fitted.log_ratio(table).shape == (30,) and np.isfinite(fitted.log_ratio(private)).all()
    pickle.loads(pickle.dumps(fitted))


@pytest.mark.slow
def test_a_conditional_gan_learns_images():
    private = images(600, (8, 8), 2)
    gan = iw.paper.CGAN(
        condition="label", image_shape=(8, 8), steps=600, batch_size=64, sampling_probability=0.2,
        generator_hidden=(16, 8), discriminator_hidden=(8,), random_seed=1, progressbar=False, discriminator_steps=3,
        generator_rate=0.01,
    )  # fmt: skip
    fitted = gan.fit(private, free(), **BUDGET)
    halves = []
    for level in range(3):
        drawn = fitted.sample(200, random_seed=1, condition=np.full(200, level)).frame.to_numpy()[:, :64].astype(float)
        halves.append((drawn[:, :32].mean(), drawn[:, 32:].mean()))
    dark, upper, lower = halves
    assert max(dark) < 0.2 and upper[0] > upper[1] + 0.1 and lower[1] > lower[0] + 0.3


def halves_by_label(fitted, n=200):
    """Mean brightness of the upper and the lower half, for each label."""
    drawn = [
        fitted.sample(n, random_seed=1, condition=np.full(n, level)).frame.to_numpy()[:, :64].astype(float)
        for level in range(3)
    ]
    return [(pixels[:, :32].mean(), pixels[:, 32:].mean()) for pixels in drawn]


def private_images(device):
    """Fit to 3,000 small images at epsilon 2."""
    gan = iw.paper.DPCGAN(
        condition="label", image_shape=(8, 8), steps=300, batch_size=64, generator_hidden=(16, 8), device=device,
        discriminator_hidden=(8,), random_seed=1, progressbar=False,
    )  # fmt: skip
    ledger = iw.Ledger(2.0, 1e-5, noise=SeededNoise(1))
    return gan.fit(images(3000, (8, 8), 2), ledger, epsilon=2.0, delta=1e-5)


@pytest.mark.slow
def test_private_training_learns_images_at_a_usual_budget():
    dark, upper, lower = halves_by_label(private_images("cpu"))
    assert max(dark) < 0.35 and upper[0] > upper[1] + 0.3 and lower[1] > lower[0] + 0.3


def test_on_cuda_images_are_learned_as_on_the_cpu():
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    fitted = private_images("cuda")
    dark, upper, lower = halves_by_label(fitted)
    assert max(dark) < 0.35 and upper[0] > upper[1] + 0.3 and lower[1] > lower[0] + 0.3
    # what was trained there is public and drawn here, also where there is no such device
    assert all(isinstance(value, np.ndarray) for value in fitted.trained.generator.values())


@pytest.mark.parametrize(("shape", "size"), [((4, 3), (8, 6)), ((4, 5), (7, 9)), ((2, 2), (3, 4))])
def test_an_image_is_enlarged_by_the_nearest_pixel(shape, size):
    rng = np.random.default_rng(1)
    h = torch.from_numpy(rng.normal(size=(3, 2, *shape))).requires_grad_()
    direction = torch.from_numpy(rng.normal(size=(3, 2, *size)))
    rows, columns = (torch.arange(n) * old // n for n, old in zip(size, shape, strict=True))
    expected = h[:, :, rows][:, :, :, columns]
    found = _enlarged(h, size)
    assert torch.equal(found, expected)
    slopes = [torch.autograd.grad((x * direction).sum(), h, retain_graph=True)[0] for x in (found, expected)]
    np.testing.assert_allclose(*slopes, atol=1e-12)


def test_image_columns_come_first_and_are_real():
    facts = PublicFacts(SCHEMA, 100, 0)
    with pytest.raises(ValueError, match="needs 64 Real columns"):
        quick(image_shape=(8, 8)).events(facts, **BUDGET)
    mixed = iw.Schema(iw.Binary("label"), *(iw.Real(f"p{index}", 0, 1) for index in range(16)))
    with pytest.raises(ValueError, match="pixels first"):
        quick(image_shape=(4, 4)).events(PublicFacts(mixed, 100, 0), **BUDGET)


# --- the Wasserstein loss


def test_a_critic_has_clipped_weights_and_no_log_ratio(private):
    ledger = seeded_ledger()
    fitted = quick(loss="wasserstein", weight_clip=0.07).fit(private, ledger, **BUDGET)
    assert isinstance(fitted, FittedWassersteinGAN) and isinstance(fitted, FittedGenerator)
    largest = max(np.abs(value).max() for value in fitted.trained.discriminator.values())
    assert 0.9 * 0.07 < largest <= 0.07 * (1 + 1e-6)
    assert not hasattr(fitted, "log_ratio") and not isinstance(fitted, LogRatio)
    with pytest.raises(TypeError, match="no log odds.*NeuralWeights or TiltWeights"):
        fitted.log_ratio(fitted.sample(5, random_seed=1))
    with pytest.raises(TypeError, match="no log odds"):
        iw.paper.DiscriminatorWeights(fitted)
    with pytest.raises(AttributeError, match="anything"):
        _ = fitted.anything
    copied = pickle.loads(pickle.dumps(fitted))
    pd.testing.assert_frame_equal(copied.sample(20, random_seed=1).frame, fitted.sample(20, random_seed=1).frame)
    assert ledger.holds(copied.fingerprint())


def test_losses_by_name():
    f = torch.tensor([-2.0, 0.0, 3.0], dtype=torch.float64)
    logistic, wasserstein = LOSSES["logistic"], LOSSES["wasserstein"]
    np.testing.assert_allclose(logistic.private(f), np.log1p(np.exp(-f.numpy())))
    np.testing.assert_allclose(logistic.synthetic(f), np.log1p(np.exp(f.numpy())))
    np.testing.assert_allclose(wasserstein.private(f), -f)
    np.testing.assert_allclose(wasserstein.synthetic(f), f)
    np.testing.assert_allclose(wasserstein.generator(f), -f)


# --- the ledger, randomness, and what is released


def test_the_discriminator_weights_are_free_under_the_same_ledger_and_no_other(private):
    ledger = seeded_ledger()
    fitted = quick().fit(private, ledger, **BUDGET)
    assert isinstance(quick(), Generator) and isinstance(fitted, LogRatio)
    synthetic = fitted.sample(300, random_seed=1)
    spent = ledger.spent
    weights = iw.paper.DiscriminatorWeights(fitted).fit(private, synthetic, ledger, **BUDGET)
    np.testing.assert_allclose(weights.log_weights[0], fitted.log_ratio(synthetic))
    assert ledger.spent == spent and ledger.holds(synthetic.source)
    with pytest.raises(ValueError, match="no training of exactly this discriminator"):
        iw.paper.DiscriminatorWeights(fitted).fit(private, synthetic, seeded_ledger(), **BUDGET)
    moved = {**fitted.trained.discriminator}
    moved["linear.bias"] = moved["linear.bias"] + 1e-6
    changed = replace(fitted, trained=fitted.trained._replace(discriminator=moved))
    with pytest.raises(ValueError, match="no training of exactly this discriminator"):
        iw.paper.DiscriminatorWeights(changed).fit(private, synthetic, ledger, **BUDGET)
    with pytest.raises(ValueError, match="schema under which the log ratio was learned; its schema differs"):
        fitted.log_ratio(iw.SyntheticTable(pd.DataFrame({"x": [0.1]}), iw.Schema(SCHEMA["x"])))


def test_a_fingerprint_covers_all_that_rows_and_ratios_depend_on(private):
    fitted = quick(iw.paper.DPCGAN, condition="y").fit(private, seeded_ledger(), **BUDGET)

    def nudged(array):
        return array + 1e-9 * (np.arange(array.size).reshape(array.shape) == 0)

    trained = fitted.trained
    changed = [
        replace(fitted, distribution=nudged(fitted.distribution)),
        replace(fitted, name="other"),
        replace(fitted, architecture=replace(fitted.architecture, latent=9)),
        replace(fitted, trained=trained._replace(center=nudged(trained.center))),
        replace(fitted, trained=trained._replace(scale=nudged(trained.scale))),
        *(
            replace(fitted, trained=trained._replace(**{part: {**network, name: nudged(network[name])}}))
            for part, network in (("generator", trained.generator), ("discriminator", trained.discriminator))
            for name in network
        ),
    ]
    prints = {one.fingerprint() for one in changed}
    assert len(prints) == len(changed) and fitted.fingerprint() not in prints
    assert pickle.loads(pickle.dumps(fitted)).fingerprint() == fitted.fingerprint()
    assert isinstance(fitted, FittedGAN) and repr(fitted) == "FittedGAN(name='DPCGAN')"


def test_seeds(private):
    def fitted(random_seed, noise_seed, kind=iw.paper.DPGAN):
        ledger = free() if kind is iw.paper.GAN else seeded_ledger(noise=SeededNoise(noise_seed))
        return quick(kind, random_seed=random_seed).fit(private, ledger, **BUDGET).sample(40, random_seed=1).frame

    pd.testing.assert_frame_equal(fitted(1, 2), fitted(1, 2))
    assert not fitted(1, 2).equals(fitted(1, 3)) and not fitted(1, 2).equals(fitted(2, 2))
    pd.testing.assert_frame_equal(fitted(1, 2, iw.paper.GAN), fitted(1, 3, iw.paper.GAN))
    assert not fitted(None, 2, iw.paper.GAN).equals(fitted(None, 2, iw.paper.GAN))


def test_global_random_states_stay_as_they_are(private):
    state, legacy, threads = torch.get_rng_state(), np.random.get_state()[1].copy(), torch.get_num_threads()  # noqa: NPY002
    quick(iw.paper.DPCGAN, condition="y").fit(private, seeded_ledger(), **BUDGET).sample(10)
    assert torch.equal(torch.get_rng_state(), state) and torch.get_num_threads() == threads
    np.testing.assert_array_equal(np.random.get_state()[1], legacy)  # noqa: NPY002


def test_without_privacy_nothing_is_certified(private):
    for gan in (quick(iw.paper.GAN), quick(iw.paper.CGAN, condition="y")):
        assert gan.pure
        ledger = iw.Ledger(math.inf, 1e-6)
        gan.fit(private, ledger, epsilon=1.0)
        assert {event.mechanism for event in ledger.events} == {"none"}
        assert not ledger.statement().certified
        finite = seeded_ledger()
        with pytest.raises(iw.BudgetExceeded, match="math.inf"):
            gan.fit(private, finite, epsilon=1.0)
        assert finite.events == ()


def test_users_are_protected_as_a_whole():
    rng = np.random.default_rng(1)
    table = frame(300, 6).assign(owner=rng.integers(0, 150, 300))
    ledger = iw.Ledger(40.0, 1e-5, "replace-user", noise=SeededNoise(1))
    private = iw.PrivateTable(table, SCHEMA, user="owner")
    bounded = iw.bound_contributions(private, ledger, epsilon=2.0, grid=(1, 2, 4))
    noise = ledger._noise
    fitted = quick(iw.paper.DPCGAN, condition="y").fit(bounded, ledger, epsilon=2.0, delta=1e-6)
    facts = PublicFacts.of(bounded, None, ledger)
    events = quick(iw.paper.DPCGAN, condition="y").events(facts, epsilon=2.0, delta=1e-6)
    assert ledger.events[-2:] == events and noise is ledger._noise
    assert fitted.sample(10, random_seed=1).frame.shape == (10, 2)


def test_what_is_public_knows_of_the_rows_by_the_answers_alone():
    """Under noise that does not depend on what it is added to, rows that are all different give the same networks."""

    class Script(SeededNoise):
        def floating_gaussian(self, values, scale):
            scales.append(scale)
            return super().floating_gaussian(np.zeros_like(values), scale)

        def laplace(self, values, scale):
            return super().laplace(np.full_like(values, 200), scale)

    found, scales = set(), []
    for rows in (frame(400, 1), frame(400, 2).assign(x=0.5)):
        ledger = seeded_ledger(noise=Script(1))
        found.add(
            quick(iw.paper.DPCGAN, condition="y").fit(iw.PrivateTable(rows, SCHEMA), ledger, **BUDGET).fingerprint()
        )
    assert len(found) == 1 and len(scales) == 40 and scales[:20] == scales[20:]


def test_the_discriminator_clips_all_rows_of_a_user_together():
    """One user owns all rows that are not at the middle: what reaches the noise is within one clip norm."""
    table = pd.DataFrame({"x": np.repeat([0.5, 0.0], [40, 60]), "y": np.repeat([1, 0], [40, 60])})
    owners = np.concatenate([np.zeros(40, dtype=int), np.arange(1, 61)])
    reached = []

    class Noted(SeededNoise):
        def floating_gaussian(self, values, scale):
            reached.append(np.array(values))
            return np.zeros_like(values)

    for rows in (table, table.assign(x=np.repeat([-0.5, 0.0], [40, 60]), y=0)):
        private = bounded_table(rows, SCHEMA, owners, 40, 100)
        ledger = iw.Ledger(math.inf, 1e-6, "replace-user", noise=Noted(1))
        quick(clip_norm=0.01, sampling_probability=1.0).fit(private, ledger, **BUDGET)
    half = len(reached) // 2
    moved = [np.linalg.norm(a - b) for a, b in zip(reached[:half], reached[half:], strict=True)]
    assert 0.01 < max(moved) <= 2 * 0.01


def test_large_tables_are_sampled():
    def rate(n, **settings):
        (event,) = quick(**settings).events(PublicFacts(SCHEMA, n, 0), **BUDGET)
        return event.sampling_probability

    assert rate(1000) == 1.0 and 0.01 < rate(30_000) < 0.2
    assert rate(30_000, sampling_probability=0.5) == 0.5


# --- refusals


@pytest.mark.parametrize(
    "settings",
    [
        {"loss": "hinge"},
        {"steps": 0},
        {"steps": 2.5},
        {"steps": 5},
        {"discriminator_steps": 0},
        {"frozen_share": 0.0},
        {"frozen_share": 1.0},
        {"averaged_share": 1.1},
        {"averaged_share": -0.1},
        {"discriminator_optimizer": "sgd"},
        {"sampling_probability": 0.0},
        {"batch_size": 0},
        {"generator_hidden": (8, 0)},
        {"discriminator_hidden": ()},
        {"latent": True},
        {"image_shape": (8,)},
        {"image_shape": (8, 0)},
        {"image_shape": (2, 8)},
        {"generator_rate": 0.0},
        {"discriminator_rate": math.nan},
        {"gradient_penalty": -1.0},
        {"weight_clip": 0.0},
        {"random_seed": -1},
        {"random_seed": 0.5},
        {"clip_norm": -1.0},
    ],
    ids=str,
)
def test_wrong_settings_are_refused(settings):
    (name,) = settings
    with pytest.raises(ValueError, match=name):
        iw.paper.DPGAN(**settings)


@pytest.mark.parametrize("share", [0.0, 1.0, math.nan])
def test_a_condition_takes_a_part_of_the_budget(share):
    with pytest.raises(ValueError, match="condition_share"):
        iw.paper.DPCGAN(condition="y", condition_share=share)


def test_settings_are_values():
    assert iw.paper.DPGAN(generator_hidden=[8, 4]) == iw.paper.DPGAN(generator_hidden=(8, 4)) != iw.paper.DPGAN()
    assert hash(iw.paper.DPCGAN(condition="y")) == hash(iw.paper.DPCGAN(condition="y"))
    with pytest.raises(TypeError):
        iw.paper.GAN(condition="y")


@pytest.mark.parametrize("kind", [iw.paper.GAN, iw.paper.DPGAN])
def test_a_training_that_diverges_says_so_and_stays_charged(private, kind):
    ledger = free() if kind is iw.paper.GAN else seeded_ledger()
    with pytest.raises(RuntimeError, match="diverged.*learning rate.*stays charged"):
        quick(kind, discriminator_rate=1e30).fit(private, ledger, **BUDGET)
    assert len(ledger.events) == 1 and ledger.spent[0] >= 1.0


def test_noise_that_breaks_leaves_the_charge(private):
    class Broken(SilentSteps):
        def floating_gaussian(self, values, scale):
            if len(self.asked) == 7:
                raise OSError("the source of noise broke")
            return super().floating_gaussian(values, scale)

    ledger = seeded_ledger(noise=Broken())
    with pytest.raises(OSError, match="broke"):
        quick(iw.paper.DPCGAN, condition="y").fit(private, ledger, **BUDGET)
    assert [event.mechanism for event in ledger.events] == ["laplace", "dp-sgd"]


def test_refusals_spend_nothing(private):
    noise = SilentSteps()
    ledger = seeded_ledger(noise=noise)
    for error, match, gan, budget in (
        (ValueError, "delta above 0", quick(), {"epsilon": 0.5}),
        (iw.BudgetExceeded, "DPGAN", quick(), {"epsilon": 2.0, "delta": 1e-6}),
        (ValueError, "cannot compute on device 'abacus'", quick(device="abacus"), BUDGET),
        (ValueError, "condition", quick(iw.paper.DPCGAN, condition="x"), BUDGET),
    ):
        with pytest.raises(error, match=match):
            gan.fit(private, ledger, **budget)
    assert ledger.events == () and noise.asked == []


def test_cuda_where_there_is_none_is_refused_before_the_charge(private):
    ledger = seeded_ledger(noise=SilentSteps())
    if torch.cuda.is_available():
        fitted = quick(device="cuda").fit(private, ledger, **BUDGET)
        on_cpu = quick().fit(private, seeded_ledger(noise=SilentSteps()), **BUDGET)
        rows = on_cpu.sample(50, random_seed=1)
        np.testing.assert_allclose(fitted.log_ratio(rows), on_cpu.log_ratio(rows), atol=1e-2)
    else:
        with pytest.raises(ValueError, match="device 'cuda'"):
            quick(device="cuda").fit(private, ledger, **BUDGET)
        assert ledger.events == ()


def test_without_torch_it_says_what_to_install(private, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    ledger = seeded_ledger()
    with pytest.raises(ModuleNotFoundError, match="DPGAN needs the package torch, which is not installed"):
        quick().fit(private, ledger, **BUDGET)
    assert ledger.events == ()


def test_the_progress_bar_is_for_terminals_and_shows_steps_only(private, monkeypatch):
    outputs = progress_outputs(monkeypatch, lambda **show: quick(**show).fit(private, seeded_ledger(), **BUDGET))
    assert outputs[False, True] == outputs[True, False] == ""
    assert "training DPGAN" in outputs[True, True] and "/20" in outputs[True, True]
    assert "loss" not in outputs[True, True]


def test_rates_follow_public_quantities(private):
    """The default rate keeps the noise that a window of steps gathers near its target, and never passes the limit."""
    own = torch.from_numpy(SCHEMA.encode(private.frame).astype(np.float32))
    found = {}
    for epsilon in (0.1, 1.0, 100.0):
        ledger = iw.Ledger(epsilon, 1e-6, noise=SeededNoise(1))
        gradients = PrivateSteps(10).charge(ledger, "test", (own,), epsilon=epsilon, delta=1e-6)
        settings = TrainingSettings("logistic", 10, 2, 4, 50, 1e-2, None, 0.0, 0.1)
        found[epsilon] = training(settings)._rate(gradients), gradients.noise_sd(1.0)
    low, middle, high = found.values()
    # the noise that steps gather is bounded where the budget is small; where it is large stability is the limit
    assert low[0] * low[1] == pytest.approx(middle[0] * middle[1], rel=0.3)  # each sees its own batch and clip norm
    assert low[0] < middle[0] <= high[0] and high[0] * high[1] < 0.3 * middle[0] * middle[1]
