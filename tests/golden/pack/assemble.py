"""Assembles packs of the first version of the format byte by byte, in plain Python.

`python -m tests.golden.pack.assemble` writes the missing files next to this file, and
`every-section.a2pack` with the current writer. Existing files are never changed: files that were
readable once stay readable.
"""

import struct
from collections.abc import Sequence
from pathlib import Path

from tests.golden.read_runs import crc32c, read
from tests.golden.runs.assemble import FILES as RUNS
from tests.golden.runs.assemble import varint

FOLDER = Path(__file__).resolve().parent


def pack(payloads: Sequence[bytes], *, align: int, checksums: bool, stats: bool) -> bytes:
    """Return a pack without flags and sections."""
    header = struct.pack("<8sIIQ", b"A2PACK\0\0", 1, 0, len(payloads))
    header += struct.pack("<I", crc32c(header))
    index, data = b"", b""
    first = at = -(-(28 + 32 * len(payloads)) // align) * align
    for payload in payloads:
        data += bytes(at - first - len(data)) + payload
        kind = 1 if payload[:5] == b"A2T1\x01" else 2
        crc = crc32c(payload) if checksums else 0
        index += struct.pack("<QIHHIIQ", at, len(payload), kind, 0, crc, 0, 0)
        at = -(-(first + len(data)) // align) * align
    end = first + len(data)
    block = stats_block([read(payload)["meta"]["steps"] for payload in payloads]) if stats else b""
    footer = struct.pack(
        "<QIIQ", end, crc32c(index), crc32c(data) if checksums else 0, end if stats else 0
    )
    footer += struct.pack("<II", crc32c(footer), 0)
    body = (header + index).ljust(first, b"\0") + data
    return body + block + footer


def stats_block(steps: Sequence[int]) -> bytes:
    """Return the stats of runs with these numbers of steps."""
    ordered = sorted(steps)
    total, last = sum(steps), len(steps) - 1
    body = b"".join(map(varint, (len(steps), total, ordered[0], ordered[-1])))
    body += struct.pack("<d", total / len(steps))
    body += b"".join(varint(ordered[int(q * last + 0.5)]) for q in (0.5, 0.9, 0.99))
    return struct.pack("<I", len(body)) + body


_PAYLOADS = [RUNS["v2-some-branches"], RUNS["v1-engine"], RUNS["v2-smallest"]]
FILES = {
    "original": pack(_PAYLOADS, align=4096, checksums=True, stats=True),
    "original-bare": pack(_PAYLOADS, align=8, checksums=False, stats=False),
    "original-empty": pack([], align=4096, checksums=True, stats=False),
}


def main() -> None:
    """Write the missing files."""
    for name, data in FILES.items():
        path = FOLDER / f"{name}.a2pack"
        if not path.exists():
            path.write_bytes(data)
    path = FOLDER / "every-section.a2pack"
    if not path.exists():
        write_every_section(path)


def write_every_section(path: Path) -> None:
    """Write a pack with every codec, a dictionary and every section, with the current writer."""
    import relive
    from relive.store.codec import train_dictionary
    from relive.store.pack import register_kind

    register_kind("text", str.encode, lambda data: bytes(data).decode())
    samples = [f'{{"step": {k}, "action": {k % 7}}}'.encode() for k in range(2000)]
    runs = [data for name, data in RUNS.items() if name != "v2-longer-integers"]
    dictionary = train_dictionary(samples, 512)
    with relive.PackWriter(
        path, align=64, codec="zstd", dictionary=dictionary, capacity=16, steps=True
    ) as out:
        for number, run in enumerate(runs):
            out.append(run, kind="auto", name=f"run-{number}")
        for codec in ("raw", "deflate", "zstd", "lz4"):
            out.append(samples[7] * 9, name=f"bytes-{codec}", codec=codec)
        out.append("größer " * 9, kind="text")
        out.append(b"")


if __name__ == "__main__":
    main()
