"""`relive cache unpin`: lets the cache evict a version again."""

import argparse
from typing import Final

from relive.cli.command import Exit
from relive.cli.output import count_text, print_result
from relive.errors import NotFoundError

SUMMARY: Final = "let the cache evict versions that `relive warm --pin` has pinned"
EXAMPLE: Final = "relive cache unpin lab/kitchen"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument(
        "dataset",
        metavar="WS/NAME@DIGEST",
        help="a pinned version, or WS/NAME for all pinned versions of a dataset",
    )


def run(arguments: argparse.Namespace) -> Exit:
    """Remove pins; makes no request."""
    from relive.publish.version.names import parse_reference
    from relive.store.cache import open_cache
    from relive.store.cache.manage import check_usable

    reference = parse_reference(arguments.dataset)
    disk = open_cache().disk
    check_usable(disk, writes=True)
    pins = disk.pins
    start = f"{reference.id}@{reference.version or ''}"
    unpinned = [name for name in pins.names() if name.startswith(start) and pins.unpin(name)]
    if not unpinned:
        raise NotFoundError(
            f"`{arguments.dataset}` is not pinned",
            hint="`relive cache stats` prints what is pinned",
        )
    print_result(
        {"unpinned": unpinned},
        f"{count_text(len(unpinned), 'version')} unpinned",
        as_json=arguments.json,
    )
    return Exit.OK
