"""`relive publish`: publishes tables as a version of a dataset."""

import argparse
import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from relive.cli.arguments import add_workers, parse_names
from relive.cli.command import Exit
from relive.cli.output import count_text, note, print_result, size_text
from relive.cli.progress import Progress
from relive.cli.publish.arguments import add_dataset, add_lock, parse_id, short_reference
from relive.errors import ConflictError, InvalidError, UnknownNameError

if TYPE_CHECKING:
    from relive.publish import DatasetBuilder, Plan
    from relive.publish.version.names import DatasetId

SUMMARY: Final = "publish Parquet files as a version of a dataset"
EXAMPLE: Final = "relive publish lab/kitchen --table main=data/*.parquet --tag v1"

_ABOUT: Final = ("license", "creator", "citation", "url")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    add_dataset(parser, version=False)
    for option, what in (
        ("--table", "publish these files as a table; with --base, in place of that table"),
        ("--append", "add these files to the end of a table of the base"),
    ):
        parser.add_argument(
            option,
            metavar="NAME=PATH",
            type=_parse_table,
            action="append",
            default=[],
            help=f"{what}: a file, a directory or a quoted glob pattern; may be repeated",
        )
    parser.add_argument(
        "--drop",
        metavar="NAME",
        action="append",
        default=[],
        help="leave out this table of the base; may be repeated",
    )
    parser.add_argument(
        "--base",
        metavar="VERSION",
        help="keep everything of this version that is not replaced: latest, a tag or a digest",
    )
    parser.add_argument(
        "--rewrite",
        action="store_true",
        help="write Parquet files again, so that a small change uploads few shards (default: "
        "publish them byte for byte)",
    )
    parser.add_argument(
        "--key",
        metavar="LIST",
        type=parse_names,
        help="the columns that identify a row, as in episode,step: shards are cut by them",
    )
    parser.add_argument("--tag", metavar="TAG", help="also give the version this name")
    parser.add_argument(
        "--force-tag", action="store_true", help="move the tag if another version has it"
    )
    parser.add_argument(
        "--no-set-latest",
        action="store_true",
        help="do not make it the latest version",
    )
    parser.add_argument("-m", "--message", metavar="TEXT", help="what changed, for the log")
    parser.add_argument("--author", metavar="NAME", help="who publishes (default: not recorded)")
    parser.add_argument("--readme", metavar="FILE", help="a text file that describes the dataset")
    for option in _ABOUT:
        parser.add_argument(f"--{option}", metavar="TEXT", help=f"the {option} of the dataset")
    parser.add_argument(
        "--on-conflict",
        choices=("raise", "move"),
        default="raise",
        help="if somebody else published meanwhile: fail (raise, the default), or make this the "
        "latest version all the same (move)",
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="print what would be uploaded, and upload nothing"
    )
    parser.add_argument(
        "--rehash", action="store_true", help="hash local files again even if they look unchanged"
    )
    add_lock(parser)
    add_workers(parser)


def run(arguments: argparse.Namespace) -> Exit:
    """Upload what is missing, and publish the version."""
    if arguments.append and arguments.base is None:
        arguments.parser.error("--append needs --base: it adds to a table of a version")
    if arguments.drop and arguments.base is None:
        arguments.parser.error("--drop needs --base: it leaves out a table of a version")
    with (
        _named_options(arguments),
        make_builder(arguments) as builder,
        Progress("planning" if arguments.dry_run else "uploading bytes") as progress,
    ):
        result = builder.publish(
            set_latest=not arguments.no_set_latest,
            tag=arguments.tag,
            message=arguments.message,
            author=arguments.author,
            force_tag=arguments.force_tag,
            on_conflict=arguments.on_conflict,
            dry_run=arguments.dry_run,
            rehash=arguments.rehash,
            progress=progress,
            workers=arguments.workers,
            lock=arguments.lock,
        )
        tables = builder.tables
    plan = builder.report if isinstance(result, str) else result
    if plan is not None:
        _print(arguments, builder.id, plan, tables)
    return Exit.OK


def make_builder(arguments: argparse.Namespace) -> "DatasetBuilder":
    """Return a builder with everything that the arguments name."""
    from relive.publish import DatasetBuilder

    dataset = parse_id(arguments.dataset)
    builder = DatasetBuilder(str(dataset), root=arguments.root, base=arguments.base)
    with contextlib.ExitStack() as undo:
        undo.callback(builder.close)
        for name in arguments.drop:
            builder.drop(name)
        how: dict[str, Any] = {"rewrite": arguments.rewrite, "key": arguments.key}
        for name, paths in _by_name(arguments.table).items():
            add = builder.replace_table if arguments.base is not None else builder.add_table
            add(name, paths, **how)
        for name, paths in _by_name(arguments.append).items():
            builder.append_table(name, paths, **how)
        about: dict[str, Any] = {name: getattr(arguments, name) for name in _ABOUT}
        if arguments.readme is not None:
            about["readme"] = Path(arguments.readme)
        builder.describe(**about)
        undo.pop_all()
    return builder


def _parse_table(text: str) -> tuple[str, str]:
    name, equals, path = text.partition("=")
    if not (name and equals and path):
        raise argparse.ArgumentTypeError(f"`{text}` is not NAME=PATH, as in main=data/*.parquet")
    return name, path


def _by_name(given: list[tuple[str, str]]) -> dict[str, list[str]]:
    tables: dict[str, list[str]] = {}
    for name, path in given:
        tables.setdefault(name, []).append(path)
    return tables


@contextlib.contextmanager
def _named_options(arguments: argparse.Namespace) -> Iterator[None]:
    """Raise errors with hints that name the options of the command, not those of the library."""
    try:
        yield
    except ConflictError as error:
        error.hint = "publish again on top of it, or pass --on-conflict move"
        raise
    except InvalidError as error:
        if error.hint is not None and "rewrite=True" in error.hint:
            error.hint = error.hint.replace("rewrite=True", "--rewrite")
        elif "nothing to publish" in error.message:
            error.hint = "pass --table NAME=PATH" + ("" if arguments.base else ", or --base latest")
        raise
    except UnknownNameError as error:
        if error.hint is not None:
            error.hint = error.hint.partition("; pass base=")[0]
        raise


def _print(
    arguments: argparse.Namespace, dataset: "DatasetId", plan: "Plan", tables: dict[str, int]
) -> None:
    """Print what was uploaded, or with `--dry-run` what would be."""
    verb = "planned" if arguments.dry_run else "uploaded"
    value = {
        "dataset": str(dataset),
        "digest": plan.digest,
        "pinned": f"{dataset}@{plan.digest}",
        "tables": tables,
        "rows": sum(tables.values()),
        "is_new": not plan.is_current,
        verb: {"blobs": plan.blobs, "bytes": plan.nbytes},
    }
    rows = count_text(sum(tables.values()), "row")
    amount = f"{count_text(plan.blobs, 'blob')}, {size_text(plan.nbytes)}"
    what = f"{amount} {'to upload' if arguments.dry_run else 'uploaded'}"
    line = (
        f"{count_text(len(tables), 'table')}, {rows}; {what if plan.blobs else 'nothing to upload'}"
    )
    print_result(value, f"{short_reference(dataset, plan.digest)}: {line}", as_json=arguments.json)
    if arguments.dry_run:
        note("nothing was published")
