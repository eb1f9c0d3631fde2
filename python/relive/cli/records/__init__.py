"""`relive records`: commands about record stores."""

from typing import Final

from relive.cli.command import Group
from relive.cli.records import gather, head, info, rebalance, validate

GROUP: Final = Group(
    "records", "print, check and tidy record stores", (info, head, validate, rebalance, gather)
)
