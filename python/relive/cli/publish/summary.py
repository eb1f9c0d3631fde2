"""Published datasets for `relive info`, `head`, `stats` and `validate`."""

from typing import TYPE_CHECKING, Any, Final

from relive._open import path_hint
from relive.cli.command import Exit
from relive.cli.output import (
    count_text,
    plain,
    print_json,
    print_line,
    print_lines,
    print_table,
    size_text,
)
from relive.cli.progress import Progress
from relive.cli.publish.arguments import find_table
from relive.cli.source import Facts
from relive.model.report import Level, Report
from relive.model.report import Progress as Callback
from relive.view.scale import cut

if TYPE_CHECKING:
    from relive.publish import PublishedDataset

_LONGEST: Final = 60
_MOST_COLUMNS: Final = 40


def describe(dataset: "PublishedDataset") -> Facts:
    """Return what is known about a version without reading its data."""
    versions = dataset.versions
    tags = {tag: each.digest for each in versions for tag in each.tags}
    facts = dataset.info | {"tags": tags, "versions": versions}
    facts["dataset"] = facts.pop("id")
    facts["files"] = sum(table["shards"] for table in facts["tables"].values())
    facts["file_bytes"] = facts["bytes"]
    own = [tag for tag, digest in sorted(tags.items()) if digest == dataset.digest]
    latest = [each.digest for each in versions if each.is_latest]
    names = [*(["latest"] if dataset.digest in latest else []), *own]
    pairs: list[tuple[str, object]] = [
        ("dataset", dataset.id),
        ("version", dataset.digest),
        ("named", ", ".join(names) or None),
        ("published", facts["time"]),
        ("message", facts["message"]),
        *((name, facts[name]) for name in ("author", "parent") if facts[name]),
        ("versions", len(versions)),
        ("rows", facts["rows"]),
        ("size", size_text(facts["bytes"])),
        *(facts["about"].items()),
    ]
    for name, table in facts["tables"].items():
        pairs.append((f"table {name}", _table_text(table)))
        columns = list(table["columns"].items())
        pairs += [(f"column {column}", kind) for column, kind in columns[:_MOST_COLUMNS]]
        if len(columns) > _MOST_COLUMNS:
            more = count_text(len(columns) - _MOST_COLUMNS, "more column")
            pairs.append((more, f"`relive schema {dataset.id}` prints all"))
    return facts, pairs


def print_head(
    dataset: "PublishedDataset", count: int, *, as_json: bool, table: str | None = None
) -> Exit:
    """Print the first rows of a table."""
    rows = find_table(dataset, table).head(count).to_pylist()
    lines = [{"row": number} | row for number, row in enumerate(rows)]
    if not as_json:
        lines = [{name: _cell(value) for name, value in line.items()} for line in lines]
    print_lines(lines, "no rows", as_json=as_json)
    return Exit.OK


def print_stats(dataset: "PublishedDataset", *, as_json: bool, table: str | None = None) -> None:
    """Print the number of values and nulls, the range and the mean of every column."""
    from relive.publish.manage.statistics import column_statistics

    found = find_table(dataset, table)
    with Progress("reading") as progress:
        columns = column_statistics(found, progress=progress)
    if as_json:
        print_json({"rows": found.count(), "columns": columns})
        return
    print_line(f"rows  {found.count()}")
    header = ("column", "values", "nulls", "min", "max", "mean")
    print_table(
        header,
        [
            (name, each.values, each.nulls, _cell(each.min), _cell(each.max), each.mean)
            for name, each in columns.items()
        ],
    )


def validate(path: str, level: Level, *, progress: Callback, root: str | None = None) -> Report:
    """Check a published version; see `relive.publish.validate`."""
    from relive.publish.manage.validate import validate

    with path_hint(path):
        return validate(path, level, root=root, progress=progress)


def _cell(value: Any) -> Any:
    """Return a value as a table shows it: numbers as they are, anything else as short text."""
    if value is None or isinstance(value, int | float):
        return value
    if isinstance(value, bytes):
        return count_text(len(value), "byte")
    return cut(str(plain(value)), _LONGEST)


def _table_text(table: dict[str, Any]) -> str:
    rows, shards = count_text(table["rows"], "row"), count_text(table["shards"], "shard")
    splits = [f"split {name} {count_text(count, 'row')}" for name, count in table["splits"].items()]
    return ", ".join([rows, shards, size_text(table["bytes"]), *splits])
