"""Readers, one module per format."""
