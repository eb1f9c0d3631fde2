"""`relive mirror`: copies a version to another root, or to a tar file."""

import argparse
from dataclasses import asdict
from typing import Final

from relive.cli.arguments import add_workers
from relive.cli.command import Exit
from relive.cli.output import count_text, print_result, size_text
from relive.cli.progress import Progress
from relive.cli.publish.arguments import add_root, short_reference

SUMMARY: Final = "copy a version of a dataset to another root, or to a tar file"
EXAMPLE: Final = "relive mirror lab/kitchen@v1 --tar kitchen.tar"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument(
        "source",
        metavar="SOURCE",
        help="WS/NAME@VERSION, or a .tar file that this command wrote",
    )
    add_root(parser)
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--to", metavar="URI", help="the root to copy to")
    where.add_argument("--tar", metavar="FILE", help="write a tar file that is a root of its own")
    parser.add_argument("--target", metavar="WS/NAME", help="its name there (default: the same)")
    parser.add_argument(
        "--tag", metavar="TAG", help="give it this tag there (default: the tag that was named)"
    )
    parser.add_argument(
        "--force-tag", action="store_true", help="move the tag if another version has it there"
    )
    parser.add_argument(
        "--no-set-latest", action="store_true", help="do not make it the latest version there"
    )
    add_workers(parser)


def run(arguments: argparse.Namespace) -> Exit:
    """Copy what the other root lacks, and publish the version there."""
    from relive.publish import mirror

    with Progress("copying bytes") as progress:
        report = mirror(
            arguments.source,
            to=arguments.to,
            tar=arguments.tar,
            root=arguments.root,
            target=arguments.target,
            set_latest=not arguments.no_set_latest,
            tag=arguments.tag,
            force_tag=arguments.force_tag,
            progress=progress,
            workers=arguments.workers,
        )
    amount = f"{count_text(report.copied, 'blob')}, {size_text(report.copied_bytes)}"
    what = f"{amount} copied" if report.copied else "nothing to copy"
    line = f"{short_reference(report.dataset, report.digest)}: {what}"
    print_result(asdict(report), line, as_json=arguments.json)
    return Exit.OK
