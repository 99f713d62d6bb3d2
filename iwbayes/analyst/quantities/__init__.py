"""Quantities of a fitted regression: predictions, slopes, comparisons, odds ratios.

Public, and loaded by the package on first use: `predictions`, `slopes`, `comparisons`, `odds_ratios`.
All else is internal.
"""
