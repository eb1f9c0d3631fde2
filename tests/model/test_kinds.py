"""Detection of formats by first bytes or name, and the reader of each format."""

import pytest

from relive.model.kinds import KINDS, Kind, known_by, known_inside, open_kinds


@pytest.mark.parametrize("kind", KINDS.values(), ids=lambda kind: kind.name)
def test_every_kind_has_a_reader(kind: Kind) -> None:
    assert callable(kind.load())


FILES = [kind for kind in KINDS.values() if not kind.is_folder and not kind.reference]
FOLDERS = [kind for kind in KINDS.values() if kind.inside]


@pytest.mark.parametrize("kind", FILES, ids=lambda kind: kind.name)
def test_detection_by_bytes_or_name(kind: Kind) -> None:
    assert known_by("x", kind.magic + b"more") is kind
    for suffix in [kind.suffix] if isinstance(kind.suffix, str) else kind.suffix:
        assert known_by(f"x{suffix}", b"??") is kind
        assert known_by(f"x{suffix}") is kind
    assert kind.title in open_kinds()


@pytest.mark.parametrize("kind", FOLDERS, ids=lambda kind: kind.name)
def test_directories_are_detected_by_their_content(kind: Kind) -> None:
    assert known_inside({kind.inside: b"{\n" + kind.magic}) is kind
    assert known_inside({kind.inside: b"{}", "other": kind.magic}) is None
    assert known_by("x", kind.magic) is None
    assert kind.title in open_kinds()


def test_directory_of_episodes_is_detected_by_its_directories() -> None:
    kind = KINDS["dataset"]
    assert known_inside({}, ["x/y", "000000000000/000000000007"]) is kind
    assert known_inside({}, ["000000000000/x", "x/000000000000", "00/11"]) is None
    inside = {"meta.json": b'{"schema_version": 1'}
    assert known_inside(inside, ["000000000000/000000000007"]) is KINDS["episode"]
    assert known_by("x", b"") is None
    assert kind.title in open_kinds()


def test_bytes_take_precedence_over_the_name() -> None:
    assert known_by("x.npy", b"A2PACK\0\0") is KINDS["pack"]
    assert known_by("x.a2pack", b"\x93NUMPY") is KINDS["array"]


def test_unrecognized_files_have_no_kind() -> None:
    assert known_by("x.txt", b"hello") is None
    assert known_by("", b"") is None
