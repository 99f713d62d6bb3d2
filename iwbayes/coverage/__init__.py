"""Coverage studies: how often intervals from simulated releases cover the known true values."""
