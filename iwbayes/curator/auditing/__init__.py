"""Audits of generators, weight providers and whole releases, on simulated tables."""
