"""Recording: what `step` accepts is stored, in order, whatever happens to the recorder."""

import json
import math
import os
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relive.errors import (
    AlreadyExistsError,
    ClosedError,
    InvalidError,
    InvalidTypeError,
    LockedError,
    OverloadError,
)
from relive.replay import (
    FrameResolver,
    LiveLane,
    ReplayConfig,
    ReplayReader,
    ReplayRecorder,
    ReplayRun,
    TelemetryStore,
    validate,
)
from relive.replay.writing.writer import RunWriter

if TYPE_CHECKING:
    from collections.abc import Callable


def frame(number: int) -> np.ndarray[Any, Any]:
    return np.full((4, 5, 3), number % 256, np.uint8)


def recorder_of(root: Path, run_id: str = "run", **config: Any) -> ReplayRecorder:
    return ReplayRecorder(root, run_id, config=ReplayConfig(**config), live=None)


class TestBugsOfTheOriginal:
    """One test for each mistake of the program that the layout comes from."""

    def test_close_without_flush_keeps_every_step(self, tmp_path: Path) -> None:
        with recorder_of(tmp_path, flush_s=3600) as recorder:
            for number in range(900):
                recorder.step([number])
        assert len(ReplayRun(tmp_path, "run")) == 900

    def test_a_step_without_a_frame_shifts_nothing(self, tmp_path: Path) -> None:
        with recorder_of(tmp_path) as recorder:
            refs = [
                recorder.step(frame=None if number == 2 else frame(number)) for number in range(6)
            ]
        with FrameResolver(tmp_path / "replay") as resolver:
            for number, ref in enumerate(refs):
                assert ref is not None
                if number == 2:
                    assert ref.frame is None
                else:
                    np.testing.assert_array_equal(resolver.resolve(ref.frame), frame(number))

    def test_frames_may_begin_late(self, tmp_path: Path) -> None:
        with recorder_of(tmp_path) as recorder:
            recorder.step(action=0)
            recorder.step(action=1, frame=frame(7))
        episode = ReplayRun(tmp_path, "run").episodes[0]
        assert [step["frame"] is None for step in episode.load()["steps"]] == [True, False]

    def test_duplicate_references_resolve(self, tmp_path: Path) -> None:
        with recorder_of(tmp_path) as recorder:
            for number in range(4):
                recorder.step(frame=frame(number))
        refs = [f"h5://run/frames/{number}" for number in (3, 1, 3, 3, 0)]
        with FrameResolver(tmp_path / "replay") as resolver:
            found = resolver.resolve_batch(refs)
        assert [int(picture[0, 0, 0]) for picture in found] == [3, 1, 3, 3, 0]

    def test_an_episode_that_was_never_closed_is_readable(self, tmp_path: Path) -> None:
        recorder = recorder_of(tmp_path)
        recorder.step([1.0], 0, 1.0, terminated=True)
        recorder.step([2.0], 0, 1.0)
        recorder.leave()
        run = ReplayRun(tmp_path, "run")
        assert [episode["status"] for episode in run.episodes] == ["terminated", "truncated"]
        assert run.episodes.episode_at(1).arrays()["truncated"].tolist() == [True]

    def test_actions_may_be_vectors(self, tmp_path: Path) -> None:
        with recorder_of(tmp_path) as recorder:
            recorder.step(action=np.array([0.5, -1.0]))
        with TelemetryStore(tmp_path) as store:
            assert store.recent_steps(1)[0].action == [0.5, -1.0]
        actions = ReplayRun(tmp_path, "run").read("actions", [0])
        assert actions.tolist() == [[0.5, -1.0]]

    def test_a_reference_with_text_after_it_is_not_one(self, tmp_path: Path) -> None:
        with recorder_of(tmp_path) as recorder:
            recorder.step(frame=frame(0))
        with FrameResolver(tmp_path / "replay") as resolver:
            assert resolver.resolve("h5://run/frames/0junk") is None

    def test_recording_again_continues_the_run(self, tmp_path: Path) -> None:
        for start in (0, 3):
            with recorder_of(tmp_path) as recorder:
                for number in range(start, start + 3):
                    recorder.step([number], frame=frame(number))
        run = ReplayRun(tmp_path, "run")
        assert run.read("observations", range(6)).ravel().tolist() == list(range(6))
        assert run.read("frames", range(6))[:, 0, 0, 0].tolist() == list(range(6))

    def test_shuffled_batches_depend_on_the_seed(self, tmp_path: Path) -> None:
        with recorder_of(tmp_path) as recorder:
            for number in range(50):
                recorder.step(action=number)
        reader = ReplayReader("run", tmp_path / "replay")

        def order(seed: int) -> list[int]:
            batches = reader.iter_batches(8, shuffle=True, seed=seed)
            return [int(action) for batch in batches for action in batch["actions"]]

        assert order(1) == order(1) != order(2)
        assert sorted(order(1)) == list(range(50))

    def test_flush_makes_steps_visible(self, tmp_path: Path) -> None:
        recorder = recorder_of(tmp_path, flush_s=3600)
        recorder.step(frame=frame(1))
        recorder.flush()
        assert len(ReplayRun(tmp_path, "run")) == 1
        recorder.abort()


def leaf() -> st.SearchStrategy[Any]:
    dtypes = st.sampled_from(["u1", "i8", "f4", "f8", "?", "c8", "u2"])
    shapes = st.sampled_from([(), (3,), (2, 2), (0,)])
    return st.tuples(st.just("leaf"), dtypes, shapes)


SPACES = st.recursive(
    leaf(),
    lambda inner: st.one_of(
        st.dictionaries(st.text("a.b/%é", min_size=1, max_size=3), inner, min_size=1, max_size=3),
        st.lists(inner, min_size=1, max_size=3).map(tuple),
    ),
    max_leaves=5,
)


def value_in(space: Any, number: int) -> Any:
    """Return a value of a space that depends on a number."""
    if isinstance(space, dict):
        return {key: value_in(inner, number + 1) for key, inner in space.items()}
    if isinstance(space, tuple) and space[:1] == ("leaf",):
        rng = np.random.default_rng(number)
        return (
            rng.integers(0, 2, space[2]).astype(space[1])
            if space[2]
            else np.dtype(space[1]).type(number % 2)
        )
    return tuple(value_in(inner, number + 2) for inner in space)


def assert_same(found: Any, expected: Any) -> None:
    if isinstance(expected, dict):
        assert list(found) == list(expected) or set(found) == set(expected)
        for key in expected:
            assert_same(found[key], expected[key])
    elif isinstance(expected, tuple):
        assert isinstance(found, tuple)
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_same(one, other)
    else:
        assert found.dtype == np.asarray(expected).dtype
        np.testing.assert_array_equal(found, expected)


