"""Transitions are those that a loop over a list of steps makes."""

import os
import pickle
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from random import Random
from subprocess import PIPE, Popen
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from hypothesis import given, settings
from hypothesis import strategies as st

from relive import ArraySource, DataLoader
from relive.errors import (
    CorruptError,
    InvalidError,
    InvalidTypeError,
    OutOfRangeError,
    OverloadError,
    UnknownFieldError,
    UnknownNameError,
)
from relive.load import Concat, Mix
from relive.model import Source
from relive.replay import ReplayConfig, ReplayRecorder, ReplayRun, compact
from relive.replay.gym import Record
from relive.replay.storage.layout import lock_path
from relive.replay.transitions import growing
from relive.replay.transitions.growing import GrowingTransitions
from relive.replay.transitions.transitions import Transitions
from tests.replay import steps_by_hand
from tests.replay.steps_by_hand import Hand

SMALL = ReplayConfig(chunk_rows=4, sync_episodes=False, workers=1)
KINDS = ("plain", "first", "last")
GAMMA = 0.5


@contextmanager
def directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as path:
        yield Path(path)


@dataclass
class Asked:
    """Arguments of `transitions`."""

    n_step: int
    stack: int | None
    pad: str
    last: int | None
    sequence: tuple[int, int | None, int] | None


def arguments(random: Random) -> Asked:
    sequence = None
    if random.random() < 0.5:
        steps = random.randint(1, 6)
        sequence = steps, random.choice((None, 1, 2, 4)), random.randrange(steps)
    return Asked(
        random.randint(1, 4),
        random.choice((None, 1, 2, 4)),
        random.choice(("first", "zero")),
        random.choice((None, None, 1, 17, 60)),
        sequence,
    )


def play(hand: Hand, random: Random) -> None:
    """Record a step of a stream, or end its episode."""
    env = random.randrange(3)
    is_rare = [random.random() < 0.06 for _ in range(5)]
    if is_rare[0]:
        hand.end(env, sees_next=random.random() < 0.5)
        return
    ends = ("terminated", "truncated", "terminated truncated")
    hand.step(
        env,
        None if is_rare[1] else float(random.randint(-9, 9)),
        random.choice(ends) if random.random() < 0.15 else "",
        sees_next=random.random() < 0.5,
        sees=not is_rare[2],
        skip=int(is_rare[3]),
        drops=is_rare[4],
    )


def sees(hand: Hand) -> bool:
    """Check whether anything was observed."""
    return any(step.observation is not None for told in hand.told for step in told.steps)


def options_of(hand: Hand, asked: Asked) -> dict[str, Any]:
    sequence, stride, burn_in = asked.sequence or (None, None, 0)
    return {
        "n_step": asked.n_step,
        "gamma": GAMMA,
        "stack": asked.stack if hand.kind == "plain" else None,
        "pad": asked.pad,
        "last": asked.last,
        "sequence": sequence,
        "stride": stride,
        "burn_in": burn_in,
    }


def check(run: ReplayRun, hand: Hand, asked: Asked) -> None:
    """Compare all transitions of a run with those made by hand."""
    if sees(hand):
        check_made(run.transitions(**options_of(hand, asked)), hand, asked)
        return
    with pytest.raises(InvalidError, match="no observations"):
        run.transitions()


def check_made(made: Transitions, hand: Hand, asked: Asked) -> None:
    options = options_of(hand, asked)
    sequence, stride, burn_in = (options[name] for name in ("sequence", "stride", "burn_in"))
    first_row = 0 if asked.last is None else max(0, hand.rows - asked.last)
    expected = steps_by_hand.transitions(
        hand.told,
        n_step=asked.n_step,
        gamma=GAMMA,
        stack=options["stack"],
        pad=asked.pad,
        first_row=first_row,
    )
    if sequence is None:
        check_rows(made, [([row], [True]) for row in expected], expected, None)
        assert made.positions(list(expected)).tolist() == list(range(len(expected)))
        assert made.positions([first_row - 1, hand.rows]).tolist() == [-1, -1]
        return
    distance = sequence - burn_in if stride is None else stride
    windows = steps_by_hand.sequences(hand.told, expected, sequence, distance, burn_in)
    check_rows(made, windows, expected, sequence)


def check_rows(
    made: Transitions,
    windows: list[tuple[list[int], list[bool]]],
    expected: dict[int, dict[str, Any]],
    sequence: int | None,
) -> None:
    assert len(made) == len(windows)
    assert ("mask" in made.fields) == (sequence is not None)
    if not windows:
        return
    batch = made.gather(np.arange(len(made)))
    steps = sequence or 1
    places = {row: place for place, row in enumerate(expected)}
    at = np.full((len(windows), steps), -1)
    flags = np.zeros((len(windows), steps), np.bool_)
    for place, (rows, mask) in enumerate(windows):
        at[place, : len(rows)] = [places[row] for row in rows]
        flags[place, : len(mask)] = mask
    for name, found in batch.items():
        wanted = flags
        if name != "mask":
            values = np.array([each[name] for each in expected.values()])
            wanted = values[at]
            wanted[at == -1] = 0  # after the end of a sequence
        wanted = wanted if sequence else wanted[:, 0]
        np.testing.assert_array_equal(found, wanted, err_msg=name)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=5)
@given(st.integers(0, 2**32 - 1))
def test_transitions_are_those_of_a_list_of_steps(kind: str, seed: int) -> None:
    random = Random(seed)  # noqa: S311 - it draws steps
    with directory() as root:
        with ReplayRecorder(root, "run", config=SMALL, live=None) as recorder:
            hand = Hand(recorder, kind)
            for number in range(150):
                if number % 40 == 30:
                    recorder.flush()
                    check(ReplayRun(root, "run"), hand, arguments(random))
                play(hand, random)
        closed(hand)
        run = ReplayRun(root, "run")
        for _ in range(6):
            check(run, hand, arguments(random))


