"""Recording an episode: signals, statics, files and errors."""

import json
import pickle
import subprocess
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from relive.episodes import DiskEpisodeWriter, VideoSpec
from relive.episodes.read.episode import DiskEpisode
from relive.errors import AlreadyExistsError, ClosedError, InvalidError, InvalidTypeError

FRAME = np.zeros((16, 16, 3), np.uint8)


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_episode_round_trip(tmp_path: Path) -> None:
    with DiskEpisodeWriter(tmp_path / "ep") as writer:
        writer.set_static("task", "pick")
        writer.describe("state", names=["a", "b"], unit="rad")
        for number in range(5):
            writer.append("state", np.array([number, -number], np.float32), number)
            writer.append("/gripper", number % 2 == 0, number, clocks={"bus": number * 2})
            writer.append("note", f"n{number}", number)
            writer.append("cam.frames", np.full((16, 24, 3), number * 40, np.uint8), number)
            writer.append("depth", np.full((60, 80), number, np.uint16), number)
    assert names_in(tmp_path / "ep") == [
        "%2Fgripper.parquet",
        "cam%2Eframes.frames.parquet",
        "cam%2Eframes.mp4",
        "depth.parquet",
        "files.json",
        "meta.json",
        "note.parquet",
        "outcome.json",
        "state.parquet",
        "static.json",
    ]
    episode = DiskEpisode(tmp_path / "ep")
    assert list(episode.signals) == ["/gripper", "cam.frames", "depth", "note", "state"]
    assert episode["task"] == "pick"
    assert episode["state"].values().tolist() == [[n, -n] for n in range(5)]
    assert dict(episode["state"].attrs) == {"names": ["a", "b"], "unit": "rad"}
    assert [value for value, _ in episode["note"]] == [f"n{n}" for n in range(5)]
    assert episode["/gripper"].clock("bus").tolist() == [0, 2, 4, 6, 8]
    assert episode["cam.frames"].shape == (16, 24, 3)
    for number, (frame, ts) in enumerate(episode["cam.frames"]):
        assert ts == number
        assert abs(int(frame.mean()) - number * 40) < 4
    assert episode["depth"][3][0].tolist() == np.full((60, 80), 3).tolist()
    outcome = episode.meta["outcome"]
    assert outcome["ended"] == "committed"
    assert outcome["signals"]["depth"] == {"rows": 5, "dropped": 0}
    assert outcome["finished_ts_ns"] > episode.meta["created_ts_ns"]


def test_metadata_is_written_first_and_never_changes(tmp_path: Path) -> None:
    writer = DiskEpisodeWriter(tmp_path / "ep")
    assert names_in(tmp_path / "ep") == [".unfinished", "meta.json"]
    before = (tmp_path / "ep" / "meta.json").read_bytes()
    meta = json.loads(before)
    assert meta == writer.meta
    assert meta["schema_version"] == 1
    assert len(meta["uid"]) == 32
    assert meta["writer"]["name"] == "relive.episodes.DiskEpisodeWriter"
    assert {"version", "python", "platform"} <= meta["writer"].keys()
    writer.append("x", 1.0)
    writer.close()
    assert (tmp_path / "ep" / "meta.json").read_bytes() == before


def test_git_commit_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repository = tmp_path / "code"
    repository.mkdir()
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b.c", "-C", str(repository)]
    for arguments in (["init", "-q", "-b", "arm"], ["commit", "-q", "--allow-empty", "-m", "x"]):
        subprocess.run([*git, *arguments], check=True)
    head = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True)
    monkeypatch.chdir(repository)
    writer = DiskEpisodeWriter(tmp_path / "ep")
    found = writer.meta["writer"]["git"]
    writer.abort()
    assert found == {"commit": head.stdout.strip(), "branch": "arm", "dirty": False}
    monkeypatch.chdir("/")
    writer = DiskEpisodeWriter(tmp_path / "ep")
    assert "git" not in writer.meta["writer"]
    writer.abort()


def test_names_of_signals_and_statics_must_differ(tmp_path: Path) -> None:
    with DiskEpisodeWriter(tmp_path / "ep") as writer:
        writer.set_static("task", 1)
        writer.append("state", 1.0, 1)
        with pytest.raises(InvalidError, match=r"'task' is (already )?a static"):
            writer.append("task", 1.0, 1)
        with pytest.raises(InvalidError, match=r"'task' is (already )?a static"):
            writer.describe("task", unit="m")
        with pytest.raises(InvalidError, match="'state' is already a signal"):
            writer.set_static("state", 1)
        with pytest.raises(InvalidError, match="'task' is already set"):
            writer.set_static("task", 1)
    episode = DiskEpisode(tmp_path / "ep")
    assert (list(episode.signals), dict(episode.statics)) == (["state"], {"task": 1})


