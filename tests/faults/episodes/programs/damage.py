"""Bits flipped in the files of an episode, and files cut short, by a process that may not survive.

What is read of a damaged episode is right, or a typed error.
"""

import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

import numpy as np

from relive import episodes as record
from relive.episodes import LocalDataset, recover, validate
from relive.errors import CorruptError, ReliveError
from tests.faults.episodes.programs.robot import frame

ROWS: Final = 40
FRAMES: Final = 12
STATICS: Final = {"task": "pick", "limits": [1, 2.5, None], "key": b"\x00\x01\x02"}
SIGNALS: Final[dict[str, Callable[[int], Any]]] = {
    "state": lambda n: np.arange(7, dtype=np.float64) * 1.5 + n,
    "force": lambda n: np.float32(n) / 3,
    "count": lambda n: n * n - 7,
    "grip": lambda n: n % 3 == 0,
    "image": lambda n: np.full((3, 5), 3 * n, np.uint8),
    "half": lambda n: np.full((2, 2), n, np.float16),
    "none": lambda _: np.empty((0, 3), np.float32),
    "depth": lambda n: np.full((48, 64), 257 * n, np.uint16),
    "note": lambda n: f"note {n % 7} \N{SNOWMAN}",
    "cam": frame,
    "top": frame,
}
SPECS: Final = {
    "cam": record.VideoSpec(profile="record", gop=4),
    "top": record.VideoSpec(profile="lossless", gop=4),
}
HANG_S: Final = 60.0


def write(folder: Path, *, finish: bool) -> None:
    """Record what is to be damaged; with its tapes, where it is not finished."""
    writer = record.DiskEpisodeWriter(folder, signals=SPECS)
    for name, static in STATICS.items():
        writer.set_static(name, static)
    writer.describe("state", unit="rad", names=[f"joint{n}" for n in range(7)])
    for number in range(ROWS):
        for name, value in SIGNALS.items():
            if name not in SPECS or number < FRAMES:
                clocks = {"sensor": number * 3} if name in {"state", "cam"} else None
                writer.append(name, value(number), _time(number), clocks)
        if number % 10 == 5:
            writer.flush()
    if finish:
        writer.close()
    else:
        writer.leave()


def _time(number: int) -> int:
    return 1_700_000_000_000_000_000 + number * 10_000_000 + number % 7


@dataclass(frozen=True)
class Damage:
    """A bit of a byte of a file, or where it was cut (`bit` is None)."""

    file: str
    byte: int
    bit: int | None

    @property
    def kind(self) -> str:
        """What kind of a file it is in."""
        if self.file.endswith(".frames.parquet"):
            return "index"
        if self.file.startswith(".unfinished"):
            return "marker"
        return self.file.rpartition(".")[2]

    def do(self, folder: Path) -> Callable[[], object]:
        """Damage it, and give what makes it whole again."""
        path = folder / self.file
        content = path.read_bytes()
        if self.bit is None:
            path.write_bytes(content[: self.byte])
        else:
            flipped = bytearray(content)
            flipped[self.byte] ^= 1 << self.bit
            path.write_bytes(flipped)
        return partial(path.write_bytes, content)


def damages(folder: Path, seed: tuple[int, ...], count: int, cuts: float) -> Iterator[Damage]:
    """Give so many damages at random; a part of them, `cuts`, are files cut short."""
    rng = random.Random(str(seed))  # noqa: S311 - places, not secrets
    files = sorted(path.name for path in folder.iterdir() if path.stat().st_size)
    for _ in range(count):
        file = rng.choice(files)
        size = (folder / file).stat().st_size
        low, high = 0, size
        # The ends of files, where Parquet says what it holds, are looked at more often.
        match rng.randrange(5):
            case 0:
                high = min(size, 64)
            case 1:
                low = max(0, size - 3000)
        bit = None if rng.random() < cuts else rng.randrange(8)
        yield Damage(file, rng.randrange(low, high), bit)


class Truth:
    """What was recorded, and what is read of it."""

    def __init__(self, folder: Path) -> None:
        self._meta = dict(record.DiskEpisode(folder).meta)
        self._values = read_all(record.DiskEpisode(folder))

    def compare(self, folder: Path) -> set[str]:
        """Give what is wrong, and the errors that were raised; nothing where all is right."""
        found: set[str] = set()
        try:
            episode = record.DiskEpisode(folder)
        except ReliveError as error:
            return {f"error {error.kind}"}
        readings: dict[str, Callable[[], Any]] = {
            "meta": lambda: dict(episode.meta),
            "statics": lambda: dict(episode.statics),
            "names": lambda: [*episode.signals],
        }
        wanted = {"meta": self._meta, "statics": STATICS, "names": sorted(SIGNALS)}
        for what, read in readings.items():
            try:
                found |= {what} if read() != wanted[what] else set()
            except ReliveError as error:
                found.add(f"error {error.kind}")
        for name in SIGNALS:
            found |= self._compare_signal(episode, name)
        return found

    def _compare_signal(self, episode: record.Episode, name: str) -> set[str]:
        if name not in episode.signals:
            return {"names"}
        found: set[str] = set()
        for what, (read, wanted) in readings_of(episode, name, self._values[name]).items():
            try:
                if (other := _other(read(), wanted)) is not None:
                    found.add(other or ("pixels" if name in SPECS and what in VALUES else what))
            except ReliveError as error:
                found.add(f"error {error.kind}")
        return found


