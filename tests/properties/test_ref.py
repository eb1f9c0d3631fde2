"""Every reference has one spelling, and only that spelling is parsed."""

from hypothesis import example, given
from hypothesis import strategies as st

from relive.errors import InvalidError
from relive.model import Ref

schemes = st.from_regex(r"[a-z][a-z0-9+.-]{0,5}", fullmatch=True)
names = st.text(min_size=1).filter(lambda name: name not in {".", ".."})
refs = st.builds(Ref, schemes, names, names, st.integers(0, 2**63 - 1))
nearly = st.from_regex(
    r"[a-zA-Z0-9+]{0,3}:?//?[a-z%./A-F0-9 ]{0,6}/[a-z%.A-F0-9é]{0,4}/[-+0-9a]{0,3}[\n/?]?",
    fullmatch=True,
)


@given(refs)
def test_reference_round_trip(ref: Ref) -> None:
    text = str(ref)
    assert Ref.parse(text) == ref
    assert text.isascii()
    assert text.isprintable()
    assert " " not in text


@given(st.text() | nearly | st.lists(st.sampled_from("h5:/a%2F0 .")).map("".join))
@example("h5://a/b/12junk")
@example("h5://a/b/1\n")
def test_text_is_refused_or_round_trips(text: str) -> None:
    try:
        ref = Ref.parse(text)
    except InvalidError as error:
        assert error.hint is not None  # noqa: PT017 - both results are valid
    else:
        assert str(ref) == text


@given(refs, st.text(min_size=1))
def test_nothing_may_follow_the_index(ref: Ref, junk: str) -> None:
    text = f"{ref}{junk}"
    try:
        longer = Ref.parse(text)
    except InvalidError:
        return
    assert junk.isascii()
    assert junk.isdigit()
    assert str(longer) == text
