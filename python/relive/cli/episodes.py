"""`relive episodes`: commands about recorded episodes."""

from typing import Final

from relive.cli import (
    episodes_copy,
    episodes_edit,
    episodes_ls,
    episodes_merge,
    episodes_plot,
    episodes_show,
    episodes_validate,
)
from relive.cli.command import Group

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
