"""Functions of values, components of vectors, crops of images, and dtypes."""

import pickle
from typing import Any

import numpy as np
import pytest

from relive.episodes import transforms as tf
from relive.episodes.transforms import values
from relive.errors import InvalidError, InvalidTypeError, OutOfRangeError, UnknownNameError
from relive.model.signal import ArraySignal
from tests.episodes.transforms.watched import frames, joints


def double(batch: Any) -> Any:
    return batch * 2


def test_values_change_and_everything_else_stays() -> None:
    q = ArraySignal([[1, 2]], [5], name="q", attrs={"unit": "m"}, clocks={"s": np.array([7])})
    lazy = tf.map_values(q, double)
    assert lazy[0][0].tolist() == [2, 4]
    assert not lazy[0][0].flags.writeable
    assert (lazy.name, lazy.attrs, lazy.clocks) == ("q", {"unit": "m"}, ("s",))
    assert lazy.clock("s").tolist() == [7]
    assert lazy.on("s")[0][1] == 7
    assert (lazy.start_ts, lazy.last_ts) == (5, 5)
    assert tf.map_values(q, double, attrs={"unit": "cm"}).attrs == {"unit": "cm"}


def test_nothing_is_read_on_creation() -> None:
    q = joints()
    lazy = tf.map_values(q, double)
    assert repr(lazy) == "MappedSignal('arm.q', 20 records)"
    assert len(lazy.time[50:80]) == 3
    assert not q.batches
    assert lazy.time[50:80].values().shape == (3, 3)
    assert q.read == {5, 6, 7}
    _ = lazy.dtype, lazy.shape, lazy.kind, lazy.fields
    assert q.batches == [[5, 6, 7]]


def test_type_is_inferred_from_one_record() -> None:
    cam = frames(50)
    bright = tf.map_values(cam, lambda frame: frame.mean(), batched=False)
    assert (bright.dtype, bright.shape, bright.kind) == (np.dtype(np.float64), (), "scalar")
    assert cam.batches == [[0]]
    assert tf.map_values(cam, lambda batch: batch[:, ::2]).kind == "image"
    assert tf.map_values(cam, lambda batch: batch[..., 0]).kind == "vector"


def test_explicit_type_needs_no_read() -> None:
    q = joints()
    lazy = tf.map_values(q, double, dtype="float32", shape=(3,))
    assert (lazy.dtype, lazy.shape) == (np.dtype(np.float32), (3,))
    assert not q.batches
    assert lazy.values().dtype == np.float32
    with pytest.raises(
        InvalidError,
        match=r"float64 values of shape \(3,\), expected float64 values of shape \(2,\)",
    ):
        tf.map_values(q, double, shape=(2,)).values()
    with pytest.raises(InvalidError, match="expected int64"):
        tf.map_values(q, double, dtype="int64").values()


def test_function_of_single_values() -> None:
    q = joints()
    lazy = tf.map_values(q, np.linalg.norm, batched=False)
    assert lazy.values().tolist() == pytest.approx(np.linalg.norm(q.values(), axis=1).tolist())
    assert type(lazy[3][0]) is np.float64


def test_text_values() -> None:
    words = ArraySignal(["pick", "place\0"], [1, 2], name="task")
    assert tf.map_values(words, str.upper, batched=False).values().tolist() == ["PICK", "PLACE\0"]
    lengths = tf.map_values(words, lambda texts: [len(text) for text in texts])
    assert lengths.values().tolist() == [4, 6]
    label = tf.map_values(joints(), lambda batch: np.where(batch[:, 0] > 9, "far", "near"))
    assert (label.dtype, label.kind) == ("str", "text")
    assert label[0] == ("near", 0)
    assert type(label[0][0]) is str


@pytest.mark.parametrize(
    "mixing",
    [
        lambda q: q / np.linalg.norm(q),
        lambda q: q[:1].repeat(len(q), axis=0)[::-1] + q.sum(),
        lambda q: q - q.mean(axis=0),
        lambda q: np.where(q[:, 0] >= q[:, 0].max(), "last", "other"),
    ],
)
def test_function_that_mixes_records_raises(mixing: Any) -> None:
    lazy = tf.map_values(joints(), mixing)
    with pytest.raises(InvalidError, match="different values for the same record") as caught:
        lazy.values()
    assert "batched=False" in (caught.value.hint or "")


def test_function_is_checked_on_one_record_only_once() -> None:
    sizes = []

    def noted(batch: Any) -> Any:
        sizes.append(len(batch))
        return np.float32(batch) / 3

    lazy = tf.map_values(joints(), noted)
    for _ in range(3):
        lazy[2:6].values()
    assert sizes == [4, 1, 4, 4]


