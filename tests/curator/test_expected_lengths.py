"""Lengths to expect from a release: weighted quantiles of studied cells with about the same noise."""

import json
import math

import numpy as np
import pytest
from commands import run

import iwbayes as iw
from iwbayes.curator import expected_lengths
from iwbayes.curator.expected_lengths import ExpectedLength, expected_length

SCHEMA = iw.Schema(iw.Integer("age", 18, 90), iw.Categorical("area", ["a", "b", "c"]), iw.Binary("ill"))
MODEL = "ill ~ age + area"


@pytest.fixture
def cells(monkeypatch):
    """Five populations at each of three noises, with lengths of five sizes."""
    names = tuple("abcde" * 3)
    noise = np.repeat([0.2, 1.0, 5.0], 5)
    length = np.tile([1.0, 2.0, 3.0, 4.0, 5.0], 3) * np.repeat([1, 10, 100], 5)
    calibrated = np.repeat([1.0, 0.5, 0.0], 5)
    monkeypatch.setattr(expected_lengths, "_cells", lambda: (names, noise, length, calibrated))


def test_cells_with_about_the_same_noise_count_and_no_others(cells):
    assert expected_length(1.0) == ExpectedLength(30.0, 17.5, 42.5, 0.5, 5)
    assert expected_length(1.4) == pytest.approx(expected_length(1.0))  # the same cells, equally far away
    assert expected_length(0.2).length == 3 and expected_length(5.0).calibrated == 0
    for between in (0.5, 2.3, 50.0, 0.01):
        assert expected_length(between) is None


def test_few_populations_are_no_table(cells, monkeypatch):
    names, *rest = expected_lengths._cells()
    few = tuple("abc"["abcde".index(name) % 3] for name in names)
    monkeypatch.setattr(expected_lengths, "_cells", lambda: (few, *rest))
    assert expected_length(1.0) is None


def test_the_table_of_the_package_says_that_noise_costs_length():
    names, noise, length, calibrated = expected_lengths._cells()
    assert len(set(names)) >= 16 and (length > 0.9).all() and ((calibrated >= 0) & (calibrated <= 1)).all()
    found = [expected_length(each) for each in (0.4, 0.8, 1.6)]
    assert found[0].length < found[1].length < found[2].length
    assert found[0].calibrated > found[1].calibrated > found[2].calibrated
    assert all(1 <= each.low <= each.length <= each.high for each in found)


def test_half_of_the_populations_that_are_left_out_are_in_between(monkeypatch):
    """Each population is predicted from all others."""
    names, *arrays = expected_lengths._cells()
    inside, errors = [], []
    for left_out in sorted(set(names)):
        others = np.array(names) != left_out
        kept = (tuple(np.array(names)[others]), *(array[others] for array in arrays))
        monkeypatch.setattr(expected_lengths, "_cells", lambda kept=kept: kept)
        for noise, length in zip(*(array[~others] for array in arrays[:2]), strict=True):
            found = expected_length(noise)
            inside.append(found.low <= length <= found.high)
            errors.append(abs(math.log(length / found.length)))
    assert 0.42 < np.mean(inside) < 0.6
    assert np.median(errors) < math.log(1.4)


def test_a_plan_for_models_says_what_to_expect():
    plan = iw.plan(SCHEMA, 4000, epsilon=1.0, delta=1e-6, for_models=[MODEL])
    assert plan.expected == expected_length(plan.noise_sd * math.sqrt(4000))
    assert f"{plan.expected.length:.2g} times the private rows' own" in " ".join(str(plan).split())
    assert iw.plan(SCHEMA, 4000, epsilon=1.0, delta=1e-6).expected is None
    lengths = [iw.plan(SCHEMA, 4000, epsilon=e, delta=1e-6, for_models=[MODEL]).expected.length for e in (0.7, 1, 2)]
    assert lengths == sorted(lengths, reverse=True)


def test_a_command_shows_a_grid_of_epsilons(tmp_path):
    (tmp_path / "s.toml").write_text(SCHEMA.to_toml())
    common = ("plan", "-s", tmp_path / "s.toml", "--n", 4000, "--delta", 1e-6)
    grid = ("--epsilon", 1, "--epsilon", 2, "--epsilon", 0.0001)
    shown = run(*common, *grid, "--for-model", MODEL)
    assert shown.exit_code == 0, shown.output
    lines = [line.split() for line in shown.stdout.splitlines()]
    plans = [iw.plan(SCHEMA, 4000, epsilon=e, delta=1e-6, for_models=[MODEL]) for e in (1, 2)]
    assert [line[:2] for line in lines[1:3]] == [[f"{p.epsilon:g}", f"{p.expected.length:.2g}"] for p in plans]
    assert "not studied" in shown.stdout.splitlines()[3]
    facts = json.loads(run(*common, *grid[:4], "--for-model", MODEL, "--json").stdout)
    assert [each["expected_length"]["length"] for each in facts] == [p.expected.length for p in plans]
    for wrong in (grid, ("--epsilon", 1, "--like", tmp_path / "s.toml")):
        failed = run(*common, *wrong)
        assert failed.exit_code == 1 and "--formula" in failed.stderr
