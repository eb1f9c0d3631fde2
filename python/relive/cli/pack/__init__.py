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
    (build, inspect, stats, validate, to_jsonl, to_parquet, extract, merge, subset),
)
