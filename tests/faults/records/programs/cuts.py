"""What a disk may hold after the power went: states built from a trace of system calls.

Of every file, what was written before an fsync of it ended is there. Of what was written later
each sector may have arrived or not, the file may be as long as it was at any moment since, and
what did not arrive reads as what was there before, or as zeros. Of the names that were made,
moved and removed in a folder since its last fsync, the first so many count, or, for each set
of names that have to do with each other, the first so many of theirs.
"""

import os
import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Final, Literal, NamedTuple

import numpy as np

from tests.faults.records.programs.syscalls import Call, described, unescaped

_PAGE: Final = 4096
_HARMLESS: Final = {"sync_file_range"}


class Change(NamedTuple):
    """What one call did to the bytes of a file."""

    start: int
    end: int
    what: Literal["write", "zero", "resize", "grow"]
    offset: int
    data: bytes = b""
    length: int = 0


class Naming(NamedTuple):
    """What one call did to the names in a folder."""

    start: int
    end: int
    name: str
    node: "Node | None"
    old: str | None = None


@dataclass(eq=False)
class Node:
    """A file or a folder and what happened to it."""

    is_folder: bool
    content: bytes = b""
    names: dict[str, "Node"] = field(default_factory=dict)
    changes: list[Change] = field(default_factory=list)
    namings: list[Naming] = field(default_factory=list)
    syncs: list[tuple[int, int]] = field(default_factory=list)
    now: dict[str, "Node"] = field(default_factory=dict)
    size: int = 0

    def durable(self, cut: int) -> int:
        """Everything that had ended before this moment is on the disk at the moment `cut`."""
        return max((start for start, end in self.syncs if end <= cut), default=-1)


def snapshot(path: Path) -> Node:
    """Give what is at a path, all of it on the disk already."""
    if not path.is_dir():
        content = path.read_bytes()
        return Node(is_folder=False, content=content, size=len(content))
    names = {each.name: snapshot(each) for each in path.iterdir()}
    return Node(is_folder=True, names=names, now=dict(names))


