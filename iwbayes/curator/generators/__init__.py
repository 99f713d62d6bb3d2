"""Generators of synthetic rows behind one protocol (`iwbayes.curator.protocols.Generator`)."""