def closed(hand: Hand) -> None:
    """Note that a recorder was closed: that ended its episodes as truncated."""
    for told in hand.open.values():
        if told.is_whole and told.steps:
            told.steps[-1].truncated = True
        told.is_over = True
    hand.open.clear()


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=8)
@given(st.integers(0, 2**32 - 1))
def test_a_growing_run_has_at_any_time_the_transitions_of_its_steps(kind: str, seed: int) -> None:
    random = Random(seed)  # noqa: S311 - it draws steps
    with pytest.MonkeyPatch.context() as patch, directory() as root:
        # Of a few steps there are several parts, and they are joined.
        patch.setattr(growing, "_PART_ROWS", random.choice((1, 5, 20)))
        patch.setattr(growing, "_SEQUENCE_ROWS", random.choice((1, 9, 30)))
        patch.setattr(growing, "_MAX_PART", random.choice((10, 60, 1000)))
        # Steps that are not settled are left aside, rarely or always.
        patch.setattr(growing, "_IDLE_PARTS", random.choice((0, 1, 4)))
        patch.setattr(growing, "_IDLE_COST", random.choice((0, 1, 2, 16)))
        with ReplayRecorder(root, "run", config=SMALL, live=None) as recorder:
            hand = Hand(recorder, kind)
            play_and_check(root, recorder, hand, random)
        closed(hand)


def play_and_check(root: Path, recorder: ReplayRecorder, hand: Hand, random: Random) -> None:
    asked = [arguments(random) for _ in range(5)]
    # What was accepted is in the first three, what was committed in the others.
    made: list[Transitions | None] = [
        recorder.transitions(**options_of(hand, each)) for each in asked[:3]
    ]
    made += [None, None]
    for _ in range(60):
        for _ in range(random.choice((0, 1, 1, 2, 7))):
            play(hand, random)
        which = random.randrange(5)
        if which >= 3 or random.random() < 0.3:
            recorder.flush()
        if which >= 3 and made[which] is None and sees(hand):
            run = ReplayRun(root, "run")
            made[which] = run.transitions(**options_of(hand, asked[which]), follow=True)
        buffer = made[which]
        if buffer is not None:
            check_growing(recorder, hand, buffer, asked[which], random)
    recorder.flush()
    for buffer, each in zip(made, asked, strict=True):
        if buffer is not None and sees(hand):
            buffer.refresh()
            check_made(buffer, hand, each)


def check_growing(
    recorder: ReplayRecorder, hand: Hand, buffer: Transitions, asked: Asked, random: Random
) -> None:
    """Compare transitions with those of the steps so far, and a snapshot with what it was."""
    buffer.refresh()
    if not sees(hand):
        assert len(buffer) == 0
        return
    check_made(buffer, hand, asked)
    before = buffer.snapshot()
    expected = before.gather(np.arange(len(before)))
    (keys,) = before.row_keys() or ()
    known = set(keys.since(0).tolist())
    for _ in range(3):
        play(hand, random)
    recorder.flush()
    buffer.refresh()
    check_made(buffer, hand, asked)
    (later,) = buffer.row_keys() or ()
    assert set(later.since(0).tolist()) <= known | set(later.since(keys.settled).tolist())
    for name, values in before.gather(np.arange(len(before))).items():
        np.testing.assert_array_equal(values, expected[name])


def record(root: Path, kind: str = "first", episodes: int = 6, **config: Any) -> Hand:
    settings = {"chunk_rows": 4, "sync_episodes": False, "workers": 1} | config
    with ReplayRecorder(root, "run", config=ReplayConfig(**settings), live=None) as recorder:
        hand = Hand(recorder, kind)
        for number in range(episodes):
            for step in range(7):
                is_last = step == 6
                end = ("terminated", "truncated")[number % 2] if is_last else ""
                hand.step(0, float(step), end, sees_next=is_last)
    return hand


PLAIN = Asked(3, None, "first", None, None)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("codec", ["raw", "zstd", "lz4"])
def test_every_codec_and_cache_gives_the_same_rows(tmp_path: Path, kind: str, codec: str) -> None:
    hand = record(tmp_path, kind, codec=codec)
    run = ReplayRun(tmp_path, "run")
    check(run, hand, PLAIN)
    whole = run.transitions(stack=3 if kind == "plain" else None)
    expected = whole.gather(np.arange(len(whole)))
    rows = np.random.default_rng(0).integers(0, len(whole), (40, 8))
    for cache_bytes in (0, 8, 1200, 5000, 1 << 30):
        made = run.transitions(cache_bytes=cache_bytes, stack=3 if kind == "plain" else None)
        with ThreadPoolExecutor(4) as pool:
            for indices, batch in zip(rows, pool.map(made.gather, rows), strict=True):
                for name, values in batch.items():
                    np.testing.assert_array_equal(values, expected[name][indices])


def test_draws_that_the_cache_cannot_hold_warn_once(tmp_path: Path) -> None:
    config = ReplayConfig(codec="zstd", chunk_rows=4)
    with ReplayRecorder(tmp_path, "run", config=config, live=None) as recorder:
        hand = Hand(recorder, "first")
        for _ in range(40):
            hand.step()
    run = ReplayRun(tmp_path, "run")
    made = run.transitions(cache_bytes=1 << 20)
    needed = len(made.sample(64, seed=1)["index"])  # without a warning, and all chunks are decoded
    assert needed == 64
    small = run.transitions(cache_bytes=1000)
    with pytest.warns(RuntimeWarning, match=r"^a draw of 64 from run 'run' decoded \d+ bytes"):
        small.sample(64, seed=1)
    with warnings.catch_warnings(record=True) as caught:
        batch = small.sample(64, seed=1)  # warns once
        whole = small.gather(np.arange(len(small)))  # not a draw
    assert caught == []
    np.testing.assert_array_equal(batch["index"], made.sample(64, seed=1)["index"])
    assert len(whole["index"]) == len(small)
    with pytest.warns(RuntimeWarning, match="`cache_bytes` keeps 1000: ") as found:
        next(run.transitions(cache_bytes=1000).batches(64, seed=1))
    assert [Path(each.filename).name for each in found] == [Path(__file__).name]


