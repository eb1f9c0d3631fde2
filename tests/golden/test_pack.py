"""Golden packs stay readable, by relive and by a reader that shares no code with it."""

from pathlib import Path

import pytest

import relive
from relive.errors import CorruptError
from relive.store.pack import register_kind, validate
from tests.golden.pack.assemble import FILES, write_every_section
from tests.golden.read_pack import read_pack
from tests.golden.read_runs import read

FOLDER = Path(__file__).resolve().parent / "pack"
NAMES = sorted(path.stem for path in FOLDER.glob("*.a2pack"))
KINDS = {0: "bytes", 1: "v1", 2: "v2", 256: "text"}

register_kind("text", str.encode, lambda data: bytes(data).decode())


def path_of(name: str) -> Path:
    return FOLDER / f"{name}.a2pack"


def test_files_equal_the_output_of_the_script() -> None:
    assert {name: path_of(name).read_bytes() for name in FILES} == FILES
    assert set(NAMES) == {*FILES, "every-section"}


@pytest.mark.parametrize("io", ["mmap", "pread"])
@pytest.mark.parametrize("name", NAMES)
def test_both_readers_agree(name: str, io: str) -> None:
    other = read_pack(path_of(name))
    with relive.PackReader.open(path_of(name), io=io) as reader:
        assert len(reader) == len(other.entries)
        for number, entry in enumerate(other.entries):
            assert reader.kind(number) == KINDS[entry.kind]
            if entry.payload is not None:  # the second reader does not support dictionaries
                assert bytes(reader.payload(number)) == entry.payload
                if entry.kind in {1, 2}:
                    run = reader.decode(number)
                    assert run.boards.tolist() == read(entry.payload)["boards"]
        if other.stats:
            stats = reader.stats
            lengths = [stats.total_steps, stats.min_len, stats.max_len, stats.mean_len]
            lengths += [stats.p50_len, stats.p90_len, stats.p99_len]
            assert lengths == list(other.stats[1:])
        assert reader.validate("full").ok


def test_stats_are_computed_on_demand_without_a_stats_section() -> None:
    stats = relive.PackReader.open(path_of("original")).stats
    again = relive.PackReader.open(path_of("original-bare")).stats
    assert stats.highest_tile_hist == again.highest_tile_hist
    assert stats.engine_counts == again.engine_counts
    assert (stats.count, stats.total_steps) == (again.count, again.total_steps)


def test_current_writer_matches_the_second_reader(tmp_path: Path) -> None:
    write_every_section(tmp_path / "new.a2pack")
    then, now = read_pack(path_of("every-section")), read_pack(tmp_path / "new.a2pack")
    assert [entry.payload for entry in now.entries] == [entry.payload for entry in then.entries]
    assert now.stats == then.stats
    assert list(now.sections) == [
        *("STEP", "CKPT", "RUNS", "TEXT", "NAME", "KIND", "DICT", "STAT", "DIRS")
    ]
    same = ("STEP", "CKPT", "RUNS", "TEXT", "NAME", "KIND", "STAT")
    assert all(now.sections[tag] == then.sections[tag] for tag in same)


@pytest.mark.parametrize("name", ["original", "every-section"])
def test_every_truncation_raises_on_open(name: str, tmp_path: Path) -> None:
    data = path_of(name).read_bytes()
    cut = tmp_path / "cut.a2pack"
    for length in range(0, len(data), 7):
        cut.write_bytes(data[:length])
        with pytest.raises(CorruptError):
            relive.PackReader.open(cut)
        assert not validate(cut, "index").ok
