"""`relive diff`: how two published versions differ."""

import argparse
from typing import TYPE_CHECKING, Any, Final

from relive.cli.command import Exit
from relive.cli.output import count_text, plain, print_json, print_line, print_table, size_text
from relive.cli.publish.arguments import add_root, short_pinned

if TYPE_CHECKING:
    from relive.publish.manage.diff import TableDiff, VersionDiff

SUMMARY: Final = "print how two published versions differ: tables, rows, columns and bytes"
EXAMPLE: Final = "relive diff lab/kitchen@v1 lab/kitchen"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    what = "a version: WS/NAME, WS/NAME@TAG or WS/NAME@DIGEST"
    parser.add_argument("before", metavar="BEFORE", help=what)
    parser.add_argument("after", metavar="AFTER", help="the same, of this dataset or another")
    add_root(parser)
    parser.add_argument(
        "--rows",
        action="store_true",
        help="also read and compare the rows of tables whose files differ; other versions of "
        "pyarrow write the same rows as other bytes",
    )


def run(arguments: argparse.Namespace) -> Exit:
    """Print a line for each table, and one for each column that differs."""
    from relive.publish.manage.diff import diff

    found = diff(arguments.before, arguments.after, root=arguments.root, rows=arguments.rows)
    if arguments.json:
        print_json(_facts(found))
    else:
        _print(found)
    return Exit.OK


def _facts(found: "VersionDiff") -> dict[str, Any]:
    tables = [
        {
            "name": table.name,
            "change": table.change,
            "rows": table.rows,
            "bytes": table.bytes,
            "columns": [plain(each) | {"change": each.change} for each in table.columns],
            "shards": dict(zip(("removed", "kept", "added"), table.shards, strict=True)),
            "shard_bytes": dict(zip(("removed", "added"), table.shard_bytes, strict=True)),
            "has_same_rows": table.has_same_rows,
        }
        for table in found.tables
    ]
    return {
        "before": found.before,
        "after": found.after,
        "is_same": found.is_same,
        "tables": tables,
        "sections": found.sections,
    }


def _print(found: "VersionDiff") -> None:
    before, after = short_pinned(found.before), short_pinned(found.after)
    print_line(f"{before} and {after}: {'the same' if found.is_same else 'different'}")
    print_table(
        ("table", "change", "rows", "size", "shards"),
        [
            (table.name, table.change, _pair(*table.rows), _sizes(table), _shards(table))
            for table in found.tables
        ],
    )
    for table in found.tables:
        for column in table.columns:
            print_line(
                f"{table.name}.{column.name}: {column.change}, "
                f"{column.before or '-'} before, {column.after or '-'} after"
            )
        if table.change == "changed" and table.has_same_rows is not None:
            same = "the same rows in other files" if table.has_same_rows else "other rows"
            print_line(f"{table.name}: {same}")
    if found.sections:
        print_line(f"also different: {', '.join(found.sections)}")


def _pair(before: int, after: int) -> str:
    return f"{before}" if before == after else f"{before} to {after}"


def _sizes(table: "TableDiff") -> str:
    before, after = map(size_text, table.bytes)
    return before if before == after else f"{before} to {after}"


def _shards(table: "TableDiff") -> str:
    removed, kept, added = table.shards
    parts = [f"{kept} the same"] if kept or not (removed or added) else []
    sizes = zip(("removed", "added"), (removed, added), table.shard_bytes, strict=True)
    parts += [f"{count} {word} ({size_text(size)})" for word, count, size in sizes if count]
    return ", ".join(parts) if parts else count_text(0, "shard")
