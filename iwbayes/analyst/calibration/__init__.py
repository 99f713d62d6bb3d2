"""Calibrated posteriors: intervals that account for the privacy noise in the weights, and their verdict.

Public, and loaded by the package on first use: `calibrate`. All else is internal.
"""
