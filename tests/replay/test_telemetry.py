"""Recording and reading by parts, with the names of the program that the layout comes from."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from relive.errors import (
    ClosedError,
    InvalidError,
    InvalidTypeError,
    NotFoundError,
    OutOfRangeError,
    OverloadError,
    StorageError,
    UnknownNameError,
)
from relive.replay import (
    FrameResolver,
    ReplayConfig,
    ReplayReader,
    ReplayRun,
    ReplayWriter,
    TelemetrySink,
    TelemetryStore,
)
from relive.replay.recorder import ReplayRecorder


def frame(number: int) -> npt.NDArray[np.uint8]:
    return np.full((7, 5, 3), number, np.uint8)


def seen(number: int) -> npt.NDArray[np.float32]:
    return np.array([number, -number], np.float32)


def payload(number: int, **more: Any) -> dict[str, Any]:
    """Return a step as a worker sends it."""
    return {
        "run_id": "run_abc123",
        "episode_id": f"run_abc123-ep{number // 4:04d}",
        "step_index": number % 4,
        "action": number % 3,
        "reward": number / 2,
        "observation": seen(number),
        "frame": frame(number),
        "terminated": number % 4 == 3,
        "truncated": False,
        "info": {"lives": number},
        "timestamp": f"2024-05-06T07:08:09.{number:06d}+00:00",
        "agent_id": None,
        **more,
    }


class TestReplayWriter:
    def test_steps_and_episodes(self, tmp_path: Path) -> None:
        with ReplayWriter("run_abc123", tmp_path / "replay") as writer:
            assert writer.run_id == "run_abc123"
            for number in range(6):
                found = writer.record_step(frame(number), seen(number), number, 0.5)
                assert found == f"h5://run_abc123/frames/{number}"
                if number == 2:
                    writer.mark_episode_end()
            assert writer.record_step(None, seen(6), 6, 0.5, terminated=True) is None
            writer.mark_episode_end()  # without an open episode
        run = ReplayRun(tmp_path, "run_abc123")
        assert [episode["length"] for episode in run.episodes] == [3, 4]
        assert [episode["status"] for episode in run.episodes] == ["truncated", "terminated"]
        with FrameResolver(tmp_path / "replay") as resolver:
            np.testing.assert_array_equal(resolver.resolve("h5://run_abc123/frames/4"), frame(4))
            assert resolver.resolve("h5://run_abc123/frames/6") is None

    def test_flush_makes_steps_visible(self, tmp_path: Path) -> None:
        config = ReplayConfig(flush_s=3600)
        writer = ReplayWriter("run", tmp_path / "replay", config=config)
        writer.record_step(action=1)
        writer.flush()
        assert len(ReplayReader("run", tmp_path / "replay")) == 1
        writer.close()
        with pytest.raises(ClosedError):
            writer.record_step(action=2)

    def test_a_run_is_continued(self, tmp_path: Path) -> None:
        for number in range(3):
            with ReplayWriter("run", tmp_path / "replay") as writer:
                expected = f"h5://run/frames/{number}"
                assert writer.record_step(frame(number)) == expected
        assert ReplayReader("run", tmp_path / "replay").get_frame(2)[0, 0, 0] == 2

    def test_an_error_in_the_block_sets_the_status(self, tmp_path: Path) -> None:
        writer = ReplayWriter("run", tmp_path / "replay")
        writer.record_step(action=1)
        with pytest.raises(KeyError), writer:
            raise KeyError
        assert ReplayRun(tmp_path, "run").status == "failed"

    def test_the_directory_must_be_named_replay(self, tmp_path: Path) -> None:
        with pytest.raises(InvalidError, match="must be named `replay`"):
            ReplayWriter("run", tmp_path)


class TestTelemetrySink:
    def test_steps_as_workers_send_them(self, tmp_path: Path) -> None:
        with (
            TelemetryStore(tmp_path) as store,
            ReplayWriter("run_abc123", tmp_path / "replay") as writer,
            TelemetrySink(store, writer) as sink,
        ):
            for number in range(10):
                sink.put(payload(number))
            sink.flush()
            steps = store.recent_steps(10, run_id="run_abc123", resolve=True)
            assert sink.stats["run_abc123"].committed == 10
        assert [step.episode_id for step in steps] == [
            f"run_abc123-ep{number // 4:04d}" for number in range(10)
        ]
        for number, step in enumerate(steps):
            assert (step.step_index, step.action, step.reward) == (
                number % 4,
                number % 3,
                number / 2,
            )
            assert step.info == {"lives": number}
            assert step.timestamp == f"2024-05-06T07:08:09.{number:06d}+00:00"
            assert step.frame_ref == f"h5://run_abc123/frames/{number}"
            np.testing.assert_array_equal(step.frame, frame(number))
            np.testing.assert_array_equal(step.observation, seen(number))
        run = ReplayRun(tmp_path, "run_abc123")
        assert [e["status"] for e in run.episodes] == ["terminated", "terminated", "truncated"]
        assert run.status == "finished"

    def test_the_steps_of_a_writer_need_no_run_id(self, tmp_path: Path) -> None:
        with TelemetryStore(tmp_path) as store, ReplayWriter("run", tmp_path / "replay") as writer:
            sink = TelemetrySink(store, writer)
            sink.put({"action": 1, "frame": frame(1)})
            with pytest.raises(InvalidError, match="is of run 'other', and the writer records"):
                sink.put({"run_id": "other"})
            sink.close()
            assert [step.frame_ref for step in store.recent_steps()] == ["h5://run/frames/0"]

    def test_without_a_writer_only_scalars_of_any_runs_are_kept(self, tmp_path: Path) -> None:
        with TelemetryStore(tmp_path) as store:
            with TelemetrySink(store) as sink:
                for number in range(8):
                    sink.put(payload(number, run_id=f"run{number // 4}", episode_id=None))
                assert sorted(sink.stats) == ["run0", "run1"]
                with pytest.raises(InvalidError, match="needs a `run_id`"):
                    sink.put({"action": 1})
            steps = store.recent_steps(10, run_id="run1", resolve=True)
        assert [step.action for step in steps] == [1, 2, 0, 1]
        assert {(step.frame_ref, step.obs_ref) for step in steps} == {(None, None)}
        assert list(tmp_path.rglob("*.h5")) == []
        run = ReplayRun(tmp_path, "run1")
        assert [episode["length"] for episode in run.episodes] == [4]
        loaded = run.episodes.episode_at(0).load()
        assert [step["reward"] for step in loaded["steps"]] == [2.0, 2.5, 3.0, 3.5]
        assert [step["terminated"] for step in loaded["steps"]] == [False, False, False, True]
        reader = ReplayReader("run1", tmp_path / "replay")
        assert reader.get_step(3)["reward"] == 3.5
        assert reader.get_frame(3) is None

    def test_another_episode_id_ends_the_episode_before(self, tmp_path: Path) -> None:
        with TelemetryStore(tmp_path) as store:
            with TelemetrySink(store) as sink:
                for agent in ("a", "b"):
                    for number, name in enumerate("xxyy"):
                        sink.put(
                            {
                                "run_id": "run",
                                "agent_id": agent,
                                "episode_id": name,
                                "seed": ord(name),
                                "reward": number,
                            }
                        )
            episodes = store.episodes()
        assert [(e.agent_id, e.episode_id, e.steps, e.seed, e.total_reward) for e in episodes] == [
            ("a", "x", 2, 120, 1.0),
            ("a", "y", 2, 121, 5.0),
            ("b", "x", 2, 120, 1.0),
            ("b", "y", 2, 121, 5.0),
        ]
        assert {episode.status for episode in episodes} == {"truncated"}

    @pytest.mark.parametrize(
        ("wrong", "error", "text"),
        [
            ([], InvalidTypeError, "a step must be a dict"),
            ({"run_id": "r", "observations": 1}, InvalidError, "unknown keys 'observations'"),
            ({"run_id": "../r"}, InvalidError, "`run_id` must have"),
            ({"run_id": "r", "timestamp": "yesterday"}, InvalidError, "ISO-8601"),
            ({"run_id": "r", "timestamp": 5}, InvalidError, "ISO-8601"),
            ({"run_id": "r", "reward": "much"}, InvalidTypeError, "`reward` must be a number"),
            ({"run_id": "r", "action": "jump"}, InvalidTypeError, "`action` must be numbers"),
            ({"run_id": ["r"]}, InvalidTypeError, "`run_id` must be a string"),
            ({"run_id": "r", "episode_id": "e", "env": [1]}, InvalidTypeError, "`env` must be"),
            ({"run_id": "r", "agent_id": ["a"]}, InvalidTypeError, "`agent_id` must be"),
            ({"run_id": "r", 1: 2, "a": 3}, InvalidTypeError, "a key of a step must be a string"),
        ],
    )
    def test_wrong_steps_are_refused(
        self, tmp_path: Path, wrong: Any, error: type[Exception], text: str
    ) -> None:
        with TelemetryStore(tmp_path) as store, TelemetrySink(store) as sink:
            with pytest.raises(error, match=text):
                sink.put(wrong)
            sink.put({"run_id": "r", "action": 1})
            sink.flush()
            assert [step.action for step in store.recent_steps()] == [1]

    def test_a_large_action_without_a_writer_is_left_out(self, tmp_path: Path) -> None:
        with TelemetryStore(tmp_path) as store:
            with TelemetrySink(store) as sink:
                sink.put({"run_id": "run", "action": np.zeros(100), "reward": 0.5})
            (step,) = store.recent_steps()
        assert (step.action, step.action_ref, step.reward) == (None, None, 0.5)

    def test_a_seed_needs_no_episode_id(self, tmp_path: Path) -> None:
        with TelemetryStore(tmp_path) as store:
            with TelemetrySink(store) as sink:
                for number in range(6):
                    is_over = number % 3 == 2
                    sink.put({"run_id": "run", "seed": 7 + number, "terminated": is_over})
            assert [(e.seed, e.steps) for e in store.episodes()] == [(7, 3), (10, 3)]

    def test_a_time_without_a_zone_is_utc(self, tmp_path: Path) -> None:
        texts = ["1970-01-01T00:00:01", "1970-01-01T02:00:01+02:00", "1970-01-01T00:00:01Z"]
        with TelemetryStore(tmp_path) as store:
            with TelemetrySink(store) as sink:
                for text in texts:
                    sink.put({"run_id": "r", "timestamp": text})
                sink.put({"run_id": "r", "timestamp": texts[0], "ts_ns": 7})
            assert [step.ts_ns for step in store.recent_steps()] == [10**9] * 3 + [7]

    def test_a_closed_sink_takes_no_steps(self, tmp_path: Path) -> None:
        with TelemetryStore(tmp_path) as store, ReplayWriter("run", tmp_path / "replay") as writer:
            for sink in (TelemetrySink(store), TelemetrySink(store, writer)):
                sink.put({"run_id": "r" if sink.stats == {} else "run"})
                sink.close()
                sink.close()
                with pytest.raises(ClosedError, match="the sink is closed"):
                    sink.put({"run_id": "run"})

    def test_the_writer_may_be_closed_first(self, tmp_path: Path) -> None:
        with TelemetryStore(tmp_path) as store:
            writer = ReplayWriter("run", tmp_path / "replay")
            sink = TelemetrySink(store, writer)
            sink.put({"action": 1})
            writer.close()
            with pytest.raises(ClosedError):
                sink.put({"action": 2})
            sink.close()
            assert len(store.recent_steps()) == 1

    def test_every_run_is_ended_after_an_error(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        finish = ReplayRecorder._finish

        def failing(self: ReplayRecorder) -> None:
            finish(self)
            if self.run_id == "b":
                raise StorageError("full")

        monkeypatch.setattr(ReplayRecorder, "_finish", failing)
        with TelemetryStore(tmp_path) as store:
            sink = TelemetrySink(store)
            for run_id in ("a", "b", "c"):
                sink.put({"run_id": run_id})
            with pytest.raises(StorageError, match="full"):
                sink.close()
            assert [run["status"] for run in store.runs()] == ["finished"] * 3
            sink = TelemetrySink(store)
            sink.put({"run_id": "d"})
            with pytest.raises(KeyError), sink:
                raise KeyError
            assert store.run_status("d") == "failed"

    def test_a_full_queue_raises_or_drops(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from relive.replay.writing.sink import SinkThread

        monkeypatch.setattr(SinkThread, "_write_all", lambda self: self.queue.drain())
        with TelemetryStore(tmp_path) as store:
            for overload in ("raise", "drop"):
                config = ReplayConfig(queue_bytes=1, overload=overload)
                sink = TelemetrySink(store, config=config)
                for _ in range(4):
                    sink.put({"run_id": overload})
                if overload == "raise":
                    with pytest.raises(OverloadError):
                        sink.put({"run_id": overload})
                else:
                    sink.put({"run_id": overload})
                    assert sink.stats[overload].dropped == 1
                for recorder in sink._recorders.values():
                    recorder.abort()

    def test_the_store_and_the_writer_must_have_one_root(self, tmp_path: Path) -> None:
        with (
            TelemetryStore(tmp_path / "a") as store,
            ReplayWriter("run", tmp_path / "b" / "replay") as writer,
        ):
            with pytest.raises(InvalidError, match="records into"):
                TelemetrySink(store, writer)
            with (
                TelemetryStore(tmp_path / "mine.sqlite") as other,
                pytest.raises(InvalidError, match="not the database of a root"),
            ):
                TelemetrySink(other)


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> ReplayReader:
    root = tmp_path_factory.mktemp("root")
    with ReplayRecorder(root, "run", config=ReplayConfig(chunk_rows=4), live=None) as recorder:
        for number in range(11):
            recorder.step(
                {"x": seen(number)},
                number,
                None if number == 5 else number / 2,
                number == 3,
                number == 7,
                frame=frame(number) if number != 2 else None,
            )
    return ReplayReader("run", root / "replay")


class TestReplayReader:
    def test_a_step(self, reader: ReplayReader) -> None:
        assert len(reader) == 11
        step = reader.get_step(3)
        assert list(step) == [
            "observation", "action", "reward", "terminated", "truncated", "frame", "step_index",
        ]  # fmt: skip
        np.testing.assert_array_equal(step["observation"]["x"], seen(3), strict=True)
        np.testing.assert_array_equal(step["frame"], frame(3))
        assert (step["action"], step["reward"], step["terminated"], step["step_index"]) == (
            3,
            1.5,
            True,
            3,
        )
        assert reader.get_step(2)["frame"] is None
        assert reader.get_step(5)["reward"] is None
        assert reader.get_step(-1)["action"] == 10

    def test_a_frame_and_an_observation(self, reader: ReplayReader) -> None:
        np.testing.assert_array_equal(reader.get_frame(10), frame(10))
        assert reader.get_frame(2) is None
        np.testing.assert_array_equal(reader.get_observation(-2)["x"], seen(9))
        for wrong in (11, -12):
            for read in (reader.get_step, reader.get_frame, reader.get_observation):
                with pytest.raises(OutOfRangeError, match=f"index {wrong} is out of range"):
                    read(wrong)

    def test_an_episode_by_position_or_id(self, reader: ReplayReader) -> None:
        assert reader.get_episode(0)["actions"].tolist() == [0, 1, 2, 3]
        assert reader.get_episode("run-ep0001")["actions"].tolist() == [4, 5, 6, 7]
        last = reader.get_episode(-1)
        assert last["actions"].tolist() == [8, 9, 10]
        assert last["truncated"].tolist() == [False, False, True]
        assert reader.get_episode(0)["valid.frames"].tolist() == [True, True, False, True]
        with pytest.raises(UnknownNameError):
            reader.get_episode("run-ep0009")
        with pytest.raises(OutOfRangeError):
            reader.get_episode(3)

    def test_an_episode_that_several_agents_have(self, tmp_path: Path) -> None:
        with ReplayRecorder(tmp_path, "run", live=None) as recorder:
            for agent in ("left", "right"):
                recorder.begin_episode("e", agent_id=agent)
            for number, agent in enumerate(("left", "right", "left")):
                recorder.step(action=number, agent_id=agent)
        run, reader = ReplayRun(tmp_path, "run"), ReplayReader("run", tmp_path / "replay")
        assert run.episode("e", "right").agent_id == "right"
        assert reader.get_episode("e", agent_id="left")["actions"].tolist() == [0, 2]
        for read in (run.episode, reader.get_episode):
            with pytest.raises(InvalidError, match="2 agents have the episode 'e'") as caught:
                read("e")
            assert caught.value.hint == "pass agent_id="
        with pytest.raises(UnknownNameError, match="no episode 'e' of agent 'z'") as unknown:
            run.episode("e", "z")
        assert unknown.value.hint == "its agents are 'left', 'right'"
        with pytest.raises(UnknownNameError, match="no episode 'x'"):
            run.episode("x", "left")

    def test_batches_have_every_step_once(self, reader: ReplayReader) -> None:
        batches = list(reader.iter_batches(4))
        assert [batch["actions"].tolist() for batch in batches] == [
            [0, 1, 2, 3],
            [4, 5, 6, 7],
            [8, 9, 10],
        ]
        assert batches[0]["valid.frames"].tolist() == [True, True, False, True]
        assert "valid.frames" not in batches[1]
        assert batches[0]["observations"]["x"].shape == (4, 2)

    def test_the_order_of_shuffled_batches_depends_on_the_seed(self, reader: ReplayReader) -> None:
        def order(seed: int, size: int = 4) -> list[int]:
            batches = reader.iter_batches(size, shuffle=True, seed=seed)
            return [int(action) for batch in batches for action in batch["actions"]]

        assert order(1) == order(1) == order(1, 3)
        assert order(1) != order(2)
        assert sorted(order(2)) == list(range(11))
        shuffled = next(reader.iter_batches(11, shuffle=True, seed=3))
        for place, action in enumerate(shuffled["actions"].tolist()):
            np.testing.assert_array_equal(shuffled["observations"]["x"][place], seen(action))
            if action != 2:
                np.testing.assert_array_equal(shuffled["frames"][place], frame(action))
        for wrong in (0, -1, 1.5):
            with pytest.raises((InvalidError, InvalidTypeError)):
                next(reader.iter_batches(wrong))  # type: ignore[arg-type]
        assert order(np.int64(1)) == order(1)  # type: ignore[arg-type]
        assert sorted(order(1 << 100)) == list(range(11))
        for seed in ("x", 1.5, None, [1]):
            with pytest.raises(InvalidTypeError, match="`seed` must be an integer"):
                order(seed)  # type: ignore[arg-type]
        with pytest.raises(InvalidError, match="`seed` must be at least 0"):
            order(-1)

    def test_an_unknown_run_is_an_error(self, reader: ReplayReader, tmp_path: Path) -> None:
        with pytest.raises(NotFoundError):
            ReplayReader("run", tmp_path / "replay")
        with pytest.raises(InvalidError):
            ReplayReader("../run", tmp_path / "replay")


def test_rows_that_do_not_exist_are_an_error(reader: ReplayReader) -> None:
    run = reader.run
    for wrong in ([11], [0, -1], np.array([3, 99])):
        with pytest.raises(OutOfRangeError, match="out of range for 11 steps"):
            run.read("actions", wrong)
    for row in (11, -1):
        with pytest.raises((OutOfRangeError, InvalidError)):
            run.step(row)
    assert run.read("actions", []).shape == (0,)
    for untyped in ([0.5], 3, np.array(3), [[0, 1], [2, 3]], [[0], [1, 2]], [True], "a", None):
        with pytest.raises(InvalidTypeError, match="`rows` must be a list of integers"):
            run.read("actions", untyped)
    for unknown in ("nothing", "observations.y", "final.frames"):
        with pytest.raises(KeyError):
            run.read(unknown, [0])
        with pytest.raises(KeyError):
            run.episodes.episode_at(0).arrays(unknown if unknown != "final.frames" else "frame")
    assert run.read("actions", []).shape == (0,)
    assert run.read("observations.x", range(2)).shape == (2, 2)
    leaf = run.episodes.episode_at(1).arrays("observations.x")
    np.testing.assert_array_equal(leaf["observations.x"][0], seen(4))


def test_truncated_is_the_same_in_all_ways_of_reading(tmp_path: Path) -> None:
    recorder = ReplayRecorder(tmp_path, "run", live=None)
    for number in range(2):
        recorder.step(action=number)
    recorder.end_episode()
    recorder.step(action=2)
    recorder.flush()
    live = ReplayRun(tmp_path, "run").episodes.episode_at(1)
    assert live.status == "recording"
    assert live.arrays("truncated")["truncated"].tolist() == [False]
    recorder.leave()
    run = ReplayRun(tmp_path, "run")
    for position, expected in enumerate(([False, True], [True])):
        episode = run.episodes.episode_at(position)
        assert episode.arrays()["truncated"].tolist() == expected
        assert episode["truncated"].values().tolist() == expected
        assert [step["truncated"] for step in episode.load()["steps"]] == expected
