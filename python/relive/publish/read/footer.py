"""The Parquet footer of a shard: its row groups, and where their column chunks are."""

from collections.abc import Iterable, Sequence
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
from pyarrow import parquet as pq

from relive.errors import CorruptError

Path: TypeAlias = tuple[str, ...]
"""The name of a column, followed by the names of struct fields inside it."""

_MAGIC_BYTES: Final = 4


class ShardFooter:
    """What the footer of one shard contains. Thread-safe.

    Args:
        data: The last bytes of the file, from the beginning of the metadata on; verified.
        size: The size of the file in bytes.
        name: The name of the file in messages.
    """

    def __init__(self, data: Any, size: int, name: str) -> None:
        self.name = name
        self.size = size
        self.data = data
        try:
            file = pq.ParquetFile(pa.BufferReader(data))
            self.metadata: pq.FileMetaData = file.metadata
            self.schema: pa.Schema = file.schema_arrow
            groups = map(self.metadata.row_group, range(self.metadata.num_row_groups))
            counts = [group.num_rows for group in groups]
        except (pa.ArrowException, OSError) as error:
            raise CorruptError(f"the footer of {name} is damaged: {error}") from error
        if min(counts, default=0) < 0 or sum(counts) != self.metadata.num_rows:
            raise CorruptError(f"the footer of {name} is damaged: wrong numbers of rows")
        self.starts = np.cumsum([0, *counts], dtype=np.int64)
        """The first row of each row group, and the number of rows."""
        self._leaves: dict[str, range] = {}
        first = 0
        for field in self.schema:
            count = leaf_count(field.type)
            self._leaves[field.name] = range(first, first + count)
            first += count
        if first != self.metadata.num_columns:
            raise CorruptError(
                f"the footer of {name} is damaged: {self.metadata.num_columns} column chunks "
                f"for the schema {self.schema}"
            )

    @property
    def rows(self) -> int:
        """The number of rows."""
        return int(self.starts[-1])

    @property
    def groups(self) -> int:
        """The number of row groups."""
        return len(self.starts) - 1

    def group_rows(self, group: int) -> int:
        """Return the number of rows of a row group."""
        return int(self.starts[group + 1] - self.starts[group])

    def has(self, column: str) -> bool:
        """Return whether the file has a column."""
        return column in self._leaves

    def leaves(self, columns: Iterable[str]) -> list[int]:
        """Return the numbers of the Parquet columns that make up those of `columns` it has."""
        return [leaf for name in columns for leaf in self._leaves.get(name, ())]

    def leaf(self, path: Path) -> tuple[int, pa.DataType] | None:
        """Return the Parquet column and the type of one value; None if it is not one column."""
        leaf, kind = self._leaves[path[0]].start, self.schema.field(path[0]).type
        for name in path[1:]:
            if not pa.types.is_struct(kind) or (position := kind.get_field_index(name)) < 0:
                return None
            leaf += sum(leaf_count(kind.field(k).type) for k in range(position))
            kind = kind.field(position).type
        return None if pa.types.is_nested(kind) else (leaf, kind)

    def ranges(self, group: int, leaves: Sequence[int]) -> list[tuple[int, int]]:
        """Return the first byte and the end of the column chunks of a row group."""
        row_group = self.metadata.row_group(group)
        ranges = []
        for leaf in leaves:
            chunk = row_group.column(leaf)
            start = chunk.data_page_offset
            if chunk.has_dictionary_page:
                # Some writers record the offset 0 for a dictionary that is not there.
                start = min(start, chunk.dictionary_page_offset or start)
            stop = start + chunk.total_compressed_size
            if not _MAGIC_BYTES <= start <= stop <= self.size:
                raise CorruptError(
                    f"the footer of {self.name} is damaged: column chunk {leaf} of row group "
                    f"{group} is outside of the file"
                )
            ranges.append((start, stop))
        return ranges

    def decoded_bytes(self, group: int, leaves: Sequence[int]) -> int:
        """Return about how many bytes the columns of a row group take when decompressed."""
        row_group = self.metadata.row_group(group)
        return sum(max(0, row_group.column(leaf).total_uncompressed_size) for leaf in leaves)


def leaf_count(kind: pa.DataType) -> int:
    """Return of how many Parquet columns a column of this type consists."""
    if isinstance(kind, pa.BaseExtensionType):
        return leaf_count(kind.storage_type)
    if pa.types.is_dictionary(kind) or not pa.types.is_nested(kind):
        return 1
    return sum(leaf_count(kind.field(k).type) for k in range(kind.num_fields))
