"""Shared parts of table-based generators: bins, noisy counts, consistency, smoothing."""