@settings(max_examples=15, deadline=None)
@given(
    SPACES,
    SPACES,
    st.lists(
        st.tuples(
            st.booleans(),
            st.booleans(),
            st.sampled_from(["", "terminated", "truncated", "end", "flush", "again"]),
        ),
        min_size=1,
        max_size=25,
    ),
)
def test_recorded_values_are_read_again(
    tmp_path_factory: pytest.TempPathFactory, observations: Any, actions: Any, plan: list[Any]
) -> None:
    root = tmp_path_factory.mktemp("run")
    recorder = recorder_of(root, chunk_rows=4)
    episodes: list[list[int]] = [[]]
    for number, (has_frame, has_reward, what) in enumerate(plan):
        recorder.step(
            value_in(observations, number),
            value_in(actions, number),
            number / 2 if has_reward else None,
            what == "terminated",
            what == "truncated",
            frame=frame(number) if has_frame else None,
        )
        episodes[-1].append(number)
        if what in {"terminated", "truncated", "end", "again"}:
            episodes.append([])
        if what == "end":
            recorder.end_episode()
        elif what == "flush":
            recorder.flush()
        elif what == "again":
            recorder.close()
            recorder = recorder_of(root, chunk_rows=4)
    recorder.close()
    run = ReplayRun(root, "run")
    assert [
        list(episode.rows) for episode in map(run.episodes.episode_at, range(len(run.episodes)))
    ] == [rows for rows in episodes if rows]
    resolver = FrameResolver(root / "replay")
    for number, (has_frame, has_reward, _) in enumerate(plan):
        assert_same(
            resolver.resolve(f"h5://run/observations/{number}"), value_in(observations, number)
        )
        assert_same(resolver.resolve(f"h5://run/actions/{number}"), value_in(actions, number))
        found = resolver.resolve(f"h5://run/frames/{number}")
        assert (found is not None) == has_frame
        if has_frame:
            np.testing.assert_array_equal(found, frame(number))
        assert run.step(number).reward == (number / 2 if has_reward else None)


def test_steps_of_several_environments(tmp_path: Path) -> None:
    with recorder_of(tmp_path, chunk_rows=4) as recorder:
        for number in range(10):
            envs = [0, 1, 2] if number % 2 else [2, 0]
            refs = recorder.steps(
                envs,
                {"x": np.array([env * 100 + number for env in envs])},
                np.array(envs),
                np.ones(len(envs)),
                [number == 7] * len(envs),
                info=[{"env": env} if env else None for env in envs],
            )
            rows = [-1 if ref is None else ref.row for ref in refs]
            assert rows == list(range(rows[0], rows[0] + len(envs)))
            assert rows[0] >= 0
    run = ReplayRun(tmp_path, "run")
    for position in range(len(run.episodes)):
        episode = run.episodes.episode_at(position)
        env = episode["env_index"]
        assert (episode.arrays("observations")["observations"]["x"] // 100 == env).all()
        assert (episode["action"].values() == env).all()
    assert [episode["env_index"] for episode in run.episodes] == [2, 0, 1, 2, 0, 1]
    assert [episode["length"] for episode in run.episodes] == [8, 8, 4, 2, 2, 1]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"env": [0, 1], "action": [1]}, "`action` must have a row for each of 2"),
        ({"env": [0], "observation": {"a": 1}}, "`observation.a` must have a row"),
        ({"env": [0], "reward": 1.0}, "`reward` must have a row"),
    ],
)
def test_steps_refuses_arrays_without_a_row_for_each(
    tmp_path: Path, arguments: dict[str, Any], text: str
) -> None:
    with recorder_of(tmp_path) as recorder:
        with pytest.raises(InvalidError, match=text):
            recorder.steps(**arguments)
        assert recorder.stats.steps == 0


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"env": ["a"]}, InvalidTypeError, "`env` must be an integer, got 'a'"),
        ({"env": 2}, InvalidTypeError, "`env` must be a list of integers, got 2"),
        ({"env": [0.7]}, InvalidTypeError, "`env` must be an integer, got 0.7"),
        ({"env": np.array([0.0])}, InvalidTypeError, "`env` must be an integer"),
        ({"env": np.array([0, -1])}, InvalidError, "`env` must be at least 0, got -1"),
        ({"env": [0], "extras": [1]}, InvalidTypeError, "`extras` must be a dict of arrays"),
    ],
)
def test_steps_refuses_wrong_arguments(
    tmp_path: Path, arguments: dict[str, Any], error: type[Exception], text: str
) -> None:
    with recorder_of(tmp_path) as recorder:
        with pytest.raises(error, match=text):
            recorder.steps(**arguments)
        assert recorder.stats.steps == 0
        for env in ([0, 1], np.array([0, 1], np.int32), np.array([0, 1], np.uint8), []):
            recorder.steps(env)
        assert recorder.stats.steps == 6


@pytest.mark.parametrize("action", ["jump", ["a"], [1 << 70], object()])
def test_without_arrays_an_action_must_be_numbers(tmp_path: Path, action: Any) -> None:
    with ReplayRecorder(tmp_path, "run", live=None, arrays=False) as recorder:
        with pytest.raises(InvalidTypeError, match="`action` must be numbers"):
            recorder.step([0.5], action, 1.0)
        recorder.step([0.5], np.zeros(100), 1.0)
        recorder.step([0.5], np.zeros(3), 1.0)
    steps = ReplayRun(tmp_path, "run").steps.to_pylist()
    assert [(step["action"], step["action_ref"]) for step in steps] == [
        (None, None),
        ("[0.0, 0.0, 0.0]", None),
    ]
    assert validate(tmp_path, "full").ok


def test_large_text_of_an_info_is_json(tmp_path: Path) -> None:
    names = np.array(["x" * 100] * 50)
    with recorder_of(tmp_path) as recorder:
        recorder.step(info={"names": names, "numbers": np.zeros(2000)})
    info = ReplayRun(tmp_path, "run").step(0).info
    assert info == {"names": names.tolist(), "numbers": "h5://run/info.numbers/0"}


SEEN: dict[str, Any] = {
    "array": np.zeros(3),
    "dict": {"a": np.zeros(3), "b": (np.zeros(2), np.float32(1))},
}


