"""PrivateLogisticRegression: one regression straight on the private rows, to compare with inference on a release."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from scipy.special import expit

from iwbayes._digest import digest
from iwbayes.arrays import Array
from iwbayes.curator.estimators.logistic_loss import (
    Perturbation,
    Reach,
    check_penalty,
    design_of,
    encoded_reach,
    minimise,
    perturbed_minimiser,
    plan_perturbation,
    sensitivity,
)
from iwbayes.curator.privacy.accounting import check_budget, gaussian_multiplier
from iwbayes.curator.privacy.ledger import Ledger
from iwbayes.curator.privacy.mechanisms import gaussian
from iwbayes.curator.protocols import PublicFacts
from iwbayes.schema import Schema
from iwbayes.schema.columns import Binary
from iwbayes.statement import Event
from iwbayes.tables import PrivateTable, SyntheticTable

MECHANISMS = ("objective", "gaussian", "none")


@dataclass(frozen=True, eq=False)
class FittedLogistic:
    """A released logistic regression: public, it keeps nothing private.

    Parameters
    ----------
    target : Binary
        The column whose second level is the success.
    features : Schema
        The columns that the log odds depend on.
    coefficients : ndarray, shape (k,)
        Of the centred encoded features and the constant 1, noise included.
    """

    target: Binary
    features: Schema
    coefficients: Array

    def __post_init__(self) -> None:
        coefficients = np.array(self.coefficients, dtype=np.float64)
        if coefficients.shape != (self.features.n_features + 1,):
            raise ValueError(
                f"coefficients must have shape ({self.features.n_features + 1},), one for each feature and one for "
                f"the constant; got {coefficients.shape}."
            )
        coefficients.setflags(write=False)
        object.__setattr__(self, "coefficients", coefficients)

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Names of the coefficients; the last is that of the constant, the log odds at the centre of the columns."""
        return (*self.features.feature_names, "Intercept")

    def log_odds(self, table: PrivateTable | SyntheticTable) -> Array:
        """Log odds of the target's second level for each row, natural logs, shape (row,).

        Parameters
        ----------
        table : PrivateTable or SyntheticTable
            With the feature columns as declared when the regression was fitted; other columns are not read.

        Raises
        ------
        ValueError
            When the table lacks a feature column or declares it otherwise.
        """
        wrong = [c.name for c in self.features if c.name not in table.schema.names or table.schema[c.name] != c]
        if wrong:
            raise ValueError(
                f"the table lacks the columns {wrong}, or declares them in another way than where the regression was "
                f"fitted. Give it rows under that schema."
            )
        return design_of(self.features, table.frame, encoded_reach(self.features)) @ self.coefficients

    def predict_proba(self, table: PrivateTable | SyntheticTable) -> Array:
        """Probability of the target's second level for each row, shape (row,); see `log_odds`."""
        return expit(self.log_odds(table))

    def fingerprint(self) -> str:
        """Digest of columns and coefficients, by which a ledger knows it."""
        columns = Schema(self.target, *self.features)
        return digest("FittedLogistic", columns.to_toml(), self.coefficients)


