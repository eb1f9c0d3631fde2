"""`relive recover`: finishes what a writer left unfinished."""

import argparse
from pathlib import Path
from typing import Any, Final, NamedTuple

from relive.cli.arguments import add_overwrite
from relive.cli.command import Exit
from relive.cli.output import count_text, note, print_json, print_line
from relive.store.pack import recover as recover_pack

SUMMARY: Final = "finish what a writer left unfinished: a pack, episodes, runs"
EXAMPLE: Final = "relive recover runs.a2pack"

_SIGNALS: Final = frozenset({".mp4", ".parquet", ".tape"})


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument(
        "path",
        metavar="PATH",
        help="an unfinished pack or the name it was to have, an episode, a signal, the root of a "
        "dataset, the directory of runs, or the .h5 file of a run in it",
    )
    parser.add_argument(
        "--output",
        metavar="FILE",
        help="where to write the pack (default: the name it was to have)",
    )
    add_overwrite(parser)
    parser.add_argument(
        "--set-aside",
        action="store_true",
        help="move episodes and files that cannot be recovered to ROOT/.set-aside",
    )


def _is_root_of_runs(path: Path) -> bool:
    # By its name, as `relive.open` does: only SQLite opens the file.
    folders = (path, path.parent) if path.name == "replay" else (path,)
    is_root = any(folder.joinpath("telemetry", "telemetry.sqlite").exists() for folder in folders)
    return path.name == "telemetry.sqlite" or is_root


def _check_in_place(arguments: argparse.Namespace, noun: str) -> None:
    if arguments.output is not None or arguments.overwrite:
        arguments.parser.error(
            f"{noun} are recovered in place: --output and --overwrite do not apply"
        )


class _Recovered(NamedTuple):
    value: Any
    lines: list[str]
    warnings: list[str]
    notes: list[str]


def run(arguments: argparse.Namespace) -> Exit:
    """Write a pack of the entries that are complete, or finish the episodes or runs."""
    path = Path(arguments.path)
    is_run = path.suffix == ".h5" or _is_root_of_runs(path)
    if arguments.set_aside and (is_run or not path.is_dir()):
        arguments.parser.error("--set-aside applies only to a dataset or an episode of it")
    if is_run:
        found = _runs(arguments)
    elif path.is_dir() or path.suffix in _SIGNALS:
        found = _episodes(arguments)
    else:
        found = _pack(arguments)
    if arguments.json:
        print_json(found.value)
    else:
        for line in found.lines:
            print_line(line)
    for text in (*(f"warning: {each}" for each in found.warnings), *found.notes):
        message, _, hint = text.partition("\nhint: ")
        note(message)
        if hint:
            note(f"hint: {hint}")
    return Exit.LOSS if found.warnings else Exit.OK


def _pack(arguments: argparse.Namespace) -> _Recovered:
    found = recover_pack(arguments.path, arguments.output, overwrite=arguments.overwrite)
    warnings = []
    if found.lost:
        warnings.append(f"{count_text(found.lost, 'entry')} lost: {found.reason}")
    elif found.reason is not None:
        warnings.append(f"not everything was recovered: {found.reason}")
    notes = []
    if found.rest is not None:
        notes.append(f"the bytes that were not recovered are in `{found.rest}`")
    lines = [f"{found.path}: {count_text(found.entries, 'entry')}"]
    return _Recovered(found, lines, warnings, notes)


def _episodes(arguments: argparse.Namespace) -> _Recovered:
    from relive.episodes import recover
    from relive.episodes.layout import is_episode, is_numbered

    _check_in_place(arguments, "episodes")
    found = recover(arguments.path, set_aside=arguments.set_aside)
    lines = [
        f"{each.path}: {each.uid}, {count_text(len(each.signals), 'signal')}, "
        f"{count_text(sum(each.signals.values()), 'record')}"
        for each in found.episodes
        if each.uid is not None  # otherwise a warning says why
    ]
    lines += [
        f"{found.path}: {name}, {count_text(rows, 'record')}"
        for name, rows in found.signals.items()
    ]
    lines += [f"{each.path}: moved to {each.target}" for each in found.set_aside]
    if not (lines or found.problems):
        recording = count_text(len(found.locked), "episode")
        text = f"nothing to recover; {recording} being recorded"
        lines = [f"{found.path}: {text if found.locked else 'nothing is unfinished'}"]
    notes = [f"`{each}` is being recorded and was not changed" for each in found.locked]
    notes += [f"`{each.path}` was moved: {each.reason}" for each in found.set_aside]
    if (
        found.problems
        and not arguments.set_aside
        and (is_numbered(found.path) or not is_episode(found.path))
    ):
        notes.append("hint: --set-aside moves what cannot be recovered to ROOT/.set-aside")
    return _Recovered(found, lines, list(found.problems), notes)


def _runs(arguments: argparse.Namespace) -> _Recovered:
    from relive.replay import recover
    from relive.replay.manage.runs import unfinished_deletions

    _check_in_place(arguments, "runs")
    found = recover(arguments.path)
    lines = [
        f"{each.path}: {each.run_id}, {count_text(each.episodes, 'episode')}, "
        f"{count_text(each.steps, 'step')}"
        for each in found.runs
    ]
    lines += [
        f"{found.root}: the compaction of run {each!r} is settled" for each in found.compacted
    ]
    if not (lines or found.problems):
        recording = count_text(len(found.locked), "run")
        text = f"nothing to recover; {recording} being recorded"
        lines = [f"{arguments.path}: {text if found.locked else 'nothing is unfinished'}"]
    notes = [f"run {each!r} is being recorded and was not changed" for each in found.locked]
    notes += [
        f"the deletion of run {each!r} was interrupted; run `relive replay rm {found.root} {each} "
        "--yes` to finish it"
        for each in unfinished_deletions(found.root)
    ]
    warnings = list(found.problems)
    if found.lost is not None:
        warnings.insert(0, found.lost)
        notes.append(f"the file with the commits that were not recovered is `{found.kept}`")
    return _Recovered(found, lines, warnings, notes)
