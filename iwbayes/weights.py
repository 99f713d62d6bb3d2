"""Weights of synthetic rows, their diagnostics, and post-processing, which is free when not tuned on private rows."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import logsumexp

from iwbayes._digest import Sourced, digest
from iwbayes.arrays import Array
from iwbayes.display import html_table, number, wrapped
from iwbayes.tables import SyntheticTable
from iwbayes.tails import FiniteVarianceTest, is_tied, psislw, variance_test

if TYPE_CHECKING:
    from iwbayes.measurement import Measurement

#: Finite log weights end here, far beyond any that means something, so that their squares and sums do not overflow.
LARGEST_LOG_WEIGHT = 1e100

#: Effective sample size as a share of the synthetic rows, below which the private distribution is much narrower than,
#: or elsewhere from, the generator's: a warning. In nine such fits of real and simulated tables that were inside
#: otherwise, intervals covered 79 % of 42 parameters; in ten of other tables, all of 68.
ESS_LIMIT = 0.35
#: Post-processing that leaves the shares w_i / sum w of a tilt as they are.
HARMLESS_STEPS = ("normalize",)


@dataclass(frozen=True)
class Weights(Sourced):
    """Importance weights of synthetic rows on the log scale.

    Parameters
    ----------
    log_weights : array_like, shape (draw, row) or (row,)
        log p_private(x)/p_synthetic(x), unnormalised. Several draws carry the distribution of the released noise;
        a point estimate is one draw. -inf is a weight of zero.
    method : str
        The estimator that made them.
    steps : tuple of str
        Post-processing since then, in order.
    measurement : Measurement or None
        The noisy statistic behind them: what noise-aware calibration needs.

    Raises
    ------
    ValueError
        When a log weight is NaN, +inf or finite and beyond 1e100, or a draw has no positive weight.
    """

    log_weights: Array
    method: str
    steps: tuple[str, ...] = ()
    measurement: Measurement | None = field(default=None, repr=False)
    _maker: str | None = field(default=None, init=False, repr=False, compare=False)
    _made_as: str | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        log_weights = np.atleast_2d(np.array(self.log_weights, dtype=np.float64))
        if log_weights.ndim != 2 or log_weights.size == 0:
            raise ValueError(f"log_weights must have shape (draw, row); got {log_weights.shape}.")
        if np.isnan(log_weights).any() or np.isposinf(log_weights).any():
            raise ValueError("log_weights must not be NaN or +inf. Check the estimator that made them.")
        if (np.isfinite(log_weights) & (np.abs(log_weights) > LARGEST_LOG_WEIGHT)).any():
            raise ValueError(
                f"finite log_weights must be within {LARGEST_LOG_WEIGHT:g} of 0. Use -inf for a row without weight."
            )
        if np.isneginf(log_weights).all(axis=1).any():
            raise ValueError("each draw needs at least one positive weight; one has none.")
        log_weights.setflags(write=False)
        object.__setattr__(self, "log_weights", log_weights)
        object.__setattr__(self, "steps", tuple(self.steps))

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.log_weights.setflags(write=False)  # a pickle's arrays could be written to

    def __len__(self) -> int:
        return self.log_weights.shape[1]

    def __getitem__(self, rows: Any) -> Weights:
        """Weights of some rows, by a slice, a boolean mask or positions; their mean is one again.

        They stand for a part of the private rows: as its total `reweight` should get their share,
        ``release.n_private * weights.values[rows].sum() / len(weights)``. The measurement, which is of all rows, goes.
        """
        if np.ndim(rows) == 0 and not isinstance(rows, slice):
            raise TypeError(f"weights are taken by a slice, a mask or positions of rows; got {rows!r}.")
        kept = self.log_weights[:, rows if isinstance(rows, slice) else np.asarray(rows)]
        return replace(self, log_weights=kept, steps=(*self.steps, f"{kept.shape[1]} rows"), measurement=None)

    def __repr__(self) -> str:
        steps = "".join(f" > {step}" for step in self.steps)
        return wrapped(
            f"Weights({self.method}{steps}: {self.n_draws} draw(s) x {len(self)} rows, "
            f"pareto_k {self.pareto_k:.2f}, ess {self.ess:.0f})"
        )

    def __str__(self) -> str:
        return wrapped("\n".join(["Weights", *(f"  {name}: {value}" for name, value in self._facts())]))

    def _repr_html_(self) -> str:
        return html_table("Weights", ("", "value"), self._facts())

    def _facts(self) -> list[tuple[str, str]]:
        positive, share = self.draw_values, self.ess / len(self)
        facts = [
            ("method", " > ".join((self.method, *self.steps))),
            ("size", f"{len(self):,} rows, {self.n_draws} draw{'s' * (self.n_draws != 1)}"),
            ("range", f"{number(float(np.min(positive)))} to {number(float(np.max(positive)))}, mean 1"),
            ("ess", f"{self.ess:,.0f} ({share:.0%})"),
            ("pareto_k", self.pareto_k_in_words),
        ]
        return facts if self.measurement is None else [*facts, ("measured", self.measurement.name)]

    @property
    def n_draws(self) -> int:
        """Number of draws."""
        return self.log_weights.shape[0]

    @cached_property
    def draw_values(self) -> Array:
        """Weights of each draw, mean one over the rows; shape (draw, row)."""
        values = np.exp(self.log_weights - logsumexp(self.log_weights, axis=1, keepdims=True))
        values *= len(self)
        values.setflags(write=False)
        return values

    @cached_property
    def values(self) -> Array:
        """Weights averaged over the draws, mean one over the rows; shape (row,)."""
        values = self.draw_values.mean(axis=0)
        values.setflags(write=False)
        return values

    @cached_property
    def pareto_k(self) -> float:
        """Pareto shape of the largest weights, the worst over draws (Vehtari et al. 2024); 0.7 is large.

        NaN where the largest weights take few distinct values, as those of a table of levels do: a shape is that of a
        continuous tail.
        """
        if any(is_tied(draw) for draw in self.log_weights):
            return float("nan")
        return max(psislw(draw)[1] for draw in self.log_weights)

    @property
    def pareto_k_in_words(self) -> str:
        """Its value and what it means, for reading."""
        k, limit = self.pareto_k, pareto_k_threshold(len(self))
        if np.isnan(k):
            return "not defined (the largest weights take few values)"
        return f"{k:.2f} ({'good' if k < limit else 'large'}: the limit is {limit:.2f})"

    @cached_property
    def ess(self) -> float:
        """Kish effective sample size (sum w)**2 / sum w**2, the smallest over draws, in rows."""
        return min(kish_ess(draw) for draw in self.log_weights)

    def finite_variance_test(self, *, tail: int | None = None) -> FiniteVarianceTest:
        """Test that each draw has a finite variance (Koopman, Shephard & Creal 2009); see `variance_test`.

        Parameters
        ----------
        tail : int, optional
            Number of largest weights to use, by default as many as `psislw` smooths.

        Returns
        -------
        FiniteVarianceTest
            Of the draw with the smallest ``p_value``. A small one says that importance sampling with these weights has
            no central limit theorem; with several draws it is the smallest of as many p-values.

        Raises
        ------
        ValueError
            When the rows are too few for a tail, or ``tail`` is out of range.

        Examples
        --------
        >>> import numpy as np
        >>> Weights(np.random.default_rng(1).normal(size=5000), "log-normal").finite_variance_test().p_value > 0.05
        True
        """
        return max((variance_test(draw, tail=tail) for draw in self.log_weights), key=lambda test: test.score)

    def psis(self) -> Weights:
        """Pareto-smooth each draw's largest weights; see `psislw`."""
        return self._stepped(np.stack([psislw(draw)[0] for draw in self.log_weights]), "psis")

    def temper(self, *, power: float) -> Weights:
        """Raise the weights to a power in (0, 1]: less variance, more bias.

        Raises
        ------
        ValueError
            When the power is outside (0, 1].
        """
        if not 0 < power <= 1:
            raise ValueError(f"power must be in (0, 1]; got {power!r}. Use 1 to leave weights unchanged.")
        return self._stepped(self.log_weights * power, f"temper({power:g})")

    def truncate(self, *, threshold: float | None = None) -> Weights:
        """Cut weights above a threshold (Ionides 2008).

        Parameters
        ----------
        threshold : float, optional
            In units of the mean weight; the default is the square root of the number of rows.

        Raises
        ------
        ValueError
            When the threshold is not above 0.
        """
        level = np.sqrt(len(self)) if threshold is None else float(threshold)
        if not level > 0:
            raise ValueError(f"threshold must be above 0 (in mean weights); got {threshold!r}.")
        return self._stepped(np.minimum(self.log_weights, self._log_means() + np.log(level)), f"truncate({level:g})")

    def normalize(self) -> Weights:
        """Shift the log weights so that each draw's weights have mean one over the rows."""
        return self._stepped(self.log_weights - self._log_means(), "normalize")

    def _log_means(self) -> Array:
        return logsumexp(self.log_weights, axis=1, keepdims=True) - np.log(len(self))

    def resample(
        self, synthetic: SyntheticTable, *, n: int | None = None, random_seed: int | np.random.Generator | None = None
    ) -> SyntheticTable:
        """Draw synthetic rows by weight, for tools that take no weights (sampling importance resampling).

        Parameters
        ----------
        synthetic : SyntheticTable
            The rows of these weights, whose several draws are averaged.
        n : int, optional
            Rows to draw, by default as many as there are. Rows drawn more than once are copies: an interval
            from the resampled rows does not account for the noise in the weights.
        random_seed : int or numpy.random.Generator, optional

        Raises
        ------
        ValueError
            When lengths differ or ``n`` is below 1.

        Notes
        -----
        Systematic resampling: each row's count differs from its expectation by less than one.
        """
        if len(self) != len(synthetic):
            raise ValueError(f"there are {len(self)} weights for {len(synthetic)} rows; they must agree.")
        n = len(self) if n is None else n
        if n < 1:
            raise ValueError(f"n must be at least 1; got {n}.")
        rng = np.random.default_rng(random_seed)
        chosen = rng.permutation(systematic_indices(self.values, n, rng))
        frame = synthetic.frame.iloc[chosen].reset_index(drop=True)
        return SyntheticTable(frame, synthetic.schema, origin=synthetic.origin)

    def _stepped(self, log_weights: Array, step: str) -> Weights:
        # `dataclasses.replace` and a release file lose the source
        return replace(self, log_weights=log_weights, steps=(*self.steps, step))._from_source(self.source)

    def fingerprint(self) -> str:
        """SHA-256 of the log weights and of the noisy values behind them."""
        measured = []
        part = self.measurement
        while part is not None:
            measured.append(part.value)
            part = part.held_back
        return digest("Weights", self.log_weights, *measured)


def kish_ess(log_weights: ArrayLike) -> float:
    """Kish effective sample size (sum w)**2 / sum w**2 from log weights of shape (row,), in rows.

    Theory: docs/theory.md#pareto-k-and-effective-sample-sizes.
    """
    log_weights = np.asarray(log_weights, dtype=np.float64)
    return float(np.exp(2 * logsumexp(log_weights) - logsumexp(2 * log_weights)))


def pareto_k_threshold(n: int) -> float:
    """Largest acceptable Pareto shape for n weights: min(1 - 1/log10(n), 0.7) (Vehtari et al. 2024)."""
    return min(1 - 1 / np.log10(max(n, 10)), 0.7)


def systematic_indices(weights: Array, n: int, rng: np.random.Generator) -> NDArray[np.intp]:
    """Draw n indices in proportion to weights (row,), in their order: each count is within one of its expectation."""
    edges = np.cumsum(weights)
    points = (rng.random() + np.arange(n)) * (edges[-1] / n)
    return np.minimum(np.searchsorted(edges, points, side="right"), len(edges) - 1)
