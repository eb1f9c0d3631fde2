"""`Movie`: players can play it at any moment, and each packet is at its recorded offset."""

import subprocess
import sys
from pathlib import Path

import av
import numpy as np
import pytest

from relive._native import crc32c
from relive.errors import (
    AlreadyExistsError,
    ClosedError,
    CorruptError,
    InvalidError,
    NotFoundError,
)
from relive.store.video import PROFILES, Movie, Packet, VideoSpec
from relive.store.video.movie import fragment_times
from tests.store.video.clips import STEP_NS, encoded, number_of, numbered, written

CLIP = numbered(24)


def test_players_see_every_frame_at_its_time(tmp_path: Path) -> None:
    for profile in PROFILES:
        path = tmp_path / f"{profile}.mp4"
        written(path, CLIP, VideoSpec(profile=profile))
        with av.open(str(path)) as file:
            stream = file.streams.video[0]
            assert stream.average_rate == pytest.approx(30, rel=1e-3)
            frames = list(file.decode(stream))
        assert [number_of(frame.to_ndarray(format="rgb24")) for frame in frames] == list(range(24))
        times = [float(frame.pts * frame.time_base) for frame in frames]
        assert times == pytest.approx([row / 30 for row in range(24)], abs=1e-4)


SECOND = 10**9
PAUSES = {
    "at the end": [*range(0, 23 * STEP_NS, STEP_NS), 60 * SECOND],
    "in the middle": [
        *range(0, 12 * STEP_NS, STEP_NS),
        *range(60 * SECOND, 60 * SECOND + 12 * STEP_NS, STEP_NS),
    ],
    "between two frames": [0, 3600 * SECOND],
    "twice": [0, 60 * SECOND, 120 * SECOND],
    "of a slow camera": [*range(0, 23 * 10**8, 10**8), 60 * SECOND],
    "never": [row * SECOND for row in range(24)],
}


@pytest.mark.parametrize("name", PAUSES)
def test_pause_does_not_lengthen_the_movie(tmp_path: Path, name: str) -> None:
    times = PAUSES[name]
    path = tmp_path / "a.mp4"
    written(path, CLIP[: len(times)], VideoSpec(), times)
    with av.open(str(path)) as file:
        stream = file.streams.video[0]
        assert file.duration is not None
        assert stream.duration is not None
        assert stream.time_base is not None
        lengths = [file.duration / 1e6, float(stream.duration * stream.time_base)]
    usual = float(np.median(np.diff(times))) / 1e9 if len(times) > 3 else 0.1
    for length in lengths:
        assert 0 < length - times[-1] / 1e9 <= 2 * usual + 1e-3


def test_players_find_a_frame_by_its_time(tmp_path: Path) -> None:
    times = [0, 1, 1000, 10**9, *range(2 * 10**9, 22 * 10**8, 10**7)]  # with gaps and bursts
    path = tmp_path / "a.mp4"
    written(path, CLIP, VideoSpec(gop=4), times)
    with av.open(str(path)) as file:
        file.seek(2_050_000, stream=file.streams.video[0])
        frame = next(file.decode(video=0))
    assert number_of(frame.to_ndarray(format="rgb24")) == 8


def test_colours_are_tagged(tmp_path: Path) -> None:
    for spec, matrix, spread in (
        (VideoSpec(), 6, 1),
        (VideoSpec(profile="compact"), 6, 1),
        (VideoSpec(matrix="bt709", full_range=True), 1, 2),
        (VideoSpec(profile="fast"), 6, 2),
        (VideoSpec(profile="lossless"), 0, 2),
    ):
        path = tmp_path / f"{spec.profile}-{matrix}.mp4"
        written(path, CLIP[:2], spec)
        with av.open(str(path)) as file:
            context = file.streams.video[0].codec_context
            assert (context.colorspace, context.color_range) == (matrix, spread)
            assert (context.color_primaries, context.color_trc) == (1, 13)


