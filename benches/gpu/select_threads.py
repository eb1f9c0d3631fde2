"""Hand-made: threads around `torch.index_select` into pinned buffers, copied in order."""

from __future__ import annotations

import os
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import cycle
from typing import TYPE_CHECKING, Any, ClassVar

from benches.gpu.device import host_buffer, to_host, waiter
from benches.peers import Peer, Setting, Stream, module

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from benches.data import Case


class SelectThreads(Peer):
    """One batch per thread, `threads` of them being gathered while others are copied."""

    name = "threads around index_select"
    family: ClassVar[str] = "torch"
    packages: ClassVar[tuple[str, ...]] = ("torch",)

    def __init__(self, device: Any) -> None:
        self.device = device

    def settings(self, case: Case) -> Sequence[Setting]:  # noqa: ARG002 - the same for all
        """Numbers of threads up to that of the cores."""
        cores = os.cpu_count() or 1
        return [{"threads": count} for count in (2, 4, 8, 16) if count <= max(cores, 2)]

    def open(self, case: Case, setting: Setting) -> Stream:
        """Start the threads."""
        threads = int(setting["threads"])
        batches = self._batches(case, threads)
        return Stream(
            batches,
            to_host,
            ahead=threads,
            close=batches.close,
            begin=partial(module("torch").set_num_threads, 1),  # parallel over batches alone
            finish=waiter(self.device),
        )

    def _batches(self, case: Case, threads: int) -> Generator[Any]:
        torch = module("torch")
        records = torch.from_numpy(case.memmap())
        rows = cycle([torch.from_numpy(each) for each in case.batches])
        free = deque((host_buffer(case, self.device), None) for _ in range(2 * threads))
        select = partial(torch.index_select, records, 0)
        with ThreadPoolExecutor(threads) as pool:
            waiting: deque[Any] = deque()
            while True:
                while len(waiting) < threads:
                    buffer, copied = free.popleft()
                    if copied is not None:
                        copied.synchronize()  # the copy out of it may still be under way
                    waiting.append(pool.submit(select, next(rows), out=buffer))
                buffer = waiting.popleft().result()
                tensor = buffer.to(self.device, non_blocking=True, copy=True)
                free.append((buffer, self._mark()))
                yield tensor

    def _mark(self) -> Any:
        if self.device.type != "cuda":
            return None
        event = module("torch").cuda.Event()
        event.record()
        return event
