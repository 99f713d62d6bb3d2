"""TiltWeights (the default weight estimator), StagedTilt, and their parts."""
