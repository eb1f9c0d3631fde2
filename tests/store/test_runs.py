"""`Run` is immutable, checks its arguments, and is saved atomically."""

import copy
import math
import pickle
import struct
import threading
from dataclasses import FrozenInstanceError, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pytest

import relive
from relive import Run, errors
from relive.store.runs import RunMeta

Array: TypeAlias = npt.NDArray[Any]

EXAMPLE = Path(__file__).resolve().parent.parent / "golden" / "runs" / "example.a2run2"
BOARDS = [0x1100_0000_0000_0000, 0x2000_0000_0000_0001, 0x0200_0000_0000_0013]
NAN = math.nan


@pytest.fixture(scope="module")
def example() -> Run:
    return Run.load(EXAMPLE)


def pickled(run: Run) -> Run:
    copied: Run = pickle.loads(pickle.dumps(run))  # noqa: S301 - our own data
    return copied


def test_example_is_a_2048_game(example: Run) -> None:
    assert len(example) == 959
    assert replace(example.meta, elapsed_s=0.0) == RunMeta(
        steps=959,
        start_unix_s=1_755_927_754,
        elapsed_s=0.0,
        max_score=20_504,
        highest_tile=2048,
        engine=None,
    )
    assert example.meta.elapsed_s == pytest.approx(15.259, abs=1e-3)
    assert example.branches is not None
    arrays: list[Array] = [example.boards, example.moves, example.branches]
    assert [array.dtype.name for array in arrays] == ["uint64", "uint8", "float32"]
    assert [array.shape for array in arrays] == [(960,), (959,), (959, 4)]
    assert example.final_board == example.boards[-1]
    assert isinstance(example.final_board, int)
    # Normalized within each step, and the best move was made.
    assert np.nanmin(example.branches) == 0
    assert np.nanmax(example.branches) <= 1
    chosen = example.branches[np.arange(959), example.moves]
    assert (chosen == np.nanmax(example.branches, axis=1)).all()


def test_run_derives_unspecified_metadata() -> None:
    run = Run(BOARDS, [2, 1])
    assert run.meta == RunMeta(2, 0, 0.0, 4 + 16, 8, None)
    assert run.boards.tolist() == BOARDS
    assert run.moves.tolist() == [2, 1]
    assert run.branches is None
    assert run.final_board == BOARDS[-1]
    assert Run([0], []).meta == RunMeta(0, 0, 0.0, 0, 0, None)
    assert Run([(1 << 64) - 1], []).meta == RunMeta(0, 0, 0.0, 16 * 14 * 32768, 32768, None)


def test_run_keeps_specified_metadata() -> None:
    run = Run(
        BOARDS,
        np.array([2, 1]),
        [[NAN] * 4, [0.25, NAN, 1, NAN]],
        start_unix_s=7,
        elapsed_s=0.1,
        engine="me",
        max_score=3,
        highest_tile=4,
    )
    assert run.meta == RunMeta(2, 7, float(np.float32(0.1)), 3, 4, "me")
    assert run.branches is not None
    assert np.array_equal(run.branches, [[NAN] * 4, [0.25, NAN, 1, NAN]], equal_nan=True)
    assert Run.from_bytes(run.to_bytes()) == run


def test_branches_without_values_are_none() -> None:
    assert Run(BOARDS, [2, 1], np.full((2, 4), NAN)) == Run(BOARDS, [2, 1])
    assert Run(BOARDS, [2, 1], np.full((2, 4), NAN)).branches is None


def test_run_copies_its_arguments() -> None:
    boards, moves = np.array(BOARDS, np.uint64), np.array([2, 1], np.uint8)
    branches = np.zeros((2, 4), np.float32)
    run = Run(boards, moves, branches)
    boards[0], moves[0], branches[0] = 0, 0, 1
    assert run == Run(BOARDS, [2, 1], np.zeros((2, 4)))


@pytest.mark.parametrize("made", [Run(BOARDS, [2, 1], np.zeros((2, 4))), Run.load(EXAMPLE)])
def test_run_is_immutable(made: Run) -> None:
    for run in (made, pickled(made)):
        assert run.branches is not None
        arrays: list[Array] = [run.boards, run.moves, run.branches]
        for array in arrays:
            with pytest.raises(ValueError, match="read-only"):
                array[0] = 0
            with pytest.raises(ValueError, match="WRITEABLE"):
                array.flags.writeable = True
        for name in ("boards", "meta", "_fields", "anything"):
            with pytest.raises(FrozenInstanceError, match=name):
                setattr(run, name, None)
        with pytest.raises(FrozenInstanceError, match="_meta"):
            del run._meta
        with pytest.raises(FrozenInstanceError):
            run.meta.steps = 3  # type: ignore[misc]
    assert not hasattr(made, "__dict__")


def test_runs_are_equal_by_content(example: Run) -> None:
    same = [
        Run.from_bytes(example.to_bytes()),
        pickled(example),
        copy.deepcopy(example),
    ]
    assert all(run == example and hash(run) == hash(example) for run in same)
    assert len({example, *same}) == 1
    assert example != Run(BOARDS, [2, 1])
    assert example != "example"


