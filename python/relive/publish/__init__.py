"""Immutable, content-addressed versions of datasets: publish, open and read them."""