@pytest.mark.parametrize("profile", PROFILES)
def test_truncated_file_is_readable_up_to_the_cut(tmp_path: Path, profile: str) -> None:
    reader = written(tmp_path / "whole.mp4", CLIP, VideoSpec(profile=profile))
    whole = reader.path.read_bytes()
    ends = reader.index.offsets + reader.index.sizes
    cut = tmp_path / "cut.mp4"
    for end in (int(ends[0]), int(ends[11]), int(ends[11]) + 50, int(ends[12]) - 1):
        cut.write_bytes(whole[:end])
        shown = 0
        with av.open(str(cut)) as file:
            file.streams.video[0].codec_context.thread_count = 1  # several threads lose more frames
            try:
                for frame in file.decode(video=0):
                    assert number_of(frame.to_ndarray(format="rgb24")) == shown or shown == 12
                    shown += 1
            except av.error.InvalidDataError:
                pass  # raised for the truncated frame
        assert int((ends <= end).sum()) <= shown <= int((ends <= end).sum()) + 1


def test_packet_is_in_the_file_when_add_returns(tmp_path: Path) -> None:
    header, packets = encoded(CLIP, VideoSpec(profile="compact"))
    movie = Movie(tmp_path / "a.mp4", header)
    for row, packet in enumerate(packets):
        movie.add(packet)
        assert len(movie) == row + 1
        assert (tmp_path / "a.mp4").read_bytes().endswith(packet.data)
    movie.close()
    content = (tmp_path / "a.mp4").read_bytes()
    for row, packet in enumerate(packets):
        start = int(movie.frames.offsets[row])
        assert content[start : start + int(movie.frames.sizes[row])] == packet.data
        assert movie.frames.crcs is not None
        assert int(movie.frames.crcs[row]) == crc32c(packet.data)
    assert movie.frames.timestamps.tolist() == [row * STEP_NS for row in range(24)]
    assert movie.frames.keys.tolist() == [row % 10 == 0 for row in range(24)]
    assert movie.frames.disposables is not None
    assert movie.frames.disposables.tolist() == [packet.disposable for packet in packets]


def test_packets_read_from_a_tape_make_the_same_file(tmp_path: Path) -> None:
    for spec in (VideoSpec(), VideoSpec(bframes=2), VideoSpec(codec="libx265")):
        header, packets = encoded(CLIP, spec)
        files = []
        for name, some in (("a", packets), ("b", [Packet.unpack(p.pack()) for p in packets])):
            movie = Movie(tmp_path / name, header)
            for packet in some:
                movie.add(packet)
            movie.close()
            files.append((tmp_path / name).read_bytes())
            (tmp_path / name).unlink()
        assert files[0] == files[1]


def test_columns_of_b_frames_are_in_row_order(tmp_path: Path) -> None:
    header, packets = encoded(CLIP, VideoSpec(bframes=2))
    movie = Movie(tmp_path / "a.mp4", header)
    for packet in packets:
        movie.add(packet)
    movie.close()
    assert movie.frames.timestamps.tolist() == [row * STEP_NS for row in range(24)]
    assert sorted(movie.frames.offsets.tolist()) != movie.frames.offsets.tolist()
    with av.open(str(movie.path)) as file:
        shown = [number_of(frame.to_ndarray(format="rgb24")) for frame in file.decode(video=0)]
    assert shown == list(range(24))


def test_range_is_copied_without_encoding(tmp_path: Path) -> None:
    reader = written(tmp_path / "a.mp4", CLIP, VideoSpec())
    copy = Movie(tmp_path / "b.mp4", reader.index.header)
    for packet in reader.packets(range(10, 18)):
        copy.add(packet)
    copy.close()
    assert copy.frames.timestamps.tolist() == [row * STEP_NS for row in range(10, 18)]
    with av.open(str(copy.path)) as file:
        frames = list(file.decode(video=0))
    assert [number_of(frame.to_ndarray(format="rgb24")) for frame in frames] == list(range(10, 18))
    assert frames[0].pts == 0
    with pytest.raises(InvalidError, match="key frame"):
        next(reader.packets(range(11, 12)))
    content = bytearray(reader.path.read_bytes())
    content[int(reader.index.offsets[12])] ^= 1
    reader.path.write_bytes(content)
    with pytest.raises(CorruptError, match="frame 12"):
        list(reader.packets(range(10, 18)))


