"""Opens writers of every part on a disk that is full, with little room or without free inodes.

`python full_at_open.py FOLDER` mounts small disks in memory over FOLDER, which takes the right to
mount. Each writer works or fails with a `StorageError`. Prints how many failed.

With `RELIVE_KILLS=all` (`make faults`) with more and less room.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa

import relive
from relive.errors import StorageError
from relive.replay import ReplayRecorder, ReplayRun, TelemetryStore

SIZE: Final = 2 << 20
INODES: Final = 120
IS_LONG: Final = os.environ.get("RELIVE_KILLS") == "all"
ROOMS: Final = (0, 4096, 16_384, 36_864, 45_056, 65_536, 131_072) if IS_LONG else (0, 45_056)
FREE_INODES: Final = (0, 1, 2, 3, 4, 6, 9) if IS_LONG else (1,)
FRAME: Final = np.zeros((16, 16, 3), np.uint8)


def pack(folder: Path) -> None:
    with relive.PackWriter(folder / "a.a2pack") as writer:
        writer.append(b"x")


def store(folder: Path) -> None:
    with relive.RecordStore.create(folder / "store", {"a": relive.Field("str")}) as writer:
        writer.append({"a": "x"})


def again(folder: Path) -> None:
    with relive.RecordStore.open(folder / "old" / "store", "a") as writer:
        writer.append({"a": "x"})


def episode(folder: Path) -> None:
    with relive.LocalDatasetWriter(folder / "episodes").new_episode() as writer:
        writer.append("q", FRAME[0, 0] / 2, 1)


def run(folder: Path) -> None:
    with ReplayRecorder(folder / "runs", "run", live=None) as recorder:
        recorder.step([1.0])


def continued(folder: Path) -> None:
    with ReplayRecorder(folder / "old" / "runs", "run", live=None) as recorder:
        recorder.step([1.0])


def read(folder: Path) -> None:
    run = ReplayRun(folder / "old" / "runs", "run")
    assert run.read("observations", [0]).tolist() == [[1.0]]


def telemetry(folder: Path) -> None:
    TelemetryStore(folder / "telemetry").close()


def publish(folder: Path) -> None:
    builder = relive.DatasetBuilder("ws/d", root=folder / "root")
    builder.add_table("main", pa.table({"x": [1, 2, 3]}))
    builder.publish()


def convert(folder: Path) -> None:
    relive.convert(folder / "old" / "rows.npy", folder / "converted", to="records")


WRITERS: Final = (
    *(pack, store, again, episode, run, continued, read, telemetry, publish, convert),
)


def make_old(folder: Path) -> None:
    """Make what is continued and read."""
    (folder / "old").mkdir()
    store(folder / "old")
    run(folder / "old")
    np.save(folder / "old" / "rows.npy", np.zeros((3, 2)))


def fills_bytes(folder: Path, room: int) -> None:
    """Leave so many bytes."""
    (folder / "ballast").write_bytes(bytes(max(0, shutil.disk_usage(folder).free - room)))


def fills_inodes(folder: Path, room: int) -> None:
    """Leave so many inodes."""
    (folder / "ballast").mkdir()
    for number in range(os.statvfs(folder).f_ffree - room):
        (folder / "ballast" / str(number)).touch()


def fails(writer: Callable[[Path], None], folder: Path) -> bool:
    """Return whether a writer fails as it should."""
    try:
        writer(folder)
    except StorageError:
        return True
    return False


def main(folder: Path) -> None:
    """Do it."""
    failed = 0
    for options, fill, rooms in (
        (f"size={SIZE}", fills_bytes, ROOMS),
        (f"size={SIZE},nr_inodes={INODES}", fills_inodes, FREE_INODES),
    ):
        tmpfs = ["mount", "-t", "tmpfs", "-o", options, "none", str(folder)]
        subprocess.run(tmpfs, check=True)
        for writer in WRITERS:
            for room in rooms:
                for path in folder.iterdir():
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
                make_old(folder)
                fill(folder, room)
                failed += fails(writer, folder)
    sys.stdout.write(f"{failed}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
