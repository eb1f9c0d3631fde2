"""Readers of signals, episodes and datasets on disk."""
