"""Statistics of runs, for `relive stats`."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from relive.cli.output import print_pairs, print_table
from relive.cli.progress import Progress

if TYPE_CHECKING:
    from relive.replay import ReplayRun

_AT_ONCE: Final = 1 << 16
_MOST_COUNTS: Final = 18
"""Actions with more different values are described by their range; Atari has 18."""
_NAMES: Final = ("items", "min", "max", "mean")


def run_stats(run: "ReplayRun") -> dict[str, Any]:
    """Return the returns and lengths of the episodes of a run, and its rewards and actions.

    An episode that is being recorded does not count; its steps do.
    """
    episodes = [episode.statics for episode in run.episodes]
    episodes = [each for each in episodes if each["status"] != "recording"]
    numbers: dict[str, _Numbers] = {"reward": _Numbers()}
    with Progress("reading", len(run)) as progress:
        for first in range(0, len(run), _AT_ONCE):
            rows = np.arange(first, min(first + _AT_ONCE, len(run)))
            for name, values in _values(run, rows):
                numbers.setdefault(name, _Numbers()).add(values)
            progress(int(rows[-1]) + 1)
    rewards = numbers.pop("reward")
    return {
        "run_id": run.run_id,
        "status": run.status,
        "episodes": len(episodes),
        "ended": dict(Counter(each["status"] for each in episodes)),
        "steps": len(run),
        "return": _summary([each["return"] for each in episodes]),
        "length": _summary([each["length"] for each in episodes]),
        "reward": rewards.summary(),
        "actions": {
            name: each.summary() | {"counts": each.counts} for name, each in numbers.items()
        },
    }


def print_run_stats(stats: Mapping[str, Any]) -> None:
    """Print the statistics of one run."""
    counted = {name: each for name, each in stats["actions"].items() if each["counts"]}
    print_pairs(
        [
            ("run", stats["run_id"]),
            ("status", stats["status"]),
            ("episodes", _episodes_text(stats)),
            ("steps", stats["steps"]),
            *((name, _counts_text(each)) for name, each in counted.items()),
        ]
    )
    rows = {name: stats[name] for name in ("return", "length", "reward")}
    rows |= {name: each for name, each in stats["actions"].items() if name not in counted}
    print_table(
        ("value", *_NAMES), [(name, *(each[key] for key in _NAMES)) for name, each in rows.items()]
    )


def stats_line(stats: Mapping[str, Any]) -> dict[str, Any]:
    """Return the statistics of a run as one line of a table."""
    return {
        "run": stats["run_id"],
        "episodes": stats["episodes"],
        "steps": stats["steps"],
        **{name: _span_text(stats[name]) for name in ("return", "length", "reward")},
        "actions": _actions_text(stats["actions"]),
    }


def _actions_text(actions: Mapping[str, Any]) -> str | None:
    texts = {
        name: _counts_text(each) if each["counts"] else _span_text(each)
        for name, each in actions.items()
    }
    if len(texts) <= 1:
        return next(iter(texts.values()), None)
    return "; ".join(f"{name} {text or '-'}" for name, text in texts.items())


def _values(run: "ReplayRun", rows: np.ndarray[Any, Any]) -> Iterator[tuple[str, Any]]:
    """Iterate over the rewards and the numbers of the actions of steps."""
    from relive.replay.storage.tables import STEP_COLUMNS

    fields = run.arrays.fields if run.source.columns else {}
    if "rewards" in fields:
        yield "reward", run.arrays.read("rewards", rows)
        for spec in fields.get("actions", ()):
            if np.dtype(spec.dtype).kind in "biuf":
                name = spec.name.replace("actions", "action", 1)
                valid = rows[run.arrays.are_valid("actions", rows)]
                yield name, run.arrays.read(spec.name, valid)
        return
    # A run without arrays: its actions are numbers, or texts that are left out.
    steps = [dict(zip(STEP_COLUMNS, step, strict=True)) for step in run.source.step_rows(rows)]
    for name in ("reward", "action"):
        values = [step[name] for step in steps if isinstance(step[name], int | float)]
        if values:
            yield name, np.array(values)


def _summary(values: Sequence[float]) -> dict[str, Any]:
    numbers = _Numbers()
    numbers.add(np.array(values))
    return numbers.summary()


def _episodes_text(stats: Mapping[str, Any]) -> str:
    ends = ", ".join(f"{count} {status}" for status, count in sorted(stats["ended"].items()))
    return f"{stats['episodes']}: {ends}" if ends else str(stats["episodes"])


def _span_text(numbers: Mapping[str, Any]) -> str | None:
    if not numbers["items"]:
        return None
    return f"{numbers['min']:.6g} to {numbers['max']:.6g}, mean {numbers['mean']:.6g}"


def _counts_text(numbers: Mapping[str, Any]) -> str:
    return ", ".join(f"{value}: {count}" for value, count in numbers["counts"].items())


class _Numbers:
    """Describes numbers that arrive in parts."""

    def __init__(self) -> None:
        self._items = 0
        self._least: float | None = None
        self._greatest: float | None = None
        self._sum = 0.0
        self._counts: Counter[int] | None = Counter()

    def add(self, values: np.ndarray[Any, Any]) -> None:
        """Add numbers; NaN is left out."""
        if values.dtype.kind != "f" and values.ndim == 1 and self._counts is not None:
            found, counts = np.unique(values, return_counts=True)
            self._counts.update(dict(zip(map(int, found), counts.tolist(), strict=True)))
        elif values.size:
            self._counts = None
        if values.dtype.kind == "f":
            values = values[~np.isnan(values)]
        if not values.size:
            return
        low, high = values.min().item(), values.max().item()
        self._least = low if self._least is None else min(self._least, low)
        self._greatest = high if self._greatest is None else max(self._greatest, high)
        self._items += values.size
        self._sum += float(values.sum(dtype=np.float64))

    def summary(self) -> dict[str, Any]:
        """Return the number of items, the least, the greatest and the mean."""
        mean = self._sum / self._items if self._items else None
        return dict(zip(_NAMES, (self._items, self._least, self._greatest, mean), strict=True))

    @property
    def counts(self) -> dict[int, int] | None:
        """How often each number occurs; None unless they are integers of few values."""
        found = self._counts
        return dict(sorted(found.items())) if found and len(found) <= _MOST_COUNTS else None
