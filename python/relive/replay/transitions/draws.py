"""`Draws`: batches of transitions that are drawn one after the other."""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, Protocol, Self

import numpy as np

from relive._arguments import type_name
from relive.errors import InvalidError, InvalidTypeError
from relive.model.source import Batch, IndexArray, RowKeys


class KeySampler(Protocol):
    """Draws the rows that transitions begin with, as a `PrioritizedSampler` does."""

    @property
    def batch_size(self) -> int:
        """Samples per batch."""

    @property
    def position(self) -> int:
        """How many samples were drawn."""

    def __next__(self) -> tuple[IndexArray, Mapping[str, Any]]:
        """Draw the next batch, and what joins it."""

    def take(self, keys: Sequence[RowKeys]) -> int:
        """Choose from the rows that have these keys."""

    def state_at(self, position: int) -> dict[str, Any]:
        """Return the state at another position."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state."""


Drawer = np.random.Generator | KeySampler


class Drawable(Protocol):
    """What batches are drawn from."""

    def draw(
        self, n: int, drawer: Drawer, fields: Sequence[str] | None, *, ahead: bool = False
    ) -> Callable[[], Batch]:
        """Choose rows of now, and return what reads them.

        What is drawn `ahead` is not in the state before `returned`.
        """

    def may_draw(self, n: int) -> bool:
        """Check whether so many may be drawn without waiting."""

    def returned(self, n: int) -> None:
        """Count so many that were drawn ahead as returned."""

    def undo(self, n: int) -> None:
        """Count so many that were drawn ahead as not drawn."""


class Draws(Iterator[Batch]):
    """An endless iterator over batches of transitions, each drawn from those of its time.

    With `prefetch`, up to so many batches are read ahead on a thread. They were drawn from the
    transitions of then, so they are a little older. While the interpreter exits, no more are read
    ahead, and the iterator ends.
    """

    def __init__(
        self,
        source: Drawable,
        n: int,
        drawer: Drawer,
        fields: Sequence[str] | None,
        prefetch: int,
    ) -> None:
        self._source = source
        self._n = n
        self._drawer = drawer
        self._fields = fields
        self._prefetch = prefetch
        self._pool: ThreadPoolExecutor | None = None
        self._ahead: deque[tuple[Any, Future[Batch]]] = deque()

    def __iter__(self) -> Self:
        """Return itself."""
        return self

    def __next__(self) -> Batch:
        """Return the next batch."""
        if not self._prefetch:
            return self._source.draw(self._n, self._drawer, self._fields)()
        # The next batch stays in the queue until it is returned: if this is interrupted, or another
        # batch cannot be begun, the next call returns it.
        while not self._ahead or (
            len(self._ahead) <= self._prefetch and self._source.may_draw(self._n)
        ):
            self._begin()
        _, future = self._ahead[0]
        wait((future,))
        self._ahead.popleft()
        self._source.returned(self._n)
        return future.result()

    def state_dict(self) -> dict[str, Any]:
        """Return the state of what draws after the last batch that was returned."""
        before = self._ahead[0][0] if self._ahead else self._now()
        if isinstance(self._drawer, np.random.Generator):
            return {"generator": before}
        return {"sampler": self._drawer.state_at(before)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state. What was read ahead is drawn again."""
        name = "generator" if isinstance(self._drawer, np.random.Generator) else "sampler"
        if not isinstance(state, Mapping):
            raise InvalidTypeError(f"`state` must be a dict, got {type_name(type(state))}")
        if name not in state:
            raise InvalidError(f"`state` does not have the key {name!r}")
        if isinstance(self._drawer, np.random.Generator):
            try:
                self._drawer.bit_generator.state = state[name]
            except (TypeError, ValueError, KeyError) as error:
                raise InvalidError(f"the state is not that of this generator: {error}") from error
        else:
            self._drawer.load_state_dict(state[name])
        self._drop()

    def close(self) -> None:
        """Wait for what is read ahead, and drop it."""
        self._drop()
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None

    def _begin(self) -> None:
        """Draw another batch, and read it on the thread."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, thread_name_prefix="relive-draws")
        before = self._now()
        read = self._source.draw(self._n, self._drawer, self._fields, ahead=True)
        try:
            self._ahead.append((before, self._pool.submit(read)))
        except RuntimeError as error:
            self._source.undo(self._n)
            if "shutdown" not in str(error):
                raise
            raise StopIteration from None  # no pool takes work while the interpreter exits

    def _drop(self) -> None:
        """Drop what is read ahead."""
        while self._ahead:
            self._ahead.pop()[1].cancel()
            self._source.undo(self._n)

    def _now(self) -> Any:
        drawer = self._drawer
        if isinstance(drawer, np.random.Generator):
            return drawer.bit_generator.state
        return drawer.position
