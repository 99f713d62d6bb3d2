"""Weight estimators behind one protocol (`iwbayes.curator.protocols.WeightEstimator`)."""
