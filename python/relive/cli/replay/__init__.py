"""`relive replay`: commands about recorded runs of reinforcement learning."""

from typing import Final

from relive.cli.command import Group
from relive.cli.replay import (
    archive,
    compact,
    export,
    ls,
    migrate,
    play,
    prune,
    query,
    rm,
    show,
)

GROUP: Final = Group(
    "replay",
    "list, print, query, play, export, migrate, compact, archive and delete recorded runs",
    (ls, show, query, play, export.GROUP, migrate, compact, archive, rm, prune),
)
