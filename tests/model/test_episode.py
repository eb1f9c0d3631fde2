"""Episodes in memory: names, times, and selection by time."""

import pickle
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from relive import errors
from relive.model.episode import Episode, EpisodeView
from relive.model.signal import ArraySignal, Signal


def signal(name: str, times: list[int]) -> ArraySignal:
    return ArraySignal(np.array(times, dtype=np.int64) * 2, times, name=name)


def episode(**more: list[int]) -> EpisodeView:
    """Return an episode with two signals, one of which starts later and ends earlier."""
    times = {"arm": [10, 20, 30, 40], "cam": [15, 35], **more}
    signals = {name: signal(name, stamps) for name, stamps in times.items()}
    return EpisodeView(signals, {"task": "pick", "tries": 3}, {"uid": "u1", "writer": {}})


def listed(view: Episode) -> dict[str, list[tuple[int, int]]]:
    return {name: [(int(value), ts) for value, ts in view[name]] for name in view.signals}


def test_items_by_name() -> None:
    whole = episode()
    assert whole.keys == ("arm", "cam", "task", "tries")
    assert list(whole) == list(whole.keys)
    assert len(whole) == 4
    assert whole["task"] == "pick"
    assert isinstance(whole["arm"], Signal)
    assert "cam" in whole
    assert "uid" not in whole
    assert whole.uid == "u1"
    assert repr(whole) == "EpisodeView('u1', 2 signals, 2 statics)"
    with pytest.raises(
        errors.UnknownNameError, match=r"no signal or static value is named 'arn'.*'arm'"
    ) as caught:
        whole["arn"]
    assert caught.value.hint == "did you mean 'arm'?"
    with pytest.raises(KeyError):
        whole[3]  # type: ignore[index]


def test_metadata_is_a_copy() -> None:
    whole = episode()
    whole.meta["uid"] = "other"
    assert whole.uid == "u1"


def test_name_cannot_be_both_signal_and_static() -> None:
    with pytest.raises(
        errors.InvalidError, match="'arm' is the name of both a signal and a static value"
    ):
        EpisodeView({"arm": signal("arm", [1])}, {"arm": 3})


def test_start_last_first_and_duration() -> None:
    whole = episode(silent=[])
    assert (whole.start_ts, whole.last_ts) == (15, 40)
    assert whole.first_ts == 10
    assert whole.duration_ns == 30
    for nothing in (EpisodeView({}), EpisodeView({"silent": signal("silent", [])})):
        for name in ("start_ts", "last_ts", "first_ts", "duration_ns"):
            with pytest.raises(ValueError, match="has no records"):
                getattr(nothing, name)


def test_time_returns_all_values() -> None:
    whole = episode()
    for ts in (34, np.int64(34), np.array(34)):
        assert whole.time[ts] == {"task": "pick", "tries": 3, "arm": 60, "cam": 30}
    assert whole.time[2**80]["arm"] == 80
    with pytest.raises(KeyError, match=r"signal 'cam' has no value at 12: .* 15"):
        whole.time[12]
    assert EpisodeView({}, {"a": 1}).time[0] == {"a": 1}
    assert repr(whole.time) == f"{whole!r}.time"


def test_window_keeps_statics_and_meta() -> None:
    whole = episode()
    window = whole.time[15:40]
    assert isinstance(window, EpisodeView)
    assert listed(window) == {"arm": [(40, 20), (60, 30)], "cam": [(30, 15), (70, 35)]}
    assert window["task"] == "pick"
    assert window.meta == whole.meta
    assert listed(window.time[20:31]) == {"arm": [(40, 20), (60, 30)], "cam": []}
    assert listed(whole.time[:]) == listed(whole)
    assert listed(whole.time[36:]) == {"arm": [(80, 40)], "cam": []}
    with pytest.raises(KeyError, match=r"'arm'.*first record is at 20"):
        window.time[16]


