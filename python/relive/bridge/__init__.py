"""Read other formats into record stores, and write Parquet and NumPy files."""

from relive.bridge.convert import Conversion, convert
from relive.model.columns.infer import infer_fields

__all__ = ["Conversion", "convert", "infer_fields"]
