"""The first steps of runs, for `relive head`."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from relive.cli.output import value_text

if TYPE_CHECKING:
    from relive.replay import ReplayRun

_FIELDS: Final = {"action": "actions", "observation": "observations", "frame": "frames"}


def first_steps(run: "ReplayRun", count: int) -> list[dict[str, Any]]:
    """Return the first steps of a run, with their actions, observations and frames."""
    from relive.replay.columns import row_of
    from relive.replay.scalars import StepRecord

    rows = np.arange(min(count, len(run)))
    arrays: dict[str, list[Any]] = {}
    for name, field in _FIELDS.items():
        if run.source.columns and field in run.arrays.fields:
            values = run.arrays.read_field(field, rows)
            has = run.arrays.are_valid(field, rows)
            arrays[name] = [
                row_of(values, place) if has[place] else None for place in range(len(rows))
            ]
    lines = []
    for place, row in enumerate(run.source.step_rows(rows)):
        step = StepRecord.from_row(row)
        read = {name: values[place] for name, values in arrays.items()}
        lines.append(
            {
                "run_id": step.run_id,
                "row": step.row,
                "episode_id": step.episode_id,
                "agent_id": step.agent_id,
                "step_index": step.step_index,
                "action": read.get("action", step.action),
                "reward": step.reward,
                "terminated": step.terminated,
                "truncated": step.truncated,
                "observation": read.get("observation"),
                "frame": read.get("frame"),
                "info": step.info,
                "ts_ns": step.ts_ns,
            }
        )
    return lines


def as_json(step: Mapping[str, Any]) -> dict[str, Any]:
    """Return a step for a program; pictures are only their dtype and shape."""
    return {name: _without_pictures(value) for name, value in step.items()}


def as_texts(steps: list[dict[str, Any]], *, with_runs: bool) -> list[dict[str, Any]]:
    """Return steps for people, one line each."""
    with_agents = any(step["agent_id"] for step in steps)
    return [
        {
            **({"run": step["run_id"]} if with_runs else {}),
            "row": step["row"],
            "episode": step["episode_id"],
            **({"agent": step["agent_id"]} if with_agents else {}),
            "step": step["step_index"],
            "action": _short(step["action"]),
            "reward": step["reward"],
            "end": _end(step),
            "observation": _short(step["observation"]),
            "frame": _short(step["frame"]),
        }
        for step in steps
    ]


def _end(step: Mapping[str, Any]) -> str | None:
    if step["terminated"]:
        return "terminated"
    return "truncated" if step["truncated"] else None


def _without_pictures(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_pictures(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return [_without_pictures(item) for item in value]
    # Pixels are of no use to a person, and too many for a pipe.
    return value_text(value) if isinstance(value, np.ndarray) and value.ndim > 1 else value


def _short(value: Any) -> Any:
    """Return a value as a number or as text; arrays of many numbers as their dtype and shape."""
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{key}: {_short(item)}' for key, item in value.items())}}}"
    if isinstance(value, tuple):
        return f"({', '.join(str(_short(item)) for item in value)})"
    if isinstance(value, np.ndarray):
        return value_text(value) if value.ndim else value.item()
    return value.item() if isinstance(value, np.generic) else value
