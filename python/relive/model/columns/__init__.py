"""Columns of values: fields inferred from them, values cast to fields, Arrow arrays converted."""
