"""Statistics of a recording: rates, queues, dropped frames."""

from dataclasses import dataclass

_SECOND_NS = 1_000_000_000


@dataclass(frozen=True, slots=True, repr=False)
class SignalStats:
    """The state of the recording of one signal.

    Example:
        >>> import relive
        >>> with relive.LocalDatasetWriter("kitchen").new_episode() as writer:
        ...     for ts_ns in (0, 500_000_000, 1_000_000_000):
        ...         writer.append("reward", 1.0, ts_ns)
        ...     reward = writer.stats.signals["reward"]
        >>> reward.rows, reward.rate_hz
        (3, 2.0)
    """

    rows: int
    """Records that were appended."""
    rate_hz: float | None
    """Records per second, by their timestamps; None with fewer than two records."""
    queue_depth: int = 0
    """Frames that wait for the encoder, or are being encoded."""
    queue_capacity: int = 0
    """The number of frames that may wait; 0 for signals without a queue."""
    dropped: int = 0
    """Frames that were dropped because the queue was full."""
    pending_bytes: int = 0
    """Bytes in memory that are not written yet."""
    encode_ms: float | None = None
    """Milliseconds that encoding and writing a frame takes, on average."""
    encoder_restarts: int = 0
    """How often the encoder stopped without an error, and a new one continued with a key frame."""

    def __repr__(self) -> str:
        """Return the numbers that apply, on one line."""
        parts = [f"{self.rows} rows"]
        if self.rate_hz is not None:
            parts.append(f"{self.rate_hz:.4g} Hz")
        if self.queue_capacity:
            parts.append(f"queue {self.queue_depth}/{self.queue_capacity}")
            parts.append(f"{self.dropped} dropped")
        if self.encode_ms is not None:
            parts.append(f"{self.encode_ms:.2f} ms a frame")
        if self.encoder_restarts:
            parts.append(f"{self.encoder_restarts} encoder restarts")
        parts.append(f"{self.pending_bytes} bytes pending")
        return f"SignalStats({', '.join(parts)})"


@dataclass(frozen=True, slots=True, repr=False)
class RecorderStats:
    """The state of the recording of an episode.

    Example:
        >>> import relive
        >>> with relive.LocalDatasetWriter("kitchen").new_episode() as writer:
        ...     writer.append("reward", 1.0)
        ...     writer.append("action", 3)
        ...     stats = writer.stats
        >>> stats.rows, stats.dropped
        (2, 0)
    """

    signals: dict[str, SignalStats]
    """The statistics of each signal, by name."""

    @property
    def rows(self) -> int:
        """The records of all signals."""
        return sum(each.rows for each in self.signals.values())

    @property
    def dropped(self) -> int:
        """The dropped frames of all signals."""
        return sum(each.dropped for each in self.signals.values())

    @property
    def pending_bytes(self) -> int:
        """The bytes of all signals that are not written yet."""
        return sum(each.pending_bytes for each in self.signals.values())

    def __repr__(self) -> str:
        """Return the sums, on one line."""
        return (
            f"RecorderStats({len(self.signals)} signals, {self.rows} rows, "
            f"{self.dropped} dropped, {self.pending_bytes} bytes pending)"
        )


def rate_hz(rows: int, first_ts: int | None, last_ts: int | None) -> float | None:
    """Return the records per second between the first and the last."""
    if rows < 2 or first_ts is None or last_ts is None:  # noqa: PLR2004 - two make one interval
        return None
    return (rows - 1) * _SECOND_NS / (last_ts - first_ts)
