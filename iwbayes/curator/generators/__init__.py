"""Generators of synthetic rows. All implement the protocol `iwbayes.curator.protocols.Generator`."""
