"""The vocabulary: what a source, a field, a ragged batch and a reference are. No I/O.

`relive.model.split.split` is not repeated here: the name belongs to its module.
"""

from relive.model.ragged import Packed, Ragged, bucket_by_length, length_batches
from relive.model.ref import Ref
from relive.model.schema import Field
from relive.model.select import Subset
from relive.model.source import Batch, Row, Source

__all__ = [
    "Batch",
    "Field",
    "Packed",
    "Ragged",
    "Ref",
    "Row",
    "Source",
    "Subset",
    "bucket_by_length",
    "length_batches",
]
