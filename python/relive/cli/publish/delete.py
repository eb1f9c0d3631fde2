"""`relive delete`: withdraws versions of a dataset."""

import argparse
import re
import sys
from typing import Any, Final

from relive.cli.command import Exit
from relive.cli.output import count_text, note, print_json, print_line, printable
from relive.cli.publish.arguments import (
    add_dataset,
    add_lock,
    open_catalog,
    parse_age,
    parse_version,
    short_reference,
)
from relive.errors import InvalidError

SUMMARY: Final = "withdraw a version of a published dataset, or old versions by a rule"
EXAMPLE: Final = "relive delete lab/kitchen@4f0c81aa --reason wrong-labels --yes"

_NO_REASON: Final = "no reason was given"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    add_dataset(parser)
    parser.add_argument(
        "--reason", metavar="TEXT", help="why; readers of the version are told (default: none)"
    )
    parser.add_argument(
        "--keep-last",
        metavar="N",
        type=_count,
        help="withdraw all versions but the newest N",
    )
    parser.add_argument(
        "--older-than",
        metavar="AGE",
        type=parse_age,
        help="withdraw versions that were published longer ago, as in 30d or 12h; with "
        "--keep-last, only those that both select",
    )
    parser.add_argument(
        "-y",
        "--yes",
        action="store_true",
        help="do it without asking (default with a rule: only list the versions)",
    )
    add_lock(parser)


def run(arguments: argparse.Namespace) -> Exit:
    """Withdraw one version, or those that a rule selects; never `latest` or a tagged one."""
    reference = parse_version(arguments.dataset)
    by_rule = arguments.keep_last is not None or arguments.older_than is not None
    if reference.version is None and not by_rule:
        arguments.parser.error("name a version, as in WS/NAME@DIGEST, or a rule: --keep-last N")
    if reference.version is not None and by_rule:
        arguments.parser.error("--keep-last and --older-than apply to a dataset, not to a version")
    return _by_rule(arguments, reference) if by_rule else _one(arguments, reference)


def _one(arguments: argparse.Namespace, reference: Any) -> Exit:
    if not arguments.yes and not _ask(f"withdraw {reference}?", can_ask=not arguments.json):
        print_line("nothing was withdrawn")
        return Exit.OK
    digest = open_catalog(arguments).withdraw(reference, arguments.reason or _NO_REASON)
    _print_withdrawn(arguments, reference, [digest])
    return Exit.OK


def _by_rule(arguments: argparse.Namespace, reference: Any) -> Exit:
    digests = open_catalog(arguments).withdraw_old(
        reference.id,
        arguments.reason or _NO_REASON,
        keep_last=arguments.keep_last,
        older_than_s=arguments.older_than,
        dry_run=not arguments.yes,
    )
    if arguments.yes:
        _print_withdrawn(arguments, reference, digests)
        return Exit.OK
    if arguments.json:
        print_json({"dataset": str(reference.id), "selected": digests, "withdrawn": []})
    for digest in [] if arguments.json else digests:
        print_line(short_reference(reference.id, digest))
    if digests:
        note("nothing was withdrawn; pass --yes to withdraw these versions")
    elif not arguments.json:
        print_line("no versions")
    return Exit.OK


def _print_withdrawn(arguments: argparse.Namespace, reference: Any, digests: list[str]) -> None:
    if arguments.json:
        print_json({"dataset": str(reference.id), "selected": digests, "withdrawn": digests})
        return
    for digest in digests:
        print_line(f"{short_reference(reference.id, digest)}: withdrawn")
    if len(digests) != 1:
        print_line(f"{count_text(len(digests), 'version')} withdrawn")


def _ask(question: str, *, can_ask: bool) -> bool:
    if not (can_ask and sys.stdin.isatty() and sys.stderr.isatty()):
        raise InvalidError("withdrawing a version needs consent", hint="pass --yes")
    sys.stderr.write(f"{printable(question)} [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in {"y", "yes"}


def _count(text: str) -> int:
    if not re.fullmatch(r"\d{1,18}", text):
        raise argparse.ArgumentTypeError(f"`{text}` is not an integer of at least 0")
    return int(text)
