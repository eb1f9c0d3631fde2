"""Recording signals, episodes and datasets."""
