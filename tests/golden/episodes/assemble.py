"""Creates the golden datasets of episodes, with their expected content.

`python -m tests.golden.episodes.assemble` writes the missing episodes next to this file. In
`root` there is one in the original format, by hand, and two with the current writer, the second
of which is a copy of a part of the first. `checked` has an episode and edits with checksums.
Existing episodes are never changed: files that were readable once stay readable.
"""

import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from relive.episodes import LocalDataset, LocalDatasetWriter, VideoSpec, copy
from tests.episodes.by_hand import episode_path, list_files, write_episode, write_video

if TYPE_CHECKING:
    from collections.abc import Callable

FOLDER = Path(__file__).resolve().parent / "root"
CHECKED = FOLDER.with_name("checked")
ROWS, STEP = 23, 33_333_333
START = 1_700_000_000_000_000_000
TIMES = [START + STEP * row for row in range(ROWS)]
FIRST = 13
"""The first row of the part, which is in the middle of a group of ten frames."""
SEED_STATICS = {"task": "pick", "id": 123, "nested": {"a": [1, None, 2.5]}}
STATICS = {
    "task": "größer",
    "none": None,
    "key": b"\x00\xff",
    "escaped": {"$bytes": 1, "$$bytes": [b"", True]},
}
SHAPE = (17, 31, 3)
"""Of pictures: odd, so that they are padded to be coded."""


def value(name: str, row: int) -> Any:
    """Return the expected value of signal `name` in a row."""
    make: Callable[[], Any] = {
        "/arm/state": lambda: np.array([row, -row, np.nan, 1 / (row + 1)], dtype=np.float32),
        "depth": lambda: np.full((48, 64), 1000 + row, dtype=np.uint16),
        "grid": lambda: np.arange(6, dtype=np.int8).reshape(2, 3) + np.int8(row),
        "half": lambda: np.array([row / 8], dtype=np.float16),
        "nothing": lambda: np.empty((2, 0), dtype=np.float64),
        "on": lambda: row % 3 == 0,
        "count": lambda: row - 2**62,
        "note.frames": lambda: f"größe {row}\n",
        ".hidden 100%": lambda: row / 4,
        "exact": lambda: picture(row),
        "cam": lambda: picture(row),
        "state": lambda: np.array([row, row + 0.5]),
        "grip": lambda: row % 2,
    }[name]
    return make()


SEED_SIGNALS = ("state", "grip", "cam")
CLOCKED = ("/arm/state", "cam")
"""The signals with a further clock, `sensor`."""
VIDEO = ("cam", "exact")
SIGNALS = (
    *("/arm/state", "depth", "grid", "half", "nothing", "on", "count", "note.frames"),
    *(".hidden 100%", *VIDEO),
)
ATTRS: dict[str, Any] = {"names": ["a", "b", "c", "d"], "unit": "rad", "of": {"arm": 1}}


def picture(row: int) -> npt.NDArray[np.uint8]:
    """Return a smooth moving image."""
    rows, columns = np.mgrid[: SHAPE[0], : SHAPE[1]]
    parts = [128 + 90 * np.sin((rows * k + columns + 2 * row) / 9) for k in (1, 2, 3)]
    return np.stack(parts, axis=2).astype(np.uint8)


def seed(folder: Path) -> None:
    """Write an episode in the original format."""
    records = {
        name: [(value(name, row), TIMES[row]) for row in range(ROWS)] for name in ("state", "grip")
    }
    write_episode(folder, records, SEED_STATICS, created=START)
    frames = np.stack([np.pad(picture(row), ((0, 1), (0, 1), (0, 0))) for row in range(ROWS)])
    write_video(folder, "cam", frames, TIMES)


def ours(root: Path) -> None:
    """Record an episode with every kind of signal."""
    writer = LocalDatasetWriter(root, signals={"exact": VideoSpec(profile="lossless")})
    with writer.new_episode(uid="0" * 31 + "1", created_ts_ns=START) as episode:
        episode.describe("/arm/state", **ATTRS)
        for name, static in STATICS.items():
            episode.set_static(name, static)
        for row in range(ROWS):
            for name in SIGNALS:
                clocks = {"sensor": 10 * row} if name in CLOCKED else None
                episode.append(name, value(name, row), TIMES[row], clocks=clocks)


def part(root: Path) -> None:
    """Copy the end of the recorded episode, starting within a group of frames."""
    dataset = LocalDataset(root, edits=False)
    uid = "0" * 31 + "1"
    with tempfile.TemporaryDirectory() as work:
        whole, segment = Path(work, "whole"), Path(work, "segment")
        copy(dataset.by_uid(uid), whole)
        again = LocalDataset(whole)
        again.edits.cut(uid, TIMES[FIRST])
        again.refresh()
        copy(again[1], segment)
        shutil.copytree(episode_path(segment, 0), episode_path(root, 2))


EDITS: list[dict[str, Any]] = [
    {"op": "set_static", "uid": f"ts-{START}", "name": "task", "value": {"$bytes": "AA=="}},
    {"op": "trim", "uid": f"ts-{START}", "start": TIMES[2], "stop": None},
    {"op": "cut", "uid": f"ts-{START}", "ts": TIMES[5]},
    {"op": "trim", "uid": f"ts-{START}#1", "start": None, "stop": TIMES[9]},
    {"op": "drop", "uid": f"ts-{START}#0"},
    {"op": "drop", "uid": f"ts-{START}#1"},
    {"op": "undrop", "uid": f"ts-{START}#0"},
    {"op": "drop", "uid": "nobody"},
]


def assemble(root: Path) -> None:
    """Write the missing episodes of a root."""
    made: list[Callable[[], None]] = [
        lambda: seed(episode_path(root, 0)),
        lambda: ours(root),
        lambda: part(root),
    ]
    for number, make in enumerate(made):
        if not episode_path(root, number).exists():
            make()
    if not (root / "edits.jsonl").exists():
        lines = [json.dumps(edit | {"at_ns": START}) for edit in EDITS]
        (root / "edits.jsonl").write_text("\n".join(lines) + '\n{"op": "drop", "uid": "cut of')


def assemble_checked(root: Path) -> None:
    """Write an episode and edits with checksums, unless they exist."""
    if not root.exists():
        ours(root)
        dataset = LocalDataset(root)
        uid = dataset.uids[0]
        dataset.edits.set_static(uid, "task", b"\x00")
        dataset.edits.trim(uid, None, TIMES[9])


def main() -> None:
    """Write the missing episodes next to this file."""
    FOLDER.mkdir(exist_ok=True)
    there = set(FOLDER.parent.rglob("meta.json"))
    os.chdir(tempfile.gettempdir())  # so that no git commit is recorded
    assemble(FOLDER)
    assemble_checked(CHECKED)
    for path in set(FOLDER.parent.rglob("meta.json")) - there:
        meta = json.loads(path.read_text())
        meta["writer"]["platform"] = "any"
        path.write_text(json.dumps(meta, indent=1))
        list_files(path.parent)


if __name__ == "__main__":
    main()
