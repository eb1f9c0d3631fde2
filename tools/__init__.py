"""What the verbs of the Makefile run; not part of the package."""
