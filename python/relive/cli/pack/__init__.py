"""`relive pack`: commands about packs."""

from typing import Final

from relive.cli.command import Group
from relive.cli.pack import build as pack_build
from relive.cli.pack import extract as pack_extract
from relive.cli.pack import inspect as pack_inspect
from relive.cli.pack import merge as pack_merge
from relive.cli.pack import stats as pack_stats
from relive.cli.pack import subset as pack_subset
from relive.cli.pack import to_jsonl as pack_to_jsonl
from relive.cli.pack import to_parquet as pack_to_parquet
from relive.cli.pack import validate as pack_validate

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
