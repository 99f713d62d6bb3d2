"""Regressions from a formula: design matrices, families, priors, and `fit`, which returns calibrated posteriors.

Public names, which the package loads on first use: `fit`, `regression` and `model`. Everything else is internal.
"""
