"""Other people's formats, read into relive's and written from them."""

from relive.bridge.convert import Conversion, convert
from relive.bridge.infer import infer_fields

__all__ = ["Conversion", "convert", "infer_fields"]
