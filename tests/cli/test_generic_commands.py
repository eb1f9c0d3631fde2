"""`relive info`, `head`, `validate` and `stats`, which accept anything that can be opened."""

from pathlib import Path

import numpy as np
import pytest

from relive import Field, PackWriter, RecordStore
from tests.cli.conftest import Relive
from tests.cli.recordings import START, STEPS, record
from tests.servers import FaultyServer


@pytest.fixture
def array(tmp_path: Path) -> Path:
    """Return a file of ten rows of three floats."""
    np.save(tmp_path / "a.npy", np.arange(30, dtype=np.float32).reshape(10, 3))
    return tmp_path / "a.npy"


def test_info(relive: Relive, pack: Path, array: Path) -> None:
    assert relive("info", array).out.splitlines() == [
        f"path        {array}",
        "kind        array",
        "files       1",
        "size        248 bytes",
        "rows        10",
        "field data  float32 (3,)",
    ]
    found = relive("info", pack, "--json").json
    assert (found["kind"], found["rows"], found["files"]) == ("pack", 3, 1)
    assert found["file_bytes"] == pack.stat().st_size
    assert found["fields"]["payload"] == {
        "dtype": "uint8", "shape": [], "ragged": 1, "codec": "raw", "level": None
    }  # fmt: skip


def test_head_of_an_array(relive: Relive, array: Path) -> None:
    assert relive("head", array, "-n", 2).out.splitlines() == [
        "row  data",
        "  0  [0, 1, 2]",
        "  1  [3, 4, 5]",
    ]
    assert len(relive("head", array).out.splitlines()) == 6
    assert len(relive("head", array, "--rows", 99).out.splitlines()) == 11
    assert relive("head", array, "-n", 1, "--json").json == [{"row": 0, "data": [0.0, 1.0, 2.0]}]


def test_head_of_large_rows_prints_their_shape(relive: Relive, tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros((2, 84, 84), np.uint8))
    assert relive("head", tmp_path / "a.npy").out.splitlines()[1] == "  0  uint8[84, 84]"


def test_head_of_an_empty_source(relive: Relive, tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros((0, 3)))
    done = relive("head", tmp_path / "a.npy")
    assert (done.status, done.out) == (0, "no rows\n")
    assert relive("head", tmp_path / "a.npy", "--json").json == []


def test_head_of_a_pack(relive: Relive, pack: Path) -> None:
    lines = relive("head", pack, "-n", 2).out.splitlines()
    assert lines[0].split() == [
        "entry", "kind", "name", "bytes", "steps", "highest_tile", "max_score", "engine",
    ]  # fmt: skip
    assert lines[2].split()[:3] == ["1", "v2", "a/two.a2run2"]
    assert len(lines) == 3
    assert [line["steps"] for line in relive("head", pack, "--json").json] == [3, 5, 4]


def test_stats(relive: Relive, pack: Path, array: Path) -> None:
    assert relive("stats", pack).out == relive("pack", "stats", pack).out
    assert relive("stats", array).out.splitlines() == [
        "rows  10",
        "field  items  min  max  mean",
        "data      30    0   29  14.5",
    ]
    assert relive("stats", array, "--json").json == {
        "rows": 10,
        "fields": {"data": {"items": 30, "min": 0.0, "max": 29.0, "mean": 14.5}},
    }


def test_stats_of_many_rows_and_of_none(relive: Relive, tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(1000))
    found = relive("stats", tmp_path / "a.npy", "--json").json["fields"]["data"]
    assert found == {"items": 1000, "min": 0, "max": 999, "mean": 499.5}
    np.save(tmp_path / "a.npy", np.zeros(0))
    found = relive("stats", tmp_path / "a.npy", "--json").json["fields"]["data"]
    assert found == {"items": 0, "min": None, "max": None, "mean": None}
    np.save(tmp_path / "a.npy", np.array(["text"]))
    assert relive("stats", tmp_path / "a.npy").out == "rows  1\n"


@pytest.mark.parametrize(("level", "read"), [("index", 0), ("sample", 10), ("full", 10)])
def test_validate_an_array(relive: Relive, array: Path, level: str, read: int) -> None:
    done = relive("validate", array, "--level", level)
    note = f"`{array}` has no checksums, so not all damage can be found\n"
    assert (done.status, done.err) == (0, note)
    assert done.out == f"{array}: ok ({level}, {read} rows read)\n"


def test_validate_a_truncated_array(relive: Relive, array: Path) -> None:
    array.write_bytes(array.read_bytes()[:-1])
    done = relive("validate", array)
    assert done.status == 1
    assert done.out.startswith(f"`{array}` is not a readable .npy file")
    found = relive("validate", array, "--json").json
    assert (found["ok"], found["problems"][0]["kind"]) == (False, "corrupt")


def test_validate_a_pack(relive: Relive, pack: Path) -> None:
    assert relive("validate", pack).out == relive("pack", "validate", pack).out
    pack.write_bytes(pack.read_bytes()[:-1])
    done = relive("validate", pack)
    assert done.status == 1
    assert done.out.splitlines()[-1] == f"{pack}: 1 problem (sample, 0 entries read)"


def test_validate_a_pack_without_checksums(relive: Relive, tmp_path: Path) -> None:
    path = tmp_path / "plain.a2pack"
    with PackWriter(path, checksum=False) as writer:
        writer.append(b"payload")
    done = relive("validate", path, "--level", "full")
    assert (done.status, done.out) == (0, f"{path}: ok (full, 1 entry read)\n")
    assert done.err == f"`{path}` has no checksums, so not all damage can be found\n"
    assert relive("validate", path, "--json").json["unchecked"] == [str(path)]


