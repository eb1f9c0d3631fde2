"""Video of other programs: every frame is the one that FFmpeg decodes from the beginning."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import av
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from relive.store.video import FrameIndex, FrameReader, Movie, VideoSpec, write_index
from relive.store.video.access_points import access_point
from relive.store.video.decoders import Decoder, clear
from relive.store.video.encode import Encoder, _same_scheduling
from tests.store.video.clips import Clip, all_of, number_of, numbered

CLIP = numbered(50)
QUIET = "log-level=error"
STREAMS: dict[str, tuple[str, str]] = {
    "h264 closed": ("libx264", "keyint=12:bframes=3"),
    "h264 open": ("libx264", "open-gop=1:bframes=3:keyint=12:scenecut=0"),
    "h264 open, b-pyramid": (
        "libx264",
        "open-gop=1:bframes=5:b-pyramid=normal:ref=4:keyint=12:scenecut=0:b-adapt=0",
    ),
    "h264 open, short": ("libx264", "open-gop=1:bframes=2:keyint=4:scenecut=0:b-adapt=0:ref=4"),
    "h264 open, no b-frames": ("libx264", "open-gop=1:bframes=0:keyint=12"),
    "h264 intra refresh": ("libx264", "intra-refresh=1:keyint=20:bframes=0"),
    "h264 intra refresh, b-frames": ("libx264", "intra-refresh=1:keyint=20:bframes=2"),
    "hevc open": ("libx265", f"open-gop=1:bframes=4:keyint=12:{QUIET}"),
    "hevc intra refresh": ("libx265", f"intra-refresh=1:keyint=20:{QUIET}"),
    "av1 open": ("libsvtav1", "keyint=12:irefresh-type=1:preset=12"),
    "mpeg2 open": ("mpeg2video", ""),
}
PARAMETERS = {"libx264": "x264-params", "libx265": "x265-params", "libsvtav1": "svtav1-params"}


def write_stream(path: Path, codec: str, parameters: str) -> None:
    """Write a video as other programs do."""
    os.environ.setdefault("SVT_LOG", "1")  # else libsvtav1 prints its settings
    options = {PARAMETERS[codec]: parameters} if codec in PARAMETERS else {"bf": "2"}
    with _same_scheduling(), av.open(str(path), "w", format="mp4") as file:
        stream = file.add_stream(codec, rate=30, options=options)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        stream.gop_size = 12
        stream.codec_context.thread_count = 1
        for number, frame in enumerate(CLIP):
            picture = av.VideoFrame.from_ndarray(frame)
            picture.pts = number
            file.mux(stream.encode(picture))
        file.mux(stream.encode())


def decoded(path: Path, header: dict[str, Any]) -> list[Clip]:
    """Return the frames as FFmpeg decodes them from the beginning, as RGB."""
    decoder = Decoder(header)
    with av.open(str(path)) as file:
        stream = file.streams.video[0]
        stream.codec_context.thread_count = 1
        return [np.array(decoder.picture(frame, (48, 64, 3))) for frame in file.decode(stream)]


@pytest.mark.parametrize("name", STREAMS)
def test_random_access_returns_the_frames_of_a_sequential_decoder(
    tmp_path: Path, name: str
) -> None:
    path, index = tmp_path / "a.mp4", tmp_path / "a.frames.parquet"
    write_stream(path, *STREAMS[name])
    pq.write_table(pa.table({"ts_ns": range(len(CLIP))}), index)
    reader = FrameReader(path, FrameIndex(index, path))
    wanted = decoded(path, reader.index.header)
    assert [number_of(frame) for frame in wanted] == list(range(len(CLIP)))
    wrong = []
    for row in range(len(CLIP)):
        clear()  # so that every frame is decoded from its key frame on
        if not np.array_equal(reader.frame(row), wanted[row]):
            wrong.append(row)
    assert not wrong
    assert np.array_equal(all_of(reader), wanted)
    assert all(np.array_equal(*both) for both in zip(reader, wanted, strict=True))
    rows = np.random.default_rng(0).integers(0, len(CLIP), 40)
    out = np.empty((40, 48, 64, 3), np.uint8)
    reader.read(rows, out)
    assert np.array_equal(out, np.array(wanted)[rows])


def test_open_groups_are_decoded_from_their_key_frame(tmp_path: Path) -> None:
    path, index = tmp_path / "a.mp4", tmp_path / "a.frames.parquet"
    write_stream(path, *STREAMS["h264 open, b-pyramid"])
    pq.write_table(pa.table({"ts_ns": range(len(CLIP))}), index)
    keys = FrameIndex(index, path).keys
    assert np.flatnonzero(keys).tolist() == [0, 12, 24, 36, 48]


def test_copies_begin_at_frames_that_nothing_refers_past(tmp_path: Path) -> None:
    path, index = tmp_path / "a.mp4", tmp_path / "a.frames.parquet"
    pq.write_table(pa.table({"ts_ns": range(len(CLIP))}), index)
    for name, start in (("h264 closed", 24), ("h264 open", 0), ("hevc open", 24)):
        path.unlink(missing_ok=True)
        write_stream(path, *STREAMS[name])
        reader = FrameReader(path, FrameIndex(index, path))
        assert reader.copy_start(26) == start, name


def test_recordings_with_intra_refresh_are_readable(tmp_path: Path) -> None:
    encoding = VideoSpec(gop=100).encoding()
    options = {**encoding.options, "x264-params": "annexb=0:keyint=20:intra-refresh=1"}
    encoder = Encoder(replace(encoding, options=options), CLIP.shape[1:])
    packets = [
        packet for row, frame in enumerate(CLIP) for packet in encoder.encode(frame, row * 10**7)
    ]
    assert [packet.row for packet in packets if packet.key] == [0]
    path, index = tmp_path / "a.mp4", tmp_path / "a.frames.parquet"
    movie = Movie(path, encoder.header)
    for packet in packets:
        # An index may have the marks of the encoder.
        movie.add(replace(packet, key=packet.row % 20 == 0))
    movie.close()
    meta = {"name": "cam", "kind": "image", "shape": [48, 64, 3], "video": encoder.header}
    write_index(index, meta, movie.frames)
    reader = FrameReader(path, FrameIndex(index, path))
    wanted = decoded(path, reader.index.header)
    for row in (49, 41, 20, 3, 22):
        clear()
        assert np.array_equal(reader.frame(row), wanted[row])


def test_packets_are_read_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("relive.store.video.frames.READ_BYTES", 500)
    path, index = tmp_path / "a.mp4", tmp_path / "a.frames.parquet"
    write_stream(path, *STREAMS["h264 intra refresh"])
    pq.write_table(pa.table({"ts_ns": range(len(CLIP))}), index)
    reader = FrameReader(path, FrameIndex(index, path))
    assert [number_of(frame) for frame in all_of(reader)] == list(range(len(CLIP)))
    clear()
    assert number_of(reader.frame(47)) == 47


LENGTHS = b"\1\x64\0\x0a\xff"  # H.264 as MP4 stores it, with lengths of four bytes
RECOVERY = b"\6\6\1\xc4\x80"


def packet(*units: bytes, starts: bool = False) -> bytes:
    return b"".join(
        (b"\0\0\1" if starts else len(unit).to_bytes(4, "big")) + unit for unit in units
    )


@pytest.mark.parametrize("starts", [False, True])
@pytest.mark.parametrize(
    ("units", "kind"),
    [
        ([b"\x09\xf0", b"\x67abc", b"\x68de", b"\x65slice"], "closed"),
        ([RECOVERY, b"\x41slice"], "open"),
        ([b"\6\5\2ab\x80", RECOVERY, b"\x41slice"], "open"),
        ([b"\6\5\2ab\6\1\xc4\x80", b"\x41slice"], "open"),
        ([b"\6\xff\6\1\xc4\x80", b"\x41slice"], None),  # the message 261
        ([b"\6\6\1\x44\x80", b"\x41slice"], None),  # recovery takes some frames
        ([b"\6\6\1\x84\x80", b"\x41slice"], None),  # not exact
        ([b"\x41slice"], None),
        ([RECOVERY], None),
        ([b"\6\6"], None),
        ([b"\6"], None),
        ([], None),
    ],
)
def test_access_points_of_h264(units: list[bytes], kind: str | None, *, starts: bool) -> None:
    data = packet(*units, starts=starts)
    assert access_point("h264", b"" if starts else LENGTHS, data) == kind


def test_access_points_of_other_codecs() -> None:
    for kind, expected in ((1, None), (19, "closed"), (20, "closed"), (21, "closed"), (9, None)):
        data = packet(bytes([32 << 1, 1, 7]), bytes([kind << 1, 1, 7]), starts=True)
        assert access_point("hevc", b"", data) == expected
    assert access_point("hevc", b"", b"") is None
    assert access_point("vp9", b"", b"\x82") == "closed"


def test_invalid_packets_are_no_access_points() -> None:
    for data in (
        b"",
        b"\0",
        b"\0\0\0\0" * 3,
        b"\xff" * 9,
        b"\0\0\1",
        b"\0\0\0\1\6",
        b"\0\0\0\2\6\xff",
    ):
        for extradata in (b"", b"\1", LENGTHS):
            for codec in ("h264", "hevc"):
                assert access_point(codec, extradata, data) is None
