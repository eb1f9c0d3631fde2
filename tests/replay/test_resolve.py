"""References to arrays of runs: what they resolve to, in their order, each chunk decoded once."""

import os
import pickle
import random
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relive.errors import (
    ClosedError,
    CorruptError,
    InvalidError,
    InvalidTypeError,
    NotFoundError,
    OutOfRangeError,
    ReliveError,
    UnknownFieldError,
    UnknownNameError,
)
from relive.replay import (
    FrameRef,
    FrameResolver,
    ReplayConfig,
    ReplayRecorder,
    TelemetrySink,
    TelemetryStore,
    source,
)
from relive.replay.manage.runs import delete
from relive.replay.storage.connection import Database
from relive.replay.storage.layout import database_path
from tests.episodes.processes import in_process
from tests.processes import open_files
from tests.replay import toy_run

STEPS, CHUNK = 240, 8


def picture(number: int) -> npt.NDArray[np.uint8]:
    return np.full((3, 4, 3), number % 256, np.uint8)


def has_frame(number: int) -> bool:
    return number % 5 != 3


def seen(number: int) -> dict[str, Any]:
    return {"image": picture(number), "a.b/c%": (np.int16(number), np.array([number, 0.5]))}


def record(root: Path, run_id: str = "run", steps: int = STEPS) -> None:
    """Record steps; one in five has no frame, and every seventh ends an episode."""
    config = ReplayConfig(chunk_rows=CHUNK, sync_episodes=False)
    with ReplayRecorder(root, run_id, config=config, live=None) as recorder:
        for number in range(steps):
            is_last = number % 7 == 6
            recorder.step(
                seen(number),
                number,
                terminated=is_last,
                frame=picture(number) if has_frame(number) else None,
                next_observation=seen(number + 1) if is_last else None,
            )


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("root")
    record(made)
    record(made, "other", 10)
    return made


@pytest.fixture
def resolver(root: Path) -> Iterator[FrameResolver]:
    with FrameResolver(root / "replay") as opened:
        yield opened


def ref(number: int, field: str = "frames", run_id: str = "run") -> str:
    return f"h5://{run_id}/{field}/{number}"


class TestFrameRef:
    @settings(max_examples=60)
    @given(
        st.from_regex(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,20}", fullmatch=True),
        st.text(min_size=1, max_size=20).filter(lambda text: text not in {".", ".."}),
        st.integers(0, 2**63 - 1),
    )
    def test_text_is_parsed_to_the_same_reference(
        self, run_id: str, dataset: str, index: int
    ) -> None:
        made = FrameRef(run_id, dataset, index)
        try:
            text = made.to_uri()
        except InvalidError:  # half of a surrogate pair
            assert not dataset.isascii()
            return
        assert FrameRef.parse(text) == made
        assert str(made) == text
        assert text.count("/") == 4

    @pytest.mark.parametrize(
        ("dataset", "text"),
        [
            ("observations.image", "h5://r/observations.image/5"),
            ("observations.a%2Eb", "h5://r/observations.a%252Eb/5"),
            ("info.é x", "h5://r/info.%C3%A9%20x/5"),
        ],
    )
    def test_names_of_leaves_are_percent_encoded(self, dataset: str, text: str) -> None:
        assert FrameRef("r", dataset, 5).to_uri() == text
        assert FrameRef.parse(text) == FrameRef("r", dataset, 5)

    @pytest.mark.parametrize(
        "text",
        [
            "",
            "h5://run/frames",
            "h5://run/frames/",
            "h5://run/frames/-1",
            "h5://run/frames/01",
            "h5://run/frames/1.0",
            "h5://run/frames/12junk",
            "h5://run/frames/12\n",
            " h5://run/frames/12",
            "h5://run/frames/9223372036854775808",
            "h5://run/observations/image/1",
            "h5://.run/frames/1",
            "h5://../frames/1",
            "h5://a%2Fb/frames/1",
            "h5://run/fr%61mes/1",
            "pack://run/frames/1",
            "frames/1",
        ],
    )
    def test_other_text_is_not_a_reference(self, text: str) -> None:
        assert FrameRef.parse(text) is None

    def test_references_are_ordered_values(self) -> None:
        refs = [FrameRef("b", "frames", 0), FrameRef("a", "frames", 10), FrameRef("a", "frames", 9)]
        assert sorted(refs) == refs[::-1]
        assert len({*refs, FrameRef("b", "frames", 0)}) == 3
        assert pickle.loads(pickle.dumps(refs)) == refs  # noqa: S301 - our own data
        with pytest.raises(AttributeError):
            refs[0].index = 1  # type: ignore[misc]


