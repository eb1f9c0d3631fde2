"""`relive records info`, `head`, `validate` and `rebalance`."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from relive.model.schema import Field
from relive.store.records import RecordStore
from tests.cli.conftest import Relive

FIELDS = {
    "image": Field("uint8", (4, 4, 3)),
    "state": Field("float32", (2,)),
    "path": Field("float32", (2,), ragged=True),
    "patch": Field("int16", ragged=2),
    "caption": Field("str", codec="zstd", level=5),
    "raw": Field("bytes"),
    "tags": Field("json"),
}


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Return a store of ten records, some of them changed or missing values."""
    with RecordStore.create(tmp_path / "arm", FIELDS) as out:
        for step in range(12):
            out.append(
                {
                    "image": np.full((4, 4, 3), step, np.uint8),
                    "state": [step, np.nan if step == 4 else 0.5],
                    "path": np.full((step % 3, 2), step, np.float32),
                    "patch": np.full((step % 2, 3), step, np.int16),
                    "caption": f"step {step}",
                    "raw": bytes([step]) * step,
                    "tags": {"step": step},
                }
            )
        out[2] = {"state": [20.0, 20.0]}
        out.delete([10, 11])
    return tmp_path / "arm"


def test_info(relive: Relive, store: Path) -> None:
    done = relive("records", "info", store)
    assert (done.status, done.err) == (0, "")
    lines = done.out.splitlines()
    assert lines[0] == f"path        {store}"
    assert lines[1:3] == ["records     10", "generation  1"]
    assert "written by  no process" in lines
    assert "rebalance   none in progress" in lines
    table = {line.split()[0]: line.split()[1:] for line in lines[lines.index("") + 2 :]}
    assert table["image"] == ["uint8", "4", "x", "4", "x", "3", "raw", "-"]
    assert table["patch"] == ["int16", "any", "x", "any", "raw", "-"]
    assert table["caption"] == ["str", "-", "zstd", "5"]


def test_info_as_json(relive: Relive, store: Path) -> None:
    found = relive("records", "info", store, "--json").json
    files = [path for path in store.rglob("*") if path.is_file()]
    assert found["records"] == 10
    assert found["file_bytes"] == sum(path.stat().st_size for path in files)
    chunks = [path for path in files if path.parent.name == "chunk"]
    assert found["stored_bytes"] == sum(path.stat().st_size for path in chunks)
    assert 0 < found["live_bytes"] < found["stored_bytes"]
    # Each record has seven values, except the replaced one, which has one.
    assert found["utilization"] == pytest.approx((9 * 7 + 1) / (12 * 7 + 1))
    assert (found["writer"], found["unfinished_rebalance"]) == (None, False)
    assert found["fields"]["path"] == {
        "dtype": "float32", "shape": [2], "ragged": 1, "codec": "raw", "level": None,
    }  # fmt: skip


def test_info_shows_the_writer_and_flushed_records(relive: Relive, store: Path) -> None:
    with RecordStore.open(store, mode="a") as out:
        out.append({"caption": "unflushed"})
        assert relive("records", "info", store, "--json").json["records"] == 10
        out.flush()
        found = relive("records", "info", store, "--json").json
        assert (found["records"], found["writer"]) == (11, os.getpid())
        done = relive("records", "info", store)
        assert f"written by  process {os.getpid()}\n" in done.out
        done = relive("records", "rebalance", store)
        assert done.status == 1
        assert str(os.getpid()) in done.err
    assert relive("records", "info", store, "--json").json["writer"] is None
    RecordStore.open(store, mode="a").close()  # reading the information does not keep the lock


def test_head(relive: Relive, store: Path) -> None:
    lines = relive("records", "head", store, "-n", 3).out.splitlines()
    assert lines[0].split() == ["row", *FIELDS]
    assert lines[2].split("  ")[1:3] == ["1", "uint8[4, 4, 3]"]
    assert lines[3].split() == ["2", "-", "[20,", "20]", "-", "-", "-", "-", "-"]
    args = ("records", "head", store, "--rows", 2, "--fields", "caption,state")
    assert relive(*args).out.splitlines() == [
        "row  caption  state",
        "  0  step 0   [0, 0.5]",
        "  1  step 1   [1, 0.5]",
    ]
    found = relive("records", "head", store, "--json").json
    assert len(found) == 5
    assert found[4]["state"] == [4.0, None]  # NaN
    assert found[2]["caption"] is None
    assert (found[3]["raw"], found[3]["tags"]) == ("030303", {"step": 3})
    assert found[3]["patch"] == [[3, 3, 3]]


def test_head_of_an_empty_store(relive: Relive, tmp_path: Path) -> None:
    RecordStore.create(tmp_path / "x", FIELDS).close()
    done = relive("records", "head", tmp_path / "x")
    assert (done.status, done.out) == (0, "no records\n")
    assert relive("records", "head", tmp_path / "x", "--json").json == []


def test_values_cannot_send_terminal_codes(relive: Relive, tmp_path: Path) -> None:
    with RecordStore.create(tmp_path / "x", {"\x1b[2J": Field("str")}) as out:
        out.append({"\x1b[2J": "\x1b[3J"})
    for command in ("info", "head"):
        assert "\x1b" not in relive("records", command, tmp_path / "x").out


