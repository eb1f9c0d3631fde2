"""A second reader of episodes in plain Python, written from the specification only."""

import hashlib
import json
import re
import struct
from base64 import b64decode
from pathlib import Path
from typing import Any, NamedTuple

import av
import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq

from tests.golden.read_runs import crc32c

DOLLARS = re.compile(r"\$+bytes")
Array = npt.NDArray[Any]


class Signal(NamedTuple):
    """The records of one signal."""

    times: Array
    values: Array
    clocks: dict[str, Array]
    attrs: dict[str, Any]

    def window(self, start: int | None, stop: int | None) -> "Signal":
        """Return the records in `[start, stop)`, and at `start` the one that held then."""
        low, high = -(2**63) if start is None else start, 2**63 if stop is None else stop
        kept = (self.times >= low) & (self.times < high)
        before = np.flatnonzero(self.times <= low)
        if len(before) and low < high:
            kept[before[-1]] = True
        times = np.maximum(self.times[kept], low)
        clocks = {name: column[kept] for name, column in self.clocks.items()}
        return Signal(times, self.values[kept], clocks, self.attrs)


class Episode(NamedTuple):
    """One episode."""

    uid: str
    statics: dict[str, Any]
    signals: dict[str, Signal]


def decoded(stored: Any) -> Any:
    """Decode a static."""
    if isinstance(stored, list):
        return [decoded(item) for item in stored]
    if not isinstance(stored, dict):
        return stored
    if list(stored) == ["$bytes"]:
        return b64decode(stored["$bytes"])
    return {
        key[1:] if DOLLARS.fullmatch(key) and key != "$bytes" else key: decoded(item)
        for key, item in stored.items()
    }


def named(stem: str) -> str:
    """Return the name of a signal from the stem of its files."""
    for code, char in (("%2F", "/"), ("%2E", "."), ("%25", "%")):
        stem = stem.replace(code, char)
    return stem


def columns(path: Path, times: str) -> tuple[Array, dict[str, Array], dict[str, Any], Any]:
    """Return times, other clocks, metadata and the table of a Parquet file."""
    table = pq.read_table(path, page_checksum_verification=True)
    about = json.loads((table.schema.metadata or {}).get(b"relive", b"{}"))
    assert about.get("version", 1) == 1
    clocks = {name: table[f"clock.{name}"].to_numpy() for name in about.get("clocks", ())}
    return table[times].to_numpy(), clocks, about, table


def read_columns(path: Path) -> Signal:
    """Read a signal of numbers or text."""
    times, clocks, about, table = columns(path, "timestamp")
    values = np.array(
        table["value"].to_pylist(), about.get("dtype", "").replace("str", "O") or None
    )
    values = values.reshape(len(times), *about.get("shape", values.shape[1:]))
    return Signal(times, values, clocks, about.get("attrs", {}))


def read_video(movie: Path, index: Path) -> Signal:
    """Read a video signal: by packets where the index has offsets, else as players do."""
    times, clocks, about, table = columns(index, "ts_ns")
    video = about.get("video", {})
    if video:
        decoder = av.CodecContext.create(video["codec"], "r")
        decoder.extradata = b64decode(video["extradata"])
        decoder.width, decoder.height = video["width"], video["height"]
        data = movie.read_bytes()
        ranges = zip(table["offset"].to_pylist(), table["size"].to_pylist(), strict=True)
        packets = [av.Packet(data[offset : offset + size]) for offset, size in ranges]
        frames = [frame for packet in [*packets, None] for frame in decoder.decode(packet)]
    else:
        with av.open(movie) as file:
            frames = list(file.decode(video=0))
    records = slice(video.get("lead", 0), len(times) - video.get("trail", 0))
    shape = about.get("shape")
    rgb = {"src_colorspace": video.get("colorspace", "bt601").replace("bt", "ITU")}
    rgb = {} if "rgb" in rgb["src_colorspace"] else rgb
    values = np.stack([frame.to_ndarray(format="rgb24", **rgb) for frame in frames])
    values = values[records, : shape[0], : shape[1]] if shape else values
    clocks = {name: column[records] for name, column in clocks.items()}
    return Signal(times[records], values, clocks, about.get("attrs", {}))


def check_line(line: bytes, end: bytes) -> None:
    """Compare a JSON object, whose last key is `crc`, with its checksum."""
    body, _, crc = line.rpartition(b', "crc": "' if end == b'"}' else b',\n "crc": "')
    assert crc == b"%08x%b" % (crc32c(body), end)


