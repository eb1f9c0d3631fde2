"""`relive cache`: commands about the cache of remote data."""

from typing import Final

from relive.cli.cache import gc, stats, unpin, verify
from relive.cli.command import Group

GROUP: Final = Group(
    "cache",
    "measure, shrink and verify the cache of published data",
    (stats, gc, verify, unpin),
)
