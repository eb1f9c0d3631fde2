"""`Encoder`: a packet for every frame, with its time, or an error."""

import os
import threading
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from relive.errors import ClosedError, EncoderError, InvalidError, InvalidTypeError
from relive.store.video import PROFILES, Encoder, Packet, VideoSpec
from relive.store.video.encode import _same_scheduling
from tests.store.video.clips import encoded, numbered

CLIP = numbered(25)
INT64 = np.iinfo(np.int64)


@pytest.mark.parametrize("profile", PROFILES)
def test_every_frame_is_encoded_to_a_packet_at_once(profile: str) -> None:
    encoder = Encoder(VideoSpec(profile=profile).encoding(), CLIP.shape[1:])
    assert encoder.header["codec"] in ("h264", "av1", "mjpeg", "ffv1")
    for row, frame in enumerate(CLIP):
        (packet,) = encoder.encode(frame, row * 1_000_000)
        assert packet.row == row
        assert packet.data
    assert encoder.finish() == []


@pytest.mark.parametrize(
    ("spec", "gop"),
    [
        (VideoSpec(), 10),
        (VideoSpec(gop=7), 7),
        (VideoSpec(gop=1), 1),
        (VideoSpec(profile="compact"), 10),
        (VideoSpec(profile="compact", gop=4), 4),
        (VideoSpec(profile="fast"), 1),
        (VideoSpec(profile="lossless"), 1),
        (VideoSpec(codec="libx265"), 10),
        (VideoSpec(codec="libvpx-vp9", gop=6), 6),
    ],
)
def test_key_frames_follow_the_gop(spec: VideoSpec, gop: int) -> None:
    cuts = CLIP.copy()
    cuts[12:] = 255 - cuts[12:]  # a new scene does not force a key frame
    _, packets = encoded(cuts, spec)
    assert [packet.row for packet in packets if packet.key] == list(range(0, len(cuts), gop))


def test_compact_marks_disposable_frames() -> None:
    _, packets = encoded(CLIP, VideoSpec(profile="compact"))
    spare = [packet.row % 10 for packet in packets if packet.disposable]
    assert len(spare) == 12
    assert all(row % 2 for row in spare)


@pytest.mark.parametrize(
    "times",
    [
        [0, 1, 2, 3],
        [INT64.min, INT64.min + 1, 0, INT64.max],
        [INT64.max - 3, INT64.max - 2, INT64.max - 1, INT64.max],
        [5, 5_000_000_000, 5_000_000_001, 90_000_000_000_000],
    ],
)
def test_pts_increase_from_zero(times: list[int]) -> None:
    _, packets = encoded(CLIP[: len(times)], VideoSpec(), times)
    assert [packet.ts_ns for packet in packets] == times
    pts = [packet.pts for packet in packets]
    assert pts == [packet.dts for packet in packets]
    assert all(later > earlier for earlier, later in pairwise(pts))
    for packet in packets:
        assert 0 <= packet.pts - (packet.ts_ns - times[0]) // 1000 <= packet.row


def test_b_frames_keep_rows_in_display_order() -> None:
    times = [1000 * row * row for row in range(25)]
    _, packets = encoded(CLIP, VideoSpec(bframes=2), times)
    assert [packet.row for packet in packets] != list(range(25))
    assert sorted(packet.row for packet in packets) == list(range(25))
    for turn, packet in enumerate(packets):
        assert packet.ts_ns == times[packet.row]
        assert packet.decode_ns == times[turn]
        assert packet.pts == packet.row**2
        assert packet.dts == turn**2


def test_b_frames_shorten_a_long_pause_for_players() -> None:
    times = [0, 10**6, 10**15, 10**15 + 10**6, 2 * 10**18, 2 * 10**18 + 10**6]
    _, packets = encoded(CLIP[:6], VideoSpec(bframes=2), times)
    shown = sorted(packets, key=lambda packet: packet.row)
    assert [packet.ts_ns for packet in shown] == times
    pauses = [later.pts - earlier.pts for earlier, later in pairwise(shown)]
    assert pauses == [1000, 1 << 24, 1000, 1 << 24, 1000]


def test_reordering_encoder_keeps_the_times_of_many_frames() -> None:
    frames = np.repeat(numbered(4, 16, 16), 100, axis=0)
    _, packets = encoded(frames, VideoSpec(bframes=3), range(0, 400_000, 1000))
    assert [packet.ts_ns for packet in packets] == [packet.row * 1000 for packet in packets]


def test_packet_survives_the_tape() -> None:
    for packet in (
        Packet(b"abc", 7, INT64.min, 12, key=True, decode_ns=INT64.max, dts=3),
        Packet(b"", 0, -1, 0, key=False, decode_ns=0, dts=0, disposable=True),
    ):
        assert Packet.unpack(packet.pack()) == packet
        assert Packet.unpack(memoryview(packet.pack())) == packet