@pytest.mark.parametrize(
    "other",
    [
        Run([*BOARDS[:2], 0x0200_0000_0000_0014], [2, 1]),
        Run(BOARDS, [2, 2]),
        Run(BOARDS, [2, 1], np.zeros((2, 4))),
        Run(BOARDS, [2, 1], start_unix_s=1),
        Run(BOARDS, [2, 1], elapsed_s=1),
        Run(BOARDS, [2, 1], engine=""),
        Run(BOARDS, [2, 1], max_score=1),
        Run(BOARDS, [2, 1], highest_tile=1),
    ],
    ids=repr,
)
def test_any_difference_makes_runs_unequal(other: Run) -> None:
    assert other != Run(BOARDS, [2, 1])


def test_branches_differ_by_value_and_legality() -> None:
    run = Run(BOARDS, [2, 1], [[0, 1, NAN, NAN], [NAN] * 4])
    assert run == Run(BOARDS, [2, 1], [[0, 1, NAN, NAN], [NAN] * 4])
    assert run != Run(BOARDS, [2, 1], [[0, 0.5, NAN, NAN], [NAN] * 4])
    assert run != Run(BOARDS, [2, 1], [[0, 1, 0, NAN], [NAN] * 4])
    # A legal move with the value NaN differs from an illegal one.
    data = run.to_bytes()
    legal = data.replace(struct.pack("<f", 1.0), struct.pack("<f", NAN))
    illegal = data.replace(b"\0" + struct.pack("<f", 1.0), b"\1")
    assert Run.from_bytes(legal) != Run.from_bytes(illegal)
    assert Run.from_bytes(legal) == Run.from_bytes(legal)
    assert [Run.from_bytes(data).to_bytes() for data in (legal, illegal)] == [legal, illegal]


@pytest.mark.parametrize("bits", [0x7FC00000, 0x7F800001, 0xFFA55555, 0x7F800000, 0x80000000])
def test_every_float_is_kept_exactly(bits: int) -> None:
    data = Run(BOARDS, [2, 1], elapsed_s=1.5).to_bytes()
    odd = data.replace(struct.pack("<f", 1.5), struct.pack("<I", bits))
    run = Run.from_bytes(odd)
    assert run.to_bytes() == odd
    assert pickled(run).to_bytes() == odd
    assert run == Run.from_bytes(odd)
    assert hash(run) == hash(Run.from_bytes(odd))


def test_repr_is_one_line(example: Run) -> None:
    assert repr(example) == "Run(959 steps, highest tile 2048, score 20504)"
    assert repr(Run(BOARDS, [2, 1], engine="a\nb")) == (
        "Run(2 steps, highest tile 8, score 20, engine 'a\\nb')"
    )


def test_from_bytes_takes_any_buffer(example: Run) -> None:
    data = example.to_bytes()
    array = np.frombuffer(data, np.uint8)
    strided = np.repeat(array, 2)[::2]
    for same in (data, bytearray(data), memoryview(data), array, strided, strided.data):
        assert Run.from_bytes(same) == example
    for wrong in ("abc", 7, None, [1, 2], array.astype(np.float32), array.view(np.int8)):
        with pytest.raises(errors.InvalidTypeError, match="must be bytes"):
            Run.from_bytes(wrong)  # type: ignore[arg-type]


def test_version_1_has_no_branches(example: Run) -> None:
    with pytest.raises(errors.InvalidError, match="branch"):
        example.to_bytes(version=1)
    plain = Run(example.boards, example.moves, engine="me")
    data = plain.to_bytes(version=1)
    assert data.startswith(b"A2T1\1\0")
    assert len(data) == 36 + 2 + 8 * 960 + 959 + 4
    assert Run.from_bytes(data) == plain
    for version in (0, 3, -1, "2", None):
        with pytest.raises(errors.UnsupportedError, match="must be 1 or 2"):
            plain.to_bytes(version)  # type: ignore[arg-type]
    with pytest.raises(errors.InvalidError, match="empty engine"):
        Run(BOARDS, [2, 1], engine="").to_bytes(version=1)
    with pytest.raises(errors.InvalidError, match="65535"):
        Run(BOARDS, [2, 1], engine="é" * 32_768).to_bytes(version=1)


