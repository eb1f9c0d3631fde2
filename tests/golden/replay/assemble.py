"""Creates the golden roots of runs, with their expected content.

`python -m tests.golden.replay.assemble` writes the missing roots next to this file, each as a zip
archive: a database in the working tree could be opened by accident, and opening changes it. Every
clock, uid and commit is fixed, so the same root can be made again. `closed` has complete runs.
`killed` has a run whose process was killed while it was recorded: the last commits are only in the
write-ahead log of SQLite. `closed-2` and `killed-2` are the same runs in tables of version 2.
Existing roots are never changed: runs that were readable once stay readable.
"""

import contextlib
import itertools
import os
import signal
import subprocess
import sys
import tempfile
import uuid
import zipfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import numpy.typing as npt

from relive.replay import ReplayRecorder
from relive.replay.config import ReplayConfig
from relive.replay.manage.runs import delete

FOLDER = Path(__file__).resolve().parent
NEWEST = "-2"
"""What the names of roots end with that the current writer makes."""
START = 1_700_000_000_000_000_000
TICK = 1_234_567
SMALL: MappingProxyType[str, Any] = MappingProxyType(
    # Only `flush()` commits, so that the same rows are always committed together.
    {"chunk_rows": 4, "flush_s": 86_400.0, "flush_steps": 1 << 30, "sync_episodes": False}
)
Array = npt.NDArray[Any]


class Step(NamedTuple):
    """The arguments of `step()`, and whether everything so far is committed after it."""

    arguments: dict[str, Any]
    commit: bool = True


def frame(row: int) -> Array:
    """Return a picture."""
    return np.arange(row, row + 8 * 6 * 3, dtype=np.uint8).reshape(8, 6, 3)


def plane(number: int) -> Array:
    """Return a plane of a stack."""
    return np.full((16, 16), number, np.uint8) + np.arange(16, dtype=np.uint8)


def stack(first: int, row: int, axis: int) -> Array:
    """Return a stack of planes, in an episode whose first plane is `first`."""
    return np.stack([plane(max(first, row - back)) for back in (3, 2, 1, 0)], axis=axis)


def nested(first: int, row: int) -> dict[str, Any]:
    """Return a nested observation: a stack, an array whose key has special characters, a tuple."""
    return {
        "image": stack(first, row, -1),
        "pose.x/y 100%": np.array([row, -row, np.nan], np.float32),
        "pair": (np.array([[row], [2]], np.int16), np.bool_(row % 2)),
        "empty": np.zeros((2, 0), np.float64),
    }


REWARDS = (1.5, None, float("nan"), float("-inf"), -0.0, 1e22, 0.1, 1e-07)


def interleaved() -> Iterator[Step]:
    """Two environments that step in turn; every field that a step can have."""
    firsts = {0: 0, 1: 100}
    for row in range(11):
        env = row % 2
        place = firsts[env] + row // 2
        ends = row in {4, 7}
        info: dict[str, Any] = {"lives": 3, "größe": [row, None, {"a": 0.5}], "\u2028": '"\n\x01'}
        if row in {5, 9}:
            info["map.1"] = np.full((33, 32), row, np.float32)  # over 4 KiB
        step = {
            "observation": None if row == 6 else nested(firsts[env], place),
            "action": row % 3,
            "reward": REWARDS[row % len(REWARDS)],
            "terminated": row == 4,
            "truncated": row == 7,
            "frame": None if row < 2 or row == 8 else frame(row),
            "info": None if row == 3 else info,
            "next_observation": nested(firsts[env], place + 1) if ends else None,
            "next_frame": frame(200) if row == 7 else None,
            "extras": {"logp": np.float64(-row / 3), "state": np.array([row, 1j * row], "c8")},
            "env": env,
        }
        if ends:
            firsts[env] += 50
        # The first commit makes the columns of every step, and the others have three rows.
        yield Step(step, row % 3 == 0 or row in {2, 5})


def agents() -> Iterator[Step]:
    """Two agents of one environment, which share the id of their episode; large actions."""
    for row in range(6):
        step = {
            "observation": np.array([row, row + 0.5, -row], np.float16),
            "action": {
                "move": np.arange(row, row + 40, dtype=np.int32),
                "grip": np.array(row / 4, np.float32),
            },
            "reward": float(row),
            "truncated": row >= 4,
            "agent_id": "ab"[row % 2],
            "step_index": (0, 0, 1, 2, 5, 5)[row],
        }
        yield Step(step, row != 1)


def stacks_first() -> Iterator[Step]:
    """Stacks along the first axis, and a vector of numbers as action; committed row by row."""
    for row in range(9):
        ends = row in {3, 8}
        first = 0 if row < 4 else 40
        step = {
            "observation": stack(first, first + row % 4, 0),
            "action": np.array([row / 8, -row], np.float32),
            "reward": row / 2,
            "terminated": ends,
            "frame": frame(row),
            "next_observation": stack(first, first + 4, 0) if row == 3 else None,
        }
        yield Step(step)


def unfinished() -> Iterator[Step]:
    """An episode that goes on when the process is killed: chunks, and rows that fill none."""
    for row in range(7):
        step = {
            "observation": {"image": stack(70, 70 + row, -1)},
            "action": 2.5 if row else None,
            "reward": 1.0,
            "frame": frame(row) if row != 2 else None,
            "info": {"row": row},
            "extras": {"logp": np.float64(row)},
        }
        yield Step(step, row in {0, 4, 6})


