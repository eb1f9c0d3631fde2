"""Signal names and file names map to each other one to one."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relive.episodes.layout import check_name, file_stem, signal_name
from relive.errors import InvalidError, InvalidTypeError

AWKWARD = [
    ".",
    "..",
    "...",
    "/",
    "//",
    "%",
    "%%",
    "%2F",
    "%2f",
    "%252F",
    ".frames",
    "..frames",
    "cam.frames",
    "cam%2Eframes",
    "cam.frames.frames",
    ".hidden",
    "a.parquet",
    "a.mp4",
    "a.tape",
    "cam",
    "/camera/color/image_raw",
    "a b\n\tc",
    "é☃😀",
    "/" * 200,
    "%" * 200,
    "/%" * 100,
    "x" * 200,
    "." * 200,
    "/" * 193 + ".frames",
    "☃" * 66,
    "_-=~" + "/" * 190,
]
NAMES = st.text(
    st.characters(exclude_characters="\0", exclude_categories=["Cs"])
    | st.sampled_from("/%./%.frames_-"),
    min_size=1,
).filter(lambda name: len(name.encode()) <= 200)


@pytest.mark.parametrize(
    ("name", "stem"),
    [
        ("state", "state"),
        ("arm.left.q", "arm.left.q"),
        ("/cam/rgb", "%2Fcam%2Frgb"),
        ("50%", "50%25"),
        (".hidden", "%2Ehidden"),
        ("cam.frames", "cam%2Eframes"),
        (".frames", "%2Eframes"),
        ("frames", "frames"),
        ("a.frames.b", "a.frames.b"),
    ],
)
def test_stems_are_readable(name: str, stem: str) -> None:
    assert file_stem(name) == stem


@pytest.mark.parametrize("name", AWKWARD)
def test_awkward_names_round_trip(name: str, tmp_path: Path) -> None:
    stem = file_stem(check_name(name))
    assert signal_name(stem) == name
    path = tmp_path / f".{stem}.frames.parquet.01234567"
    path.write_bytes(b"")  # accepted by every file system
    assert os.listdir(tmp_path) == [path.name]  # noqa: PTH208 - names


def test_different_names_have_different_files() -> None:
    files = [f"{file_stem(name)}{end}" for name in AWKWARD for end in (".parquet", ".mp4")]
    files += [f"{file_stem(name)}.frames.parquet" for name in AWKWARD]
    assert len(set(files)) == len(files)


@given(NAMES)
def test_any_name_round_trips(name: str) -> None:
    stem = file_stem(check_name(name))
    assert signal_name(stem) == name
    assert "/" not in stem
    assert not stem.startswith(".")
    assert not stem.endswith(".frames")
    assert len(stem.encode()) <= 228


@given(st.text(st.characters(exclude_characters="\0/", exclude_categories=["Cs"]), min_size=1))
def test_foreign_stems_become_names(stem: str) -> None:
    name = signal_name(stem)
    assert name == stem or file_stem(name) == stem


@pytest.mark.parametrize("name", ["", "a\0b", "x" * 201, "é" * 101, "\ud800"])
def test_invalid_names_raise(name: str) -> None:
    with pytest.raises(InvalidError):
        check_name(name)


@pytest.mark.parametrize("name", [None, 3, b"state", ["a"]])
def test_names_of_other_types_raise(name: object) -> None:
    with pytest.raises(InvalidTypeError, match="string"):
        check_name(name)
