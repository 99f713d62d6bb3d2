"""Model criticism with weighted rows: leave-one-out, model comparison, predictive checks, diagnostics.

Public, and loaded by the package on first use: `loo`, `compare`, `ppc`, `diagnose`. All else is internal.
"""
