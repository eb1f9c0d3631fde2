"""Reading packs: entries by position and name, views, payloads, kinds and errors."""

import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import relive
from relive.errors import (
    ClosedError,
    CorruptError,
    InvalidError,
    InvalidTypeError,
    NotFoundError,
    OutOfRangeError,
    TooLargeError,
    UnknownKindError,
    UnknownNameError,
)
from relive.store.pack import register_kind
from tests.store.pack.packs import flip, make_run, make_runs, write_runs

COUNT = 12


@pytest.fixture
def runs() -> list[relive.Run]:
    return make_runs(COUNT)


@pytest.fixture(params=["raw", "zstd"])
def path(request: pytest.FixtureRequest, tmp_path: Path, runs: list[relive.Run]) -> Path:
    return write_runs(tmp_path / "runs.a2pack", runs, codec=request.param)


@pytest.fixture(params=["mmap", "pread"])
def reader(request: pytest.FixtureRequest, path: Path) -> relive.PackReader:
    return relive.PackReader.open(path, io=request.param)


def same(read: relive.Run, written: relive.Run, number: int) -> bool:
    if number % 5 == 4:  # written without branches
        return bool(np.array_equal(read.boards, written.boards) and read.branches is None)
    return read == written


def test_entries_round_trip(reader: relive.PackReader, runs: list[relive.Run]) -> None:
    assert len(reader) == COUNT
    assert all(same(reader[k], run, k) for k, run in enumerate(runs))
    assert same(reader[-1], runs[-1], COUNT - 1)
    assert same(reader.decode(np.int64(3)), runs[3], 3)
    assert [reader.kind(k) for k in (0, 4)] == ["v2", "v1"]


def test_batch_keeps_order_and_repeats(reader: relive.PackReader, runs: list[relive.Run]) -> None:
    batch = reader.decode_batch([7, 0, 7])
    assert [same(run, runs[k], k) for run, k in zip(batch, (7, 0, 7), strict=True)] == [True] * 3
    assert reader.__getitems__([2, 1]) == [reader[2], reader[1]]
    for bad in ([COUNT], [-1]):
        with pytest.raises(OutOfRangeError):
            reader.decode_batch(bad)
    with pytest.raises(InvalidError):
        reader.decode_batch([[1, 2]])


def test_brackets_select_as_numpy_does(reader: relive.PackReader) -> None:
    numbers = np.arange(COUNT)
    mask = numbers % 3 == 0
    for key in (slice(2, 9, 3), slice(None, None, -1), [5, 5, -1], mask, ...):
        view = reader[key]
        assert isinstance(view, relive.PackReader)
        assert [run.meta.start_unix_s - 1_700_000_000 for run in view if run.branches is not None]
        chosen = [k for k in numbers[key].tolist() if k % 5 != 4]
        found = [r.meta.start_unix_s - 1_700_000_000 for r in view if r.meta.start_unix_s]
        assert found == chosen
    assert len(reader[2:9][::-1][1:3]) == 2
    assert reader[2:9][::-1][1:3].decode(0) == reader[7]
    with pytest.raises(IndexError):
        reader[COUNT]
    with pytest.raises(TypeError):
        reader["three"]


def test_names_find_entries_in_views(reader: relive.PackReader) -> None:
    assert (reader.find("run-7"), reader.name(7)) == (7, "run-7")
    view = reader[[9, 7, 2]]
    assert (view.find("run-7"), view.name(1)) == (1, "run-7")
    for wrong in ("run-3", "none"):
        with pytest.raises(UnknownNameError, match=wrong):
            view.find(wrong)
    with pytest.raises(KeyError):
        reader.find("")
    with pytest.raises(TypeError):
        reader.find(7)  # type: ignore[arg-type]


def test_payloads_are_read_only_bytes(reader: relive.PackReader, runs: list[relive.Run]) -> None:
    payload = reader.payload(3)
    assert bytes(payload) == runs[3].to_bytes()
    assert payload.readonly
    with pytest.raises(OutOfRangeError):
        reader.payload(COUNT)


