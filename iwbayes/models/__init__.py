"""Regressions in numpy, which both sides use: designs of formulas, families, priors, modes and scores."""
