"""Weighted PyMC models: the same model, with an importance weight for each row of the likelihood."""
