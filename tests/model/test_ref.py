"""References have one canonical spelling, and other spellings are refused."""

import pickle
from typing import Any

import numpy as np
import pytest

from relive.errors import InvalidError, InvalidTypeError
from relive.model import Ref


@pytest.mark.parametrize(
    ("text", "ref"),
    [
        ("h5://run_abc123/frames/1523", Ref("h5", "run_abc123", "frames", 1523)),
        ("h5://r/observations.image/0", Ref("h5", "r", "observations.image", 0)),
        ("s3+pack://a%2Fb/c%20d/7", Ref("s3+pack", "a/b", "c d", 7)),
        ("h5://2024-01-01T00:00:00/x@y/1", Ref("h5", "2024-01-01T00:00:00", "x@y", 1)),
        ("h5://%C3%A9/100%25/1", Ref("h5", "é", "100%", 1)),
        (f"h5://r/f/{2**63 - 1}", Ref("h5", "r", "f", 2**63 - 1)),
    ],
)
def test_parse_and_format_round_trip(text: str, ref: Ref) -> None:
    assert Ref.parse(text) == ref
    assert str(ref) == text


@pytest.mark.parametrize(
    "text",
    [
        "", "h5", "h5://", "h5://run", "h5://run/frames", "h5://run/frames/", "h5:///frames/1",
        "h5://run//1", "://run/frames/1", "run/frames/1", "h5:/run/frames/1",
        "h5://a/b/12junk", "h5://a/b/12/", "h5://a/b/c/1", "h5://a/b/1?x", "h5://a/b/1#x",
        "h5://a/b/-1", "h5://a/b/+1", "h5://a/b/01", "h5://a/b/1_0", "h5://a/b/1.0", "h5://a/b/0x1",
        "h5://a/b/1\n", " h5://a/b/1", "h5://a/b/1 ", "h5://a/b/\u0661", f"h5://a/b/{2**63}",
        "h5://a/b/" + "9" * 5000, "H5://a/b/1", "5h://a/b/1", "h_5://a/b/1", "h5 ://a/b/1",
        "h5://a b/f/1", "h5://é/f/1", "h5://%c3%a9/f/1", "h5://%41/f/1", "h5://%/f/1", "h5://%2/f/1",
        "h5://%zz/f/1", "h5://%FF/f/1", "h5://../f/1", "h5://a/./1", "h5://%2E%2E/f/1",
        "h5://\ud800/f/1", "h5://a\\b/f/1", 'h5://a"/f/1', "h5://a\n/f/1",
    ],
)  # fmt: skip
def test_invalid_text_raises_with_the_grammar(text: str) -> None:
    with pytest.raises(InvalidError) as caught:
        Ref.parse(text)
    assert repr(text)[:50].rstrip("'") in caught.value.message
    assert caught.value.hint is not None
    assert "://" in caught.value.hint
    assert len(str(caught.value)) < 500


def test_non_canonical_spelling_raises_with_the_canonical_one() -> None:
    with pytest.raises(InvalidError) as caught:
        Ref.parse("h5://a%2fb/f/1")
    assert caught.value.hint == "use 'h5://a%2Fb/f/1'"


@pytest.mark.parametrize("text", [None, b"h5://a/b/1", 3])
def test_only_strings_are_parsed(text: Any) -> None:
    with pytest.raises(InvalidTypeError):
        Ref.parse(text)


@pytest.mark.parametrize(
    ("parts", "error"),
    [
        (("", "a", "b", 1), InvalidError),
        (("H5", "a", "b", 1), InvalidError),
        (("h5", "", "b", 1), InvalidError),
        (("h5", "a", "", 1), InvalidError),
        (("h5", "..", "b", 1), InvalidError),
        (("h5", "a", "\udcff", 1), InvalidError),
        (("h5", "a", "b", -1), InvalidError),
        (("h5", "a", "b", 2**63), InvalidError),
        (("h5", "a", "b", True), InvalidTypeError),
        (("h5", "a", "b", "1"), InvalidTypeError),
        (("h5", "a", "b", 1.0), InvalidTypeError),
        (("h5", "a", None, 1), InvalidTypeError),
        ((None, "a", "b", 1), InvalidTypeError),
    ],
)
def test_invalid_parts_raise(parts: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        Ref(*parts)


def test_frozen_hashable_ordered_picklable() -> None:
    ref = Ref("h5", "a", "b", np.int32(2))  # type: ignore[arg-type]
    assert type(ref.index) is int
    with pytest.raises(AttributeError):
        ref.index = 3  # type: ignore[misc]
    assert {ref: 1}[Ref.parse("h5://a/b/2")] == 1
    assert sorted([Ref("h5", "a", "b", 10), ref]) == [ref, Ref("h5", "a", "b", 10)]
    assert pickle.loads(pickle.dumps(ref)) == ref  # noqa: S301 - our own data
    assert "\n" not in repr(Ref("h5", "a\nb", "c", 1))
