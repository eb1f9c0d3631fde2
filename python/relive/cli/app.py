"""The command `relive`: finds the command, runs it, and puts errors in words."""

import argparse
import os
import sys
import traceback
from collections.abc import Sequence
from typing import Final

from relive.cli import convert, episodes, head, info, pack, records, recover, stats, validate
from relive.cli.command import Command, Exit, Group, add_commands
from relive.cli.output import say
from relive.errors import AlreadyExistsError, ReliveError

_COMMANDS: Final[Sequence[Command | Group]] = (
    info.COMMAND,
    head.COMMAND,
    stats.COMMAND,
    validate.COMMAND,
    recover.COMMAND,
    convert.COMMAND,
    episodes.GROUP,
    pack.GROUP,
    records.GROUP,
)


def make_parser() -> argparse.ArgumentParser:
    """Make the parser of the whole command line."""
    parser = argparse.ArgumentParser(
        prog="relive",
        description="Keeps what agents live through, and lets models live it again.",
        epilog="`relive COMMAND --help` tells about a command.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--version", action=_Version, nargs=0, help="show the version of relive and exit"
    )
    add_commands(parser, _COMMANDS)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv`, that of the process by default, and give the exit status."""
    try:
        arguments = make_parser().parse_args(argv)
        return _run(arguments)
    except SystemExit as stop:  # argparse's way to end
        return stop.code if isinstance(stop.code, int) else Exit.OK


class _Version(argparse.Action):
    """Looks the version up when it is asked for, which takes longer than most commands."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object, **__: object) -> None:
        from importlib.metadata import version

        print(f"relive {version('relive')}")
        parser.exit()


def _run(arguments: argparse.Namespace) -> int:
    try:
        status: Exit = arguments.run(arguments)
        sys.stdout.flush()
    except KeyboardInterrupt:
        return Exit.INTERRUPTED
    except BrokenPipeError:
        _forget_stdout()
        return Exit.PIPE_CLOSED
    except (ReliveError, OSError) as error:
        if arguments.traceback or os.environ.get("RELIVE_TRACEBACK", "0") not in {"", "0"}:
            traceback.print_exc()
        _report(error, can_overwrite=hasattr(arguments, "overwrite"))
        return Exit.FAILED
    return status


def _report(error: Exception, *, can_overwrite: bool) -> None:
    message = error.message if isinstance(error, ReliveError) else str(error)
    hint = error.hint if isinstance(error, ReliveError) else None
    if isinstance(error, AlreadyExistsError) and can_overwrite:
        hint = "pass --overwrite to replace it"  # the library speaks of its own argument
    say(f"error: {message}")
    if hint:
        say(f"hint: {hint}")


def _forget_stdout() -> None:
    # What is still buffered would fail again, loudly, when the interpreter ends.
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
