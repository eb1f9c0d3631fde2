"""The records as Arrow record batches of one fixed-size list column, `data`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benches.peers import module

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benches.data import Case

_CHUNK_BYTES = 32 << 20


def arrow_schema(case: Case) -> Any:
    """One column: `record_bytes` values of uint8 per row."""
    arrow = module("pyarrow")
    return arrow.schema([("data", arrow.list_(arrow.uint8(), case.record_bytes))])


def arrow_batches(case: Case) -> Iterator[Any]:
    """The whole file, in chunks that fit in memory."""
    arrow = module("pyarrow")
    schema = arrow_schema(case)
    mapped = case.memmap()
    step = max(1, _CHUNK_BYTES // case.record_bytes)
    for start in range(0, case.records, step):
        values = arrow.array(mapped[start : start + step].reshape(-1))
        column = arrow.FixedSizeListArray.from_arrays(values, case.record_bytes)
        yield arrow.RecordBatch.from_arrays([column], schema=schema)
