"""What a signal's files say about it, whatever they are: Parquet, a video's index, a tape."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from relive.errors import InvalidError, InvalidTypeError, UnsupportedError
from relive.model.schema import DType

__all__ = ["DTYPES", "KEY", "KINDS", "SPAN", "SignalMeta"]

KEY: Final = b"relive"
"""Where the metadata of a Parquet schema holds what `to_json` gives, as JSON."""

SPAN: Final = b"relive.span"
"""Where the metadata of a Parquet file holds its number of rows, and first and last timestamp.

The footer's statistics say the same, but asking for them in a damaged footer ends the process.
"""

KINDS: Final = ("scalar", "vector", "text", "image")
DTYPES: Final = (
    "bool",
    *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
    *(f"float{bits}" for bits in (16, 32, 64)),
)
"""What numbers in a signal are made of; `"str"` is text."""

_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class SignalMeta:
    """What a signal is: its name, what one value is, and what was said about it.

    `dtype` is the name of a NumPy dtype, or `"str"`. `attrs` is what JSON can hold.
    """

    name: str
    kind: str
    dtype: str
    shape: tuple[int, ...] = ()
    attrs: Mapping[str, Any] = field(default_factory=dict)
    clocks: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise InvalidError(f"a signal is of one kind of {', '.join(KINDS)}, not {self.kind!r}")
        if (self.kind == "text") != (self.dtype == "str"):
            raise InvalidError(f"a signal of {self.kind} does not hold values of {self.dtype}")
        if self.dtype not in DTYPES and self.dtype != "str":
            raise InvalidTypeError(f"a signal cannot hold values of {self.dtype!r}")
        if any(type(size) is not int or size < 0 for size in self.shape):
            raise InvalidError(f"{self.shape} is not a shape")
        if (self.kind in {"text", "scalar"}) != (not self.shape):
            raise InvalidError(f"a signal of kind {self.kind} does not have the shape {self.shape}")
        if len(set(self.clocks)) < len(self.clocks):
            raise InvalidError(f"two clocks have one name: {self.clocks}")

    @property
    def array_dtype(self) -> np.dtype[Any]:
        """The dtype of an array of values: objects for text."""
        return np.dtype(object if self.dtype == "str" else self.dtype)

    @property
    def signal_dtype(self) -> DType:
        """The dtype as a signal gives it."""
        return "str" if self.dtype == "str" else np.dtype(self.dtype)

    @property
    def nbytes(self) -> int | None:
        """The bytes of one value in memory; None for text."""
        if self.dtype == "str":
            return None
        return np.dtype(self.dtype).itemsize * math.prod(self.shape)

    def to_json(self) -> dict[str, Any]:
        """Give a dict that JSON can hold, and that others may add to."""
        return {
            "version": _VERSION,
            "name": self.name,
            "kind": self.kind,
            "dtype": self.dtype,
            "shape": list(self.shape),
            "attrs": dict(self.attrs),
            "clocks": list(self.clocks),
        }

    @classmethod
    def from_json(cls, value: Any) -> "SignalMeta":
        """Give back what `to_json` gave; what it does not know is left alone."""
        if not isinstance(value, Mapping):
            raise InvalidTypeError(f"what a signal is stands in an object, not in {value!r:.60}")
        version = value.get("version")
        if type(version) is not int or version < 1:
            raise InvalidError(f"a signal's metadata has the version {version!r}")
        if version > _VERSION:
            raise UnsupportedError(
                f"a signal's metadata has the version {version}, and this relive reads {_VERSION}",
                hint="pip install --upgrade relive",
            )
        texts = [value.get(key) for key in ("name", "kind", "dtype")]
        lists = [value.get(key, []) for key in ("shape", "clocks")]
        attrs = value.get("attrs", {})
        if not (
            all(isinstance(text, str) for text in texts)
            and all(isinstance(entry, list) for entry in lists)
            and all(isinstance(clock, str) for clock in lists[1])
            and isinstance(attrs, Mapping)
        ):
            raise InvalidError("a signal's metadata is not made as it should be")
        name, kind, dtype = map(str, texts)
        return cls(name, kind, dtype, tuple(lists[0]), dict(attrs), tuple(lists[1]))
