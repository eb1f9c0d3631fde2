"""The way of a step from the recorder's caller to the database, the arrays and the live lane."""
