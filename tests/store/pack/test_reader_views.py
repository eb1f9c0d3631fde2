"""Iteration, batches, steps, selections and stats of packs, compared with plain Python."""

import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

import relive
from relive.errors import AlreadyExistsError, CorruptError, InvalidError, UnsupportedError
from relive.store.pack import merge
from tests.store.pack.packs import ENGINES, flip, make_run, make_runs, write_runs

COUNT = 12


@pytest.fixture
def runs() -> list[relive.Run]:
    return make_runs(COUNT)


@pytest.fixture
def path(tmp_path: Path, runs: list[relive.Run]) -> Path:
    return write_runs(tmp_path / "runs.a2pack", runs, codec="zstd")


@pytest.fixture
def reader(path: Path) -> relive.PackReader:
    return relive.PackReader.open(path)


def damage(path: Path, entry: int) -> relive.PackReader:
    """Damage one entry, and open the pack."""
    offset = relive.PackReader.open(path).files[0].native.entry(entry)[0]
    flip(path, offset + 5)
    return relive.PackReader.open(path)


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_iteration_is_in_order(reader: relive.PackReader, workers: int) -> None:
    order = [3, 11, 0, 3]
    found = list(reader.iter_indices(order, workers=workers))
    assert found == [reader[k] for k in order]
    assert list(reader) == [reader[k] for k in range(COUNT)]


def test_iteration_uses_few_threads_and_leaves_none(reader: relive.PackReader) -> None:
    before = threading.active_count()
    iterator = reader.iter_indices(range(COUNT), workers=2)
    next(iterator)
    assert threading.active_count() <= before + 1
    iterator.close()
    assert list(iterator) == []
    del iterator
    for _ in range(100):
        if threading.active_count() == before:
            break
        threading.Event().wait(0.05)
    assert threading.active_count() == before


def test_damaged_entry_raises_and_never_ends_the_iteration(path: Path) -> None:
    reader = damage(path, 6)
    with pytest.raises(CorruptError, match="entry 6"):
        list(reader)
    iterator = iter(reader)
    before = [next(iterator) for _ in range(6)]
    assert before == [reader[k] for k in range(6)]
    with pytest.raises(CorruptError, match="entry 6"):
        next(iterator)
    skipping = reader.iter_indices(range(COUNT), errors="skip")
    assert len(list(skipping)) == COUNT - 1
    assert skipping.skipped == 1
    batches = reader.iter_batches(5, errors="skip")
    assert [len(batch) for batch in batches] == [5, 4, 2]
    assert batches.skipped == 1
    with pytest.raises(CorruptError, match="entry 6"):
        list(reader.iter_batches(5))
    with pytest.raises(InvalidError, match="errors"):
        reader.iter_indices([0], errors="ignore")


def test_batches_are_one_pass_in_the_order_of_the_sampler(reader: relive.PackReader) -> None:
    drawn = relive.Sampler(COUNT, 5, "shuffle", seed=9, tail="keep").peek(3)
    batches = list(reader.iter_batches(5, shuffle=True, seed=9, workers=2))
    assert batches == [reader.decode_batch(rows) for rows in drawn]
    assert [len(batch) for batch in reader.iter_batches(5)] == [5, 5, 2]
    assert [len(batch) for batch in reader.iter_batches(5, drop_last=True)] == [5, 5]
    assert list(reader.iter_batches(5, shuffle=True)) == list(reader.iter_batches(5, shuffle=True))
    with pytest.raises(InvalidError):
        reader.iter_batches(0)


