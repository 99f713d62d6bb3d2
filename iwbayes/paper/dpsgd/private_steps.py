"""Private gradient steps: Poisson-sampled rows, clipped per-example gradients, noise in every step, charged in advance.

They work for any torch module and any loss of the private rows (Abadi et al., CCS 2016; Ghalebikesabi et al., UAI 2022,
Algorithm 1, corrected: see `PrivateGradients.gradient`). torch is imported on first use.
"""

from __future__ import annotations

import math
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from iwbayes.curator.privacy.accounting import check_budget, dpsgd_multiplier
from iwbayes.curator.privacy.ledger import Ledger
from iwbayes.paper.dpsgd.row_gradients import (
    CLIP_RANGE,
    check_module,
    clipped_sum,
    import_torch,
    plain_sum,
    probe,
    reference_gradients,
    trainable,
    unflatten,
)
from iwbayes.release.statement import Event
from iwbayes.utils import checks

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module
    from torch.optim import Optimizer

    from iwbayes.paper.dpsgd.row_gradients import RowLoss

    #: Function from the network to one number, which reads public values only.
    PublicLoss = Callable[[Module], Tensor]

_MECHANISMS = ("dp-sgd", "none")


@dataclass(frozen=True)
class PrivateSteps:
    """Settings of private gradient steps, all public.

    Parameters
    ----------
    steps : int
        Number of steps, at least 1.
    sampling_probability : float, default 1.0
        Probability, in (0, 1], of each private row to be in a step. If rows have owners: of each user, with all rows.
    clip_norm : float, optional
        Largest L2 norm of a row's gradient, between 1e-6 and 1e6. If rows have owners: of the sum over a user's rows.
        It is the sensitivity of a step's sum to a null row; a replaced row moves the sum by twice as much, which the
        accounting includes. None sets it in each step, from the gradients of public reference rows (see
        `PrivateGradients.gradient`), times the mean number of rows per user.
    mechanism : {"dp-sgd", "none"}
        "none" neither clips nor adds noise: its cost is infinite.

    Examples
    --------
    >>> settings = PrivateSteps(steps=100, sampling_probability=0.05, clip_norm=1.0)
    >>> event = settings.event("a network", epsilon=1.0, delta=1e-6)
    >>> event.mechanism, event.steps, f"{event.noise_multiplier:.0f}"
    ('dp-sgd', 100, '4')
    """

    steps: int
    sampling_probability: float = 1.0
    clip_norm: float | None = None
    mechanism: str = "dp-sgd"

    def __post_init__(self) -> None:
        checks.whole("steps", self.steps)
        checks.share("sampling_probability", self.sampling_probability, "1 takes all rows.", one=True)
        if self.clip_norm is not None and not CLIP_RANGE[0] <= self.clip_norm <= CLIP_RANGE[1]:
            raise ValueError(
                f"clip_norm must be between {CLIP_RANGE[0]:g} and {CLIP_RANGE[1]:g}; got {self.clip_norm!r}. "
                f"Rescale the loss if its gradients are outside this range."
            )
        checks.one_of("mechanism", self.mechanism, _MECHANISMS)

    def event(self, label: str, *, epsilon: float, delta: float, adjacency: str = "replace-one") -> Event:
        """Return the event of all steps together, with the smallest noise that satisfies (epsilon, delta).

        Raises ValueError if delta is 0, because Gaussian noise has no pure guarantee.
        """
        epsilon, delta = check_budget(epsilon, delta)
        if self.mechanism == "none":
            return Event(label, "none", math.inf)
        steps, rate = int(self.steps), float(self.sampling_probability)
        multiplier = dpsgd_multiplier(epsilon, delta, sampling_probability=rate, steps=steps, adjacency=adjacency)
        return Event(label, "dp-sgd", epsilon, delta, multiplier, sampling_probability=rate, steps=steps)

    def charge(
        self,
        ledger: Ledger,
        label: str,
        rows: Sequence[Tensor],
        *,
        epsilon: float,
        delta: float,
        users: NDArray[np.int64] | None = None,
        n_private: int | None = None,
    ) -> PrivateGradients:
        """Charge the ledger once for all steps, and return the object that takes them.

        ``rows`` are one or more tensors (features and labels, for example) with the private rows along their first
        dimension. They stay on their device; a step moves its rows to the network's device. If the ledger protects
        users, ``users`` are the owners of the rows (`PrivateTable.users`): a step then samples users, and clips the sum
        of the gradients of each user's rows. ``n_private`` is the public number of rows, which divides the sums. With
        users the exact number of rows is private, so ``n_private`` is the released one.

        Raises BudgetExceeded if the steps do not fit in the ledger, and ValueError if rows, owners and the ledger's
        adjacency do not match. Nothing is charged then.
        """
        import_torch("private training")
        if not rows or len({len(part) for part in rows}) != 1 or len(rows[0]) == 0:
            raise ValueError("rows must be tensors with the same number of rows, at least one. Check their lengths.")
        if (users is not None) != (ledger.adjacency == "replace-user"):
            raise ValueError(
                f"users= is needed under 'replace-user', and only there; the ledger's adjacency is "
                f"{ledger.adjacency!r}, and users is {'given' if users is not None else 'missing'}."
            )
        if users is not None and (n_private is None or len(users) != len(rows[0]) or np.min(np.bincount(users)) == 0):
            raise ValueError(
                "with users= every row needs an owner, numbered from 0 without gaps, and n_private must be the "
                "released number of rows. Use PrivateTable.users and PrivateTable.n_private."
            )
        event = self.event(label, epsilon=epsilon, delta=delta, adjacency=ledger.adjacency)
        return PrivateGradients(self, ledger, event, tuple(rows), users, n_private)