def assert_seen(found: Any, number: int) -> None:
    assert list(found) == ["image", "a.b/c%"]
    np.testing.assert_array_equal(found["image"], picture(number), strict=True)
    count, pair = found["a.b/c%"]
    assert (count, count.dtype) == (number, np.int16)
    assert pair.tolist() == [number, 0.5]


def test_values_are_those_that_were_recorded(resolver: FrameResolver) -> None:
    for number in (0, 7, 9, 239):
        np.testing.assert_array_equal(resolver.resolve(ref(number)), picture(number), strict=True)
        assert_seen(resolver.resolve(ref(number, "observations")), number)
        assert resolver.resolve(FrameRef("run", "actions", number)) == number
        leaf = resolver.resolve(FrameRef("run", "observations.a%2Eb%2Fc%25.1", number))
        assert leaf.tolist() == [number, 0.5]
        text = FrameRef("run", "observations.image", number).to_uri()
        np.testing.assert_array_equal(resolver.resolve(text), picture(number))
    assert_seen(resolver.resolve(ref(2, "final.observations")), 21)
    assert resolver.resolve(ref(6, "terminated"))


def test_order_duplicates_and_none(resolver: FrameResolver) -> None:
    numbers = [9, None, 2, 9, 9, None, 0]
    found = resolver.resolve_batch(None if n is None else ref(n) for n in numbers)
    assert [None if f is None else int(f[0, 0, 0]) for f in found] == numbers
    assert resolver.resolve_batch([]) == []
    assert resolver.resolve(None) is None
    assert resolver.resolve(None, strict=True) is None
    found[0][:] = 77  # a result belongs to the caller alone
    assert int(found[3][0, 0, 0]) == 9


MISSING = [
    ("h5://run/frames/12junk", InvalidError),
    ("nothing", InvalidError),
    (ref(3), UnknownNameError),  # a step without a frame
    (ref(STEPS), OutOfRangeError),
    (ref(2**63 - 1), OutOfRangeError),
    (FrameRef("run", "frames", -1), OutOfRangeError),
    (ref(34, "final.observations"), OutOfRangeError),  # there are fewer ends than steps
    (ref(0, "depth"), UnknownFieldError),
    (ref(0, "observations.imag"), UnknownFieldError),
    (ref(0, "final.frames"), UnknownFieldError),
    (FrameRef("run", "", 0), UnknownFieldError),
    (ref(0, run_id="unknown"), NotFoundError),
    (FrameRef("../run", "frames", 0), InvalidError),
]


@pytest.mark.parametrize(("wrong", "error"), MISSING, ids=repr)
def test_what_does_not_exist_is_none_or_an_error(
    resolver: FrameResolver, wrong: str | FrameRef, error: type[ReliveError]
) -> None:
    assert resolver.resolve(wrong) is None
    found = resolver.resolve_batch([ref(1), wrong, ref(2)])
    assert [None if f is None else int(f[0, 0, 0]) for f in found] == [1, None, 2]
    with pytest.raises(error):
        resolver.resolve(wrong, strict=True)
    with pytest.raises(error):
        resolver.resolve_batch([ref(1), wrong], strict=True)


def test_other_types_are_refused(resolver: FrameResolver) -> None:
    for wrong in (5, b"h5://run/frames/1", ["h5://run/frames/1"]):
        with pytest.raises(InvalidTypeError):
            resolver.resolve(wrong)  # type: ignore[arg-type]


