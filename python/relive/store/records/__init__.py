"""Record stores: records in a directory that are appended, changed, deleted and read."""

from relive.store.records.field_view import FieldView
from relive.store.records.store import RecordStore
from relive.store.records.validate import validate

__all__ = ["FieldView", "RecordStore", "validate"]
