"""`relive records`: commands about record stores."""

from typing import Final

from relive.cli import (
    records_gather,
    records_head,
    records_info,
    records_rebalance,
    records_validate,
)
from relive.cli.command import Group

GROUP: Final = Group(
    "records",
    "look into, check and tidy record stores",
    (
        records_info.COMMAND,
        records_head.COMMAND,
        records_validate.COMMAND,
        records_rebalance.COMMAND,
        records_gather.COMMAND,
    ),
)
