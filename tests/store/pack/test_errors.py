"""Failing decoders, forks, threads, unusual names and invalid options of packs."""

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import relive
from relive.errors import (
    CorruptError,
    InvalidError,
    InvalidTypeError,
    NotFoundError,
)
from relive.store.pack import merge, register_kind, validate
from tests.store.pack.packs import flip, make_run


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Write eight entries of one byte, their number."""
    path = tmp_path / "numbers.a2pack"
    with relive.PackWriter(path, align=8) as writer:
        writer.extend([bytes([number]) for number in range(8)], kind="number")
    return path


def decode_with(decode: Any) -> None:
    register_kind("number", bytes, decode)


@pytest.fixture(autouse=True)
def _plain() -> None:
    decode_with(lambda data: data[0])


def test_stop_iteration_in_a_decoder_does_not_end_the_loop(path: Path) -> None:
    decode_with(lambda data: next(iter(())) if data[0] == 2 else data[0])
    reader = relive.PackReader.open(path)
    for use in (lambda: list(reader), lambda: list(reader.iter_batches(2)), lambda: reader[2]):
        with pytest.raises(CorruptError, match="entry 2"):
            use()
    skipping = reader.iter_indices(range(8), errors="skip")
    assert list(skipping) == [0, 1, 3, 4, 5, 6, 7]
    assert skipping.skipped == 1


def test_decoded_value_may_be_an_exception(path: Path) -> None:
    decode_with(lambda data: ValueError(str(data[0])))
    reader = relive.PackReader.open(path)
    assert [str(value) for value in reader] == [str(number) for number in range(8)]
    assert isinstance(reader[3], ValueError)


def test_batch_of_damaged_entries_is_skipped_whole(path: Path) -> None:
    def picky(data: memoryview) -> int:
        if 2 <= data[0] < 4:
            raise ValueError(data[0])
        return data[0]

    decode_with(picky)
    batches = relive.PackReader.open(path).iter_batches(2, errors="skip")
    assert list(batches) == [[0, 1], [4, 5], [6, 7]]
    assert batches.skipped == 2


def test_iterator_in_a_forked_child_raises(path: Path) -> None:
    code = f"""