def make_closed(root: Path) -> None:
    """Record runs that are complete."""
    about: dict[str, Any] = {
        "env_id": "Golden-v1",
        "env_spec": {"id": "Golden-v1", "kwargs": {"größe": 2}},
        "spaces": {"observation": ["Dict"], "action": "Discrete(3)"},
        "seed": 7,
        "metadata": {"note": "größer"},
    }
    steps = list(interleaved())
    # Continuing a closed run replaces the chunks that were not full.
    first = {"episode_id": "first", "seed": 11, "metadata": {"größe": None}}
    record(root, "interleaved", steps[:6], [first], **about)
    record(root, "interleaved", steps[6:], **about)
    both = [{"episode_id": "both", "agent_id": agent} for agent in "ab"]
    record(root, "agents.gzip", agents(), both, codec="deflate:9")
    record(root, "stacks-raw", stacks_first(), codec="raw")
    record(root, "lz4_fields", stacks_first(), codec={"observations": "lz4", "*": "zstd:3"})
    with recorder_of(root, "empty") as recorder:
        recorder.begin_episode()
        recorder.end_episode()
    record(root, "scalars", stacks_first(), arrays=False)
    record(root, "removed", stacks_first())
    delete(root, "removed")


def make_killed(root: Path) -> None:
    """Record a run in a process that is killed."""
    code = "import sys; from tests.golden.replay import assemble; assemble.be_killed(sys.argv[1])"
    done = subprocess.run(
        [sys.executable, "-c", code, str(root)], cwd=FOLDER.parents[2], check=False
    )
    assert done.returncode == -signal.SIGKILL


def be_killed(root: str) -> None:
    """Record a run, and kill this process before it ends."""
    with fixed():
        # The first part is checkpointed, so that the log has only the second.
        record(Path(root), "killed", list(unfinished())[:3])
        recorder = recorder_of(Path(root), "killed")
        recorder.begin_episode("second", seed=3, metadata={"a": [1]})
        put(recorder, unfinished())
        os.kill(os.getpid(), signal.SIGKILL)


def recorder_of(root: Path, run_id: str, *, codec: Any = "zstd:1", **about: Any) -> ReplayRecorder:
    """Open a recorder without a live lane."""
    config = ReplayConfig(codec=codec, workers=1, **SMALL)
    return ReplayRecorder(root, run_id, config=config, live=None, **about)


def record(
    root: Path,
    run_id: str,
    steps: Iterable[Step],
    episodes: Iterable[dict[str, Any]] = (),
    **about: Any,
) -> None:
    """Record steps, after episodes were begun, and close the run."""
    with recorder_of(root, run_id, **about) as recorder:
        for episode in episodes:
            recorder.begin_episode(**episode)
        put(recorder, steps)


def put(recorder: ReplayRecorder, steps: Iterable[Step]) -> None:
    """Record steps."""
    for step in steps:
        recorder.step(**step.arguments)
        if step.commit:
            recorder.flush()


@contextlib.contextmanager
def fixed() -> Iterator[None]:
    """Make all that a recording depends on the same each time: times, uids, the state of git."""
    times = itertools.count(START, TICK)
    uids = (uuid.UUID(int=number) for number in itertools.count(1))
    values: dict[str, Callable[..., Any]] = {
        "now_ns": lambda: next(times),
        "git_state": lambda _: {"commit": "0" * 40, "branch": "main", "dirty": False},
    }
    with contextlib.ExitStack() as stack_:
        stack_.enter_context(mock.patch.object(uuid, "uuid4", side_effect=uids))
        for name, module in list(sys.modules.items()):
            if name.startswith("relive.replay"):
                for attribute in values.keys() & vars(module).keys():
                    stack_.enter_context(mock.patch.object(module, attribute, values[attribute]))
        yield


ROOTS: MappingProxyType[str, Callable[[Path], None]] = MappingProxyType(
    {"closed": make_closed, "killed": make_killed}
)


def make(name: str, root: Path) -> None:
    """Record one of the roots."""
    with fixed():
        ROOTS[name](root)


def pack(root: Path, archive: Path) -> None:
    """Write the files of a root to a zip archive, but not locks and shared memory."""
    with zipfile.ZipFile(archive, "w") as out:
        for path in sorted(root.rglob("*")):
            if path.suffix in {".h5", ".sqlite", ".sqlite-wal"}:
                member = zipfile.ZipInfo(path.relative_to(root).as_posix())
                out.writestr(member, path.read_bytes(), zipfile.ZIP_DEFLATED, 9)


def unpack(name: str, root: Path) -> Path:
    """Write a golden root to a directory, and return it."""
    with zipfile.ZipFile(FOLDER / f"{name}.zip") as archive:
        archive.extractall(root)
    return root


def main() -> None:
    """Write the missing roots next to this file."""
    for name in ROOTS:
        archive = FOLDER / f"{name}{NEWEST}.zip"
        if not archive.exists():
            with tempfile.TemporaryDirectory() as work:
                make(name, Path(work))
                pack(Path(work), archive)


if __name__ == "__main__":
    main()
