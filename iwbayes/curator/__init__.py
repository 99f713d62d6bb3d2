"""The curator's side: it sees private rows, and never imports PyMC or the analyst's side."""