@pytest.mark.parametrize("name", ["", "a\0b", "x" * 201])
def test_invalid_names_raise(name: str, tmp_path: Path) -> None:
    with DiskEpisodeWriter(tmp_path / "ep") as writer:
        with pytest.raises(InvalidError):
            writer.append(name, 1.0)
        with pytest.raises(InvalidError):
            writer.set_static(name, 1)
        with pytest.raises(InvalidError):
            writer.describe(name, unit="m")
        with pytest.raises(InvalidTypeError, match="string"):
            writer.append(3, 1.0)  # type: ignore[arg-type]


def test_statics_are_on_disk_when_set(tmp_path: Path) -> None:
    writer = DiskEpisodeWriter(tmp_path / "ep")
    writer.set_static("a", b"\xff")
    with pytest.raises(InvalidError, match="static 'b' is nan"):
        writer.set_static("b", float("nan"))
    assert json.loads((tmp_path / "ep" / "static.json").read_text()) == {"a": {"$bytes": "/w=="}}
    writer.abort()


def test_refused_first_record_creates_no_signal(tmp_path: Path) -> None:
    with DiskEpisodeWriter(tmp_path / "ep") as writer:
        refused: list[tuple[Any, Any, Any]] = [
            (1j, 1, None),
            (1.0, 1.5, None),
            (1.0, 2**63, None),
            (np.zeros(3), 1, {"": 1}),
            (FRAME, 1.5, None),
            (FRAME, 1, {"a": 1.5}),
        ]
        for data, ts, clocks in refused:
            with pytest.raises((InvalidError, InvalidTypeError)):
                writer.append("x", data, ts, clocks)
            assert names_in(tmp_path / "ep") == [".unfinished", "meta.json"]
            assert writer.stats.signals == {}
        writer.set_static("x", 1)  # the name is not taken
    assert list(DiskEpisode(tmp_path / "ep").signals) == []


def test_images_are_video_by_default(tmp_path: Path) -> None:
    given: dict[str, VideoSpec | str] = {
        "a": "array",
        "l": VideoSpec(profile="lossless"),
        "f": "fast",
    }
    with DiskEpisodeWriter(tmp_path / "ep", signals=given) as writer:
        for name in ("r", "a", "l", "f"):
            writer.append(name, FRAME, 1)
        writer.append("grey", FRAME[:, :, 0], 1)
        writer.append("four", np.zeros((16, 16, 4), np.uint8), 1)
        writer.append("wide", FRAME.astype(np.uint16), 1)
        writer.append("none", np.zeros((0, 16, 3), np.uint8), 1)
    files = names_in(tmp_path / "ep")
    assert [name for name in files if name.endswith(".mp4")] == ["f.mp4", "l.mp4", "r.mp4"]
    episode = DiskEpisode(tmp_path / "ep")
    assert episode["a"].shape == (16, 16, 3)
    assert episode["none"].shape == (0, 16, 3)


def test_video_can_be_disabled(tmp_path: Path) -> None:
    with DiskEpisodeWriter(tmp_path / "ep", video="array", signals={"c": "record"}) as writer:
        writer.append("a", FRAME, 1)
        writer.append("c", FRAME, 1)
    assert [n for n in names_in(tmp_path / "ep") if n.endswith(".mp4")] == ["c.mp4"]


def test_video_signal_refuses_other_values(tmp_path: Path) -> None:
    with DiskEpisodeWriter(tmp_path / "ep", signals={"cam": VideoSpec()}) as writer:
        with pytest.raises(
            InvalidError, match=r"'cam' is configured as video.*float64 of shape \(3,\)"
        ):
            writer.append("cam", np.zeros(3), 1)
        writer.append("cam", FRAME, 1)


