"""Regressions by formula: design, families, priors, and `fit`, which calibrates them."""
