"""Decoded images keep their depth and channels, or `mode` converts them."""

import io
import zlib
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pytest

from relive.bridge import convert
from relive.bridge.images import ImageDecoder, pixel_format
from relive.errors import InvalidError, InvalidTypeError, UnsupportedError
from relive.model.schema import Field
from tests.bridge.sample_files import contents, tar

Image = pytest.importorskip("PIL.Image")

Array = npt.NDArray[Any]
RNG = np.random.default_rng(0)
GREY = RNG.integers(0, 256, (6, 9), dtype=np.uint8)
COLOR = RNG.integers(0, 256, (6, 9, 3), dtype=np.uint8)
ALPHA = RNG.integers(0, 256, (6, 9, 4), dtype=np.uint8)
DEPTH = (np.arange(600, dtype=np.uint16) + 400).reshape(20, 30)
FLOAT = RNG.random((6, 9), dtype=np.float32) - 0.5


def encoded(image: Any, form: str, **options: Any) -> bytes:
    out = io.BytesIO()
    image.save(out, form, **options)
    return out.getvalue()


def wide_png(pixels: Array) -> bytes:
    """Return a PNG with 16 bits per channel, which Pillow cannot write."""
    height, width, channels = pixels.shape
    color = {2: 4, 3: 2, 4: 6}[channels]
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in pixels)

    def chunk(name: bytes, data: bytes) -> bytes:
        return len(data).to_bytes(4, "big") + name + data + zlib.crc32(name + data).to_bytes(4)

    head = width.to_bytes(4, "big") + height.to_bytes(4, "big") + bytes([16, color, 0, 0, 0])
    parts = (chunk(b"IHDR", head), chunk(b"IDAT", zlib.compress(rows)), chunk(b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def wide_tiff(pixels: Array, order: str, *, compressed: bool = False) -> bytes:
    """Return a TIFF with 16 bits per channel, which Pillow cannot write."""
    height, width, channels = map(int, pixels.shape)
    data: bytes = pixels.astype(f"{order}u2").tobytes()
    data = zlib.compress(data) if compressed else data
    end: Literal["little", "big"] = "little" if order == "<" else "big"
    tags = [
        (256, 3, 1, width),
        (257, 3, 1, height),
        (258, 3, channels, 8),
        (259, 3, 1, 8 if compressed else 1),
    ]
    tags += [(262, 3, 1, 2), (273, 4, 1, 16), (277, 3, 1, channels), (278, 3, 1, height)]
    tags += [(279, 4, 1, len(data))]
    out: bytes = (b"II*\0" if order == "<" else b"MM\0*") + (16 + len(data)).to_bytes(4, end)
    out += (16).to_bytes(2, end) * channels + bytes(8 - 2 * channels) + data
    out += len(tags).to_bytes(2, end)
    for tag, kind, count, value in tags:
        out += tag.to_bytes(2, end) + kind.to_bytes(2, end) + count.to_bytes(4, end)
        short = kind == 3 and count == 1
        out += value.to_bytes(2, end) + b"\0\0" if short else value.to_bytes(4, end)
    return out + bytes(4)


def palette(indices: Array, **options: Any) -> bytes:
    image = Image.fromarray(indices % 4)
    image.putpalette(PALETTE.tobytes())
    return encoded(image, "PNG", **options)


PALETTE = np.array([[9, 8, 7], [0, 0, 0], [250, 0, 10], [9, 8, 7]], np.uint8)
WIDE = RNG.integers(0, 1 << 16, (6, 9, 4), dtype=np.uint16)
GRAY_KEY = np.dstack([GREY, np.where(GREY[0, 0] == GREY, 0, 255).astype(np.uint8)])
KEPT: dict[str, tuple[bytes, Array]] = {
    "grey": (encoded(Image.fromarray(GREY), "PNG"), GREY),
    "grey bmp": (encoded(Image.fromarray(GREY), "BMP"), GREY),
    "grey and alpha": (encoded(Image.fromarray(ALPHA[:, :, :2]), "PNG"), ALPHA[:, :, :2]),
    "color": (encoded(Image.fromarray(COLOR), "PNG"), COLOR),
    "color and alpha": (encoded(Image.fromarray(ALPHA), "PNG"), ALPHA),
    "webp and alpha": (encoded(Image.fromarray(ALPHA), "WEBP", lossless=True, exact=True), ALPHA),
    "transparent color": (
        encoded(Image.fromarray(GREY), "PNG", transparency=int(GREY[0, 0])),
        GRAY_KEY,
    ),
    "1 bit": (encoded(Image.fromarray(GREY > 99), "PNG"), GREY > 99),
    "1 bit tiff": (encoded(Image.fromarray(GREY > 99), "TIFF", compression="group4"), GREY > 99),
    "palette": (palette(GREY), PALETTE[GREY % 4]),
    "gif": (encoded(Image.fromarray(GREY), "GIF"), np.dstack([GREY] * 3)),
    "16 bit": (encoded(Image.fromarray(DEPTH), "PNG"), DEPTH),
    "16 bit tiff": (encoded(Image.fromarray(DEPTH), "TIFF"), DEPTH),
    "16 bit pgm": (encoded(Image.fromarray(DEPTH), "PPM"), DEPTH),
    "10 bit pgm": (b"P5 30 20 1023\n" + DEPTH.astype(">u2").tobytes(), DEPTH),
    "7 bit pgm": (b"P5 9 6 100\n" + (GREY % 101).tobytes(), GREY % 101),
    "16 bit color": (wide_png(WIDE[:, :, :3]), WIDE[:, :, :3]),
    "16 bit color and alpha": (wide_png(WIDE), WIDE),
    "16 bit tiff color": (wide_tiff(WIDE[:, :, :3], "<"), WIDE[:, :, :3]),
    "16 bit tiff color, big-endian": (wide_tiff(WIDE[:, :, :3], ">"), WIDE[:, :, :3]),
    "16 bit tiff color, compressed": (
        wide_tiff(WIDE[:, :, :3], ">", compressed=True),
        WIDE[:, :, :3],
    ),
    "16 bit tiff color and alpha": (wide_tiff(WIDE, "<", compressed=True), WIDE),
    "float": (encoded(Image.fromarray(FLOAT), "TIFF"), FLOAT),
    "32 bit": (
        encoded(Image.fromarray(DEPTH.astype(np.int32) - 500), "TIFF"),
        DEPTH - np.int32(500),
    ),
}


@pytest.mark.parametrize("name", KEPT)
def test_depth_and_channels_are_kept(name: str) -> None:
    data, pixels = KEPT[name]
    array = ImageDecoder().decode(data, "`a`")
    assert (array.dtype, array.tolist()) == (pixels.dtype, pixels.tolist())
    mode, size = ImageDecoder().inspect(io.BytesIO(data), "`a`")
    dtype, channels = pixel_format(mode)
    assert (np.dtype(dtype), (*size, *channels)) == (pixels.dtype, pixels.shape)


@pytest.mark.parametrize("name", ["16 bit", "grey", "color and alpha", "1 bit", "16 bit color"])
def test_fields_follow_the_images(tmp_path: Path, name: str) -> None:
    data, pixels = KEPT[name]
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "a.png").write_bytes(data)
    made = convert(tmp_path / "images", tmp_path / "store", decode=True)
    assert made.fields["image"] == Field(pixels.dtype, pixels.shape)
    assert contents(made.path)[0]["image"] == pixels.tolist()
    (tmp_path / "a.tar").write_bytes(tar([("a.png", data)]))
    made = convert(tmp_path / "a.tar", tmp_path / "shard", decode="image")
    assert made.fields["png"] == Field(pixels.dtype, pixels.shape)
    assert contents(made.path)[0]["png"] == pixels.tolist()


CMYK = encoded(Image.fromarray(COLOR).convert("CMYK"), "TIFF")
MODES: dict[str, tuple[str, bytes, Array]] = {
    "grey to color": ("RGB", KEPT["grey"][0], np.dstack([GREY] * 3)),
    "alpha is dropped": ("RGB", KEPT["color and alpha"][0], ALPHA[:, :, :3]),
    "16 bits to the high byte": ("L", KEPT["16 bit"][0], (DEPTH >> 8).astype(np.uint8)),
    "16 bit color to the high byte": ("RGB", KEPT["16 bit color"][0], WIDE[:, :, :3] >> 8),
    "16 bit grey and alpha": ("LA", wide_png(WIDE[:, :, :2]), WIDE[:, :, :2] >> 8),
    "opaque": ("RGBA", KEPT["color"][0], np.dstack([COLOR, np.full((6, 9), 255, np.uint8)])),
    "palette indices": ("P", KEPT["palette"][0], GREY % 4),
    "1 bit": ("L", KEPT["1 bit"][0], np.where(GREY > 99, 255, 0)),
    "cmyk": ("CMYK", CMYK, np.dstack([255 - COLOR, np.zeros((6, 9), np.uint8)])),
    "cmyk to color": ("RGB", CMYK, COLOR),
}


@pytest.mark.parametrize("name", MODES)
def test_modes_convert_on_request(name: str) -> None:
    mode, data, pixels = MODES[name]
    decoder = ImageDecoder(None, mode)
    array = decoder.decode(data, "`a`")
    assert (array.dtype, array.tolist()) == (np.dtype(np.uint8), pixels.tolist())
    assert decoder.inspect(io.BytesIO(data), "`a`") == (mode, pixels.shape[:2])


@pytest.mark.parametrize(
    ("mode", "data", "message"),
    [
        (None, CMYK, r"mode CMYK.*hint: pass mode=\"RGB\".*mode=\"CMYK\""),
        (None, MODES["16 bit grey and alpha"][1], r"mode LA with more bits.*mode=\"RGB\""),
        (None, encoded(Image.new("RGBX", (3, 2)), "TIFF"), r"mode RGBX with more bits or channels"),
        (None, b"P6 3 2 1023\n" + bytes(36), r"mode RGB with more bits"),
        ("P", KEPT["color"][0], r"mode RGB, but mode='P' can only keep"),
        ("RGB", KEPT["float"][0], r"float32 values.*decode="),
        ("L", KEPT["32 bit"][0], r"int32 values"),
    ],
)
def test_no_loss_without_a_request(mode: str | None, data: bytes, message: str) -> None:
    with pytest.raises((UnsupportedError, InvalidError), match=f"(?s)`a`.*{message}"):
        ImageDecoder(None, mode).decode(data, "`a`")


@pytest.mark.parametrize("form", ["JPEG", "PNG", "TIFF", "WEBP"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_images_are_upright(form: str, orientation: int) -> None:
    # A bright top left corner, as in https://exiftool.org/TagNames/EXIF.html
    shown = np.zeros((16, 32), np.uint8)
    shown[:8, :8] = 255
    turns = {1: shown, 2: shown[:, ::-1], 3: shown[::-1, ::-1], 4: shown[::-1], 5: shown.T}
    turns |= {6: shown.T[::-1], 7: shown.T[::-1, ::-1], 8: shown.T[:, ::-1]}
    exif = Image.Exif()
    exif[0x0112] = orientation
    stored = Image.fromarray(np.ascontiguousarray(turns[orientation])).convert("RGB")
    data = encoded(stored, form, exif=exif)
    image = ImageDecoder().decode(data, "`a`")
    assert ImageDecoder().inspect(io.BytesIO(data), "`a`") == ("RGB", image.shape[:2])
    assert np.abs(image[:, :, 0].astype(int) - shown).max() < 40


@pytest.mark.parametrize("name", KEPT)
def test_resizing_keeps_depth_and_channels(name: str) -> None:
    data, pixels = KEPT[name]
    array = ImageDecoder((12, 18)).decode(data, "`a`")
    assert array.dtype == pixels.dtype
    assert array.shape == (12, 18, *pixels.shape[2:])
    if pixels.dtype != np.bool_ and pixels.shape[2:] not in [(2,), (4,)]:
        assert array.max() > pixels.max() * 0.7


def test_resizing_does_not_mix_palette_indices() -> None:
    array = ImageDecoder((24, 36), "P").decode(KEPT["palette"][0], "`a`")
    assert array.tolist() == (GREY % 4).repeat(4, 0).repeat(4, 1).tolist()


def test_images_of_different_modes_are_named(tmp_path: Path) -> None:
    folder = tmp_path / "images"
    folder.mkdir()
    for name, kind in (("a", "color"), ("b", "color"), ("c", "grey")):
        (folder / f"{name}.png").write_bytes(KEPT[kind][0])
    message = rf"{folder / 'c.png'}` has the mode L, but `{folder / 'a.png'}` has the mode RGB"
    with pytest.raises(InvalidError, match=message) as caught:
        convert(folder, tmp_path / "store", decode=True)
    assert caught.value.hint is not None
    assert 'mode="RGB"' in caught.value.hint
    made = convert(folder, tmp_path / "store", mode="RGB")
    assert made.fields["image"] == Field(np.uint8, (6, 9, 3))
    shard = [("0.png", KEPT["color and alpha"][0]), ("1.png", KEPT["color"][0])]
    (tmp_path / "a.tar").write_bytes(tar(shard))
    with pytest.raises(InvalidError, match=r"1\.png` has the mode RGB, but .*0\.png` has the mode"):
        convert(tmp_path / "a.tar", tmp_path / "shard", decode=True)
    made = convert(tmp_path / "a.tar", tmp_path / "shard", mode="RGBA")
    assert made.fields["png"] == Field(np.uint8, (6, 9, 4))


def test_other_modes_after_the_sampled_headers_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("relive.bridge.read.image_folder._HEADERS", 2)
    folder = tmp_path / "images"
    folder.mkdir()
    for name, kind in (("a", "color"), ("b", "16 bit color"), ("c", "color")):
        (folder / f"{name}.png").write_bytes(KEPT[kind][0])
    with pytest.raises(InvalidError, match=r"b\.png` has the mode RGB;16, but .*a\.png` has"):
        convert(folder, tmp_path / "store", decode=True)


def test_unknown_modes_raise(tmp_path: Path) -> None:
    folder = tmp_path / "images"
    folder.mkdir()
    (folder / "a.png").write_bytes(KEPT["grey"][0])
    with pytest.raises(InvalidError, match="`mode` must be one of"):
        convert(folder, tmp_path / "store", mode="BGR")
    with pytest.raises(InvalidTypeError, match="`mode` must be a string"):
        convert(folder, tmp_path / "store", mode=3)  # type: ignore[arg-type]
    with pytest.raises(InvalidError, match="`mode` can be used only with the formats images, tar"):
        convert("a.parquet", tmp_path / "store", mode="RGB", kind="parquet")
