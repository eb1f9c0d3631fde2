"""Reads published tables: batches in order, rows by index, and queries."""