def test_extreme_times_fit(tmp_path: Path) -> None:
    limits = np.iinfo(np.int64)
    times = [limits.min, limits.min + 1, 0, limits.max - 1, limits.max]
    reader = written(tmp_path / "a.mp4", CLIP[:5], VideoSpec(bframes=1), times)
    assert reader.index.timestamps.tolist() == times
    with av.open(str(reader.path)) as file:
        pts = [frame.pts for frame in file.decode(video=0)]
    assert len(pts) == 5
    assert pts == sorted(set(pts))
    assert [number_of(frame) for frame in reader] == list(range(5))


def test_movie_does_not_replace_a_file(tmp_path: Path) -> None:
    header, packets = encoded(CLIP[:2], VideoSpec())
    path = tmp_path / "a.mp4"
    path.write_bytes(b"mine")
    with pytest.raises(AlreadyExistsError):
        Movie(path, header)
    with pytest.raises(NotFoundError):
        Movie(tmp_path / "nowhere" / "a.mp4", header)
    assert path.read_bytes() == b"mine"
    movie = Movie(tmp_path / "b.mp4", header)
    movie.add(packets[0])
    with pytest.raises(InvalidError, match="not after"):
        movie.add(packets[0])
    movie.abort()
    movie.abort()
    assert not movie.path.exists()
    with pytest.raises(ClosedError):
        movie.add(packets[1])


LIMITED = """
import resource, signal, sys
from pathlib import Path
from relive.errors import ClosedError, StorageError
from relive.store.video import Movie, VideoSpec
from tests.store.video.clips import encoded, numbered
header, packets = encoded(numbered(30), VideoSpec(profile="lossless"))
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
movie = Movie(Path(sys.argv[1]), header)
try:
    for packet in packets:
        movie.add(packet)
except StorageError:
    print(len(movie), int(movie.frames.offsets[-1] + movie.frames.sizes[-1]))
try:
    movie.add(packets[-1])
except ClosedError:
    print("closed")
"""


def test_full_disk_raises_and_keeps_written_packets(tmp_path: Path) -> None:
    path = tmp_path / "a.mp4"
    ended = subprocess.run(
        [sys.executable, "-c", LIMITED, str(path)], capture_output=True, text=True, cwd=Path.cwd()
    )
    assert ended.returncode == 0, ended.stderr
    first, closed = ended.stdout.splitlines()
    count, end = map(int, first.split())
    assert closed == "closed"
    assert 0 < count < 30
    assert end <= 20_000
    with av.open(str(path)) as file:
        packets = [packet for packet in file.demux(video=0) if packet.size]
    assert len([packet for packet in packets if packet.pos + packet.size <= end]) == count


def test_packets_of_an_incomplete_movie_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "a.mp4"
    written(path, CLIP, VideoSpec(profile="fast"))
    with av.open(str(path)) as file:
        packets = [packet for packet in file.demux(video=0) if packet.size]
    ends = [(packet.pos or 0) + packet.size for packet in packets]
    assert fragment_times(path) == [packet.dts for packet in packets]
    data = path.read_bytes()
    for size in (0, 5, ends[0] - 1, ends[0], ends[0] + 20, ends[10] - 1, ends[10], len(data) - 1):
        path.write_bytes(data[:size])
        assert len(fragment_times(path)) == sum(end <= size for end in ends)
    path.write_bytes(bytes(1000))
    assert fragment_times(path) == []