def test_raw_payload_is_mapped_memory_and_outlives_the_reader(tmp_path: Path) -> None:
    path = tmp_path / "one.a2pack"
    with relive.PackWriter(path) as writer:
        writer.append(b"x" * 5000)
    reader = relive.PackReader.open(path)
    first, second = reader.payload(0), reader.payload(0)
    addresses = {
        np.frombuffer(view, np.uint8).__array_interface__["data"][0] for view in (first, second)
    }
    assert len(addresses) == 1
    reader.close()
    del reader, second
    assert bytes(first) == b"x" * 5000


def test_gather_returns_payloads_and_kinds(reader: relive.PackReader) -> None:
    batch = reader.gather([7, 4, 7])
    assert list(batch["kind"]) == [2, 1, 2]
    rows = [batch["payload"][k].tobytes() for k in range(3)]
    assert rows == [bytes(reader.payload(k)) for k in (7, 4, 7)]
    only = reader[3:].gather([0], fields=["kind"])
    assert list(only) == ["kind"]
    room = np.empty(2, np.uint16)
    assert reader.gather([4, 0], ["kind"], {"kind": room})["kind"] is room
    assert room.tolist() == [1, 2]
    with pytest.raises(OutOfRangeError):
        reader.gather([0, COUNT])


def test_user_kinds_decode_to_any_object(tmp_path: Path) -> None:
    register_kind(
        "words",
        lambda words: "\n".join(words).encode(),
        lambda data: bytes(data).decode().split("\n"),
    )
    path = tmp_path / "kinds.a2pack"
    with relive.PackWriter(path, codec="lz4") as writer:
        writer.append(["a", "b"], kind="words")
        writer.append(b"plain")
        writer.append(make_run(4), kind="auto")
    reader = relive.PackReader.open(path)
    assert [reader.kind(k) for k in range(3)] == ["words", "bytes", "v2"]
    assert list(reader) == [["a", "b"], b"plain", make_run(4)]
    assert reader.stats.kind_counts == {"words": 1, "bytes": 1, "v2": 1}
    opened = f"import relive; reader = relive.PackReader.open({str(path)!r})"
    code = f"{opened}; print(bytes(reader.payload(0))); reader[0]"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == r"b'a\nb'"
    assert "UnknownKindError" in done.stderr
    assert "register_kind" in done.stderr
    assert issubclass(UnknownKindError, KeyError)


