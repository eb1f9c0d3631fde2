"""Copies apply edits and views, and do not encode video again."""

import json
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from relive.episodes import LocalDatasetWriter, VideoSpec, validate
from relive.episodes.copy import Copied, copy, merge
from relive.episodes.copy_video import plan_copy
from relive.episodes.read.local_dataset import LocalDataset
from relive.episodes.read.video_signal import VideoSignal
from relive.episodes.transforms.wrapped import named, shift
from relive.errors import (
    AlreadyExistsError,
    CorruptError,
)
from relive.model.episode import Episode, EpisodeView
from relive.model.signal import ArraySignal, Signal
from relive.store.signal.parquet_writer import ColumnsWriter
from tests.episodes.by_hand import episode_path, write_episode, write_video

pytest.importorskip("av")

FRAMES, STEP = 24, 33_000_000
TIMES = [1_000_000 + STEP * n for n in range(FRAMES)]


def pictures(seed: int = 0) -> npt.NDArray[np.uint8]:
    rng = np.random.default_rng(seed)
    base = rng.integers(0, 255, (32, 48, 3), dtype=np.uint8)
    return np.stack([np.roll(base, 2 * n, axis=1) for n in range(FRAMES)])


def record(root: Path, *, seed: int = 0, **options: Any) -> str:
    """Record an episode with every kind of signal; return its uid."""
    writer = LocalDatasetWriter(root, signals={"exact": VideoSpec(profile="lossless")}, **options)
    with writer.new_episode() as episode:
        episode.set_static("task", {"name": "pick", "key": b"\x00\xff"})
        episode.describe("state", names=["a", "b", "c"], unit="rad")
        for n, picture in enumerate(pictures(seed)):
            ts, clocks = TIMES[n], {"sensor": n * n}
            episode.append("cam", picture, ts, clocks=clocks)
            episode.append("exact", picture, ts)
            episode.append("state", np.arange(3, dtype=np.float32) + n, ts, clocks=clocks)
            episode.append("/depth", np.full((4, 6), n, dtype=np.uint16), ts + 5)
            episode.append("note.frames", f"größe {n}", ts)
            episode.append("on", n % 3 == 0, ts)
            episode.append("none", np.empty((0, 2)), ts)
        return episode.uid


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("recorded")
    record(root)
    return root


@pytest.fixture
def root(recorded: Path, tmp_path: Path) -> Path:
    """Return a separate root, which may be edited."""
    import shutil

    return Path(shutil.copytree(recorded, tmp_path / "root"))


def same(one: Signal[Any], other: Signal[Any]) -> bool:
    assert (one.kind, one.dtype, one.shape) == (other.kind, other.dtype, other.shape)
    assert dict(one.attrs) == dict(other.attrs)
    assert one.timestamps.tolist() == other.timestamps.tolist()
    assert one.clocks == other.clocks
    for clock in one.clocks:
        assert one.clock(clock).tolist() == other.clock(clock).tolist()
    return np.array_equal(one.values(), other.values())


def assert_same(one: Episode, other: Episode) -> None:
    assert one.uid == other.uid
    assert dict(one.statics) == dict(other.statics)
    assert list(one.signals) == list(other.signals)
    assert [name for name in one.signals if not same(one[name], other[name])] == []


def test_copy_has_equal_content(root: Path, tmp_path: Path) -> None:
    dataset = LocalDataset(root)
    seen: list[tuple[int, int | None]] = []
    done = copy(dataset, tmp_path / "copy", progress=lambda *at: seen.append(at))
    assert done == Copied(dataset.uids, ())
    assert seen == [(0, 1), (1, 1)]
    copied = LocalDataset(tmp_path / "copy")
    assert_same(copied[0], dataset[0])
    assert copied[0].meta == dataset[0].meta
    assert copied[0].meta["outcome"]["signals"]["cam"] == {"rows": FRAMES, "dropped": 0}
    assert copied.unfinished == []
    assert list(copied[0].path.glob(".*")) == []  # type: ignore[attr-defined]
    assert copy(dataset, tmp_path / "copy") == Copied((), dataset.uids)


def packets(signal: Signal[Any]) -> list[bytes]:
    plan = plan_copy(signal)
    assert plan is not None
    assert plan.encoded == 0
    return list(plan.record_packets())


