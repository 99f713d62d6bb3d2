"""What a reader sees of an analysis: plots and the report.

Public, and loaded by the package on first use: `report`, `plot_weights` and its like. All else is internal.
"""
