"""Weight estimators. All implement the protocol `iwbayes.curator.protocols.WeightEstimator`."""
