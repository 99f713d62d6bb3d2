"""Audits of generators, weight estimators and whole releases, on simulated tables."""
