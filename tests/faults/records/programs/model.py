"""What a record store must hold after k operations: a list that deletes by moving its last.

Every value follows from the key and the version of its record, so that both sides of a test
make the same ones, and a value that belongs elsewhere is told from the right one.
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

import relive

State = tuple[tuple[str, ...], tuple[bytes, ...]]
"""The names of the fields, and a digest of each record."""

CHUNK_RECORDS: Final = 96
LATE: Final = ("late_dense", "late_text")


class Op(NamedTuple):
    """One call; `keys` are the key and the version of each record that it writes."""

    what: str
    rows: tuple[int, ...] = ()
    keys: tuple[tuple[int, int], ...] = ()
    field: str = ""


def fields() -> dict[str, relive.Field]:
    """Give one field of every kind: dense, compressed, ragged, and those of any size."""
    return {
        "key": relive.Field("int64"),
        # More than a block of checksums in a chunk, and not at its edge.
        "image": relive.Field("uint8", (32, 48)),
        "label": relive.Field("int16", (9,), codec="zstd"),
        "points": relive.Field("float32", (3,), ragged=True),
        "cube": relive.Field("uint16", (), ragged=2),
        "name": relive.Field("str"),
        "blob": relive.Field("bytes", codec="zstd"),
        "extra": relive.Field("json", codec="deflate"),
    }


def late_fields() -> dict[str, relive.Field]:
    """Give the fields that are added later."""
    return {
        "late_dense": relive.Field("float64", (5,)),
        "late_text": relive.Field("str", codec="lz4"),
    }


def value(name: str, key: int, version: int) -> Any:
    """Give the value of a field of the record with this key and version."""
    if name == "key":
        return np.int64(key)
    rng = np.random.default_rng((key, version, sum(name.encode())))
    few = int(rng.integers(0, 6))
    made: Any = f"{name} {key}.{version} é" * few
    match name:
        case "image":
            made = rng.integers(0, 256, (32, 48), dtype=np.uint8)
        case "label":
            made = np.full(9, rng.integers(0, 30000), np.int16)
        case "points":
            made = rng.random((few, 3), dtype=np.float32)
        case "cube":
            made = rng.integers(0, 9, (few, int(rng.integers(0, 4))), dtype=np.uint16)
        case "late_dense":
            made = rng.random(5)
        case "extra":
            made = {"key": key, "version": version, "list": list(range(few))}
        case "blob":
            # Some are long enough that other threads are woken up for them.
            made = b"blob %d.%d;" % (key, version) * (few * (40 if key % 4 else 600))
    return made


@cache
def digest(name: str, key: int, version: int) -> bytes:
    """Give what a value is known by."""
    return digest_of(value(name, key, version))


def digest_of(found: Any) -> bytes:
    """Give what a value that was read is known by."""
    if isinstance(found, (np.ndarray, np.generic)):
        array = np.asarray(found)
        about = f"{array.dtype.str}{array.shape}".encode()
        data = array.tobytes()
    elif isinstance(found, (bytes, str)):
        about, data = type(found).__name__.encode(), _bytes(found)
    else:
        about, data = b"json", json.dumps(found, sort_keys=True).encode()
    return hashlib.blake2b(data, digest_size=12, person=about[:16]).digest()


def _bytes(text: bytes | str) -> bytes:
    return text if isinstance(text, bytes) else text.encode()


def is_left_out(name: str, key: int, version: int) -> bool:
    """Whether a record with this key and version has no value in this field."""
    return name != "key" and (key * 7 + version + sum(name.encode())) % 6 == 0


def record(key: int, version: int, names: Sequence[str]) -> dict[str, Any]:
    """Give a record as a user would."""
    kept = [name for name in names if not is_left_out(name, key, version)]
    return {name: value(name, key, version) for name in kept}


def columns(keys: Sequence[tuple[int, int]], names: Sequence[str]) -> dict[str, Any]:
    """Give records as columns; the first one says which fields are left out."""
    made: dict[str, Any] = {}
    for name in names:
        if is_left_out(name, *keys[0]):
            continue
        rows = [value(name, key, version) for key, version in keys]
        fixed = isinstance(rows[0], np.generic) or name in {"image", "label", "late_dense"}
        made[name] = np.stack(rows) if fixed else rows
    return made


class Model:
    """A list of records, each the digests of its values by their fields."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = list(names)
        self.records: list[dict[str, bytes]] = []

    def state(self) -> State:
        """Give what a store with the same history must hold."""
        whole = [hashlib.blake2b(digest_size=16) for _ in self.records]
        for one, each in zip(whole, self.records, strict=True):
            for name in sorted(each):
                one.update(name.encode() + each[name])
        return tuple(self.names), tuple(one.digest() for one in whole)

    def apply(self, op: Op) -> list[tuple[int, int]]:
        """Do one operation; give the moves of a delete."""
        moves: list[tuple[int, int]] = []
        match op.what:
            case "append" | "extend":
                self.records += [self._digests(*key, op.keys[0]) for key in op.keys]
            case "replace":
                self.records[op.rows[0]] = self._digests(*op.keys[0], op.keys[0])
            case "change":
                new = {op.field: digest(op.field, *op.keys[0])}
                self.records[op.rows[0]] = self.records[op.rows[0]] | new
            case "delete":
                moves = self._delete(op.rows)
            case "add":
                self.names.append(op.field)
                for row, key in enumerate(op.keys):
                    self.records[row] = self.records[row] | {op.field: digest(op.field, *key)}
            case "drop":
                self.names.remove(op.field)
                self.records = [_without(each, op.field) for each in self.records]
            case _:
                raise AssertionError(op)
        return moves

    def _delete(self, rows: tuple[int, ...]) -> list[tuple[int, int]]:
        moves = []
        for row in sorted(rows, reverse=True):
            last = self.records.pop()
            if row < len(self.records):
                self.records[row] = last
                moves.append((len(self.records), row))
        return moves

    def _digests(self, key: int, version: int, asked: tuple[int, int]) -> dict[str, bytes]:
        kept = [name for name in self.names if not is_left_out(name, *asked)]
        return {name: digest(name, key, version) for name in kept}


