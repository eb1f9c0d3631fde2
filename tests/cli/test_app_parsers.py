"""Every command has help, and a section on the page about the command line."""

import argparse
from collections.abc import Iterator
from pathlib import Path

import pytest

from relive.cli.app import make_parser

PAGE = Path(__file__).resolve().parents[2] / "docs" / "guide" / "operate" / "command-line.md"


def parsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """Return the parsers of all commands and groups below `parser`."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for sub in action.choices.values():
                yield sub
                yield from parsers(sub)


def is_group(parser: argparse.ArgumentParser) -> bool:
    """Return whether the parser has subcommands."""
    return any(isinstance(action, argparse._SubParsersAction) for action in parser._actions)


ALL = list(parsers(make_parser()))
COMMANDS = [parser for parser in ALL if not is_group(parser)]


def test_commands_match_the_list() -> None:
    assert {parser.prog for parser in COMMANDS} == {
        "relive cache gc",
        "relive cache stats",
        "relive cache unpin",
        "relive cache verify",
        "relive clone",
        "relive convert",
        "relive delete",
        "relive diff",
        "relive episodes copy",
        "relive episodes edit",
        "relive episodes ls",
        "relive episodes merge",
        "relive episodes plot",
        "relive episodes show",
        "relive episodes validate",
        "relive gc",
        "relive head",
        "relive info",
        "relive list-remote",
        "relive mirror",
        "relive pack build",
        "relive pack extract",
        "relive pack inspect",
        "relive pack merge",
        "relive pack stats",
        "relive pack subset",
        "relive pack to-jsonl",
        "relive pack to-parquet",
        "relive pack validate",
        "relive publish",
        "relive records gather",
        "relive records head",
        "relive records info",
        "relive records rebalance",
        "relive records validate",
        "relive recover",
        "relive reindex",
        "relive replay archive",
        "relive replay compact",
        "relive replay export h5",
        "relive replay export mp4",
        "relive replay export parquet",
        "relive replay ls",
        "relive replay migrate",
        "relive replay play",
        "relive replay prune",
        "relive replay query",
        "relive replay rm",
        "relive replay show",
        "relive rollback",
        "relive schema",
        "relive stats",
        "relive stream",
        "relive tag",
        "relive untag",
        "relive validate",
        "relive warm",
    }


@pytest.mark.parametrize("parser", ALL, ids=lambda parser: parser.prog)
def test_every_parser_and_option_has_help(parser: argparse.ArgumentParser) -> None:
    assert parser.description
    silent = [
        action.dest for action in parser._actions if not action.help and action.option_strings
    ]
    assert not silent
    text = parser.format_help()
    assert text.startswith(f"usage: {parser.prog}")


@pytest.mark.parametrize("parser", COMMANDS, ids=lambda parser: parser.prog)
def test_every_command_has_an_example_that_parses(
    parser: argparse.ArgumentParser,
) -> None:
    assert parser.epilog is not None
    title, _, line = parser.epilog.partition("\n")
    assert title == "example:"
    args = line.split()
    assert " ".join(args).startswith(parser.prog)
    assert make_parser().parse_args(args[1:]).parser.prog == parser.prog


@pytest.mark.parametrize("parser", COMMANDS, ids=lambda parser: parser.prog)
def test_every_command_and_option_is_on_the_page(parser: argparse.ArgumentParser) -> None:
    text = PAGE.read_text()
    title = f"\n## `{parser.prog}`\n"
    assert title in text
    section = text.partition(title)[2].partition("\n## ")[0]
    assert f"$ {parser.prog} " in section
    shared = {"--help", "--traceback", "--json", "--packfile"}
    options = {
        action.option_strings[0] if "BooleanOptional" in repr(action) else action.option_strings[-1]
        for action in parser._actions
        if action.option_strings
    }
    assert not sorted(option for option in options - shared if f"`{option}" not in section)


def test_page_has_no_unknown_command() -> None:
    titles = [
        line.removeprefix("## `").removesuffix("`")
        for line in PAGE.read_text().splitlines()
        if line.startswith("## `")
    ]
    assert sorted(titles) == sorted(parser.prog for parser in COMMANDS)


def test_shared_options_are_on_the_page() -> None:
    text = PAGE.read_text()
    for word in ("--help", "--version", "--traceback", "RELIVE_TRACEBACK", "--json", "--packfile"):
        assert f"`{word}" in text
