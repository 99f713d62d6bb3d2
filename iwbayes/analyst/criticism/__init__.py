"""Model criticism with weighted rows: leave-one-out, model comparison, predictive checks, diagnostics.

Public names, which the package loads on first use: `loo`, `compare`, `ppc`, `diagnose`. Everything else is internal.
"""