def _without(each: dict[str, bytes], field: str) -> dict[str, bytes]:
    return {name: found for name, found in each.items() if name != field}


def apply(store: relive.RecordStore, op: Op) -> list[tuple[int, int]]:
    """Do one operation to a store; give the moves of a delete."""
    names = [*store.fields]
    match op.what:
        case "append":
            assert store.append(record(*op.keys[0], names)) == len(store) - 1
        case "extend":
            store.extend(columns(op.keys, names))
        case "replace":
            store[op.rows[0]] = record(*op.keys[0], names)
        case "change":
            store[op.field][op.rows[0]] = value(op.field, *op.keys[0])
        case "delete":
            return [(int(old), int(new)) for old, new in store.delete(list(op.rows))]
        case "add":
            made = columns(op.keys, [op.field])[op.field] if op.keys else None
            store.add_field(op.field, late_fields()[op.field], made)
        case "drop":
            store.drop_field(op.field)
        case _:
            raise AssertionError(op)
    return []


def states(model: Model, ops: Sequence[Op]) -> list[State]:
    """Give the state before the first operation, and after each."""
    found = [model.state()]
    for op in ops:
        model.apply(op)
        found.append(model.state())
    return found


def state_of(store: relive.RecordStore) -> State:
    """Read everything."""
    names = [*store.fields]
    whole = [hashlib.blake2b(digest_size=16) for _ in range(len(store))]
    rows = np.arange(len(store))
    batch = store.gather(rows)
    for name in sorted(names):
        lacks = store.missing(name, rows)
        column = batch[name]
        for row, one in enumerate(whole):
            if not lacks[row]:
                one.update(name.encode() + digest_of(column[row]))
    return tuple(names), tuple(one.digest() for one in whole)


def random_ops(seed: tuple[int, ...], length: int, names: Sequence[str]) -> Iterator[Op]:
    """Give operations without end for a store of this length and these fields."""
    rng = np.random.default_rng(seed)
    names = list(names)
    while True:
        op = _random_op(rng, length, names)
        length += len(op.keys) if op.what in {"append", "extend"} else 0
        length -= len(op.rows) if op.what == "delete" else 0
        names = [*names, op.field] if op.what == "add" else names
        names = [name for name in names if op.what != "drop" or name != op.field]
        yield op


def _random_op(rng: np.random.Generator, length: int, names: list[str]) -> Op:
    new = (int(rng.integers(1, 1 << 30)), int(rng.integers(100)))
    share = rng.random()
    free = [name for name in LATE if name not in names]
    if share < 0.01 and free:
        keys = tuple((int(rng.integers(1 << 30)), 1) for _ in range(length))
        # Half of them without values.
        return Op("add", keys=_full(free[0], keys) if rng.random() < 0.5 else (), field=free[0])
    if share < 0.02 and len(names) > 4:
        return Op("drop", field=names[int(rng.integers(1, len(names)))])
    if length > 150 or (length > 10 and share < 0.15):
        many = int(rng.integers(1, 4 if length <= 150 else length // 2))
        return Op("delete", tuple(rng.choice(length, many, replace=False).tolist()))
    if length and share < 0.55:
        row = (int(rng.integers(length)),)
        if share < 0.35:
            return Op("replace", row, (new,))
        return Op("change", row, (new,), names[int(rng.integers(1, len(names)))])
    many = int(rng.integers(1, 40)) if share < 0.7 else 1
    keys = tuple((new[0] + place, new[1]) for place in range(many))
    return Op("append" if many == 1 else "extend", keys=keys)


def _full(name: str, keys: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int], ...]:
    """Give keys of which the first has a value in this field."""
    return tuple((key, version + is_left_out(name, *keys[0])) for key, version in keys)


def create(path: Path, **options: Any) -> relive.RecordStore:
    """Make an empty store of small chunks."""
    return relive.RecordStore.create(path, fields(), chunk_size=CHUNK_RECORDS, **options)