@pytest.mark.parametrize(
    ("seen", "last", "text"),
    [
        ("array", np.zeros(4), r"`next_observation` must have the dtype .*\(3,\) of `observation`"),
        ("array", np.zeros(3, np.float32), "`next_observation` must have the dtype '<f8'"),
        ("array", {"a": np.zeros(3)}, "the keys of `observation`, no keys, got a"),
        ("dict", np.zeros(3), r"the keys of `observation`, a, b\.0, b\.1, got no keys"),
        (
            "dict",
            {"a": np.zeros(3), "b": (np.zeros(1), np.float32(1))},
            r"`next_observation.b.0` must have .* of `observation.b.0`",
        ),
    ],
)
def test_what_was_seen_last_is_like_what_was_seen_before(
    tmp_path: Path, seen: str, last: Any, text: str
) -> None:
    # Both are new in one step; then `observation` is known; then `next_observation` is first.
    with recorder_of(tmp_path, "new") as recorder:
        with pytest.raises(InvalidError, match=text):
            recorder.step(SEEN[seen], 1, terminated=True, next_observation=last)
        recorder.step(last, 1, terminated=True, next_observation=last)  # nothing was decided
    with recorder_of(tmp_path, "known") as recorder:
        recorder.step(SEEN[seen], 1)
        with pytest.raises(InvalidError, match=text):
            recorder.end_episode(next_observation=last)
        with pytest.raises(InvalidError, match=text):
            recorder.step(SEEN[seen], 1, terminated=True, next_observation=last)
        recorder.step(SEEN[seen], 1, terminated=True, next_observation=SEEN[seen])
    with recorder_of(tmp_path, "known") as recorder:
        with pytest.raises(InvalidError, match="must have the"):
            recorder.step(SEEN[seen], 1, terminated=True, next_observation=last)
        recorder.step(SEEN[seen], 1, terminated=True, next_observation=SEEN[seen])
    with recorder_of(tmp_path, "reverse") as recorder:
        recorder.step(action=1, terminated=True, next_observation=last)
        with pytest.raises(InvalidError, match=r"`observation.* of `next_observation"):
            recorder.step(SEEN[seen], 1)
        recorder.step(last, 1)
    assert [len(ReplayRun(tmp_path, name)) for name in ("new", "known", "reverse")] == [1, 3, 2]
    assert validate(tmp_path, "full").ok


def test_the_last_frame_is_like_the_others(tmp_path: Path) -> None:
    with recorder_of(tmp_path) as recorder:
        recorder.step(frame=frame(0))
        with pytest.raises(InvalidError, match="`next_frame` must have the dtype"):
            recorder.end_episode(next_frame=np.zeros((4, 5), np.uint8))
        recorder.end_episode(next_frame=frame(1))
    assert ReplayRun(tmp_path, "run").episodes.episode_at(0).final()["frames"].max() == 1


def test_automatic_ids_avoid_those_that_were_given(tmp_path: Path) -> None:
    with recorder_of(tmp_path) as recorder:
        for name in ("run-ep0001", None, "run-ep0003", "run-ep0003-2", None, "run-ep0003-3"):
            recorder.begin_episode(name)
            recorder.step(action=1, terminated=True)
        recorder.step(action=1, terminated=True)
    names = [
        episode.episode_id
        for episode in map(ReplayRun(tmp_path, "run").episodes.episode_at, range(7))
    ]
    assert names[:3] == ["run-ep0001", "run-ep0001-2", "run-ep0003"]
    assert names[3:] == ["run-ep0003-2", "run-ep0004", "run-ep0003-3", "run-ep0006"]


KEPT: list[tuple[list[str], set[str]]] = [
    (["frames"], {"frames", "final.frames"}),
    (["observations", "extras"], {"observations", "final.observations", "extras.a", "extras.b"}),
    (["extras.a", "info"], {"extras.a", "info.x", "info.y"}),
    (["actions", "info.y"], {"actions", "info.y"}),
]


@pytest.mark.parametrize(("fields", "kept"), KEPT)
def test_only_the_fields_that_are_wanted_are_recorded(
    tmp_path: Path, fields: list[str], kept: set[str]
) -> None:
    large = np.zeros(2000)
    with recorder_of(tmp_path, fields=fields) as recorder:
        for number in range(6):
            refs = recorder.step(
                np.full(3, number),
                np.zeros(40) if number == 5 and "actions" not in fields else number,
                0.5,
                number == 5,
                frame=frame(number),
                next_observation=np.full(3, 6),
                next_frame=frame(6),
                info={"x": large, "y": large, "n": number},
                extras={"a": number, "b": number},
            )
            assert refs is not None
            assert (refs.frame is None) == ("frames" not in kept)
    run = ReplayRun(tmp_path, "run")
    always = {"rewards", "terminated", "truncated", "episode", "step_index", "ts_ns"}
    assert set(run.arrays.fields) - always - {"final.episode"} == kept
    assert run.info["config"]["fields"] == sorted(fields)
    steps = run.steps.to_pylist()
    assert [str(step["action"]) for step in steps[:5]] == [str(number) for number in range(5)]
    assert {step["action_ref"] for step in steps} == {None}
    assert [step["reward"] for step in steps] == [0.5] * 6
    assert run.step(0).info.keys() - {"n"} == {
        name.removeprefix("info.") for name in kept if name.startswith("info.")
    }
    loaded = run.episodes.episode_at(0).load()["steps"]
    assert [step["action"] for step in loaded[:5]] == list(range(5))
    assert validate(tmp_path, "full").ok
    with recorder_of(tmp_path) as recorder:  # all of them, from here on
        recorder.step(np.full(3, 6), 6, frame=frame(6))
    run = ReplayRun(tmp_path, "run")
    assert run.read("observations", [6]).tolist() == [[6, 6, 6]]
    assert validate(tmp_path, "full").ok


