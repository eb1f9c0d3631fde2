"""relive keeps what agents live through, and lets models live it again."""

from typing import TYPE_CHECKING

from relive import errors
from relive._open import open  # noqa: A004 - its public name
from relive.bridge import convert
from relive.load import DataLoader, Sampler
from relive.model import Field, Ragged, Ref, Source
from relive.model.episode import Episode
from relive.model.signal import Signal
from relive.store import ArraySource
from relive.store.pack import PackReader, PackWriter
from relive.store.records import RecordStore
from relive.store.runs import Run

__all__ = [
    "ArraySource",
    "DataLoader",
    "Episode",
    "Field",
    "LocalDataset",
    "LocalDatasetWriter",
    "PackReader",
    "PackWriter",
    "Ragged",
    "RecordStore",
    "Ref",
    "Run",
    "Sampler",
    "Signal",
    "Source",
    "convert",
    "errors",
    "open",
]

if TYPE_CHECKING:
    from relive.episodes import LocalDataset, LocalDatasetWriter

    __version__: str
else:

    def __getattr__(name: str) -> object:
        """Look up, when first asked for, what takes longer than all the rest to import."""
        if name == "__version__":
            from importlib.metadata import version

            found = version("relive")
        elif name in ("LocalDataset", "LocalDatasetWriter"):
            from relive import episodes  # it reads and writes Parquet

            found = getattr(episodes, name)
        else:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        globals()[name] = found
        return found

    def __dir__() -> list[str]:
        """Give every public name, also those that nobody has asked for yet."""
        return sorted({*globals(), *__all__, "__version__"})


del TYPE_CHECKING
