"""Creates the golden record stores, each with its expected content.

`python -m tests.golden.records.assemble` writes the missing stores next to this file, with the
current writer. Existing stores are never changed: stores that were readable once stay readable.
Each store has its own number, so no two are equal byte by byte.
"""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import relive
from relive import Field
from tests.golden.read_records import Store

FOLDER = Path(__file__).resolve().parent
Record = dict[str, Any]
PIECE = 10
"""Bytes of a frame that was never finished, at the end of a journal."""


def plain(path: Path) -> list[Record]:
    """Fields of fixed size, stored raw, appended and extended; names with special characters."""
    fields = {
        "cam/left": Field("uint8", (4, 4)),
        ".state": Field("float32", (3,)),
        "größe 100%": Field(">c8", (1, 2)),
        "pair": Field([("a", "<u2"), ("b", "?", (2,))]),
        "nothing": Field("float64", (0,)),
    }
    records: list[Record] = [
        {
            "cam/left": np.full((4, 4), k, np.uint8),
            ".state": np.array([k, k / 2, np.nan], np.float32),
            "größe 100%": np.array([[k, 1j * k]], ">c8"),
            "pair": np.array((k, [True, k % 2]), fields["pair"].dtype),
            "nothing": np.zeros(0),
        }
        for k in range(7)
    ]
    with relive.RecordStore.create(path, fields, workers=1) as store:
        for record in records[:3]:
            store.append(record)
        store.extend({name: np.stack([each[name] for each in records[3:]]) for name in fields})
    return records


def every_codec(path: Path) -> list[Record]:
    """Every codec and type of value: long, short, and noise, which stays raw."""
    codecs = ("raw", "deflate", "zstd", "lz4")
    fields = {f"str-{codec}": Field("str", codec=codec) for codec in codecs}
    fields |= {f"array-{codec}": Field("int16", (30,), codec=codec) for codec in codecs[1:]}
    fields |= {"bytes-zstd": Field("bytes", codec="zstd"), "json-lz4": Field("json", codec="lz4")}
    noise = np.random.default_rng(0).bytes(64)
    records = []
    for k in range(3):
        value = {
            "bytes": noise if k == 0 else bytes([k]) * 40 * k,
            "str": "" if k == 0 else "größer " * 9 * k,
            "json": [None, {"k": [k] * 30}, "ü" * 50][k],
            "array": np.arange(30, dtype=np.int16) // 10 + k,
        }
        records.append({name: value[name.partition("-")[0]] for name in fields})
    with relive.RecordStore.create(path, fields, workers=1) as store:
        for record in records:
            store.append(record)
    return records


def ragged(path: Path) -> list[Record]:
    """Rows of any length, in one or more dimensions; empty and missing values."""
    fields = {
        "path": Field("float32", (2,), ragged=True),
        "tokens": Field("uint16", codec="zstd", ragged=True),
        "image": Field("uint8", (3,), ragged=2),
        "volume": Field("int8", codec="lz4", ragged=3),
    }
    records = [
        {
            "path": np.full((k, 2), k, np.float32),
            "tokens": np.full(30 * k, k, np.uint16),
            "image": np.full((k, 2 * k, 3), k, np.uint8),
            "volume": np.full((k % 2, k, 20), k, np.int8),
        }
        for k in range(4)
    ]
    records += [{"path": None, "tokens": None, "image": None, "volume": None}]
    with relive.RecordStore.create(path, fields, workers=1) as store:
        for record in records[:2]:
            store.append(record)
        store.extend({name: [record[name] for record in records[2:]] for name in fields})
    return records


