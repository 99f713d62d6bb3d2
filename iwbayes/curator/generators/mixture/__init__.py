"""Mixture: a private mixture of products."""
