"""Runs for `relive info`, `head`, `stats` and `validate`."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from relive.cli.command import Exit
from relive.cli.output import count_text, print_json, print_lines, size_text
from relive.cli.replay.facts import field_text, run_facts, run_pairs
from relive.cli.replay.statistics import print_run_stats, run_stats, stats_line
from relive.cli.replay.steps import as_json as step_json
from relive.cli.replay.steps import as_texts, first_steps
from relive.cli.source import Facts
from relive.model.report import Level, Progress, Report

if TYPE_CHECKING:
    from typing_extensions import TypeIs

    from relive.replay import ReplayRoot, ReplayRun
    from relive.replay.manage.runs import RunSummary

_MOST_RUNS: Final = 20

Found: TypeAlias = "ReplayRoot | ReplayRun"


def describe(found: Found) -> Facts:
    """Return what is known about runs without reading steps."""
    if _is_root(found):
        return _describe_root(found)
    facts = run_facts(found)
    arrays = [(f"array {name}", field_text(each)) for name, each in facts["fields"].items()]
    return facts, [*run_pairs(facts), *arrays]


def print_head(found: Found, count: int, *, as_json: bool) -> Exit:
    """Print the first steps of each run."""
    runs = found.values() if _is_root(found) else [found]
    steps = [step for run in runs for step in first_steps(run, count)]
    if as_json:
        print_json([step_json(step) for step in steps])
    else:
        print_lines(as_texts(steps, with_runs=_is_root(found)), "no steps", as_json=False)
    return Exit.OK


def print_stats(found: Found, *, as_json: bool) -> None:
    """Print the returns, lengths, rewards and actions of each run."""
    if _is_root(found):
        stats = [run_stats(run) for run in found.values()]
        if as_json:
            print_json({"runs": stats})
        else:
            print_lines([stats_line(each) for each in stats], "no runs", as_json=False)
    elif as_json:
        print_json(run_stats(found))
    else:
        print_run_stats(run_stats(found))


def validate(path: str, level: Level, *, progress: Progress) -> Report:
    """Check the runs of a root, or the file of one run; see `relive.replay.validate`."""
    from relive.replay import validate

    return validate(path, level, progress=progress)


def root_paths(path: str) -> Sequence[Path]:
    """Return the files of a root: its database, and the arrays of its runs."""
    from relive.replay.storage.layout import REPLAY, database_path

    root = Path(path)
    return [database_path(root).parent, *sorted((root / REPLAY).glob("*.h5"))]


def _is_root(found: Found) -> "TypeIs[ReplayRoot]":
    from relive.replay import ReplayRoot

    return isinstance(found, ReplayRoot)


def _describe_root(root: "ReplayRoot") -> Facts:
    from relive.replay.manage.runs import list_runs

    runs = list_runs(root.path)
    statuses = dict(sorted(Counter(each.status for each in runs).items()))
    counts = {
        "episodes": sum(each.episodes for each in runs),
        "steps": sum(each.steps for each in runs),
    }
    problems = {each.run_id: each.problem for each in runs if each.problem is not None}
    facts: dict[str, Any] = {**counts, "status": statuses, "runs": runs, "problems": problems}
    pairs: list[tuple[str, object]] = [
        ("runs", len(runs)),
        *counts.items(),
        ("status", ", ".join(f"{count} {status}" for status, count in statuses.items()) or "-"),
    ]
    if len(runs) > _MOST_RUNS:
        earlier = count_text(len(runs) - _MOST_RUNS, "earlier run")
        pairs.append((earlier, f"`relive replay ls {root.path}` lists all"))
    pairs += [(f"run {each.run_id}", _run_text(each)) for each in runs[-_MOST_RUNS:]]
    return facts, pairs


def _run_text(run: "RunSummary") -> str:
    if run.problem is not None:
        return f"{run.status}: {run.problem}"
    return ", ".join(
        [
            run.status,
            *([run.env_id] if run.env_id else []),
            count_text(run.episodes, "episode"),
            count_text(run.steps, "step"),
            size_text(run.file_bytes),
        ]
    )
