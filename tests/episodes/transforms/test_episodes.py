"""Transforms of episodes: names, lazy evaluation and errors."""

import pickle
from typing import Any

import numpy as np
import pytest

from relive.episodes import transforms as tf
from relive.errors import InvalidError, InvalidTypeError, UnknownNameError
from relive.model.dataset import EpisodeList
from relive.model.episode import Episode, EpisodeView
from relive.model.resample import nearest
from relive.model.signal import ArraySignal, Signal
from tests.episodes.transforms.watched import frames, joints


def recorded() -> EpisodeView:
    gripper = ArraySignal(np.arange(4.0), [5, 60, 110, 160], name="gripper")
    return EpisodeView(
        {"arm.q": joints(), "cam": frames(3), "gripper": gripper},
        {"task": "pick", "take": 3},
        {"uid": "u7", "created_ts_ns": 1},
    )


def state(episode: Episode) -> Signal[Any]:
    return tf.join(episode["arm.q"], episode["gripper"])


def peak(episode: Episode) -> float:
    return float(episode["gripper"].values().max())


def small(signal: Signal[Any]) -> Signal[Any]:
    return tf.astype(signal, "float32")


def unchanged(episode: Episode) -> Episode:
    return episode


def test_rename() -> None:
    after = tf.rename({"arm.q": "q", "task": "prompt"})(recorded())
    assert list(after.signals) == ["cam", "gripper", "q"]
    assert dict(after.statics) == {"prompt": "pick", "take": 3}
    assert after["q"].name == "q"
    assert after["q"].attrs["unit"] == "rad"
    assert after["q"].time[35][0].tolist() == joints()[3][0].tolist()
    assert after["q"].time[0:35].name == "q"
    with pytest.raises(KeyError, match="'q' has no value at -1"):
        _ = after["q"].time[-1]
    with pytest.raises(UnknownNameError, match=r"'arm.q'"):
        _ = after["arm.q"]


def test_rename_can_swap_names() -> None:
    after = tf.rename({"arm.q": "gripper", "gripper": "arm.q"})(recorded())
    assert after["gripper"].shape == (3,)
    assert after["arm.q"].shape == ()


def test_rename_to_an_existing_name_raises() -> None:
    for names in ({"arm.q": "cam"}, {"arm.q": "task"}, {"arm.q": "x", "cam": "x"}):
        with pytest.raises(InvalidError, match="already has"):
            tf.rename(names)(recorded())
    with pytest.raises(InvalidError, match="already has a signal or static value 'cam'") as caught:
        tf.derive(cam=state)(recorded())
    assert "change" in (caught.value.hint or "")
    with pytest.raises(InvalidError, match="already has a signal or static value 'cam'"):
        tf.group("cam", ["arm.q", "gripper"])(recorded())
    with pytest.raises(InvalidError, match=r"already has a signal or static value 'arm.q'"):
        tf.group("arm.q", ["arm.q", "gripper"], keep=True)(recorded())


def test_unknown_names_raise() -> None:
    for transform in (
        tf.rename({"arm": "x"}),
        tf.select("arm"),
        tf.drop("arm"),
        tf.change(arm=small),
        tf.group("x", ["arm"]),
        tf.group("x", ["arm.q"], at="arm"),
    ):
        with pytest.raises(UnknownNameError, match="'arm'"):
            transform(recorded())


def test_select_and_drop() -> None:
    kept = tf.select("gripper", "task")(recorded())
    assert sorted(kept) == ["gripper", "task"]
    assert (list(kept.signals), list(kept.statics)) == (["gripper"], ["task"])
    assert len(kept) == 2
    assert "cam" not in kept
    left = tf.drop("gripper", "task")(recorded())
    assert (list(left.signals), list(left.statics)) == (["arm.q", "cam"], ["take"])


def test_derive() -> None:
    after = tf.derive({"/robot/state": state}, peak=peak, half=lambda _: None)(recorded())
    assert list(after.signals) == ["/robot/state", "arm.q", "cam", "gripper"]
    assert after["/robot/state"].name == "/robot/state"
    assert after["/robot/state"].shape == (4,)
    assert dict(after.statics) == {"task": "pick", "take": 3, "peak": 3.0, "half": None}
    assert after.time[160]["peak"] == 3
    assert after.time[50:120]["/robot/state"].start_ts == 50


def test_function_is_called_when_its_name_is_accessed() -> None:
    calls = []

    def noted(name: str, value: Any) -> Any:
        def function(episode: Episode) -> Any:
            calls.append(name)
            return value

        return function

    after = (
        tf.derive(one=noted("one", 1), two=noted("two", joints()))
        | tf.change(gripper=small)
        | tf.rename({"two": "second"})
        | tf.drop("cam")
    )(recorded())
    assert "one" in after
    assert len(after) == 6
    assert after["gripper"].dtype == np.float32
    assert after.uid == "u7"
    assert not calls
    assert after["one"] == 1
    assert after["one"] == 1
    assert calls == ["one"]
    assert list(after.signals) == ["arm.q", "gripper", "second"]
    assert calls == ["one", "two"]
    calls.clear()
    derived = tf.derive(one=noted("one", 1), two=noted("two", joints()))
    assert list((derived | tf.select("two", "task"))(recorded()).signals) == ["two"]
    assert calls == ["two"]


