"""Transitions for training: what was observed, done and received, and what was observed next."""
