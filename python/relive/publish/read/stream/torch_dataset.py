"""`TorchBatches`: a stream of batches as a dataset of PyTorch."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from relive._arguments import as_int
from relive._extras import require
from relive.errors import InvalidError
from relive.model.kinds import adapter
from relive.publish.read import rows
from relive.publish.read.stream.batch_stream import BatchStream
from relive.publish.read.stream.options import StreamOptions

if TYPE_CHECKING:
    from relive.publish.read.table import Table

_LISTS = "OSUmM"
"""The kinds of dtypes that tensors cannot have."""

_WORKER, _STEPS = "worker", "worker_steps"
"""What the state of a worker has besides: its number and their count, and its steps."""

torch = require("torch", extra="torch", to="read batches as tensors")


class TorchBatches(torch.utils.data.IterableDataset):  # type: ignore[misc,name-defined]
    """Batches of a published table as dicts of tensors, one epoch in each iteration.

    Iterated directly, batches are fetched and decoded ahead on threads of this process, and
    `state_dict()` is the position after the last batch. In a `torch.utils.data.DataLoader`, which
    needs `batch_size=None`, worker w of n yields the steps w, w + n, … of the rank, so that the
    loader returns them in order. Call `set_epoch` before each epoch then: workers do not know
    which one it is. `state_dict(batches=…)` is the position after as many batches of the loader.

    A `StatefulDataLoader` of torchdata saves and loads the position of each worker by itself.

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
        # Shared memory: workers that stay alive see the epoch, and this process that they read.
        self._shared_epoch = torch.zeros(1, dtype=torch.int64).share_memory_()
        self._read_by_workers = torch.zeros(1, dtype=torch.bool).share_memory_()
        self._stream: BatchStream | None = None
        # In a worker: the epoch that it reads, the state from which all workers began, and how
        # many steps they have taken together when this one has yielded its last batch.
        self._worker_epoch: int | None = None
        self._worker_start: dict[str, Any] | None = None
        self._worker_steps = 0

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Continue with the rest of the epoch, or with the next one."""
        worker = torch.utils.data.get_worker_info()
        if worker is None:
            self._read_by_workers[0] = False
            stream = self._own_stream()
            stream.set_epoch(stream.epoch)
            return self._tensors(stream, 0)
        self._read_by_workers[0] = True
        stream = self._new_stream((worker.id, worker.num_workers))
        epoch = int(self._shared_epoch)
        loaded = self._state.get(_STEPS, 0) if self._state and stream.epoch == epoch else 0
        stream.set_epoch(epoch)
        if loaded:
            stream.skip(loaded)
        self._worker_epoch, self._worker_start, self._worker_steps = epoch, None, loaded
        return self._tensors(stream, worker.num_workers)

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
        if epoch != int(self._shared_epoch):
            self._read_by_workers[0] = False
        self._shared_epoch[0] = epoch

    def state_dict(self, batches: int | None = None) -> dict[str, Any]:
        """Return the position after the last batch, and what the order depends on.

        Without `batches`, in the process in which workers read for a DataLoader, it is an
        `InvalidError`: workers do not report what was used of what they made. In a worker, as
        `StatefulDataLoader` calls it, it is the position of that worker, for the same worker of
        as many.

        Args:
            batches: How many batches a DataLoader with workers has returned in this epoch, or
                since `load_state_dict`.
        """
        if batches is None:
            worker = torch.utils.data.get_worker_info()
            if worker is not None:
                return self._worker_state(worker.id, worker.num_workers)
            if self._read_by_workers:
                raise InvalidError(
                    "the position is not known, because workers of a DataLoader read the batches",
                    hint="pass how many batches the loader has returned in this epoch: "
                    "state_dict(batches=…)",
                )
            return self._own_stream().state_dict()
        stream = self._new_stream((0, 1))
        stream.set_epoch(int(self._shared_epoch))
        stream.skip(as_int("batches", batches))
        return stream.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state. Batch size, ranks and workers may have changed since."""
        worker = torch.utils.data.get_worker_info()
        if worker is None:
            _check_worker(state, None)
            stream = self._own_stream()
            stream.load_state_dict(state)
            self._read_by_workers[0] = False
        else:
            _check_worker(state, [worker.id, worker.num_workers])
            stream = self._new_stream((0, 1))
            stream.load_state_dict(state)
            self._worker_epoch, self._worker_start = None, None
            self._worker_steps = as_int(_STEPS, state.get(_STEPS, 0))
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

    def _worker_state(self, worker: int, count: int) -> dict[str, Any]:
        """Return the state from which all workers began, and how far this one is."""
        if self._worker_start is None:
            epoch = self._worker_epoch
            stream = self._new_stream((0, 1))
            stream.set_epoch(int(self._shared_epoch) if epoch is None else epoch)
            self._worker_start = stream.state_dict()
        return self._worker_start | {_WORKER: [worker, count], _STEPS: self._worker_steps}

    def _tensors(self, stream: BatchStream, workers: int) -> Iterator[dict[str, Any]]:
        to_tensors = adapter("torch")
        fields = self._table.fields
        for batch in stream:
            table = pa.Table.from_batches([batch])
            found = rows.batch_of(table, fields, (batch.num_rows,), {})
            self._worker_steps += workers
            yield {
                name: value.tolist()
                if isinstance(value, np.ndarray) and value.dtype.kind in _LISTS
                else to_tensors(value)
                for name, value in found.items()
            }


def _check_worker(state: Mapping[str, Any], here: list[int] | None) -> None:
    """Check that the state of a worker is loaded in the same worker of as many."""
    saved = state.get(_WORKER) if isinstance(state, Mapping) else None
    if saved is not None and list(saved) != here:
        raise InvalidError(
            f"the state is that of worker {saved[0]} of {saved[1]}, and can only be loaded there",
            hint="save state_dict(batches=…) to continue with other workers",
        )
