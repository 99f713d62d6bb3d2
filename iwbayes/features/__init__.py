"""Bounded features of a row, the same on private and synthetic rows, and what formulas ask of them."""

from iwbayes.features.feature_map import FeatureMap

__all__ = ["FeatureMap"]
