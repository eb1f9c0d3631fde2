"""The table: rows such as a training set has, and Parquet files as pyarrow writes them."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from benches.peers import module

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

ROWS = 425_000
"""Rows at scale 1: about 300 MB of Parquet."""
FILES = 30
"""Files of about 10 MB; with pyarrow's defaults each has one row group."""
EMBEDDING = 16
PAYLOAD_BYTES = (400, 640)
TEXT_WORDS = (16, 48)
VOCABULARY = 20_000
COLUMNS = ("id", "label", "score", "text", "payload", "embedding")
TWO_COLUMNS = ("id", "score")
FILTERED = 0.01
"""The share of all rows, in one place, that the filter selects."""


class Sums(NamedTuple):
    """What is compared of rows that were read: sums that do not depend on their order."""

    rows: int
    ids: int
    labels: int
    scores: float
    text_bytes: int
    payload_bytes: int
    embeddings: float


@dataclass(frozen=True)
class Table:
    """The rows, by a seed; the files are written once and reused."""

    folder: Path
    rows: int

    @classmethod
    def scaled(cls, data: Path, scale: float) -> Table:
        """The table of `ROWS * scale` rows, below the folder `data`."""
        rows = max(FILES * 1_100, round(ROWS * scale))
        return cls(data / f"publish-table-{rows}", rows)

    @cached_property
    def files(self) -> list[Path]:
        """Parquet files with the rows in order, written with pyarrow's defaults."""
        if not self.folder.exists():
            parquet = module("pyarrow.parquet")
            partial = self.folder.with_suffix(".partial")
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True)
            for number, part in enumerate(self.parts()):
                parquet.write_table(part, partial / f"part-{number:02d}.parquet")
            partial.rename(self.folder)
        return sorted(self.folder.glob("*.parquet"))

    def parts(self) -> Iterator[Any]:
        """The rows of each file as an Arrow table."""
        edges = np.linspace(0, self.rows, FILES + 1).astype(int)
        for begin, end in pairwise(edges):
            yield rows_between(int(begin), int(end))

    @property
    def nbytes(self) -> int:
        """Bytes of all files."""
        return sum(path.stat().st_size for path in self.files)

    @property
    def between(self) -> tuple[int, int]:
        """First and end of the ids that the filter selects; not at the border of anything."""
        count = max(1, round(self.rows * FILTERED))
        first = round(self.rows * 0.37)
        return first, first + count

    def sums(
        self, columns: Sequence[str] = COLUMNS, between: tuple[int, int] | None = None
    ) -> Sums:
        """What a read of all rows, or of those with an id in `between`, adds up to."""
        parquet = module("pyarrow.parquet")
        begin, end = between or (0, self.rows)
        found = []
        first = 0
        for path in self.files:
            part = parquet.read_table(path, columns=list(columns))
            low, high = max(begin - first, 0), min(end - first, part.num_rows)
            if low < high:
                found.append(sums_of(part.slice(low, high - low)))
            first += part.num_rows
        return Sums(*(sum(each) for each in zip(*found, strict=True)))


def rows_between(begin: int, end: int) -> Any:
    """Rows `begin` to `end` as an Arrow table; each depends on the seed of its block alone."""
    pa = module("pyarrow")
    count = end - begin
    random = np.random.default_rng([16, begin])
    vocabulary = _vocabulary()
    words = random.integers(*TEXT_WORDS, count)
    picks = vocabulary[random.zipf(1.3, int(words.sum())) % VOCABULARY]
    ends = np.cumsum(words)
    texts = [" ".join(picks[last - size : last]) for last, size in zip(ends, words, strict=True)]
    sizes = random.integers(*PAYLOAD_BYTES, count)
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
    payload = pa.Array.from_buffers(
        pa.binary(),
        count,
        [None, pa.py_buffer(offsets), pa.py_buffer(random.bytes(int(offsets[-1])))],
    )
    # Halves of small integers: their sums are exact in any order.
    values = random.integers(-(1 << 20), 1 << 20, count * EMBEDDING).astype(np.float32) / 2
    embedding = pa.ListArray.from_arrays(
        pa.array(np.arange(0, count * EMBEDDING + 1, EMBEDDING, dtype=np.int32)), pa.array(values)
    )
    return pa.table(
        {
            "id": pa.array(np.arange(begin, end)),
            "label": pa.array(random.integers(0, 1_000, count).astype(np.int32)),
            "score": pa.array(random.integers(0, 1 << 32, count) / 1024.0),
            "text": pa.array(texts),
            "payload": payload,
            "embedding": embedding,
        }
    )


def sums_of(rows: Any) -> Sums:
    """The sums of an Arrow table or batch; a column that it does not have adds nothing."""
    pc = module("pyarrow.compute")
    names = rows.schema.names

    def total(name: str, of: Any = lambda column: column) -> Any:
        return (pc.sum(of(rows.column(name))).as_py() or 0) if name in names else 0

    return Sums(
        rows.num_rows,
        total("id"),
        total("label"),
        total("score"),
        total("text", pc.binary_length),
        total("payload", pc.binary_length),
        total("embedding", pc.list_flatten),
    )


def _vocabulary() -> Any:
    random = np.random.default_rng(3)
    letters = np.array(list("abcdefghijklmnopqrstuvwxyz"))
    return np.array(
        ["".join(random.choice(letters, size)) for size in random.integers(3, 10, VOCABULARY)]
    )
