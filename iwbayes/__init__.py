"""Bayesian inference on differentially private synthetic data with privatised importance weights.

A curator publishes a synthetic table with private weights under one (epsilon, delta) budget; an analyst fits
any PyMC model to it and gets intervals that account for the privacy noise. Public names load on first use:
importing the package loads neither PyMC nor the curator's side.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_HOMES = {
    "iwbayes.schema": ("Binary", "Categorical", "Integer", "Real", "Schema"),
    "iwbayes.tables": ("PrivateTable", "SyntheticTable"),
    "iwbayes._read": ("read_table",),
    "iwbayes.features": ("FeatureMap",),
    "iwbayes.measurement": ("Measurement",),
    "iwbayes.weights": ("Weights", "finite_variance_test", "normalize", "psis", "resample", "temper", "truncate"),
    "iwbayes.beta_calibration": ("BetaCalibration", "beta_calibrate"),
    "iwbayes.statement": ("Event", "PrivacyStatement"),
    "iwbayes.release": ("Release", "ReleaseError", "load"),
    "iwbayes._warnings": ("CalibrationWarning", "PrivacyWarning", "WeightsWarning"),
    "iwbayes.curator.privacy.ledger": ("BudgetExceeded", "Ledger"),
    "iwbayes.curator.privacy.ledger_file": ("LedgerError",),
    "iwbayes.curator.contribution": ("bound_contributions",),
    "iwbayes.curator.privacy.noise": ("SeededNoise", "SystemNoise"),
    "iwbayes.curator.generators.bayesnet.bayesnet": ("BayesNet",),
    "iwbayes.curator.generators.adversarial.gan": ("CGAN", "DPCGAN", "DPGAN", "GAN"),
    "iwbayes.curator.generators.mixture.mixture": ("Mixture",),
    "iwbayes.curator.generators.pate.pate": ("PATEGAN",),
    "iwbayes.curator.estimators.tilting.tilt": ("TiltWeights",),
    "iwbayes.curator.estimators.logistic": ("LogisticWeights",),
    "iwbayes.curator.estimators.beta": ("BetaCalibratedWeights",),
    "iwbayes.curator.estimators.neural": ("NeuralWeights",),
    "iwbayes.curator.estimators.discriminator": ("DiscriminatorWeights",),
    "iwbayes.curator.estimators.output": ("OutputNoiseWeights",),
    "iwbayes.curator.estimators.fixed": ("KnownRatioWeights", "UniformWeights"),
    "iwbayes.curator.paper": ("PAPER_METHODS",),
    "iwbayes.curator.queries": ("PrivateLogisticRegression",),
    "iwbayes.curator.auditing.audit": ("AuditResult", "audit", "opposite_corners"),
    "iwbayes.curator.auditing.release_audit": ("ReleaseAudit", "audit_release"),
    "iwbayes.curator.plan": ("Plan", "plan"),
    "iwbayes.curator.publish": ("publish",),
    "iwbayes.curator.publish_users": ("publish_users",),
    "iwbayes.analyst.weighting.reweight": ("log_likelihood", "reweight"),
    "iwbayes.analyst.regression.model": ("regression",),
    "iwbayes.analyst.regression.fit": ("fit",),
    "iwbayes.analyst.calibration.calibrate": ("calibrate",),
    "iwbayes.analyst.pooling.noise_aware": ("noise_aware_weights",),
    "iwbayes.analyst.pooling.pool": ("pool",),
    "iwbayes.analyst.criticism.diagnose": ("diagnose",),
    "iwbayes.analyst.criticism.loo": ("WeightedLOO", "loo"),
    "iwbayes.analyst.criticism.compare": ("compare",),
    "iwbayes.analyst.criticism.ppc": ("ppc",),
    "iwbayes.analyst.quantities.predict": ("predict",),
    "iwbayes.analyst.quantities.marginal_effects": ("average_marginal_effects",),
    "iwbayes.analyst.quantities.ratios": ("odds_ratios",),
    "iwbayes.analyst.reporting.report": ("report",),
    "iwbayes.analyst.reporting.plots": (
        "plot_budget",
        "plot_comparison",
        "plot_marginals",
        "plot_overlap",
        "plot_weights",
    ),
    "iwbayes.coverage.study": ("CoverageStudy", "coverage_study"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = sorted([*_HOME_OF, "__version__"])


def __getattr__(name: str) -> Any:
    """Load a public name from its home on first use."""
    if name not in _HOME_OF:
        raise AttributeError(f"module 'iwbayes' has no attribute {name!r}")
    value = getattr(import_module(_HOME_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
