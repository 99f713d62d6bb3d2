"""Regressions by formula: design, families, priors, and `fit`, which calibrates them.

Public, and loaded by the package on first use: `fit`, `regression`. All else is internal.
"""
