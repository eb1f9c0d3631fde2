"""`relive replay show`: everything about one run."""

import argparse
import json
from typing import TYPE_CHECKING, Any, Final

from relive.cli.arguments import positive
from relive.cli.command import Exit
from relive.cli.output import (
    count_text,
    note,
    print_json,
    print_line,
    print_pairs,
    print_table,
    size_text,
)
from relive.cli.replay.arguments import add_run, find_run
from relive.cli.replay.facts import codec_text, run_facts, run_pairs
from relive.view.scale import clock_text, cut

if TYPE_CHECKING:
    from relive.replay import ReplayRun
    from relive.replay.storage.tables import EpisodeRow

SUMMARY: Final = "print everything about a run: its settings, its arrays and its episodes"
EXAMPLE: Final = "relive replay show runs cartpole-1 --rows 50"

_LONGEST: Final = 60


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    add_run(parser)
    parser.add_argument(
        "-n",
        "--rows",
        metavar="N",
        type=positive,
        default=20,
        help="how many of the newest episodes to print (default: 20)",
    )


def run(arguments: argparse.Namespace) -> Exit:
    """Print what is known about the run, without reading steps or arrays."""
    from relive.replay import ReplayRun

    found = _describe(ReplayRun(*find_run(arguments)), arguments.rows)
    if arguments.json:
        print_json(found)
        return Exit.OK
    pairs = run_pairs(found | {"episodes": found["episode_count"]})
    size = "missing" if found["is_missing"] else size_text(found["file_bytes"])
    file = [("path", found["path"]), ("size", size)]
    print_pairs([*pairs[:3], *file, *pairs[3:]])
    if found["fields"]:
        print_line()
        _print_fields(found["fields"])
    if len(found["sessions"]) > 1:
        print_line()
        _print_sessions(found["sessions"])
    if found["episodes"]:
        print_line()
        _print_episodes(found["episodes"])
    left_out = found["episode_count"] - len(found["episodes"])
    if left_out:
        note(f"{count_text(left_out, 'earlier episode')} not printed; --rows prints more")
    return Exit.OK


def _describe(run: "ReplayRun", rows: int) -> dict[str, Any]:
    path, episodes = run.source.path, run.source.episodes
    return {
        "path": str(path),
        "file_bytes": path.stat().st_size if path.is_file() else 0,
        "is_missing": run.arrays.is_missing,
        **run_facts(run),
        "episode_count": len(episodes),
        "episodes": [_episode(each, is_live=run.source.is_live) for each in episodes[-rows:]],
    }


def _episode(row: "EpisodeRow", *, is_live: bool) -> dict[str, Any]:
    status = row.status
    if row.ended_ns is None:
        status = "recording" if is_live else "truncated"
    return {
        "number": row.number,
        "episode_id": row.episode_id,
        "agent_id": row.agent_id,
        "env_index": row.env_index,
        "seed": row.seed,
        "started_ns": row.started_ns,
        "ended_ns": row.ended_ns,
        "steps": row.steps,
        "dropped": row.dropped,
        "return": row.total_reward,
        "status": status,
        "metadata": None if row.metadata is None else json.loads(row.metadata),
    }


def _print_fields(fields: dict[str, dict[str, Any]]) -> None:
    print_table(
        ["array", "dtype", "shape", "rows of", "codec", "stack", "size"],
        [
            [
                *(name, each["dtype"], " x ".join(map(str, each["shape"])) or "-"),
                *(each["rows_of"], codec_text(each), each["stack"]),
                size_text(each["stored_bytes"]),
            ]
            for name, each in fields.items()
        ],
    )


def _print_sessions(sessions: list[dict[str, Any]]) -> None:
    print_table(
        ["session", "started", "first row", "steps", "seed", "commit", "metadata"],
        [
            [
                *(each["number"], clock_text(each["started_ns"])),
                *(each["first_row"], each["steps"], each["seed"]),
                (each["git"] or {}).get("commit"),
                None if each["metadata"] is None else cut(json.dumps(each["metadata"]), _LONGEST),
            ]
            for each in sessions
        ],
    )


def _print_episodes(episodes: list[dict[str, Any]]) -> None:
    names = ["number", "id", "agent", "env", "steps", "return", "status"]
    keys = ["number", "episode_id", "agent_id", "env_index", "steps", "return", "status"]
    for key in ("agent_id", "env_index"):
        if not any(each[key] for each in episodes):  # a single one
            place = keys.index(key)
            del names[place], keys[place]
    print_table(names, [[each[key] for key in keys] for each in episodes])
