"""relive keeps what agents live through, and lets models live it again."""

from typing import TYPE_CHECKING

from relive import errors
from relive._open import open  # noqa: A004 - its public name
from relive.bridge import convert
from relive.load import DataLoader, Sampler
from relive.model import Field, Ragged, Ref, Source
from relive.store import ArraySource
from relive.store.pack import PackReader, PackWriter
from relive.store.records import RecordStore
from relive.store.runs import Run

__all__ = [
    "ArraySource",
    "DataLoader",
    "Field",
    "PackReader",
    "PackWriter",
    "Ragged",
    "RecordStore",
    "Ref",
    "Run",
    "Sampler",
    "Source",
    "convert",
    "errors",
    "open",
]

if TYPE_CHECKING:
    __version__: str
else:

    def __getattr__(name: str) -> str:
        """Look up `__version__` when it is first asked for: that takes longer than the import."""
        if name != "__version__":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib.metadata import version

        found = globals()["__version__"] = version("relive")
        return found


del TYPE_CHECKING
