"""Bayesian inference on differentially private synthetic data with privatised importance weights.

A curator publishes a synthetic table with private weights under one (epsilon, delta) budget. An analyst fits any PyMC
model to it and gets intervals that account for the privacy noise. Public names load on first use: ``import iwbayes``
itself loads neither PyMC nor the curator's side.
"""

import lazy_loader

__version__ = "0.1.0"

# `__init__.pyi` lists the module of each public name: type checkers and the lazy loader both read it
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
__all__ += ["__version__"]
