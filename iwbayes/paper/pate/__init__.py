"""PATEGAN: a generator that learns from noisy votes of teachers."""
