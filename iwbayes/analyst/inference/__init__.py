"""Modes, proposals and samplers: draws from a weighted posterior, of one weight vector or of several."""