@pytest.mark.parametrize(
    ("settings", "error", "text"),
    [
        ({"flush_s": "1"}, InvalidTypeError, "`flush_s` must be a number of seconds, got '1'"),
        ({"flush_s": 0}, InvalidError, "`flush_s` must be above 0"),
        ({"codec": 3}, InvalidTypeError, "`codec` must be a string, or a dict"),
        ({"codec": {"frames": 3}}, InvalidTypeError, "the codec of 'frames' must be a string"),
        ({"codec": {3: "raw"}}, InvalidTypeError, "a field in `codec` must be a string"),
        ({"codec": {"frame": "raw"}}, InvalidError, "is named 'frames'"),
        ({"codec": {"observation.x": "raw"}}, InvalidError, "is named 'observations'"),
        ({"codec": {"action": "raw"}}, InvalidError, "is named 'actions'"),
        ({"fields": "frames"}, InvalidTypeError, "`fields` must be a list of names"),
        ({"fields": 3}, InvalidTypeError, "`fields` must be a list of names"),
        ({"fields": [3]}, InvalidTypeError, "a field in `fields` must be a string"),
        ({"fields": []}, InvalidError, "pass arrays=False"),
        ({"fields": ["frame"]}, InvalidError, "is named 'frames'"),
        ({"fields": ["rewards"]}, InvalidError, "unknown field 'rewards'"),
        ({"fields": ["observations.image"]}, InvalidError, "unknown field"),
        ({"fields": ["extras."]}, InvalidError, "unknown field"),
    ],
)
def test_wrong_settings_are_refused(
    settings: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        ReplayConfig(**settings)


def test_settings_may_name_fields_that_come_later() -> None:
    config = ReplayConfig(codec={"extras.state": "raw", "later": "lz4"}, flush_s=np.float32(0.5))  # type: ignore[arg-type]
    assert config.codec_of("later.x") == ("lz4", None)
    json.dumps(config.described())


def test_arrays_may_be_reused_after_a_step(tmp_path: Path) -> None:
    mine = np.zeros(4)
    with recorder_of(tmp_path) as recorder:
        for number in range(20):
            mine[:] = number
            recorder.step(mine, mine, frame=None, extras={"state": mine})
            mine[:] = -1
    run = ReplayRun(tmp_path, "run")
    for field in ("observations", "actions", "extras.state"):
        assert run.read(field, range(20))[:, 0].tolist() == list(range(20))


ENDLESS: list[Any] = []
ENDLESS.append(ENDLESS)


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"reward": "much"}, InvalidTypeError, "`reward` must be a number"),
        ({"observation": "text"}, InvalidTypeError, "`observations` must be numbers"),
        ({"info": {"f": object()}}, InvalidTypeError, r"info\['f'\]"),
        ({"info": 3}, InvalidTypeError, "`info` must be a dict"),
        ({"env": -1}, InvalidError, "`env`"),
        ({"ts_ns": 1.5}, InvalidTypeError, "`ts_ns`"),
        ({"extras": {"x": None, "y": "z"}}, InvalidTypeError, r"extras\.y"),
        ({"extras": [1]}, InvalidTypeError, r"`extras` must be a dict, got \[1\]"),
        ({"terminated": np.zeros(2, bool)}, InvalidTypeError, "`terminated` must be a bool"),
        ({"truncated": np.zeros(2, bool)}, InvalidTypeError, "`truncated` must be a bool"),
        ({"terminated": "no"}, InvalidTypeError, "`terminated` must be a bool, got 'no'"),
        ({"truncated": ""}, InvalidTypeError, "`truncated` must be a bool, got ''"),
        ({"terminated": np.str_("no")}, InvalidTypeError, "`terminated` must be a bool"),
        ({"terminated": [False]}, InvalidTypeError, "`terminated` must be a bool"),
        ({"truncated": 2}, InvalidTypeError, "`truncated` must be a bool, got 2"),
        ({"truncated": float("nan")}, InvalidTypeError, "`truncated` must be a bool, got nan"),
        ({"action": [[1], [1, 2]]}, InvalidTypeError, "`action` is not an array of numbers"),
        ({"info": {"a": ENDLESS}}, InvalidError, r"`info\['a'\]` contains itself"),
    ],
)
def test_wrong_values_are_refused_and_leave_a_gap(
    tmp_path: Path, arguments: dict[str, Any], error: type[Exception], text: str
) -> None:
    with recorder_of(tmp_path) as recorder:
        recorder.step(action=0)
        with pytest.raises(error, match=text):
            recorder.step(**arguments)
        recorder.step(action=1)
        assert recorder.stats.dropped == (0 if "env" in arguments else 1)
    run = ReplayRun(tmp_path, "run")
    assert run.steps["step_index"].to_pylist() == [0, 1 if "env" in arguments else 2]
    assert len(run.episodes) == 1


@pytest.mark.parametrize(
    ("name", "first", "second", "dtype", "other"),
    [
        ("action", 1, np.int32(2), "int64", None),
        ("action", np.int32(2), 1, "int32", "int64"),
        ("action", 1, 1.5, "int64", "float64"),
        ("action", 1.5, True, "float64", None),
        ("observation", np.zeros(3, np.float32), np.zeros(3), "float32", None),
        ("observation", np.zeros(3, np.float32), np.zeros(3, int), "float32", "int64"),
        ("frame", np.zeros((2, 2), np.uint8), np.zeros((2, 2), np.int64), "uint8", "int64"),
    ],
)
def test_values_of_another_dtype_have_a_hint(  # noqa: PLR0917 - parameters of the test
    tmp_path: Path, name: str, first: Any, second: Any, dtype: str, other: str | None
) -> None:
    hint = f"convert it: np.asarray(value, '{dtype}')"
    if other is not None:  # it may lose something
        hint = (
            f"convert it if '{dtype}' has its value; otherwise use another run_id, with '{other}' "
            "from the first step on"
        )
    if name != "frame":
        hint += "; cast=True of Record casts to the dtype of the space"
    with recorder_of(tmp_path) as recorder:
        recorder.step(**{name: first})
        with pytest.raises(InvalidError, match="as before, got") as raised:
            recorder.step(**{name: second})
        assert raised.value.hint == hint
        good: dict[str, Any] = {name: np.asarray(second, dtype)}
        recorder.step(**good)
        if name != "action":
            last = {f"next_{name}": second, "truncated": True}
            with pytest.raises(InvalidError, match=f"`next_{name}` must have the dtype") as raised:
                recorder.step(**{name: first, **last})
            assert raised.value.hint == hint
        good[name] = np.zeros((7, 7), dtype)
        with pytest.raises(InvalidError, match="and the shape") as raised:
            recorder.step(**good)
        assert raised.value.hint == "use another run_id for another environment"


def test_flags_may_be_numbers_and_arrays_of_one(tmp_path: Path) -> None:
    false: list[Any] = [None, 0, 0.0, np.False_, np.int8(0), np.zeros((), bool), np.zeros(1, bool)]
    true: list[Any] = [1, 1.0, np.True_, np.uint8(1), np.ones((), bool), np.ones(1, bool)]
    with recorder_of(tmp_path) as recorder:
        for value in false:
            recorder.step(action=0, terminated=value, truncated=value)
        for value in true:
            recorder.step(action=0, terminated=value)
    run = ReplayRun(tmp_path, "run")
    assert run.steps["terminated"].to_pylist() == [False] * len(false) + [True] * len(true)
    assert not any(run.steps["truncated"].to_pylist())


def test_flags_of_several_environments_are_bools(tmp_path: Path) -> None:
    with recorder_of(tmp_path) as recorder:
        for flags in ("no", ["no", "no"], np.array(["no", "no"])):
            with pytest.raises(InvalidTypeError, match="`truncated` must be a bool"):
                recorder.steps([0, 1], action=[0, 0], truncated=flags)  # type: ignore[arg-type]
        recorder.steps([0, 1], action=[0, 0], terminated=[0, 1], truncated=np.array([False, True]))  # type: ignore[list-item]
    assert ReplayRun(tmp_path, "run").steps["terminated"].to_pylist() == [False, True]


def test_info_keys_come_and_go_and_change_their_type(tmp_path: Path) -> None:
    large = np.arange(2000)
    infos: list[dict[str, Any]] = [
        {},
        {"lives": 3},
        {"lives": np.int64(2), "name": "x"},
        {"lives": [1, 2], "ram": large},
        {"ram": large + 1, "deep": {"a": np.float32(0.5)}},
        {"ram": large[:900].astype(np.float32)},
        {"ram": "none"},
    ]
    with recorder_of(tmp_path) as recorder:
        for info in infos:
            recorder.step(info=info)
    run = ReplayRun(tmp_path, "run")
    stored = [run.step(row).info for row in range(len(infos))]
    assert stored[:3] == [{}, {"lives": 3}, {"lives": 2, "name": "x"}]
    assert stored[3] == {"lives": [1, 2], "ram": "h5://run/info.ram/3"}
    assert stored[4]["deep"] == {"a": 0.5}
    assert stored[5]["ram"] == list(range(900))  # of another shape than the array before
    assert stored[6] == {"ram": "none"}
    with FrameResolver(tmp_path / "replay") as resolver:
        np.testing.assert_array_equal(resolver.resolve("h5://run/info.ram/4"), large + 1)
        assert resolver.resolve("h5://run/info.ram/5") is None


