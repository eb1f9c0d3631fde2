"""What a command is, and how it is added to a parser."""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol


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


class Command(Protocol):
    """A module that is a command, and has the name of the command."""

    __name__: str

    @property
    def SUMMARY(self) -> str:  # noqa: N802 - a constant of the module
        """The help in one line."""

    @property
    def EXAMPLE(self) -> str:  # noqa: N802 - a constant of the module
        """A command line that works."""

    @property
    def add_arguments(self) -> Callable[[argparse.ArgumentParser], None]:
        """Adds the arguments of the command."""

    @property
    def run(self) -> Callable[[argparse.Namespace], Exit]:
        """Runs the command, and returns the exit status."""


@dataclass(frozen=True, slots=True)
class Group:
    """Commands that share a first word, such as `relive pack`."""

    name: str
    summary: str
    commands: "Sequence[Command | Group]"


def add_commands(parser: argparse.ArgumentParser, commands: Sequence[Command | Group]) -> None:
    """Add commands to a parser, each with its own help, `--json` and `--traceback`."""
    subparsers = parser.add_subparsers(metavar="COMMAND", required=True)
    for command in commands:
        if isinstance(command, Group):
            sub = _add_parser(subparsers, command.name, command.summary)
            add_commands(sub, command.commands)
            continue
        name = command.__name__.rpartition(".")[2].replace("_", "-")
        sub = _add_parser(subparsers, name, command.SUMMARY)
        sub.epilog = f"example:\n  {command.EXAMPLE}"
        command.add_arguments(sub)
        sub.add_argument("--json", action="store_true", help="print the result as JSON")
        sub.add_argument(
            "--traceback", action="store_true", help="print the Python traceback of an error"
        )
        sub.set_defaults(run=command.run, parser=sub)


def _add_parser(
    subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]", name: str, summary: str
) -> argparse.ArgumentParser:
    return subparsers.add_parser(
        name,
        help=summary,
        description=f"{summary[0].upper()}{summary[1:]}.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
