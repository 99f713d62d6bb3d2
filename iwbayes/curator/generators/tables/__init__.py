"""What table-based generators share: bins, noisy counts, consistency, smoothing."""
