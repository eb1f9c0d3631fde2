"""The command `relive`: parses its arguments, runs the command, and prints errors."""

import argparse
import os
import sys
import traceback
from collections.abc import Sequence
from typing import Final

from relive._command import end_start
from relive.cli import (
    convert,
    episodes,
    head,
    info,
    pack,
    publish,
    records,
    recover,
    replay,
    stats,
    validate,
)
from relive.cli.command import Command, Exit, Group, add_commands
from relive.cli.output import note, print_line
from relive.errors import AlreadyExistsError, ReliveError

_COMMANDS: Final[Sequence[Command | Group]] = (
    *(info, head, stats, validate, recover, convert),
    *publish.COMMANDS,
    *(episodes.GROUP, pack.GROUP, records.GROUP, replay.GROUP),
)


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command line."""
    parser = argparse.ArgumentParser(
        prog="relive",
        description="Record, store and publish episodes, runs, records and tables for training.",
        epilog="`relive COMMAND --help` describes a command.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--version", action=_Version, nargs=0, help="print the version of relive and exit"
    )
    add_commands(parser, _COMMANDS)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line, by default that of the process, and return the exit status."""
    try:
        end_start()
        return _run(make_parser().parse_args(argv))
    except SystemExit as stop:  # raised by argparse
        return stop.code if isinstance(stop.code, int) else Exit.OK
    except KeyboardInterrupt:
        return Exit.INTERRUPTED


class _Version(argparse.Action):
    """Looks up the version only when it is asked for, because that takes long."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object, **__: object) -> None:
        from importlib.metadata import version

        print_line(f"relive {version('relive')}")
        parser.exit()


def _run(arguments: argparse.Namespace) -> int:
    try:
        status: Exit = arguments.run(arguments)
        sys.stdout.flush()
    except BrokenPipeError:
        _discard_stdout()
        return Exit.PIPE_CLOSED
    except (ReliveError, OSError) as error:
        if arguments.traceback or os.environ.get("RELIVE_TRACEBACK", "0") not in {"", "0"}:
            traceback.print_exc()
        _print_error(error, can_overwrite=hasattr(arguments, "overwrite"))
        return Exit.FAILED
    return status


def _print_error(error: Exception, *, can_overwrite: bool) -> None:
    message = error.message if isinstance(error, ReliveError) else str(error)
    hint = error.hint if isinstance(error, ReliveError) else None
    if isinstance(error, AlreadyExistsError) and can_overwrite:
        hint = "pass --overwrite to replace it"  # the library names its own argument
    note(f"error: {message}")
    if hint:
        note(f"hint: {hint}")


def _discard_stdout() -> None:
    # The interpreter would flush the rest of the buffer when it exits, and fail again.
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)
