"""Commands about published datasets, which have no first word in common."""

from typing import Final

from relive.cli import cache
from relive.cli.publish import (
    clone,
    delete,
    diff,
    list_remote,
    publish,
    rollback,
    schema,
    stream,
    tag,
    untag,
    warm,
)
from relive.cli.roots import gc, mirror, reindex

COMMANDS: Final = (
    *(publish, list_remote, schema, stream, diff, warm, cache.GROUP),
    *(tag, untag, rollback, clone, mirror, delete, gc, reindex),
)
