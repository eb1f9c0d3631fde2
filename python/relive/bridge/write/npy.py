"""One field of fixed size as a `.npy` file."""

import contextlib
from pathlib import Path
from typing import Any, Final

import numpy as np

from relive.bridge.ahead import ahead
from relive.bridge.stream import Stream
from relive.bridge.write.record_store import Progress
from relive.errors import InvalidError, UnsupportedError
from relive.model.schema import Field
from relive.store.atomic import whole_file

__all__ = ["write_npy"]

_MAGIC: Final = b"\x93NUMPY\x01\x00"
_DIGITS: Final = 20
_ALIGN: Final = 64


def write_npy(stream: Stream, target: Path, *, overwrite: bool, progress: Progress | None) -> int:
    """Write the one field of a stream as an array, whole or not at all; give the rows.

    Several fields, rows of different size and missing values are errors: an array has no
    place for them.
    """
    fields = stream.fields
    if len(fields) != 1:
        raise InvalidError(
            f"a .npy file holds one field, and there is {', '.join(map(repr, fields))}",
            hint=f"choose one: fields=[{next(iter(fields))!r}]",
        )
    ((name, field),) = fields.items()
    dtype = field.array_dtype
    if not field.fixed or np.dtype(np.lib.format.dtype_to_descr(dtype)) != dtype:
        raise UnsupportedError(
            f"field {name!r} is {field!r}, which a .npy file cannot hold",
            hint="a record store and .parquet hold values of any size",
        )
    done, total = 0, stream.total
    with (
        whole_file(target, overwrite=overwrite) as file,
        contextlib.closing(ahead(stream.chunks(0))) as chunks,
    ):
        file.write(_header(field, 0))
        for chunk in chunks:
            column: Any = chunk.columns[name]
            if isinstance(column, list):
                row = next((k for k, value in enumerate(column) if value is None), 0)
                raise UnsupportedError(
                    f"row {done + row}: field {name!r} has no value, and an array has no gaps",
                    hint="a record store and .parquet keep missing values",
                )
            file.write(np.ascontiguousarray(column).tobytes())
            done += chunk.rows
            if progress is not None:
                progress(done, total)
        file.seek(0)
        file.write(_header(field, done))
    return done


def _header(field: Field, rows: int) -> bytes:
    """Give a header of one length whatever the number of rows, to be written again at the end."""
    told = {
        "descr": np.lib.format.dtype_to_descr(field.array_dtype),
        "fortran_order": False,
        "shape": (rows, *field.shape),
    }
    text = repr(told).encode("latin1")
    room = len(text) - len(str(rows)) + _DIGITS
    size = -(-(len(_MAGIC) + 2 + room + 1) // _ALIGN) * _ALIGN - len(_MAGIC) - 2
    return _MAGIC + size.to_bytes(2, "little") + text.ljust(size - 1) + b"\n"