@dataclass(frozen=True)
class PrivateLogisticRegression:
    """A private logistic regression of one binary column on others: the mechanism tailored to one question.

    It answers a single question better than a synthetic table with weights can, at the price of a budget for each
    question; a release answers any number at the price of one.

    Parameters
    ----------
    target : str
        A `Binary` column; its second level is the success.
    features : sequence of str, optional
        Other columns; all of them by default.
    l2 : float
        Ridge penalty, above 0, on every coefficient, that of the constant too. Noise falls and shrinkage grows with
        it.
    mechanism : {"objective", "gaussian", "none"}
        "objective" perturbs the objective by spherical noise (Chaudhuri et al. 2011): pure epsilon. "gaussian" adds
        Gaussian noise to the coefficients and needs delta above 0. "none" adds no noise: its cost is infinite, and
        only a ledger with an infinite budget takes it.

    Notes
    -----
    With x a row's centred encoded features and the constant 1, s = 1 for the target's second level and -1 for its
    first, and z = s x, the coefficients minimise

        J(b) = (1/N) sum log(1 + exp(-b.z)) + l2/2 |b|**2,

    N the public number of rows. A row with a missing target has z = 0: it adds a constant.

    Sensitivity. A row's gradient is -z/(1 + exp(b.z)), whose norm is at most |z| <= r = sqrt(radius**2 + 1), with the
    radius of the centred encoded features. Replacing a row moves the sum of gradients by at most R = 2 r, since z and
    -z are both possible; turning it into a null row, which adds a constant, by R = r. Where users own up to tau
    rows (``rows_per_user``), each of these rows is replaced, or appears or vanishes, which moves the sum by r <= R:
    together by at most tau R. J is l2-strongly convex, so the minimiser moves by at most (tau R/N + 2 tol)/l2 in L2,
    tol the solver's tolerance, whatever the other rows are. Objective perturbation needs R and the determinants of
    the Hessians; see `iwbayes.curator.estimators.logistic_loss.Perturbation`.

    References
    ----------
    Chaudhuri, Monteleoni & Sarwate (JMLR 12, 2011), algorithm 2 and theorem 9.

    Examples
    --------
    >>> import iwbayes as iw
    >>> facts = PublicFacts(iw.Schema(iw.Binary("y"), iw.Real("x", 0, 1)), n_private=1000, n_synthetic=0)
    >>> PrivateLogisticRegression("y").events(facts, epsilon=1.0)[0].mechanism
    'objective'
    """

    target: str
    features: tuple[str, ...] | None = None
    l2: float = 0.01
    mechanism: str = "objective"

    #: Name of the event in the statement.
    label: ClassVar[str] = "PrivateLogisticRegression"

    def __post_init__(self) -> None:
        if not isinstance(self.target, str):
            raise TypeError(f"target must be the name of a column; got {type(self.target).__name__}.")
        check_penalty(self.l2)
        if self.mechanism not in MECHANISMS:
            raise ValueError(f"mechanism must be one of {list(MECHANISMS)}; got {self.mechanism!r}.")
        if self.features is None:
            return
        if isinstance(self.features, str) or not all(isinstance(name, str) for name in self.features):
            raise TypeError(f"features must be names of columns, in a list; got {self.features!r}.")
        names = tuple(self.features)
        if not names or len(set(names)) < len(names) or self.target in names:
            raise ValueError(f"features must be distinct columns other than the target, at least one; got {names!r}.")
        object.__setattr__(self, "features", names)

    @property
    def pure(self) -> bool:
        """Whether the noise is pure epsilon, so that `fit` takes delta 0."""
        return self.mechanism != "gaussian"

    def events(self, facts: PublicFacts, *, epsilon: float, delta: float = 0.0) -> tuple[Event, ...]:
        """Declare the use of the private rows that `fit` will charge.

        Raises
        ------
        ValueError
            When the schema lacks a column, the target is not binary, the budget is none, or what rounding takes of it
            is too much.
        """
        epsilon, delta = check_budget(epsilon, delta)
        _, features = self._columns(facts.schema)
        if self.mechanism == "none":
            return (Event(self.label, "none", math.inf),)
        if self.mechanism == "gaussian":
            return (Event(self.label, "gaussian", epsilon, delta, gaussian_multiplier(epsilon, delta)),)
        self._perturbation(facts, encoded_reach(features), epsilon)  # refuses what rounding would spoil
        return (Event(self.label, "objective", epsilon),)

    def fit(self, private: PrivateTable, ledger: Ledger, *, epsilon: float, delta: float = 0.0) -> FittedLogistic:
        """Fit the regression under the ledger.

        Parameters
        ----------
        private : PrivateTable
        ledger : Ledger
            Charged before any noise is drawn.
        epsilon, delta : float
            This query's part of the budget.

        Returns
        -------
        FittedLogistic

        Raises
        ------
        BudgetExceeded
            When the part does not fit in the ledger; nothing is drawn.
        ValueError
            As `events`, and when table and ledger do not protect the same; nothing is charged.
        """
        facts = PublicFacts.of(private, None, ledger)
        events = self.events(facts, epsilon=epsilon, delta=delta)
        ledger.check(*events)
        target, features = self._columns(facts.schema)
        reach = encoded_reach(features)
        codes = target.codes(private.frame[target.name])
        signs = np.where(codes < 0, 0.0, 2.0 * codes - 1.0)
        rows = signs[:, None] * design_of(features, private.frame, reach)
        if self.mechanism == "objective":
            plan = self._perturbation(facts, reach, float(epsilon))
            noise = ledger.charge(*events)
            coefficients = perturbed_minimiser(rows, None, plan, noise, facts.n_private)
        elif self.mechanism == "gaussian":
            exact = minimise(rows, None, self.l2, n_private=facts.n_private)
            change = sensitivity(facts.rows_per_user * self._change(facts, reach), facts.n_private, self.l2)
            budget = {"epsilon": epsilon, "delta": delta, "ledger": ledger, "label": self.label}
            coefficients = gaussian(exact, sensitivity=change, **budget).value  # type: ignore[arg-type]
        else:
            coefficients = minimise(rows, None, self.l2, n_private=facts.n_private)
            ledger.charge(*events)
        fitted = FittedLogistic(target, features, coefficients)
        ledger._register(fitted.fingerprint())
        return fitted

    def _columns(self, schema: Schema) -> tuple[Binary, Schema]:
        """Target and features of a schema."""
        names = self.features or tuple(name for name in schema.names if name != self.target)
        absent = [name for name in (self.target, *names) if name not in schema.names]
        if absent:
            raise ValueError(f"the schema has no columns {absent}; it has {list(schema.names)}.")
        target = schema[self.target]
        if not isinstance(target, Binary):
            raise ValueError(f"target must be a Binary column; {self.target!r} is {type(target).__name__}.")
        if not names:
            raise ValueError(f"the schema has no column beside the target {self.target!r} to regress it on.")
        return target, Schema(*(schema[name] for name in names))

    def _change(self, facts: PublicFacts, reach: Reach) -> float:
        """Largest change R of the sum of gradients when one row changes."""
        return {"replace-one": 2.0, "zero-out": 1.0}[facts.row_adjacency] * math.hypot(reach.radius, 1.0)

    def _perturbation(self, facts: PublicFacts, reach: Reach, epsilon: float) -> Perturbation:
        return plan_perturbation(
            facts,
            k=len(reach.center) + 1,
            size=math.hypot(reach.radius, 1.0),
            row_change=self._change(facts, reach),
            l2=self.l2,
            epsilon=epsilon,
            remedy="Use mechanism='gaussian'.",
        )
