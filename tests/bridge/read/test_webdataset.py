"""WebDataset archives are converted to record stores."""

import gzip
import io
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relive.bridge import convert
from relive.bridge.read.webdataset import tar_files, tar_samples
from relive.errors import CorruptError, NotFoundError, ReliveError, TooLargeError, UnsupportedError
from relive.model.schema import Field
from tests.bridge.sample_files import contents, samples, tar


def write(path: Path, files: list[tuple[str, bytes]] | None = None, mode: str = "w") -> Path:
    path.write_bytes(tar(samples(5) if files is None else files, mode))
    return path


def test_extensions_become_fields(tmp_path: Path) -> None:
    made = convert(write(tmp_path / "a.tar"), tmp_path / "store")
    assert made.fields == {
        "key": Field("str"),
        "cls": Field(np.int64),
        "jpg": Field("bytes"),
        "json": Field("json"),
        "txt": Field("str"),
    }
    assert contents(made.path) == [
        {
            "key": f"train/{number:04}",
            "cls": number,
            "jpg": bytes([number]) * (number + 1),
            "json": {"n": number},
            "txt": f"number {number}",
        }
        for number in range(5)
    ]


@pytest.mark.parametrize("mode", ["w:gz", "w:bz2", "w:xz"])
def test_compressed_archives(tmp_path: Path, mode: str) -> None:
    write(tmp_path / "a.tar", mode=mode)
    convert(tmp_path / "a.tar", tmp_path / "store")
    convert(write(tmp_path / "b.tar"), tmp_path / "plain")
    assert contents(tmp_path / "store") == contents(tmp_path / "plain")


def test_shards_are_concatenated(tmp_path: Path) -> None:
    write(tmp_path / "t-0.tar", samples(3))
    write(tmp_path / "t-1.tar", samples(2))
    made = convert(tmp_path / "t-*.tar", tmp_path / "store", workers=3, batch=2)
    assert [row["cls"] for row in contents(made.path)] == [0, 1, 2, 0, 1]


def test_key_is_the_name_before_the_first_dot(tmp_path: Path) -> None:
    files = [
        ("v1.0/a.seg.png", b"1"),
        ("v1.0/a.JPG", b"2"),
        ("v1.0/b.seg.png", b"3"),
        ("README", b"no extension"),
        ("__meta__/x.json", b"{}"),
    ]
    made = convert(write(tmp_path / "a.tar", files), tmp_path / "store")
    assert contents(made.path) == [
        {"key": "v1.0/a", "seg.png": b"1", "jpg": b"2"},
        {"key": "v1.0/b", "seg.png": b"3", "jpg": None},
    ]


def test_arrays_and_functions(tmp_path: Path) -> None:
    array = io.BytesIO()
    np.save(array, np.arange(6, dtype=np.float32).reshape(2, 3))
    files = [("a.x.npy", array.getvalue()), ("a.bin", b"12345")]
    path = write(tmp_path / "a.tar", files)
    made = convert(path, tmp_path / "store")
    assert contents(made.path) == [{"key": "a", "x.npy": [[0, 1, 2], [3, 4, 5]], "bin": b"12345"}]
    made = convert(path, tmp_path / "some", decode={"bin": len}, fields=["bin"])
    assert contents(made.path) == [{"bin": 5}]
    made = convert(path, tmp_path / "all", decode=lambda name, data: f"{name} {len(data)}")
    assert contents(made.path)[0]["bin"] == "bin 5"


def test_images_are_decoded_when_asked(tmp_path: Path, needs: Callable[..., None]) -> None:
    needs("PIL")
    from PIL import Image

    def picture(width: int) -> bytes:
        out = io.BytesIO()
        Image.new("RGB", (width, 2), (1, 2, 3)).save(out, "PNG")
        return out.getvalue()

    path = write(tmp_path / "a.tar", [(f"{width}.png", picture(width)) for width in (1, 2)])
    made = convert(path, tmp_path / "store", decode="image")
    assert made.fields["png"] == Field(np.uint8, (3,), ragged=2)
    assert contents(made.path)[1]["png"] == [[[1, 2, 3]] * 2] * 2
    made = convert(path, tmp_path / "sized", size=(4, 5), fields={"png": "image"})
    assert made.fields["image"] == Field(np.uint8, (4, 5, 3))
    path = write(tmp_path / "b.tar", [("a.png", b"no image")])
    with pytest.raises(CorruptError, match=r"cannot decode .*b\.tar` at byte 0, `a\.png`"):
        convert(path, tmp_path / "bad", decode=True)