def check_parquet(data: bytes, footer_sha256: str) -> None:
    """Compare a Parquet file with the checksums before its footer."""
    footer = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    sha256, count, crc, magic = struct.unpack("<32sII16s", data[footer - 56 : footer])
    assert magic == b"relive checksums"
    begin = footer - 56 - 8 * count
    assert crc32c(data[begin : footer - 20]) == crc
    assert hashlib.sha256(data[footer:]).digest() == sha256
    assert hashlib.sha256(data[begin:]).hexdigest() == footer_sha256
    at = 0
    for size, piece in struct.iter_unpack("<II", data[begin : footer - 56]):
        assert crc32c(data[at : at + size]) == piece
        at += size
    assert at == begin


def check_files(folder: Path) -> None:
    """Compare every file of an episode with `files.json`."""
    text = (folder / "files.json").read_bytes()
    check_line(text, b'"\n}')
    listed = json.loads(text)
    assert listed["version"] == 1
    for name, entry in listed["files"].items():
        data = (folder / name).read_bytes()
        assert (len(data), hashlib.sha256(data).hexdigest()) == (entry["size"], entry["sha256"])
        if name.endswith(".parquet"):
            check_parquet(data, entry["footer_sha256"])
    assert {path.name for path in folder.iterdir()} == {*listed["files"], "files.json"}


def read_episode(folder: Path) -> Episode:
    """Read a committed episode."""
    assert not (folder / ".unfinished").exists()
    meta = json.loads((folder / "meta.json").read_text())
    assert meta["schema_version"] == 1
    if "checksums" in meta:
        check_files(folder)
    signals = {}
    for path in folder.glob("[!.]*.parquet"):
        stem = path.name.removesuffix(".parquet")
        if stem.endswith(".frames"):
            stem = stem.removesuffix(".frames")
            signals[named(stem)] = read_video(folder / f"{stem}.mp4", path)
        else:
            signals[named(stem)] = read_columns(path)
    statics = decoded(json.loads((folder / "static.json").read_text()))
    return Episode(meta.get("uid", f"ts-{meta['created_ts_ns']}"), statics, signals)


class Segment(NamedTuple):
    """The state of an episode after edits: the window of cuts, the last trim, and more."""

    uid: str
    cuts: tuple[int | None, int | None] = (None, None)
    trim: tuple[int | None, int | None] = (None, None)
    statics: dict[str, Any] = {}  # noqa: RUF012 - never changed
    dropped: bool = False


def edited(segment: Segment, line: dict[str, Any]) -> list[Segment]:
    """Apply one edit to a segment."""
    match line["op"]:
        case "set_static":
            return [segment._replace(statics={**segment.statics, line["name"]: line["value"]})]
        case "drop" | "undrop":
            return [segment._replace(dropped=line["op"] == "drop")]
        case "trim":
            return [segment._replace(trim=(line["start"], line["stop"]))]
    assert line["op"] == "cut"
    (low, high), ts, uid = segment.cuts, line["ts"], segment.uid
    return [
        segment._replace(uid=f"{uid}#0", cuts=(low, ts if high is None else min(ts, high))),
        segment._replace(uid=f"{uid}#1", cuts=(ts if low is None else max(ts, low), high)),
    ]


def read_root(root: Path) -> list[Episode]:
    """Read all episodes of a dataset, with edits applied."""
    *lines, last = (root / "edits.jsonl").read_text().split("\n")
    edits = [decoded(json.loads(line)) for line in lines]
    for line, edit in zip(lines, edits, strict=True):
        if "checked" in edit:
            check_line(line.encode(), b'"}')
    assert not last.endswith("}")
    found = []
    for folder in sorted(root.glob("[0-9]*/[0-9]*"), key=lambda path: path.name):
        episode = read_episode(folder)
        segments = [Segment(episode.uid)]
        for line in edits:
            segments = [
                made
                for segment in segments
                for made in (edited(segment, line) if segment.uid == line["uid"] else [segment])
            ]
        for segment in segments:
            starts, stops = zip(segment.cuts, segment.trim, strict=True)
            start = max((each for each in starts if each is not None), default=None)
            stop = min((each for each in stops if each is not None), default=None)
            signals = {name: signal.window(start, stop) for name, signal in episode.signals.items()}
            if not segment.dropped:
                found.append(Episode(segment.uid, {**episode.statics, **segment.statics}, signals))
    return found
