"""A flipped bit, a file cut short or gone: a typed error at the next gather, never wrong bytes.

`RELIVE_DAMAGE` says how many bits are flipped (`make faults`: 10,000).
"""

import multiprocessing
import os
import shutil
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import relive
from relive.errors import CorruptError, NotFoundError
from tests.faults.records.programs import script as records_script
from tests.faults.records.programs.model import CHUNK_RECORDS, Op, State, apply, fields, state_of
from tests.faults.records.programs.script import ACTS, STORE, all_states
from tests.faults.records.programs.syscalls import environment, python

pytestmark = pytest.mark.timeout(3600)

FLIPS = int(os.environ.get("RELIVE_DAMAGE", "300"))
SEED = int(os.environ.get("RELIVE_SEED", "1"))
SCRIPT = Path(records_script.__file__)
KINDS = ("lived", "fresh", "open")


class Damaged:
    """A store, and the states that it may be found in.

    Those in `older` count too where its journal is cut short: that is how it was once.
    """

    def __init__(self, path: Path, *states: State, older: tuple[State, ...] = ()) -> None:
        self.path = path
        self.states = states
        self.older = older
        self.files = sorted(each for each in path.rglob("*") if each.is_file())

    def outcome(self, *, is_older: bool = False, **options: Any) -> str:
        """Give `right`, or the kind of the error; anything else than the state is a failure."""
        try:
            with relive.RecordStore.open(self.path, **options) as store:
                found = state_of(store)
        except (CorruptError, NotFoundError) as error:
            return error.kind
        assert found in self.states or (is_older and found in self.older), "wrong bytes"
        return "right"


