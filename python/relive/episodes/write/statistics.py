"""How a recording goes: rates, queues, drops."""

from dataclasses import dataclass

__all__ = ["RecorderStats", "SignalStats"]

_SECOND_NS = 1_000_000_000


@dataclass(frozen=True, slots=True, repr=False)
class SignalStats:
    """How the recording of one signal goes."""

    rows: int
    """Records that were taken."""
    rate_hz: float | None
    """Records per second, from the first to the last by their own times; None below two."""
    queue_depth: int = 0
    """Frames that wait for the encoder."""
    queue_capacity: int = 0
    """How many may wait; 0 for signals without a queue."""
    dropped: int = 0
    """Frames that came when the queue was full, and were not recorded."""
    pending_bytes: int = 0
    """Bytes in memory that are not written yet."""
    encode_ms: float | None = None
    """Milliseconds that a frame takes to be encoded and written, on the average."""

    def __repr__(self) -> str:
        """Give the numbers that say something, on one line."""
        parts = [f"{self.rows} rows"]
        if self.rate_hz is not None:
            parts.append(f"{self.rate_hz:.4g} Hz")
        if self.queue_capacity:
            parts.append(f"queue {self.queue_depth}/{self.queue_capacity}")
            parts.append(f"{self.dropped} dropped")
        if self.encode_ms is not None:
            parts.append(f"{self.encode_ms:.2f} ms a frame")
        parts.append(f"{self.pending_bytes} bytes pending")
        return f"SignalStats({', '.join(parts)})"


@dataclass(frozen=True, slots=True, repr=False)
class RecorderStats:
    """How the recording of an episode goes."""

    signals: dict[str, SignalStats]
    """Each signal, by name."""

    @property
    def rows(self) -> int:
        """Records of all signals."""
        return sum(each.rows for each in self.signals.values())

    @property
    def dropped(self) -> int:
        """Frames of all signals that were not recorded."""
        return sum(each.dropped for each in self.signals.values())

    @property
    def pending_bytes(self) -> int:
        """Bytes of all signals that are not written yet."""
        return sum(each.pending_bytes for each in self.signals.values())

    def __repr__(self) -> str:
        """Give the sums, on one line."""
        return (
            f"RecorderStats({len(self.signals)} signals, {self.rows} rows, "
            f"{self.dropped} dropped, {self.pending_bytes} bytes pending)"
        )


def rate_hz(rows: int, first_ts: int | None, last_ts: int | None) -> float | None:
    """Give records per second between the first and the last."""
    if rows < 2 or first_ts is None or last_ts is None:  # noqa: PLR2004 - two make one interval
        return None
    return (rows - 1) * _SECOND_NS / (last_ts - first_ts)
