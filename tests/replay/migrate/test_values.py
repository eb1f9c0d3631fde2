"""Values of every kind are kept, bit by bit: arrays as arrays, everything else as JSON."""

import itertools
import json
import math
import sqlite3
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of

from relive.replay import ReplayRecorder, ReplayRun, TelemetryStore
from relive.replay.migrate import ORIGINAL, migrate
from tests.replay.migrate.original import (
    Encoding,
    Original,
    arrays_at,
    blob,
    checked,
    columns_of,
    encoded,
    episodes_of,
    frame,
    observation,
    restored,
    same,
)


def test_steps_are_copied_with_everything_that_they_have(original: Original, root: Path) -> None:
    signature = {"observation": {"shape": [6, 6, 4]}}
    for index in range(3):
        original.step(
            "run-ep0000",
            index,
            run_id="run",
            action=index,
            observation=observation(index),
            render_payload={"mode": "rgb_array", "rgb": frame(index)},
            info={"lives": 3 - index, "text": "é"},
            truncated=int(index == 2),
            timestamp=f"2024-05-01T12:00:00.{index:06d}+02:00",
            frame_ref=f"frames/{index}",
            payload_version=1,
            worker_id="w1",
            space_signature=signature,
            vector_metadata={"env": index},
            time_step=100 + index,
            game_id="Pong-v5",
            episode_seed=7,
        )
    original.end("run-ep0000", run_id="run")
    report = checked(migrate(original.path, root, verify=True))
    assert (report.rows, report.runs, report.episodes, report.copied) == (3, 1, 1, 3)
    assert (report.verified, report.is_verified, report.irregular) == (3, True, 0)
    run = ReplayRun(root, "run")
    assert (run.status, len(run)) == ("finished", 3)
    assert (run.info["env_id"], run.info["spaces"]) == ("Pong-v5", signature)
    assert run.info["created_ns"] == 1_714_557_600_000_000_000
    assert run.info["ended_ns"] == 1_714_557_600_000_002_000
    episode = episodes_of(root)[0]
    assert (episode.episode_id, episode["seed"], episode.status) == ("run-ep0000", 7, "truncated")
    assert episode["metadata"]["end"]["metadata"] == {"player": "random"}
    for index in range(3):
        step = run.step(index)
        assert (step.step_index, step.action, step.reward) == (index, index, index / 3)
        assert step.truncated == (index == 2)
        assert step.ts_ns == 1_714_557_600_000_000_000 + index * 1000
        assert step.timestamp == f"2024-05-01T10:00:00.{index:06d}+00:00"
        assert {key: step.info[key] for key in ("lives", "text")} == {
            "lives": 3 - index,
            "text": "é",
        }
        np.testing.assert_array_equal(arrays_at(run, "frames", index), frame(index))
        got, wanted = arrays_at(run, "observations", index), observation(index)
        assert got["image"].tobytes() == wanted["image"].tobytes()
        assert got["pose"][0].tobytes() == wanted["pose"][0].tobytes()
        assert got["pose"][1] == index
        columns, fields = columns_of(run, index)
        assert fields == {}
        assert columns == {
            "frame_ref": f"frames/{index}",
            "payload_version": 1,
            "worker_id": "w1",
            "space_signature": signature,
            "vector_metadata": {"env": index},
            "time_step": 100 + index,
            "game_id": "Pong-v5",
            "episode_seed": 7,
            "render_payload": {"mode": "rgb_array", "rgb": {"__type__": "stored"}},
        }


def test_frames_are_found_in_every_encoding(original: Original, root: Path) -> None:
    cases = list(itertools.product(get_args(Encoding), [None, "rgb", "frame", "pixels"]))
    for encoding, key in cases:
        for index in range(3):
            payload = frame(index) if key is None else {"step": index, key: frame(index)}
            name = f"{encoding}-{key}"
            original.step(name, index, run_id=name, encoding=encoding, render_payload=payload)
    checked(migrate(original.path, root, verify=True))
    for encoding, key in cases:
        run = ReplayRun(root, f"{encoding}-{key}")
        assert run.fields["frames"] == ("|u1", (4, 5, 3))
        for index in range(3):
            np.testing.assert_array_equal(arrays_at(run, "frames", index), frame(index))
            rest = columns_of(run, index)[0].get("render_payload")
            stored = {"__type__": "stored"}
            assert rest == (None if key is None else {"step": index, key: stored})