@pytest.mark.parametrize("codec", ["raw", "zstd"])
def test_a_run_that_is_recorded_is_read_without_a_map(tmp_path: Path, codec: str) -> None:
    config = ReplayConfig(codec=codec, chunk_rows=4)
    with ReplayRecorder(tmp_path, "run", config=config, live=None) as recorder:
        hand = Hand(recorder, "first")
        for number in range(30):
            hand.step(0, 1.0, "terminated" if number % 9 == 8 else "")
        recorder.flush()
        made = ReplayRun(tmp_path, "run").transitions(cache_bytes=2000)
        before = made.gather(np.arange(len(made)))
        hand.step(0, 1.0)
        recorder.flush()
        made.refresh()
        assert len(made) == len(before["index"]) + 1
        again = made.gather(np.arange(len(made) - 1))
        for name, values in before.items():
            np.testing.assert_array_equal(again[name], values)


@pytest.mark.parametrize("is_open", [False, True])
@pytest.mark.parametrize("codec", ["raw", "zstd"])
def test_damage_is_an_error(tmp_path: Path, codec: str, *, is_open: bool) -> None:
    recorder = None
    if is_open:
        recorder = ReplayRecorder(
            tmp_path, "run", config=ReplayConfig(codec=codec, chunk_rows=4), live=None
        )
        hand = Hand(recorder, "first")
        for _ in range(20):
            hand.step()
        recorder.flush()
    else:
        record(tmp_path, codec=codec)
    path = tmp_path / "replay" / "run.h5"
    run = ReplayRun(tmp_path, "run")
    made = run.transitions()  # before the damage, which is in planes
    content = bytearray(path.read_bytes())
    offset, size = chunk_of_planes(run)
    content[offset + size // 2] ^= 4
    path.write_bytes(content)
    with pytest.raises(CorruptError, match="planes/observations at row 4 has a wrong checksum"):
        made.gather(np.arange(len(made)))
    # Where nothing is damaged, rows are read.
    made.gather([0])
    if recorder is not None:
        recorder.abort()


def chunk_of_planes(run: ReplayRun) -> tuple[int, int]:
    """Return where the second chunk of planes is, and its size."""
    tables: Any = run.source
    _, _, offset, size, _ = sorted(tables.tables.chunks["planes/observations"])[1]
    return offset, size


def test_a_file_that_was_truncated_is_an_error(tmp_path: Path) -> None:
    record(tmp_path, codec="raw")
    made = ReplayRun(tmp_path, "run").transitions()
    path = tmp_path / "replay" / "run.h5"
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size // 2)
    with pytest.raises(CorruptError, match="bytes, but had"):
        made.gather([0])


def test_aborted_steps_are_an_error_and_not_a_signal(tmp_path: Path) -> None:
    raw = ReplayConfig(codec="raw", chunk_rows=4)
    with ReplayRecorder(tmp_path, "run", config=raw, live=None) as recorder:
        Hand(recorder, "first").step()
    recorder = ReplayRecorder(tmp_path, "run", config=raw, live=None)
    hand = Hand(recorder, "first")
    for _ in range(20):
        hand.step()
    recorder.flush()
    made = ReplayRun(tmp_path, "run").transitions()
    recorder.abort()  # which truncates the file
    with pytest.raises(CorruptError, match="is missing"):
        made.gather(np.arange(len(made)))


class Clock(gymnasium.Env[Any, Any]):  # type: ignore[misc]
    """Observes its number, its episode and the time in it; episodes differ in length."""

    observation_space = spaces.Box(-1e6, 1e6, (3,), np.float32)
    action_space = spaces.Discrete(3)

    def __init__(self, number: int) -> None:
        self._number, self._episode, self._time = number, -1, 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._episode, self._time = self._episode + 1, 0
        return self._seen(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._time += 1
        is_over = self._time == 2 + (self._number + self._episode) % 3
        is_terminated = is_over and self._episode % 2 == 0
        return self._seen(), float(self._time), is_terminated, is_over and not is_terminated, {}

    def _seen(self) -> Any:
        return np.array([self._number, self._episode, self._time], np.float32)


@pytest.mark.parametrize("mode", ["next_step", "same_step", "disabled"])
@pytest.mark.parametrize("n_step", [1, 3])
def test_no_transition_goes_over_a_reset(tmp_path: Path, mode: str, n_step: int) -> None:
    envs = SyncVectorEnv(
        [lambda number=number: Clock(number) for number in range(3)],
        autoreset_mode=AutoresetMode[mode.upper()],
    )
    with Record(envs, tmp_path, "run", live=None) as recorded:
        recorded.reset(seed=1)
        for _ in range(20):
            _, _, terminated, truncated, _ = recorded.step(np.zeros(3, np.int64))
            over = terminated | truncated
            if mode == "disabled" and over.any():
                recorded.reset(options={"reset_mask": over})
    made = ReplayRun(tmp_path, "run").transitions(n_step=n_step, gamma=1.0)
    batch: Any = made.gather(np.arange(len(made)))
    before, after = batch["observation"], batch["next_observation"]
    np.testing.assert_array_equal(before[:, :2], after[:, :2])
    np.testing.assert_array_equal(after[:, 2] - before[:, 2], batch["n"])
    length = 2 + (before[:, 0] + before[:, 1]) % 3
    is_over = after[:, 2] == length
    is_terminating = before[:, 1] % 2 == 0
    np.testing.assert_array_equal(batch["terminated"], is_over & is_terminating)
    # Closing the recorder truncated the episodes that were open.
    newest = {tuple(each[:2]): each[2] for each in after}
    is_newest = np.array([newest[tuple(each[:2])] == each[2] for each in after])
    is_over |= is_newest
    np.testing.assert_array_equal(batch["truncated"], is_over & ~batch["terminated"])
    np.testing.assert_array_equal(batch["discount"], ~batch["terminated"])
    # Rewards are the times that were reached.
    n, start = batch["n"], before[:, 2]
    np.testing.assert_array_equal(batch["reward"], n * start + n * (n + 1) / 2)
    # Every step that led somewhere is there: 20 of each, less those that only reset.
    assert is_over.sum() > 6
    assert (before[:, 2] == 0).sum() >= 6


@pytest.mark.parametrize("where", ["recorder", "run"])
@pytest.mark.parametrize("mode", ["next_step", "same_step", "disabled"])
def test_resets_of_a_growing_run_are_those_of_the_closed_run(
    tmp_path: Path, mode: str, where: str
) -> None:
    envs = SyncVectorEnv(
        [lambda number=number: Clock(number) for number in range(3)],
        autoreset_mode=AutoresetMode[mode.upper()],
    )
    seen: list[Any] = []
    with Record(envs, tmp_path, "run", live=None, config=SMALL) as recorded:
        recorded.reset(seed=1)
        made = None
        for count in range(1, 25):
            _, _, terminated, truncated, _ = recorded.step(np.zeros(3, np.int64))
            over = terminated | truncated
            if mode == "disabled" and over.any():
                recorded.reset(options={"reset_mask": over})
            if where == "run" and count % 3 == 0:
                recorded.recorder.flush()
            if made is None:
                if where == "run" and count < 3:
                    continue
                one = recorded.recorder if where == "recorder" else ReplayRun(tmp_path, "run")
                made = one.transitions(n_step=2, gamma=0.5, stack=2)
            made.refresh()
            seen.append(made.gather(np.arange(len(made))))
    final = ReplayRun(tmp_path, "run").transitions(n_step=2, gamma=0.5, stack=2)
    assert [len(batch["index"]) for batch in seen][-1] > 40
    for batch in seen:
        expected: Any = final.gather(final.positions(batch["index"]))
        # The last transition of each open episode goes over fewer steps than later.
        is_short = batch["n"] < expected["n"]
        assert is_short.sum() <= 3
        assert not (batch["terminated"] | batch["truncated"])[is_short].any()
        for name, values in batch.items():
            found, known = values[~is_short], expected[name][~is_short]
            if name == "truncated":  # closing truncated what was open
                assert not (found & ~known).any()
                continue
            np.testing.assert_array_equal(found, known, err_msg=name)
    every: Any = final.gather(np.arange(len(final)))
    is_in_all = np.isin(every["index"], seen[-1]["index"])
    # What is not there yet is at the end of an open episode.
    assert (~is_in_all).sum() <= 2 * 3


@pytest.mark.parametrize("sequence", [None, 8])
def test_what_left_a_window_is_not_kept(tmp_path: Path, sequence: int | None) -> None:
    with ReplayRecorder(tmp_path, "run", live=None, config=ReplayConfig(chunk_rows=8)) as recorder:

        def record(first: int, count: int) -> None:
            for number in range(first, first + count):
                seen = np.full((16, 16), number % 251, np.uint8)
                recorder.step(seen, 0, 1.0, terminated=number % 50 == 49)
            recorder.flush()

        record(0, 600)
        run = ReplayRun(tmp_path, "run")
        window = run.transitions(last=300, stack=2, sequence=sequence)
        most = 0
        for number in range(600, 3000, 200):
            batch: Any = window.gather(np.arange(len(window)))
            last = batch["observation"].reshape(-1, 2, 256)[:, 1, 0]
            is_there = batch.get("mask", np.ones(len(last), np.bool_)).ravel()
            np.testing.assert_array_equal(last[is_there], batch["index"].ravel()[is_there] % 251)
            planes = window._growing._planes  # type: ignore[union-attr]
            assert planes is not None
            most = max(most, planes.kept_bytes)
            record(number, 200)
            window.refresh()
            # The window, what was at its edge, and parts of chunks.
            assert planes.kept_bytes <= 360 * 256
        assert most >= 300 * 256


def nested(root: Path) -> ReplayRun:
    with ReplayRecorder(root, "run", config=SMALL, live=None) as recorder:
        for number in range(10):
            recorder.step(
                {"image": np.full((2, 3), number, np.uint8), "speed": np.float32(number)},
                {"turn": np.float32(number), "gas": number},
                1.0,
                number % 5 == 4,
                frame=np.full((4, 4, 3), number, np.uint8),
                extras={"log_prob": np.float32(number), "state": np.full(30, number)},
                info={"map": np.full(2000, number)},
            )
    return ReplayRun(root, "run")


def test_nested_values_have_a_field_for_each_leaf(tmp_path: Path) -> None:
    made = nested(tmp_path).transitions(stack=2)
    assert list(made.fields) == [
        "observation.image",
        "observation.speed",
        "action.turn",
        "action.gas",
        "reward",
        "next_observation.image",
        "next_observation.speed",
        "terminated",
        "truncated",
        "discount",
        "n",
        "index",
        "episode",
        "extras.log_prob",
        "extras.state",
    ]
    batch: Any = made.gather([1, 4])
    assert batch["observation.image"][:, :, 0, 0].tolist() == [[0, 1], [3, 4]]
    assert batch["next_observation.speed"].tolist() == [[1, 2], [3, 4]]
    assert batch["action.gas"].tolist() == [1, 4]
    assert batch["extras.state"][:, 0].tolist() == [1, 4]
    assert batch["extras.log_prob"].tolist() == [1, 4]


def test_fields_that_were_asked_for_are_read(tmp_path: Path) -> None:
    run = nested(tmp_path)
    names = ["frame", "observation", "info.map", "step_index", "index"]
    made = run.transitions(fields=names)
    assert set(made.fields) == {*names, "observation.image", "observation.speed"} - {"observation"}
    batch: Any = made.gather([7])
    assert batch["frame"].shape == (1, 4, 4, 3)
    assert (batch["frame"].max(), batch["info.map"][0, 0], batch["step_index"][0]) == (7, 7, 2)
    with pytest.raises(UnknownFieldError, match="unknown field 'obs'"):
        run.transitions(fields=["obs"])
    with pytest.raises(UnknownFieldError, match="mask"):
        run.transitions(fields=["mask"])


def test_episodes_of_interleaved_streams_have_their_bounds(tmp_path: Path) -> None:
    with ReplayRecorder(tmp_path, "run", config=SMALL, live=None) as recorder:
        hand = Hand(recorder)
        for number in range(6):
            for env in range(2):
                hand.step(env, 1.0, "terminated" if number % 3 == 2 else "")
    made = ReplayRun(tmp_path, "run").transitions()
    first, last = made.episode_bounds([[0, 3], [11, 6]])
    assert first.tolist() == [[0, 1], [7, 6]]
    assert last.tolist() == [[4, 5], [11, 10]]
    assert made.episode_rows(8).tolist() == [6, 8, 10]
    with pytest.raises(OutOfRangeError):
        made.episode_bounds([12])
    with pytest.raises(InvalidTypeError):
        made.episode_bounds([0.5])


def test_loaders_and_compositions_read_transitions_natively(tmp_path: Path) -> None:
    record(tmp_path / "a")
    record(tmp_path / "b", episodes=3)
    a, b = (ReplayRun(tmp_path / name, "run").transitions(n_step=2) for name in "ab")
    for source in (Concat(a, b), Mix(a, b, weights=(2, 1)), a[5:]):
        assert source.native_table() is not None
    assert index_of(Concat(a, b)[len(a) :]) == [2**40 + row for row in index_of(b)]
    loader = DataLoader(a, batch_size=16, epochs=1, tail="keep")
    batches: list[Any] = list(loader)
    index = np.concatenate([batch["index"] for batch in batches])
    assert sorted(index.tolist()) == list(range(len(a)))
    for batch in batches:
        for name, values in a.gather(batch["index"]).items():
            np.testing.assert_array_equal(batch[name], values)


def test_draws_are_uniform_and_repeatable(tmp_path: Path) -> None:
    record(tmp_path)
    made = ReplayRun(tmp_path, "run").transitions()
    first: Any = made.sample(2000, seed=3, fields=["index"])
    assert list(first) == ["index"]
    np.testing.assert_array_equal(made.sample(2000, seed=3)["index"], first["index"])
    assert np.bincount(first["index"], minlength=len(made)).min() > 10
    generator = np.random.default_rng(5)
    one: Any = made.sample(9, generator=generator)["index"]
    two: Any = made.sample(9, generator=generator)["index"]
    assert one.tolist() != two.tolist()
    batches: Any = list(islice(made.batches(9, seed=5), 2))
    assert [each["index"].tolist() for each in batches] == [one.tolist(), two.tolist()]
    with pytest.raises(InvalidError, match="not both"):
        made.sample(1, seed=1, generator=generator)
    with pytest.raises(InvalidTypeError, match="Generator"):
        made.sample(1, generator=1)  # type: ignore[arg-type]


def index_of(source: Source) -> Any:
    batch: Any = source.gather(range(len(source)))
    return batch["index"].tolist()


def test_transitions_are_a_snapshot_that_refresh_replaces(tmp_path: Path) -> None:
    with ReplayRecorder(tmp_path, "run", config=SMALL, live=None) as recorder:
        hand = Hand(recorder)
        hand.step()
        recorder.flush()
        run = ReplayRun(tmp_path, "run")
        made = run.transitions(last=3)
        assert len(made) == 0
        with pytest.raises(InvalidError, match="no transitions to draw from"):
            made.sample(1)
        for _ in range(4):
            hand.step()
        recorder.flush()
        assert len(made) == 0
        made.refresh()
        assert index_of(made) == [2, 3]  # positions slide
        snapshot = made.snapshot()
        assert snapshot is made.snapshot()
        assert snapshot is snapshot.snapshot()
        copied = pickle.dumps(made)
        hand.end(0, sees_next=True)
        hand.step()
        hand.step()
        recorder.flush()
        made.refresh()
        assert index_of(made) == [4, 5]
        assert made.snapshot() is not snapshot
        # A copy in another process has the steps of its original, whatever was recorded since.
        for old in (snapshot, pickle.loads(copied)):  # noqa: S301 - it was made above
            assert index_of(old) == [2, 3]
        recorder.abort()
    with pytest.raises(UnknownNameError, match="no run"):
        pickle.loads(copied)  # noqa: S301
    with ReplayRecorder(tmp_path, "run", config=SMALL, live=None) as recorder:
        Hand(recorder).step()
    with pytest.raises(InvalidError, match="no longer has the 5 steps"):
        pickle.loads(copied)  # noqa: S301


def test_a_copied_file_and_a_compacted_run_have_the_same_transitions(tmp_path: Path) -> None:
    record(tmp_path)
    run = ReplayRun(tmp_path, "run")
    expected = run.transitions(n_step=2)
    batch = expected.gather(range(len(expected)))
    copy = tmp_path / "copy.h5"
    copy.write_bytes((tmp_path / "replay" / "run.h5").read_bytes())
    compact(tmp_path, "run", codec="raw")
    for other in (ReplayRun(copy), ReplayRun(tmp_path, "run"), run):
        made = other.transitions(n_step=2)
        for name, values in made.gather(range(len(made))).items():
            np.testing.assert_array_equal(values, batch[name])


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"n_step": 0}, InvalidError, "n_step"),
        ({"gamma": 1.5}, InvalidError, "`gamma` must be from 0 to 1, got 1.5"),
        ({"gamma": "1"}, InvalidTypeError, "`gamma` must be a number"),
        ({"pad": "last"}, InvalidError, "pad"),
        ({"stride": 2}, InvalidError, "require `sequence`"),
        ({"sequence": 3, "burn_in": 3}, InvalidError, "less than `sequence`"),
        ({"last": 0}, InvalidError, "last"),
        ({"cache_bytes": -1}, InvalidError, "cache_bytes"),
        ({"fields": "reward"}, InvalidTypeError, "list of names"),
        ({"fields": []}, InvalidError, "at least one name"),
        ({"stack": 4}, InvalidError, "recorded as stacks of 3, so `stack` cannot be 4"),
    ],
)
def test_arguments_are_checked(
    tmp_path: Path, options: dict[str, Any], error: type[Exception], text: str
) -> None:
    record(tmp_path, episodes=1)
    with pytest.raises(error, match=text):
        ReplayRun(tmp_path, "run").transitions(**options)


