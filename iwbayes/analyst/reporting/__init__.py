"""What a reader sees of an analysis: plots and the report."""