def test_failing_decoder_names_the_entry(tmp_path: Path) -> None:
    register_kind("odd", bytes, lambda data: 1 // (len(data) - 3))
    path = tmp_path / "odd.a2pack"
    with relive.PackWriter(path) as writer:
        writer.extend([b"12", b"123"], kind="odd")
    reader = relive.PackReader.open(path)
    assert reader[0] == -1
    with pytest.raises(ZeroDivisionError) as caught:
        reader.decode(1)
    assert "entry 1" in caught.value.__notes__[0]


def test_several_packs_open_as_one(tmp_path: Path) -> None:
    runs = make_runs(9)
    first = write_runs(tmp_path / "a.a2pack", runs[:4])
    second = write_runs(tmp_path / "b.a2pack", runs[4:], codec="zstd")
    for where in ([first, second], str(tmp_path / "*.a2pack")):
        joined = relive.PackReader.open(where)
        assert len(joined) == 9
        assert joined[4] == runs[4]
        order = [8, 0, 5, 3]
        assert joined.decode_batch([5, 0]) == [joined[5], runs[0]]
        batch = joined.gather(order)
        assert [batch["payload"][k].tobytes() for k in range(4)] == [
            bytes(joined.payload(k)) for k in order
        ]
        assert len(joined.steps()) == sum(run.meta.steps for run in runs)
        assert joined.stats.count == 9
        assert joined.find("run-3") == 3
        assert joined[[7, 1]].locate_all()[0].tolist() == [1, 0]


def test_packs_with_different_kind_numbers_raise(tmp_path: Path) -> None:
    register_kind("north", bytes, bytes)
    register_kind("south", bytes, bytes)
    for name in ("north", "south"):
        with relive.PackWriter(tmp_path / f"{name}.a2pack") as writer:
            writer.append(b"x", kind=name)
    with pytest.raises(InvalidError, match="kind number 256"):
        relive.PackReader.open(tmp_path.glob("*.a2pack"))


def test_readers_and_views_pickle_small(reader: relive.PackReader) -> None:
    view = reader[::-2]
    data = pickle.dumps(view)
    assert len(data) < 1000
    again = pickle.loads(data)  # noqa: S301 - our own data
    assert list(again) == list(view)
    assert list(pickle.loads(pickle.dumps(reader.steps()))[0]) == list(reader.steps()[0])  # noqa: S301


def test_closed_reader_raises(path: Path) -> None:
    with relive.PackReader.open(path) as reader:
        view = reader[2:]
    for use in (
        lambda: reader[0],
        lambda: reader.payload(0),
        lambda: reader.gather([0]),
        reader.steps,
        lambda: reader.stats,
        lambda: reader.path,
    ):
        with pytest.raises(ClosedError):
            use()
    assert "closed" in repr(reader)
    assert view[0] is not None
    reader.close()


@pytest.mark.parametrize("verify", ["first", "always", "never"])
def test_checksums_are_verified_as_requested(tmp_path: Path, verify: str) -> None:
    path = tmp_path / "one.a2pack"
    with relive.PackWriter(path) as writer:
        writer.extend([b"a" * 100, b"b" * 100])
    reader = relive.PackReader.open(path, verify=verify)
    assert bytes(reader.payload(0)) == b"a" * 100
    offset = path.read_bytes().index(b"b" * 100)
    with path.open("r+b") as file:
        file.seek(offset + 50)
        file.write(b"?")
    if verify == "never":
        assert b"?" in bytes(reader.payload(1))
    else:
        for _ in range(2):
            with pytest.raises(CorruptError, match=r"one\.a2pack.*entry 1 at offset \d+"):
                reader.payload(1)
        with pytest.raises(CorruptError):
            reader.gather([0, 1])


def test_truncated_file_raises_instead_of_crashing(path: Path) -> None:
    for io in ("mmap", "pread"):
        reader = relive.PackReader.open(path, io=io)
        whole = path.read_bytes()
        path.write_bytes(whole[:2000])
        with pytest.raises(CorruptError):
            reader.gather([9])
        with pytest.raises(CorruptError):
            reader.decode(9)
        path.write_bytes(whole)


def test_large_payloads_raise_before_allocation(tmp_path: Path) -> None:
    path = tmp_path / "zeros.a2pack"
    with relive.PackWriter(path, codec="zstd") as writer:
        writer.append(bytes(1 << 20))
    reader = relive.PackReader.open(path, max_payload_bytes=1 << 16)
    with pytest.raises(TooLargeError, match="entry 0"):
        reader.payload(0)


def test_invalid_arguments_raise(tmp_path: Path, path: Path) -> None:
    with pytest.raises(NotFoundError, match="missing"):
        relive.PackReader.open(tmp_path / "missing.a2pack")
    with pytest.raises(NotFoundError, match="matches"):
        relive.PackReader.open(str(tmp_path / "*.nothing"))
    with pytest.raises(InvalidError, match="empty"):
        relive.PackReader.open([])
    with pytest.raises(InvalidError):
        relive.PackReader.open(tmp_path)
    with pytest.raises(InvalidTypeError):
        relive.PackReader.open(7)  # type: ignore[arg-type]
    with pytest.raises(InvalidTypeError, match=r"PackReader\.open"):
        relive.PackReader(path)  # type: ignore[arg-type]
    for options in ({"verify": "often"}, {"io": "magic"}, {"max_payload_bytes": 0}, {"workers": 0}):
        with pytest.raises(ValueError, match=next(iter(options))):
            relive.PackReader.open(path, **options)
    text = tmp_path / "text.a2pack"
    text.write_text("not a pack, but long enough to be looked at as one would be")
    with pytest.raises(CorruptError, match="not a pack"):
        relive.PackReader.open(text)
    flip(path, 17)
    with pytest.raises(CorruptError, match="header"):
        relive.PackReader.open(path)


def test_empty_pack(tmp_path: Path) -> None:
    path = tmp_path / "empty.a2pack"
    relive.PackWriter(path).close()
    reader = relive.PackReader.open(path)
    assert (len(reader), list(reader), list(reader.iter_batches(4))) == (0, [], [])
    assert reader.stats.as_dict()["total_steps"] == 0
    assert len(reader.steps()) == 0
    assert reader.validate("full").ok
    assert len(reader.gather([])["payload"]) == 0
    assert reader.to_jsonl(tmp_path / "empty.jsonl") == 0