def test_sampling_steps_are_the_same_for_all_signals() -> None:
    whole = episode()
    steps = [15, 25, 35]
    assert whole.time[15:36:10]["arm"].timestamps.tolist() == steps
    assert whole.time[15:36:10]["cam"].timestamps.tolist() == steps
    # Open end: up to the last record of any signal.
    assert whole.time[15::10]["cam"].timestamps.tolist() == steps
    assert whole.time[15::5]["cam"].timestamps.tolist() == [15, 20, 25, 30, 35, 40]
    for key in (slice(15, 36, 0), slice(None, 36, 5)):
        with pytest.raises(errors.InvalidError):
            whole.time[key]
    with pytest.raises(KeyError, match="'cam'"):
        whole.time[10::10]
    silent = EpisodeView({"silent": signal("silent", [])})
    assert len(silent.time[0::5]["silent"]) == 0
    mixed = whole.derived({**whole.signals, **silent.signals})
    with pytest.raises(KeyError, match="'silent' has no value at 15: it has no records"):
        mixed.time[15::5]
    assert len(mixed.time[15:15:5]["silent"]) == 0


def test_samples_at_given_times() -> None:
    whole = episode()
    times = np.array([40, 15, 15])
    view = whole.time[times]
    times[:] = 0
    assert listed(view) == {
        "arm": [(80, 40), (20, 15), (20, 15)],
        "cam": [(70, 40), (30, 15), (30, 15)],
    }
    for name in ("arm", "cam"):
        assert not view[name].timestamps.flags.writeable
    assert listed(whole.time[[]]) == listed(whole.time[()]) == {"arm": [], "cam": []}
    assert listed(whole.time[range(15, 26, 10)])["arm"] == [(20, 15), (40, 25)]
    for key in ([10], [-(2**70)]):
        with pytest.raises(KeyError):
            whole.time[key]


@pytest.mark.parametrize("key", [1.5, None, "a", [1.5], [True], True, slice(1.5, None)], ids=repr)
def test_keys_that_are_not_times_raise_type_error(key: Any) -> None:
    with pytest.raises(TypeError):
        episode().time[key]


class CountingSignals(Mapping[str, Signal[Any]]):
    """Counts how often each signal is accessed."""

    def __init__(self) -> None:
        self.asked = 0
        self.held = {"arm": signal("arm", [1, 2])}

    def __getitem__(self, name: str) -> Signal[Any]:
        self.asked += 1
        return self.held[name]

    def __iter__(self) -> Any:
        return iter(self.held)

    def __len__(self) -> int:
        return len(self.held)

    def __contains__(self, name: object) -> bool:
        return name in self.held


def test_windows_open_signals_lazily() -> None:
    signals = CountingSignals()
    window = EpisodeView(signals).time[1:2].time[0:5]
    assert window.keys == ("arm",)
    assert "arm" in window
    assert signals.asked == 0
    assert window["arm"] is window["arm"]
    assert signals.asked == 1


def test_views_pickle() -> None:
    for view in (episode(), episode().time[15:40], episode().time[[15]]):
        again = pickle.loads(pickle.dumps(view))  # noqa: S301 - our own data
        assert listed(again) == listed(view)
        assert (again.keys, again.meta, again["task"]) == (view.keys, view.meta, "pick")


def test_keys_items_values_and_get() -> None:
    signal = ArraySignal([1.0], [10])
    episode = EpisodeView({"a": signal}, {"task": None})
    assert episode.keys == ("a", "task")
    assert episode.items() == (("a", signal), ("task", None))
    assert episode.values() == (signal, None)
    assert episode.get("a") is signal
    assert episode.get("task", 1) is None
    assert (episode.get("none"), episode.get("none", 5)) == (None, 5)


def test_ellipsis_selects_everything() -> None:
    episode = EpisodeView({"a": ArraySignal([1.0, 2.0], [10, 20])}, {"task": 1})
    assert list(episode.time[...]["a"]) == [(1.0, 10), (2.0, 20)]
    assert episode.time[...].statics == {"task": 1}


def test_signal_without_records_is_named() -> None:
    none = ArraySignal(np.empty(0), np.empty(0, np.int64), name="b")
    episode = EpisodeView({"a": ArraySignal([1.0], [10]), "b": none})
    with pytest.raises(errors.NoValueError, match=r"signal 'b' has no value at 10: .* no records"):
        episode.time[10]
