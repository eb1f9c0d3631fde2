"""Words for messages."""

__all__ = ["a_type"]


def a_type(kind: type) -> str:
    """Give the name of a type with its article: "an ndarray", "a uint8"."""
    name = kind.__name__
    vowel = name[0] in "AEIOaeio" or name == "ndarray"  # as they are said
    return f"{'an' if vowel else 'a'} {name}"
