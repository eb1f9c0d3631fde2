"""Whoever does the work of one library: here, or in an interpreter of its own."""

from __future__ import annotations

import heapq
import resource
import shutil
from dataclasses import dataclass, field
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from benches.episodes.latency import append_frames, append_vectors
from benches.episodes.operations import Places, Reading
from benches.episodes.questions import Questions
from benches.episodes.robot import CAMERAS, Robot
from benches.machine import versions

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from benches.peers.episode_peer import EpisodePeer, Recorder


@dataclass
class Worker:
    """Everything that can be asked of one library; answers are plain values."""

    peer: EpisodePeer
    asked: Questions
    places: Places
    reading: Reading = field(init=False)

    def __post_init__(self) -> None:
        """Nothing is open yet."""
        self.reading = Reading(self.peer, self.asked, self.places)

    def versions(self) -> dict[str, str]:
        """The versions its figures belong to, where it runs."""
        return versions(self.peer.packages)

    def record(self, seconds: float, spot: str) -> dict[str, Any]:
        """Record the first `seconds` as fast as it goes; give what that took and what it left."""
        root = self.places.folder / spot
        shutil.rmtree(root, ignore_errors=True)
        root.parent.mkdir(parents=True, exist_ok=True)
        robot = self.asked.robot
        cpu, begin = _cpu_s(), perf_counter()
        recorder = self.peer.recorder(root)
        frames = _play(recorder, robot, seconds)
        recorder.close()
        taken = {"cpu_s": _cpu_s() - cpu, "wall_s": perf_counter() - begin, "frames": frames}
        return {**taken, "bytes": self.peer.sizes(root)}

    def quality(self) -> dict[str, Any]:
        """PSNR of each camera over all its pictures, by the mean of their squared errors."""
        found: dict[str, Any] = {}
        for number, name in enumerate(CAMERAS):
            recorded = self.asked.robot.frames(number)
            camera = self.peer.camera(self.places.episode, number)
            errors, count = 0.0, 0
            for given in camera.scan(len(recorded)):
                picture = camera.picture(given)
                off = np.subtract(picture, recorded[count], dtype=np.float32).ravel()
                errors += float(np.dot(off, off)) / off.size
                count += 1
            if count != len(recorded):
                message = f"{name}: {count} pictures of {len(recorded)}"
                raise ValueError(message)
            found[name] = 10 * float(np.log10(255**2 / (errors / count))) if errors else None
        return found

    def write_vectors(self) -> None:
        """Write the long signal of vectors, unless it is there."""
        if self.places.vectors.exists():
            return
        self.places.folder.mkdir(parents=True, exist_ok=True)
        writer = self.peer.vector_writer(self.places.vectors)
        for ts_ns, row in zip(self.asked.times.tolist(), self.asked.values, strict=True):
            writer.append(row, writer.stamp(ts_ns))
        writer.close()

    def write_many(self, episodes: int) -> None:
        """Write many short episodes, unless they are there."""
        if not self.places.many.exists():
            self.peer.write_many(self.places.many, episodes)
        found = self.peer.open_many(self.places.many)
        if found != episodes:
            message = f"{found} episodes of {episodes}"
            raise ValueError(message)

    def append(self, count: int) -> list[int]:
        """Append vectors to a new signal; give the nanoseconds of each."""
        path = self.places.folder / "appended"
        _discard(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        writer = self.peer.vector_writer(path)
        spent = append_vectors(writer, self.asked, min(count, self.peer.appends or count))
        writer.close()
        _discard(path)
        return spent

    def pace(self, seconds: float) -> dict[str, list[int]]:
        """Append pictures to a new episode at their pace; give the nanoseconds of each."""
        root = self.places.folder / "paced"
        shutil.rmtree(root, ignore_errors=True)
        root.parent.mkdir(parents=True, exist_ok=True)
        recorder = self.peer.recorder(root)
        spent = append_frames(recorder, self.asked.robot, seconds)
        recorder.close()
        shutil.rmtree(root, ignore_errors=True)
        return spent

    def prepare(self, operation: str) -> list[str]:
        """Check the answers to `operation`; give the ways to do it."""
        self.reading.check(operation)
        return list(self.reading.ways(operation))

    def turn(self, operation: str, way: str, number: int) -> tuple[int, float]:
        """Do one round of `operation`; give how much was done and the seconds it took."""
        return self.reading.ways(operation)[way](number)

    def close(self) -> None:
        """Let go of what is open."""
        self.reading.close()


def worker(peer: EpisodePeer, robot: Robot, rows: int, folder: Path) -> Worker:
    """A worker for `peer`, which keeps its files in `folder`."""
    return Worker(peer, Questions(robot, rows), Places(folder))


def _play(recorder: Recorder, robot: Robot, seconds: float) -> int:
    """Give the recorder everything of the first `seconds`, in the order it came; count pictures."""
    end = int(robot.state_times[0]) + round(seconds * 1e9)
    streams = [
        _stamped(-1, robot.state_times, robot.states),
        *(
            _stamped(camera, robot.frame_times(camera), robot.frames(camera))
            for camera in range(len(CAMERAS))
        ),
    ]
    frames = 0
    for ts_ns, stream, value in heapq.merge(*streams, key=lambda each: each[:2]):
        if ts_ns >= end:
            break
        if stream < 0:
            recorder.state(ts_ns, value)
        else:
            recorder.frame(stream, ts_ns, np.asarray(value))
            frames += 1
    return frames


def _stamped(stream: int, times: Any, values: Any) -> Iterator[tuple[int, int, Any]]:
    return ((ts_ns, stream, values[place]) for place, ts_ns in enumerate(times.tolist()))


def _cpu_s() -> float:
    """Processor time of this process and of the children it has waited for."""
    kinds = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return sum(sum(resource.getrusage(kind)[:2]) for kind in kinds)


def _discard(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
