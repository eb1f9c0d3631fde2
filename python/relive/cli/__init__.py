"""The command line: one file per command, the only place that prints.

Results go to stdout, everything else to stderr. The exit status is 0 when all went well, 1
when it failed, 2 when it was asked for in a way that makes no sense, and 3 when it was
finished with loss. Only `main` is for callers; the other modules have no `__all__`.
"""

from relive.cli.app import main

__all__ = ["main"]
