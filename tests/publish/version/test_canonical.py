"""Canonical JSON has one spelling, and refuses what would have several."""

import hashlib
import json
import random
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relive.errors import InvalidError, InvalidTypeError, ManifestCorruptedError
from relive.publish.version.canonical import MAX_DEPTH, decode, encode

TEXTS = st.text(max_size=12)
INTEGERS = st.integers(-(2**53) + 1, 2**53 - 1)
DOCUMENTS = st.recursive(
    st.none() | st.booleans() | INTEGERS | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=20,
)


def spell(value: Any, rng: random.Random) -> str:
    """Return a document as JSON in some order of keys and some spelling of strings."""
    space = rng.choice(["", " ", "\n\t"])
    if isinstance(value, dict):
        items = rng.sample(list(value.items()), len(value))
        inner = [f"{spell(key, rng)}{space}:{spell(each, rng)}" for key, each in items]
        return "{" + f",{space}".join(inner) + space + "}"
    if isinstance(value, list):
        return "[" + f"{space},".join(spell(each, rng) for each in value) + "]"
    if isinstance(value, str):
        return '"' + "".join(spell_character(each, rng) for each in value) + '"'
    return json.dumps(value)


def spell_character(character: str, rng: random.Random) -> str:
    plain = json.dumps(character, ensure_ascii=False)[1:-1]
    units = character.encode("utf-16-be")
    escaped = "".join(f"\\u{units[n]:02x}{units[n + 1]:02x}" for n in range(0, len(units), 2))
    return rng.choice([plain, escaped, escaped.upper().replace("\\U", "\\u")])


@given(DOCUMENTS, st.integers(0, 2**32))
def test_manifest_canonicalization_is_deterministic(document: Any, seed: int) -> None:
    data = encode(document)
    spelled = spell(document, random.Random(seed)).encode()  # noqa: S311 - only spelling
    assert decode(spelled, "it") == document
    assert encode(decode(spelled, "it")) == data
    assert encode(decode(data, "it")) == data


@given(st.dictionaries(TEXTS, INTEGERS, min_size=2, max_size=8))
def test_keys_are_sorted_by_their_bytes(document: dict[str, int]) -> None:
    keys = [key.encode() for key in decode(encode(document), "it")]
    assert keys == sorted(keys)


def test_sha256sum_computes_the_digest(tmp_path: Path) -> None:
    data = encode({"b": [1, None, True], "a": "é\u2028\x7f\n\x01"})
    assert data == '{"a":"é\u2028\x7f\\n\\u0001","b":[1,null,true]}'.encode()
    (tmp_path / "file").write_bytes(data)
    done = subprocess.run(["sha256sum", tmp_path / "file"], capture_output=True, text=True)
    assert done.stdout.split()[0] == hashlib.sha256(data).hexdigest()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"a": {"b": 1, "b": 2}}', "it: duplicate key 'b' at `a`"),
        ('{"a": [0, 1.5]}', "it: 1.5 is not an integer at `a[1]`"),
        ('{"a": 1e3}', "it: 1e3 is not an integer at `a`"),
        ('{"a": NaN}', "it: NaN is not an integer at `a`"),
        ('{"a": -Infinity}', "it: -Infinity is not an integer at `a`"),
        ('{"a": -0}', "it: -0 is not an integer at `a`"),
        ('{"a-b": {"c d": 9007199254740992}}', "it: 9007199254740992 is too large at `a-b.'c d'`"),
        ('{"a": ' + "9" * 5000 + "}", "is too large at `a`"),
        (r'["\ud800"]', r"it: '\ud800' has a lone surrogate at `[0]`"),
        (r'{"\udfff": 1}', r"it: '\udfff' has a lone surrogate at `'\udfff'`"),
        ("[" * 1000 + "]" * 1000, "it: nested"),
        ("[" * 100_000, "it: nested too deeply"),
        ("{", "it: not JSON"),
        ("", "it: not JSON"),
        ("{} {}", "it: not JSON"),
        ("\ufeff{}", "it: not JSON"),
        ('"\t"', "it: not JSON"),
    ],
)
def test_what_is_refused(text: str, message: str) -> None:
    with pytest.raises(ManifestCorruptedError) as caught:
        decode(text.encode(), "it")
    assert message in caught.value.message


def test_bytes_that_are_not_text_are_refused() -> None:
    with pytest.raises(ManifestCorruptedError, match="not UTF-8 at byte 2"):
        decode(b'{"\xff": 1}', "it")


def test_large_documents_are_refused_unread() -> None:
    with pytest.raises(ManifestCorruptedError, match="11 bytes, expected at most 10"):
        decode(b'"' + b"a" * 9 + b'"', "it", max_bytes=10)


def test_documents_may_be_as_deep_as_the_limit() -> None:
    deep: Any = 0
    for _ in range(MAX_DEPTH):
        deep = [deep]
    assert decode(encode(deep), "it") == deep
    with pytest.raises(InvalidError, match="nested more than"):
        encode([deep])


@pytest.mark.parametrize(
    "value", [1.5, {"a": {1: 2}}, (1,), b"x", {"a": [object()]}, 2**53, "\ud800", {"\ud800": 1}]
)
def test_what_cannot_be_encoded(value: object) -> None:
    with pytest.raises((InvalidError, InvalidTypeError), match="not a document"):
        encode(value)
