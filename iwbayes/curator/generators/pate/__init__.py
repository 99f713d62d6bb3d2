"""PATEGAN: a generator trained against noisy votes of teachers."""
