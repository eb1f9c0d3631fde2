"""Streams of batches for training: sharded, shuffled, resumable."""
