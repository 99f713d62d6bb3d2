"""Coverage studies: exact posteriors cover as they should, counts are right, files survive."""

import dataclasses
import functools
import json
import math

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from scipy.stats import norm

import iwbayes as iw
from iwbayes.analyst import arviz_compat
from iwbayes.analyst.arviz_compat import scalars
from iwbayes.coverage.study import REFERENCE
from iwbayes.validation import CoverageStudy, coverage_study

SCHEMA = iw.Schema(iw.Real("x", -20, 20))
PUBLISH = {"epsilon": 1.0, "delta": 1e-6, "n_synthetic": 20}
N, PRIOR_SD = 20, 2.0


def normal_rows(rng):
    """Mean from its prior, and rows around it."""
    mean = PRIOR_SD * rng.normal()
    frame = pd.DataFrame({"x": np.clip(mean + rng.normal(size=N), -20, 20)})
    return iw.PrivateTable(frame, SCHEMA), {"m": mean}


def fixed_rows(rng):
    return normal_rows(rng)[0]


def uniform_table(rng):
    """Public rows instead of a generator: nothing is spent."""
    frame = pd.DataFrame({"x": rng.uniform(-20, 20, size=20)})
    return iw.SyntheticTable(frame, SCHEMA, origin="public", already_spent=(0.0, 0.0))


def exact_posterior(release, *, random_seed, factor=1.0):
    """Conjugate posterior of the mean, given the rows of the release; `factor` spoils its spread."""
    x = release.synthetic.frame["x"].to_numpy()
    precision = len(x) + PRIOR_SD**-2
    # the same quantiles in every replication: no Monte Carlo error
    grid = norm.ppf((np.arange(1000) + 0.5) / 1000)
    draws = x.sum() / precision + factor * grid / math.sqrt(precision)
    return arviz_compat.make({"posterior": xr.Dataset({"m": (("chain", "draw"), draws[None])})})


def study(**options):
    options = {
        "simulate": normal_rows,
        "generator": uniform_table,
        "weights": iw.UniformWeights(),
        "fit": exact_posterior,
        "publish": PUBLISH,
        "n_replications": 6,
        "random_seed": 3,
        "progressbar": False,
    } | options
    return coverage_study(**options)


def test_exact_posteriors_cover_and_their_ranks_are_uniform():
    found = study(
        n_replications=250, fit={"exact": exact_posterior, "narrow": functools.partial(exact_posterior, factor=0.5)}
    )
    reference = found.replications[found.replications["method"] == REFERENCE]
    for level in found.levels:
        share = found.table(level).loc[(REFERENCE, "m"), "coverage"]
        assert abs(share - level) < 5 * math.sqrt(level * (1 - level) / 250)
    pit = np.sort(reference["pit"])
    assert np.max(np.abs(pit - (np.arange(250) + 0.5) / 250)) < 5 * 0.5 / math.sqrt(250)
    narrow = functools.partial(exact_posterior, factor=0.5)
    half = study(n_replications=250, reference=narrow, levels=(0.9,)).table().loc[(REFERENCE, "m")]
    expected = 2 * norm.cdf(0.5 * norm.ppf(0.95)) - 1
    assert abs(half["coverage"] - expected) < 5 * math.sqrt(expected * (1 - expected) / 250)
    assert half["coverage_se"] == pytest.approx(math.sqrt(half["coverage"] * (1 - half["coverage"]) / 250))


def test_ranks_are_drawn(tmp_path):
    import matplotlib.pyplot as plt

    found = study(n_replications=60)
    axes = found.plot_ranks(REFERENCE)
    assert axes.shape == (1,)
    assert axes[0].get_title() == "m"
    assert len(axes[0].get_lines()) >= 1
    axes[0].figure.savefig(tmp_path / "ranks.png")
    plt.close("all")
    with pytest.raises(ValueError, match="method must be one of"):
        found.plot_ranks("none")
    with pytest.raises(ValueError, match=r"parameters must be some of \['m'\]; got \['q'\]"):
        found.plot_ranks("fit", ["q"])


def by_hand():
    return CoverageStudy(
        pd.DataFrame(
            [
                (0, REFERENCE, "a", 1.0, 1.5, 0.0, 2.0, False),
                (0, "fit", "a", 1.0, 2.5, 2.0, 3.0, True),
                (0, REFERENCE, "b", 0.0, -1.0, -2.0, 2.0, False),
                (0, "fit", "b", 0.0, 0.5, -4.0, 4.0, True),
                (1, REFERENCE, "a", 1.0, 0.5, 0.0, 1.0, False),
                (1, "fit", "a", 1.0, 1.5, 1.0, 4.0, False),
                (1, REFERENCE, "b", 0.0, 1.0, 0.5, 2.0, False),
                (1, "fit", "b", 0.0, 1.5, 1.0, 4.0, False),
            ],
            columns=["replication", "method", "parameter", "truth", "mean", "lower_90", "upper_90", "warned"],
        ),
        pd.DataFrame({"replication": [2], "error": ["ValueError: no"]}),
        (0.9,),
    )


