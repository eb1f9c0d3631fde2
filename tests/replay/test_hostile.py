"""Damaged and hostile bytes: a typed error or the right values, and never a crash.

A crash of libhdf5 ends the process, so damaged files are read in a process of their own.
"""

import contextlib
import json
import os
import random
import shutil
import struct
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relive._native import RingReader, crc32c
from relive.errors import CorruptError, InvalidError, NotFoundError, ReliveError
from relive.replay import FrameRef, FrameResolver, LiveLane, ReplayRun
from relive.store.locks import FileLock
from tests.replay import toy_run

SHARED: Final = Path("/dev/shm")  # noqa: S108 - where lanes are
HEADER_BYTES: Final = 4096
FIXED_BYTES: Final = 56
HEAD_AT: Final = 3968
SLOT_BYTES: Final = 1152
COUNTERS: Final = frozenset(
    byte for at in (HEAD_AT, HEADER_BYTES, HEADER_BYTES + SLOT_BYTES) for byte in range(at, at + 8)
)
"""Where the head and the sequence numbers of two slots are: a reader waits for them to change."""

CASES: Final = 120
"""Damaged copies of a file that a test reads."""
RUN_ID: Final = "toy-1"

# Texts that nearly are references.
PARTS: Final = st.sampled_from(
    ["h5", "://", "/", "toy-1", "frames", "observations", "observations.image", "0", "5", "-1"]
) | st.sampled_from(
    ["00", "9" * 20, "%", "%2F", "%ff", "..", ".", "\0", "é", "\ud800", " ", "#", "?x"]
)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toy_run.record(tmp_path_factory.mktemp("runs"), RUN_ID)


@pytest.fixture(scope="module")
def resolver(root: Path) -> Iterator[FrameResolver]:
    with FrameResolver(root / "replay") as resolver:
        yield resolver


@given(st.text() | st.lists(PARTS, max_size=9).map("".join))
def test_text_is_a_reference_with_one_spelling_or_none(text: str) -> None:
    ref = FrameRef.parse(text)
    if ref is not None:
        assert (ref.to_uri(), FrameRef.parse(ref.to_uri())) == (text, ref)


@given(st.lists(PARTS, max_size=9).map("".join))
def test_any_text_resolves_to_its_value_or_none(resolver: FrameResolver, text: str) -> None:
    found = resolver.resolve(text)
    ref = FrameRef.parse(text)
    if ref is None or ref.run_id != RUN_ID:
        assert found is None
    elif ref.dataset == "frames" and ref.index < 3 * toy_run.STEPS:
        np.testing.assert_equal(found, toy_run.frame(ref.index))
    try:
        again = resolver.resolve(text, strict=True)
    except ReliveError:
        assert found is None
    else:
        np.testing.assert_equal(again, found)


def test_a_damaged_copy_of_a_file_is_read_or_refused(root: Path, tmp_path: Path) -> None:
    copy = tmp_path / f"{RUN_ID}.h5"
    shutil.copy(root / "replay" / f"{RUN_ID}.h5", copy)
    command = [sys.executable, "-m", __name__, str(copy)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stdout[-300:] + ended.stderr[-3000:]
    assert "refused" in ended.stdout
    assert "read" in ended.stdout


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("run", "[]"),
        ("run", '{"steps": 1e400}'),
        ("run", "[" * 100_000),
        ("episodes", "{}"),
        ("episodes", "[1]"),
        ("columns", '[{"shape": [1e400], "keys": []}]'),
        ("columns", "null"),
        *((key, None) for key in ("run", "episodes", "columns")),
    ],
)
def test_damaged_attributes_are_refused(
    root: Path, tmp_path: Path, name: str, value: str | None
) -> None:
    path = _copy_with(root, tmp_path, lambda text, key: value if key == name else text)
    assert path is not None
    with pytest.raises(ReliveError):
        read_everything(path)


@pytest.mark.parametrize(
    ("attribute", "key", "value"),
    [
        ("run", "steps", 10**18),
        ("run", "steps", -1),
        ("run", "steps", "7"),
        ("run", "ends", 10**18),
        ("run", "ends", None),
        ("run", "episodes", 0),
        ("run", "episodes", 10**15),
        ("run", "run_id", "../x"),
        ("run", "run_id", 5),
        ("episodes", "number", 1 << 62),
        ("episodes", "number", -1),
        ("episodes", "number", 10**15),
        ("episodes", "steps", 10**12),
        ("episodes", "episode_id", None),
        ("columns", "shape", [1 << 40, 1 << 40]),
        ("columns", "shape", [-1]),
        ("columns", "shape", [3, 10**6]),
        ("columns", "chunk_rows", 0),
        ("columns", "chunk_rows", 1 << 31),
        ("columns", "chunk_rows", -1),
        ("columns", "chunk_rows", 1 << 70),
        ("columns", "dtype", "O"),
        ("columns", "dtype", "<f16"),
        ("columns", "dtype", "(2,i4"),
        ("columns", "dtype", 7),
        ("columns", "codec", "none"),
        ("columns", "level", 1 << 40),
        ("columns", "stack", "middle"),
        ("columns", "planes_of", 99),
        ("columns", "planes_of", -1),
        ("columns", "rows_of", "planes"),
        ("columns", "field", "frames/x"),
        ("columns", "field", "\0"),
        ("columns", "keys", [[]]),
        ("columns", "keys", "image"),
    ],
)
def test_hostile_values_in_attributes_are_refused_or_read(
    root: Path, tmp_path: Path, attribute: str, key: str, value: Any
) -> None:
    """The value is in every third row of the attribute in turn. No memory is allocated for it."""
    place = 0
    while True:
        path = _copy_with(root, tmp_path, _replacing(attribute, place, key, value))
        if path is None:
            break
        with contextlib.suppress(ReliveError):
            read_everything(path)
        place += 3
    assert place > 0