def test_episodes_are_begun_and_ended(tmp_path: Path) -> None:
    with recorder_of(tmp_path) as recorder:
        assert recorder.begin_episode(seed=7, metadata={"task": "a"}) == "run-ep0000"
        with pytest.raises(InvalidError, match="'run-ep0000' is still open"):
            recorder.begin_episode()
        recorder.step([0.0], reward=1.0)
        recorder.end_episode(next_observation=[9.0])
        recorder.end_episode()
        recorder.begin_episode("mine")
        recorder.step([1.0], terminated=True)
        with pytest.raises(AlreadyExistsError, match="'mine' already"):
            recorder.begin_episode("mine")
        recorder.begin_episode("mine", agent_id="other")
        recorder.step([2.0], agent_id="other", truncated=True, next_observation=[3.0])
        recorder.begin_episode("empty")
    run = ReplayRun(tmp_path, "run")
    assert [episode["episode_id"] for episode in run.episodes] == ["run-ep0000", "mine", "mine"]
    first = run.episode("run-ep0000")
    assert (first["seed"], first["metadata"], first["status"]) == (7, {"task": "a"}, "truncated")
    assert first.final()["observations"].tolist() == [9.0]
    assert run.episode("mine", "other").final()["observations"].tolist() == [3.0]
    with recorder_of(tmp_path) as recorder, pytest.raises(AlreadyExistsError):
        recorder.begin_episode("mine")


def test_a_full_queue_drops_or_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writing = threading.Event()
    write = RunWriter.write

    def waiting(self: RunWriter, items: Any) -> None:
        assert writing.wait(60)
        write(self, items)

    monkeypatch.setattr(RunWriter, "write", waiting)
    for overload in ("drop", "raise"):
        writing.clear()
        recorder = recorder_of(tmp_path, overload, queue_bytes=1, overload=overload)
        kept = [recorder.step(action=number) for number in range(4)]
        assert None not in kept
        assert recorder.stats.queued == 4
        if overload == "drop":
            assert recorder.step(action=4) is None
            assert recorder.step(action=5, terminated=True) is None
            assert recorder.stats.dropped == 2
        else:
            with pytest.raises(OverloadError, match="queue is full"):
                recorder.step(action=4)
        writing.set()
        recorder.flush()
        recorder.step(action=6)
        recorder.close()
    run = ReplayRun(tmp_path, "drop")
    assert run.steps["action"].to_pylist() == [0, 1, 2, 3, 6]
    assert run.steps["step_index"].to_pylist() == [0, 1, 2, 3, 0]
    assert [episode["status"] for episode in run.episodes] == ["terminated", "truncated"]
    with TelemetryStore(tmp_path) as store:
        assert [episode.dropped for episode in store.episodes(run_id="drop")] == [2, 0]
    run = ReplayRun(tmp_path, "raise")
    assert run.steps["step_index"].to_pylist() == [0, 1, 2, 3, 5]


def test_steps_are_committed_within_a_second(tmp_path: Path) -> None:
    recorder = recorder_of(tmp_path, flush_s=0.2)
    recorder.step(action=1)
    until = time.monotonic() + 30
    while recorder.stats.committed < 1 and time.monotonic() < until:
        time.sleep(0.01)
    assert len(ReplayRun(tmp_path, "run")) == 1
    recorder.abort()