WRONG: list[tuple[dict[str, Any], type[errors.ReliveError], str]] = [
    ({"boards": BOARDS[:2]}, errors.InvalidError, "has 2 items, expected 3 for 2 moves"),
    ({"boards": []}, errors.InvalidError, "has 0 items, expected 3"),
    ({"boards": [BOARDS]}, errors.InvalidError, r"one dimension, got the shape \(1, 3\)"),
    ({"boards": [1, 2, 1 << 64]}, errors.InvalidError, "must fit in 64 bits"),
    ({"boards": [1, -2, 1 << 63]}, errors.InvalidError, "boards"),
    ({"boards": [1, -2, 3]}, errors.InvalidError, r"`boards\[1\]` must be .* got -2"),
    ({"boards": [1.0, 2.0, 3.0]}, errors.InvalidTypeError, "integers, got float64"),
    ({"boards": [1.5, 1 << 63, 3]}, errors.InvalidTypeError, "integers, got float64"),
    ({"boards": "abc"}, errors.InvalidError, "one dimension"),
    ({"boards": [[1], [2, 3], 4]}, errors.InvalidTypeError, "cannot be converted to an array"),
    ({"moves": [2, 4]}, errors.InvalidError, r"`moves\[1\]` must be from 0 to 3, got 4"),
    ({"moves": [-1, 2]}, errors.InvalidError, r"`moves\[0\]` must be from 0 to 3, got -1"),
    ({"moves": [True, False]}, errors.InvalidTypeError, "integers, got bool"),
    ({"moves": 2}, errors.InvalidError, "one dimension"),
    ({"branches": np.zeros((3, 4))}, errors.InvalidError, r"shape \(2, 4\), got \(3, 4\)"),
    ({"branches": np.zeros(8)}, errors.InvalidError, r"got \(8,\)"),
    ({"branches": [["a"] * 4] * 2}, errors.InvalidTypeError, "floats"),
    ({"branches": np.zeros((2, 4), bool)}, errors.InvalidTypeError, "floats, got bool"),
    ({"branches": [[0] * 4, [0, math.inf, 0, 0]]}, errors.InvalidError, "1.` must be finite"),
    ({"branches": np.full((2, 4), 1e300)}, errors.InvalidError, "0.` must be finite"),
    ({"start_unix_s": -1}, errors.InvalidError, "`start_unix_s` must be at least 0, got -1"),
    ({"start_unix_s": 1.0}, errors.InvalidTypeError, "`start_unix_s` must be an integer, got 1.0"),
    ({"max_score": 1 << 64}, errors.InvalidError, "max_score"),
    ({"highest_tile": 1 << 32}, errors.InvalidError, "highest_tile"),
    ({"elapsed_s": NAN}, errors.InvalidError, "`elapsed_s` must be .* got nan"),
    ({"elapsed_s": -1.0}, errors.InvalidError, "`elapsed_s` must be .* got -1.0"),
    ({"elapsed_s": 1e39}, errors.InvalidError, "`elapsed_s` must be .* got 1e"),
    ({"elapsed_s": "soon"}, errors.InvalidTypeError, "`elapsed_s` must be a number"),
    ({"engine": b"me"}, errors.InvalidTypeError, "`engine` must be a string, got b'me'"),
    ({"engine": "\ud800"}, errors.InvalidError, "cannot be encoded as UTF-8"),
]


@pytest.mark.parametrize(("change", "error", "text"), WRONG, ids=lambda value: str(value)[:40])
def test_invalid_arguments_raise(
    change: dict[str, Any], error: type[errors.ReliveError], text: str
) -> None:
    right: dict[str, Any] = {"boards": BOARDS, "moves": [2, 1]}
    Run(**right)
    with pytest.raises(error, match=text):
        Run(**(right | change))


def test_boards_of_any_integer_width_are_accepted() -> None:
    assert Run([1, 1 << 63], [0]).boards.tolist() == [1, 1 << 63]
    mixed: list[Any] = [1, np.uint64(1 << 63)]
    assert Run(mixed, [0]).boards.tolist() == mixed
    assert Run(np.array([1, 2], np.int16), np.array([3], np.int64)).boards.tolist() == [1, 2]
    assert Run(range(3), (0, 1)).boards.tolist() == [0, 1, 2]


def test_save_is_atomic_and_does_not_overwrite_by_default(tmp_path: Path, example: Run) -> None:
    path = tmp_path / "one.a2run2"
    example.save(path)
    assert path.read_bytes() == EXAMPLE.read_bytes()
    other = Run(BOARDS, [2, 1])
    with pytest.raises(errors.AlreadyExistsError, match=r"one\.a2run2"):
        other.save(path)
    assert Run.load(path) == example
    other.save(str(path), overwrite=True)
    assert Run.load(str(path)) == other
    assert [entry.name for entry in tmp_path.iterdir()] == ["one.a2run2"]
    with pytest.raises(errors.NotFoundError, match="cannot write"):
        other.save(tmp_path / "absent" / "one.a2run2")


def test_unreadable_file_is_named(tmp_path: Path, example: Run) -> None:
    path = tmp_path / "one.a2run2"
    with pytest.raises(errors.NotFoundError, match=r"one\.a2run2"):
        Run.load(path)
    with pytest.raises(errors.StorageError, match="cannot read"):
        Run.load(tmp_path)
    path.write_bytes(example.to_bytes()[:100])
    damage = (
        r"one\.a2run2`: the data of the run \(format version 2\) is damaged at byte 19: 81 bytes"
    )
    with pytest.raises(errors.CorruptError, match=damage):
        Run.load(path)


def test_runs_are_read_by_several_threads(example: Run) -> None:
    data = example.to_bytes()
    wrong: list[int] = []

    def read() -> None:
        wrong.extend(1 for _ in range(50) if Run.from_bytes(data) != example)

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_run_is_a_public_name() -> None:
    assert relive.Run is Run
