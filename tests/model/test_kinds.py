"""What can be opened: known by its first bytes or its name, each reader where the table says."""

import pytest

from relive.model.kinds import KINDS, Kind, known_by, open_kinds


@pytest.mark.parametrize("kind", KINDS.values(), ids=lambda kind: kind.name)
def test_every_reader_is_there(kind: Kind) -> None:
    assert callable(kind.load())


@pytest.mark.parametrize("kind", KINDS.values(), ids=lambda kind: kind.name)
def test_known_by_bytes_or_by_name(kind: Kind) -> None:
    assert known_by("x", kind.magic + b"more") is kind
    assert known_by(f"x{kind.suffix}", b"??") is kind
    assert known_by(f"x{kind.suffix}") is kind
    assert kind.title in open_kinds()


def test_bytes_say_more_than_a_name() -> None:
    assert known_by("x.npy", b"A2PACK\0\0") is KINDS["pack"]
    assert known_by("x.a2pack", b"\x93NUMPY") is KINDS["array"]


def test_the_unknown_is_unknown() -> None:
    assert known_by("x.txt", b"hello") is None
    assert known_by("", b"") is None
