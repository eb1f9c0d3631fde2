"""`relive episodes edit`: changes how episodes are read, not what was recorded."""

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from relive.cli.arguments import report_damaged
from relive.cli.command import Exit
from relive.cli.episodes.arguments import (
    TIME_HELP,
    add_root,
    add_skip,
    add_which,
    find_uid,
    open_root,
    parse_end,
    parse_static,
    parse_time,
)
from relive.cli.output import plain, print_json, print_line, print_table
from relive.view.scale import clock_text, cut

if TYPE_CHECKING:
    from relive.episodes import LocalDataset

SUMMARY: Final = "set statics of an episode, drop, trim or cut it; recorded files stay unchanged"
EXAMPLE: Final = "relive episodes edit kitchen 12 trim +1.5s +20s"

_LONGEST: Final = 60


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    add_root(parser)
    add_which(parser)
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
        help=f"the values of the action; a time is {TIME_HELP}",
    )
    add_skip(parser)


def run(arguments: argparse.Namespace) -> Exit:
    """Record an edit; the recorded files stay unchanged."""
    action = _ACTIONS[arguments.action]
    values = _values(arguments, action)
    dataset = open_root(Path(arguments.root), errors=arguments.errors)
    uid = find_uid(dataset, arguments.which, dataset.edits.dropped)
    found = action.apply(dataset, uid, values)
    if arguments.json:
        print_json({"uid": uid, "action": arguments.action, **found})
    elif arguments.action == "history":
        _print_history(found["edits"])
    else:
        print_line(f"{uid}: {found['done']}")
    return report_damaged(dataset.damaged)


def _values(arguments: argparse.Namespace, action: "_Action") -> list[Any]:
    given = arguments.values
    if action.values is None and not given:
        arguments.parser.error(f"{arguments.action} needs at least one NAME=JSON")
    if action.values is not None and len(given) != action.values:
        arguments.parser.error(
            f"{arguments.action} takes {action.values} values, but got {len(given)}"
        )
    try:
        return [action.parse(text) for text in given]
    except argparse.ArgumentTypeError as error:
        arguments.parser.error(str(error))
        raise


def _set_static(dataset: "LocalDataset", uid: str, values: list[Any]) -> dict[str, Any]:
    for name, value in values:
        dataset.edits.set_static(uid, name, value)
    names = [name for name, _ in values]
    return {"done": f"set {', '.join(names)}", "names": names}


def _drop(dataset: "LocalDataset", uid: str, _: list[Any]) -> dict[str, Any]:
    dataset.edits.drop(uid)
    return {"done": "dropped"}


def _undrop(dataset: "LocalDataset", uid: str, _: list[Any]) -> dict[str, Any]:
    dataset.edits.undrop(uid)
    return {"done": "restored"}


def _trim(dataset: "LocalDataset", uid: str, values: list[Any]) -> dict[str, Any]:
    episode = dataset.by_uid(uid)
    start, stop = (None if each is None else each.in_episode(episode) for each in values)
    dataset.edits.trim(uid, start, stop)
    parts = ([] if start is None else [f"from {start}"]) + ([] if stop is None else [f"to {stop}"])
    kept = f"the records {' '.join(parts)}" if parts else "all records"
    return {"done": f"keeps {kept}", "start_ts": start, "stop_ts": stop}


def _cut(dataset: "LocalDataset", uid: str, values: list[Any]) -> dict[str, Any]:
    ts = values[0].in_episode(dataset.by_uid(uid))
    uids = list(dataset.edits.cut(uid, ts))
    return {"done": f"cut at {ts} into {' and '.join(uids)}", "ts": ts, "uids": uids}


def _history(dataset: "LocalDataset", uid: str, _: list[Any]) -> dict[str, Any]:
    return {"edits": plain(dataset.edits.history(uid))}


class _Action(NamedTuple):
    apply: Callable[["LocalDataset", str, list[Any]], dict[str, Any]]
    values: int | None = 0
    """How many values it takes; None for any number from one."""
    parse: Callable[[str], Any] = str


_ACTIONS: Final[Mapping[str, _Action]] = {
    "set-static": _Action(_set_static, None, parse_static),
    "drop": _Action(_drop),
    "undrop": _Action(_undrop),
    "trim": _Action(_trim, 2, parse_end),
    "cut": _Action(_cut, 1, parse_time),
    "history": _Action(_history),
}


def _print_history(edits: Sequence[Mapping[str, Any]]) -> None:
    if not edits:
        print_line("no edits")
        return
    rows = [
        [
            clock_text(edit["at_ns"]),
            edit["uid"],
            edit["op"].replace("_", "-"),
            cut(" ".join(f"{k}={json.dumps(v)}" for k, v in edit["details"].items()), _LONGEST),
        ]
        for edit in edits
    ]
    print_table(("when", "uid", "edit", "to"), rows)
