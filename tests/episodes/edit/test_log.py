"""The edit log: lines are appended whole, in order, by any process."""

import json
import multiprocessing
import os
from pathlib import Path
from typing import Any

import pytest

from relive.episodes.edit.log import EditLog
from relive.episodes.read.local_dataset import LocalDataset
from relive.errors import (
    AccessDeniedError,
    CorruptError,
    UnsupportedError,
)
from tests.episodes.by_hand import write_root

X = [(float(n), 10 * n) for n in range(6)]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write_root(tmp_path / "root", 3, x=X)


OPS_MADE = ["set_static", "drop", "cut"]


def test_truncated_file_keeps_the_edits_of_its_whole_lines(root: Path) -> None:
    edits = LocalDataset(root).edits
    edits.set_static("u1", "task", "größer\n")
    edits.drop("u0")
    edits.cut("u1", 20)
    path = root / "edits.jsonl"
    data = path.read_bytes()
    lines = data.splitlines(keepends=True)
    ends = [sum(map(len, lines[: n + 1])) for n in range(3)]
    for length in range(len(data) + 1):
        path.write_bytes(data[:length])
        # A complete line counts with or without its line break.
        expected = sum(length >= end - 1 for end in ends)
        assert len(EditLog(root).read()) == expected
        LocalDataset(root).edits.drop("u2")
        found = EditLog(root).read()
        assert [edit.op for edit in found] == [*OPS_MADE[:expected], "drop"]
        assert path.read_bytes().endswith(b"\n")
        assert all(json.loads(line) for line in path.read_bytes().splitlines())


@pytest.mark.parametrize(
    "line",
    [
        b"{",
        b"[]",
        b"7",
        b'{"op": "drop"}',
        b'{"op": "drop", "uid": 7}',
        b'{"op": "cut", "uid": "u0"}',
        b'{"op": "cut", "uid": "u0", "ts": "1"}',
        b'{"op": "cut", "uid": "u0", "ts": true}',
        b'{"op": "trim", "uid": "u0", "start": 1}',
        b'{"op": "set_static", "uid": "u0", "value": 1}',
        b'{"op": "drop", "uid": "u0", "at_ns": "now"}',
        b"\xff",
        b"[" * 100_000,
    ],
)
def test_invalid_line_is_named(root: Path, line: bytes) -> None:
    path = root / "edits.jsonl"
    path.write_bytes(b'{"op": "drop", "uid": "u1"}\n\n' + line + b'\n{"op": "drop", "uid": "u2"}\n')
    with pytest.raises(CorruptError, match="line 3 of"):
        LocalDataset(root)
    assert len(LocalDataset(root, edits=False)) == 3
    with pytest.raises(CorruptError):
        LocalDataset(root, edits=False).edits.drop("u0")


def test_edit_of_a_later_version_has_an_upgrade_hint(root: Path) -> None:
    (root / "edits.jsonl").write_text('{"op": "blur", "uid": "u1", "at_ns": 1}\n')
    with pytest.raises(UnsupportedError, match="'blur'") as caught:
        LocalDataset(root)
    assert "upgrade relive" in str(caught.value)
    assert len(LocalDataset(root, edits=False)) == 3


def test_unknown_keys_of_a_line_are_kept(root: Path) -> None:
    (root / "edits.jsonl").write_text('{"by": "me", "op": "drop", "uid": "u1"}')
    assert LocalDataset(root).uids == ("u0", "u2")
    LocalDataset(root).edits.drop("u2")
    assert LocalDataset(root).uids == ("u0",)
    (first, second) = (root / "edits.jsonl").read_text().splitlines()
    assert json.loads(first)["by"] == "me"
    assert set(json.loads(second)) == {"op", "uid", "at_ns", "checked", "crc"}


def test_read_only_root_raises(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.open

    def refuse(path: Any, flags: int, *rest: Any, **more: Any) -> int:
        if os.fspath(path).endswith("edits.jsonl") and flags & os.O_RDWR:
            raise PermissionError(13, "Permission denied")
        return real(path, flags, *rest, **more)

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(AccessDeniedError, match=r"edits\.jsonl"):
        LocalDataset(root).edits.drop("u0")


def edit_many(root: Path, name: str, count: int) -> None:
    edits = LocalDataset(root).edits
    for number in range(count):
        edits.set_static("u0", f"{name}{number}", number)


def test_several_processes_edit_one_root(root: Path) -> None:
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=edit_many, args=(root, name, 30)) for name in "abc"]
    for worker in workers:
        worker.start()
    while any(worker.is_alive() for worker in workers):
        assert len(LocalDataset(root)) == 3
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0
    assert len(EditLog(root).read()) == 90
    statics = LocalDataset(root)[0].statics
    assert all(statics[f"{name}{number}"] == number for name in "abc" for number in range(30))
