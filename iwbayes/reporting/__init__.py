"""Figures and the report of an analysis."""
