"""Writing packs, and recovering unfinished ones."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

from relive import _native
from relive._arguments import as_int, as_text, worker_count
from relive.errors import (
    AlreadyExistsError,
    InvalidError,
    NotFoundError,
    ReliveError,
)
from relive.store.atomic import check_file
from relive.store.lifecycle import End, WriterLifecycle
from relive.store.pack.kinds import encode_payload
from relive.store.paths import absolute_path

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Iterator

    from relive.model.report import Progress
    from relive.model.source import IndexArray
    from relive.store.codec import BytesLike

_JOURNAL: Final = ".journal"

_BATCH: Final = 4096
_BATCH_BYTES: Final = 64 << 20


class PackWriter(WriterLifecycle):
    """Writes a pack, which readers can open once it is closed.

    Leaving `with` closes the pack. If the block raises, also by Ctrl-C, the pack is left
    unfinished: nothing is lost, and `recover` makes a pack of it. If the process is killed, at
    most the entries of the last second are lost. Until the pack is closed, an
    existing file at its path is unchanged. Thread-safe. After an error of the disk, every call
    raises a `ClosedError`.

    Args:
        path: The path of the pack.
        align: Each entry begins at a multiple of this, a power of two from 1 to 65536.
        codec: How payloads are stored: "raw", "deflate", "zstd" or "lz4". A payload that does
            not shrink is stored raw.
        level: The level of the codec.
        dictionary: A dictionary of `train_dictionary`, for zstd. It is stored in the pack.
        checksum: Whether entries are stored with checksums. Without them changed bytes are not
            noticed, and `validate` lists the pack as `unchecked`.
        capacity: The number of entries, if it is known. With more entries than that, or more
            than 2047 if it is not known, payloads are copied once when the pack is closed.
        steps: Whether to store a table of the steps of all runs, which makes `steps()` fast.
        overwrite: Whether to replace an existing file; otherwise it is an `AlreadyExistsError`.
        max_payload_bytes: A longer payload cannot be compressed and is refused.
        workers: The most threads that one call uses; by default the number of cores, at most
            eight.

    Example:
        >>> import relive
        >>> with relive.PackWriter("words.pack", codec="zstd") as writer:
        ...     writer.append(b"zero", name="first")
        ...     writer.extend([b"one", b"two"])
        0
        range(1, 3)
        >>> relive.PackReader.open("words.pack").find("first")
        0
    """

    on_interrupt: ClassVar[End] = "leave"

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        align: int = 4096,
        codec: str = "raw",
        level: int | None = None,
        dictionary: BytesLike | None = None,
        checksum: bool = True,
        capacity: int | None = None,
        steps: bool = False,
        overwrite: bool = False,
        max_payload_bytes: int = 1 << 30,
        workers: int | None = None,
    ) -> None:
        self._path = Path(absolute_path(path, "a pack"))
        check_file(self._path)  # a named pipe, for example, must not be replaced
        with _overwrite_hint():
            self._native = _native.PackWriter(
                str(self._path),
                align=as_int("align", align, at_most=(1 << 32) - 1),
                codec=as_text("`codec`", codec),
                level=None
                if level is None
                else as_int("level", level, at_least=-(1 << 31), at_most=(1 << 31) - 1),
                dictionary=None if dictionary is None else encode_payload("bytes", dictionary),
                checksum=bool(checksum),
                capacity=None if capacity is None else as_int("capacity", capacity),
                steps=bool(steps),
                overwrite=bool(overwrite),
                max_payload_bytes=as_int("max_payload_bytes", max_payload_bytes),
                workers=worker_count(workers),
            )
        super().__init__()

    @property
    def path(self) -> Path:
        """The path of the pack."""
        return self._path

    def __len__(self) -> int:
        """Return the number of entries that were appended."""
        return len(self._native)

    def append(
        self,
        payload: Any,
        kind: str = "bytes",
        *,
        name: str | None = None,
        codec: str | None = None,
    ) -> int:
        """Append an entry and return its position.

        Args:
            payload: Bytes; for the kinds "v1", "v2" and "auto" also a `Run`; for a registered
                kind what its encoder takes.
            kind: "bytes", "v1", "v2", "auto" for a run of either version, or a registered kind.
                Bytes that are not a complete run raise a `CorruptError` and are not appended.
            name: A name to find the entry by; no two entries may have the same.
            codec: How this entry is stored, if not as the others.
        """
        stored = encode_payload(kind, payload)
        picked = None if codec is None else as_text("`codec`", codec)
        with self._mutex:
            self._check_open()
            return self._native.append(stored, kind, _checked_name(name), picked)

    def extend(
        self,
        payloads: Iterable[Any],
        kind: str = "bytes",
        *,
        names: Iterable[str | None] | None = None,
        codec: str | None = None,
    ) -> range:
        """Append entries, compressed on several threads, and return their positions.

        If `payloads` is a list or tuple, all are appended, or none if one is refused. Any other
        iterable is appended in batches, and the batches before a refused payload stay.
        """
        picked = None if codec is None else as_text("`codec`", codec)
        whole = isinstance(payloads, list | tuple)
        with self._mutex:  # so that the positions are consecutive
            self._check_open()
            first = done = len(self)
            for batch, labels in _batches(payloads, kind, names, whole=whole):
                try:
                    _, done = self._native.extend(batch, kind, labels, picked)
                except ReliveError as error:
                    if done > first:
                        error.add_note(f"{done - first} payloads before it were appended")
                    raise
            return range(first, done)

    def copy(
        self,
        packs: list[_native.Pack],
        numbers: IndexArray,
        rows: IndexArray,
        progress: Progress | None = None,
        *,
        names: bool = True,
    ) -> None:
        """Append entry `rows[k]` of pack `numbers[k]` for every k, as it is stored there.

        `merge` and `subset` do this for readers.
        """
        self._check_open()
        total = len(rows)
        notify = None if progress is None else lambda done: progress(done, total)
        self._native.copy(packs, numbers, rows, names, notify)

    def flush(self) -> None:
        """Make every entry so far survive the end of this process."""
        self._check_open()
        self._native.flush()

    def sync(self) -> None:
        """Make every entry so far survive a power cut."""
        self._check_open()
        self._native.sync()

    def __repr__(self) -> str:
        """Return the path and the number of entries, on one line."""
        state = f"{len(self)} entries" if self._state == "open" else "closed"
        return f"PackWriter({self._path}: {state})"

    def _finish(self) -> None:
        with _overwrite_hint():
            self._native.finish()

    def _remove(self) -> None:
        self._native.abort()

    def _keep_unfinished(self) -> None:
        self._native.leave()

    def _destination(self) -> str:
        return str(self._path)


@dataclass(frozen=True, slots=True)
class Recovered:
    """The pack that `recover` made of an unfinished one.

    Example:
        >>> import relive
        >>> from relive.store.pack import recover
        >>> writer = relive.PackWriter("runs.a2pack")
        >>> _ = writer.append(b"first")
        >>> writer.leave()
        >>> recovered = recover("runs.a2pack")
        >>> recovered.path.name, recovered.entries, recovered.lost
        ('runs.a2pack', 1, 0)
    """

    path: Path
    """The path of the pack."""
    entries: int
    """The number of its entries: the first ones that were written, without a gap."""
    lost: int
    """The number of further entries in the journal whose bytes are not complete."""
    reason: str | None
    """Why something was not recovered."""
    file_bytes: int
    """The size of the file."""
    rest: Path | None = None
    """The file with the bytes that were not recovered, if there are any."""


def recover(
    path: str | os.PathLike[str],
    output: str | os.PathLike[str] | None = None,
    *,
    overwrite: bool = False,
) -> Recovered:
    """Make a pack of an unfinished one, whose writer was interrupted.

    Everything that was flushed is in it, and so is everything that was appended more than one
    second before the process was killed. Bytes that cannot be used are not deleted: they are in
    `rest`. A pack that is still being written is a `ClosedError`.

    Args:
        path: The unfinished file, or the path of the pack that it was to become.
        output: The path of the pack to write; by default the one that it was to become.
        overwrite: Whether to replace an existing file.

    Example:
        >>> import relive
        >>> from relive.store.pack import recover
        >>> writer = relive.PackWriter("a.pack")
        >>> writer.append(b"payload")
        0
        >>> writer.leave()
        >>> recover("a.pack").entries
        1
    """
    unfinished = _find_unfinished(absolute_path(path, "a pack"))
    target = _native.unfinished_target(unfinished)
    if output is None and target is None:
        raise InvalidError(
            f"cannot derive the path of the pack from `{unfinished}`, which is not named like an "
            "unfinished pack",
            hint="pass the path of the pack as output=",
        )
    wanted = str(target) if output is None else absolute_path(output, "a pack")
    check_file(wanted)
    with _overwrite_hint():
        entries, lost, file_bytes, reason, rest = _native.recover_pack(
            unfinished, wanted, bool(overwrite)
        )
    return Recovered(Path(wanted), entries, lost, reason, file_bytes, rest)


def _find_unfinished(path: str) -> str:
    for candidate in (path, path.removesuffix(_JOURNAL)):
        if _native.unfinished_target(candidate) is not None:
            return candidate
    found = [str(each) for each in _native.unfinished_packs(path)]
    if not found:
        raise NotFoundError(f"no unfinished pack was found for `{path}`")
    if len(found) > 1:
        names = ", ".join(f"`{each}`" for each in found)
        raise InvalidError(
            f"{len(found)} unfinished packs were found for `{path}`: {names}",
            hint="pass the path of one of them",
        )
    return found[0]


@contextlib.contextmanager
def _overwrite_hint() -> Iterator[None]:
    try:
        yield
    except AlreadyExistsError as error:
        error.hint = "pass overwrite=True to replace it"
        raise


def _batches(
    payloads: Iterable[Any], kind: str, names: Iterable[str | None] | None, *, whole: bool
) -> Iterator[tuple[list[bytes], list[str | None] | None]]:
    labels = None if names is None else iter(names)
    batch: list[bytes] = []
    named: list[str | None] = []
    size = 0
    for payload in payloads:
        batch.append(encode_payload(kind, payload))
        if labels is not None:
            try:
                named.append(_checked_name(next(labels)))
            except StopIteration:
                raise InvalidError("`names` has fewer items than `payloads`") from None
        size += len(batch[-1])
        if not whole and (len(batch) == _BATCH or size >= _BATCH_BYTES):
            yield batch, None if labels is None else named
            batch, named, size = [], [], 0
    if labels is not None and next(labels, labels) is not labels:
        raise InvalidError("`names` has more items than `payloads`")
    if batch:
        yield batch, None if labels is None else named


def _checked_name(name: str | None) -> str | None:
    return None if name is None else as_text("the name of an entry", name)