class History:
    """All that a program did below one folder, and what it said."""

    def __init__(self, before: Node, root: Path, calls: Iterable[Call]) -> None:
        self.root = before
        self.folder = root
        self.moments: list[int] = []
        self.syncs: list[int] = []
        self.said: list[tuple[int, str]] = []
        self._positions: dict[str, int] = {}
        for call in calls:
            if not call.failed:
                self._take(call)

    def is_gone_on_with(self, start: int, line: str) -> None:
        """Forget what was said before, by a program that was killed, but for what was synced."""
        kept = [said for said in self.said if said[0] >= start or said[1].startswith("synced")]
        self.said = [(0, line), *kept]

    def _take(self, call: Call) -> None:
        if call.name == "write" and call.fd(0)[0] == "1":
            self.said += [(call.start, line) for line in call.text(1).decode().splitlines()]
            return
        handler = getattr(self, f"_{call.name}", None)
        touched = [path for path in call.paths() if Path(path).is_relative_to(self.folder)]
        if call.name in {"open", "openat", "creat"}:
            self._opened(call)
        elif touched and handler is not None:
            handler(call)
            if call.name not in {"lseek", "mmap"}:
                self.moments.append(call.start)
        else:
            assert not touched or call.name in _HARMLESS, f"cannot follow {call.name}"

    def _opened(self, call: Call) -> None:
        number, name = described(call.result)
        if not Path(name).is_relative_to(self.folder):
            return
        self._positions[number] = 0
        flags = next((word for word in call.args if word.startswith("O_")), "")
        folder, last = self._parent(name)
        if folder is None:
            return
        if "O_CREAT" in flags and last not in folder.now:
            self._named(call, folder, last, Node(is_folder=False))
            self.moments.append(call.start)
        elif "O_TRUNC" in flags and folder.now[last].size:
            self._changed(folder.now[last], Change(*call[:2], "resize", 0))
            self.moments.append(call.start)
        if "O_APPEND" in flags:
            self._positions[number] = folder.now[last].size

    def _parent(self, path: str) -> tuple[Node | None, str]:
        parts = Path(path).relative_to(self.folder).parts
        node = self.root
        for part in parts[:-1]:
            node = node.now[part]
        return (node, parts[-1]) if parts else (None, "")

    def _at(self, path: str) -> Node:
        folder, last = self._parent(path)
        return self.root if folder is None else folder.now[last]

    def _named(
        self, call: Call, folder: Node, name: str, node: Node | None, old: str | None = None
    ) -> None:
        folder.namings.append(Naming(call.start, call.end, name, node, old))
        if old is not None:
            del folder.now[old]
        if node is None:
            del folder.now[name]
        else:
            folder.now[name] = node

    def _changed(self, node: Node, change: Change) -> None:
        if change.what == "resize" and change.offset < node.size:
            # The rest of the page is made zeros in memory, and goes to the disk with the page.
            rest = min(-change.offset % _PAGE, node.size - change.offset)
            change = change._replace(length=rest)
        node.changes.append(change)
        node.size = _size(node.size, change)

    def _write(self, call: Call) -> None:
        number, path = call.fd(0)
        data = call.text(1)[: int(call.result)]
        self._changed(self._at(path), Change(*call[:2], "write", self._positions[number], data))
        self._positions[number] += len(data)

    def _pwrite64(self, call: Call) -> None:
        data = call.text(1)[: int(call.result)]
        self._changed(self._at(call.fd(0)[1]), Change(*call[:2], "write", int(call.args[3]), data))

    def _pwritev(self, call: Call) -> None:
        pieces = re.findall(r'iov_base="([^"]*)"', " ".join(call.args))
        data = b"".join(map(unescaped, pieces))[: int(call.result)]
        assert len(data) == int(call.result), f"cannot follow {call.name}"
        node = self._at(call.fd(0)[1])
        self._changed(node, Change(*call[:2], "write", int(call.args[-1]), data))

    def _lseek(self, call: Call) -> None:
        self._positions[call.fd(0)[0]] = int(call.result)

    def _mmap(self, call: Call) -> None:
        written = "PROT_WRITE" in call.args[2] and "MAP_SHARED" in call.args[3]
        # SQLite makes its shared index again when the first process opens a database.
        is_index = call.fd(4)[1].endswith("-shm")
        assert not written or is_index, f"bytes written through a mapping are not seen: {call}"

    def _ftruncate(self, call: Call) -> None:
        self._changed(self._at(call.fd(0)[1]), Change(*call[:2], "resize", int(call.args[1])))

    def _fallocate(self, call: Call) -> None:
        node, mode = self._at(call.fd(0)[1]), call.args[1]
        offset, length = int(call.args[2]), int(call.args[3])
        if "PUNCH_HOLE" in mode:
            self._changed(node, Change(*call[:2], "zero", offset, length=length))
        elif mode == "0":
            self._changed(node, Change(*call[:2], "grow", offset + length))
        else:
            assert mode == "FALLOC_FL_KEEP_SIZE", f"cannot follow {call}"

    def _fsync(self, call: Call) -> None:
        self._at(call.fd(0)[1]).syncs.append((call.start, call.end))
        self.syncs += [call.start, call.end]
        self.moments.append(call.end)

    _fdatasync = _fsync

    def _mkdir(self, call: Call) -> None:
        folder, name = self._parent(call.paths()[-1])
        assert folder is not None
        self._named(call, folder, name, Node(is_folder=True))

    _mkdirat = _mkdir

    def _unlink(self, call: Call) -> None:
        folder, name = self._parent(call.paths()[-1])
        assert folder is not None
        self._named(call, folder, name, None)

    _unlinkat = _rmdir = _unlink

    def _rename(self, call: Call) -> None:
        (source, old), (folder, name) = map(self._parent, call.paths()[-2:])
        assert source is folder is not None, f"cannot follow {call}"
        self._named(call, folder, name, folder.now[old], old)

    _renameat = _renameat2 = _rename

    def _link(self, call: Call) -> None:
        (source, old), (folder, name) = map(self._parent, call.paths()[-2:])
        assert source is folder is not None, f"cannot follow {call}"
        self._named(call, folder, name, folder.now[old])

    _linkat = _link

    def choose(self, seed: int, after: int = 0) -> "Cut":
        """Choose a moment and what had arrived by then, the same for the same seed."""
        rng = np.random.default_rng(seed)
        moments = sorted(moment for moment in self.moments if moment >= after)
        syncs = [moment for moment in self.syncs if moment >= after]
        cut = moments[int(rng.integers(len(moments)))]
        if syncs and rng.random() < 0.5:
            # Around a sync is where most can be wrong.
            near = syncs[int(rng.integers(len(syncs)))]
            place = bisect_left(moments, near) + int(rng.integers(-1, 3))
            cut = moments[min(max(place, 0), len(moments) - 1)]
        return Cut(self, cut + 1, rng)


