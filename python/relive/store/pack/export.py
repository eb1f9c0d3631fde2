"""Writes the runs of a pack as JSON lines and as Parquet."""

import contextlib
import os
from collections.abc import Iterator
from dataclasses import asdict
from typing import IO, TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from relive._arguments import check_choice
from relive.errors import InvalidTypeError, UnsupportedError
from relive.model.report import Progress
from relive.store.atomic import whole_file
from relive.store.pack.iterate import DecodeFailure
from relive.store.runs import Run

if TYPE_CHECKING:
    import pyarrow as pa

    from relive.store.pack.reader import PackReader

Target: TypeAlias = str | os.PathLike[str] | IO[bytes]
"""A path, or a file open for writing bytes."""

_RUNS_PER_GROUP: Final = 256
_STEPS_PER_GROUP: Final = 1 << 18


def is_per_step(granularity: str) -> bool:
    """Return whether `granularity` means a line or row for each step, not for each run."""
    check_choice("granularity", granularity, ("runs", "steps"))
    return granularity == "steps"


def write_steps(reader: "PackReader", file: IO[bytes], progress: Progress | None) -> None:
    """Write a Parquet file with a row for each step."""
    import pyarrow as pa
    from pyarrow import parquet as pq

    steps = reader.steps()
    done = 0
    with contextlib.ExitStack() as stack:
        writer: pq.ParquetWriter | None = None
        while writer is None or done < len(steps):
            rows = np.arange(done, min(done + _STEPS_PER_GROUP, len(steps)))
            batch = steps.gather(rows)
            table = pa.table({name: _arrow(np.asarray(batch[name])) for name in batch})
            if writer is None:
                writer = stack.enter_context(pq.ParquetWriter(file, table.schema))
            writer.write_table(table)
            done += len(rows)
            if progress is not None:
                runs = int(batch["run"][-1]) + 1 if len(rows) else len(reader)
                progress(runs, len(reader))
    if progress is not None:
        progress(len(reader), len(reader))


def write_runs(
    reader: "PackReader", file: IO[bytes], progress: Progress | None, *, skip: bool
) -> int:
    """Write a Parquet file with a row for each run; return how many entries were left out."""
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
        for start in range(0, len(reader), _RUNS_PER_GROUP):
            positions = np.arange(start, min(start + _RUNS_PER_GROUP, len(reader)))
            lines = []
            for position, run in zip(positions.tolist(), reader.try_decode(positions), strict=True):
                kind = reader.kind(position)
                if isinstance(run, Run):
                    lines.append(_line(position, kind, run))
                elif skip:
                    skipped += 1
                elif isinstance(run, DecodeFailure):
                    raise run.error
                else:
                    raise UnsupportedError(
                        f"entry {position} has the kind {kind!r}, but only runs can be exported",
                        hint='errors="skip" leaves such entries out',
                    )
            writer.write_table(pa.Table.from_pylist(lines, schema))
            if progress is not None:
                progress(start + len(positions), len(reader))
    return skipped


def _line(position: int, kind: str, run: Run) -> dict[str, Any]:
    return {
        "run_idx": position,
        "kind": kind,
        **asdict(run.meta),
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
def opened(target: Target, *, overwrite: bool) -> Iterator[IO[bytes]]:
    """Open a path for writing, to be complete or not written at all; an open file stays open."""
    if isinstance(target, str | os.PathLike):
        with whole_file(target, overwrite=overwrite) as file:
            yield file
    elif hasattr(target, "write"):
        yield target
    else:
        raise InvalidTypeError(f"`path` must be a path or an open file, got {target!r}")