def test_ten_thousand_random_references_decode_each_chunk_once(root: Path) -> None:
    rng = random.Random(5)  # noqa: S311 - places, not secrets
    fields = ["frames", "actions", "observations", "observations.image", "valid.frames"]
    wanted: list[tuple[str, int] | None] = [
        None if rng.random() < 0.1 else (rng.choice(fields), rng.randrange(STEPS))
        for _ in range(10_000)
    ]
    refs = [None if one is None else ref(one[1], one[0]) for one in wanted]
    with FrameResolver(root / "replay") as resolver:
        found = resolver.resolve_batch(refs)
        # frames, which of them there are, actions, and the three leaves of observations
        assert resolver.decoded == 6 * STEPS // CHUNK
    assert len({text for text in refs if text}) < len(refs) - refs.count(None)  # duplicates
    for one, value in zip(wanted, found, strict=True):
        if one is None:
            assert value is None
            continue
        field, number = one
        if field == "observations":
            assert_seen(value, number)
        elif field == "actions":
            assert value == number
        elif field == "valid.frames":
            assert value == has_frame(number)
        elif field == "frames" and not has_frame(number):
            assert value is None
        else:
            assert value.shape == (3, 4, 3)
            assert (value == number % 256).all()


def test_only_the_chunks_of_the_references_are_decoded(root: Path) -> None:
    with FrameResolver(root / "replay") as resolver:
        resolver.resolve_batch([ref(n, "actions") for n in (1, 17, 2, 16, 1)])
        assert resolver.decoded == 2
        resolver.resolve(ref(100, "actions"))
        assert resolver.decoded == 3


def test_a_stack_decodes_each_chunk_of_planes_once(tmp_path: Path) -> None:
    toy_run.record(tmp_path, "stacked", episodes=4)
    rows = [27, 0, 13, 13, 5, 20, *range(28)]
    with FrameResolver(tmp_path / "replay") as resolver:
        found = resolver.resolve_batch([ref(n, "observations.image", "stacked") for n in rows])
        decoded = resolver.decoded
        for row, image in zip(rows, found, strict=True):
            first = row - row % toy_run.STEPS
            np.testing.assert_array_equal(image, toy_run.image(first, row))
        resolver.resolve(ref(0, "observations.image", "stacked"))
        assert decoded < 28
        assert resolver.decoded > decoded  # nothing is kept


def test_at_most_max_open_files_stay_open(tmp_path: Path) -> None:
    folder = tmp_path / "replay"
    for number in range(5):
        record(tmp_path, f"run{number}", 9)
    refs = [ref(n, "actions", f"run{n % 5}") for n in (0, 1, 2, 3, 4, 5, 6, 7, 8, 0)]
    with FrameResolver(folder, max_open_files=2) as resolver:
        assert [int(value) for value in resolver.resolve_batch(refs)] == [*range(9), 0]
        assert list(resolver._open) == ["run3", "run4"]
        assert open_files(folder) == 2
        resolver.resolve(refs[3])
        resolver.resolve(refs[0])
        assert list(resolver._open) == ["run3", "run0"]  # the one used least recently is closed
        before = resolver.decoded
        resolver.resolve(refs[1])
        assert resolver.decoded == before + 1
    assert open_files(folder) == 0
    with pytest.raises(ClosedError):
        resolver.resolve(refs[0])
    resolver.close()
    with pytest.raises(InvalidError, match="`max_open_files`"):
        FrameResolver(folder, max_open_files=0)


def test_the_directory_must_be_the_one_of_arrays(root: Path) -> None:
    with pytest.raises(InvalidError, match="must be named `replay`"):
        FrameResolver(root)
    nowhere = FrameResolver(root / "none" / "replay")
    assert not nowhere.has_run("run")
    assert nowhere.resolve(ref(0)) is None
    with pytest.raises(NotFoundError):
        nowhere.list_runs()


def test_runs_are_listed_and_described(root: Path, resolver: FrameResolver) -> None:
    assert resolver.list_runs() == ["other", "run"]
    assert resolver.has_run("run")
    for unknown in ("runs", "../run", ""):
        assert not resolver.has_run(unknown)
        assert resolver.get_run_info(unknown) is None
    info = resolver.get_run_info("run")
    assert info is not None
    assert (info["run_id"], info["status"]) == ("run", "finished")
    assert (info["total_steps"], info["total_episodes"]) == (STEPS, 35)
    assert info["datasets"]["frames"] == {"dtype": "|u1", "shape": (3, 4, 3)}
    assert "observations.a%2Eb%2Fc%25.0" in info["datasets"]
    assert info["uid"]


