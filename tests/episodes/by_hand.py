"""Episodes as other programs write them, created with pyarrow and json only."""

import json
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from relive.episodes.file_list import write_file_list

CREATED = 1_700_000_000_000_000_000
Records = list[tuple[Any, int]]


def write_signal(folder: Path, stem: str, records: Records) -> None:
    """Write the two columns of a scalar or vector signal."""
    values = [value.tolist() if isinstance(value, np.ndarray) else value for value, _ in records]
    table = pa.table(
        {
            "timestamp": pa.array([ts for _, ts in records], pa.int64()),
            "value": pa.array(values) if values else pa.array([], pa.float64()),
        }
    )
    pq.write_table(table, folder / f"{stem}.parquet")


def write_video(folder: Path, stem: str, frames: npt.NDArray[np.uint8], times: list[int]) -> None:
    """Write a movie with an ordinary muxer, and an index of times only."""
    import av

    with av.open(folder / f"{stem}.mp4", "w") as movie:
        stream = movie.add_stream("libx264", rate=100, options={"g": "30", "bf": "0", "crf": "10"})
        stream.height, stream.width = frames.shape[1:3]
        stream.pix_fmt = "yuv420p"
        for number, frame in enumerate(frames):
            picture = av.VideoFrame.from_ndarray(np.ascontiguousarray(frame), format="rgb24")
            picture.pts, picture.time_base = number, Fraction(1, 100)
            movie.mux(stream.encode(picture))
        movie.mux(stream.encode(None))
    pq.write_table(
        pa.table({"ts_ns": pa.array(times, pa.int64())}), folder / f"{stem}.frames.parquet"
    )


def write_episode(
    folder: Path,
    signals: Mapping[str, Records],
    statics: Mapping[str, Any] | None = None,
    *,
    created: int = CREATED,
    **meta: Any,
) -> Path:
    """Write an episode in the original format, with optional extra metadata."""
    folder.mkdir(parents=True)
    about = {
        "schema_version": 1,
        "created_ts_ns": created,
        "writer": {"name": "by.hand", "version": None, "python": "3.11", "platform": "here"},
    }
    (folder / "meta.json").write_text(json.dumps(about | meta))
    (folder / "static.json").write_text(json.dumps(dict(statics or {})))
    for stem, records in signals.items():
        write_signal(folder, stem, records)
    return folder


def list_files(folder: Path) -> None:
    """Write the digests of the files in an episode, after a test has changed them."""
    write_file_list(folder, {})


def episode_path(root: Path, number: int) -> Path:
    """Return the path of an episode by its number."""
    return root / f"{number // 1000 * 1000:012d}" / f"{number:012d}"


def write_root(root: Path, count: int, **signals: Records) -> Path:
    """Write episodes `u0`, `u1` … with the static `number` and the same signals."""
    root.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        write_episode(episode_path(root, number), signals, {"number": number}, uid=f"u{number}")
    return root
