"""The footer of a signal's Parquet file or of a video's index, and reading columns by it."""

import contextlib
import functools
import json
import operator
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from relive.errors import CorruptError, ReliveError, UnsupportedError
from relive.model.clock import Times
from relive.store.atomic import check_file, storage_error
from relive.store.signal.arrow_values import BadRowError, one_array, times_from_arrow
from relive.store.signal.checksums import CheckedSource, Pieces, read_footer
from relive.store.signal.meta import CHECKSUMS, KEY, SPAN

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow import parquet as pq

CLOCK: Final = "clock."
"""The prefix of the column of a further clock."""
# Written by positronic: one column of times for each timeline.
_TIMELINE: Final = "ts."
_MAIN_TIMELINE: Final = "ts.recorded"


class ParquetFooter:
    """What the footer of one file contains. The file is not kept open. Thread-safe.

    A file that is damaged, or was changed after its footer was read, is a `CorruptError` that
    names it.

    Args:
        path: The path of the file.
        time_column: The column of timestamps in files that relive writes.
        sha256: `Footer.sha256` of the file, if it is known from elsewhere; otherwise the footer
            is compared with the checksum before it, if there is one.
    """

    def __init__(
        self, path: str | os.PathLike[str], time_column: str, sha256: str | None = None
    ) -> None:
        import pyarrow as pa
        from pyarrow import parquet as pq

        self._path = os.fspath(path)
        self.dictionary_columns: list[str] = []
        """Columns in which a repeated string is read as one object."""
        with self.naming_errors():
            footer = read_footer(self._path)
            if sha256 is None:
                footer.check()
            elif footer.sha256 != sha256:
                raise CorruptError("the SHA-256 of its footer is not the one that was recorded")
            self._block = footer.block
            self.identity = _identity(footer.status)
            """Differs between two versions of the file."""
            file = pq.ParquetFile(pa.BufferReader(footer.data))
            self.metadata = file.metadata
            self.schema = file.schema_arrow
            groups = range(self.metadata.num_row_groups)
            counts = [self.metadata.row_group(group).num_rows for group in groups]
            if min(counts, default=0) < 0:
                raise CorruptError("a row group has a negative number of rows")
            self.starts = np.cumsum([0, *counts], dtype=np.int64)
            """The first row of each row group, and the number of rows."""
            self.rows = int(self.starts[-1])
            self.time_column, self.clocks = _find_times(self.schema.names, time_column)
            """The column of timestamps; and the columns of further clocks, by their names."""
            self.check_column(self.time_column)
            stored = self.metadata.metadata or {}
            self.about: Any = json.loads(stored[KEY]) if KEY in stored else None
            """The metadata that relive wrote; None in files of other programs."""
            self.span: tuple[int, int] | None = None
            """The first and the last timestamp, if relive wrote them."""
            if self.about is not None and SPAN in stored and self.rows:
                rows, first, last = map(operator.index, json.loads(stored[SPAN]))
                if rows != self.rows:
                    raise CorruptError(f"the file has {self.rows} rows, expected {rows}")
                self.span = first, last

    def check_column(self, name: str) -> None:
        """Check that there is exactly one column of a name."""
        count = self.schema.names.count(name)
        if count != 1:
            raise CorruptError(f"the file has {count} columns named `{name}`, expected one")

    def read(self, names: list[str], group: int | None = None) -> "dict[str, pa.Array]":
        """Read columns, of one row group or of all; they are compared with their checksums."""
        with self._open() as file:
            if group is None:
                table = file.read(columns=names, use_threads=False)
            else:
                table = file.read_row_group(group, columns=names, use_threads=False)
        rows = self.rows
        if group is not None:
            rows = int(self.starts[group + 1] - self.starts[group])
        if len(table) != rows:  # a page with a damaged header is skipped
            raise CorruptError(f"the column `{names[0]}` has {len(table)} rows, expected {rows}")
        return {name: one_array(table.column(name)) for name in names}

    def read_times(self, name: str) -> Times:
        """Read a column of times, as read-only nanoseconds."""
        with self.naming_errors():
            return times_from_arrow(self.read([name])[name])

    @functools.cached_property
    def _pieces(self) -> Pieces | None:
        """The checksums of everything before the footer; None if the file has none."""
        return Pieces(self._block) if self._block else None

    def check_bytes(self) -> None:
        """Compare everything before the footer with its checksums, if it has any."""
        if self._pieces is not None:
            with self.naming_errors():
                self._pieces.check(self._path)

    def check_checksums(self) -> bool:
        """Return whether the file has checksums; it is damaged if it has lost them."""
        if not self._block and isinstance(self.about, dict) and CHECKSUMS in self.about:
            raise CorruptError(
                f"`{self._path}` has no checksums, but its metadata states that it has: it is "
                "damaged, or another program wrote it"
            )
        return bool(self._block)

    def unreadable_groups(self) -> Iterator[tuple[int, str]]:
        """Read all columns; yield the first row and the error of each row group that fails."""
        for group, first in enumerate(self.starts[:-1].tolist()):
            try:
                with self.naming_errors(first), self._open() as file:
                    file.read_row_group(group, use_threads=False)
            except CorruptError as error:
                yield first, error.message

    @contextlib.contextmanager
    def naming_errors(self, first_row: int = 0) -> Iterator[None]:
        """Add the path to errors; `BadRowError` counts rows from `first_row`."""
        import pyarrow as pa

        try:
            yield
        except BadRowError as error:
            raise CorruptError(
                f"`{self._path}`: row {first_row + error.row} {error.reason}"
            ) from error
        except UnsupportedError as error:
            raise UnsupportedError(f"`{self._path}`: {error.message}", hint=error.hint) from error
        except (OSError, ValueError, TypeError, LookupError, pa.ArrowException) as error:
            is_relive = isinstance(error, ReliveError)
            if isinstance(error, OSError) and error.errno is not None and not is_relive:
                raise storage_error(error, self._path, "read") from error
            check_file(self._path)
            reason = str(error).partition("\n")[0]
            raise CorruptError(
                f"`{self._path}` is damaged or is not a signal file: {reason}"
            ) from error

    @contextlib.contextmanager
    def _open(self) -> "Iterator[pq.ParquetFile]":
        import pyarrow as pa
        from pyarrow import parquet as pq

        if self.identity != _identity(os.stat(self._path)):  # noqa: PTH116 - faster than a Path
            raise CorruptError("the file was changed after it was opened")
        pieces = self._pieces
        plain = os.fsencode(self._path)  # Arrow takes only UTF-8 as text
        with pa.OSFile(plain) if pieces is None else CheckedSource(self._path, pieces) as file:
            # Without threads, which a forked process would not have.
            yield pq.ParquetFile(
                file,
                metadata=self.metadata,
                read_dictionary=self.dictionary_columns,
                pre_buffer=False,
                page_checksum_verification=pieces is None,
            )


def _identity(status: os.stat_result) -> tuple[int, ...]:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _find_times(names: Sequence[str], usual: str) -> tuple[str, Mapping[str, str]]:
    """Return the column of timestamps, and those of further clocks by the clocks' names.

    Without a column `usual`, positronic's `ts.recorded` is it, or else the first `ts.NAME`; the
    other `ts.NAME` are clocks.
    """
    clocks = {name.removeprefix(CLOCK): name for name in names if name.startswith(CLOCK)}
    timelines = [name for name in names if name.startswith(_TIMELINE)]
    if usual in names or not timelines:
        return usual, clocks
    main = _MAIN_TIMELINE if _MAIN_TIMELINE in timelines else timelines[0]
    others = {name.removeprefix(_TIMELINE): name for name in timelines if name != main}
    return main, others | clocks
