"""Continues a video with the frames of its spill file, which were never encoded."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from relive.errors import EncoderError
from relive.store.video.encode import Encoder, Header, Packet
from relive.store.video.join import decoder_differences
from relive.store.video.profiles import Encoding
from relive.store.video.spill import SpillReader


class Extent(NamedTuple):
    """The first packets of a video that are also its first frames.

    Without B-frames these are all packets. With B-frames a packet may be decoded before frames
    that are shown earlier; where those are missing, the video ends before it.
    """

    rows: int = 0
    first: Packet | None = None
    """The packet of the first frame."""
    last: Packet | None = None
    """The packet of the last frame."""

    @classmethod
    def of(cls, packets: Iterable[Packet], start: int = 0) -> "Extent":
        """Return the extent of packets in the order of decoding; their first row is `start`."""
        extent = cls()
        first = latest = None
        for count, packet in enumerate(packets, 1):
            first = packet if packet.row == start else first
            latest = packet if latest is None or packet.row > latest.row else latest
            if latest.row + 1 == start + count:
                extent = cls(count, first, latest)
        return extent


class Continuation(NamedTuple):
    """The packets that continue a video."""

    header: Header
    """The header of the video."""
    packets: Sequence[Packet] = ()
    clocks: Sequence[tuple[int, ...]] = ()
    """The times of each frame on further clocks, in the order in which frames are shown."""
    problem: str | None = None
    """Why frames of the spill file are missing."""


def encode_spilled(
    spilled: SpillReader, header: Header, shape: tuple[int, ...], before: Extent
) -> Continuation:
    """Encode the frames of a spill file as the encoder of the recording would have.

    `header` is the header of that encoder, and `before` is the video that is continued. An
    encoder that cannot be opened, or whose packets need another decoder, is an `EncoderError`.
    """
    if not spilled:
        return Continuation(header)
    encoder = _open(spilled.path, header, shape, before)
    packets: list[Packet] = []
    clocks: list[tuple[int, ...]] = []
    problem = None
    for frame in spilled:
        problem = _try_to(packets, partial(encoder.encode, frame.frame, frame.ts_ns))
        if problem is not None:
            break
        clocks.append(frame.clocks)
    else:
        problem = _try_to(packets, encoder.finish)
    extent = Extent.of(packets, start=before.rows)
    if problem is not None:
        row = before.rows + extent.rows
        problem = f"frame {row} of `{spilled.path}` cannot be encoded: {problem}"
    return Continuation(
        header if before.rows else encoder.header,
        packets[: extent.rows],
        clocks[: extent.rows],
        problem or spilled.problem,
    )


def _open(spill: Path, header: Header, shape: tuple[int, ...], before: Extent) -> Encoder:
    hint = (
        "recover it where it was recorded, with the same version of PyAV; "
        f"or remove `{spill}` to recover it without the frames that were not encoded"
    )
    try:
        encoder = Encoder(Encoding.from_header(header), shape)
    except EncoderError as error:
        raise EncoderError(f"cannot encode the frames of `{spill}`: {error}", hint=hint) from error
    if before.first is None or before.last is None:
        return encoder
    other = decoder_differences(encoder.header, header)
    if other:
        encoder.close()
        raise EncoderError(
            f"cannot encode the frames of `{spill}`: the encoder `{header['encoder']}` of this "
            f"machine has another {' and '.join(other)} than the recording",
            hint=hint,
        )
    first, last = before.first, before.last
    encoder.resume(before.rows, first.ts_ns, last.ts_ns, last.pts)
    return encoder


def _try_to(packets: list[Packet], encode: Callable[[], list[Packet]]) -> str | None:
    """Add the packets that `encode` returns; return why it failed."""
    try:
        packets += encode()
    except Exception as error:  # noqa: BLE001 - the frames before are recovered
        return str(error)
    return None
