"""What every root promises: objects by key, whole or not at all, changed one writer at a time.

`check_*` functions take an empty root that can be written; `check_read_*` take one that has the
objects of `OBJECTS`.
"""

import pickle
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import numpy as np
import pytest

from relive import errors
from relive.store.digest import FileDigest, digest_of
from relive.store.remote.ranges import GAP_BYTES, MAX_REQUEST_BYTES, join
from relive.store.roots import Root

BIG: Final = np.random.default_rng(3).bytes(MAX_REQUEST_BYTES + 300_000)
OBJECTS: Final = {
    "a/small": b"some bytes",
    "a/empty": b"",
    "a/b/deep": b"deeper",
    "big": BIG,
}
BAD_KEYS: Final = (
    "",
    "/a",
    "a/",
    "a//b",
    "..",
    "../a",
    "a/../b",
    "a/./b",
    ".hidden",
    "a/.tmp",
    "a\0b",
    "a\\b",
    "x" * 300,
)


def fill(root: Root) -> None:
    """Write `OBJECTS`."""
    for key, data in OBJECTS.items():
        root.put(key, data)


def check_read_get(root: Root) -> None:
    """`get` returns content and tag; `if_changed` returns None for the same tag."""
    found = root.get("a/small")
    assert found.data == b"some bytes"
    assert type(found.data) is bytes
    assert root.get("a/small", if_changed=found.tag) is None
    other = root.get("a/small", if_changed=root.get("a/b/deep").tag)
    assert other is not None
    assert other.data == b"some bytes"
    assert root.get("a/empty").data == b""
    with pytest.raises(errors.NotFoundError, match="a/none` does not exist"):
        root.get("a/none")


def check_read_many(root: Root) -> None:
    """Many objects are returned in order, with None for missing ones."""
    found = root.get_many(["a/b/deep", "none", "a/small", "a/small", "none/none"])
    data = [each and each.data for each in found]
    assert data == [b"deeper", None, b"some bytes", b"some bytes", None]
    assert root.get_many([]) == []
    assert root.exists(["a/small", "none", "a/empty"]) == [True, False, True]
    assert root.exists([]) == []


def check_read_ranges(root: Root) -> None:
    """Ranges of many objects have exactly the requested bytes, in order; all are checked."""
    end = len(BIG)
    ranges = [
        ("big", 5, 9),
        ("a/small", 0, 10),
        ("big", 0, end),
        ("big", end - 1, end),
        ("big", 7, 7),
        ("a/small", 3, 4),
        ("big", GAP_BYTES, 3 * GAP_BYTES),
        ("none", 3, 3),
    ]
    seen: list[tuple[str, int, int]] = []
    lock = threading.Lock()

    def check(key: str, start: int, data: bytes | memoryview) -> None:
        assert bytes(data) == OBJECTS[key][start : start + len(data)]
        with lock:
            seen.append((key, start, start + len(data)))

    for gap in (None, 0):
        seen.clear()
        found = root.read_ranges(ranges, check, gap=gap)
        assert [bytes(each) for each in found] == [
            OBJECTS.get(key, b"")[start:stop] for key, start, stop in ranges
        ]
        for key, start, stop in ranges:
            covered = join([each[1:] for each in seen if each[0] == key], 0)
            assert start == stop or any(a <= start < stop <= b for a, b in covered)
    assert root.read_ranges([]) == []


def check_read_range_errors(root: Root) -> None:
    """A missing or short object is an error, and so is what `check` raises."""
    with pytest.raises(errors.NotFoundError, match="none"):
        root.read_ranges([("a/small", 0, 2), ("none", 0, 5)])
    for start, stop in ((5, 11), (10, 11), (50, 60)):
        with pytest.raises(errors.CorruptError, match="too short"):
            root.read_ranges([("a/small", start, stop)])
    for start, stop in ((-1, 2), (3, 2)):
        with pytest.raises(errors.OutOfRangeError):
            root.read_ranges([("a/small", start, stop)])

    def check(key: str, _: int, __: bytes | memoryview) -> None:
        raise errors.CorruptError(f"{key} is wrong")

    with pytest.raises(errors.CorruptError, match="big is wrong"):
        root.read_ranges([("big", 0, len(BIG))], check)


def check_read_keys(root: Root) -> None:
    """Keys that are not relative paths are refused, with any method."""
    calls = (
        root.get,
        lambda key: root.get_many([key]),
        lambda key: root.exists([key]),
        lambda key: root.read_ranges([(key, 0, 1)]),
    )
    for key in BAD_KEYS:
        for call in calls:
            with pytest.raises(errors.InvalidError, match="not a valid key"):
                call(key)


def check_read_threads(root: Root) -> None:
    """Threads share a root."""
    with ThreadPoolExecutor(8) as pool:
        found = [*pool.map(lambda at: root.read_ranges([("big", at, at + 9)])[0], range(40))]
        got = [*pool.map(lambda _: root.get("a/small").data, range(20))]
    assert found == [BIG[at : at + 9] for at in range(40)]
    assert got == [b"some bytes"] * 20


def check_read_copy(root: Root) -> None:
    """A root pickles as its address, and the copy reads the same."""
    dumped = pickle.dumps(root)
    assert len(dumped) < 600
    copy: Root = pickle.loads(dumped)  # noqa: S301 - our own data
    assert copy.name == root.name
    assert copy.get("a/small") == root.get("a/small")
    assert root.name in repr(root)
    assert root.uri("a/small") == f"{root.name}/a/small"


