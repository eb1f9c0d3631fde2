"""relive keeps what agents live through, and lets models live it again."""

from relive import errors
from relive.load import DataLoader, Sampler
from relive.model import Field, Ragged, Ref, Source
from relive.store import ArraySource

__all__ = [
    "ArraySource",
    "DataLoader",
    "Field",
    "Ragged",
    "Ref",
    "Sampler",
    "Source",
    "errors",
]
