"""Filters of rows, and which row groups they can match."""