def test_an_error_of_the_disk_is_raised_by_the_next_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = recorder_of(tmp_path)
    recorder.step(action=0)
    recorder.sync()

    def full(self: RunWriter, items: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(RunWriter, "write", full)
    recorder.step(action=1)
    calls: list[Callable[[], object]] = [
        recorder.flush,
        recorder.sync,
        lambda: recorder.step(action=2),
        recorder.close,
    ]
    for call in calls:
        with pytest.raises(OSError, match="No space left"):
            call()
    assert len(ReplayRun(tmp_path, "run")) == 1
    assert ReplayRun(tmp_path, "run").status == "interrupted"


def test_a_run_has_one_recorder(tmp_path: Path) -> None:
    with recorder_of(tmp_path):
        with pytest.raises(LockedError, match=f"recorded by process {os.getpid()}"):
            recorder_of(tmp_path)
        with recorder_of(tmp_path, "other"):
            pass


def test_a_run_is_continued_with_the_same_spaces(tmp_path: Path) -> None:
    with ReplayRecorder(tmp_path, "run", env_id="A", spaces={"n": 2}, live=None) as recorder:
        recorder.step([0.0])
    for wrong in ({"env_id": "B"}, {"spaces": {"n": 3}}):
        with pytest.raises(InvalidError, match="use another run_id"):
            ReplayRecorder(tmp_path, "run", live=None, **wrong)
    with ReplayRecorder(tmp_path, "run", env_id="A", spaces={"n": 2}, live=None) as recorder:
        with pytest.raises(InvalidError, match="`observations` must have the dtype"):
            recorder.step([0])
        recorder.step([1.0])


def test_a_run_keeps_the_first_description_that_it_was_given(tmp_path: Path) -> None:
    def described() -> dict[str, Any]:
        info = ReplayRun(tmp_path, "run").info
        return {name: info[name] for name in about}

    about: dict[str, Any] = {
        "env_id": "A",
        "env_spec": {"id": "A"},
        "spaces": {"n": 2},
        "seed": 3,
        "metadata": {"lr": 1},
    }
    with recorder_of(tmp_path) as recorder:
        recorder.step([0.0])
    recorder = ReplayRecorder(tmp_path, "run", live=None, **about)
    recorder.step([1.0])
    recorder.flush()
    assert described() == about
    recorder.abort()
    assert described() == dict.fromkeys(about)
    for seed in (3, 4):
        later = {**about, "seed": seed, "metadata": {"lr": seed}, "env_spec": seed}
        given = about if seed == 3 else later
        with ReplayRecorder(tmp_path, "run", live=None, resume=True, **given) as recorder:
            assert recorder.stats.committed == recorder.stats.steps == seed - 2
            recorder.step([1.0])
        assert described() == about
    with pytest.raises(InvalidError, match="has another `spaces`"):
        ReplayRecorder(tmp_path, "run", spaces={"n": 3}, live=None)
    assert validate(tmp_path, "full").ok


@pytest.mark.parametrize(
    ("error", "status"), [(KeyError, "failed"), (KeyboardInterrupt, "finished")]
)
def test_an_error_in_the_block_closes_the_run(
    tmp_path: Path, error: type[BaseException], status: str
) -> None:
    def record() -> None:
        with recorder_of(tmp_path) as recorder:
            recorder.step(action=1)
            raise error

    with pytest.raises(error):
        record()
    run = ReplayRun(tmp_path, "run")
    assert (run.status, len(run)) == (status, 1)


class TestAbortAfterTheEnd:
    """`abort` after `leave` or a failed `close` removes its own steps, and nothing of others."""

    def test_a_new_run_that_was_left_is_removed(self, tmp_path: Path) -> None:
        recorder = recorder_of(tmp_path)
        recorder.step(frame(1), 1, 1.0, frame=frame(1))
        recorder.leave()
        recorder.abort()
        recorder.abort()
        assert not recorder.path.exists()
        assert FrameResolver(tmp_path / "replay").list_runs() == []

    def test_a_run_that_could_not_be_closed_is_removed(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        recorder = recorder_of(tmp_path)
        recorder.step(frame(1), 1, 1.0, frame=frame(1))
        recorder.flush()

        def fail(*_: Any) -> None:
            raise InvalidError("refused")

        monkeypatch.setattr(RunWriter, "finish", fail)
        with pytest.raises(InvalidError, match="refused"):
            recorder.close()
        recorder.abort()
        assert not recorder.path.exists()
        assert FrameResolver(tmp_path / "replay").list_runs() == []

    def test_a_continued_run_is_as_it_was(self, tmp_path: Path) -> None:
        with recorder_of(tmp_path) as first:
            first.step(frame(1), 1, 1.0, frame=frame(1))
        before = first.path.read_bytes()
        second = recorder_of(tmp_path)
        second.step(frame(2), 1, 1.0, frame=frame(2))
        second.leave()
        second.abort()
        assert first.path.read_bytes() == before
        assert len(ReplayRun(tmp_path, "run").steps) == 1
        assert validate(tmp_path, "full").ok

    @pytest.mark.parametrize("is_live", [True, False])
    def test_what_another_recorder_continued_stays(
        self,
        tmp_path: Path,
        is_live: bool,  # noqa: FBT001 - a parameter
    ) -> None:
        first = recorder_of(tmp_path, codec="deflate")
        first.step(frame(1), 1, 1.0, frame=frame(1))
        first.leave()
        second = recorder_of(tmp_path)
        second.step(frame(2), 1, 1.0, frame=frame(2))
        second.flush()
        if not is_live:
            second.close()
        for _ in range(2):
            with pytest.raises(LockedError if is_live else ClosedError, match="run 'run'"):
                first.abort()
        if is_live:
            second.close()
        assert validate(tmp_path, "full").ok
        with h5py.File(second.path) as file:
            assert file["frames"][:, 0, 0, 0].tolist() == [1, 2]


KILLED = """
import os, sys
import numpy as np
from relive.replay import ReplayConfig, ReplayRecorder

config = ReplayConfig(chunk_rows=2, codec="deflate")
recorder = ReplayRecorder(sys.argv[1], "run", config=config, live=None)
for number in range(2):
    recorder.step(np.full((4, 5, 3), number, np.uint8), 1, 1.0)
    recorder.flush()
os._exit(0)
"""


def test_abort_after_a_kill_keeps_the_metadata_of_the_file(tmp_path: Path) -> None:
    # Metadata that was written last is after everything that the database knows.
    subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], check=True)
    path = tmp_path / "replay" / "run.h5"
    with h5py.File(path, "r", swmr=True) as file:
        before = file["observations"][:]
    recorder = recorder_of(tmp_path)
    recorder.step(frame(9), 1, 1.0)
    recorder.abort()
    with h5py.File(path, "r", swmr=True) as file:
        assert np.array_equal(file["observations"][:], before)
    assert before.shape[1:] == (4, 5, 3)


@pytest.mark.parametrize("start", [b"notes of a person", bytes(512) + b"\x89HDF\r\n\x1a\n", b"\1"])
def test_a_file_of_another_program_is_not_removed(tmp_path: Path, start: bytes) -> None:
    path = tmp_path / "replay" / "run.h5"
    path.parent.mkdir()
    path.write_bytes(b"x" + start)
    with pytest.raises(AlreadyExistsError, match="database has no run"):
        recorder_of(tmp_path)
    assert path.read_bytes() == b"x" + start


def test_an_error_of_the_block_has_a_note_if_closing_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise InvalidError("refused")

    monkeypatch.setattr(RunWriter, "finish", fail)
    with pytest.raises(KeyError) as caught, recorder_of(tmp_path):
        raise KeyError("block")
    notes = " ".join(caught.value.__notes__)
    assert "could not be completed: refused" in notes
    assert "relive recover" in notes


@pytest.mark.parametrize("shape", [(32, 32, 2), (2, 32, 32)])
@pytest.mark.parametrize("is_stack", [True, False])
def test_observations_of_two_planes(
    tmp_path: Path,
    shape: tuple[int, ...],
    is_stack: bool,  # noqa: FBT001 - a parameter
) -> None:
    axis = shape.index(2)
    planes = np.random.default_rng(1).integers(0, 255, (5, 32, 32), np.uint8)
    pairs = [(max(0, n - 1), n) if is_stack else (n, 4 - n) for n in range(5)]
    wanted = [np.stack([planes[a], planes[b]], axis=axis) for a, b in pairs]
    with recorder_of(tmp_path) as recorder:
        for observation in wanted:
            recorder.step(observation, 1, 1.0)
    with h5py.File(recorder.path) as file:
        assert ("planes" in file) == is_stack
    found = ReplayRun(tmp_path, "run").episodes[0].arrays()["observations"]
    assert np.array_equal(found, wanted)


@pytest.mark.parametrize("arrays", [True, False])
def test_an_action_that_sqlite_cannot_have(tmp_path: Path, arrays: bool) -> None:  # noqa: FBT001
    with ReplayRecorder(tmp_path, "run", live=None, arrays=arrays) as recorder:
        for action in (1 << 63, (1 << 64) - 1):
            recorder.step([0.5], action, 1.0)
    steps = ReplayRun(tmp_path, "run").steps
    assert steps.column("action").to_pylist() == [None, None]
    assert validate(tmp_path, "full").ok


ACTIONS: tuple[Any, ...] = (
    [0, 0.5],
    [True, 2],
    [(1 << 60) + 1, 0.5],
    {"a": 1, "b": [0, 0.5]},
    {"a": 1, "b": {}},
    (1, (), [2, 3.5]),
    [[1, 2], [3, 4.5]],
)


@pytest.mark.parametrize("action", ACTIONS)
def test_database_and_arrays_have_the_same_action(tmp_path: Path, action: Any) -> None:
    with recorder_of(tmp_path) as recorder:
        recorder.step([0.5], action, 1.0)
        if isinstance(action, dict):
            recorder.step([0.5], dict(reversed(action.items())), 1.0)
    assert validate(tmp_path, "full").problems == ()
    copied = tmp_path / "copy.h5"
    copied.write_bytes(recorder.path.read_bytes())
    wanted = json.loads(ReplayRun(tmp_path, "run").steps.column("action")[0].as_py())
    assert json.loads(ReplayRun(copied).steps.column("action")[0].as_py()) == wanted


