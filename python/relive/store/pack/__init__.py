"""Packs: any number of payloads in one immutable file, each read by its position."""

from relive.store.pack.iterate import Batches, Entries
from relive.store.pack.kinds import register_kind
from relive.store.pack.merge import merge, subset
from relive.store.pack.reader import PackReader
from relive.store.pack.stats import PackStats
from relive.store.pack.steps import PackSteps
from relive.store.pack.validate import validate
from relive.store.pack.writer import PackWriter, Recovered, recover

__all__ = [
    "Batches",
    "Entries",
    "PackReader",
    "PackStats",
    "PackSteps",
    "PackWriter",
    "Recovered",
    "merge",
    "recover",
    "register_kind",
    "subset",
    "validate",
]
