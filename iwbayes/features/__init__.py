"""Bounded features of a row, the same for private and synthetic rows, and the features that formulas need."""

from iwbayes.features.feature_map import FeatureMap

__all__ = ["FeatureMap"]
