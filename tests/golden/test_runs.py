"""Golden runs stay readable, by relive and by a reader that shares no code with it."""

from itertools import product
from pathlib import Path

import numpy as np
import pytest

import relive
from relive import errors
from tests.golden.read_runs import read
from tests.golden.runs.assemble import FILES

FOLDER = Path(__file__).resolve().parent / "runs"
NAMES = sorted(path.stem for path in FOLDER.glob("*.a2run2"))


def bytes_of(name: str) -> bytes:
    return (FOLDER / f"{name}.a2run2").read_bytes()


def agree(run: relive.Run, data: bytes) -> bool:
    """Return whether the second reader reads the same run from `data`."""
    other = read(data)
    meta = {name: getattr(run.meta, name) for name in run.meta.__slots__}
    nothing = [None] * 4
    branches = np.array([row or nothing for row in other["branches"]], np.float32).reshape(-1, 4)
    known = any(row is not None for row in other["branches"])
    return (
        repr(meta) == repr({name: other["meta"][name] for name in meta})  # NaN as well
        and run.boards.tolist() == other["boards"]
        and run.moves.tolist() == other["moves"]
        and (run.branches is not None) == known
        and (run.branches is None or np.array_equal(run.branches, branches, equal_nan=True))
    )


def refused(data: bytes) -> bool:
    """Return whether the second reader refuses `data`."""
    try:
        read(data)
    except ValueError:
        return True
    return False


def test_files_equal_the_output_of_the_script() -> None:
    assert {name: bytes_of(name) for name in FILES} == FILES
    assert set(NAMES) == {*FILES, "example"}


@pytest.mark.parametrize("name", NAMES)
def test_both_readers_agree(name: str) -> None:
    assert agree(relive.Run.load(FOLDER / f"{name}.a2run2"), bytes_of(name))


@pytest.mark.parametrize("name", sorted(set(NAMES) - {"v1-engine-not-text", "v2-longer-integers"}))
def test_run_is_written_with_the_same_bytes(name: str) -> None:
    run = relive.Run.from_bytes(bytes_of(name))
    assert run.to_bytes(version=1 if name.startswith("v1") else 2) == bytes_of(name)


def test_non_canonical_runs_are_written_in_the_shorter_form() -> None:
    longer = relive.Run.from_bytes(bytes_of("v2-longer-integers"))
    assert len(longer.to_bytes()) == len(bytes_of("v2-longer-integers")) - 7 - 6
    assert relive.Run.from_bytes(longer.to_bytes()) == longer
    odd = relive.Run.from_bytes(bytes_of("v1-engine-not-text"))
    assert odd.meta.engine is None
    assert relive.Run.from_bytes(odd.to_bytes(version=1)) == odd


@pytest.mark.parametrize("name", ["v1-engine", "v2-some-branches"])
def test_every_truncation_raises_corrupt(name: str) -> None:
    data = bytes_of(name)
    for end in range(len(data)):
        with pytest.raises(errors.CorruptError, match="byte"):
            relive.Run.from_bytes(data[:end])
    with pytest.raises(errors.CorruptError, match="byte"):
        relive.Run.from_bytes(data + b"\0")


@pytest.mark.parametrize("name", ["v1-engine", "v2-some-branches", "v2-odd-floats"])
def test_every_changed_byte_is_corrupt_or_another_run(name: str) -> None:
    data = bytes_of(name)
    runs = 0
    for at, byte in product(range(len(data)), range(256)):
        changed = data[:at] + bytes([byte]) + data[at + 1 :]
        try:
            run = relive.Run.from_bytes(changed)
        except errors.CorruptError:
            continue
        runs += 1
        again = run.to_bytes(version=1 if name.startswith("v1") else 2)
        # Only integers in a non-minimal encoding are not kept.
        assert again == changed or len(again) < len(changed)
        assert relive.Run.from_bytes(again) == run
    # A changed byte may have no effect in v2, but the checksum of v1 finds every change.
    assert runs == len(data) if name.startswith("v1") else runs > len(data)


@pytest.mark.parametrize("name", ["v1-engine", "v2-some-branches"])
def test_both_readers_raise_for_the_same_files(name: str) -> None:
    data = bytes_of(name)
    flips = (0x01, 0x02, 0x40, 0x80, 0xFF)
    for at, flip in product(range(len(data)), flips):
        changed = data[:at] + bytes([data[at] ^ flip]) + data[at + 1 :]
        try:
            run = relive.Run.from_bytes(changed)
        except errors.CorruptError:
            assert refused(changed)
        else:
            assert agree(run, changed)