def readings_of(
    episode: record.Episode, name: str, wanted: dict[str, Any]
) -> dict[str, tuple[Callable[[], Any], Any]]:
    """Give each way to read a signal, and what it must give."""
    signal = episode[name]
    ways: dict[str, Callable[[], Any]] = {
        "span": lambda: (len(signal), signal.start_ts, signal.last_ts),
        "attrs": lambda: (dict(signal.attrs), signal.kind, signal.shape, str(signal.dtype)),
        "times": lambda: [*map(int, signal.timestamps)],
        "clocks": lambda: {clock: signal.clock(clock).tolist() for clock in signal.clocks},
        "values": signal.values,
        "one": lambda: signal[len(signal) // 2][0],
        "at": lambda: signal.time[_time(5)][0],
    }
    return {what: (read, wanted.get(what)) for what, read in ways.items()}


def read_all(episode: record.Episode) -> dict[str, dict[str, Any]]:
    """Read everything of an episode that is whole."""
    return {
        name: {what: read() for what, (read, _) in readings_of(episode, name, {}).items()}
        for name in SIGNALS
    }


def _other(got: Any, wanted: Any) -> str | None:
    """Say what is other than it must be; an empty text where it is all of it."""
    if isinstance(wanted, np.ndarray):
        if got.dtype != wanted.dtype or got.size != wanted.size or (got.flat != wanted.flat).any():
            return ""
        return "shape" if got.shape != wanted.shape else None
    if isinstance(wanted, dict) and got.keys() != wanted.keys():
        return "clock names"
    return None if type(got) is type(wanted) and got == wanted else ""


VALUES: Final = {"values", "one", "at"}


def damage_finished(folder: Path, plan: list[Damage], said: Connection) -> None:
    """Damage a finished episode, look at it, and mend it; send what was found for each."""
    truth = Truth(folder)
    for damage in plan:
        said.send(damage)
        mend = damage.do(folder)
        try:
            wrong = truth.compare(folder)
            report = validate(folder, level="full")
        finally:
            mend()
        said.send((wrong, bool(report.problems)))
    said.send(None)


def damage_unfinished(folder: Path, plan: list[Damage], said: Connection) -> None:
    """Damage an unfinished episode in a root, and recover it; send what was found for each."""
    root = folder.parent.parent
    place = root.with_name("damaged")
    for damage in plan:
        said.send(damage)
        shutil.copytree(root, place)
        damage.do(place / folder.relative_to(root))
        said.send(_recovered(place))
        shutil.rmtree(place)
    said.send(None)


def _recovered(root: Path) -> tuple[set[str], bool]:
    """Recover a root with a damaged episode; what is wrong, and whether damage was told."""
    assert len(LocalDataset(root).unfinished) == 1
    found = recover(root)
    told = bool(found.problems)
    wrong: set[str] = set()
    for episode in LocalDataset(root):
        report = validate(root, level="full")
        # What was told to be damaged before is as it was.
        wrong |= set() if not report.problems or told else {"invalid"}
        try:
            wrong |= set() if dict(episode.statics) == STATICS else {"statics"}
        except CorruptError:
            wrong |= set() if told else {"silent"}
        for name, signal in episode.signals.items():
            try:
                wrong |= _prefix(name, signal)
            except ReliveError as error:
                wrong.add(f"error {error.kind}")
        missing = SIGNALS.keys() - episode.signals.keys()
        # A signal is missing where its tape tells of damage, or was cut before its first row.
        wrong |= {"missing"} if missing and not told else set()
    again = recover(root)
    wrong |= {"again"} if again.episodes and not told else set()
    return wrong, told


def _prefix(name: str, signal: record.Signal[Any]) -> set[str]:
    """See that a signal holds the first records that were recorded."""
    if name not in SIGNALS:
        return {"names"}
    count = len(signal)
    rows = FRAMES if name in SPECS else ROWS
    wrong: set[str] = set()
    if signal.timestamps.tolist() != [_time(number) for number in range(count)] or count > rows:
        wrong.add("times")
    for number, (got, _) in enumerate(signal):
        wanted = SIGNALS[name](number)
        if name in SPECS:
            close = np.abs(got.astype(int) - wanted).mean() < 8
            wrong |= set() if close else {"pixels"}
        elif not np.array_equal(got, wanted):
            wrong.add("values")
    return wrong | (set() if count == rows else {"shorter"})


class Campaign:
    """Damages that are done by a process, which is watched: it must not die, nor hang."""

    def __init__(self, context: Any, target: Callable[..., None], folder: Path) -> None:
        self._context = context
        self._target = target
        self._folder = folder
        self.found: list[tuple[Damage, set[str], bool]] = []

    def run(self, plan: list[Damage]) -> None:
        """Do all of them."""
        ours, theirs = self._context.Pipe(duplex=False)
        process = self._context.Process(target=self._target, args=(self._folder, plan, theirs))
        process.start()
        theirs.close()
        damage: Damage | None = None
        try:
            while ours.poll(HANG_S):
                damage = ours.recv()
                if damage is None:
                    return
                assert ours.poll(HANG_S), f"hangs at {damage}"
                wrong, told = ours.recv()
                self.found.append((damage, wrong, told))
            raise AssertionError(f"hangs after {damage}")
        except EOFError:
            process.join()
            raise AssertionError(f"ended with {process.exitcode} at {damage}") from None
        finally:
            process.kill()
            process.join()
            ours.close()

    def figures(self) -> dict[str, str]:
        """Give, for each kind of file: damages, those that were told of, those read wrongly."""
        kinds: dict[str, Counter[str]] = {}
        for damage, wrong, told in self.found:
            count = kinds.setdefault(damage.kind, Counter())
            count["all"] += 1
            count["told"] += told
            count["silent"] += not told and any(not each.startswith("error") for each in wrong)
        return {
            kind: f"{count['told']} of {count['all']} told, {count['silent']} read otherwise"
            for kind, count in sorted(kinds.items())
        }
