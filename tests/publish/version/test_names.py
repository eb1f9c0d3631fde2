"""Names of datasets, versions, tags and members."""

import pytest

from relive.errors import InvalidError, InvalidTypeError
from relive.publish.version.names import (
    DatasetId,
    Reference,
    check_member_name,
    check_tag,
    parse_id,
    parse_reference,
    pointer_key,
)

A_DIGEST = "0123456789abcdef" * 4


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("ws/name", None),
        ("relive://ws/name", None),
        ("ws/name@latest", None),
        ("ws/name@v1.0-rc_2", "v1.0-rc_2"),
        ("relive://ws/name@v1", "v1"),
        ("ws/name@" + A_DIGEST, A_DIGEST),
        ("ws/name@" + A_DIGEST[:8].upper(), A_DIGEST[:8]),
        ("ws/name@1234567", "1234567"),
    ],
)
def test_references(text: str, version: str | None) -> None:
    assert parse_reference(text) == Reference(DatasetId("ws", "name"), version)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "ws",
        "ws/",
        "/name",
        "WS/name",
        "ws/na me",
        "ws/name/more",
        "ws/../x",
        "./ws/name",
        "ws/name@",
        "ws/name@.hidden",
        "ws/name@a/b",
        "ws/name@a@b",
        "ws/ñame",
        "ws/" + "n" * 129,
        "s3://ws/name",
        "ws/name@" + "v" * 65,
    ],
)
def test_what_is_not_a_reference(text: str) -> None:
    with pytest.raises(InvalidError) as caught:
        parse_reference(text)
    assert caught.value.hint


def test_a_reference_is_text() -> None:
    with pytest.raises(InvalidTypeError):
        parse_reference(3)  # type: ignore[arg-type]


def test_an_id_has_no_version() -> None:
    assert f"{parse_id('ws/name')}" == "ws/name"
    with pytest.raises(InvalidError, match="names a version"):
        parse_id("ws/name@v1")


def test_tags_are_never_taken_for_digests() -> None:
    for tag in ("v1", "1234567", "A", "a" * 7, "z" * 64, "2025-01-01", "deadbeef.1"):
        assert check_tag(tag) == tag
    for tag in ("latest", "deadbeef", "DEADBEEF", "12345678", A_DIGEST, "", "-a", "a b", "../a"):
        with pytest.raises(InvalidError):
            check_tag(tag)


def test_names_of_members() -> None:
    for name in ("main", "_x", "A-1", "n" * 64):
        assert check_member_name(name) == name
    for name in ("", "1a", "a.b", "a/b", "n" * 65, "ü"):
        with pytest.raises(InvalidError):
            check_member_name(name)


def test_keys() -> None:
    dataset = DatasetId("ws", "name")
    assert pointer_key(dataset, None) == "manifests/ws/name/latest.json"
    assert pointer_key(dataset, "v1") == "manifests/ws/name/tags/v1.json"
