"""What becomes of frames that come faster than they are encoded."""

import operator
from typing import Any, Final, Literal, TypeAlias

from relive.errors import InvalidError, InvalidTypeError

__all__ = ["OVERLOADS", "Overload", "check_queue", "queue_frames"]

Overload: TypeAlias = Literal["block", "drop", "raise"]
"""Wait for room, do not record the frame, or raise an `OverloadError`."""
OVERLOADS: Final = ("block", "drop", "raise")

# A frame that waits is lost when the process is killed: at 30 Hz this is half a second.
_FRAMES: Final = 16
_FEWEST_FRAMES: Final = 4
_QUEUE_BYTES: Final = 256 << 20
_MOST_FRAMES: Final = 1 << 16


def check_queue(queue: Any) -> None:
    """Refuse what cannot be the number of frames that may wait."""
    if queue is None:
        return
    if isinstance(queue, bool) or not hasattr(queue, "__index__"):
        raise InvalidTypeError(f"queue is a number of frames, not {queue!r}")
    frames = operator.index(queue)
    if not 1 <= frames <= _MOST_FRAMES:
        raise InvalidError(f"queue is from 1 to {_MOST_FRAMES} frames, not {frames}")


def queue_frames(queue: int | None, frame_bytes: int) -> int:
    """Give how many frames may wait where nobody said: half a second's, in bounded memory."""
    if queue is not None:
        return queue
    return max(_FEWEST_FRAMES, min(_FRAMES, _QUEUE_BYTES // max(1, frame_bytes)))
