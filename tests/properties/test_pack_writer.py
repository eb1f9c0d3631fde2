"""A pack writer compared with a list: the entries read are the entries appended."""

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

import relive
from relive.errors import ReliveError
from relive.store.pack import merge, recover, subset
from tests.store.pack.packs import make_run

PAYLOADS = st.binary(max_size=200) | st.integers(0, 5000).map(lambda size: b"\7" * size)
CODECS = st.sampled_from([None, "raw", "deflate", "zstd", "lz4"])
RUNS = [make_run(steps, seed).to_bytes() for seed, steps in enumerate([0, 1, 64, 65, 130])]


class PackWriterMachine(RuleBasedStateMachine):
    """Appends to a writer and to a list, and compares them at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="relive-"))
        self.path = self.folder / "a.a2pack"
        self.wanted: list[tuple[bytes, str, str | None]] = []
        self.writer: relive.PackWriter | None = None

    @initialize(
        align=st.sampled_from([1, 8, 64, 4096]),
        capacity=st.sampled_from([None, 0, 1, 5]),
        codec=st.sampled_from(["raw", "zstd"]),
        checksum=st.booleans(),
        steps=st.booleans(),
    )
    def begin(
        self, align: int, capacity: int | None, codec: str, *, checksum: bool, steps: bool
    ) -> None:
        self.writer = relive.PackWriter(
            self.path, align=align, capacity=capacity, codec=codec, checksum=checksum, steps=steps
        )

    @property
    def open(self) -> relive.PackWriter:
        assert self.writer is not None
        return self.writer

    @precondition(lambda self: self.writer is not None)
    @rule(payload=PAYLOADS, codec=CODECS, named=st.booleans())
    def append(self, payload: bytes, codec: str | None, *, named: bool) -> None:
        name = f"entry {len(self.wanted)}" if named else None
        assert self.open.append(payload, name=name, codec=codec) == len(self.wanted)
        self.wanted.append((payload, "bytes", name))

    @precondition(lambda self: self.writer is not None)
    @rule(runs=st.lists(st.sampled_from(RUNS), max_size=4), codec=CODECS)
    def extend(self, runs: list[bytes], codec: str | None) -> None:
        first = len(self.wanted)
        assert self.open.extend(runs, "auto", codec=codec) == range(first, first + len(runs))
        self.wanted += [(run, "v2", None) for run in runs]

    @precondition(lambda self: self.writer is not None)
    @rule(run=st.sampled_from(RUNS), cut=st.integers(1, 5))
    def refuse(self, run: bytes, cut: int) -> None:
        with pytest.raises(ReliveError):
            self.open.extend([RUNS[0], run[:-cut]], "v2")
        if names := [name for _, _, name in self.wanted if name]:
            with pytest.raises(ReliveError):
                self.open.append(b"", name=names[0])
        assert len(self.open) == len(self.wanted)

    @precondition(lambda self: self.writer is not None)
    @rule()
    def flush(self) -> None:
        self.open.flush()

    @precondition(lambda self: self.writer is not None)
    @rule()
    def close(self) -> None:
        self.open.close()
        self.writer = None
        self.compare(self.path, self.wanted)

    @precondition(lambda self: self.writer is not None)
    @rule()
    def leave(self) -> None:
        self.open.leave()
        self.writer = None
        assert not self.path.exists()
        assert recover(self.path).entries == len(self.wanted)
        self.compare(self.path, self.wanted)

    @precondition(lambda self: self.writer is not None)
    @rule(share=st.floats(0, 1))
    def truncate(self, share: float) -> None:
        self.open.flush()
        (left,) = self.folder.glob("*.unfinished-????????")
        self.open.leave()
        self.writer = None
        data = left.read_bytes()
        left.write_bytes(data[: int(len(data) * share)])
        found = recover(left)
        assert found.entries + found.lost == len(self.wanted)
        self.compare(self.path, self.wanted[: found.entries])
        self.wanted = self.wanted[: found.entries]

    @precondition(lambda self: self.writer is None)
    @rule(data=st.data())
    def copy(self, data: st.DataObject) -> None:
        if not self.path.exists():
            return
        with relive.PackReader.open(self.path) as reader:
            rows = data.draw(st.permutations(range(len(reader))))[:5]
            subset(reader[rows], self.folder / "subset", overwrite=True)
            merge([reader[rows[:2]], reader[rows[2:]]], self.folder / "merged", overwrite=True)
        for name in ("subset", "merged"):
            self.compare(self.folder / name, [self.wanted[row] for row in rows])

    def compare(self, path: Path, wanted: list[tuple[bytes, str, str | None]]) -> None:
        with relive.PackReader.open(path) as reader:
            assert reader.validate("full").ok
            found = [
                (bytes(reader.payload(row)), reader.kind(row), reader.name(row))
                for row in range(len(reader))
            ]
            assert found == wanted
            assert len(reader.steps()) == sum(
                len(relive.Run.from_bytes(payload)) for payload, kind, _ in wanted if kind == "v2"
            )

    def teardown(self) -> None:
        if self.writer is not None:
            self.writer.abort()
        shutil.rmtree(self.folder)


TestPackWriter = PackWriterMachine.TestCase
TestPackWriter.settings = settings(max_examples=40, stateful_step_count=12, deadline=None)