@pytest.fixture(scope="module")
def life(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store that has lived: tables, dictionaries, holes."""
    folder = tmp_path_factory.mktemp("life")
    for act in ACTS:
        done = subprocess.run(python(SCRIPT, act, folder), env=environment(), capture_output=True)
        assert done.stdout.endswith(b"done\n"), done
    return folder / STORE


@pytest.fixture
def damaged(life: Path, tmp_path: Path) -> Callable[[str], Damaged]:
    """Give a store of a kind, as its last writer left it."""

    def make(kind: str) -> Damaged:
        path = shutil.copytree(life, tmp_path / "before")
        last = all_states()[-1]
        if kind == "lived":
            return Damaged(path, last)
        with relive.RecordStore.open(path, "a") as store:
            if kind == "fresh":
                store.rebalance()
                store.close()
                return Damaged(path, last)
            apply(store, Op("append", keys=((601, 1),)))
            apply(store, Op("replace", (3,), ((602, 1),)))
            store.sync()
            synced = state_of(store)
            apply(store, Op("delete", (5, 6)))
            store.flush()
            # As if it had been killed now; what was not synced may be cut off.
            copy = shutil.copytree(path, tmp_path / "after")
            return Damaged(copy, synced, state_of(store), older=(last,))

    return make


@pytest.mark.parametrize("kind", KINDS)
def test_flipped_bits(
    kind: str,
    damaged: Callable[[str], Damaged],
    record_property: Callable[[str, object], None],
) -> None:
    store = damaged(kind)
    rng = np.random.default_rng((SEED, KINDS.index(kind)))
    outcomes: Counter[str] = Counter()
    for number in range(FLIPS // len(KINDS)):
        path = store.files[int(rng.integers(len(store.files)))]
        size = path.stat().st_size
        if not size or path.name == "LOCK":
            continue
        # The beginnings of files are looked at more often than their share of bytes.
        end = min(size, 64) if rng.random() < 0.2 else size
        place, bit = int(rng.integers(end)), 1 << int(rng.integers(8))
        options: dict[str, Any] = (
            {"io": "pread"} if number % 2 else {"verify": "always"} if number % 3 else {}
        )
        _flip(path, place, bit)
        try:
            outcome = store.outcome(**options)
        except Exception as error:
            error.add_note(f"{kind}: bit {bit} of byte {place} of {path.name}, {options}")
            raise
        finally:
            _flip(path, place, bit)
        assert outcome in {"right", "corrupt"}, (path, place, bit)
        needed = kind == "fresh" and _is_needed(path, place)
        assert outcome == "corrupt" or not needed, (path, place, bit)
        outcomes[outcome] += 1
    assert store.outcome() == "right"
    assert outcomes["corrupt"] > outcomes["right"] / 4
    record_property("figure", f"records: {kind}: {dict(outcomes)} of flipped bits")


def _flip(path: Path, place: int, bit: int) -> None:
    with path.open("r+b") as file:
        file.seek(place)
        byte = file.read(1)[0]
        file.seek(place)
        file.write(bytes([byte ^ bit]))


def _is_needed(path: Path, place: int) -> bool:
    """Whether every bit here counts in a store without holes."""
    if path.suffix == ".zr":
        header = path.read_bytes()[:64]
        is_dense = header[32] == 1
        return place < 64 or (is_dense and place >= 4096)
    if path.suffix == ".offset":
        return place < 64 or place >= 4096
    return path.suffix in {".crc", ".json", ".journal"}


@pytest.mark.parametrize("kind", KINDS)
def test_files_cut_short_or_gone(kind: str, damaged: Callable[[str], Damaged]) -> None:
    store = damaged(kind)
    rng = np.random.default_rng((SEED, 9))
    for path in store.files:
        if path.name == "LOCK":
            continue
        content = path.read_bytes()
        size = len(content)
        cuts = {0, size - 1, size // 2, *rng.integers(0, size, 3).tolist()} if size else {0}
        for cut in sorted(cuts):
            path.write_bytes(content[:cut])
            _expect(store, path, f"{kind}: {path.name} cut to {cut} of {size}")
            path.write_bytes(content)
        path.unlink()
        _expect(store, path, f"{kind}: {path.name} is gone")
        path.write_bytes(content)
    assert store.outcome() == "right"


def _expect(store: Damaged, path: Path, about: str) -> None:
    is_older = path.suffix == ".journal"
    try:
        for io in ("mmap", "pread"):
            assert store.outcome(io=io, is_older=is_older) in {"right", "corrupt", "not-found"}
    except Exception as error:
        error.add_note(about)
        raise


@pytest.mark.parametrize("io", ["mmap", "pread"])
def test_a_chunk_that_is_cut_under_an_open_handle(io: str, tmp_path: Path) -> None:
    # In a process of its own: what is mapped and gone would end it with a signal.
    context = multiprocessing.get_context("forkserver")
    process = context.Process(target=_cut_under, args=(tmp_path / "store", io))
    process.start()
    process.join()
    assert process.exitcode == 0


def _filled(path: Path, **options: int) -> None:
    with relive.RecordStore.create(path, fields(), **options) as store:
        for first in range(1, 200, 40):
            apply(store, Op("extend", keys=tuple((first + key, 1) for key in range(40))))


def _chunks(path: Path) -> list[Path]:
    return sorted((path / "chunk").glob("*.zr"))


def _cut_under(path: Path, io: str) -> None:
    _filled(path)
    for chunk in _chunks(path):
        content = chunk.read_bytes()
        for looked_at in (False, True):
            with relive.RecordStore.open(path, io=io) as store:
                if looked_at:
                    state_of(store)
                os.truncate(chunk, len(content) // 2)
                try:
                    state_of(store)
                except CorruptError:
                    pass
                else:
                    raise AssertionError(f"{chunk.name} was not missed")
                finally:
                    chunk.write_bytes(content)


def test_a_chunk_that_is_cut_in_mid_gather(tmp_path: Path) -> None:
    _filled(tmp_path / "store", chunk_size=CHUNK_RECORDS)
    with relive.RecordStore.open(tmp_path / "store") as store:
        wanted = state_of(store)
    rng = np.random.default_rng(SEED)
    for chunk in _chunks(tmp_path / "store"):
        path = shutil.copytree(tmp_path / "store", tmp_path / "copy")
        cut = path / "chunk" / chunk.name
        end = threading.Event()
        with relive.RecordStore.open(path, io="pread") as store:
            thread = threading.Thread(target=_truncate, args=(cut, float(rng.random()), end))
            thread.start()
            try:
                while not end.is_set():
                    assert state_of(store) == wanted
                with pytest.raises(CorruptError):
                    state_of(store)
            except CorruptError:
                pass
            finally:
                thread.join()
        shutil.rmtree(path)


def _truncate(path: Path, share: float, end: threading.Event) -> None:
    time.sleep(0.02 + share * 0.05)
    os.truncate(path, 4096 + int(share * (path.stat().st_size - 4097)))
    end.set()