def test_table_and_summary_by_hand():
    table = by_hand().table(0.9)
    assert table["coverage"].to_dict() == {
        (REFERENCE, "a"): 1.0,
        (REFERENCE, "b"): 0.5,
        ("fit", "a"): 0.5,
        ("fit", "b"): 0.5,
    }
    a = table.loc[("fit", "a")]
    assert a["coverage_se"] == pytest.approx(math.sqrt(0.125))
    assert a["length"] == 2.0
    assert a["length_ratio"] == pytest.approx((0.5 + 3.0) / 2)
    assert a["bias"] == pytest.approx(1.0)
    assert a["bias_se"] == pytest.approx(math.sqrt(0.5) / math.sqrt(2))
    assert a["rmse_ratio"] == pytest.approx(math.sqrt((1.5**2 + 0.5**2) / 2) / 0.5)
    assert a["warned"] == 0.5
    assert a["n"] == 2
    assert table.loc[(REFERENCE, "a"), "rmse_ratio"] == 1.0
    summary = by_hand().summary(0.9)
    assert summary.loc["fit", "coverage"] == 0.5
    assert summary.loc["fit", "coverage_se"] == pytest.approx(0.0)  # one of two parameters in either replication
    assert summary.loc[REFERENCE, "coverage_se"] == pytest.approx(math.sqrt(0.125) / math.sqrt(2))
    assert summary.loc[REFERENCE, "worst"] == 0.5
    assert "2 replications, 1 failed" in repr(by_hand())
    with pytest.raises(ValueError, match="level must be one of"):
        by_hand().table(0.8)


def test_a_study_goes_on_where_it_stopped(tmp_path):
    path = tmp_path / "study.jsonl"
    whole = study()
    study(path=path, n_replications=4)
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    assert len(lines) == 5
    path.write_text("".join(lines[:3]) + lines[3][:40], encoding="utf-8")  # killed while it wrote
    went_on = study(path=path)
    pd.testing.assert_frame_equal(went_on.replications, whole.replications)
    again = study(path=path, simulate=normal_rows)
    pd.testing.assert_frame_equal(again.replications, whole.replications)
    pd.testing.assert_frame_equal(study(path=path, n_replications=2).replications, whole.replications.iloc[:4])
    for options in ({"random_seed": 4}, {"levels": (0.9,)}, {"publish": {**PUBLISH, "epsilon": 2.0}}):
        with pytest.raises(ValueError, match="contains a different study"):
            study(path=path, **options)
    with pytest.raises(ValueError, match="with a path, random_seed is required"):
        study(path=path, random_seed=None)
    for other in ("no study\n", json.dumps([1]) + "\n", "no study", "a header\nand no end"):
        path.write_text(other, encoding="utf-8")
        with pytest.raises(ValueError, match="is not a file of coverage study results"):
            study(path=path)
        assert path.read_text(encoding="utf-8") == other  # somebody's file, as it was


def failing(release, *, random_seed):
    if random_seed % 2:
        raise ValueError("odd\nand more")
    return exact_posterior(release, random_seed=random_seed)


def test_failures_are_counted_and_left_out():
    found = study(fit=failing, reference=exact_posterior, n_replications=12)
    n = found.replications["replication"].nunique()
    assert 0 < n < 12
    assert len(found.failures) == 12 - n
    assert set(found.failures["error"]) == {"ValueError: odd"}
    assert (found.table().n == n).all()


def always_failing(release, *, random_seed):
    raise OSError("gone")


def test_a_study_of_failures_ends_in_their_error():
    with pytest.raises(RuntimeError, match="every replication failed; the first with OSError: gone"):
        study(fit=always_failing)


def test_processes_give_the_same_numbers():
    pd.testing.assert_frame_equal(study(n_jobs=2).replications, study().replications)


def logistic_rows(rng):
    x = np.clip(rng.normal(size=400), -4, 4)
    frame = pd.DataFrame({"x": x, "y": (rng.random(400) < 1 / (1 + np.exp(-x))).astype(int)})
    return iw.PrivateTable(frame, iw.Schema(iw.Real("x", -4, 4), iw.Binary("y")))


