"""The analyst's side: it sees a release only, and never imports the curator's side."""