@pytest.mark.parametrize(
    ("column", "value"),
    [
        (0, 999),
        (0, -1),
        (1, 3),
        (1, 1 << 62),
        (1, -4),
        (2, 0),
        (2, 5),
        (2, 1 << 62),
        (3, 1 << 62),
        (3, -1),
        (4, 1 << 32),
        (4, (1 << 32) - 1),
        (4, 0),
        (5, 1 << 32),
        (5, 0),
    ],
)
def test_hostile_values_in_the_table_of_chunks_are_refused(
    root: Path, tmp_path: Path, column: int, value: int
) -> None:
    """The value is in every ninth row in turn. No memory is allocated for it."""
    table = _table(root)
    for place in range(0, len(table), 9):
        changed = table.copy()
        changed[place, column] = value
        with pytest.raises(CorruptError):
            read_everything(_copy_with_table(root, tmp_path, changed))


def test_tables_that_are_not_tables_of_chunks_are_refused(root: Path, tmp_path: Path) -> None:
    table = _table(root)
    read_everything(_copy_with_table(root, tmp_path, table))
    for changed in (
        table[:, :5],
        table[0],
        table.astype("<f8"),
        table.astype("<i4"),
        table[:0],
        np.concatenate([table, table[:1]]),
    ):
        with pytest.raises(CorruptError):
            read_everything(_copy_with_table(root, tmp_path, np.ascontiguousarray(changed)))


@pytest.fixture
def segment() -> Iterator[tuple[str, Path]]:
    """A lane with three frames, and its segment, which a lock keeps alive."""
    name = f"test.{uuid.uuid4().hex}"
    path = SHARED / f"relive.{os.getuid()}.{name}.{os.getpid()}"
    with LiveLane.create(name, (4, 5, 3), slots=2, metadata={"fps": 60}) as lane:
        for number in range(3):
            lane.publish(np.full((4, 5, 3), number, np.uint8), reward=number / 2)
        whole = path.read_bytes()
    lock = FileLock.create(path, whole)
    try:
        yield name, path
    finally:
        lock.release()
        path.unlink()


def test_a_damaged_segment_is_read_or_refused(segment: tuple[str, Path]) -> None:
    name, path = segment
    whole = path.read_bytes()
    chance = random.Random(0)  # noqa: S311 - a seed, to reproduce a failure
    refused = 0
    for case in range(400):
        damaged = bytearray(whole)
        for _ in range(chance.randint(1, 3)):
            # Few bytes of the first page are used.
            at = chance.choice([chance.randrange(300), chance.randrange(len(damaged))])
            if at not in COUNTERS:
                damaged[at] ^= 1 << chance.randrange(8)
        is_mended = case % 2 == 0
        if is_mended:
            _mend(damaged)
        refused += not _read_lane(name, path, bytes(damaged), is_whole=False)
    assert refused > 100
    assert _read_lane(name, path, whole, is_whole=True)
    assert struct.unpack_from("<Q", whole, 16) == (SLOT_BYTES,)
    damaged = bytearray(whole)
    damaged[HEAD_AT + 7] = 0xFF
    assert not _read_lane(name, path, bytes(damaged), is_whole=False)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"null",
        b"[" * 3800,
        b'{"name": Infinity}',
        b"\xff",
        *(
            json.dumps(
                {"name": "n", "pid": 1, "shape": [60], "dtype": "|u1", "started_ns": 1}
                | {"first": 0, "metadata": {}}
                | change
            ).encode()
            for change in (
                {"pid": float("inf")},
                {"shape": [-60, -1]},
                {"shape": [1] * 100 + [60]},
                {"shape": "60"},
                {"shape": [60.5]},
                {"shape": [1 << 70]},
                {"dtype": "O"},
                {"dtype": "(2,i4"},
                {"dtype": "(60,)u1", "shape": []},
                {"dtype": None},
                {"dtype": ["u1"]},
                {"started_ns": "x"},
                {"metadata": 5},
                {"first": float("nan")},
            )
        ),
    ],
)
def test_a_hostile_description_is_not_a_lane(segment: tuple[str, Path], text: bytes) -> None:
    name, path = segment
    damaged = bytearray(path.read_bytes())
    damaged[40:48] = struct.pack("<Q", len(text))
    damaged[FIXED_BYTES : FIXED_BYTES + len(text)] = text
    _mend(damaged)
    path.write_bytes(bytes(damaged))
    assert RingReader(path).description == text
    with pytest.raises(NotFoundError):
        LiveLane.attach(name)
    assert name not in {lane.name for lane in LiveLane.list()}


