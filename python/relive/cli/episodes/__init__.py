"""`relive episodes`: commands about recorded episodes."""

from typing import Final

from relive.cli.command import Group
from relive.cli.episodes import copy, edit, ls, merge, plot, show, validate

GROUP: Final = Group(
    "episodes",
    "list, print, check, edit, copy and plot recorded episodes",
    (
        ls.COMMAND,
        show.COMMAND,
        plot.COMMAND,
        validate.COMMAND,
        edit.COMMAND,
        copy.COMMAND,
        merge.COMMAND,
    ),
)
