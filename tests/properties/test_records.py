"""A record store compared with a list of dicts that deletes by moving its last item.

For long runs, `RELIVE_RECORDS_EXAMPLES` sets the number of sequences of operations, and
`RELIVE_RECORDS_STEPS` the length of each.
"""

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from relive import Field, Ragged, RecordStore
from relive.errors import ReliveError

Record: TypeAlias = dict[str, Any]
"""A value for each field; None where there is none."""

EXAMPLES = int(os.environ.get("RELIVE_RECORDS_EXAMPLES", "60"))
STEPS = int(os.environ.get("RELIVE_RECORDS_STEPS", "20"))

POOL: dict[str, Field] = {
    "number": Field("i4"),
    "vec": Field("f4", (3,)),
    "small": Field("u1", (5,)),
    "packed": Field("u2", (40,), "zstd"),
    "swapped": Field(">i8", (2,), "lz4"),
    "nothing": Field("f8", (0, 2)),
    "when": Field("M8[ns]"),
    "pair": Field([("a", "i1"), ("b", "f8", (2,))]),
    "tokens": Field("i2", ragged=True),
    "points": Field("f4", (2,), "zstd", ragged=True),
    "image": Field("u1", (3,), "deflate", ragged=2),
    "grid": Field("f8", ragged=3),
    "blob": Field("bytes", codec="zstd"),
    "text": Field("str"),
    "data/meta": Field("json", codec="lz4"),
}

