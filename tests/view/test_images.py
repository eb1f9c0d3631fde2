"""Thumbnails of images."""

import base64
import subprocess
import sys
import zlib

import numpy as np
import pytest

from relive.view.images import data_uri, downscale, is_image_shape, to_rgb


@pytest.mark.parametrize(
    ("shape", "answer"),
    [
        ((480, 640), True),
        ((16, 16, 1), True),
        ((16, 16, 4), True),
        ((16, 16, 7), False),
        ((15, 640), False),
        ((640,), False),
        ((), False),
    ],
)
def test_image_shapes(shape: tuple[int, ...], answer: bool) -> None:  # noqa: FBT001 - a table
    assert is_image_shape(shape) is answer


def test_pixel_is_the_mean_of_its_block() -> None:
    image = np.arange(24, dtype=np.uint8).reshape(4, 6)
    assert downscale(image, 2, 3).tolist() == [[4, 6, 8], [16, 18, 20]]
    assert downscale(image, 4, 6) is image
    assert downscale(image, 100, 100) is image
    colours = np.random.default_rng(0).random((31, 17, 3))
    small = downscale(colours, 1, 1)
    assert small.shape == (1, 1, 3)
    assert np.allclose(small[0, 0], colours.mean(axis=(0, 1)))


def test_depth_scale_is_shared_by_all_images() -> None:
    shades, ends = to_rgb([np.array([[0, 100]], np.uint16), np.array([[400, 200]], np.uint16)])
    assert ends == (0, 400)
    assert shades[0][0, :, 0].tolist() == [0, 63]
    assert shades[1][0, :, 2].tolist() == [255, 127]
    _, ends = to_rgb([np.full((2, 2), np.nan)])
    assert ends == (0, 0)
    assert to_rgb([]) == ([], None)
    alpha, ends = to_rgb([np.full((2, 2, 4), 9, np.uint8)])
    assert (alpha[0].shape, ends) == ((2, 2, 3), None)


def test_small_image_is_a_lossless_png() -> None:
    image = np.random.default_rng(0).integers(0, 256, (5, 7, 3), dtype=np.uint8)
    head, _, text = data_uri(image).partition(",")
    assert head == "data:image/png;base64"
    data = base64.b64decode(text)
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    start = data.index(b"IDAT") + 4
    rows = zlib.decompress(data[start : data.index(b"IEND") - 8])
    assert np.frombuffer(rows, np.uint8).reshape(5, 22)[:, 1:].tobytes() == image.tobytes()


@pytest.mark.needs("av")
def test_larger_image_is_a_similar_jpeg() -> None:
    import io

    import av

    y, x = np.mgrid[0:101, 0:133]
    image = np.stack([x, y * 2, 255 - x], axis=-1).astype(np.uint8)
    head, _, text = data_uri(image).partition(",")
    assert head == "data:image/jpeg;base64"
    with av.open(io.BytesIO(base64.b64decode(text))) as container:
        again = next(container.decode(video=0)).to_ndarray(format="rgb24")
    assert again.shape == (100, 132, 3)
    assert np.abs(again.astype(int) - image[:100, :132]).mean() < 4


def test_without_the_extra_all_images_are_png() -> None:
    program = (
        "import sys, numpy as np\n"
        "sys.modules['av'] = None\n"
        "from relive.view.images import data_uri\n"
        "print(data_uri(np.zeros((80, 80, 3), np.uint8))[:14])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("data:image/png\n", "")
