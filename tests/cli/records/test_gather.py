"""`relive records gather`: records as arrays, as a table and as JSON lines."""

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from relive.model.schema import Field
from relive.store.records import RecordStore
from tests.cli.conftest import Relive

FIELDS = {
    "state": Field("float32", (2,)),
    "path": Field("int16", ragged=True),
    "patch": Field("uint8", ragged=2),
    "caption": Field("str", codec="lz4"),
    "raw": Field("bytes"),
    "tags": Field("json"),
}


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Return a store of thirty records, the sixth of which has few values."""
    with RecordStore.create(tmp_path / "arm", FIELDS) as out:
        for step in range(30):
            out.append(
                {
                    "state": [step, 0.5],
                    "path": list(range(step % 4)),
                    "patch": np.full((step % 2, 3), step, np.uint8),
                    "caption": f"größer {step}",
                    "raw": bytes([step, 0]),
                    "tags": [step, None],
                }
            )
        out[5] = {"state": [5, 5]}
    return tmp_path / "arm"


def test_jsonl_in_the_requested_order(relive: Relive, store: Path) -> None:
    done = relive("records", "gather", store, "7,3,7,10:12,28:", "--fields", "state,caption")
    assert (done.status, done.err) == (0, "")
    lines = [json.loads(line) for line in done.out.splitlines()]
    assert [line["row"] for line in lines] == [7, 3, 7, 10, 11, 28, 29]
    assert lines[1] == {"row": 3, "state": [3.0, 0.5], "caption": "größer 3"}
    args = ("records", "gather", store, "5", "--json")
    assert relive(*args).json == [
        {"row": 5, "state": [5.0, 5.0], **dict.fromkeys(list(FIELDS)[1:])},
    ]
    assert len(relive("records", "gather", store, ":").out.splitlines()) == 30
    assert relive("records", "gather", store, "30:").out == ""


def test_npz_output(relive: Relive, store: Path, tmp_path: Path) -> None:
    out = tmp_path / "some.npz"
    done = relive("records", "gather", store, "3,5,6", "--output", out)
    assert (done.status, done.err) == (0, "")
    assert done.out.startswith(f"{out}: 3 records, ")
    with np.load(out) as found:
        assert found["state"].tolist() == [[3.0, 0.5], [5.0, 5.0], [6.0, 0.5]]
        assert found["path"].tolist() == [0, 1, 2, 0, 1]
        assert found["path.offsets"].tolist() == [0, 3, 3, 5]
        assert found["patch"].tolist() == [3, 3, 3]
        assert found["patch.shapes"].tolist() == [[1, 3], [0, 0], [0, 3]]
        assert found["caption"].tolist() == ["größer 3", "", "größer 6"]
        assert found["raw"].tolist() == [3, 0, 6, 0]
        assert found["raw.offsets"].tolist() == [0, 2, 2, 4]
        assert [json.loads(text) for text in found["tags"]] == [[3, None], None, [6, None]]
        assert found["caption.missing"].tolist() == [False, True, False]
        assert "state.missing" not in found


def test_npy_output(relive: Relive, store: Path, tmp_path: Path) -> None:
    out = tmp_path / "state.npy"
    args = ("records", "gather", store, "2:5", "--fields", "state", "--output", out)
    assert relive(*args, "--json").json == {
        "path": str(out), "records": 3, "file_bytes": out.stat().st_size,
    }  # fmt: skip
    assert np.load(out).tolist() == [[2.0, 0.5], [3.0, 0.5], [4.0, 0.5]]
    done = relive(*args)
    assert done.status == 1
    assert done.err.splitlines()[-1] == "hint: pass --overwrite to replace it"
    assert relive(*args, "--overwrite").status == 0
    for fields in ("state,path", "caption"):
        done = relive(
            "records", "gather", store, ":", "--fields", fields, "--output", tmp_path / "x.npy"
        )
        assert done.status == 1
        assert not (tmp_path / "x.npy").exists()


def test_parquet_output(relive: Relive, store: Path, tmp_path: Path) -> None:
    out = tmp_path / "some.parquet"
    assert relive("records", "gather", store, "4:7", "--output", out).status == 0
    table = pq.read_table(out)
    assert table["caption"].to_pylist() == ["größer 4", None, "größer 6"]
    assert table["path"].to_pylist() == [[], None, [0, 1]]


@pytest.mark.parametrize("suffix", [".npz", ".npy", ".parquet"])
def test_failed_write_leaves_nothing(
    relive: Relive, store: Path, tmp_path: Path, suffix: str
) -> None:
    args = ("records", "gather", store, ":", "--fields", "state", "--output")
    assert relive(*args, tmp_path / "no" / f"x{suffix}").status == 1
    (tmp_path / f"x{suffix}").write_text("mine")
    assert relive(*args, tmp_path / f"x{suffix}").status == 1
    assert (tmp_path / f"x{suffix}").read_text() == "mine"


def test_values_that_npz_cannot_represent_fail(relive: Relive, tmp_path: Path) -> None:
    fields = {"x": Field("uint8", ragged=True), "x.offsets": Field("uint8"), "t": Field("str")}
    with RecordStore.create(tmp_path / "s", fields) as out:
        out.append({"x": [1], "x.offsets": 1, "t": "ends in\0"})
    out_file = tmp_path / "x.npz"
    for names, word in (("x,x.offsets", "x.offsets"), ("t", "NUL")):
        done = relive(
            "records", "gather", tmp_path / "s", "0", "--fields", names, "--output", out_file
        )
        assert done.status == 1
        assert word in done.err
        assert not out_file.exists()


@pytest.mark.parametrize("rows", ["30", "29:31", "31:", "0,99"])
def test_rows_out_of_range_fail(relive: Relive, store: Path, rows: str) -> None:
    done = relive("records", "gather", store, rows)
    assert (done.status, done.out) == (1, "")
    assert "there are only 30 records" in done.err


@pytest.mark.parametrize(
    "args",
    [
        ["x"],
        ["1,,2"],
        ["5:2"],
        ["1:2:3"],
        ["1-2"],
        ["1", "--output", "x.csv"],
        ["1", "--fields", ","],
        [],
    ],
    ids=" ".join,
)
def test_invalid_arguments_fail(relive: Relive, store: Path, args: list[str]) -> None:
    done = relive("records", "gather", store, *args)
    assert (done.status, done.out) == (2, "")
    assert "error: " in done.err


def test_unknown_field_fails(relive: Relive, store: Path) -> None:
    for args in (("gather", store, "0"), ("head", store)):
        done = relive("records", *args, "--fields", "state,nope")
        assert (done.status, done.out) == (1, "")
        assert "'nope'" in done.err
