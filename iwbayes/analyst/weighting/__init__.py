"""Weighted PyMC models: from a model and weights to the same model whose rows count by their weights.

Public, and loaded by the package on first use: `reweight`, `log_likelihood`. All else is internal.
"""
