"""PrivateLogisticRegression: one regression on the private rows directly, to compare with inference on a release."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from scipy.special import expit

from iwbayes.curator.privacy.accounting import check_budget, gaussian_multiplier
from iwbayes.curator.privacy.ledger import Ledger
from iwbayes.curator.privacy.mechanisms import gaussian
from iwbayes.curator.protocols import PublicFacts
from iwbayes.paper.logistic_loss import (
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
from iwbayes.release.statement import Event
from iwbayes.schema import Schema
from iwbayes.schema.levels import Binary
from iwbayes.tables import PrivateTable, SyntheticTable
from iwbayes.utils import checks
from iwbayes.utils.arrays import Array
from iwbayes.utils.digest import digest

MECHANISMS = ("objective", "gaussian", "none")


@dataclass(frozen=True, eq=False)
class FittedLogistic:
    """A released logistic regression. It is public, and contains nothing private.

    Parameters
    ----------
    target : Binary
        The response column; its second level is the success.
    features : Schema
        The predictor columns.
    coefficients : ndarray, shape (k,)
        Noisy coefficients of the centred encoded features and, last, of the constant 1.
    """

    target: Binary
    features: Schema
    coefficients: Array

    def __post_init__(self) -> None:
        coefficients = np.array(self.coefficients, dtype=np.float64)
        if coefficients.shape != (self.features.n_features + 1,):
            raise ValueError(
                f"coefficients must have shape ({self.features.n_features + 1},), one for each feature and one for "
                f"the constant; got {coefficients.shape}. Pass the coefficients of all features."
            )
        coefficients.setflags(write=False)
        object.__setattr__(self, "coefficients", coefficients)

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Names of the coefficients. The last is the constant: the log odds at the centre of the columns."""
        return (*self.features.feature_names, "Intercept")

    def log_odds(self, table: PrivateTable | SyntheticTable) -> Array:
        """Return the log odds of the target's second level for each row.

        Parameters
        ----------
        table : PrivateTable or SyntheticTable
            Table with the feature columns, declared as for the fit; other columns are not read.

        Returns
        -------
        ndarray, shape (row,)
            Log odds, natural logs.

        Raises
        ------
        ValueError
            If the table lacks a feature column, or declares it differently.
        """
        wrong = [c.name for c in self.features if c.name not in table.schema.names or table.schema[c.name] != c]
        if wrong:
            raise ValueError(
                f"the table lacks the columns {wrong}, or declares them differently from the schema of the fit. Pass a "
                f"table with that schema."
            )
        return design_of(self.features, table.frame, encoded_reach(self.features)) @ self.coefficients

    def predict_proba(self, table: PrivateTable | SyntheticTable) -> Array:
        """Return the probability of the target's second level for each row, shape (row,); see `log_odds`."""
        return expit(self.log_odds(table))

    def fingerprint(self) -> str:
        """Return a digest of columns and coefficients, which a ledger registers (see `Ledger.holds`)."""
        columns = Schema(self.target, *self.features)
        return digest("FittedLogistic", columns.to_toml(), self.coefficients)


