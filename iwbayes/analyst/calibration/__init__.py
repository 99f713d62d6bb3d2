"""Calibrated posteriors: intervals that account for the privacy noise in the weights, and their verdict."""
