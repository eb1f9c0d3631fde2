"""The files of a root: where they are, the database's tables and the form of its values."""
