"""Shared base of all weight providers: check, charge the ledger, make the weights, register them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from numpy.typing import ArrayLike

from iwbayes.curator.pipeline import admit, owed_events
from iwbayes.curator.privacy.accounting import check_budget, gaussian_multiplier
from iwbayes.curator.privacy.ledger import Ledger
from iwbayes.curator.privacy.mechanisms import VECTOR_MECHANISMS, Noisy
from iwbayes.curator.protocols import PublicFacts, check_rows_at_hand
from iwbayes.evidence.distributions import DISTRIBUTIONS
from iwbayes.release.statement import Event
from iwbayes.release.weights import Weights
from iwbayes.tables import PrivateTable, SyntheticTable


@dataclass(frozen=True)
class OpenFit:
    """A fit whose tables, ledger and budget have been checked. Nothing has been charged yet."""

    private: PrivateTable
    synthetic: SyntheticTable
    ledger: Ledger
    facts: PublicFacts
    epsilon: float
    delta: float
    events: tuple[Event, ...] = ()

    def pay(self) -> Ledger:
        """Charge the fit and the declared cost of outside rows, once, after all checks. Return the account."""
        account = self.ledger.charge_release(*self.events, delta=self.delta)
        admit(self.synthetic, account)
        return account


class Provider:
    """Base class of weight providers. Subclasses define settings and `events`, and make the weights in `_weigh`."""

    mechanism: str  # name of the noise mechanism, for weight providers that draw noise

    @property
    def label(self) -> str:
        """Name of the weight provider's event in the statement."""
        return type(self).__name__

    @property
    def pure(self) -> bool:
        """Whether `fit` accepts delta 0."""
        return self.mechanism not in ("gaussian", "dp-sgd")

    def events(self, facts: PublicFacts, *, epsilon: float, delta: float = 0.0) -> tuple[Event, ...]:
        """Return the events that `fit` will charge, in order; they follow from public facts and the budget alone."""
        raise NotImplementedError

    def fit(
        self, private: PrivateTable, synthetic: SyntheticTable, ledger: Ledger, *, epsilon: float, delta: float = 0.0
    ) -> Weights:
        """Charge the ledger, then compute weights of the synthetic rows, with mean one.

        Parameters
        ----------
        private, synthetic : PrivateTable and SyntheticTable
            Tables under one schema. The synthetic rows get weights.
        ledger : Ledger
            Budget of the private rows. The full cost is charged before any noise is drawn.
        epsilon, delta : float
            The weight provider's part of the budget. Delta may be 0 if the weight provider is ``pure``.

        Raises
        ------
        BudgetExceeded, ValueError
            If the cost does not fit in the ledger, the schemas differ, the budget is invalid, Gaussian noise is
            requested with delta 0, or for a reason described in the class. Nothing is charged, and no noise is drawn.
        """
        weights = self._weigh(self._open(private, synthetic, ledger, epsilon, delta))
        source = weights.fingerprint()
        ledger._register(source)  # these weights can then be the base of other weights
        return weights._from_source(source)

    def _weigh(self, fit: OpenFit) -> Weights:
        """Run the last checks, charge the ledger by ``fit.pay()``, and make the weights."""
        raise NotImplementedError

    def _open(
        self, private: PrivateTable, synthetic: SyntheticTable, ledger: Ledger, epsilon: float, delta: float
    ) -> OpenFit:
        """Check tables, ledger and budget before a private row is read and before anything is charged."""
        fit = OpenFit(private, synthetic, ledger, PublicFacts.of(private, synthetic, ledger), epsilon, delta)
        check_rows_at_hand(self, private)
        self._before(fit)
        events = (*owed_events(synthetic, ledger), *self.events(fit.facts, epsilon=epsilon, delta=delta))
        if events:
            ledger.check(*events, delta=delta)
        return replace(fit, events=events)

    def _before(self, fit: OpenFit) -> None:
        """Raise errors and give warnings that depend on settings and tables, before the ledger is used."""

    def _event(self, epsilon: float, delta: float, label: str = "", count: int = 1) -> Event:
        """Return the event of releasing ``count`` vectors with the mechanism's noise."""
        gaussian = self.mechanism == "gaussian"
        multiplier = gaussian_multiplier(epsilon, delta) if gaussian else None
        own_delta = float(delta) if gaussian else 0.0
        return Event(label or self.label, self.mechanism, float(epsilon), own_delta, multiplier, count)

    def _noise(self, sensitivity: float, dim: int, *, epsilon: float, delta: float) -> Any:
        """Return the distribution of the noise, given the sensitivity in the mechanism's norm."""
        gaussian = self.mechanism == "gaussian"
        scale = sensitivity * gaussian_multiplier(epsilon, delta) if gaussian else sensitivity / epsilon
        return DISTRIBUTIONS[self.mechanism](scale, dim)

    def _noisy(self, value: ArrayLike, mechanism: str, *, delta: float, **settings: Any) -> Noisy:
        """Charge for a vector, then add noise. ``settings`` are for the mechanism; only Gaussian noise uses delta."""
        settings = {"label": self.label, **settings, **({"delta": delta} if mechanism == "gaussian" else {})}
        return VECTOR_MECHANISMS[mechanism](value, **settings)


class FreeProvider(Provider):
    """Base class of weight providers that cost nothing. They check the budget, so that an invalid one is reported."""

    @property
    def pure(self) -> bool:
        """Always True: any delta is accepted, and none is used."""
        return True

    reads_blocks: ClassVar[bool] = True  # no private row is read

    def events(self, facts: PublicFacts, *, epsilon: float, delta: float = 0.0) -> tuple[Event, ...]:
        """Return no event, because nothing is learned from private rows."""
        check_budget(epsilon, delta)
        return ()
