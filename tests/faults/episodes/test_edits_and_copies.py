"""Random edits and copies, compared with a list of records for each signal.

The edited view, its copy, a second copy after more edits and a copy of the edited copy have the
same records, frame by frame. `RELIVE_EPISODE_EDITS` says how many examples are tried
(`make faults`: 300).
"""

import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from relive.episodes import LocalDataset, LocalDatasetWriter, VideoSpec, copy, validate
from relive.errors import AlreadyExistsError, InvalidError
from relive.model.episode import Episode
from relive.model.signal import Signal

pytestmark = [pytest.mark.timeout(3600), pytest.mark.needs("av")]

EXAMPLES = int(os.environ.get("RELIVE_EPISODE_EDITS", "6"))
EPISODES, END = 3, 100
NEVER = 10**6
VIDEOS = {
    "cam": VideoSpec(gop=4),
    "cam.b": VideoSpec(gop=7, bframes=2),
    "cam.exact": VideoSpec(profile="lossless"),
}
Record = tuple[Any, int, int]
"""A value, its time, and its time on the clock `sensor`."""


@dataclass(frozen=True)
class Model:
    """What an edited episode holds."""

    uid: str
    recorded: dict[str, list[Record]]
    statics: dict[str, Any] = field(default_factory=dict)
    cuts: tuple[int, int] = (-NEVER, NEVER)
    trim: tuple[int | None, int | None] = (None, None)
    dropped: bool = False

    @property
    def shown(self) -> dict[str, list[Record]]:
        start, stop = self.trim
        low = self.cuts[0] if start is None else max(self.cuts[0], start)
        high = self.cuts[1] if stop is None else min(self.cuts[1], stop)
        return {name: held(records, low, high) for name, records in self.recorded.items()}

    def has_records(self, start: int, stop: int) -> bool:
        records = (record for records in self.shown.values() for record in records)
        return any(start <= ts < stop for _, ts, _ in records)


def held(records: list[Record], low: int, high: int) -> list[Record]:
    """Return the records of a window, the first of which may have begun before it."""
    before = [record for record in records if record[1] <= low] if low < high else []
    first = [(value, low, sensor) for value, _, sensor in before[-1:]]
    return first + [record for record in records if low < record[1] < high]


def edit(
    models: list[Model], dataset: LocalDataset, step: tuple[str, int, Any, Any]
) -> list[Model]:
    """Make one edit; return the models after it."""
    op, number, one, other = step
    model = models[number % len(models)]
    uid = model.uid
    made = [model]
    match op:
        case "static":
            dataset.edits.set_static(uid, "grade", one)
            made = [replace(model, statics={**model.statics, "grade": one})]
        case "drop":
            (dataset.edits.undrop if model.dropped else dataset.edits.drop)(uid)
            made = [replace(model, dropped=not model.dropped)]
        case "trim":
            whole = replace(model, trim=(None, None))
            low, high = -NEVER if one is None else one, NEVER if other is None else other
            if (one, other) == (None, None) or whole.has_records(low, high):
                dataset.edits.trim(uid, one, other)
                made = [replace(model, trim=(one, other))]
            else:
                with pytest.raises(InvalidError):
                    dataset.edits.trim(uid, one, other)
        case "cut":
            ts = 0 if one is None else one
            if model.has_records(-NEVER, ts) and model.has_records(ts, NEVER):
                dataset.edits.cut(uid, ts)
                low, high = model.cuts
                first = replace(model, uid=f"{uid}#0", cuts=(low, min(high, ts)))
                made = [first, replace(model, uid=f"{uid}#1", cuts=(max(low, ts), high))]
            else:
                with pytest.raises(InvalidError):
                    dataset.edits.cut(uid, ts)
    at = models.index(model)
    return [*models[:at], *made, *models[at + 1 :]]


def check(dataset: Any, models: list[Model], seed: int) -> None:
    """Compare all episodes with their models."""
    wanted = {model.uid: model for model in models if not model.dropped}
    assert sorted(dataset.uids) == sorted(wanted)
    for episode in dataset:
        model = wanted[episode.uid]
        assert dict(episode.statics) == model.statics
        assert set(episode.signals) == set(model.recorded)
        for name, records in model.shown.items():
            check_signal(episode[name], records, seed)
        check_samples(episode, model)


def check_signal(signal: Signal[Any], records: list[Record], seed: int) -> None:
    assert signal.timestamps.tolist() == [ts for _, ts, _ in records]
    assert signal.clock("sensor").tolist() == [sensor for *_, sensor in records]
    if not records:
        return
    assert (signal.start_ts, signal.last_ts) == (records[0][1], records[-1][1])
    rng = np.random.default_rng(seed)
    rows = rng.integers(0, len(records), 4)
    ways: list[tuple[Any, list[int]]] = [
        ([value for value, _ in signal], list(range(len(records)))),
        (signal.values(), list(range(len(records)))),
        (signal.gather(rows)["value"], rows.tolist()),
        ([signal[int(row)][0] for row in rows], rows.tolist()),
        ([signal.time[records[row][1]][0] for row in rows], rows.tolist()),
        (signal.resample([records[row][1] for row in rows]).values(), rows.tolist()),
        (signal.time[records[rows[0]][1] :].values(), list(range(rows[0], len(records)))),
    ]
    values, chosen = ways[int(rng.integers(len(ways)))]
    assert [plain(value) for value in values] == [records[row][0] for row in chosen]


