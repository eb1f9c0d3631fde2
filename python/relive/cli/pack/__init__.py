"""`relive pack`: commands about packs."""

from typing import Final

from relive.cli.command import Group
from relive.cli.pack import (
    build,
    extract,
    inspect,
    merge,
    stats,
    subset,
    to_jsonl,
    to_parquet,
    validate,
)

GROUP: Final = Group(
    "pack",
    "build, inspect, check and convert packs",
    (
        build.COMMAND,
        inspect.COMMAND,
        stats.COMMAND,
        validate.COMMAND,
        to_jsonl.COMMAND,
        to_parquet.COMMAND,
        extract.COMMAND,
        merge.COMMAND,
        subset.COMMAND,
    ),
)
