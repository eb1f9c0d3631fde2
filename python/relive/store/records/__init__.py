"""Record stores: records in a directory that are appended, changed, deleted and read."""

from relive.store.records.report import Problem, Report, validate
from relive.store.records.store import RecordStore
from relive.store.records.view import FieldView

__all__ = ["FieldView", "Problem", "RecordStore", "Report", "validate"]