def test_a_run_without_observations_has_no_transitions(tmp_path: Path) -> None:
    with ReplayRecorder(tmp_path, "run", live=None) as recorder:
        recorder.step(action=1, reward=1.0)
    with pytest.raises(InvalidError, match="no observations"):
        ReplayRun(tmp_path, "run").transitions()


def test_transitions_of_several_runs_have_an_index_each(tmp_path: Path) -> None:
    for name in "abc":
        record(tmp_path / name)
    a, b, c = (ReplayRun(tmp_path / name, "run").transitions(n_step=2) for name in "abc")
    rows = index_of(a)
    joined = Concat(a, Concat(b, a), Mix(c, b))
    every: Any = joined.gather(range(len(joined)))
    starts = [2**40 * number for number in range(5)]
    expected = [start + row for start in starts[:3] for row in rows]
    assert every["index"][: 3 * len(a)].tolist() == expected
    assert set(every["index"][3 * len(a) :].tolist()) == {
        start + row for start in starts[3:] for row in rows
    }
    copied = pickle.loads(pickle.dumps(joined))  # noqa: S301 - our own data
    np.testing.assert_array_equal(copied.gather(range(len(joined)))["index"], every["index"])
    parts, index = joined.origin_of(np.array([rows[3], starts[2] + rows[5], starts[3] + rows[7]]))
    assert (parts.tolist(), index.tolist()) == ([0, 1, 2], [rows[3], starts[1] + rows[5], rows[7]])
    parts, index = Concat(b, a).origin_of([index[1]])
    assert (parts.tolist(), index.tolist()) == ([1], [rows[5]])
    assert a.episode_bounds(index)[0] <= rows[5]
    for bad in (-1, starts[4] + 2**40):
        with pytest.raises(OutOfRangeError, match=f"index {bad} is out of range for 3 sources"):
            joined.origin_of([bad])
    # Other sources may have a field of that name.
    other = ArraySource({"index": np.arange(3)})
    found: Any = Concat(other, other).gather(range(6))
    assert found["index"].tolist() == [0, 1, 2, 0, 1, 2]
    with pytest.raises(InvalidError, match="source 1 has no transitions"):
        Concat(other, other).origin_of([2**40])
    sequences = Concat(*(each.transitions(sequence=3) for each in runs_of(tmp_path, "ab")))
    found = sequences.gather([len(sequences) - 1])
    assert found["index"][0, 0] >= 2**40


