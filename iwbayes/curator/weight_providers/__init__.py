"""Weight providers. All implement the protocol `iwbayes.curator.protocols.WeightProvider`."""