@pytest.mark.parametrize("level", ["index", "sample", "full"])
def test_undamaged_store_is_valid(relive: Relive, store: Path, level: str) -> None:
    done = relive("records", "validate", store, "--level", level)
    assert (done.status, done.err) == (0, "")
    assert done.out.startswith(f"{store}: ok ({level}, ")
    assert relive("validate", store, "--level", level).out == done.out
    found = relive("records", "validate", store, "--level", level, "--json").json
    assert (found["ok"], found["problems"]) == (True, [])


def test_damage_is_found_and_named(relive: Relive, store: Path) -> None:
    chunk = max((store / "chunk").glob("*.zr"), key=lambda path: path.stat().st_size)
    data = bytearray(chunk.read_bytes())
    data[-1] ^= 1
    chunk.write_bytes(data)
    done = relive("records", "validate", store, "--level", "full")
    assert (done.status, done.err) == (1, "")
    *problems, last = done.out.splitlines()
    assert problems
    assert all(chunk.name in line for line in problems)
    assert last.startswith(f"{store}: {len(problems)} problem")
    found = relive("records", "validate", store, "--level", "full", "--json").json
    assert found["ok"] is False
    assert {problem["kind"] for problem in found["problems"]} == {"corrupt"}


def test_validate_a_store_that_cannot_be_opened(relive: Relive, store: Path) -> None:
    (store / "meta.json").write_bytes((store / "meta.json").read_bytes()[:-9])
    assert relive("records", "info", store).status == 1
    done = relive("records", "validate", store)
    assert (done.status, done.err) == (1, "")
    assert "meta.json" in done.out


def test_rebalance(relive: Relive, store: Path) -> None:
    before = relive("records", "gather", store, ":").out
    done = relive("records", "rebalance", store)
    assert (done.status, done.err) == (0, "")
    assert done.out.startswith(f"{store}: 10 records, ")
    assert done.out.endswith(" now\n")
    found = relive("records", "rebalance", store, "--recompress", "--json").json
    files = [path for path in store.rglob("*") if path.is_file()]
    assert found["file_bytes"] == sum(path.stat().st_size for path in files)
    assert (found["records"], found["resumed_from"]) == (10, 0)
    assert relive("records", "gather", store, ":").out == before
    assert relive("records", "info", store, "--json").json["generation"] > 1


def test_interrupted_rebalance_is_reported_and_finished(
    relive: Relive, store: Path, tmp_path: Path
) -> None:
    before = relive("records", "gather", store, ":").out

    def stop(done: int, _: int | None) -> None:
        if done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), RecordStore.open(store, mode="a") as out:
        out.rebalance(progress=stop)
    found = relive("records", "info", store, "--json").json
    assert (found["unfinished_rebalance"], found["live_bytes"]) == (True, None)
    assert "rebalance   interrupted; " in relive("records", "info", store).out
    shutil.copytree(store, tmp_path / "copy")
    assert relive("records", "rebalance", store).status == 0
    assert relive("records", "info", store, "--json").json["unfinished_rebalance"] is False
    for folder in (store, tmp_path / "copy"):
        assert relive("records", "gather", folder, ":").out == before


def test_ctrl_c_ends_a_rebalance_quietly(tmp_path: Path) -> None:
    with RecordStore.create(tmp_path / "x", {"x": Field("uint8", (64,))}) as out:
        out.extend({"x": np.zeros((20_000, 64), np.uint8)})
    program = (
        "import os, signal, sys\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from relive.cli import main\n"
        "from relive.cli.progress import Progress\n"
        "show = Progress.__call__\n"
        "def interrupted(self, done, total):\n"
        "    show(self, done, total)\n"
        "    if done: os.kill(os.getpid(), signal.SIGINT)\n"
        "Progress.__call__ = interrupted\n"
        "sys.exit(main(['records', 'rebalance', sys.argv[1]]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, tmp_path / "x"],
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")
    assert len(RecordStore.open(tmp_path / "x")) == 20_000


@pytest.mark.parametrize(
    "args", [["info"], ["head"], ["rebalance"], ["gather", "0"]], ids=lambda args: args[0]
)
def test_path_that_is_not_a_store_fails(relive: Relive, tmp_path: Path, args: list[str]) -> None:
    (tmp_path / "a.txt").write_text("hello")
    command, *rest = args
    for path in (tmp_path / "no", tmp_path, tmp_path / "a.txt"):
        done = relive("records", command, path, *rest)
        assert done.status == 1
        assert not done.out
        assert done.err.startswith("error: ")
        assert "Traceback" not in done.err
        assert relive("records", "validate", path).status == 1


def test_generic_commands_accept_a_store(relive: Relive, store: Path) -> None:
    found = relive("info", store, "--json").json
    assert (found["kind"], found["rows"]) == ("records", 10)
    assert relive("head", store, "-n", 1, "--json").json[0]["caption"] == "step 0"
    assert relive("stats", store, "--json").json["fields"]["image"]["max"] == 9
