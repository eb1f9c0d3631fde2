"""h5py: a dataset of rows, or one of all bytes beside one of where records begin."""

from __future__ import annotations

from itertools import cycle, pairwise
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from benches.payloads import PayloadCase, Restorer, as_is, closing
from benches.peers import Setting, Stream, module
from benches.peers.record_store import FixedCase, RecordPeer, records_of, single_frames, whole

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from benches.data import Bytes, Case, Rows
    from benches.peers.record_store import Job, RecordCase


class RecordH5py(RecordPeer):
    """`dataset[indices]` or a row at a time, whichever is faster; a scan reads slices.

    HDF5 brings no zstd and compresses no values of different length: frames are made and
    decoded by `zstandard` on two threads.
    """

    name = "h5py"
    family: ClassVar[str] = "h5py"
    packages: ClassVar[tuple[str, ...]] = ("h5py", "zstandard")
    suffix = "h5"

    def settings(self, case: Case) -> Sequence[Setting]:
        """One call per batch, or one per record where one call cannot say what is wanted."""
        if records_of(case).scan:
            return [{"by": "slice"}]
        return [{"by": "indices"}, {"by": "row"}] if _rows(case) else [{"by": "row"}]

    def bulk(self, case: RecordCase, path: Path, *, synced: bool) -> Job:
        """`create_dataset(data=…)`."""

        def write() -> None:
            with module("h5py").File(path, "w") as file:
                if isinstance(case, FixedCase) and _rows(case):
                    file.create_dataset("data", data=case.rows())
                    return
                frames = case.frames()
                bounds = np.cumsum([0, *map(len, frames)])
                raw = case.codec == "raw"
                values = case.values if raw else np.frombuffer(b"".join(frames), np.uint8)
                file.create_dataset("data", data=values)
                file.create_dataset("bounds", data=bounds)

        return whole(write, path, synced=synced)

    def each(self, case: RecordCase, path: Path) -> Job:
        """`dataset[i] = record` for each, in a dataset that has room for all, and `close()`."""
        rows, compress = case.rows(), single_frames(case)
        shape = rows.shape if isinstance(rows, np.ndarray) and _rows(case) else case.values.shape
        file = module("h5py").File(path, "w")
        data = file.create_dataset("data", shape, np.uint8)

        def write() -> None:
            if data.ndim > 1:
                for place, row in enumerate(rows):
                    data[place] = row
            else:
                _put_each(data, case.pieces, compress, file)
            file.close()

        return whole(write, path, synced=False)

    def stream(self, case: PayloadCase, setting: Setting) -> Stream:
        """Open the file."""
        file = module("h5py").File(self.place(case), "r")
        data = file["data"]
        if _rows(case):
            found = _by_indices(data, case) if setting["by"] == "indices" else _by_row(data, case)
            batches = _by_slice(data, case) if case.scan else found
            return Stream(batches, np.asarray, close=file.close)
        restore = Restorer(case)
        pieces = (restore(stored) for stored in _by_bounds(data, file["bounds"][:], case))
        return Stream(pieces, as_is, close=closing(pieces, restore, file))


def _put_each(data: Any, pieces: Sequence[bytes], compress: Any, file: Any) -> None:
    bounds = [0]
    for piece in pieces:
        frame = np.frombuffer(compress(piece), np.uint8)
        data[bounds[-1] : bounds[-1] + len(frame)] = frame
        bounds.append(bounds[-1] + len(frame))
    file.create_dataset("bounds", data=bounds)


def _rows(case: Case) -> bool:
    return isinstance(case, FixedCase) and case.codec == "raw"


def _by_indices(data: Any, case: PayloadCase) -> Iterator[Bytes]:
    """Its indices must ascend; the order that was asked for is restored."""
    for rows in cycle(case.batches):
        order = np.argsort(rows)
        found = data[rows[order]]
        back = np.empty_like(found)
        back[order] = found
        yield back


def _by_row(data: Any, case: PayloadCase) -> Iterator[Bytes]:
    out = np.empty((case.batch_size, case.record_bytes), np.uint8)
    for rows in cycle([rows.tolist() for rows in case.batches]):
        for place, row in enumerate(rows):
            data.read_direct(out, np.s_[row], np.s_[place])
        yield out


def _by_slice(data: Any, case: PayloadCase) -> Iterator[Bytes]:
    for rows in cycle(case.batches):
        yield data[int(rows[0]) : int(rows[-1]) + 1]


def _by_bounds(data: Any, bounds: Rows, case: PayloadCase) -> Iterator[list[Any]]:
    places = bounds.tolist()
    for rows in cycle([rows.tolist() for rows in case.batches]):
        if case.scan:
            begin = places[rows[0]]
            values = data[begin : places[rows[-1] + 1]]
            ends = [places[row] - begin for row in (*rows, rows[-1] + 1)]
            yield [values[start:end] for start, end in pairwise(ends)]
        else:
            yield [data[places[row] : places[row + 1]] for row in rows]