def test_lists_of_arrays_have_numbers_that_json_does_not_have(
    original: Original, root: Path
) -> None:
    def marked(value: str) -> dict[str, str]:
        return {"__type__": "float", "value": value}

    document = {"__type__": "ndarray", "dtype": "float32", "shape": [2, 2]}
    nested = {**document, "data": [[marked("nan"), 1.0], [marked("-inf"), 2]]}
    number = {**document, "shape": [], "data": marked("inf")}
    original.step("run-ep0", 0, observation=nested, info={"a": nested})
    original.step("other-ep0", 0, observation=number)
    assert checked(migrate(original.path, root, verify=True)).verified == 2
    found = ReplayRun(root, "run").read("observations", [0])
    np.testing.assert_array_equal(found, np.array([[[np.nan, 1], [-np.inf, 2]]], np.float32))
    assert ReplayRun(root, "other").read("observations", [0]).tolist() == [np.inf]


def test_payloads_without_a_frame_are_kept(original: Original, root: Path) -> None:
    payloads = [{"ansi": "+---+", "rgb": None}, {"rgb": [1, 2, 3]}, "text", None, frame(1)]
    for index, payload in enumerate(payloads):
        original.step("run-ep0", index, render_payload=payload)
    checked(migrate(original.path, root, verify=True))
    run = ReplayRun(root, "run")
    got = [columns_of(run, index)[0].get("render_payload") for index in range(5)]
    assert got == [*payloads[:4], None]
    assert [run.step(index).frame_ref is not None for index in range(5)] == [False] * 4 + [True]


def test_values_that_are_not_arrays_are_kept(original: Original, root: Path) -> None:
    when = datetime(2024, 1, 1, tzinfo=UTC)
    documents = [
        {"image": frame(0), "mission": "go", "extra": None, "when": when},
        {"image": frame(1), "mission": "stop", "extra": {1}, "when": b"\xff"},
        {"image": frame(2), "mission": {}, "extra": [], "when": [[1], [2, 3]]},
        {"image": frame(3), "mission": [{"a": 1.5}, "x"], "extra": (), "when": 1 << 70},
        {"image": frame(4), "mission": True, "extra": {"": 1}, "when": {"\udc00": 2}},
        (frame(5), "text", -math.inf, [True, 2]),
        "only text",
        None,
        {"__type__": "stored"},
        [0.5, math.nan, 2],
        {"__type__": "unknown", "value": frame(6)},
        np.array(["text"]),
        7,
    ]
    info = {"when": when, "set": {1}, "nan": math.nan, "array": frame(0), "deep": [{"a": b"x"}]}
    for index, value in enumerate(documents):
        original.step("run-ep0", index, observation=value, info=info)
    checked(migrate(original.path, root, verify=True))
    run = ReplayRun(root, "run")
    for index, value in enumerate(documents):
        assert same(restored(run, index), encoded(value)), (index, restored(run, index))
        got = {key: value for key, value in run.step(index).info.items() if key != ORIGINAL}
        assert json.dumps(encoded(got)) == json.dumps(encoded(info))
    for index in range(3):
        np.testing.assert_array_equal(arrays_at(run, "observations", index)["image"], frame(index))


DTYPES = st.sampled_from(["bool", "int8", "uint8", ">i4", "int64", "float16", "<f4", ">f8", "c8"])


LEAVES = (
    st.integers(-(1 << 66), 1 << 66)
    | st.floats(width=64)
    | st.booleans()
    | st.none()
    | st.text(max_size=3)
    | st.binary(max_size=3)
    | st.lists(st.integers(-3, 3) | st.floats(), max_size=3)
    | DTYPES.flatmap(lambda dtype: arrays_of.arrays(dtype, arrays_of.array_shapes(min_side=0)))
)


KEYS = st.text(st.characters(exclude_categories=["Cs"]), max_size=3) | st.just("__type__")


NESTED = st.recursive(
    LEAVES,
    lambda inner: (
        st.dictionaries(KEYS, inner, max_size=3)
        | st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
    ),
    max_leaves=6,
)


@settings(max_examples=25)
@given(
    observations=st.lists(NESTED, min_size=1, max_size=5),
    encoding=st.sampled_from(["base64", "lists"]),
)
def test_any_nested_observation_is_restored(observations: list[Any], encoding: Encoding) -> None:
    with tempfile.TemporaryDirectory() as folder:
        source = Original(Path(folder) / "old.sqlite")
        # JSON does not keep the sign of NaN.
        documents = [json.loads(json.dumps(encoded(value, encoding))) for value in observations]
        for index, document in enumerate(documents):
            source.step("run-ep0", index, observation=json.dumps(document).encode(), info={"": 1})
        source.connection.close()
        root = Path(folder) / "root"
        report = checked(migrate(source.path, root, verify=True))
        assert report.verified == len(observations)
        run = ReplayRun(root, "run")
        for index, document in enumerate(documents):
            assert same(restored(run, index), document), (restored(run, index), document)


