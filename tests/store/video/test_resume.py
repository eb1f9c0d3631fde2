"""Continuing a video: which packets are complete, and packets of an encoder that resumes."""

import pytest

from relive.store.video import PROFILES, Encoder, Encoding, Packet, VideoSpec
from relive.store.video.resume import Extent
from tests.store.video.clips import encoded, numbered

CLIP = numbered(25)


def packet(row: int) -> Packet:
    return Packet(b"", row, row * 10, row, key=False, decode_ns=0, dts=0)


@pytest.mark.parametrize(
    ("rows", "complete"),
    [
        ([], 0),
        ([0], 1),
        ([0, 1, 2], 3),
        ([0, 3, 1], 1),
        ([0, 3, 1, 2], 4),
        ([0, 4, 2, 1, 3, 8, 6, 5], 5),
        ([1, 2], 0),
    ],
)
@pytest.mark.parametrize("start", [0, 7])
def test_extent_has_no_packet_without_the_frames_before(
    rows: list[int], complete: int, start: int
) -> None:
    extent = Extent.of((packet(start + row) for row in rows), start)
    assert extent.rows == complete
    if complete:
        assert extent.first is not None
        assert extent.last is not None
        assert (extent.first.row, extent.last.row) == (start, start + complete - 1)


@pytest.mark.parametrize("spec", [*map(VideoSpec, PROFILES), VideoSpec(bframes=2, threads=2)])
def test_header_has_all_settings_of_the_encoder(spec: VideoSpec) -> None:
    encoding = spec.encoding()
    encoder = Encoder(encoding, CLIP.shape[1:])
    encoder.close()
    assert Encoding.from_header(encoder.header) == encoding
    again = Encoder(Encoding.from_header(encoder.header), CLIP.shape[1:])
    again.close()
    assert again.header == encoder.header


def test_resumed_encoder_continues_rows_and_times() -> None:
    times = [0, 1, 2, 50_000_000, 20_000_000_000, 20_000_000_001, *range(10**11, 10**12, 10**11)]
    for spec in (VideoSpec("fast"), VideoSpec(bframes=2)):
        frames = CLIP[: len(times)]
        _, whole = encoded(frames, spec, times)
        expected = sorted((each.row, each.ts_ns, each.pts) for each in whole)
        for split in (1, 5, 6, 9):
            _, before = encoded(frames[:split], spec, times[:split])
            last = max(before, key=lambda each: each.row)
            encoder = Encoder(spec.encoding(), frames.shape[1:])
            encoder.resume(split, times[0], last.ts_ns, last.pts)
            after: list[Packet] = []
            for frame, ts_ns in zip(frames[split:], times[split:], strict=True):
                after += encoder.encode(frame, ts_ns)
            after += encoder.finish()
            found = sorted((each.row, each.ts_ns, each.pts) for each in [*before, *after])
            assert [each[:2] for each in found] == [each[:2] for each in expected]
            for one, other in zip(found, expected, strict=True):
                assert abs(one[2] - other[2]) <= 2
            turns = [each.dts for each in after]
            assert turns == sorted(set(turns))
            assert min(turns) > max(each.dts for each in before)