def runs_of(root: Path, names: str) -> list[ReplayRun]:
    return [ReplayRun(root / name, "run") for name in names]


def rows_of(batch: Any) -> list[int]:
    rows: list[int] = batch["index"].tolist()
    return rows


def test_draws_follow_a_run_that_grows(tmp_path: Path) -> None:
    with ReplayRecorder(tmp_path, "run", config=SMALL, live=None) as recorder:
        own = recorder.transitions(last=3)
        assert (len(own), own.due, repr(own)) == (0, 0, "Transitions('run', no steps yet)")
        with pytest.raises(InvalidError, match="record a step first"):
            _ = own.fields
        hand = Hand(recorder)
        for _ in range(5):
            hand.step()
        # Steps that were not committed are there.
        assert set(rows_of(own.sample(64))) == {2, 3}
        recorder.flush()
        run = ReplayRun(tmp_path, "run")
        other, still = run.transitions(follow=True), run.transitions()
        draws = other.batches(64, seed=0)
        assert max(next(draws)["index"]) == 3
        hand.step()
        recorder.flush()
        assert max(next(draws)["index"]) == 4
        assert max(still.sample(64)["index"]) == 3
        loader = DataLoader(other, batch_size=1, mode="sequential", workers=0)
        first = loader.epoch()
        assert rows_of(next(first)) == [0]
        hand.step()
        recorder.flush()
        assert [batch["index"][0] for batch in first] == [1, 2, 3, 4]
        assert [batch["index"][0] for batch in loader.epoch()] == [0, 1, 2, 3, 4, 5]
    assert sorted(set(rows_of(own.sample(64)))) == [4, 5]


