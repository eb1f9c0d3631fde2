"""Versions of datasets: manifests, the pointers that name them, and the catalog of a root."""