def test_rounding_differences_are_not_mixing() -> None:
    weights = np.random.default_rng(0).normal(size=(300, 300)).astype(np.float32)
    values = np.random.default_rng(1).normal(size=(64, 300)).astype(np.float32)
    made = tf.map_values(ArraySignal(values, np.arange(64)), lambda batch: batch @ weights)
    assert made.values().shape == (64, 300)
    odd = tf.map_values(joints(), lambda q: q * [1, np.nan, np.inf])
    with np.errstate(invalid="ignore"):
        assert np.isnan(odd.values()[:, 1]).all()


def test_function_must_return_one_value_per_record() -> None:
    with pytest.raises(InvalidError, match="a single value for 20 records") as caught:
        tf.map_values(joints(), np.linalg.norm).values()
    assert "batched=False" in (caught.value.hint or "")
    with pytest.raises(InvalidError, match="3 values for 20 records"):
        tf.map_values(joints(), lambda q: q[:3]).values()
    with pytest.raises(InvalidError, match="different shapes"):
        tf.map_values(joints(), lambda q: np.arange(q[0]), batched=False).values()


@pytest.mark.parametrize("wrong", [1j, None, b"x", {"a": 1}, np.datetime64(1, "s")])
def test_unsupported_results_raise(wrong: Any) -> None:
    with pytest.raises(InvalidTypeError, match="a signal cannot hold"):
        tf.map_values(joints(), lambda _: wrong, batched=False).values()


def test_later_values_must_have_the_first_type() -> None:
    whole = tf.map_values(joints(), lambda v: int(v[0]) if v[0] > 9 else 0.5, batched=False)
    assert whole[0][0] == 0.5
    assert type(whole[9][0]) is np.float64  # an integer fits into the type of the first result
    other = tf.map_values(joints(), lambda v: int(v[0]) if v[0] < 9 else 0.5, batched=False)
    assert other[0][0] == 0
    with pytest.raises(InvalidError, match=r"float64 .*, expected int64") as caught:
        _ = other[9]
    assert "dtype=" in (caught.value.hint or "")
    coarse = tf.map_values(joints(), lambda v: np.float32(1) if v[0] < 9 else 0.5, batched=False)
    assert type(coarse[0][0]) is np.float32
    with pytest.raises(InvalidError, match=r"float64 .*, expected float32"):
        _ = coarse[9]


def test_byte_order_becomes_native() -> None:
    lazy = tf.map_values(joints(), lambda batch: batch.astype(">f4"))
    assert lazy.dtype == np.float32
    assert lazy.dtype.isnative


def test_function_cannot_change_the_source() -> None:
    def mixing(batch: Any) -> Any:
        batch += 1
        return batch

    for rows in (slice(None), [3, 1]):
        with pytest.raises(ValueError, match="read-only"):
            tf.map_values(joints()[rows], mixing).values()


def test_error_of_the_function_is_raised_unchanged() -> None:
    def broken(batch: Any) -> Any:
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        _ = tf.map_values(joints(), broken).dtype


def test_signal_without_records() -> None:
    empty = joints(0)
    lazy = tf.map_values(empty, lambda batch: np.linalg.norm(batch, axis=1).astype("float32"))
    assert (lazy.dtype, lazy.shape, len(lazy)) == (np.dtype(np.float32), (), 0)
    assert lazy.values().shape == (0,)
    for function, batched in ((np.linalg.norm, False), (lambda batch: batch[0], True)):
        unknown = tf.map_values(empty, function, batched=batched)
        assert list(unknown) == list(reversed(unknown)) == list(unknown.time[:]) == []
        with pytest.raises(InvalidError, match="cannot infer the type") as caught:
            unknown.values()
        assert "dtype=" in (caught.value.hint or "")
        given = tf.map_values(empty, function, batched=batched, dtype=float, shape=())
        assert given.values().shape == (0,)


def test_images_are_read_in_small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    cam = frames(100)
    monkeypatch.setattr(values, "_BATCH_BYTES", 10 * 4 * 6 * 3)
    bright = tf.map_values(cam, lambda batch: batch.mean(axis=(1, 2, 3)))
    assert bright.values().tolist() == list(range(100))
    assert max(map(len, cam.batches)) == 10
    out = np.empty(100)
    assert bright.values_at(range(100), out) is out
    assert out.tolist() == list(range(100))
    assert bright.values_at(np.arange(99, 49, -1)).tolist() == list(range(99, 49, -1))


def test_iteration_decodes_each_image_once() -> None:
    cam = frames(100)
    bright = tf.map_values(cam, lambda batch: batch.mean(axis=(1, 2, 3)))
    assert [value for value, _ in bright] == list(range(100))
    assert cam.passes == 1
    assert len(cam.batches) <= 1  # one record, to infer the type