def test_draws_are_limited(tmp_path: Path) -> None:
    with ReplayRecorder(tmp_path, "run", config=SMALL, live=None) as recorder:
        hand = Hand(recorder)
        for _ in range(4):
            hand.step()
        made = recorder.transitions(min_size=6, samples_per_insert=2.5)
        with pytest.raises(OverloadError, match="there are 3 transitions of at least 6"):
            made.sample(1)
        for _ in range(3):
            hand.step()
        # Seven steps have six transitions: `min_size` needs all of them.
        assert (len(made), made.due, len(made)) == (3, 0, 6)
        hand.step()
        assert made.due == 2
        made.sample(2)
        assert (len(made), made.due) == (7, 0)
        with pytest.raises(OverloadError, match="0 transitions may be drawn"):
            made.sample(1)
        state = made.state_dict()
        for _ in range(3):
            hand.step()
        assert made.due == 8
        draws = made.batches(3, seed=1, prefetch=2)
        expected = [rows_of(next(draws)) for _ in range(2)]
        assert made.due == 2
        # What was there before counts only if a state says so.
        resumed = recorder.transitions(min_size=6, samples_per_insert=2.5)
        assert resumed.due == 0
        resumed.load_state_dict(state)
        assert resumed.due == 8
        again = resumed.batches(3, seed=1)
        assert [rows_of(next(again)) for _ in range(2)] == expected
        recorder.flush()
        # In the process that records, others would wait for themselves, too.
        other = ReplayRun(tmp_path, "run").transitions(follow=True, samples_per_insert=1)
        with pytest.raises(OverloadError, match="the process that draws is the one that records"):
            other.sample(1)
    with pytest.raises(OverloadError, match="no process is recording the run"):
        other.sample(1)
    with pytest.raises(InvalidError, match="'samples'"):
        made.load_state_dict({"first": 1})


def test_min_size_is_counted_in_transitions(tmp_path: Path) -> None:
    with ReplayRecorder(tmp_path, "run", config=SMALL, live=None) as recorder:
        polled = recorder.transitions(min_size=5, samples_per_insert=1)
        late = recorder.transitions(min_size=5, samples_per_insert=1)
        slid = recorder.transitions(min_size=5, samples_per_insert=1, last=10)
        due = []
        for number in range(24):
            # The last step of each episode is not a transition.
            recorder.step([float(number)], 0, 1.0, truncated=number % 4 == 3)
            due.append(polled.due)
        # Five transitions need the steps 0, 1, 2, 4 and 5, and what followed the last.
        assert due == [0] * 6 + list(range(18))
        assert late.due == polled.due == 24 - 7
        assert slid.due == 24 - 5  # the first transitions have left
        resumed = recorder.transitions(min_size=5, samples_per_insert=1, last=10)
        resumed.load_state_dict(polled.state_dict())
        assert resumed.due == polled.due
        with pytest.raises(
            InvalidError, match="`min_size` is 11, but `last` keeps at most 10 steps"
        ):
            recorder.transitions(min_size=11, last=10)
    with pytest.raises(InvalidError, match="`min_size` is 3, but"):
        ReplayRun(tmp_path, "run").transitions(min_size=3, last=2)


