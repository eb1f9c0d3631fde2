"""A cache against a model: whatever happens to its files, bytes are right and the limit holds."""

import os
import shutil
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from relive.store.blobs import LEAF_BYTES, Blobs
from relive.store.cache.disk import DiskCache
from relive.store.cache.manage import shrink, verify
from tests.store.cache.blob_fixtures import (
    MIB,
    CountingRoot,
    allocated,
    cache_in,
    publish,
    random_bytes,
)

LIMIT = 5 * MIB
SIZES = (2 * MIB + 777, 3 * MIB, MIB, LEAF_BYTES + 1, LEAF_BYTES, 99)
CONTENTS = [random_bytes(size, seed) for seed, size in enumerate(SIZES)]


class CacheMachine(RuleBasedStateMachine):
    """Readers, other processes, damage and deletion, in any order."""

    @initialize()
    def start(self) -> None:
        """Publish blobs, and open an empty cache."""
        self.folder = Path(tempfile.mkdtemp())
        self.root = CountingRoot()
        self.refs = [publish(self.root, data) for data in CONTENTS]
        self.open()

    @rule()
    def open(self) -> None:
        """Open the cache as a new reader."""
        self.blobs = Blobs(self.root, cache_in(self.folder, LIMIT))

    @rule()
    def open_in_another_process(self) -> None:
        """Write through an object of its own, as another process has."""
        cache = cache_in(self.folder, LIMIT)
        other = DiskCache(cache.settings)
        ref, data = self.refs[1], CONTENTS[1]
        table = self.root.get(f"blobs/{ref.leaves[:2]}/{ref.leaves[2:4]}/{ref.leaves}").data  # type: ignore[index]
        other.keep_whole(cache.use, ref.leaves or "", table)
        other.writer.offer_leaves(cache.use, ref.digest, 0, data, table)
        assert other.writer.flush(30)

    @rule(
        reads=st.lists(
            st.tuples(st.integers(0, len(SIZES) - 1), st.floats(0, 1), st.floats(0, 1)), max_size=3
        )
    )
    def read(self, reads: list[tuple[int, float, float]]) -> None:
        """Read ranges."""
        wanted = []
        for number, one, other in reads:
            size = SIZES[number]
            wanted.append((number, int(min(one, other) * size), int(max(one, other) * size)))
        found = self.blobs.read_many([(self.refs[n], start, stop) for n, start, stop in wanted])
        for (number, start, stop), data in zip(wanted, found, strict=True):
            assert bytes(data) == CONTENTS[number][start:stop]

    @rule()
    def flush(self) -> None:
        """Wait until everything is written."""
        assert self.blobs.cache is not None
        assert self.blobs.cache.flush(30)

    @rule(which=st.integers(0, 1000), where=st.floats(0, 1, exclude_max=True))
    def change_a_byte(self, which: int, where: float) -> None:
        """Change a byte of any file but the sum of allocated bytes."""
        files = self.files()
        if files:
            path = files[which % len(files)]
            size = path.stat().st_size
            if size:
                with path.open("r+b") as file:
                    file.seek(int(where * size))
                    byte = file.read(1)[0]
                    file.seek(int(where * size))
                    file.write(bytes([byte ^ 4]))

    @rule(which=st.integers(0, 1000), where=st.floats(0, 1))
    def cut_a_file(self, which: int, where: float) -> None:
        """Cut off the end of any file."""
        files = self.files()
        if files:
            path = files[which % len(files)]
            os.truncate(path, int(where * path.stat().st_size))

    @rule(which=st.integers(0, 1000))
    def delete_a_file(self, which: int) -> None:
        """Delete any file."""
        files = self.files()
        if files:
            files[which % len(files)].unlink(missing_ok=True)

    @rule()
    def delete_everything(self) -> None:
        """Delete the cache."""
        shutil.rmtree(self.folder / "blobs", ignore_errors=True)

    @rule(limit=st.integers(0, LIMIT))
    def make_smaller(self, limit: int) -> None:
        """Run `cache gc`."""
        assert self.blobs.cache is not None
        self.blobs.cache.flush(30)
        shrink(self.blobs.cache.disk, limit)

    @rule()
    def verify(self) -> None:
        """Run `cache verify`; afterwards nothing is damaged."""
        assert self.blobs.cache is not None
        self.blobs.cache.flush(30)
        verify(self.blobs.cache.disk)
        assert verify(self.blobs.cache.disk).damaged == ()

    @invariant()
    def the_limit_holds(self) -> None:
        """The cache is never larger than it may be."""
        if hasattr(self, "folder"):
            assert allocated(self.folder) <= LIMIT

    def files(self) -> list[Path]:
        """Return the files that have data."""
        return sorted(
            path
            for path in self.folder.rglob("*")
            if path.is_file() and path.name != "usage" and "tmp" not in path.parts
        )

    def teardown(self) -> None:
        """Delete the cache."""
        if hasattr(self, "folder"):
            assert self.blobs.cache is not None
            self.blobs.cache.flush(30)
            shutil.rmtree(self.folder, ignore_errors=True)


TestCacheMachine = CacheMachine.TestCase
TestCacheMachine.settings = settings(max_examples=12, stateful_step_count=25, deadline=None)
