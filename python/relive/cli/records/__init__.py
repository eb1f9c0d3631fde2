"""`relive records`: commands about record stores."""

from typing import Final

from relive.cli.command import Group
from relive.cli.records import gather as records_gather
from relive.cli.records import head as records_head
from relive.cli.records import info as records_info
from relive.cli.records import rebalance as records_rebalance
from relive.cli.records import validate as records_validate

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
