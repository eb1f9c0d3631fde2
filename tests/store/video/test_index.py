"""The index of a video: its columns, values taken from the video, and errors."""

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from relive.errors import CorruptError, InvalidError, NotFoundError, UnsupportedError
from relive.store.video import FrameIndex, FrameReader, FrameTable, VideoSpec, write_index
from tests.processes import open_files
from tests.store.video.clips import STEP_NS, all_of, number_of, numbered, written

CLIP = numbered(24)


@pytest.fixture
def reader(tmp_path: Path) -> FrameReader:
    reader = written(tmp_path / "a.mp4", CLIP, VideoSpec())
    all_of(reader)  # loads the index before a test writes another
    return reader


def index_path(reader: FrameReader) -> Path:
    return reader.index.path


def test_columns_match_the_format(reader: FrameReader) -> None:
    table = pq.read_table(index_path(reader))
    assert table.column_names == ["ts_ns", "pts", "offset", "size", "keyframe", "crc32c"]
    assert table["ts_ns"].to_pylist() == [row * STEP_NS for row in range(24)]
    assert table["keyframe"].to_pylist() == [row % 10 == 0 for row in range(24)]
    assert table["pts"].to_pylist() == [row * STEP_NS // 1000 for row in range(24)]


def test_index_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "a.frames.parquet"
    times, offsets = np.array([1, 5, 9]), np.array([10, 20, 30])
    keys = np.array([True, False, False])
    video = {"init": "", "codec": "h264", "extradata": "", "width": 64, "height": 48}
    write_index(
        path,
        {"name": "cam", "shape": [47, 64, 3], "video": video},
        FrameTable(
            times,
            times * 1000,
            offsets,
            np.array([3, 4, 5]),
            keys,
            np.array([1, 2, 2**32 - 1]),
            np.array([False, False, True]),
        ),
        {"sensor": times + 1},
    )
    index = FrameIndex(path, tmp_path / "a.mp4")
    assert (len(index), index.first_ts, index.last_ts) == (3, 1, 9)
    assert index.timestamps.tolist() == [1, 5, 9]
    assert index.pts.tolist() == [1000, 5000, 9000]
    assert index.offsets.tolist() == [10, 20, 30]
    assert index.sizes.tolist() == [3, 4, 5]
    assert index.keys.tolist() == [True, False, False]
    assert index.clocks == ("sensor",)
    assert index.clock("sensor").tolist() == [2, 6, 10]
    assert index.crcs is not None
    assert index.crcs.tolist() == [1, 2, 2**32 - 1]
    assert index.disposables is not None
    assert index.disposables.tolist() == [False, False, True]
    assert index.shape == (47, 64, 3)
    assert index.meta["name"] == "cam"


def test_index_without_rows(tmp_path: Path) -> None:
    none = np.empty(0, np.int64)
    path = tmp_path / "a.frames.parquet"
    frames = FrameTable(none, none, none, none, none.astype(bool))
    write_index(path, {"shape": [48, 64, 3]}, frames)
    index = FrameIndex(path, tmp_path / "a.mp4")
    assert (len(index), index.first_ts, index.last_ts) == (0, None, None)
    assert index.timestamps.tolist() == []


def test_columns_of_different_lengths_raise(tmp_path: Path) -> None:
    some, keys = np.arange(3), np.ones(3, bool)
    with pytest.raises(InvalidError, match="the same length"):
        write_index(tmp_path / "a", {}, FrameTable(some, some, some, some[:2], keys))
    assert not (tmp_path / "a").exists()


def test_first_and_last_times_come_from_the_footer(reader: FrameReader) -> None:
    content = bytearray(index_path(reader).read_bytes())
    content[4:200] = bytes(196)  # where the columns begin
    index_path(reader).write_bytes(content)
    index = FrameIndex(index_path(reader), reader.path)
    assert (len(index), index.first_ts, index.last_ts) == (24, 0, 23 * STEP_NS)
    with pytest.raises(CorruptError, match=r"a\.frames\.parquet"):
        index.timestamps  # noqa: B018 - reading it is the test


def test_index_pickles_by_paths_and_holds_no_file(reader: FrameReader) -> None:
    before = open_files(reader.path.parent)
    some = [FrameIndex(index_path(reader), reader.path) for _ in range(20)]
    assert all(index.offsets[0] > 0 and index.last_ts for index in some)
    assert open_files(reader.path.parent) <= before
    data = pickle.dumps(some[0])
    assert len(data) < 1000
    again = pickle.loads(data)  # noqa: S301 - our own data
    assert again.offsets.tolist() == some[0].offsets.tolist()
    reader = pickle.loads(pickle.dumps(reader))  # noqa: S301 - our own data
    assert number_of(reader.frame(7)) == 7


def rewritten(reader: FrameReader, change: Callable[[pa.Table], pa.Table]) -> FrameReader:
    table = change(pq.read_table(index_path(reader)))
    pq.write_table(table, index_path(reader))
    return FrameReader(reader.path, FrameIndex(index_path(reader), reader.path))


@pytest.mark.parametrize("missing", [("pts",), ("offset", "size"), ("keyframe",), ("crc32c",)])
def test_missing_columns_come_from_the_video(reader: FrameReader, missing: list[str]) -> None:
    other = rewritten(reader, lambda table: table.drop_columns(list(missing)))
    assert other.index.offsets.tolist() == reader.index.offsets.tolist()
    assert other.index.keys.tolist() == reader.index.keys.tolist()
    assert np.array_equal(all_of(other), all_of(reader))


def test_index_with_only_times(reader: FrameReader) -> None:
    other = rewritten(reader, lambda table: table.select(["ts_ns"]).replace_schema_metadata())
    assert other.index.meta == {}
    assert other.index.shape == (48, 64, 3)
    assert other.index.sizes.tolist() == reader.index.sizes.tolist()
    assert np.array_equal(all_of(other), all_of(reader))


def test_extra_or_missing_row_raises(reader: FrameReader) -> None:
    for rows in (23, 25):
        table = pa.table({"ts_ns": pa.array(range(rows))})
        pq.write_table(table, index_path(reader))
        other = FrameReader(reader.path, FrameIndex(index_path(reader), reader.path))
        with pytest.raises(CorruptError, match=f"{rows} rows, but .*a.mp4. has 24 frames"):
            other.frame(0)


def changed(name: str, row: int, value: Any) -> Callable[[pa.Table], pa.Table]:
    def change(table: pa.Table) -> pa.Table:
        values = table[name].to_pylist()
        values[row] = value
        position = table.column_names.index(name)
        return table.set_column(position, name, pa.array(values))

    return change


@pytest.mark.parametrize(
    "change",
    [
        changed("offset", 5, -1),
        changed("offset", 5, 2**62 + 1),
        changed("size", 5, 0),
        changed("size", 5, 2**40),
        changed("pts", 5, 0),
        changed("keyframe", 0, value=False),
        changed("offset", 5, 0.5),
        changed("keyframe", 5, None),
        changed("keyframe", 5, 1),
    ],
)
def test_invalid_offsets_raise(reader: FrameReader, change: Callable[[pa.Table], pa.Table]) -> None:
    with pytest.raises((CorruptError, pa.ArrowInvalid)) as caught:
        rewritten(reader, change).frame(20)
    if caught.type is CorruptError:
        assert "a.frames.parquet" in str(caught.value)


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("width", 0),
        ("width", "64"),
        ("height", 1 << 20),
        ("codec", None),
        ("extradata", "!"),
        ("colorspace", "cmyk"),
    ],
)
def test_invalid_header_raises(
    tmp_path: Path, reader: FrameReader, part: str, value: object
) -> None:
    index = reader.index
    video = {**index.header, part: value}
    path = tmp_path / "b.frames.parquet"
    columns = (index.timestamps, index.pts, index.offsets, index.sizes, index.keys)
    write_index(path, {"shape": [48, 64, 3], "video": video}, FrameTable(*columns))
    with pytest.raises(CorruptError, match=r"b\.frames"):
        FrameReader(reader.path, FrameIndex(path, reader.path)).frame(3)