def test_a_segment_that_is_truncated_while_it_is_read_is_damaged(
    segment: tuple[str, Path],
) -> None:
    name, path = segment
    lane = LiveLane.attach(name)
    assert lane.latest() is not None
    os.truncate(path, HEADER_BYTES)
    for _ in range(2):
        with pytest.raises(CorruptError):
            lane.latest()
    with pytest.raises(CorruptError):
        _ = lane.is_live


def test_dtypes_of_arrays_and_objects_do_not_write_after_the_end(
    segment: tuple[str, Path],
) -> None:
    reader = RingReader(segment[1])
    # 15 pairs of numbers are 30 numbers, but the dtype has the bytes of both.
    found = reader.latest(np.dtype("(2,)i2"), [15])
    assert found is not None
    assert (found[0].shape, found[0].nbytes) == ((15, 2), 60)
    with pytest.raises(InvalidError, match="has 120"):
        reader.latest(np.dtype("(2,)i2"), [30])
    with pytest.raises(InvalidError, match="objects"):
        reader.latest(np.dtype("O"), [60 // np.dtype("O").itemsize])


def read_everything(path: Path) -> list[Any]:
    """Read all that a run has, through every way to read it."""
    run = ReplayRun(path)
    assert isinstance(run.info, dict)
    found = [run.info, *(run.episodes[place].load() for place in range(len(run.episodes)))]
    found += run.steps.to_pylist()
    for name in run.fields:
        found.append(run.read(name, [0] if name.startswith("final.") else [0, len(run) - 1]))
    return found


def _copy_with(root: Path, folder: Path, change: Any) -> Path | None:
    """Copy the file of a run, with its texts changed; None if `change` changes nothing."""
    import h5py

    path = folder / f"{RUN_ID}.h5"
    with h5py.File(root / "replay" / f"{RUN_ID}.h5") as file:
        texts = {key: file.attrs[key] for key in ("run", "episodes", "columns")}
    changed = {key: change(text, key) for key, text in texts.items()}
    if changed == texts:
        return None
    toy_run.copy_with(root, RUN_ID, path, changed)
    return path


def _table(root: Path) -> npt.NDArray[np.int64]:
    import h5py

    with h5py.File(root / "replay" / f"{RUN_ID}.h5") as file:
        table: npt.NDArray[np.int64] = file["chunks"][()]
        return table


def _copy_with_table(root: Path, folder: Path, table: npt.NDArray[Any]) -> Path:
    path = folder / f"{RUN_ID}.h5"
    toy_run.copy_with(root, RUN_ID, path, {}, {"chunks": table})
    return path


def _replacing(attribute: str, place: int, key: str, value: Any) -> Any:
    def change(text: str, name: str) -> str:
        described = json.loads(text)
        rows = described if isinstance(described, list) else [described]
        if name != attribute or place >= len(rows):
            return text
        rows[place][key] = value
        return json.dumps(described)

    return change


def _mend(segment: bytearray) -> None:
    """Make the checksum of a header match, as far as its length of the description is one."""
    (length,) = struct.unpack_from("<Q", segment, 40)
    described = segment[FIXED_BYTES : FIXED_BYTES + min(length, HEAD_AT - FIXED_BYTES)]
    crc = crc32c(bytes(segment[: FIXED_BYTES - 4] + described))
    struct.pack_into("<I", segment, FIXED_BYTES - 4, crc)


def _read_lane(name: str, path: Path, content: bytes, *, is_whole: bool) -> bool:
    """Return whether a lane with this content was read; its frame is one that was published."""
    path.write_bytes(content)
    try:
        found = LiveLane.attach(name).latest()
    except ReliveError:
        return False
    if is_whole:
        assert found is not None
        frame, scalars, sequence = found
        assert (sequence, scalars["reward"]) == (2, 1.0)
        assert (frame == 2).all()
    return True


def main(path: Path) -> None:
    """Read damaged copies of a file, and print for each whether it was read."""
    whole, right = path.read_bytes(), read_everything(path)
    for case in range(CASES):
        chance = random.Random(case)  # noqa: S311 - a seed, to reproduce a failure
        sys.stdout.write(f"{case} ")
        sys.stdout.flush()
        damaged = bytearray(whole)
        kind = case % 4
        if kind == 0:
            del damaged[chance.randrange(len(damaged)) :]
        elif kind == 1:
            start = chance.randrange(len(damaged))
            damaged[start : start + 64] = chance.randbytes(min(64, len(damaged) - start))
        else:
            for _ in range(kind):
                damaged[chance.randrange(len(damaged))] ^= 1 << chance.randrange(8)
        path.write_bytes(bytes(damaged))
        try:
            found = read_everything(path)
        except ReliveError as error:
            sys.stdout.write(f"refused: {str(error)!a}\n")
        else:
            np.testing.assert_equal(found, right)
            sys.stdout.write("read\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
