"""`PackWriter`: appended entries are read back, and the pack appears atomically."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import relive
from relive.errors import (
    CorruptError,
    InvalidError,
    InvalidTypeError,
    NotFoundError,
    TooLargeError,
    UnknownKindError,
)
from relive.store.codec import train_dictionary
from relive.store.pack import register_kind
from relive.store.pack.kinds import _REGISTERED
from tests.store.pack.files import names_in, payloads
from tests.store.pack.packs import make_run, make_runs


@pytest.fixture
def registered() -> Iterator[Callable[..., None]]:
    """Register kinds for the duration of a test."""
    before = dict(_REGISTERED)
    yield register_kind
    _REGISTERED.clear()
    _REGISTERED.update(before)


def test_pack_appears_at_the_end_of_the_block(tmp_path: Path) -> None:
    path = tmp_path / "a.a2pack"
    with relive.PackWriter(path) as writer:
        assert writer.append(b"one", name="first") == 0
        assert writer.append(b"") == 1
        assert len(writer) == 2
        assert repr(writer) == f"PackWriter({path}: 2 entries)"
        assert writer.path == path
        assert not path.exists()
    assert payloads(path) == [b"one", b""]
    assert repr(writer) == f"PackWriter({path}: closed)"
    assert names_in(tmp_path) == ["a.a2pack"]


@pytest.mark.parametrize(
    "payload",
    [b"\1\2\3\4", bytearray(b"\1\2\3\4"), memoryview(b"\1\2\3\4"), np.arange(1, 5, dtype=np.uint8)],
)
def test_payload_may_be_any_buffer(payload: Any, tmp_path: Path) -> None:
    with relive.PackWriter(tmp_path / "a") as writer:
        writer.append(payload)
        writer.extend((payload, payload))
    assert payloads(tmp_path / "a") == [b"\1\2\3\4"] * 3


@pytest.mark.parametrize("payload", ["text", 7, None, [1, 2]])
def test_payload_that_is_not_a_buffer_raises(payload: Any, tmp_path: Path) -> None:
    with relive.PackWriter(tmp_path / "a") as writer:
        with pytest.raises(InvalidTypeError, match="a payload must be bytes"):
            writer.append(payload)
        with pytest.raises(InvalidTypeError, match="a payload must be bytes"):
            writer.extend([b"good", payload])
        assert len(writer) == 0


def test_runs_are_appended_as_objects_or_bytes(tmp_path: Path) -> None:
    run = make_run(70, 1)
    old = relive.Run(run.boards, run.moves)
    with relive.PackWriter(tmp_path / "a", codec="zstd") as writer:
        writer.append(run, "v2")
        writer.append(run.to_bytes(), "v2")
        writer.append(run, "auto")
        writer.append(old, "v1")
        writer.append(old.to_bytes(1), "auto")
        with pytest.raises(InvalidTypeError, match="got a Run"):
            writer.append(run)
        with pytest.raises(InvalidError):
            writer.append(run, "v1")  # its branches would be lost
        with pytest.raises(CorruptError):
            writer.append(run.to_bytes()[:-1], "v2")
        with pytest.raises(CorruptError):
            writer.append(run.to_bytes(), "v1")
    reader = relive.PackReader.open(tmp_path / "a")
    assert [reader.kind(position) for position in range(5)] == ["v2", "v2", "v2", "v1", "v1"]
    assert list(reader) == [run, run, run, old, old]
    assert len(reader.steps()) == 5 * 70


def test_user_kind(tmp_path: Path, registered: Callable[..., None]) -> None:
    registered(
        "point", lambda point: np.array(point, "<f8"), lambda data: tuple(np.frombuffer(data))
    )
    registered("größe", str.encode, lambda data: str(data, "utf-8"))
    with relive.PackWriter(tmp_path / "a") as writer:
        writer.append("klein", "größe")
        writer.extend([(1.5, 2.5), (3.0,)], "point")
    reader = relive.PackReader.open(tmp_path / "a")
    assert list(reader) == ["klein", (1.5, 2.5), (3.0,)]
    assert [reader.kind(position) for position in range(3)] == ["größe", "point", "point"]
    _REGISTERED.clear()
    with pytest.raises(UnknownKindError, match="'point'"):
        reader.decode(1)
    assert len(reader.payload(1)) == 16


def test_decoder_cannot_write_to_the_file(tmp_path: Path, registered: Callable[..., None]) -> None:
    registered("raw", bytes, lambda data: data.readonly)
    with relive.PackWriter(tmp_path / "a") as writer:
        writer.append(b"payload", "raw")
    assert relive.PackReader.open(tmp_path / "a").decode(0) is True


@pytest.mark.parametrize("name", ["", "bytes", "v1", "v2", "auto", "a\nb", "x" * 65])
def test_invalid_kind_name_raises(name: str) -> None:
    with pytest.raises(InvalidError):
        register_kind(name, bytes, bytes)


def test_unregistered_kind_raises(tmp_path: Path) -> None:
    with relive.PackWriter(tmp_path / "a") as writer:
        with pytest.raises(UnknownKindError, match="the kind 'frame' is not registered"):
            writer.append(b"", "frame")
        with pytest.raises(InvalidTypeError):
            writer.append(b"", 7)  # type: ignore[arg-type]
    with pytest.raises(InvalidTypeError):
        register_kind("frame", None, bytes)  # type: ignore[arg-type]


def test_list_is_appended_whole_or_not_at_all(tmp_path: Path) -> None:
    runs = [run.to_bytes() for run in make_runs(20)]
    with relive.PackWriter(tmp_path / "a", codec="zstd") as writer:
        assert writer.extend(runs, "auto", names=[f"run {k}" for k in range(20)]) == range(20)
        assert writer.extend([]) == range(20, 20)
        with pytest.raises(CorruptError, match="payload 2 of the batch"):
            writer.extend([*runs[:2], b"\xff", *runs], "v2")
        with pytest.raises(InvalidError, match="already has the name `run 3`"):
            writer.extend(runs[:2], "v2", names=["run 50", "run 3"])
        with pytest.raises(InvalidError, match="already has the name `new`"):
            writer.extend(runs[:2], "v2", names=["new", "new"])
        assert len(writer) == 20
    assert payloads(tmp_path / "a") == runs
    assert relive.PackReader.open(tmp_path / "a").find("run 7") == 7


def test_stream_is_appended_in_batches(tmp_path: Path) -> None:
    def stream() -> Iterator[bytes]:
        for number in range(10_000):
            yield number.to_bytes(4, "little")
        yield b"\xff" * 20

    with relive.PackWriter(tmp_path / "a", align=4) as writer:
        names = (str(number) for number in range(10_001))
        assert writer.extend(stream(), names=names) == range(10_001)
        with pytest.raises(CorruptError, match="payload 0 of the batch") as refused:
            writer.extend((run for run in [b"\xff"]), "v2")
        assert not hasattr(refused.value, "__notes__")
    reader = relive.PackReader.open(tmp_path / "a")
    assert reader.find("9999") == 9999
    assert bytes(reader.payload(9999)) == (9999).to_bytes(4, "little")


@pytest.mark.parametrize("names", [["a"], ["a", "b", "c"], ["a", 7], ["a", "\ud800"], ["a", ""]])
def test_invalid_names_raise(names: list[Any], tmp_path: Path) -> None:
    with relive.PackWriter(tmp_path / "a") as writer:
        with pytest.raises((InvalidError, InvalidTypeError)):
            writer.extend([b"1", b"2"], names=names)
        assert len(writer) == 0


def test_codec_per_pack_or_entry(tmp_path: Path) -> None:
    payload = b"compressible " * 500
    with relive.PackWriter(tmp_path / "a", codec="zstd", level=19) as writer:
        for codec in (None, "raw", "deflate", "lz4", "zstd"):
            writer.append(payload, codec=codec)
        writer.append(b"short")
    pack = relive.PackReader.open(tmp_path / "a").files[0].native
    flags = [pack.entry(position)[3] & 15 for position in range(6)]
    assert flags == [2, 0, 1, 3, 2, 0]
    assert payloads(tmp_path / "a") == [payload] * 5 + [b"short"]


def test_dictionary_is_stored_in_the_pack(tmp_path: Path) -> None:
    runs = [make_run(30 + seed, seed).to_bytes() for seed in range(100)]
    sizes: list[int] = []
    for dictionary in (None, train_dictionary(runs, 8192)):
        path = tmp_path / f"{len(sizes)}"
        with relive.PackWriter(path, codec="zstd", dictionary=dictionary, steps=True) as writer:
            writer.extend(runs, "v2")
        assert payloads(path) == runs
        sizes.append(relive.PackReader.open(path).stats.stored_bytes)
    assert sizes[1] < sizes[0]


def test_payload_over_the_limit_raises(tmp_path: Path) -> None:
    with relive.PackWriter(tmp_path / "a", codec="zstd", max_payload_bytes=100) as writer:
        with pytest.raises(TooLargeError, match="101 bytes exceeds the limit of 100 bytes"):
            writer.append(bytes(101))
        writer.append(bytes(101), codec="raw")
    assert payloads(tmp_path / "a") == [bytes(101)]


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"align": 3}, InvalidError),
        ({"align": -1}, InvalidError),
        ({"align": 4096.0}, InvalidTypeError),
        ({"codec": "gzip"}, InvalidError),
        ({"codec": None}, InvalidTypeError),
        ({"level": 3}, InvalidError),
        ({"codec": "zstd", "level": 99}, InvalidError),
        ({"codec": "zstd", "level": 1 << 40}, InvalidError),
        ({"codec": "zstd", "level": "3"}, InvalidTypeError),
        ({"dictionary": b"none"}, CorruptError),
        ({"capacity": -1}, InvalidError),
        ({"capacity": 1 << 40}, InvalidError),
        ({"workers": 0}, InvalidError),
    ],
)
def test_invalid_options_raise(
    options: dict[str, Any], error: type[Exception], tmp_path: Path
) -> None:
    with pytest.raises(error):
        relive.PackWriter(tmp_path / "a", **options)
    assert names_in(tmp_path) == []


@pytest.mark.parametrize("path", [7, None, b"bytes", "", "a\0b"])
def test_invalid_path_raises(path: Any) -> None:
    with pytest.raises((InvalidError, InvalidTypeError)):
        relive.PackWriter(path)


def test_missing_directory_raises(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="does not exist"):
        relive.PackWriter(tmp_path / "no" / "a")
    with pytest.raises(InvalidError, match="is a directory"):
        relive.PackWriter(tmp_path)


def test_current_directory_may_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path)
    with relive.PackWriter("a.a2pack", capacity=0, align=1) as writer:
        writer.append(b"payload")
        monkeypatch.chdir("other")
    assert payloads(tmp_path / "a.a2pack") == [b"payload"]


def test_threads_may_share_a_writer(tmp_path: Path) -> None:
    with relive.PackWriter(tmp_path / "a", align=8) as writer, ThreadPoolExecutor(4) as pool:
        found = pool.map(lambda number: writer.append(str(number).encode()), range(400))
        positions = list(found)
    stored = payloads(tmp_path / "a")
    assert [stored[position] for position in positions] == [str(n).encode() for n in range(400)]


def test_forked_child_cannot_change_the_pack(tmp_path: Path) -> None:
    code = f"""
import os, relive
path = {str(tmp_path / "a")!r}
with relive.PackWriter(path) as writer:
    writer.append(b"parent")
    child = os.fork()
    if child == 0:
        refused = 0
        for use in (lambda: writer.append(b"child"), writer.flush, writer.close, writer.abort):
            try:
                use()
            except relive.errors.ClosedError:
                refused += 1
        os._exit(refused)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 4
    writer.append(b"parent too")
"""
    # In a separate process: libraries with threads, loaded by other tests, warn about forks.
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert payloads(tmp_path / "a") == [b"parent", b"parent too"]
