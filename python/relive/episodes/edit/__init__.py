"""Edits: changes to recorded episodes, stored apart from the recording."""