@pytest.mark.parametrize(
    "spec",
    [
        VideoSpec(options={"nonsense": "1"}),
        VideoSpec(options={"x264-params": "nonsense=1"}),
        VideoSpec(options={"preset": "warp"}),
        VideoSpec(options={"crf": "much"}),
        VideoSpec(profile="compact", options={"svtav1-params": "nonsense=1"}),
        VideoSpec(profile="fast", options={"x264-params": "ref=1"}),
        VideoSpec(codec="libx265", options={"x265-params": "nonsense=1"}),
        VideoSpec(pix_fmt="yuv1"),
        VideoSpec(profile="lossless", pix_fmt="gbrp"),
        VideoSpec(codec="h264_of_tomorrow"),
        VideoSpec(codec="aac"),
        VideoSpec(codec="h264_cuvid"),
        VideoSpec(codec="h264_vaapi"),
    ],
    ids=lambda spec: f"{spec.codec or spec.profile} {dict(spec.options)} {spec.pix_fmt or ''}",
)
def test_unsupported_options_raise_on_open(spec: VideoSpec) -> None:
    with pytest.raises(EncoderError) as caught:
        Encoder(spec.encoding(), (48, 64, 3))
    assert spec.encoding().encoder in str(caught.value) or "yuv1" in str(caught.value)


@pytest.mark.parametrize("profile", PROFILES)
def test_frames_that_are_too_large_are_named(profile: str) -> None:
    with pytest.raises(EncoderError, match=r"frames of 70000 x [0-9]+ pixels") as caught:
        Encoder(VideoSpec(profile=profile).encoding(), (16, 70_000, 3))
    assert "size of frames" in str(caught.value.hint)
    assert "returned" not in str(caught.value)


def test_unknown_option_is_named() -> None:
    with pytest.raises(EncoderError, match="nonsense"):
        Encoder(VideoSpec(options={"x264-params": "nonsense=1"}).encoding(), (48, 64, 3))


@pytest.mark.parametrize("shape", [(48, 64), (48, 64, 4), (0, 64, 3), (48, 64, 3, 1)])
def test_frames_must_have_three_channels(shape: tuple[int, ...]) -> None:
    with pytest.raises(InvalidError, match="shape"):
        Encoder(VideoSpec().encoding(), shape)


def test_frames_must_have_one_shape_and_dtype() -> None:
    encoder = Encoder(VideoSpec().encoding(), (48, 64, 3))
    with pytest.raises(InvalidError, match="shape"):
        encoder.encode(np.zeros((48, 66, 3), np.uint8), 0)
    with pytest.raises(InvalidTypeError, match="float32"):
        encoder.encode(np.zeros((48, 64, 3), np.float32), 0)
    with pytest.raises(InvalidTypeError, match="list"):
        encoder.encode([[1]], 0)  # type: ignore[arg-type]
    assert len(encoder.encode(CLIP[0], 5)) == 1


@pytest.mark.parametrize("profile", PROFILES)
def test_closed_encoder_raises(profile: str, capfd: pytest.CaptureFixture[str]) -> None:
    encoder = Encoder(VideoSpec(profile=profile).encoding(), (48, 64, 3))
    encoder.encode(CLIP[0], 5)
    encoder.close()
    encoder.close()
    with pytest.raises(ClosedError):
        encoder.encode(CLIP[0], 6)
    with pytest.raises(ClosedError):
        encoder.finish()
    Encoder(VideoSpec(profile=profile).encoding(), (48, 64, 3)).close()
    assert capfd.readouterr() == ("", "")


def test_frame_buffer_may_be_reused() -> None:
    for spec in (VideoSpec(), VideoSpec(profile="lossless"), VideoSpec(codec="png")):
        expected = [packet.data for packet in encoded(CLIP[:4], spec)[1]]
        buffer = np.empty_like(CLIP[0])
        encoder = Encoder(spec.encoding(), buffer.shape)
        found = []
        for row in range(4):
            buffer[:] = CLIP[row]
            found += [packet.data for packet in encoder.encode(buffer, row)]
            buffer[:] = 0
        assert found == expected


@pytest.mark.parametrize("profile", PROFILES)
def test_encoder_does_not_change_thread_scheduling(profile: str) -> None:
    # As root, libsvtav1 would make its threads and the calling thread real-time.
    before = os.sched_getscheduler(0)
    encoder = Encoder(VideoSpec(profile=profile).encoding(), CLIP.shape[1:])
    encoder.encode(CLIP[0], 0)
    threads = [int(path.name) for path in Path("/proc/self/task").iterdir()]
    assert {os.sched_getscheduler(thread) for thread in [0, *threads]} == {before}
    encoder.finish()


def test_scheduling_of_a_thread_and_its_new_threads_is_restored() -> None:
    # Any user may choose SCHED_BATCH, so this also fails where the encoder may not be real-time.
    before = os.sched_getscheduler(0)
    release = threading.Event()
    waiting = threading.Thread(target=release.wait)
    with _same_scheduling():
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
        waiting.start()
        assert os.sched_getscheduler(waiting.native_id or 0) == os.SCHED_BATCH
    policies = [os.sched_getscheduler(thread) for thread in (0, waiting.native_id or 0)]
    release.set()
    waiting.join()
    assert policies == [before, before]


@pytest.mark.parametrize("bframes", ["0", "2"])
def test_encoder_that_drops_frames_raises(bframes: str) -> None:
    encoding = VideoSpec(codec="mpeg4").encoding()
    options = {**encoding.options, "skip_threshold": "1000000", "bf": bframes}
    encoder = Encoder(replace(encoding, options=options), CLIP.shape[1:])

    def encode_all() -> None:
        for row, frame in enumerate(CLIP):
            encoder.encode(frame, row)
        encoder.finish()

    with pytest.raises(EncoderError, match="`mpeg4` returned no packet for frame"):
        encode_all()
