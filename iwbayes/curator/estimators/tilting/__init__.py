"""TiltWeights, the default, and its parts."""
