"""Statics: values that hold for all of an episode, kept in one JSON file."""

import base64
import binascii
import json
import math
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from relive._arguments import type_name
from relive.errors import CorruptError, InvalidError
from relive.store.atomic import storage_error, whole_file

__all__ = [
    "STATICS",
    "check_json",
    "check_static",
    "decode_statics",
    "encode_statics",
    "read_statics",
    "write_statics",
]

STATICS: Final = "static.json"
"""The file in the folder of an episode."""

_BYTES: Final = "$bytes"
_LIKE_BYTES: Final = re.compile(r"\$+bytes")
_DEEPEST: Final = 100


def check_static(name: str, value: Any) -> Any:
    """Give a copy of `value` as it comes back from the disk.

    It is any JSON value, or bytes; tuples become lists and NumPy scalars numbers. Anything else
    is an `InvalidError` that says where in `name` it is.
    """
    return _plain(name, value, 0, binary=True)


def check_json(name: str, value: Any) -> Any:
    """Give a copy of `value`, which is any JSON value, as it comes back from the disk."""
    return _plain(name, value, 0, binary=False)


def encode_statics(statics: Mapping[str, Any]) -> dict[str, Any]:
    """Give statics, as `check_static` gave them, as they are written in JSON."""
    return {_escaped(name): _encoded(value) for name, value in statics.items()}


def decode_statics(written: Mapping[str, Any]) -> dict[str, Any]:
    """Give statics as they were before `encode_statics`."""
    return {_unescaped(name): _decoded(value) for name, value in written.items()}


def read_statics(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """Give the statics of the episode in `folder`; none where there is no file of them."""
    path = Path(folder, STATICS)
    try:
        written = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise storage_error(error, path, "read") from error
    except ValueError as error:
        raise CorruptError(f"`{path}` is no JSON: {error}") from error
    if not isinstance(written, dict):
        raise CorruptError(f"`{path}` holds {type(written).__name__}, and a JSON object was meant")
    return decode_statics(written)


def write_statics(folder: str | os.PathLike[str], statics: Mapping[str, Any]) -> None:
    """Put statics in the place of those of the episode in `folder`, on the disk."""
    text = json.dumps(encode_statics(statics), ensure_ascii=False, allow_nan=False, indent=1)
    with whole_file(Path(folder, STATICS), overwrite=True) as file:
        file.write(text.encode())


def _plain(where: str, value: Any, depth: int, *, binary: bool) -> Any:  # noqa: PLR0911 - a case each
    if value is None or isinstance(value, (bool, np.bool_)):
        return value if value is None else bool(value)
    if isinstance(value, (int, np.integer)) and not isinstance(value, np.timedelta64):
        return int(value)
    if isinstance(value, (float, np.floating)):
        return _finite(where, float(value))
    if isinstance(value, str):
        return _text(where, value)
    if binary and isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    if depth == _DEEPEST:
        raise InvalidError(f"{where} goes deeper than {_DEEPEST} levels, or holds itself")
    if isinstance(value, (list, tuple)):
        return [
            _plain(f"{where}[{place}]", item, depth + 1, binary=binary)
            for place, item in enumerate(value)
        ]
    if isinstance(value, Mapping):
        return {
            _key(where, key): _plain(f"{where}[{key!r}]", item, depth + 1, binary=binary)
            for key, item in value.items()
        }
    hint = "value.tolist() makes lists of it" if isinstance(value, np.ndarray) else None
    raise InvalidError(f"{where} is {type_name(type(value))}, which JSON has not", hint=hint)


def _finite(where: str, value: float) -> float:
    if not math.isfinite(value):
        raise InvalidError(
            f"{where} is {value}, which JSON has not", hint="None says there is none"
        )
    return value


def _key(where: str, key: Any) -> str:
    if not isinstance(key, str):
        raise InvalidError(f"{where} has the key {key!r}, and keys in JSON are strings")
    return _text(f"a key of {where}", key)


def _text(where: str, value: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise InvalidError(f"{where} cannot be stored as UTF-8: {value!r}") from error
    return str(value)


def _encoded(value: Any) -> Any:
    if isinstance(value, bytes):
        return {_BYTES: base64.b64encode(value).decode()}
    if isinstance(value, list):
        return [_encoded(item) for item in value]
    if isinstance(value, dict):
        return {_escaped(key): _encoded(item) for key, item in value.items()}
    return value


def _decoded(value: Any) -> Any:
    if isinstance(value, list):
        return [_decoded(item) for item in value]
    if not isinstance(value, dict):
        return value
    if value.keys() == {_BYTES} and isinstance(value[_BYTES], str):
        try:
            return base64.b64decode(value[_BYTES], validate=True)
        except (binascii.Error, ValueError):
            return dict(value)  # written by somebody else, who meant what it says
    return {_unescaped(key): _decoded(item) for key, item in value.items()}


def _escaped(key: str) -> str:
    return f"${key}" if _LIKE_BYTES.fullmatch(key) else key


def _unescaped(key: str) -> str:
    return key[1:] if key != _BYTES and _LIKE_BYTES.fullmatch(key) else key
