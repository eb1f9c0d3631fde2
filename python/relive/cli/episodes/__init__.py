"""`relive episodes`: commands about recorded episodes."""

from typing import Final

from relive.cli.command import Group
from relive.cli.episodes import copy as episodes_copy
from relive.cli.episodes import edit as episodes_edit
from relive.cli.episodes import ls as episodes_ls
from relive.cli.episodes import merge as episodes_merge
from relive.cli.episodes import plot as episodes_plot
from relive.cli.episodes import show as episodes_show
from relive.cli.episodes import validate as episodes_validate

GROUP: Final = Group(
    "episodes",
    "list, look into, check, edit, copy and draw recorded episodes",
    (
        episodes_ls.COMMAND,
        episodes_show.COMMAND,
        episodes_plot.COMMAND,
        episodes_validate.COMMAND,
        episodes_edit.COMMAND,
        episodes_copy.COMMAND,
        episodes_merge.COMMAND,
    ),
)