@pytest.mark.parametrize("table", [True, False])
@pytest.mark.parametrize("codec", ["raw", "zstd"])
@pytest.mark.parametrize("io", ["mmap", "pread"])
def test_steps_match_the_runs(
    tmp_path: Path, runs: list[relive.Run], *, table: bool, codec: str, io: str
) -> None:
    path = write_runs(tmp_path / "steps.a2pack", runs, codec=codec, steps=table)
    reader = relive.PackReader.open(path, io=io)
    for view in (reader, reader[[5, 0, 11, 4]], reader[::-1]):
        steps = view.steps()
        decoded = list(view)
        pairs = [(k, j) for k, run in enumerate(decoded) for j in range(len(run))]
        assert len(steps) == len(pairs)
        order = np.random.default_rng(0).permutation(len(pairs))
        batch = steps.gather(order)
        for position, number in enumerate(order.tolist()):
            k, j = pairs[number]
            run = decoded[k]
            row = {name: values[position] for name, values in batch.items()}
            assert (row["run"], row["step"], row["move"]) == (k, j, run.moves[j])
            assert (row["board"], row["next_board"]) == (run.boards[j], run.boards[j + 1])
            assert row["steps_left"] == len(run) - 1 - j
            assert row["last"] == (j == len(run) - 1)
            expected = [int(run.boards[j]) >> 60 - 4 * c & 15 for c in range(16)]
            assert row["cells"].ravel().tolist() == expected
            given = np.full(4, np.nan) if run.branches is None else run.branches[j]
            assert np.array_equal(row["branches"], given, equal_nan=True)
            if not np.isnan(given).all():
                assert row["legal"] == sum(1 << d for d in range(4) if not np.isnan(given[d]))


def test_steps_load_like_any_source(reader: relive.PackReader) -> None:
    steps = reader.steps()
    loader = relive.DataLoader(steps, batch_size=50, epochs=1, tail="keep", seed=2)
    seen = np.concatenate(
        [batch["run"].astype(np.int64) * 1000 + batch["step"] for batch in loader]
    )
    assert len(seen) == len(steps)
    assert len(set(seen.tolist())) == len(steps)
    payloads = relive.DataLoader(reader, batch_size=5, epochs=1, tail="keep")
    assert sum(len(batch["payload"]) for batch in payloads) == COUNT
    assert steps[3]["cells"].shape == (4, 4)


def test_damage_is_raised_by_the_loader(path: Path) -> None:
    reader = damage(path, 6)
    with pytest.raises(CorruptError, match="entry 6"):
        list(relive.DataLoader(reader, batch_size=4, mode="sequential", epochs=1))


def test_split_returns_disjoint_readers(reader: relive.PackReader) -> None:
    parts = reader.split((0.5, 0.25, 0.25), seed=4)
    names = [[part.name(k) for k in range(len(part))] for part in parts]
    listed = [str(name) for part in names for name in part]
    assert sorted(listed) == sorted(f"run-{k}" for k in range(COUNT))
    assert all(isinstance(part, relive.PackReader) for part in parts)
    assert parts[0].split((0.5, 0.5))[0].steps() is not None
    for by in ("engine", "highest_tile", lambda run: run.meta.engine):
        first, second = reader.split((0.5, 0.5), by=by)
        if by != "highest_tile":
            engines = [{run.meta.engine for run in part} for part in (first, second)]
            assert not engines[0] & engines[1]


def test_where_ranges_are_half_open(reader: relive.PackReader, runs: list[relive.Run]) -> None:
    def chosen(view: relive.PackReader) -> list[str | None]:
        return [view.name(k) for k in range(len(view))]

    assert chosen(reader.where(steps=(14, 28))) == ["run-2", "run-3"]
    assert chosen(reader.where(steps=(None, 14))) == ["run-0", "run-1"]
    assert chosen(reader.where(engine="greedy")) == [
        f"run-{k}" for k in range(COUNT) if ENGINES[k % 3] == "greedy"
    ]
    assert chosen(reader.where(engine=["greedy", "nobody"], steps=(20, None))) == [
        f"run-{k}" for k in range(3, COUNT) if ENGINES[k % 3] == "greedy"
    ]
    assert len(reader.where(engine="nobody")) == 0
    assert len(reader.where()) == COUNT
    tile = runs[3].meta.highest_tile
    assert "run-3" in chosen(reader.where(highest_tile=(tile, tile + 1)))
    assert chosen(reader[::-1].where(steps=(14, 28))) == ["run-3", "run-2"]
    for bad in (5, (1, 2, 3), ("a", None)):
        with pytest.raises(InvalidError, match="steps"):
            reader.where(steps=bad)  # type: ignore[arg-type]


