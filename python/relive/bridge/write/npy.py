"""Write one field of fixed size as a `.npy` file."""

import contextlib
from pathlib import Path
from typing import Any, Final

import numpy as np

from relive.bridge.stream import Stream, read_ahead
from relive.errors import InvalidError, UnsupportedError
from relive.model.report import Progress
from relive.model.schema import Field
from relive.store.atomic import whole_file

_MAGIC: Final = b"\x93NUMPY\x01\x00"
_DIGITS: Final = 20
_ALIGN: Final = 64


def write_npy(stream: Stream, target: Path, *, overwrite: bool, progress: Progress | None) -> int:
    """Write the only field of a stream as an array, and return the number of rows.

    Several fields, rows of different sizes and missing values are errors. The file appears when
    it is complete.
    """
    fields = stream.fields
    if len(fields) != 1:
        raise InvalidError(
            f"a .npy file can hold only one field, got {', '.join(map(repr, fields))}",
            hint=f"select one: fields=[{next(iter(fields))!r}]",
        )
    ((name, field),) = fields.items()
    dtype = field.array_dtype
    if not field.fixed or np.dtype(np.lib.format.dtype_to_descr(dtype)) != dtype:
        raise UnsupportedError(
            f"field {name!r} has the type {field!r}, which a .npy file cannot hold",
            hint="write a record store or a .parquet file, which hold values of any size",
        )
    done = 0
    with (
        whole_file(target, overwrite=overwrite) as file,
        contextlib.closing(read_ahead(stream, progress)) as batches,
    ):
        file.write(_header(field, 0))
        for batch in batches:
            column: Any = batch.columns[name]
            if isinstance(column, list):
                row = next((k for k, value in enumerate(column) if value is None), 0)
                raise UnsupportedError(
                    f"row {done + row}: field {name!r} has no value, but a .npy file cannot hold "
                    "missing values",
                    hint="write a record store or a .parquet file",
                )
            file.write(np.ascontiguousarray(column).tobytes())
            done += batch.rows
        file.seek(0)
        file.write(_header(field, done))
    return done


def _header(field: Field, rows: int) -> bytes:
    """Return a header whose length does not depend on the number of rows."""
    header = {
        "descr": np.lib.format.dtype_to_descr(field.array_dtype),
        "fortran_order": False,
        "shape": (rows, *field.shape),
    }
    text = repr(header).encode("latin1")
    room = len(text) - len(str(rows)) + _DIGITS
    size = -(-(len(_MAGIC) + 2 + room + 1) // _ALIGN) * _ALIGN - len(_MAGIC) - 2
    return _MAGIC + size.to_bytes(2, "little") + text.ljust(size - 1) + b"\n"
