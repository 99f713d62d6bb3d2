"""Analyst side: it uses releases only, and never imports the curator side."""
