"""`relive pack`: commands about packs."""

from typing import Final

from relive.cli import (
    pack_build,
    pack_extract,
    pack_inspect,
    pack_merge,
    pack_stats,
    pack_subset,
    pack_to_jsonl,
    pack_to_parquet,
    pack_validate,
)
from relive.cli.command import Group

GROUP: Final = Group(
    "pack",
    "build, check, look into and convert packs",
    (
        pack_build.COMMAND,
        pack_inspect.COMMAND,
        pack_stats.COMMAND,
        pack_validate.COMMAND,
        pack_to_jsonl.COMMAND,
        pack_to_parquet.COMMAND,
        pack_extract.COMMAND,
        pack_merge.COMMAND,
        pack_subset.COMMAND,
    ),
)