@dataclasses.dataclass(frozen=True)
class Within:
    """A generator around another, as a study may need one."""

    inner: object
    pure = True

    def events(self, facts, *, epsilon, delta=0.0):
        return self.inner.events(facts, epsilon=epsilon, delta=delta)

    def fit(self, private, ledger, *, epsilon, delta=0.0):
        return self.inner.fit(private, ledger, epsilon=epsilon, delta=delta)


@pytest.mark.parametrize("wrap", [lambda generator: generator, Within], ids=["itself", "inside another"])
def test_generators_without_a_seed_get_the_replications_own(wrap):
    mixture = iw.Mixture(n_components=2, n_draws=1, progressbar=False)
    settings = {"simulate": normal_rows, "fit": exact_posterior, "publish": PUBLISH, "n_replications": 2}
    first, second = (study(**settings, generator=wrap(mixture)).replications for _ in range(2))
    pd.testing.assert_frame_equal(first, second)
    other = study(**settings, generator=wrap(dataclasses.replace(mixture, random_seed=1))).replications
    assert not first.equals(other)


def test_providers_without_a_seed_get_one_too():
    seeds = []

    @dataclasses.dataclass(frozen=True)
    class Seen(iw.UniformWeights):
        random_seed: int | None = None

        def fit(self, private, synthetic, ledger, *, epsilon, delta=0.0):
            seeds.append(self.random_seed)
            return iw.UniformWeights.fit(self, private, synthetic, ledger, epsilon=epsilon, delta=delta)

    for weights in (Seen(), Seen(), Seen(random_seed=7)):
        study(weights=weights, n_replications=2)
    assert seeds[:2] == seeds[2:4] and len({*seeds[:2]}) == 2 and None not in seeds and seeds[4:] == [7, 7]


def test_the_whole_recipe_records_its_diagnostics():
    fit = functools.partial(iw.fit, "y ~ x", family="bernoulli", draws=100, chains=2, method="laplace")
    found = coverage_study(
        logistic_rows,
        fit=fit,
        truth={"Intercept": 0.0, "x": 1.0},
        publish={"epsilon": 5.0, "delta": 1e-6},
        n_replications=2,
        random_seed=1,
        progressbar=False,
    )
    rows = found.replications.set_index(["method", "parameter"])
    ours = rows.loc["fit"]
    assert set(ours["verdict"]) <= {"calibrated", "not calibrated"}
    assert (ours["warned"] == (ours["verdict"] == "not calibrated")).all()
    assert (ours["kappa"] <= ours["kappa_max"] * (1 + 1e-9)).all()
    assert (ours["kappa"] > 0).all()
    assert (rows.loc[REFERENCE, "verdict"] == "not calibrated").all()  # row sandwich
    assert (found.table()["length"] > 0).all()


def test_scalars_are_named_by_their_labels():
    values = np.arange(12.0).reshape(1, 2, 2, 3)
    dataset = xr.Dataset(
        {"d": (("chain", "draw", "u", "v"), values), "b": (("chain", "draw"), values[..., 0, 0])},
        coords={"u": ["p", "q"], "v": [10, 20, 30]},
    )
    found = scalars(dataset)
    assert list(found) == ["d[p, 10]", "d[p, 20]", "d[p, 30]", "d[q, 10]", "d[q, 20]", "d[q, 30]", "b"]
    np.testing.assert_array_equal(found["d[q, 20]"], values[0, :, 1, 1])


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"fit": None}, TypeError, "fit 'fit' must be callable"),
        ({"fit": {}}, ValueError, "at least one method"),
        ({"fit": {REFERENCE: exact_posterior}}, ValueError, "no method may be called 'private rows'"),
        ({"simulate": 3}, TypeError, "simulate must be callable"),
        ({"publish": {"epsilon": 1.0}}, TypeError, "with epsilon and delta"),
        ({"publish": {**PUBLISH, "random_seed": 1}}, ValueError, r"must not contain \['random_seed'\]"),
        ({"n_replications": 0}, ValueError, "n_replications must be a whole number"),
        ({"n_jobs": 1.5}, ValueError, "n_jobs must be a whole number"),
        ({"levels": (90,)}, ValueError, r"levels must be in \(0, 1\)"),
        ({"levels": ()}, ValueError, "levels must have at least one level"),
        ({"random_seed": "a"}, ValueError, "random_seed must be a whole number"),
        ({"simulate": fixed_rows}, RuntimeError, "a study needs true values"),
        ({"simulate": uniform_table}, RuntimeError, "simulate must return a PrivateTable"),
        ({"simulate": fixed_rows, "truth": {"q": 1.0}}, RuntimeError, r"it has \['m'\], and not \['q'\]"),
    ],
)
def test_wrong_arguments_are_refused(options, error, message):
    with pytest.raises(error, match=message):
        study(**options)