def test_another_shape_has_a_field_of_its_own(original: Original, root: Path) -> None:
    shapes = [(4, 5), (6, 5), (4, 5), (6, 5, 3)]
    for index, shape in enumerate(shapes):
        picture = np.full(shape, index, np.uint8)
        original.step("run-ep0", index, observation=picture, render_payload={"rgb": picture})
    report = checked(migrate(original.path, root, verify=True))
    assert report.irregular == 4
    run = ReplayRun(root, "run")
    assert run.fields["observations"] == run.fields["frames"] == ("|u1", (4, 5))
    assert run.fields["extras.observations_2"] == ("|u1", (6, 5))
    assert run.fields["extras.frames_3"] == ("|u1", (6, 5, 3))
    assert columns_of(run, 1)[1] == {
        "observations": "extras.observations_2",
        "frames": "extras.frames_2",
    }
    for index, shape in enumerate(shapes):
        np.testing.assert_array_equal(restored(run, index), np.full(shape, index))


def test_fields_are_found_again_by_the_next_call(original: Original, root: Path) -> None:
    for index in range(6):
        original.step("run-ep0", index, observation=np.zeros(index % 2 + 1, np.uint8))
        checked(migrate(original.path, root))
    run = ReplayRun(root, "run")
    fields = [name for name in run.fields if "observations" in name and "valid" not in name]
    assert fields == ["observations", "extras.observations_2"]
    assert checked(migrate(original.path, root, verify=True)).verified == 6


def test_too_many_shapes_are_json(original: Original, root: Path) -> None:
    for index in range(12):
        original.step("run-ep0", index, observation={"a": np.arange(index, dtype=np.float32)})
    assert checked(migrate(original.path, root, verify=True)).irregular == 11
    run = ReplayRun(root, "run")
    assert "extras.observations_8.a" in run.fields
    assert "extras.observations_9.a" not in run.fields
    for index in range(12):
        document = encoded({"a": np.arange(index, dtype=np.float32)})
        assert same(restored(run, index), document)


def test_large_arrays_of_an_info_are_arrays(original: Original, root: Path) -> None:
    large = np.arange(2000, dtype=">i4")
    for index, array in enumerate([large, large[:500], large[::2].copy(), large + 1]):
        original.step("run-ep0", index, info={"map.x": array, "n": index})
    checked(migrate(original.path, root, verify=True))
    run = ReplayRun(root, "run")
    assert run.fields["info.map%2Ex"] == ("<i4", (2000,))
    assert run.step(0).info["map.x"] == "h5://run/info.map%252Ex/0"
    np.testing.assert_array_equal(arrays_at(run, "info.map%2Ex", 3), large + 1)
    for row, array in ((1, large[:500]), (2, large[::2])):
        found = run.step(row).info["map.x"]
        assert found.dtype == array.dtype
        np.testing.assert_array_equal(found, array)


def test_infos_that_are_not_dicts_are_kept(original: Original, root: Path) -> None:
    infos = [[1, 2], "text", {ORIGINAL: {"columns": 1}}, {}, None, {"": 1}]
    for index, info in enumerate(infos):
        original.step("run-ep0", index, info=info)
    checked(migrate(original.path, root, verify=True))
    run = ReplayRun(root, "run")
    got = [columns_of(run, index)[0].get("info") for index in range(6)]
    assert got == [[1, 2], "text", {ORIGINAL: {"columns": 1}}, None, None, {"": 1}]


def test_actions_of_every_kind(original: Original, root: Path) -> None:
    pairs: list[tuple[str, list[Any], list[Any]]] = [
        ("whole", [1, 0, 3], [1, 0, 3]),
        ("real", [1, 0.5, 2], [1.0, 0.5, 2.0]),
        ("text", ["left", "right"], ["left", "right"]),
        ("none", [None, 1], [None, 1]),
        ("vector", ["[0.5, 1.5]", b"[2.5, 3.5]"], [[0.5, 1.5], [2.5, 3.5]]),
        ("array", [blob(np.arange(3))], [[0, 1, 2]]),
    ]
    for name, actions, _ in pairs:
        for index, action in enumerate(actions):
            original.step(f"{name}-ep0", index, action=action)
    checked(migrate(original.path, root, verify=True))
    for name, _, wanted in pairs:
        run = ReplayRun(root, name)
        got = [restored(run, row, "actions") for row in range(len(run))]
        assert [np.asarray(value).tolist() for value in got] == wanted, name
    assert ReplayRun(root, "real").fields["actions"] == ("<f8", ())
    assert ReplayRun(root, "whole").fields["actions"] == ("<i8", ())
    assert ReplayRun(root, "whole").step(2).action == 3