def test_abort_restores_the_run_as_it_was(tmp_path: Path) -> None:
    with recorder_of(tmp_path, chunk_rows=4) as recorder:
        for number in range(6):
            recorder.step([number], number, frame=frame(number))
    before = (tmp_path / "replay" / "run.h5").read_bytes()
    steps = ReplayRun(tmp_path, "run").steps
    recorder = recorder_of(tmp_path, chunk_rows=4)
    for number in range(6, 30):
        recorder.step([number], number, frame=frame(number), extras={"new": number})
    recorder.flush()
    assert len(ReplayRun(tmp_path, "run")) == 30
    recorder.abort()
    run = ReplayRun(tmp_path, "run")
    assert run.steps.equals(steps)
    assert run.status == "finished"
    assert run.read("frames", range(6))[:, 0, 0, 0].tolist() == list(range(6))
    assert (tmp_path / "replay" / "run.h5").read_bytes() == before
    with recorder_of(tmp_path, chunk_rows=4) as recorder:
        recorder.step([6], 6, frame=frame(6))
    assert ReplayRun(tmp_path, "run").read("actions", range(7)).tolist() == list(range(7))


def test_any_sqlite_client_reads_the_database_while_it_is_recorded(tmp_path: Path) -> None:
    recorder = recorder_of(tmp_path)
    for number in range(5):
        recorder.step(action=number, reward=0.5, info={"n": number})
    recorder.flush()
    with sqlite3.connect(tmp_path / "telemetry" / "telemetry.sqlite") as client:
        rows = client.execute("SELECT action, reward, info FROM steps ORDER BY row").fetchall()
    client.close()
    assert rows == [(number, 0.5, json.dumps({"n": number})) for number in range(5)]
    recorder.step(action=5)
    recorder.close()
    assert len(ReplayRun(tmp_path, "run")) == 6


def test_frames_are_shown_live(tmp_path: Path) -> None:
    name = f"live-{os.getpid()}"
    with ReplayRecorder(tmp_path, name) as recorder:
        recorder.step(action=0)
        assert name not in [lane.name for lane in LiveLane.list()]
        recorder.step(frame=frame(3), reward=2.0)
        recorder.step(frame=frame(4), reward=1.0, env=1)  # of another sub-environment
        picture, scalars, number = LiveLane.attach(name).latest() or (None, {}, -1)
        np.testing.assert_array_equal(picture, frame(3))
        assert (scalars["reward"], scalars["rolling_return"], number) == (2.0, 2.0, 0)
    assert name not in [lane.name for lane in LiveLane.list()]


def test_all_frames_are_shown_in_a_grid(tmp_path: Path) -> None:
    name = f"grid-{os.getpid()}"
    with ReplayRecorder(tmp_path, name, live="grid") as recorder:
        for number in range(2):
            time.sleep(0.01)  # at most 250 frames a second are shown
            for env in range(3):
                recorder.step(frame=frame(10 * env + number), env=env)
        picture, _, _ = LiveLane.attach(name).latest() or (np.zeros(0), {}, 0)
    assert picture.shape == (8, 10, 3)
    assert picture[0, 0, 0] == 1
    assert picture[0, 5, 0] == 11
    assert picture[4, 0, 0] == 21
    assert picture[4, 5, 0] == 0


@pytest.mark.parametrize("live", [True, False])
def test_live_as_a_bool(tmp_path: Path, live: bool) -> None:  # noqa: FBT001
    name = f"bool-{os.getpid()}"
    with ReplayRecorder(tmp_path, name, live=live) as recorder:
        recorder.step(np.zeros((4, 4, 3), np.uint8), 0, 0.0)
        assert (name in [lane.name for lane in LiveLane.list()]) is live


def test_recording_goes_on_without_a_live_lane(tmp_path: Path) -> None:
    name = f"taken-{os.getpid()}"
    with LiveLane.create(name, (1,)), ReplayRecorder(tmp_path, name) as recorder:
        with pytest.warns(RuntimeWarning, match="not shown live"):
            recorder.step(frame=frame(0))
        recorder.step(frame=frame(1))
    assert len(ReplayRun(tmp_path, name)) == 2
    with pytest.raises(InvalidError, match="`live` must be"):
        ReplayRecorder(tmp_path, "x", live="all")  # type: ignore[arg-type]


def test_numbers_of_steps_may_be_given(tmp_path: Path) -> None:
    with recorder_of(tmp_path) as recorder:
        recorder.step(action=0, step_index=3)
        recorder.step(action=1)
        recorder.step(action=2, step_index=9)
        with pytest.raises(InvalidError, match="must increase in an episode: 9 after 9"):
            recorder.step(action=3, step_index=9)
    episode = ReplayRun(tmp_path, "run").episodes[0]
    assert episode["action"].timestamps.tolist() == [3, 4, 9]


def test_a_closed_recorder_has_no_thread(tmp_path: Path) -> None:
    recorder = recorder_of(tmp_path)
    names = [thread.name for thread in threading.enumerate()]
    assert "relive-replay-run" in names
    recorder.close()
    assert "relive-replay-run" not in [thread.name for thread in threading.enumerate()]
    with pytest.raises(ClosedError):
        recorder.step()


