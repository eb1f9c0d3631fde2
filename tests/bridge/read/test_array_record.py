"""ArrayRecord files are converted to record stores."""

from pathlib import Path

import numpy as np
import pytest

from relive.bridge import convert
from relive.errors import CorruptError, NotFoundError
from relive.model.schema import Field
from tests.bridge.sample_files import contents, example

array_record = pytest.importorskip("array_record.python.array_record_module")


def write_records(path: Path, records: list[bytes], options: str = "group_size:1") -> Path:
    writer = array_record.ArrayRecordWriter(str(path), options)
    for record in records:
        writer.write(record)
    writer.close()
    return path


@pytest.mark.parametrize("options", ["group_size:1", "group_size:7,zstd:3"])
def test_array_record_records(tmp_path: Path, options: str) -> None:
    records = [f"record {number}".encode() * (number % 5) for number in range(600)]
    write_records(tmp_path / "a.array_record", records[:250], options)
    write_records(tmp_path / "b.array_record", records[250:], options)
    made = convert(tmp_path / "*.array_record", tmp_path / "store", batch=100)
    assert made.fields == {"record": Field("bytes")}
    assert [row["record"] for row in contents(made.path)] == records


def test_array_record_with_examples_or_a_decode_function(tmp_path: Path) -> None:
    records = [example({"x": [float(number)] * 2, "y": [number]}) for number in range(3)]
    path = write_records(tmp_path / "train.array_record-00000-of-00001", records)
    made = convert(path, tmp_path / "store", decode="example")
    assert made.fields == {"x": Field(np.float32, (2,)), "y": Field(np.int64)}
    assert contents(made.path)[2] == {"x": [2.0, 2.0], "y": 2}
    made = convert(path, tmp_path / "lengths", decode=lambda data: {"size": len(data)}, workers=3)
    assert [row["size"] for row in contents(made.path)] == [len(record) for record in records]


def test_damaged_array_record_files_raise(tmp_path: Path) -> None:
    path = write_records(tmp_path / "a.array_record", [bytes(100)] * 50)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(CorruptError, match=r"a\.array_record"):
        convert(path, tmp_path / "store")
    path.write_bytes(b"")
    with pytest.raises(CorruptError, match=r"a\.array_record"):
        convert(path, tmp_path / "store")
    with pytest.raises(NotFoundError):
        convert(tmp_path / "no.array_record", tmp_path / "store")
    assert [item.name for item in tmp_path.iterdir()] == ["a.array_record"]
