"""`TelemetryStore(keep_blobs=True)`: steps are written twice, and both are the same."""

import math
import os
import sqlite3
import struct
import subprocess
import sys
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of

from relive.errors import CorruptError, InvalidError
from relive.replay import (
    ReplayConfig,
    ReplayRecorder,
    ReplayRun,
    ReplayWriter,
    TelemetrySink,
    TelemetryStore,
    delete,
)
from relive.replay.migrate import blobs, migrate
from relive.replay.storage.layout import database_path
from tests.replay.migrate.original import checked, frame


def record(root: Path, payloads: list[dict[str, Any]], *, arrays: bool = True) -> None:
    with TelemetryStore(root, keep_blobs=True) as store:
        writer = ReplayWriter("run", root / "replay") if arrays else None
        with writer or nullcontext(), TelemetrySink(store, writer) as sink:
            for payload in payloads:
                sink.put(payload)


def payloads(count: int = 5) -> list[dict[str, Any]]:
    return [
        {
            "run_id": "run",
            "episode_id": "run-ep0",
            "observation": {"image": frame(index), "pose": (np.float32(index), index)},
            "frame": frame(index),
            "action": index,
            "reward": index / 3,
            "info": {"lives": index, "when": (1, 2)},
            "seed": 5,
            "terminated": index == count - 1,
        }
        for index in range(count)
    ]


def blob_rows(root: Path, columns: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(database_path(root))) as connection:
        sql = f"SELECT {columns} FROM original_steps ORDER BY rowid"  # noqa: S608 - of the test
        return connection.execute(sql).fetchall()


def test_steps_are_written_with_json_and_references(root: Path) -> None:
    record(root, payloads())
    names = "episode_id, step_index, action, reward, terminated, agent_id, frame_ref, run_id"
    assert blob_rows(root, names) == [
        ("run-ep0", index, index, index / 3, index == 4, None, f"h5://run/frames/{index}", "run")
        for index in range(5)
    ]
    assert blob_rows(root, "episode_seed, payload_version")[0] == (5, 0)
    for index, (observation, payload, info) in enumerate(
        blob_rows(root, "observation, render_payload, info")
    ):
        picture = blobs.picture_of(blobs.loads(payload))
        np.testing.assert_array_equal(picture, frame(index))
        assert blobs.split(blobs.loads(observation)).arrays["pose"][0].dtype == np.float32
        assert blobs.loads(info) == {
            "lives": index,
            "when": {"__type__": "tuple", "data": [1, 2]},
        }
    times = [step.timestamp for step in TelemetryStore(root, read_only=True).recent_steps()]
    assert [time for (time,) in blob_rows(root, "timestamp")] == times


def test_both_are_compared_and_the_json_is_removed(root: Path) -> None:
    record(root, payloads())
    report = checked(migrate(database_path(root), root, verify=True))
    assert (report.present, report.verified, report.staged) == (5, 5, None)
    report = checked(migrate(database_path(root), root, drop_blobs=True, compact=True))
    assert report.dropped == ("observation", "render_payload")
    assert len(ReplayRun(root, "run")) == 5
    with pytest.raises(InvalidError, match="the JSON of steps was removed"):
        record(root, payloads())


def test_difference_is_found_and_nothing_is_removed(root: Path) -> None:
    record(root, payloads())
    with closing(sqlite3.connect(database_path(root))) as connection, connection:
        other = blobs.dumps(frame(7))
        connection.execute("UPDATE original_steps SET render_payload = ? WHERE rowid = 3", (other,))
    report = migrate(database_path(root), root, verify=True)
    assert [str(problem) for problem in report.problems] == [
        "episode 'run-ep0', step 2: `frames` has another value"
    ]
    with pytest.raises(CorruptError, match="nothing was removed"):
        migrate(database_path(root), root, drop_blobs=True)


