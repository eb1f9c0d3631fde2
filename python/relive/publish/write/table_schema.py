"""The one schema that the parts of a table share.

Parts may have their columns in another order and may lack nullable ones; any other difference is
a `SchemaError` that names the part and the column.
"""

from typing import TYPE_CHECKING

from relive.errors import SchemaError
from relive.publish.write.parquet_schema import check_columns

if TYPE_CHECKING:
    import pyarrow as pa


class SharedSchema:
    """The schema of a table of several parts: every column in the order of its first appearance.

    Args:
        schema: The schema of the first part.
        part: What the first part is, for messages: "`data/a.parquet`".
    """

    def __init__(self, schema: "pa.Schema", part: str) -> None:
        check_columns(schema, part)
        self.schema = schema
        self._first = part
        self._sources = dict.fromkeys(schema.names, part)
        # Columns that not every part has, and one part that lacks it.
        self._lacking: dict[str, str] = {}

    def add(self, schema: "pa.Schema", part: str) -> None:
        """Add the schema of a further part."""
        if schema.equals(self.schema, check_metadata=False):
            return
        check_columns(schema, part)
        for field in schema:
            if field.name in self._sources:
                self._compare(field, part)
            else:
                self._lacking[field.name] = self._first
                self._sources[field.name] = part
                self.schema = self.schema.append(field)
        for name in set(self._sources).difference(schema.names):
            self._lacking.setdefault(name, part)
        for name, lacking in self._lacking.items():
            if not self.schema.field(name).nullable:
                raise SchemaError(
                    f"{lacking} has no column `{name}`, which is not nullable in "
                    f"{self._sources[name]}",
                    hint="only nullable columns may be missing",
                )

    def _compare(self, field: "pa.Field", part: str) -> None:
        known = self.schema.field(field.name)
        source = self._sources[field.name]
        if not field.type.equals(known.type):
            raise SchemaError(
                f"column `{field.name}` of {part} is {field.type}, but {known.type} in {source}",
                hint="all parts of a table must have the same types: cast the column, "
                "or add the parts as tables of their own",
            )
        if field.nullable != known.nullable:
            words = {True: "nullable", False: "not nullable"}
            raise SchemaError(
                f"column `{field.name}` of {part} is {words[field.nullable]}, but "
                f"{words[known.nullable]} in {source}",
                hint="write the files with one schema",
            )


def conformed(batch: "pa.RecordBatch", schema: "pa.Schema") -> "pa.RecordBatch":
    """Return a batch of a part with the columns of the shared schema; missing ones are null."""
    import pyarrow as pa

    if batch.schema.equals(schema, check_metadata=True):
        return batch
    present = set(batch.schema.names)
    columns = [
        batch.column(field.name) if field.name in present else pa.nulls(batch.num_rows, field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
