"""`relive episodes edit`: what was recorded, seen otherwise from now on."""

import argparse
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from relive.cli.arguments import add_json
from relive.cli.cells import plain
from relive.cli.command import Command, Exit
from relive.cli.episodes.times import HELP, parse_end, parse_time
from relive.cli.episodes.arguments import find_uid, open_root
from relive.cli.output import print_json, print_line, print_table, shown
from relive.view.scale import clock_text, cut

if TYPE_CHECKING:
    from relive.episodes.read.local_dataset import LocalDataset

_LONGEST: Final = 60


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("root", metavar="ROOT", help="the root of a dataset")
    parser.add_argument(
        "which",
        metavar="WHICH",
        help="which episode: its uid, the beginning of it, or its number; -1 is the last one",
    )
    parser.add_argument(
        "action",
        choices=tuple(_ACTIONS),
        help="set-static NAME=JSON ..., drop, undrop, trim FROM TO (- is an open end), "
        "cut TIME, or history",
    )
    parser.add_argument(
        "values",
        metavar="VALUE",
        nargs="*",
        default=[],
        help=f"what the action needs; a time is {HELP}",
    )
    add_json(parser)


def run(arguments: argparse.Namespace) -> Exit:
    """Note an edit over what was recorded, which stays as it is."""
    action, wanted = _ACTIONS[arguments.action]
    given = arguments.values
    if wanted is not None and len(given) != wanted:
        words = {0: "takes nothing more", 1: "takes one value", 2: "takes two values"}[wanted]
        arguments.parser.error(f"{arguments.action} {words}, and {len(given)} were given")
    values = _values(arguments)
    dataset = open_root(Path(arguments.root))
    uid = find_uid(dataset, arguments.which, dataset.edits.dropped)
    found = action(dataset, uid, values)
    if arguments.json:
        print_json({"uid": uid, "action": arguments.action, **found})
    elif arguments.action == "history":
        _print_history(found["edits"])
    else:
        print_line(f"{shown(uid)}: {found['done']}")
    return Exit.OK


def _values(arguments: argparse.Namespace) -> list[Any]:
    read = _READ.get(arguments.action)
    try:
        return [] if read is None else read(arguments.values)
    except argparse.ArgumentTypeError as error:
        arguments.parser.error(str(error))
        raise


def read_static(text: str) -> tuple[str, Any]:
    """Read a static and its value, as in `success=true`."""
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"`{text}` is no static; write NAME=JSON")
    try:
        return name, json.loads(value)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"`{value}` is no JSON; text is written with quotes, as in 'task=\"pick\"'"
        ) from None


def _set_static(dataset: "LocalDataset", uid: str, values: list[Any]) -> dict[str, Any]:
    for name, value in values:
        dataset.edits.set_static(uid, name, value)
    names = [name for name, _ in values]
    return {"done": f"set {', '.join(map(shown, names))}", "names": names}


def _drop(dataset: "LocalDataset", uid: str, _: list[Any]) -> dict[str, Any]:
    dataset.edits.drop(uid)
    return {"done": "dropped"}


def _undrop(dataset: "LocalDataset", uid: str, _: list[Any]) -> dict[str, Any]:
    dataset.edits.undrop(uid)
    return {"done": "taken in again"}


def _trim(dataset: "LocalDataset", uid: str, values: list[Any]) -> dict[str, Any]:
    episode = dataset.by_uid(uid)
    start, stop = (None if each is None else each.in_episode(episode) for each in values)
    dataset.edits.trim(uid, start, stop)
    parts = ([] if start is None else [f"from {start}"]) + ([] if stop is None else [f"to {stop}"])
    words = f"the records {' '.join(parts)}" if parts else "all records"
    return {"done": f"has {words}", "start_ts": start, "stop_ts": stop}


def _cut(dataset: "LocalDataset", uid: str, values: list[Any]) -> dict[str, Any]:
    ts = values[0].in_episode(dataset.by_uid(uid))
    pieces = list(dataset.edits.cut(uid, ts))
    return {"done": f"cut at {ts} into {' and '.join(pieces)}", "ts": ts, "pieces": pieces}


def _history(dataset: "LocalDataset", uid: str, _: list[Any]) -> dict[str, Any]:
    return {"edits": [plain(asdict(edit)) for edit in dataset.edits.history(uid)]}


def _statics(given: list[str]) -> list[Any]:
    if not given:
        raise argparse.ArgumentTypeError("set-static takes NAME=JSON")
    return [read_static(text) for text in given]


_ACTIONS: Final[Mapping[str, tuple[Callable[..., dict[str, Any]], int | None]]] = {
    "set-static": (_set_static, None),
    "drop": (_drop, 0),
    "undrop": (_undrop, 0),
    "trim": (_trim, 2),
    "cut": (_cut, 1),
    "history": (_history, 0),
}
_READ: Final[Mapping[str, Callable[[list[str]], list[Any]]]] = {
    "set-static": _statics,
    "trim": lambda given: [parse_end(text) for text in given],
    "cut": lambda given: [parse_time(text) for text in given],
}


def _print_history(edits: list[dict[str, Any]]) -> None:
    if not edits:
        print_line("no edits")
        return
    rows = [
        [
            clock_text(edit["at_ns"]),
            shown(edit["uid"]),
            edit["op"].replace("_", "-"),
            cut(" ".join(f"{k}={json.dumps(v)}" for k, v in edit["details"].items()), _LONGEST),
        ]
        for edit in edits
    ]
    print_table(("when", "uid", "edit", "to"), rows)


COMMAND: Final = Command(
    "edit",
    "set statics of an episode, drop, trim or cut it, without changing what was recorded",
    "relive episodes edit kitchen 12 trim +1.5s +20s",
    add_arguments,
    run,
)
