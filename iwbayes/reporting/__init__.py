"""Figures and the report of an analysis.

Public names, which the package loads on first use, are `report` and the functions of `iw.plots`. The rest is internal.
"""
