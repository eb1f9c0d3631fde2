"""Arguments of the commands about runs: which run of which root, and which episode."""

import argparse
import re
from collections.abc import Collection
from pathlib import Path
from typing import Final

from relive.errors import InvalidError, NotFoundError, UnknownNameError

_MOST_LISTED: Final = 10
"""Of the runs whose ids begin with the same characters, this many are listed."""
_FROM_THE_END: Final = re.compile(r"-0*[1-9]\d{0,11}")
_NUMBER: Final = re.compile(r"-?\d{1,12}")


def add_root(parser: argparse.ArgumentParser) -> None:
    """Add the directory of the runs."""
    parser.add_argument("root", metavar="ROOT", help="the directory of the runs")


def add_run(parser: argparse.ArgumentParser, default: str | None = None) -> None:
    """Add the run to read."""
    parser.add_argument(
        "path", metavar="PATH", help="the directory of the runs, or the .h5 file of a run"
    )
    parser.add_argument(
        "run_id",
        metavar="RUN",
        nargs="?",
        help="a run of the directory: its id, the beginning of its id, or -1 for the last one"
        + (f" (default: {default})" if default else ""),
    )


def add_whole_ids(parser: argparse.ArgumentParser) -> None:
    """Add the runs to change, which have to be named by their whole ids."""
    parser.add_argument("run_ids", metavar="RUN", nargs="+", help="the whole id of a run")


def whole_ids(arguments: argparse.Namespace, known: Collection[str]) -> list[str]:
    """Return the ids that were named; raise an error if one is not known."""
    root = arguments.root
    for run_id in arguments.run_ids:
        if run_id not in known:
            raise UnknownNameError(
                f"`{root}` has no run {run_id!r}", hint=f"`relive replay ls {root}` lists the runs"
            )
    return list(dict.fromkeys(arguments.run_ids))


def add_episode(parser: argparse.ArgumentParser, default: str) -> None:
    """Add the episode to show."""
    parser.add_argument(
        "--episode",
        metavar="WHICH",
        type=parse_episode,
        help=f"an episode: its number or its id; -1 is the last one (default: {default})",
    )


def add_pictures(parser: argparse.ArgumentParser) -> None:
    """Add which array to show, and how fast."""
    parser.add_argument(
        "--field",
        metavar="NAME",
        help="the array to show, as in observations.image (default: the frames, or observations "
        "that are pictures)",
    )
    parser.add_argument(
        "--fps", metavar="N", type=parse_fps, default=30.0, help="frames per second (default: 30)"
    )


def find_run(arguments: argparse.Namespace) -> tuple[Path, str | None]:
    """Return the root and the id of the run that was named; None with the file of a run."""
    path = Path(arguments.path)
    if path.suffix == ".h5" and path.is_file():
        if arguments.run_id is not None:
            raise InvalidError(
                f"`{path}` is the file of a run, and run {arguments.run_id!r} was named too",
                hint="pass the file alone, or the directory of the runs and a run",
            )
        return path, None
    if arguments.run_id is not None:
        return path, _known(path, arguments.run_id)
    if path.suffix == ".h5":
        raise NotFoundError(f"`{path}` does not exist")
    _known_ids(path)
    raise InvalidError(
        "no run was named", hint=f"add the id of a run; `relive replay ls {path}` lists them"
    )


def find_id(arguments: argparse.Namespace) -> str:
    """Return the id of the run that was named."""
    path, run_id = find_run(arguments)
    if run_id is not None:
        return run_id
    from relive.replay.source import source_of

    return source_of(path).run.run_id


def parse_episode(text: str) -> int | str:
    """Parse the number of an episode, or its id."""
    if not text:
        raise argparse.ArgumentTypeError("an episode is a number or an id")
    return int(text) if _NUMBER.fullmatch(text) else text


def parse_fps(text: str) -> float:
    """Parse a rate in frames per second."""
    try:
        rate = float(text)
    except ValueError:
        rate = 0.0
    if not 0.001 <= rate <= 1_000_000:  # noqa: PLR2004 - the range of a video
        raise argparse.ArgumentTypeError(f"`{text}` is not a number from 0.001 to 1000000")
    return rate


def _known(root: Path, which: str) -> str:
    """Return the id of a run named by `which`."""
    ids = _known_ids(root)
    if which in ids:
        return which
    if _FROM_THE_END.fullmatch(which) and int(which) >= -len(ids):
        return ids[int(which)]
    found = [run_id for run_id in ids if which and run_id.startswith(which)]
    if not found:
        raise UnknownNameError(
            f"`{root}` has no run {which!r}", hint=f"`relive replay ls {root}` lists the runs"
        )
    if len(found) > 1:
        listed = ", ".join(found[:_MOST_LISTED])
        more = f" and {len(found) - _MOST_LISTED} more" if len(found) > _MOST_LISTED else ""
        raise InvalidError(
            f"{which!r} matches {len(found)} runs", hint=f"use one of {listed}{more}"
        )
    return found[0]


def _known_ids(root: Path) -> list[str]:
    """Return the ids of the runs of a root; raise an error if it is not one."""
    from relive.replay.manage.runs import run_ids

    return run_ids(root)