def _size(size: int, change: Change) -> int:
    """Give the size of a file behind a change."""
    if change.what == "write":
        return max(size, change.offset + len(change.data))
    if change.what == "grow":
        return max(size, change.offset)
    return change.offset if change.what == "resize" else size


class Cut:
    """One state of the disk."""

    def __init__(self, history: History, cut: int, rng: np.random.Generator) -> None:
        self.history = history
        self.cut = cut
        self._rng = rng
        self._by_name = rng.random() < 0.5

    def lines(self) -> list[str]:
        """Give what the program had said when the power went."""
        return [text for start, text in self.history.said if start < self.cut]

    def build(self, folder: Path) -> None:
        """Make the files."""
        folder.mkdir()
        self._fill(self.history.root, folder)

    def _fill(self, node: Node, path: Path) -> None:
        for name, each in sorted(self._names(node).items()):
            if each.is_folder:
                (path / name).mkdir()
                self._fill(each, path / name)
            else:
                self._bytes(each, path / name)

    def _names(self, node: Node) -> dict[str, Node]:
        safe = node.durable(self.cut)
        begun = [naming for naming in node.namings if naming.start < self.cut]
        late = [naming for naming in begun if naming.end > safe]
        sets = _related(late) if self._by_name else [late]
        kept = {id(one) for each in sets for one in each[: self._count(len(each))]}
        names = dict(node.names)
        for naming in begun:
            if naming.end <= safe or id(naming) in kept:
                if naming.old is not None:
                    names.pop(naming.old, None)
                if naming.node is None:
                    names.pop(naming.name, None)
                else:
                    names[naming.name] = naming.node
        return names

    def _count(self, most: int) -> int:
        """Choose how many of so many arrived: often none or all."""
        share = self._rng.random()
        return 0 if share < 0.3 else most if share < 0.6 else int(self._rng.integers(most + 1))

    def _bytes(self, node: Node, path: Path) -> None:
        safe = node.durable(self.cut)
        begun = [change for change in node.changes if change.start < self.cut]
        late = [change for change in begun if change.end > safe]
        resized = self._count(len(late))
        size = len(node.content)
        arrived = _Arrived(self._rng)
        with path.open("wb", buffering=0) as file:
            file.write(node.content)
            place = 0
            for change in begun:
                is_late = change.end > safe
                place += is_late
                if not is_late or place <= resized:
                    size = _size(size, change)
                if change.what == "resize" and (not is_late or place <= resized):
                    file.truncate(change.offset)
                data = change.data or bytes(change.length)
                whole = [(0, len(data))] if data else []
                for start, end in arrived.pieces(change, len(data), place) if is_late else whole:
                    os.pwrite(file.fileno(), data[start:end], change.offset + start)
            file.truncate(size)


class _Arrived:
    """Which sectors of one file arrived, and in which of their versions."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng
        self._share = float(rng.choice([0.0, 1.0, 0.5, 0.1, 0.9]))
        self._sector = int(rng.choice([512, 4096]))
        self._whole = rng.random() < 0.3
        self._versions: dict[int, float] = defaultdict(self._version)

    def _version(self) -> float:
        if self._rng.random() < self._share:
            return float("inf")
        return float(self._rng.integers(0, 40)) if self._rng.random() < 0.2 else 0.0

    def pieces(self, change: Change, length: int, place: int) -> list[tuple[int, int]]:
        """Give the parts of a write, the `place`th since the last sync, that arrived."""
        if self._whole:
            return [(0, length)] if length and self._rng.random() < self._share else []
        start, end = change.offset, change.offset + length
        edges = [start, *range((start // self._sector + 1) * self._sector, end, self._sector), end]
        # A sector goes to the disk as it is at some moment, with all that was written before.
        return [
            (first - start, last - start)
            for first, last in pairwise(edges)
            if self._versions[first // self._sector] >= place
        ]


def _related(namings: list[Naming]) -> list[list[Naming]]:
    """Part what happened in a folder into sets that share no name, each in its order."""
    groups: list[tuple[set[str], list[Naming]]] = []
    for naming in namings:
        names = {naming.name} | ({naming.old} if naming.old is not None else set())
        joined = [group for group in groups if group[0] & names]
        groups = [group for group in groups if not group[0] & names]
        merged = sorted((one for _, many in joined for one in many), key=lambda one: one.start)
        groups.append((names.union(*(group[0] for group in joined)), [*merged, naming]))
    return [many for _, many in groups]
