"""relive records episodes and runs, stores, publishes and loads them for training."""

from relive import _command  # isort: skip  # noqa: F401 - Ctrl-C may come while the others are imported

from typing import TYPE_CHECKING

from relive import errors
from relive._open import open  # noqa: A004 - its public name
from relive.bridge import convert
from relive.load import DataLoader, PrioritizedSampler, Sampler
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
    "DatasetBuilder",
    "Episode",
    "Field",
    "FrameRef",
    "FrameResolver",
    "LiveLane",
    "LocalDataset",
    "LocalDatasetWriter",
    "PackReader",
    "PackWriter",
    "PrioritizedSampler",
    "Ragged",
    "RecordStore",
    "Ref",
    "ReplayRecorder",
    "ReplayRun",
    "Run",
    "Sampler",
    "Signal",
    "Source",
    "convert",
    "dataset",
    "errors",
    "open",
]

if TYPE_CHECKING:
    from relive import episodes as episodes
    from relive import publish as publish
    from relive import replay as replay
    from relive import view as view
    from relive.episodes import LocalDataset, LocalDatasetWriter
    from relive.publish import DatasetBuilder, dataset
    from relive.replay import FrameRef, FrameResolver, LiveLane, ReplayRecorder, ReplayRun

    __version__: str
else:
    # Imported when first used: `relive.episodes` and `relive.publish` import pyarrow, and
    # `relive.replay` sqlite3.
    _LAZY = {
        "DatasetBuilder": "relive.publish",
        "FrameRef": "relive.replay",
        "FrameResolver": "relive.replay",
        "LiveLane": "relive.replay",
        "LocalDataset": "relive.episodes",
        "LocalDatasetWriter": "relive.episodes",
        "ReplayRecorder": "relive.replay",
        "ReplayRun": "relive.replay",
        "dataset": "relive.publish",
    }
    _LAZY_MODULES = {"episodes", "publish", "replay", "view"}

    def __getattr__(name: str) -> object:
        """Import the names of `_LAZY` and `_LAZY_MODULES` when they are first used."""
        from importlib import import_module

        if name == "__version__":
            value = import_module("importlib.metadata").version("relive")
        elif name in _LAZY:
            value = getattr(import_module(_LAZY[name]), name)
        elif name in _LAZY_MODULES:
            value = import_module(f"relive.{name}")
        else:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        """Return every public name, including those not yet imported."""
        return sorted({*globals(), *__all__, "__version__"})


del TYPE_CHECKING