def test_names_that_are_not_utf8_are_escaped(tmp_path: Path) -> None:
    bad = b"\xff".decode(errors="surrogateescape")
    path = write(tmp_path / f"{bad}.tar", [(f"k{bad}.txt", b"a"), (f"k{bad}.x{bad}", b"b")])
    for target in ("store", "a.parquet"):
        made = convert(path, tmp_path / target)
        assert [*made.fields] == ["key", "txt", r"x\xff"]
    assert contents(tmp_path / "store") == [{"key": r"k\xff", "txt": "a", r"x\xff": b"b"}]


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ([("a.cls", b"four")], r"a\.cls` as \.cls"),
        ([("a.json", b"{")], r"a\.json` as \.json"),
        ([("a.txt", b"\xff")], r"a\.txt` as \.txt"),
        ([("a.npy", b"\x93NUMPY")], r"a\.npy` as \.npy"),
        ([("a.x", b""), ("a.x", b"")], "occurs twice in a sample"),
    ],
)
def test_files_that_contradict_their_extension_raise(
    tmp_path: Path, files: list[tuple[str, bytes]], message: str
) -> None:
    with pytest.raises(CorruptError, match=message):
        convert(write(tmp_path / "a.tar", files), tmp_path / "store")
    with pytest.raises(UnsupportedError, match=r"extension `\.key` is not supported"):
        convert(write(tmp_path / "b.tar", [("a.key", b"")]), tmp_path / "store")


def test_truncated_archive_returns_a_prefix_or_raises(tmp_path: Path) -> None:
    whole = tar(samples(3))
    path = tmp_path / "a.tar"
    every = [(name, read()) for name, read, _ in tar_files(str(write(tmp_path / "whole")))][:12]
    for cut in range(1, 12 * 1024 + 1, 61):
        path.write_bytes(whole[:cut])
        found = []
        try:
            for name, read, _ in tar_files(str(path)):
                found.append((name, read()))
        except CorruptError as error:
            assert f"`{path}` at byte " in error.message  # noqa: PT017 - some cuts are between files
        else:
            assert cut % 1024 == 0
        assert found == every[: len(found)]


def test_invalid_header_in_the_middle_raises(tmp_path: Path) -> None:
    whole = bytearray(tar(samples(3)))
    whole[1024 * 5 : 1024 * 5 + 512] = b"x" * 512
    (tmp_path / "a.tar").write_bytes(whole)
    with pytest.raises(
        CorruptError, match="at byte 5120: the header of an archive member is invalid"
    ):
        convert(tmp_path / "a.tar", tmp_path / "store")
    assert [item.name for item in tmp_path.iterdir()] == ["a.tar"]
    (tmp_path / "a.tar").write_bytes(gzip.compress(whole))
    with pytest.raises(CorruptError, match="at byte 5120"):
        convert(tmp_path / "a.tar", tmp_path / "store", kind="tar")
    (tmp_path / "a.tar").write_bytes(gzip.compress(tar(samples(3)))[:-20])
    with pytest.raises(CorruptError, match=r"a\.tar"):
        convert(tmp_path / "a.tar", tmp_path / "store")


def test_huge_sizes_allocate_no_memory(tmp_path: Path) -> None:
    info = tarfile.TarInfo("a.bin")
    info.size = 1 << 40
    (tmp_path / "a.tar").write_bytes(info.tobuf())
    with pytest.raises(TooLargeError, match="has 1099511627776 bytes"):
        convert(tmp_path / "a.tar", tmp_path / "store")
    info.size = 1 << 20
    (tmp_path / "a.tar").write_bytes(info.tobuf())
    with pytest.raises(CorruptError, match="at byte 0: the archive is truncated"):
        convert(tmp_path / "a.tar", tmp_path / "store")


@given(st.binary(max_size=2000), st.integers(0, 4000))
def test_any_bytes_are_an_archive_or_an_error(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, at: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "hostile.tar"
    whole = tar(samples(1))
    for content in (data, whole[:at] + data + whole[at + len(data) :]):
        path.write_bytes(content)
        try:
            list(tar_samples(str(path)))
        except ReliveError as error:
            assert str(path) in error.message  # noqa: PT017 - some bytes are a valid archive


def test_missing_file_raises(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError):
        convert(tmp_path / "no.tar", tmp_path / "store")