@pytest.mark.parametrize("first", [0, 3, 9, 10, 11, 23])
@pytest.mark.parametrize("name", ["cam", "exact"])
def test_trim_within_a_group_copies_packets(
    root: Path, tmp_path: Path, name: str, first: int
) -> None:
    dataset = LocalDataset(root)
    dataset.edits.trim(dataset[0].uid, TIMES[first], TIMES[min(first + 12, FRAMES - 1)] + 1)
    dataset.refresh()
    copy(dataset, tmp_path / "copy")
    copied = LocalDataset(tmp_path / "copy")[0]
    assert_same(copied, dataset[0])
    assert packets(copied[name]) == packets(dataset[0][name])
    assert copied[name].start_ts == TIMES[first]
    assert copied[name][0][0].shape == (32, 48, 3)
    lead = 0 if name == "exact" else first % 10
    assert copied[name].frames.index.lead == lead
    assert copied.meta["outcome"]["signals"][name]["rows"] == len(copied[name])
    # Players show the video, including the frames before the first row.
    import av

    with av.open(copied[name].path) as movie:
        shown = [frame.to_ndarray(format="rgb24") for frame in movie.decode(video=0)]
    assert len(shown) == len(copied[name]) + lead


def test_copy_of_a_trimmed_copy(root: Path, tmp_path: Path) -> None:
    episode = LocalDataset(root)[0]
    copy(episode.time[TIMES[7] :], tmp_path / "a")
    part = LocalDataset(tmp_path / "a")[0]
    assert part["cam"].frames.index.lead == 7
    assert part["cam"].time[TIMES[8]][1] == TIMES[8]
    for first in (0, 1, 3, 5):
        copy(part.time[TIMES[7 + first] :], tmp_path / f"b{first}")
        again = LocalDataset(tmp_path / f"b{first}")[0]
        assert_same(again, episode.time[TIMES[7 + first] :])
        assert again["cam"].frames.index.lead == (7 + first) % 10
        assert [picture.tobytes() for picture, _ in again["cam"]] == [
            picture.tobytes() for picture, _ in episode["cam"][7 + first :]
        ]


def test_cuts_and_statics_become_episodes(root: Path, tmp_path: Path) -> None:
    dataset = LocalDataset(root)
    first, second = dataset.edits.cut(dataset[0].uid, TIMES[13])
    dataset.edits.set_static(first, "task", "lift")
    dataset.refresh()
    assert copy(root, tmp_path / "copy").copied == (first, second)
    copied = LocalDataset(tmp_path / "copy")
    for one, other in zip(copied, dataset, strict=True):
        assert_same(one, other)
    assert copied[0]["task"] == "lift"
    assert copied.edits.history(first) == []
    copy(LocalDataset(root, edits=False), tmp_path / "raw")
    assert len(LocalDataset(tmp_path / "raw")[0]["cam"]) == FRAMES


def test_views_are_copied_by_packets(root: Path, tmp_path: Path) -> None:
    episode = LocalDataset(root)[0]
    cam = episode["cam"]
    view = EpisodeView(
        {
            "renamed": named(cam, "renamed"),
            "shifted": shift(cam[4:], 10**9),
            "sensor": cam[5:].on("sensor"),
            "none": cam[3:3],
        }
    )
    uid = copy(view, tmp_path / "copy").copied[0]
    copied = LocalDataset(tmp_path / "copy").by_uid(uid)
    assert len(uid) == 32
    for name in view.signals:
        assert same(copied[name], view[name])
    assert packets(copied["renamed"]) == packets(cam)
    assert packets(copied["shifted"]) == packets(cam[4:])
    assert packets(copied["sensor"]) == packets(cam[5:])
    assert (len(copied["none"]), copied["none"].kind) == (0, "image")
    shown = copied["sensor"].frames.index.pts
    assert bool((shown[1:] > shown[:-1]).all())


def test_changed_images_are_encoded_again(root: Path, tmp_path: Path) -> None:
    episode = LocalDataset(root)[0]
    plain = ArraySignal(pictures(), TIMES, name="plain", kind="image")
    sampled = EpisodeView(
        {"cam": episode["cam"][::3], "exact": episode["exact"][[1, 2, 5, 9]], "plain": plain}
    )
    copy(sampled, tmp_path / "copy", video="lossless")
    exact = LocalDataset(tmp_path / "copy")[0]
    assert [name for name in sampled.signals if not same(exact[name], sampled[name])] == []
    uid = copy(sampled, tmp_path / "same").copied[0]
    copied = LocalDataset(tmp_path / "same").by_uid(uid)
    assert same(copied["exact"], sampled["exact"])  # as recorded
    assert copied["cam"].timestamps.tolist() == TIMES[::3]
    assert copied["cam"].frames.index.header["profile"] == "record"
    error = copied["cam"].values().astype(float) - sampled["cam"].values()
    assert float(np.sqrt((error**2).mean())) < 30  # noise is hard to compress
    # Video that was encoded again is recognized by its times in a second copy.
    named_view = EpisodeView(dict(sampled.signals), {}, {"uid": uid})
    assert copy(named_view, tmp_path / "same").skipped == (uid,)


