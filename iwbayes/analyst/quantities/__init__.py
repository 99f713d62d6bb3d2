"""Quantities of a fitted regression: predictions, slopes, comparisons, odds ratios.

Public names, which the package loads on first use: `predictions`, `slopes`, `comparisons`, `odds_ratios`.
Everything else is internal.
"""
