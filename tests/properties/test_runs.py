"""Any run round-trips, and two readers agree on any bytes."""

import struct
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from relive import Run, errors
from tests.golden.read_runs import crc32c, read
from tests.golden.runs.assemble import v1, v2, varint

U64 = st.one_of(st.integers(0, 2**64 - 1), st.integers(0, 70).map(lambda bits: 2**bits % 2**64))
FLOAT = st.floats(0, 1, width=32) | st.floats(width=32, allow_infinity=False, allow_nan=False)
ROW = st.none() | st.lists(st.none() | FLOAT, min_size=4, max_size=4)


@st.composite
def runs(draw: st.DrawFn, rows: st.SearchStrategy[Any] = ROW, engine_size: int = 0) -> Run:
    moves = draw(st.lists(st.integers(0, 3), max_size=80))
    boards = draw(st.lists(U64, min_size=len(moves) + 1, max_size=len(moves) + 1))
    known = draw(st.lists(rows, min_size=len(moves), max_size=len(moves)))
    branches = np.array([row or [None] * 4 for row in known], np.float32).reshape(-1, 4)
    return Run(
        boards,
        moves,
        branches,
        start_unix_s=draw(U64),
        elapsed_s=draw(st.floats(0, 2.0**100, width=32)),
        engine=draw(st.none() | st.text(min_size=engine_size, max_size=20)),
        max_score=draw(st.none() | U64),
        highest_tile=draw(st.none() | st.integers(0, 2**32 - 1)),
    )


@given(run=runs())
def test_version_2_round_trip(run: Run) -> None:
    data = run.to_bytes()
    again = Run.from_bytes(data)
    assert again == run
    assert hash(again) == hash(run)
    assert again.to_bytes() == data
    assert read(data)["boards"] == run.boards.tolist()


@given(run=runs(rows=st.none(), engine_size=1))
def test_version_1_round_trip(run: Run) -> None:
    data = run.to_bytes(version=1)
    again = Run.from_bytes(data)
    assert again == run
    assert again.to_bytes(version=1) == data
    assert read(data)["meta"]["engine"] == run.meta.engine


@given(
    boards=st.lists(U64, min_size=1, max_size=20),
    engine=st.none() | st.binary(max_size=8),
    moves=st.binary(max_size=20),
    step=st.binary(max_size=24),
    steps=st.integers(0, 3),
)
def test_both_readers_agree_on_mutated_runs(
    boards: list[int], engine: bytes | None, moves: bytes, step: bytes, steps: int
) -> None:
    check(v1(engine or b"", boards, list(moves)))
    check(v2(engine, boards, [step] * steps))


@given(data=st.binary(max_size=120), head=st.binary(min_size=31, max_size=90))
def test_both_readers_agree_on_any_bytes(data: bytes, head: bytes) -> None:
    check(data)
    check(varint(0) * 3 + data)
    sealed = b"A2T1\1\0" + head + data
    check(sealed + struct.pack("<I", crc32c(sealed)))


def check(data: bytes) -> None:
    """Check that both readers refuse `data`, or read the same run from it."""
    try:
        other = read(data)
    except ValueError:
        other = None
    try:
        run = Run.from_bytes(data)
    except errors.CorruptError:
        assert other is None
        return
    assert other is not None
    assert run.boards.tolist() == other["boards"]
    assert run.moves.tolist() == other["moves"]
    assert run.meta.engine == other["meta"]["engine"]
    again = run.to_bytes()
    assert Run.from_bytes(again) == run
    assert len(again) <= len(data) or data.startswith(b"A2T1\1")