def test_stats_match_the_runs(reader: relive.PackReader, runs: list[relive.Run]) -> None:
    stats = reader.stats
    lengths = sorted(len(run) for run in runs)
    assert (stats.count, stats.total_steps) == (COUNT, sum(lengths))
    assert (stats.min_len, stats.max_len, stats.mean_len) == (0, 77, float(np.mean(lengths)))
    assert (stats.p50_len, stats.p99_len) == (lengths[6], lengths[11])
    assert stats.kind_counts == {"v1": 2, "v2": 10}
    assert sum(stats.highest_tile_hist.values()) == COUNT
    assert set(stats.engine_counts) == {"expectimax", "greedy"}
    assert stats.payload_bytes == sum(len(reader.payload(k)) for k in range(COUNT))
    view = reader[[2, 2]].stats
    assert (view.count, view.total_steps, view.engine_counts) == (2, 28, {"greedy": 2})
    with pytest.raises(AttributeError):
        stats.count = 5
    assert "count=12" in repr(stats)


def lines_of(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_jsonl_of_runs(reader: relive.PackReader, tmp_path: Path) -> None:
    out = tmp_path / "runs.jsonl"
    assert reader.to_jsonl(out) == 0
    lines = lines_of(out)
    run = reader[3]
    assert lines[3] == {
        "run_idx": 3,
        "kind": "v2",
        "steps": 21,
        "start_unix_s": run.meta.start_unix_s,
        "elapsed_s": run.meta.elapsed_s,
        "max_score": 300,
        "highest_tile": run.meta.highest_tile,
        "engine": ENGINES[0],
        "final_board": run.final_board,
        "states": run.boards.tolist(),
        "moves": run.moves.tolist(),
    }
    assert lines[4]["kind"] == "v1"
    reader.to_jsonl(out, lists=False, boards="hex", overwrite=True)
    assert list(lines_of(out)[3]) == list(lines[3])[:-2]
    assert lines_of(out)[3]["final_board"] == f"{run.final_board:016x}"
    with pytest.raises(AlreadyExistsError):
        reader.to_jsonl(out)


def test_jsonl_of_steps(reader: relive.PackReader, tmp_path: Path) -> None:
    out = tmp_path / "steps.jsonl"
    reader[[3, 1]].to_jsonl(out, granularity="steps")
    lines = lines_of(out)
    assert [(line["run_idx"], line["step_idx"]) for line in lines] == [
        *((0, j) for j in range(21)),
        *((1, j) for j in range(7)),
    ]
    run = reader[3]
    assert lines[1]["pre_board"] == int(run.boards[1])
    assert lines[1]["chosen"] == run.moves[1]
    assert run.branches is not None
    assert lines[0]["branches"] is None
    expected = [
        None if np.isnan(value) else float(np.float64(str(value))) for value in run.branches[1]
    ]
    assert lines[1]["branches"] == expected


@pytest.mark.parametrize("granularity", ["runs", "steps"])
def test_jsonl_is_the_same_for_any_number_of_workers(
    reader: relive.PackReader, tmp_path: Path, granularity: str
) -> None:
    texts = set()
    for workers in (1, 2, 3, 7):
        out = tmp_path / f"{workers}.jsonl"
        with out.open("wb") as file:
            reader.to_jsonl(file, workers=workers, granularity=granularity)
        texts.add(out.read_bytes())
    reader.to_jsonl(tmp_path / "alone.jsonl", parallel=False, granularity=granularity)
    assert texts == {(tmp_path / "alone.jsonl").read_bytes()}


def test_jsonl_of_entries_that_are_not_runs(tmp_path: Path) -> None:
    path = tmp_path / "mixed.a2pack"
    with relive.PackWriter(path) as writer:
        writer.append(make_run(3), "v2")
        writer.append(b"no run")
    reader = relive.PackReader.open(path)
    out = tmp_path / "out.jsonl"
    with pytest.raises(UnsupportedError, match="entry 1"):
        reader.to_jsonl(out)
    assert not out.exists()
    assert sorted(tmp_path.iterdir()) == [path]
    assert reader.to_jsonl(out, errors="skip") == 1
    assert len(lines_of(out)) == 1
    for wrong in ({"granularity": "moves"}, {"boards": "octal"}, {"errors": "?"}):
        with pytest.raises(InvalidError):
            reader.to_jsonl(tmp_path / "bad.jsonl", **wrong)  # type: ignore[arg-type]


def test_non_finite_numbers_in_json_raise(tmp_path: Path) -> None:
    path = tmp_path / "inf.a2pack"
    value = np.float32(0.625)
    run = relive.Run(np.zeros(2, np.uint64), np.zeros(1, np.uint8), np.full((1, 4), value))
    payload = run.to_bytes().replace(value.tobytes(), np.float32(np.inf).tobytes())
    with relive.PackWriter(path) as writer:
        writer.append(payload, "v2")
    with pytest.raises(InvalidError, match="entry 0"):
        relive.PackReader.open(path).to_jsonl(tmp_path / "x.jsonl", granularity="steps")


def test_progress_and_its_errors_reach_the_caller(
    reader: relive.PackReader, tmp_path: Path
) -> None:
    done: list[tuple[int, int | None]] = []
    reader.to_jsonl(tmp_path / "a.jsonl", progress=lambda *given: done.append(given))
    assert done == sorted(done)
    assert done[-1] == (COUNT, COUNT)

    def stop(*_: int | None) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        reader.to_jsonl(tmp_path / "b.jsonl", progress=stop)
    assert not (tmp_path / "b.jsonl").exists()


def test_parquet(reader: relive.PackReader, tmp_path: Path) -> None:
    assert reader.to_parquet(tmp_path / "runs.parquet") == 0
    table = pq.read_table(tmp_path / "runs.parquet")
    assert table.num_rows == COUNT
    assert table["states"][3].as_py() == reader[3].boards.tolist()
    assert table["engine"].to_pylist()[:3] == list(ENGINES)
    reader.to_parquet(tmp_path / "steps.parquet", "steps")
    steps = pq.read_table(tmp_path / "steps.parquet")
    assert steps.num_rows == len(reader.steps())
    rows = reader.steps().gather(range(steps.num_rows))
    assert steps["board"].to_pylist() == list(rows["board"])


@pytest.mark.parametrize("level", ["index", "sample", "full"])
def test_validate_names_packs_without_checksums(level: Any, tmp_path: Path) -> None:
    payloads = [b"payload" * 9] * 3
    for name, checksum in (("with", True), ("without", False)):
        with relive.PackWriter(tmp_path / name, checksum=checksum) as writer:
            writer.extend(payloads)
    merge(tmp_path / "without", tmp_path / "merged")  # has one checksum of all entries
    with relive.PackWriter(tmp_path / "empty", checksum=False) as writer:
        writer.append(b"")
    for name in ("with", "merged", "empty"):
        report = relive.PackReader.open(tmp_path / name).validate(level)
        assert (report.ok, report.unchecked) == (True, ())
    both = relive.PackReader.open([tmp_path / "with", tmp_path / "without"]).validate(level)
    assert (both.ok, both.unchecked) == (True, (str(tmp_path / "without"),))
    assert both.checked["entries"] == (0 if level == "index" else 6)


@pytest.mark.parametrize("level", ["sample", "full"])
def test_validate_reports_its_progress(level: Any, tmp_path: Path) -> None:
    with relive.PackWriter(tmp_path / "a", align=1) as writer:
        writer.extend([b"payload"] * 600)
    calls: list[tuple[int, int | None]] = []
    relive.PackReader.open(tmp_path / "a").validate(level, progress=lambda *c: calls.append(c))
    total = 256 if level == "sample" else 600
    assert calls[-1] == (total, total)
    assert calls == sorted(set(calls))

    def stop(*_: object) -> None:
        raise KeyError("stop")

    with pytest.raises(KeyError, match="stop"):
        relive.PackReader.open(tmp_path / "a").validate(level, progress=stop)


def test_validate_reports_problems(path: Path) -> None:
    reader = damage(path, 6)
    assert reader.validate("index").ok
    report = reader.validate()
    assert [problem.row for problem in report.problems] == [6]
    assert (report.level, report.checked, report.ok) == ("sample", {"entries": COUNT}, False)
    problem = report.problems[0]
    assert problem.kind == "corrupt"
    assert problem.offset == reader.files[0].native.entry(6)[0]
    with pytest.raises(InvalidError, match="level"):
        reader.validate("deep")  # type: ignore[arg-type]
