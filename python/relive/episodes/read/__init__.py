"""Reading signals, episodes and datasets from disk."""