def test_first_fraction_in_a_later_call(original: Original, root: Path) -> None:
    original.step("run-ep0", 0, action=1)
    migrate(original.path, root)
    original.step("run-ep0", 1, action=0.5)
    original.step("run-ep0", 2, action=2)
    checked(migrate(original.path, root, verify=True))
    run = ReplayRun(root, "run")
    assert run.fields["actions"] == ("<i8", ())
    assert [run.step(row).action for row in range(3)] == [1, None, 2]
    assert restored(run, 1, "actions") == 0.5


def test_tables_of_other_versions_are_migrated(tmp_path: Path, root: Path) -> None:
    path = tmp_path / "old.sqlite"
    connection = sqlite3.connect(path)
    connection.execute(
        "CREATE TABLE steps (episode_id, step_index, reward, terminated, truncated, timestamp, "
        'observation, "odd ""name" BLOB, later)'
    )
    connection.execute(
        "INSERT INTO steps VALUES ('run-ep0', 0, 1, 1, NULL, '2024-01-01', '[1, 2]', x'ff', 'x')"
    )
    connection.commit()
    connection.close()
    checked(migrate(path, root, verify=True))
    run = ReplayRun(root, "run")
    assert restored(run, 0).tolist() == [1, 2]
    odd = {"__type__": "bytes", "data": "/w=="}
    assert columns_of(run, 0)[0] == {'odd "name': odd, "later": "x"}


INFO = {
    "pair": (1, (2.5, [None])),
    "nan": math.nan,
    "bounds": [math.inf, {"low": -math.inf}],
    "seen": {1, 2},
    "raw": b"\0\xff",
    "at": datetime(2024, 5, 1, 10, 30, tzinfo=UTC),
    "small": np.arange(6, dtype=np.float32).reshape(2, 3),
    "large": np.arange(3000, dtype=np.int16),
    "plain": {"lives": 3, "name": "x", "flags": [True, None]},
}


def info_of(read: dict[str, Any]) -> str:
    """Return an info as text, in which arrays have their dtypes."""
    shown = {
        key: (value.dtype.str, value.tolist()) if isinstance(value, np.ndarray) else value
        for key, value in read.items()
        if key != "__original__"
    }
    return repr(sorted(shown.items()))


@pytest.mark.parametrize("encoding", ["base64", "lists"])
def test_infos_are_what_they_were(original: Original, root: Path, encoding: Encoding) -> None:
    original.step("run-ep0", 0, info=INFO, encoding=encoding, worker_id="w")
    original.step("run-ep0", 1, info={"next": (1,)}, worker_id="v")
    checked(migrate(original.path, root, verify=True))
    run = ReplayRun(root, "run")
    first, second = run.infos([0, 1])
    assert info_of(first) == info_of(INFO)
    assert first["small"].flags.writeable
    assert second["next"] == (1,)
    assert second["__original__"] == {"columns": {"worker_id": "v"}}
    without_large = {**INFO, "large": "h5://run/info.large/0"}
    assert info_of(run.step(0).info) == info_of(without_large)
    with TelemetryStore(root, read_only=True) as store:
        for steps in (store.steps(), store.recent_steps(), store.episode_steps("run-ep0")):
            assert info_of(steps[0].info) == info_of(without_large)
    assert verified_again(original, root)


def verified_again(original: Original, root: Path) -> bool:
    return checked(migrate(original.path, root, verify=True)).is_verified


@pytest.mark.parametrize(
    "marked",
    [
        {"__type__": "set", "data": [[1]]},
        {"__type__": "set"},
        {"__type__": "tuple", "data": 5},
        {"__type__": "bytes", "data": "?"},
        {"__type__": "datetime", "value": "x"},
        {"__type__": "float", "value": "x"},
        {"__type__": "ndarray", "dtype": "f4", "shape": [2], "encoding": "base64", "data": "AA=="},
        {"__type__": "ndarray", "dtype": "O", "shape": [1], "data": [1]},
        {"__type__": "later", "data": 1},
        {"__type__": ["tuple"]},
        {"__type__": "stored"},
    ],
)
def test_marker_that_cannot_be_read_stays(
    marked: dict[str, Any], original: Original, root: Path
) -> None:
    info = {"a": {"b": [marked]}, "c": {"__type__": "tuple", "data": [1]}}
    original.step("run-ep0", 0, info=json.dumps(info).encode())
    checked(migrate(original.path, root, verify=True))
    assert ReplayRun(root, "run").step(0).info == {"a": {"b": [marked]}, "c": (1,)}


def test_infos_of_other_runs_stay_as_they_were_recorded(root: Path) -> None:
    info = {"a": {"__type__": "tuple", "data": [1]}}
    with ReplayRecorder(root, "run", live=None) as recorder:
        recorder.step([0.5], info=info)
    assert ReplayRun(root, "run").step(0).info == ReplayRun(root, "run").infos([0])[0] == info
