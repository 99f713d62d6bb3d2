"""Noise-aware weights, and posteriors mixed over weight draws.

Public, and loaded by the package on first use: `noise_aware_weights`, `pool`. All else is internal.
"""