def blocks(path: Path) -> list[Record]:
    """More than one block of checksums, in two chunks, and a field that only later rows have."""
    values = (np.arange(36 * 1024).reshape(36, 1024) // 64).astype(np.uint16)
    marks = np.arange(16, dtype=np.uint8)
    fields = {"row": Field("uint16", (1024,)), "mark": Field("uint8")}
    with relive.RecordStore.create(path, fields, chunk_size=34, workers=1) as store:
        store.extend({"row": values[:20]})
    with relive.RecordStore.open(path, mode="a", workers=1) as store:
        store.extend({"row": values[20:], "mark": marks})
    return [
        {"row": value, "mark": None if k < 20 else marks[k - 20]} for k, value in enumerate(values)
    ]


_CHANGING = {
    "state": Field("float32", (2,)),
    "label": Field("uint8"),
    "caption": Field("str", codec="zstd"),
    "path": Field("int32", ragged=True),
}


def _record(k: int) -> Record:
    caption = f"step {k}, " * 5
    return {
        "state": np.array([k, -k], np.float32),
        "label": np.uint8(k),
        "caption": caption,
        "path": np.arange(k % 4, dtype=np.int32),
    }


def _begin(path: Path) -> list[Record]:
    """Ten records, then two generations with missing values."""
    records = [_record(k) for k in range(10)]
    with relive.RecordStore.create(path, _CHANGING, workers=1) as store:
        for record in records:
            store.append(record)
    with relive.RecordStore.open(path, mode="a", workers=1) as store:
        store.extend({"label": np.arange(20, 24, dtype=np.uint8)})
        store["state"][2] = [0.5, 0.25]
        store.delete([0])
    nothing = dict.fromkeys(_CHANGING)
    records += [nothing | {"label": np.uint8(k)} for k in range(20, 24)]
    records[2]["state"] = np.array([0.5, 0.25], np.float32)
    records[0] = records.pop()
    return records


def _change(store: relive.RecordStore, records: list[Record]) -> None:
    """Changes of every kind, flushed and synced in between."""
    store["caption"][3] = "another one"
    store["label"][[4, 5]] = np.array([44, 55], np.uint8)
    store.flush()
    records[3]["caption"] = "another one"
    records[4]["label"], records[5]["label"] = np.uint8(44), np.uint8(55)
    store[6] = {"state": np.ones(2, np.float32)}
    records[6] = dict.fromkeys(_CHANGING) | {"state": np.ones(2, np.float32)}
    store["path"][7] = None
    records[7]["path"] = None
    assert store.delete([1, 12]) == [(11, 1)]
    records.pop(12)
    records[1] = records.pop()
    store.sync()
    for k in (30, 31):
        store.append(_record(k))
    store.extend({"caption": ["many", ""], "path": [[1, 2], []]})
    records += [_record(30), _record(31)]
    for caption, numbers in (("many", [1, 2]), ("", [])):
        value = np.array(numbers, np.int32)
        records.append(dict.fromkeys(_CHANGING) | {"caption": caption, "path": value})
    store["state"][-1] = [7, 7]
    records[-1]["state"] = np.array([7, 7], np.float32)
    store.flush()


def changed(path: Path) -> list[Record]:
    """A store whose writer was never closed: its journal is not folded, and ends incomplete."""
    work = path.with_name(f"{path.name}.work")
    records = _begin(work)
    store = relive.RecordStore.open(work, mode="a", workers=1)
    _change(store, records)
    shutil.copytree(work, path)
    store.close()
    shutil.rmtree(work)
    found = Store(path)
    for number, (end, _) in found.ends.items():
        with (path / "chunk" / f"{number}.zr").open("r+b") as file:
            file.truncate(end)  # followed by a MiB of reserved space
    journal = path / found.meta["journal"]
    journal.write_bytes(journal.read_bytes() + b"JREC\x40\0\0\0\xff\0"[:PIECE])
    return records


def folded(path: Path) -> list[Record]:
    """The same store, closed: tables contain the locations of values."""
    records = _begin(path)
    with relive.RecordStore.open(path, mode="a", workers=1) as store:
        _change(store, records)
    return records


def rebalanced(path: Path) -> list[Record]:
    """The same store, rebalanced, with one field added and one dropped."""
    records = _begin(path)
    with relive.RecordStore.open(path, mode="a", workers=1) as store:
        _change(store, records)
        rewards = np.arange(len(records), dtype=np.float64)
        store.add_field("reward", Field("float64"), rewards)
        store.drop_field("label")
        store.rebalance()
    for record, reward in zip(records, rewards, strict=True):
        record["reward"] = reward
        del record["label"]
    return records


def dictionary(path: Path) -> list[Record]:
    """Values compressed without a dictionary, with one, and with a later one."""
    texts = [f'{{"step": {k}, "action": "move {k % 7}"}}' for k in range(100)]
    with relive.RecordStore.create(path, {"text": Field("str", codec="zstd")}, workers=1) as store:
        store.extend({"text": texts})
        store.train_dictionary("text", 512)
        store.extend({"text": texts[:20]})
        store.train_dictionary("text", 400)
        store.extend({"text": texts[20:40]})
        store.delete(range(20, 100))
    kept = texts + texts[:40]
    for row in reversed(range(20, 100)):
        kept[row] = kept[-1]
        kept.pop()
    return [{"text": text} for text in kept]


STORES: dict[str, Callable[[Path], list[Record]]] = {
    "blocks": blocks,
    "changed": changed,
    "dictionary": dictionary,
    "every-codec": every_codec,
    "folded": folded,
    "plain": plain,
    "ragged": ragged,
    "rebalanced": rebalanced,
}


def make(name: str, path: Path) -> list[Record]:
    """Create a store, and return its expected content."""
    records = STORES[name](path)
    (path / "LOCK").unlink()  # contains a process id, which readers do not need
    return records


def main() -> None:
    """Write the missing stores."""
    for name in STORES:
        if not (FOLDER / name).exists():
            make(name, FOLDER / name)


if __name__ == "__main__":
    main()