@pytest.mark.parametrize("shape", [[48, 65, 3], [0, 64, 3], [48, 64], "big", [48, 64, 4], None])
def test_shape_that_contradicts_the_video_raises(
    tmp_path: Path, reader: FrameReader, shape: object
) -> None:
    index = reader.index
    path = tmp_path / "b.frames.parquet"
    columns = (index.timestamps, index.pts, index.offsets, index.sizes, index.keys)
    write_index(path, {"shape": shape, "video": index.header}, FrameTable(*columns))
    with pytest.raises(CorruptError, match="shape"):
        FrameReader(reader.path, FrameIndex(path, reader.path)).frame(3)


def test_file_that_is_not_an_index_raises(tmp_path: Path, reader: FrameReader) -> None:
    video = reader.path
    with pytest.raises(NotFoundError):
        FrameIndex(tmp_path / "none.parquet", video)
    path = tmp_path / "b.parquet"
    path.write_bytes(b"nothing of the kind")
    with pytest.raises(CorruptError, match=r"b\.parquet"):
        FrameIndex(path, video)
    pq.write_table(pa.table({"time": [1, 2]}), path)
    with pytest.raises(CorruptError, match="ts_ns"):
        FrameIndex(path, video)
    for text, error in ((b'{"version": 2}', UnsupportedError), (b"[]", CorruptError)):
        table = pa.table({"ts_ns": [1, 2]}).replace_schema_metadata({b"relive": text})
        pq.write_table(table, path)
        with pytest.raises(error, match=r"b\.parquet"):
            FrameIndex(path, video)