def test_function_receives_the_original_episode() -> None:
    with pytest.raises(UnknownNameError, match="'one'") as caught:
        _ = tf.derive(one=peak, two=lambda ep: ep["one"])(recorded())["two"]
    assert any("while making 'two'" in note for note in caught.value.__notes__)
    both = tf.derive(one=peak) | tf.derive(two=lambda ep: ep["one"] + 1)
    assert both(recorded())["two"] == 4


def test_change() -> None:
    q = joints()
    source = EpisodeView({"arm.q": q}, {"take": 3})
    after = tf.change({"arm.q": small}, take=lambda take: take + 1)(source)
    assert after["arm.q"].dtype == np.float32
    assert after["arm.q"].name == "arm.q"
    assert after["take"] == 4
    assert not q.batches
    for transform in (tf.change({"arm.q": len}), tf.change(take=lambda _: joints())):
        with pytest.raises(InvalidTypeError, match="the function passed to change"):
            _ = [transform(source)[name] for name in ("arm.q", "take")]


def test_group() -> None:
    after = tf.group("state", ["arm.q", "gripper"])(recorded())
    assert list(after.signals) == ["cam", "state"]
    assert after["state"].attrs["names"] == ["arm.q.x", "arm.q.y", "arm.q.z", "gripper"]
    assert after["state"].start_ts == 5
    at_frames = tf.group("state", ["arm.q", "gripper"], at="cam", keep=True)(recorded())
    assert list(at_frames.signals) == ["arm.q", "cam", "gripper", "state"]
    assert at_frames["state"].timestamps.tolist() == [100, 200]
    again = tf.group("gripper", ["gripper", "arm.q"])(recorded())
    assert again["gripper"].shape == (4,)
    with pytest.raises(InvalidTypeError, match="'take': it is a static"):
        _ = tf.group("x", ["take"])(recorded())["x"]


def test_resample_all_signals() -> None:
    after = tf.resample_every(20, {"arm.q": "linear", "cam": nearest(60)})(recorded())
    assert after["arm.q"].timestamps.tolist() == list(range(5, 201, 20))
    assert after["arm.q"][1][0].tolist() == [7.5, 8.5, 9.5]
    assert after["cam"][-1][0][0, 0, 0] == 2
    assert len(tf.resample_every(1 << 70)(recorded())["cam"]) == 1
    assert tf.resample_every(20)(recorded())["cam"][-1][0][0, 0, 0] == 1
    for wrong in (0, -5):
        with pytest.raises(InvalidError, match="`step_ns` must be at least 1"):
            tf.resample_every(wrong)
    with pytest.raises(InvalidError, match="'cubic'"):
        tf.resample_every(5, {"cam": "cubic"})


def test_transforms_compose() -> None:
    pipeline = tf.rename({"arm.q": "q"}) | unchanged | tf.drop("cam") | tf.select("q")
    assert list(pipeline(recorded())) == ["q"]
    first = unchanged | tf.drop("cam")
    assert "cam" not in first(recorded())
    with pytest.raises(TypeError):
        tf.drop("cam") | 5  # type: ignore[operator]
    with pytest.raises(InvalidTypeError, match="must return an episode, got an int"):
        (tf.drop("cam") | len)(recorded())  # type: ignore[operator]


def test_metadata_is_kept() -> None:
    after = (tf.drop("cam") | tf.resample_every(20))(recorded())
    assert after.meta == {"uid": "u7", "created_ts_ns": 1}
    assert after.uid == "u7"
    assert (tf.drop("cam")(recorded()).start_ts, recorded().start_ts) == (5, 5)


def test_datasets_are_mapped_lazily() -> None:
    prepare = tf.derive(state=state) | tf.select("state", "take")
    dataset = EpisodeList([recorded(), recorded()]).map(prepare)
    assert [list(episode) for episode in dataset] == [["state", "take"]] * 2
    copy = pickle.loads(pickle.dumps(dataset))  # noqa: S301 - our own data
    assert copy[1]["state"].values().tolist() == dataset[1]["state"].values().tolist()


def test_transform_pickles_when_its_functions_do() -> None:
    prepare = (
        tf.derive(state=state, peak=peak)
        | tf.change(cam=tf.record_times)
        | tf.rename({"take": "number"})
        | tf.group("both", ["arm.q", "gripper"])
        | tf.resample_every(20, {"both": "linear"})
    )
    after = prepare(recorded())
    for copy in (
        pickle.loads(pickle.dumps(prepare))(recorded()),  # noqa: S301 - our own data
        pickle.loads(pickle.dumps(after)),  # noqa: S301
        pickle.loads(pickle.dumps(tf.derive(peak=peak)(recorded()).time[50:150])),  # noqa: S301
    ):
        assert copy["peak"] == 3
        assert copy.uid == "u7"
    with pytest.raises((pickle.PicklingError, AttributeError)):
        pickle.dumps(tf.derive(peak=lambda _: 3))


def test_arguments_are_checked() -> None:
    with pytest.raises(InvalidTypeError, match="names must be strings") as caught:
        tf.select(["a", "b"])  # type: ignore[arg-type]
    assert caught.value.hint == "pass the names of a list with *names"
    with pytest.raises(InvalidTypeError, match="a list of names"):
        tf.group("state", "arm.q")
    with pytest.raises(InvalidTypeError, match="must be a function"):
        tf.derive(task="pick")  # type: ignore[arg-type]
    for empty in (lambda: tf.rename({"a": ""}), lambda: tf.group("", ["a"])):
        with pytest.raises(InvalidError, match="name"):
            empty()  # type: ignore[no-untyped-call]