def test_json_of_a_deleted_run_does_not_stop_the_others(root: Path) -> None:
    record(root, payloads())
    with ReplayRecorder(root, "other", live=None) as recorder:
        recorder.step(reward=1.0)
    delete(root, "other")
    assert checked(migrate(database_path(root), root, verify=True)).verified == 5
    delete(root, "run")
    assert blob_rows(root, "rowid") == []
    report = checked(migrate(database_path(root), root, drop_blobs=True))
    assert (report.rows, report.kept, report.skipped_runs) == (0, 0, [])


def test_json_without_arrays_is_never_removed(root: Path, tmp_path: Path) -> None:
    record(root, payloads(), arrays=False)
    with pytest.raises(CorruptError, match="nothing was removed"):
        migrate(database_path(root), root, drop_blobs=True)
    assert checked(migrate(database_path(root), tmp_path / "other", verify=True)).verified == 5
    run = ReplayRun(tmp_path / "other", "run")
    np.testing.assert_array_equal(run.read("frames", [3])[0], frame(3))


VALUES = st.one_of(
    st.integers(-9, 9),
    st.floats(width=64),
    arrays_of.arrays(
        st.sampled_from(["bool", "uint8", ">i4", "float16", "<f8", "c8"]),
        arrays_of.array_shapes(max_side=3),
    ),
)


@settings(max_examples=20)
@example(observation=struct.unpack("<d", b"\1\0\0\0\0\0\xf8\x7f")[0], action=0, reward=None)
@given(
    observation=VALUES | st.dictionaries(st.sampled_from("ab.%"), VALUES, min_size=1),
    action=VALUES | st.tuples(VALUES, VALUES),
    reward=st.none() | st.floats(),
)
def test_anything_that_is_recorded_is_the_same_in_both(
    tmp_path_factory: pytest.TempPathFactory, observation: Any, action: Any, reward: float | None
) -> None:
    root = tmp_path_factory.mktemp("root")
    step = {"observation": observation, "action": action, "reward": reward}
    record(root, [{**step, "episode_id": "e"}] * 2)
    assert checked(migrate(database_path(root), root, verify=True)).verified == 2


def test_steps_without_values_have_no_json(root: Path) -> None:
    record(root, [{"reward": math.nan}, {"reward": None, "action": (1 << 63) - 1}])
    values = blob_rows(root, "observation, render_payload, info, reward")
    assert values == [(None, None, None, None)] * 2
    assert checked(migrate(database_path(root), root, verify=True)).verified == 2


KILLED = """
import os, signal, sys, time
from pathlib import Path
import numpy as np
from relive.replay import ReplayConfig, ReplayWriter, TelemetrySink, TelemetryStore

root = Path(sys.argv[1])
config = ReplayConfig(flush_s=0.02, flush_steps=10)
store = TelemetryStore(root, keep_blobs=True)
sink = TelemetrySink(store, ReplayWriter("run", root / "replay", config=config))
for number in range(int(sys.argv[2])):
    sink.put({"observation": np.full(9, number), "action": number, "reward": 1.0})
    time.sleep(0.001)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("count", [1, 200])
def test_json_of_a_killed_process_has_its_steps(root: Path, count: int) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED, root, str(count)], env=os.environ)
    assert done.returncode == -9
    report = checked(migrate(database_path(root), root, verify=True))
    assert report.verified is not None
    assert report.verified <= len(TelemetryStore(root).recent_steps(1000))
    assert report.verified == report.present
    assert count == 1 or report.verified > 0


def test_flush_writes_the_json_too(root: Path) -> None:
    config = ReplayConfig(flush_s=60)
    with TelemetryStore(root, keep_blobs=True) as store:
        with TelemetrySink(store, ReplayWriter("run", root / "replay", config=config)) as sink:
            sink.put(payloads()[0])
            sink.flush()
            assert len(blob_rows(root, "episode_id")) == 1
            sink.put(payloads()[1])
        assert len(blob_rows(root, "episode_id")) == 2


def test_store_that_only_reads_keeps_no_json(root: Path) -> None:
    with pytest.raises(InvalidError, match="not both"):
        TelemetryStore(root, read_only=True, keep_blobs=True)
