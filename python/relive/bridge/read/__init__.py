"""Readers of other people's formats, one module per format."""
