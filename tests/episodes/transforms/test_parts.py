"""Components of vectors, rectangles of images, and other dtypes."""

from typing import Any

import numpy as np
import pytest

from relive.episodes import transforms as tf
from relive.errors import InvalidError, InvalidTypeError, OutOfRangeError, UnknownNameError
from relive.model.signal import ArraySignal
from tests.episodes.transforms.watched import frames, joints


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