def test_video_with_reordered_frames_is_encoded_again(tmp_path: Path) -> None:
    writer = LocalDatasetWriter(tmp_path / "root", video=VideoSpec(bframes=2, gop=8))
    with writer.new_episode() as episode:
        for picture, ts in zip(pictures(), TIMES, strict=True):
            episode.append("cam", picture, ts)
    dataset = LocalDataset(tmp_path / "root")
    copy(dataset[0].time[TIMES[3] :], tmp_path / "copy", video="lossless")
    copied = LocalDataset(tmp_path / "copy")[0]
    assert same(copied["cam"], dataset[0]["cam"][3:])


def test_foreign_signals_are_copied_in_our_format(tmp_path: Path) -> None:
    folder = write_episode(
        episode_path(tmp_path / "root", 0), {"x": [(1.5, 3), (2.5, 4)]}, {"task": "t"}
    )
    write_video(folder, "cam", pictures(), TIMES)
    dataset = LocalDataset(tmp_path / "root")
    copy(dataset, tmp_path / "copy")
    copied = LocalDataset(tmp_path / "copy")[0]
    assert_same(copied, dataset[0])
    assert copied.uid == dataset[0].uid
    assert json.loads((copied.path / "meta.json").read_text())["uid"] == copied.uid  # type: ignore[attr-defined]
    assert copied["cam"].frames.index.crcs is not None
    assert packets(copied["cam"]) == packets(dataset[0]["cam"])
    assert copied.meta["outcome"]["ended"] == "committed"
    assert validate(tmp_path / "copy", level="full").ok
    copy(dataset[0].time[TIMES[5] :], tmp_path / "part")
    part = LocalDataset(tmp_path / "part")[0]
    assert same(part["cam"], dataset[0]["cam"][5:])
    assert len(part["x"]) == 0


def test_episodes_that_differ_in_images_are_different(recorded: Path, tmp_path: Path) -> None:
    uid = LocalDataset(recorded)[0].uid
    with LocalDatasetWriter(tmp_path / "other").new_episode(uid=uid) as episode:
        episode.append("cam", pictures()[0], TIMES[0])
    with LocalDatasetWriter(tmp_path / "third").new_episode(uid=uid) as episode:
        episode.append("cam", pictures(1)[0], TIMES[0])
    with pytest.raises(AlreadyExistsError):
        merge([tmp_path / "other", tmp_path / "third"], tmp_path / "all")


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def test_damage_is_not_copied(root: Path, tmp_path: Path) -> None:
    episode = LocalDataset(root)[0]
    index = episode["cam"].frames.index
    flip(episode["cam"].path, int(index.offsets[7]) + 9)
    with pytest.raises(CorruptError, match=r"cam\.mp4`: the bytes of frame 7"):
        copy(root, tmp_path / "copy")
    assert len(LocalDataset(tmp_path / "copy")) == 0
    assert LocalDataset(tmp_path / "copy").unfinished == []
    copy(episode.time[TIMES[10] :], tmp_path / "copy")


@pytest.mark.parametrize("suffix", [".parquet", ".mp4"])
def test_written_copy_is_verified(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    if suffix == ".parquet":
        real = ColumnsWriter.close

        def lossy(writer: ColumnsWriter) -> None:
            real(writer)
            flip(writer._path, 20)

        monkeypatch.setattr(ColumnsWriter, "close", lossy)
    else:
        copying = import_module("relive.episodes.copy_video")
        finish = vars(copying)["finish_video"]

        def broken(movie: Any, *rest: Any) -> None:
            offsets = movie.frames.offsets
            finish(movie, *rest)
            flip(rest[-1][0], int(offsets[3]) + 5)

        monkeypatch.setattr(copying, "finish_video", broken)
    with pytest.raises(CorruptError):
        copy(root, tmp_path / "copy")
    assert len(LocalDataset(tmp_path / "copy")) == 0


def test_invalid_lead_raises(root: Path, tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    episode = LocalDataset(root)[0]
    table = pq.read_table(episode["cam"].index_path)
    meta = json.loads(table.schema.metadata[b"relive"])
    for lead in (-1, 25, "2", True):
        meta["video"]["lead"] = lead
        changed = table.replace_schema_metadata({b"relive": json.dumps(meta)})
        pq.write_table(changed, tmp_path / "i.frames.parquet")
        with pytest.raises(CorruptError, match="`lead` must be"):
            len(VideoSignal(episode["cam"].path, tmp_path / "i.frames.parquet"))
