"""Mixture: a private mixture of products of distributions."""
