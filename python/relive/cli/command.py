"""A command: its name, its help, its arguments and its function."""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum


class Exit(IntEnum):
    """The exit status of a command."""

    OK = 0
    FAILED = 1
    USAGE = 2
    LOSS = 3
    """Finished, but something was left out."""
    INTERRUPTED = 130
    """128 plus the number of the signal, as shells report it; so is the next."""
    PIPE_CLOSED = 141


@dataclass(frozen=True, slots=True)
class Command:
    """One command; `run` returns the exit status."""

    name: str
    summary: str
    example: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], Exit]


@dataclass(frozen=True, slots=True)
class Group:
    """Commands that share a first word, such as `relive pack`."""

    name: str
    summary: str
    commands: Sequence[Command]


def add_commands(parser: argparse.ArgumentParser, commands: Sequence[Command | Group]) -> None:
    """Add commands to a parser, each with its own help, `--json` and `--traceback`."""
    subparsers = parser.add_subparsers(metavar="COMMAND", required=True)
    for command in commands:
        summary = command.summary
        sub = subparsers.add_parser(
            command.name,
            help=summary,
            description=f"{summary[0].upper()}{summary[1:]}.",
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        if isinstance(command, Group):
            add_commands(sub, command.commands)
            continue
        sub.epilog = f"example:\n  {command.example}"
        command.add_arguments(sub)
        sub.add_argument("--json", action="store_true", help="print the result as JSON")
        sub.add_argument(
            "--traceback", action="store_true", help="print the Python traceback of an error"
        )
        sub.set_defaults(run=command.run, parser=sub)
