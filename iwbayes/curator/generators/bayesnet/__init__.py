"""BayesNet: a private Bayesian network."""
