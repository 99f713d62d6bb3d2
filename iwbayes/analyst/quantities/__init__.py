"""Quantities of a fitted regression: predictions, marginal effects, odds ratios."""
