"""Weighted PyMC models: from a model and weights to the same model whose rows count by their weights."""
