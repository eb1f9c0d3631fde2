"""Packs as JSON lines and as Parquet, for tools that know nothing of packs."""

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from relive import _native
from relive.errors import InvalidError, InvalidTypeError, UnsupportedError
from relive.store.atomic import whole_file
from relive.store.pack.iterate import DecodeFailure, skips_errors
from relive.store.runs import Run

if TYPE_CHECKING:
    import pyarrow as pa

    from relive.store.pack.reader import PackReader

__all__ = ["Progress", "Target", "write_jsonl", "write_parquet"]

Target: TypeAlias = str | os.PathLike[str] | IO[bytes]
"""A path, or a file open for writing bytes."""
Progress: TypeAlias = Callable[[int], object]
"""Is told how many entries are done."""

_GRANULARITY: Final = ("runs", "steps")
_BOARDS: Final = ("integers", "hex")
_RUNS_AT_ONCE: Final = 256
_STEPS_AT_ONCE: Final = 1 << 18


def write_jsonl(
    reader: "PackReader",
    target: Target,
    *,
    threads: int,
    granularity: str,
    lists: bool,
    boards: str,
    errors: str,
    overwrite: bool,
    progress: Progress | None,
) -> int:
    """Write a line per run or per step; give how many bad entries were left out."""
    _one_of("granularity", granularity, _GRANULARITY)
    _one_of("boards", boards, _BOARDS)
    skip = skips_errors(errors)
    packs = [part.native for part in reader.parts]
    parts, rows = reader.places()
    with _opened(target, overwrite=overwrite) as file:
        return _native.write_jsonl(
            packs,
            parts,
            rows,
            file.write,
            steps=granularity == "steps",
            lists=lists,
            hex_boards=boards == "hex",
            skip=skip,
            threads=threads,
            progress=progress,
        )


def write_parquet(
    reader: "PackReader",
    target: Target,
    *,
    granularity: str,
    errors: str,
    overwrite: bool,
    progress: Progress | None,
) -> int:
    """Write a row per run or per step; give how many bad entries were left out."""
    _one_of("granularity", granularity, _GRANULARITY)
    skip = skips_errors(errors)
    with _opened(target, overwrite=overwrite) as file:
        if granularity == "steps":
            if skip:
                raise UnsupportedError(
                    "steps are found by their run, so none can be left out of a table of steps",
                    hint="leave bad entries out first: relive pack subset",
                )
            _write_steps(reader, file, progress)
            return 0
        return _write_runs(reader, file, progress, skip=skip)


def _write_steps(reader: "PackReader", file: IO[bytes], progress: Progress | None) -> None:
    import pyarrow as pa
    from pyarrow import parquet as pq

    steps = reader.steps()
    done = 0
    with contextlib.ExitStack() as stack:
        writer: pq.ParquetWriter | None = None
        while writer is None or done < len(steps):
            rows = np.arange(done, min(done + _STEPS_AT_ONCE, len(steps)))
            batch = steps.gather(rows)
            table = pa.table({name: _arrow(np.asarray(batch[name])) for name in batch})
            if writer is None:
                writer = stack.enter_context(pq.ParquetWriter(file, table.schema))
            writer.write_table(table)
            done += len(rows)
            if progress is not None:
                progress(int(batch["run"][-1]) + 1 if len(rows) else len(reader))
    if progress is not None:
        progress(len(reader))


def _write_runs(
    reader: "PackReader", file: IO[bytes], progress: Progress | None, *, skip: bool
) -> int:
    import pyarrow as pa
    from pyarrow import parquet as pq

    schema = pa.schema(
        {
            "run_idx": pa.uint64(),
            "kind": pa.string(),
            "steps": pa.uint32(),
            "start_unix_s": pa.uint64(),
            "elapsed_s": pa.float32(),
            "max_score": pa.uint64(),
            "highest_tile": pa.uint32(),
            "engine": pa.string(),
            "final_board": pa.uint64(),
            "states": pa.list_(pa.uint64()),
            "moves": pa.list_(pa.uint8()),
            "branches": pa.list_(pa.list_(pa.float32(), 4)),
        }
    )
    skipped = 0
    with pq.ParquetWriter(file, schema) as writer:
        for start in range(0, len(reader), _RUNS_AT_ONCE):
            positions = np.arange(start, min(start + _RUNS_AT_ONCE, len(reader)))
            lines = []
            for position, run in zip(positions.tolist(), reader.outcomes(positions), strict=True):
                trouble = (
                    run.error if isinstance(run, DecodeFailure) else _no_run(reader, position, run)
                )
                if trouble is None:
                    lines.append(_line(position, reader.kind(position), run))
                elif skip:
                    skipped += 1
                else:
                    raise trouble
            writer.write_table(pa.Table.from_pylist(lines, schema))
            if progress is not None:
                progress(start + len(positions))
    return skipped


def _no_run(reader: "PackReader", position: int, value: Any) -> UnsupportedError | None:
    if isinstance(value, Run):
        return None
    kind = reader.kind(position)
    return UnsupportedError(f"entry {position} is of the kind {kind!r}, and only runs have columns")


def _line(position: int, kind: str, run: Run) -> dict[str, Any]:
    meta = run.meta
    return {
        "run_idx": position,
        "kind": kind,
        "steps": meta.steps,
        "start_unix_s": meta.start_unix_s,
        "elapsed_s": meta.elapsed_s,
        "max_score": meta.max_score,
        "highest_tile": meta.highest_tile,
        "engine": meta.engine,
        "final_board": run.final_board,
        "states": run.boards,
        "moves": run.moves,
        "branches": None if run.branches is None else list(run.branches),
    }


def _arrow(values: np.ndarray[Any, Any]) -> "pa.Array":
    import pyarrow as pa

    if values.ndim == 1:
        return pa.array(values)
    flat = pa.array(np.ascontiguousarray(values).reshape(-1))
    return pa.FixedSizeListArray.from_arrays(flat, int(np.prod(values.shape[1:])))


@contextlib.contextmanager
def _opened(target: Target, *, overwrite: bool) -> Iterator[IO[bytes]]:
    if isinstance(target, str | os.PathLike):
        with whole_file(Path(target), overwrite=overwrite) as file:
            yield file
    elif hasattr(target, "write"):
        yield target
    else:
        raise InvalidTypeError(f"a path or an open file is needed, not {target!r}")


def _one_of(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise InvalidError(f"{name} is {' or '.join(map(repr, choices))}, not {value!r}")
