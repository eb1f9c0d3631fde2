"""Opening a store of many small payloads, and closing it: one peer per kind of store."""

from __future__ import annotations

import os
from abc import abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

from benches.data import Case, files_under
from benches.pagecache import fill
from benches.payloads import discard
from benches.peers import Peer, Setting, Stream, module
from benches.peers.payload_array_record import open_array_record, write_array_record
from benches.peers.payload_files import write_files
from benches.peers.payload_lance import write_lance
from benches.peers.payload_lmdb import open_lmdb, write_lmdb
from benches.peers.payload_loaderx import open_loaderx, write_loaderx
from benches.peers.payload_relive import open_pack, write_pack

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from benches.data import Rows


class OpenCase(Case):
    """A store of `records` payloads; a batch of it is the store opened, counted and closed."""

    @property
    def stem(self) -> str:
        """What every file that holds these payloads is called, less its suffix."""
        return f"open-{self.record_bytes}B-{self.records}"

    @property
    def batches(self) -> list[Rows]:
        """Nothing is read: these say only how often a store is opened to settle in."""
        return [[]] * 32  # type: ignore[list-item]

    def payloads(self) -> Iterator[bytes]:
        """Every payload, in order: its position, over and over."""
        for position in range(self.records):
            yield position.to_bytes(8, "little") * (self.record_bytes // 8)

    def make(self) -> None:
        """Make nothing but the folder: every peer writes its own files."""
        self.folder.mkdir(parents=True, exist_ok=True)

    def check(self, batch: Any) -> None:
        """Raise unless the store knew how many payloads it has."""
        if batch != self.records:
            message = f"counted {batch} payloads, not {self.records}"
            raise AssertionError(message)


class OpenPeer(Peer):
    """A kind of store that is opened and closed over and over."""

    suffix: str
    """What its file, or its folder, ends with."""

    def files(self, case: Case) -> list[Path]:
        """Its store."""
        return [case.folder / f"{case.stem}.{self.suffix}"]

    def prepare(self, case: Case) -> None:
        """Write the store unless it is there; either way it is then in the page cache."""
        assert isinstance(case, OpenCase)
        (place,) = self.files(case)
        if not place.exists():
            half_made = place.with_name(f"{place.name}.partial")
            discard(half_made)
            self.write(case, half_made)
            half_made.rename(place)
        fill(files_under(place))

    def open(self, case: Case, setting: Setting) -> Stream:
        """Open and close, for ever."""
        del setting
        (place,) = self.files(case)

        def deliver() -> Iterator[int]:
            while True:
                yield self.count(place)

        return Stream(deliver(), _same)

    @abstractmethod
    def write(self, case: OpenCase, path: Path) -> None:
        """Write the store."""

    @abstractmethod
    def count(self, path: Path) -> int:
        """Open the store, count its payloads, close it."""


def _same(batch: Any) -> Any:
    return batch


class OpenPack(OpenPeer):
    """`PackReader.open(path)`: the whole index is read and checked."""

    family: ClassVar[str] = "relive"
    packages: ClassVar[tuple[str, ...]] = ("relive",)
    suffix = "a2pack"

    def __init__(self, *, first: bool = False) -> None:
        self.name = "relive pack, and one payload" if first else "relive pack"
        self.first = first

    def write(self, case: OpenCase, path: Path) -> None:
        """Write the pack; payloads as small as these need no alignment to pages."""
        write_pack(case.payloads(), path, align=8)

    def count(self, path: Path) -> int:
        """Open, count, read one payload where asked, close."""
        with open_pack(path) as reader:
            if self.first:
                reader.gather([len(reader) - 1])
            return len(reader)


class ListFiles(OpenPeer):
    """`os.scandir` of a folder of files, all names read."""

    name = "os.scandir of a directory"
    family: ClassVar[str] = "files"
    packages: ClassVar[tuple[str, ...]] = ()
    suffix = "files"

    def write(self, case: OpenCase, path: Path) -> None:
        """Write the files."""
        write_files(case.payloads(), path)

    def count(self, path: Path) -> int:
        """List the names."""
        with os.scandir(path) as entries:
            return len([entry.name for entry in entries])


class OpenLmdb(OpenPeer):
    """`lmdb.open(path)` and its count: the tree is not read."""

    name = "lmdb"
    family: ClassVar[str] = "lmdb"
    packages: ClassVar[tuple[str, ...]] = ("lmdb",)
    suffix = "lmdb"

    def write(self, case: OpenCase, path: Path) -> None:
        """Write the environment."""
        write_lmdb(case.payloads(), path)

    def count(self, path: Path) -> int:
        """Open, count, close."""
        with open_lmdb(path) as environment:
            return int(environment.stat()["entries"])


class OpenArrayRecord(OpenPeer):
    """`ArrayRecordReader(path)` and its count."""

    name = "array_record, group_size:1"
    family: ClassVar[str] = "array_record"
    packages: ClassVar[tuple[str, ...]] = ("array_record",)
    suffix = "array_record"

    def write(self, case: OpenCase, path: Path) -> None:
        """Write the file."""
        write_array_record(case.payloads(), path, "uncompressed")

    def count(self, path: Path) -> int:
        """Open, count, close."""
        reader = open_array_record(path)
        count = int(reader.num_records())
        reader.close()
        return count


class OpenLoaderx(OpenPeer):
    """`Ragged.open(path)` and its count."""

    name = "loaderx"
    family: ClassVar[str] = "loaderx"
    packages: ClassVar[tuple[str, ...]] = ("loaderx",)
    suffix = "zrecord"

    def write(self, case: OpenCase, path: Path) -> None:
        """Write the container."""
        write_loaderx(case.payloads(), path, "raw")

    def count(self, path: Path) -> int:
        """Open, count, close."""
        with open_loaderx(path) as container:
            return len(container)


class OpenLance(OpenPeer):
    """`lance.dataset(path)` and its count, from the manifest."""

    name = "lance"
    family: ClassVar[str] = "lance"
    packages: ClassVar[tuple[str, ...]] = ("pylance",)
    suffix = "lance"

    def write(self, case: OpenCase, path: Path) -> None:
        """Write the dataset."""
        write_lance(case.payloads(), path, "none")

    def count(self, path: Path) -> int:
        """Open and count."""
        return int(module("lance").dataset(str(path)).count_rows())