@pytest.mark.parametrize("ends", [1000, 3])
@pytest.mark.parametrize("min_size", [9, 10])
def test_window_that_is_full_has_enough(min_size: int, ends: int, tmp_path: Path) -> None:
    with ReplayRecorder(tmp_path, "run", config=SMALL, live=None) as recorder:
        made = recorder.transitions(min_size=min_size, last=10)
        limited = recorder.transitions(min_size=min_size, last=10, samples_per_insert=1)
        due, counted = [], []
        for number in range(20):
            recorder.step([float(number)], 0, 1.0, truncated=number % ends == ends - 1)
            due.append(made.due)
            counted.append(limited.due)
        # Ten steps that are one episode have nine transitions.
        assert due == [0] * 9 + [None] * 11
        assert counted == [0] * 9 + list(range(11))
        late = recorder.transitions(min_size=min_size, last=10)
        assert len(late.sample(4)["index"]) == len(made.sample(4)["index"]) == 4
        only = recorder.transitions(min_size=1, last=1)
        with pytest.raises(OverloadError, match="there are 0 transitions of at least 1"):
            only.sample(1)


def test_a_draw_waits_for_another_process(tmp_path: Path) -> None:
    script = f"""
import sys, time
from relive.replay import ReplayRecorder, ReplayConfig
config = ReplayConfig(flush_s=0.02)
with ReplayRecorder({str(tmp_path)!r}, "run", config=config, live=None) as recorder:
    for number in range(20):
        recorder.step([number / 1.0], 0, 1.0)
        if number == 9:
            recorder.flush()
            print(flush=True)
            sys.stdin.readline()
    recorder.flush()
    print(flush=True)
    sys.stdin.readline()
"""
    with Popen([sys.executable, "-c", script], stdin=PIPE, stdout=PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()
        made = ReplayRun(tmp_path, "run").transitions(follow=True, min_size=15, timeout=0.05)
        # A process of another machine may have the number of this one.
        lock_path(tmp_path, "run").write_text(str(os.getpid()))
        with pytest.raises(OverloadError, match=r"none were recorded for 0.05 s"):
            made.sample(1)
        waiting = ReplayRun(tmp_path, "run").transitions(follow=True, min_size=15)
        with ThreadPoolExecutor(1) as pool:
            found = pool.submit(waiting.sample, 64)
            for _ in range(20):  # other threads need not wait
                assert (waiting.due, waiting.state_dict()["samples"]) == (0, 0)
                time.sleep(0.005)
            process.stdin.write(b"\n")
            process.stdin.flush()
            assert max(found.result()["index"]) >= 9
        process.stdout.readline()
        process.stdin.close()


def test_a_state_of_draws_continues_them(tmp_path: Path) -> None:
    record(tmp_path)
    made = ReplayRun(tmp_path, "run").transitions()
    draws, ahead = made.batches(5, seed=3), made.batches(5, seed=3, prefetch=3)
    for _ in range(4):
        np.testing.assert_array_equal(next(draws)["index"], next(ahead)["index"])
    state = ahead.state_dict()
    assert state == draws.state_dict()
    ahead.close()
    resumed = made.batches(5)
    resumed.load_state_dict(state)
    np.testing.assert_array_equal(next(draws)["index"], next(resumed)["index"])
    with pytest.raises(InvalidError, match="not that of this generator"):
        resumed.load_state_dict({"generator": {"bit_generator": "other"}})


def test_the_counts_have_what_was_returned(tmp_path: Path) -> None:
    with ReplayRecorder(tmp_path, "run", config=SMALL, live=None) as recorder:
        made = recorder.transitions(samples_per_insert=10)
        for number in range(9):
            recorder.step([float(number)], 0, 1.0)
        draws = made.batches(4, seed=0, prefetch=3)
        next(draws)
        # Three batches were drawn ahead: they cannot be drawn again, but are not in a state.
        assert (made.due, made.state_dict()["samples"]) == (90 - 16, 4)
        states = draws.state_dict(), made.state_dict()
        expected = [rows_of(next(draws)) for _ in range(2)]
        again = recorder.transitions(samples_per_insert=10)
        resumed = again.batches(4, prefetch=1)
        resumed.load_state_dict(states[0])
        again.load_state_dict(states[1])
        assert again.due == 90 - 4
        assert [rows_of(next(resumed)) for _ in range(2)] == expected
        draws.close()
        assert (made.due, made.state_dict()["samples"]) == (90 - 12, 12)
        # What could not be read was not drawn.
        with pytest.raises(UnknownFieldError):
            made.sample(4, fields=["nothing"])
        assert made.due == 90 - 12
    free = ReplayRun(tmp_path, "run").transitions()
    free.batches(4, prefetch=2).close()
    draws = free.batches(4, prefetch=2)
    next(draws)
    draws.close()
    assert free.state_dict()["samples"] == 0


def test_reading_ahead_ends_while_the_interpreter_exits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(thread: object) -> None:
        raise RuntimeError("can't start new thread")

    with ReplayRecorder(tmp_path, "run", config=SMALL, live=None) as recorder:
        made = recorder.transitions(samples_per_insert=10)
        for number in range(9):
            recorder.step([float(number)], 0, 1.0)
        draws, others = made.batches(4, seed=0, prefetch=2), made.batches(4, seed=0, prefetch=2)
        next(draws)
        with monkeypatch.context() as exiting:
            exiting.setattr("concurrent.futures.thread._shutdown", True)
            assert list(draws) == []
        with monkeypatch.context() as full:
            full.setattr("threading.Thread.start", start)
            with pytest.raises(RuntimeError, match="can't start new thread"):
                next(others)
        assert made.due == 90 - 12  # what could not be begun was not drawn


def test_an_error_while_reading_ahead_loses_no_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record(tmp_path)
    made = ReplayRun(tmp_path, "run").transitions()
    plain, ahead = made.batches(5, seed=3), made.batches(5, seed=3, prefetch=2)
    begun = made.draw
    fails = iter([False, True, False, False, True, True, False, False, False, False, False])

    def draw(*arguments: Any, **options: Any) -> Any:
        if next(fails):
            raise KeyboardInterrupt
        return begun(*arguments, **options)

    monkeypatch.setattr(made, "draw", draw)
    found: list[list[int]] = []
    while len(found) < 4:
        try:
            found.append(rows_of(next(ahead)))
        except KeyboardInterrupt:
            continue
    monkeypatch.undo()
    assert found == [rows_of(next(plain)) for _ in range(4)]
    ahead.close()


def test_what_another_process_appends_is_consistent_at_any_time(tmp_path: Path) -> None:
    script = f"""
import sys
from relive.replay import ReplayRecorder, ReplayConfig
config = ReplayConfig(flush_s=0.01, flush_steps=7, chunk_rows=4, sync_episodes=False)
with ReplayRecorder({str(tmp_path)!r}, "run", config=config, live=None) as recorder:
    for episode in range(60):
        for env in range(2):
            recorder.begin_episode(env=env)
        for step in range(9):
            for env in range(2):
                over = step == 8
                seen = [2.0 * episode + env, step, 0.0]
                after = [2.0 * episode + env, 9.0, 0.0] if over else None
                recorder.step(seen, 0, step, False, over, next_observation=after, env=env)
        if episode % 10 == 0:  # wait until that was seen
            recorder.flush()
            print(flush=True)
            sys.stdin.readline()
"""
    with Popen([sys.executable, "-c", script], stdin=PIPE, stdout=PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()
        run = ReplayRun(tmp_path, "run")
        made = [
            run.transitions(n_step=3, gamma=1.0, follow=True),
            run.transitions(n_step=2, gamma=1.0, last=100, follow=True),
        ]
        lengths = set()
        is_running, seen = True, 18
        while is_running:
            is_running = process.poll() is None
            for buffer in made:
                buffer.refresh()
                batch: Any = buffer.gather(range(len(buffer)))
                lengths.add(len(buffer))
                before, after, n = batch["observation"], batch["next_observation"], batch["n"]
                np.testing.assert_array_equal(before[:, 0], after[:, 0])
                np.testing.assert_array_equal(after[:, 1] - before[:, 1], n)
                np.testing.assert_array_equal(batch["reward"], n * before[:, 1] + n * (n - 1) / 2)
                np.testing.assert_array_equal(batch["truncated"], after[:, 1] == 9)
                assert (np.diff(batch["index"]) > 0).all()
            if len(made[0]) == seen:
                seen += 180
                process.stdin.write(b"\n")
                process.stdin.flush()
        assert [len(buffer) for buffer in made] == [1080, 100]
        assert {18, 198, 378, 558, 738, 918, 1080} <= lengths


@pytest.mark.parametrize("codec", ["raw", "zstd"])
def test_draws_go_on_when_a_run_is_continued(tmp_path: Path, codec: str) -> None:
    config = ReplayConfig(chunk_rows=4, codec=codec)
    made: Transitions | None = None
    for count in (5, 9, 14):
        with ReplayRecorder(tmp_path, "run", config=config, live=None) as recorder:
            own = recorder.transitions()
            for number in range(7):
                seen = np.full((3, 16, 16), number, np.uint8)
                recorder.step(seen, count, float(number), number in {4, 6})
            own.refresh()
            assert rows_of(own.gather(range(len(own))))[-1] == len(own) - 1
        if made is None:
            made = ReplayRun(tmp_path, "run").transitions(follow=True)
        made.refresh()
        batch: Any = made.gather(range(len(made)))
        rewards = batch["reward"].tolist()
        assert rewards == [float(number % 7) for number in range(len(made))]
        np.testing.assert_array_equal(batch["observation"][:, 1, 2, 3], rewards)
    assert made is not None
    assert len(made) == 21
    with ReplayRecorder(tmp_path, "run", config=config, live=None) as recorder:
        recorder.step(np.zeros((3, 16, 16), np.uint8), 1, 9.0, terminated=True)
        recorder.flush()
        made.refresh()
        assert len(made) == 22
        recorder.abort()
    made.refresh()
    assert len(made) == 21
    batch = made.sample(64)
    assert batch["reward"].max() <= 6


def test_draws_go_on_from_what_is_left_when_a_recorder_is_aborted(tmp_path: Path) -> None:
    with ReplayRecorder(tmp_path, "run") as recorder:
        for number in range(10):
            recorder.step([float(number)], 0, 0.0)
    again = ReplayRecorder(tmp_path, "run")
    transitions = again.transitions()
    for number in range(5):
        again.step([100.0 + number], 0, 0.0)
        if number == 2:
            again.flush()
    transitions.refresh()
    assert len(transitions) == 13
    again.abort()
    transitions.refresh()
    left: Any = transitions.gather(range(len(transitions)))
    assert left["observation"].ravel().tolist() == [*range(9)]


@pytest.mark.parametrize("name", ["_add", "_join", "_read_ends"])
def test_a_refresh_that_was_interrupted_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    work = getattr(GrowingTransitions, name)

    def interrupted(self: GrowingTransitions, *given: Any) -> None:
        work(self, *given)
        raise KeyboardInterrupt

    with ReplayRecorder(tmp_path, "run") as recorder:
        transitions = recorder.transitions()
        for number in range(300):
            recorder.step([float(number)], 0, 0.0, terminated=number % 50 == 49)
        recorder.flush()
        with monkeypatch.context() as patched:
            patched.setattr(GrowingTransitions, name, interrupted)
            with pytest.raises(KeyboardInterrupt):
                transitions.refresh()
        transitions.refresh()
        found: Any = transitions.gather(range(len(transitions)))
        assert found["index"].tolist() == [*range(300)]


def test_transitions_do_not_keep_a_recorder_that_is_dropped(tmp_path: Path) -> None:
    recorder = ReplayRecorder(tmp_path, "run")
    transitions = recorder.transitions()
    recorder.step([0.0], 0, 0.0)
    recorder.flush()
    with pytest.warns(ResourceWarning, match="was not closed"):
        del recorder
    with ReplayRecorder(tmp_path, "run") as again:
        again.step([1.0], 0, 0.0)
    transitions.refresh()
    assert len(ReplayRun(tmp_path, "run")) == 2
