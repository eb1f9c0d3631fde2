"""Sample files of other formats, and the content of a store as plain values."""

import io
import struct
import tarfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from relive.bridge import convert
from relive.store.records import RecordStore


def contents(path: str | Path) -> list[dict[str, Any]]:
    """Return the records of a store, with arrays as lists and None for missing values."""
    with RecordStore.open(path) as store:
        missing = {name: store.missing(name) for name in store.fields}
        return [
            {name: None if missing[name][row] else plain(value) for name, value in record.items()}
            for row, record in enumerate(store)
        ]


def plain(value: Any) -> Any:
    """Return a value without NumPy types."""
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


def crc32c(data: bytes) -> int:
    """Return the CRC-32C, computed bit by bit."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def tfrecord(records: Iterable[bytes]) -> bytes:
    """Return the bytes of a TFRecord file."""

    def masked(data: bytes) -> bytes:
        crc = crc32c(data)
        return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)

    parts = []
    for record in records:
        length = struct.pack("<Q", len(record))
        parts += [length, masked(length), record, masked(record)]
    return b"".join(parts)


def varint(number: int) -> bytes:
    """Return a protobuf varint; negative numbers take ten bytes."""
    number &= (1 << 64) - 1
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def message(number: int, data: bytes) -> bytes:
    """Return a protobuf field of bytes."""
    return varint(number << 3 | 2) + varint(len(data)) + data


Feature = Sequence[bytes] | Sequence[float] | Sequence[int] | None


def feature(values: Feature, *, packed: bool = True) -> bytes:
    """Return a `tf.train.Feature`: bytes, floats or integers, by the type of the first value."""
    if values is None:
        return b""
    if not values or isinstance(values[0], int):
        numbers = [varint(int(value)) for value in values]
        body = message(1, b"".join(numbers)) if packed else b"".join(b"\x08" + n for n in numbers)
        return message(3, body)
    if isinstance(values[0], float):
        floats = [struct.pack("<f", value) for value in values]
        body = message(1, b"".join(floats)) if packed else b"".join(b"\x0d" + f for f in floats)
        return message(2, body)
    return message(1, b"".join(message(1, bytes(value)) for value in values))  # type: ignore[arg-type]


def example(features: Mapping[str, Feature], *, packed: bool = True) -> bytes:
    """Return a serialized `tf.train.Example`."""
    entries = [
        message(1, message(1, name.encode()) + message(2, feature(values, packed=packed)))
        for name, values in features.items()
    ]
    return message(1, b"".join(entries))


def tar(files: Iterable[tuple[str, bytes]], mode: str = "w") -> bytes:
    """Return the bytes of a tar archive."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=mode) as archive:  # type: ignore[call-overload]
        for name, data in files:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return out.getvalue()


def samples(count: int) -> list[tuple[str, bytes]]:
    """Return the files of some WebDataset samples."""
    return [
        (f"train/{number:04}.{extension}", data)
        for number in range(count)
        for extension, data in (
            ("cls", str(number).encode()),
            ("jpg", bytes([number]) * (number + 1)),
            ("json", b'{"n": %d}' % number),
            ("txt", f"number {number}".encode()),
        )
    ]


def write_tfrecord(path: Path, rows: int = 100) -> Path:
    """Write rows with a number and a given number of bytes."""
    path.write_bytes(tfrecord(example({"n": [k], "x": [b"x" * k]}) for k in range(rows)))
    return path


def interrupted(tmp_path: Path, source: object, **options: object) -> Path:
    """Start a conversion that fails after the second batch."""
    target = tmp_path / "store"

    def progress(done: int, total: int | None) -> None:
        if done >= 20:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert(source, target, batch=10, progress=progress, **options)  # type: ignore[arg-type]
    assert not target.exists()
    return target
