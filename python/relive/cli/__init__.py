"""The command line: one file per command, and the only modules that print.

Results are printed to stdout, everything else to stderr. The exit status is 0 for success, 1 for
failure, 2 for wrong usage, and 3 when the work is finished but something was left out. Only
`main` is for callers; the other modules have no `__all__`.
"""

from relive.cli.app import main

__all__ = ["main"]