@pytest.mark.parametrize(
    "wrong",
    [
        {"overload": "wait"},
        {"on_error": "ignore"},
        {"queue": 0},
        {"video": "mpeg"},
        {"signals": {"": "record"}},
    ],
)
def test_invalid_options_raise(wrong: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises((ValueError, KeyError)):
        DiskEpisodeWriter(tmp_path / "ep", **wrong)
    assert names_in(tmp_path) == []


@pytest.mark.parametrize("wrong", [{"queue": 1.5}, {"video": 3}, {"signals": ["cam"]}])
def test_options_of_the_wrong_type_raise(wrong: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(InvalidTypeError):
        DiskEpisodeWriter(tmp_path / "ep", **wrong)
    assert names_in(tmp_path) == []


def test_describe_before_and_after_the_first_record(tmp_path: Path) -> None:
    with DiskEpisodeWriter(tmp_path / "ep") as writer:
        writer.describe("cam", intrinsics=[[1.0, 0.0], [0.0, 1.0]], name="wrist")
        writer.describe("state", unit="rad")
        writer.append("cam", FRAME, 1)
        writer.append("state", 1.0, 1)
        writer.describe("cam", unit="px")
        writer.describe("state", unit="deg")
        writer.describe("ghost", unit="m")
        with pytest.raises(InvalidError, match="k of signal 'state'"):
            writer.describe("state", k=np.zeros(2))
    episode = DiskEpisode(tmp_path / "ep")
    assert episode["cam"].attrs["intrinsics"] == [[1.0, 0.0], [0.0, 1.0]]
    assert episode["cam"].attrs["name"] == "wrist"
    assert episode["cam"].attrs["unit"] == "px"
    assert dict(episode["state"].attrs) == {"unit": "deg"}
    assert "ghost" not in episode


def test_threads_may_start_one_signal_together(tmp_path: Path) -> None:
    with DiskEpisodeWriter(tmp_path / "ep") as writer:
        start = threading.Barrier(4)

        def go() -> None:
            start.wait()
            for _ in range(300):
                writer.append("state", np.zeros(3))
                writer.append("cam", FRAME)

        threads = [threading.Thread(target=go) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert {name: each.rows for name, each in writer.stats.signals.items()} == {
            "state": 1200,
            "cam": 1200,
        }
    episode = DiskEpisode(tmp_path / "ep")
    for name in ("state", "cam"):
        assert len(episode[name]) == 1200
        assert (np.diff(episode[name].timestamps) > 0).all()


def test_existing_path_raises(tmp_path: Path) -> None:
    (tmp_path / "ep").mkdir()
    with pytest.raises(AlreadyExistsError):
        DiskEpisodeWriter(tmp_path / "ep")
    # Missing parent directories are created.
    writer = DiskEpisodeWriter(tmp_path / "a" / "b" / "ep")
    assert writer.path == tmp_path / "a" / "b" / "ep"
    writer.close()


def test_uid_and_creation_time_can_be_given(tmp_path: Path) -> None:
    with DiskEpisodeWriter(tmp_path / "ep", uid="abc", created_ts_ns=5) as writer:
        assert writer.uid == "abc"
    meta = DiskEpisode(tmp_path / "ep").meta
    assert (meta["uid"], meta["created_ts_ns"]) == ("abc", 5)


def test_statistics(tmp_path: Path) -> None:
    with DiskEpisodeWriter(tmp_path / "ep", queue=3) as writer:
        for number in range(11):
            writer.append("state", np.zeros(3), number * 10**8)
            writer.append("cam", FRAME, number * 10**8)
        writer.flush()
        stats = pickle.loads(pickle.dumps(writer.stats))  # noqa: S301 - our own data
        cam = stats.signals["cam"]
        assert (cam.rows, cam.queue_depth, cam.queue_capacity, cam.dropped) == (11, 0, 3, 0)
        assert cam.rate_hz == pytest.approx(10.0)
        assert cam.encode_ms > 0
        assert (stats.rows, stats.dropped) == (22, 0)
        assert "\n" not in repr(stats) + repr(cam) + repr(writer)
    assert writer.stats.rows == 22  # the outcome
    assert [each.rate_hz for each in writer.stats.signals.values()] == pytest.approx([10.0, 10.0])
    with pytest.raises(ClosedError):
        writer.append("state", np.zeros(3))


def test_names_must_match_the_components_of_a_vector(tmp_path: Path) -> None:
    frame = np.zeros((16, 16, 3), np.uint8)
    with DiskEpisodeWriter(tmp_path / "ep") as writer:
        for name, value in (("q", np.zeros(3)), ("text", "a"), ("number", 1.0), ("cam", frame)):
            writer.describe(name, names=["a", "b"])
            with pytest.raises(InvalidError, match=f"'{name}'.* `names`"):
                writer.append(name, value, 1)
        writer.describe("q", names=["a", "b", "c"])
        writer.append("q", np.zeros(3), 1)
        with pytest.raises(InvalidError, match=r"`names` has 2 items.*\(3,\)"):
            writer.describe("q", names=["a", "b"])
        writer.append("more", np.zeros((5, 2)), 1)
        writer.describe("more", names=["a", "b"])
    assert DiskEpisode(tmp_path / "ep")["q"].attrs["names"] == ["a", "b", "c"]


def test_descriptions_of_signals_without_records_are_kept(tmp_path: Path) -> None:
    with DiskEpisodeWriter(tmp_path / "ep") as writer:
        writer.describe("here", unit="m")
        writer.describe("ghost", unit="rad")
        writer.append("here", 1.0, 1)
    assert DiskEpisode(tmp_path / "ep").meta["outcome"]["described"] == {"ghost": {"unit": "rad"}}


def test_invalid_records_leave_nothing(tmp_path: Path) -> None:
    with DiskEpisodeWriter(tmp_path / "ep") as writer:
        wrong: list[Any] = [["a"], {}, 5, None]
        for name in wrong:
            with pytest.raises(InvalidTypeError, match="must be a string"):
                writer.append(name, 1.0, 1)
        masked = np.ma.array([1.0, 2.0], mask=[False, True])
        with pytest.raises(InvalidTypeError, match=r"'x'.*MaskedArray"):
            writer.append("x", masked, 1)
        with pytest.raises(InvalidTypeError, match=r"'x'.*MaskedArray"):
            writer.append("x", np.ma.array(np.zeros((16, 16, 3), np.uint8)), 1)
        with pytest.raises(InvalidError, match="cannot be encoded as UTF-8"):
            writer.append("x", 1.0, 1, {"\ud800": 1})
    assert not DiskEpisode(tmp_path / "ep").signals
