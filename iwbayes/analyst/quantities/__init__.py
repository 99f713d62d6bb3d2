"""Quantities of a fitted regression: predictions, marginal effects, odds ratios.

Public, and loaded by the package on first use: `predict`, `average_marginal_effects`,
`odds_ratios`. All else is internal.
"""