def check_samples(episode: Episode, model: Model) -> None:
    """Sample all signals at the same times, from the first at which all have a value."""
    if not all(model.shown.values()):
        return
    start = episode.start_ts
    assert start == max(records[0][1] for records in model.shown.values())
    sampled = episode.time[start::7]
    lengths = {len(signal) for signal in sampled.signals.values()}
    assert lengths == {len(range(start, episode.last_ts + 1, 7))}
    for name, records in model.shown.items():
        value = sampled[name][-1][0]
        ts = sampled[name].last_ts
        assert plain(value) == [value for value, known, _ in records if known <= ts][-1]


def plain(value: Any) -> Any:
    return value.tobytes() if isinstance(value, np.ndarray) else value


class Recorded(NamedTuple):
    """A root and what it holds."""

    root: Path
    models: list[Model]

    def __repr__(self) -> str:  # a failing example does not print all records
        return f"Recorded({self.root})"


@pytest.fixture(scope="module")
def recorded() -> Iterator[Recorded]:
    """Record episodes of signals at irregular rates, and read them once, without edits."""
    with tempfile.TemporaryDirectory(prefix="relive-edits-") as folder:
        root = Path(folder, "root")
        writer = LocalDatasetWriter(root, signals=VIDEOS)
        rng = np.random.default_rng(0)
        for number in range(EPISODES):
            with writer.new_episode(uid=f"e{number}") as episode:
                episode.set_static("number", number)
                for name, values in signals(rng).items():
                    for ts, value in values.items():
                        episode.append(name, value, ts, clocks={"sensor": 1000 - ts})
        yield Recorded(root, [read(episode) for episode in LocalDataset(root)])


def signals(rng: np.random.Generator) -> dict[str, dict[int, Any]]:
    """Return values of each signal by time, at irregular rates."""

    def times(count: int, first: int = 0) -> list[int]:
        return sorted(rng.choice(np.arange(first, END), count, replace=False).tolist())

    picture = rng.integers(0, 255, (16, 24, 3), dtype=np.uint8)
    found: dict[str, dict[int, Any]] = {
        name: {ts: np.roll(picture, ts, axis=1) for ts in times(int(rng.integers(8, 25)))}
        for name in VIDEOS
    }
    found["fast"] = {ts: np.array([ts, 0.5], np.float32) for ts in times(60)}
    found["slow"] = {ts: float(ts) for ts in times(2)}
    found["late"] = {ts: ts for ts in times(3, 60)}
    found["phase"] = {ts: f"phase {ts}" for ts in times(3)}
    return found


def read(episode: Episode) -> Model:
    found = {
        name: [
            (plain(value), ts, sensor)
            for (value, ts), sensor in zip(signal, signal.clock("sensor").tolist(), strict=True)
        ]
        for name, signal in episode.signals.items()
    }
    return Model(episode.uid, found, dict(episode.statics))


def names(root: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in root.rglob("*")}


TIME = st.none() | st.integers(-5, END + 5)
STEP = st.tuples(
    st.sampled_from(["trim", "trim", "cut", "cut", "drop", "static"]), st.integers(0, 9), TIME, TIME
)
STEPS = st.lists(STEP, min_size=1, max_size=5)


@settings(
    max_examples=EXAMPLES,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(steps=st.tuples(STEPS, STEPS, STEPS), seed=st.integers(0, 1000))
def test_views_and_copies_match_lists_of_records(
    recorded: Recorded,
    steps: tuple[list[tuple[str, int, Any, Any]], ...],
    seed: int,
) -> None:
    original, models = recorded
    with tempfile.TemporaryDirectory(prefix="relive-edits-", dir=original.parent) as folder:
        root, target, third = (Path(folder, name) for name in ("root", "target", "third"))
        shutil.copytree(original, root, copy_function=os.link)
        dataset = LocalDataset(root)
        for number, some in enumerate(steps[:2]):
            before = {
                model.uid: (model.shown, model.statics) for model in models if not model.dropped
            }
            for step in some:
                models = edit(models, dataset, step)
            dataset.refresh()
            check(dataset, models, seed)
            after = {
                model.uid: (model.shown, model.statics) for model in models if not model.dropped
            }
            if number and any(after.get(uid) != there for uid, there in before.items()):
                files = names(target)
                with pytest.raises(AlreadyExistsError):
                    copy(dataset, target)
                assert names(target) == files
            done = copy(dataset, target, replace=True)
            assert done.encoded_frames == 0
            assert sorted(done.copied + done.skipped) == sorted(after)
            check(LocalDataset(target), models, seed + 1)
            assert sorted(copy(dataset, target).skipped) == sorted(after)
        assert validate(target, level="full").ok
        # The copy is edited in turn: its recorded state is what the edits left.
        copied = LocalDataset(target)
        models = [read(episode) for episode in copied]
        for step in steps[2] if models else ():
            models = edit(models, copied, step)
        copied.refresh()
        check(copied, models, seed + 2)
        copy(copied, third)
        check(LocalDataset(third), models, seed + 3)
