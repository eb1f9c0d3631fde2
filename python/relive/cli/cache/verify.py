"""`relive cache verify`: compares every file of the cache with its digests."""

import argparse
from typing import Final

from relive.cli.command import Exit
from relive.cli.output import count_text, note, print_result, size_text
from relive.cli.progress import Progress

SUMMARY: Final = "compare every file of the cache with its digests, and delete damaged ones"
EXAMPLE: Final = "relive cache verify"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add nothing: the cache is that of `RELIVE_CACHE_DIR`."""


def run(arguments: argparse.Namespace) -> Exit:
    """Read the whole cache. What is deleted is fetched again when it is needed."""
    from relive.store.cache import open_cache
    from relive.store.cache.manage import verify

    with Progress("verifying") as progress:
        found = verify(open_cache().disk, progress=progress)
    for path in found.damaged:
        note(f"warning: `{path}` was damaged, and is deleted")
    print_result(
        found,
        f"{count_text(found.checked, 'file')}, {size_text(found.bytes)}: "
        f"{len(found.damaged)} damaged",
        as_json=arguments.json,
    )
    return Exit.LOSS if found.damaged else Exit.OK
