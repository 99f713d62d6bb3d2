"""Weighted PyMC models: the same model, with an importance weight for each row of the likelihood.

Public, and loaded by the package on first use: `reweight`, `log_likelihood`. All else is internal.
"""
