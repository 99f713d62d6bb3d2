"""How every weight estimator begins and ends: check before anything, register what was made."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from numpy.typing import ArrayLike

from iwbayes.curator.privacy.accounting import gaussian_multiplier
from iwbayes.curator.privacy.declared import admit, owed_events
from iwbayes.curator.privacy.ledger import Ledger
from iwbayes.curator.privacy.mechanisms import VECTOR_MECHANISMS, Noisy
from iwbayes.curator.protocols import LogRatio, PublicFacts, check_rows_at_hand
from iwbayes.measurement import DISTRIBUTIONS
from iwbayes.statement import Event
from iwbayes.tables import PrivateTable, SyntheticTable
from iwbayes.weights import Weights

Ratio = TypeVar("Ratio", bound=LogRatio)


@dataclass(frozen=True)
class OpenFit:
    """A fit whose tables, ledger and budget were checked, and for which nothing was charged yet."""

    private: PrivateTable
    synthetic: SyntheticTable
    ledger: Ledger
    facts: PublicFacts
    epsilon: float
    delta: float
    events: tuple[Event, ...] = ()

    def pay(self) -> Ledger:
        """Charge the fit and what outside rows have cost, and return the account from which it takes its noise.

        To be called once, when nothing is left to refuse.
        """
        account = self.ledger.charge_release(*self.events, delta=self.delta)
        admit(self.synthetic, account)
        return account


class Estimator:
    """What weight estimators share; each has settings and `events`, and makes its weights in `_weigh`."""

    #: Name of the noise, in the settings of those that draw some.
    mechanism: str

    @property
    def label(self) -> str:
        """Name of the event in the statement."""
        return type(self).__name__

    @property
    def pure(self) -> bool:
        """Whether the noise is pure epsilon, so that `fit` takes delta 0."""
        return self.mechanism not in ("gaussian", "dp-sgd")

    def events(self, facts: PublicFacts, *, epsilon: float, delta: float = 0.0) -> tuple[Event, ...]:
        """Declare the uses of the private rows that `fit` will charge."""
        raise NotImplementedError

    def fit(
        self, private: PrivateTable, synthetic: SyntheticTable, ledger: Ledger, *, epsilon: float, delta: float = 0.0
    ) -> Weights:
        """Charge the ledger, then weight the synthetic rows.

        Parameters
        ----------
        private : PrivateTable
        synthetic : SyntheticTable
            Under the same schema.
        ledger : Ledger
            Charged before any noise is drawn.
        epsilon, delta : float
            This estimator's part of the budget; delta may be 0 where the estimator is ``pure``.

        Returns
        -------
        Weights
            With mean one, in one draw unless the settings ask for more.

        Raises
        ------
        BudgetExceeded
            When the part does not fit in the ledger; nothing is drawn.
        ValueError
            When the schemas differ, the budget is none, Gaussian noise is asked for with delta 0, or for a reason that
            the notes on the class tell; nothing is charged.
        """
        weights = self._weigh(self._open(private, synthetic, ledger, epsilon, delta))
        # the ledger knows their digest, so that they may serve as the base of others
        source = weights.fingerprint()
        ledger._register(source)
        return weights._from_source(source)

    def _weigh(self, fit: OpenFit) -> Weights:
        """Refuse what is left to refuse, pay, and make the weights."""
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
        """Refuse what settings and tables forbid, and warn of a cost, before the ledger is asked."""

    def _event(self, epsilon: float, delta: float, label: str = "", count: int = 1) -> Event:
        """Vectors with noise of the mechanism, as many as ``count`` says."""
        gaussian = self.mechanism == "gaussian"
        multiplier = gaussian_multiplier(epsilon, delta) if gaussian else None
        own_delta = float(delta) if gaussian else 0.0
        return Event(label or self.label, self.mechanism, float(epsilon), own_delta, multiplier, count)

    def _noise(self, sensitivity: float, dim: int, *, epsilon: float, delta: float) -> Any:
        """Distribution of that noise, for a sensitivity in the mechanism's norm."""
        gaussian = self.mechanism == "gaussian"
        scale = sensitivity * gaussian_multiplier(epsilon, delta) if gaussian else sensitivity / epsilon
        return DISTRIBUTIONS[self.mechanism](scale, dim)

    def _noisy(self, value: ArrayLike, mechanism: str, *, delta: float, **settings: Any) -> Noisy:
        """Charge for a vector, then add the noise: ``settings`` are the mechanism's, delta is for Gaussian noise."""
        settings = {"label": self.label, **settings, **({"delta": delta} if mechanism == "gaussian" else {})}
        return VECTOR_MECHANISMS[mechanism](value, **settings)


class RatioLearner(Estimator, Generic[Ratio]):
    """An estimator that learns a log ratio as a function of the row, in `_learn`."""

    def fit_ratio(
        self, private: PrivateTable, synthetic: SyntheticTable, ledger: Ledger, *, epsilon: float, delta: float = 0.0
    ) -> Ratio:
        """Fit the log ratio as a function of any row under the schema, registered with the ledger; see `fit`."""
        return self._learn(self._open(private, synthetic, ledger, epsilon, delta))

    def _learn(self, fit: OpenFit) -> Ratio:
        """Pay, learn the log ratio and register it."""
        raise NotImplementedError
