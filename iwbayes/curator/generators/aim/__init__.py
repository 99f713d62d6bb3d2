"""AIM and MST: graphical models that are fitted to selected noisy marginals."""