@pytest.fixture
def records(tmp_path: Path) -> Path:
    """Return a store of three records."""
    fields = {
        "x": Field("f4", (2,)),
        "n": Field("i4", codec="zstd"),
        "r": Field("i2", ragged=2),
        "t": Field("str"),
        "j": Field("json"),
    }
    with RecordStore.create(tmp_path / "s", fields) as store:
        store.extend({"x": np.arange(6).reshape(3, 2), "n": [1, 2, None], "t": ["a", "b", "c"]})
        store[2] = {"n": 5, "r": np.ones((1, 2), "i2"), "j": {"k": [1, None]}}
    return tmp_path / "s"


def test_record_store(relive: Relive, records: Path) -> None:
    files = [path for path in records.rglob("*") if path.is_file()]
    size = sum(path.stat().st_size for path in files)
    lines = relive("info", records).out.splitlines()
    assert lines[1].split() == ["kind", "records"]
    assert lines[2].split() == ["files", str(len(files))]
    assert [line.split(maxsplit=2)[2] for line in lines[5:]] == [
        "float32 (2,)", "int32 zstd", "int16 ragged 2", "str", "json"
    ]  # fmt: skip
    found = relive("info", records, "--json").json
    assert (found["kind"], found["rows"], found["file_bytes"]) == ("records", 3, size)
    assert found["fields"]["r"] == {
        "dtype": "int16", "shape": [], "ragged": 2, "codec": "raw", "level": None
    }  # fmt: skip
    assert relive("head", records, "--json").json[2] == {
        "row": 2, "x": None, "n": 5, "r": [[1, 1]], "t": None, "j": {"k": [1, None]}
    }  # fmt: skip
    assert len(relive("head", records).out.splitlines()) == 4
    assert relive("stats", records, "--json").json["fields"]["n"]["mean"] == 8 / 3
    done = relive("validate", records, "--level", "full")
    assert (done.status, done.out) == (0, f"{records}: ok (full, 3 records read)\n")
    assert relive("validate", records, "--json").json == {
        "level": "sample", "ok": True, "checked": {"records": 3}, "problems": [],
        "unfinished": [], "unchecked": [],
    }  # fmt: skip


def test_damaged_record_store(relive: Relive, records: Path) -> None:
    for chunk in (records / "chunk").glob("*.zr"):
        data = bytearray(chunk.read_bytes())
        data[4100] ^= 1
        chunk.write_bytes(data)
    done = relive("validate", records, "--level", "full")
    assert done.status == 1
    assert "problem" in done.out.splitlines()[-1]
    found = relive("validate", records, "--json").json
    assert (found["ok"], found["problems"][0]["kind"]) == (False, "corrupt")
    (records / "meta.json").write_text("{}")
    assert relive("validate", records).status == 1


@pytest.mark.parametrize("command", ["info", "head", "stats", "validate"])
def test_unrecognized_files_fail(relive: Relive, tmp_path: Path, command: str) -> None:
    (tmp_path / "a.txt").write_text("hello")
    for path in (tmp_path / "no.npy", tmp_path / "a.txt", tmp_path, tmp_path / "*.a2pack"):
        done = relive(command, path)
        assert done.status == 1
        assert not done.out
        assert done.err.startswith("error: ")
        assert "Traceback" not in done.err


@pytest.mark.needs("obstore")
def test_remote_pack(relive: Relive, pack: Path, tmp_path: Path) -> None:
    with FaultyServer({"runs.a2pack": pack.read_bytes()}) as server:
        url = f"{server.url}/runs.a2pack"
        found = relive("info", url, "--json").json
        assert (found["kind"], found["rows"], found["file_bytes"]) == ("pack", 3, None)
        assert relive("head", url).out == relive("head", pack).out
        assert relive("stats", url).out == relive("stats", pack).out
        assert relive("validate", url, "--level", "full").status == 0
        assert relive("pack", "inspect", url, "--index", 1).status == 0
        lines = relive("pack", "to-jsonl", url, "--output", "-").out
        assert lines == relive("pack", "to-jsonl", pack, "--output", "-").out
        assert relive("pack", "extract", url, "--output", tmp_path / "out").status == 0
        assert relive("pack", "merge", url, "--output", tmp_path / "copy.a2pack").status == 0
        done = relive("info", f"{server.url}/no.a2pack")
        assert done.status == 1
        assert done.err.startswith("error: ")


@pytest.mark.needs("av")
def test_single_signal(relive: Relive, tmp_path: Path) -> None:
    folder = record(tmp_path / "kitchen", 1) / "000000000000" / "000000000000"
    q, camera = folder / "q.parquet", folder / "cam.mp4"
    found = relive("info", q, "--json").json
    assert (found["kind"], found["files"]) == ("signal", 1)
    assert found["signals"]["q"]["rows"] == STEPS
    assert found["attrs"] == {"names": ["shoulder", "elbow"], "unit": "rad"}
    out = relive("info", camera).out
    assert "signal cam  image uint8 (32, 48, 3), 5 records" in out
    assert "files       2" in out
    (line,) = relive("head", q, "-n", 1, "--json").json
    assert line == {"signal": "q", "row": 0, "ts_ns": START, "value": [0.0, 1.0]}
    assert "uint8[32, 48, 3]" in relive("head", camera).out
    assert relive("stats", q, "--json").json["signals"]["q"]["max"] == pytest.approx(3.9)
    done = relive("validate", camera, "--level", "full")
    assert (done.status, done.out) == (0, f"{camera}: ok (full, 1 signal read)\n")
    q.write_bytes(q.read_bytes()[:-9])
    assert relive("validate", q).status == 1
    assert relive("info", q).status == 1
