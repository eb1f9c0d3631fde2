"""Steps that are not recorded: none before them is lost, and nothing spans them."""

import contextlib
import os
from pathlib import Path
from random import Random
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from relive.errors import InvalidError, InvalidTypeError, OverloadError, ReliveError, TooLargeError
from relive.replay import ReplayConfig, ReplayRecorder, ReplayRun, validate
from relive.store.queue import BoundedQueue

EXAMPLES = int(os.environ.get("RELIVE_ODD_STEPS", "8"))
LOSSES = (OverloadError, InvalidTypeError)


def let_queues_be_full(random: Random, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let queues be full for some of the items that are offered."""
    offer = BoundedQueue.offer

    def offer_some(queue: Any, item: Any, nbytes: int, overload: Any) -> bool:
        if overload == "block" or random.random() > 0.15:
            return offer(queue, item, nbytes, overload)
        if overload == "drop":
            return False
        raise OverloadError("the queue is full")

    monkeypatch.setattr(BoundedQueue, "offer", offer_some)


@pytest.mark.parametrize("overload", ["raise", "drop", "block"])
@pytest.mark.parametrize("seed", range(3))
def test_transitions_never_span_a_step_that_was_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, overload: Any
) -> None:
    random = Random(seed)  # noqa: S311 - repeatable
    let_queues_be_full(random, monkeypatch)
    config = ReplayConfig(overload=overload)
    recorded: list[tuple[int, int, int, int]] = []  # stream, episode, step, observation
    lost, tick = 0, 0
    places = [[0, 0], [0, 0]]  # episode and step of each stream
    with ReplayRecorder(tmp_path, "run", config=config, live=None) as recorder:
        for _ in range(300):
            env = random.randrange(2)
            tick += 1
            episode, index = places[env]
            is_over = random.random() < 0.1
            refs = None
            with contextlib.suppress(*LOSSES):
                refs = recorder.step(
                    [1000 * env + float(tick)],
                    env,
                    1.0,
                    truncated=is_over,
                    next_observation=[-1000 * env - float(tick)],
                    info={"odd": object() if random.random() < 0.1 else None},
                    env=env,
                )
            lost += refs is None
            if refs is not None:
                assert refs.row == len(recorded)
                recorded.append((env, episode, index, 1000 * env + tick))
            places[env] = [episode + 1, 0] if is_over else [episode, index + 1]
        assert recorder.stats.dropped == lost
        assert recorder.stats.steps == len(recorded)
    run = ReplayRun(tmp_path, "run")
    assert lost > 10
    assert run.read("observations", range(len(recorded)))[:, 0].tolist() == [
        observation for *_, observation in recorded
    ]
    follows = {place: observation for *place_, observation in recorded for place in [(*place_,)]}
    batch: Any = (made := run.transitions()).gather(range(len(made)))
    found = {}
    for row, following in zip(batch["index"], batch["next_observation"][:, 0], strict=True):
        found[int(row)] = int(following)
    for row, (env, episode, index, observation) in enumerate(recorded):
        following = follows.get((env, episode, index + 1))
        if following is not None:
            assert found.pop(row) == following
        elif row in found:  # what was seen last in its episode
            assert found.pop(row) == -observation
    assert not found


def test_an_episode_whose_last_step_was_lost_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer = BoundedQueue.offer

    def full(queue: Any, item: Any, nbytes: int, overload: Any) -> bool:
        if is_full and overload == "raise":
            raise OverloadError("the queue is full")
        return not is_full and offer(queue, item, nbytes, overload)

    monkeypatch.setattr(BoundedQueue, "offer", full)
    config = ReplayConfig(overload="raise")
    with ReplayRecorder(tmp_path, "run", config=config, live=None) as recorder:
        is_full = False
        recorder.step([0.0])
        is_full = True
        with pytest.raises(OverloadError):
            recorder.step([1.0], terminated=True, next_observation=[2.0])
        assert not recorder.has_open_episode()
        is_full = False
        recorder.step([3.0])
        with pytest.raises(InvalidTypeError):
            recorder.step([4.0], info={"odd": object()}, truncated=True)
        recorder.begin_episode("third")
        recorder.step([5.0])
        is_full = True
        with pytest.raises(OverloadError, match="what was seen last"):
            recorder.end_episode(next_observation=[6.0])
        recorder.end_episode()
        recorder.begin_episode("fourth")
    run = ReplayRun(tmp_path, "run")
    lengths = [(len(episode.rows), episode.status) for episode in run.episodes]
    assert lengths == [(1, "terminated"), (1, "truncated"), (1, "truncated")]
    assert run.steps["step_index"].to_pylist() == [0, 0, 0]
    assert len(run.transitions()) == 0


def test_a_row_that_is_refused_loses_no_other_row(tmp_path: Path) -> None:
    with ReplayRecorder(tmp_path, "run", live=None) as recorder:
        for number in range(3):
            infos = [{"odd": object()} if (number, env) == (1, 1) else {} for env in range(3)]
            with contextlib.suppress(InvalidTypeError):
                recorder.steps([0, 1, 2], np.full((3, 1), number, np.int64), info=infos)
        assert (recorder.stats.steps, recorder.stats.dropped) == (8, 1)
        with pytest.raises(InvalidError, match="a row for each"):
            recorder.steps([0, 1, 2], np.full((3, 1), 3), np.zeros(2))
        recorder.steps([0, 1, 2], np.full((3, 1), 4, np.int64))
    run = ReplayRun(tmp_path, "run")
    assert [len(episode.rows) for episode in run.episodes] == [4, 3, 4]
    batch: Any = (made := run.transitions()).gather(range(len(made)))
    assert (batch["next_observation"] == batch["observation"] + 1).all()
    assert len(made) == 4


def deep(levels: int, leaf: Any = 1) -> Any:
    value = leaf
    for _ in range(levels):
        value = {"a": value}
    return value


ZEROS = np.zeros(1, np.uint8)
"""Many times as many are a view of no further memory."""

ODD: dict[str, dict[str, Any]] = {
    "4 GiB": {"observation": np.broadcast_to(ZEROS, (1 << 16, 1 << 16))},
    "a frame of 4 GiB": {"frame": np.broadcast_to(ZEROS, (1 << 16, 1 << 16))},
    "an extra of 4 GiB": {"extras": {"x": np.broadcast_to(ZEROS, (1 << 16, 1 << 16))}},
    "31 dimensions": {"observation": np.zeros((1,) * 31)},
    "a long dimension": {"observation": np.zeros((0, 1 << 32))},
    "a long key": {"observation": {"k" * 65_535: 1.0}},
    "a long key when it is encoded": {"observation": {"/" * 30_000: 1.0}},
    "long keys together": {"observation": {"a" * 40_000: {"b" * 40_000: np.zeros((8, 8, 4))}}},
    "a long name": {"extras": {"n" * 65_535: 1.0}},
    "a deep observation": {"observation": deep(600)},
    "a very deep observation": {"observation": deep(100_000)},
    "a deep action": {"action": deep(600)},
    "a very deep action": {"action": deep(100_000)},
    "a deep info": {"info": deep(600)},
    "a large integer": {"info": {"x": 10**5000}},
    "a large integer in a list": {"info": {"x": [10**5000]}},
    "a long double": {"info": {"x": np.longdouble(1)}},
    "long doubles": {"info": {"x": np.zeros(3, np.longdouble)}},
    "an action of long doubles": {"action": np.zeros(3, np.longdouble)},
    "a date": {"observation": np.zeros(2, "datetime64[ns]")},
    "a structure": {"observation": np.zeros(2, "i4,f8")},
    "a last observation": {
        "observation": 1.0,
        "terminated": True,
        "next_observation": np.zeros((1,) * 31),
    },
    "a last frame": {"terminated": True, "next_frame": np.zeros((1,) * 31)},
    "a long agent": {"agent_id": "a" * 5000},
    "a step index": {"step_index": 1 << 63},
}


@pytest.mark.parametrize("arguments", ODD.values(), ids=ODD)
def test_a_step_that_cannot_be_stored_is_refused_and_nothing_is_lost(
    tmp_path: Path, arguments: dict[str, Any]
) -> None:
    with ReplayRecorder(tmp_path, "run", live=None) as recorder:
        for number in range(5):
            recorder.step(action=number)
        with pytest.raises((TooLargeError, InvalidError, InvalidTypeError)):
            recorder.step(**arguments)
        recorder.flush()
        recorder.step(action=5)
    run = ReplayRun(tmp_path, "run")
    assert run.status == "finished"
    assert run.steps["action"].to_pylist() == [*range(6)]


def test_no_step_follows_the_last_index(tmp_path: Path) -> None:
    with ReplayRecorder(tmp_path, "run", live=None) as recorder:
        recorder.step(0.0, step_index=(1 << 63) - 1)
        with pytest.raises(InvalidError):
            recorder.step(1.0)
        recorder.end_episode()
        recorder.step(2.0)
    run = ReplayRun(tmp_path, "run")
    assert run.steps["step_index"].to_pylist() == [(1 << 63) - 1, 0]
    assert len(run.transitions()) == 0


def test_chunks_that_the_database_cannot_have_are_refused(tmp_path: Path) -> None:
    config = ReplayConfig(chunk_rows=1 << 16)
    with ReplayRecorder(tmp_path, "run", config=config, live=None) as recorder:
        recorder.step(action=0)
        with pytest.raises(TooLargeError, match=r"chunk_rows=\d+ or less"):
            recorder.step(frame=np.zeros((200, 200, 3), np.uint8))
        recorder.step(action=1)
    assert len(ReplayRun(tmp_path, "run")) == 2


def test_what_is_stored_at_the_limits_is_read_again(tmp_path: Path) -> None:
    observation = {"k" * 59_000: np.ones((1,) * 30, np.int8), "b": np.zeros((0, (1 << 32) - 1))}
    infos: dict[str, Any] = {
        "é" * 20: np.arange(1000),
        "\0": np.arange(1000),
        "/" * 30_000: np.arange(1000),
    }
    infos |= {"deep": np.ones((1,) * 31 + (1000,), np.int16), "large": 1 << 70, "\ud800": "\ud800"}
    with ReplayRecorder(tmp_path, "run", live=None) as recorder:
        for _ in range(3):
            recorder.step(observation, deep(90), info=infos)
    run = ReplayRun(tmp_path, "run")
    read = run.read("observations", [0, 2])
    assert {key: array.shape for key, array in read.items()} == {
        "k" * 59_000: (2, *(1,) * 30),
        "b": (2, 0, (1 << 32) - 1),
    }
    stored: Any = run.infos([1])[0]
    assert stored["large"] == 1 << 70
    assert stored["\ud800"] == "\ud800"
    for name in infos.keys() - {"large", "\ud800"}:
        np.testing.assert_array_equal(np.asarray(stored[name]), infos[name])
    assert not validate(tmp_path, "full").problems
    with h5py.File(tmp_path / "replay/run.h5") as file:
        assert file["observations/" + "k" * 59_000].shape == (3, *(1,) * 30)


def test_an_info_that_is_too_large_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("values", "steps"):
        target = f"relive.replay.{'storage' if module == 'values' else 'writing'}.{module}"
        monkeypatch.setattr(f"{target}.MAX_JSON_BYTES", 1000)
    with ReplayRecorder(tmp_path, "run", live=None) as recorder:
        for info in ({"text": "x" * 2000}, {"text": ["x" * 2000]}):
            with pytest.raises(TooLargeError, match=r"`info` is 20.. bytes as JSON"):
                recorder.step(info=info)
        with pytest.raises(TooLargeError, match=r"`metadata` is 20.. bytes as JSON"):
            recorder.begin_episode(metadata={"text": "x" * 2000})


DTYPES = ["?", "i1", ">i4", "u8", "f2", "f4", "f8", "c8", "g", "O", "U3", "S2", "M8[s]", "m8", "V5"]
TEXTS: st.SearchStrategy[str] = st.text(st.characters(), max_size=5) | st.sampled_from(
    ["", "\0", "\ud800", "a/b.c%", "..", "."]
)
TEXTS |= st.builds(lambda: "é" * 3000)  # with a short repr, which hypothesis needs
ARRAYS = st.builds(
    lambda dtype, shape: np.zeros(shape, dtype),
    st.sampled_from(DTYPES),
    st.lists(st.integers(0, 3), max_size=4)
    | st.just([1] * 29)
    | st.just([1] * 32)
    | st.just([2000])
    | st.just([0, 1 << 33]),
)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([1 << 63, -(1 << 64)])
    | st.floats()
    | TEXTS
    | st.binary(max_size=3)
    | st.complex_numbers()
    | st.sampled_from(
        [np.float16(1), np.longdouble(1), np.datetime64("2020-01-01"), np.str_("a"), object()]
    )
)
HUGE = st.builds(lambda: 10**5000)
VALUES: Any = st.recursive(
    SCALARS | ARRAYS | HUGE,
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.tuples(inner)
        | st.dictionaries(TEXTS, inner, max_size=3)
        | st.dictionaries(st.integers() | st.booleans(), inner, max_size=2)
    ),
    max_leaves=4,
)
STEPS = st.fixed_dictionaries(
    {},
    optional={
        "observation": VALUES,
        "action": VALUES,
        "reward": VALUES,
        "terminated": VALUES,
        "truncated": VALUES,
        "frame": VALUES,
        "info": st.dictionaries(TEXTS, VALUES, max_size=3) | VALUES,
        "next_observation": VALUES,
        "next_frame": VALUES,
        "extras": st.dictionaries(TEXTS, VALUES, max_size=2) | VALUES,
        "env": st.integers(0, 1) | SCALARS,
        "agent_id": TEXTS | SCALARS,
        "step_index": st.integers(0, 1 << 63) | SCALARS,
        "ts_ns": st.integers(-1, 1 << 64) | SCALARS,
    },
)


@settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    database=None,
)
@given(steps=st.lists(STEPS, min_size=1, max_size=5), arrays=st.booleans())
def test_an_odd_step_is_refused_or_read_again(
    tmp_path_factory: pytest.TempPathFactory,
    steps: list[dict[str, Any]],
    arrays: bool,  # noqa: FBT001
) -> None:
    root = tmp_path_factory.mktemp("root")
    expected: list[int | None] = []
    with ReplayRecorder(root, "run", live=None, arrays=arrays) as recorder:
        for number, arguments in enumerate(steps):
            with contextlib.suppress(ReliveError):
                refs = recorder.step(**arguments)
                assert refs is not None
                assert refs.row == len(expected)
                expected.append(None)
            recorder.step(reward=number, agent_id="good", ts_ns=number)
            expected.append(number)
    run = ReplayRun(root, "run")
    assert run.status == "finished"
    assert len(run) == len(expected)
    for row, reward in enumerate(expected):
        step = run.step(row)
        assert reward is None or step.reward == reward
    for field in run.fields:
        run.read(field, range(len(run)))
    run.infos(range(len(run)))
    assert not validate(root, "full").problems
    if arrays:
        with h5py.File(root / "replay/run.h5") as file:
            file.visit(lambda name: None)