SIZES = st.sampled_from([0, 0, 1, 2, 3, 7])
LONG = st.sampled_from([b"", b"x", b"relive " * 40, bytes(300)])
JSON = st.recursive(
    st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


@st.composite
def array_of(draw: st.DrawFn, field: Field) -> npt.NDArray[Any]:
    """Draw an array that fits the field, of any bytes or of few different ones."""
    assert isinstance(field.dtype, np.dtype)
    shape = tuple(draw(SIZES) for _ in range(int(field.ragged))) + field.shape
    count = int(np.prod(shape, dtype=np.int64)) * field.dtype.itemsize
    seed = draw(st.integers(0, 2**16))
    data = np.random.default_rng(seed).bytes(count) if seed % 3 else bytes([seed % 251]) * count
    return np.frombuffer(data, field.dtype).reshape(shape)


def value_of(name: str) -> st.SearchStrategy[Any]:
    """Draw a value that fits the field."""
    field = POOL[name]
    if field.dtype == "bytes":
        return st.binary(max_size=40) | LONG
    if field.dtype == "str":
        return st.text(max_size=20)
    if field.dtype == "json":
        return JSON
    return array_of(field)


def seen(field: Field, value: Any) -> Any:
    """Return the value that is read back."""
    if value is not None:
        return value
    if isinstance(field.dtype, np.dtype):
        return np.zeros((0,) * int(field.ragged) + field.shape, field.dtype)
    return {"bytes": b"", "str": "", "json": None}[field.dtype]


def assert_same(found: Any, field: Field, value: Any) -> None:
    """Compare a value exactly."""
    wanted = seen(field, value)
    if not isinstance(field.dtype, np.dtype):
        assert type(found) is type(wanted)
        assert found == wanted
        return
    found = np.asarray(found)
    assert (found.dtype, found.shape) == (field.dtype, wanted.shape)
    assert found.tobytes() == wanted.tobytes()


class RecordStoreMachine(RuleBasedStateMachine):
    """Applies every operation to a store and to a list."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="relive-"))
        self.path = self.folder / "store"
        self.rows: list[Record] = []
        self.fields: dict[str, Field] = {}
        self.kept: tuple[list[Record], dict[str, Field]] | None = None
        """What was flushed; nothing before the first time."""
        self.born = False
        self.reader: RecordStore | None = None
        self.read: tuple[list[Record], dict[str, Field]] = ([], {})

    @initialize(
        names=st.lists(st.sampled_from(sorted(POOL)), min_size=1, max_size=8, unique=True),
        chunk_size=st.sampled_from([None, 1, 4, 1000]),
        workers=st.integers(1, 3),
    )
    def begin(self, names: list[str], chunk_size: int | None, workers: int) -> None:
        self.options = {"chunk_size": chunk_size, "workers": workers}
        self.fields = {name: POOL[name] for name in names}
        self.create()

    def create(self) -> None:
        self.store = RecordStore.create(self.path, self.fields, **self.options)

    def drawn(self, data: st.DataObject) -> Record:
        """Draw a record; some fields are absent or None."""
        left_out = data.draw(st.sets(st.sampled_from(sorted(self.fields)), max_size=3))
        return {
            name: data.draw(value_of(name))
            for name in self.fields
            if name not in left_out or data.draw(st.booleans())
        }

    def whole(self, record: Record) -> Record:
        return {name: record.get(name) for name in self.fields}

    def commit(self) -> None:
        self.born = self.born or bool(self.rows)
        self.kept = [dict(row) for row in self.rows], dict(self.fields)

    @rule(data=st.data())
    def append(self, data: st.DataObject) -> None:
        record = self.drawn(data)
        assert self.store.append(record) == len(self.rows)
        self.rows.append(self.whole(record))

    @rule(data=st.data(), count=st.integers(0, 6), as_columns=st.booleans())
    def extend(self, data: st.DataObject, count: int, *, as_columns: bool) -> None:
        records = [self.whole(self.drawn(data)) for _ in range(count)]
        given: Any = records
        if as_columns:
            kept = data.draw(st.sets(st.sampled_from(sorted(self.fields)), min_size=1))
            given = {name: self.column(name, [row[name] for row in records]) for name in kept}
            records = [self.whole({name: row[name] for name in kept}) for row in records]
        first = len(self.rows)
        assert self.store.extend(given) == range(first, first + count)
        self.rows += records

    def column(self, name: str, values: list[Any]) -> Any:
        """Return values as one array if possible."""
        field = self.fields[name]
        if any(value is None for value in values) or not isinstance(field.dtype, np.dtype):
            return values
        if not field.ragged:
            return np.array(values, field.dtype).reshape(len(values), *field.shape)
        if field.ragged == 1:
            lengths = [len(value) for value in values]
            flat = np.concatenate([np.empty((0, *field.shape), field.dtype), *values])
            return Ragged(flat, np.cumsum([0, *lengths]))
        sizes = [value.size for value in values]
        flat = np.concatenate([np.empty(0, field.dtype), *(value.ravel() for value in values)])
        dimensions = int(field.ragged) + len(field.shape)
        shapes = np.array([value.shape for value in values]).reshape(len(values), dimensions)
        return Ragged(flat, np.cumsum([0, *sizes]), shapes.astype(np.int64))

    @precondition(lambda self: self.rows)
    @rule(data=st.data())
    def replace(self, data: st.DataObject) -> None:
        row = data.draw(st.integers(-len(self.rows), len(self.rows) - 1))
        record = self.drawn(data)
        self.store[row] = record
        self.rows[row] = self.whole(record)

    @precondition(lambda self: self.rows)
    @rule(data=st.data())
    def change_one(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.fields)))
        row = data.draw(st.integers(0, len(self.rows) - 1))
        value = data.draw(st.none() | value_of(name))
        self.store[name][row] = value
        self.rows[row][name] = value

    @precondition(lambda self: self.rows)
    @rule(data=st.data())
    def change_many(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.fields)))
        rows = data.draw(st.lists(st.integers(0, len(self.rows) - 1), max_size=5))
        values = [data.draw(st.none() | value_of(name)) for _ in rows]
        self.store[name][rows] = self.column(name, values)
        for row, value in zip(rows, values, strict=True):
            self.rows[row][name] = value

    @precondition(lambda self: self.rows)
    @rule(data=st.data())
    def delete_one(self, data: st.DataObject) -> None:
        row = data.draw(st.integers(-len(self.rows), len(self.rows) - 1))
        del self.store[row]
        self.drop(row % len(self.rows))

    @precondition(lambda self: self.rows)
    @rule(data=st.data())
    def delete_several(self, data: st.DataObject) -> None:
        rows = data.draw(st.sets(st.integers(0, len(self.rows) - 1), max_size=6))
        moves = []
        for row in sorted(rows, reverse=True):
            if row != len(self.rows) - 1:
                moves.append((len(self.rows) - 1, row))
            self.drop(row)
        assert self.store.delete(data.draw(st.permutations(sorted(rows)))) == moves

    def drop(self, row: int) -> None:
        last = self.rows.pop()
        if row < len(self.rows):
            self.rows[row] = last

    @rule(data=st.data())
    def refuse(self, data: st.DataObject) -> None:
        record = self.drawn(data) | {"no such field": 1}
        with pytest.raises(ReliveError):
            self.store.append(record)
        name = data.draw(st.sampled_from(sorted(self.fields)))
        with pytest.raises(ReliveError):
            self.store.extend([{}, {name: object()}])

    @rule()
    def flush(self) -> None:
        self.store.flush()
        self.commit()

    @rule()
    def sync(self) -> None:
        self.store.sync()
        self.commit()

    @rule(progress=st.booleans(), recompress=st.booleans())
    def rebalance(self, *, progress: bool, recompress: bool) -> None:
        reported: list[tuple[int, int]] = []
        self.store.rebalance(
            recompress, (lambda *done: reported.append(done)) if progress else None
        )
        assert not progress or reported[-1:] in ([], [(len(self.rows), len(self.rows))])
        self.commit()

    @rule(data=st.data(), filled=st.booleans())
    def add_field(self, data: st.DataObject, *, filled: bool) -> None:
        absent = sorted(set(POOL) - set(self.fields))
        if not absent:
            return
        name = data.draw(st.sampled_from(absent))
        values = [data.draw(st.none() | value_of(name)) if filled else None for _ in self.rows]
        self.fields[name] = POOL[name]
        self.store.add_field(name, POOL[name], self.column(name, values) if filled else None)
        for row, value in zip(self.rows, values, strict=True):
            row[name] = value
        self.commit()

    @precondition(lambda self: len(self.fields) > 1)
    @rule(data=st.data())
    def drop_field(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.fields)))
        self.store.drop_field(name)
        del self.fields[name]
        for row in self.rows:
            del row[name]
        self.commit()

    @rule(workers=st.integers(1, 3))
    def reopen(self, workers: int) -> None:
        self.store.close()
        self.commit()
        self.store = RecordStore.open(self.path, mode="a", workers=workers)

    @rule()
    def abort(self) -> None:
        self.store.abort()
        if not self.path.exists():
            # None of its changes were flushed.
            assert self.kept is None or not self.born
            self.rows, self.kept = [], None
            self.reader = None
            self.create()
            return
        assert self.kept is not None
        self.rows = [dict(row) for row in self.kept[0]]
        self.fields = dict(self.kept[1])
        self.store = RecordStore.open(self.path, mode="a")

    @rule(io=st.sampled_from(["mmap", "pread"]), verify=st.sampled_from(["first", "always"]))
    def open_reader(self, io: str, verify: str) -> None:
        self.reader = RecordStore.open(self.path, io=io, verify=verify)
        self.read = self.kept or ([], dict(self.fields))

    @precondition(lambda self: self.reader is not None)
    @rule()
    def refresh_reader(self) -> None:
        assert self.reader is not None
        self.reader.refresh()
        self.read = self.kept or ([], dict(self.fields))

    @precondition(lambda self: self.reader is not None)
    @rule()
    def compare_reader(self) -> None:
        assert self.reader is not None
        self.compare(self.reader, *self.read)

    @rule()
    def compare_writer(self) -> None:
        self.compare(self.store, self.rows, self.fields)

    @precondition(lambda self: self.rows)
    @rule(data=st.data())
    def gather(self, data: st.DataObject) -> None:
        rows = data.draw(st.lists(st.integers(0, len(self.rows) - 1), max_size=8))
        names = data.draw(st.lists(st.sampled_from(sorted(self.fields)), unique=True))
        batch = self.store.gather(rows, names)
        assert list(batch) == names
        for name in names:
            for row, value in zip(rows, batch[name], strict=True):
                assert_same(value, self.fields[name], self.rows[row][name])

    @invariant()
    def has_as_many_records(self) -> None:
        if self.fields:
            assert len(self.store) == len(self.rows)

    def compare(self, store: RecordStore, rows: list[Record], fields: dict[str, Field]) -> None:
        assert dict(store.fields) == fields
        assert len(store) == len(rows)
        batch = store.gather(range(len(rows)))
        for name, field in fields.items():
            assert store.missing(name).tolist() == [row[name] is None for row in rows]
            whole = store[name][:]
            for position, row in enumerate(rows):
                assert_same(batch[name][position], field, row[name])
                assert_same(whole[position], field, row[name])
                assert_same(store[name][position], field, row[name])

    def teardown(self) -> None:
        try:
            if self.fields:
                self.compare(self.store, self.rows, self.fields)
                self.store.close()
                with RecordStore.open(self.path) as store:
                    self.compare(store, self.rows, self.fields)
                    assert store.validate("full").ok
                if self.reader is not None:
                    self.compare(self.reader, *self.read)
        finally:
            shutil.rmtree(self.folder)


TestRecordStore = RecordStoreMachine.TestCase
TestRecordStore.settings = settings(max_examples=EXAMPLES, stateful_step_count=STEPS, deadline=None)
