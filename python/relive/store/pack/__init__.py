"""Packs: any number of payloads in one immutable file, each found by its position."""

from relive.store.pack.iterate import Batches, Entries
from relive.store.pack.kinds import register_kind
from relive.store.pack.merge import merge, subset
from relive.store.pack.reader import PackReader
from relive.store.pack.stats import PackStats
from relive.store.pack.steps import PackSteps
from relive.store.pack.validate import Problem, Report, validate
from relive.store.pack.writer import PackWriter, Recovered, recover

__all__ = [
    "Batches",
    "Entries",
    "PackReader",
    "PackStats",
    "PackSteps",
    "PackWriter",
    "Problem",
    "Recovered",
    "Report",
    "merge",
    "recover",
    "register_kind",
    "subset",
    "validate",
]
