"""What a command is: a name, words for people, its arguments, and what it does."""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum


class Exit(IntEnum):
    """What the exit status says."""

    OK = 0
    FAILED = 1
    USAGE = 2
    LOSS = 3
    """The work is finished, and something was left out of it."""
    INTERRUPTED = 130
    PIPE_CLOSED = 141
    """Whoever read stdout went away; 128 and the number of the signal, as for the one above."""


@dataclass(frozen=True, slots=True)
class Command:
    """One command; `run` gives the exit status."""

    name: str
    summary: str
    example: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], Exit]


@dataclass(frozen=True, slots=True)
class Group:
    """Commands under one name."""

    name: str
    summary: str
    commands: Sequence[Command]


def add_commands(parser: argparse.ArgumentParser, commands: Sequence[Command | Group]) -> None:
    """Teach `parser` the commands, each with help of its own."""
    places = parser.add_subparsers(metavar="COMMAND", required=True)
    for command in commands:
        summary = command.summary
        sentence = f"{summary[0].upper()}{summary[1:]}."
        sub = places.add_parser(
            command.name,
            help=summary,
            description=sentence,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        if isinstance(command, Group):
            add_commands(sub, command.commands)
            continue
        sub.epilog = f"example:\n  {command.example}"
        command.add_arguments(sub)
        sub.add_argument("--traceback", action="store_true", help="show where an error came from")
        sub.set_defaults(run=command.run, parser=sub)
