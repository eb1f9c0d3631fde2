"""The vocabulary: what a source, a field, a ragged batch and a reference are. No I/O.

`relive.model.split.split` is not repeated here: the name belongs to its module.
"""

from relive.model.ragged import Packed, Ragged, bucket_by_length, length_batches
from relive.model.ref import Ref
from relive.model.schema import Field
from relive.model.select import Subset
from relive.model.source import Batch, Indices, Row, Source, as_indices, check_out, pick_fields

__all__ = [
    "Batch",
    "Field",
    "Indices",
    "Packed",
    "Ragged",
    "Ref",
    "Row",
    "Source",
    "Subset",
    "as_indices",
    "bucket_by_length",
    "check_out",
    "length_batches",
    "pick_fields",
]
