"""The metadata of a signal in all its files: Parquet, the index of a video, the tape."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from relive._arguments import check_choice
from relive.errors import InvalidError, InvalidTypeError, UnsupportedError
from relive.model.schema import DType

KEY: Final = b"relive"
"""The key of the Parquet metadata that contains the result of `SignalMeta.to_json`."""

SPAN: Final = b"relive.span"
"""The key of the Parquet metadata for the number of rows, and the first and last timestamp.

The statistics in the footer contain the same, but Arrow ends the process when they are damaged.
"""

CHECKSUMS: Final = "checksums"
"""The key in the metadata of a signal that states that the file has checksums of itself."""

KINDS: Final = ("scalar", "vector", "text", "image")
DTYPES: Final = (
    "bool",
    *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
    *(f"float{bits}" for bits in (16, 32, 64)),
)
"""The dtypes of signals of numbers; that of text is `"str"`."""

VERSION: Final = 1
"""The version of the metadata that this relive writes, and the newest that it reads."""


@dataclass(frozen=True, slots=True)
class SignalMeta:
    """The name of a signal, the kind, dtype and shape of its values, and its attributes.

    `dtype` is the name of a NumPy dtype, or `"str"`. `attrs` are JSON values.
    """

    name: str
    kind: str
    dtype: str
    shape: tuple[int, ...] = ()
    attrs: Mapping[str, Any] = field(default_factory=dict)
    clocks: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_choice("kind", self.kind, KINDS)
        if (self.kind == "text") != (self.dtype == "str"):
            raise InvalidError(
                f"a signal of kind {self.kind!r} cannot hold values of the dtype {self.dtype!r}"
            )
        if self.dtype not in DTYPES and self.dtype != "str":
            raise InvalidTypeError(f"a signal cannot hold values of the dtype {self.dtype!r}")
        if any(type(size) is not int or size < 0 for size in self.shape):
            raise InvalidError(
                f"the shape of a signal must be non-negative integers, got {self.shape}"
            )
        if (self.kind in {"text", "scalar"}) != (not self.shape):
            raise InvalidError(f"a signal of kind {self.kind!r} cannot have the shape {self.shape}")
        if len(set(self.clocks)) < len(self.clocks):
            raise InvalidError(f"the names in `clocks` must be unique, got {self.clocks}")

    @property
    def array_dtype(self) -> np.dtype[Any]:
        """The dtype of an array of values: objects for text."""
        return np.dtype(object if self.dtype == "str" else self.dtype)

    @property
    def signal_dtype(self) -> DType:
        """The dtype that `Signal.dtype` returns."""
        return "str" if self.dtype == "str" else np.dtype(self.dtype)

    @property
    def nbytes(self) -> int | None:
        """The bytes of one value in memory; None for text."""
        if self.dtype == "str":
            return None
        return np.dtype(self.dtype).itemsize * math.prod(self.shape)

    def to_json(self) -> dict[str, Any]:
        """Return a new dict of JSON values."""
        return {
            "version": VERSION,
            "name": self.name,
            "kind": self.kind,
            "dtype": self.dtype,
            "shape": list(self.shape),
            "attrs": dict(self.attrs),
            "clocks": list(self.clocks),
        }

    @classmethod
    def from_json(cls, value: Any) -> "SignalMeta":
        """Return the metadata that `to_json` converted; other keys are ignored."""
        if not isinstance(value, Mapping):
            raise InvalidTypeError(f"signal metadata must be a JSON object, got {value!r:.60}")
        check_version(value.get("version"))
        texts = [value.get(key) for key in ("name", "kind", "dtype")]
        lists = [value.get(key, []) for key in ("shape", "clocks")]
        attrs = value.get("attrs", {})
        if not (
            all(isinstance(text, str) for text in texts)
            and all(isinstance(entry, list) for entry in lists)
            and all(isinstance(clock, str) for clock in lists[1])
            and isinstance(attrs, Mapping)
        ):
            raise InvalidError("the signal metadata has missing keys or values of the wrong type")
        name, kind, dtype = map(str, texts)
        return cls(name, kind, dtype, tuple(lists[0]), dict(attrs), tuple(lists[1]))


def check_version(version: Any) -> None:
    """Check the version of stored metadata."""
    if type(version) is not int or version < 1:
        raise InvalidError(
            f"the version of signal metadata must be a positive integer, got {version!r}"
        )
    if version > VERSION:
        raise UnsupportedError(
            f"the signal metadata has version {version}, "
            f"but this version of relive reads only versions up to {VERSION}",
            hint="upgrade relive",
        )