def test_runs_without_arrays_and_copied_files_are_runs(root: Path, tmp_path: Path) -> None:
    with TelemetryStore(tmp_path) as store, TelemetrySink(store) as sink:
        sink.put({"run_id": "scalars", "action": 1})
    shutil.copy(root / "replay" / "run.h5", tmp_path / "replay" / "copy.h5")
    (tmp_path / "replay" / "notes.txt").write_text("x")
    with FrameResolver(tmp_path / "replay") as resolver:
        assert resolver.list_runs() == ["copy", "scalars"]
        assert all(map(resolver.has_run, resolver.list_runs()))
        assert resolver.resolve(ref(0, "actions", "scalars")) is None
        assert resolver.resolve(ref(9, "actions", "copy")) == 9
        record(tmp_path, "gone", 3)
        assert resolver.resolve(ref(2, "actions", "gone")) == 2
        delete(tmp_path, "gone")
        assert not resolver.has_run("gone")
        assert resolver.get_run_info("gone") is None


def test_a_run_is_found_from_its_first_flush_on(tmp_path: Path) -> None:
    recorder = ReplayRecorder(tmp_path, "run", config=ReplayConfig(flush_s=3600), live=None)
    with FrameResolver(tmp_path / "replay") as resolver:
        recorder.step(action=0)
        assert resolver.list_runs() == []
        assert not resolver.has_run("run")
        assert resolver.get_run_info("run") is None
        assert resolver.resolve(ref(0, "actions")) is None
        with pytest.raises(UnknownNameError):
            resolver.resolve(ref(0, "actions"), strict=True)
        recorder.flush()
        assert resolver.has_run("run")
        assert resolver.resolve(ref(0, "actions")) == 0
        for number in range(1, 40):
            recorder.step(action=number, frame=picture(number) if number > 20 else None)
            assert resolver.resolve(ref(number, "actions")) is None
            if number % 10 == 0:
                recorder.flush()
                assert resolver.resolve(ref(number, "actions")) == number
        recorder.flush()
        assert resolver.resolve(ref(20)) is None
        np.testing.assert_array_equal(resolver.resolve(ref(21)), picture(21))  # a late field
        info = resolver.get_run_info("run")
        assert info is not None
        assert (info["status"], info["total_steps"]) == ("recording", 40)
        recorder.close()
        assert [resolver.resolve(ref(n, "actions")) for n in range(40)] == list(range(40))


def test_what_was_recorded_since_a_run_was_compared_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source, "_CLOCK_NS", 0)
    with (
        ReplayRecorder(tmp_path, "run", live=None) as recorder,
        FrameResolver(tmp_path / "replay") as resolver,
    ):
        for number in range(3):
            recorder.step(action=number)
            recorder.flush()
            assert resolver.resolve(ref(0, "actions")) == 0
            assert resolver.resolve(ref(number, "actions")) == number


@pytest.mark.parametrize("is_continued", [True, False])
def test_steps_that_were_aborted_are_gone(
    tmp_path: Path,
    is_continued: bool,  # noqa: FBT001 - a parameter
) -> None:
    def step(recorder: ReplayRecorder, number: int) -> str:
        refs = recorder.step(frame=picture(number), action=0, reward=0.0)
        recorder.flush()
        assert refs is not None
        return str(refs.frame)

    if is_continued:
        with ReplayRecorder(tmp_path, "run", live=None) as recorder:
            step(recorder, 9)
    aborted = ReplayRecorder(tmp_path, "run", live=None)
    resolver = FrameResolver(tmp_path / "replay")
    ref = step(aborted, 1)
    assert resolver.resolve(ref)[0, 0, 0] == 1
    aborted.abort()
    assert resolver.resolve(ref) is None
    with ReplayRecorder(tmp_path, "run", live=None) as recorder:
        assert step(recorder, 2) == ref
        assert resolver.resolve(ref)[0, 0, 0] == 2
    assert resolver.resolve(ref)[0, 0, 0] == 2