import os, relive
relive.store.pack.register_kind("number", bytes, lambda data: data[0])
iterator = iter(relive.PackReader.open({str(path)!r}))
next(iterator)
child = os.fork()
if child == 0:
    try:
        list(iterator)
    except relive.errors.ClosedError:
        os._exit(7)
    os._exit(1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
assert list(iterator) == [1, 2, 3, 4, 5, 6, 7]
"""
    # In a separate process: libraries with threads, loaded by other tests, warn about forks.
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_range_views_read_the_right_entries(path: Path) -> None:
    view = relive.PackReader.open(path)[1::2][::-1]
    assert list(view) == [7, 5, 3, 1]
    assert view.decode_batch([3, 0]) == [1, 7]


def test_threads_that_share_a_writer_get_distinct_positions(tmp_path: Path) -> None:
    path = tmp_path / "shared.a2pack"
    given: dict[int, list[int]] = {}
    with relive.PackWriter(path, align=8) as writer:

        def write(number: int) -> None:
            parts = [writer.extend(bytes([number]) for _ in range(10)) for _ in range(5)]
            given[number] = [position for part in parts for position in part]

        threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    reader = relive.PackReader.open(path)
    for number, positions in given.items():
        assert {reader[position] for position in positions} == {bytes([number])}
    assert sorted(position for positions in given.values() for position in positions) == list(
        range(200)
    )


def test_unknown_options_raise(path: Path) -> None:
    with pytest.raises(InvalidTypeError, match="'verfy'"):
        relive.PackReader.open(path, verfy="always")
    with pytest.raises(InvalidTypeError, match="'thread'"):
        validate(path, thread=3)


def test_file_names_that_are_not_utf8(path: Path, tmp_path: Path) -> None:
    odd = os.fsdecode(os.fsencode(tmp_path) + b"/\xff.a2pack")
    with relive.PackWriter(odd) as writer:
        writer.append(b"here")
    reader = relive.PackReader.open(odd)
    assert reader[0] == b"here"
    assert reader.validate("full").ok
    assert validate(odd).ok


def test_invalid_paths_raise(tmp_path: Path) -> None:
    for wrong in (b"bytes.a2pack", 5, None, [5]):
        with pytest.raises(InvalidTypeError, match="path or URI"):
            relive.PackReader.open(wrong)  # type: ignore[arg-type]
        if not isinstance(wrong, list):
            with pytest.raises(InvalidTypeError, match="path or URI"):
                validate(wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidError, match="empty"):
        relive.PackReader.open("")
    with pytest.raises(NotFoundError, match=r"directory .* does not exist"):
        relive.PackWriter(tmp_path / "none" / "x.a2pack")


def test_invalid_numbers_raise(path: Path) -> None:
    reader = relive.PackReader.open(path)
    for wrong in (0, -1):
        with pytest.raises(InvalidError, match="batch_size"):
            reader.iter_batches(wrong)
    with pytest.raises(InvalidError, match="seed"):
        reader.iter_batches(2, shuffle=True, seed=-1)
    for limit in ("x", 1.5):
        with pytest.raises(InvalidTypeError, match="max_payload_bytes"):
            relive.PackReader.open(path, max_payload_bytes=limit)  # type: ignore[arg-type]
    with pytest.raises(InvalidError, match="max_payload_bytes"):
        relive.PackReader.open(path, max_payload_bytes=1 << 70)
    with pytest.raises(InvalidTypeError, match="engine"):
        reader.where(engine=5)  # type: ignore[arg-type]
    with pytest.raises(InvalidTypeError, match="open file"):
        reader.to_jsonl(5)  # type: ignore[arg-type]
    with pytest.raises(InvalidError, match="is a directory"):
        reader.to_jsonl(path.parent, overwrite=True)


def test_oversized_directory_raises_corrupt(tmp_path: Path) -> None:
    path = tmp_path / "sparse.a2pack"
    with relive.PackWriter(path) as writer:
        writer.append(b"x")
    data = bytearray(path.read_bytes())
    data[-40:-32] = (len(data) // 8 * 8 - 512 * 1024).to_bytes(8, "little", signed=True)[:8]
    path.write_bytes(data)
    for io in ("mmap", "pread"):
        with pytest.raises(CorruptError, match="directory"):
            relive.PackReader.open(path, io=io)


def test_clashing_names_can_be_dropped(tmp_path: Path) -> None:
    for name in ("a", "b"):
        with relive.PackWriter(tmp_path / f"{name}.a2pack") as writer:
            writer.append(name.encode(), name="same")
    with pytest.raises(InvalidError, match="already has the name") as caught:
        merge(tmp_path / "*.a2pack", tmp_path / "all.pack")
    assert "names=False" in str(caught.value.hint)
    merge(tmp_path / "*.a2pack", tmp_path / "all.pack", names=False)
    both = relive.PackReader.open(tmp_path / "all.pack")
    assert list(both) == [b"a", b"b"]
    assert both.name(0) is None


def test_parquet_skips_entries_that_are_not_runs(tmp_path: Path) -> None:
    path = tmp_path / "mixed.a2pack"
    with relive.PackWriter(path) as writer:
        writer.append(make_run(3), "v2")
        writer.append(b"no run")
        writer.append(make_run(4), "v2")
    flip(path, relive.PackReader.open(path).files[0].native.entry(2)[0] + 9)
    reader = relive.PackReader.open(path)
    assert reader.to_parquet(tmp_path / "out.parquet", errors="skip") == 2
    table = pq.read_table(tmp_path / "out.parquet")
    assert (table["run_idx"].to_pylist(), table["kind"].to_pylist()) == ([0], ["v2"])
    with pytest.raises(relive.errors.UnsupportedError, match="entry 1"):
        reader.to_parquet(tmp_path / "again.parquet")
