"""Damaged footers of Parquet files raise, where Arrow would abort the process."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet as pq

from relive.errors import CorruptError
from relive.store.signal.meta import SignalMeta
from relive.store.signal.parquet_reader import ColumnsFile
from relive.store.signal.parquet_writer import ColumnsWriter

# Arrow ends the process when it reads some damaged statistics.
SCRIPT = """
import sys
from pathlib import Path
from relive.errors import ReliveError
from relive.store.signal.parquet_reader import ColumnsFile

def bounds(path):
    if "frames" not in path.name:
        file = ColumnsFile(path)
        return file.rows and (file.start_ts, file.last_ts)
    from relive.store.video import FrameIndex
    index = FrameIndex(path, path.with_name("none.mp4"))
    return index.first_ts, index.last_ts

path = Path(sys.argv[1])
whole = path.read_bytes()
length = int.from_bytes(whole[-8:-4], "little")
errors_found = 0
for offset in range(len(whole) - 8 - length, len(whole) - 8):
    for bit in (1, 4, 64):
        data = bytearray(whole)
        data[offset] ^= bit
        path.write_bytes(data)
        try:
            bounds(path)
        except ReliveError:
            errors_found += 1
print(errors_found)
"""


@pytest.mark.parametrize(
    ("name", "columns"),
    [
        ("a.parquet", {"timestamp": range(5), "value": [1.0] * 5}),
        pytest.param("a.frames.parquet", {"ts_ns": range(5)}, marks=pytest.mark.needs("av")),
    ],
)
def test_damage_never_crashes_the_process(
    tmp_path: Path, name: str, columns: dict[str, Any]
) -> None:
    pq.write_table(pa.table(columns), tmp_path / name)
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, tmp_path / name], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert int(done.stdout) > 100


def test_columns_footer_contains_the_times(tmp_path: Path) -> None:
    writer = ColumnsWriter(tmp_path / "a.parquet", SignalMeta("a", "scalar", "float64"))
    writer.write(np.array([5, 9]), np.array([1.0, 2.0]), {})
    writer.close()
    assert pq.read_metadata(tmp_path / "a.parquet").metadata[b"relive.span"] == b"[2, 5, 9]"
    file = ColumnsFile(tmp_path / "a.parquet")
    assert (file.start_ts, file.last_ts) == (5, 9)


@pytest.mark.needs("av")
def test_index_footer_contains_the_times(tmp_path: Path) -> None:
    from relive.store.video import FrameIndex, FrameTable, write_index

    path = tmp_path / "a.frames.parquet"
    three = np.arange(3)
    keys = np.array([True, False, False])
    frames = FrameTable(10 * three + 7, three, three, three + 1, keys)
    write_index(path, {"name": "a"}, frames)
    assert pq.read_metadata(path).metadata[b"relive.span"] == b"[3, 7, 27]"
    index = FrameIndex(path, tmp_path / "a.mp4")
    assert (index.first_ts, index.last_ts) == (7, 27)
    none = np.empty(0, np.int64)
    write_index(path, {"name": "a"}, FrameTable(none, none, none, none, none.astype(bool)))
    assert pq.read_metadata(path).metadata[b"relive.span"] == b"[0, null, null]"
    assert FrameIndex(path, tmp_path / "a.mp4").first_ts is None


@pytest.mark.needs("av")
@pytest.mark.parametrize("span", ["[2, 7, 27]", "[3, 7]", "7", "no", "[3, 7, null]"])
def test_footer_that_contradicts_the_columns_is_corrupt(tmp_path: Path, span: str) -> None:
    from relive.store.video import FrameIndex

    table = pa.table({"ts_ns": pa.array([7, 17, 27])})
    path = tmp_path / "a.frames.parquet"
    kept = {"relive": '{"version": 1}', "relive.span": span}
    pq.write_table(table.replace_schema_metadata(kept), path)
    with pytest.raises(CorruptError, match=r"a\.frames\.parquet"):
        FrameIndex(path, tmp_path / "a.mp4")
