"""What a release measures of the private rows: bounded features, scores, their noisy means. Both sides use it."""

from iwbayes.evidence.feature_map import FeatureMap

__all__ = ["FeatureMap"]