def check_put(root: Root, tmp_path: Path) -> None:
    """`put` writes and replaces, from bytes and from files."""
    path = tmp_path / "body"
    path.write_bytes(BIG)
    for body, data in ((b"one", b"one"), (b"", b""), (path, BIG), (b"two", b"two")):
        root.put("x/y", body, immutable=False)
        assert root.get("x/y").data == data
    with pytest.raises(errors.NotFoundError):
        root.put("x/z", tmp_path / "none")
    assert root.exists(["x/z"]) == [False]
    for key in BAD_KEYS:
        for call in (root.put, root.create):
            with pytest.raises(errors.InvalidError, match="not a valid key"):
                call(key, b"")


def check_put_file(root: Root, tmp_path: Path) -> None:
    """`put_file` writes a file with the expected content, and else changes nothing."""
    path = tmp_path / "body"
    path.write_bytes(BIG)
    right, sent = digest_of(path), list[int]()
    longer = FileDigest(right.size + 1, right.sha256)
    other = FileDigest(right.size, "0" * 64)
    for kept in (None, b"by another writer"):
        if kept is not None:
            root.put("x/y", kept)
        for wrong in (other, longer):
            with pytest.raises(errors.UnfinishedError, match="changed while it was being"):
                root.put_file("x/y", path, wrong, sent.append)
            there = root.get_many(["x/y"])[0]
            assert (there and there.data) == kept
    root.put_file("x/y", path, right, sent.append)
    assert root.get("x/y").data == BIG
    with path.open("ab") as file:
        file.write(b"more")  # after it was hashed; the expected bytes are still there
    root.put_file("x/z", path, right, sent.append)
    assert root.get("x/z").data == BIG
    assert all(0 < each <= len(BIG) for each in sent)
    with pytest.raises(errors.NotFoundError):
        root.put_file("x/a", tmp_path / "none", right, sent.append)
    assert sorted(entry.key for entry in root.list()) == ["x/y", "x/z"]


def check_create(root: Root) -> None:
    """`create` writes once."""
    tag = root.create("p/pointer", b"first")
    assert root.get("p/pointer") == (b"first", tag)
    with pytest.raises(errors.AlreadyExistsError, match="p/pointer` already exists"):
        root.create("p/pointer", b"second")
    assert root.get("p/pointer").data == b"first"
    root.delete(["p/pointer"])
    root.create("p/pointer", b"third", immutable=True)
    assert root.get("p/pointer").data == b"third"


def check_replace(root: Root) -> None:
    """`replace` needs the current tag."""
    first = root.create("p", b"first")
    second = root.replace("p", b"second", first)
    assert root.get("p") == (b"second", second)
    for tag in (first, '"nonsense"'):
        with pytest.raises(errors.ConflictError, match="p` was changed by another writer"):
            root.replace("p", b"stale", tag)
    assert root.get("p").data == b"second"
    root.put("p", b"other", immutable=False)
    with pytest.raises(errors.ConflictError):
        root.replace("p", b"stale", second)
    root.delete(["p"])
    with pytest.raises(errors.ConflictError):
        root.replace("p", b"stale", second)
    assert root.exists(["p"]) == [False]


def check_races(root: Root) -> None:
    """Of many writers that create or replace at once, exactly one succeeds."""
    tag = root.create("r", b"0")
    for turn in range(2):

        def replace(writer: int, turn: int = turn, tag: str = tag) -> str | None:
            try:
                return root.replace("r", f"{turn} {writer} {'x' * turn}".encode(), tag)
            except errors.ConflictError:
                return None

        def create(writer: int, turn: int = turn) -> str | None:
            try:
                return root.create(f"c/{turn}", f"{writer}".encode())
            except errors.AlreadyExistsError:
                return None

        with ThreadPoolExecutor(5) as pool:
            replaced = [each for each in pool.map(replace, range(5)) if each]
            created = [each for each in pool.map(create, range(5)) if each]
        assert len(replaced) == len(created) == 1
        assert root.get("r").tag == replaced[0]
        assert root.get(f"c/{turn}").tag == created[0]
        tag = replaced[0]


def check_list(root: Root) -> None:
    """`list` yields the objects of a folder, with sizes and times."""
    assert [*root.list()] == []
    before = time.time()
    fill(root)
    listed = {entry.key: entry for entry in root.list()}
    assert {key: entry.size for key, entry in listed.items()} == {
        key: len(data) for key, data in OBJECTS.items()
    }
    assert all(before - 5 < entry.modified_s < time.time() + 5 for entry in listed.values())
    for prefix in ("a", "a/"):
        assert {entry.key for entry in root.list(prefix)} == {"a/small", "a/empty", "a/b/deep"}
    assert {entry.key for entry in root.list("a/b")} == {"a/b/deep"}
    for prefix in ("a/sm", "none", "bi", "a/small"):
        assert [*root.list(prefix)] == []
    with pytest.raises(errors.InvalidError, match="not a valid key"):
        [*root.list("../a")]


def check_delete(root: Root) -> None:
    """`delete` removes objects and ignores missing ones."""
    fill(root)
    root.delete(["a/small", "none", "a/none/none", "big"])
    assert root.exists([*OBJECTS]) == [False, True, True, False]
    root.delete([])
    with pytest.raises(errors.InvalidError, match="not a valid key"):
        root.delete(["../a"])


READ: Final = (
    check_read_get,
    check_read_many,
    check_read_ranges,
    check_read_range_errors,
    check_read_keys,
    check_read_threads,
)
WRITE: Final = (check_create, check_replace, check_races, check_list, check_delete)
