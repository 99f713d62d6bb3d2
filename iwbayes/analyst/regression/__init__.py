"""Regressions from a formula: design matrices, families, priors, and `fit`, which returns calibrated posteriors."""
