"""Model criticism with weighted rows: leave-one-out, model comparison, predictive checks, diagnostics."""
