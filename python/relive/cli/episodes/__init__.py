"""`relive episodes`: commands about recorded episodes."""

from typing import Final

from relive.cli.command import Group
from relive.cli.episodes import copy, edit, ls, merge, plot, show, validate

GROUP: Final = Group(
    "episodes",
    "list, print, check, edit, copy and plot recorded episodes",
    (ls, show, plot, validate, edit, copy, merge),
)
