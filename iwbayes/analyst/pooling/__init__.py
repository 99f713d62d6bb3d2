"""Noise-aware weights, and posteriors mixed over their draws."""