@dataclass(frozen=True)
class PrivateLogisticRegression:
    """Fit a private logistic regression of one binary column on others, directly on the private rows.

    It answers one question better than a synthetic table with weights, but each question costs a separate budget. A
    release answers any number of questions for one budget.

    Parameters
    ----------
    target : str
        Name of a `Binary` column; its second level is the success.
    features : tuple of str, optional
        Names of the predictor columns; by default all other columns.
    l2 : float, default 0.01
        Ridge penalty, above 0, on every coefficient, also on the constant. A larger penalty means less noise and more
        shrinkage.
    mechanism : {"objective", "gaussian", "none"}
        "objective" perturbs the objective by spherical noise (Chaudhuri et al. 2011), with pure epsilon. "gaussian"
        adds Gaussian noise to the coefficients and needs delta above 0. "none" adds no noise: its cost is infinite, so
        it needs a ledger with an infinite budget.

    Raises
    ------
    TypeError, ValueError
        If a setting is not valid.

    Notes
    -----
    Let x be a row's centred encoded features and the constant 1, s = 1 for the target's second level and -1 for its
    first, and z = s x. The coefficients minimise

        J(b) = (1/N) sum log(1 + exp(-b.z)) + l2/2 |b|**2,

    where N is the public number of rows. A row with a missing target has z = 0, so it adds a constant.

    Sensitivity. A row's gradient is -z/(1 + exp(b.z)). Its norm is at most |z| <= r = sqrt(radius**2 + 1), with the
    radius of the centred encoded features. Replacing a row moves the sum of gradients by at most R = 2 r, because z and
    -z are both possible. Turning it into a null row, which adds a constant, moves the sum by at most R = r. If users
    own up to tau rows (``rows_per_user``), each of these rows is replaced (at most R), or appears or vanishes (at most
    r <= R): together at most tau R. J is l2-strongly convex, so the minimiser moves by at most (tau R/N + 2 tol)/l2 in
    L2, whatever the other rows are; tol is the solver's tolerance. Objective perturbation needs R and the determinants
    of the Hessians; see `iwbayes.paper.logistic_loss.Perturbation`.

    References
    ----------
    Chaudhuri, Monteleoni & Sarwate (JMLR 12, 2011), algorithm 2 and theorem 9.

    Examples
    --------
    >>> import iwbayes as iw
    >>> people = iw.datasets.simulate_table("bernoulli", 2000, random_seed=1)
    >>> private = iw.PrivateTable(people.frame, people.schema)
    >>> ledger = iw.Ledger(1.0, 1e-6)
    >>> fitted = iw.paper.PrivateLogisticRegression("y", ("x", "z")).fit(private, ledger, epsilon=0.5)
    >>> fitted.feature_names
    ('x', 'z', 'Intercept')
    >>> ledger.spent
    (0.5, 0.0)
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
        checks.one_of("mechanism", self.mechanism, MECHANISMS)
        if self.features is None:
            return
        if isinstance(self.features, str) or not all(isinstance(name, str) for name in self.features):
            raise TypeError(f"features must be a list of column names; got {self.features!r}.")
        names = tuple(self.features)
        if not names or len(set(names)) < len(names) or self.target in names:
            raise ValueError(
                f"features must be distinct columns without the target, at least one; got {names!r}. Leave out "
                f"features= to use all other columns."
            )
        object.__setattr__(self, "features", names)

    @property
    def pure(self) -> bool:
        """Whether the mechanism satisfies pure epsilon, so that `fit` takes delta 0."""
        return self.mechanism != "gaussian"

    def events(self, facts: PublicFacts, *, epsilon: float, delta: float = 0.0) -> tuple[Event, ...]:
        """Return the event that `fit` will charge, without reading private rows.

        Parameters
        ----------
        facts : PublicFacts
            Schema, number of rows and adjacency.
        epsilon, delta : float
            Budget of the regression; delta is used by "gaussian" only.

        Returns
        -------
        tuple of Event

        Raises
        ------
        ValueError
            If the schema lacks a column, the target is not binary, the budget is not valid, or rounding takes too large
            a part of it.
        """
        epsilon, delta = check_budget(epsilon, delta)
        _, features = self._columns(facts.schema)
        if self.mechanism == "none":
            return (Event(self.label, "none", math.inf),)
        if self.mechanism == "gaussian":
            return (Event(self.label, "gaussian", epsilon, delta, gaussian_multiplier(epsilon, delta)),)
        self._perturbation(facts, encoded_reach(features), epsilon)  # raises if rounding takes too much of epsilon
        return (Event(self.label, "objective", epsilon),)

    def fit(self, private: PrivateTable, ledger: Ledger, *, epsilon: float, delta: float = 0.0) -> FittedLogistic:
        """Charge the ledger, then fit the regression.

        Parameters
        ----------
        private : PrivateTable
            The private rows.
        ledger : Ledger
            Ledger to charge before any noise is drawn.
        epsilon, delta : float
            Budget of this regression; delta is used by "gaussian" only.

        Returns
        -------
        FittedLogistic
            The public result.

        Raises
        ------
        BudgetExceeded
            If the budget does not fit in the ledger; nothing is drawn.
        ValueError
            As in `events`, or if table and ledger do not protect the same unit; nothing is charged.
        """
        facts = PublicFacts.of(private, None, ledger)
        events = self.events(facts, epsilon=epsilon, delta=delta)
        target, features = self._columns(facts.schema)
        reach = encoded_reach(features)
        plan = self._perturbation(facts, reach, float(epsilon)) if self.mechanism == "objective" else None
        account = ledger.charge_release(*events)
        codes = target.codes(private.frame[target.name])
        signs = np.where(codes < 0, 0.0, 2.0 * codes - 1.0)
        rows = signs[:, None] * design_of(features, private.frame, reach)
        if plan is not None:
            coefficients = perturbed_minimiser(rows, None, plan, account.charge(*events), facts.n_private)
        elif self.mechanism == "gaussian":
            exact = minimise(rows, None, self.l2, n_private=facts.n_private)
            change = sensitivity(facts.rows_per_user * self._change(facts, reach), facts.n_private, self.l2)
            budget = {"epsilon": epsilon, "delta": delta, "ledger": account, "label": self.label}
            coefficients = gaussian(exact, sensitivity=change, **budget).value  # type: ignore[arg-type]
        else:
            coefficients = minimise(rows, None, self.l2, n_private=facts.n_private)
            account.charge(*events)
        fitted = FittedLogistic(target, features, coefficients)
        ledger._register(fitted.fingerprint())
        return fitted

    def _columns(self, schema: Schema) -> tuple[Binary, Schema]:
        """Return the target column and the feature columns of a schema."""
        names = self.features or tuple(name for name in schema.names if name != self.target)
        absent = [name for name in (self.target, *names) if name not in schema.names]
        if absent:
            raise ValueError(f"the schema has no columns {absent}. Choose from {list(schema.names)}.")
        target = schema[self.target]
        if not isinstance(target, Binary):
            raise ValueError(f"target must be a Binary column; {self.target!r} is {type(target).__name__}.")
        if not names:
            raise ValueError(
                f"the schema has no predictor column besides the target {self.target!r}. Declare another column."
            )
        return target, Schema(*(schema[name] for name in names))

    def _change(self, facts: PublicFacts, reach: Reach) -> float:
        """Return the largest change R of the sum of gradients if one row changes."""
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
