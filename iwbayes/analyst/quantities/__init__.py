"""Quantities of a fitted regression: predictions, slopes, comparisons, odds ratios."""
