"""`TorchBatches`: a stream of batches as a dataset of PyTorch."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from relive._arguments import as_int
from relive._extras import require
from relive.model.kinds import adapter
from relive.publish.read import rows
from relive.publish.read.stream.batch_stream import BatchStream
from relive.publish.read.stream.options import StreamOptions

if TYPE_CHECKING:
    from relive.publish.read.table import Table

_LISTS = "OSUmM"
"""The kinds of dtypes that tensors cannot have."""

torch = require("torch", extra="torch", to="read batches as tensors")


class TorchBatches(torch.utils.data.IterableDataset):  # type: ignore[misc,name-defined]
    """Batches of a published table as dicts of tensors, one epoch in each iteration.

    Iterated directly, batches are fetched and decoded ahead on threads of this process, and
    `state_dict()` is the position after the last batch. In a `torch.utils.data.DataLoader`, which
    needs `batch_size=None`, worker w of n yields the steps w, w + n, … of the rank, so that the
    loader returns them in order. Call `set_epoch` before each epoch then: workers do not know
    which one it is.

    Numbers are tensors, fixed-size lists tensors with more dimensions, other lists a dict of
    `values` and `offsets`. Text, bytes and times are lists.

    Example:
        >>> import pyarrow as pa, relive
        >>> builder = relive.DatasetBuilder("demo/numbers", root="root")
        >>> builder.add_table("main", pa.table({"x": range(10)}))
        >>> _ = builder.publish()
        >>> data = relive.dataset("demo/numbers", root="root").to_torch(4, shuffle=True)
        >>> [len(batch["x"]) for batch in data]
        [4, 4, 2]
    """

    def __init__(self, table: "Table", options: StreamOptions) -> None:
        super().__init__()
        self._table = table
        self._options = options
        self._state: dict[str, Any] | None = None
        # Workers that stay alive between epochs see the epoch in shared memory.
        self._shared_epoch = torch.zeros(1, dtype=torch.int64).share_memory_()
        self._stream: BatchStream | None = None

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Continue with the rest of the epoch, or with the next one."""
        worker = torch.utils.data.get_worker_info()
        if worker is None:
            stream = self._own_stream()
            stream.set_epoch(stream.epoch)
            return self._tensors(stream)
        stream = self._new_stream((worker.id, worker.num_workers))
        stream.set_epoch(int(self._shared_epoch))
        return self._tensors(stream)

    def __len__(self) -> int:
        """Count the steps of an epoch."""
        return self._own_stream().steps_per_epoch

    @property
    def epoch(self) -> int:
        """The epoch of the next batch, from 0."""
        return self._own_stream().epoch

    def set_epoch(self, epoch: int) -> None:
        """Go to the start of an epoch; in the epoch that the stream is in, continue."""
        self._own_stream().set_epoch(epoch)
        self._shared_epoch[0] = epoch

    def state_dict(self, batches: int | None = None) -> dict[str, Any]:
        """Return the position after the last batch, and what the order depends on.

        Args:
            batches: How many batches a DataLoader with workers has returned in this epoch, or
                since `load_state_dict`: workers do not tell what was used of what they made.
        """
        if batches is None:
            return self._own_stream().state_dict()
        stream = self._new_stream((0, 1))
        stream.set_epoch(int(self._shared_epoch))
        stream.skip(as_int("batches", batches))
        return stream.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state. Batch size, ranks and workers may have changed since."""
        stream = self._own_stream()
        stream.load_state_dict(state)
        self._state = dict(state)
        self._shared_epoch[0] = stream.epoch

    def stats(self) -> dict[str, float]:
        """Return what this process has read; see `BatchStream.stats`."""
        return self._own_stream().stats()

    def close(self) -> None:
        """Stop the threads of this process."""
        if self._stream is not None:
            self._stream.close()

    def __getstate__(self) -> dict[str, Any]:
        """Pickle everything but the stream of this process."""
        return self.__dict__ | {"_stream": None}

    def _own_stream(self) -> BatchStream:
        if self._stream is None:
            self._stream = BatchStream(self._table.selection(), self._options)
            if self._state is not None:
                self._stream.load_state_dict(self._state)
        return self._stream

    def _new_stream(self, worker: tuple[int, int]) -> BatchStream:
        stream = BatchStream(self._table.selection(), self._options, worker=worker)
        if self._state is not None:
            stream.load_state_dict(self._state)
        return stream

    def _tensors(self, stream: BatchStream) -> Iterator[dict[str, Any]]:
        to_tensors = adapter("torch")
        fields = self._table.fields
        for batch in stream:
            table = pa.Table.from_batches([batch])
            found = rows.batch_of(table, fields, (batch.num_rows,), {})
            yield {
                name: value.tolist()
                if isinstance(value, np.ndarray) and value.dtype.kind in _LISTS
                else to_tensors(value)
                for name, value in found.items()
            }
