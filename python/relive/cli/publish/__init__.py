"""Commands about published datasets, which have no first word in common."""

from typing import Final

from relive.cli.publish import (
    clone,
    delete,
    diff,
    list_remote,
    publish,
    reindex,
    rollback,
    schema,
    stream,
    tag,
    untag,
)

COMMANDS: Final = (
    *(publish, list_remote, schema, stream, diff),
    *(tag, untag, rollback, clone, delete, reindex),
)