class TestUnusualValues:
    def test_arguments_that_the_database_would_change_are_refused_or_converted(
        self, tmp_path: Path
    ) -> None:
        with pytest.raises(InvalidTypeError, match="seed"):
            ReplayRecorder(tmp_path, "run", seed=True)
        with pytest.raises(InvalidError, match="seed"):
            ReplayRecorder(tmp_path, "run", seed=2**64)
        with pytest.raises(InvalidTypeError, match="env_id"):
            ReplayRecorder(tmp_path, "run", env_id=cast("str", 3))
        with ReplayRecorder(tmp_path, "run", seed=cast("int", np.int64(3)), live=None) as recorder:
            recorder.step([1.0])
        assert validate(tmp_path, "full").ok
        assert ReplayRun(tmp_path, "run").info["seed"] == 3

    def test_infinite_rewards_leave_a_return_that_is_a_number(self, tmp_path: Path) -> None:
        with recorder_of(tmp_path) as recorder:
            for reward in (math.inf, -math.inf, -0.0, math.nan):
                recorder.step([1.0], 0, reward)
        run = ReplayRun(tmp_path, "run")
        assert run.episodes[0]["return"] == math.inf
        rewards = run.read("rewards", range(4))
        np.testing.assert_array_equal(rewards, [math.inf, -math.inf, 0.0, math.nan])
        assert np.signbit(rewards[2])
        assert validate(tmp_path, "full").ok

    def test_names_of_extras_may_have_dots(self, tmp_path: Path) -> None:
        with recorder_of(tmp_path) as recorder:
            for name in ("", "a\0b"):
                with pytest.raises(InvalidError, match="extras"):
                    recorder.step([1.0], extras={name: 1.0})
            recorder.step([1.0], extras={"a": 1.0, "a.b": 2.0, "c/d%": 3.0})
            recorder.step(
                [1.0], info={"": np.zeros(2000)}, extras={"a": 1.0, "a.b": 2.0, "c/d%": 3.0}
            )
        assert validate(tmp_path, "full").ok
        names = {name for name in ReplayRun(tmp_path, "run").fields if name.startswith("extras")}
        assert names == {"extras.a", "extras.a%2Eb", "extras.c%2Fd%25"}

    def test_an_empty_observation_is_none(self, tmp_path: Path) -> None:
        with recorder_of(tmp_path) as recorder:
            refs = recorder.step({}, 1)
            assert refs is not None
            assert refs.observation is None
        assert validate(tmp_path, "full").ok

    def test_an_episode_begins_at_its_first_step(self, tmp_path: Path) -> None:
        with recorder_of(tmp_path) as recorder:
            recorder.step([1.0], terminated=True)
        with TelemetryStore(tmp_path) as store:
            episode = store.episodes()[0]
            assert episode.ended_ns is not None
            assert episode.started_ns <= episode.ended_ns

    def test_gray_pictures_are_no_stacks(self, tmp_path: Path) -> None:
        with recorder_of(tmp_path) as recorder:
            for number in range(3):
                recorder.step(np.full((32, 32, 3), number, np.uint8))
        with h5py.File(tmp_path / "replay" / "run.h5") as file:
            assert "planes" not in file
            assert file["observations"].shape == (3, 32, 32, 3)

    def test_a_run_has_arrays_or_has_none(self, tmp_path: Path) -> None:
        for has_arrays in (True, False):
            run_id = f"run-{has_arrays}"
            with ReplayRecorder(tmp_path, run_id, live=None, arrays=has_arrays) as recorder:
                recorder.step([1.0])
            with pytest.raises(InvalidError, match="arrays"):
                ReplayRecorder(tmp_path, run_id, live=None, arrays=not has_arrays)
            with ReplayRecorder(tmp_path, run_id, live=None, arrays=has_arrays) as recorder:
                recorder.step([1.0])
        assert validate(tmp_path, "full").ok

    def test_levels_of_codecs_are_checked_at_once(self) -> None:
        for wrong in ("zstd:99", "zstd:-8", "zstd:x", "zstd:", "deflate:10", "lz4:1", "raw:0"):
            with pytest.raises(InvalidError, match="level"):
                ReplayConfig(codec=wrong)
        config = ReplayConfig(codec={"observations": "raw", "*": "zstd:-7"})
        assert config.codec_of("final.observations.image") == ("raw", None)
        assert config.codec_of("final.frames") == ("zstd", -7)

    def test_a_run_that_is_recorded_opens_in_h5py(self, tmp_path: Path) -> None:
        with recorder_of(tmp_path) as recorder:
            recorder.step([1.0], 1, 0.5)
            recorder.flush()
            with h5py.File(tmp_path / "replay" / "run.h5", "r", swmr=True) as file:
                assert file.attrs["run_id"] == "run"

    def test_a_refused_step_decides_nothing(self, tmp_path: Path) -> None:
        with recorder_of(tmp_path) as recorder:
            with pytest.raises(InvalidTypeError):
                recorder.step([1, 2], extras={"y": "text"})
            recorder.step([1.0, 2.0], reward=1)
            with pytest.raises(InvalidTypeError, match="reward"):
                recorder.step([1.0, 2.0], reward=10**400)
        assert ReplayRun(tmp_path, "run").read("observations", [0]).tolist() == [[1.0, 2.0]]


def test_a_recorder_that_is_dropped_lets_the_run_go(tmp_path: Path) -> None:
    recorder = recorder_of(tmp_path, flush_s=3600)
    for number in range(5):
        recorder.step([number])
    with pytest.warns(ResourceWarning, match="was not closed"):
        del recorder
    assert all(thread.name != "relive-replay-run" for thread in threading.enumerate())
    assert ReplayRun(tmp_path, "run").status == "interrupted"
    assert len(ReplayRun(tmp_path, "run")) == 5
    with recorder_of(tmp_path) as recorder:
        recorder.step([5])
    assert len(ReplayRun(tmp_path, "run")) == 6


def test_a_program_that_ends_without_close_keeps_every_step(tmp_path: Path) -> None:
    script = """
import sys
from relive.replay import ReplayRecorder

def main():
    recorder = ReplayRecorder(sys.argv[1], "run")
    for number in range(50):
        recorder.step([number], number, 1.0)

main()
"""
    subprocess.run([sys.executable, "-c", script, tmp_path], check=True, timeout=60)
    run = ReplayRun(tmp_path, "run")
    assert run.status == "interrupted"
    assert run.steps["action"].to_pylist() == list(range(50))


def test_numbers_of_sub_environments(tmp_path: Path) -> None:
    with ReplayRecorder(tmp_path, "run", live=None) as recorder:
        for env in (1, np.int64(1), np.array(1)):
            recorder.step([0.5], 1, 1.0, env=env)  # type: ignore[arg-type]
        for wrong in (True, "1", [1], 0.5):
            with pytest.raises((TypeError, ValueError), match="env"):
                recorder.step([0.5], 1, 1.0, env=wrong)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="agent_id"):
            recorder.step([0.5], 1, 1.0, agent_id=["a"])  # type: ignore[arg-type]
    assert len(ReplayRun(tmp_path, "run").episodes) == 1


@pytest.mark.parametrize(
    "value",
    [
        {1: 0, "1": 1},
        {True: 0, "True": 1},
        {np.int64(1): 0, "1": 1},
        {"a": [{1.5: 0, "1.5": 1}]},
        {"a": {1, 2}},
        {"a": [{"b": frozenset()}]},
        {None: 1},
        {"a": {None: 1}},
        {"a": np.zeros(2), 1: 0, "1": 1},
    ],
    ids=repr,
)
def test_values_that_json_would_change_are_refused(value: Any, tmp_path: Path) -> None:
    with pytest.raises(InvalidTypeError, match="`metadata"):
        ReplayRecorder(tmp_path, "run", metadata=value)
    with pytest.raises(InvalidTypeError, match="`metadata"):
        LiveLane.create("run", (2, 2, 3), "u1", metadata=value)
    with ReplayRecorder(tmp_path, "run", live=None) as recorder:
        with pytest.raises(InvalidTypeError, match="`info"):
            recorder.step([0.5], info=value)
        with pytest.raises(InvalidTypeError, match="`metadata"):
            recorder.begin_episode(metadata=value)
        numbered: Any = {1: {2: 3}, "b": (4,)}
        recorder.step([0.5], info=numbered)
    run = ReplayRun(tmp_path, "run")
    assert (len(run), run.step(0).info) == (1, {"1": {"2": 3}, "b": [4]})