class PrivateGradients:
    """Noisy gradients of private rows, all charged when this object is created (see `PrivateSteps.charge`).

    It contains the private rows. It never prints them, and cannot be copied or pickled.
    """

    __slots__ = tuple("_event _left _lock _n_private _n_units _noise _probed _rows _rows_of _settings".split())

    def __init__(
        self,
        settings: PrivateSteps,
        ledger: Ledger,
        event: Event,
        rows: tuple[Tensor, ...],
        users: NDArray[np.int64] | None = None,
        n_private: int | None = None,
    ) -> None:
        self._settings, self._event, self._rows = settings, event, rows
        self._left, self._lock = int(settings.steps), threading.Lock()
        self._n_private = len(rows[0]) if n_private is None else int(n_private)
        self._rows_of = None if users is None else rows_of_users(users)
        #: Public number of the sampled units: rows, or users.
        self._n_units = len(rows[0]) if users is None else int(np.max(users)) + 1
        self._probed: weakref.WeakSet[Module] = weakref.WeakSet()
        self._noise = ledger.charge(event)

    @property
    def left(self) -> int:
        """Number of charged steps that are not taken yet."""
        return self._left

    def noise_sd(self, clip_norm: float) -> float:
        """Return the standard deviation of a step's noise in each coordinate of the gradient; 0 without noise.

        ``clip_norm`` is used only if the settings have none.
        """
        clip_norm = clip_norm if self._settings.clip_norm is None else self._settings.clip_norm
        divisor = self._settings.sampling_probability * self._n_private
        return (self._event.noise_multiplier or 0.0) * clip_norm / divisor

    def gradient(self, network: Module, loss: RowLoss, reference: Sequence[Tensor] | None = None) -> dict[str, Tensor]:
        """Take one step: return a noisy gradient of the private rows' mean loss, by parameter name.

        The estimate is [sum over a Poisson sample of clip(g_i) + noise]/(q N), where g_i is the gradient of a row, or
        the sum over a user's rows. The standard deviation of the noise in each coordinate is the noise multiplier times
        the clip norm. Every step has noise, also one with an empty sample. The divisor is fixed, and the size of the
        sample stays secret. A row with a non-finite gradient counts as zero.

        ``network`` is any module that treats rows separately (see `check_module`). ``loss(network, *rows)`` returns one
        loss per row, shape (row,). It may use public values too, and calls ``network`` like the module.

        ``reference`` are public rows in the same form as the private ones, on any device; synthetic rows, for example.
        The mean c of their gradients is subtracted from each private gradient before clipping and added to the result.
        So the part that the rows have in common needs no clipping and no noise: the step is c + [sum of
        clip(g_i - c) + noise]/(q N). If the settings have no clip norm, the reference rows give it.

        Bounded: the clipped gradient of a row, as the device computed it, has a norm of at most the clip norm, and
        their sum is exact (see `clipped_sum`). Not bounded: rounding inside the network may depend on a row's index in
        its chunk, the noise is floating-point, and the time of a step grows with its sample. The ledger therefore
        records floating-point noise.

        Raises RuntimeError if all charged steps are taken, or if the loss of private rows fails (its message is
        withheld), and ValueError if the module or the loss cannot be differentiated row by row.
        """
        if network not in self._probed:
            check_module(network)
            probe(network, loss, self._rows)
            self._probed.add(network)
        clip_norm, center = self._bounds(network, loss, reference)
        with self._lock:
            if self._left == 0:
                raise RuntimeError(f"all {self._settings.steps} charged steps are taken. Charge more steps first.")
            self._left -= 1
        rate = self._settings.sampling_probability
        n = self._n_units
        chosen = np.arange(n) if rate == 1 else self._noise.poisson_sample(n, rate)
        indices, owners = (chosen, None) if self._rows_of is None else self._rows_of(chosen)
        units: dict[str, Any] = {"owners": owners, "n_units": n}
        flat = None
        try:
            if self._event.noise_multiplier is None:
                flat = plain_sum(network, loss, self._rows, indices)
            else:
                flat = clipped_sum(network, loss, self._rows, indices, clip_norm=clip_norm, center=center, **units)
        except Exception:  # noqa: S110 - raised below, outside this block, so the private error is not chained
            pass
        if flat is None:
            raise RuntimeError(
                "the loss of the private rows failed; the error is withheld, because it may contain private values. "
                "Try the loss on synthetic rows."
            )
        if self._event.noise_multiplier is not None:
            flat = self._noise.floating_gaussian(flat, self._event.noise_multiplier * clip_norm)
        found = unflatten(network, flat / (rate * self._n_private))
        if center is not None:
            found = {name: value + middle for (name, value), middle in zip(found.items(), center, strict=True)}
        return found

    def _bounds(
        self, network: Module, loss: RowLoss, reference: Sequence[Tensor] | None
    ) -> tuple[float, list[Tensor] | None]:
        """Return the clip norm and the center of a step, from public values."""
        if self._event.noise_multiplier is None:
            return math.inf, None
        clip_norm = self._settings.clip_norm
        if reference is None:
            if clip_norm is None:
                raise ValueError(
                    "a step needs a clip_norm or public reference rows; got neither. Set clip_norm, or pass reference=."
                )
            return clip_norm, None
        center, typical = reference_gradients(network, loss, reference)
        typical *= max(1.0, self._n_private / self._n_units)  # a user's rows add up
        return typical if clip_norm is None else clip_norm, center

    def descend(
        self,
        network: Module,
        optimizer: Optimizer,
        loss: RowLoss,
        public_loss: PublicLoss | None = None,
        reference: Sequence[Tensor] | None = None,
    ) -> None:
        """Take one step of the optimizer along the noisy gradient plus the gradient of a public loss.

        Loss and reference are as in `gradient`. ``public_loss(network)`` returns one number. It must read public values
        only, because its gradient is neither clipped nor noisy.
        """
        private = self.gradient(network, loss, reference)
        network.zero_grad(set_to_none=True)
        if public_loss is not None:
            public_loss(network).backward()  # type: ignore[no-untyped-call]
        for name, parameter in trainable(network).items():
            parameter.grad = private[name] if parameter.grad is None else parameter.grad + private[name]
        optimizer.step()

    def __repr__(self) -> str:
        """Show the number of steps only."""
        return f"PrivateGradients({self._left} of {self._settings.steps} steps left)"

    def __reduce__(self) -> NoReturn:
        """Refuse copies and pickles, because a copy would take the charged steps twice."""
        raise TypeError(
            "PrivateGradients cannot be copied, because it contains private rows and counts charged steps. Charge more "
            "steps instead."
        )


def rows_of_users(users: NDArray[np.int64]) -> Callable[[NDArray[np.int64]], tuple[NDArray[Any], NDArray[Any]]]:
    """Return a function from users to the indices of their rows, grouped by user, and the owner of each row."""
    order, counts = np.argsort(users, kind="stable"), np.bincount(users)
    starts = np.cumsum(counts) - counts

    def rows_of(chosen: NDArray[np.int64]) -> tuple[NDArray[Any], NDArray[Any]]:
        own = counts[chosen]
        within = np.arange(own.sum()) - np.repeat(np.cumsum(own) - own, own)
        return order[np.repeat(starts[chosen], own) + within], np.repeat(chosen, own)

    return rows_of