def test_mapped_signal_pickles_with_its_function() -> None:
    lazy = tf.map_values(joints(), double)
    before = pickle.loads(pickle.dumps(lazy))  # noqa: S301 - our own data
    assert before.values().tolist() == lazy.values().tolist()
    with pytest.raises((pickle.PicklingError, AttributeError)):
        pickle.dumps(tf.map_values(joints(), lambda batch: batch))


def test_arguments_are_checked() -> None:
    with pytest.raises(InvalidTypeError, match="expected a signal, got a list"):
        tf.map_values([1], double)  # type: ignore[arg-type]
    with pytest.raises(InvalidTypeError, match="must be callable"):
        tf.map_values(joints(), 3)  # type: ignore[arg-type]
    with pytest.raises(InvalidError, match="cannot hold"):
        tf.map_values(joints(), double, dtype="bytes")


@pytest.mark.parametrize("key", [0, -1, slice(1, None), [2, 0], [1], np.array([0, 1]), []])
def test_components_by_position(key: Any) -> None:
    q = joints()
    part = tf.pick(q, key)
    assert part.shape == np.empty(3)[key].shape
    assert not q.batches
    np.testing.assert_array_equal(part.values(), joints().values()[:, key], strict=True)
    assert part.attrs["unit"] == "rad"
    assert part.attrs["names"] == np.atleast_1d(np.array(["x", "y", "z"])[key]).tolist()


def test_components_by_name() -> None:
    assert tf.pick(joints(), "y").kind == "scalar"
    assert tf.pick(joints(), "y")[1][0] == 4
    both = tf.pick(joints(), ["z", "x"])
    assert both[0][0].tolist() == [2, 0]
    assert tf.pick(both, "x")[1][0] == 3
    with pytest.raises(
        UnknownNameError, match="no component 'w'; its components are 'x', 'y', 'z'"
    ):
        tf.pick(joints(), "w")
    with pytest.raises(UnknownNameError, match="its components are none"):
        tf.pick(ArraySignal([[1, 2]], [1]), "x")


def test_components_are_of_the_last_axis() -> None:
    poses = ArraySignal(np.arange(24).reshape(2, 3, 4), [1, 2])
    assert (
        tf.pick(poses, slice(2)).values().tolist()
        == np.arange(24).reshape(2, 3, 4)[..., :2].tolist()
    )


def test_unknown_components_raise() -> None:
    for wrong in (3, -4, [0, 3]):
        with pytest.raises(OutOfRangeError):
            tf.pick(joints(), wrong)
    for mistyped in (1.5, True, [True, False, True], None, {0}):
        with pytest.raises(InvalidTypeError):
            tf.pick(joints(), mistyped)  # type: ignore[arg-type]
    for whole in (ArraySignal([1.0], [1]), ArraySignal(["a"], [1]), frames(1)):
        with pytest.raises(InvalidError, match="cannot pick components"):
            tf.pick(whole, 0)


def test_crop_images() -> None:
    cam = frames(5, height=6, width=8)
    part = tf.crop(cam, top=1, left=2, height=4, width=3)
    assert (part.shape, part.dtype, part.kind) == ((4, 3, 3), np.dtype(np.uint8), "image")
    assert not cam.batches
    assert part.time[200:400].values()[:, 0, 0, 0].tolist() == [2, 3]
    assert cam.read == {2, 3}
    rows = np.arange(48, dtype=np.uint16).reshape(1, 6, 8)
    depth = ArraySignal(rows, [1])
    assert tf.crop(depth, top=4, left=6)[0][0].tolist() == rows[0, 4:, 6:].tolist()


def test_crop_does_not_keep_whole_images_in_memory() -> None:
    part = tf.crop(frames(5), height=1, width=1).values()
    assert part.base is None or part.base.nbytes == part.nbytes


@pytest.mark.parametrize(
    "wrong", [{"top": -1}, {"left": 6}, {"height": 5}, {"width": 0}, {"top": 2, "height": 3}]
)
def test_crop_must_be_inside_the_image(wrong: dict[str, int]) -> None:
    with pytest.raises(InvalidError, match=r"exceeds the image|`top` must be at least 0"):
        tf.crop(frames(1), **wrong)
    with pytest.raises(InvalidError, match="cannot crop"):
        tf.crop(joints())


def test_astype() -> None:
    q = joints()
    small = tf.astype(q, "float32")
    assert (small.dtype, small.shape, small.attrs) == (np.dtype(np.float32), (3,), q.attrs)
    assert not q.batches
    assert small[1][0].tolist() == [3, 4, 5]
    assert tf.astype(q, np.float64) is q
    assert tf.astype(frames(2), "float16").kind == "vector"
    for signal, dtype in ((ArraySignal(["1"], [1]), "int64"), (q, "str"), (q, "complex64")):
        with pytest.raises(InvalidTypeError):
            tf.astype(signal, dtype)
