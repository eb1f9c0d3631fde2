"""Edits apply to recorded episodes in order and by uid."""

import os
import pickle
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from relive.episodes.edit.edited_episode import AppliedEdits, EditedEpisode, trimmed
from relive.episodes.edit.log import EditLog
from relive.episodes.read.local_dataset import LocalDataset
from relive.errors import (
    InvalidError,
    InvalidTypeError,
    UnknownNameError,
)
from relive.model.signal import ArraySignal
from tests.episodes.by_hand import episode_path, write_episode, write_root

X = [(float(n), 10 * n) for n in range(6)]
Y = [(-n, 5 + 10 * n) for n in range(6)]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write_root(tmp_path / "root", 3, x=X, y=Y)


def times(dataset: LocalDataset, uid: str, name: str = "x") -> list[int]:
    return dataset.by_uid(uid)[name].timestamps.tolist()  # type: ignore[no-any-return]


def files(root: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_set_statics_override_recorded_ones(root: Path) -> None:
    edits = LocalDataset(root).edits
    before = files(root)
    edits.set_static("u1", "number", 7)
    edits.set_static("u1", "task", {"key": b"\x00\xff", "of": (1, None)})
    edits.set_static("u1", "task", "pick")
    edits.set_static("u2", "$bytes", b"x")
    episode = LocalDataset(root)[1]
    assert dict(episode.statics) == {"number": 7, "task": "pick"}
    assert episode.keys == ("x", "y", "number", "task")
    assert episode.uid == "u1"
    assert len(episode["x"]) == 6
    assert LocalDataset(root)[2]["$bytes"] == b"x"
    assert LocalDataset(root, edits=False)[1]["number"] == 1
    assert {k: v for k, v in files(root).items() if k.name != "edits.jsonl"} == before


def test_invalid_statics_raise_and_are_not_written(root: Path) -> None:
    edits = LocalDataset(root).edits
    for value in (float("nan"), {1}, {1: 2}, object()):
        with pytest.raises(ValueError, match="task"):
            edits.set_static("u1", "task", value)
    with pytest.raises(InvalidError, match="is a signal"):
        edits.set_static("u1", "x", 1)
    with pytest.raises(InvalidError, match="must not be empty"):
        edits.set_static("u1", "", 1)
    with pytest.raises(InvalidTypeError):
        edits.set_static("u1", 1, 1)  # type: ignore[arg-type]
    assert EditLog(root).read() == []


def test_dropped_episodes_are_left_out_until_undropped(root: Path) -> None:
    dataset = LocalDataset(root)
    dataset.edits.drop("u1")
    assert dataset.edits.dropped == ("u1",)
    assert len(dataset) == 3
    dataset.refresh()
    assert list(dataset.uids) == ["u0", "u2"]
    dataset.edits.drop("u1")  # a dropped episode can still be edited
    dataset.edits.undrop("u1")
    dataset.edits.undrop("u1")
    dataset.refresh()
    assert list(dataset.uids) == ["u0", "u1", "u2"]
    assert not dataset.edits.dropped


def test_trim_keeps_the_records_in_a_window(root: Path) -> None:
    edits = LocalDataset(root).edits
    edits.trim("u0", 10, 40)
    dataset = LocalDataset(root)
    assert times(dataset, "u0") == [10, 20, 30]
    assert times(dataset, "u0", "y") == [10, 15, 25, 35]
    assert dataset[0]["number"] == 0
    assert (dataset[0].first_ts, dataset[0].last_ts) == (10, 35)
    edits.trim("u0", 30)  # replaces the previous trim
    assert times(LocalDataset(root), "u0") == [30, 40, 50]
    edits.trim("u0", stop=1)  # `y` has no records left
    assert times(LocalDataset(root), "u0") == [0]
    assert times(LocalDataset(root), "u0", "y") == []
    edits.trim("u0")
    assert times(LocalDataset(root), "u0") == [0, 10, 20, 30, 40, 50]


def test_trim_keeps_the_values_that_held_at_its_start(tmp_path: Path) -> None:
    slow, late = [(1.0, 0), (2.0, 100)], [(7.0, 60)]
    root = write_root(tmp_path / "root", 1, x=X, slow=slow, late=late)
    edits = LocalDataset(root).edits
    edits.trim("u0", 22, 58)
    episode = LocalDataset(root)[0]
    assert list(episode["slow"]) == [(1.0, 22)]
    assert list(episode["x"]) == [(2.0, 22), (3.0, 30), (4.0, 40), (5.0, 50)]
    assert list(episode["late"]) == []
    assert episode["slow"].time[50] == (1.0, 22)
    edits.trim("u0", 22, 70)
    episode = LocalDataset(root)[0]
    assert (episode.first_ts, episode.start_ts) == (22, 60)  # no value of `late` before
    assert episode.time[65] == {"late": 7.0, "slow": 1.0, "x": 5.0, "number": 0}
    sampled = episode.time[episode.start_ts :: 3]
    assert {name: len(signal) for name, signal in sampled.signals.items()} == {
        "late": 1,
        "slow": 1,
        "x": 1,
    }
    with pytest.raises(KeyError, match="'slow' has no value at 21: its first record is at 22"):
        episode["slow"].time[21]
    edits.trim("u0", 30)  # at a record
    assert list(LocalDataset(root)[0]["x"])[:2] == [(3.0, 30), (4.0, 40)]


def test_both_sides_of_a_cut_have_all_values(root: Path) -> None:
    edits = LocalDataset(root).edits
    edits.trim("u1", 12)
    edits.cut("u1", 32)
    edits.cut("u1#1", 33)  # between two records, but the values that hold at 32 are records
    first, second, third = LocalDataset(root)[1:4]
    assert list(first["x"]) == [(1.0, 12), (2.0, 20), (3.0, 30)]
    assert list(first["y"]) == [(0, 12), (-1, 15), (-2, 25)]
    assert (list(second["x"]), list(second["y"])) == ([(3.0, 32)], [(-2, 32)])
    assert list(third["x"]) == [(3.0, 33), (4.0, 40), (5.0, 50)]
    assert [each.start_ts for each in (first, second, third)] == [12, 32, 33]
    edits.trim("u1#1#1", 0)  # no further than the cut
    assert list(LocalDataset(root)[3]["y"]) == [(-2, 33), (-3, 35), (-4, 45), (-5, 55)]


def test_trim_to_no_time_at_all_is_empty(root: Path) -> None:
    line = '{"op": "trim", "uid": "u0", "start": %d, "stop": %d}\n'
    for start, stop in ((20, 20), (25, 5), (2**80, 2**81)):
        (root / "edits.jsonl").write_text(line % (start, stop))
        assert times(LocalDataset(root), "u0") == []


def test_trimmed_signal_of_any_kind_keeps_the_held_record() -> None:
    stamps = [50, 10, 30, 10]  # not sorted, and one time twice
    signal = ArraySignal(
        np.arange(4), stamps, clocks={"sensor": np.array([5, 1, 3, 2])}, name="any"
    )
    for start, stop, wanted in [
        (20, None, [(3, 20), (0, 50), (2, 30)]),
        (20, 40, [(3, 20), (2, 30)]),
        (10, 40, [(1, 10), (2, 30), (3, 10)]),
        (5, 12, [(1, 10), (3, 10)]),
        (60, 70, [(0, 60)]),
        (None, 20, [(1, 10), (3, 10)]),
        (5, 9, []),
    ]:
        kept = trimmed(signal, start, stop)
        assert [(int(value), ts) for value, ts in kept] == wanted
        assert kept.clock("sensor").tolist() == [[5, 1, 3, 2][value] for value, _ in wanted]
        assert kept.on("sensor").timestamps.tolist() == kept.clock("sensor").tolist()


def test_window_without_records_raises(root: Path) -> None:
    edits = LocalDataset(root).edits
    for window in ((30, 10), (51, 55), (None, 0), (56, None), (7, 7), (2**80, None)):
        with pytest.raises(InvalidError, match="no records in"):
            edits.trim("u0", *window)
    for ts in (0, -5, 56, 2**80):
        with pytest.raises(InvalidError, match="no records in"):
            edits.cut("u0", ts)
    for wrong in (1.5, True, "10", None):
        with pytest.raises(TypeError):
            edits.cut("u0", wrong)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        edits.trim("u0", 1.0)  # type: ignore[arg-type]
    assert EditLog(root).read() == []
    write_episode(episode_path(root, 3), {}, uid="none")
    with pytest.raises(InvalidError):
        edits.cut("none", 1)


def test_cut_replaces_one_episode_with_two(root: Path) -> None:
    edits = LocalDataset(root).edits
    assert edits.cut("u1", 20) == ("u1#0", "u1#1")
    dataset = LocalDataset(root)
    assert dataset.uids == ("u0", "u1#0", "u1#1", "u2")
    assert times(dataset, "u1#0") == [0, 10]
    assert times(dataset, "u1#1") == [20, 30, 40, 50]
    assert [each["number"] for each in dataset] == [0, 1, 1, 2]
    first = dataset[1]
    assert isinstance(first, EditedEpisode)
    assert first.meta["uid"] == first.uid == "u1#0"
    assert first.path == episode_path(root, 1)
    assert edits.cut("u1#1", 45) == ("u1#1#0", "u1#1#1")
    dataset = LocalDataset(root)
    assert dataset.uids == ("u0", "u1#0", "u1#1#0", "u1#1#1", "u2")
    assert times(dataset, "u1#1#1") == [45, 50]
    assert times(dataset, "u1#1#1", "y") == [45, 55]
    with pytest.raises(
        UnknownNameError, match="the episode was cut into 'u1#0' and 'u1#1#0' and 'u1#1#1'"
    ):
        dataset.by_uid("u1")


def test_segments_inherit_edits_and_are_edited_separately(root: Path) -> None:
    edits = LocalDataset(root).edits
    edits.set_static("u1", "task", "pick")
    edits.trim("u1", 10, 50)
    edits.drop("u1")
    edits.cut("u1", 30)
    assert LocalDataset(root).uids == ("u0", "u2")
    edits.undrop("u1#0")
    edits.set_static("u1#0", "task", "place")
    edits.undrop("u1#1")
    dataset = LocalDataset(root)
    assert [each.statics.get("task") for each in dataset] == [None, "place", "pick", None]
    assert times(dataset, "u1#0") == [10, 20]
    assert times(dataset, "u1#1") == [30, 40]
    edits.trim("u1#0")  # no further than the cut
    edits.trim("u1#1", 20, 60)
    dataset = LocalDataset(root)
    assert times(dataset, "u1#0") == [0, 10, 20]
    assert times(dataset, "u1#1") == [30, 40, 50]
    with pytest.raises(InvalidError, match="no records in"):
        edits.trim("u1#1", 0, 25)


def test_missing_episode_cannot_be_edited(root: Path) -> None:
    edits = LocalDataset(root).edits
    for edit in (
        lambda uid: edits.set_static(uid, "a", 1),
        edits.drop,
        edits.undrop,
        edits.trim,
        lambda uid: edits.cut(uid, 20),
        edits.history,
    ):
        with pytest.raises(UnknownNameError, match="'u9'"):
            edit("u9")
    assert not (root / "edits.jsonl").exists()
    edits.cut("u1", 20)
    with pytest.raises(UnknownNameError, match="'u1#0' and 'u1#1'"):
        edits.drop("u1")
    with pytest.raises(UnknownNameError):
        edits.drop("u1#0#0")
    (write_episode(episode_path(root, 3), {"x": X}, uid="u3") / ".unfinished").touch()
    with pytest.raises(UnknownNameError):
        edits.drop("u3")


def test_segment_does_not_take_the_uid_of_another_episode(root: Path) -> None:
    write_episode(episode_path(root, 3), {"x": X}, uid="u0#1")
    with pytest.raises(InvalidError, match="the episode 'u0#1' already exists"):
        LocalDataset(root).edits.cut("u0", 20)


def test_later_episode_can_be_edited(root: Path) -> None:
    edits = LocalDataset(root).edits
    edits.drop("u0")
    write_episode(episode_path(root, 3), {"x": X}, uid="u3")
    edits.drop("u3")
    assert LocalDataset(root).uids == ("u1", "u2")


def test_history_lists_all_edits(root: Path) -> None:
    edits = LocalDataset(root).edits
    edits.set_static("u1", "task", b"\x00")
    edits.drop("u0")
    edits.cut("u1", 20)
    edits.trim("u1#0", None, 15)
    edits.drop("u1#1")
    found = [(edit.op, edit.uid, dict(edit.details)) for edit in edits.history("u1#0")]
    assert found == [
        ("set_static", "u1", {"name": "task", "value": b"\x00"}),
        ("cut", "u1", {"ts": 20}),
        ("trim", "u1#0", {"start": None, "stop": 15}),
    ]
    assert [edit.op for edit in edits.history("u1")] == ["set_static", "cut"]
    assert edits.history("u2") == []
    stamps = [edit.at_ns for edit in edits.history("u1#0")]
    assert stamps == sorted(stamps)
    assert "5 edits" in repr(edits)


def test_edited_episodes_pickle_by_path(root: Path) -> None:
    edits = LocalDataset(root).edits
    edits.cut("u1", 20)
    edits.set_static("u1#0", "task", "pick")
    for episode in LocalDataset(root)[1:3]:
        data = pickle.dumps(episode)
        assert len(data) < 600 + len(os.fspath(root))
        again = pickle.loads(data)  # noqa: S301 - our own data
        assert again.uid == episode.uid
        assert dict(again.statics) == dict(episode.statics)
        assert again["x"].timestamps.tolist() == episode["x"].timestamps.tolist()


def test_edits_of_missing_episodes_apply_when_they_appear(root: Path) -> None:
    (root / "edits.jsonl").write_text(
        '{"op": "drop", "uid": "u3"}\n{"op": "drop", "uid": "u0#1"}\n'
    )
    assert LocalDataset(root).uids == ("u0", "u1", "u2")
    write_episode(episode_path(root, 3), {"x": X}, uid="u3")
    assert LocalDataset(root).uids == ("u0", "u1", "u2")


def test_several_episodes_with_one_uid_are_edited_alike(root: Path) -> None:
    write_episode(episode_path(root, 3), {"x": X}, uid="u0")
    LocalDataset(root).edits.drop("u0")
    assert LocalDataset(root).uids == ("u1", "u2")


@dataclass
class Naive:
    """A reference model of edits, based on lists."""

    uid: str
    all: list[tuple[float, int]]
    """Every record it may show."""
    statics: dict[str, Any] = field(default_factory=dict)
    window: tuple[int | None, int | None] = (None, None)
    dropped: bool = False

    cuts: tuple[int, int] = (-1000, 1000)

    @property
    def shown(self) -> list[tuple[float, int]]:
        start, stop = self.window
        low = self.cuts[0] if start is None else max(start, self.cuts[0])
        high = self.cuts[1] if stop is None else min(stop, self.cuts[1])
        held = [(value, low) for value, t in self.all if t <= low][-1:] if low < high else []
        return held + [(value, t) for value, t in self.all if low < t < high]


def apply(segments: list[Naive], op: str, uid: str, values: list[Any]) -> bool:
    """Apply an edit to the model; return False if it must be refused."""
    found = [position for position, segment in enumerate(segments) if segment.uid == uid]
    if not found:
        return False
    at = found[0]
    segment = segments[at]
    if op == "set_static":
        segment.statics[values[0]] = values[1]
    elif op == "trim":
        start = -1000 if values[0] is None else values[0]
        stop = 1000 if values[1] is None else values[1]
        whole = Naive(uid, segment.all, cuts=segment.cuts)
        inside = [t for _, t in whole.shown if start <= t < stop]
        if values != [None, None] and not inside:
            return False
        segment.window = (values[0], values[1])
    elif op == "cut":
        (ts,) = values
        before = [t < ts for _, t in segment.shown]
        if all(before) or not any(before):
            return False
        low, high = segment.cuts
        sides = [(low, min(high, ts)), (max(low, ts), high)]
        parts = [
            replace(segment, uid=f"{uid}#{n}", statics=dict(segment.statics), cuts=cuts)
            for n, cuts in enumerate(sides)
        ]
        segments[at : at + 1] = parts
    else:
        segment.dropped = op == "drop"
    return True


UIDS = st.sampled_from(["u0", "u1", "u0#0", "u0#1", "u0#1#0", "u1#0", "u1#1#0", "nobody"])
BOUND = st.none() | st.integers(-5, 65)
OPS = st.one_of(
    st.tuples(st.just("set_static"), UIDS, st.sampled_from("ab"), st.integers(0, 3)),
    st.tuples(st.sampled_from(["drop", "undrop"]), UIDS),
    st.tuples(st.just("trim"), UIDS, BOUND, BOUND),
    st.tuples(st.just("cut"), UIDS, st.integers(-5, 65)),
)


@given(edits=st.lists(OPS, max_size=12))
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_edits_match_the_reference_model(
    tmp_path_factory: Any, edits: list[tuple[Any, ...]]
) -> None:
    root = write_root(tmp_path_factory.mktemp("edits") / "root", 2, x=X)
    segments = [Naive("u0", X), Naive("u1", X)]
    made = LocalDataset(root).edits
    for op, uid, *values in edits:
        if apply(segments, op, uid, values):
            getattr(made, op)(uid, *values)
        else:
            with pytest.raises((InvalidError, UnknownNameError)):
                getattr(made, op)(uid, *values)
    dataset = LocalDataset(root)
    shown = [segment for segment in segments if not segment.dropped]
    assert dataset.uids == tuple(segment.uid for segment in shown)
    for segment, episode in zip(shown, dataset, strict=True):
        assert [(float(value), ts) for value, ts in episode["x"]] == segment.shown
        statics = {k: v for k, v in episode.statics.items() if k != "number"}
        assert statics == segment.statics
    assert set(made.dropped) == {segment.uid for segment in segments if segment.dropped}


def test_empty_applied_edits() -> None:
    assert not AppliedEdits()
    assert AppliedEdits().segments("u0") is None
