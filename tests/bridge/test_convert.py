"""What all conversions share: fields, codecs, limits, progress, kinds and order."""

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import relive
from relive.bridge.detect import detect_kind
from relive.bridge.options import ReadOptions, parse_fields
from relive.bridge.rows import RowReader, RowStream
from relive.bridge.stream import ColumnBatch, Stream, read_ahead
from relive.errors import (
    CorruptError,
    InvalidError,
    InvalidTypeError,
    NotFoundError,
    UnknownFieldError,
    UnsupportedError,
)
from relive.model.schema import Field
from relive.store.records import RecordStore
from tests.bridge.sample_files import contents, tar, tfrecord

COLUMNS: dict[str, Any] = {
    "a": np.arange(10),
    "b": np.arange(10.0),
    "c": [f"text {number}" for number in range(10)],
}


def test_convert_is_a_public_name() -> None:
    assert relive.convert is relive.bridge.convert


def test_fields_as_a_list_select_and_as_a_dict_change(tmp_path: Path) -> None:
    assert [*relive.convert(COLUMNS, tmp_path / "1", fields=["c", "a"]).fields] == ["c", "a"]
    assert [*relive.convert(COLUMNS, tmp_path / "2", fields={"b": None}).fields] == ["a", "c"]
    made = relive.convert(
        COLUMNS,
        tmp_path / "3",
        fields={"a": "x", "b": Field("f4"), "c": ("words", Field("json"))},
    )
    assert made.fields == {"x": Field("i8"), "b": Field("f4"), "words": Field("json")}
    assert contents(made.path)[3] == {"x": 3, "b": 3.0, "words": "text 3"}


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        (["d"], UnknownFieldError, "unknown field 'd'"),
        ({"d": "x"}, UnknownFieldError, "unknown field 'd'"),
        ("a", InvalidTypeError, "must be a list or a dict"),
        ([], InvalidTypeError, "must be a list of field names"),
        ([1], InvalidTypeError, "must be a list of field names"),
        (
            {"a": 3},
            InvalidTypeError,
            r"must be a new name, a Field, a \(name, Field\) pair or None",
        ),
        ({"a": "b"}, InvalidError, "two converted fields would have the name 'b'"),
        ({"a": None, "b": None, "c": None}, InvalidError, "no fields are selected for conversion"),
        ({"c": Field("i8")}, InvalidError, "row 0: field 'c' is <U6"),
    ],
)
def test_invalid_fields_raise(
    tmp_path: Path, fields: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        relive.convert(COLUMNS, tmp_path / "store", fields=fields)
    assert not list(tmp_path.iterdir())


def test_single_codec_applies_to_compressible_fields(tmp_path: Path) -> None:
    columns = {**COLUMNS, "large": np.zeros((10, 300), np.uint8)}
    made = relive.convert(columns, tmp_path / "all", codec="zstd", level=5)
    assert {name: field.codec for name, field in made.fields.items()} == {
        "a": "raw",
        "b": "raw",
        "c": "zstd",
        "large": "zstd",
    }
    assert made.fields["large"].level == 5
    with RecordStore.open(made.path) as store:
        assert dict(store.fields) == made.fields
    made = relive.convert(columns, tmp_path / "some", codec={"a": "lz4", "large": "flate"})
    assert [field.codec for field in made.fields.values()] == ["lz4", "raw", "raw", "deflate"]
    with pytest.raises(InvalidError, match="unknown codec 'rar'"):
        relive.convert(columns, tmp_path / "store", codec="rar")
    with pytest.raises(UnknownFieldError, match="unknown field 'd'"):
        relive.convert(columns, tmp_path / "store", codec={"d": "zstd"})


@pytest.mark.parametrize("limit", [0, 1, 7, 10, 11])
@pytest.mark.parametrize("batch", [None, 4])
def test_limit(tmp_path: Path, limit: int, batch: int | None) -> None:
    seen: list[tuple[int, int | None]] = []

    def progress(done: int, total: int | None) -> None:
        seen.append((done, total))

    made = relive.convert(COLUMNS, tmp_path / "store", limit=limit, batch=batch, progress=progress)
    rows = min(limit, 10)
    assert made.rows == rows
    assert [row["a"] for row in contents(made.path)] == list(range(rows))
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert {total for _, total in seen} <= {rows}
    assert not rows or seen[-1] == (rows, rows)


@pytest.mark.parametrize(
    "options",
    [
        {"sample": 0},
        {"workers": 0},
        {"batch": 0},
        {"limit": -1},
        {"progress": 3},
        {"kind": "tar"},
        {"decode": "image"},
        {"size": 3},
        {"steps": True},
    ],
    ids=str,
)
def test_invalid_options_raise(tmp_path: Path, options: dict[str, Any]) -> None:
    with pytest.raises((InvalidError, InvalidTypeError)):
        relive.convert(COLUMNS, tmp_path / "store", **options)
    assert not list(tmp_path.iterdir())


def test_options_apply_only_to_some_kinds(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(3))
    for option in ({"decode": len}, {"size": 3}, {"steps": True}):
        with pytest.raises(InvalidError, match="but the source has the format npy"):
            relive.convert(tmp_path / "a.npy", tmp_path / "store", **option)
    with pytest.raises(InvalidError, match=r"`kind` must be one of .*, got 'csv'"):
        relive.convert(tmp_path / "a.npy", tmp_path / "store", kind="csv")
    with pytest.raises(InvalidTypeError, match="`path` must be a string or a Path"):
        relive.convert(COLUMNS, 3)  # type: ignore[arg-type]


def test_unrecognized_kinds_raise(tmp_path: Path) -> None:
    (tmp_path / "a.xyz").write_bytes(b"something else entirely")
    with pytest.raises(UnsupportedError, match="unrecognized format") as caught:
        relive.convert(tmp_path / "a.xyz", tmp_path / "store")
    assert "kind=, one of array_record" in str(caught.value.hint)
    with pytest.raises(NotFoundError):
        detect_kind(str(tmp_path / "nothing.xyz"))
    with pytest.raises(UnsupportedError, match="only packs can be converted over the network"):
        detect_kind("https://example.org/a.parquet")
    assert detect_kind("https://example.org/a.a2pack") == "pack"


def test_result_repr(tmp_path: Path) -> None:
    made = relive.convert(COLUMNS, tmp_path / "store")
    assert made.bytes == sum(f.stat().st_size for f in made.path.rglob("*") if f.is_file())
    assert repr(made) == f"Conversion({made.path}: 10 rows, {made.bytes} bytes: a, b, c)"


class Numbers(RowReader[int]):
    """Rows of one number each, decoded by a function."""

    group = 2

    def __init__(self, items: Iterable[int], decode: Callable[[int], int] = int) -> None:
        self._items = iter(items)
        self._decode = decode

    @property
    def fingerprint(self) -> Mapping[str, Any]:
        return {}

    def items(self, start: int) -> Iterator[int]:
        return self._items

    def row(self, item: int) -> Mapping[str, Any]:
        return {"n": self._decode(item)}

    def stream(self, workers: int, batch: int | None = None) -> RowStream:
        selection = parse_fields({"n": Field("i8")})
        self.declared = selection.types
        return RowStream(self, ReadOptions(selection, workers=workers, batch=batch))


def numbers(batches: Iterable[ColumnBatch]) -> Iterator[int]:
    return (int(number) for batch in batches for number in batch.columns["n"])


def test_rows_are_decoded_in_order_on_several_threads() -> None:
    threads = set()

    def decode(number: int) -> int:
        threads.add(threading.get_ident())
        time.sleep(0.002 if number % 7 == 0 else 0)
        return number * 2

    found = numbers(Numbers(range(100), decode).stream(workers=3).batches())
    assert list(found) == [number * 2 for number in range(100)]
    assert len(threads) > 1
    assert threading.get_ident() not in threads


def test_few_items_are_read_ahead() -> None:
    taken = 0

    def items() -> Iterator[int]:
        nonlocal taken
        while taken < 10_000:
            taken += 1
            yield taken

    batches = Numbers(items()).stream(workers=2, batch=10).batches()
    assert list(numbers([next(batches)])) == list(range(1, 11))
    del batches
    assert taken < 40


@pytest.mark.parametrize("workers", [1, 3])
def test_error_is_raised_after_the_rows_before_it(workers: int) -> None:
    def items() -> Iterator[int]:
        yield from range(7)
        raise ValueError("no more")

    def decode(item: int) -> int:
        if item == 5:
            raise KeyError(item)
        return item

    found: list[int] = []
    with pytest.raises(ValueError, match="no more"):
        found.extend(numbers(Numbers(items()).stream(workers, 1).batches()))
    assert found == list(range(7))
    found = []
    with pytest.raises(KeyError, match="5"):
        found.extend(numbers(Numbers(items(), decode).stream(workers, 1).batches()))
    assert found == list(range(5))


def test_reading_ahead_keeps_order_and_errors_and_ends_its_thread() -> None:
    class Endless(Stream):
        fields: Mapping[str, Field] = {"n": Field("i8")}
        closed = threading.Event()

        @property
        def fingerprint(self) -> Mapping[str, Any]:
            return {}

        def batches(self, start: int = 0) -> Iterator[ColumnBatch]:
            try:
                for number in range(start, 50):
                    yield ColumnBatch(1, {"n": [number]})
                raise KeyError("gone")
            finally:
                self.closed.set()

    before = threading.active_count()
    found: list[int] = []
    with pytest.raises(KeyError, match="gone"):
        found.extend(numbers(read_ahead(Endless(), None, 3)))
    assert found == list(range(3, 50))
    Endless.closed.clear()
    batches = read_ahead(Endless(), None)
    next(batches)
    batches.close()
    assert Endless.closed.is_set()
    assert threading.active_count() == before


def damaged_pack(path: Path) -> Path:
    """Write a pack of 20 entries with damage at position 3."""
    with relive.PackWriter(path) as pack:
        for number in range(20):
            pack.append(b"entry %02d " % number * 20)
    data = bytearray(path.read_bytes())
    data[data.index(b"entry 03") + 50] ^= 1
    path.write_bytes(data)
    return path


def damaged_tfrecord(path: Path) -> Path:
    """Write a TFRecord file of 20 records with a wrong checksum at position 3."""
    data = bytearray(tfrecord(b"record %02d" % number for number in range(20)))
    data[data.index(b"record 03")] ^= 1
    path.write_bytes(data)
    return path


def damaged_tar(path: Path) -> Path:
    """Write a tar archive of 20 samples with an invalid integer at position 3."""
    files = [(f"{k}.cls", b"three" if k == 3 else b"%d" % k) for k in range(20)]
    path.write_bytes(tar(files))
    return path


@pytest.mark.parametrize(
    ("make", "options"),
    [
        (damaged_pack, {"kind": "pack"}),
        (damaged_tfrecord, {"kind": "tfrecord", "decode": "bytes"}),
        (damaged_tar, {"kind": "tar", "sample": 2}),
    ],
)
def test_damaged_rows_are_an_error_or_skipped_and_counted(
    tmp_path: Path, make: Callable[[Path], Path], options: dict[str, Any]
) -> None:
    source, target = make(tmp_path / "source"), tmp_path / "store"
    with pytest.raises(CorruptError):
        relive.convert(source, target, overwrite=True, **options)
    made = relive.convert(source, target, overwrite=True, errors="skip", **options)
    assert (made.rows, made.skipped) == (19, 1)
    whole = contents(target)

    def stop(done: int, total: int | None) -> None:
        if done >= 8:
            raise KeyboardInterrupt

    resumed = tmp_path / "resumed"
    with pytest.raises(KeyboardInterrupt):
        relive.convert(source, resumed, errors="skip", batch=4, progress=stop, **options)
    with pytest.raises(InvalidError, match="errors differ"):
        relive.convert(source, resumed, **options)
    made = relive.convert(source, resumed, errors="skip", **options)
    assert made.resumed_from >= 8
    assert (made.rows, made.skipped) == (19, 1)
    assert contents(resumed) == whole


def test_damaged_images_are_skipped(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    folder = tmp_path / "images"
    folder.mkdir()
    for number in range(3):
        image.new("RGB", (4, 4), (number, 0, 0)).save(folder / f"{number}.png")
    (folder / "1.png").write_bytes(b"not an image")
    with pytest.raises(CorruptError, match=r"cannot decode `.*1\.png`: it is damaged, or"):
        relive.convert(folder, tmp_path / "store", decode="image")
    made = relive.convert(folder, tmp_path / "store", decode="image", errors="skip")
    assert (made.rows, made.skipped) == (2, 1)
    assert [row["path"] for row in contents(made.path)] == ["0.png", "2.png"]
    with pytest.raises(InvalidError, match="`errors` must be one of 'raise', 'skip', got 'ignore'"):
        relive.convert(folder, tmp_path / "store", errors="ignore")


def test_format_argument_overrides_the_file_name(tmp_path: Path) -> None:
    assert relive.convert([{"a": 1}], tmp_path / "odd", to="parquet").path.is_file()
    assert relive.convert([{"a": 1}], tmp_path / "odd.parquet", to="records").path.is_dir()
    for name in ("x.npz", "x.tar", "x.tfrecord", "x.h5", "x.a2pack"):
        with pytest.raises(UnsupportedError, match="are not supported as a target"):
            relive.convert([{"a": 1}], tmp_path / name)
    with pytest.raises(
        InvalidError, match="`to` must be one of 'minari', 'npy', 'parquet', 'records'"
    ):
        relive.convert([{"a": 1}], tmp_path / "x", to="csv")
