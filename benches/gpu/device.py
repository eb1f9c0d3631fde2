"""What the contenders on a device share."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from benches.peers import module, nothing

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from benches.data import Case


def host_buffer(case: Case, device: Any) -> Any:
    """Room for one batch on the host, pinned where the device is a GPU."""
    torch = module("torch")
    shape = (case.batch_size, case.record_bytes)
    return torch.empty(shape, dtype=torch.uint8, pin_memory=device.type == "cuda")


def waiter(device: Any) -> Callable[[], None]:
    """What ends a round: every copy has arrived."""
    if device.type != "cuda":
        return nothing
    return partial(module("torch").cuda.synchronize, device)


def to_host(tensor: Any) -> NDArray[Any]:
    """A batch back on the host, to be checked."""
    array: NDArray[Any] = tensor.cpu().numpy()
    return array