def test_a_file_that_was_replaced_is_read_again(tmp_path: Path) -> None:
    (tmp_path / "replay").mkdir()
    resolver = None
    for number in (1, 2):
        with ReplayRecorder(tmp_path / str(number), "run", live=None) as recorder:
            recorder.step(frame=picture(number), action=0, reward=0.0)
        shutil.copy(recorder.path, tmp_path / "replay" / "run.h5")
        resolver = resolver or FrameResolver(tmp_path / "replay")
        assert resolver.resolve("h5://run/frames/0")[0, 0, 0] == number


def test_threads_read_while_a_recorder_writes(tmp_path: Path) -> None:
    config = ReplayConfig(chunk_rows=8, flush_s=0.01)
    recorder = ReplayRecorder(tmp_path, "run", config=config, live=None)
    recorder.step(action=0, frame=picture(0))
    recorder.flush()
    is_done = threading.Event()
    errors: list[BaseException] = []
    counts = []

    def read(resolver: FrameResolver, seed: int) -> None:
        rng = random.Random(seed)  # noqa: S311 - places, not secrets
        count = 0
        try:
            while not is_done.is_set():
                last = recorder.stats.committed
                numbers = [rng.randrange(max(1, last)) for _ in range(20)]
                found = resolver.resolve_batch(ref(n) for n in numbers)
                assert [int(f[0, 0, 0]) for f in found] == [n % 256 for n in numbers]
                count += 1
        except BaseException as error:  # noqa: BLE001 - raised by the test
            errors.append(error)
        counts.append(count)

    with FrameResolver(tmp_path / "replay") as resolver:
        threads = [threading.Thread(target=read, args=(resolver, seed)) for seed in range(2)]
        for thread in threads:
            thread.start()
        for number in range(1, 400):
            recorder.step(action=number, frame=picture(number))
            if number % 50 == 0:
                recorder.flush()
        recorder.close()
        is_done.set()
        for thread in threads:
            thread.join()
    assert errors == []
    assert min(counts) > 0


def damage(path: Path, offset: int) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0] ^ 1
        file.seek(offset)
        file.write(bytes([byte]))


def chunk_of(root: Path, field: str, number: int) -> int:
    """Return where a chunk is in the file."""
    with Database.open(database_path(root)) as database:
        rows = database.rows(
            'SELECT "offset" FROM chunks WHERE run_id = ? AND field = ? AND first_row = ?',
            ("run", field, number),
        )
    return int(rows[0][0])


@pytest.mark.parametrize("strict", [False, True])
def test_damage_always_raises(tmp_path: Path, strict: bool) -> None:  # noqa: FBT001 - a parameter
    record(tmp_path, steps=40)
    path = tmp_path / "replay" / "run.h5"
    damage(path, chunk_of(tmp_path, "frames", 16) + 5)
    with FrameResolver(tmp_path / "replay") as resolver:
        assert resolver.resolve(ref(15), strict=strict) is not None
        for refs in ([ref(16)], [ref(0), None, ref(17)], [ref(4, "actions"), ref(22)]):
            with pytest.raises(CorruptError):
                resolver.resolve_batch(refs, strict=strict)
        assert_seen(resolver.resolve(ref(16, "observations"), strict=strict), 16)
        os.truncate(path, chunk_of(tmp_path, "actions", 32) + 1)
        with pytest.raises(ReliveError):
            resolver.resolve(ref(33, "actions"), strict=strict)
    damage(database_path(tmp_path), 100)
    with FrameResolver(tmp_path / "replay") as resolver, pytest.raises(CorruptError):
        resolver.resolve(ref(0), strict=strict)


def _resolved(resolver: FrameResolver) -> list[int]:
    return [int(value) for value in resolver.resolve_batch(ref(n, "actions") for n in (5, 1, 5))]


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_resolvers_are_used_in_other_processes(resolver: FrameResolver, method: str) -> None:
    assert _resolved(resolver) == [5, 1, 5]
    assert len(pickle.dumps(resolver)) < 1000
    assert in_process(method, _resolved, resolver) == [5, 1, 5]
